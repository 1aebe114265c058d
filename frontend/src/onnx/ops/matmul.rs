//! Matrix products.

use ir::op::BinaryOp;
use ir::{DType, Dim};

use super::conv::centred;
use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Gemm", 1, gemm),
    op("MatMul", 1, matmul),
    op("MatMulInteger", 10, matmul_integer),
    microsoft("FusedMatMul", fused_matmul),
];

/// `α·A'·B' + β·C`, the transposes as flags.
pub(super) fn gemm(node: &mut Node<'_>) -> Step<Vec<Val>> {
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
    let mut c = node.optional(2).filter(|_| beta != 0.0);
    // Integers times a fraction are added up as floats, and the fraction of the sum is cut off.
    let fractions = !node.holds(out, alpha) || c.is_some() && !node.holds(out, beta);
    if fractions {
        product = node.cast(product, DType::F64)?;
        c = c.map(|c| node.cast(c, DType::F64)).transpose()?;
    }
    if alpha != 1.0 {
        product = node.with_scalar(BinaryOp::Mul, product, alpha)?;
    }
    if let Some(mut c) = c {
        if beta != 1.0 {
            c = node.with_scalar(BinaryOp::Mul, c, beta)?;
        }
        product = node.binary(BinaryOp::Add, product, c)?;
    }
    Ok(vec![node.cast(product, out)?])
}

/// NumPy's `matmul`: vectors count as a row on the left and a column on the right, and that dim is dropped again.
pub(super) fn product(node: &mut Node<'_>, mut a: Val, mut b: Val, flags: (bool, bool), out: DType) -> Step<Val> {
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

pub(super) fn fused_matmul(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (mut a, mut b) = (node.input(0)?, node.input(1)?);
    // The rows are the first axis, before those of the batch.
    for (value, name) in [(&mut a, "transBatchA"), (&mut b, "transBatchB")] {
        let rank = node.rank(*value);
        if node.flag(name)? && rank > 2 {
            *value = node.transpose(*value, (1..rank - 1).chain([0, rank - 1]).collect())?;
        }
    }
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
