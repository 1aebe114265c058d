//! Prints how many lane-instructions a second one core executes, for VALU-bound kernels and a matrix kernel.

#[path = "../tests/common/mod.rs"]
mod common;
use common::{Arg, Device};
use graphc_emu::Counters;
use std::time::Instant;

const SOURCE: &str = r#"
extern "C" __global__ void fma_bound(float* o, float x, int n) {
  float a[8]; for (int k = 0; k < 8; ++k) a[k] = threadIdx.x * 0.001f + k;
  for (int i = 0; i < n; ++i)
    for (int k = 0; k < 8; ++k) a[k] = __builtin_fmaf(a[k], x, 0.5f);
  float s = 0; for (int k = 0; k < 8; ++k) s += a[k];
  o[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
extern "C" __global__ void int_bound(int* o, int x, int n) {
  int a = threadIdx.x, b = x, c = a ^ b;
  for (int i = 0; i < n; ++i) { a = (a << 3) + b; b ^= c >> 2; c = (c & a) | b; a += c * 5; b = a > c ? b + 1 : c; }
  o[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c;
}
extern "C" __global__ void gelu_bound(float* o, const float* x, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[t];
  for (int i = 0; i < n; ++i) v = 0.5f * v * (1.0f + erff(v * 0.70710678f)) + 0.3f;
  o[t] = v;
}
extern "C" __global__ void copy_bound(float* o, const float* x, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = 0; i < n; ++i) o[t] = x[(t + i) & 4095];
}
extern "C" __global__ void lds_bound(float* o, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x; float v = x[t];
  for (int i = 0; i < n; ++i) { s[t] = v; __syncthreads(); v += s[(t + i) & 255]; __syncthreads(); }
  o[t] = v;
}
extern "C" __global__ void f64_bound(float* o, const float* x, int n) {
  double a[8]; for (int k = 0; k < 8; ++k) a[k] = x[threadIdx.x] + k;
  for (int i = 0; i < n; ++i)
    for (int k = 0; k < 8; ++k) a[k] = __builtin_fma(a[k], 0.99, 0.5);
  double s = 0; for (int k = 0; k < 8; ++k) s += a[k];
  o[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
extern "C" __global__ void wide_bound(float4* o, const float4* x, int n) {
  int t = threadIdx.x;
  for (int i = 0; i < n; ++i) o[t] = x[(t + i) & 1023];
}
extern "C" __global__ void tile_bound(float* o, const float* x, int n) {
  __shared__ float4 s[256];
  int t = threadIdx.x; float4 v = {x[t], 1, 2, 3};
  s[t] = v; __syncthreads();
  for (int i = 0; i < n; ++i) { float4 a = s[(t * 7 + i) & 255]; v.x += a.x; v.y += a.y; v.z += a.z; v.w += a.w; }
  o[t] = v.x + v.y + v.z + v.w;
}
#ifdef __gfx90a__
typedef _Float16 h4 __attribute__((ext_vector_type(4)));
typedef float f4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void mfma_bound(float* o, const float* x, int n) {
  int t = threadIdx.x; h4 a = {(_Float16)x[t], (_Float16)1.5f, (_Float16)t, (_Float16)0.25f}; f4 c = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) c = __builtin_amdgcn_mfma_f32_16x16x16f16(a, a, c, 0, 0, 0);
  o[t] = c.x + c.y + c.z + c.w;
}
#endif
"#;

fn main() {
    for arch in ["gfx90a", "gfx942", "gfx1100", "gfx1201"] {
        let Some(mut device) = Device::new(SOURCE, arch) else {
            return;
        };
        device.options.parallel = false;
        let out = device.alloc(16 * 256 * 4);
        let input = device.upload(&vec![0.7f32; 16 * 256 * 4]);
        let mut runs: Vec<(&str, Vec<Arg>)> = vec![
            ("fma_bound", vec![Arg::Ptr(out), Arg::F32(0.99), Arg::I32(2000)]),
            ("int_bound", vec![Arg::Ptr(out), Arg::I32(12345), Arg::I32(2000)]),
            ("gelu_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(200)]),
            ("copy_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(200)]),
            ("wide_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(200)]),
            ("lds_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(200)]),
            ("tile_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(200)]),
            ("f64_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(500)]),
        ];
        if arch == "gfx90a" {
            runs.push(("mfma_bound", vec![Arg::Ptr(out), Arg::Ptr(input), Arg::I32(4000)]));
        }
        for (name, args) in runs {
            device.run(name, 1, 256, &args);
            // The best of several: other processes take their share of a core.
            let (mut counters, mut seconds) = (Counters::default(), f64::INFINITY);
            for _ in 0..7 {
                let start = Instant::now();
                counters = device.run(name, 16, 256, &args);
                seconds = seconds.min(start.elapsed().as_secs_f64());
            }
            println!(
                "{arch:8} {name:10} {:8.1} million lane-instructions/s, {:6.2} million wave instructions/s",
                counters.lane_instructions as f64 / seconds / 1e6,
                counters.instructions as f64 / seconds / 1e6
            );
        }
    }
}
