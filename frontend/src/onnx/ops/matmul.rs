//! Matrix products.

use ir::op::{BinaryOp, Composite, ReduceOp};
use ir::{DType, Dim, Scalar};

use super::conv::centred;
use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Attention", 23, attention),
    op("Gemm", 7, gemm),
    op("MatMul", 1, matmul),
    op("MatMulInteger", 10, matmul_integer),
    op("RotaryEmbedding", 23, rotary),
    microsoft("FusedMatMul", fused_matmul),
];

const ATTENTION_ATTRIBUTES: [&str; 7] = [
    "is_causal",
    "kv_num_heads",
    "q_num_heads",
    "qk_matmul_output_mode",
    "scale",
    "softcap",
    "softmax_precision",
];

/// `α·A'·B' + β·C`, the transposes as flags.
fn gemm(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    for (index, value) in [(0, a), (1, b)] {
        if node.rank(value) != 2 {
            return node.rank_error(index, "2");
        }
    }
    let (alpha, beta) = (node.float_or("alpha", 1.0)?, node.float_or("beta", 1.0)?);
    let (trans_a, trans_b) = (node.flag("transA")?, node.flag("transB")?);
    let out = node.dtype(a);
    let mut product = node.contract(a, b, trans_a, trans_b, out)?;
    if alpha != 1.0 {
        product = node.with_scalar(BinaryOp::Mul, product, alpha)?;
    }
    let Some(mut c) = node.optional(2).filter(|_| beta != 0.0) else {
        return Ok(vec![product]);
    };
    if beta != 1.0 {
        c = node.with_scalar(BinaryOp::Mul, c, beta)?;
    }
    Ok(vec![node.binary(BinaryOp::Add, product, c)?])
}

/// NumPy's `matmul`: vectors count as a row on the left and a column on the right, and that dim is dropped again.
fn product(node: &mut Node<'_>, mut a: Val, mut b: Val, flags: (bool, bool), out: DType) -> Step<Val> {
    let (row, column) = (node.rank(a) == 1, node.rank(b) == 1);
    if node.rank(a) == 0 || node.rank(b) == 0 {
        return node.rank_error(usize::from(node.rank(a) != 0), "at least 1");
    }
    if row {
        let dims = [Dim::Const(1), node.shape(a)[0].clone()];
        a = node.reshape(a, dims)?;
    }
    if column {
        let dims = [node.shape(b)[0].clone(), Dim::Const(1)];
        b = node.reshape(b, dims)?;
    }
    let result = node.contract(a, b, flags.0 && !row, flags.1 && !column, out)?;
    if !row && !column {
        return Ok(result);
    }
    let mut dims = node.shape(result).0;
    let rank = dims.len();
    if column {
        dims.remove(rank - 1);
    }
    if row {
        dims.remove(rank - 2);
    }
    node.reshape(result, dims)
}

fn matmul(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let out = node.dtype(a);
    Ok(vec![product(node, a, b, (false, false), out)?])
}

fn fused_matmul(node: &mut Node<'_>) -> Step<Vec<Val>> {
    if node.flag("transBatchA")? || node.flag("transBatchB")? {
        return node.unsupported("FusedMatMul with transposed batches");
    }
    let (a, b) = (node.input(0)?, node.input(1)?);
    let flags = (node.flag("transA")?, node.flag("transB")?);
    let alpha = node.float_or("alpha", 1.0)?;
    let out = node.dtype(a);
    let result = product(node, a, b, flags, out)?;
    Ok(vec![if alpha == 1.0 {
        result
    } else {
        node.with_scalar(BinaryOp::Mul, result, alpha)?
    }])
}

/// `(A − a₀)·(B − b₀)` in `i32`; zero points are one a tensor, one a row of A, one a column of B.
fn matmul_integer(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (a_zero, b_zero) = (node.optional(2), node.optional(3));
    Ok(vec![integer_product(node, (a, a_zero), (b, b_zero))?])
}

/// The product of quantised operands, each with its zero point, in `i32`.
pub(super) fn integer_product(node: &mut Node<'_>, a: (Val, Option<Val>), b: (Val, Option<Val>)) -> Step<Val> {
    integer_product_with(node, a, b, (false, false))
}

/// As [`integer_product`], of operands that are transposed by flags.
pub(super) fn integer_product_with(
    node: &mut Node<'_>,
    a: (Val, Option<Val>),
    b: (Val, Option<Val>),
    flags: (bool, bool),
) -> Step<Val> {
    let rows = node.rank(a.0).saturating_sub(if flags.0 { 1 } else { 2 });
    let columns = node.rank(b.0).saturating_sub(if flags.1 { 2 } else { 1 });
    let a = centred(node, a.0, a.1, rows)?;
    let b = centred(node, b.0, b.1, columns)?;
    product(node, a, b, flags, DType::I32)
}

