//! The timing model: defects that are planted are named, changes do what they must, and the same input gives the same
//! cycles.

mod common;
mod micro;
use common::{Arg, Device, Random};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;

const SOURCE: &str = r#"
extern "C" __global__ void conflicts(int* out, int stride, int n) {
  __shared__ int s[4096];
  int at = threadIdx.x * stride & 4095, sum = 0;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    #pragma unroll
    for (int k = 0; k < 8; ++k) { int v; asm volatile("ds_read_b32 %0, %1\n" : "=v"(v) : "v"(at * 4)); }
    asm volatile("s_waitcnt lgkmcnt(0)");
  }
  if (sum == 12345) out[threadIdx.x] = sum;
}
extern "C" __global__ void chain(float* out, float x, int n) {
  float a = threadIdx.x;
  #pragma unroll 16
  for (int i = 0; i < n; ++i) a = __builtin_fmaf(a, x, 0.5f);
  out[threadIdx.x] = a;
}
extern "C" __global__ void gather(float* out, const float* in, int stride, int n) {
  float sum = 0; const float* at = in + threadIdx.x * stride;
  #pragma unroll 8
  for (int i = 0; i < n; ++i) sum += at[i * 64 & 1023];
  out[threadIdx.x] = sum;
}
extern "C" __global__ void fill_unit(float* out, float x, int n) {
  __shared__ float s[16 * 1024];
  float a = threadIdx.x, b = x;
  s[threadIdx.x] = x; __syncthreads();
  #pragma unroll 8
  for (int i = 0; i < n; ++i) { a = __builtin_fmaf(a, x, 0.5f); b = __builtin_fmaf(b, x, 0.25f); }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + s[(threadIdx.x + 1) & 255];
}
extern "C" __global__ void copy(float4* out, const float4* in) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = in[i];
}
extern "C" __global__ void sum_of_three(float4* out, const float4* x, const float4* y, const float4* z) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 a = x[i], b = y[i], c = z[i];
  out[i] = float4{a.x + b.x + c.x, a.y + b.y + c.y, a.z + b.z + c.z, a.w + b.w + c.w};
}
// Each wave reads LDS at a stride of two words, which takes four cycles of the banks.
extern "C" __global__ __launch_bounds__(1024) void lds_turns(int* out, int n) {
  __shared__ int s[4096];
  int at = threadIdx.x * 8 & 1023, sum = 0;
  s[threadIdx.x] = n; __syncthreads();
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    #pragma unroll
    for (int k = 0; k < 8; ++k) { int v; asm volatile("ds_read_b32 %0, %1\n" : "=v"(v) : "v"(at)); }
    asm volatile("s_waitcnt lgkmcnt(0)");
  }
  if (sum == 12345) out[threadIdx.x] = sum;
}
extern "C" __global__ void again(float4* out, const float4* in, int back) {
  int group = blockIdx.x > back ? blockIdx.x - back : blockIdx.x;
  float4 a = in[blockIdx.x * 256 + threadIdx.x], b = in[group * 256 + threadIdx.x];
  a.x += b.x; a.y += b.y; a.z += b.z; a.w += b.w;
  out[blockIdx.x * 256 + threadIdx.x] = a;
}
// The same lines by one load or by three, before any of them is there.
extern "C" __global__ void loads(float* out, const float* in, int three) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float a, b = 0, c = 0;
  if (three) asm volatile("global_load_dword %0, %3, off\nglobal_load_dword %1, %3, off\nglobal_load_dword %2, %3, off\ns_waitcnt vmcnt(0)"
                          : "=&v"(a), "=&v"(b), "=&v"(c) : "v"(in + i));
  else asm volatile("global_load_dword %0, %1, off\ns_waitcnt vmcnt(0)" : "=&v"(a) : "v"(in + i));
  out[i] = a + b + c;
}
extern "C" __global__ void until_zero(int* out, const volatile int* in) {
  int i = 0;
  #pragma unroll 1
  while (in[i]) ++i;
  out[threadIdx.x] = i;
}
extern "C" __global__ void tiles(float* out, const float* in, int n, int step) {
  __shared__ float s[2][256];
  const float* at = in + blockIdx.x * 256 + threadIdx.x;
  float sum = 0;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    s[i & 1][threadIdx.x] = at[i % 64 * step];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 16; ++k) sum = __builtin_fmaf(s[i & 1][(threadIdx.x + 7 * k) & 255], sum, 0.5f);
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
// The next step's load is under way while this one is summed; or the wave waits for it at once.
extern "C" __global__ void ahead(float* out, const float* in, int n, int step) {
  const float* at = in + blockIdx.x * 256 + threadIdx.x;
  float next = *at, a = 0;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    float now = next; at += step; next = __builtin_nontemporal_load(at);
#ifdef EARLY
    asm volatile("s_waitcnt vmcnt(0)" : "+v"(next));
#endif
    #pragma unroll
    for (int k = 0; k < 256; ++k) a = __builtin_fmaf(a, now, 0.5f);
  }
  out[threadIdx.x] = a + next;
}
// All workgroups load the same, in code without a loop that is longer than what a survey executes.
extern "C" __global__ void unrolled(float* out, const float* in, float x) {
  float a = x;
  #pragma unroll
  for (int i = 0; i < 1024; ++i) {
    float now = in[i * 16384 + threadIdx.x];
    #pragma unroll
    for (int k = 0; k < 8; ++k) a = __builtin_fmaf(a, x, now);
  }
  out[blockIdx.x * 256 + threadIdx.x] = a;
}
// The later half of the waves may ask for precedence.
extern "C" __global__ void turns(float* out, float x, int level) {
  float a = threadIdx.x, b = x;
  if (level != 0 && __builtin_amdgcn_readfirstlane(threadIdx.x) >= 256) __builtin_amdgcn_s_setprio(3);
  #pragma unroll
  for (int k = 0; k < 256; ++k) { a = __builtin_fmaf(a, x, 0.5f); b = __builtin_fmaf(b, x, 0.25f); }
  out[threadIdx.x] = a + b;
}
"#;

