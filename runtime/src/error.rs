//! What can go wrong between a program and its outputs; each error names the place, the values and the way out.

use ir::dim::DimError;
use ir::graph::BindError;
use ir::types::DType;

use crate::compile::CompileError;

/// A program was not loaded, or not run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// There is no such device, or no library for it, on this machine.
    #[error("{what} is not available: {reason}")]
    NotAvailable { what: String, reason: String },

    /// The device reported an error.
    #[error("device {device}: {call} failed: {message}")]
    Device {
        device: String,
        call: String,
        message: String,
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

    /// The inputs given are not the model's.
    #[error("{error}; the model's inputs are {inputs}", inputs = .inputs.join(", "))]
    Input {
        error: InputError,
        /// `name: type` of each input of the model.
        inputs: Vec<String>,
    },

    /// The plan asks for what this device does not do.
    #[error("{what} is not supported at {at}")]
    Unsupported { what: String, at: String },

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
    /// An output's memory is not what the run fills.
    #[error("output {name:?} needs {expected} bytes, but {got} were given")]
    Output { name: String, got: usize, expected: usize },
}
