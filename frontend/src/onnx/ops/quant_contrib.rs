//! What ONNX Runtime's quantiser writes beyond ONNX: the quantised ops of its own domain.
//!
//! An op on quantised tensors is its op on numbers between a dequantisation and a quantisation, which is what its
//! schema says; rounding is ONNX's (to nearest, ties to even, after a true division). ONNX Runtime itself uses tables
//! and merged factors in places, so that its results may differ by one step.

use ir::op::{BinaryOp, Composite, Groups, UnaryOp};
use ir::{DType, Dim, HostTensor, Shape};

use super::matmul::{integer_product, integer_product_with};
use super::quant::{check_scale, dynamically_quantized, requantise, saturated};
use super::{Row, activation, microsoft, pool, quant, reduce};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    microsoft("DequantizeLinear", quant::dequantize),
    microsoft("DynamicQuantizeMatMul", dynamic_product),
    microsoft("GatherBlockQuantized", gather_blocks),
    microsoft("MatMulIntegerToFloat", integer_product_to_float),
    microsoft("MatMulNBits", product_of_packed),
    microsoft("QGemm", gemm),
    microsoft("QLinearAdd", |n| two(n, BinaryOp::Add)),
    microsoft("QLinearAveragePool", |n| pooled(n, pool::average_pool)),
    microsoft("QLinearConcat", concat),
    microsoft("QLinearGlobalAveragePool", |n| pooled(n, pool::global_average)),
    microsoft("QLinearLeakyRelu", |n| one(n, activation::leaky_relu)),
    microsoft("QLinearMul", |n| two(n, BinaryOp::Mul)),
    microsoft("QLinearReduceMean", reduced_mean),
    microsoft("QLinearSigmoid", |n| one(n, |n| activation::unary(n, UnaryOp::Sigmoid))),
    microsoft("QLinearSoftmax", softmax),
    microsoft("QLinearWhere", choice),
    microsoft("QuantizeLinear", quant::quantize),
];

/// A value that is one number, as a scalar.
fn scalar(node: &mut Node<'_>, index: usize, value: Val) -> Step<Val> {
    if !node.ty(value).elements().is(1) {
        return node.rank_error(index, "0: one number for the whole tensor");
    }
    node.reshape(value, Shape::SCALAR)
}

/// `(x − zero) · scale` of the inputs `at`, `at + 1` and `at + 2`, of which the last may be left out.
fn numbers(node: &mut Node<'_>, at: usize) -> Step<Val> {
    let (x, scale) = (node.input(at)?, node.input(at + 1)?);
    check_scale(node, scale)?;
    let scale = scalar(node, at + 1, scale)?;
    let dtype = node.dtype(scale);
    if matches!(node.dtype(x), DType::I8 | DType::U8) && dtype.bits() <= 32 {
        let ones = vec![Dim::Const(1); node.rank(x)];
        let mut operands = vec![x, node.reshape(scale, ones.clone())?];
        if let Some(zero) = node.optional(at + 2) {
            let zero = scalar(node, at + 2, zero)?;
            operands.push(node.reshape(zero, ones)?);
        }
        let op = Composite::Dequantize {
            groups: None,
            out: dtype,
        };
        return node.composite(op, &operands);
    }
    let mut value = node.cast(x, dtype)?;
    if let Some(zero) = node.optional(at + 2) {
        let zero = scalar(node, at + 2, zero)?;
        let zero = node.cast(zero, dtype)?;
        value = node.binary(BinaryOp::Sub, value, zero)?;
    }
    node.binary(BinaryOp::Mul, value, scale)
}

/// Quantises to the scale and the zero point of inputs `at` and `at + 1`; without a zero point to the type `like`,
/// around 0.
fn quantized(node: &mut Node<'_>, value: Val, at: usize, like: DType) -> Step<Val> {
    let scale = node.input(at)?;
    check_scale(node, scale)?;
    let scale = scalar(node, at, scale)?;
    let zero = match node.optional(at + 1) {
        Some(zero) => Some(scalar(node, at + 1, zero)?),
        None => None,
    };
    let to = zero.map_or(like, |zero| node.dtype(zero));
    if matches!(to, DType::I8 | DType::U8) && node.dtype(value) == node.dtype(scale) {
        let ones = vec![Dim::Const(1); node.rank(value)];
        let mut operands = vec![value, node.reshape(scale, ones.clone())?];
        if let Some(zero) = zero {
            operands.push(node.reshape(zero, ones)?);
        }
        return node.composite(Composite::Quantize { out: to }, &operands);
    }
    let value = node.binary(BinaryOp::Div, value, scale)?;
    saturated(node, value, zero, to, at + 1)
}

