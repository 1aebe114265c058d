//! Sees wholes in decomposed graphs: normalisations, softmax, attention.
//!
//! These are directional, by matchers over the canonical graph, because the whole is never worse than its parts by the
//! cost model (one pass over memory in place of several) and a pattern of ten ops with optional parts is more robust as
//! code than as an e-graph pattern. Small recognitions with several equal spellings (activations) are e-graph rules.

pub mod attention;
pub mod norms;
pub mod softmax;

use ir::op::{BinaryOp, Elementwise, ReduceOp, UnaryOp};
use ir::{Graph, Op, Value};

/// Returns the operands if the value is made by a binary op of the kind.
pub(crate) fn binary(g: &Graph, v: Value, kind: BinaryOp) -> Option<(Value, Value)> {
    let node = g.node(v.node);
    match node.op {
        Op::Elementwise(Elementwise::Binary(op)) if op == kind => Some((node.operands[0], node.operands[1])),
        _ => None,
    }
}

/// Returns the operand if the value is made by a unary op of the kind.
pub(crate) fn unary(g: &Graph, v: Value, kind: UnaryOp) -> Option<Value> {
    let node = g.node(v.node);
    match node.op {
        Op::Elementwise(Elementwise::Unary(op)) if op == kind => Some(node.operands[0]),
        _ => None,
    }
}

/// Returns the operand and axes if the value is a fold of the kind that keeps its axes.
pub(crate) fn reduce(g: &Graph, v: Value, kind: ReduceOp) -> Option<(Value, &[usize])> {
    let node = g.node(v.node);
    match &node.op {
        Op::Reduce {
            op,
            axes,
            keep_dims: true,
        } if *op == kind => Some((node.operands[0], axes)),
        _ => None,
    }
}

/// Splits `x op c` where `c` is a number.
pub(crate) fn with_number(g: &Graph, v: Value, kind: BinaryOp) -> Option<(Value, f64)> {
    let (a, b) = binary(g, v, kind)?;
    let number = |v| crate::analysis::known_scalar(g, v).map(|s| s.as_f64());
    match (number(a), number(b)) {
        (_, Some(c)) => Some((a, c)),
        (Some(c), _) if kind.is_commutative() => Some((b, c)),
        _ => None,
    }
}
