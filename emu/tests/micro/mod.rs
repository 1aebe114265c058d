//! Published micro-benchmarks of AMD GPUs as kernels of ours, with the figure that hardware gave.
//!
//! The numbers of the rows are those of the table in `emu/TIMING.md`.
#![allow(dead_code, reason = "each binary uses its part")]

mod held;

use super::common::{Arg, Device, Random};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;
use std::collections::HashSet;

/// One figure.
pub struct Row {
    pub number: &'static str,
    pub gpu: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub published: f64,
    pub predict: Box<dyn Fn() -> Option<f64>>,
}

const SOURCE: &str = r#"
typedef float f4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void chase(unsigned long long* out, unsigned long long* start, int n) {
  unsigned long long* p = start;
  #pragma unroll 1
  for (int i = 0; i < n; i += 16) {
    #pragma unroll
    for (int k = 0; k < 16; ++k) p = (unsigned long long*)*(volatile unsigned long long*)p;
  }
  *out = (unsigned long long)p;
}
extern "C" __global__ __launch_bounds__(1024) void cached(f4* out, const f4* in, int n, int mask) {
  f4 sum = 0;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    #pragma unroll
    for (int k = 0; k < 16; ++k) sum += *(const volatile f4*)(in + ((threadIdx.x + (k & 3) * 128) & mask));
  }
  if (sum.x == 1.2345f) out[threadIdx.x] = sum;
}
extern "C" __global__ __launch_bounds__(1024) void shared_sum(double* out, const double* in, int run) {
  double sum = 0;
  #pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    int at = (1024 * run * i + (blockIdx.x % run) * 1024) * 2 + threadIdx.x;
    sum += in[at] * in[at + 1024];
  }
  if (sum == 23.12) out[threadIdx.x] = sum;
}
extern "C" __global__ __launch_bounds__(1024) void strided(float* out, const float* in, int n, int stride, int zero, int) {
  float sum = 0;
  const float* at = in + (threadIdx.x & 63) * stride;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    at += zero;
    sum += at[0] * at[4]; sum += at[8] * at[12]; sum += at[20] * at[16]; sum += at[24] * at[28];
  }
  if (sum == 1.2345f) out[threadIdx.x] = sum;
}
#ifndef LENGTH
#define LENGTH 32704
#endif
#define PART int i = (threadIdx.x + blockIdx.x * blockDim.x) % LENGTH;
extern "C" __global__ __launch_bounds__(1024) void part_read(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { PART if (i >= n) return; double t = a[i]; if (t == 123.0) o[i] = t; }
extern "C" __global__ __launch_bounds__(1024) void part_scale(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { PART if (i >= n) return; o[i] = a[i] * 1.2; }
extern "C" __global__ __launch_bounds__(1024) void part_triad(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { PART if (i >= n) return; o[i] = a[i] * b[i] + c[i]; }
extern "C" __global__ __launch_bounds__(1024) void part_write(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { PART if (i >= n) return; o[i] = 0.23; }
#define GUARD int i = threadIdx.x + blockIdx.x * blockDim.x; if (i >= n) return;
extern "C" __global__ __launch_bounds__(1024) void init(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { GUARD o[i] = 0.23; }
extern "C" __global__ __launch_bounds__(1024) void read(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { GUARD double t = a[i]; if (t == 123.0) o[i] = t; }
extern "C" __global__ __launch_bounds__(1024) void scale(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { GUARD o[i] = a[i] * 1.2; }
extern "C" __global__ __launch_bounds__(1024) void triad(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) { GUARD o[i] = a[i] * b[i] + c[i]; }
extern "C" __global__ __launch_bounds__(1024) void stencil3(double* o, const double* __restrict__ a, const double* __restrict__ b,
    const double* __restrict__ c, unsigned long n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x; if (i >= n - 1 || i == 0) return;
  o[i] = 0.5 * a[i - 1] - 1.0 * a[i] + 0.5 * a[i + 1];
}
extern "C" __global__ __launch_bounds__(1024) void lds_reads(unsigned* data, unsigned* places, int mask) {
  __shared__ unsigned s[16 * 1024];
  for (int i = threadIdx.x; i < 16 * 1024; i += blockDim.x) s[i] = data[i];
  unsigned at = places[threadIdx.x & 63], sum = 0;
  #pragma clang loop vectorize(disable)
  for (int i = 0; i < 10000; ++i) sum += s[at + (i & mask)];
  if (threadIdx.x == 0) data[0] = sum;
}
"#;

/// A device with the micro-benchmarks.
fn device(arch: &str) -> Option<Device> {
    Device::new(SOURCE, arch)
}

fn timed(device: &Device, name: &str, grid: u32, block: u32, lds: u32, args: &[Arg], ghz: f64) -> Report {
    let timing = TimingOptions {
        ghz: Some(ghz),
        ..TimingOptions::default()
    };
    device.time(name, grid, block, lds, args, &timing)
}

/// Row 11 and 12: one lane follows pointers through `bytes`, a line of 128 bytes each, in random order.
pub fn chase(arch: &str, bytes: u64, ghz: f64) -> Option<f64> {
    let device = device(arch)?;
    let (out, buffer) = (device.alloc(8), device.alloc(bytes as usize));
    let lines = bytes / 128;
    let (short, long) = (256, 1280);
    // A large buffer's cycle is only as long as the walk; a small one is gone round.
    let mut random = Random::new(7);
    let mut order: Vec<u64> = Vec::new();
    let mut seen = HashSet::new();
    while order.len() < long.min(lines as usize) {
        let line = random.below(lines);
        if seen.insert(line) {
            order.push(line);
        }
    }
    let address = |line: u64| buffer + line * 128;
    for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        device
            .gpu
            .memory()
            .write(address(*at), &address(*next).to_le_bytes())
            .ok()?;
    }
    let run = |n: usize| {
        let args = [Arg::Ptr(out), Arg::Ptr(address(order[0])), Arg::I32(n as i32)];
        timed(&device, "chase", 1, 1, 0, &args, ghz).cycles as f64
    };
    Some((run(long) - run(short)) / (long - short) as f64)
}

/// Row 13: all compute units read 8 KB of their own cache; the rate in TB/s.
pub fn cached(arch: &str, ghz: f64) -> Option<f64> {
    let device = device(arch)?;
    let (out, buffer) = (device.alloc(1 << 16), device.alloc(8192));
    let grid = device.gpu.arch().compute_units;
    let run = |n: i32| {
        let args = [Arg::Ptr(out), Arg::Ptr(buffer), Arg::I32(n), Arg::I32(511)];
        timed(&device, "cached", grid, 1024, 0, &args, ghz).cycles as f64
    };
    let moved = f64::from(grid) * 1024.0 * 16.0 * 16.0 * 48.0;
    Some(moved / ((run(64) - run(16)) / ghz) / 1e3)
}

/// Row 14: blocks that read 512 KB each of `run` times as much; the rate in TB/s.
pub fn shared_sum(arch: &str, run: i32, ghz: f64) -> Option<f64> {
    let device = device(arch)?;
    let (out, buffer) = (device.alloc(1 << 16), device.alloc((run as usize) * (512 << 10)));
    let grid = 200_000;
    let args = [Arg::Ptr(out), Arg::Ptr(buffer), Arg::I32(run)];
    let report = timed(&device, "shared_sum", grid, 1024, 0, &args, ghz);
    Some(f64::from(grid) * 512.0 * 1024.0 / (report.cycles as f64 / ghz) / 1e3)
}

/// Row 17: reads of the vector cache at a stride of words: bytes a cycle of a compute unit.
pub fn strided(arch: &str, stride: i32) -> Option<f64> {
    let device = device(arch)?;
    let (out, buffer) = (device.alloc(1 << 16), device.alloc(16384));
    let grid = device.gpu.arch().compute_units;
    let run = |n: i32| {
        let args = [
            Arg::Ptr(out),
            Arg::Ptr(buffer),
            Arg::I32(n),
            Arg::I32(stride),
            Arg::I32(0),
            Arg::I32(0),
        ];
        timed(&device, "strided", grid, 1024, 0, &args, 1.7).cycles as f64
    };
    Some(1024.0 * 4.0 * 8.0 * 48.0 / (run(64) - run(16)))
}

/// Row 15: streams over vectors of so many elements, again and again, so that L2 or the memory-side cache has them;
/// TB/s as published.
pub fn cached_stream(arch: &str, part: Option<&str>, name: &str, length: usize, ghz: f64) -> Option<f64> {
    let device = Device::try_new(SOURCE, arch, &[&format!("-DLENGTH={length}")]).ok()?;
    let n: u64 = 1 << 30;
    let mut args: Vec<Arg> = (0..4).map(|_| Arg::Ptr(device.alloc(8 * length))).collect();
    args.push(Arg::I64(n as i64));
    let timing = TimingOptions {
        ghz: Some(ghz),
        part: part.map(str::to_owned),
        ..TimingOptions::default()
    };
    let report = device.time(name, (n / 1024) as u32, 1024, 32768, &args, &timing);
    let streams = match name {
        "part_read" | "part_write" => 1.0,
        "part_triad" => 4.0,
        _ => 2.0,
    };
    Some(streams * 8.0 * n as f64 / (report.cycles as f64 / ghz) / 1e3)
}

/// Rows 7 to 10 and 16: a stream over vectors of `bytes` with f64 elements, at most `blocks` of `block` on each compute
/// unit; TB/s as published, where triad counts four streams.
pub fn stream(arch: &str, name: &str, bytes: u64, block: u32, blocks: u32, ghz: f64) -> Option<f64> {
    let device = device(arch)?;
    let n = bytes / 8;
    let buffers: Vec<u64> = (0..4).map(|_| device.alloc(bytes as usize)).collect();
    let mut args: Vec<Arg> = buffers.iter().map(|b| Arg::Ptr(*b)).collect();
    args.push(Arg::I64(n as i64));
    let lds = if blocks > 16 { 0 } else { 65536 / blocks };
    let report = timed(&device, name, n.div_ceil(block.into()) as u32, block, lds, &args, ghz);
    let streams = match name {
        "init" | "read" => 1.0,
        "triad" => 4.0,
        _ => 2.0,
    };
    let micros = report.cycles as f64 / ghz / 1e3 + report.launch_micros;
    Some(streams * bytes as f64 / micros / 1e6)
}

/// Row 19: one block of 16 waves reads LDS at a stride of words, 10000 times; the time in microseconds.
pub fn lds_reads(arch: &str, stride: u32, ghz: f64) -> Option<f64> {
    let device = device(arch)?;
    let data = device.upload(&[1u32; 16 * 1024]);
    let places: Vec<u32> = (0..64).map(|lane| lane * stride).collect();
    let places = device.upload(&places);
    let args = [Arg::Ptr(data), Arg::Ptr(places), Arg::I32(0)];
    Some(timed(&device, "lds_reads", 1, 1024, 0, &args, ghz).cycles as f64 / ghz / 1e3)
}

/// Row 20: cycles of `body`, which is assembly, in a loop of 1000 of them, which begin behind `before` at the begin of
/// a fetch; the loop's own instructions are a part of it, as published.
pub fn loop_body(arch: &str, before: &str, body: &str, waves: u32) -> Option<f64> {
    let source = format!(
        "typedef float f4 __attribute__((ext_vector_type(4)));\n\
         extern \"C\" __global__ __launch_bounds__(1024) void body(int n) {{\n  #pragma unroll 1\n\
         for (int i = 0; i < n; ++i) {{ asm volatile(\".p2align 3\\n{before}.rept 1000\\n{body}.endr\\n\" ::: \"v32\", \"v33\", \"v34\", \"v35\", \"v36\", \"v37\", \"v38\", \"v39\", \"v40\", \"v41\", \"v42\", \"v43\", \"v44\", \"v45\", \"v46\", \"v47\"); }} }}"
    );
    let device = Device::new(&source, arch)?;
    let run = |n: i32| timed(&device, "body", 1, 64 * waves, 0, &[Arg::I32(n)], 2.1).cycles as f64;
    Some((run(8) - run(4)) / 4.0 / 1000.0)
}

const MFMA: &str = "v_mfma_f32_16x16x16_f16 v[32:35], v[36:37], v[38:39], v[32:35]\\n";
const FMA: &str = "v_fma_f32 v40, v41, v42, v43\\n";
const PK: &str = "v_pk_fma_f32 v[40:41], v[42:43], v[44:45], v[46:47]\\n";
const PK_MUL: &str = "v_pk_mul_f32 v[40:41], v[42:43], v[44:45]\\n";
const ADD: &str = "v_add_f32_e32 v40, v41, v42\\n";
const EXP: &str = "v_exp_f32 v40, v41\\n";

/// Every row.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |number, gpu, what: String, unit, published: f64, predict: Box<dyn Fn() -> Option<f64>>| {
        rows.push(Row {
            number,
            gpu,
            what,
            unit,
            published,
            predict,
        });
    };
    const KB: u64 = 1 << 10;
    const MB: u64 = 1 << 20;
    for (bytes, clocks) in [
        (8 * KB, 128.0),
        (MB, 249.0),
        (6 * MB, 318.0),
        (70 * MB, 587.0),
        (547 * MB, 690.0),
    ] {
        let what = format!("pointer chase {} KB", bytes / KB);
        row(
            "11",
            "MI210",
            what,
            "clk",
            clocks,
            Box::new(move || chase("gfx90a", bytes, 1.7)),
        );
    }
    for (bytes, clocks) in [
        (16 * KB, 119.0),
        (2 * MB, 213.0),
        (64 * MB, 456.0),
        (140 * MB, 513.0),
        (720 * MB, 885.0),
    ] {
        let what = format!("pointer chase {} KB", bytes / KB);
        row(
            "12",
            "MI300X",
            what,
            "clk",
            clocks,
            Box::new(move || chase("gfx942", bytes, 2.1)),
        );
    }
    row(
        "13",
        "MI210",
        "all units read 8 KB".into(),
        "TB/s",
        10.5,
        Box::new(|| cached("gfx90a", 1.7)),
    );
    row(
        "13",
        "MI300X",
        "all units read 8 KB".into(),
        "TB/s",
        39.0,
        Box::new(|| cached("gfx942", 2.1)),
    );
    for (run, rate) in [(11, 4.895), (22, 4.28), (50, 2.28)] {
        let what = format!("blocks read 512 KB each of {} KB", 512 * run);
        row(
            "14",
            "MI210",
            what,
            "TB/s",
            rate,
            Box::new(move || shared_sum("gfx90a", run, 1.7)),
        );
    }
    for (number, gpu, arch, ghz, block, rates) in [
        ("7", "MI210", "gfx90a", 1.7, 1024, [1.511, 1.370, 1.362, 1.225, 1.256]),
        ("8", "MI210", "gfx90a", 1.7, 512, [1.446, 1.159, 1.230, 1.217, 1.156]),
        ("8", "MI210", "gfx90a", 1.7, 256, [0.907, 0.662, 0.844, 1.144, 0.796]),
        ("8", "MI210", "gfx90a", 1.7, 128, [0.487, 0.345, 0.463, 0.825, 0.447]),
        ("8", "MI210", "gfx90a", 1.7, 16, [0.033, 0.024, 0.036, 0.065, 0.035]),
        ("9", "MI300X", "gfx942", 2.1, 1024, [4.801, 4.199, 3.997, 3.866, 4.146]),
        ("9", "MI300X", "gfx942", 2.1, 256, [3.377, 1.959, 2.729, 3.740, 2.432]),
        ("9", "MI300X", "gfx942", 2.1, 128, [1.948, 1.049, 1.534, 2.647, 1.451]),
        ("9", "MI300X", "gfx942", 2.1, 16, [0.136, 0.075, 0.122, 0.233, 0.117]),
    ] {
        for (name, rate) in ["init", "read", "scale", "triad", "stencil3"].into_iter().zip(rates) {
            // The smallest as one block.
            let blocks = if block == 16 { 1 } else { 2 };
            let what = format!("f64 {name}, 2 GB, {blocks} x {block} lanes a unit");
            let predict = move || stream(arch, name, 2 << 30, block, blocks, ghz);
            row(number, gpu, what, "TB/s", rate, Box::new(predict));
        }
    }
    for (gpu, arch, ghz, rates) in [
        ("MI210", "gfx90a", 1.7, [1.656, 2.783, 3.014]),
        ("MI300X", "gfx942", 2.1, [7.916, 13.977, 17.706]),
    ] {
        for (name, rate) in ["read", "scale", "triad"].into_iter().zip(rates) {
            let what = format!("f64 {name} of L2, two blocks of 1024 a unit");
            let predict = move || cached_stream(arch, None, &format!("part_{name}"), 32704, ghz);
            row("15", gpu, what, "TB/s", rate, Box::new(predict));
        }
    }
    for (gpu, rates) in [
        ("MI300X", [5.366, 4.062, 4.009, 4.946]),
        ("MI300A", [4.254, 3.961, 4.027, 3.035]),
    ] {
        for (name, rate) in ["read", "scale", "triad", "write"].into_iter().zip(rates) {
            let what = format!("f64 {name} of vectors of 61 MB, two blocks of 1024 a unit");
            let predict = move || cached_stream("gfx942", Some(gpu), &format!("part_{name}"), 7_651_297, 2.1);
            row("15", gpu, what, "TB/s", rate, Box::new(predict));
        }
    }
    for (bytes, rate) in [
        (64u64, 31.0),
        (405, 188.0),
        (1300, 510.0),
        (4000, 1117.0),
        (28000, 1198.0),
        (280_000, 1357.0),
    ] {
        let what = format!("f64 scale over {bytes} kB in all, launches back to back");
        let predict = move || stream("gfx90a", "scale", bytes * 500, 256, 32, 1.7).map(|tb| 1e3 * tb);
        row("16", "MI210", what, "GB/s", rate, Box::new(predict));
    }
    for (lanes, rate) in [(16, 212.0), (32, 423.0), (64, 839.0)] {
        let what = format!("f64 scale over 281035 kB in all, blocks of {lanes}, launches back to back");
        let predict = move || stream("gfx90a", "scale", 281_035 * 512, lanes, 32, 1.7).map(|tb| 1e3 * tb);
        row("16", "MI210", what, "GB/s", rate, Box::new(predict));
    }
    for (stride, rate) in [(1, 59.0), (2, 7.9), (3, 15.9), (4, 4.0)] {
        let what = format!("vector cache, f32 at stride {stride}");
        row(
            "17",
            "MI210",
            what,
            "B/clk",
            rate,
            Box::new(move || strided("gfx90a", stride)),
        );
    }
    for (stride, micros) in [
        (1, 358.3),
        (2, 474.4),
        (4, 907.2),
        (8, 1805.6),
        (16, 3600.6),
        (32, 7196.0),
    ] {
        // At 1.423 GHz: 64 cycles for the reads of stride 32.
        let predict = move || lds_reads("gfx942", stride, 1.423);
        row(
            "19",
            "MI308X",
            format!("LDS b32, stride {stride}"),
            "us",
            micros,
            Box::new(predict),
        );
    }
    let mut body = |what: &str, before: &'static str, body: String, clocks: f64| {
        let predict = move || loop_body("gfx942", before, &body, 1);
        row(
            "20",
            "MI308X",
            format!("{what}, one wave"),
            "clk",
            clocks,
            Box::new(predict),
        );
    };
    for (what, text, clocks) in [
        ("v_fma_f32", FMA.to_string(), 4.01),
        ("v_pk_fma_f32", PK.to_string(), 4.0),
        ("v_exp_f32", EXP.to_string(), 16.0),
        ("MFMA 16x16x16 chain", MFMA.to_string(), 16.03),
        ("MFMA + 3 v_fma", format!("{MFMA}{FMA}{FMA}{FMA}"), 16.0),
        ("MFMA + v_pk_fma", format!("{MFMA}{PK}"), 28.0),
        ("MFMA + v_exp", format!("{MFMA}{EXP}"), 20.0),
    ] {
        body(what, "", text, clocks);
    }
    // Four bytes later, each fourth instruction of eight bytes lies in two fetches.
    for (what, text, clocks) in [("v_fma_f32", FMA, 5.012), ("v_pk_mul_f32", PK_MUL, 5.004)] {
        body(
            &format!("{what} across fetches"),
            "s_nop 0\\n",
            text.to_string(),
            clocks,
        );
    }
    body("v_add_f32 of four bytes", "s_nop 0\\n", ADD.to_string(), 4.012);
    rows
}

/// Rows that the model was not fitted to.
pub fn not_fitted() -> Vec<Row> {
    held::rows()
}
