//! Normalisations.

use ir::op::{BinaryOp, Composite, Layout, ReduceOp, UnaryOp};
use ir::{DType, Dim, Scalar, Shape};

use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("BatchNormalization", 1, batch_norm),
    op("GroupNormalization", 18, group_norm),
    op("InstanceNormalization", 1, instance_norm),
    op("LRN", 1, local_response_norm),
    op("LayerNormalization", 17, layer_norm),
    op("LpNormalization", 1, lp_norm),
    op("MeanVarianceNormalization", 9, mean_variance_norm),
    op("RMSNormalization", 23, rms_norm),
    // Before opset 17 ONNX Runtime wrote these into the default domain.
    op("SimplifiedLayerNormalization", 1, rms_norm),
    microsoft("LayerNormalization", layer_norm),
    microsoft("SimplifiedLayerNormalization", rms_norm),
    microsoft("SkipLayerNormalization", skip_layer_norm),
    microsoft("SkipSimplifiedLayerNormalization", skip_rms_norm),
];

fn epsilon(node: &Node<'_>, default: f32) -> Step<Scalar> {
    Ok(Scalar::Float(node.float_or("epsilon", f64::from(default))?))
}

/// The inference form. Statistics may be of a wider type than the data.
fn batch_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    if node.opset >= 14 && node.flag("training_mode")? {
        return training_batch_norm(node);
    }
    if node.opset < 9 && node.int_or("spatial", 1)? != 1 {
        return node.unsupported("batch normalisation with statistics for each element (spatial = 0)");
    }
    node.only_outputs(1, "the running statistics of BatchNormalization")?;
    let shape = node.shape(x);
    if shape.rank() < 2 {
        return node.rank_error(0, "at least 2");
    }
    let dtype = node.require_float(0)?;
    let mut operands = vec![x];
    let mut wide = dtype;
    for index in 1..5 {
        let value = node.input(index)?;
        if node.rank(value) != 1 {
            return node.rank_error(index, "1");
        }
        node.build.require_equal(&node.shape(value)[0].clone(), &shape[1])?;
        if node.dtype(value).bits() > wide.bits() {
            wide = node.dtype(value);
        }
        operands.push(value);
    }
    for value in &mut operands {
        *value = node.cast(*value, wide)?;
    }
    let epsilon = epsilon(node, 1e-5)?;
    let result = node.composite(
        Composite::BatchNorm {
            epsilon,
            layout: Layout::ChannelsFirst,
        },
        &operands,
    )?;
    Ok(vec![node.cast(result, dtype)?])
}

/// Normalises by the batch's own statistics; further results are the running ones, moved towards them.
fn training_batch_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = node.require_float(0)?;
    let shape = node.shape(x);
    if shape.rank() < 2 {
        return node.rank_error(0, "at least 2");
    }
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = node.cast(x, wide)?;
    let axes: Vec<usize> = (0..shape.rank()).filter(|axis| *axis != 1).collect();
    let mean = node.reduce(ReduceOp::Mean, x, axes.clone(), true)?;
    let centred = node.binary(BinaryOp::Sub, x, mean)?;
    let square = node.binary(BinaryOp::Mul, centred, centred)?;
    let variance = node.reduce(ReduceOp::Mean, square, axes, true)?;
    let epsilon = node.float_or("epsilon", f64::from(1e-5f32))?;
    let shifted = node.with_scalar(BinaryOp::Add, variance, epsilon)?;
    let inverse = node.unary(UnaryOp::Rsqrt, shifted)?;
    let mut result = node.binary(BinaryOp::Mul, centred, inverse)?;
    let mut column = vec![Dim::Const(1); shape.rank()];
    column[1] = shape[1].clone();
    for (index, op) in [(1, BinaryOp::Mul), (2, BinaryOp::Add)] {
        let value = node.cast(node.input(index)?, wide)?;
        let value = node.reshape(value, column.clone())?;
        result = node.binary(op, result, value)?;
    }
    let mut results = vec![node.cast(result, dtype)?];
    let momentum = node.float_or("momentum", f64::from(0.9f32))?;
    for (index, own) in [(3, mean), (4, variance)] {
        let before = node.input(index)?;
        let kept = node.with_scalar(BinaryOp::Mul, before, momentum)?;
        let own = node.reshape(own, [shape[1].clone()])?;
        let own = node.cast(own, node.dtype(before))?;
        let new = node.with_scalar(BinaryOp::Mul, own, 1.0 - momentum)?;
        results.push(node.binary(BinaryOp::Add, kept, new)?);
    }
    Ok(results)
}

