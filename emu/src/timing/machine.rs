//! The shape, clocks, latencies and achieved bandwidths of one GPU of each arch: a row of facts each, with their
//! sources.
//!
//! Latencies are in cycles of the shader clock. Bandwidths are of the whole GPU in TB/s, as achieved by published
//! micro-benchmarks, never the data sheet's: reads and writes of DRAM by streams, of caches by kernels that stay in
//! them. L2's are at the boost clock, and less at a lower one; what is behind L2 has a clock of its own.
//! `emu/TIMING.md` lists the sources by name and says what is measured, documented or assumed.

use crate::arch::Arch;

/// One GPU.
#[derive(Debug)]
pub(crate) struct Machine {
    pub arch: &'static str,
    /// The product that the numbers are of.
    pub part: &'static str,
    /// Compute units, and how many of them share a workgroup (2: RDNA's workgroup processor).
    pub units: u32,
    pub units_per_group: u32,
    /// Dies with an L2 each; workgroups go to them in turn.
    pub dies: u32,
    pub shader_engines: u32,
    /// Cycles between two issues of one SIMD.
    pub slot: u32,
    pub boost_ghz: f64,
    /// The clock that a run of dense matrix instructions settles at.
    pub matrix_ghz: f64,
    /// The same where the matrix instructions are of f64.
    pub double_matrix_ghz: f64,
    pub lds_bytes: u32,
    /// Sets of LDS banks that work at the same time.
    pub lds_arrays: u32,
    /// LDS pipes that waves share, and bytes a cycle of each.
    pub lds_pipes: u32,
    pub lds_pipe_bytes: u32,
    /// Latency of an unloaded LDS read of one word, and of each further word.
    pub lds_latency: u32,
    pub lds_word_latency: u32,
    pub vector_cache: Cache,
    pub scalar_cache: Cache,
    /// What a compute unit and its neighbour, or a pair, fetch instructions from, with the latency of a fetch.
    pub code_cache: Cache,
    /// Bytes of a fetch into a wave's buffer.
    pub fetch_bytes: u64,
    /// Whether a load of a line that is on its way asks L2 for it again (AMD's counters of stencils on MI250X).
    pub asks_again: bool,
    /// Bytes a cycle between a compute unit and its vector cache, as achieved.
    pub vector_cache_bytes: f64,
    pub l2_bytes: u64,
    /// Bytes a cycle that one compute unit takes from L2 at most.
    pub l2_unit_bytes: f64,
    pub l2_read: f64,
    pub l2_write: f64,
    /// As `dram_mixed`, of L2: both and the writes' rate from streams within it that read one vector, and three.
    pub l2_mixed: f64,
    /// Channels of the memory-side cache, or of DRAM where there is none; 0 where their number is not known.
    pub channels: u32,
    /// 0: there is no memory-side cache.
    pub side_bytes: u64,
    pub side_read: f64,
    pub side_write: f64,
    /// What is left of both rates where reads and writes come one among the other: a copy's rate over what they give
    /// one after the other. More than one where reads and writes have paths of their own.
    pub side_mixed: f64,
    pub dram_read: f64,
    pub dram_write: f64,
    /// What is left of both rates where reads and writes come one among the other (a copy's rate).
    pub dram_mixed: f64,
    /// Half of the cycles of a batch of writes: DRAM writes in batches, and reads come between them.
    pub write_batch: f64,
    /// The share of DRAM's achieved bandwidth that one compute unit reaches alone.
    pub unit_share: f64,
    /// Cycles of a load that L2, the memory-side cache or DRAM answers, of a page that is known; at the boost clock.
    pub l2_latency: f64,
    pub side_latency: f64,
    pub dram_latency: f64,
    /// Cycles until L2 has acknowledged a store.
    pub store_latency: f64,
    /// How full L2 may be, of its capacity, before it begins to miss, and when nothing is left of it. The same for the
    /// memory-side cache is sharp.
    pub l2_edge: (f64, f64),
    /// Bytes whose translations are known to a compute unit, and cycles of finding another.
    pub tlb_bytes: u64,
    pub tlb_latency: f64,
    /// Cycles until a dependent instruction of the same kind may issue, beyond the issue itself.
    pub valu_latency: u32,
    pub transcendental_latency: u32,
    pub salu_latency: u32,
    /// A vector result used by memory or LDS, and one used by the scalar side.
    pub valu_to_memory: u32,
    pub valu_to_scalar: u32,
    pub branch_taken: u32,
    pub branch_not_taken: u32,
    pub barrier: u32,
    /// Cycles from the last wait's end of a memory operation to the next instruction.
    pub wake: u32,
    /// Cycles for one wave of a workgroup at one shader engine's dispatcher.
    pub dispatch: f64,
    /// Cycles between two workgroups there, however few waves they have.
    pub dispatch_group: f64,
    /// From a workgroup's place being free, or the kernel's begin, to a wave's first instruction.
    pub start: u32,
    /// Microseconds between two kernels in a queue, from the end of one to the begin of the other: the measured floor
    /// of launches back to back, less what so small a kernel takes itself.
    pub launch_us: f64,
}