/// A mask that lets query `i` see keys `0..=i`, joined with another mask.
fn lower_triangle(node: &mut Node<'_>, queries: Dim, keys: Dim, mask: Option<Val>) -> Step<Val> {
    let row = node.iota([queries.clone()].into(), 0, DType::I64)?;
    let row = node.reshape(row, [queries, Dim::Const(1)])?;
    let column = node.iota([keys.clone()].into(), 0, DType::I64)?;
    let column = node.reshape(column, [Dim::Const(1), keys])?;
    let seen = node.binary(BinaryOp::Le, column, row)?;
    match mask {
        None => Ok(seen),
        Some(mask) if node.dtype(mask) == DType::Bool => node.binary(BinaryOp::And, mask, seen),
        Some(mask) => {
            let never = node.scalar(node.dtype(mask), f64::NEG_INFINITY);
            node.select(seen, mask, never)
        }
    }
}

/// Makes the rows of attention zero whose mask hides every key, which ONNX asks for; the softmax itself gives NaN there.
///
/// A NaN in the mask hides nothing, so that it reaches the result.
fn zero_unless_seen(node: &mut Node<'_>, result: Val, mask: Val) -> Step<Val> {
    let Some(keys) = node.rank(mask).checked_sub(1) else {
        return node.rank_error(3, "1 to 4");
    };
    let seen = match node.dtype(mask) {
        DType::Bool => mask,
        dtype => {
            let never = node.scalar(dtype, f64::NEG_INFINITY);
            node.binary(BinaryOp::Ne, mask, never)?
        }
    };
    let seen = node.reduce(ReduceOp::Any, seen, vec![keys], true)?;
    let zero = node.scalar(node.dtype(result), 0.0);
    node.select(seen, result, zero)
}

/// Scaled dot-product attention without cache. A row that sees no key is zero. Operands of rank 3, `[B, S, H·D]`, are split into heads.
fn attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    node.only_outputs(1, "the cache and score outputs of Attention")?;
    if let Some((name, _)) = node.attributes.iter().find(|(n, _)| !ATTENTION_ATTRIBUTES.contains(n)) {
        return node.unsupported(format!("the attribute {name} of Attention"));
    }
    if (4..node.inputs.len()).any(|i| node.optional(i).is_some()) {
        return node.unsupported("Attention with a key and value cache");
    }
    if node.float_or("softcap", 0.0)? != 0.0 || node.has("softmax_precision") {
        return node.unsupported("Attention with softcap or softmax_precision");
    }
    let heads = [
        node.int("q_num_heads")?,
        node.int("kv_num_heads")?,
        node.int("kv_num_heads")?,
    ];
    let flat = node.rank(node.input(0)?) == 3;
    let mut operands = Vec::with_capacity(4);
    for (index, heads) in heads.into_iter().enumerate() {
        let value = node.input(index)?;
        if !flat {
            operands.push(value);
            continue;
        }
        let name = if index == 0 { "q_num_heads" } else { "kv_num_heads" };
        let heads = node.required(name, heads)?;
        let Ok([batch, rows, wide]) = <[Dim; 3]>::try_from(node.shape(value).0) else {
            return node.rank_error(index, "3, as input 0 has");
        };
        let size = if heads < 1 {
            None
        } else {
            wide.exact_div(&Dim::Const(heads))
        };
        let Some(size) = size else {
            return node.bad(name, heads, format!("a divisor of {wide}"));
        };
        let split = node.reshape(value, [batch, rows, Dim::Const(heads), size])?;
        operands.push(node.transpose(split, vec![0, 2, 1, 3])?);
    }
    if let Some(index) = operands.iter().position(|v| node.rank(*v) != 4) {
        return node.rank_error(index, "4, or 3 for all of query, key and value");
    }
    let Some(size) = node.shape(operands[0]).get(3).cloned() else {
        return node.rank_error(0, "3 or 4");
    };
    let scale = match (node.float("scale")?, size.as_const()) {
        (Some(scale), _) => scale,
        (None, Some(size)) => 1.0 / (size as f64).sqrt(),
        (None, None) => return node.unsupported(format!("Attention over the varying head size {size}")),
    };
    let mut causal = node.flag("is_causal")?;
    let (queries, keys) = (node.shape(operands[0])[2].clone(), node.shape(operands[1])[2].clone());
    let mut bias = node.optional(3);
    // Without a mask every query sees the first key.
    let mut masked = bias;
    if causal && let Some(mask) = bias {
        masked = Some(lower_triangle(node, queries.clone(), keys.clone(), Some(mask))?);
    }
    if causal && queries != keys {
        // ONNX aligns the triangle with the first key, whatever the counts are.
        bias = match masked {
            Some(mask) => Some(mask),
            None => Some(lower_triangle(node, queries, keys, None)?),
        };
        causal = false;
    }
    operands.extend(bias);
    let mask = bias.is_some();
    let result = node.composite(
        Composite::Attention {
            scale: Scalar::Float(scale),
            causal,
            mask,
            scales: false,
        },
        &operands,
    )?;
    let result = match masked {
        Some(mask) => zero_unless_seen(node, result, mask)?,
        None => result,
    };
    if !flat {
        return Ok(vec![result]);
    }
    let joined = node.transpose(result, vec![0, 2, 1, 3])?;
    let dims = node.shape(joined).0;
    let wide = dims[2].clone() * dims[3].clone();
    Ok(vec![node.reshape(joined, [dims[0].clone(), dims[1].clone(), wide])?])
}

