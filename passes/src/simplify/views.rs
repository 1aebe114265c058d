//! Reshapes, transposes and broadcasts: those that do nothing, chains, and broadcasts that elementwise ops do anyway.

use ir::op::{Elementwise, View};
use ir::{Dim, Op, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

type Answer = Result<Option<Value>, PassFault>;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "reshape_to_same",
        apply: reshape_to_same,
    },
    Rule {
        name: "reshape_of_reshape",
        apply: reshape_of_reshape,
    },
    Rule {
        name: "transpose_identity",
        apply: transpose_identity,
    },
    Rule {
        name: "transpose_of_transpose",
        apply: transpose_of_transpose,
    },
    Rule {
        name: "transpose_of_unit_axes",
        apply: transpose_of_unit_axes,
    },
    Rule {
        name: "transpose_of_broadcast_scalar",
        apply: view_of_broadcast_scalar,
    },
    Rule {
        name: "broadcast_to_same",
        apply: broadcast_to_same,
    },
    Rule {
        name: "broadcast_of_broadcast",
        apply: broadcast_of_broadcast,
    },
    Rule {
        name: "broadcast_is_reshape",
        apply: broadcast_is_reshape,
    },
    Rule {
        name: "implicit_broadcast",
        apply: implicit_broadcast,
    },
    Rule {
        name: "reshape_after_unary",
        apply: reshape_after_unary,
    },
    Rule {
        name: "reshape_after_binary",
        apply: reshape_after_binary,
    },
];

/// A reshape to the shape that the operand has.
fn reshape_to_same(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    match op {
        Op::View(View::Reshape(shape)) if b.ty(x[0]).shape == *shape => Ok(Some(x[0])),
        _ => Ok(None),
    }
}

/// `reshape(reshape(x))` → `reshape(x)`.
fn reshape_of_reshape(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Reshape(_)) = op else {
        return Ok(None);
    };
    match b.def(x[0]) {
        (Op::View(View::Reshape(_)), inner) => {
            let inner = inner[0];
            b.emit(op.clone(), &[inner]).map(Some)
        }
        _ => Ok(None),
    }
}

/// A transpose that leaves every axis where it is.
fn transpose_identity(_: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    match op {
        Op::View(View::Transpose(perm)) if perm.iter().enumerate().all(|(i, p)| i == *p) => Ok(Some(x[0])),
        _ => Ok(None),
    }
}

/// Two transposes are one.
fn transpose_of_transpose(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Transpose(outer)) = op else {
        return Ok(None);
    };
    match b.def(x[0]) {
        (Op::View(View::Transpose(inner)), operands) => {
            let perm = outer.iter().map(|p| inner[*p]).collect();
            let operand = operands[0];
            b.emit(Op::View(View::Transpose(perm)), &[operand]).map(Some)
        }
        _ => Ok(None),
    }
}

/// A transpose that moves only axes of size 1 is a reshape.
fn transpose_of_unit_axes(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Transpose(perm)) = op else {
        return Ok(None);
    };
    let shape = &b.ty(x[0]).shape;
    let mut moved: Vec<usize> = perm.iter().copied().filter(|p| !shape[*p].is(1)).collect();
    if moved.is_sorted() && moved.len() < perm.len() {
        let out: Shape = perm.iter().map(|p| shape[*p].clone()).collect();
        moved.clear();
        return b.emit(Op::View(View::Reshape(out)), &[x[0]]).map(Some);
    }
    Ok(None)
}

/// A reshape or transpose of a broadcast scalar is a broadcast scalar.
fn view_of_broadcast_scalar(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let shape: Shape = match op {
        Op::View(View::Transpose(perm)) => perm.iter().map(|p| b.ty(x[0]).shape[*p].clone()).collect(),
        Op::View(View::Reshape(shape)) => shape.clone(),
        Op::View(View::Slice { sizes, .. }) => Shape(sizes.clone()),
        _ => return Ok(None),
    };
    match b.def(x[0]) {
        (Op::View(View::Broadcast(_)), inner) if b.ty(inner[0]).rank() == 0 => {
            let inner = inner[0];
            b.emit(Op::View(View::Broadcast(shape)), &[inner]).map(Some)
        }
        _ => Ok(None),
    }
}

/// A broadcast to the shape that the operand has.
fn broadcast_to_same(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    match op {
        Op::View(View::Broadcast(shape)) if b.ty(x[0]).shape == *shape => Ok(Some(x[0])),
        _ => Ok(None),
    }
}

/// Two broadcasts are one.
fn broadcast_of_broadcast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Broadcast(_)) = op else {
        return Ok(None);
    };
    match b.def(x[0]) {
        (Op::View(View::Broadcast(_)), inner) => {
            let inner = inner[0];
            b.emit(op.clone(), &[inner]).map(Some)
        }
        _ => Ok(None),
    }
}

