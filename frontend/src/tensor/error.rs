//! Why recording failed: the op, its operands' types, the place in the user's source.

use ir::data::SizeMismatch;
use ir::{InferError, Origin, Symbol, TensorType};

use crate::weights::ViewError;

/// An operation that cannot be recorded, or recorded operations that make no graph.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum TensorError {
    /// The op does not fit its operands' types or shapes.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// An argument that is no tensor is wrong.
    #[error("{op} on {operand} from {origin}: {message}")]
    Argument {
        op: &'static str,
        operand: TensorType,
        origin: Origin,
        message: String,
    },
    /// The data's length is not what the shape asks for.
    #[error("data from {origin}: {source}")]
    Data { origin: Origin, source: SizeMismatch },
    /// Data on a device could not be copied to the host.
    #[error("data from {origin} is on a device, and could not be copied from there: {message}")]
    Remote { origin: Origin, message: String },
    /// A tensor of a weight file has no element type here.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The error arose inside a module.
    #[error("in module {module:?}: {source}")]
    Module { module: String, source: Box<TensorError> },
    /// Two inputs have one name.
    #[error(
        "two inputs are named {name:?}, {first} and {second}; give each input its own name, and use one tensor in both places to share it"
    )]
    DuplicateInput {
        name: String,
        first: TensorType,
        second: TensorType,
    },
    /// Two outputs have one name.
    #[error("two outputs are named {name:?}")]
    DuplicateOutput { name: String },
    /// A size that no input gives.
    #[error(
        "the size {symbol} (used by {op} from {origin}) is the size of no input's axis, so that no run could know it; make it an axis of an input, or use a number"
    )]
    UnboundSymbol {
        symbol: Symbol,
        op: &'static str,
        origin: Origin,
    },
    /// A graph needs an output.
    #[error("the graph has no outputs")]
    NoOutputs,
    /// Something listed as an input is none.
    #[error("{what} from {origin} is listed as an input, but was not made by Tensor::input")]
    NotAnInput { what: &'static str, origin: Origin },
    /// Eager use of a tensor that has no value yet.
    #[error(
        "the tensor has no value of its own: it depends on the inputs {inputs:?}; compile it and pass them, or start from data"
    )]
    DependsOnInputs { inputs: Vec<String> },
}

impl TensorError {
    /// Says whether the error names its module already.
    pub fn is_in_module(&self) -> bool {
        matches!(self, TensorError::Module { .. })
    }
}

impl From<Box<TensorError>> for TensorError {
    fn from(error: Box<TensorError>) -> TensorError {
        *error
    }
}
