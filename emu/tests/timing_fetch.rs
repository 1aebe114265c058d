//! Instruction fetch in the timing model: code beyond the instruction cache, code that is not there yet, and
//! instructions across fetches.

mod common;
use common::{Arg, Device, Random};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;

/// A kernel for each number of four-byte vector instructions, which it executes one after the other in a loop.
fn straight(arch: &str, sizes: &[u32]) -> Option<Device> {
    let kernels = sizes.iter().map(|size| {
        format!(
            "extern \"C\" __global__ __launch_bounds__(1024) void body_{size}(int n) {{\n  #pragma unroll 1\n\
             for (int i = 0; i < n; ++i) {{ asm volatile(\".rept {size}\\nv_add_f32_e32 v40, v41, v42\\n.endr\\n\" \
             ::: \"v40\", \"v41\", \"v42\"); }} }}\n"
        )
    });
    Device::new(&kernels.collect::<String>(), arch)
}

fn time(device: &Device, name: &str, block: u32, iterations: i32, cold_code: bool) -> Report {
    let timing = TimingOptions {
        cold_code,
        ghz: Some(2.0),
        ..TimingOptions::default()
    };
    device.time(name, 1, block, 0, &[Arg::I32(iterations)], &timing)
}

/// Cycles of an iteration.
fn iteration(device: &Device, size: u32, block: u32) -> f64 {
    let run = |n| time(device, &format!("body_{size}"), block, n, false).cycles as f64;
    (run(10) - run(4)) / 6.0
}

/// Bytes of the instruction cache and of its lines, and cycles of an instruction.
const CACHES: [(&str, u32, u32, f64); 4] = [
    ("gfx90a", 32 << 10, 64, 4.0),
    ("gfx942", 64 << 10, 64, 4.0),
    ("gfx1100", 32 << 10, 128, 1.0),
    ("gfx1201", 32 << 10, 128, 1.0),
];

/// A loop that the cache holds costs its instructions; of one that it does not, each line comes from L2 in each
/// iteration.
#[test]
fn a_loop_beyond_the_cache_waits_for_instructions() {
    for (arch, bytes, line, cycles) in CACHES {
        let (below, above) = (bytes / 4 * 9 / 10, bytes / 4 * 3 / 2);
        let Some(device) = straight(arch, &[below, above]) else {
            return;
        };
        let [held, missing] = [below, above].map(|size| iteration(&device, size, 64) / f64::from(size));
        assert!((held / cycles - 1.0).abs() < 0.02, "{arch}: {held}");
        // Two fetches are under way at a time.
        let waits = (missing - held) * f64::from(line / 4);
        println!("{arch}: {waits:.0} cycles a line");
        assert!(waits > 50.0 && waits < 250.0, "{arch}: {waits}");
        let report = time(&device, &format!("body_{above}"), 64, 10, false);
        assert!(
            report.hot.iter().all(|hot| hot.cause == "instruction fetch"),
            "{arch}: {:?}",
            report.hot
        );
        // Waves that run together share what is fetched.
        let together = iteration(&device, above, 256) / f64::from(above);
        assert!(together < 1.1 * missing, "{arch}: {together} {missing}");
    }
}

/// A larger body is never cheaper by the instruction, the loop's own instructions apart.
#[test]
fn a_larger_body_is_never_cheaper() {
    let mut random = Random::new(21);
    for (arch, bytes, _, _) in CACHES {
        let mut sizes: Vec<u32> = (0..8).map(|_| 64 + random.below(u64::from(bytes / 2)) as u32).collect();
        sizes.push(64);
        sizes.sort_unstable();
        sizes.dedup();
        let Some(device) = straight(arch, &sizes) else { return };
        let times: Vec<f64> = sizes.iter().map(|size| iteration(&device, *size, 64)).collect();
        // Cycles of each instruction more than the smallest body has, over all bodies.
        let (least, first) = (f64::from(sizes[0]), times[0]);
        let each: Vec<f64> = (sizes.iter().zip(&times).skip(1))
            .map(|(size, time)| (time - first) / (f64::from(*size) - least))
            .collect();
        for pair in each.windows(2) {
            assert!(pair[1] > 0.99 * pair[0], "{arch}: {sizes:?} {each:?}");
        }
        assert!(times.is_sorted(), "{arch}: {times:?}");
    }
}

/// Code that is in no cache comes from memory line by line, once.
#[test]
fn a_cold_start_pays_for_its_lines() {
    for (arch, _, line, _) in CACHES {
        let Some(device) = straight(arch, &[256, 2048]) else {
            return;
        };
        let more = |size: u32, iterations| {
            let run = |cold| time(&device, &format!("body_{size}"), 64, iterations, cold).cycles as f64;
            run(true) - run(false)
        };
        let (few, many) = (more(256, 2), more(2048, 2));
        assert!((more(2048, 8) - many).abs() < 2.0, "{arch}");
        let lines = f64::from((2048 - 256) * 4 / line);
        let each = (many - few) / lines;
        // RDNA has two under way at a time; of two lines of CDNA the second is in L2 then.
        assert!(each > 60.0 && each < 800.0, "{arch}: {each}");
    }
}

/// CDNA: an instruction of eight bytes that lies in two fetches costs its wave a slot; other waves take it.
#[test]
fn instructions_across_fetches_cost_a_slot() {
    let source = |before: &str| {
        format!(
            "extern \"C\" __global__ __launch_bounds__(1024) void body(int n) {{\n  #pragma unroll 1\n\
             for (int i = 0; i < n; ++i) {{ asm volatile(\".p2align 3\\n{before}.rept 800\\nv_fma_f32 v40, v41, v42, v43\\n.endr\\n\" \
             ::: \"v40\", \"v41\", \"v42\", \"v43\"); }} }}\n"
        )
    };
    for (arch, alone) in [
        ("gfx90a", 1000.0),
        ("gfx942", 1000.0),
        ("gfx950", 1000.0),
        ("gfx1100", 800.0),
    ] {
        let Some(within) = Device::new(&source(""), arch) else {
            return;
        };
        let Some(across) = Device::new(&source("s_nop 0\\n"), arch) else {
            return;
        };
        let slot = if arch == "gfx1100" { 1.0 } else { 4.0 };
        let each = |device: &Device, block| {
            let run = |n| time(device, "body", block, n, false).cycles as f64;
            (run(10) - run(4)) / 6.0 / slot
        };
        let (one, other) = (each(&within, 64), each(&across, 64));
        assert!((one / 800.0 - 1.0).abs() < 0.03, "{arch}: {one}");
        assert!((other / alone - 1.0).abs() < 0.03, "{arch}: {other}");
        // Of two waves of a SIMD the younger has the slots that the older leaves.
        if slot > 1.0 {
            let pair = each(&across, 512);
            assert!(pair < 1.8 * alone, "{arch}: {pair}");
        }
    }
}
