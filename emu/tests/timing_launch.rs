//! What a launch as a whole does: the clock that its matrix work leaves, and workgroups of different lengths.

mod common;
use common::{Arg, Device};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A loop of one matrix instruction and `pauses` of 64 cycles without one, by each wave.
fn matrix_loop(arch: &str, instruction: &str, pauses: usize) -> Option<Device> {
    let pause = "s_nop 15\\n".repeat(pauses);
    let source = format!(
        "extern \"C\" __global__ __launch_bounds__(256) void body(int n) {{\n  #pragma unroll 1\n\
         for (int i = 0; i < n; ++i) {{ asm volatile(\".rept 50\\n{instruction}\\n{pause}.endr\\n\" ::: \"v32\", \"v33\", \"v34\", \"v35\", \
         \"v36\", \"v37\", \"v38\", \"v39\", \"v40\", \"v41\", \"v42\", \"v43\"); }} }}"
    );
    Device::new(&source, arch)
}

const F16: &str = "v_mfma_f32_16x16x16_f16 v[32:35], v[36:37], v[38:39], v[32:35]";
/// As gfx90a spells them.
const F16_90A: &str = "v_mfma_f32_16x16x16f16 v[32:35], v[36:37], v[38:39], v[32:35]";
const F64_90A: &str = "v_mfma_f64_16x16x4f64 v[32:39], v[40:41], v[42:43], v[32:39]";

fn run(device: &Device, name: &str, grid: u32, args: &[Arg]) -> Report {
    device.time(name, grid, 256, 0, args, &TimingOptions::default())
}

/// The part of the time that a unit was busy.
fn busy(report: &Report, unit: &str) -> f64 {
    let found = report.busy.iter().find(|part| part.name == unit);
    found.map_or(0.0, |part| part.share)
}

/// The clock goes from boost to what dense matrix work settles at as the matrix units of the whole GPU have more to do.
#[test]
fn the_clock_follows_the_share_of_matrix_work() {
    for (arch, instruction, boost, sustained) in [
        ("gfx942", F16, 2.10, 1.10),
        ("gfx90a", F16_90A, 1.70, 1.56),
        ("gfx90a", F64_90A, 1.70, 1.23),
    ] {
        let mut clocks: Vec<f64> = Vec::new();
        for pauses in [0, 1, 2, 4, 8] {
            let Some(device) = matrix_loop(arch, instruction, pauses) else {
                return;
            };
            let report = run(&device, "body", device.gpu.arch().compute_units, &[Arg::I32(100)]);
            let share = busy(&report, "matrix unit");
            let cycle = 1.0 / boost + share * (1.0 / sustained - 1.0 / boost);
            assert!(
                (report.ghz * cycle - 1.0).abs() < 0.01,
                "{arch} {pauses}: {share} {}",
                report.ghz
            );
            assert_eq!(report.clock, "lowered by matrix work", "{arch} {pauses}");
            clocks.push(report.ghz);
        }
        assert!(clocks.is_sorted(), "{arch}: {clocks:?}");
        assert!(
            clocks[0] < 1.02 * sustained && clocks[4] > 0.5 * (boost + sustained),
            "{arch}: {clocks:?}"
        );
    }
}

/// What limits the clock is the whole GPU's: dense work on a quarter of the units lowers it by less.
#[test]
fn idle_units_leave_the_clock_high() {
    let Some(device) = matrix_loop("gfx942", F16, 0) else {
        return;
    };
    let clock = |grid| run(&device, "body", grid, &[Arg::I32(100)]).ghz;
    let (quarter, all) = (clock(76), clock(304));
    assert!((quarter - 1.71).abs() < 0.02 && all < 1.12, "{quarter} {all}");
    // Without matrix work it is the boost clock.
    let Some(rest) = matrix_loop("gfx942", "v_fma_f32 v32, v33, v34, v32", 0) else {
        return;
    };
    let report = run(&rest, "body", 304, &[Arg::I32(100)]);
    assert_eq!((report.ghz, report.clock.as_ref()), (2.10, "boost"));
}

