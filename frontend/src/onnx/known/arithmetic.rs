//! Arithmetic on the elements of known tensors: sizes, truth values (0 and 1) and floats.

use ir::DType;
use ir::dim::Dim;
use ir::op::{BinaryOp, Comparison, UnaryOp};

use crate::onnx::sizes::Sizes;

/// Decides a comparison of two dims by their bounds.
pub fn decide(op: Comparison, a: &Dim, b: &Dim, sizes: &Sizes) -> Option<bool> {
    // Between constants a difference could saturate.
    let (lo, hi) = match (a, b) {
        (Dim::Const(a), Dim::Const(b)) => {
            let sign = Some(a.cmp(b) as i64);
            (sign, sign)
        }
        _ => (a - b).bounds(&sizes.symbols),
    };
    let above = |v: i64| lo.is_some_and(|lo| lo >= v);
    let below = |v: i64| hi.is_some_and(|hi| hi <= v);
    let pick = |yes: bool, no: bool| {
        if yes {
            Some(true)
        } else if no {
            Some(false)
        } else {
            None
        }
    };
    match op {
        Comparison::Eq => pick(above(0) && below(0), above(1) || below(-1)),
        Comparison::Ne => pick(above(1) || below(-1), above(0) && below(0)),
        Comparison::Lt => pick(below(-1), above(0)),
        Comparison::Le => pick(below(0), above(1)),
        Comparison::Gt => pick(above(1), below(0)),
        Comparison::Ge => pick(above(0), below(-1)),
    }
}

pub fn unary_dim(op: UnaryOp, d: &Dim, dtype: DType, sizes: &Sizes) -> Option<Dim> {
    Some(match op {
        UnaryOp::Neg => match d.as_const() {
            Some(v) => Dim::Const(fit(dtype, v.checked_neg()?)?),
            None => -d.clone(),
        },
        UnaryOp::Abs => match d.as_const() {
            Some(v) => Dim::Const(fit(dtype, v.checked_abs()?)?),
            None => sizes.max(d, &-d.clone()),
        },
        UnaryOp::Sign => match d.as_const() {
            Some(v) => Dim::Const(v.signum()),
            None => sizes.min(&sizes.max(d, &Dim::Const(-1)), &Dim::Const(1)),
        },
        UnaryOp::Not if dtype == DType::Bool => Dim::Const(1) - d.clone(),
        _ => return None,
    })
    .filter(Dim::is_small)
}

/// Says when a comparison holds: 1, 0, or a size that is one of both.
pub fn truth(op: Comparison, a: &Dim, b: &Dim, sizes: &Sizes) -> Option<Dim> {
    if let Some(known) = decide(op, a, b, sizes) {
        return Some(Dim::Const(i64::from(known)));
    }
    let (zero, one) = (Dim::Const(0), Dim::Const(1));
    let positive = |d: Dim| sizes.min(&sizes.max(&d, &zero), &one);
    let differ = || sizes.min(&sizes.max(&(a - b), &(b - a)), &one);
    let truth = match op {
        Comparison::Lt => positive(b - a),
        Comparison::Le => positive(b - a + 1),
        Comparison::Gt => positive(a - b),
        Comparison::Ge => positive(a - b + 1),
        Comparison::Ne => differ(),
        Comparison::Eq => one.clone() - differ(),
    };
    Some(truth).filter(Dim::is_small)
}

/// The quotient of whole numbers rounded towards 0; the divisor is not 0.
pub fn truncated(a: &Dim, b: &Dim, sizes: &Sizes) -> Option<Dim> {
    if let Some(exact) = a.exact_div(b).filter(|_| !b.is(0)) {
        return Some(exact);
    }
    if sizes.at_most(b, -1) {
        return truncated(&-a.clone(), &-b.clone(), sizes);
    }
    if !sizes.at_least(b, 0) || b.is(0) {
        return None;
    }
    let zero = Dim::Const(0);
    let (down, up) = (a.floor_div(b), -((-a.clone()).floor_div(b)));
    let quotient = if sizes.at_least(a, 0) {
        down
    } else if sizes.at_most(a, 0) {
        up
    } else {
        sizes.max(&down, &zero) + sizes.min(&up, &zero)
    };
    Some(quotient).filter(Dim::is_small)
}

pub fn binary_dim(op: BinaryOp, a: &Dim, b: &Dim, dtype: DType, sizes: &Sizes) -> Option<Dim> {
    if let (Dim::Const(a), Dim::Const(b)) = (a, b) {
        let (a, b) = (*a, *b);
        let value = match op {
            BinaryOp::Add => a.checked_add(b)?,
            BinaryOp::Sub => a.checked_sub(b)?,
            BinaryOp::Mul => a.checked_mul(b)?,
            BinaryOp::Div => a.checked_div(b)?,
            BinaryOp::Rem => a.checked_rem(b)?,
            BinaryOp::Mod => Some(a.checked_rem(b)?).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r })?,
            BinaryOp::Pow => a.checked_pow(u32::try_from(b).ok()?)?,
            BinaryOp::Max => a.max(b),
            BinaryOp::Min => a.min(b),
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            _ => return None,
        };
        return fit(dtype, value).map(Dim::Const);
    }
    if dtype == DType::Bool {
        // Both are 0 or 1.
        let value = match op {
            BinaryOp::And | BinaryOp::Mul => a.checked_mul(b)?,
            BinaryOp::Or => sizes.max(a, b),
            BinaryOp::Xor => return truth(Comparison::Ne, a, b, sizes),
            _ => return None,
        };
        return Some(value).filter(Dim::is_small);
    }
    if !matches!(dtype, DType::I64 | DType::I32) {
        return None;
    }
    let value = match op {
        BinaryOp::Add => a.clone() + b.clone(),
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a.checked_mul(b)?,
        BinaryOp::Div => truncated(a, b, sizes)?,
        BinaryOp::Mod if sizes.at_least(b, 0) && !b.is(0) => a.modulo(b),
        BinaryOp::Rem if sizes.at_least(a, 0) && sizes.at_least(b, 0) && !b.is(0) => a.modulo(b),
        BinaryOp::Rem => a.clone() - truncated(a, b, sizes)?.checked_mul(b)?,
        BinaryOp::Max => sizes.max(a, b),
        BinaryOp::Min => sizes.min(a, b),
        BinaryOp::Pow => match b.as_const()? {
            n @ 0..=4 => (0..n).try_fold(Dim::Const(1), |p, _| p.checked_mul(a))?,
            _ => return None,
        },
        _ => return None,
    };
    // Larger ones are computed when the model runs, as data.
    Some(value).filter(Dim::is_small)
}

/// Returns the number if the type holds it; arithmetic that would wrap is left to the evaluator.
pub fn fit(dtype: DType, value: i64) -> Option<i64> {
    let bits = dtype.bits();
    let (lo, hi) = match dtype {
        DType::I64 => return Some(value),
        DType::Bool => (0, 1),
        DType::U8 | DType::U4 => (0, (1i64 << bits) - 1),
        _ => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
    };
    (lo..=hi).contains(&value).then_some(value)
}
