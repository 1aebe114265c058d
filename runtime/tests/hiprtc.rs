//! The real hiprtc, through workers and in process: every target, aborts, hangs, the cache, equal bytes.
//!
//! Needs ROCm's compile stack (`/opt/rocm`, or `scripts/rocm-sysroot.sh`); says `skipped:` where there is none.
//! Tests that need no compiler (a worker that is none, dies or hangs) are in `pool.rs`.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use graphc_runtime::cache::{Cache, CacheStats, CachedCompiler};
use graphc_runtime::code_object;
use graphc_runtime::compile::{
    CompileError, CompileRequest, Compiler, RocmSearch, Toolchain, WorkerPool, compile_all, discover,
};
use ir::target::Platform;

const TARGETS: [&str; 9] = [
    "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201",
];

/// Two kernels with LDS, a header and plain arithmetic. `src/code_object/fixtures/gfx90a.co` is this source for
/// gfx90a:xnack- (regenerate: run `fixture_is_what_the_compiler_makes` with `GRAPHC_BLESS=1`).
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

/// gfx950 has lost this instruction: there hiprtc 7.2 ends the process (LLVM cannot select it).
const ABORTS_ON_GFX950: &str = r#"
typedef int v4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void mm(v4* c, const int* a, const int* b) {
    c[threadIdx.x] = __builtin_amdgcn_mfma_i32_16x16x16i8(a[threadIdx.x], b[threadIdx.x], c[threadIdx.x], 0, 0, 0);
}
"#;

fn request(name: &str, arch: &str, source: &str) -> CompileRequest {
    CompileRequest {
        name: name.into(),
        source: source.into(),
        headers: vec![("factor.hip.h".into(), "#define FACTOR 3.0f\n".into())],
        arch: arch.into(),
        options: vec!["-O3".into()],
    }
}

fn worker() -> Vec<OsString> {
    vec![env!("CARGO_BIN_EXE_graphc-compile-worker").into()]
}

/// The toolchain of this machine, or a word on what is skipped.
fn toolchain(test: &str) -> Option<Toolchain> {
    match discover(&RocmSearch::default()) {
        Ok(toolchain) => Some(toolchain),
        Err(error) => {
            println!("skipped: {error}\n({test})");
            None
        }
    }
}

fn pool(test: &str, workers: usize) -> Option<WorkerPool> {
    toolchain(test).map(|toolchain| toolchain.pool(&worker(), workers))
}

#[test]
fn every_target_compiles_and_names_its_resources() {
    let Some(pool) = pool("every_target_compiles", 2) else {
        return;
    };
    let requests: Vec<_> = TARGETS.iter().map(|arch| request("scale", arch, SOURCE)).collect();
    for (arch, result) in TARGETS.iter().zip(compile_all(&pool, &requests, &|_| ())) {
        let object = code_object::read(&result.unwrap().bytes).unwrap();
        assert!(object.target.starts_with(arch), "{}", object.target);
        let [scale, copy] = object.kernels.as_slice() else {
            panic!("{:?}", object.kernels)
        };
        assert_eq!((scale.name.as_str(), copy.name.as_str()), ("scale", "copy"));
        assert_eq!(scale.lds_bytes, 1024, "{arch}");
        assert_eq!(
            scale.wave_size,
            if arch.starts_with("gfx1") { 32 } else { 64 },
            "{arch}"
        );
        assert_eq!(
            (scale.vgpr_spills, scale.sgpr_spills, scale.scratch_bytes),
            (0, 0, 0),
            "{arch}"
        );
    }
    assert_eq!((pool.workers_started(), pool.workers_lost()), (2, 0));
}

/// In process, every target: directly where ROCm is native, else by running this very test inside the sysroot.
#[test]
fn every_target_compiles_in_process() {
    let Some(toolchain) = toolchain("every_target_compiles_in_process") else {
        return;
    };
    if let Some(wrapper) = &toolchain.wrapper {
        let inside = std::process::Command::new(wrapper)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "every_target_compiles_in_process", "--nocapture"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(
            inside.status.success() && said.contains("compiled in process: 9"),
            "{inside:?}"
        );
        return;
    }
    let (here, pool) = (toolchain.in_process().unwrap(), toolchain.pool(&worker(), 2));
    let requests: Vec<_> = TARGETS.iter().map(|arch| request("scale", arch, SOURCE)).collect();
    let ours = compile_all(&here, &requests, &|_| ());
    assert!(ours.iter().all(Result::is_ok), "{ours:?}");
    assert_eq!(
        ours,
        compile_all(&pool, &requests, &|_| ()),
        "the same bytes as the workers'"
    );
    assert_eq!(here.identity(Platform::Hip), pool.identity(Platform::Hip));
    let listing = |compiler: &dyn Compiler| compiler.disassemble(&ours[0].as_ref().unwrap().bytes).unwrap();
    assert_eq!(listing(&here), listing(&pool));
    let error = here
        .compile(&request("k", "gfx90a", "extern \"C\" __global__ void k() { oops(); }"))
        .unwrap_err();
    assert!(matches!(error, CompileError::Rejected(_)), "{error}");
    println!("compiled in process: {}", ours.len());
}