#[test]
fn the_clock_is_the_same_with_one_thread() {
    let Some(device) = matrix_loop("gfx942", F16, 1) else {
        return;
    };
    let time = || run(&device, "body", 608, &[Arg::I32(40)]);
    let first = time();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        assert_eq!(pool.install(time), first, "{threads} threads");
    }
}

/// One workgroup at a time on a compute unit, of 1 to 8 times `n` steps: by turns, ascending, descending, or all of 8.
const STEPS: &str = r#"
extern "C" __global__ __launch_bounds__(256) void steps(float* out, float x, int n, int order) {
  __shared__ float s[16 * 1024];
  float a = threadIdx.x, b = x;
  s[threadIdx.x] = x; __syncthreads();
  int up = blockIdx.x * 8 / gridDim.x + 1;
  int length = n * (order == 0 ? blockIdx.x % 8 + 1 : order == 1 ? up : order == 2 ? 9 - up : 8);
  #pragma unroll 8
  for (int i = 0; i < length; ++i) { a = __builtin_fmaf(a, x, 0.5f); b = __builtin_fmaf(b, x, 0.25f); }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + s[(threadIdx.x + 1) & 255];
}
"#;

/// When the last of `grid` workgroups ends that each go to the first unit that is free, in steps of `n`.
fn last_end(grid: u32, units: u32, order: i32) -> f64 {
    let mut free: BinaryHeap<Reverse<u32>> = (0..units).map(|_| Reverse(0)).collect();
    let mut last = 0;
    for group in 0..grid {
        let up = group * 8 / grid + 1;
        let length = match order {
            0 => group % 8 + 1,
            1 => up,
            2 => 9 - up,
            _ => 8,
        };
        let Reverse(at) = free.pop().expect("a unit");
        last = last.max(at + length);
        free.push(Reverse(at + length));
    }
    f64::from(last)
}

/// The unit that ends last decides, however the grid orders long and short workgroups.
#[test]
fn workgroups_of_different_lengths_end_with_the_last() {
    for (arch, units) in [("gfx90a", 104), ("gfx1100", 48)] {
        let Some(device) = Device::new(STEPS, arch) else { return };
        let out = device.alloc(4 * 256 * 1024);
        let time = |grid, order| {
            let args = [Arg::Ptr(out), Arg::F32(0.5), Arg::I32(1024), Arg::I32(order)];
            run(&device, "steps", grid, &args)
        };
        let step = time(units, 3).cycles as f64 / 8.0;
        // A pair of RDNA's units holds two, which do not take twice as long as one.
        let grids = [units - 8, 8 * units];
        let grids = if arch == "gfx1100" { &grids[..1] } else { &grids[..] };
        for &grid in grids {
            for order in [0, 1, 2] {
                let report = time(grid, order);
                let ratio = report.cycles as f64 / step / last_end(grid, units, order);
                println!("{arch}, {grid} workgroups, order {order}: {ratio:.3}");
                assert!(
                    (ratio - 1.0).abs() < 0.08,
                    "{arch}, {grid} workgroups, order {order}: {ratio}"
                );
            }
        }
        // In one round the others wait for the longest: the mean has 4.5 of its 8 steps.
        let tail = |order| {
            let report = time(units - 8, order);
            let part = report.stalls.iter().find(|part| part.name == "tail");
            part.map_or(0.0, |part| part.share)
        };
        let (uneven, all) = (tail(0), tail(3));
        let expected = 1.0 - (1.0 - all) * 4.5 / 8.0;
        assert!((uneven - expected).abs() < 0.06, "{arch}: {uneven} {expected}");
    }
}

