//! Every wait and every barrier of some kernels is removed in turn, of waits for several counters each counter by
//! itself: every removal that matters on hardware is reported, whatever the numbers are. A removal that is not reported
//! is harmless by a rule ([`is_covered`], [`is_last`]), or is one of those that [`OWN`] lists with the reason.

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
#ifndef RDNA
KERNEL straight(float* y, float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  __builtin_amdgcn_global_load_lds((global_ptr)(x + t), (lds_ptr)(s + t / 64 * 64), 4, 0, 0);
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  __builtin_amdgcn_s_barrier();
  y[blockIdx.x * 256 + t] = ((volatile float*)s)[t ^ 64];
}
#endif
KERNEL exchange(float* y, const float* x, int n) {
  float* z = y + blockIdx.x * 512;
  int t = threadIdx.x;
  z[t] = x[t] + 1.0f;
  __syncthreads();
  float v = z[t ^ 64];
  __syncthreads();
  z[t] = v * 2.0f;
  __syncthreads();
  z[t + 256] = z[255 - t];
}
KERNEL ring(float* y, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 3; ++i) { s[t] = x[t + i * 5]; __syncthreads(); sum += s[t ^ 192]; __syncthreads(); }
  y[blockIdx.x * 256 + t] = sum;
}
KERNEL late(float* y, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float w = x[t + 256];
  s[t] = x[t];
  __syncthreads();
  float v = s[255 - t];
  __syncthreads();
  s[t] = w;
  __syncthreads();
  y[blockIdx.x * 256 + t] = v - s[t ^ 128];
}
KERNEL scan(float* y, const float* x, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 64; d < 256; d *= 2) {
    float v = t >= d ? s[t - d] : 0.0f;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }
  y[blockIdx.x * 256 + t] = s[t];
}
KERNEL told(float* y, const float* x, int n) {
  __shared__ float mean, s[4];
  int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    float v = x[t + i * 256];
    for (int d = 32; d; d /= 2) v += __shfl_xor(v, d, 64);
    if (t % 64 == 0) s[t / 64] = v;
    __syncthreads();
    if (t == 0) mean = (s[0] + s[1] + s[2] + s[3]) / 256.0f;
    __syncthreads();
    y[blockIdx.x * 512 + i * 256 + t] = x[t + i * 256] - mean;
  }
}
KERNEL spills(float* y, const float* x, int n) {
  volatile float a[24];
  int t = threadIdx.x;
  for (int i = 0; i < 24; ++i) a[i] = x[t + i];
  float sum = 0;
  for (int i = 0; i < 24; ++i) sum += a[(i * 7 + t) % 24];
  y[blockIdx.x * 256 + t] = sum;
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

const KERNELS: [&str; 19] = [
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
    "exchange",
    "ring",
    "late",
    "scan",
    "told",
    "spills",
    "halves",
    "doubles",
];

/// What GPUs the sweeps are made on: CDNA and RDNA have other counters, and order other things by themselves.
const SWEPT: [&str; 2] = ["gfx90a", "gfx1100"];

fn run(compiled: &Compiled, kernel: &str, arch: &str) -> Result<(), String> {
    let mut device = Device::load(compiled, arch);
    device.options.group_races = kernel == "last_block";
    device.options.races = true;
    let x: Vec<f32> = (0..4096).map(|i| (i * 37 % 101) as f32 + 1.0).collect();
    let (y, x) = (device.upload(&[0u8; 16384]), device.upload(&x));
    match device.try_run(kernel, 2, 256, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(512)]) {
        Ok(_) => Ok(()),
        Err(LaunchError::Fault(fault)) => Err(format!("{:?}", fault.kind)),
        Err(other) => panic!("{kernel}: {other}"),
    }
}

/// An instruction that does nothing.
const NOTHING: (u32, &str) = (0xbf80_0000, "s_nop 0");

/// The waits that are left of a wait where one counter's is removed, or all; each with what was removed.
fn removals(text: &str, arch: &str) -> Vec<(u32, String, String)> {
    if text.starts_with("s_waitcnt_vscnt ") {
        return vec![(NOTHING.0, NOTHING.1.to_owned(), text.to_owned())];
    }
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
            let kept: Vec<&(&str, u32)> = (parts.iter().enumerate())
                .filter(|(i, _)| *i != removed)
                .map(|(_, part)| part)
                .collect();
            let left = |counter: &str, most: u32| kept.iter().find(|(name, _)| *name == counter).map_or(most, |p| p.1);
            let known = ["vmcnt", "expcnt", "lgkmcnt"];
            assert!(kept.iter().all(|(counter, _)| known.contains(counter)), "{text}");
            let (vector, export) = (left("vmcnt", 63), left("expcnt", 7));
            let wait = match arch {
                "gfx1100" => 0xbf89_0000 | export | left("lgkmcnt", 63) << 4 | vector << 10,
                _ => 0xbf8c_0000 | vector & 15 | export << 4 | left("lgkmcnt", 15) << 8 | vector >> 4 << 14,
            };
            let spelt = kept.iter().map(|(counter, left)| format!(" {counter}({left})"));
            let (word, text) = match kept.len() {
                0 => (NOTHING.0, NOTHING.1.to_owned()),
                _ => (wait, format!("s_waitcnt{}", spelt.collect::<String>())),
            };
            (word, text, format!("{}({})", parts[removed].0, parts[removed].1))
        })
        .collect()
}

