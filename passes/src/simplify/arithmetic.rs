//! Identities of arithmetic.

use ir::op::{BinaryKind, BinaryOp, Elementwise, UnaryLaw, UnaryOp};
use ir::{DType, Op, Shape, Value};

use super::broadcast_to;
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

type Answer = Result<Option<Value>, PassFault>;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "constant_right",
        apply: constant_right,
    },
    Rule {
        name: "identity_element",
        apply: identity_element,
    },
    Rule {
        name: "power_of_small_integer",
        apply: power_of_small_integer,
    },
    Rule {
        name: "divide_by_constant",
        apply: divide_by_constant,
    },
    Rule {
        name: "reciprocal_of_sqrt",
        apply: reciprocal_of_sqrt,
    },
    Rule {
        name: "max_with_zero",
        apply: max_with_zero,
    },
    Rule {
        name: "inverse_pair",
        apply: inverse_pair,
    },
    Rule {
        name: "idempotent",
        apply: idempotent,
    },
    Rule {
        name: "add_of_negation",
        apply: add_of_negation,
    },
];

pub(super) fn binary(op: &Op) -> Option<BinaryOp> {
    match op {
        Op::Elementwise(Elementwise::Binary(op)) => Some(*op),
        _ => None,
    }
}

pub(super) fn unary(op: &Op) -> Option<UnaryOp> {
    match op {
        Op::Elementwise(Elementwise::Unary(op)) => Some(*op),
        _ => None,
    }
}

fn result_shape(b: &Builder<'_>, x: &[Value]) -> Option<Shape> {
    Shape::broadcast(&b.ty(x[0]).shape, &b.ty(x[1]).shape)
}

/// `c + x` → `x + c` for a commutative op and a constant `c`.
fn constant_right(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Some(kind) = binary(op) else { return Ok(None) };
    let constant = |v: Value| b.as_constant(v).is_some() || b.as_scalar(v).is_some();
    if kind.is_commutative() && constant(x[0]) && !constant(x[1]) {
        return b.emit(op.clone(), &[x[1], x[0]]).map(Some);
    }
    Ok(None)
}

/// `x + 0`, `x · 1`, `x and true` → `x`, and whatever else has a number that changes nothing on its right.
///
/// Of floats `x + 0` loses that `-0.0 + 0.0` is `+0.0`: see the [family's page](super).
fn identity_element(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Some(kind) = binary(op) else { return Ok(None) };
    let Some(c) = b.as_scalar(x[1]) else { return Ok(None) };
    let Some(number) = kind.right_identity() else {
        return Ok(None);
    };
    let neutral = match b.ty(x[0]).dtype {
        DType::Bool => kind.kind() == BinaryKind::Bits && c.as_bool() == (number != 0),
        _ => c.as_f64() == number as f64,
    };
    match result_shape(b, x) {
        Some(shape) if neutral => broadcast_to(b, x[0], &shape).map(Some),
        _ => Ok(None),
    }
}

/// `x ^ 2` → `x · x`, `x ^ 3` → `x · x · x`, `x ^ -1` → `1 / x`.
fn power_of_small_integer(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    if binary(op) != Some(BinaryOp::Pow) || !b.ty(x[0]).dtype.is_float() {
        return Ok(None);
    }
    let (Some(c), Some(shape)) = (b.as_scalar(x[1]), result_shape(b, x)) else {
        return Ok(None);
    };
    if shape != b.ty(x[0]).shape {
        return Ok(None);
    }
    let mul = Op::binary(BinaryOp::Mul);
    match c.as_f64() {
        2.0 => b.emit(mul, &[x[0], x[0]]).map(Some),
        3.0 => {
            let square = b.emit(mul.clone(), &[x[0], x[0]])?;
            b.emit(mul, &[square, x[0]]).map(Some)
        }
        -1.0 => b.emit(Op::unary(UnaryOp::Recip), &[x[0]]).map(Some),
        _ => Ok(None),
    }
}

/// `x / c` → `x · (1/c)` where `1/c` is neither denormal nor infinite in the element type, nor in the one that the
/// model will be computed in.
///
/// The product rounds twice. Where a rounding to whole numbers follows, that decides ties otherwise (a quantised value
/// is off by one), so there the rule is for powers of two, whose inverses are exact.
fn divide_by_constant(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    if binary(op) != Some(BinaryOp::Div) || !b.ty(x[0]).dtype.is_float() {
        return Ok(None);
    }
    let dtype = b.ty(x[0]).dtype;
    let Some(c) = b.as_scalar(x[1]) else { return Ok(None) };
    let inverse = 1.0 / c.as_f64();
    if b.feeds_rounding() && !is_power_of_two(c.as_f64()) {
        return Ok(None);
    }
    let types = [Some(dtype), b.computed_in()];
    if !types.into_iter().flatten().all(|d| is_normal(d, inverse))
        || result_shape(b, x).as_ref() != Some(&b.ty(x[0]).shape)
    {
        return Ok(None);
    }
    let inverse = b.scalar(dtype, inverse);
    b.emit(Op::binary(BinaryOp::Mul), &[x[0], inverse]).map(Some)
}

