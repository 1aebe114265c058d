//! Code objects as other tools make them, and grids that do not consist of whole blocks.

mod common;
use common::{Arg, Compiled, Device, NoCode, compile};
use graphc_emu::{Arch, CodeObject, FaultKind, LaunchError, LaunchOptions, LoadError, Space};

const SOURCE: &str = r#"
extern "C" __global__ void first(int* out) { out[blockIdx.x * 100 + threadIdx.x] = threadIdx.x + 1; }
extern "C" __global__ void second(int* out) { out[threadIdx.x] = threadIdx.x * 3; }
extern "C" __global__ void nowhere(unsigned* out, unsigned address) {
  unsigned value = 5;
  asm volatile("ds_read_b32 %0, %1\n s_waitcnt lgkmcnt(0)\n ds_write_b32 %1, %0\n s_waitcnt lgkmcnt(0)" : "=&v"(value) : "v"(address) : "memory");
  out[threadIdx.x] = value;
}
"#;

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
}

/// The object with its stack header made a second note: the first one's document, its kernel renamed.
fn with_two_notes(code: &[u8]) -> Vec<u8> {
    const NOTE: u32 = 4;
    const STACK: u32 = 0x6474_e551;
    let mut bytes = code.to_vec();
    let (table, count) = (word(code, 32), usize::from(u16::from_le_bytes([code[56], code[57]])));
    let kind = |at: usize| u32::from_le_bytes(code[at..at + 4].try_into().expect("four bytes"));
    let header = |wanted: u32| {
        (0..count)
            .map(|i| table + i * 56)
            .find(|at| kind(*at) == wanted)
            .expect("is there")
    };
    let (note, stack) = (header(NOTE), header(STACK));
    let mut document = code[word(code, note + 8)..][..word(code, note + 32)].to_vec();
    let name = document
        .windows(6)
        .position(|w| w == b"\xa5first")
        .expect("the kernel's name");
    document[name + 1..name + 6].copy_from_slice(b"other");
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let (start, size) = (bytes.len() as u64, document.len() as u64);
    bytes.extend(document);
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(stack, &NOTE.to_le_bytes());
    for (offset, value) in [(8, start), (16, 0), (24, 0), (32, size), (40, size), (48, 4)] {
        put(stack + offset, &value.to_le_bytes());
    }
    bytes
}

/// The source's object; None (and a printed line) where there is no ROCm.
fn compiled() -> Option<Compiled> {
    match compile(SOURCE, "gfx90a", &["-O3"]) {
        Ok(compiled) => Some(compiled),
        Err(NoCode::Skipped(reason)) => {
            println!("skipped: {reason}");
            None
        }
        Err(NoCode::Refused(log)) => panic!("the compiler refused the source:\n{log}"),
    }
}

/// Takes the sizes from an object's function symbols, as in hand-written code.
fn forget_sizes(code: &mut [u8]) {
    let (table, count) = (word(code, 40), usize::from(u16::from_le_bytes([code[60], code[61]])));
    let mut patched = 0;
    for section in (0..count).map(|index| table + index * 64) {
        // SHT_SYMTAB and SHT_DYNSYM.
        if !matches!(code[section + 4], 2 | 11) {
            continue;
        }
        let (start, size) = (word(code, section + 24), word(code, section + 32));
        for symbol in (start..start + size).step_by(24) {
            // STT_FUNC
            if code[symbol + 4] & 15 == 2 {
                code[symbol + 16..symbol + 24].fill(0);
                patched += 1;
            }
        }
    }
    assert!(patched >= 2);
}

#[test]
fn hand_written_code_may_clear_registers_by_lds_that_no_gpu_has() {
    let Some(mut compiled) = compiled() else { return };
    let run = |compiled: &Compiled, address: u32| {
        let device = Device::load(compiled, "gfx90a");
        let out = device.upload(&[7u32; 64]);
        let result = device.try_run("nowhere", 1, 64, &[Arg::Ptr(out), Arg::U32(address)]);
        result.map(|_| device.download::<u32>(out, 64))
    };
    let out_of_bounds = |result: Result<Vec<u32>, LaunchError>| match result {
        Err(LaunchError::Fault(fault)) => matches!(fault.kind, FaultKind::OutOfBounds { space: Space::Lds, .. }),
        _ => false,
    };
    assert!(
        out_of_bounds(run(&compiled, 0xf0_0000)),
        "a compiler's code has no reason to"
    );
    forget_sizes(&mut compiled.code);
    assert_eq!(run(&compiled, 0xf0_0000).expect("reads zero"), [0; 64]);
    assert!(
        out_of_bounds(run(&compiled, 0x8000)),
        "inside the GPU's LDS it is a mistake in any code"
    );
}

