//! NVRTC in this process: the same HIP C++ as CUDA C++, to a cubin for one architecture and to PTX.
//!
//! The sources include graphc's own device headers and nothing of CUDA's, so NVRTC alone suffices: its two libraries,
//! no toolkit.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use dylib::{Loaded, Search};
use ir::target::Platform;
use nvrtc_sys::{NvrtcLibrary, nvrtcProgram, nvrtcResult};

use super::texts::Texts;
use super::{CompileError, CompileRequest, CompiledObject, Compiler, Failure, Listing, identity};

/// The option that names the architecture.
const ARCHITECTURE: &str = "--gpu-architecture=";

/// The compiler, loaded into this process. Several threads may compile at once.
#[derive(Debug)]
pub struct Nvrtc {
    api: Loaded<NvrtcLibrary>,
    identity: String,
}

impl Nvrtc {
    /// Loads NVRTC where `search` finds it.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] with every place looked at.
    pub fn load(search: &Search) -> Result<Nvrtc, CompileError> {
        let api = nvrtc_sys::load(search).map_err(|error| CompileError::not_found(Platform::Cuda, error))?;
        let file = identity::mapped_file(&api.path);
        let identity = match file.and_then(|file| identity::of_library(&file, &identity::NVRTC)) {
            Some(identity) => identity,
            None => version(&api)?,
        };
        Ok(Nvrtc { api, identity })
    }

    /// Compiles; the program keeps the results.
    fn run<'a>(&'a self, request: &'a CompileRequest) -> Result<(Program<'a>, String), CompileError> {
        // A spill is told in the log: the cubin has one number for spills and arrays together.
        let mut fixed = vec!["--ptxas-options=--warn-on-spills".to_owned()];
        // A kernel may name an architecture with instructions that are its alone.
        if !request.options.iter().any(|option| option.starts_with(ARCHITECTURE)) {
            fixed.push(format!("{ARCHITECTURE}{}", request.arch));
        }
        let texts = Texts::new(request, &fixed).map_err(|what| invalid(what, request))?;
        let program = Program::new(&self.api, request, &texts)?;
        let (count, options) = texts.options();
        // SAFETY: the program is live; `options` holds `count` C strings that outlive the call.
        let result = unsafe { (self.api.nvrtcCompileProgram)(program.handle, count, options) };
        let log = program.text(
            ("nvrtcGetProgramLogSize", self.api.nvrtcGetProgramLogSize),
            ("nvrtcGetProgramLog", self.api.nvrtcGetProgramLog),
        )?;
        match result {
            nvrtcResult::NVRTC_SUCCESS => Ok((program, log)),
            nvrtcResult::NVRTC_ERROR_COMPILATION => Err(CompileError::Rejected(Box::new(Failure::new(request, log)))),
            other if !log.trim().is_empty() => {
                let log = format!("{}\n{log}", error_name(&self.api, other));
                Err(CompileError::Rejected(Box::new(Failure::new(request, log))))
            }
            other => Err(program.error("nvrtcCompileProgram", other)),
        }
    }
}

impl Compiler for Nvrtc {
    fn identity(&self, _platform: Platform) -> Result<String, CompileError> {
        Ok(self.identity.clone())
    }

    fn parallelism(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        let (program, log) = self.run(request)?;
        let bytes = program.bytes(
            ("nvrtcGetCUBINSize", self.api.nvrtcGetCUBINSize),
            ("nvrtcGetCUBIN", self.api.nvrtcGetCUBIN),
        )?;
        Ok(CompiledObject { bytes, log })
    }

    fn disassemble(&self, _code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        Err(CompileError::Disassembly {
            reason: "NVRTC has no disassembler; ask for the PTX that it made on the way".into(),
        })
    }

    fn assembly(&self, request: &CompileRequest) -> Result<String, CompileError> {
        let (program, _) = self.run(request)?;
        program.text(
            ("nvrtcGetPTXSize", self.api.nvrtcGetPTXSize),
            ("nvrtcGetPTX", self.api.nvrtcGetPTX),
        )
    }
}

/// `NVRTC 12.9`, where the library's file cannot be found on disk.
fn version(api: &NvrtcLibrary) -> Result<String, CompileError> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let result = unsafe { (api.nvrtcVersion)(&mut major, &mut minor) };
    match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(format!("NVRTC {major}.{minor}")),
        other => Err(failed(api, "", "nvrtcVersion", other)),
    }
}

fn error_name(api: &NvrtcLibrary, result: nvrtcResult) -> String {
    // SAFETY: nvrtcGetErrorString takes any value and returns a static string.
    let text = unsafe { (api.nvrtcGetErrorString)(result) };
    if text.is_null() {
        return "an unknown error".to_string();
    }
    // SAFETY: checked above; the string is static and nul-terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn failed(api: &NvrtcLibrary, kernel: &str, call: &str, result: nvrtcResult) -> CompileError {
    CompileError::Call {
        compiler: "NVRTC".into(),
        kernel: kernel.to_string(),
        call: call.to_string(),
        code: result.0,
        message: error_name(api, result),
    }
}

fn invalid(message: String, request: &CompileRequest) -> CompileError {
    CompileError::Call {
        compiler: "NVRTC".into(),
        kernel: request.name.clone(),
        call: "nvrtcCreateProgram".into(),
        code: nvrtcResult::NVRTC_ERROR_INVALID_INPUT.0,
        message,
    }
}

type SizeOf = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult;
type BytesOf = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

/// One NVRTC program; destroyed with the value.
struct Program<'a> {
    api: &'a NvrtcLibrary,
    handle: nvrtcProgram,
    kernel: &'a str,
}

impl<'a> Program<'a> {
    fn new(api: &'a NvrtcLibrary, request: &'a CompileRequest, texts: &Texts) -> Result<Program<'a>, CompileError> {
        let mut handle: nvrtcProgram = ptr::null_mut();
        let (headers, contents, names) = texts.headers();
        // SAFETY: all strings are nul-terminated and outlive the call, which copies them; the arrays hold `headers`
        // pointers each.
        let result = unsafe {
            (api.nvrtcCreateProgram)(
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
            nvrtcResult::NVRTC_SUCCESS => Ok(program),
            other => Err(program.error("nvrtcCreateProgram", other)),
        }
    }

    /// One of the program's results, by the functions that give its size and its bytes.
    fn bytes(&self, size: (&str, SizeOf), get: (&str, BytesOf)) -> Result<Vec<u8>, CompileError> {
        let mut length = 0;
        // SAFETY: the program is live; `length` is a live integer.
        self.check(size.0, unsafe { (size.1)(self.handle, &mut length) })?;
        let mut bytes = vec![0u8; length];
        if length > 0 {
            // SAFETY: the buffer has the size that the library asked for.
            self.check(get.0, unsafe { (get.1)(self.handle, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }

    /// The same as text, up to its nul.
    fn text(&self, size: (&str, SizeOf), get: (&str, BytesOf)) -> Result<String, CompileError> {
        let bytes = self.bytes(size, get)?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn check(&self, call: &str, result: nvrtcResult) -> Result<(), CompileError> {
        match result {
            nvrtcResult::NVRTC_SUCCESS => Ok(()),
            other => Err(self.error(call, other)),
        }
    }

    fn error(&self, call: &str, result: nvrtcResult) -> CompileError {
        failed(self.api, self.kernel, call, result)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
            unsafe { (self.api.nvrtcDestroyProgram)(&mut self.handle) };
        }
    }
}
