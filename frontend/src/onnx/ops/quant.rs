//! Quantisation as the arithmetic that it is.

use ir::op::{BinaryOp, Composite, Groups, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::conv::integer_conv;
use super::elementwise::cast_to;
use super::matmul::integer_product;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("DequantizeLinear", 10, |node| {
        check_version(node, 0)?;
        dequantize(node)
    }),
    op("DynamicQuantizeLinear", 11, dynamic_quantize),
    op("QLinearConv", 10, quantised_conv),
    op("QLinearMatMul", 10, quantised_product),
    op("QuantizeLinear", 10, |node| {
        check_version(node, 2)?;
        quantize(node)
    }),
];

/// Refuses 8-bit floats, as which input `index` is stored, in models of operator sets that do not have them.
fn check_version(node: &Node<'_>, index: usize) -> Step<()> {
    const FIRST: i64 = 19;
    match node.optional(index).map(|v| node.dtype(v)) {
        Some(dtype) if dtype.is_f8() && node.opset < FIRST => Err(NodeProblem::Value {
            what: "element type",
            found: format!("{dtype} in opset {}", node.opset),
            expected: format!("opset {FIRST} or later, which has 8-bit floats; export the model for it"),
        }
        .into()),
        _ => Ok(()),
    }
}

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

/// As [`spread`] without blocks, in the rank of the data throughout.
fn along(node: &mut Node<'_>, x: Val, value: Val) -> Step<Val> {
    let value = spread(node, x, value)?;
    if node.rank(value) == node.rank(x) {
        return Ok(value);
    }
    node.reshape(value, vec![Dim::Const(1); node.rank(x)])
}

/// Refuses constant scales that no number can be divided by.
pub(super) fn check_scale(node: &Node<'_>, scale: Val) -> Step<()> {
    let numbers = node.build.constant(scale).map(|scale| scale.to_f64());
    let wrong = numbers.and_then(|numbers| numbers.into_iter().find(|s| !s.is_finite() || *s == 0.0));
    match wrong {
        Some(scale) => Err(NodeProblem::Value {
            what: "scale",
            found: scale.to_string(),
            expected: "a finite number other than 0; quantise the model again, with data that reaches this node"
                .to_owned(),
        }
        .into()),
        None => Ok(()),
    }
}

/// Reads an attribute that names a floating-point type; 0, as when it is left out, names none.
fn float_attribute(node: &Node<'_>, name: &str) -> Step<Option<DType>> {
    match node.int_or(name, 0)? {
        0 => Ok(None),
        code => match dtype_of(code)? {
            dtype if dtype.is_float() && dtype.bits() >= 16 => Ok(Some(dtype)),
            dtype => node.bad(name, dtype, "f16, bf16, f32 or f64"),
        },
    }
}

/// `(x − zero) · scale`, in the scale's type or that of the result, whichever is wider.
pub(super) fn dequantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    check_scale(node, scale)?;
    let out = float_attribute(node, "output_dtype")?.unwrap_or(node.dtype(scale));
    // Tensors of the run are kept whole in eight bits, which products take.
    let kept = node.build.constant(x).is_some() || node.dtype(x).bits() == 8;
    let zero = zero_point(node, node.dtype(x))?;
    let kept = kept && (zero.is_none() || !node.dtype(x).is_f8());
    if kept && is_weight(node.dtype(x)) && out.bits() <= 32 {
        return Ok(vec![dequantized_whole(node, x, scale, zero, out)?]);
    }
    let dtype = match node.dtype(scale) {
        scale if scale.bits() >= out.bits() => scale,
        _ => out,
    };
    let scale = node.cast(scale, dtype)?;
    let mut value = node.cast(x, dtype)?;
    if let Some(zero) = zero {
        let zero = spread(node, x, zero)?;
        let zero = node.cast(zero, dtype)?;
        value = node.binary(BinaryOp::Sub, value, zero)?;
    }
    let scale = spread(node, x, scale)?;
    let value = node.binary(BinaryOp::Mul, value, scale)?;
    Ok(vec![node.cast(value, out)?])
}

