//! Reductions that do nothing, and chains of them.

use ir::op::{ReduceOp, View};
use ir::{Op, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "reduce_of_unit_axes",
        apply: reduce_of_unit_axes,
    },
    Rule {
        name: "reduce_of_reduce",
        apply: reduce_of_reduce,
    },
];

fn folds_one_to_itself(op: ReduceOp) -> bool {
    matches!(
        op,
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min
    )
}

/// Folding axes of size 1 is a reshape.
fn reduce_of_unit_axes(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Reduce {
        op: kind,
        axes,
        keep_dims,
    } = op
    else {
        return Ok(None);
    };
    let shape = &b.ty(x[0]).shape;
    if !folds_one_to_itself(*kind) || !axes.iter().all(|a| shape[*a].is(1)) {
        return Ok(None);
    }
    if *keep_dims || axes.is_empty() {
        return Ok(Some(x[0]));
    }
    let out: Shape = (0..shape.rank())
        .filter(|a| !axes.contains(a))
        .map(|a| shape[a].clone())
        .collect();
    b.emit(Op::View(View::Reshape(out)), &[x[0]]).map(Some)
}

/// A fold of a fold of the same kind is one: for means of floats too, as every group has the same size (means of
/// integers truncate each time), and for wrapping sums and products, which wrap alike.
fn reduce_of_reduce(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Reduce {
        op: kind,
        axes,
        keep_dims,
    } = op
    else {
        return Ok(None);
    };
    let (
        Op::Reduce {
            op: inner_kind,
            axes: inner_axes,
            keep_dims: inner_keep,
        },
        operands,
    ) = b.def(x[0])
    else {
        return Ok(None);
    };
    if !folds_one_to_itself(*kind) || inner_kind != kind || inner_keep != keep_dims {
        return Ok(None);
    }
    if *kind == ReduceOp::Mean && !b.ty(operands[0]).dtype.is_float() {
        return Ok(None);
    }
    let rank = b.ty(operands[0]).rank();
    let mut all: Vec<usize> = if *keep_dims {
        axes.clone()
    } else {
        // Positions among the axes that the inner fold left.
        let left: Vec<usize> = (0..rank).filter(|a| !inner_axes.contains(a)).collect();
        axes.iter().map(|a| left[*a]).collect()
    };
    all.extend_from_slice(inner_axes);
    all.sort_unstable();
    all.dedup();
    let merged = Op::Reduce {
        op: *kind,
        axes: all,
        keep_dims: *keep_dims,
    };
    let operand = operands[0];
    b.emit(merged, &[operand]).map(Some)
}
