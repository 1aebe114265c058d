//! Ops of ONNX Runtime's domain that its optimiser makes of several, in files that it saved.

use ir::op::{BinaryOp, Composite, Layout, ReduceOp, UnaryOp};
use ir::{DType, Dim, Scalar, Shape};

use super::{Row, conv, matmul, microsoft};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    microsoft("BiasAdd", bias_add),
    microsoft("EmbedLayerNormalization", embed),
    microsoft("FusedConv", fused_conv),
    microsoft("FusedGemm", fused_gemm),
    microsoft("GroupNorm", group_norm),
    microsoft("NhwcConv", channels_last_conv),
    microsoft("TransposeMatMul", matmul::fused_matmul),
];

/// An activation by ONNX's name with its numbers, where they are given.
fn activated(node: &mut Node<'_>, x: Val, name: &str, numbers: &[Option<f64>]) -> Step<Val> {
    let number = |at: usize, default: f64| numbers.get(at).copied().flatten().unwrap_or(default);
    match name {
        "" => Ok(x),
        "Relu" => node.unary(UnaryOp::Relu, x),
        "Sigmoid" => node.unary(UnaryOp::Sigmoid, x),
        "Tanh" => node.unary(UnaryOp::Tanh, x),
        "Softplus" => node.unary(UnaryOp::Softplus, x),
        "HardSwish" => node.unary(UnaryOp::HardSwish, x),
        "LeakyRelu" => {
            let scaled = node.with_scalar(BinaryOp::Mul, x, number(0, f64::from(0.01f32)))?;
            let below = node.with_scalar(BinaryOp::Lt, x, 0.0)?;
            node.select(below, scaled, x)
        }
        "Clip" => {
            let x = node.with_scalar(BinaryOp::Max, x, number(0, f64::NEG_INFINITY))?;
            node.with_scalar(BinaryOp::Min, x, number(1, f64::INFINITY))
        }
        "HardSigmoid" => {
            let line = node.with_scalar(BinaryOp::Mul, x, number(0, f64::from(0.2f32)))?;
            let line = node.with_scalar(BinaryOp::Add, line, number(1, 0.5))?;
            let line = node.with_scalar(BinaryOp::Max, line, 0.0)?;
            node.with_scalar(BinaryOp::Min, line, 1.0)
        }
        other => node.bad("activation", other, "an activation that ONNX Runtime fuses"),
    }
}

/// A convolution, to which another tensor may be added before its activation.
fn fused_conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut result = conv::conv(node)?[0];
    if let Some(sum) = node.optional(3) {
        result = node.binary(BinaryOp::Add, result, sum)?;
    }
    let name = node.text("activation", "")?;
    let numbers: Vec<Option<f64>> = (node.floats("activation_params")?.unwrap_or_default().into_iter())
        .map(Some)
        .collect();
    Ok(vec![activated(node, result, &name, &numbers)?])
}

fn fused_gemm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let result = matmul::gemm(node)?[0];
    let name = node.text("activation", "")?;
    let numbers = [node.float("activation_alpha")?, node.float("activation_beta")?];
    Ok(vec![activated(node, result, &name, &numbers)?])
}

/// A convolution of images whose channels are the last axis; filters are as ever.
fn channels_last_conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let rank = node.rank(x);
    if rank < 3 {
        return node.rank_error(0, "at least 3");
    }
    let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    node.inputs[0] = Some(node.transpose(x, first)?);
    let result = conv::conv(node)?[0];
    Ok(vec![node.transpose(result, last)?])
}

/// `x + bias + skip`, of images whose channels are the last axis.
fn bias_add(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, bias, skip) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let sum = node.binary(BinaryOp::Add, x, bias)?;
    Ok(vec![node.binary(BinaryOp::Add, sum, skip)?])
}

fn group_norm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (mut x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let groups = node.int("groups")?;
    let groups = node.required("groups", groups)?;
    let (last, rank) = (node.int_or("channels_last", 1)? != 0, node.rank(x));
    if rank < 3 {
        return node.rank_error(0, "at least 3");
    }
    if last {
        x = node.transpose(x, [0, rank - 1].into_iter().chain(1..rank - 1).collect())?;
    }
    let channels = node.shape(x)[Layout::ChannelsFirst.channel_axis(rank)].clone();
    if groups < 1 || channels.exact_div(&Dim::Const(groups)).is_none() {
        return node.bad("groups", groups, format!("a divisor of {channels}"));
    }
    let dtype = node.require_float(0)?;
    let (scale, bias) = (node.cast(scale, dtype)?, node.cast(bias, dtype)?);
    let epsilon = Scalar::Float(node.float_or("epsilon", f64::from(1e-5f32))?);
    let mut result = node.composite(Composite::GroupNorm { groups, epsilon }, &[x, scale, bias])?;
    if node.int_or("activation", 0)? == 1 {
        result = node.unary(UnaryOp::Silu, result)?;
    }
    if last {
        result = node.transpose(result, [0].into_iter().chain(2..rank).chain([1]).collect())?;
    }
    Ok(vec![result])
}

/// The sum of the embeddings of words, positions and segments, normalised; then how many words of each row count.
fn embed(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (words, table, positions) = (node.input(0)?, node.input(2)?, node.input(3)?);
    let shape = node.shape(words);
    let [batch, length] = &*shape else {
        return node.rank_error(0, "2");
    };
    let (batch, length) = (batch.clone(), length.clone());
    let mut sum = node.take(table, 0, words)?;
    let places = match node.optional(8) {
        Some(given) => node.take(positions, 0, given)?,
        None => node.slice_axis(positions, 0, 0i64, length)?,
    };
    sum = node.binary(BinaryOp::Add, sum, places)?;
    if let (Some(segments), Some(given)) = (node.optional(4), node.optional(1)) {
        let segments = node.take(segments, 0, given)?;
        sum = node.binary(BinaryOp::Add, sum, segments)?;
    }
    let (scale, bias) = (node.input(5)?, node.input(6)?);
    let epsilon = Scalar::Float(node.float_or("epsilon", f64::from(1e-12f32))?);
    let result = node.composite(Composite::LayerNorm { axis: 2, epsilon }, &[sum, scale, bias])?;
    let counts = match node.optional(7) {
        Some(mask) => {
            let seen = node.cast(mask, DType::I32)?;
            node.reduce(ReduceOp::Sum, seen, vec![1], false)?
        }
        None => {
            let zero = node.int_scalar(DType::I32, 0);
            node.broadcast(zero, Shape(vec![batch]))?
        }
    };
    Ok(vec![result, counts, sum])
}
