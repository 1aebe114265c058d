//! Scaled dot-product attention from its decomposed form.
//!
//! ```text
//! w = softmax(contract(q · a, k · b, transposed) · c + mask); contract(w, v)
//!     becomes     attention q, k, v, mask   scale = a · b · c
//! ```
//!
//! The scale may be on the queries, on the keys, on both or on the scores. A mask is added (any number of them) or selects
//! a very negative number; a mask that is "column ≤ row", by whatever index arithmetic, becomes `causal`. Keys and values
//! that are repeated for groups of queries (`reshape(broadcast(reshape k))`) are taken before the repetition. Queries, keys
//! and values stay the views that they are: scheduling takes those in as strided loads.

use ir::op::{BinaryOp, Composite, Contract, Elementwise, View};
use ir::types::Scalar;
use ir::{DType, Graph, NodeId, Op, Shape, Value};

use super::{binary, with_number};
use crate::analysis::index::{Fact, Facts};
use crate::analysis::known_scalar;
use crate::cost::CostModel;
use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// Numbers below this hide a position whatever its score.
const HIDDEN: f64 = -1e30;

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognize_attention",
    run: |graph, context| {
        if !context.options.enabled("attention") {
            return Ok(graph.clone());
        }
        if !graph
            .nodes()
            .values()
            .any(|n| matches!(n.op, Op::Composite(Composite::Softmax { .. })))
        {
            return Ok(graph.clone());
        }
        let facts = Facts::of(graph);
        let model = CostModel {
            target: context.target,
            symbols: graph.symbols(),
        };
        let mut builder =
            Builder::new(graph, "recognize_attention").with_rules(crate::simplify::enabled(context.options));
        for (id, node) in graph.nodes().iter() {
            if let Some(found) = find(graph, &facts, id) {
                builder.origin = node.origin.clone();
                let value = emit(&mut builder, &found)?;
                if *builder.ty(value) == node.results[0] {
                    let before = model.nodes(graph, &found.nodes);
                    let operands: Vec<_> = builder.node(value).operands.iter().map(|v| builder.ty(*v)).collect();
                    let after = model.op(&builder.node(value).op, &operands, &node.results);
                    let origins = found.nodes.iter().map(|n| graph.node(*n).origin.clone()).collect();
                    builder.note("attention", origins, Some((before, after)), found.note());
                    builder.set(id, value);
                    continue;
                }
            }
            builder.copy(id)?;
        }
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

struct Found {
    q: Value,
    k: Value,
    /// The keys are `[…, D, T]`.
    k_transposed: bool,
    v: Value,
    scale: f64,
    causal: bool,
    masks: Vec<Value>,
    /// The nodes that the composite replaces, last first.
    nodes: Vec<NodeId>,
}

impl Found {
    fn note(&self) -> Option<String> {
        let mask = match (self.causal, self.masks.len()) {
            (true, 0) => "causal mask",
            (true, _) => "causal mask and a mask operand",
            (false, 0) => "no mask",
            (false, _) => "mask operand",
        };
        Some(format!("scale {:?}, {mask}", self.scale))
    }
}

fn find(g: &Graph, facts: &Facts, id: NodeId) -> Option<Found> {
    let node = g.node(id);
    let Op::Contract(Contract {
        transpose_lhs: false,
        transpose_rhs: false,
        ..
    }) = node.op
    else {
        return None;
    };
    let (weights, v) = (node.operands[0], node.operands[1]);
    let rank = g.ty(weights).rank();
    let softmax = g.node(weights.node);
    if !matches!(softmax.op, Op::Composite(Composite::Softmax { axis }) if axis + 1 == rank) || rank != 4 {
        return None;
    }
    let mut found = Found {
        q: v,
        k: v,
        k_transposed: false,
        v,
        scale: 1.0,
        causal: false,
        masks: Vec::new(),
        nodes: vec![id, weights.node],
    };
    let full = g.ty(weights).shape.clone();
    let scores = scores(g, facts, softmax.operands[0], &full, &mut found)?;
    let product = g.node(scores.node);
    let Op::Contract(contract) = product.op else {
        return None;
    };
    if contract.transpose_lhs {
        return None;
    }
    found.nodes.push(scores.node);
    found.k_transposed = !contract.transpose_rhs;
    found.q = unscaled(g, product.operands[0], &mut found);
    found.k = unscaled(g, product.operands[1], &mut found);
    let sizes = [found.q, found.k, found.v].map(|v| g.ty(v).shape.clone());
    if sizes.iter().any(|s| s.rank() != 4) {
        return None;
    }
    // Contractions broadcast their batches; attention does not.
    let batch = &full[..2];
    if sizes.iter().any(|s| s[..2] != *batch) || !found.scale.is_finite() {
        return None;
    }
    if let (Some(k), Some(v)) = (
        before_repeat(g, found.k, &sizes[1]),
        before_repeat(g, found.v, &sizes[2]),
    ) && g.ty(k).shape[1] == g.ty(v).shape[1]
    {
        (found.k, found.v) = (k, v);
    }
    Some(found)
}

/// Walks from the softmax's operand to the product, noting scale and masks on the way.
fn scores(g: &Graph, facts: &Facts, start: Value, full: &Shape, found: &mut Found) -> Option<Value> {
    let mut at = start;
    let mut scaled = false;
    for _ in 0..6 {
        if let Op::Contract(_) = g.node(at.node).op {
            return Some(at);
        }
        found.nodes.push(at.node);
        if let Some((inner, c)) = with_number(g, at, BinaryOp::Mul) {
            found.scale *= c;
            scaled = true;
            at = inner;
            continue;
        }
        if let Some((inner, c)) = with_number(g, at, BinaryOp::Div) {
            found.scale /= c;
            scaled = true;
            at = inner;
            continue;
        }
        // Below a scale, a mask would have been scaled too.
        if scaled {
            return None;
        }
        if let Some((a, b)) = binary(g, at, BinaryOp::Add) {
            let (inner, mask) = if leads_to_product(g, a) { (a, b) } else { (b, a) };
            if Shape::broadcast(&g.ty(mask).shape, full).as_ref() != Some(full) {
                return None;
            }
            if is_causal_mask(g, facts, mask, full) {
                found.causal = true;
            } else {
                found.masks.push(mask);
            }
            at = inner;
            continue;
        }
        let node = g.node(at.node);
        if let Op::Elementwise(Elementwise::Select) = node.op {
            let hidden = known_scalar(g, node.operands[2])?.as_f64();
            let keep = node.operands[0];
            if hidden < HIDDEN && is_causal(facts, keep, g, full) {
                found.causal = true;
            } else if hidden == f64::NEG_INFINITY && Shape::broadcast(&g.ty(keep).shape, full).as_ref() == Some(full) {
                found.masks.push(keep);
            } else {
                return None;
            }
            at = node.operands[1];
            continue;
        }
        return None;
    }
    None
}

fn leads_to_product(g: &Graph, v: Value) -> bool {
    let mut at = v;
    for _ in 0..6 {
        let node = g.node(at.node);
        match &node.op {
            Op::Contract(_) => return true,
            Op::Elementwise(Elementwise::Select) => at = node.operands[1],
            Op::Elementwise(Elementwise::Binary(BinaryOp::Add)) => {
                if leads_directly(g, node.operands[0]) {
                    return true;
                }
                at = node.operands[1];
            }
            Op::Elementwise(Elementwise::Binary(BinaryOp::Mul | BinaryOp::Div)) => at = node.operands[0],
            _ => return false,
        }
    }
    false
}

fn leads_directly(g: &Graph, v: Value) -> bool {
    match g.node(v.node).op {
        Op::Contract(_) => true,
        _ => [BinaryOp::Mul, BinaryOp::Div]
            .iter()
            .any(|op| with_number(g, v, *op).is_some_and(|(x, _)| matches!(g.node(x.node).op, Op::Contract(_)))),
    }
}

/// Takes a scale off queries or keys, also under a transpose.
fn unscaled(g: &Graph, v: Value, found: &mut Found) -> Value {
    match with_number(g, v, BinaryOp::Mul) {
        Some((inner, c)) if g.ty(inner).shape == g.ty(v).shape => {
            found.scale *= c;
            found.nodes.push(v.node);
            inner
        }
        _ => v,
    }
}

/// `reshape(broadcast(reshape(x [B, h, T, D] to [B, h, 1, T, D]) to [B, h, g, T, D]) to [B, h·g, T, D])` → x.
fn before_repeat(g: &Graph, v: Value, shape: &Shape) -> Option<Value> {
    let view = |v: Value| match &g.node(v.node).op {
        Op::View(view) => Some((view, g.node(v.node).operands[0])),
        _ => None,
    };
    let (View::Reshape(_), repeated) = view(v)? else {
        return None;
    };
    let (View::Broadcast(wide), narrow) = view(repeated)? else {
        return None;
    };
    if wide.rank() != 5 || g.ty(narrow).shape.rank() != 5 {
        return None;
    }
    let one = &g.ty(narrow).shape;
    let others = [0, 1, 3, 4].iter().all(|i| one[*i] == wide[*i]);
    let merged = wide[1].clone() * &wide[2] == shape[1] && wide[3] == shape[2] && wide[4] == shape[3];
    if !one[2].is(1) || !others || !merged || wide[0] != shape[0] {
        return None;
    }
    let (View::Reshape(_), source) = view(narrow)? else {
        return None;
    };
    let want = [&one[0], &one[1], &one[3], &one[4]];
    let have = &g.ty(source).shape;
    (have.rank() == 4 && have.iter().zip(want).all(|(a, b)| a == b)).then_some(source)
}

/// Says whether a bool is `column ≤ row` over the last two axes of the scores.
fn is_causal(facts: &Facts, keep: Value, g: &Graph, full: &Shape) -> bool {
    if full[2] != full[3] {
        return false;
    }
    if let Some(t) = g.as_constant(keep)
        && let Some(n) = square(&t.shape, full)
    {
        return t
            .bytes
            .iter()
            .enumerate()
            .all(|(i, b)| (*b != 0) == (i % n <= i / n % n));
    }
    let Some(Fact::AtLeastZero(a)) = facts.get(keep) else {
        return false;
    };
    let rank = a.coefficients.len();
    rank >= 2
        && a.constant.is(0)
        && a.coefficients[rank - 1].is(-1)
        && a.coefficients[rank - 2].is(1)
        && a.coefficients[..rank - 2].iter().all(|c| c.is(0))
}

/// The size of a constant mask over `[1, …, S, S]`, if it is one for these scores.
fn square(shape: &[usize], full: &Shape) -> Option<usize> {
    let rank = shape.len();
    let n = *shape.last()?;
    let leading = rank >= 2 && shape[..rank - 2].iter().all(|d| *d == 1);
    (leading && shape[rank - 2] == n && n > 1 && full[3].is(n as i64)).then_some(n)
}

/// Says whether a float mask adds 0 where causal and hides elsewhere.
fn is_causal_mask(g: &Graph, facts: &Facts, mask: Value, full: &Shape) -> bool {
    let node = g.node(mask.node);
    match &node.op {
        Op::View(View::Broadcast(_)) => is_causal_mask(g, facts, node.operands[0], full),
        Op::Elementwise(Elementwise::Select) => {
            let number = |i: usize| known_scalar(g, node.operands[i]).map(|s| s.as_f64());
            number(1) == Some(0.0)
                && number(2).is_some_and(|v| v < HIDDEN)
                && is_causal(facts, node.operands[0], g, full)
        }
        Op::Constant(_) if full[2] == full[3] => {
            let Some(t) = g.as_constant(mask) else { return false };
            if t.elements() > 1 << 20 || !t.dtype.is_float() {
                return false;
            }
            let Some(n) = square(&t.shape, full) else { return false };
            t.to_f64()
                .iter()
                .enumerate()
                .all(|(i, v)| if i % n <= i / n % n { *v == 0.0 } else { *v < HIDDEN })
        }
        _ => false,
    }
}

fn emit(b: &mut Builder<'_>, found: &Found) -> Result<Value, PassFault> {
    let mut k = b.value(found.k);
    if found.k_transposed {
        k = b.emit(Op::View(View::Transpose(vec![0, 1, 3, 2])), &[k])?;
    }
    let mut operands = vec![b.value(found.q), k, b.value(found.v)];
    let masks: Vec<Value> = found.masks.iter().map(|m| b.value(*m)).collect();
    let mut mask: Option<Value> = None;
    for next in masks {
        mask = Some(match mask {
            None => next,
            Some(have) => joined(b, have, next)?,
        });
    }
    operands.extend(mask);
    let composite = Composite::Attention {
        scale: Scalar::Float(found.scale),
        causal: found.causal,
        mask: mask.is_some(),
    };
    b.emit(Op::Composite(composite), &operands)
}

/// Both masks as one.
fn joined(b: &mut Builder<'_>, x: Value, y: Value) -> Result<Value, PassFault> {
    let is_bool = |b: &Builder<'_>, v: Value| b.ty(v).dtype == DType::Bool;
    if is_bool(b, x) && is_bool(b, y) {
        return b.emit(Op::binary(BinaryOp::And), &[x, y]);
    }
    let mut parts = [x, y];
    for part in &mut parts {
        if is_bool(b, *part) {
            let dtype = b.ty(if *part == x { y } else { x }).dtype;
            let (zero, hidden) = (b.scalar(dtype, 0.0), b.scalar(dtype, f64::NEG_INFINITY));
            *part = b.emit(Op::Elementwise(Elementwise::Select), &[*part, zero, hidden])?;
        }
    }
    b.emit(Op::binary(BinaryOp::Add), &parts)
}