/// Says whether constants of the type stay quantised up to the kernels that read them.
pub(super) fn is_weight(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I4 | DType::U4) || dtype.is_f8()
}

/// The zero point of a tensor of type `of`; none where that is an 8-bit float, whose zero point is 0. A zero point that
/// only a run gives is kept in both.
fn zero_point(node: &Node<'_>, of: DType) -> Step<Option<Val>> {
    let Some(zero) = node.optional(2) else { return Ok(None) };
    if !of.is_f8() {
        return Ok(Some(zero));
    }
    let Some(numbers) = node.build.constant(zero).map(|zero| zero.to_f64()) else {
        return Ok(Some(zero));
    };
    match numbers.into_iter().find(|v| *v != 0.0) {
        None => Ok(None),
        Some(number) => Err(NodeProblem::Value {
            what: "zero point",
            found: format!("{number} of {of}"),
            expected: "0, which 8-bit floats have as their own; quantise the model again, symmetrically".to_owned(),
        }
        .into()),
    }
}

/// A dequantisation as one op, which products keep.
fn dequantized_whole(node: &mut Node<'_>, x: Val, scale: Val, zero: Option<Val>, out: DType) -> Step<Val> {
    let shape = node.shape(x);
    let block = node.int_or("block_size", 0)?;
    let axis = node.int_or("axis", 1)?;
    let blocked = block > 0 && !node.ty(scale).elements().is(1);
    let mut groups = None;
    if blocked {
        let axis = node.axis(axis, shape.rank())?;
        groups = Some(Groups { axis, size: block });
    }
    let mut operands = vec![x];
    for value in [Some(scale), zero].into_iter().flatten() {
        let given = node.shape(value);
        let dims = if node.ty(value).elements().is(1) {
            vec![Dim::Const(1); shape.rank()]
        } else if let Some(groups) = &groups {
            if given.rank() != shape.rank() {
                return node.rank_error(1, format!("{}, as input 0 has", shape.rank()));
            }
            let (elements, scales) = (&shape[groups.axis], &given[groups.axis]);
            if groups.count(elements) != *scales {
                return Err(NodeProblem::Value {
                    what: "block_size",
                    found: format!("{block} for {elements} elements with {scales} scales"),
                    expected: format!(
                        "one scale for each block, the last one of which may be short: {} scales; quantise the model again \
                         with blocks that fit",
                        groups.count(elements)
                    ),
                }
                .into());
            }
            given.0
        } else {
            let axis = node.axis(axis, shape.rank())?;
            let [size] = &*given else {
                return node.rank_error(1, "0 or 1");
            };
            node.build.require_equal(size, &shape[axis])?;
            let mut dims = vec![Dim::Const(1); shape.rank()];
            dims[axis] = size.clone();
            dims
        };
        operands.push(node.reshape(value, dims)?);
    }
    node.composite(Composite::Dequantize { groups, out }, &operands)
}

/// The smallest and the largest number of a type.
fn limits(dtype: DType) -> Option<(f64, f64)> {
    let bits = dtype.bits() as i32;
    match dtype {
        DType::U8 | DType::U4 => Some((0.0, 2f64.powi(bits) - 1.0)),
        DType::I8 | DType::I4 | DType::I16 => Some((-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0)),
        // ONNX quantises to no 32-bit type: this is `u16`, which has become `i32`.
        DType::I32 => Some((0.0, 65535.0)),
        _ => None,
    }
}

