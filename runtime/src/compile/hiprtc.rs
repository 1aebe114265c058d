//! hiprtc in this process: for workers, for apps that cannot spawn, and where ROCm is installed natively.
//!
//! A kernel that the compiler aborts on ends this process; use [`super::WorkerPool`] where that must not be.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use dylib::{Loaded, Search};
use hiprtc_sys::{HiprtcLibrary, hiprtcProgram, hiprtcResult};
use ir::target::Platform;

use super::disassemble::{Disassembler, Listing};
use super::texts::Texts;
use super::{CompileError, CompileRequest, CompiledObject, Compiler, Failure, device_libraries, identity};

/// The compiler, loaded into this process. One compile at a time: its back end holds one lock anyway.
#[derive(Debug)]
pub struct InProcess {
    api: Loaded<HiprtcLibrary>,
    identity: String,
    search: Search,
    disassembler: OnceLock<Result<Disassembler, CompileError>>,
    one_at_a_time: Mutex<()>,
}

impl InProcess {
    /// Loads hiprtc where `search` finds it.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] with every place looked at.
    pub fn load(search: &Search) -> Result<InProcess, CompileError> {
        let api = hiprtc_sys::load(search).map_err(|error| CompileError::not_found(Platform::Hip, error))?;
        let file = identity::mapped_file(&api.path);
        let identity = match file.and_then(|file| identity::of_library(&file, &identity::HIPRTC)) {
            Some(identity) => identity,
            None => version(&api)?,
        };
        Ok(InProcess {
            api,
            identity,
            search: search.clone(),
            disassembler: OnceLock::new(),
            one_at_a_time: Mutex::new(()),
        })
    }
}

impl Compiler for InProcess {
    fn identity(&self, _platform: Platform) -> Result<String, CompileError> {
        Ok(self.identity.clone())
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        let _one = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let arch = format!("--offload-arch={}", request.arch);
        let file = identity::mapped_file(&self.api.path);
        let libraries = file.and_then(|file| device_libraries::option(&request.arch, &file));
        let own: Vec<String> = [arch].into_iter().chain(libraries).collect();
        let texts = Texts::new(request, &own).map_err(|what| invalid(what, request))?;
        let program = Program::new(&self.api, request, &texts)?;
        let (count, options) = texts.options();
        // SAFETY: the program is live; `options` holds `count` C strings that outlive the call.
        let result = unsafe { (self.api.hiprtcCompileProgram)(program.handle, count, options) };
        let log = program.log()?;
        match result {
            hiprtcResult::HIPRTC_SUCCESS => Ok(CompiledObject {
                bytes: program.code()?,
                log,
            }),
            hiprtcResult::HIPRTC_ERROR_COMPILATION => Err(CompileError::Rejected(Box::new(Failure::new(request, log)))),
            other if !log.trim().is_empty() => {
                let log = format!("{}\n{log}", error_name(&self.api, other));
                Err(CompileError::Rejected(Box::new(Failure::new(request, log))))
            }
            other => Err(program.error("hiprtcCompileProgram", other)),
        }
    }

    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        let _one = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self
            .disassembler
            .get_or_init(|| Disassembler::load(&self.search, &self.api.path));
        loaded.as_ref().map_err(Clone::clone)?.run(code)
    }
}

/// `hiprtc 7.2`, where the library's file cannot be found on disk.
fn version(api: &HiprtcLibrary) -> Result<String, CompileError> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let result = unsafe { (api.hiprtcVersion)(&mut major, &mut minor) };
    match result {
        hiprtcResult::HIPRTC_SUCCESS => Ok(format!("hiprtc {major}.{minor}")),
        other => Err(CompileError::Call {
            compiler: "hiprtc".into(),
            kernel: String::new(),
            call: "hiprtcVersion".into(),
            code: other.0,
            message: error_name(api, other),
        }),
    }
}

fn error_name(api: &HiprtcLibrary, result: hiprtcResult) -> String {
    // SAFETY: hiprtcGetErrorString takes any value and returns a static string, or null.
    let text = unsafe { (api.hiprtcGetErrorString)(result) };
    if text.is_null() {
        return "an unknown error".to_string();
    }
    // SAFETY: checked above; the string is static and nul-terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn invalid(message: String, request: &CompileRequest) -> CompileError {
    let code = hiprtcResult::HIPRTC_ERROR_INVALID_INPUT.0;
    CompileError::Call {
        compiler: "hiprtc".into(),
        kernel: request.name.clone(),
        call: "hiprtcCreateProgram".into(),
        code,
        message,
    }
}

/// One hiprtc program; destroyed with the value.
struct Program<'a> {
    api: &'a HiprtcLibrary,
    handle: hiprtcProgram,
    kernel: &'a str,
}

impl<'a> Program<'a> {
    fn new(api: &'a HiprtcLibrary, request: &'a CompileRequest, texts: &Texts) -> Result<Program<'a>, CompileError> {
        let mut handle: hiprtcProgram = ptr::null_mut();
        let (headers, contents, names) = texts.headers();
        // SAFETY: all strings are nul-terminated and outlive the call, which copies them; the arrays hold `headers`
        // pointers each.
        let result = unsafe {
            (api.hiprtcCreateProgram)(
                &mut handle,
                texts.source.as_ptr(),
                texts.name.as_ptr(),
                headers,
                contents,
                names,
            )
        };
        let program = Program {
            api,
            handle,
            kernel: &request.name,
        };
        match result {
            hiprtcResult::HIPRTC_SUCCESS => Ok(program),
            other => Err(program.error("hiprtcCreateProgram", other)),
        }
    }

    fn log(&self) -> Result<String, CompileError> {
        let mut size = 0;
        // SAFETY: the program is live; `size` is a live integer.
        self.check("hiprtcGetProgramLogSize", unsafe {
            (self.api.hiprtcGetProgramLogSize)(self.handle, &mut size)
        })?;
        let mut bytes = vec![0u8; size];
        if size > 0 {
            // SAFETY: the buffer has the size that the library asked for.
            let result = unsafe { (self.api.hiprtcGetProgramLog)(self.handle, bytes.as_mut_ptr().cast()) };
            self.check("hiprtcGetProgramLog", result)?;
        }
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn code(&self) -> Result<Vec<u8>, CompileError> {
        let mut size = 0;
        // SAFETY: the program is live; `size` is a live integer.
        self.check("hiprtcGetCodeSize", unsafe {
            (self.api.hiprtcGetCodeSize)(self.handle, &mut size)
        })?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that the library asked for.
        self.check("hiprtcGetCode", unsafe {
            (self.api.hiprtcGetCode)(self.handle, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }

    fn check(&self, call: &str, result: hiprtcResult) -> Result<(), CompileError> {
        match result {
            hiprtcResult::HIPRTC_SUCCESS => Ok(()),
            other => Err(self.error(call, other)),
        }
    }

    fn error(&self, call: &str, result: hiprtcResult) -> CompileError {
        let message = error_name(self.api, result);
        CompileError::Call {
            compiler: "hiprtc".into(),
            kernel: self.kernel.to_string(),
            call: call.to_string(),
            code: result.0,
            message,
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle came from hiprtcCreateProgram and is destroyed once.
            unsafe { (self.api.hiprtcDestroyProgram)(&mut self.handle) };
        }
    }
}
