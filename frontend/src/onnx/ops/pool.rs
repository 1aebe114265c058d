//! Pooling over windows and over whole images.

use ir::Dim;
use ir::op::{BinaryOp, Layout, Op, Pool, PoolKind, ReduceOp, UnaryOp};

use super::conv::{spatial_list, window};
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("AveragePool", 1, average_pool),
    op("GlobalAveragePool", 1, global_average),
    op("GlobalLpPool", 2, |n| global(n, global_lp)),
    op("GlobalMaxPool", 1, |n| {
        global(n, |n, x, axes| n.reduce(ReduceOp::Max, x, axes, true))
    }),
    op("LpPool", 2, lp_pool),
    op("MaxPool", 1, max_pool),
];

fn pool(node: &Node<'_>, kind: PoolKind) -> Step<Pool> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if shape.rank() < 3 {
        return node.rank_error(0, "at least 3");
    }
    let spatial: Vec<Dim> = shape[2..].to_vec();
    let size = spatial_list(node, "kernel_shape", spatial.len(), 1)?;
    let size = node.required("kernel_shape", size)?;
    let window = window(node, &spatial, &size)?;
    let ceil = node.flag("ceil_mode")?;
    Ok(Pool {
        kind,
        size,
        window,
        ceil,
        layout: Layout::ChannelsFirst,
    })
}

fn max_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    node.only_outputs(1, "the Indices output of MaxPool")?;
    let pool = pool(node, PoolKind::Max)?;
    Ok(vec![node.add(Op::Pool(pool), &[x])?])
}

pub(super) fn average_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let count_padding = node.flag("count_include_pad")?;
    let pool = pool(node, PoolKind::Average { count_padding })?;
    Ok(vec![node.add(Op::Pool(pool), &[x])?])
}

/// The p-norm: `(Σ |x|^p)^(1/p)`, the sum being the mean (padding counted) times the window's size.
fn lp_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let pool = pool(node, PoolKind::Average { count_padding: true })?;
    if pool.ceil {
        return node.unsupported("LpPool with ceil_mode");
    }
    let elements: f64 = pool.size.iter().map(|v| *v as f64).product();
    let p = node.int_or("p", 2)? as f64;
    let powers = power(node, x, p)?;
    let mean = node.add(Op::Pool(pool), &[powers])?;
    let sum = node.with_scalar(BinaryOp::Mul, mean, elements)?;
    Ok(vec![root(node, sum, p)?])
}

fn power(node: &mut Node<'_>, x: Val, p: f64) -> Step<Val> {
    if p == 2.0 {
        return node.binary(BinaryOp::Mul, x, x);
    }
    let size = node.unary(UnaryOp::Abs, x)?;
    if p == 1.0 {
        Ok(size)
    } else {
        node.with_scalar(BinaryOp::Pow, size, p)
    }
}

fn root(node: &mut Node<'_>, x: Val, p: f64) -> Step<Val> {
    match p {
        1.0 => Ok(x),
        2.0 => node.unary(UnaryOp::Sqrt, x),
        p => node.with_scalar(BinaryOp::Pow, x, 1.0 / p),
    }
}

fn global_lp(node: &mut Node<'_>, x: Val, axes: Vec<usize>) -> Step<Val> {
    let p = node.int_or("p", 2)? as f64;
    let powers = power(node, x, p)?;
    let sum = node.reduce(ReduceOp::Sum, powers, axes, true)?;
    root(node, sum, p)
}

pub(super) fn global_average(node: &mut Node<'_>) -> Step<Vec<Val>> {
    global(node, |n, x, axes| n.reduce(ReduceOp::Mean, x, axes, true))
}

/// Folds all spatial axes.
fn global(node: &mut Node<'_>, fold: fn(&mut Node<'_>, Val, Vec<usize>) -> Step<Val>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let rank = node.rank(x);
    if rank < 3 {
        return node.rank_error(0, "at least 3");
    }
    Ok(vec![fold(node, x, (2..rank).collect())?])
}