/// From memory to LDS, past the registers: 16 KB a step and workgroup.
const STRAIGHT: &str = r#"
extern "C" __global__ __launch_bounds__(256) void straight(const float* in, int n) {
  __shared__ float s[4096];
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    #pragma unroll
    for (int k = 0; k < 4; ++k)
      __builtin_amdgcn_global_load_lds((const __attribute__((address_space(1))) void*)(in + 4 * threadIdx.x + 1024 * k),
          (__attribute__((address_space(3))) void*)(s + 1024 * k + 256 * (threadIdx.x / 64)), 16, 0, 0);
    __builtin_amdgcn_s_waitcnt(0);
  }
}
"#;

fn device(arch: &str) -> Option<Device> {
    Device::new(SOURCE, arch)
}

fn time(device: &Device, name: &str, grid: u32, args: &[Arg]) -> Report {
    device.time(name, grid, 256, 0, args, &TimingOptions::default())
}

/// The share of a stall or unit in a report.
fn share(parts: &[graphc_emu::timing::Part], name: &str) -> f64 {
    parts
        .iter()
        .find(|part| part.name == name)
        .map_or(0.0, |part| part.share)
}

#[test]
fn a_bank_conflict_is_named() {
    for arch in ["gfx90a", "gfx942"] {
        let Some(device) = device(arch) else { return };
        let out = device.alloc(1024);
        let run = |stride| {
            time(
                &device,
                "conflicts",
                device.gpu.arch().compute_units,
                &[Arg::Ptr(out), Arg::I32(stride), Arg::I32(40)],
            )
        };
        let (free, met) = (run(1), run(32));
        assert_eq!(met.bound, "LDS", "{arch}: {met:?}");
        assert!(met.stalls[0].name.starts_with("LDS"), "{arch}: {:?}", met.stalls);
        assert!(met.cycles > 5 * free.cycles, "{arch}: {} {}", met.cycles, free.cycles);
    }
}

