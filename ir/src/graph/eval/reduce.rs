//! Reductions, running folds and top-k.

use super::array::{Array, Data, strides, walk};
use super::scalar::{before, combine, identity, sorts_before};
use super::{OpError, scalar};
use crate::graph::op::ReduceOp;
use crate::types::{DType, Scalar};

pub(super) fn reduce(op: ReduceOp, axes: &[usize], keep_dims: bool, a: &Array) -> Array {
    let kept: Vec<usize> = (0..a.shape.len()).filter(|i| !axes.contains(i)).collect();
    let folded: usize = axes.iter().map(|i| a.shape[*i]).product();
    let outer: Vec<usize> = kept.iter().map(|i| a.shape[*i]).collect();
    let shape: Vec<usize> = (0..a.shape.len())
        .filter_map(|i| {
            if kept.contains(&i) {
                Some(a.shape[i])
            } else {
                keep_dims.then_some(1)
            }
        })
        .collect();
    if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
        let perm: Vec<usize> = kept.iter().chain(axes).copied().collect();
        let rows = a.transpose(&perm);
        let count: usize = outer.iter().product();
        let best = (0..count).map(|r| arg_best(op == ReduceOp::ArgMax, &rows.data, r * folded, folded));
        return Array::int(DType::I64, shape, best.collect());
    }
    // Where each element of the operand goes: folded axes stand still.
    let outer_strides = strides(&outer);
    let mut steps = vec![0isize; a.shape.len()];
    kept.iter()
        .zip(&outer_strides)
        .for_each(|(i, s)| steps[*i] = *s as isize);
    let count: usize = outer.iter().product();
    let mut at = 0;
    match &a.data {
        Data::Float(v) => {
            let start = identity(op, a.dtype).as_f64();
            let mut out = vec![start; count];
            let fold: fn(f64, f64) -> f64 = match op {
                ReduceOp::Prod => |a, b| a * b,
                ReduceOp::Max => scalar::max,
                ReduceOp::Min => scalar::min,
                _ => |a, b| a + b,
            };
            walk(&a.shape, 0, &steps, |to| {
                out[to] = fold(out[to], v[at]);
                at += 1;
            });
            if op == ReduceOp::Mean {
                out.iter_mut().for_each(|v| *v /= folded as f64);
            }
            Array::float(a.dtype, shape, out)
        }
        Data::Int(v) => {
            let mut out = vec![identity(op, a.dtype).as_i64(); count];
            let fold: fn(i64, i64) -> i64 = match op {
                ReduceOp::Prod => i64::wrapping_mul,
                ReduceOp::Max => i64::max,
                ReduceOp::Min => i64::min,
                _ => i64::wrapping_add,
            };
            walk(&a.shape, 0, &steps, |to| {
                out[to] = fold(out[to], v[at]);
                at += 1;
            });
            if op == ReduceOp::Mean {
                out.iter_mut()
                    .for_each(|v| *v = v.checked_div(folded as i64).unwrap_or(0));
            }
            Array::int(a.dtype, shape, out)
        }
        Data::Bool(v) => {
            let mut out = vec![identity(op, a.dtype).as_bool(); count];
            walk(&a.shape, 0, &steps, |to| {
                out[to] = combine(op, DType::Bool, Scalar::Bool(out[to]), Scalar::Bool(v[at])).as_bool();
                at += 1;
            });
            Array::bool(shape, out)
        }
    }
}

fn arg_best(largest: bool, data: &Data, start: usize, len: usize) -> i64 {
    let mut best: Option<(Scalar, usize)> = None;
    for i in 0..len {
        if let Some(v) = data.get(start + i)
            && best.is_none_or(|(b, _)| before(largest, v, b))
        {
            best = Some((v, i));
        }
    }
    best.map_or(0, |(_, i)| i as i64)
}

pub(super) fn scan(op: ReduceOp, axis: usize, exclusive: bool, reverse: bool, a: &Array) -> Array {
    let (rows, back) = a.axis_last(axis);
    let n = a.shape[axis];
    let fold = |from: &dyn Fn(usize) -> Scalar| -> Vec<Scalar> {
        let mut out = vec![Scalar::zero(a.dtype); rows.len()];
        for row in 0..rows.len() / n.max(1) {
            let mut sum = identity(op, a.dtype);
            for i in 0..n {
                let at = row * n + if reverse { n - 1 - i } else { i };
                let next = combine(op, a.dtype, sum, from(at));
                out[at] = if exclusive { sum } else { next };
                sum = next;
            }
        }
        out
    };
    let data = match &rows.data {
        Data::Float(v) => Data::Float(fold(&|i| Scalar::Float(v[i])).into_iter().map(Scalar::as_f64).collect()),
        Data::Int(v) => Data::Int(fold(&|i| Scalar::Int(v[i])).into_iter().map(Scalar::as_i64).collect()),
        Data::Bool(v) => Data::Bool(fold(&|i| Scalar::Bool(v[i])).into_iter().map(Scalar::as_bool).collect()),
    };
    Array::new(a.dtype, rows.shape.clone(), data).transpose(&back)
}

pub(super) fn top_k(axis: usize, k: usize, largest: bool, a: &Array) -> Result<Vec<Array>, OpError> {
    let n = a.shape[axis];
    if k > n {
        return Err(OpError::Range {
            what: "k",
            axis,
            value: k as i64,
            size: n,
        });
    }
    let (rows, back) = a.axis_last(axis);
    let count = rows.len() / n.max(1);
    let mut shape = rows.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = k;
    }
    let mut picked = Vec::with_capacity(count * k);
    let mut positions = Vec::with_capacity(count * k);
    for row in 0..count {
        let mut order: Vec<usize> = (0..n).collect();
        let value = |i: usize| rows.data.get(row * n + i).unwrap_or(Scalar::zero(a.dtype));
        // A stable sort keeps the lower index first among equals.
        order.sort_by(|x, y| {
            let (x, y) = (value(*x), value(*y));
            if sorts_before(largest, x, y) {
                std::cmp::Ordering::Less
            } else if sorts_before(largest, y, x) {
                std::cmp::Ordering::Greater
            } else {
                std::cmp::Ordering::Equal
            }
        });
        picked.extend(order[..k].iter().map(|i| row * n + i));
        positions.extend(order[..k].iter().map(|i| *i as i64));
    }
    let values = super::array::each!(&rows.data, v => picked.iter().map(|i| v[*i]).collect());
    let values = Array::new(a.dtype, shape.clone(), values).transpose(&back);
    let positions = Array::int(DType::I64, shape, positions).transpose(&back);
    Ok(vec![values, positions])
}