#[test]
fn a_function_without_a_size_ends_where_the_next_begins() {
    let Some(mut compiled) = compiled() else { return };
    let whole = Device::load(&compiled, "gfx90a").kernel("first").instructions().count();
    forget_sizes(&mut compiled.code);
    let device = Device::load(&compiled, "gfx90a");
    // The compiler pads a function to the next one's alignment.
    let (first, second) = (device.kernel("first"), device.kernel("second"));
    let next = second.instructions().map(|(address, _)| address).min();
    assert!(first.instructions().count() >= whole);
    assert!(
        first.instructions().all(|(address, _)| Some(address) < next),
        "first runs into second"
    );
    let out = device.alloc(256);
    device.run("second", 1, 64, &[Arg::Ptr(out)]);
    assert_eq!(device.download::<i32>(out, 3), [0, 3, 6]);
}

#[test]
fn every_metadata_note_counts() {
    // Tensile links objects of one kernel each, and the linker keeps the note of each.
    let Some(compiled) = compiled() else { return };
    let object = CodeObject::load(&with_two_notes(&compiled.code)).expect("is readable");
    let names: Vec<&str> = object.kernels().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["first", "nowhere", "other", "second"]);
}

#[test]
fn a_part_of_a_block_runs_its_own_work_items_only() {
    let Some(device) = Device::new(SOURCE, "gfx90a") else {
        return;
    };
    let out = device.upload(&[0i32; 200]);
    let kernel = device.kernel("first");
    let bytes = out.to_le_bytes();
    let counters = device
        .gpu
        .launch_items(&kernel, [170, 1, 1], [100, 1, 1], &bytes, 0, &LaunchOptions::default())
        .expect("runs");
    assert_eq!((counters.workgroups, counters.waves), (2, 4));
    let got: Vec<i32> = device.download(out, 200);
    let want: Vec<i32> = (0..200).map(|i| if i < 170 { i % 100 + 1 } else { 0 }).collect();
    assert_eq!(got, want);
}

#[test]
fn a_bundle_gives_the_entry_that_fits_best() {
    let Some(compiled) = compiled() else { return };
    let arch = Arch::by_name("gfx90a").expect("known");
    let bundle = |entries: &[(&str, &[u8])]| {
        let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
        bytes.extend((entries.len() as u64).to_le_bytes());
        let mut offset = 4096;
        for (target, code) in entries {
            let name = format!("hipv4-amdgcn-amd-amdhsa--{target}");
            for number in [offset, code.len() as u64, name.len() as u64] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(name.as_bytes());
            offset += code.len() as u64;
        }
        bytes.resize(4096, 0);
        entries.iter().for_each(|(_, code)| bytes.extend(*code));
        bytes
    };
    let good = compiled.code.as_slice();
    let loads = |entries: &[(&str, &[u8])]| CodeObject::load_for(&bundle(entries), arch);
    loads(&[("gfx90a:xnack+", b"not this"), ("gfx90a:xnack-", good)]).expect("the second");
    loads(&[("gfx90a", good), ("gfx90a:xnack+", b"not this")]).expect("the first");
    loads(&[("gfx942", b"not this"), ("gfx90a:xnack+", good)]).expect("better than nothing");
    let error = loads(&[("gfx908", good), ("gfx942", good)]).err();
    assert!(
        matches!(error, Some(LoadError::NotInBundle { ref present, .. }) if present.len() == 2),
        "{error:?}"
    );
}

/// Kernels that call functions have them decoded once, not each its own copy.
#[test]
fn kernels_share_the_functions_that_they_call() {
    let source = r#"
__device__ __attribute__((noinline)) int deep(int x, int n) { for (int i = 0; i < n; ++i) x = x * 5 + i; return x; }
extern "C" __global__ void one(int* y) { y[threadIdx.x] = deep(threadIdx.x, 3); }
extern "C" __global__ void two(int* y) { y[threadIdx.x] = deep(threadIdx.x, 4) + 1; }
"#;
    let compiled = match compile(source, "gfx90a", &["-O0"]) {
        Ok(compiled) => compiled,
        Err(NoCode::Skipped(reason)) => return println!("skipped: {reason}"),
        Err(error) => panic!("{error:?}"),
    };
    let device = Device::load(&compiled, "gfx90a");
    let (one, two) = (device.kernel("one"), device.kernel("two"));
    let other: std::collections::BTreeMap<u64, &str> = two.instructions().collect();
    let (mut common, mut shared) = (0, 0);
    for (address, text) in one.instructions() {
        if let Some(same) = other.get(&address) {
            common += 1;
            shared += usize::from(std::ptr::eq(*same, text));
        }
    }
    assert!(common > 20, "{common} instructions are in both kernels");
    assert_eq!(shared, common);
    let y = device.alloc(256);
    device.run("two", 1, 64, &[Arg::Ptr(y)]);
    let want = |x: i32| (0..4).fold(x, |x, i| x * 5 + i) + 1;
    assert_eq!(device.download::<i32>(y, 2), [want(0), want(1)]);
}