#[test]
fn a_chain_of_results_is_named() {
    let Some(device) = device("gfx1100") else { return };
    let out = device.alloc(1024);
    let report = device.time(
        "chain",
        1,
        32,
        0,
        &[Arg::Ptr(out), Arg::F32(0.5), Arg::I32(2048)],
        &TimingOptions::default(),
    );
    // One wave: its SIMD waits four of five cycles; the other three have nothing.
    let chained = |hot: &graphc_emu::timing::Hot| hot.cause == "ALU result" && hot.text.contains("v_fma");
    assert!(report.hot.iter().any(chained), "{report:?}");
    assert!(
        share(&report.stalls, "ALU result") > share(&report.stalls, "branch"),
        "{report:?}"
    );
    assert!(
        (report.cycles as f64) > 5.0 * 2048.0 && (report.cycles as f64) < 6.5 * 2048.0,
        "{}",
        report.cycles
    );
}

#[test]
fn scattered_loads_are_named() {
    let Some(device) = device("gfx90a") else { return };
    let (out, input) = (device.alloc(1024), device.upload(&vec![0f32; 256 * 32 + 2048]));
    let run = |stride| {
        time(
            &device,
            "gather",
            104,
            &[Arg::Ptr(out), Arg::Ptr(input), Arg::I32(stride), Arg::I32(256)],
        )
    };
    // Four words apart, so that the vector cache has them: further apart L2 is asked for most lines, and binds.
    let (dense, scattered) = (run(1), run(4));
    assert_eq!(scattered.bound, "addresser", "{scattered:?}");
    assert!(
        scattered.cycles > 3 * dense.cycles,
        "{} {}",
        scattered.cycles,
        dense.cycles
    );
}

#[test]
fn a_workgroup_too_many_is_named() {
    let Some(device) = device("gfx90a") else { return };
    let out = device.alloc(4 * 256 * 220);
    let run = |grid| {
        time(
            &device,
            "fill_unit",
            grid,
            &[Arg::Ptr(out), Arg::F32(0.5), Arg::I32(4096)],
        )
    };
    // 64 KB of LDS: one workgroup a compute unit.
    let (fits, more) = (run(104), run(105));
    assert_eq!((fits.resident, fits.rounds, more.rounds), (1, 1.0, 2.0));
    assert!(
        more.cycles as f64 > 1.8 * fits.cycles as f64,
        "{} {}",
        more.cycles,
        fits.cycles
    );
    assert_eq!(share(&fits.stalls, "tail"), 0.0);
    assert!(share(&more.stalls, "tail") > 0.45, "{:?}", more.stalls);
    assert_eq!(more.bound, "tail", "{more:?}");
}

#[test]
fn an_early_wait_is_named() {
    let options = ["-DEARLY"];
    let Ok(early) = Device::try_new(SOURCE, "gfx942", &options) else {
        return;
    };
    let Some(late) = device("gfx942") else { return };
    let run = |device: &Device| {
        let (out, input) = (device.alloc(1024), device.alloc(64 << 20));
        let args = [Arg::Ptr(out), Arg::Ptr(input), Arg::I32(24), Arg::I32(65536)];
        time(device, "ahead", 304, &args)
    };
    let (early, late) = (run(&early), run(&late));
    assert!(
        early.cycles as f64 > 1.2 * late.cycles as f64,
        "{} {}",
        early.cycles,
        late.cycles
    );
    assert_eq!(early.stalls[0].name, "vector memory", "{:?}", early.stalls);
    assert!(early.hot[0].text.contains("s_waitcnt"), "{:?}", early.hot);
    let waits = |report: &Report| share(&report.stalls, "vector memory");
    assert!(waits(&late) < 0.5 * waits(&early), "{:?}", late.stalls);
}