/// An op of one quantised tensor: x, its scale and zero point, then those of the result.
fn one(node: &mut Node<'_>, import: fn(&mut Node<'_>) -> Step<Vec<Val>>) -> Step<Vec<Val>> {
    let like = node.dtype(node.input(0)?);
    let x = numbers(node, 0)?;
    let result = on_numbers(node, vec![Some(x)], import)?;
    Ok(vec![quantized(node, result, 3, like)?])
}

/// Imports the op of numbers that a quantised op is about.
fn on_numbers(
    node: &mut Node<'_>,
    numbers: Vec<Option<Val>>,
    import: fn(&mut Node<'_>) -> Step<Vec<Val>>,
) -> Step<Val> {
    let given = std::mem::replace(&mut node.inputs, numbers);
    let results = import(node);
    node.inputs = given;
    let [result] = results?[..] else {
        return node.unsupported("more than one output");
    };
    Ok(result)
}

fn two(node: &mut Node<'_>, op: BinaryOp) -> Step<Vec<Val>> {
    let like = node.dtype(node.input(0)?);
    let (a, b) = (numbers(node, 0)?, numbers(node, 3)?);
    let result = node.binary(op, a, b)?;
    Ok(vec![quantized(node, result, 6, like)?])
}

fn choice(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (condition, like) = (node.input(0)?, node.dtype(node.input(1)?));
    let (x, y) = (numbers(node, 1)?, numbers(node, 4)?);
    let result = node.select(condition, x, y)?;
    Ok(vec![quantized(node, result, 7, like)?])
}

/// The op is that of the opset that an attribute names: before 13 it flattens.
fn softmax(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let own = node.opset;
    node.opset = node.int_or("opset", 13)?;
    let result = one(node, activation::softmax);
    node.opset = own;
    result
}

fn reduced_mean(node: &mut Node<'_>) -> Step<Vec<Val>> {
    // With its axes in an attribute.
    let own = std::mem::replace(&mut node.opset, 13);
    let result = one(node, reduce::mean);
    node.opset = own;
    result
}

/// Pools; with `channels_last` the channels are the last axis.
fn pooled(node: &mut Node<'_>, import: fn(&mut Node<'_>) -> Step<Vec<Val>>) -> Step<Vec<Val>> {
    if !node.flag("channels_last")? {
        return one(node, import);
    }
    let like = node.dtype(node.input(0)?);
    let x = numbers(node, 0)?;
    let rank = node.rank(x);
    if rank < 3 {
        return node.rank_error(0, "at least 3");
    }
    let first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let x = node.transpose(x, first)?;
    let result = on_numbers(node, vec![Some(x)], import)?;
    let result = node.transpose(result, last)?;
    Ok(vec![quantized(node, result, 3, like)?])
}

/// Joins tensors of different scales: the result's scale and zero point, then three inputs a tensor.
fn concat(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (to_scale, to_zero) = (node.input(0)?, node.input(1)?);
    let like = node.dtype(to_zero);
    if node.inputs.len() < 5 || node.inputs.len() % 3 != 2 {
        return node.unsupported("a list of inputs that is not two and then three a tensor");
    }
    let mut parts = Vec::with_capacity(node.inputs.len() / 3);
    for at in (2..node.inputs.len()).step_by(3) {
        let (x, scale, zero) = (node.input(at)?, node.input(at + 1)?, node.input(at + 2)?);
        let same = |a: Val, b: Val| {
            let (a, b) = (node.build.constant(a), node.build.constant(b));
            matches!((a, b), (Some(a), Some(b)) if a.dtype == b.dtype && a.to_f64() == b.to_f64())
        };
        parts.push(if same(scale, to_scale) && same(zero, to_zero) {
            x
        } else {
            let value = numbers(node, at)?;
            quantized(node, value, 0, like)?
        });
    }
    let axis = node.int("axis")?;
    let axis = node.required("axis", axis)?;
    let axis = node.axis(axis, node.rank(parts[0]))?;
    Ok(vec![node.concat(&parts, axis)?])
}

