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

/// A kernel of `pointers` buffers and `words` numbers of four bytes, all of which count: `y[t] = Σ (i + 1) · number i`.
fn sums(pointers: usize, words: usize) -> String {
    let buffers: Vec<String> = (1..pointers).map(|i| format!(", const float* x{i}")).collect();
    let numbers: Vec<String> = (0..words)
        .map(|i| format!(", {} n{i}", ["int", "float"][i % 2]))
        .collect();
    let terms: Vec<String> = (0..words).map(|i| format!(" + {}.0f * n{i}", i + 1)).collect();
    let read: Vec<String> = (1..pointers).map(|i| format!(" + x{i}[threadIdx.x]")).collect();
    format!(
        "extern \"C\" __global__ void sum{pointers}_{words}(float* y{}{}) {{ y[threadIdx.x] = 0.0f{}{}; }}\n",
        buffers.concat(),
        numbers.concat(),
        terms.concat(),
        read.concat()
    )
}

/// The bytes that a scalar load takes, by its name.
fn scalar_load(text: &str) -> Option<u32> {
    let words = [
        ("x16", 16),
        ("b512", 16),
        ("x8", 8),
        ("b256", 8),
        ("x4", 4),
        ("b128", 4),
        ("x2", 2),
        ("b64", 2),
    ];
    let name = text.strip_prefix("s_load_")?.split(' ').next()?;
    Some(
        words
            .iter()
            .find(|(end, _)| name.ends_with(end))
            .map_or(4, |(_, words)| 4 * words),
    )
}

/// Arguments end where they like, and compilers read whole loads: what lies behind the last one belongs to nobody, and
/// is there.
#[test]
fn argument_lists_of_every_length_are_read_whole() {
    let shapes: Vec<(usize, usize)> = (1..4)
        .flat_map(|pointers| (1..10).map(move |words| (pointers, words)))
        .collect();
    let source: String = shapes.iter().map(|(pointers, words)| sums(*pointers, *words)).collect();
    let mut past = 0;
    for arch in ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"] {
        let Some(device) = Device::new(&source, arch) else {
            return;
        };
        for &(pointers, words) in &shapes {
            let name = format!("sum{pointers}_{words}");
            let kernel = device.kernel(&name);
            let size = kernel.info().kernarg_size;
            past += kernel
                .instructions()
                .filter(|(_, text)| {
                    let from = text
                        .rsplit("0x")
                        .next()
                        .and_then(|hex| u32::from_str_radix(hex.trim(), 16).ok());
                    scalar_load(text).is_some_and(|bytes| from.unwrap_or(0) + bytes > size)
                })
                .count();
            let y = device.alloc(256);
            let buffers: Vec<u64> = (1..pointers).map(|i| device.upload(&[i as f32; 64])).collect();
            let mut args = vec![Arg::Ptr(y)];
            args.extend(buffers.iter().map(|buffer| Arg::Ptr(*buffer)));
            args.extend((0..words as i32).map(|i| match i % 2 {
                0 => Arg::I32(3 * i + 1),
                _ => Arg::F32((3 * i + 1) as f32),
            }));
            device.run(&name, 1, 64, &args);
            let numbers: i32 = (0..words as i32).map(|i| (i + 1) * (3 * i + 1)).sum();
            let read: i32 = (1..pointers as i32).sum();
            assert_eq!(
                device.download::<f32>(y, 64),
                [(numbers + read) as f32; 64],
                "{arch} {name}"
            );
        }
    }
    assert!(
        past > 0,
        "no kernel here reads past its arguments, so that nothing is tried"
    );
}

