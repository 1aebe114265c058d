//! Memory that nothing wrote: loading it is no mistake, and storing, addressing or branching by it is.

mod common;
use common::{ARCHES, Arg, Device, compile, fault};
use graphc_emu::{FaultKind, Space, Use};

const SOURCE: &str = r#"
extern "C" __global__ void either(int* y, const int* f) {
  __shared__ int s[64];
  if (f[1]) s[threadIdx.x] = threadIdx.x + 40;
  __syncthreads();
  y[threadIdx.x] = *f ? s[0] : 7;
}
extern "C" __global__ void surplus(int* y, int n, int stored) {
  volatile __shared__ int s[64];
  int t = threadIdx.x;
  if (t < n) s[t] = t;
  __syncthreads();
  int v = s[t] * 3 + 1;
  float r = __builtin_sqrtf((float)v) + v;
  if (t < stored) y[t] = (int)r;
}
extern "C" __global__ void masked(int* y, int mask) {
  volatile __shared__ int s[64];
  if (mask == 77) s[threadIdx.x] = 1;
  y[threadIdx.x] = (s[threadIdx.x] & mask) << 2 | 1;
}
extern "C" __global__ void equal(int* y, int other, int width) {
  volatile __shared__ int s[64];
  if (width == 77) s[threadIdx.x] = 1;
  y[threadIdx.x] = (s[threadIdx.x] & width) == other ? 3 : 4;
}
extern "C" __global__ void branch(int* y, int n) {
  volatile __shared__ int s[64];
  if (n == 77) s[threadIdx.x] = 1;
  if (s[threadIdx.x] > n) __hip_atomic_fetch_add(y, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" __global__ void loop(int* y, const int* x) { for (int i = 0; i < x[0]; ++i) y[threadIdx.x] += i; }
extern "C" __global__ void address(int* y, int n) {
  volatile __shared__ int s[64];
  if (n == 77) s[threadIdx.x] = 1;
  y[s[threadIdx.x] & n] = 5;
}
extern "C" __global__ void global(int* y, const int* x, int from) {
  int v = x[threadIdx.x] + x[64];
  y[threadIdx.x] = threadIdx.x < from ? 1 : v;
}
extern "C" __global__ void uniform(int* y, const int* x, const int* c) { y[threadIdx.x] = c[0] ? x[0] * 2 : 9; }
extern "C" __global__ void copied(int* y, int read) {
  volatile __shared__ int s[64], r[64];
  int t = threadIdx.x;
  if (t & 1) s[t] = t;
  __syncthreads();
  r[t] = s[t];
  __syncthreads();
  y[t] = t < read ? r[t | 1] : r[t];
}
extern "C" __global__ void shuffled(int* y, int by) {
  volatile __shared__ int s[64];
  int t = threadIdx.x;
  if (t & 1) s[t] = t;
  __syncthreads();
  int v = s[t], from = t / 2 * 2 + by;
  y[t] = __builtin_amdgcn_ds_bpermute(4 * (from % 32), v);
}
extern "C" __global__ void stack(int* y, const int* k, int from) {
  volatile __shared__ int s[64];
  if (from == 77) s[threadIdx.x] = 1;
  int a[16];
  for (int i = 0; i < 16; ++i) a[k[i]] = i == 3 ? s[threadIdx.x] : i;
  y[threadIdx.x] = a[k[from]];
}
extern "C" __global__ void halves(unsigned short* y, const unsigned short* x, int n) {
  unsigned v = *(const unsigned*)(x + 2 * threadIdx.x);
  y[threadIdx.x] = n ? v >> 16 : v;
}
extern "C" __global__ void added(int* y) {
  volatile __shared__ int s[64];
  if (y == nullptr) s[threadIdx.x] = 1;
  __hip_atomic_fetch_add(y, s[threadIdx.x], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
"#;

fn used(device: &Device, kernel: &str, args: &[Arg]) -> (Use, Space) {
    let found = fault(device.try_run(kernel, 1, 32, args));
    match found.kind {
        FaultKind::Uninitialized {
            used,
            space,
            loaded_at: Some(_),
            ..
        } => (used, space),
        _ => panic!("{} {kernel}: {found}", device.arch()),
    }
}

/// A value that decides nothing is no fault; the same value stored is one.
#[test]
fn a_value_counts_where_it_is_stored() {
    for arch in ARCHES {
        let Some(device) = Device::new(SOURCE, arch) else {
            return;
        };
        let y = device.upload(&[0i32; 128]);
        let fine = |kernel: &str, args: &[Arg], want: i32| {
            device.run(kernel, 1, 32, args);
            assert_eq!(device.download::<i32>(y, 1), [want], "{arch} {kernel}");
        };
        let ptr = Arg::Ptr;
        let flags = |first: i32| ptr(device.upload(&[first, 0]));
        fine("either", &[ptr(y), flags(0)], 7);
        assert_eq!(
            used(&device, "either", &[ptr(y), flags(1)]),
            (Use::Value, Space::Lds),
            "{arch}"
        );
        fine("either", &[ptr(y), ptr(device.upload(&[1, 1]))], 40);

        fine("surplus", &[ptr(y), Arg::I32(20), Arg::I32(20)], 2);
        let args = [ptr(y), Arg::I32(20), Arg::I32(21)];
        let found = fault(device.try_run("surplus", 1, 32, &args));
        assert_eq!(found.lane, Some(20), "{arch}: {found}");
        assert!(found.instruction.contains("store"), "{arch}: {found}");
        assert!(
            found.to_string().contains("the stored value depends on memory"),
            "{found}"
        );

        fine("masked", &[ptr(y), Arg::I32(0)], 1);
        assert_eq!(
            used(&device, "masked", &[ptr(y), Arg::I32(0x8000)]).0,
            Use::Value,
            "{arch}"
        );

        let unwritten = ptr(device.alloc(65 * 4));
        fine("global", &[ptr(y), unwritten, Arg::I32(32)], 1);
        let stored = used(&device, "global", &[ptr(y), unwritten, Arg::I32(31)]);
        assert_eq!(stored, (Use::Value, Space::Global), "{arch}");

        fine("uniform", &[ptr(y), unwritten, flags(0)], 9);
        let stored = used(&device, "uniform", &[ptr(y), unwritten, flags(1)]);
        assert!(
            matches!(stored, (Use::Value | Use::Branch, Space::Global)),
            "{arch}: {stored:?}"
        );

        assert_eq!(used(&device, "added", &[ptr(y)]).0, Use::Value, "{arch}");
    }
}

/// Comparisons know how far undefined bits reach: a mask of some, and a value that they could be equal to.
#[test]
fn comparisons_and_branches() {
    for arch in ARCHES {
        let Some(device) = Device::new(SOURCE, arch) else {
            return;
        };
        let y = device.upload(&[0i32; 128]);
        let equal = |other: i32, width: i32| [Arg::Ptr(y), Arg::I32(other), Arg::I32(width)];
        device.run("equal", 1, 32, &equal(0x100, 0xff));
        assert_eq!(device.download::<i32>(y, 1), [4], "{arch}");
        for (other, width) in [(0x51, 0xff), (123_456_789, -1)] {
            let stored = used(&device, "equal", &equal(other, width));
            assert!(matches!(stored.0, Use::Value | Use::Branch), "{arch}: {stored:?}");
        }
        let args = [Arg::Ptr(y), Arg::I32(5)];
        assert_eq!(used(&device, "branch", &args).0, Use::Branch, "{arch}");
        assert_eq!(used(&device, "address", &args).0, Use::Address, "{arch}");
        device.run("address", 1, 32, &[Arg::Ptr(y), Arg::I32(0)]);
        let args = [Arg::Ptr(y), Arg::Ptr(device.alloc(4))];
        assert_eq!(used(&device, "loop", &args), (Use::Branch, Space::Global), "{arch}");
    }
}

/// Undefined values are carried through LDS, between lanes, through the stack, and by halves of a register.
#[test]
fn undefined_bits_are_carried() {
    for arch in ARCHES {
        let Some(device) = Device::new(SOURCE, arch) else {
            return;
        };
        let y = device.upload(&[0i32; 128]);
        device.run("copied", 1, 32, &[Arg::Ptr(y), Arg::I32(32)]);
        let stored = used(&device, "copied", &[Arg::Ptr(y), Arg::I32(10)]);
        assert_eq!(stored, (Use::Value, Space::Lds), "{arch}");

        device.run("shuffled", 1, 32, &[Arg::Ptr(y), Arg::I32(1)]);
        assert_eq!(device.download::<i32>(y, 4), [1, 1, 3, 3], "{arch}");
        assert_eq!(
            used(&device, "shuffled", &[Arg::Ptr(y), Arg::I32(2)]).0,
            Use::Value,
            "{arch}"
        );

        let order: Vec<i32> = (0..16).map(|i| (i + 5) % 16).collect();
        let k = Arg::Ptr(device.upload(&order));
        device.run("stack", 1, 32, &[Arg::Ptr(y), k, Arg::I32(2)]);
        assert_eq!(device.download::<i32>(y, 1), [2], "{arch}");
        assert_eq!(
            used(&device, "stack", &[Arg::Ptr(y), k, Arg::I32(3)]).0,
            Use::Value,
            "{arch}"
        );

        // Words of which the upper halves were written.
        let x = device.alloc(128);
        for lane in 0..32 {
            let memory = device.gpu.memory();
            memory.write(x + 4 * lane + 2, &[lane as u8, 1]).expect("in bounds");
        }
        device.run("halves", 1, 32, &[Arg::Ptr(y), Arg::Ptr(x), Arg::I32(1)]);
        assert_eq!(device.download::<u16>(y, 3), [256, 257, 258], "{arch}");
        let args = [Arg::Ptr(y), Arg::Ptr(x), Arg::I32(0)];
        assert_eq!(used(&device, "halves", &args).0, Use::Value, "{arch}");
    }
}

const STACK: &str = r#"
extern "C" __global__ void words(int* y, int n, int from) {
  volatile int a[16];
  for (int i = 0; i < n; ++i) a[i] = i + 5;
  y[threadIdx.x] = from < 0 ? 1 : a[from];
}
extern "C" __global__ void bytes(int* y, int n, int from) {
  volatile unsigned char a[64];
  for (int i = 0; i < n; ++i) a[i] = i + 5;
  y[threadIdx.x] = from < 0 ? 1 : a[from] + a[from + 1];
}
extern "C" __global__ void lanes(int* y, int n, int from) {
  volatile int a[4];
  a[0] = 1;
  if ((int)threadIdx.x < n) a[1] = 2;
  y[threadIdx.x] = a[from];
}
extern "C" __global__ void surplus(int* y, int n, int from) {
  volatile int a[16];
  for (int i = 0; i < n; ++i) a[i] = i;
  int v = a[15] * 3 + a[0];
  if (from) y[threadIdx.x] = v;
}
"#;

/// A lane's stack that nothing wrote is as undefined as other memory, byte by byte and lane by lane.
#[test]
fn stack_that_nothing_wrote_is_undefined() {
    for arch in ARCHES {
        let Some(device) = Device::new(STACK, arch) else {
            return;
        };
        let y = device.upload(&[0i32; 64]);
        let args = |n: i32, from: i32| [Arg::Ptr(y), Arg::I32(n), Arg::I32(from)];
        for (kernel, n, from, want) in [
            ("words", 16, 15, 20),
            ("words", 10, -1, 1),
            ("bytes", 64, 6, 11 + 12),
            ("bytes", 7, 5, 10 + 11),
            ("lanes", 32, 1, 2),
            ("lanes", 0, 0, 1),
            ("surplus", 16, 1, 45),
        ] {
            device.run(kernel, 1, 32, &args(n, from));
            assert_eq!(device.download::<i32>(y, 1), [want], "{arch} {kernel}");
        }
        device.run("surplus", 1, 32, &args(3, 0));
        for (kernel, n, from) in [("words", 10, 12), ("bytes", 7, 6), ("lanes", 31, 1), ("surplus", 3, 1)] {
            assert_eq!(
                used(&device, kernel, &args(n, from)),
                (Use::Value, Space::Scratch),
                "{arch} {kernel}"
            );
        }
    }
}

/// A build without optimisation keeps everything on the stack and takes branches where others select.
#[test]
fn unoptimised_code_is_checked_alike() {
    let compiled = match compile(SOURCE, "gfx90a", &["-O0"]) {
        Ok(compiled) => compiled,
        Err(common::NoCode::Skipped(reason)) => return println!("skipped: {reason}"),
        Err(error) => panic!("{error:?}"),
    };
    let device = Device::load(&compiled, "gfx90a");
    let y = device.upload(&[0i32; 128]);
    device.run("surplus", 1, 32, &[Arg::Ptr(y), Arg::I32(20), Arg::I32(20)]);
    let args = [Arg::Ptr(y), Arg::I32(20), Arg::I32(21)];
    assert_eq!(used(&device, "surplus", &args).0, Use::Value);
}