/// `α·A'·B' + C` of quantised matrices; C is in `i32` with the product's scale. Without a scale the result is numbers.
fn gemm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, a_scale, b, b_scale) = (node.input(0)?, node.input(1)?, node.input(3)?, node.input(4)?);
    for (index, value) in [(0, a), (3, b)] {
        if node.rank(value) != 2 {
            return node.rank_error(index, "2");
        }
    }
    let flags = (node.flag("transA")?, node.flag("transB")?);
    let (a, b) = ((a, node.optional(2)), (b, node.optional(5)));
    let mut sum = integer_product_with(node, a, b, flags)?;
    if let Some(c) = node.optional(6) {
        sum = node.binary(BinaryOp::Add, sum, c)?;
    }
    let alpha = node.float_or("alpha", 1.0)?;
    let a_scale = match alpha == 1.0 {
        true => a_scale,
        false => node.with_scalar(BinaryOp::Mul, a_scale, alpha)?,
    };
    match (node.optional(7), node.optional(8)) {
        (Some(scale), Some(zero)) => Ok(vec![requantise(node, sum, [a_scale, b_scale, scale], zero, 1)?]),
        (Some(_), None) => Err(NodeProblem::MissingInput { index: 8 }.into()),
        (None, _) => Ok(vec![scaled(node, sum, a_scale, b_scale, None)?]),
    }
}

/// A sum of integer products as numbers; the right scale may be one a column.
pub(super) fn scaled(node: &mut Node<'_>, sum: Val, a_scale: Val, b_scale: Val, bias: Option<Val>) -> Step<Val> {
    check_scale(node, a_scale)?;
    check_scale(node, b_scale)?;
    let dtype = node.dtype(a_scale);
    let a_scale = scalar(node, 1, a_scale)?;
    let b_scale = match node.ty(b_scale).elements().is(1) {
        true => node.reshape(b_scale, Shape::SCALAR)?,
        false => b_scale,
    };
    let scale = node.binary(BinaryOp::Mul, a_scale, b_scale)?;
    let sum = node.cast(sum, dtype)?;
    let value = node.binary(BinaryOp::Mul, sum, scale)?;
    match bias {
        Some(bias) => node.binary(BinaryOp::Add, value, bias),
        None => Ok(value),
    }
}

fn integer_product_to_float(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, b, a_scale, b_scale) = (node.input(0)?, node.input(1)?, node.input(2)?, node.input(3)?);
    let sum = integer_product(node, (a, node.optional(4)), (b, node.optional(5)))?;
    let bias = node.optional(6);
    Ok(vec![scaled(node, sum, a_scale, b_scale, bias)?])
}

/// The left matrix is quantised to the range of its own numbers.
fn dynamic_product(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, b, b_scale) = (node.input(0)?, node.input(1)?, node.input(2)?);
    node.require_float(0)?;
    let (b_zero, bias) = (node.optional(3), node.optional(4));
    let [a, a_scale, a_zero] = dynamically_quantized(node, a)?;
    let sum = integer_product(node, (a, Some(a_zero)), (b, b_zero))?;
    Ok(vec![scaled(node, sum, a_scale, b_scale, bias)?])
}

/// Takes numbers of `bits` bits out of the bytes of a constant input, lowest bits first; each run along the last axis
/// of `shape` begins with a byte of its own.
fn unpacked(node: &Node<'_>, index: usize, bits: i64, shape: &[i64]) -> Step<HostTensor> {
    let what = "packed numbers";
    let packed = node.build.constant(node.input(index)?);
    let packed = packed.ok_or(NodeProblem::NotKnown { what, index })?;
    if packed.dtype != DType::U8 {
        return Err(NodeProblem::ElementType {
            index,
            found: packed.dtype,
            expected: "u8",
        }
        .into());
    }
    let sizes: Vec<usize> = shape.iter().filter_map(|d| usize::try_from(*d).ok()).collect();
    let (each, bits) = ((8 / bits) as usize, bits as usize);
    let count = sizes.last().copied().unwrap_or(1);
    let run = count.div_ceil(each);
    let rows = sizes.iter().rev().skip(1).try_fold(1usize, |n, d| n.checked_mul(*d));
    if rows.and_then(|rows| rows.checked_mul(run)) != Some(packed.bytes.len()) || sizes.len() != shape.len() {
        return Err(NodeProblem::Value {
            what,
            found: format!("of {} bytes", packed.bytes.len()),
            expected: format!("{shape:?} of {bits} bits, each row in {run} bytes"),
        }
        .into());
    }
    // The `ir` packs four bits in the same order.
    if bits == 4 && count.is_multiple_of(2) {
        return Ok(HostTensor::new(DType::U4, sizes, packed.bytes).map_err(too_large)?);
    }
    let mask = (1i64 << bits) - 1;
    let number = |run: &[u8], i: usize| (i64::from(run[i / each]) >> (i % each * bits)) & mask;
    let rows = packed.bytes.chunks(run.max(1));
    let numbers: Vec<i64> = rows.flat_map(|run| (0..count).map(move |i| number(run, i))).collect();
    Ok(HostTensor::from_i64(DType::U8, sizes, &numbers).map_err(too_large)?)
}

