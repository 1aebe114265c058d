//! Compiles HIP sources with the installed hiprtc and disassembles what comes out, for the emulator's tests.
//!
//! Usage: `emu-hiprtc-worker SOURCE ARCH OUT [OPTION…]` writes `OUT.co` and `OUT.lst`; on a compile error it
//! writes the log to standard error and exits with 2, without a ROCm with 3.

use graphc_emu::{CodeObject, Comgr, Disassembler, Listing};
use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::ExitCode;

type Program = *mut c_void;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.len() < 3 {
        eprintln!("usage: emu-hiprtc-worker SOURCE ARCH OUT [OPTION...]");
        return ExitCode::from(1);
    }
    match work(&args[0], &args[1], &args[2], &args[3..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

fn work(source: &str, arch: &str, out: &str, options: &[String]) -> Result<(), (u8, String)> {
    let text = std::fs::read_to_string(source).map_err(|error| (1, format!("{source}: {error}")))?;
    let code = compile(&text, arch, options)?;
    let object = CodeObject::load(&code).map_err(|error| (1, error.to_string()))?;
    let comgr = Comgr::open().map_err(|error| (3, error.to_string()))?;
    let (start, size) = object.text();
    let bytes = &object.image()[start as usize..(start + size) as usize];
    let lines = comgr
        .disassemble(object.target(), start, bytes)
        .map_err(|error| (1, error.to_string()))?;
    std::fs::write(format!("{out}.lst"), Listing::print(&lines)).map_err(|error| (1, error.to_string()))?;
    std::fs::write(format!("{out}.co"), &code).map_err(|error| (1, error.to_string()))
}

fn compile(source: &str, arch: &str, options: &[String]) -> Result<Vec<u8>, (u8, String)> {
    let library = ["libhiprtc.so.7", "libhiprtc.so", "libhiprtc.so.6", "libamdhip64.so"]
        .into_iter()
        // SAFETY: loading ROCm's own library runs only its initialisers.
        .find_map(|name| unsafe { Library::new(name) }.ok())
        .ok_or((3, "libhiprtc could not be loaded".to_string()))?;
    // It stays: LLVM, which came with it, does not bear a second comgr.
    let library: &'static Library = Box::leak(Box::new(library));
    type Create = unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
    type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
    type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
    // SAFETY: the types are those of hip/hiprtc.h, the strings and buffers live through the calls.
    unsafe {
        let missing = |error: libloading::Error| (3, error.to_string());
        let create: Symbol<'_, Create> = library.get(b"hiprtcCreateProgram").map_err(missing)?;
        let build: Symbol<'_, Compile> = library.get(b"hiprtcCompileProgram").map_err(missing)?;
        let log_size: Symbol<'_, Size> = library.get(b"hiprtcGetProgramLogSize").map_err(missing)?;
        let log: Symbol<'_, Get> = library.get(b"hiprtcGetProgramLog").map_err(missing)?;
        let code_size: Symbol<'_, Size> = library.get(b"hiprtcGetCodeSize").map_err(missing)?;
        let code: Symbol<'_, Get> = library.get(b"hiprtcGetCode").map_err(missing)?;
        let source = CString::new(source).map_err(|error| (1, error.to_string()))?;
        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        let status = create(&mut program, source.as_ptr(), c"kernel.hip".as_ptr(), 0, none, none);
        if status != 0 {
            return Err((1, format!("hiprtcCreateProgram: {status}")));
        }
        let mut owned = vec![CString::new(format!("--offload-arch={arch}")).map_err(|error| (1, error.to_string()))?];
        for option in options {
            owned.push(CString::new(option.as_str()).map_err(|error| (1, error.to_string()))?);
        }
        let pointers: Vec<*const c_char> = owned.iter().map(|option| option.as_ptr()).collect();
        let status = build(program, pointers.len() as c_int, pointers.as_ptr());
        if status != 0 {
            let mut size = 0;
            log_size(program, &mut size);
            let mut bytes = vec![0u8; size.max(1)];
            log(program, bytes.as_mut_ptr().cast());
            return Err((2, format!("hiprtc {status}: {}", String::from_utf8_lossy(&bytes))));
        }
        let mut size = 0;
        code_size(program, &mut size);
        let mut bytes = vec![0u8; size];
        code(program, bytes.as_mut_ptr().cast());
        Ok(bytes)
    }
}
