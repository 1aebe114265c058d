//! How long a launch would take: cycles and their causes, predicted from traces of sampled workgroups.
//!
//! ```text
//! Gpu::time(kernel, items, block, kernargs, dynamic_lds, options)
//!   |  survey   the first instructions of the workgroups that run at the same time: who fetches a line together
//!   |  trace    whole workgroups of one compute unit, without the matrix arithmetic
//!   |  replay   event by event: issue, registers, counters, LDS, caches, memory as queues
//! Report        cycles, time, where they went, what bounds
//! ```
//!
//! `cost`, `banks` and `machine` are tables of facts; nothing else names an arch. The same input gives the same cycles,
//! whatever the number of threads. `emu/TIMING.md` has the sources, the validation and where not to trust it.

pub(crate) mod banks;
mod clock;
pub(crate) mod cost;
mod facts;
mod fetch;
mod launch;
mod lengths;
mod loops;
mod machine;
mod memory;
mod picture;
mod queue;
mod replay;
mod report;
mod reuse;
pub(crate) mod trace;

pub use picture::perfetto;
pub use replay::Issue;
pub use report::{Hot, Part, Report, Stall};

pub(crate) use launch::time;

use crate::arch::Arch;
use machine::Machine;

/// The products that can be timed, each with its arch; the first of an arch is what it is timed as by default.
pub fn parts() -> Vec<(&'static str, &'static str)> {
    Machine::all().map(|machine| (machine.arch, machine.part)).collect()
}

/// The GPU as which an arch's code is timed: the GPU of that name, or for a generic processor the first timed one that
/// runs its code. The arch itself where none of them is timed, which a launch then says.
pub fn gpu_of(arch: &'static Arch) -> &'static Arch {
    let is_timed = |arch: &&'static Arch| Machine::of(arch, None).is_some();
    let served = arch.serves.iter().filter_map(|name| Arch::by_name(name));
    std::iter::once(arch).chain(served).find(is_timed).unwrap_or(arch)
}

/// The archs that can be timed.
pub fn archs() -> Vec<&'static str> {
    Machine::names()
}

/// Microseconds of a copy of `bytes` within an arch's memory, the launch included; None where the arch is not timed.
pub fn copy_micros(arch: &Arch, bytes: u64) -> Option<f64> {
    let achieved = Achieved::of(arch)?;
    Some(achieved.launch_us + achieved.memory_us(bytes as f64, bytes as f64))
}

/// What an arch's memory and matrix units reach in published micro-benchmarks (`emu/TIMING.md` has the sources).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Achieved {
    /// Memory's reads and writes in 10^12 bytes a second.
    pub dram_read_tbps: f64,
    pub dram_write_tbps: f64,
    /// The share of the data sheet's peak at which dense matrix work settles.
    pub matrix_share: f64,
    /// Microseconds between two kernels in a queue.
    pub launch_us: f64,
}

impl Achieved {
    /// The rates of an arch; None where it is not timed.
    pub fn of(arch: &Arch) -> Option<Achieved> {
        let machine = Machine::of(arch, None)?;
        Some(Achieved {
            dram_read_tbps: machine.dram_read,
            dram_write_tbps: machine.dram_write,
            matrix_share: machine.matrix_ghz / machine.boost_ghz,
            launch_us: machine.launch_us,
        })
    }

    /// Microseconds in which memory gives and takes so many bytes.
    pub fn memory_us(&self, read: f64, written: f64) -> f64 {
        (read / self.dram_read_tbps + written / self.dram_write_tbps) / 1e6
    }
}

/// How a launch is timed.
#[derive(Clone, Debug, PartialEq)]
pub struct TimingOptions {
    /// The shader clock; by default between the boost clock and the one that dense matrix work settles at, by the share
    /// of matrix work.
    pub ghz: Option<f64>,
    /// The product, one of [`parts`]; by default the arch's first.
    pub part: Option<String>,
    /// Wave instructions that are traced at most, about.
    pub budget: u64,
    /// Whether of long loops only some iterations are traced and replayed.
    pub sample_loops: bool,
    /// Whether the kernel's code lies in memory at first, as for a launch after many others; otherwise in caches, as
    /// far as they hold it, as where a launch follows another of its kernel.
    pub cold_code: bool,
    /// Issues that the report keeps for a picture.
    pub issues: usize,
    /// Instructions that the report lists.
    pub hot: usize,
}

impl Default for TimingOptions {
    fn default() -> TimingOptions {
        TimingOptions {
            ghz: None,
            part: None,
            budget: 6_000_000,
            sample_loops: true,
            cold_code: false,
            issues: 0,
            hot: 5,
        }
    }
}
