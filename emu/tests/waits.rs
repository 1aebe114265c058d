//! Every wait of some kernels is removed in turn, and every counter of the waits for several: each removal that could matter on the
//! hardware is reported, whatever the numbers are.

mod common;
use common::{Arg, Compiled, Device, compiled, rewrite_instructions};
use graphc_emu::{CodeObject, LaunchError};

const SOURCE: &str = r#"
typedef __attribute__((address_space(1))) void* global_ptr;
typedef __attribute__((address_space(3))) void* lds_ptr;
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
KERNEL axpy(float* y, const float* x, int n) {
  int t = blockIdx.x * 256 + threadIdx.x;
  if (t < n) y[t] = 2.0f * x[t] + x[t + n];
}
KERNEL gather(float* y, const float* x, int n) {
  int t = blockIdx.x * 256 + threadIdx.x;
  int at = (int)x[t] & 511;
  y[t] = x[at] + x[(at * 7) & 511];
}
KERNEL streams(float4* y, const float4* x, int n) {
  int t = threadIdx.x;
  float4 a = x[t], b = x[t + 256];
  for (int i = 0; i < n / 256; ++i) { float4 c = x[(t + i * 64) & 511]; a.x += b.x * c.y; a.y -= c.z; b = c; }
  y[t] = a;
}
KERNEL reverse(float* y, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  y[blockIdx.x * 256 + t] = s[255 - t];
}
KERNEL sums(float* y, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[t] + x[t + 256];
  __syncthreads();
  for (int d = 128; d > 0; d /= 2) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
  if (t == 0) y[blockIdx.x] = s[0];
}
KERNEL product(float* y, const float* x, int n) {
  __shared__ float a[16][17], b[16][17];
  int i = threadIdx.x / 16, j = threadIdx.x % 16;
  float sum = 0;
  for (int k = 0; k < 32; k += 16) {
    a[i][j] = x[i * 32 + k + j];
    b[i][j] = x[(k + i) * 16 + j];
    __syncthreads();
    for (int l = 0; l < 16; ++l) sum += a[i][l] * b[l][j];
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
KERNEL stages(float* y, const float* x, int n) {
  __shared__ float4 s[2][256];
  int t = threadIdx.x;
  s[0][t] = ((const float4*)x)[t];
  float4 sum = {0, 0, 0, 0};
  for (int i = 0; i < 3; ++i) {
    __syncthreads();
    float4 next = ((const float4*)x)[t + i];
    float4 v = s[i & 1][(t * 5) & 255];
    sum.x += v.x * v.w; sum.y += v.y; sum.z += v.z;
    s[i + 1 & 1][t] = next;
  }
  ((float4*)y)[t] = sum;
}
KERNEL shuffles(float* y, const float* x, int n) {
  float v = x[threadIdx.x];
  for (int d = 1; d < 64; d *= 2) v += __shfl_xor(v, d);
  y[blockIdx.x * 256 + threadIdx.x] = v;
}
KERNEL counted(float* y, const float* x, int n) {
  __shared__ int bins[16];
  int t = threadIdx.x;
  if (t < 16) bins[t] = 0;
  __syncthreads();
  int old = atomicAdd(&bins[(int)x[t] & 15], 1);
  __syncthreads();
  y[blockIdx.x * 256 + t] = old + bins[t & 15];
}
KERNEL last_block(int* y, const float* x, int n) {
  __shared__ int last;
  if (threadIdx.x == 0) {
    y[2 + blockIdx.x] = blockIdx.x + 1;
    last = __hip_atomic_fetch_add(y, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT) == (int)gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < (int)gridDim.x; ++i) sum += ((volatile int*)y)[2 + i];
    y[1] = sum;
  }
}
KERNEL straight(float* y, float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  __builtin_amdgcn_global_load_lds((global_ptr)(x + t), (lds_ptr)(s + t / 64 * 64), 4, 0, 0);
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  __builtin_amdgcn_s_barrier();
  y[blockIdx.x * 256 + t] = ((volatile float*)s)[t ^ 64];
}
KERNEL halves(_Float16* y, const _Float16* x, int n) {
  __shared__ _Float16 s[512];
  int t = threadIdx.x;
  s[t] = x[2 * t]; s[t + 256] = x[2 * t + 1];
  __syncthreads();
  y[t] = s[(t * 3) & 511] + s[(t + 1) & 511];
}
KERNEL doubles(double* y, const double* x, int n) {
  __shared__ double s[256];
  int t = threadIdx.x;
  double v = x[t];
  s[t] = v / (x[255 - t] + 2.0);
  __syncthreads();
  y[t] = sqrt(s[t ^ 5]) + v;
}
"#;

const KERNELS: [&str; 13] = [
    "axpy",
    "gather",
    "streams",
    "reverse",
    "sums",
    "product",
    "stages",
    "shuffles",
    "counted",
    "last_block",
    "straight",
    "halves",
    "doubles",
];

fn run(compiled: &Compiled, kernel: &str) -> Result<(), String> {
    let mut device = Device::load(compiled, "gfx90a");
    device.options.group_races = kernel == "last_block";
    let x: Vec<f32> = (0..4096).map(|i| (i * 37 % 101) as f32 + 1.0).collect();
    let (y, x) = (device.upload(&[0u8; 16384]), device.upload(&x));
    match device.try_run(kernel, 2, 256, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(512)]) {
        Ok(_) => Ok(()),
        Err(LaunchError::Fault(fault)) => Err(format!("{:?}", fault.kind)),
        Err(other) => panic!("{kernel}: {other}"),
    }
}

