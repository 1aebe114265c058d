//! Gathers, scatters, and what selects by index.

use ir::op::{BinaryOp, Gather, Op, ReduceOp, Scatter};
use ir::{DType, Dim, Shape};

use super::{Row, microsoft, op, withdrawn};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Gather", 1, gather),
    op("GatherElements", 11, gather_elements),
    op("GatherND", 11, gather_nd),
    op("OneHot", 9, one_hot),
    op("ReverseSequence", 10, reverse_sequence),
    withdrawn("Scatter", 9, 10, scatter_elements),
    op("ScatterElements", 11, scatter_elements),
    op("ScatterND", 11, scatter_nd),
    op("TensorScatter", 24, tensor_scatter),
    op("Trilu", 14, trilu),
    microsoft("Trilu", trilu),
];

fn axis_of(node: &Node<'_>, default: i64, x: Val) -> Step<usize> {
    let axis = node.int_or("axis", default)?;
    node.axis(axis, node.rank(x))
}

fn gather(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices) = (node.input(0)?, node.input(1)?);
    let axis = axis_of(node, 0, x)?;
    Ok(vec![node.take(x, axis, indices)?])
}

fn gather_elements(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices) = (node.input(0)?, node.input(1)?);
    let axis = axis_of(node, 0, x)?;
    // Along the one axis of a vector it is the plain gather.
    if node.rank(x) == 1
        && let Some(known) = node.build.known(x)
        && let Some(picks) = node.build.folded(indices)
        && let Some(known) = known.take(0, &picks)
    {
        return Ok(vec![node.known(known)]);
    }
    Ok(vec![node.add(Op::Gather(Gather::Elements { axis }), &[x, indices])?])
}

fn gather_nd(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices) = (node.input(0)?, node.input(1)?);
    if let Some(known) = gather_known(node, x, indices)? {
        return Ok(vec![node.known(known)]);
    }
    let batch_dims = node.int_or("batch_dims", 0)?;
    let Ok(batch_dims) = usize::try_from(batch_dims) else {
        return node.bad("batch_dims", batch_dims, "not negative");
    };
    let (data, picks) = (node.shape(x), node.shape(indices));
    let most = data.rank().min(picks.rank());
    let Some(width) = picks.last().filter(|_| data.rank() > 0) else {
        return node.rank_error(if data.rank() == 0 { 0 } else { 1 }, "at least 1");
    };
    if batch_dims >= most {
        return node.bad("batch_dims", batch_dims, format!("below {most}, the smaller rank"));
    }
    let axes = (data.rank() - batch_dims) as i64;
    if !width.as_const().is_some_and(|width| (0..=axes).contains(&width)) {
        return Err(NodeProblem::Value {
            what: "length of an index",
            found: width.to_string(),
            expected: format!("a constant of at most {axes}, the data's axes after the batch's"),
        }
        .into());
    }
    for axis in 0..batch_dims.min(data.rank()).min(picks.rank()) {
        node.build.require_equal(&data[axis], &picks[axis])?;
    }
    Ok(vec![node.add(Op::Gather(Gather::Nd { batch_dims }), &[x, indices])?])
}

/// Picks from a known vector by index tuples of one position.
fn gather_known(node: &mut Node<'_>, x: Val, indices: Val) -> Step<Option<Known>> {
    let picks = node.shape(indices);
    if node.rank(x) != 1 || !picks.last().is_some_and(|width| width.is(1)) || node.int_or("batch_dims", 0)? != 0 {
        return Ok(None);
    }
    let Some(data) = node.build.known(x) else {
        return Ok(None);
    };
    let picks = node.build.folded(indices);
    let flat = picks.and_then(|p| p.select(p.shape[..p.shape.len() - 1].to_vec(), 0..p.elements.len()));
    Ok(flat.and_then(|picks| data.take(0, &picks)))
}

fn reduction(node: &Node<'_>) -> Step<Option<ReduceOp>> {
    Ok(match node.text("reduction", "none")?.as_str() {
        "none" => None,
        "add" => Some(ReduceOp::Sum),
        "mul" => Some(ReduceOp::Prod),
        "max" => Some(ReduceOp::Max),
        "min" => Some(ReduceOp::Min),
        other => return node.bad("reduction", other, "none, add, mul, max or min"),
    })
}

