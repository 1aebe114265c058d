//! Reshapes of dequantised numbers become reshapes of what is stored, which for a weight is done at compile time.

use ir::op::{Composite, Groups, View};
use ir::{Dim, Op, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[Rule {
    name: "reshape_of_dequantize",
    apply: reshape_of_dequantize,
}];

/// `reshape(dequantize(x, s))` → `dequantize(reshape(x), reshape(s))` where what shares a scale is still a run of neighbours: all
/// share one, axes of size 1 come or go, or an axis and the next, which shares its scales, become one (then in groups).
fn reshape_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::View(View::Reshape(to)) = op else {
        return Ok(None);
    };
    let (Op::Composite(Composite::Dequantize { groups, out }), operands) = b.def(x[0]) else {
        return Ok(None);
    };
    let (groups, out, operands) = (*groups, *out, operands.to_vec());
    let from = b.ty(operands[0]).shape.clone();
    let others: Vec<Shape> = operands[1..].iter().map(|v| b.ty(*v).shape.clone()).collect();
    let Some(reshaped) = reshaped(&from, to, groups, &others) else {
        return Ok(None);
    };
    let mut values = Vec::with_capacity(operands.len());
    for (operand, shape) in operands.iter().zip(std::iter::once(to).chain(&reshaped.others)) {
        values.push(b.emit(Op::View(View::Reshape(shape.clone())), &[*operand])?);
    }
    let groups = reshaped.groups;
    b.emit(Op::Composite(Composite::Dequantize { groups, out }), &values)
        .map(Some)
}

/// What a dequantisation is after a reshape.
struct Reshaped {
    groups: Option<Groups>,
    /// The shapes of scales and zero points.
    others: Vec<Shape>,
}

fn reshaped(from: &Shape, to: &Shape, groups: Option<Groups>, others: &[Shape]) -> Option<Reshaped> {
    if others.iter().all(|s| s.iter().all(|d| d.is(1))) {
        let ones: Shape = vec![Dim::Const(1); to.rank()].into();
        return Some(Reshaped {
            groups: None,
            others: vec![ones; others.len()],
        });
    }
    // Axes that are not 1, in order: the same on both sides, or one pair joined.
    let wide = |shape: &Shape| -> Vec<usize> { (0..shape.rank()).filter(|i| !shape[*i].is(1)).collect() };
    let (before, after) = (wide(from), wide(to));
    let mut made = Reshaped {
        groups: None,
        others: vec![vec![Dim::Const(1); to.rank()].into(); others.len()],
    };
    let mut next = 0;
    for at in after {
        let first = *before.get(next)?;
        if from[first] == to[at] {
            if let Some(groups) = groups.filter(|g| g.axis == first) {
                made.groups = Some(Groups { axis: at, ..groups });
            }
            for (new, old) in made.others.iter_mut().zip(others) {
                new.0[at] = old[first].clone();
            }
            next += 1;
            continue;
        }
        let second = *before.get(next + 1)?;
        let size = from[second].as_const()?;
        let joins = from[first].clone() * &from[second] == to[at];
        if !joins || groups.is_some() || made.groups.is_some() || others.iter().any(|s| !s[second].is(1)) {
            return None;
        }
        made.groups = Some(Groups { axis: at, size });
        for (new, old) in made.others.iter_mut().zip(others) {
            new.0[at] = old[first].clone();
        }
        next += 2;
    }
    (next == before.len()).then_some(made)
}
