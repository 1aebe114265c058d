//! Types of views.

use super::{Cx, Inferred, Reason, attribute, one};
use crate::dim::{Dim, Shape};
use crate::graph::op::{PadMode, View};

pub(super) fn view(view: &View, cx: &Cx<'_>) -> Inferred {
    if let View::Concat { axis } = view {
        return concat(*axis, cx);
    }
    cx.count(1, 1)?;
    let ty = cx.operands[0];
    let shape = &ty.shape;
    let entries = |name: &'static str, got: usize| {
        if got == shape.rank() {
            Ok(())
        } else {
            attribute(name, format!("has {got} entries for rank {}", shape.rank()))
        }
    };
    match view {
        View::Reshape(to) => {
            cx.sizes("new shape", to)?;
            let (from_elements, to_elements) = (shape.elements(), to.elements());
            if from_elements != to_elements {
                return Err(Reason::Elements {
                    from: shape.clone(),
                    to: to.clone(),
                    known: cx.known_to_differ(&from_elements, &to_elements),
                    from_elements,
                    to_elements,
                });
            }
            Ok(one(ty.dtype, to.clone()))
        }
        View::Transpose(perm) => {
            entries("perm", perm.len())?;
            let mut seen = vec![false; perm.len()];
            for axis in perm {
                cx.axis(*axis, perm.len())?;
                if std::mem::replace(&mut seen[*axis], true) {
                    return attribute("perm", format!("axis {axis} occurs twice in {perm:?}"));
                }
            }
            Ok(one(ty.dtype, perm.iter().map(|a| shape[*a].clone()).collect::<Shape>()))
        }
        View::Broadcast(to) => {
            let wide = cx.broadcast_two(0, to, shape)?;
            if wide != *to {
                return Err(Reason::Shapes {
                    what: "the operand is larger than the shape it is broadcast to",
                    left: shape.clone(),
                    right: to.clone(),
                });
            }
            Ok(one(ty.dtype, to.clone()))
        }
        View::Slice { starts, sizes, steps } => {
            entries("starts", starts.len())?;
            entries("sizes", sizes.len())?;
            entries("steps", steps.len())?;
            cx.sizes("slice", sizes)?;
            for axis in 0..shape.rank() {
                let (start, size, step) = (&starts[axis], &sizes[axis], steps[axis]);
                if step == 0 {
                    return attribute("steps", format!("the step of axis {axis} is 0"));
                }
                if !size.at_least(1, cx.symbols) {
                    continue; // may take nothing
                }
                let last = start.clone() + (size.clone() - Dim::Const(1)) * step;
                for position in [start.clone(), last] {
                    let below = position.bounds(cx.symbols).1.is_some_and(|hi| hi < 0);
                    let beyond = (&position - &shape[axis]).at_least(0, cx.symbols);
                    if below || beyond {
                        return Err(Reason::OutOfRange {
                            axis,
                            position,
                            size: shape[axis].clone(),
                        });
                    }
                }
            }
            Ok(one(ty.dtype, Shape(sizes.clone())))
        }
        View::Pad { low, high, mode } => {
            entries("low", low.len())?;
            entries("high", high.len())?;
            for axis in 0..shape.rank() {
                for (name, amount) in [("low", &low[axis]), ("high", &high[axis])] {
                    if amount.is(0) {
                        continue;
                    }
                    if amount.bounds(cx.symbols).1.is_some_and(|hi| hi < 0) {
                        return attribute(
                            name,
                            format!("axis {axis} is padded by {amount}; take elements away with a slice"),
                        );
                    }
                    let reach = match mode {
                        PadMode::Constant(_) => continue,
                        PadMode::Reflect => shape[axis].clone() - Dim::Const(1),
                        PadMode::Wrap => shape[axis].clone(),
                        PadMode::Edge => amount.clone(),
                    };
                    let nothing_to_repeat = shape[axis].is(0) && amount.at_least(1, cx.symbols);
                    if nothing_to_repeat || (amount - &reach).at_least(1, cx.symbols) {
                        return attribute(
                            name,
                            format!(
                                "axis {axis} of size {} cannot give {amount} padded elements",
                                shape[axis]
                            ),
                        );
                    }
                }
            }
            let dims = (0..shape.rank()).map(|i| shape[i].clone() + &low[i] + &high[i]);
            Ok(one(ty.dtype, dims.collect::<Shape>()))
        }
        View::Concat { axis } => concat(*axis, cx),
    }
}

fn concat(axis: usize, cx: &Cx<'_>) -> Inferred {
    cx.count(1, usize::MAX)?;
    let first = cx.operands[0];
    cx.axis(axis, first.rank())?;
    let mut shape = first.shape.clone();
    for (operand, ty) in cx.operands.iter().enumerate().skip(1) {
        cx.same_dtype(0, operand)?;
        cx.rank_is(operand, first.rank())?;
        for (i, dim) in shape.0.iter_mut().enumerate() {
            if i == axis {
                *dim = dim.clone() + &ty.shape[i];
            } else {
                cx.equal("joined operands differ outside the axis", dim, &ty.shape[i])?;
            }
        }
    }
    Ok(one(first.dtype, shape))
}
