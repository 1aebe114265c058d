//! Resizing along an axis whose size is open: positions and weights are computed in each run.

use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim, Shape};

use super::{Axis, Mode, Nearest, Transform};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::known::Known;
use crate::onnx::node::Node;

/// Positions are computed in f32, as ONNX Runtime does.
const DTYPE: DType = DType::F32;

/// Resizes one axis.
pub(super) fn resize(node: &mut Node<'_>, x: Val, axis: &Axis, mode: Mode, transform: Transform) -> Step<Val> {
    let at = positions(node, axis, transform)?;
    match mode {
        Mode::Nearest(how) => {
            let nearest = match how {
                Nearest::RoundPreferFloor => {
                    let before = node.with_scalar(BinaryOp::Sub, at, 0.5)?;
                    node.unary(UnaryOp::Ceil, before)?
                }
                Nearest::RoundPreferCeil => {
                    let after = node.with_scalar(BinaryOp::Add, at, 0.5)?;
                    node.unary(UnaryOp::Floor, after)?
                }
                Nearest::Floor => node.unary(UnaryOp::Floor, at)?,
                Nearest::Ceil => node.unary(UnaryOp::Ceil, at)?,
            };
            pick(node, x, axis, nearest)
        }
        Mode::Linear => {
            let at = clamped(node, axis, at)?;
            let low = node.unary(UnaryOp::Floor, at)?;
            let high = node.with_scalar(BinaryOp::Add, low, 1.0)?;
            let above = node.binary(BinaryOp::Sub, at, low)?;
            let one = node.scalar(DTYPE, 1.0);
            let below = node.binary(BinaryOp::Sub, one, above)?;
            weighted(node, x, axis, &[(low, below), (high, above)])
        }
        Mode::Cubic {
            exclude_outside: true, ..
        } => node.unsupported(format!(
            "resizing the varying size {} to {} by cubic curves with exclude_outside",
            axis.input, axis.output
        )),
        Mode::Cubic { a, .. } => {
            let low = node.unary(UnaryOp::Floor, at)?;
            let mut taps = Vec::new();
            for k in -1..=2i32 {
                let position = node.with_scalar(BinaryOp::Add, low, f64::from(k))?;
                let distance = node.binary(BinaryOp::Sub, at, position)?;
                let distance = node.unary(UnaryOp::Abs, distance)?;
                // Keys' kernel: one cubic within a distance of 1, another beyond.
                let curve = match k {
                    0 | 1 => [a + 2.0, -(a + 3.0), 0.0, 1.0],
                    _ => [a, -5.0 * a, 8.0 * a, -4.0 * a],
                };
                let mut weight = node.with_scalar(BinaryOp::Mul, distance, curve[0])?;
                for (degree, c) in curve.iter().enumerate().skip(1) {
                    weight = node.with_scalar(BinaryOp::Add, weight, *c)?;
                    if degree < 3 {
                        weight = node.binary(BinaryOp::Mul, weight, distance)?;
                    }
                }
                taps.push((position, weight));
            }
            weighted(node, x, axis, &taps)
        }
    }
}

fn size(node: &mut Node<'_>, size: Dim) -> Val {
    node.known(Known::float(DTYPE, size))
}

/// Where each element of the result lies on the axis, `[output]`.
fn positions(node: &mut Node<'_>, axis: &Axis, transform: Transform) -> Step<Val> {
    let i = node.iota([axis.output.clone()].into(), 0, DTYPE)?;
    let (n, m) = (size(node, axis.input.clone()), size(node, axis.output.clone()));
    let scale = match axis.scale {
        0.0 => node.binary(BinaryOp::Div, m, n)?,
        scale => node.scalar(DTYPE, scale),
    };
    let centred = |node: &mut Node<'_>| -> Step<Val> {
        let middle = node.with_scalar(BinaryOp::Add, i, 0.5)?;
        let middle = node.binary(BinaryOp::Div, middle, scale)?;
        node.with_scalar(BinaryOp::Sub, middle, 0.5)
    };
    match transform {
        Transform::HalfPixel => centred(node),
        Transform::PytorchHalfPixel => {
            // 0 where there is one element.
            let centred = centred(node)?;
            let others = node.with_scalar(BinaryOp::Sub, m, 1.0)?;
            let any = node.with_scalar(BinaryOp::Min, others, 1.0)?;
            node.binary(BinaryOp::Mul, centred, any)
        }
        Transform::HalfPixelSymmetric => {
            // n / 2 · (1 − m / (scale · n))
            let centred = centred(node)?;
            let exact = node.binary(BinaryOp::Mul, scale, n)?;
            let adjustment = node.binary(BinaryOp::Div, m, exact)?;
            let one = node.scalar(DTYPE, 1.0);
            let missing = node.binary(BinaryOp::Sub, one, adjustment)?;
            let half = node.with_scalar(BinaryOp::Div, n, 2.0)?;
            let shift = node.binary(BinaryOp::Mul, half, missing)?;
            node.binary(BinaryOp::Add, centred, shift)
        }
        Transform::AlignCorners => {
            let steps = node.with_scalar(BinaryOp::Sub, m, 1.0)?;
            let steps = node.with_scalar(BinaryOp::Max, steps, 1.0)?;
            let span = node.with_scalar(BinaryOp::Sub, n, 1.0)?;
            let along = node.binary(BinaryOp::Mul, i, span)?;
            node.binary(BinaryOp::Div, along, steps)
        }
        Transform::Asymmetric => node.binary(BinaryOp::Div, i, scale),
    }
}

/// Positions that are on the axis.
fn clamped(node: &mut Node<'_>, axis: &Axis, at: Val) -> Step<Val> {
    let last = size(node, axis.input.clone() - 1);
    let at = node.with_scalar(BinaryOp::Max, at, 0.0)?;
    node.binary(BinaryOp::Min, at, last)
}

/// The elements at whole positions; the nearest ones, where a position is outside.
fn pick(node: &mut Node<'_>, x: Val, axis: &Axis, at: Val) -> Step<Val> {
    let at = clamped(node, axis, at)?;
    let at = node.cast(at, DType::I64)?;
    node.take(x, axis.axis, at)
}

fn weighted(node: &mut Node<'_>, x: Val, axis: &Axis, taps: &[(Val, Val)]) -> Step<Val> {
    let dtype = node.dtype(x);
    if !dtype.is_float() {
        node.require_float(0)?;
    }
    let mut sum: Option<Val> = None;
    for (at, weight) in taps {
        let part = pick(node, x, axis, *at)?;
        let mut along = vec![Dim::Const(1); node.rank(x)];
        along[axis.axis] = axis.output.clone();
        let weight = node.cast(*weight, dtype)?;
        let weight = node.reshape(weight, Shape(along))?;
        let part = node.binary(BinaryOp::Mul, part, weight)?;
        sum = Some(match sum {
            Some(sum) => node.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    Ok(sum.unwrap_or(x))
}
