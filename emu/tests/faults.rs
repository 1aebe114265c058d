//! Planted defects and bad input: each is caught, named with its place, and the same kernel without the defect runs.

mod common;
use common::{ARCHES, Arg, Compiled, Device, compile, drop_instructions, fault};
use graphc_emu::{Access, Arch, CodeObject, FaultKind, Gpu, LaunchError, LoadError, MemoryError, Space};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 2.0f;
}
extern "C" __global__ void off_by_one(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i + 1];
}
extern "C" __global__ void write_past(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 1.0f;
}
extern "C" __global__ void reverse(int* y, const int* x) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  y[t] = s[255 - t];
}
extern "C" __global__ void no_barrier(int* y, const int* x) {
  volatile __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  y[t] = s[255 - t];
}
extern "C" __global__ void lds_unwritten(int* y) {
  __shared__ int s[256];
  int t = threadIdx.x;
  if (t != 77) s[t] = t;
  __syncthreads();
  y[t] = s[255 - t];
}
extern "C" __global__ void lds_past(int* y, int n) {
  extern __shared__ int s[];
  int t = threadIdx.x;
  s[t] = t;
  __syncthreads();
  y[t] = s[t + n];
}
extern "C" __global__ void odd_atomic(char* p) { atomicAdd((int*)(p + 2), 1); }
extern "C" __global__ void global_race(int* p) { if (threadIdx.x % 64 == 5) p[3] = threadIdx.x; }
extern "C" __global__ void group_race(int* p, int shared) { p[blockIdx.x * shared + threadIdx.x] = blockIdx.x; }
extern "C" __global__ void neighbour(int* y, const int* x) { y[blockIdx.x * 64 + threadIdx.x] += x[blockIdx.x * 64 + threadIdx.x]; }
extern "C" __global__ void last_block(int* sums, int* count, int* total, int fence) {
  __shared__ int last;
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    last = fence ? atomicAdd(count, 1) == (int)gridDim.x - 1 : blockIdx.x == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) { int t = 0; for (int i = 0; i < (int)gridDim.x; ++i) t += ((volatile int*)sums)[i]; *total = t; }
}
extern "C" __global__ void stop(int* p) { if (threadIdx.x == 3) __builtin_trap(); *p = 1; }
extern "C" __global__ void endless(volatile int* p) { while (*p == 0) ; }
extern "C" __global__ void strided(float* y, const float* x, int stride) { y[threadIdx.x] = x[threadIdx.x * stride]; }
extern "C" __global__ void banks(int* y, int stride) {
  __shared__ int s[64 * 32];
  int t = threadIdx.x;
  s[t * stride] = t;
  __syncthreads();
  y[t] = s[t * stride];
}
"#;

fn compiled(arch: &str) -> Option<Compiled> {
    common::compiled(SOURCE, arch)
}

const CACHE_SOURCE: &str = r#"
extern "C" __global__ void after(float* y, const float* x) {
  float r; const float* p = x + threadIdx.x;
  asm volatile("global_load_b32 %0, %1, off\n global_inv scope:SCOPE_SE\n s_wait_loadcnt 0x1" : "=&v"(r) : "v"(p));
  y[threadIdx.x] = r + 1.0f;
}
extern "C" __global__ void before(float* y, const float* x) {
  float r; const float* p = x + threadIdx.x;
  asm volatile("global_inv scope:SCOPE_SE\n global_load_b32 %0, %1, off\n s_wait_loadcnt 0x1" : "=&v"(r) : "v"(p));
  y[threadIdx.x] = r + 1.0f;
}
"#;

/// gfx12 counts cache operations with the loads: a wait that leaves one operation has waited for what came before it.
#[test]
fn cache_operations_are_counted_with_the_loads() {
    let compiled = match compile(CACHE_SOURCE, "gfx1201", &["-O3"]) {
        Ok(compiled) => compiled,
        Err(common::NoCode::Skipped(reason)) => return println!("skipped: {reason}"),
        Err(error) => panic!("{error:?}"),
    };
    let device = Device::load(&compiled, "gfx1201");
    let (y, x) = (device.alloc(128), device.upload(&[1.5f32; 32]));
    let arguments = [Arg::Ptr(y), Arg::Ptr(x)];
    let result = device.try_run("after", 1, 32, &arguments);
    assert!(result.is_ok(), "{result:?}");
    let fault = fault(device.try_run("before", 1, 32, &arguments));
    assert!(matches!(fault.kind, FaultKind::MissingWait { .. }), "{fault}");
}