#[test]
fn clocks_and_bytes_do_what_they_must() {
    let Some(device) = device("gfx942") else { return };
    let bytes = 256 << 20;
    let (out, input) = (device.alloc(bytes), device.alloc(bytes));
    let at = |ghz, name: &str, grid, args: &[Arg]| {
        let timing = TimingOptions {
            ghz: Some(ghz),
            ..TimingOptions::default()
        };
        device.time(name, grid, 256, 0, args, &timing)
    };
    // A copy's time is memory's; arithmetic's is the clock's.
    let copy = |ghz, grid| at(ghz, "copy", grid, &[Arg::Ptr(out), Arg::Ptr(input)]).micros;
    let grid = (bytes / 4096) as u32;
    assert!((copy(2.0, grid) / copy(1.0, grid) - 1.0).abs() < 0.1);
    let half = (copy(2.0, grid) - 2.0) / (copy(2.0, grid / 2) - 2.0);
    assert!((half - 2.0).abs() < 0.15, "{half}");
    let sum = |ghz| at(ghz, "fill_unit", 304, &[Arg::Ptr(out), Arg::F32(0.5), Arg::I32(4096)]);
    let (slow, fast) = (sum(1.0), sum(2.0));
    assert!((slow.cycles as f64 / fast.cycles as f64 - 1.0).abs() < 0.05);
}

#[test]
fn the_same_input_gives_the_same_cycles() {
    let Some(device) = device("gfx1201") else { return };
    let (out, input) = (device.alloc(1 << 24), device.upload(&vec![1f32; 1 << 22]));
    let run = || time(&device, "copy", 4096, &[Arg::Ptr(out), Arg::Ptr(input)]);
    let first = run();
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
    assert_eq!(one.install(run), first);
    assert_eq!(run(), first);
}

/// A unit's part of L2 is so many bytes a cycle: at half the clock it gives half as much a second.
#[test]
fn l2_has_the_shader_s_clock() {
    let at = |ghz| micro::shared_sum("gfx90a", 11, ghz);
    let (Some(fast), Some(slow)) = (at(1.7), at(0.85)) else {
        return;
    };
    assert!((fast / slow - 2.0).abs() < 0.02, "{fast} {slow}");
}

/// Loads that come after all that a survey executes are shared as the others of their allocation are.
#[test]
fn loads_beyond_the_survey_are_shared() {
    let Some(device) = device("gfx90a") else { return };
    let (out, input) = (device.alloc(1 << 20), device.alloc(64 << 20));
    let report = time(
        &device,
        "unrolled",
        104,
        &[Arg::Ptr(out), Arg::Ptr(input), Arg::F32(0.5)],
    );
    assert!(report.instructions > 104.0 * 4.0 * 9000.0, "{}", report.instructions);
    // 1024 lines of 1 KB, read by all 104 and fetched once, but for those of the fiftieth that is taken to have drifted
    // apart.
    let bytes = 1024.0 * 1024.0;
    assert!(
        report.dram_bytes > 0.9 * bytes && report.dram_bytes < 4.0 * bytes,
        "{}",
        report.dram_bytes
    );
}

/// Of waves of one SIMD that could issue, the one of the higher priority does; without priorities the oldest.
#[test]
fn priorities_come_before_age() {
    let Some(device) = device("gfx942") else { return };
    let out = device.alloc(2048);
    let last = |level| {
        let timing = TimingOptions {
            issues: 1 << 16,
            ..TimingOptions::default()
        };
        let args = [Arg::Ptr(out), Arg::F32(0.5), Arg::I32(level)];
        let report = device.time("turns", 1, 512, 0, &args, &timing);
        let of = |later: bool| {
            let issues = report.issues.iter().filter(|issue| (issue.wave >= 4) == later);
            issues.map(|issue| issue.at).max().expect("waves")
        };
        (of(false), of(true))
    };
    let (older, younger) = last(0);
    assert!(older < younger, "{older} {younger}");
    let (older, younger) = last(1);
    assert!(younger < older, "{older} {younger}");
}