/// A cache of a compute unit.
#[derive(Debug)]
pub(crate) struct Cache {
    pub bytes: u64,
    pub line: u64,
    pub ways: usize,
    pub latency: u32,
}

const GFX90A: Machine = Machine {
    arch: "gfx90a",
    part: "MI210",
    units: 104,
    units_per_group: 1,
    dies: 1,
    shader_engines: 8,
    slot: 4,
    boost_ghz: 1.70,
    // What micro-benchmarks of nothing but matrix instructions reach of MI250X's peak at 1.70 GHz (ISPASS'24): 350 of
    // 383 TFLOP/s in f16, 88 of 95.7 in f32, 69 of 95.7 in f64.
    matrix_ghz: 1.56,
    double_matrix_ghz: 1.23,
    lds_bytes: 65536,
    lds_arrays: 1,
    lds_pipes: 2,
    lds_pipe_bytes: 64,
    lds_latency: 50,
    lds_word_latency: 4,
    vector_cache: Cache {
        bytes: 16 << 10,
        line: 64,
        ways: 4,
        latency: 124,
    },
    scalar_cache: Cache {
        bytes: 16 << 10,
        line: 64,
        ways: 4,
        latency: 48,
    },
    // White papers of CDNA; lines and fetches as LLVM has them for gfx9 (pull request 183064).
    code_cache: Cache {
        bytes: 32 << 10,
        line: 64,
        ways: 4,
        latency: 20,
    },
    fetch_bytes: 32,
    asks_again: true,
    vector_cache_bytes: 59.5,
    l2_bytes: 8 << 20,
    l2_unit_bytes: 64.0,
    l2_read: 4.95,
    l2_write: 3.62,
    l2_mixed: 0.67,
    // HBM2E: 4096 bits, channels of 128.
    channels: 32,
    side_bytes: 0,
    side_read: 0.0,
    side_write: 0.0,
    side_mixed: 1.0,
    dram_read: 1.40,
    dram_write: 1.53,
    dram_mixed: 0.94,
    write_batch: 765.0,
    unit_share: 0.03,
    l2_latency: 249.0,
    side_latency: 0.0,
    dram_latency: 570.0,
    store_latency: 300.0,
    l2_edge: (0.56, 1.4),
    tlb_bytes: 64 << 20,
    tlb_latency: 120.0,
    valu_latency: 0,
    transcendental_latency: 0,
    salu_latency: 0,
    valu_to_memory: 12,
    valu_to_scalar: 4,
    branch_taken: 16,
    branch_not_taken: 4,
    barrier: 16,
    wake: 4,
    dispatch: 4.3,
    dispatch_group: 16.5,
    start: 190,
    launch_us: 1.35,
};