fn scatter_elements(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices, updates) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let axis = axis_of(node, 0, x)?;
    let reduce = reduction(node)?;
    let (left, right) = (node.shape(indices), node.shape(updates));
    for (l, r) in left.iter().zip(right.iter()) {
        node.build.require_equal(l, r)?;
    }
    if let Some(known) = scatter_known(node, x, indices, updates, axis, reduce) {
        return Ok(vec![node.known(known)]);
    }
    Ok(vec![node.add(
        Op::Scatter(Scatter::Elements { axis, reduce }),
        &[x, indices, updates],
    )?])
}

fn scatter_nd(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices, updates) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let reduce = reduction(node)?;
    let (data, picks, news) = (node.shape(x), node.shape(indices), node.shape(updates));
    if let Some(depth) = picks
        .last()
        .and_then(Dim::as_const)
        .and_then(|d| usize::try_from(d).ok())
        && depth <= data.rank()
    {
        let expected = picks[..picks.rank() - 1].iter().chain(&data[depth..]);
        for (l, r) in expected.zip(news.iter()) {
            node.build.require_equal(l, r)?;
        }
        // A vector of sizes that is updated in place.
        if depth == 1
            && data.rank() == 1
            && let Some(known) = scatter_known(node, x, indices, updates, 0, reduce)
        {
            return Ok(vec![node.known(known)]);
        }
    }
    Ok(vec![
        node.add(Op::Scatter(Scatter::Nd { reduce }), &[x, indices, updates])?,
    ])
}

/// Overwrites elements of a known vector.
fn scatter_known(
    node: &mut Node<'_>,
    x: Val,
    indices: Val,
    updates: Val,
    axis: usize,
    reduce: Option<ReduceOp>,
) -> Option<Known> {
    let data = node.build.known(x)?;
    let (picks, news) = (node.build.folded(indices)?.ints()?, node.build.folded(updates)?);
    if reduce.is_some() || axis != 0 || data.shape.len() != 1 || picks.len() != news.elements.len() {
        return None;
    }
    let mut result = (*data).clone();
    let size = result.elements.len() as i64;
    for (at, new) in picks.into_iter().zip(&news.elements) {
        let at = usize::try_from(if at < 0 { at + size } else { at }).ok()?;
        *result.elements.get_mut(at)? = new.clone();
    }
    Some(result)
}

/// A cache with new rows from a position of each sample on: a row is the new one that is as far behind the position.
fn tensor_scatter(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (cache, update) = (node.input(0)?, node.input(1)?);
    let (shape, rows) = (node.shape(cache), node.shape(update));
    let rank = shape.rank();
    let axis = axis_of(node, -2, cache)?;
    if axis == 0 || rows.rank() != rank {
        return node.bad("axis", axis, "an axis after the first, of tensors of one rank");
    }
    let circular = match node.text("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return node.bad("mode", other, "linear or circular"),
    };
    for other in (0..rank).filter(|a| *a != axis) {
        node.build.require_equal(&shape[other], &rows[other])?;
    }
    let mut along = vec![Dim::Const(1); rank];
    along[axis] = shape[axis].clone();
    let position = node.iota([shape[axis].clone()].into(), 0, DType::I64)?;
    let mut position = node.reshape(position, along)?;
    let size = node.known(Known::scalar(shape[axis].clone()));
    if let Some(first) = node.optional(2) {
        let mut dims = vec![Dim::Const(1); rank];
        dims[0] = shape[0].clone();
        let first = node.cast(first, DType::I64)?;
        let first = node.reshape(first, dims)?;
        position = node.binary(BinaryOp::Sub, position, first)?;
        if circular {
            position = node.binary(BinaryOp::Mod, position, size)?;
        }
    }
    let count = node.known(Known::scalar(rows[axis].clone()));
    let behind = node.with_scalar(BinaryOp::Ge, position, 0.0)?;
    let inside = node.binary(BinaryOp::Lt, position, count)?;
    let new = node.binary(BinaryOp::And, behind, inside)?;
    let last = node.with_scalar(BinaryOp::Sub, count, 1.0)?;
    let at = node.with_scalar(BinaryOp::Max, position, 0.0)?;
    let at = node.binary(BinaryOp::Min, at, last)?;
    let at = node.broadcast(at, shape)?;
    let taken = node.add(Op::Gather(Gather::Elements { axis }), &[update, at])?;
    Ok(vec![node.select(new, taken, cache)?])
}

