//! What can go wrong between a program and its outputs; each error names the place, the values and the way out.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ir::dim::DimError;
use ir::graph::{BindError, Check};
use ir::host::LowerError;
use ir::plan::SizesError;
use ir::types::DType;

use crate::compile::CompileError;

/// A program was not loaded, or not run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// There is no such device, or no library for it, on this machine.
    #[error("{what} is not available: {reason}")]
    NotAvailable { what: String, reason: String },

    /// The device reported an error; `at` is the step, kernel or buffer it was for.
    #[error("device {device}: {at}: {call} gave {code} ({message})")]
    Device {
        device: String,
        call: String,
        /// The vendor's name of the error.
        code: String,
        message: String,
        at: String,
    },

    /// The device went away, or a fault on it ended everything that this process had there.
    #[error("device {device} is lost ({reason}); what was loaded on it is gone: start the program again")]
    DeviceLost { device: String, reason: String },

    /// The host waited for the device as long as it was allowed to, and gave it up: nothing is asked of it any more,
    /// since a call that waits for what is under way there would not come back.
    #[error(
        "device {device}: {at} was not done after {} s: a kernel that does not end, or a device that hangs. What was loaded on it is \
         gone: start the program again, and if the work only takes longer, allow more (--timeout)",
        .after.as_secs_f64()
    )]
    TimedOut {
        device: String,
        at: String,
        after: Duration,
    },

    /// One of several devices that compute a model together failed; the others were let go.
    #[error("rank {rank} on {device}: {error}")]
    Rank {
        rank: usize,
        device: String,
        error: Box<RuntimeError>,
    },

    /// One of several devices that compute a model's layers one after the other failed.
    #[error("stage {stage} on {device}: {error}")]
    Stage {
        stage: usize,
        device: String,
        /// Whether stages of the run were begun, which may have written what they were given.
        begun: bool,
        error: Box<RuntimeError>,
    },

    /// Devices computed a model together until one of them failed.
    #[error("{devices} do not compute together any more ({reason}); open the devices and load the program again")]
    RanksEnded { devices: String, reason: String },

    /// The device has less memory free than is asked for.
    #[error(transparent)]
    OutOfDeviceMemory(#[from] Box<OutOfDeviceMemory>),

    /// The system gives no more memory that the device could copy from and to.
    #[error(
        "the host has no {asked} bytes for {what}, in memory that device {device} copies from and to ({call} gave {code}); use \
         smaller inputs, or let processes lock more memory (ulimit -l)"
    )]
    OutOfPinnedMemory {
        device: String,
        what: String,
        asked: usize,
        call: String,
        code: String,
    },

    /// MIOpen cannot keep its user databases in the folder that was asked for.
    #[error("MIOpen's user databases cannot be in {}: {reason}", folder.display())]
    MiopenDatabase { folder: PathBuf, reason: String },

    /// A kernel was not compiled.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),

    /// A run needs more memory than there is or than was allowed.
    #[error(
        "a run at these sizes needs {asked} bytes, but the limit is {limit} (planned peak {planned_peak} bytes); use smaller \
         inputs or raise the limit"
    )]
    OutOfMemory {
        asked: usize,
        limit: usize,
        planned_peak: usize,
    },

    /// The machine has no memory for a run at these sizes.
    #[error("a run at these sizes needs {asked} bytes of memory, {}; use smaller inputs", have(*available))]
    NoMemory {
        asked: usize,
        /// None where the system does not say.
        available: Option<u64>,
    },

    /// The file that weights or inputs are in became shorter while it was in use.
    #[error(transparent)]
    Truncated(#[from] ir::mapped::Truncated),

    /// The inputs given are not the model's.
    #[error("{error}; the model's inputs are {inputs}", inputs = .inputs.join(", "))]
    Input {
        error: InputError,
        /// `name: type` of each input of the model.
        inputs: Vec<String>,
    },

    /// A condition of the model does not hold for this run's data.
    #[error("{0}")]
    Condition(String),

    /// An index of this run's data lies outside its axis.
    #[error("{0}")]
    Index(String),

    /// The plan asks for what this device does not do.
    #[error("{what} is not supported at {at}")]
    Unsupported { what: String, at: String },

    /// The plan does not work at these sizes; at others it does.
    #[error("the inputs' sizes do not fit the model: {0}")]
    Sizes(#[from] SizesError),

    /// What a kernel computes does not exist at these sizes; at others it may.
    #[error("{what} cannot be taken in {at}: the inputs are too small")]
    TooSmall { what: String, at: String },

    /// A kernel's work is more than one launch can be, at these sizes.
    #[error("these inputs are too large for the device: {0}; use smaller ones")]
    TooLarge(ir::kernel::LaunchError),

    /// A size of the plan does not work out.
    #[error("a size of the plan cannot be computed: {0}")]
    Size(#[from] DimError),

    /// The program does not hold together; a verified one always does.
    #[error("the program is damaged: {0}")]
    Program(String),
}

/// What a device was asked for and did not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct OutOfDeviceMemory {
    pub device: String,
    /// What the memory was for.
    pub what: String,
    /// In bytes, as all that follows.
    pub asked: usize,
    /// None where the driver does not say.
    pub free: Option<usize>,
    /// None for memory of no program: tensors.
    pub planned: Option<Planned>,
    /// The least that weights and a run would take if weights were streamed from the host, at the sizes that the model
    /// expects. Filled in by who can plan.
    pub least: Option<usize>,
}

/// What a program takes of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The arena of a run.
    pub peak: usize,
    /// Weights that are there from run to run.
    pub weights: usize,
}

