//! Matrix products.

use ir::op::{BinaryOp, Composite};
use ir::{DType, Dim, Scalar};

use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Attention", 23, attention),
    op("Gemm", 7, gemm),
    op("MatMul", 1, matmul),
    op("MatMulInteger", 10, matmul_integer),
    microsoft("FusedMatMul", fused_matmul),
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
    let mut operands = [node.input(0)?, node.input(1)?];
    for (index, operand) in operands.iter_mut().enumerate() {
        let Some(zero) = node.optional(2 + index) else { continue };
        let value = node.cast(*operand, DType::I32)?;
        let mut zero = node.cast(zero, DType::I32)?;
        if index == 0 && node.rank(zero) == 1 && !node.shape(zero)[0].is(1) {
            let column = [node.shape(zero)[0].clone(), Dim::Const(1)];
            zero = node.reshape(zero, column)?;
        }
        *operand = node.binary(BinaryOp::Sub, value, zero)?;
    }
    let [a, b] = operands;
    // Both plain, or both already i32.
    let (a, b) = if node.dtype(a) == DType::I32 || node.dtype(b) == DType::I32 {
        (node.cast(a, DType::I32)?, node.cast(b, DType::I32)?)
    } else {
        (a, b)
    };
    Ok(vec![product(node, a, b, (false, false), DType::I32)?])
}

/// Scaled dot-product attention without cache. Operands of rank 3, `[B, S, H·D]`, are split into heads.
fn attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    node.only_outputs(1, "the cache and score outputs of Attention")?;
    if node.optional(4).is_some() || node.optional(5).is_some() {
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
    let Some(size) = node.shape(operands[0]).get(3).cloned() else {
        return node.rank_error(0, "3 or 4");
    };
    let scale = match (node.float("scale")?, size.as_const()) {
        (Some(scale), _) => scale,
        (None, Some(size)) => 1.0 / (size as f64).sqrt(),
        (None, None) => return node.unsupported(format!("Attention over the varying head size {size}")),
    };
    operands.extend(node.optional(3));
    let (causal, mask) = (node.flag("is_causal")?, node.optional(3).is_some());
    let result = node.composite(
        Composite::Attention {
            scale: Scalar::Float(scale),
            causal,
            mask,
        },
        &operands,
    )?;
    if !flat {
        return Ok(vec![result]);
    }
    let joined = node.transpose(result, vec![0, 2, 1, 3])?;
    let dims = node.shape(joined).0;
    let wide = dims[2].clone() * dims[3].clone();
    Ok(vec![node.reshape(joined, [dims[0].clone(), dims[1].clone(), wide])?])
}
