//! Reductions, running sums, and the largest elements.

use ir::op::{BinaryOp, Op, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("ArgMax", 1, |n| arg(n, ReduceOp::ArgMax)),
    op("ArgMin", 1, |n| arg(n, ReduceOp::ArgMin)),
    op("CumProd", 26, |n| running(n, ReduceOp::Prod)),
    op("CumSum", 11, |n| running(n, ReduceOp::Sum)),
    op("ReduceL1", 1, |n| reduce(n, l1)),
    op("ReduceL2", 1, |n| reduce(n, |n, x, a, k| in_floats(n, x, a, k, l2))),
    op("ReduceLogSum", 1, |n| {
        reduce(n, |n, x, a, k| in_floats(n, x, a, k, log_sum))
    }),
    op("ReduceLogSumExp", 1, |n| {
        reduce(n, |n, x, a, k| in_floats(n, x, a, k, log_sum_exp))
    }),
    op("ReduceMax", 1, |n| {
        reduce(n, |n, x, axes, keep| {
            extreme(n, x, axes, keep, ReduceOp::Max, ReduceOp::Any)
        })
    }),
    op("ReduceMean", 1, mean),
    op("ReduceMin", 1, |n| {
        reduce(n, |n, x, axes, keep| {
            extreme(n, x, axes, keep, ReduceOp::Min, ReduceOp::All)
        })
    }),
    op("ReduceProd", 1, |n| {
        reduce(n, |n, x, axes, keep| n.reduce(ReduceOp::Prod, x, axes, keep))
    }),
    op("ReduceSum", 1, |n| {
        reduce(n, |n, x, axes, keep| n.reduce(ReduceOp::Sum, x, axes, keep))
    }),
    op("ReduceSumSquare", 1, |n| reduce(n, sum_square)),
    op("TopK", 1, top_k),
];

/// Axes are an attribute before opset 13 (`ReduceSum`) or 18 (the others), an input since; none means all, or none at
/// all with `noop_with_empty_axes`.
fn reduce(node: &mut Node<'_>, apply: fn(&mut Node<'_>, Val, Vec<usize>, bool) -> Step<Val>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let rank = node.rank(x);
    let keep = node.int_or("keepdims", 1)? != 0;
    let axes = match node.axes(1)? {
        Some(axes) if !axes.is_empty() => node.axis_list(&axes, rank)?,
        _ if node.flag("noop_with_empty_axes")? => Vec::new(),
        _ => (0..rank).collect(),
    };
    Ok(vec![apply(node, x, axes, keep)?])
}

pub(super) fn mean(node: &mut Node<'_>) -> Step<Vec<Val>> {
    reduce(node, |n, x, axes, keep| n.reduce(ReduceOp::Mean, x, axes, keep))
}

fn l1(node: &mut Node<'_>, x: Val, axes: Vec<usize>, keep: bool) -> Step<Val> {
    let size = node.unary(UnaryOp::Abs, x)?;
    node.reduce(ReduceOp::Sum, size, axes, keep)
}

fn sum_square(node: &mut Node<'_>, x: Val, axes: Vec<usize>, keep: bool) -> Step<Val> {
    let square = node.binary(BinaryOp::Mul, x, x)?;
    node.reduce(ReduceOp::Sum, square, axes, keep)
}