const GFX942: Machine = Machine {
    arch: "gfx942",
    part: "MI300X",
    units: 304,
    dies: 8,
    shader_engines: 32,
    boost_ghz: 2.10,
    matrix_ghz: 1.10,
    double_matrix_ghz: 1.10,
    vector_cache: Cache {
        bytes: 32 << 10,
        line: 128,
        ways: 64,
        latency: 117,
    },
    // White papers of CDNA 3 and 4.
    code_cache: Cache {
        bytes: 64 << 10,
        line: 64,
        ways: 8,
        latency: 20,
    },
    asks_again: false,
    vector_cache_bytes: 61.0,
    l2_bytes: 4 << 20,
    l2_read: 27.0,
    l2_write: 8.8,
    // Its streams within L2 are bound by dispatch: mixing is not told apart.
    l2_mixed: 1.0,
    // White paper of CDNA 3: slices of 2 MB.
    channels: 128,
    side_bytes: 256 << 20,
    side_read: 5.38,
    side_write: 4.9,
    side_mixed: 0.79,
    dram_read: 4.20,
    dram_write: 4.80,
    dram_mixed: 0.90,
    write_batch: 945.0,
    unit_share: 0.015,
    l2_latency: 213.0,
    side_latency: 456.0,
    dram_latency: 740.0,
    tlb_latency: 145.0,
    store_latency: 236.0,
    l2_edge: (1.0, 1.08),
    launch_us: 2.0,
    ..GFX90A
};

/// One of the two dies of an MI250X, which are GPUs of their own.
const MI250X: Machine = Machine {
    part: "MI250X GCD",
    units: 110,
    ..GFX90A
};

/// Six of MI300X's eight compute dies with all of its memory. Latencies and rates behind L2 are RRZE's of MI300A; L2 is
/// MI300X's, by the number of dies.
const MI300A: Machine = Machine {
    part: "MI300A",
    units: 228,
    dies: 6,
    shader_engines: 24,
    l2_read: 20.2,
    l2_write: 6.6,
    side_read: 4.25,
    side_write: 3.03,
    side_mixed: 1.12,
    dram_read: 2.68,
    dram_write: 3.07,
    // A copy is as fast as reads and writes by themselves.
    dram_mixed: 1.0,
    side_latency: 450.0,
    dram_latency: 675.0,
    ..GFX942
};

const GFX950: Machine = Machine {
    arch: "gfx950",
    part: "MI355X",
    units: 256,
    boost_ghz: 2.40,
    matrix_ghz: 1.70,
    double_matrix_ghz: 1.70,
    lds_bytes: 163_840,
    lds_pipe_bytes: 128,
    lds_latency: 52,
    // As gfx942's, by units and clock: AMD's Origami has one figure for both (17), and gfx942 was measured at 27.
    l2_read: 26.0,
    l2_write: 8.5,
    side_read: 8.5,
    side_write: 8.0,
    side_mixed: 1.0,
    dram_read: 6.0,
    dram_write: 6.0,
    // AMD's one figure for both ways is a copy's.
    dram_mixed: 1.0,
    unit_share: 0.015,
    l2_latency: 213.0,
    side_latency: 456.0,
    dram_latency: 700.0,
    store_latency: 264.0,
    l2_edge: (1.0, 1.08),
    ..GFX942
};