/// Turns pairs of each head's first `rotary_embedding_dim` elements: `(a·cos − b·sin, b·cos + a·sin)`.
///
/// Pairs are the two halves, or neighbours with `interleaved`. The tables are `[positions, half]`, looked up by the third
/// input, or `[batch, sequence, half]`.
fn rotary(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let given = node.shape(x);
    // To [B, S, H, D].
    let (x, four) = match &*given {
        [batch, rows, wide] => {
            let heads = node.int("num_heads")?;
            let heads = node.required("num_heads", heads)?;
            let size = if heads < 1 {
                None
            } else {
                wide.exact_div(&Dim::Const(heads))
            };
            let Some(size) = size else {
                return node.bad("num_heads", heads, format!("a divisor of {wide}"));
            };
            let split = [batch.clone(), rows.clone(), Dim::Const(heads), size];
            (node.reshape(x, split)?, false)
        }
        [_, _, _, _] => (node.transpose(x, vec![0, 2, 1, 3])?, true),
        _ => return node.rank_error(0, "3 or 4"),
    };
    let dims = node.shape(x).0;
    let turned = match node.int_or("rotary_embedding_dim", 0)? {
        0 => dims[3].clone(),
        size => Dim::Const(size),
    };
    let fits = node.build.sizes.at_least(&turned, 1) && node.build.sizes.at_least(&(&dims[3] - &turned), 0);
    let Some(half) = turned.exact_div(&Dim::Const(2)).filter(|_| fits) else {
        return node.bad("rotary_embedding_dim", turned, format!("even and at most {}", dims[3]));
    };
    let mut tables = [node.input(1)?, node.input(2)?];
    for table in &mut tables {
        if let Some(positions) = node.optional(3) {
            *table = node.take(*table, 0, positions)?;
        }
        let Ok([batch, rows, size]) = <[Dim; 3]>::try_from(node.shape(*table).0) else {
            return node.rank_error(1, "3, or 2 with positions");
        };
        *table = node.reshape(*table, [batch, rows, Dim::Const(1), size])?;
    }
    let [cos, sin] = tables;
    let head = node.slice_axis(x, 3, 0i64, turned.clone())?;
    let interleaved = node.flag("interleaved")?;
    let column = [dims[0].clone(), dims[1].clone(), dims[2].clone(), half.clone()];
    let (a, b) = if interleaved {
        let mut pairs = column.to_vec();
        pairs.push(Dim::Const(2));
        let pairs = node.reshape(head, pairs)?;
        let (a, b) = (
            node.slice_axis(pairs, 4, 0i64, 1i64)?,
            node.slice_axis(pairs, 4, 1i64, 1i64)?,
        );
        (node.reshape(a, column.clone())?, node.reshape(b, column.clone())?)
    } else {
        (
            node.slice_axis(head, 3, 0i64, half.clone())?,
            node.slice_axis(head, 3, half.clone(), half)?,
        )
    };
    let (ac, bs) = (node.binary(BinaryOp::Mul, a, cos)?, node.binary(BinaryOp::Mul, b, sin)?);
    let (bc, asn) = (node.binary(BinaryOp::Mul, b, cos)?, node.binary(BinaryOp::Mul, a, sin)?);
    let (real, imaginary) = (
        node.binary(BinaryOp::Sub, ac, bs)?,
        node.binary(BinaryOp::Add, bc, asn)?,
    );
    let mut result = if interleaved {
        let mut pair = column.to_vec();
        pair.push(Dim::Const(1));
        let (real, imaginary) = (node.reshape(real, pair.clone())?, node.reshape(imaginary, pair)?);
        let pairs = node.concat(&[real, imaginary], 4)?;
        let [batch, rows, heads, _] = column;
        node.reshape(pairs, [batch, rows, heads, turned.clone()])?
    } else {
        node.concat(&[real, imaginary], 3)?
    };
    let rest = dims[3].clone() - turned.clone();
    if !rest.is(0) {
        let tail = node.slice_axis(x, 3, turned, rest)?;
        result = node.concat(&[result, tail], 3)?;
    }
    if four {
        return Ok(vec![node.transpose(result, vec![0, 2, 1, 3])?]);
    }
    Ok(vec![node.reshape(result, given)?])
}