/// What memory sends straight to LDS takes its banks 128 bytes a cycle.
#[test]
fn loads_to_lds_take_its_banks() {
    let Ok(device) = Device::try_new(STRAIGHT, "gfx950", &[]) else {
        return;
    };
    let input = device.alloc(16 << 10);
    let report = time(&device, "straight", 256, &[Arg::Ptr(input), Arg::I32(200)]);
    let busy = share(&report.busy, "LDS") * report.cycles as f64;
    let expected = 200.0 * 16384.0 / 128.0;
    assert!((busy / expected - 1.0).abs() < 0.02, "{busy} {expected}");
}

/// Loops of arithmetic, memory and LDS, also with a barrier and with several rounds: as long by their samples as whole,
/// to a percent (RDNA: three).
#[test]
fn sampled_loops_take_as_long_as_whole_ones() {
    let mut misses = Vec::new();
    for arch in ["gfx942", "gfx1100"] {
        let Some(device) = device(arch) else { return };
        let units = device.gpu.arch().compute_units;
        let (out, input) = (device.alloc(4 << 20), device.alloc(256 << 20));
        // Of RDNA's loops more is recorded.
        let longer = if arch == "gfx1100" { 3 } else { 1 };
        let cases: [(&str, u32, Vec<Arg>); 5] = [
            (
                "conflicts",
                units,
                vec![Arg::Ptr(out), Arg::I32(2), Arg::I32(5000 * longer)],
            ),
            ("chain", 4 * units, vec![Arg::Ptr(out), Arg::F32(0.5), Arg::I32(60_000)]),
            (
                "fill_unit",
                3 * units,
                vec![Arg::Ptr(out), Arg::F32(0.5), Arg::I32(40_000 * longer)],
            ),
            (
                "ahead",
                2 * units,
                vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(800), Arg::I32(65536)],
            ),
            (
                "tiles",
                4 * units,
                vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(2000), Arg::I32(512 << 10)],
            ),
        ];
        for (name, grid, args) in cases {
            let run = |sample_loops| {
                let timing = TimingOptions {
                    sample_loops,
                    ..TimingOptions::default()
                };
                device.time(name, grid, 256, 0, &args, &timing)
            };
            let (sampled, whole) = (run(true), run(false));
            assert_eq!(whole.loops_left_out, 0.0);
            assert!(
                sampled.loops_left_out > 0.2,
                "{arch} {name}: {}",
                sampled.loops_left_out
            );
            let ratio = sampled.cycles as f64 / whole.cycles as f64;
            println!("{arch} {name}: {ratio:.4}, {:.2} left out", sampled.loops_left_out);
            // Waves of RDNA that one SIMD serves oldest first run apart for longer than a sample lasts.
            let allowed = if arch == "gfx1100" { 0.03 } else { 0.01 };
            if (ratio - 1.0).abs() > allowed {
                misses.push(format!("{arch} {name}: {ratio:.4}"));
            }
            assert!(
                (sampled.instructions / whole.instructions - 1.0).abs() < 0.01,
                "{arch} {name}"
            );
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}

/// A loop that ends when a loaded value says so is not gone through without its loads.
#[test]
fn loops_that_loads_end_are_whole() {
    let Some(device) = device("gfx90a") else { return };
    let mut steps = vec![1i32; 5000];
    steps[4000] = 0;
    let (out, input) = (device.alloc(1024), device.upload(&steps));
    let report = device.time(
        "until_zero",
        104,
        64,
        0,
        &[Arg::Ptr(out), Arg::Ptr(input)],
        &TimingOptions::default(),
    );
    assert_eq!(report.loops_left_out, 0.0);
    // Each step waits for a load.
    assert!(report.cycles > 4000 * 120, "{}", report.cycles);
}

