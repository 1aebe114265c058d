//! Attention in one launch, or in parts of its keys.

use ir::kernel::{AttentionBody, Body, ExprId, Loops, RowWeights, Weights};
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim, Target, Value};

use super::builder::{Builder, Share, arithmetic};
use super::contract::element;
use super::index::{Atom, Linear};
use super::views::broadcast;
use super::{LowerError, parts, seen};

/// Numbers that a part has of each cell: its output, and the largest score and the total weight of its row.
const PLANES: i64 = 3;

/// Scaled dot-product attention; see `ir::op::Composite::Attention`.
///
/// Where there is one query, a GPU takes the heads that share keys as the rows of one tile: they are read once for all
/// of them.
pub fn attention(
    b: &mut Builder<'_>,
    target: &Target,
    scale: f64,
    causal: bool,
    mask: bool,
    scales: bool,
) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (q_shape, k_shape, v_shape) = (
        b.shape(operands[0]).clone(),
        b.shape(operands[1]).clone(),
        b.shape(operands[2]).clone(),
    );
    let (queries, keys) = (q_shape[2].clone(), k_shape[2].clone());
    let anchor_type = arithmetic(b.graph.ty(anchor).dtype);
    let heads = [q_shape[0].clone(), q_shape[1].clone()];
    let dims = [&heads[..], &[queries.clone(), v_shape[3].clone()]].concat();
    if let Share::Total(parts) = b.share {
        let (parallel, cell) = b.iterate(&["batch", "head", "query", "dv"], &dims);
        let mixed = mixed(b, parts, &dims, &cell);
        let e = b.cast(anchor_type, mixed);
        let stmts = b.epilogue(anchor, e, cell, &[])?;
        return Ok(Body::Loops(Loops { parallel, stmts }));
    }
    let (part, part_at) = parts::axis(b);
    let share = q_shape[1].exact_div(&k_shape[1]).unwrap_or(Dim::Const(1));
    let grouped = target.is_gpu() && queries.is(1) && share.as_const().is_some_and(|heads| heads > 1);
    let (batch, outer) = match grouped {
        true => b.iterate(&["batch", "group"], &[q_shape[0].clone(), k_shape[1].clone()]),
        false => b.iterate(&["batch", "head"], &heads),
    };
    let axis = |b: &mut Builder<'_>, name: &str, dim: &Dim| {
        // These axes must exist even at size 1: the body names them.
        let axis = b.axes.push(ir::kernel::Axis {
            name: name.to_owned(),
            extent: dim.clone(),
        });
        b.extents.push(dim.clone());
        (axis, Linear::axis(axis))
    };
    let (q, row_at) = match grouped {
        true => axis(b, "head", &share),
        false => axis(b, "query", &queries),
    };
    let (head, kv_head, q_at) = match grouped {
        true => (
            outer[1].scale(&share).plus(&row_at),
            outer[1].clone(),
            Linear::constant(0),
        ),
        false => (outer[1].clone(), outer[1].div(&share, b.space()), row_at),
    };
    // A part has its own keys; those that are left of the last part's are the last key again, and count for nothing.
    let length = match b.share {
        Share::Partials(parts) => keys.ceil_div(&Dim::Const(parts)),
        _ => keys.clone(),
    };
    let (k, k_in_part) = axis(b, "key", &length);
    let k_at = part_at.iter().fold(k_in_part, |k, part| part.scale(&length).plus(&k));
    let outside = match b.share {
        Share::Partials(parts) if keys.exact_div(&Dim::Const(parts)).is_none() => {
            let (at, end) = (b.index(&k_at), b.size(&keys));
            Some(b.binary(BinaryOp::Ge, at, end))
        }
        _ => None,
    };
    let last_at_most = outside.map(|_| {
        let (at, last) = (b.index(&k_at), b.size(&(keys.clone() - 1)));
        (b.binary(BinaryOp::Min, at, last), at)
    });
    let read_at = last_at_most.map_or_else(|| k_at.clone(), |(e, _)| Linear::atom(Atom::Expr(e)));
    let (d, d_at) = axis(b, "d", &q_shape[3]);
    let (dv, dv_at) = axis(b, "dv", &v_shape[3]);
    let operand = |b: &mut Builder<'_>, v: Value, head: &Linear, row: &Linear, col: &Linear| {
        // A batch of 1 is shared.
        let batch = if b.shape(v)[0].is(1) {
            Linear::constant(0)
        } else {
            outer[0].clone()
        };
        let e = b.pull(v, &[batch, head.clone(), row.clone(), col.clone()])?;
        let e = element(b, e, v);
        // Bytes go into the product in the type that the graph gives them.
        let dtype = b.graph.ty(v).dtype;
        Ok::<_, LowerError>(if b.exprs.dtype(e).bits() < dtype.bits().min(16) {
            b.cast(dtype, e)
        } else {
            e
        })
    };
    let query = operand(b, operands[0], &head, &q_at, &d_at)?;
    let key = operand(b, operands[1], &kv_head, &read_at, &d_at)?;
    let value = operand(b, operands[2], &kv_head, &read_at, &dv_at)?;
    let acc = b.var(DType::F32);
    let dot = b.read(acc);
    let factor = b.number(DType::F32, scale);
    let mut score = b.binary(BinaryOp::Mul, dot, factor);
    if let Some(v) = operands.last().copied().filter(|_| scales) {
        let at = broadcast(
            &[outer[0].clone(), head.clone(), q_at.clone(), read_at.clone()],
            b.shape(v),
        );
        let scale = b.pull(v, &at)?;
        let scale = b.cast(DType::F32, scale);
        score = b.binary(BinaryOp::Mul, score, scale);
    }
    let low = b.number(DType::F32, f64::NEG_INFINITY);
    if mask {
        let v = operands[3];
        let at = broadcast(&[outer[0].clone(), head.clone(), q_at.clone(), read_at], b.shape(v));
        let m = b.pull(v, &at)?;
        score = if b.exprs.dtype(m) == DType::Bool {
            b.select(m, score, low)
        } else {
            let m = b.cast(DType::F32, m);
            b.binary(BinaryOp::Add, score, m)
        };
    }
    if causal {
        // Key j is seen by query i when j ≤ i + (keys − queries).
        let reach = q_at.clone().offset(&(keys.clone() - queries));
        let (j, i) = (b.index(&k_at), b.index(&reach));
        let seen = b.binary(BinaryOp::Le, j, i);
        score = b.select(seen, score, low);
    }
    let seen_of = |b: &mut Builder<'_>, score: ExprId| {
        let part = part_at.first().cloned().unwrap_or(Linear::constant(0));
        let start = part.scale(&(-length.clone()));
        let all = [b.index(&start), b.index(&start.offset(&keys))];
        seen::range(b, [q, k], last_at_most, all, score)
    };
    // The CPU reads the score.
    let mut range = if target.is_gpu() { seen_of(b, score) } else { None };
    if let Some(outside) = outside {
        score = b.select(outside, low, score);
        range = range.and_then(|_| seen_of(b, score));
    }
    let out = b.var(DType::F32);
    let e = b.read(out);
    let cell = vec![outer[0].clone(), head, q_at, dv_at];
    let (row_weights, epilogue) = if let Share::Partials(parts) = b.share {
        let weights = RowWeights {
            largest: b.var(DType::F32),
            total: b.var(DType::F32),
        };
        let [largest, total] = weights.vars().map(|var| b.read(var));
        // Of a part whose keys are all masked nothing is left, and not even that is a number.
        let zero = b.number(DType::F32, 0.0);
        let masked = b.binary(BinaryOp::Eq, largest, low);
        let e = b.select(masked, zero, e);
        let plane = part_at.first().cloned().unwrap_or(Linear::constant(0));
        let mut stores = Vec::new();
        for (planes_before, e) in (0..).zip([e, largest, total]) {
            let plane = plane.clone().offset(&Dim::Const(planes_before * parts));
            stores.push(parts::store(b, e, PLANES * parts, &dims, &[plane], &cell));
        }
        (Some(weights), stores)
    } else {
        let e = b.cast(anchor_type, e);
        (None, b.epilogue(anchor, e, cell, &[])?)
    };
    Ok(Body::Attention(AttentionBody {
        batch: [part, batch].concat(),
        q,
        k,
        d,
        dv,
        query,
        key,
        value,
        acc,
        score,
        weights: Weights::Softmax,
        out,
        row_weights,
        epilogue,
        range,
    }))
}