/// Broadcasts a scale or bias to the normalised dims.
fn to_row(node: &mut Node<'_>, value: Val, row: &[Dim]) -> Step<Val> {
    let shape: Shape = row.into();
    let from = node.shape(value);
    let wide = node.build.broadcast(&from, &shape)?;
    if wide.rank() > shape.rank() {
        return node.unsupported(format!("a scale of shape {from} for rows of shape {shape}"));
    }
    node.broadcast(value, wide)
}

/// Refuses statistics as outputs, which only training reads.
fn no_statistics(node: &Node<'_>) -> Step<()> {
    node.only_outputs(1, "the mean and deviation outputs of a normalisation")
}

/// What is added to the variance where the attribute is left out, by the schemas of ONNX and of ONNX Runtime's own ops.
const EPSILON: f32 = 1e-5;
const SKIP_EPSILON: f32 = 1e-12;

fn normalise(node: &mut Node<'_>, x: Val, scale: Option<Val>, bias: Option<Val>, rms: bool, default: f32) -> Step<Val> {
    let shape = node.shape(x);
    let axis = node.int_or("axis", -1)?;
    let axis = node.axis(axis, shape.rank())?;
    let epsilon = epsilon(node, default)?;
    let row = &shape[axis..];
    let dtype = node.dtype(x);
    // The data may be narrower than the scale (f16 with f32 weights); then the wider type computes.
    let wide = scale
        .into_iter()
        .chain(bias)
        .map(|v| node.dtype(v))
        .fold(dtype, |w, d| if d.bits() > w.bits() { d } else { w });
    let mut operands = vec![node.cast(x, wide)?];
    if let Some(scale) = scale {
        let scale = to_row(node, scale, row)?;
        operands.push(node.cast(scale, wide)?);
    } else if bias.is_some() {
        let one = node.scalar(wide, 1.0);
        operands.push(node.broadcast(one, row.into())?);
    }
    if let Some(bias) = bias.filter(|_| !rms) {
        let bias = to_row(node, bias, row)?;
        operands.push(node.cast(bias, wide)?);
    }
    let composite = if rms {
        Composite::RmsNorm { axis, epsilon }
    } else {
        Composite::LayerNorm { axis, epsilon }
    };
    let result = node.composite(composite, &operands)?;
    node.cast(result, dtype)
}

fn layer_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale, bias) = (node.input(0)?, node.optional(1), node.optional(2));
    let result = normalise(node, x, scale, bias, false, EPSILON)?;
    if !node.wants(1) && !node.wants(2) {
        return Ok(vec![result]);
    }
    let [mean, inverse] = statistics(node, x, false, EPSILON)?;
    Ok(vec![result, mean, inverse])
}

/// The mean of rows and the inverse of their deviation, in the stash type: f32 unless the attribute says otherwise.
/// Without the mean, the deviation is from 0.
fn statistics(node: &mut Node<'_>, x: Val, rms: bool, default: f32) -> Step<[Val; 2]> {
    let axis = node.int_or("axis", -1)?;
    let axes: Vec<usize> = (node.axis(axis, node.rank(x))?..node.rank(x)).collect();
    let stash = dtype_of(node.int_or("stash_type", 1)?)?;
    let x = node.cast(x, stash)?;
    let mean = node.reduce(ReduceOp::Mean, x, axes.clone(), true)?;
    let centred = match rms {
        true => x,
        false => node.binary(BinaryOp::Sub, x, mean)?,
    };
    let square = node.binary(BinaryOp::Mul, centred, centred)?;
    let variance = node.reduce(ReduceOp::Mean, square, axes, true)?;
    let epsilon = node.float_or("epsilon", f64::from(default))?;
    let variance = node.with_scalar(BinaryOp::Add, variance, epsilon)?;
    Ok([mean, node.unary(UnaryOp::Rsqrt, variance)?])
}

fn rms_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    no_statistics(node)?;
    let (x, scale) = (node.input(0)?, node.optional(1));
    Ok(vec![normalise(node, x, scale, None, true, EPSILON)?])
}

/// The sum of input, skip and optional bias, normalised; the fourth output is the sum.
fn skip(node: &mut Node<'_>, bias: usize, scale: Option<Val>, shift: Option<Val>, rms: bool) -> Step<Vec<Val>> {
    let (x, other) = (node.input(0)?, node.input(1)?);
    let mut sum = node.binary(BinaryOp::Add, x, other)?;
    if let Some(bias) = node.optional(bias) {
        sum = node.binary(BinaryOp::Add, sum, bias)?;
    }
    let result = normalise(node, sum, scale, shift, rms, SKIP_EPSILON)?;
    let [mean, inverse] = match node.wants(1) || node.wants(2) {
        true => statistics(node, sum, rms, SKIP_EPSILON)?,
        false => [result; 2],
    };
    Ok(vec![result, mean, inverse, sum])
}

