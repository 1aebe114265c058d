//! What a timed launch is reported as.

use super::replay::Issue;
use crate::counters::CLASSES;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Why a SIMD issued nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stall {
    /// The class's slot was taken by another wave, or the wave's own turn had not come.
    Slot,
    /// A register that an ALU has not finished.
    Dependency,
    /// The vector ALU was taken by an instruction of several cycles.
    VectorBusy,
    /// The matrix unit was taken.
    MatrixBusy,
    /// A matrix result that is not there yet.
    MatrixResult,
    /// A wait for vector memory.
    VectorMemory,
    /// The addresser and vector cache had too much to look up.
    AddresserBusy,
    /// A wait for LDS.
    Lds,
    /// LDS had too much to serve.
    LdsBusy,
    /// A wait for scalar memory.
    ScalarMemory,
    /// The workgroup's barrier.
    Barrier,
    /// The instructions behind a branch.
    Branch,
    /// An instruction that is not fetched yet.
    Fetch,
    /// `s_nop` and `s_sleep`.
    Nop,
    /// No wave was there: launch, dispatch, imbalance, and the end of the launch.
    NoWave,
    /// Stores under way after the last instruction.
    Drain,
}

impl Stall {
    /// How many there are.
    pub const COUNT: usize = 16;
    /// All of them, in order.
    pub const ALL: [Stall; Stall::COUNT] = [
        Stall::Slot,
        Stall::Dependency,
        Stall::VectorBusy,
        Stall::MatrixBusy,
        Stall::MatrixResult,
        Stall::VectorMemory,
        Stall::AddresserBusy,
        Stall::Lds,
        Stall::LdsBusy,
        Stall::ScalarMemory,
        Stall::Barrier,
        Stall::Branch,
        Stall::Fetch,
        Stall::Nop,
        Stall::NoWave,
        Stall::Drain,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Stall::Slot => "issue slot",
            Stall::Dependency => "ALU result",
            Stall::VectorBusy => "vector ALU busy",
            Stall::MatrixBusy => "matrix unit busy",
            Stall::MatrixResult => "matrix result",
            Stall::VectorMemory => "vector memory",
            Stall::AddresserBusy => "addresser busy",
            Stall::Lds => "LDS",
            Stall::LdsBusy => "LDS busy",
            Stall::ScalarMemory => "scalar memory",
            Stall::Barrier => "barrier",
            Stall::Branch => "branch",
            Stall::Fetch => "instruction fetch",
            Stall::Nop => "s_nop",
            Stall::NoWave => "no wave",
            Stall::Drain => "stores draining",
        }
    }
}

/// A part of the cycles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub name: Cow<'static, str>,
    /// Of all SIMD cycles, 0 to 1.
    pub share: f64,
}

/// An instruction that SIMDs lost cycles at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    /// Its offset in the image.
    pub address: u64,
    pub text: String,
    /// What it waited for mostly.
    pub cause: Cow<'static, str>,
    /// Of all SIMD cycles, 0 to 1.
    pub share: f64,
}

/// The predicted time of one launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub kernel: String,
    pub arch: Cow<'static, str>,
    /// The product whose facts were used.
    pub part: Cow<'static, str>,
    /// Cycles from the first workgroup's dispatch to the last store, without the launch itself.
    pub cycles: u64,
    /// The clock of this run, and why it is that.
    pub ghz: f64,
    pub clock: Cow<'static, str>,
    /// Microseconds at that clock, the launch included.
    pub micros: f64,
    /// Of them, the launch.
    pub launch_micros: f64,
    pub workgroups: u64,
    /// Workgroups that a compute unit (or pair) holds, by registers, LDS and waves.
    pub resident: u32,
    pub waves_per_simd: f64,
    /// Workgroups that the busiest unit gets one after another, in units of `resident`.
    pub rounds: f64,
    /// Workgroups whose trace was replayed, and whether the rest was extrapolated from them.
    pub sampled: u32,
    pub extrapolated: bool,
    /// The part of the instructions that lies in iterations of long loops which were not replayed, but counted as those
    /// that were.
    pub loops_left_out: f64,
    /// What was issued, by class, and what held the SIMDs, largest first; both sum to 1.
    pub issue: Vec<Part>,
    pub stalls: Vec<Part>,
    /// The instructions at which most cycles were lost.
    pub hot: Vec<Hot>,
    /// How busy each unit was, 0 to 1, largest first.
    pub busy: Vec<Part>,
    /// The unit that was busiest, or the largest stall where none was busy for half of the time.
    pub bound: Cow<'static, str>,
    /// Bytes that DRAM moved, and what part of the achieved bandwidth that was.
    pub dram_bytes: f64,
    pub dram_fraction: f64,
    /// The least time that bytes and matrix work allow at achieved rates, over the predicted time.
    pub roofline: f64,
    /// Hits of the vector cache over its look-ups.
    pub vector_cache_hits: f64,
    /// Wave instructions of the whole launch, about.
    pub instructions: f64,
    /// The issues of the first waves, where they were asked for.
    #[serde(skip)]
    pub issues: Vec<Issue>,
}

/// The classes in words, in the order of [`crate::Class`].
pub(crate) const CLASS_NAMES: [&str; CLASSES] = [
    "scalar",
    "vector",
    "matrix",
    "scalar memory",
    "vector memory",
    "LDS",
    "branch",
    "wait",
];

impl Report {
    /// The report as a line of JSON.
    pub fn json(&self) -> String {
        // Numbers, texts and lists of them: serialising cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Report::json`] made, which holds all but the issues.
    ///
    /// # Errors
    /// Text that is no report; the message says where.
    pub fn from_json(text: &str) -> Result<Report, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}