/// Random straight programs in a loop of one wave: one more instruction never makes them faster but by rounding. (Among
/// several waves a later one may meet a unit free by luck.)
#[test]
fn more_work_takes_no_less_time() {
    const LINES: [&str; 8] = [
        "v_fma_f32 v40, v41, v42, v40",
        "v_add_u32 v41, v42, v43",
        "v_exp_f32 v42, v43",
        "v_mfma_f32_16x16x16_f16 v[32:35], v[36:37], v[38:39], v[32:35]",
        "ds_read_b128 v[44:47], v48",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32 v36, v40",
        "s_add_u32 s20, s21, s22",
    ];
    let cycles = |lines: &[&str]| {
        let source = format!(
            "extern \"C\" __global__ void body(int n) {{ __shared__ int s[4096]; s[threadIdx.x] = n;\n\
             asm volatile(\"v_mov_b32 v48, 0\" ::: \"v48\");\n#pragma unroll 1\n\
             for (int i = 0; i < n; ++i) {{ asm volatile(\"{}\\n\" ::: \"v32\", \"v33\", \"v34\", \"v35\", \"v36\", \"v37\", \"v38\", \
             \"v39\", \"v40\", \"v41\", \"v42\", \"v43\", \"v44\", \"v45\", \"v46\", \"v47\", \"s20\", \"scc\"); }}\n\
             asm volatile(\"s_waitcnt lgkmcnt(0)\"); }}",
            lines.join("\\n")
        );
        let device = Device::new(&source, "gfx942")?;
        Some(
            device
                .time("body", 304, 64, 0, &[Arg::I32(64)], &TimingOptions::default())
                .cycles,
        )
    };
    let mut random = Random::new(11);
    for _ in 0..6 {
        let mut lines: Vec<&str> = (0..8 + random.below(8))
            .map(|_| LINES[random.below(8) as usize])
            .collect();
        let Some(before) = cycles(&lines) else { return };
        let at = random.below(lines.len() as u64) as usize;
        lines.insert(at, LINES[random.below(5) as usize]);
        let Some(after) = cycles(&lines) else { return };
        assert!(after as f64 >= before as f64 * 0.99, "{before} {after}: {lines:#?}");
    }
}

