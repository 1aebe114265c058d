//! Softmax and its logarithm.

use ir::Value;
use ir::op::{BinaryOp, ReduceOp, UnaryOp};

use super::{binary, cast, reduce, unary, wide};
use crate::error::PassFault;
use crate::rewrite::Builder;

/// `exp(x - max) / Σ exp(x - max)`.
pub(super) fn softmax(b: &mut Builder<'_>, x: Value, axis: usize) -> Result<Value, PassFault> {
    let dtype = b.ty(x).dtype;
    let x = cast(b, x, wide(dtype))?;
    let max = reduce(b, ReduceOp::Max, x, vec![axis])?;
    let shifted = binary(b, BinaryOp::Sub, x, max)?;
    let e = unary(b, UnaryOp::Exp, shifted)?;
    let sum = reduce(b, ReduceOp::Sum, e, vec![axis])?;
    let y = binary(b, BinaryOp::Div, e, sum)?;
    cast(b, y, dtype)
}

/// `x - max - log Σ exp(x - max)`.
pub(super) fn log_softmax(b: &mut Builder<'_>, x: Value, axis: usize) -> Result<Value, PassFault> {
    let dtype = b.ty(x).dtype;
    let x = cast(b, x, wide(dtype))?;
    let max = reduce(b, ReduceOp::Max, x, vec![axis])?;
    let shifted = binary(b, BinaryOp::Sub, x, max)?;
    let e = unary(b, UnaryOp::Exp, shifted)?;
    let sum = reduce(b, ReduceOp::Sum, e, vec![axis])?;
    let log = unary(b, UnaryOp::Log, sum)?;
    let y = binary(b, BinaryOp::Sub, shifted, log)?;
    cast(b, y, dtype)
}