/// A broadcast that only adds leading axes of size 1 is a reshape.
fn broadcast_is_reshape(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Broadcast(shape)) = op else {
        return Ok(None);
    };
    let from = &b.ty(x[0]).shape;
    let extra = shape.rank() - from.rank();
    if extra > 0 && shape[..extra].iter().all(|d| d.is(1)) && shape[extra..] == from[..] && from.rank() > 0 {
        return b.emit(Op::View(View::Reshape(shape.clone())), &[x[0]]).map(Some);
    }
    Ok(None)
}

/// `op(broadcast(x), y)` → `op(x, y)` where the shapes of the operands give the result's shape anyway.
fn implicit_broadcast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Elementwise(kind) = op else { return Ok(None) };
    if x.len() < 2 {
        // One operand: the op is done before the broadcast, on fewer elements.
        let (Op::View(View::Broadcast(shape)), inner) = b.def(x[0]) else {
            return Ok(None);
        };
        let (shape, inner) = (shape.clone(), inner[0]);
        let value = b.emit(Op::Elementwise(*kind), &[inner])?;
        return b.emit(Op::View(View::Broadcast(shape)), &[value]).map(Some);
    }
    let joined = |shapes: &[Shape]| shapes.iter().try_fold(Shape::default(), |a, s| Shape::broadcast(&a, s));
    let shapes: Vec<Shape> = x.iter().map(|v| b.ty(*v).shape.clone()).collect();
    let Some(out) = joined(&shapes) else { return Ok(None) };
    for i in 0..x.len() {
        let (Op::View(View::Broadcast(_)), inner) = b.def(x[i]) else {
            continue;
        };
        let inner = inner[0];
        let mut without = shapes.clone();
        without[i] = b.ty(inner).shape.clone();
        if joined(&without).as_ref() == Some(&out) {
            let mut operands = x.to_vec();
            operands[i] = inner;
            return b.emit(op.clone(), &operands).map(Some);
        }
    }
    // All operands are broadcast from smaller ones: compute small, broadcast once.
    let inner: Vec<Value> = x
        .iter()
        .map(|v| match b.def(*v) {
            (Op::View(View::Broadcast(_)), inner) => inner[0],
            _ => *v,
        })
        .collect();
    let small: Vec<Shape> = inner.iter().map(|v| b.ty(*v).shape.clone()).collect();
    if inner != x
        && x.iter().zip(&inner).all(|(a, c)| a != c)
        && let Some(shape) = joined(&small)
        && shape != out
    {
        let value = b.emit(op.clone(), &inner)?;
        return b.emit(Op::View(View::Broadcast(out)), &[value]).map(Some);
    }
    Ok(None)
}

/// `f(reshape(x))` → `reshape(f(x))`: reshapes sink, until two meet or a reader takes them in.
fn reshape_after_unary(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Elementwise(kind @ (Elementwise::Unary(_) | Elementwise::Cast(_))) = op else {
        return Ok(None);
    };
    let (Op::View(View::Reshape(shape)), inner) = b.def(x[0]) else {
        return Ok(None);
    };
    let (shape, inner) = (shape.clone(), inner[0]);
    let value = b.emit(Op::Elementwise(*kind), &[inner])?;
    b.emit(Op::View(View::Reshape(shape)), &[value]).map(Some)
}

/// `reshape(x) + c` → `reshape(x + c)` where `c` is a scalar or runs along a last axis that the reshape keeps, and
/// `reshape(x) + reshape(y)` → `reshape(x + y)`.
fn reshape_after_binary(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Elementwise(Elementwise::Binary(_)) = op else {
        return Ok(None);
    };
    let view = |b: &Builder<'_>, v: Value| match b.def(v) {
        (Op::View(View::Reshape(shape)), inner) => Some((shape.clone(), inner[0])),
        _ => None,
    };
    match (view(b, x[0]), view(b, x[1])) {
        (Some((shape, left)), Some((other, right))) if shape == other && b.ty(left).shape == b.ty(right).shape => {
            let value = b.emit(op.clone(), &[left, right])?;
            b.emit(Op::View(View::Reshape(shape)), &[value]).map(Some)
        }
        (Some((shape, left)), _) if passes_along(&b.ty(left).shape, &shape, &b.ty(x[1]).shape) => {
            let value = b.emit(op.clone(), &[left, x[1]])?;
            b.emit(Op::View(View::Reshape(shape)), &[value]).map(Some)
        }
        (_, Some((shape, right))) if passes_along(&b.ty(right).shape, &shape, &b.ty(x[0]).shape) => {
            let value = b.emit(op.clone(), &[x[0], right])?;
            b.emit(Op::View(View::Reshape(shape)), &[value]).map(Some)
        }
        _ => Ok(None),
    }
}

fn passes_along(from: &Shape, to: &Shape, other: &Shape) -> bool {
    let last = |s: &Shape| s.last().cloned().unwrap_or(Dim::from(1));
    match other.rank() {
        0 => true,
        1 => from.rank() > 0 && to.rank() > 0 && last(from) == last(to) && (other[0] == last(to) || other[0].is(1)),
        _ => false,
    }
}
