//! Softmax and log-softmax from their parts, where the maximum is subtracted first.
//!
//! ```text
//! e = exp(x - max x); e / sum e                  becomes     softmax x
//! s = x - max x; s - log(sum(exp s))             becomes     log_softmax x
//! log(softmax x)                                 becomes     log_softmax x
//! ```

use ir::op::{BinaryOp, Composite, Elementwise, ReduceOp, UnaryOp};
use ir::{Graph, Op, Value};

use super::{binary, reduce, unary};
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognize_softmax",
    run: |graph, context| {
        let rules = RULES.iter().copied().filter(|r| context.options.enabled(r.name));
        let mut builder = Builder::new(graph, "recognize_softmax").with_rules(rules);
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "softmax",
        apply: softmax,
    },
    Rule {
        name: "log_softmax",
        apply: log_softmax,
    },
    Rule {
        name: "log_of_softmax",
        apply: log_of_softmax,
    },
];

/// `x - max(x)` along one axis: `(x, axis)`.
fn shifted(g: &Graph, v: Value) -> Option<(Value, usize)> {
    let (x, max) = binary(g, v, BinaryOp::Sub)?;
    match reduce(g, max, ReduceOp::Max)? {
        (of, [axis]) if of == x => Some((x, *axis)),
        _ => None,
    }
}

/// Says whether `v` is the sum of `e` along the axis.
fn is_sum(g: &Graph, v: Value, e: Value, axis: usize) -> bool {
    reduce(g, v, ReduceOp::Sum).is_some_and(|(of, axes)| of == e && axes == [axis])
}

fn softmax(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let g = b.graph();
    let (e, sum) = match op {
        Op::Elementwise(Elementwise::Binary(BinaryOp::Div)) => (x[0], x[1]),
        Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)) => {
            match (unary(g, x[1], UnaryOp::Recip), unary(g, x[0], UnaryOp::Recip)) {
                (Some(sum), _) => (x[0], sum),
                (_, Some(sum)) => (x[1], sum),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    let found = unary(g, e, UnaryOp::Exp).and_then(|s| shifted(g, s));
    match found {
        Some((source, axis)) if is_sum(g, sum, e, axis) => {
            b.emit(Op::Composite(Composite::Softmax { axis }), &[source]).map(Some)
        }
        _ => Ok(None),
    }
}

fn log_softmax(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if *op != Op::binary(BinaryOp::Sub) {
        return Ok(None);
    }
    let g = b.graph();
    let Some((source, axis)) = shifted(g, x[0]) else {
        return Ok(None);
    };
    let Some(sum) = unary(g, x[1], UnaryOp::Log) else {
        return Ok(None);
    };
    let matches = reduce(g, sum, ReduceOp::Sum)
        .is_some_and(|(e, axes)| axes == [axis] && unary(g, e, UnaryOp::Exp) == Some(x[0]));
    if matches {
        return b
            .emit(Op::Composite(Composite::LogSoftmax { axis }), &[source])
            .map(Some);
    }
    Ok(None)
}

fn log_of_softmax(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if *op != Op::unary(UnaryOp::Log) {
        return Ok(None);
    }
    match b.def(x[0]) {
        (Op::Composite(Composite::Softmax { axis }), operands) => {
            let (axis, source) = (*axis, operands[0]);
            b.emit(Op::Composite(Composite::LogSoftmax { axis }), &[source])
                .map(Some)
        }
        _ => Ok(None),
    }
}