/// `indices` become an axis of `depth` elements: `on` where the position is the index, else `off`.
fn one_hot(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (indices, values) = (node.input(0)?, node.input(2)?);
    let depth = node.input(1)?;
    let depth = node
        .numbers(depth, "depth")
        .and_then(|k| k.cast(DType::I64, &node.build.sizes)?.dims());
    let depth = depth.ok_or(NodeProblem::NotKnown {
        what: "depth",
        index: 1,
    })?;
    let [depth] = depth.as_slice() else {
        return node.rank_error(1, "0");
    };
    if node.shape(values) != [2i64].into() {
        return node.rank_error(2, "1 with two elements");
    }
    let rank = node.rank(indices) + 1;
    let axis = node.int_or("axis", -1)?;
    let axis = node.axis(axis, rank)?;
    let mut shape = node.shape(indices).0;
    shape.insert(axis, Dim::Const(1));
    let indices = node.cast(indices, DType::I64)?;
    let indices = node.reshape(indices, shape)?;
    // Indices in −depth..0 count from the end.
    let negative = node.with_scalar(BinaryOp::Lt, indices, 0.0)?;
    let size = node.known(Known::scalar(depth.clone()));
    let wrapped = node.binary(BinaryOp::Add, indices, size)?;
    let indices = node.select(negative, wrapped, indices)?;
    let mut along = vec![Dim::Const(1); rank];
    along[axis] = depth.clone();
    let positions = node.iota([depth.clone()].into(), 0, DType::I64)?;
    let positions = node.reshape(positions, along)?;
    let hit = node.binary(BinaryOp::Eq, indices, positions)?;
    let off = node.slice_axis(values, 0, 0i64, 1i64)?;
    let on = node.slice_axis(values, 0, 1i64, 1i64)?;
    let (off, on) = (node.reshape(off, Shape::SCALAR)?, node.reshape(on, Shape::SCALAR)?);
    Ok(vec![node.select(hit, on, off)?])
}

/// Keeps the upper or lower triangle of the last two axes, shifted by `k` diagonals.
fn trilu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let (dtype, shape) = (node.dtype(x), node.shape(x));
    let [.., rows, columns] = &*shape else {
        return node.rank_error(0, "at least 2");
    };
    let upper = node.int_or("upper", 1)? != 0;
    let k = match node.optional(1) {
        None => Dim::Const(0),
        Some(_) => match node.known_dims(1, "number of diagonals")?.as_slice() {
            [k] => k.clone(),
            _ => return node.rank_error(1, "0"),
        },
    };
    let (rows, columns) = (rows.clone(), columns.clone());
    let row = node.iota([rows.clone()].into(), 0, DType::I64)?;
    let row = node.reshape(row, [rows, Dim::Const(1)])?;
    let column = node.iota([columns.clone()].into(), 0, DType::I64)?;
    let column = node.reshape(column, [Dim::Const(1), columns])?;
    // The distance is as small as the sizes are; a row plus `k` might leave 64 bits.
    let distance = node.binary(BinaryOp::Sub, column, row)?;
    let k = node.known(Known::scalar(k));
    let op = if upper { BinaryOp::Ge } else { BinaryOp::Le };
    let keep = node.binary(op, distance, k)?;
    let zero = node.scalar(dtype, 0.0);
    Ok(vec![node.select(keep, x, zero)?])
}

/// Reverses the first `lengths[b]` elements of each sequence: position `i` comes from `len − 1 − i` where `i < len`.
fn reverse_sequence(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, lengths) = (node.input(0)?, node.input(1)?);
    let shape = node.shape(x);
    let (time, batch) = (node.int_or("time_axis", 0)?, node.int_or("batch_axis", 1)?);
    let (time, batch) = (node.axis(time, shape.rank())?, node.axis(batch, shape.rank())?);
    if time == batch {
        return node.bad("time_axis", time, "another axis than batch_axis");
    }
    let mut along = vec![Dim::Const(1); shape.rank()];
    along[batch] = shape[batch].clone();
    let lengths = node.reshape(lengths, along)?;
    let positions = node.iota(shape.clone(), time, DType::I64)?;
    let inside = node.binary(BinaryOp::Lt, positions, lengths)?;
    let last = node.with_scalar(BinaryOp::Sub, lengths, 1.0)?;
    let mirrored = node.binary(BinaryOp::Sub, last, positions)?;
    let from = node.select(inside, mirrored, positions)?;
    Ok(vec![node.add(Op::Gather(Gather::Elements { axis: time }), &[x, from])?])
}