#[test]
fn equal_bytes_from_two_processes() {
    let Some(toolchain) = toolchain("equal_bytes") else {
        return;
    };
    let request = request("scale", "gfx942", SOURCE);
    let bytes = |compiler: &dyn Compiler| compiler.compile(&request).unwrap().bytes;
    let (a, b) = (toolchain.pool(&worker(), 1), toolchain.pool(&worker(), 1));
    let first = bytes(&a);
    assert_eq!(first, bytes(&b));
    assert_eq!(a.identity(Platform::Hip).unwrap(), b.identity(Platform::Hip).unwrap());
    // What the workers say of themselves is what the files said.
    let asked = WorkerPool::new(
        toolchain
            .wrapper
            .iter()
            .map(|wrapper| wrapper.clone().into())
            .chain(worker())
            .collect(),
        1,
    )
    .search(toolchain.search.clone());
    assert_eq!(
        asked.identity(Platform::Hip).unwrap(),
        a.identity(Platform::Hip).unwrap()
    );
}

#[test]
fn a_compile_error_names_the_line_and_keeps_the_source() {
    let kept = tempfile::tempdir().unwrap();
    let Some(pool) = pool("a_compile_error", 1).map(|pool| pool.keep_failures_in(kept.path())) else {
        return;
    };
    let source = "extern \"C\" __global__ void k(float* p) {\n    p[0] = nothing_of_that_name;\n}\n";
    let error = pool.compile(&request("k", "gfx90a", source)).unwrap_err();
    let CompileError::Rejected(failure) = &error else {
        panic!("{error}")
    };
    let at = failure.at.as_ref().unwrap();
    assert_eq!((at.file.as_str(), at.line), ("k", 2));
    assert_eq!(at.text.trim(), "p[0] = nothing_of_that_name;");
    assert!(at.message.contains("undeclared identifier"), "{}", at.message);
    assert_eq!(
        std::fs::read_to_string(failure.source_path.as_ref().unwrap()).unwrap(),
        source
    );
    assert!(error.to_string().contains("k:2:"), "{error}");

    let in_header = CompileRequest {
        headers: vec![("bad.hip.h".into(), "\n\nint f() { return g(); }\n".into())],
        ..request("k", "gfx90a", "#include \"bad.hip.h\"\n")
    };
    let error = pool.compile(&in_header).unwrap_err();
    let at = error.failure().and_then(|failure| failure.at.clone()).unwrap();
    assert_eq!((at.file.as_str(), at.line), ("bad.hip.h", 3), "{error}");

    let unknown = pool.compile(&request("k", "gfx9999", SOURCE)).unwrap_err();
    assert!(
        !matches!(unknown, CompileError::WorkerDied { .. }),
        "an unknown target is a clean error: {unknown}"
    );
    assert_eq!(pool.workers_lost(), 0, "a refused source costs no worker");
}

#[test]
fn a_kernel_that_aborts_the_compiler_is_an_error_and_the_pool_goes_on() {
    let kept = tempfile::tempdir().unwrap();
    let Some(pool) = pool("a_kernel_that_aborts", 1).map(|pool| pool.keep_failures_in(kept.path())) else {
        return;
    };
    let source = ABORTS_ON_GFX950;
    pool.compile(&request("mm", "gfx90a", source)).unwrap();
    let error = pool.compile(&request("mm", "gfx950", source)).unwrap_err();
    let CompileError::WorkerDied {
        kernel,
        signal,
        failure,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((kernel.as_str(), *signal), ("mm", Some(6)), "{error}");
    assert!(!failure.log.trim().is_empty(), "the compiler's last words are kept");
    let path = failure.source_path.as_ref().unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), source);
    assert_eq!(
        std::fs::read_to_string(path.with_file_name("log.txt")).unwrap(),
        failure.log
    );
    pool.compile(&request("scale", "gfx950", SOURCE)).unwrap();
    assert_eq!((pool.workers_started(), pool.workers_lost()), (2, 1));
}