/// The waits that are left of a wait of gfx9 where one counter's is removed, or all; each with what was removed.
fn removals(text: &str) -> Vec<(u32, String, String)> {
    let Some(rest) = text.strip_prefix("s_waitcnt ") else {
        return Vec::new();
    };
    let parts: Vec<(&str, u32)> = rest
        .split(' ')
        .filter_map(|part| part.strip_suffix(')')?.split_once('('))
        .filter_map(|(counter, left)| Some((counter, left.parse().ok()?)))
        .collect();
    assert!(!parts.is_empty(), "{text}");
    (0..parts.len())
        .map(|removed| {
            let (mut vector, mut export, mut local) = (63, 7, 15);
            let kept: Vec<&(&str, u32)> = parts
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != removed)
                .map(|p| p.1)
                .collect();
            for (counter, left) in &kept {
                match *counter {
                    "vmcnt" => vector = *left,
                    "expcnt" => export = *left,
                    "lgkmcnt" => local = *left,
                    other => panic!("a counter {other}"),
                }
            }
            let bits = vector & 15 | export << 4 | local << 8 | vector >> 4 << 14;
            let text = kept.iter().map(|(counter, left)| format!(" {counter}({left})"));
            let text = match kept.len() {
                0 => "s_nop 0".to_owned(),
                _ => format!("s_waitcnt{}", text.collect::<String>()),
            };
            let word = if kept.is_empty() {
                0xbf80_0000
            } else {
                0xbf8c_0000 | bits
            };
            (word, text, format!("{}({})", parts[removed].0, parts[removed].1))
        })
        .collect()
}

#[test]
fn removed_waits_are_noticed() {
    let Some(good) = compiled(SOURCE, "gfx90a") else { return };
    let (mut all, mut unnoticed) = (0, Vec::new());
    for kernel in KERNELS {
        assert_eq!(run(&good, kernel), Ok(()), "{kernel}");
        let object = CodeObject::load(&good.code).expect("it loads");
        let symbol = &object.symbols()[kernel];
        let range = symbol.address..symbol.address + symbol.size;
        let lines: Vec<_> = good
            .listing
            .lines()
            .iter()
            .filter(|line| range.contains(&line.address))
            .collect();
        for (at, line) in lines.iter().enumerate() {
            for (word, text, removed) in removals(&line.text) {
                let (bad, count) = rewrite_instructions(&good, kernel, |_, other| {
                    (other.address == line.address).then(|| (word, text.clone()))
                });
                assert_eq!(count, 1);
                all += 1;
                if run(&bad, kernel).is_ok() {
                    let around = &lines[at.saturating_sub(6)..(at + 8).min(lines.len())];
                    let around: Vec<&str> = around.iter().map(|line| line.text.as_str()).collect();
                    let text = format!("{removed} of {:?}\n    {}", line.text, around.join("\n    "));
                    unnoticed.push((kernel, text));
                }
            }
        }
    }
    // A wave's own accesses to LDS keep their order: what no other wave reads needs no wait before the barrier.
    let redundant = |kernel: &str| match kernel {
        // From the half of 128 on one wave adds what it stored.
        "sums" => 7,
        // `t ^ 5` is a lane of the same wave.
        "doubles" => 1,
        _ => 0,
    };
    for kernel in KERNELS {
        let found: Vec<&String> = unnoticed
            .iter()
            .filter(|(of, _)| *of == kernel)
            .map(|(_, text)| text)
            .collect();
        let texts: String = found.iter().map(|text| format!("\n{text}")).collect();
        assert_eq!(
            found.len(),
            redundant(kernel),
            "{kernel}: removed and not noticed:{texts}"
        );
        let expected = |text: &&String| text.starts_with("lgkmcnt(0)") && text.contains("s_barrier");
        assert!(found.iter().all(expected), "{kernel}:{texts}");
    }
    println!("{all} removals, {} unnoticed, all of them redundant", unnoticed.len());
    assert!(all >= 90, "{all} removals");
}