/// What lies there is not to be used, and ends.
#[test]
fn what_lies_behind_the_arguments_is_undefined_and_ends() {
    let source = r#"
extern "C" __global__ void behind(int* y, int word) {
  y[threadIdx.x] = ((const __attribute__((address_space(4))) int*)__builtin_amdgcn_kernarg_segment_ptr())[word];
}
"#;
    for arch in ARCHES {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let y = device.alloc(256);
        let at = |word: i32| device.try_run("behind", 1, 64, &[Arg::Ptr(y), Arg::I32(word)]);
        assert!(at(2).is_ok(), "{arch}");
        assert_eq!(device.download::<i32>(y, 1), [2], "{arch}");
        let size = device.kernel("behind").info().kernarg_size as i32;
        if size % 64 != 0 {
            let found = fault(at(size / 4));
            assert!(matches!(found.kind, FaultKind::Uninitialized { .. }), "{arch}: {found}");
        }
        let found = fault(at(1 << 20));
        assert!(matches!(found.kind, FaultKind::OutOfBounds { .. }), "{arch}: {found}");
    }
}

/// The product as tutorials write it: tiles of both operands in LDS, a thread's results in registers, sizes and factors
/// as numbers behind the pointers.
const SGEMM: &str = r#"
constexpr int BM = 32, BN = 32, BK = 8, TM = 4, TN = 4;
extern "C" __global__ void sgemm(const float* A, const float* B, float* C, int n, float alpha, float beta) {
  __shared__ float As[BM * BK], Bs[BK * BN];
  const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
  A += blockIdx.y * BM * n; B += blockIdx.x * BN; C += blockIdx.y * BM * n + blockIdx.x * BN;
  float sums[TM * TN] = {0.0f}, regM[TM], regN[TN];
  for (int bk = 0; bk < n; bk += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += blockDim.x) As[i] = A[(i / BK) * n + i % BK];
    for (int i = threadIdx.x; i < BK * BN; i += blockDim.x) Bs[i] = B[(i / BN) * n + i % BN];
    __syncthreads();
    A += BK; B += BK * n;
    for (int k = 0; k < BK; ++k) {
      for (int i = 0; i < TM; ++i) regM[i] = As[(threadRow * TM + i) * BK + k];
      for (int i = 0; i < TN; ++i) regN[i] = Bs[k * BN + threadCol * TN + i];
      for (int m = 0; m < TM; ++m) for (int j = 0; j < TN; ++j) sums[m * TN + j] += regM[m] * regN[j];
    }
    __syncthreads();
  }
  for (int m = 0; m < TM; ++m)
    for (int j = 0; j < TN; ++j) {
      float* c = C + (threadRow * TM + m) * n + threadCol * TN + j;
      *c = alpha * sums[m * TN + j] + beta * *c;
    }
}
"#;

#[test]
fn a_published_sgemm_runs() {
    let n = 64usize;
    for arch in ["gfx90a", "gfx1100"] {
        let Some(mut device) = Device::new(SGEMM, arch) else {
            return;
        };
        device.options.races = true;
        let mut random = common::Random::new(7);
        let mut matrix = || (0..n * n).map(|_| random.range(-1.0, 1.0) as f32).collect::<Vec<f32>>();
        let (a, b, c) = (matrix(), matrix(), matrix());
        let result = device.upload(&c);
        let buffers = [device.upload(&a), device.upload(&b), result].map(Arg::Ptr);
        let args = [&buffers[..], &[Arg::I32(n as i32), Arg::F32(1.5), Arg::F32(-0.5)]].concat();
        let run = device.try_run3("sgemm", [2, 2, 1], [64, 1, 1], &args, 0);
        run.unwrap_or_else(|error| panic!("{arch}: {error}"));
        for (at, got) in device.download::<f32>(result, n * n).into_iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let products = (0..n).map(|k| f64::from(a[row * n + k]) * f64::from(b[k * n + column]));
            let want = 1.5 * products.sum::<f64>() - 0.5 * f64::from(c[at]);
            assert!(
                (f64::from(got) - want).abs() < 1e-4,
                "{arch} at {at}: {got}, not {want}"
            );
        }
    }
}

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