#[test]
fn deaths_among_many_kernels_cost_only_their_own() {
    let Some(pool) = pool("deaths_among_many", 2) else {
        return;
    };
    let requests: Vec<_> = (0..12)
        .map(|i| match i % 4 {
            1 => request(&format!("mm{i}"), "gfx950", ABORTS_ON_GFX950),
            _ => request(&format!("scale{i}"), "gfx950", SOURCE),
        })
        .collect();
    let results = compile_all(&pool, &requests, &|_| ());
    for (i, result) in results.iter().enumerate() {
        match result {
            Ok(_) => assert_ne!(i % 4, 1),
            Err(CompileError::WorkerDied { kernel, .. }) => assert_eq!((i % 4, kernel), (1, &format!("mm{i}"))),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(pool.workers_lost(), 3);
}

#[test]
fn a_hung_compiler_is_killed() {
    let Some(pool) = pool("a_hung_compiler", 1) else { return };
    let pool = pool.timeout(Duration::from_millis(1));
    let error = pool.compile(&request("scale", "gfx90a", SOURCE)).unwrap_err();
    assert!(matches!(error, CompileError::TimedOut { .. }), "{error}");
    assert_eq!(pool.workers_lost(), 1);
}

#[test]
fn a_warm_start_starts_no_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let Some(toolchain) = toolchain("a_warm_start") else {
        return;
    };
    let requests = [request("scale", "gfx90a", SOURCE), request("scale", "gfx1100", SOURCE)];
    let open = |worker: &[OsString]| {
        let cache = Arc::new(Cache::open(dir.path(), 1 << 30));
        CachedCompiler::new(Box::new(toolchain.pool(worker, 2)), cache)
    };
    let cold = open(&worker());
    let first = compile_all(&cold, &requests, &|_| ());
    assert!(first.iter().all(Result::is_ok), "{first:?}");
    assert_eq!(
        cold.cache().stats(),
        CacheStats {
            misses: 2,
            compiles: 2,
            ..Default::default()
        }
    );
    // A worker that cannot be started proves that none is.
    let warm = open(&["/graphc/no/such/worker".into()]);
    assert_eq!(compile_all(&warm, &requests, &|_| ()), first);
    assert_eq!(
        warm.cache().stats(),
        CacheStats {
            hits: 2,
            ..Default::default()
        }
    );
}

#[test]
fn matrix_instructions_are_seen_in_the_code() {
    let Some(pool) = pool("matrix_instructions", 1) else {
        return;
    };
    let source = r#"
typedef _Float16 h4 __attribute__((ext_vector_type(4)));
typedef float v4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void mm(v4* c, const h4* a, const h4* b) {
    v4 sum = c[threadIdx.x];
    for (int i = 0; i < 2; ++i) {
        sum = __builtin_amdgcn_mfma_f32_16x16x16f16(a[i * 64 + threadIdx.x], b[i * 64 + threadIdx.x], sum, 0, 0, 0);
    }
    c[threadIdx.x] = sum;
}
extern "C" __global__ void plain(float* p) { p[threadIdx.x] *= 2.0f; }
"#;
    let object = pool.compile(&request("mm", "gfx942", source)).unwrap();
    let listings = pool.disassemble(&object.bytes).unwrap();
    let counts: Vec<_> = listings
        .iter()
        .map(|l| (l.kernel.as_str(), l.matrix_instructions()))
        .collect();
    assert_eq!(counts, [("mm", 2), ("plain", 0)]);
    assert!(
        listings
            .iter()
            .all(|l| l.instructions.iter().any(|i| i.text.starts_with("s_endpgm"))),
        "{listings:?}"
    );
    assert!(pool.disassemble(b"no code object").is_err());
}

#[test]
fn fixture_is_what_the_compiler_makes() {
    let Some(pool) = pool("fixture", 1) else { return };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/code_object/fixtures/gfx90a.co");
    let bytes = pool
        .compile(&request("fixture", "gfx90a:xnack-", SOURCE))
        .unwrap()
        .bytes;
    if std::env::var_os("GRAPHC_BLESS").is_some() {
        std::fs::write(path, &bytes).unwrap();
    }
    // Another compiler may choose other registers; names, layout and LDS are the source's.
    let (kept, now) = (
        code_object::read(&std::fs::read(path).unwrap()).unwrap(),
        code_object::read(&bytes).unwrap(),
    );
    assert_eq!(kept.target, now.target);
    for (kept, now) in kept.kernels.iter().zip(&now.kernels) {
        assert_eq!(
            (&kept.name, kept.lds_bytes, &kept.args),
            (&now.name, now.lds_bytes, &now.args)
        );
    }
}
