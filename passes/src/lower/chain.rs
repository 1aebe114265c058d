//! Two products with what lies between them, as one kernel: `f(X · A) · B`.
//!
//! The body is that of attention whose scores are the weights: rows of `X` are the queries, columns of `A` the keys,
//! rows of `B` the values. The first product's results stay in registers. [`crate::chains`] makes the regions.

use ir::kernel::{AttentionBody, Axis, AxisId, Body, Weights};
use ir::op::Contract;
use ir::{DType, Dim, NodeId, Op, Shape, Value};

use super::LowerError;
use super::builder::{Builder, Share, arithmetic};
use super::contract::element;
use super::index::{Linear, delinearize};

/// Returns the product of a region that its anchor, a product, reads as its left operand, if there is one.
pub fn first_within(b: &Builder<'_>) -> Option<NodeId> {
    let anchor = b.region.anchor;
    let is_other = |id: &&NodeId| **id != anchor && matches!(b.graph.node(**id).op, Op::Contract(_));
    // Parts and totals are of one product.
    b.region
        .nodes
        .iter()
        .find(is_other)
        .copied()
        .filter(|_| b.share == Share::Whole)
}

/// Says whether a product is of rows of its left operand by one matrix.
fn is_plain(b: &Builder<'_>, id: NodeId, c: &Contract) -> bool {
    let shape = b.shape(b.graph.node(id).operands[1]);
    !c.transpose_lhs && shape[..shape.rank() - 2].iter().all(|d| d.is(1))
}

/// Lowers a region of two products, the second of which is the anchor.
///
/// # Errors
/// Products of batches of matrices, products whose rows differ, or a first product that the second reads in another way
/// than by its left operand.
pub fn chain(b: &mut Builder<'_>, first: NodeId, second: &Contract) -> Result<Body, LowerError> {
    let anchor = b.region.anchor;
    let not_here = |b: &Builder<'_>| b.not_in_region(first.into());
    let Op::Contract(c) = b.graph.node(first).op.clone() else {
        return Err(not_here(b));
    };
    let (result, between) = (b.shape(anchor.into()).clone(), b.shape(first.into()).clone());
    let split = |shape: &Shape| (shape[..shape.rank() - 1].to_vec(), shape[shape.rank() - 1].clone());
    let ((rows, width), (first_rows, hidden)) = (split(&result), split(&between));
    let same_rows = rows.iter().cloned().product::<Dim>() == first_rows.iter().cloned().product::<Dim>();
    if !is_plain(b, first, &c) || !is_plain(b, anchor, second) || !same_rows {
        return Err(not_here(b));
    }
    let (operands, first_operands) = (
        b.graph.node(anchor).operands.clone(),
        b.graph.node(first).operands.clone(),
    );
    let x = b.shape(first_operands[0]).clone();
    let depth = x[x.rank() - 1].clone();
    // The body names these axes, of size 1 too.
    let axis = |b: &mut Builder<'_>, name: &str, extent: Dim| -> (AxisId, Linear) {
        let axis = b.axes.push(Axis {
            name: name.to_owned(),
            extent: extent.clone(),
        });
        b.extents.push(extent);
        (axis, Linear::axis(axis))
    };
    let (q, row) = axis(b, "row", rows.iter().cloned().product());
    let (k, k_at) = axis(b, "hidden", hidden);
    let (d, d_at) = axis(b, "d", depth);
    let (dv, col) = axis(b, "col", width);
    let at = |b: &Builder<'_>, rows: &[Dim], last: &Linear| {
        let mut coords = delinearize(&row, rows, b.space());
        coords.push(last.clone());
        coords
    };
    let matrix = |b: &mut Builder<'_>, v: Value, transposed: bool, depth: &Linear, column: &Linear| {
        let mut coords = vec![Linear::constant(0); b.shape(v).rank() - 2];
        coords.extend(if transposed { [column, depth] } else { [depth, column] }.map(Clone::clone));
        let e = b.pull(v, &coords)?;
        Ok::<_, LowerError>(element(b, e, v))
    };
    let rows_of_x = x[..x.rank() - 1].to_vec();
    let query_at = at(b, &rows_of_x, &d_at);
    let query = b.pull(first_operands[0], &query_at)?;
    let query = element(b, query, first_operands[0]);
    let key = matrix(b, first_operands[1], c.transpose_rhs, &d_at, &k_at)?;
    let value = matrix(b, operands[1], second.transpose_rhs, &k_at, &col)?;
    let acc = b.var(DType::F32);
    let dot = b.read(acc);
    let dot = b.cast(arithmetic(c.out), dot);
    let first_at = at(b, &first_rows, &k_at);
    b.computed.insert(first.into(), (dot, first_at));
    let left = b.shape(operands[0]).clone();
    let left_at = at(b, &left[..left.rank() - 1], &k_at);
    let score = b.pull(operands[0], &left_at)?;
    let score = b.cast(DType::F32, score);
    let out = b.var(DType::F32);
    let e = b.read(out);
    let e = b.cast(arithmetic(second.out), e);
    let cell = at(b, &rows, &col);
    let epilogue = b.epilogue(anchor.into(), e, cell, &[])?;
    Ok(Body::Attention(AttentionBody {
        batch: Vec::new(),
        q,
        k,
        d,
        dv,
        query,
        key,
        value,
        acc,
        score,
        weights: Weights::Scores,
        out,
        row_weights: None,
        epilogue,
        range: None,
    }))
}