/// Roots and logarithms of integers are computed in `f64` and cut to integers.
fn in_floats(
    node: &mut Node<'_>,
    x: Val,
    axes: Vec<usize>,
    keep: bool,
    apply: fn(&mut Node<'_>, Val, Vec<usize>, bool) -> Step<Val>,
) -> Step<Val> {
    let dtype = node.dtype(x);
    if !dtype.is_int() {
        return apply(node, x, axes, keep);
    }
    let wide = node.cast(x, DType::F64)?;
    let result = apply(node, wide, axes, keep)?;
    node.cast(result, dtype)
}

fn l2(node: &mut Node<'_>, x: Val, axes: Vec<usize>, keep: bool) -> Step<Val> {
    let sum = sum_square(node, x, axes, keep)?;
    node.unary(UnaryOp::Sqrt, sum)
}

fn log_sum(node: &mut Node<'_>, x: Val, axes: Vec<usize>, keep: bool) -> Step<Val> {
    let sum = node.reduce(ReduceOp::Sum, x, axes, keep)?;
    node.unary(UnaryOp::Log, sum)
}

/// `m + log Σ exp(x − m)` with the largest element as `m`, 0 where that is infinite.
fn log_sum_exp(node: &mut Node<'_>, x: Val, axes: Vec<usize>, keep: bool) -> Step<Val> {
    let dtype = node.dtype(x);
    let largest = node.reduce(ReduceOp::Max, x, axes.clone(), true)?;
    let infinite = node.unary(UnaryOp::IsInf, largest)?;
    let zero = node.scalar(dtype, 0.0);
    let shift = node.select(infinite, zero, largest)?;
    let shifted = node.binary(BinaryOp::Sub, x, shift)?;
    let power = node.unary(UnaryOp::Exp, shifted)?;
    let sum = node.reduce(ReduceOp::Sum, power, axes.clone(), true)?;
    let log = node.unary(UnaryOp::Log, sum)?;
    let result = node.binary(BinaryOp::Add, log, shift)?;
    if keep {
        return Ok(result);
    }
    let dims = node.shape(result);
    let kept: Vec<Dim> = (0..dims.rank())
        .filter(|a| !axes.contains(a))
        .map(|a| dims[a].clone())
        .collect();
    node.reshape(result, kept)
}

fn extreme(
    node: &mut Node<'_>,
    x: Val,
    axes: Vec<usize>,
    keep: bool,
    number: ReduceOp,
    logical: ReduceOp,
) -> Step<Val> {
    let op = if node.dtype(x) == DType::Bool { logical } else { number };
    node.reduce(op, x, axes, keep)
}

fn arg(node: &mut Node<'_>, op: ReduceOp) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = node.int_or("axis", 0)?;
    let axis = node.axis(axis, shape.rank())?;
    let keep = node.int_or("keepdims", 1)? != 0;
    if !node.flag("select_last_index")? {
        return Ok(vec![node.reduce(op, x, vec![axis], keep)?]);
    }
    // The last of equals is the first of the reversed.
    let last = shape[axis].clone() - 1;
    let mut starts = vec![Dim::Const(0); shape.rank()];
    let mut steps = vec![1; shape.rank()];
    (starts[axis], steps[axis]) = (last.clone(), -1);
    let reversed = node.slice(x, starts, shape.0.clone(), steps)?;
    let found = node.reduce(op, reversed, vec![axis], keep)?;
    let last = node.known(crate::onnx::known::Known::scalar(last));
    Ok(vec![node.binary(BinaryOp::Sub, last, found)?])
}

fn running(node: &mut Node<'_>, op: ReduceOp) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let axis = node.known_ints(1, "axis")?;
    let [axis] = axis.as_slice() else {
        return node.rank_error(1, "0");
    };
    let axis = node.axis(*axis, node.rank(x))?;
    let (exclusive, reverse) = (node.flag("exclusive")?, node.flag("reverse")?);
    let known = node.build.known(x).filter(|_| op == ReduceOp::Sum);
    if let Some(known) = known.and_then(|k| k.running_sum(axis, exclusive, reverse)) {
        return Ok(vec![node.known(known)]);
    }
    Ok(vec![node.add(
        Op::Scan {
            op,
            axis,
            exclusive,
            reverse,
        },
        &[x],
    )?])
}

/// `k` is an attribute before opset 10. The order of unsorted results is free, so they are sorted, too.
fn top_k(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let axis = node.int_or("axis", -1)?;
    let axis = node.axis(axis, node.rank(x))?;
    let largest = node.int_or("largest", 1)? != 0;
    let k = if node.opset < 10 {
        let k = node.int("k")?;
        Dim::Const(node.required("k", k)?)
    } else {
        match node.known_dims(1, "number of elements")?.as_slice() {
            [k] => k.clone(),
            _ => return node.rank_error(1, "1 with one element"),
        }
    };
    node.add_all(Op::TopK { axis, k, largest }, &[x])
}