impl fmt::Display for OutOfDeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} has no {} bytes for {}: ",
            self.device, self.asked, self.what
        )?;
        match self.free {
            Some(free) => write!(f, "{free} bytes are free")?,
            None => write!(f, "how many are free it does not say")?,
        }
        if let Some(Planned { peak, weights }) = self.planned {
            write!(
                f,
                ", the planned peak of a run is {peak} bytes beside {weights} bytes of weights"
            )?;
        }
        match (self.least, self.free) {
            (Some(least), Some(free)) if least > free => write!(
                f,
                "; also with weights streamed from the host (--max-vram) {least} bytes are the least that would do"
            )?,
            (Some(least), _) => write!(
                f,
                "; with --max-vram SIZE weights are streamed from the host, for any size from {least} bytes on"
            )?,
            (None, _) => {}
        }
        write!(
            f,
            "; use smaller inputs, compute in a smaller type, or free what else is on the device"
        )
    }
}

/// What is wrong with the inputs of a run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    #[error("input {0:?} is missing; give it (graphc's --inputs FILE; --random makes up what is not given)")]
    Missing(String),
    #[error("the model has no input {0:?}")]
    Unknown(String),
    #[error("input {name:?} is {got}, but the model declares {declared}")]
    DType { name: String, got: DType, declared: DType },
    #[error(transparent)]
    Shape(#[from] BindError),
    #[error("input {name:?} has {got} bytes where its type and shape take {expected}")]
    Bytes { name: String, got: usize, expected: usize },
    #[error("input {name:?} is on device {on}, but the model is on {device}; download it, or load the model on {on}")]
    Elsewhere { name: String, on: String, device: String },
    #[error("input {0:?} is donated, but other tensors share its memory; drop those, or give it without donating it")]
    Shared(String),
    /// An output cannot become an input's value of the next run.
    #[error("state {input:?} cannot be taken from output {output:?}: {problem}")]
    State {
        input: String,
        output: String,
        problem: String,
    },
    /// A run was given an input that is kept from run to run.
    #[error(
        "input {0:?} is a state, which is kept from run to run; set it before the run and leave it out of the run's inputs"
    )]
    IsState(String),
    #[error("state {name:?} has no value: {reason}; set or reset it")]
    NoState { name: String, reason: String },
    /// A place was wanted for an output that the model does not have.
    #[error("the model has no output {0:?}")]
    NoOutput(String),
    /// An output's memory is not what the run fills.
    #[error("output {name:?} needs {expected} bytes, but {got} were given")]
    Output { name: String, got: usize, expected: usize },
}

/// What there is, for a message of memory that there is not.
fn have(available: Option<u64>) -> String {
    match available {
        Some(available) => format!("but {available} are available"),
        None => "which the system does not give".to_owned(),
    }
}

impl RuntimeError {
    /// The error of a run whose condition does not hold.
    pub(crate) fn of_condition((check, message): (&Check, String)) -> RuntimeError {
        match check {
            Check::Holds => RuntimeError::Condition(message),
            Check::Indices(_) => RuntimeError::Index(message),
        }
    }

    /// There is no memory for a run, with what there is.
    pub(crate) fn no_memory(asked: usize) -> RuntimeError {
        RuntimeError::NoMemory {
            asked,
            available: ir::memory::available(),
        }
    }

    /// What is wrong with an input of a model with these ports.
    pub(crate) fn input(error: InputError, inputs: &[ir::plan::Port]) -> RuntimeError {
        RuntimeError::Input {
            error,
            inputs: inputs.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect(),
        }
    }

    /// Whether the error is of what was asked for, before anything was begun: every rank says the same.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            RuntimeError::Input { .. }
                | RuntimeError::Sizes(_)
                | RuntimeError::Size(_)
                | RuntimeError::TooSmall { .. }
                | RuntimeError::TooLarge(_)
                | RuntimeError::OutOfMemory { .. }
                | RuntimeError::NoMemory { .. }
                | RuntimeError::Unsupported { .. }
        )
    }

    /// Whether a run that ended by it may have written a part of what it was given.
    pub(crate) fn may_have_written(&self) -> bool {
        match self {
            RuntimeError::Rank { error, .. } => error.may_have_written(),
            RuntimeError::Stage { error, begun, .. } => *begun || error.may_have_written(),
            RuntimeError::Device { .. } | RuntimeError::DeviceLost { .. } | RuntimeError::RanksEnded { .. } => true,
            _ => false,
        }
    }
}

impl From<LowerError> for RuntimeError {
    fn from(error: LowerError) -> RuntimeError {
        match error {
            LowerError::Size(error) => RuntimeError::Size(error),
            LowerError::Unsupported { what, at } => RuntimeError::Unsupported { what, at },
            LowerError::TooSmall { what, at } => RuntimeError::TooSmall { what, at },
            LowerError::NoMemory { asked } => RuntimeError::no_memory(asked),
        }
    }
}
