//! What the emulator refuses or leaves out as the hardware does: far addresses, deep grids, endless loops, calls of
//! the host, output modifiers.

mod common;
use common::{ARCHES, Arg, Device, compile, fault};
use graphc_emu::{FaultKind, LaunchError, MOST_GROUPS_YZ, Space};

const SOURCE: &str = r#"
extern "C" __global__ void at(float* y, long i) { y[i] = 1.0f; }
extern "C" __global__ void asleep(volatile int* p) { while (*p == 0) __builtin_amdgcn_s_sleep(1); }
extern "C" __global__ void barriers(volatile int* p) { while (*p == 0) __builtin_amdgcn_s_barrier(); }
extern "C" __global__ void deep(int* y) { if (blockIdx.y == gridDim.y - 1) y[0] = blockIdx.y; }
"#;

/// Other allocations are gigabytes away, above and below.
#[test]
fn far_addresses_meet_no_neighbour() {
    for arch in ARCHES {
        let Some(device) = Device::new(SOURCE, arch) else {
            return;
        };
        let buffers: Vec<u64> = (0..5).map(|_| device.alloc(1 << 26)).collect();
        for (index, buffer) in buffers.iter().enumerate() {
            for far in [
                -(1i64 << 28),
                -(1 << 24),
                1 << 24,
                5 << 22,
                1 << 26,
                1 << 28,
                (1 << 29) + 12345,
            ] {
                let found = fault(device.try_run("at", 1, 1, &[Arg::Ptr(*buffer), Arg::I64(far)]));
                assert!(
                    matches!(
                        found.kind,
                        FaultKind::OutOfBounds {
                            space: Space::Global,
                            ..
                        }
                    ),
                    "{arch} buffer {index} at {far}: {found}"
                );
            }
            device.run("at", 1, 1, &[Arg::Ptr(*buffer), Arg::I64((1 << 24) - 1)]);
        }
    }
}

/// A loop that sleeps or meets at barriers gives its turn away; the limit holds for the workgroup all the same.
#[test]
fn loops_that_yield_end_at_the_limit() {
    for arch in ARCHES {
        let Some(mut device) = Device::new(SOURCE, arch) else {
            return;
        };
        device.options.instruction_limit = Some(30_000);
        let p = device.upload(&[0i32]);
        for kernel in ["asleep", "barriers"] {
            let found = fault(device.try_run(kernel, 1, 256, &[Arg::Ptr(p)]));
            assert_eq!(
                found.kind,
                FaultKind::InstructionLimit(30_000),
                "{arch} {kernel}: {found}"
            );
        }
    }
}

#[test]
fn grids_that_are_too_deep_are_refused() {
    let Some(mut device) = Device::new(SOURCE, "gfx90a") else {
        return;
    };
    device.options.workgroups = Some(vec![u64::from(MOST_GROUPS_YZ) - 1]);
    let y = device.upload(&[0i32]);
    let run = |grid: [u32; 3]| device.try_run3("deep", grid, [1, 1, 1], &[Arg::Ptr(y)], 0);
    assert!(run([1, MOST_GROUPS_YZ, 1]).is_ok());
    assert_eq!(device.download::<i32>(y, 1), [MOST_GROUPS_YZ as i32 - 1]);
    assert!(run([1 << 20, 1, 1]).is_ok());
    for grid in [[1, 65_536, 1], [1, 1, 65_536], [1, 1 << 20, 1 << 3]] {
        let error = run(grid).expect_err("too deep");
        assert!(
            matches!(error, LaunchError::GridTooDeep { limit: 65_535, .. }),
            "{error}"
        );
    }
}

/// Printing, assertions and the heap of a kernel need a host that serves them: a fault that says so.
#[test]
fn a_call_of_the_host_says_so() {
    let source = r#"
extern "C" __global__ void print(int n) { if (n) printf("%d\n", n); }
extern "C" __global__ void heap(int** p, int n) { if (n) *p = (int*)malloc(n); }
"#;
    for arch in ARCHES {
        let compiled = match compile(source, arch, &["-O3"]) {
            Ok(compiled) => compiled,
            Err(common::NoCode::Skipped(reason)) => return println!("skipped: {reason}"),
            Err(error) => panic!("{arch}: {error:?}"),
        };
        let device = Device::load(&compiled, arch);
        let p = device.upload(&[0u64]);
        for (kernel, args, word) in [
            ("print", vec![Arg::I32(5)], "printf"),
            ("heap", vec![Arg::Ptr(p), Arg::I32(64)], "malloc"),
        ] {
            let mut quiet = args.clone();
            *quiet.last_mut().expect("one") = Arg::I32(0);
            assert!(device.try_run(kernel, 1, 1, &quiet).is_ok(), "{arch} {kernel}");
            let found = fault(device.try_run(kernel, 1, 1, &args));
            let said = matches!(&found.kind, FaultKind::NotModelled(what) if what.contains(word));
            assert!(said, "{arch} {kernel}: {found}");
        }
    }
}

const MODIFIERS: &str = r#"
// MODE's bits 4 to 7 are the denormal fields, 9 is IEEE mode.
template <int denormals, int ieee> __device__ float product(float x, float y) {
  float r;
  asm volatile("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), %3\n"
#if !defined(__GFX12__)
      "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), %4\n"
#endif
      "v_mul_f32_e64 %0, %1, %2 mul:4\n"
      "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15\n"
      : "=v"(r) : "v"(x), "v"(y), "i"(denormals), "i"(ieee));
  return r;
}
extern "C" __global__ void modified(float* y, const float* x) {
  int t = threadIdx.x;
  y[4 * t] = product<0, 0>(x[t], 2.0f);
  y[4 * t + 1] = product<15, 0>(x[t], 2.0f);
  y[4 * t + 2] = product<0, 1>(x[t], 2.0f);
  // Only the output's field counts, and only that of the result's type.
  y[4 * t + 3] = product<13, 0>(x[t], 2.0f);
}
"#;

/// The hardware ignores omod in IEEE mode and where output denormals are on, and it never gives a -0.
#[test]
fn output_modifiers_are_ignored_where_the_mode_says_so() {
    for arch in ARCHES {
        let Some(device) = Device::new(MODIFIERS, arch) else {
            return;
        };
        let x = device.upload(&[1.5f32, -0.0, -3.0, 1e-38]);
        let y = device.alloc(64);
        device.run("modified", 1, 4, &[Arg::Ptr(y), Arg::Ptr(x)]);
        let got: Vec<u32> = device.download(y, 16);
        let has_ieee = arch != "gfx1201";
        for (lane, x) in [1.5f32, -0.0, -3.0, 1e-38].into_iter().enumerate() {
            // Where input denormals are off, the last one counts as 0.
            let (kept, flushed) = (x, if x == 1e-38 { 0.0 } else { x });
            let modified = |x: f32| x * 8.0 + 0.0;
            let in_ieee = if has_ieee { flushed * 2.0 } else { modified(flushed) };
            let want = [modified(flushed), kept * 2.0, in_ieee, modified(kept)];
            assert_eq!(
                got[4 * lane..4 * lane + 4],
                want.map(f32::to_bits),
                "{arch} {x}: {want:?}"
            );
        }
    }
}
