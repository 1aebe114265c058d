//! Pooling over windows and over whole images.

use ir::op::{BinaryOp, Layout, Op, PadMode, Pool, PoolKind, ReduceOp, UnaryOp, View};
use ir::{Dim, Scalar};

use super::conv::{Padded, padded, spatial_list};
use super::{Row, op, unpool};
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

/// Reads a pool over the axes of `x`, which it is applied to by [`Padded::sized`]; padding that depends on an open size
/// is of `value`.
fn pool(node: &mut Node<'_>, x: Val, kind: PoolKind, value: Scalar) -> Step<(Pool, Padded)> {
    let rank = node.rank(x);
    if rank < 3 {
        return node.rank_error(0, "at least 3");
    }
    let size = spatial_list(node, "kernel_shape", rank - 2, 1)?;
    let size = node.required("kernel_shape", size)?;
    let padded = padded(node, x, &size, value)?;
    let ceil = node.flag("ceil_mode")?;
    let mut pool = Pool {
        kind,
        size,
        window: padded.window.clone(),
        ceil,
        layout: Layout::ChannelsFirst,
    };
    if !ceil && padded.x == x {
        fit(node, x, &mut pool);
    }
    Ok((pool, padded))
}

/// Gives an image that is smaller than the window, padding included, by less than a stride, the padding that it lacks.
///
/// Rounding down, as the standard writes it, there is no window, and later means are of nothing; onnxruntime rounds the
/// quotient towards zero, so that there is one, and models are run at such sizes. An open size is assumed to have room
/// for the window: its count of windows stays a plain quotient.
fn fit(node: &mut Node<'_>, x: Val, pool: &mut Pool) {
    let spatial = node.shape(x)[2..].to_vec();
    let window = &mut pool.window;
    for (axis, size) in spatial.iter().enumerate() {
        let padding = window.pad_low[axis] + window.pad_high[axis];
        let least = (pool.size[axis] - 1) * window.dilations[axis] + 1 - padding;
        match size.as_const() {
            Some(size) if (1..least).contains(&size) && least - size < window.strides[axis] => {
                window.pad_high[axis] += least - size;
            }
            None if window.strides[axis] > 1 && !node.build.sizes.at_least(size, least) => {
                let enough = size.larger(&Dim::Const(least));
                let what = format!("axis {} of the image, which must have room for a window", axis + 2);
                node.build.assume(size, &enough, &what, &node.origin);
            }
            _ => {}
        }
    }
}

/// The share of a window that the divisor of a mean counts, where padding is counted: from opset 19 on the padding that
/// [`fit`] adds is not.
fn counted_share(node: &Node<'_>, x: Val, pool: &Pool, pads: &[i64]) -> f64 {
    if node.opset < 19 {
        return 1.0;
    }
    let shape = node.shape(x);
    let share = |axis: usize| {
        let size = shape[axis + 2].as_const()?;
        let (taps, window) = (pool.size[axis], &pool.window);
        let inside = size + window.pad_low[axis] + pads[axis];
        Some(((inside - 1) / window.dilations[axis] + 1).min(taps) as f64 / taps as f64)
    };
    (0..pool.size.len())
        .filter(|axis| pool.window.pad_high[*axis] > pads[*axis])
        .filter_map(share)
        .product()
}

fn pooled(node: &mut Node<'_>, (pool, padded): (Pool, Padded)) -> Step<Val> {
    let result = node.add(Op::Pool(pool), &[padded.x])?;
    padded.sized(node, result)
}

fn max_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    let lowest = match dtype.int_range() {
        Some((low, _)) => Scalar::Int(low),
        None => Scalar::Float(f64::NEG_INFINITY),
    };
    let (pool, padded) = pool(node, x, PoolKind::Max, lowest)?;
    let is_padded = padded.x != x;
    let result = pooled(node, (pool.clone(), padded))?;
    if !node.wants(1) {
        return Ok(vec![result]);
    }
    if is_padded {
        return node.unsupported("the Indices of a MaxPool with SAME padding over an open size");
    }
    let column_major = node.flag("storage_order")?;
    let shape = node.shape(result);
    Ok(vec![result, unpool::positions(node, x, &pool, &shape, column_major)?])
}

pub(super) fn average_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let count_padding = node.flag("count_include_pad")?;
    let zero = Scalar::Float(0.0);
    let (mut parts, padded) = pool(node, x, PoolKind::Average { count_padding }, zero)?;
    if padded.x == x || count_padding {
        let share = counted_share(node, x, &parts, &padded.window.pad_high);
        let mean = pooled(node, (parts, padded))?;
        return Ok(vec![match count_padding && share < 1.0 {
            true => node.with_scalar(BinaryOp::Mul, mean, 1.0 / share)?,
            false => mean,
        }]);
    }
    // Padding around the image is counted: the mean over it is divided by the part of the window that is inside.
    let counted = PoolKind::Average { count_padding: true };
    parts.kind = counted;
    let mean = pooled(node, (parts, padded))?;
    let mut ones = node.shape(x);
    ones.0[..2].fill(Dim::Const(1));
    let one = node.scalar(node.dtype(x), 1.0);
    let ones = node.broadcast(one, ones)?;
    let parts = pool(node, ones, counted, zero)?;
    let inside = pooled(node, parts)?;
    Ok(vec![node.binary(BinaryOp::Div, mean, inside)?])
}

/// The p-norm: `(Σ |x|^p)^(1/p)`, the sum being the mean (padding counted) times the window's size.
fn lp_pool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let p = node.int_or("p", 2)? as f64;
    let powers = power(node, x, p)?;
    let counted = PoolKind::Average { count_padding: true };
    let (mut pool, mut padded) = pool(node, powers, counted, Scalar::Float(0.0))?;
    let elements: f64 = pool.size.iter().map(|v| *v as f64).product();
    if std::mem::take(&mut pool.ceil) {
        padded.x = with_rest(node, padded.x, &pool)?;
    }
    let mean = pooled(node, (pool, padded))?;
    let sum = node.with_scalar(BinaryOp::Mul, mean, elements)?;
    Ok(vec![root(node, sum, p)?])
}

/// Adds zeros behind an image for windows that begin inside it, or its padding, and reach beyond.
fn with_rest(node: &mut Node<'_>, x: Val, pool: &Pool) -> Step<Val> {
    let shape = node.shape(x);
    let low = vec![Dim::Const(0); shape.rank()];
    let mut high = low.clone();
    for (axis, size) in pool.size.iter().enumerate() {
        let (window, at) = (&pool.window, axis + 2);
        let reach = (size - 1) * window.dilations[axis] + 1;
        let padded = shape[at].clone() + (window.pad_low[axis] + window.pad_high[axis]);
        let moved = padded.clone() - reach;
        let stride = Dim::Const(window.strides[axis]);
        let mut windows = moved.ceil_div(&stride) + 1;
        // No window begins in the padding behind the image.
        let most = (shape[at].clone() + (window.pad_low[axis] - 1)).floor_div(&stride) + 1;
        windows = node.build.sizes.min(&windows, &most);
        let needed = (windows - 1) * window.strides[axis] + reach;
        high[at] = node.build.sizes.max(&(needed - padded), &Dim::Const(0));
    }
    let mode = PadMode::Constant(Scalar::Float(0.0));
    node.add(Op::View(View::Pad { low, high, mode }), &[x])
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