/// A removal that was not noticed.
struct Unnoticed {
    kernel: &'static str,
    /// The lines of the kernel, and which of them was removed.
    lines: Vec<String>,
    at: usize,
    /// The counter and how many operations could be left; of a barrier its name.
    removed: String,
}

impl std::fmt::Display for Unnoticed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unnoticed {
            kernel,
            lines,
            at,
            removed,
        } = self;
        writeln!(f, "{kernel}: {removed} of {:?} (line {at})", lines[*at])?;
        let around = at.saturating_sub(12)..(at + 14).min(lines.len());
        lines[around].iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// Makes all changes that `changes` gives for an instruction, one at a time; returns how many there were and those
/// without a report.
fn sweep(arch: &str, good: &Compiled, changes: impl Fn(&str) -> Vec<(u32, String, String)>) -> (usize, Vec<Unnoticed>) {
    let (mut all, mut unnoticed) = (0, Vec::new());
    for kernel in KERNELS {
        if kernel == "straight" && arch == "gfx1100" {
            continue;
        }
        assert_eq!(run(good, kernel, arch), Ok(()), "{arch} {kernel}");
        let object = CodeObject::load(&good.code).expect("it loads");
        let symbol = &object.symbols()[kernel];
        let range = symbol.address..symbol.address + symbol.size;
        let lines: Vec<_> = (good.listing.lines().iter())
            .filter(|line| range.contains(&line.address))
            .collect();
        for (at, line) in lines.iter().enumerate() {
            for (word, text, removed) in changes(&line.text) {
                let (bad, count) = rewrite_instructions(good, kernel, |_, other| {
                    (other.address == line.address).then(|| (word, text.clone()))
                });
                assert_eq!(count, 1);
                all += 1;
                if run(&bad, kernel, arch).is_ok() {
                    unnoticed.push(Unnoticed {
                        kernel,
                        lines: lines.iter().map(|line| line.text.clone()).collect(),
                        at,
                        removed,
                    });
                }
            }
        }
    }
    (all, unnoticed)
}

/// The counter of a wait, and how many operations it leaves.
fn waits_for(text: &str) -> Vec<(&str, u32)> {
    if let Some(rest) = text.strip_prefix("s_waitcnt_vscnt null, ") {
        let left = u32::from_str_radix(rest.trim_start_matches("0x"), 16);
        return left.map(|left| vec![("vscnt", left)]).unwrap_or_default();
    }
    let parts = text
        .strip_prefix("s_waitcnt ")
        .into_iter()
        .flat_map(|rest| rest.split(' '));
    let counters = parts.filter_map(|part| part.strip_suffix(')')?.split_once('('));
    counters
        .filter_map(|(counter, left)| Some((counter, left.parse().ok()?)))
        .collect()
}

/// The vector and scalar registers that an operand names.
fn registers(operand: &str) -> Vec<String> {
    let operand = operand.trim();
    let (kind, rest) = operand.split_at(operand.len().min(1));
    let range = rest
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .and_then(|r| r.split_once(':'));
    let (first, last) = range.unwrap_or((rest, rest));
    let last = last.split('.').next().unwrap_or(last);
    match (
        first.split('.').next().unwrap_or(first).parse::<u32>(),
        last.parse::<u32>(),
    ) {
        (Ok(first), Ok(last)) if kind == "v" || kind == "s" => (first..=last).map(|n| format!("{kind}{n}")).collect(),
        _ => Vec::new(),
    }
}

fn operands(text: &str) -> Vec<Vec<String>> {
    let rest = text.split_once(' ').map_or("", |(_, rest)| rest);
    rest.split(',')
        .map(|operand| registers(operand.trim().split(' ').next().unwrap_or("")))
        .collect()
}

/// Whether an instruction raises a counter and writes its first operand when it returns.
fn loads(text: &str, counter: &str) -> bool {
    let vector = ["global_load", "flat_load", "scratch_load", "buffer_load"];
    let local = ["ds_read", "ds_load", "ds_bpermute", "s_load", "flat_load"];
    let names: &[&str] = match counter {
        "vmcnt" => &vector,
        "lgkmcnt" => &local,
        _ => &[],
    };
    names.iter().any(|name| text.starts_with(name)) && !text.contains("_lds_")
}