const GFX1100: Machine = Machine {
    arch: "gfx1100",
    part: "RX 7900 XTX",
    units: 96,
    units_per_group: 2,
    dies: 1,
    shader_engines: 6,
    slot: 1,
    boost_ghz: 2.50,
    matrix_ghz: 2.40,
    double_matrix_ghz: 2.40,
    lds_bytes: 131_072,
    lds_arrays: 2,
    lds_pipes: 2,
    lds_pipe_bytes: 128,
    lds_latency: 32,
    lds_word_latency: 2,
    vector_cache: Cache {
        bytes: 32 << 10,
        line: 128,
        ways: 8,
        latency: 73,
    },
    scalar_cache: Cache {
        bytes: 16 << 10,
        line: 64,
        ways: 4,
        latency: 32,
    },
    // AMD's specification of the GPU; ways as the white paper of RDNA has them, lines as LLVM.
    code_cache: Cache {
        bytes: 32 << 10,
        line: 128,
        ways: 4,
        latency: 0,
    },
    fetch_bytes: 128,
    asks_again: false,
    vector_cache_bytes: 128.0,
    l2_bytes: 6 << 20,
    l2_unit_bytes: 64.0,
    l2_read: 7.12,
    l2_write: 3.56,
    l2_mixed: 1.0,
    channels: 0,
    side_bytes: 96 << 20,
    side_read: 4.24,
    side_write: 2.12,
    side_mixed: 1.0,
    dram_read: 0.732,
    dram_write: 0.732,
    write_batch: 765.0,
    dram_mixed: 1.0,
    unit_share: 0.11,
    l2_latency: 220.0,
    side_latency: 375.0,
    dram_latency: 700.0,
    store_latency: 330.0,
    l2_edge: (1.0, 1.08),
    tlb_bytes: 64 << 20,
    tlb_latency: 105.0,
    valu_latency: 4,
    transcendental_latency: 6,
    salu_latency: 1,
    valu_to_memory: 17,
    valu_to_scalar: 10,
    branch_taken: 12,
    branch_not_taken: 3,
    barrier: 15,
    wake: 2,
    dispatch: 2.0,
    dispatch_group: 2.0,
    start: 150,
    launch_us: 2.9,
};

const GFX1201: Machine = Machine {
    arch: "gfx1201",
    part: "RX 9070 XT",
    units: 64,
    shader_engines: 4,
    boost_ghz: 2.97,
    matrix_ghz: 2.40,
    double_matrix_ghz: 2.40,
    l2_bytes: 8 << 20,
    l2_read: 5.74,
    l2_write: 2.87,
    side_bytes: 64 << 20,
    side_read: 2.94,
    side_write: 1.47,
    dram_read: 0.464,
    dram_write: 0.464,
    unit_share: 0.17,
    // SALU results one after another take nine cycles where a wave is alone.
    salu_latency: 8,
    ..GFX1100
};

/// The first of an arch is what it is timed as where nothing else is asked for.
static MACHINES: &[Machine] = &[GFX90A, MI250X, GFX942, MI300A, GFX950, GFX1100, GFX1201];

impl Machine {
    /// The machine that an arch is timed as: the named product, or the arch's first.
    pub fn of(arch: &Arch, part: Option<&str>) -> Option<&'static Machine> {
        MACHINES
            .iter()
            .find(|machine| machine.arch == arch.name && part.is_none_or(|part| part == machine.part))
    }

    /// What can be timed: each arch, with its product.
    pub fn all() -> impl Iterator<Item = &'static Machine> {
        MACHINES.iter()
    }

    /// The archs that are timed.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = MACHINES.iter().map(|machine| machine.arch).collect();
        names.dedup();
        names
    }

    /// What one workgroup runs on: compute units, or pairs of them.
    pub fn groups(&self) -> u32 {
        self.units / self.units_per_group
    }

    /// Cycles between two workgroups of so many waves at one shader engine's dispatcher.
    pub fn dispatch_cycles(&self, waves: u64) -> f64 {
        (waves as f64 * self.dispatch).max(self.dispatch_group)
    }

    /// Bytes a cycle for a rate in TB/s.
    pub fn bytes_a_cycle(rate: f64, ghz: f64) -> f64 {
        rate * 1e3 / ghz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_agree_with_the_archs() {
        for machine in MACHINES {
            let arch = Arch::by_name(machine.arch).expect("an arch of the emulator");
            if Machine::of(arch, None).is_some_and(|first| first.part == machine.part) {
                assert_eq!(machine.units, arch.compute_units, "{}", arch.name);
            }
            assert!(machine.units.is_multiple_of(machine.dies), "{}", machine.part);
            assert!(machine.l2_read > machine.dram_read && machine.unit_share > 0.0);
            assert!(machine.l2_latency < machine.dram_latency, "{}", arch.name);
            let cache = &machine.vector_cache;
            assert!((cache.bytes / cache.line).is_multiple_of(cache.ways as u64));
            assert!(
                machine.code_cache.line.is_multiple_of(machine.fetch_bytes),
                "{}",
                machine.part
            );
        }
    }
}
