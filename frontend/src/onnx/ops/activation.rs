//! Activations and softmax.

use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Celu", 12, celu),
    op("Elu", 1, elu),
    op("Gelu", 20, gelu),
    op("HardSigmoid", 1, hard_sigmoid),
    op("HardSwish", 14, |n| unary(n, UnaryOp::HardSwish)),
    op("Hardmax", 1, |n| rows(n, hardmax)),
    op("LeakyRelu", 1, leaky_relu),
    op("LogSoftmax", 1, |n| {
        rows(n, |n, x, axis| n.composite(Composite::LogSoftmax { axis }, &[x]))
    }),
    op("Mish", 18, |n| unary(n, UnaryOp::Mish)),
    op("PRelu", 1, p_relu),
    op("Relu", 1, |n| unary(n, UnaryOp::Relu)),
    op("Selu", 1, selu),
    op("Shrink", 9, shrink),
    op("Sigmoid", 1, |n| unary(n, UnaryOp::Sigmoid)),
    op("Softmax", 1, softmax),
    op("Softplus", 1, |n| unary(n, UnaryOp::Softplus)),
    op("Softsign", 1, softsign),
    op("SwiGLU", 28, swiglu),
    op("Swish", 24, |n| {
        let alpha = n.float_or("alpha", 1.0)?;
        scaled_silu(n, alpha)
    }),
    op("ThresholdedRelu", 10, thresholded_relu),
    microsoft("FastGelu", fast_gelu),
    microsoft("BiasGelu", bias_gelu),
    microsoft("Gelu", |n| unary(n, UnaryOp::Gelu)),
    microsoft("QuickGelu", quick_gelu),
];

pub(super) fn softmax(node: &mut Node<'_>) -> Step<Vec<Val>> {
    rows(node, |n, x, axis| n.composite(Composite::Softmax { axis }, &[x]))
}

pub(super) fn unary(node: &mut Node<'_>, op: UnaryOp) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    Ok(vec![node.unary(op, x)?])
}

fn gelu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    match node.text("approximate", "none")?.as_str() {
        "none" => unary(node, UnaryOp::Gelu),
        "tanh" => unary(node, UnaryOp::GeluTanh),
        other => node.bad("approximate", other, "none or tanh"),
    }
}

fn with_bias(node: &mut Node<'_>) -> Step<Val> {
    let x = node.input(0)?;
    match node.optional(1) {
        Some(bias) => node.binary(BinaryOp::Add, x, bias),
        None => Ok(x),
    }
}

fn fast_gelu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = with_bias(node)?;
    Ok(vec![node.unary(UnaryOp::GeluTanh, x)?])
}

fn bias_gelu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = with_bias(node)?;
    Ok(vec![node.unary(UnaryOp::Gelu, x)?])
}

/// `x · sigmoid(α·x)`
fn scaled_silu(node: &mut Node<'_>, alpha: f64) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    if alpha == 1.0 {
        return Ok(vec![node.unary(UnaryOp::Silu, x)?]);
    }
    let scaled = node.with_scalar(BinaryOp::Mul, x, alpha)?;
    let gate = node.unary(UnaryOp::Sigmoid, scaled)?;
    Ok(vec![node.binary(BinaryOp::Mul, x, gate)?])
}

/// `swish(a) · b`
fn swiglu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let alpha = node.float_or("alpha", 1.0)?;
    let other = node.input(1)?;
    let gate = scaled_silu(node, alpha)?[0];
    Ok(vec![node.binary(BinaryOp::Mul, gate, other)?])
}

fn quick_gelu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let alpha = node.float_or("alpha", f64::from(1.702f32))?;
    scaled_silu(node, alpha)
}

/// `x < 0 ? negative : x`, which keeps NaN.
fn below_zero(node: &mut Node<'_>, x: Val, negative: Val) -> Step<Val> {
    let below = node.with_scalar(BinaryOp::Lt, x, 0.0)?;
    node.select(below, negative, x)
}

pub(super) fn leaky_relu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let alpha = node.float_or("alpha", f64::from(0.01f32))?;
        let scaled = node.with_scalar(BinaryOp::Mul, x, alpha)?;
        below_zero(node, x, scaled)
    })
}

fn p_relu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, mut slope) = (node.input(0)?, node.input(1)?);
    // Before opset 7 there is one slope a channel.
    if node.opset < 7 && node.rank(slope) == 1 && node.rank(x) > 2 {
        let mut dims = node.shape(slope).0;
        dims.resize(node.rank(x) - 1, Dim::Const(1));
        slope = node.reshape(slope, dims)?;
    }
    let scaled = node.binary(BinaryOp::Mul, x, slope)?;
    Ok(vec![below_zero(node, x, scaled)?])
}

fn elu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let alpha = node.float_or("alpha", 1.0)?;
        let power = node.unary(UnaryOp::Expm1, x)?;
        let scaled = node.with_scalar(BinaryOp::Mul, power, alpha)?;
        below_zero(node, x, scaled)
    })
}

fn selu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let alpha = node.float_or("alpha", f64::from(1.673_263_2_f32))?;
        let gamma = node.float_or("gamma", f64::from(1.050_701_f32))?;
        let power = node.unary(UnaryOp::Expm1, x)?;
        let scaled = node.with_scalar(BinaryOp::Mul, power, alpha)?;
        let either = below_zero(node, x, scaled)?;
        node.with_scalar(BinaryOp::Mul, either, gamma)
    })
}