/// The micro-benchmarks that hardware published: all within a factor, so that a change that breaks the model is seen.
#[test]
fn published_micro_benchmarks_are_met() {
    let mut ratios = Vec::new();
    let mut misses = Vec::new();
    for row in micro::rows() {
        let Some(predicted) = (row.predict)() else { return };
        let ratio = predicted / row.published;
        ratios.push((ratio - 1.0).abs());
        if !(0.90..1.13).contains(&ratio) {
            misses.push(format!("{} {} {}: {ratio:.2}", row.number, row.gpu, row.what));
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
    ratios.sort_by(f64::total_cmp);
    let middle = ratios[ratios.len() / 2];
    assert!(middle < 0.05, "half of the rows miss by {middle}");
}

/// Nothing of the model was fitted to stencils over planes: they stand on what L2 keeps of the plane before, with one
/// point a lane and with several.
#[test]
fn published_stencils_are_met() {
    let stencils = micro::not_fitted().into_iter().filter(|row| row.number == "21");
    let mut misses = Vec::new();
    for row in stencils {
        let Some(predicted) = (row.predict)() else { return };
        let ratio = predicted / row.published;
        if !(0.85..1.2).contains(&ratio) {
            misses.push(format!("{}: {ratio:.2}", row.what));
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}

/// gfx90a asks L2 again for lines that are on their way, and DRAM once.
#[test]
fn loads_of_lines_under_way_ask_l2_again() {
    // A write, a read or three, and the line that L2 takes in once.
    for (arch, more) in [("gfx90a", 5.0 / 3.0), ("gfx942", 1.0)] {
        let Some(device) = device(arch) else { return };
        let (out, input) = (device.alloc(64 << 20), device.alloc(64 << 20));
        let run = |three| {
            let args = [Arg::Ptr(out), Arg::Ptr(input), Arg::I32(three)];
            let report = time(&device, "loads", 65_536, &args);
            (share(&report.busy, "L2") * report.cycles as f64, report.dram_bytes)
        };
        let (one, three) = (run(0), run(1));
        assert!((three.0 / one.0 / more - 1.0).abs() < 0.05, "{arch}: {one:?} {three:?}");
        assert!((three.1 - one.1).abs() <= 0.02 * one.1, "{arch}: {one:?} {three:?}");
    }
}

/// DRAM opens the rows of every stream again after each turn between reads and writes: sums of vectors in allocations
/// of their own take longer than the same bytes of one allocation. A memory-side cache orders that itself.
#[test]
fn streams_of_dram_lose_by_their_number() {
    for (arch, loss) in [("gfx90a", 1.06), ("gfx942", 1.0)] {
        let Some(device) = device(arch) else { return };
        let bytes = 512 << 20;
        let buffers: Vec<u64> = (0..4).map(|_| device.alloc(bytes)).collect();
        let sums = |inputs: [u64; 3]| {
            let args: Vec<Arg> = [buffers[0]].into_iter().chain(inputs).map(Arg::Ptr).collect();
            time(&device, "sum_of_three", (bytes / 3 / 4096) as u32, &args).cycles as f64
        };
        let third = |part: u64| buffers[1] + part * (bytes as u64 / 3 / 4096 * 4096);
        let (one, apart) = (sums([0, 1, 2].map(third)), sums([buffers[1], buffers[2], buffers[3]]));
        assert!((apart / one / loss - 1.0).abs() < 0.02, "{arch}: {one} {apart}");
    }
}

/// The waves of a unit share its queue of LDS instructions alike, so that they go on together: the youngest is not
/// served last.
#[test]
fn waves_that_wait_for_lds_go_on_together() {
    let Some(device) = device("gfx942") else { return };
    let out = device.alloc(4096);
    let timing = TimingOptions {
        issues: 1 << 20,
        ..TimingOptions::default()
    };
    let report = device.time("lds_turns", 1, 1024, 0, &[Arg::Ptr(out), Arg::I32(200)], &timing);
    let end = |wave: u32| {
        report
            .issues
            .iter()
            .filter(|issue| issue.wave == wave)
            .map(|issue| issue.at)
            .max()
    };
    let ends: Vec<u64> = (0..16).filter_map(end).collect();
    let (first, last) = (ends.iter().min(), ends.iter().max());
    let (Some(first), Some(last)) = (first, last) else {
        panic!("no issues")
    };
    assert_eq!(ends.len(), 16);
    assert!(first * 100 > last * 90, "{ends:?}");
}

/// Workgroups read the rows that those of the row before read: as far as L2 has room for what was read since, DRAM
/// gives them once.
#[test]
fn l2_keeps_what_the_last_row_of_workgroups_read() {
    let Some(device) = device("gfx90a") else { return };
    let bytes = 256 << 20;
    let (out, input) = (device.alloc(bytes), device.alloc(bytes));
    // Every workgroup reads its 4 KB and the 4 KB of the workgroup `back` before it.
    let read = |back: i32| {
        let args = [Arg::Ptr(out), Arg::Ptr(input), Arg::I32(back)];
        time(&device, "again", 32 << 10, &args).dram_bytes
    };
    let once = read(0);
    let (near, far) = (read(64), read(4 << 10));
    assert!((near / once - 1.0).abs() < 0.05, "{near} {once}");
    assert!(far > 1.35 * once, "{far} {once}");
}