/// Rows of a constant without what fills their last block up.
fn without_padding(packed: HostTensor, rows: usize, padded: usize, depth: usize) -> Step<HostTensor> {
    if padded == depth {
        let shape = vec![rows, depth];
        return Ok(HostTensor::new(packed.dtype, shape, packed.bytes).map_err(too_large)?);
    }
    let numbers = packed.to_i64();
    let kept: Vec<i64> = numbers.chunks(padded).flat_map(|row| &row[..depth]).copied().collect();
    Ok(HostTensor::from_i64(packed.dtype, vec![rows, depth], &kept).map_err(too_large)?)
}

/// Refuses constant scales that are no numbers; 0 is the scale of a block of zeros.
fn check_finite(node: &Node<'_>, scales: Val) -> Step<()> {
    let numbers = node.build.constant(scales).map(|scales| scales.to_f64());
    match numbers.and_then(|numbers| numbers.into_iter().find(|s| !s.is_finite())) {
        Some(scale) => Err(NodeProblem::Value {
            what: "scale",
            found: scale.to_string(),
            expected: "a finite number; quantise the model again, from weights without NaN and infinity".to_owned(),
        }
        .into()),
        None => Ok(()),
    }
}

fn too_large(error: ir::data::SizeMismatch) -> NodeProblem {
    NodeProblem::TooLarge {
        bytes: error.expected.to_string(),
    }
}

/// Reads `bits`, of which there are 2, 4 or 8, and `block_size`.
fn packing(node: &Node<'_>) -> Step<(i64, i64)> {
    let bits = node.int_or("bits", 4)?;
    if !matches!(bits, 2 | 4 | 8) {
        return node.bad("bits", bits, "2, 4 or 8");
    }
    let block = node.int_or("block_size", 128)?;
    if !(16..=1 << 20).contains(&block) || !(block as u64).is_power_of_two() {
        return node.bad("block_size", block, "a power of two of at least 16 and at most 2^20");
    }
    Ok((bits, block))
}

/// `A · dequantised(B)ᵀ + bias`: rows of B in blocks of packed numbers, each block with a scale.
fn product_of_packed(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (bits, block) = packing(node)?;
    let (depth, columns) = (node.int("K")?, node.int("N")?);
    let (depth, columns) = (node.required("K", depth)?, node.required("N", columns)?);
    for (name, value) in [("K", depth), ("N", columns)] {
        if !(1..1 << 31).contains(&value) {
            return node.bad(name, value, "at least 1");
        }
    }
    if node.int_or("weight_prepacked", 0)? != 0 {
        return node.unsupported("MatMulNBits with prepacked weights");
    }
    let (a, dtype) = (node.input(0)?, node.require_float(0)?);
    if node.optional(4).is_some() {
        return node.unsupported("MatMulNBits with g_idx, which is deprecated");
    }
    let blocks = (depth + block - 1) / block;
    let packed = unpacked(node, 1, bits, &[columns, blocks, block])?;
    let packed = without_padding(packed, columns as usize, (blocks * block) as usize, depth as usize)?;
    let mut operands = vec![node.build.of_constant(None, packed)];
    let each = [Dim::Const(columns), Dim::Const(blocks)];
    let scales = node.input(2)?;
    check_finite(node, scales)?;
    operands.push(node.reshape(scales, each.clone())?);
    let zero = match node.optional(3) {
        None => {
            let zero = node.scalar(DType::U8, f64::from(1 << (bits - 1)));
            node.reshape(zero, [Dim::Const(1), Dim::Const(1)])?
        }
        Some(zero) if node.dtype(zero).is_float() => node.reshape(zero, each)?,
        Some(_) => {
            let zero = unpacked(node, 3, bits, &[columns, blocks])?;
            let zero = node.build.of_constant(None, zero);
            node.reshape(zero, each)?
        }
    };
    operands.push(zero);
    let groups = Some(Groups { axis: 1, size: block });
    let b = node.composite(Composite::Dequantize { groups, out: dtype }, &operands)?;
    let result = node.contract(a, b, false, true, dtype)?;
    Ok(vec![match node.optional(5) {
        Some(bias) => node.binary(BinaryOp::Add, result, bias)?,
        None => result,
    }])
}

