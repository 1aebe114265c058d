//! Casts that do nothing, and pairs that are one.

use ir::op::Elementwise;
use ir::{Op, Value};

use crate::analysis::cast_is_exact;
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "cast_to_same",
        apply: cast_to_same,
    },
    Rule {
        name: "cast_of_exact_cast",
        apply: cast_of_exact_cast,
    },
];

/// A cast to the type that the operand has.
fn cast_to_same(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Elementwise(Elementwise::Cast(to)) = op else {
        return Ok(None);
    };
    Ok((b.ty(x[0]).dtype == *to).then_some(x[0]))
}

/// `cast(cast(x))` → `cast(x)` when the inner one loses nothing.
fn cast_of_exact_cast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Elementwise(Elementwise::Cast(to)) = op else {
        return Ok(None);
    };
    let (Op::Elementwise(Elementwise::Cast(middle)), inner) = b.def(x[0]) else {
        return Ok(None);
    };
    let inner = inner[0];
    if cast_is_exact(b.ty(inner).dtype, *middle) {
        return b.emit(Op::cast(*to), &[inner]).map(Some);
    }
    Ok(None)
}
