//! Plans on an emulated GPU: their code objects run instruction by instruction, on any machine.
//!
//! Before: a program with code objects for the target. After: the outputs, what every launch counted, or the first
//! fault with its kernel, instruction, lane and address. Each buffer is an allocation of its own size, so that an
//! access past its end is seen; buffers that share bytes on purpose share one.

mod calls;
mod check;
mod counted;
mod disassembler;
mod run;
mod sample;
mod timed;

pub use calls::{CallTimer, CallTimes, SizedCall, serve as serve_calls};
pub use check::{Checked, CheckedKernel, Subject, Unchecked, Verdict, check_kernel, tolerance};
pub use counted::{ByClass, Counted, total};
pub use disassembler::{disassembler, serve};
pub use run::{Emulator, Launched, Options, Outcome};
pub use sample::check_samples;
pub use timed::{Span, TimedKernel, TimedLaunch, TimedStep, TimedWork, Untimed, makespan, timed, timeline, untimed};

use ir::kernel::LaunchError;
use ir::plan::StepId;

/// Why a plan could not be emulated.
#[derive(Debug, thiserror::Error)]
pub enum EmulateError {
    /// The emulator has no such GPU.
    #[error("the emulator knows no {target}; it knows {}", known.join(", "))]
    UnknownTarget { target: String, known: Vec<&'static str> },
    /// A kernel has no code object.
    #[error("kernel {kernel} was not compiled")]
    NotCompiled { kernel: String },
    /// The plan calls a vendor library.
    #[error("step {step} calls {call}: library calls are timed, not emulated; compile with --no-libraries")]
    LibraryCall { step: StepId, call: String },
    /// A condition of the model does not hold for this run's data.
    #[error("{0}")]
    Condition(String),
    /// An index of this run's data lies outside its axis.
    #[error("{0}")]
    Index(String),
    /// A code object could not be loaded or decoded.
    #[error("kernel {kernel}: {error}")]
    Load { kernel: String, error: emu::LoadError },
    /// A kernel's grid could not be computed, or is more than one launch can be.
    #[error(transparent)]
    Grid(#[from] LaunchError),
    /// A launch was refused or faulted.
    #[error("step {step}: {error}{}", slower(.error))]
    Launch { step: StepId, error: emu::LaunchError },
    /// Device memory is too small, or a copy does not fit.
    #[error("buffer {buffer}: {error}{}", way_out(.error))]
    Memory { buffer: String, error: emu::MemoryError },
    /// The inputs do not fit the plan.
    #[error("input {input:?}: {reason}")]
    Input { input: String, reason: String },
    /// The inputs' shapes contradict each other or the plan.
    #[error(transparent)]
    Bind(#[from] ir::graph::BindError),
    /// The plan does not work at these sizes.
    #[error("the inputs' sizes do not fit the model: {0}")]
    Sizes(#[from] ir::plan::SizesError),
    /// The file that weights or inputs are in became shorter while it was in use.
    #[error(transparent)]
    Truncated(#[from] ir::mapped::Truncated),
    /// A size could not be computed.
    #[error(transparent)]
    Size(#[from] ir::dim::DimError),
    /// The evaluator refused a kernel that it was to check: a bug of graphc.
    #[error("step {step}: the evaluator: {error}")]
    Evaluate {
        step: StepId,
        error: ir::kernel::eval::KernelEvalError,
    },
    /// A sample of workgroups stored less than its share.
    #[error(
        "kernel {kernel}: {ran} of {total} workgroups stored {got} elements of {param}, which is fewer than {least}: \
         elements are missing"
    )]
    Unwritten {
        kernel: String,
        param: String,
        got: u64,
        least: u64,
        ran: u64,
        total: u64,
    },
    /// A run left a part of an output as it found it: a bug of graphc.
    #[error("output {output:?}: no kernel wrote byte {byte} of its {bytes} (elements of {ty}): elements are missing")]
    NothingWrote {
        output: String,
        byte: u64,
        bytes: u64,
        ty: String,
    },
    /// A tensor's bytes do not fit its type: a bug of graphc.
    #[error("buffer {buffer}: {error}")]
    Bytes {
        buffer: String,
        error: ir::data::SizeMismatch,
    },
}

impl EmulateError {
    /// The exit code of the command line: 2 for what the user can mend, 1 for faults and our failures.
    pub fn exit_code(&self) -> u8 {
        match self {
            EmulateError::UnknownTarget { .. }
            | EmulateError::LibraryCall { .. }
            | EmulateError::Condition(_)
            | EmulateError::Index(_)
            | EmulateError::Input { .. }
            | EmulateError::Bind(_)
            | EmulateError::Sizes(_)
            | EmulateError::Truncated(_)
            | EmulateError::Memory {
                error: emu::MemoryError::OutOfMemory { .. } | emu::MemoryError::HostMemory { .. },
                ..
            }
            | EmulateError::Launch {
                error: emu::LaunchError::NotTimed { .. },
                ..
            }
            | EmulateError::Grid(LaunchError::Grid { .. }) => 2,
            EmulateError::Size(error) | EmulateError::Grid(LaunchError::Size { error, .. }) => {
                crate::exit::of_size(error)
            }
            _ => 1,
        }
    }
}

fn slower(error: &emu::LaunchError) -> &'static str {
    match error {
        emu::LaunchError::Fault(fault) if matches!(fault.kind, emu::FaultKind::InstructionLimit(_)) => {
            "; GRAPHC_EMU_INSTRUCTION_LIMIT sets the limit, 0 takes it away"
        }
        _ => "",
    }
}

fn way_out(error: &emu::MemoryError) -> &'static str {
    match error {
        emu::MemoryError::HostMemory { .. } => {
            "; give smaller inputs or sizes (--size), or let the process have more memory (`ulimit -v` shows its limit)"
        }
        emu::MemoryError::OutOfMemory { .. } => {
            "; give smaller inputs or sizes (--size), or check each kernel alone with `graphc verify --emulate --sample N`"
        }
        _ => "",
    }
}