/// Gives each element along an axis the number of its block; `size` elements may end inside the last block.
fn spread_blocks(node: &mut Node<'_>, value: Val, axis: usize, block: i64, size: &Dim) -> Step<Val> {
    let given = node.shape(value).0;
    let whole = given[axis].clone() * block;
    let mut dims = given.clone();
    dims.insert(axis + 1, Dim::Const(1));
    let split = node.reshape(value, dims.clone())?;
    dims[axis + 1] = Dim::Const(block);
    let wide = node.broadcast(split, dims.into())?;
    let mut joined = given;
    joined[axis] = whole.clone();
    let joined = node.reshape(wide, joined)?;
    match whole == *size {
        true => Ok(joined),
        false => node.slice_axis(joined, axis, 0i64, size.clone()),
    }
}

/// Picks from a table that is quantised in blocks; only what is picked is dequantised.
fn gather_blocks(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (bits, block) = packing(node)?;
    let (mut data, indices, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (rank, picks) = (node.rank(data), node.rank(indices));
    let axis = node.int_or("gather_axis", 0)?;
    let axis = node.axis(axis, rank)?;
    let along = node.int_or("quantize_axis", 1)?;
    let along = node.axis(along, rank)?;
    if node.rank(scales) != rank {
        return node.rank_error(2, rank.to_string());
    }
    let is_bytes = node.dtype(data) == DType::U8;
    let mut zeros = node.optional(3);
    if is_bytes && bits < 8 {
        if axis != 0 || along == axis || along + 1 != rank {
            return node
                .unsupported("GatherBlockQuantized of packed bytes but along axis 0 with blocks along the last");
        }
        let sizes = |shape: Shape| shape.as_consts();
        let (Some(mut numbers), Some(blocks)) = (sizes(node.shape(data)), sizes(node.shape(scales))) else {
            return node.unsupported("GatherBlockQuantized of a table whose size varies");
        };
        numbers[along] = numbers[along].saturating_mul(8 / bits);
        let numbers = unpacked(node, 0, bits, &numbers)?;
        data = node.build.of_constant(None, numbers);
        if zeros.is_some() {
            let numbers = unpacked(node, 3, bits, &blocks)?;
            zeros = Some(node.build.of_constant(None, numbers));
        }
    }
    let (dtype, size) = (node.dtype(scales), node.shape(data)[along].clone());
    let blocks = node.shape(scales)[along].clone();
    // The last block may be short.
    let reaches = |blocks: i64, size: i64| {
        blocks
            .checked_mul(block)
            .is_some_and(|whole| whole >= size && whole - block < size)
    };
    let covers = blocks.clone() * block == size
        || matches!((blocks.as_const(), size.as_const()), (Some(blocks), Some(size)) if reaches(blocks, size));
    if !covers {
        let left = blocks * block;
        return Err(NodeProblem::Sizes { left, right: size }.into());
    }
    // Where the blocks' axis stands after the pick.
    let after = if along > axis { along + picks - 1 } else { along };
    let pick = |node: &mut Node<'_>, value: Val, is_data: bool| -> Step<Val> {
        // One number a block: picked, then spread over less data, unless it is picked along the blocks.
        let first = !is_data && along == axis;
        let value = match first {
            true => spread_blocks(node, value, along, block, &size)?,
            false => value,
        };
        let picked = node.take(value, axis, indices)?;
        let picked = node.cast(picked, dtype)?;
        match is_data || first {
            true => Ok(picked),
            false => spread_blocks(node, picked, after, block, &size),
        }
    };
    let numbers = pick(node, data, true)?;
    let scales = pick(node, scales, false)?;
    let zero = match zeros {
        Some(zeros) => Some(pick(node, zeros, false)?),
        None if is_bytes => Some(node.scalar(dtype, f64::from(1 << (bits - 1)))),
        None => None,
    };
    let numbers = match zero {
        Some(zero) => node.binary(BinaryOp::Sub, numbers, zero)?,
        None => numbers,
    };
    Ok(vec![node.binary(BinaryOp::Mul, numbers, scales)?])
}