/// `saturate(round(x / scale) + zero)`, rounding ties to even.
pub(super) fn quantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    check_scale(node, scale)?;
    let stated = match node.int_or("output_dtype", 0)? {
        0 => None,
        // ONNX quantises to no 32-bit type: `i32` would be taken for the wider form of `u16`.
        6 => {
            return node.bad(
                "output_dtype",
                DType::I32,
                "an integer of at most 16 bits or an 8-bit float",
            );
        }
        code => Some(dtype_of(code)?),
    };
    let to = match (node.optional(2), stated) {
        (Some(zero), Some(stated)) if node.dtype(zero) != stated => {
            let expected = format!("the type of the zero point, {}", node.dtype(zero));
            return node.bad("output_dtype", stated, expected);
        }
        (Some(zero), _) => node.dtype(zero),
        (None, stated) => stated.unwrap_or(DType::U8),
    };
    let dtype = float_attribute(node, "precision")?.unwrap_or(node.dtype(scale));
    let (x, scale) = (node.cast(x, dtype)?, node.cast(scale, dtype)?);
    let zero = zero_point(node, to)?;
    // Numbers of an 8-bit float that do not saturate, or are shifted by a run's zero point, are spelled out.
    let whole = match to.is_f8() {
        true => zero.is_none() && node.int_or("saturate", 1)? != 0,
        false => matches!(to, DType::I8 | DType::U8),
    };
    if whole && node.int_or("block_size", 0)? == 0 {
        let mut operands = vec![x, along(node, x, scale)?];
        if let Some(zero) = zero {
            operands.push(along(node, x, zero)?);
        }
        return Ok(vec![node.composite(Composite::Quantize { out: to }, &operands)?]);
    }
    let scale = spread(node, x, scale)?;
    let mut value = node.binary(BinaryOp::Div, x, scale)?;
    let zero = match zero {
        Some(zero) => {
            let zero = spread(node, x, zero)?;
            Some(node.cast(zero, dtype)?)
        }
        None => None,
    };
    if to.is_float() {
        if let Some(zero) = zero {
            value = node.binary(BinaryOp::Add, value, zero)?;
        }
        return Ok(vec![cast_to(node, value, to)?]);
    }
    Ok(vec![saturated(node, value, zero, to, 2)?])
}

/// `saturate(round(value) + zero)` in an integer type; input `index` gave it.
pub(super) fn saturated(node: &mut Node<'_>, value: Val, zero: Option<Val>, to: DType, index: usize) -> Step<Val> {
    let Some((low, high)) = limits(to) else {
        return Err(NodeProblem::ElementType {
            index,
            found: to,
            expected: "an integer of at most 16 bits",
        }
        .into());
    };
    let whole = |zero: Val| node.ty(zero).elements().is(1) || node.rank(zero) == node.rank(value);
    if matches!(to, DType::I8 | DType::U8) && node.dtype(value).is_float() && zero.is_none_or(whole) {
        let ones = vec![Dim::Const(1); node.rank(value)];
        let one = node.scalar(node.dtype(value), 1.0);
        let mut operands = vec![value, node.reshape(one, ones.clone())?];
        if let Some(zero) = zero {
            operands.push(match node.ty(zero).elements().is(1) {
                true => node.reshape(zero, ones)?,
                false => zero,
            });
        }
        return node.composite(Composite::Quantize { out: to }, &operands);
    }
    let mut value = node.unary(UnaryOp::Round, value)?;
    if let Some(zero) = zero {
        let zero = node.cast(zero, node.dtype(value))?;
        value = node.binary(BinaryOp::Add, value, zero)?;
    }
    value = node.with_scalar(BinaryOp::Max, value, low)?;
    value = node.with_scalar(BinaryOp::Min, value, high)?;
    node.cast(value, to)
}

