//! The meaning of elementwise ops on one element of a type: that of their rows, wrapped to the type.
//!
//! Shared by the graph's and the kernels' evaluators.

use super::array::wrap;
pub use crate::graph::elementwise::{max, min};
use crate::graph::op::{BinaryOp, ReduceOp, UnaryKind, UnaryOp};
use crate::types::{DType, Scalar};

/// Applies a unary op to an integer of type `dtype`.
#[inline]
pub fn unary_int(op: UnaryOp, dtype: DType, x: i64) -> i64 {
    wrap(dtype, op.on_int(x))
}

/// Applies a binary op to integers of type `dtype`; comparisons give 0 or 1.
#[inline]
pub fn binary_int(op: BinaryOp, dtype: DType, a: i64, b: i64) -> i64 {
    wrap(dtype, op.on_ints(dtype.bits(), a, b))
}

/// Converts one element as `Cast` does: floats round to the type, float → int truncates and saturates (NaN gives 0),
/// int → narrower int wraps, number → bool is `!= 0`.
pub fn cast(to: DType, value: Scalar) -> Scalar {
    match (to, value) {
        (DType::Bool, v) => Scalar::Bool(v.as_bool()),
        (to, Scalar::Float(v)) if to.is_int() => Scalar::Int(saturate(to, v)),
        (to, v) if to.is_int() => Scalar::Int(wrap(to, v.as_i64())),
        (to, v) => Scalar::Float(crate::convert::round_to(to, v.as_f64())),
    }
}

/// Truncates a float to an integer type; out of range saturates, NaN gives 0.
#[inline]
pub fn saturate(to: DType, v: f64) -> i64 {
    let (low, high) = int_range(to);
    (v as i64).clamp(low, high)
}

/// Returns the smallest and the largest integer of a type.
#[inline]
pub const fn int_range(dtype: DType) -> (i64, i64) {
    match dtype.int_range() {
        Some(range) => range,
        None if matches!(dtype, DType::Bool) => (0, 1),
        None => (i64::MIN, i64::MAX),
    }
}

/// Applies a unary op to an element of type `dtype`.
pub fn unary(op: UnaryOp, dtype: DType, x: Scalar) -> Scalar {
    match x {
        Scalar::Float(x) if op.is_predicate() => Scalar::Bool(op.on_float(x) != 0.0),
        Scalar::Float(x) => Scalar::Float(op.on_float(x)),
        Scalar::Int(_) if op.is_predicate() => Scalar::Bool(false),
        Scalar::Int(x) => Scalar::Int(unary_int(op, dtype, x)),
        Scalar::Bool(x) => Scalar::Bool(unary_bool(op, x)),
    }
}

/// Applies a unary op to a truth value: numbers' leave it as it is.
#[inline]
pub fn unary_bool(op: UnaryOp, x: bool) -> bool {
    match op.kind() {
        UnaryKind::Bits => !x,
        UnaryKind::Predicate => false,
        UnaryKind::Number | UnaryKind::Rounding | UnaryKind::Function => x,
    }
}

/// Applies a binary op to elements of type `dtype`.
pub fn binary(op: BinaryOp, dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b, op.comparison()) {
        (Scalar::Bool(a), Scalar::Bool(b), _) => Scalar::Bool(op.on_bools(a, b)),
        (Scalar::Int(a), Scalar::Int(b), Some(comparison)) => Scalar::Bool(comparison.holds(&a, &b)),
        (Scalar::Int(a), Scalar::Int(b), None) => Scalar::Int(binary_int(op, dtype, a, b)),
        (a, b, Some(comparison)) => Scalar::Bool(comparison.holds(&a.as_f64(), &b.as_f64())),
        (a, b, None) => Scalar::Float(op.on_floats(a.as_f64(), b.as_f64())),
    }
}

/// Returns what a fold of no elements gives. `Mean` is a sum that is divided after.
pub fn identity(op: ReduceOp, dtype: DType) -> Scalar {
    let (low, high) = int_range(dtype);
    match (op, dtype) {
        (ReduceOp::All, _) => Scalar::Bool(true),
        (ReduceOp::Any, _) => Scalar::Bool(false),
        (ReduceOp::Prod, DType::Bool) => Scalar::Bool(true),
        (ReduceOp::Prod, d) if d.is_int() => Scalar::Int(1),
        (ReduceOp::Prod, _) => Scalar::Float(1.0),
        (ReduceOp::Max | ReduceOp::Min, DType::Bool) => Scalar::Bool(op == ReduceOp::Min),
        (ReduceOp::Max, d) if d.is_int() => Scalar::Int(low),
        (ReduceOp::Min, d) if d.is_int() => Scalar::Int(high),
        (ReduceOp::Max, _) => Scalar::Float(f64::NEG_INFINITY),
        (ReduceOp::Min, _) => Scalar::Float(f64::INFINITY),
        (ReduceOp::Sum | ReduceOp::Mean | ReduceOp::ArgMax | ReduceOp::ArgMin, d) => Scalar::zero(d),
    }
}

/// Combines two elements of a fold. `Mean` sums; `ArgMax` and `ArgMin` compare by [`before`] instead and give `a` here.
pub fn combine(op: ReduceOp, dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    match (op, op.pairwise()) {
        (_, Some(op)) => binary(op, dtype, a, b),
        (ReduceOp::Mean, None) => binary(BinaryOp::Add, dtype, a, b),
        (_, None) => a,
    }
}

/// Says whether `a` comes strictly before `b` in a sort, the largest first or the smallest first. NaN is the largest,
/// as NumPy and PyTorch have it: it comes first or last.
pub fn sorts_before(largest: bool, a: Scalar, b: Scalar) -> bool {
    if largest {
        before(true, a, b)
    } else {
        before(true, b, a)
    }
}

/// Says whether `a` comes strictly before `b` in the order of `ArgMax` (`largest`) or of `ArgMin`. NaN comes before
/// everything else in both.
pub fn before(largest: bool, a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => {
            if largest {
                a > b
            } else {
                a < b
            }
        }
        (a, b) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            match (a.is_nan(), b.is_nan()) {
                (true, second) => !second,
                (false, true) => false,
                _ if largest => a > b,
                _ => a < b,
            }
        }
    }
}
