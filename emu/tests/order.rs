//! Waits that order memory: with one dropped, another wave may read what is not there yet.

mod common;
use common::{ARCHES, Arg, Compiled, Device, compiled, fault, replace_instructions};
use graphc_emu::{FaultKind, Listing, Space};

const SOURCE: &str = r#"
extern "C" __global__ void reverse(int* y, const int* x) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  y[t] = s[255 - t];
}
extern "C" __global__ void twice(int* y, const int* x) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  int v = s[255 - t];
  __syncthreads();
  s[t] = v + 1;
  __syncthreads();
  y[t] = s[t ^ 128];
}
"#;

const LOADS: &str = r#"
typedef __attribute__((address_space(1))) void* global_ptr;
typedef __attribute__((address_space(3))) void* lds_ptr;
extern "C" __global__ void own(int* y, int* x) {
  __shared__ int s[256];
  int t = threadIdx.x;
  __builtin_amdgcn_global_load_lds((global_ptr)(x + t), (lds_ptr)(s + t / 64 * 64), 4, 0, 0);
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  y[t] = ((volatile int*)s)[t];
}
extern "C" __global__ void others(int* y, int* x) {
  __shared__ int s[256];
  int t = threadIdx.x;
  __builtin_amdgcn_global_load_lds((global_ptr)(x + t), (lds_ptr)(s + t / 64 * 64), 4, 0, 0);
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  __builtin_amdgcn_s_barrier();
  y[t] = ((volatile int*)s)[t ^ 64];
}
"#;

/// Drops the waits of `kernel` that come right before a barrier.
fn drop_before_barriers(compiled: &Compiled, kernel: &str) -> (Compiled, usize) {
    let barrier = |listing: &Listing, address: u64| {
        let mut later = listing.lines().iter().filter(|line| line.address > address);
        later
            .find(|line| !line.text.starts_with("s_wait") && !line.text.starts_with("s_nop"))
            .is_some_and(|line| line.text.starts_with("s_barrier"))
    };
    replace_instructions(compiled, kernel, |listing, line| {
        line.text.starts_with("s_wait") && barrier(listing, line.address)
    })
}

#[test]
fn a_store_to_lds_is_waited_for_before_the_barrier() {
    for arch in ARCHES {
        let Some(good) = compiled(SOURCE, arch) else { return };
        for kernel in ["reverse", "twice"] {
            let (bad, count) = drop_before_barriers(&good, kernel);
            assert!(count > 0, "{arch}: no wait before a barrier of {kernel}");
            let run = |compiled: &Compiled, block: u32| {
                let device = Device::load(compiled, arch);
                let x: Vec<i32> = (0..256).collect();
                let args = [Arg::Ptr(device.alloc(1024)), Arg::Ptr(device.upload(&x))];
                device.try_run(kernel, 1, block, &args)
            };
            let right = run(&good, 256);
            assert!(right.is_ok(), "{arch} {kernel}: {right:?}");
            let found = fault(run(&bad, 256));
            let FaultKind::UnorderedStore { writer, counter, .. } = found.kind else {
                panic!("{arch} {kernel}: {found}");
            };
            assert!(
                writer != found.wave && counter.contains("lgkmcnt"),
                "{arch} {kernel}: {found}"
            );
            assert!(found.instruction.starts_with("ds_"), "{arch} {kernel}: {found}");
        }
    }
}

#[test]
fn a_load_into_lds_is_waited_for() {
    for arch in ["gfx90a", "gfx942", "gfx950"] {
        let Some(good) = compiled(LOADS, arch) else { return };
        for kernel in ["own", "others"] {
            let (bad, count) = replace_instructions(&good, kernel, |_, line| {
                line.text.starts_with("s_waitcnt") && line.text.contains("vmcnt")
            });
            assert!(count > 0, "{arch}: no wait in {kernel}");
            let run = |compiled: &Compiled| {
                let device = Device::load(compiled, arch);
                let x: Vec<i32> = (0..256).map(|i| i * 3).collect();
                let y = device.alloc(1024);
                let result = device.try_run(kernel, 1, 256, &[Arg::Ptr(y), Arg::Ptr(device.upload(&x))]);
                result.map(|_| (device.download::<i32>(y, 256), x))
            };
            let (got, x) = run(&good).unwrap_or_else(|error| panic!("{arch} {kernel}: {error}"));
            let flip = if kernel == "own" { 0 } else { 64 };
            assert!((0..256).all(|t| got[t] == x[t ^ flip]), "{arch} {kernel}: {got:?}");
            let found = fault(run(&bad).map(|_| unreachable!("a fault was expected")));
            match &found.kind {
                FaultKind::MissingWait { register, .. } if kernel == "own" => {
                    assert!(register.starts_with("LDS at"), "{arch}: {found}");
                }
                FaultKind::UnorderedStore { counter, .. } if kernel == "others" => {
                    assert!(counter.starts_with("vmcnt"), "{arch}: {found}");
                }
                _ => panic!("{arch} {kernel}: {found}"),
            }
        }
    }
}

