//! Losses of classes, as models for training have them.

use ir::op::{BinaryOp, Composite, Gather, Op, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("NegativeLogLikelihoodLoss", 12, |n| {
        let x = n.input(0)?;
        Ok(vec![likelihood(n, x)?])
    }),
    op("SoftmaxCrossEntropyLoss", 12, cross_entropy),
];

fn cross_entropy(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    if node.rank(x) < 2 {
        return node.rank_error(0, "at least 2");
    }
    let log = node.composite(Composite::LogSoftmax { axis: 1 }, &[x])?;
    Ok(vec![likelihood(node, log)?, log])
}

/// `−w[t] · x[n, t, …]`; targets that are to be ignored count nothing.
fn likelihood(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let target = node.input(1)?;
    let (shape, dtype) = (node.shape(x), node.require_float(0)?);
    if shape.rank() < 2 || node.rank(target) + 1 != shape.rank() {
        return node.rank_error(1, "one less than the scores'");
    }
    let mut target = node.cast(target, DType::I64)?;
    let mut counted = None;
    if let Some(ignored) = node.int("ignore_index")? {
        let ignored = node.int_scalar(DType::I64, ignored);
        let counts = node.binary(BinaryOp::Ne, target, ignored)?;
        let zero = node.int_scalar(DType::I64, 0);
        target = node.select(counts, target, zero)?;
        counted = Some(counts);
    }
    let places = node.shape(target);
    let mut dims = places.0.clone();
    dims.insert(1, Dim::Const(1));
    let at = node.reshape(target, dims)?;
    let picked = node.add(Op::Gather(Gather::Elements { axis: 1 }), &[x, at])?;
    let picked = node.reshape(picked, places.clone())?;
    let mut loss = node.unary(UnaryOp::Neg, picked)?;
    let weights = match node.optional(2) {
        Some(weights) => Some(node.take(weights, 0, target)?),
        None => None,
    };
    let weights = match (weights, counted) {
        (Some(weights), Some(counts)) => {
            let zero = node.scalar(dtype, 0.0);
            Some(node.select(counts, weights, zero)?)
        }
        (None, Some(counts)) => Some(node.cast(counts, dtype)?),
        (weights, None) => weights,
    };
    if let Some(weights) = weights {
        loss = node.binary(BinaryOp::Mul, loss, weights)?;
    }
    let axes: Vec<usize> = (0..places.rank()).collect();
    match (node.text("reduction", "mean")?.as_str(), weights) {
        ("none", _) => Ok(loss),
        ("sum", _) => node.reduce(ReduceOp::Sum, loss, axes, false),
        ("mean", None) => node.reduce(ReduceOp::Mean, loss, axes, false),
        ("mean", Some(weights)) => {
            let sum = node.reduce(ReduceOp::Sum, loss, axes.clone(), false)?;
            let total = node.reduce(ReduceOp::Sum, weights, axes, false)?;
            node.binary(BinaryOp::Div, sum, total)
        }
        (other, _) => node.bad("reduction", other, "none, sum or mean"),
    }
}