fn skip_layer_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (scale, shift) = (node.optional(2), node.optional(3));
    skip(node, 4, scale, shift, false)
}

fn skip_rms_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let scale = node.optional(2);
    skip(node, 3, scale, None, true)
}

fn instance_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let shape = node.shape(x);
    let Some(channels) = shape.get(1) else {
        return node.rank_error(0, "at least 3");
    };
    let Some(groups) = channels.as_const() else {
        return node.unsupported(format!(
            "instance normalisation over the varying number of channels {channels}"
        ));
    };
    let epsilon = epsilon(node, 1e-5)?;
    Ok(vec![node.composite(
        Composite::GroupNorm { groups, epsilon },
        &[x, scale, bias],
    )?])
}

/// Scale and bias are one a group before opset 21, one a channel since.
fn group_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, mut scale, mut bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let groups = node.int("num_groups")?;
    let groups = node.required("num_groups", groups)?;
    let shape = node.shape(x);
    let Some(channels) = shape.get(1).cloned() else {
        return node.rank_error(0, "at least 3");
    };
    if groups < 1 || channels.exact_div(&Dim::Const(groups)).is_none() {
        return node.bad("num_groups", groups, format!("a divisor of {channels}"));
    }
    if node.opset < 21 && !channels.is(groups) {
        let size = channels.exact_div(&Dim::Const(groups)).unwrap_or(Dim::Const(1));
        for value in [&mut scale, &mut bias] {
            let column = node.reshape(*value, [groups, 1])?;
            let wide = node.broadcast(column, [Dim::Const(groups), size.clone()].into())?;
            *value = node.reshape(wide, [channels.clone()])?;
        }
    }
    let epsilon = epsilon(node, 1e-5)?;
    Ok(vec![node.composite(
        Composite::GroupNorm { groups, epsilon },
        &[x, scale, bias],
    )?])
}

fn local_response_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let size = node.int("size")?;
    let size = node.required("size", size)?;
    if !(1..=i64::from(i32::MAX)).contains(&size) {
        return node.bad("size", size, format!("a number of channels from 1 to {}", i32::MAX));
    }
    if node.rank(x) < 2 {
        return node.rank_error(0, "at least 2");
    }
    let number = |name, default: f32| node.float_or(name, f64::from(default)).map(Scalar::Float);
    let (alpha, beta, bias) = (number("alpha", 1e-4)?, number("beta", 0.75)?, number("bias", 1.0)?);
    Ok(vec![node.composite(
        Composite::LocalResponseNorm {
            size,
            alpha,
            beta,
            bias,
        },
        &[x],
    )?])
}

/// `x / ‖x‖ₚ` along an axis, 0 where the norm is 0.
fn lp_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let axis = node.int_or("axis", -1)?;
    let axis = node.axis(axis, node.rank(x))?;
    let norm = match node.int_or("p", 2)? {
        1 => {
            let size = node.unary(UnaryOp::Abs, x)?;
            node.reduce(ReduceOp::Sum, size, vec![axis], true)?
        }
        2 => {
            let square = node.binary(BinaryOp::Mul, x, x)?;
            let sum = node.reduce(ReduceOp::Sum, square, vec![axis], true)?;
            node.unary(UnaryOp::Sqrt, sum)?
        }
        other => return node.bad("p", other, "1 or 2"),
    };
    let none = node.with_scalar(BinaryOp::Eq, norm, 0.0)?;
    let one = node.scalar(node.dtype(x), 1.0);
    let divisor = node.select(none, one, norm)?;
    Ok(vec![node.binary(BinaryOp::Div, x, divisor)?])
}

/// `(x − mean) / (√(mean(x²) − mean²) + 1e-9)`, the variance computed from the centred data.
fn mean_variance_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let axes = node.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = node.axis_list(&axes, node.rank(x))?;
    let dtype: DType = node.require_float(0)?;
    let mean = node.reduce(ReduceOp::Mean, x, axes.clone(), true)?;
    let centred = node.binary(BinaryOp::Sub, x, mean)?;
    let square = node.binary(BinaryOp::Mul, centred, centred)?;
    let variance = node.reduce(ReduceOp::Mean, square, axes, true)?;
    let deviation = node.unary(UnaryOp::Sqrt, variance)?;
    let small = node.scalar(dtype, 1e-9);
    let divisor = node.binary(BinaryOp::Add, deviation, small)?;
    Ok(vec![node.binary(BinaryOp::Div, centred, divisor)?])
}