#[test]
fn a_dropped_wait_is_caught() {
    for arch in ARCHES {
        let Some(good) = compiled(arch) else { return };
        let waits: &[&str] = match arch {
            "gfx1201" => &["s_wait_loadcnt", "s_wait_kmcnt"],
            _ => &["s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)"],
        };
        for wait in waits {
            let (bad, count) = drop_instructions(&good, "scale", wait);
            assert!(count > 0, "{arch}: no {wait} to drop");
            for (compiled, planted) in [(&good, false), (&bad, true)] {
                let device = Device::load(compiled, arch);
                let (y, x) = (device.alloc(1024), device.upload(&[1.5f32; 256]));
                let result = device.try_run("scale", 1, 256, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(256)]);
                if !planted {
                    assert!(result.is_ok(), "{arch}: {result:?}");
                    continue;
                }
                let fault = fault(result);
                assert!(
                    matches!(fault.kind, FaultKind::MissingWait { .. }),
                    "{arch} {wait}: {fault}"
                );
                assert_eq!(fault.kernel, "scale");
                assert!(fault.to_string().contains("before its"), "{fault}");
            }
        }
        let lds_wait = if arch == "gfx1201" {
            "s_wait_dscnt"
        } else {
            "s_waitcnt lgkmcnt(0)"
        };
        let (bad, count) = drop_instructions(&good, "reverse", lds_wait);
        assert!(count > 0);
        let device = Device::load(&bad, arch);
        let (y, x) = (device.alloc(1024), device.upload(&[7i32; 256]));
        let fault = fault(device.try_run("reverse", 1, 256, &[Arg::Ptr(y), Arg::Ptr(x)]));
        // The wait before the barrier is among them: what comes first is another wave's store.
        let named = matches!(
            fault.kind,
            FaultKind::MissingWait { .. } | FaultKind::UnorderedStore { .. }
        );
        assert!(named, "{arch}: {fault}");
    }
}

#[test]
fn a_missing_barrier_is_caught() {
    for arch in ARCHES {
        let Some(good) = compiled(arch) else { return };
        let barrier = "s_barrier";
        let (bad, count) = drop_instructions(&good, "reverse", barrier);
        assert!(count > 0);
        for (compiled, kernel, planted) in [
            (&good, "reverse", false),
            (&bad, "reverse", true),
            (&good, "no_barrier", true),
        ] {
            let mut device = Device::load(compiled, arch);
            device.options.races = true;
            device.options.uninitialized = false;
            let (y, x) = (device.alloc(1024), device.upload(&[7i32; 256]));
            let result = device.try_run(kernel, 1, 256, &[Arg::Ptr(y), Arg::Ptr(x)]);
            if planted {
                let fault = fault(result);
                assert!(
                    matches!(fault.kind, FaultKind::Race { space: Space::Lds, .. }),
                    "{arch}: {fault}"
                );
                assert!(fault.lane.is_some());
            } else {
                assert!(result.is_ok(), "{arch}: {result:?}");
            }
        }
    }
}