/// `max(0, x) + min(0, α·(exp(x/α) − 1))`, of which one term is 0.
fn celu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let alpha = node.float_or("alpha", 1.0)?;
        let scaled = node.with_scalar(BinaryOp::Div, x, alpha)?;
        let power = node.unary(UnaryOp::Expm1, scaled)?;
        let power = node.with_scalar(BinaryOp::Mul, power, alpha)?;
        let negative = node.with_scalar(BinaryOp::Min, power, 0.0)?;
        let positive = node.unary(UnaryOp::Relu, x)?;
        node.binary(BinaryOp::Add, positive, negative)
    })
}

fn hard_sigmoid(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let (alpha, beta) = (node.float_or("alpha", f64::from(0.2f32))?, node.float_or("beta", 0.5)?);
        let line = node.with_scalar(BinaryOp::Mul, x, alpha)?;
        let line = node.with_scalar(BinaryOp::Add, line, beta)?;
        let line = node.with_scalar(BinaryOp::Max, line, 0.0)?;
        node.with_scalar(BinaryOp::Min, line, 1.0)
    })
}

fn softsign(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let size = node.unary(UnaryOp::Abs, x)?;
        let size = node.with_scalar(BinaryOp::Add, size, 1.0)?;
        node.binary(BinaryOp::Div, x, size)
    })
}

fn thresholded_relu(node: &mut Node<'_>) -> Step<Vec<Val>> {
    in_floats(node, |node, x| {
        let alpha = node.float_or("alpha", 1.0)?;
        let above = node.with_scalar(BinaryOp::Gt, x, alpha)?;
        let zero = node.scalar(node.dtype(x), 0.0);
        node.select(above, x, zero)
    })
}

/// `x < −λ ? x + bias : x > λ ? x − bias : 0`
fn shrink(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let (bias, lambd) = (node.float_or("bias", 0.0)?, node.float_or("lambd", 0.5)?);
    if node.holds(node.dtype(x), bias) && !node.dtype(x).is_float() {
        // Whole numbers are compared with whole numbers: `x < −0.5` is `x < 0`.
        return Ok(vec![shrink_by(node, x, bias, (-lambd).ceil(), lambd.floor())?]);
    }
    in_floats(node, |node, x| shrink_by(node, x, bias, -lambd, lambd))
}

fn shrink_by(node: &mut Node<'_>, x: Val, bias: f64, low: f64, high: f64) -> Step<Val> {
    let below = node.with_scalar(BinaryOp::Lt, x, low)?;
    let above = node.with_scalar(BinaryOp::Gt, x, high)?;
    let (raised, lowered) = (
        node.with_scalar(BinaryOp::Add, x, bias)?,
        node.with_scalar(BinaryOp::Sub, x, bias)?,
    );
    let zero = node.scalar(node.dtype(x), 0.0);
    let upper = node.select(above, lowered, zero)?;
    node.select(below, raised, upper)
}

/// Computes an op with float attributes on an integer input in `f64`, and cuts the fraction of the result off; on a
/// float input it computes as it is.
fn in_floats(node: &mut Node<'_>, apply: impl FnOnce(&mut Node<'_>, Val) -> Step<Val>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = node.dtype(x);
    if dtype.is_float() {
        return Ok(vec![apply(node, x)?]);
    }
    let wide = node.cast(x, DType::F64)?;
    let result = apply(node, wide)?;
    Ok(vec![node.cast(result, dtype)?])
}

/// Applies an op along an axis. Before opset 13 the tensor is seen as a matrix: all axes from `axis` on are one row.
fn rows(node: &mut Node<'_>, apply: fn(&mut Node<'_>, Val, usize) -> Step<Val>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if node.opset >= 13 {
        let axis = node.int_or("axis", -1)?;
        let axis = node.axis(axis, shape.rank())?;
        return Ok(vec![apply(node, x, axis)?]);
    }
    let axis = node.int_or("axis", 1)?;
    // `axis == rank` is allowed: rows of one element.
    let axis = if axis == shape.rank() as i64 {
        shape.rank()
    } else {
        node.axis(axis, shape.rank())?
    };
    if axis < shape.rank() && shape[axis + 1..].iter().all(|d| d.is(1)) {
        return Ok(vec![apply(node, x, axis)?]);
    }
    let matrix: [Dim; 2] = [
        shape[..axis].iter().cloned().product(),
        shape[axis..].iter().cloned().product(),
    ];
    let flat = node.reshape(x, matrix)?;
    let result = apply(node, flat, 1)?;
    Ok(vec![node.reshape(result, shape)?])
}

/// 1 at the first largest element of each row, else 0.
fn hardmax(node: &mut Node<'_>, x: Val, axis: usize) -> Step<Val> {
    let (dtype, shape) = (node.dtype(x), node.shape(x));
    let largest = node.reduce(ReduceOp::ArgMax, x, vec![axis], true)?;
    let positions = node.iota(shape, axis, DType::I64)?;
    let hit = node.binary(BinaryOp::Eq, positions, largest)?;
    node.cast(hit, dtype)
}
