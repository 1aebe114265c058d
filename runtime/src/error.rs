//! What can go wrong between a program and its outputs; each error names the place, the values and the way out.

use ir::dim::DimError;
use ir::graph::BindError;
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

    /// The device has less memory free than is asked for.
    #[error(
        "device {device} has no {asked} bytes for {what}: {free} bytes are free, the planned peak of a run is {planned_peak} \
         bytes; use smaller inputs, compute in a smaller type, or free what else is on the device"
    )]
    OutOfDeviceMemory {
        device: String,
        what: String,
        asked: usize,
        free: usize,
        planned_peak: usize,
    },

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

    /// The system has no memory for a run at these sizes.
    #[error("a run at these sizes needs {asked} bytes of memory, which the system does not give; use smaller inputs")]
    NoMemory { asked: usize },

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

/// What is wrong with the inputs of a run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    #[error("input {0:?} is missing")]
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
    #[error("state {name:?} has no value: {reason}; set or reset it")]
    NoState { name: String, reason: String },
    /// A place was wanted for an output that the model does not have.
    #[error("the model has no output {0:?}")]
    NoOutput(String),
    /// An output's memory is not what the run fills.
    #[error("output {name:?} needs {expected} bytes, but {got} were given")]
    Output { name: String, got: usize, expected: usize },
}