#[test]
fn bounds_and_unwritten_memory() {
    for arch in ARCHES {
        let Some(good) = compiled(arch) else { return };
        let device = Device::load(&good, arch);
        let (y, x) = (device.alloc(1024), device.upload(&[1f32; 256]));
        let n = Arg::I32(256);
        let found = fault(device.try_run("off_by_one", 1, 256, &[Arg::Ptr(y), Arg::Ptr(x), n]));
        let end = x + 1024;
        assert!(
            matches!(found.kind, FaultKind::OutOfBounds { space: Space::Global, access: Access::Read, address, size: 4, .. } if address == end),
            "{arch}: {found}"
        );
        let lanes = if arch.starts_with("gfx9") { 64 } else { 32 };
        assert_eq!((found.wave, found.lane), (256 / lanes - 1, Some(lanes - 1)), "{arch}");
        assert!(found.instruction.contains("load"), "{arch}: {found}");

        let found = fault(device.try_run("write_past", 2, 256, &[Arg::Ptr(y), n]));
        assert!(
            matches!(
                found.kind,
                FaultKind::OutOfBounds {
                    access: Access::Write,
                    ..
                }
            ),
            "{arch}: {found}"
        );
        assert_eq!(found.workgroup, [1, 0, 0], "{arch}");

        let unwritten = device.alloc(1024);
        let found = fault(device.try_run("scale", 1, 256, &[Arg::Ptr(y), Arg::Ptr(unwritten), n]));
        assert!(
            matches!(
                found.kind,
                FaultKind::Uninitialized {
                    space: Space::Global,
                    ..
                }
            ),
            "{arch}: {found}"
        );

        device.gpu.memory().free(x).expect("a live allocation");
        assert_eq!(
            device.gpu.memory().free(x),
            Err(MemoryError::Freed { address: x }),
            "a double free"
        );
        let found = fault(device.try_run("scale", 1, 256, &[Arg::Ptr(y), Arg::Ptr(x), n]));
        assert!(
            matches!(
                found.kind,
                FaultKind::UseAfterFree {
                    access: Access::Read,
                    ..
                }
            ),
            "{arch}: {found}"
        );

        for wild in [0, 16, 0xdead_0000, 0x7fff_ffff_ffff_fff0, u64::MAX - 3, u64::MAX - 2000] {
            let found = fault(device.try_run("scale", 1, 256, &[Arg::Ptr(y), Arg::Ptr(wild), n]));
            assert!(
                matches!(found.kind, FaultKind::OutOfBounds { .. }),
                "{arch} {wild:#x}: {found}"
            );
        }

        let found = fault(device.try_run("lds_unwritten", 1, 256, &[Arg::Ptr(y)]));
        assert!(
            matches!(found.kind, FaultKind::Uninitialized { space: Space::Lds, .. }),
            "{arch}: {found}"
        );
        let run = |n: i32| device.try_run3("lds_past", [1; 3], [64, 1, 1], &[Arg::Ptr(y), Arg::I32(n)], 256);
        assert!(run(0).is_ok(), "{arch}");
        let found = fault(run(1));
        assert!(
            matches!(found.kind, FaultKind::OutOfBounds { space: Space::Lds, .. }),
            "{arch}: {found}"
        );

        // Unless nobody wants to know: then, as in the hardware, the lane past the end reads zero.
        let mut lenient = Device::load(&good, arch);
        lenient.options.lds_bounds = false;
        let out = lenient.alloc(256);
        let args = [Arg::Ptr(out), Arg::I32(1)];
        let run = lenient.try_run3("lds_past", [1; 3], [64, 1, 1], &args, 256);
        assert!(run.is_ok(), "{arch}: {run:?}");
        let got: Vec<i32> = lenient.download(out, 64);
        let want: Vec<i32> = (1..64).chain([0]).collect();
        assert_eq!(got, want, "{arch}");

        let found = fault(device.try_run("odd_atomic", 1, 1, &[Arg::Ptr(y)]));
        assert!(
            matches!(
                found.kind,
                FaultKind::Misaligned {
                    access: Access::Atomic,
                    ..
                } | FaultKind::Uninitialized { .. }
            ),
            "{arch}: {found}"
        );
        let mut device = Device::load(&good, arch);
        device.options.races = true;
        let p = device.upload(&[0i32; 16]);
        let found = fault(device.try_run("global_race", 1, 256, &[Arg::Ptr(p)]));
        assert!(
            matches!(
                found.kind,
                FaultKind::Race {
                    space: Space::Global,
                    ..
                }
            ),
            "{arch}: {found}"
        );
    }
}

#[test]
fn traps_and_endless_loops() {
    for arch in ARCHES {
        let Some(good) = compiled(arch) else { return };
        let mut device = Device::load(&good, arch);
        device.options.instruction_limit = Some(200_000);
        let p = device.upload(&[0i32]);
        let found = fault(device.try_run("endless", 1, 64, &[Arg::Ptr(p)]));
        assert_eq!(found.kind, FaultKind::InstructionLimit(200_000), "{arch}: {found}");
        let found = fault(device.try_run("stop", 1, 64, &[Arg::Ptr(p)]));
        assert!(matches!(found.kind, FaultKind::Trap(_)), "{arch}: {found}");
    }
}

