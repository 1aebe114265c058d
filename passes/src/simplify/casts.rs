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
///
/// Not from an integer through a float to an integer that does not hold all of the first's numbers: floats saturate
/// there, integers wrap.
fn cast_of_exact_cast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Elementwise(Elementwise::Cast(to)) = op else {
        return Ok(None);
    };
    let (Op::Elementwise(Elementwise::Cast(middle)), inner) = b.def(x[0]) else {
        return Ok(None);
    };
    let inner = inner[0];
    let from = b.ty(inner).dtype;
    let saturates = from.is_int() && middle.is_float() && to.is_int() && !cast_is_exact(from, *to);
    if cast_is_exact(from, *middle) && !saturates {
        return b.emit(Op::cast(*to), &[inner]).map(Some);
    }
    Ok(None)
}
