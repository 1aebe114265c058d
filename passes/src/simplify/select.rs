//! Selections whose answer is known.

use ir::graph::eval::scalar;
use ir::op::{Elementwise, UnaryOp};
use ir::{Op, Shape, Value};

use super::broadcast_to;
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "select_by_constant",
        apply: select_by_constant,
    },
    Rule {
        name: "select_of_equals",
        apply: select_of_equals,
    },
    Rule {
        name: "select_by_negation",
        apply: select_by_negation,
    },
    Rule {
        name: "compare_of_choice",
        apply: compare_of_choice,
    },
];

fn shape(b: &Builder<'_>, x: &[Value]) -> Option<Shape> {
    let s = Shape::broadcast(&b.ty(x[0]).shape, &b.ty(x[1]).shape)?;
    Shape::broadcast(&s, &b.ty(x[2]).shape)
}

/// `select(true, x, y)` → `x`.
fn select_by_constant(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if !matches!(op, Op::Elementwise(Elementwise::Select)) {
        return Ok(None);
    }
    let (Some(c), Some(shape)) = (b.as_scalar(x[0]), shape(b, x)) else {
        return Ok(None);
    };
    broadcast_to(b, if c.as_bool() { x[1] } else { x[2] }, &shape).map(Some)
}

/// `select(c, x, x)` → `x`.
fn select_of_equals(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if !matches!(op, Op::Elementwise(Elementwise::Select)) || x[1] != x[2] {
        return Ok(None);
    }
    match shape(b, x) {
        Some(shape) => broadcast_to(b, x[1], &shape).map(Some),
        None => Ok(None),
    }
}

/// `select(not c, x, y)` → `select(c, y, x)`.
fn select_by_negation(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if !matches!(op, Op::Elementwise(Elementwise::Select)) {
        return Ok(None);
    }
    match b.def(x[0]) {
        (Op::Elementwise(Elementwise::Unary(UnaryOp::Not)), inner) => {
            let inner = inner[0];
            b.emit(op.clone(), &[inner, x[2], x[1]]).map(Some)
        }
        _ => Ok(None),
    }
}

/// `select(c, 1, 0) == 0` → `not c`: a comparison of two numbers that a condition chooses between is the condition
/// itself or its negation.
fn compare_of_choice(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Elementwise(Elementwise::Binary(compare)) = op else {
        return Ok(None);
    };
    if !compare.is_comparison() {
        return Ok(None);
    }
    let (Op::Elementwise(Elementwise::Select), choice) = b.def(x[0]) else {
        return Ok(None);
    };
    let (condition, choices) = (choice[0], [choice[1], choice[2]]);
    let (Some(yes), Some(no), Some(with)) = (b.as_scalar(choices[0]), b.as_scalar(choices[1]), b.as_scalar(x[1]))
    else {
        return Ok(None);
    };
    let Some(shape) = Shape::broadcast(&b.ty(x[0]).shape, &b.ty(x[1]).shape) else {
        return Ok(None);
    };
    let dtype = b.ty(x[0]).dtype;
    let holds = |number| scalar::binary(*compare, dtype, number, with).as_bool();
    let answer = match (holds(yes), holds(no)) {
        (true, false) => condition,
        (false, true) => b.emit(Op::unary(UnaryOp::Not), &[condition])?,
        // Always the same: nothing is gained before the condition itself is known.
        _ => return Ok(None),
    };
    broadcast_to(b, answer, &shape).map(Some)
}
