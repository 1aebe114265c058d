//! Why an op does not fit its operands.

use crate::dim::{Dim, Shape, Symbol};
use crate::graph::Origin;
use crate::graph::op::Op;
use crate::types::{DType, TensorType};

/// An op that does not fit its operands.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{op}({}) {}: {reason}", list(operands), place(origin))]
pub struct InferError {
    /// The op's name in text forms.
    pub op: &'static str,
    pub operands: Vec<TensorType>,
    /// Where the op came from.
    pub origin: Origin,
    pub reason: Box<Reason>,
}

impl InferError {
    pub(super) fn new(op: &Op, operands: Vec<TensorType>, reason: Reason) -> InferError {
        InferError {
            op: op.name(),
            operands,
            origin: Origin::Unknown,
            reason: Box::new(reason),
        }
    }

    /// Says where the op came from.
    #[must_use]
    pub fn at(mut self, origin: Origin) -> InferError {
        self.origin = origin;
        self
    }
}

fn list(operands: &[TensorType]) -> String {
    operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn place(origin: &Origin) -> String {
    match origin {
        Origin::Unknown => "does not fit".to_owned(),
        origin => format!("from {origin} does not fit"),
    }
}

/// The reason of an [`InferError`]; operands are counted from 0.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    #[error("takes {} operands, but has {got}", if min == max { min.to_string() } else { format!("{min} to {max}") })]
    OperandCount { min: usize, max: usize, got: usize },
    #[error("operand {operand} is {got}, but must be {expected}")]
    DType {
        operand: usize,
        got: DType,
        expected: &'static str,
    },
    #[error("operand {operand} is {got}, but operand {other} is {other_dtype}; cast one of them")]
    DTypesDiffer {
        operand: usize,
        got: DType,
        other: usize,
        other_dtype: DType,
    },
    #[error("operand {operand} has rank {got}, but must have rank {expected}")]
    Rank {
        operand: usize,
        got: usize,
        expected: String,
    },
    #[error("axis {axis} is not inside rank {rank}")]
    Axis { axis: usize, rank: usize },
    #[error("operand {operand} {right} does not broadcast with {left}: {}", differ(left_dim, right_dim, *known))]
    Broadcast {
        operand: usize,
        left: Shape,
        right: Shape,
        left_dim: Dim,
        right_dim: Dim,
        /// Whether the dims differ for every size; else it cannot be decided.
        known: bool,
    },
    #[error("{what}: {}", differ(left, right, *known))]
    Dims {
        what: &'static str,
        left: Dim,
        right: Dim,
        /// Whether the dims differ for every size; else it cannot be decided.
        known: bool,
    },
    #[error("{what}: shapes {left} and {right} differ")]
    Shapes {
        what: &'static str,
        left: Shape,
        right: Shape,
    },
    #[error("{from} has {from_elements} elements, but {to} has {to_elements}: {}", differ(from_elements, to_elements, *known))]
    Elements {
        from: Shape,
        to: Shape,
        from_elements: Dim,
        to_elements: Dim,
        known: bool,
    },
    #[error("axis {axis} of the {what} would have the negative size {size}")]
    NegativeSize { what: &'static str, axis: usize, size: Dim },
    #[error("axis {axis}: element {position} is outside the size {size}")]
    OutOfRange { axis: usize, position: Dim, size: Dim },
    #[error(
        "the index {index} lies outside axis {axis}, which has {size} elements; an index is at least -{size} and below {size}"
    )]
    IndexOutOfRange { axis: usize, index: i64, size: i64 },
    #[error("{what} must be a constant, but is {dim}")]
    NotConstant { what: &'static str, dim: Dim },
    #[error("attribute {attribute}: {message}")]
    Attribute { attribute: &'static str, message: String },
    #[error(
        "symbol {symbol} is not declared, so that no input can give its size; declare it and use it in an input's shape"
    )]
    UndeclaredSymbol { symbol: Symbol },
    #[error("its type is declared, not inferred; use add_input, add_constant or constant_node")]
    Declared,
    #[error("operand {value} is not a value of this graph")]
    UnknownValue { value: String },
}

fn differ(left: &Dim, right: &Dim, known: bool) -> String {
    if known {
        format!("{left} is not {right}")
    } else {
        format!("cannot show that {left} equals {right} for every size; give them the same symbol")
    }
}
