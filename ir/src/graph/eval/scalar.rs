//! The meaning of each elementwise member on one element: `f64` for every float type, `i64` for every integer type.
//!
//! Shared by the graph's and the kernels' evaluators.

use super::array::wrap;
use crate::graph::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::types::{DType, Scalar};

/// Applies a unary op to a float.
pub fn unary_float(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x // zero keeps its sign, NaN stays
            }
        }
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Recip => 1.0 / x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Exp2 => x.exp2(),
        UnaryOp::Log2 => x.log2(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Asinh => libm::asinh(x),
        UnaryOp::Acosh => libm::acosh(x),
        UnaryOp::Atanh => libm::atanh(x),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Sigmoid => sigmoid(x),
        UnaryOp::Softplus => softplus(x),
        UnaryOp::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        // `erfc` keeps the digits that `1 + erf` would lose for negative x.
        UnaryOp::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        UnaryOp::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x * sigmoid(2.0 * inner) // (1 + tanh(y)) / 2 = sigmoid(2y), without its cancellation
        }
        UnaryOp::Silu => x * sigmoid(x),
        UnaryOp::Mish => x * softplus(x).tanh(),
        UnaryOp::HardSwish => x * clamp(x + 3.0, 0.0, 6.0) / 6.0,
        UnaryOp::Not => f64::from(u8::from(x == 0.0)),
        UnaryOp::IsNan => f64::from(u8::from(x.is_nan())),
        UnaryOp::IsInf => f64::from(u8::from(x.is_infinite())),
    }
}

fn clamp(x: f64, low: f64, high: f64) -> f64 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn softplus(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    }
}

/// Applies a unary op to an integer of type `dtype`; members that integers have not are applied to the float and
/// truncated.
#[inline]
pub fn unary_int(op: UnaryOp, dtype: DType, x: i64) -> i64 {
    let y = match op {
        UnaryOp::Neg => x.wrapping_neg(),
        UnaryOp::Abs => x.wrapping_abs(),
        UnaryOp::Sign => x.signum(),
        UnaryOp::Relu => x.max(0),
        UnaryOp::Not => !x,
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => x,
        other => unary_float(other, x as f64) as i64,
    };
    wrap(dtype, y)
}

/// Applies a binary op that is not a comparison to floats.
#[inline]
pub fn binary_float(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Mod => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Max => max(a, b),
        BinaryOp::Min => min(a, b),
        BinaryOp::Atan2 => a.atan2(b),
        BinaryOp::And => f64::from(u8::from(a != 0.0 && b != 0.0)),
        BinaryOp::Or => f64::from(u8::from(a != 0.0 || b != 0.0)),
        BinaryOp::Xor => f64::from(u8::from((a != 0.0) != (b != 0.0))),
        BinaryOp::Shl => a * b.exp2(),
        BinaryOp::Shr => a / b.exp2(),
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => {
            f64::from(u8::from(compare(op, &a, &b)))
        }
    }
}

/// The larger; NaN if either is.
pub fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The smaller; NaN if either is.
pub fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// Applies a binary op that is not a comparison to integers of type `dtype`.
#[inline]
pub fn binary_int(op: BinaryOp, dtype: DType, a: i64, b: i64) -> i64 {
    let amount = (b.rem_euclid(i64::from(dtype.bits()))) as u32;
    let y = match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if b == 0 => 0,
        BinaryOp::Div => a.wrapping_div(b),
        BinaryOp::Rem | BinaryOp::Mod if b == 0 => 0,
        BinaryOp::Rem => a.wrapping_rem(b),
        BinaryOp::Mod => {
            let r = a.wrapping_rem(b);
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        BinaryOp::Pow => power(a, b),
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Atan2 => (a as f64).atan2(b as f64) as i64,
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a.wrapping_shl(amount),
        BinaryOp::Shr => a.wrapping_shr(amount),
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => {
            i64::from(compare(op, &a, &b))
        }
    };
    wrap(dtype, y)
}

/// Integer power; a negative exponent gives the truncated reciprocal, and of zero 0.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1i64, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

/// Applies a logical op to truth values.
#[inline]
pub fn binary_bool(op: BinaryOp, a: bool, b: bool) -> bool {
    match op {
        BinaryOp::And | BinaryOp::Mul | BinaryOp::Min => a & b,
        BinaryOp::Or | BinaryOp::Add | BinaryOp::Max => a | b,
        BinaryOp::Xor | BinaryOp::Sub => a ^ b,
        other => compare(other, &a, &b),
    }
}

/// Applies a comparison; NaN is unequal to everything and neither less nor greater. Other ops give false.
#[inline]
pub fn compare<T: PartialOrd>(op: BinaryOp, a: &T, b: &T) -> bool {
    match op {
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        _ => false,
    }
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
        Scalar::Float(x) if op.is_predicate() => Scalar::Bool(unary_float(op, x) != 0.0),
        Scalar::Float(x) => Scalar::Float(unary_float(op, x)),
        Scalar::Int(_) if op.is_predicate() => Scalar::Bool(false),
        Scalar::Int(x) => Scalar::Int(unary_int(op, dtype, x)),
        Scalar::Bool(x) => Scalar::Bool(match op {
            UnaryOp::Not => !x,
            _ => x,
        }),
    }
}

/// Applies a binary op to elements of type `dtype`.
pub fn binary(op: BinaryOp, dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) if op.is_comparison() => Scalar::Bool(compare(op, &a, &b)),
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(binary_int(op, dtype, a, b)),
        (Scalar::Bool(a), Scalar::Bool(b)) => Scalar::Bool(binary_bool(op, a, b)),
        (a, b) if op.is_comparison() => Scalar::Bool(compare(op, &a.as_f64(), &b.as_f64())),
        (a, b) => Scalar::Float(binary_float(op, a.as_f64(), b.as_f64())),
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
    let op = match op {
        ReduceOp::Sum | ReduceOp::Mean => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::All => BinaryOp::And,
        ReduceOp::Any => BinaryOp::Or,
        ReduceOp::ArgMax | ReduceOp::ArgMin => return a,
    };
    binary(op, dtype, a, b)
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