/// Scales an `i32` accumulator down to the type of the result's zero point; `axis` is where a vector of scales runs.
pub(super) fn requantise(node: &mut Node<'_>, sum: Val, scales: [Val; 3], zero: Val, axis: usize) -> Step<Val> {
    let [a, b, out] = scales;
    for scale in scales {
        check_scale(node, scale)?;
    }
    let dtype = node.dtype(out);
    let mut factors = [a, b];
    for factor in &mut factors {
        *factor = node.cast(*factor, dtype)?;
        if node.rank(*factor) == 1 && !node.ty(*factor).elements().is(1) {
            let mut dims = vec![Dim::Const(1); node.rank(sum)];
            if let Some(dim) = dims.get_mut(axis) {
                *dim = node.shape(*factor)[0].clone();
            }
            *factor = node.reshape(*factor, dims)?;
        } else {
            *factor = node.reshape(*factor, ir::Shape::SCALAR)?;
        }
    }
    let (out, to) = (node.reshape(out, ir::Shape::SCALAR)?, node.dtype(zero));
    let scale = node.binary(BinaryOp::Mul, factors[0], factors[1])?;
    let scale = node.binary(BinaryOp::Div, scale, out)?;
    let value = node.cast(sum, dtype)?;
    let value = node.binary(BinaryOp::Mul, value, scale)?;
    let zero = node.reshape(zero, ir::Shape::SCALAR)?;
    saturated(node, value, Some(zero), to, 7)
}

fn quantised_product(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, a_scale, a_zero) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (b, b_scale, b_zero) = (node.input(3)?, node.input(4)?, node.input(5)?);
    let (scale, zero) = (node.input(6)?, node.input(7)?);
    if !node.ty(a_scale).elements().is(1) {
        return node.unsupported("QLinearMatMul with one scale a row");
    }
    let sum = integer_product(node, (a, Some(a_zero)), (b, Some(b_zero)))?;
    let axis = node.rank(sum).saturating_sub(1);
    Ok(vec![requantise(node, sum, [a_scale, b_scale, scale], zero, axis)?])
}

fn quantised_conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, x_scale, x_zero) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (w, w_scale, w_zero) = (node.input(3)?, node.input(4)?, node.input(5)?);
    let (scale, zero, bias) = (node.input(6)?, node.input(7)?, node.optional(8));
    let sum = integer_conv(node, (x, Some(x_zero)), (w, Some(w_zero)), bias)?;
    Ok(vec![requantise(node, sum, [x_scale, w_scale, scale], zero, 1)?])
}

/// To `u8` with the scale and zero point of the data's own range, which always holds 0.
fn dynamic_quantize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    node.require_float(0)?;
    Ok(dynamically_quantized(node, x)?.to_vec())
}

/// The quantised tensor, its scale and its zero point, as [`dynamic_quantize`] gives them.
pub(super) fn dynamically_quantized(node: &mut Node<'_>, x: Val) -> Step<[Val; 3]> {
    let axes: Vec<usize> = (0..node.rank(x)).collect();
    let high = node.reduce(ReduceOp::Max, x, axes.clone(), false)?;
    let high = node.with_scalar(BinaryOp::Max, high, 0.0)?;
    let low = node.reduce(ReduceOp::Min, x, axes, false)?;
    let low = node.with_scalar(BinaryOp::Min, low, 0.0)?;
    let span = node.binary(BinaryOp::Sub, high, low)?;
    // Zeros alone have no range: any scale serves, and 1 is onnxruntime's.
    let flat = node.with_scalar(BinaryOp::Eq, span, 0.0)?;
    let (one, scale) = (
        node.scalar(node.dtype(span), 1.0),
        node.with_scalar(BinaryOp::Div, span, 255.0)?,
    );
    let scale = node.select(flat, one, scale)?;
    let lowest = node.unary(UnaryOp::Neg, low)?;
    let zero = node.binary(BinaryOp::Div, lowest, scale)?;
    let zero = node.unary(UnaryOp::Round, zero)?;
    let zero = node.with_scalar(BinaryOp::Max, zero, 0.0)?;
    let zero = node.with_scalar(BinaryOp::Min, zero, 255.0)?;
    let zero = node.cast(zero, DType::U8)?;
    let ones = vec![Dim::Const(1); node.rank(x)];
    let operands = [x, node.reshape(scale, ones.clone())?, node.reshape(zero, ones)?];
    let value = node.composite(Composite::Quantize { out: DType::U8 }, &operands)?;
    Ok([value, scale, zero])
}