/// Workgroups of some hundred steps: a tile by way of LDS, matrix instructions, a barrier.
const STAGES: &str = r#"
typedef _Float16 h16 __attribute__((ext_vector_type(16)));
typedef float f8 __attribute__((ext_vector_type(8)));
extern "C" __global__ __launch_bounds__(128) void stages(float* out, const float4* in, int n) {
  __shared__ float4 s[2][512];
  const float4* at = in + blockIdx.x % 64 * 512 + threadIdx.x;
  f8 sum[4] = {};
  float4 next[4];
  for (int k = 0; k < 4; ++k) next[k] = at[128 * k];
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < 4; ++k) s[i & 1][threadIdx.x + 128 * k] = next[k];
    __syncthreads();
    at += 32768;
    for (int k = 0; k < 4; ++k) next[k] = at[128 * k];
    const h16* tile = (const h16*)s[i & 1];
    for (int k = 0; k < 16; ++k)
      sum[k % 4] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(tile[threadIdx.x % 16 + 16 * k], tile[threadIdx.x % 16 + 240 - 16 * k], sum[k % 4]);
  }
  f8 all = sum[0] + sum[1] + sum[2] + sum[3];
  for (int k = 0; k < 8; ++k) out[blockIdx.x * 1024 + threadIdx.x * 8 + k] = all[k] + next[k % 4].x;
}
"#;

/// Few rounds of long workgroups tell a launch of many: as long as many rounds do, and a little more of the clock
/// changes little, also where the waves of a SIMD run apart (RDNA serves the oldest first).
#[test]
fn few_rounds_tell_what_many_take() {
    let Some(device) = Device::new(STAGES, "gfx1100") else {
        return;
    };
    let steps = 96;
    let groups = 48 * 61;
    let (out, input) = (
        device.alloc(4 * 1024 * groups as usize),
        device.alloc(32768 * 16 * (steps + 2)),
    );
    let time = |ghz: f64, budget: u64| {
        let timing = TimingOptions {
            ghz: Some(ghz),
            budget,
            sample_loops: false,
            ..TimingOptions::default()
        };
        let args = [Arg::Ptr(out), Arg::Ptr(input), Arg::I32(steps as i32)];
        device.time("stages", groups, 128, 0, &args, &timing)
    };
    let many = time(2.4, 8_000_000);
    let mut before = None;
    for step in 0..5 {
        let ghz = 2.4 + 0.01 * f64::from(step);
        let few = time(ghz, 300_000);
        assert!(
            few.extrapolated && few.sampled < many.sampled,
            "{} {}",
            few.sampled,
            many.sampled
        );
        let ratio = few.cycles as f64 / many.cycles as f64;
        let change = few.cycles as f64 / before.replace(few.cycles as f64).unwrap_or(few.cycles as f64);
        println!("{ghz} GHz: {ratio:.3} of many rounds, {change:.3} of the clock before");
        assert!((ratio - 1.0).abs() < 0.02, "{ghz}: {ratio}");
        assert!((change - 1.0).abs() < 0.01, "{ghz}: {change}");
    }
}

/// The dispatcher of a shader engine takes 16.5 cycles for a workgroup, or 4.3 for each of its waves where that is
/// more.
#[test]
fn small_workgroups_wait_for_the_dispatcher() {
    let Some(device) = Device::new(
        "extern \"C\" __global__ __launch_bounds__(1024) void nothing() {}",
        "gfx90a",
    ) else {
        return;
    };
    for (waves, each) in [(1, 16.5), (2, 16.5), (3, 16.5), (8, 8.0 * 4.3)] {
        let time = |grid| {
            device
                .time("nothing", grid, 64 * waves, 0, &[], &TimingOptions::default())
                .cycles as f64
        };
        let (few, many) = (104 * 64, 104 * 256);
        let cycles = (time(many) - time(few)) * 8.0 / f64::from(many - few);
        assert!((cycles / each - 1.0).abs() < 0.02, "{waves} waves: {cycles}");
    }
}