/// Whether a wait is needless: in a straight line another wait for as much follows, or the kernel's end, before
/// anything but loads, which return in order, names a register that is loaded. Its own scratch and its own global
/// memory a wave meets in order.
fn is_covered(found: &Unnoticed) -> bool {
    let (counter, left) = match waits_for(&found.lines[found.at])
        .into_iter()
        .find(|(c, _)| found.removed.contains(c))
    {
        Some(wait) => wait,
        None => return false,
    };
    let zeroed = |line: &&String| waits_for(line).contains(&(counter, 0));
    let before = found.lines[..found.at].iter().rev().take_while(|line| !zeroed(line));
    let pending: Vec<String> = before
        .filter(|line| loads(line, counter))
        .flat_map(|line| operands(line).swap_remove(0))
        .collect();
    for line in &found.lines[found.at + 1..] {
        if line.starts_with("s_endpgm") || waits_for(line).iter().any(|(c, l)| *c == counter && *l <= left) {
            return true;
        }
        let operands = operands(line);
        let read = operands.iter().skip(usize::from(loads(line, counter)));
        let orders = ["s_barrier", "s_cbranch", "s_branch"]
            .iter()
            .any(|name| line.starts_with(name))
            || line.contains("_atomic");
        if orders || read.flatten().any(|register| pending.contains(register)) {
            return false;
        }
    }
    false
}

/// Whether nothing meets LDS behind a barrier: then it orders nothing.
fn is_last(found: &Unnoticed) -> bool {
    let mut behind = found.lines[found.at + 1..].iter();
    found.removed == "barrier" && !behind.any(|line| line.starts_with("ds_") || line.starts_with("s_cbranch"))
}

/// Removals that are harmless because a wave meets only its own data behind them: of a GPU and a kernel, how many waits
/// and barriers.
const OWN: [(&str, &str, usize, usize); 8] = [
    // From the half of 32 or 64 on, which one wave adds up, no other wave meets what it stored.
    ("gfx90a", "sums", 7, 7),
    ("gfx1100", "sums", 6, 6),
    // `t ^ 5` is a lane of the same wave.
    ("gfx90a", "doubles", 1, 1),
    ("gfx1100", "doubles", 1, 1),
    // Behind the last barrier each lane reads the sum that it stored.
    ("gfx90a", "scan", 1, 1),
    ("gfx1100", "scan", 1, 1),
    // No other wave reads the results that are stored before the second sum.
    ("gfx1100", "told", 1, 0),
    // The stores before the count were waited for ahead of it.
    ("gfx1100", "last_block", 1, 0),
];

/// Removes in turn what `changes` gives; `own` picks a column of [`OWN`].
fn check(what: &str, changes: impl Fn(&str, &str) -> Vec<(u32, String, String)>, own: fn(usize, usize) -> usize) {
    for arch in SWEPT {
        let source = match arch {
            "gfx1100" => SOURCE.replace("#define KERNEL", "#define RDNA\n#define KERNEL"),
            _ => SOURCE.to_owned(),
        };
        let Some(good) = compiled(&source, arch) else { return };
        let (all, unnoticed) = sweep(arch, &good, |text| changes(text, arch));
        let (by_rule, others): (Vec<_>, Vec<_>) =
            unnoticed.iter().partition(|found| is_covered(found) || is_last(found));
        println!(
            "{arch}: {all} {what} removed, {} reported, {} harmless by rule, {} of own data",
            all - unnoticed.len(),
            by_rule.len(),
            others.len()
        );
        for kernel in KERNELS {
            let found: Vec<String> = (others.iter().filter(|found| found.kernel == kernel))
                .map(ToString::to_string)
                .collect();
            let row = OWN.iter().find(|row| (row.0, row.1) == (arch, kernel));
            let expected = row.map_or(0, |row| own(row.2, row.3));
            assert_eq!(
                found.len(),
                expected,
                "{arch} {kernel}: removed and not noticed:\n{}",
                found.concat()
            );
        }
        assert!(all >= 40, "{all} {what}");
    }
}

#[test]
fn removed_waits_are_noticed() {
    check("waits", removals, |waits, _| waits);
}

#[test]
fn removed_barriers_are_noticed() {
    let barrier = |text: &str, _: &str| match text.starts_with("s_barrier") {
        true => vec![(NOTHING.0, NOTHING.1.to_owned(), "barrier".to_owned())],
        false => Vec::new(),
    };
    check("barriers", barrier, |_, barriers| barriers);
}
