//! The real NVRTC, through workers and in process: its numbers, its errors, equal bytes, what spills.
//!
//! Needs CUDA's or PyPI's NVRTC (`scripts/nvrtc.sh`); says `skipped:` where there is none. No GPU is needed.

use std::ffi::OsString;

use graphc_runtime::code_object;
use graphc_runtime::compile::{CompileError, CompileRequest, Compiler, CompilerSearch, Compilers, Nvrtc, compile_all};
use ir::target::Platform;

/// Two kernels with shared memory, a header and plain arithmetic.
const SOURCE: &str = r#"
#include "factor.hip.h"
extern "C" __global__ void __launch_bounds__(256) scale(const float* in, float* out, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = i < n ? in[i] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = tile[255 - threadIdx.x] * FACTOR;
}
extern "C" __global__ void __launch_bounds__(256) copy(const float* in, float* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = in[i];
}
"#;

fn request(name: &str, source: &str) -> CompileRequest {
    CompileRequest {
        name: name.into(),
        source: source.into(),
        headers: vec![("factor.hip.h".into(), "#define FACTOR 3.0f\n".into())],
        arch: "sm_90".into(),
        options: vec!["-std=c++17".into()],
    }
}

/// Workers that load NVRTC, or a word on what is skipped.
fn pool(test: &str) -> Option<Compilers> {
    let worker = [OsString::from(env!("CARGO_BIN_EXE_graphc-compile-worker"))];
    match Compilers::open(&CompilerSearch::default(), &[Platform::Cuda], Some(&worker), 2) {
        Ok(compilers) => Some(compilers),
        Err(error) => {
            println!("skipped: {error}\n({test})");
            None
        }
    }
}

#[test]
fn workers_and_this_process_give_equal_bytes() {
    let Some(pool) = pool("workers_and_this_process_give_equal_bytes") else {
        return;
    };
    let here = Nvrtc::load(&CompilerSearch::default().nvrtc).unwrap();
    assert_eq!(here.identity(Platform::Cuda), pool.identity(Platform::Cuda));
    let request = request("two", SOURCE);
    let objects = [pool.compile(&request).unwrap(), here.compile(&request).unwrap()];
    assert_eq!(objects[0], objects[1]);
    let object = code_object::read(&objects[0].bytes).unwrap();
    let mut numbers: Vec<_> = object
        .kernels
        .iter()
        .map(|k| (k.name.as_str(), k.lds_bytes, k.scratch_bytes))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [("copy", 0, 0), ("scale", 1024, 0)]);
    assert_eq!(objects[0].log, "", "nothing to say");
    let ptx = pool.assembly(&request).unwrap();
    assert_eq!(ptx, here.assembly(&request).unwrap());
    assert!(ptx.contains(".target sm_90") && ptx.contains(".entry scale("), "{ptx}");
    assert!(matches!(
        pool.disassemble(&objects[0].bytes),
        Err(CompileError::Disassembly { .. })
    ));
}

/// Several threads in this process, as an app without worker processes has them.
#[test]
fn threads_share_the_compiler() {
    let here = match Nvrtc::load(&CompilerSearch::default().nvrtc) {
        Ok(here) => here,
        Err(error) => return println!("skipped: {error}\n(threads_share_the_compiler)"),
    };
    let requests: Vec<_> = (0..16)
        .map(|i| request("one", &SOURCE.replace("FACTOR;", &format!("{}.0f;", i % 8))))
        .collect();
    let alone: Vec<_> = requests.iter().map(|r| here.compile(r).unwrap()).collect();
    let together: Vec<_> = compile_all(&here, &requests, &|_| ())
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[1]);
}

#[test]
fn errors_name_the_line() {
    let Some(pool) = pool("errors_name_the_line") else {
        return;
    };
    let error = pool
        .compile(&request("wrong", &SOURCE.replace("in[i];", "nothing[i];")))
        .unwrap_err();
    let CompileError::Rejected(failure) = &error else {
        panic!("{error}")
    };
    let at = failure.at.as_ref().unwrap();
    assert_eq!((at.file.as_str(), at.line), ("wrong", 12), "{error}");
    assert_eq!(&at.text[at.column as usize - 1..][..7], "nothing", "{error}");
    assert!(at.message.contains("nothing"), "{error}");
    let option = CompileRequest {
        options: vec!["--no-such-option".into()],
        ..request("two", SOURCE)
    };
    let error = pool.compile(&option).unwrap_err().to_string();
    assert!(error.contains("no-such-option"), "{error}");
    let arch = CompileRequest {
        arch: "sm_90".into(),
        source: "\0".into(),
        ..request("two", SOURCE)
    };
    let error = pool.compile(&arch).unwrap_err().to_string();
    assert!(error.contains("nul byte"), "{error}");
}

/// A kernel that wants more registers than it may have: the log warns of it, so that no word means no spill.
#[test]
fn spills_are_told() {
    let Some(pool) = pool("spills_are_told") else { return };
    let source = r#"
extern "C" __global__ void hungry(const float* in, float* out) {
    float held[64];
    for (int i = 0; i < 64; ++i) held[i] = in[threadIdx.x + 32 * i];
    __syncthreads();
    for (int i = 0; i < 64; ++i) out[threadIdx.x * 64 + i] = held[i] * held[63 - i];
}
"#;
    let mut few = request("hungry", source);
    few.options.push("--maxrregcount=32".into());
    let object = pool.compile(&few).unwrap();
    assert!(object.log.contains("Registers are spilled"), "{}", object.log);
    let kernel = &code_object::read(&object.bytes).unwrap().kernels[0];
    assert!(kernel.vgpr <= 32 && kernel.scratch_bytes > 0, "{kernel:?}");
    let object = pool.compile(&request("hungry", source)).unwrap();
    assert_eq!(object.log, "");
    let kernel = &code_object::read(&object.bytes).unwrap().kernels[0];
    assert!(kernel.vgpr > 32 && kernel.scratch_bytes == 0, "{kernel:?}");
}
