//! Determinants and inverses of small matrices, by elimination with pivots.

use ir::op::{BinaryOp, Gather, Op, ReduceOp, UnaryOp};
use ir::{DType, Dim, Shape};

use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("Det", 11, determinant), microsoft("Inverse", inverse)];

/// The most rows of a matrix: each is some ten nodes.
const ROW_LIMIT: i64 = 128;

/// Square matrices as `[B, n, n]`, with the axes before.
fn matrices(node: &mut Node<'_>) -> Step<(Val, Vec<Dim>, i64)> {
    let x = node.input(0)?;
    node.require_float(0)?;
    let shape = node.shape(x);
    let [outer @ .., rows, columns] = &shape[..] else {
        return node.rank_error(0, "at least 2");
    };
    node.build.require_equal(rows, columns)?;
    let Some(size) = rows.as_const().filter(|n| (1..=ROW_LIMIT).contains(n)) else {
        return node.unsupported(format!("matrices of {rows} rows; of 1 to {ROW_LIMIT} they are"));
    };
    let batch: Dim = outer.iter().cloned().product();
    let flat = node.reshape(x, [batch, Dim::Const(size), Dim::Const(size)])?;
    Ok((flat, outer.to_vec(), size))
}

/// One element along an axis of `[B, n, m]`.
fn one(node: &mut Node<'_>, x: Val, axis: usize, at: i64) -> Step<Val> {
    node.slice_axis(x, axis, at, 1i64)
}

/// The row of `[B, n, m]` that has the largest first number, `[B, 1, 1]`.
fn pivot(node: &mut Node<'_>, column: Val) -> Step<Val> {
    let sizes = node.unary(UnaryOp::Abs, column)?;
    node.reduce(ReduceOp::ArgMax, sizes, vec![1], true)
}

/// A row of each matrix by its number, `[B, 1, m]`.
fn row(node: &mut Node<'_>, x: Val, at: Val) -> Step<Val> {
    let mut dims = node.shape(x).0;
    dims[1] = Dim::Const(1);
    let at = node.broadcast(at, Shape(dims))?;
    node.add(Op::Gather(Gather::Elements { axis: 1 }), &[x, at])
}

/// `x` with 1 where it is 0.
fn divisor(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let none = node.with_scalar(BinaryOp::Eq, x, 0.0)?;
    let one = node.scalar(node.dtype(x), 1.0);
    node.select(none, one, x)
}

/// The product of pivots: each step takes the pivot's row out and leaves a matrix that is smaller by one.
fn determinant(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (mut x, outer, size) = matrices(node)?;
    let dtype = node.dtype(x);
    let mut product: Option<Val> = None;
    for rows in (1..=size).rev() {
        let column = one(node, x, 2, 0)?;
        let at = pivot(node, column)?;
        let chosen = row(node, x, at)?;
        let number = one(node, chosen, 2, 0)?;
        // The first row goes to the pivot's place, which turns the sign.
        let stays = node.with_scalar(BinaryOp::Eq, at, 0.0)?;
        let (plus, minus) = (node.scalar(dtype, 1.0), node.scalar(dtype, -1.0));
        let sign = node.select(stays, plus, minus)?;
        let factor = node.binary(BinaryOp::Mul, number, sign)?;
        product = Some(match product {
            Some(product) => node.binary(BinaryOp::Mul, product, factor)?,
            None => factor,
        });
        if rows == 1 {
            break;
        }
        let first = one(node, x, 1, 0)?;
        let places = node.iota([rows].into(), 0, DType::I64)?;
        let places = node.reshape(places, [1, rows, 1])?;
        let is_pivot = node.binary(BinaryOp::Eq, places, at)?;
        let swapped = node.select(is_pivot, first, x)?;
        let rest = node.slice_axis(swapped, 1, 1i64, rows - 1)?;
        let (heads, tails) = (one(node, rest, 2, 0)?, node.slice_axis(rest, 2, 1i64, rows - 1)?);
        let number = divisor(node, number)?;
        let shares = node.binary(BinaryOp::Div, heads, number)?;
        let chosen = node.slice_axis(chosen, 2, 1i64, rows - 1)?;
        let taken = node.binary(BinaryOp::Mul, shares, chosen)?;
        x = node.binary(BinaryOp::Sub, tails, taken)?;
    }
    let product = product.unwrap_or(x);
    Ok(vec![node.reshape(product, outer)?])
}

/// Gauss and Jordan's elimination of matrices beside which the unit matrix stands.
fn inverse(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, outer, size) = matrices(node)?;
    let dtype = node.dtype(x);
    let places = node.iota([size].into(), 0, DType::I64)?;
    let (down, across) = (node.reshape(places, [1, size, 1])?, node.reshape(places, [1, 1, size])?);
    let unit = node.binary(BinaryOp::Eq, down, across)?;
    let unit = node.cast(unit, dtype)?;
    let shape = node.shape(x);
    let unit = node.broadcast(unit, shape)?;
    let mut both = node.concat(&[x, unit], 2)?;
    for k in 0..size {
        let column = one(node, both, 2, k)?;
        let sizes = node.unary(UnaryOp::Abs, column)?;
        let done = node.with_scalar(BinaryOp::Lt, down, k as f64)?;
        let never = node.scalar(dtype, -1.0);
        let open = node.select(done, never, sizes)?;
        let at = node.reduce(ReduceOp::ArgMax, open, vec![1], true)?;
        let chosen = row(node, both, at)?;
        let number = one(node, chosen, 2, k)?;
        let chosen = node.binary(BinaryOp::Div, chosen, number)?;
        let replaced = one(node, both, 1, k)?;
        let is_pivot = node.binary(BinaryOp::Eq, down, at)?;
        let swapped = node.select(is_pivot, replaced, both)?;
        let shares = one(node, swapped, 2, k)?;
        let taken = node.binary(BinaryOp::Mul, shares, chosen)?;
        let rest = node.binary(BinaryOp::Sub, swapped, taken)?;
        let here = node.known(Known::scalar(Dim::Const(k)));
        let is_row = node.binary(BinaryOp::Eq, down, here)?;
        both = node.select(is_row, chosen, rest)?;
    }
    let result = node.slice_axis(both, 2, size, size)?;
    let mut dims = outer;
    dims.extend([Dim::Const(size), Dim::Const(size)]);
    Ok(vec![node.reshape(result, dims)?])
}