#[test]
fn an_unknown_instruction_prints_itself() {
    let Some(mut patched) = compiled("gfx90a") else { return };
    let object = CodeObject::load(&patched.code).expect("it loads");
    let entry = object.kernel("scale").expect("it is there").descriptor.entry;
    assert!(patched.listing.patch(entry, "v_conjure_f32 v0, v1"));
    let device = Device::load(&patched, "gfx90a");
    assert_eq!(device.kernel("scale").unknown().len(), 1);
    let (y, x) = (device.alloc(1024), device.upload(&[1f32; 256]));
    let found = fault(device.try_run("scale", 1, 256, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(256)]));
    assert_eq!(found.address, entry);
    assert!(found.to_string().contains("v_conjure_f32 v0, v1"), "{found}");
}

#[test]
fn counters_tell_access_patterns_apart() {
    for arch in ARCHES {
        let Some(good) = compiled(arch) else { return };
        let device = Device::load(&good, arch);
        let (y, x) = (device.alloc(256), device.upload(&vec![1f32; 64 * 64]));
        let run = |stride: i32| device.run("strided", 1, 64, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(stride)]);
        let (dense, sparse) = (run(1), run(32));
        assert_eq!(dense.global_load_bytes, 256, "{arch}");
        assert!(
            dense.coalescing() > 0.9 && sparse.coalescing() < 0.2,
            "{arch}: {dense:?} {sparse:?}"
        );
        let run = |stride: i32| {
            device
                .run("banks", 1, 64, &[Arg::Ptr(y), Arg::I32(stride)])
                .lds_bank_conflicts
        };
        assert_eq!(run(1), 0, "{arch}");
        assert!(run(32) > 20, "{arch}: {}", run(32));
        assert!(dense.occupancy >= 1);
    }
}

/// A matrix product through one MFMA with the rows of the result mapped as `map` says.
fn product(arch: &str, map: &str) -> Option<(Vec<f32>, Vec<f32>)> {
    let source = format!(
        "typedef _Float16 A __attribute__((ext_vector_type(4))); typedef float C __attribute__((ext_vector_type(4)));\n\
         extern \"C\" __global__ void gemm(float* c, const _Float16* a, const _Float16* b) {{\n\
           int l = threadIdx.x, row = l % 16, g = l / 16; A x, y; C z = {{0, 0, 0, 0}};\n\
           for (int e = 0; e < 4; ++e) {{ x[e] = a[row * 16 + g * 4 + e]; y[e] = b[(g * 4 + e) * 16 + row]; }}\n\
           z = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, z, 0, 0, 0);\n\
           for (int e = 0; e < 4; ++e) c[({map}) * 16 + l % 16] = z[e];\n}}\n"
    );
    let device = Device::new(&source, arch)?;
    let mut random = common::Random::new(3);
    let mut tile = || -> Vec<half::f16> { (0..256).map(|_| half::f16::from_f64(random.range(-1.0, 1.0))).collect() };
    let (a, b) = (tile(), tile());
    let (pa, pb, pc) = (device.upload(&a), device.upload(&b), device.alloc(1024));
    device.run("gemm", 1, 64, &[pc, pa, pb].map(Arg::Ptr));
    let want = (0..256)
        .map(|i| {
            (0..16)
                .map(|k| a[i / 16 * 16 + k].to_f32() * b[k * 16 + i % 16].to_f32())
                .sum()
        })
        .collect();
    Some((device.download(pc, 256), want))
}

#[test]
fn a_wrong_row_map_gives_wrong_numbers() {
    for arch in ["gfx90a", "gfx942", "gfx950"] {
        let error =
            |(got, want): (Vec<f32>, Vec<f32>)| got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        let Some(right) = product(arch, "4 * g + e") else {
            return;
        };
        assert!(error(right) < 1e-5, "{arch}");
        let Some(wrong) = product(arch, "g + 4 * e") else {
            return;
        };
        assert!(error(wrong) > 0.1, "{arch}: the wrong map was not noticed");
    }
}