/// Says whether a number is a power of two, of either sign, and not denormal.
fn is_power_of_two(number: f64) -> bool {
    const MANTISSA: u64 = (1 << 52) - 1;
    number.is_normal() && number.to_bits() & MANTISSA == 0
}

/// Says whether a number, rounded to a floating type, is neither zero, denormal, infinite nor NaN.
fn is_normal(dtype: DType, number: f64) -> bool {
    // The exponent of the smallest normal number.
    let least = match dtype {
        DType::F64 => -1022,
        DType::F32 | DType::BF16 => -126,
        DType::F16 | DType::F8E5M2 => -14,
        DType::F8E5M2FNUZ => -15,
        DType::F8E4M3FN => -6,
        DType::F8E4M3FNUZ => -7,
        _ => return false,
    };
    let rounded = ir::convert::round_to(dtype, number);
    // `float8` saturates: then the number is another one.
    rounded.is_finite() && rounded.abs() >= 2f64.powi(least) && (rounded - number).abs() <= number.abs() / 8.0
}

/// `1 / √x` → `rsqrt x`.
fn reciprocal_of_sqrt(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let under = match (binary(op), unary(op)) {
        (_, Some(UnaryOp::Recip)) => x[0],
        (Some(BinaryOp::Div), _) if b.as_scalar(x[0]).is_some_and(|c| c.as_f64() == 1.0) => x[1],
        _ => return Ok(None),
    };
    if !b.ty(under).dtype.is_float() || b.ty(x[0]).rank() > b.ty(under).rank() {
        return Ok(None);
    }
    match b.def(under) {
        (Op::Elementwise(Elementwise::Unary(UnaryOp::Sqrt)), inner) => {
            let inner = inner[0];
            b.emit(Op::unary(UnaryOp::Rsqrt), &[inner]).map(Some)
        }
        _ if binary(op).is_some() => {
            if b.ty(x[0]).rank() == 0 || b.ty(x[0]).shape == b.ty(under).shape {
                return b.emit(Op::unary(UnaryOp::Recip), &[under]).map(Some);
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// `max(x, 0)` → `relu x`.
fn max_with_zero(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    if binary(op) != Some(BinaryOp::Max) || b.as_scalar(x[1]).is_none_or(|c| c.as_f64() != 0.0) {
        return Ok(None);
    }
    let ty = b.ty(x[0]);
    if !ty.dtype.is_float() || result_shape(b, x).as_ref() != Some(&ty.shape) {
        return Ok(None);
    }
    b.emit(Op::unary(UnaryOp::Relu), &[x[0]]).map(Some)
}

/// `-(-x)`, `not not x` → `x`; `1/(1/x)` stays, as it rounds twice.
fn inverse_pair(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Some(kind) = unary(op).filter(|kind| kind.is(UnaryLaw::Involution)) else {
        return Ok(None);
    };
    match b.def(x[0]) {
        (Op::Elementwise(Elementwise::Unary(inner)), operands) if *inner == kind => Ok(Some(operands[0])),
        _ => Ok(None),
    }
}

/// `f(f(x))` → `f(x)` for ops that change nothing the second time.
fn idempotent(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Some(kind) = unary(op).filter(|kind| kind.is(UnaryLaw::Idempotent)) else {
        return Ok(None);
    };
    match b.def(x[0]) {
        (Op::Elementwise(Elementwise::Unary(inner)), _) if *inner == kind => Ok(Some(x[0])),
        _ => Ok(None),
    }
}

/// `x + (-y)` → `x - y`, `x - (-y)` → `x + y`.
fn add_of_negation(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let other = match binary(op) {
        Some(BinaryOp::Add) => BinaryOp::Sub,
        Some(BinaryOp::Sub) => BinaryOp::Add,
        _ => return Ok(None),
    };
    match b.def(x[1]) {
        (Op::Elementwise(Elementwise::Unary(UnaryOp::Neg)), inner) => {
            let inner = inner[0];
            b.emit(Op::binary(other), &[x[0], inner]).map(Some)
        }
        _ => Ok(None),
    }
}