/// Brings the parts' outputs together, each with the share that its keys have of all weights. Where all keys of all
/// parts are masked, the shares are no numbers, as the weights of one launch would be.
fn mixed(b: &mut Builder<'_>, parts: i64, dims: &[Dim], cell: &[Linear]) -> ExprId {
    let load = |b: &mut Builder<'_>, plane: i64| parts::load(b, DType::F32, plane, PLANES * parts, dims, cell);
    let [outs, largest, totals] = [0, 1, 2].map(|before| {
        (0..parts)
            .map(|part| load(b, before * parts + part))
            .collect::<Vec<ExprId>>()
    });
    let fold = |b: &mut Builder<'_>, op, all: &[ExprId]| {
        let sum = all.iter().copied().reduce(|sum, e| b.binary(op, sum, e));
        sum.unwrap_or_else(|| b.number(DType::F32, 0.0))
    };
    let most = fold(b, BinaryOp::Max, &largest);
    let (mut weights, mut weighted) = (Vec::new(), Vec::new());
    for ((out, largest), total) in outs.into_iter().zip(largest).zip(totals) {
        let below = b.binary(BinaryOp::Sub, largest, most);
        let scale = b.unary(UnaryOp::Exp, below);
        let weight = b.binary(BinaryOp::Mul, total, scale);
        weighted.push(b.binary(BinaryOp::Mul, out, weight));
        weights.push(weight);
    }
    let (sum, total) = (fold(b, BinaryOp::Add, &weighted), fold(b, BinaryOp::Add, &weights));
    b.binary(BinaryOp::Div, sum, total)
}
