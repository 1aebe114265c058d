//! Types of gathers, scatters and top-k.

use std::ops::Range;

use smallvec::smallvec;

use super::{Class, Cx, InferError, Inferred, Reason, attribute, one};
use crate::data::HostTensor;
use crate::dim::{Dim, Shape};
use crate::graph::op::Op;
use crate::graph::op::{Gather, ReduceOp, Scatter};
use crate::types::{DType, TensorType};

/// Refuses constant indices of a gather or scatter of which one lies outside its axis, where the axis has a known size.
///
/// `operands` are the op's operands' types, of which `indices` is the second. Other ops pass.
///
/// # Errors
/// [`Reason::OutOfRange`] with the first such index.
pub fn check_indices(op: &Op, operands: &[&TensorType], indices: &HostTensor) -> Result<(), InferError> {
    let (Op::Gather(_) | Op::Scatter(_), Some(data)) = (op, operands.first()) else {
        return Ok(());
    };
    let axes = indexed_axes(op, indices.shape.last().copied().unwrap_or(1));
    let sizes: Vec<Option<i64>> = axes.map(|axis| data.shape.get(axis).and_then(Dim::as_const)).collect();
    let first = indexed_axes(op, 1).start;
    if sizes.iter().all(Option::is_none) || !indices.dtype.is_int() {
        return Ok(());
    }
    for (i, index) in indices.to_i64().into_iter().enumerate() {
        let component = i % sizes.len();
        if let Some(size) = sizes[component]
            && !(-size..size).contains(&index)
        {
            let reason = Reason::IndexOutOfRange {
                axis: first + component,
                index,
                size,
            };
            return Err(InferError::new(
                op,
                operands.iter().map(|t| (*t).clone()).collect(),
                reason,
            ));
        }
    }
    Ok(())
}

/// The axes of the data that the elements of an index tuple of `depth` elements run over, or the one axis of a plain
/// index.
pub fn indexed_axes(op: &Op, depth: usize) -> Range<usize> {
    match op {
        Op::Gather(Gather::Take { axis } | Gather::Elements { axis }) | Op::Scatter(Scatter::Elements { axis, .. }) => {
            *axis..axis + 1
        }
        Op::Gather(Gather::Nd { batch_dims }) => *batch_dims..batch_dims + depth,
        Op::Scatter(Scatter::Nd { .. }) => 0..depth,
        _ => 0..0,
    }
}

pub(super) fn gather(gather: Gather, cx: &Cx<'_>) -> Inferred {
    cx.count(2, 2)?;
    cx.class(1, Class::Int)?;
    let (data, indices) = (cx.operands[0], cx.operands[1]);
    match gather {
        Gather::Take { axis } => {
            cx.axis(axis, data.rank())?;
            let dims = data.shape[..axis].iter().chain(indices.shape.iter());
            let dims = dims.chain(&data.shape[axis + 1..]).cloned();
            Ok(one(data.dtype, dims.collect::<Shape>()))
        }
        Gather::Elements { axis } => {
            aligned(axis, cx)?;
            Ok(one(data.dtype, indices.shape.clone()))
        }
        Gather::Nd { batch_dims } => {
            // Any number can be written; ranks are small.
            cx.rank_at_least(1, batch_dims.saturating_add(1))?;
            let depth = tuple_size(cx, data.rank().saturating_sub(batch_dims))?;
            cx.rank_at_least(0, batch_dims + depth)?;
            cx.equal_shapes(
                "batch dims of data and indices",
                &data.shape[..batch_dims],
                &indices.shape[..batch_dims],
            )?;
            let dims = indices.shape[..indices.rank() - 1].iter();
            let dims = dims.chain(&data.shape[batch_dims + depth..]).cloned();
            Ok(one(data.dtype, dims.collect::<Shape>()))
        }
    }
}

pub(super) fn scatter(scatter: Scatter, cx: &Cx<'_>) -> Inferred {
    cx.count(3, 3)?;
    cx.class(1, Class::Int)?;
    cx.same_dtype(0, 2)?;
    let (data, indices, updates) = (cx.operands[0], cx.operands[1], cx.operands[2]);
    let reduce = match scatter {
        Scatter::Elements { axis, reduce } => {
            aligned(axis, cx)?;
            cx.equal_shapes("shapes of indices and updates", &indices.shape, &updates.shape)?;
            reduce
        }
        Scatter::Nd { reduce } => {
            cx.rank_at_least(1, 1)?;
            let depth = tuple_size(cx, data.rank())?;
            let dims = indices.shape[..indices.rank() - 1].iter();
            let expected: Vec<Dim> = dims.chain(&data.shape[depth..]).cloned().collect();
            cx.equal_shapes(
                "shape of the updates and what data and indices ask for",
                &updates.shape,
                &expected,
            )?;
            reduce
        }
    };
    match reduce {
        None => {}
        Some(ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min) => {
            cx.class(0, Class::Number)?;
        }
        Some(other) => {
            return attribute(
                "reduce",
                format!("a scatter reduces with sum, prod, max or min, not {other}"),
            );
        }
    }
    Ok(one(data.dtype, data.shape.clone()))
}

pub(super) fn top_k(axis: usize, k: &Dim, cx: &Cx<'_>) -> Inferred {
    cx.count(1, 1)?;
    let ty = cx.operands[0];
    cx.axis(axis, ty.rank())?;
    cx.class(0, Class::Number)?;
    if (k - &ty.shape[axis]).at_least(1, cx.symbols) {
        return attribute(
            "k",
            format!("{k} is more than the {} elements of axis {axis}", ty.shape[axis]),
        );
    }
    let mut shape = ty.shape.clone();
    shape.0[axis] = k.clone();
    Ok(smallvec![
        TensorType::new(ty.dtype, shape.clone()),
        TensorType::new(DType::I64, shape)
    ])
}

/// Indices of the element-wise forms: the rank of the data, and outside `axis` nowhere larger than the data.
fn aligned(axis: usize, cx: &Cx<'_>) -> Result<(), Reason> {
    let (data, indices) = (cx.operands[0], cx.operands[1]);
    cx.rank_is(1, data.rank())?;
    cx.axis(axis, data.rank())?;
    for i in (0..data.rank()).filter(|i| *i != axis) {
        let (have, asked) = (&data.shape[i], &indices.shape[i]);
        if have != asked && !(have - asked).at_least(0, cx.symbols) {
            cx.equal("data and indices outside the axis", have, asked)?;
        }
    }
    Ok(())
}

/// The number of positions in each index tuple, which must be known and at most `max`.
fn tuple_size(cx: &Cx<'_>, max: usize) -> Result<usize, Reason> {
    let indices = cx.operands[1];
    let last = &indices.shape[indices.rank() - 1];
    let Some(depth) = last.as_const() else {
        return Err(Reason::NotConstant {
            what: "the last dim of the indices",
            dim: last.clone(),
        });
    };
    match usize::try_from(depth) {
        Ok(depth) if (1..=max).contains(&depth) => Ok(depth),
        _ => attribute("indices", format!("the last dim is {depth}, but must be 1 to {max}")),
    }
}