#[test]
fn bad_input_gives_typed_errors() {
    let Some(good) = compiled("gfx90a") else { return };
    for length in (0..good.code.len()).step_by(61).chain([1, 15, 16, 63, 64]) {
        // Whatever is cut off, it is an error or a complete image, never a panic.
        if let Ok(object) = CodeObject::load(&good.code[..length]) {
            assert!(object.kernels().count() > 0);
        }
    }
    assert!(matches!(CodeObject::load(&good.code[..100]), Err(LoadError::Elf(_))));
    assert!(matches!(
        CodeObject::load(b"not an ELF file at all"),
        Err(LoadError::Elf(_))
    ));
    let mut damaged = good.code.clone();
    for index in (64..damaged.len()).step_by(97) {
        damaged[index] ^= 0xff;
        let _ = CodeObject::load(&damaged);
        damaged[index] ^= 0xff;
    }
    damaged[18] = 62;
    assert!(matches!(CodeObject::load(&damaged), Err(LoadError::NotAmdGpu(_))));

    let other = Gpu::new(Arch::by_name("gfx942").expect("known"), 1 << 20);
    let wrong = CodeObject::load_for(&good.code, other.arch());
    assert!(matches!(wrong, Err(LoadError::WrongArch { .. })));
    assert!(Arch::by_name("gfx1").is_none());

    let device = Device::load(&good, "gfx90a");
    let missing = device.module.kernel("nothing").err();
    assert!(matches!(missing, Some(LoadError::NoSuchKernel { ref present, .. }) if present.contains(&"scale".into())));
    let kernel = device.kernel("scale");
    let launch = |grid, block, bytes: &[u8], lds| {
        device
            .gpu
            .launch(&kernel, grid, block, bytes, lds, &device.options)
            .err()
    };
    let one = [1, 1, 1];
    assert!(matches!(
        launch([0, 1, 1], one, &[0; 20], 0),
        Some(LaunchError::EmptyGrid { .. })
    ));
    assert!(matches!(
        launch(one, [1, 0, 1], &[0; 20], 0),
        Some(LaunchError::EmptyGrid { .. })
    ));
    assert!(matches!(
        launch(one, [2048, 1, 1], &[0; 20], 0),
        Some(LaunchError::BlockTooLarge { .. })
    ));
    assert!(matches!(
        launch(one, one, &[0; 19], 0),
        Some(LaunchError::KernargsTooShort {
            given: 19,
            needed: 20,
            ..
        })
    ));
    assert!(matches!(
        launch(one, one, &[0; 20], 1 << 20),
        Some(LaunchError::LdsTooLarge { .. })
    ));
    assert!(matches!(
        device.gpu.memory().alloc(1 << 40),
        Err(MemoryError::OutOfMemory { .. })
    ));
    assert!(matches!(
        device.gpu.memory().free(1),
        Err(MemoryError::NotAllocated { address: 1 })
    ));
}

/// Workgroups that write one byte, or read what another wrote with nothing to order them; and the patterns that are
/// right.
#[test]
fn races_between_workgroups() {
    for arch in ARCHES {
        let Some(mut device) = Device::new(SOURCE, arch) else {
            return;
        };
        device.options.group_races = true;
        let p = device.upload(&[1i32; 256]);
        let q = device.upload(&[2i32; 256]);
        let write = |shared: i32| device.try_run("group_race", 4, 64, &[Arg::Ptr(p), Arg::I32(shared)]);
        assert!(write(64).is_ok(), "{arch}: each workgroup has its own");
        let found = fault(write(63));
        let FaultKind::GroupRace { access, address, other } = found.kind else {
            panic!("{arch}: {found}");
        };
        assert_eq!(
            (access, address, other),
            (Access::Write, p + 63 * 4, [0, 0, 0]),
            "{arch}"
        );
        assert_eq!(found.workgroup, [1, 0, 0], "{arch}");

        assert!(
            device.try_run("neighbour", 4, 64, &[p, q].map(Arg::Ptr)).is_ok(),
            "{arch}"
        );
        // Reads of the next workgroup's results.
        let shifted = [Arg::Ptr(p), Arg::Ptr(p + 4)];
        let found = fault(device.try_run("neighbour", 3, 64, &shifted));
        assert!(matches!(found.kind, FaultKind::GroupRace { .. }), "{arch}: {found}");

        let (sums, total) = (device.alloc(64), device.alloc(4));
        let run = |fence: i32| {
            let count = device.upload(&[0i32]);
            let args = [Arg::Ptr(sums), Arg::Ptr(count), Arg::Ptr(total), Arg::I32(fence)];
            device.try_run("last_block", 8, 64, &args)
        };
        let counted = run(1);
        assert!(counted.is_ok(), "{arch}: {counted:?}");
        assert_eq!(device.download::<i32>(total, 1), [36], "{arch}");
        let found = fault(run(0));
        assert!(
            matches!(
                found.kind,
                FaultKind::GroupRace {
                    access: Access::Read,
                    ..
                }
            ),
            "{arch}: {found}"
        );
        // A launch is ordered after the one before it.
        assert!(write(64).is_ok(), "{arch}");
    }
}