const RELEASE: &str = r#"
extern "C" __global__ void last_block(int* sums, int* count, int* total) {
  __shared__ int last;
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = blockIdx.x + 1;
    last = __hip_atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT) == (int)gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) { int t = 0; for (int i = 0; i < (int)gridDim.x; ++i) t += ((volatile int*)sums)[i]; *total = t; }
}
"#;

/// A count that releases what was stored before it: without the wait for that store it orders nothing.
#[test]
fn a_release_waits_for_its_stores() {
    for arch in ARCHES {
        let Some(good) = compiled(RELEASE, arch) else { return };
        let stores = |line: &graphc_emu::Line| line.text.starts_with("global_store");
        let first = good
            .listing
            .lines()
            .iter()
            .find(|line| stores(line))
            .expect("a store")
            .address;
        let atomic = good
            .listing
            .lines()
            .iter()
            .find(|line| line.text.contains("_atomic_"))
            .expect("an atomic")
            .address;
        assert!(first < atomic, "{arch}");
        let (bad, count) = replace_instructions(&good, "last_block", |_, line| {
            let store = ["vmcnt(0)", "vscnt", "storecnt"]
                .iter()
                .any(|counter| line.text.contains(counter));
            store && !line.text.contains("lgkmcnt") && (first..atomic).contains(&line.address)
        });
        assert!(count > 0, "{arch}: no wait before the atomic");
        let run = |compiled: &Compiled| {
            let mut device = Device::load(compiled, arch);
            device.options.group_races = true;
            let buffers = [device.alloc(64), device.upload(&[0i32]), device.alloc(4)];
            device
                .try_run("last_block", 8, 64, &buffers.map(Arg::Ptr))
                .map(|_| device.download::<i32>(buffers[2], 1))
        };
        assert_eq!(
            run(&good).unwrap_or_else(|error| panic!("{arch}: {error}")),
            [36],
            "{arch}"
        );
        let found = fault(run(&bad).map(|_| unreachable!("a fault was expected")));
        assert!(matches!(found.kind, FaultKind::GroupRace { .. }), "{arch}: {found}");
    }
}

const MIXED: &str = r#"
extern "C" __global__ void mixed(int* y, int plain) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  if (threadIdx.x < 64) __hip_atomic_fetch_add(&s, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  if (!plain) __syncthreads();
  y[threadIdx.x] = *(volatile int*)&s;
}
extern "C" __global__ void early(int* y, int plain) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  if (threadIdx.x < 64) y[threadIdx.x] = *(volatile int*)&s;
  if (!plain) __syncthreads();
  if (threadIdx.x >= 64) __hip_atomic_fetch_add(&s, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
"#;

/// A plain read of LDS that another wave changes by atomics, before and after it.
#[test]
fn plain_reads_race_with_atomics() {
    for arch in ARCHES {
        let Some(good) = compiled(MIXED, arch) else { return };
        let mut device = Device::load(&good, arch);
        device.options.races = true;
        let y = device.alloc(1024);
        for kernel in ["mixed", "early"] {
            let run = |plain: i32| device.try_run(kernel, 1, 256, &[Arg::Ptr(y), Arg::I32(plain)]);
            let right = run(0);
            assert!(right.is_ok(), "{arch} {kernel}: {right:?}");
            let found = fault(run(1));
            assert!(
                matches!(found.kind, FaultKind::Race { space: Space::Lds, .. }),
                "{arch} {kernel}: {found}"
            );
        }
    }
}
