//! The elementwise family.

use super::array::{Array, Data};
use super::{OpError, scalar};
use crate::graph::op::{BinaryOp, Elementwise, UnaryOp};
use crate::types::DType;

pub(super) fn elementwise(op: Elementwise, operands: &[&Array]) -> Result<Array, OpError> {
    Ok(match op {
        Elementwise::Unary(u) => unary(u, operands[0]),
        Elementwise::Cast(to) => cast(to, operands[0]),
        Elementwise::Binary(b) => {
            let shape = broadcast_shapes(operands)?;
            binary(b, &operands[0].broadcast_to(&shape), &operands[1].broadcast_to(&shape))
        }
        Elementwise::Select => {
            let shape = broadcast_shapes(operands)?;
            select(
                &operands[0].broadcast_to(&shape),
                &operands[1].broadcast_to(&shape),
                &operands[2].broadcast_to(&shape),
            )
        }
    })
}

/// Broadcasts actual shapes as NumPy does.
pub(super) fn broadcast_shapes(operands: &[&Array]) -> Result<Vec<usize>, OpError> {
    let rank = operands.iter().map(|a| a.shape.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for a in operands {
        let lead = rank - a.shape.len();
        for (i, &d) in a.shape.iter().enumerate() {
            let have = &mut out[lead + i];
            if *have == 1 {
                *have = d;
            } else if d != 1 && d != *have {
                return Err(OpError::Shapes {
                    what: "operands do not broadcast",
                    left: out.clone(),
                    right: a.shape.clone(),
                });
            }
        }
    }
    Ok(out)
}

fn unary(op: UnaryOp, a: &Array) -> Array {
    let shape = a.shape.clone();
    match &a.data {
        Data::Float(v) if op.is_predicate() => Array::bool(shape, v.iter().map(|x| op.on_float(*x) != 0.0).collect()),
        Data::Float(v) => Array::float(a.dtype, shape, v.iter().map(|x| op.on_float(*x)).collect()),
        Data::Int(v) if op.is_predicate() => Array::bool(shape, vec![false; v.len()]),
        Data::Int(v) => Array::int(
            a.dtype,
            shape,
            v.iter().map(|x| scalar::unary_int(op, a.dtype, *x)).collect(),
        ),
        Data::Bool(v) => Array::bool(shape, v.iter().map(|x| scalar::unary_bool(op, *x)).collect()),
    }
}

fn binary(op: BinaryOp, a: &Array, b: &Array) -> Array {
    fn pairs<T: Copy, R>(x: &[T], y: &[T], f: impl Fn(T, T) -> R) -> Vec<R> {
        x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect()
    }
    let shape = a.shape.clone();
    match (&a.data, &b.data, op.comparison()) {
        (Data::Bool(x), Data::Bool(y), _) => Array::bool(shape, pairs(x, y, |x, y| op.on_bools(x, y))),
        (Data::Int(x), Data::Int(y), Some(order)) => Array::bool(shape, pairs(x, y, |x, y| order.holds(&x, &y))),
        (Data::Int(x), Data::Int(y), None) => Array::int(
            a.dtype,
            shape,
            pairs(x, y, |x, y| scalar::binary_int(op, a.dtype, x, y)),
        ),
        (_, _, Some(order)) => Array::bool(shape, pairs(&floats(a), &floats(b), |x, y| order.holds(&x, &y))),
        (_, _, None) => Array::float(a.dtype, shape, pairs(&floats(a), &floats(b), |x, y| op.on_floats(x, y))),
    }
}

/// The elements as floats, without a copy where they are.
pub(super) fn floats(a: &Array) -> std::borrow::Cow<'_, [f64]> {
    match &a.data {
        Data::Float(v) => std::borrow::Cow::Borrowed(v),
        _ => std::borrow::Cow::Owned(a.to_f64()),
    }
}

fn select(c: &Array, a: &Array, b: &Array) -> Array {
    fn pick<T: Copy>(c: &[bool], a: &[T], b: &[T]) -> Vec<T> {
        c.iter()
            .zip(a.iter().zip(b))
            .map(|(c, (a, b))| if *c { *a } else { *b })
            .collect()
    }
    let cond: Vec<bool> = match &c.data {
        Data::Bool(v) => v.clone(),
        _ => c.to_f64().iter().map(|v| *v != 0.0).collect(),
    };
    let data = match (&a.data, &b.data) {
        (Data::Int(x), Data::Int(y)) => Data::Int(pick(&cond, x, y)),
        (Data::Bool(x), Data::Bool(y)) => Data::Bool(pick(&cond, x, y)),
        _ => Data::Float(pick(&cond, &floats(a), &floats(b))),
    };
    Array::new(a.dtype, a.shape.clone(), data)
}

/// Converts every element; see [`scalar::cast`].
pub fn cast(to: DType, a: &Array) -> Array {
    let shape = a.shape.clone();
    match (&a.data, to) {
        (Data::Bool(v), DType::Bool) => Array::bool(shape, v.clone()),
        (Data::Int(v), DType::Bool) => Array::bool(shape, v.iter().map(|v| *v != 0).collect()),
        (Data::Float(v), DType::Bool) => Array::bool(shape, v.iter().map(|v| *v != 0.0).collect()),
        (Data::Float(v), to) if to.is_int() => {
            Array::int(to, shape, v.iter().map(|v| scalar::saturate(to, *v)).collect())
        }
        (_, to) if to.is_int() => Array::int(to, shape, a.to_i64()),
        (_, to) => Array::float(to, shape, round(to, &floats(a))),
    }
}

/// Rounds every number to what a float type can hold.
fn round(to: DType, values: &[f64]) -> Vec<f64> {
    match to {
        DType::F64 => values.to_vec(),
        _ => crate::convert::decode_f64(to, &crate::convert::encode_f64(to, values), values.len()),
    }
}
