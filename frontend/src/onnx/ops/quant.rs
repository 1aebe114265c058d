//! Quantisation as the arithmetic that it is.

use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("DequantizeLinear", 10, dequantize),
    op("DynamicQuantizeLinear", 11, dynamic_quantize),
    op("QuantizeLinear", 10, quantize),
];

/// Gives a scale or zero point the rank of the data: one number, one an index of `axis`, or one a block along it.
fn spread(node: &mut Node<'_>, x: Val, value: Val) -> Step<Val> {
    let (shape, given) = (node.shape(x), node.shape(value));
    if node.ty(value).elements() == 1 {
        return node.reshape(value, ir::Shape::SCALAR);
    }
    let axis = node.int_or("axis", 1)?;
    let axis = node.axis(axis, shape.rank())?;
    let block = node.int_or("block_size", 0)?;
    if block == 0 {
        let mut dims = vec![Dim::Const(1); shape.rank()];
        let [size] = &*given else {
            return node.rank_error(1, "0 or 1");
        };
        node.build.require_equal(size, &shape[axis])?;
        dims[axis] = size.clone();
        return node.reshape(value, dims);
    }
    if given.rank() != shape.rank() || block < 0 {
        return node.rank_error(1, format!("{}, as input 0 has", shape.rank()));
    }
    // Each number serves `block` indices of the axis: [n] → [n, 1] → [n, block] → [n·block].
    let mut dims = given.0.clone();
    dims.insert(axis + 1, Dim::Const(1));
    let split = node.reshape(value, dims.clone())?;
    dims[axis + 1] = Dim::Const(block);
    let wide = node.broadcast(split, dims.into())?;
    let mut joined = given.0;
    joined[axis] = joined[axis].clone() * block;
    node.build.require_equal(&joined[axis], &shape[axis])?;
    node.reshape(wide, joined)
}

/// `(x − zero) · scale`, in the scale's type.
fn dequantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let dtype = node.dtype(scale);
    let mut value = node.cast(x, dtype)?;
    if let Some(zero) = node.optional(2) {
        let zero = spread(node, x, zero)?;
        let zero = node.cast(zero, dtype)?;
        value = node.binary(BinaryOp::Sub, value, zero)?;
    }
    let scale = spread(node, x, scale)?;
    Ok(vec![node.binary(BinaryOp::Mul, value, scale)?])
}

/// The smallest and the largest number of a type.
fn limits(dtype: DType) -> Option<(f64, f64)> {
    let bits = dtype.bits() as i32;
    match dtype {
        DType::U8 | DType::U4 => Some((0.0, 2f64.powi(bits) - 1.0)),
        DType::I8 | DType::I4 | DType::I16 | DType::I32 => Some((-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0)),
        _ => None,
    }
}

/// `saturate(round(x / scale) + zero)`, rounding ties to even.
fn quantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let to = match (node.optional(2), node.int("output_dtype")?) {
        (Some(zero), _) => node.dtype(zero),
        (None, Some(code)) if code != 0 => dtype_of(code)?,
        _ => DType::U8,
    };
    let dtype = node.dtype(scale);
    let x = node.cast(x, dtype)?;
    let scale = spread(node, x, scale)?;
    let mut value = node.binary(BinaryOp::Div, x, scale)?;
    let zero = match node.optional(2) {
        Some(zero) => {
            let zero = spread(node, x, zero)?;
            Some(node.cast(zero, dtype)?)
        }
        None => None,
    };
    if to.is_float() {
        // FP8 has a zero point of 0; the cast rounds and saturates.
        return Ok(vec![node.cast(value, to)?]);
    }
    let Some((low, high)) = limits(to) else {
        return Err(NodeProblem::ElementType {
            index: 2,
            found: to,
            expected: "an integer of at most 32 bits",
        }
        .into());
    };
    value = node.unary(UnaryOp::Round, value)?;
    if let Some(zero) = zero {
        value = node.binary(BinaryOp::Add, value, zero)?;
    }
    value = node.with_scalar(BinaryOp::Max, value, low)?;
    value = node.with_scalar(BinaryOp::Min, value, high)?;
    Ok(vec![node.cast(value, to)?])
}

/// To `u8` with the scale and zero point of the data's own range, which always holds 0.
fn dynamic_quantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = node.require_float(0)?;
    let axes: Vec<usize> = (0..node.rank(x)).collect();
    let high = node.reduce(ReduceOp::Max, x, axes.clone(), false)?;
    let high = node.with_scalar(BinaryOp::Max, high, 0.0)?;
    let low = node.reduce(ReduceOp::Min, x, axes, false)?;
    let low = node.with_scalar(BinaryOp::Min, low, 0.0)?;
    let span = node.binary(BinaryOp::Sub, high, low)?;
    let scale = node.with_scalar(BinaryOp::Div, span, 255.0)?;
    let lowest = node.unary(UnaryOp::Neg, low)?;
    let zero = node.binary(BinaryOp::Div, lowest, scale)?;
    let zero = node.unary(UnaryOp::Round, zero)?;
    let zero = node.with_scalar(BinaryOp::Max, zero, 0.0)?;
    let zero = node.with_scalar(BinaryOp::Min, zero, 255.0)?;
    let value = node.binary(BinaryOp::Div, x, scale)?;
    let value = node.unary(UnaryOp::Round, value)?;
    let value = node.binary(BinaryOp::Add, value, zero)?;
    let value = node.with_scalar(BinaryOp::Max, value, 0.0)?;
    let value = node.with_scalar(BinaryOp::Min, value, 255.0)?;
    debug_assert!(dtype.is_float());
    Ok(vec![node.cast(value, DType::U8)?, scale, node.cast(zero, DType::U8)?])
}
