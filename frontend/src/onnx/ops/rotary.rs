//! Rotary position embedding.

use ir::op::BinaryOp;
use ir::{DType, Dim};

use super::attention::{heads_first, split_heads};
use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("RotaryEmbedding", 23, rotary),
    microsoft("RotaryEmbedding", contrib_rotary),
];

/// Turns pairs of each head's first `turned` elements of `[B, S, H, D]`: `(a·cos − b·sin, b·cos + a·sin)`.
///
/// Pairs are the two halves, or neighbours where they are interleaved. The tables are `[B or 1, S, turned / 2]`.
pub(super) fn turn(node: &mut Node<'_>, x: Val, tables: [Val; 2], turned: &Dim, interleaved: bool) -> Step<Val> {
    let dims = node.shape(x).0;
    let fits = node.build.sizes.at_least(turned, 1) && node.build.sizes.at_least(&(&dims[3] - turned), 0);
    let Some(half) = turned.exact_div(&Dim::Const(2)).filter(|_| fits) else {
        return node.bad("rotary_embedding_dim", turned, format!("even and at most {}", dims[3]));
    };
    let mut wide = tables;
    for table in &mut wide {
        let Ok([batch, rows, size]) = <[Dim; 3]>::try_from(node.shape(*table).0) else {
            return node.rank_error(1, "3, or 2 with positions");
        };
        *table = node.reshape(*table, [batch, rows, Dim::Const(1), size])?;
    }
    let [cos, sin] = wide;
    let head = node.slice_axis(x, 3, 0i64, turned.clone())?;
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
        let tail = node.slice_axis(x, 3, turned.clone(), rest)?;
        result = node.concat(&[result, tail], 3)?;
    }
    Ok(result)
}

/// Turns `[B, S, H·D]` split into so many heads, or `[B, H, S, D]`, and gives back what has the operand's shape.
fn turned_heads(
    node: &mut Node<'_>,
    heads: impl FnOnce(&mut Node<'_>, &Dim) -> Step<i64>,
    tables: [Val; 2],
    turned: impl FnOnce(&Dim) -> Dim,
) -> Step<Val> {
    let x = node.input(0)?;
    let given = node.shape(x);
    let (x, four) = match &*given {
        [_, _, wide] => {
            let heads = heads(node, wide)?;
            (split_heads(node, 0, x, "num_heads", heads)?, false)
        }
        [_, _, _, _] => (heads_first(node, x)?, true),
        _ => return node.rank_error(0, "3 or 4"),
    };
    let turned = turned(&node.shape(x)[3]);
    let interleaved = node.flag("interleaved")?;
    let result = turn(node, x, tables, &turned, interleaved)?;
    match four {
        true => heads_first(node, result),
        false => node.reshape(result, given),
    }
}

/// ONNX's op. The tables are `[positions, half]`, looked up by the fourth input, or `[B, S, half]`.
fn rotary(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut tables = [node.input(1)?, node.input(2)?];
    if let Some(positions) = node.optional(3) {
        for table in &mut tables {
            *table = node.take(*table, 0, positions)?;
        }
    }
    let turned = node.int_or("rotary_embedding_dim", 0)?;
    let heads = |node: &mut Node<'_>, _: &Dim| {
        let heads = node.int("num_heads")?;
        node.required("num_heads", heads)
    };
    let result = turned_heads(node, heads, tables, |size| match turned {
        0 => size.clone(),
        turned => Dim::Const(turned),
    })?;
    Ok(vec![result])
}

/// ONNX Runtime's op. The positions are `[B, S]`, or `[1]`: that of the first row of every sequence.
fn contrib_rotary(node: &mut Node<'_>) -> Step<Vec<Val>> {
    if node.flag("is_packed_batching")? {
        return node.unsupported(
            "RotaryEmbedding with is_packed_batching = 1 (sequences without padding in one row); export with it 0",
        );
    }
    let scale = node.float_or("scale", 1.0)?;
    if scale != 1.0 {
        return node.bad("scale", scale, "1: multiply the tables by the factor instead");
    }
    let given = node.shape(node.input(0)?);
    let rows = match &*given {
        [_, rows, _] | [_, _, rows, _] => rows.clone(),
        _ => return node.rank_error(0, "3 or 4"),
    };
    let mut positions = node.input(1)?;
    positions = node.cast(positions, DType::I64)?;
    match &*node.shape(positions) {
        [one] if one.is(1) => {
            let row = node.iota([Dim::Const(1), rows].into(), 1, DType::I64)?;
            positions = node.binary(BinaryOp::Add, row, positions)?;
        }
        [_, _] => {}
        _ => return node.rank_error(1, "2, or 1 with one element"),
    }
    let mut tables = [node.input(2)?, node.input(3)?];
    let Some(half) = node
        .shape(tables[0])
        .last()
        .cloned()
        .filter(|_| node.rank(tables[0]) == 2)
    else {
        return node.rank_error(2, "2");
    };
    for table in &mut tables {
        *table = node.take(*table, 0, positions)?;
    }
    let whole = half * 2;
    let turned = match node.int_or("rotary_embedding_dim", 0)? {
        0 => whole.clone(),
        turned => Dim::Const(turned),
    };
    // Without a count of heads, they are as wide as the tables say.
    let heads = |node: &mut Node<'_>, wide: &Dim| match node.int_or("num_heads", 0)? {
        0 => match wide.exact_div(&whole).and_then(|heads| heads.as_const()) {
            Some(heads) => Ok(heads),
            None => node.bad("num_heads", 0, format!("the number of heads in {wide} elements")),
        },
        heads => Ok(heads),
    };
    Ok(vec![turned_heads(node, heads, tables, |_| turned.clone())?])
}
