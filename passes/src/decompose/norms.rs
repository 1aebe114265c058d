//! Normalisations.

use ir::op::{BinaryOp, Composite, Layout, PadMode, Pool, PoolKind, ReduceOp, UnaryOp, View, Window};
use ir::types::Scalar;
use ir::{Dim, Op, Shape, Value};

use super::{as_shape, binary, cast, reduce, unary, wide, with_scalar};
use crate::error::PassFault;
use crate::rewrite::Builder;

type Answer = Result<Value, PassFault>;

/// `(x - mean) · rsqrt(var + ε)` over `axes`, in x's type.
fn normalise(b: &mut Builder<'_>, x: Value, axes: Vec<usize>, epsilon: f64) -> Answer {
    let mean = reduce(b, ReduceOp::Mean, x, axes.clone())?;
    let centred = binary(b, BinaryOp::Sub, x, mean)?;
    let square = binary(b, BinaryOp::Mul, centred, centred)?;
    let variance = reduce(b, ReduceOp::Mean, square, axes)?;
    let shifted = with_scalar(b, BinaryOp::Add, variance, epsilon)?;
    let inverse = unary(b, UnaryOp::Rsqrt, shifted)?;
    binary(b, BinaryOp::Mul, centred, inverse)
}

/// `y · scale + bias`, both operands optional.
pub(crate) fn affine(b: &mut Builder<'_>, y: Value, scale: Option<Value>, bias: Option<Value>) -> Answer {
    let dtype = b.ty(y).dtype;
    let mut y = y;
    if let Some(scale) = scale {
        let scale = cast(b, scale, dtype)?;
        y = binary(b, BinaryOp::Mul, y, scale)?;
    }
    if let Some(bias) = bias {
        let bias = cast(b, bias, dtype)?;
        y = binary(b, BinaryOp::Add, y, bias)?;
    }
    Ok(y)
}

pub(super) fn layer_norm(b: &mut Builder<'_>, x: &[Value], axis: usize, epsilon: f64) -> Answer {
    let ty = b.ty(x[0]).clone();
    let wide_x = cast(b, x[0], wide(ty.dtype))?;
    let y = normalise(b, wide_x, (axis..ty.rank()).collect(), epsilon)?;
    let y = affine(b, y, x.get(1).copied(), x.get(2).copied())?;
    cast(b, y, ty.dtype)
}

pub(super) fn rms_norm(b: &mut Builder<'_>, x: &[Value], axis: usize, epsilon: f64) -> Answer {
    let ty = b.ty(x[0]).clone();
    let wide_x = cast(b, x[0], wide(ty.dtype))?;
    let square = binary(b, BinaryOp::Mul, wide_x, wide_x)?;
    let mean = reduce(b, ReduceOp::Mean, square, (axis..ty.rank()).collect())?;
    let shifted = with_scalar(b, BinaryOp::Add, mean, epsilon)?;
    let inverse = unary(b, UnaryOp::Rsqrt, shifted)?;
    let y = binary(b, BinaryOp::Mul, wide_x, inverse)?;
    let y = affine(b, y, x.get(1).copied(), None)?;
    cast(b, y, ty.dtype)
}

/// Gives a `[C]` vector the shape that broadcasts along the channel axis of a tensor of `rank`.
pub(crate) fn along_channels(b: &mut Builder<'_>, v: Value, layout: Layout, rank: usize) -> Answer {
    let channels = b.ty(v).shape[0].clone();
    let trailing = rank - 1 - layout.channel_axis(rank);
    let shape: Shape = std::iter::once(channels)
        .chain(std::iter::repeat_n(Dim::from(1), trailing))
        .collect();
    as_shape(b, v, &shape)
}

/// `x · a + (bias - mean · a)` with `a = scale · rsqrt(variance + ε)`: two operations an element.
pub(super) fn batch_norm(b: &mut Builder<'_>, x: &[Value], epsilon: f64, layout: Layout) -> Answer {
    let ty = b.ty(x[0]).clone();
    let w = wide(ty.dtype);
    let [scale, bias, mean, variance] = [x[1], x[2], x[3], x[4]];
    let variance = cast(b, variance, w)?;
    let shifted = with_scalar(b, BinaryOp::Add, variance, epsilon)?;
    let inverse = unary(b, UnaryOp::Rsqrt, shifted)?;
    let scale = cast(b, scale, w)?;
    let a = binary(b, BinaryOp::Mul, scale, inverse)?;
    let mean = cast(b, mean, w)?;
    let moved = binary(b, BinaryOp::Mul, mean, a)?;
    let bias = cast(b, bias, w)?;
    let c = binary(b, BinaryOp::Sub, bias, moved)?;
    let a = along_channels(b, a, layout, ty.rank())?;
    let c = along_channels(b, c, layout, ty.rank())?;
    let wide_x = cast(b, x[0], w)?;
    let y = binary(b, BinaryOp::Mul, wide_x, a)?;
    let y = binary(b, BinaryOp::Add, y, c)?;
    cast(b, y, ty.dtype)
}

/// Reshapes to `[N, G, C/G · spatial]`, normalises the last axis, and scales by channel.
pub(super) fn group_norm(b: &mut Builder<'_>, x: &[Value], groups: i64, epsilon: f64) -> Answer {
    grouped(b, x, groups, |b, rows| {
        let axes = (2..b.ty(rows).rank()).collect();
        normalise(b, rows, axes, epsilon)
    })
}

