//! Gathers and scatters.

use super::OpError;
use super::array::{Array, Data, strides};
use super::scalar::combine;
use super::view::take;
use crate::graph::op::{Gather, ReduceOp, Scatter};
use crate::types::Scalar;

/// A position on an axis: negative counts from the end, out of range is clamped.
pub fn resolve(index: i64, size: usize) -> usize {
    let size = size as i64;
    let at = if index < 0 { index.saturating_add(size) } else { index };
    at.clamp(0, (size - 1).max(0)) as usize
}

pub(super) fn gather(gather: Gather, data: &Array, indices: &Array) -> Result<Array, OpError> {
    let ix = indices.to_i64();
    let own = strides(&data.shape);
    let (shape, from) = match gather {
        Gather::Take { axis } => {
            let outer: usize = data.shape[..axis].iter().product();
            let (size, inner) = (data.shape[axis], own[axis]);
            let shape: Vec<usize> = data.shape[..axis]
                .iter()
                .chain(&indices.shape)
                .chain(&data.shape[axis + 1..])
                .copied()
                .collect();
            let mut from = Vec::with_capacity(shape.iter().product());
            for o in 0..outer {
                for i in &ix {
                    let base = (o * size + resolve(*i, size)) * inner;
                    from.extend(base..base + inner);
                }
            }
            (shape, from)
        }
        Gather::Elements { axis } => (indices.shape.clone(), offsets(axis, data, indices, &ix)),
        Gather::Nd { batch_dims } => {
            let depth = indices.shape[indices.shape.len() - 1];
            let batches: usize = data.shape[..batch_dims].iter().product();
            let inner: usize = data.shape[batch_dims + depth..].iter().product();
            let tuples: usize = indices.shape[batch_dims..indices.shape.len() - 1].iter().product();
            let whole: usize = data.shape[batch_dims..].iter().product();
            let shape: Vec<usize> = indices.shape[..indices.shape.len() - 1]
                .iter()
                .chain(&data.shape[batch_dims + depth..])
                .copied()
                .collect();
            let mut from = Vec::with_capacity(shape.iter().product());
            for b in 0..batches {
                for t in 0..tuples {
                    let tuple = &ix[(b * tuples + t) * depth..][..depth];
                    let base = tuple.iter().enumerate().fold(b * whole, |base, (i, x)| {
                        base + resolve(*x, data.shape[batch_dims + i]) * own[batch_dims + i]
                    });
                    from.extend(base..base + inner);
                }
            }
            (shape, from)
        }
    };
    if data.is_empty() && !from.is_empty() {
        return Err(OpError::Empty {
            what: "gathers from",
            shape: data.shape.clone(),
        });
    }
    Ok(take(data, shape, &from))
}

/// For each element of `indices`, the offset in `data` with the position along `axis` replaced.
fn offsets(axis: usize, data: &Array, indices: &Array, ix: &[i64]) -> Vec<usize> {
    let own = strides(&data.shape);
    let steps: Vec<isize> = own
        .iter()
        .enumerate()
        .map(|(i, s)| if i == axis { 0 } else { *s as isize })
        .collect();
    let mut from = Vec::with_capacity(ix.len());
    super::array::walk(&indices.shape, 0, &steps, |base| {
        from.push(base + resolve(ix[from.len()], data.shape[axis]) * own[axis]);
    });
    from
}

pub(super) fn scatter(scatter: Scatter, data: &Array, indices: &Array, updates: &Array) -> Result<Array, OpError> {
    let ix = indices.to_i64();
    let (to, reduce) = match scatter {
        Scatter::Elements { axis, reduce } => (offsets(axis, data, indices, &ix), reduce),
        Scatter::Nd { reduce } => {
            let own = strides(&data.shape);
            let depth = indices.shape[indices.shape.len() - 1];
            let inner: usize = data.shape[depth..].iter().product();
            let mut to = Vec::with_capacity(updates.len());
            for tuple in ix.chunks(depth) {
                let base: usize = tuple
                    .iter()
                    .enumerate()
                    .map(|(i, x)| resolve(*x, data.shape[i]) * own[i])
                    .sum();
                to.extend(base..base + inner);
            }
            (to, reduce)
        }
    };
    if data.is_empty() && !to.is_empty() {
        return Err(OpError::Empty {
            what: "scatters into",
            shape: data.shape.clone(),
        });
    }
    if to.len() != updates.len() {
        return Err(OpError::Shapes {
            what: "updates do not match the indices",
            left: updates.shape.clone(),
            right: indices.shape.clone(),
        });
    }
    let dtype = data.dtype;
    let merge = |old: Scalar, new: Scalar| match reduce {
        None => new,
        Some(op @ (ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min)) => combine(op, dtype, old, new),
        Some(_) => old,
    };
    let mut out = data.clone();
    match (&mut out.data, &updates.data) {
        (Data::Float(v), Data::Float(u)) => to
            .iter()
            .zip(u)
            .for_each(|(i, u)| v[*i] = merge(Scalar::Float(v[*i]), Scalar::Float(*u)).as_f64()),
        (Data::Int(v), Data::Int(u)) => to
            .iter()
            .zip(u)
            .for_each(|(i, u)| v[*i] = merge(Scalar::Int(v[*i]), Scalar::Int(*u)).as_i64()),
        (Data::Bool(v), u) => to.iter().enumerate().for_each(|(n, i)| {
            let new = u.get(n).unwrap_or(Scalar::Bool(false));
            v[*i] = merge(Scalar::Bool(v[*i]), new).as_bool();
        }),
        (_, _) => {
            return Err(OpError::Shapes {
                what: "updates are of another kind",
                left: updates.shape.clone(),
                right: data.shape.clone(),
            });
        }
    }
    Ok(out)
}