/// The same, each group's row normalised by a [`Composite::LayerNorm`] that has no gains.
pub(super) fn group_norm_by_rows(b: &mut Builder<'_>, x: &[Value], groups: i64, epsilon: f64) -> Answer {
    let norm = Op::Composite(Composite::LayerNorm {
        axis: 2,
        epsilon: Scalar::Float(epsilon),
    });
    grouped(b, x, groups, |b, rows| b.emit(norm, &[rows]))
}

/// `normal([N, groups, …]) · scale + bias`, by channels, in x's type.
fn grouped(
    b: &mut Builder<'_>,
    x: &[Value],
    groups: i64,
    normal: impl FnOnce(&mut Builder<'_>, Value) -> Answer,
) -> Answer {
    let ty = b.ty(x[0]).clone();
    // A group's channels and positions stay axes of their own, so that they may be read in the order in which they lie.
    let of_group = ty.shape[1].exact_div(&Dim::from(groups));
    let rows = match of_group {
        Some(channels) => {
            let mut dims = ty.shape.0.clone();
            dims.splice(1..2, [Dim::from(groups), channels]);
            Shape(dims)
        }
        None => {
            let rest: Dim = ty.shape[1..].iter().cloned().product();
            Shape(vec![
                ty.shape[0].clone(),
                Dim::from(groups),
                rest.floor_div(&Dim::from(groups)),
            ])
        }
    };
    let wide_x = cast(b, x[0], wide(ty.dtype))?;
    let y = as_shape(b, wide_x, &rows)?;
    let y = normal(b, y)?;
    let y = as_shape(b, y, &ty.shape)?;
    let scale = along_channels(b, x[1], Layout::ChannelsFirst, ty.rank())?;
    let bias = along_channels(b, x[2], Layout::ChannelsFirst, ty.rank())?;
    let y = affine(b, y, Some(scale), Some(bias))?;
    cast(b, y, ty.dtype)
}

/// Windows of channels up to this are a sum of slices, which moves along with its readers' layout; larger ones are
/// pooled, so that a model's number does not decide how many nodes there are.
const MAX_SLICES: i64 = 16;

/// `x / (bias + α/size · Σ x²)^β`, the sum over a window of channels.
pub(super) fn local_response_norm(
    b: &mut Builder<'_>,
    x: Value,
    size: i64,
    alpha: f64,
    beta: f64,
    bias: f64,
) -> Answer {
    let ty = b.ty(x).clone();
    let wide_x = cast(b, x, wide(ty.dtype))?;
    let square = binary(b, BinaryOp::Mul, wide_x, wide_x)?;
    // Of a window beyond all channels on a side, what is there is left out: only zeros.
    let reach = ty.shape[1]
        .as_const()
        .map_or(i64::MAX, |channels| (channels - 1).max(0));
    let before = (size - 1) / 2;
    let (low, high) = (before.min(reach), (size - 1 - before).min(reach));
    let taken = low + high + 1;
    let (sum, terms) = if taken <= MAX_SLICES {
        (sum_of_slices(b, square, low, high)?, size as f64)
    } else {
        (mean_of_window(b, square, low, high)?, size as f64 / taken as f64)
    };
    let scaled = with_scalar(b, BinaryOp::Mul, sum, alpha / terms)?;
    let base = with_scalar(b, BinaryOp::Add, scaled, bias)?;
    let factor = with_scalar(b, BinaryOp::Pow, base, -beta)?;
    let y = binary(b, BinaryOp::Mul, wide_x, factor)?;
    cast(b, y, ty.dtype)
}

/// Sums each channel with `low` before it and `high` behind it, as shifted slices of the padded tensor.
fn sum_of_slices(b: &mut Builder<'_>, x: Value, low: i64, high: i64) -> Answer {
    let ty = b.ty(x).clone();
    let along = |n: i64| {
        let mut dims = vec![Dim::from(0); ty.rank()];
        dims[1] = Dim::from(n);
        dims
    };
    let padded = b.emit(
        Op::View(View::Pad {
            low: along(low),
            high: along(high),
            mode: PadMode::Constant(Scalar::Float(0.0)),
        }),
        &[x],
    )?;
    let slice = |b: &mut Builder<'_>, shift: i64| {
        let view = View::Slice {
            starts: along(shift),
            sizes: ty.shape.0.clone(),
            steps: vec![1; ty.rank()],
        };
        b.emit(Op::View(view), &[padded])
    };
    let mut sum = slice(b, 0)?;
    for shift in 1..=low + high {
        let part = slice(b, shift)?;
        sum = binary(b, BinaryOp::Add, sum, part)?;
    }
    Ok(sum)
}

/// The mean of each channel with `low` before it and `high` behind it (zeros beyond the ends count): an average pooling
/// whose one spatial axis is the channels, and whose channels are all that follows.
fn mean_of_window(b: &mut Builder<'_>, x: Value, low: i64, high: i64) -> Answer {
    let shape = b.ty(x).shape.clone();
    let rest: Dim = shape[2..].iter().cloned().product();
    let rows = as_shape(b, x, &Shape(vec![shape[0].clone(), shape[1].clone(), rest]))?;
    let pool = Pool {
        kind: PoolKind::Average { count_padding: true },
        size: vec![low + high + 1],
        window: Window {
            strides: vec![1],
            pad_low: vec![low],
            pad_high: vec![high],
            dilations: vec![1],
        },
        ceil: false,
        layout: Layout::ChannelsLast,
    };
    let mean = b.emit(Op::Pool(pool), &[rows])?;
    as_shape(b, mean, &shape)
}
