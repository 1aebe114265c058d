//! Reductions that do nothing, and chains of them.

use ir::op::{BinaryOp, ReduceOp, View};
use ir::types::Scalar;
use ir::{DType, Dim, HostTensor, Op, Shape, Value};

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
    Rule {
        name: "reduce_of_broadcast",
        apply: reduce_of_broadcast,
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

/// A fold of copies is the number itself, and a sum of them that number times as many as there are.
///
/// ```text
/// reduce (broadcast x [1, 8] to [1024, 8]) {op=sum, axes=[0, 1]}     becomes     reduce x {op=sum} * 1024
/// ```
fn reduce_of_broadcast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Reduce { op: kind, axes, .. } = op else {
        return Ok(None);
    };
    let ty = b.ty(x[0]).clone();
    let (Op::View(View::Broadcast(whole)), operands) = b.def(x[0]) else {
        return Ok(None);
    };
    let (whole, small) = (whole.clone(), operands[0]);
    let keeps = match kind {
        ReduceOp::Max | ReduceOp::Min | ReduceOp::All | ReduceOp::Any | ReduceOp::Sum => true,
        // A mean of integers is truncated either way.
        ReduceOp::Mean => true,
        ReduceOp::Prod | ReduceOp::ArgMax | ReduceOp::ArgMin => false,
    };
    let dims = &b.ty(small).shape;
    let mut padded: Vec<Dim> = vec![Dim::Const(1); whole.rank() - dims.rank()];
    padded.extend(dims.iter().cloned());
    let repeated = |axis: &usize| padded[*axis].is(1) && !whole[*axis].is(1);
    // Of nothing there is no copy.
    let sizes = |axis: usize| whole[axis].as_const().filter(|n| *n > 0);
    let count = axes.iter().copied().filter(repeated).map(sizes);
    let Some(count) = count.collect::<Option<Vec<i64>>>() else {
        return Ok(None);
    };
    let times = count.iter().try_fold(1i64, |n, size| n.checked_mul(*size));
    let Some(times) = times.filter(|n| *n > 1 && keeps) else {
        return Ok(None);
    };
    // The number of copies has to be a number of the type.
    let exact = match ty.dtype {
        DType::F32 => (times as f32) as i64 == times,
        DType::F64 => (times as f64) as i64 == times,
        DType::I64 => true,
        DType::I32 => i32::try_from(times).is_ok(),
        _ => false,
    };
    if *kind == ReduceOp::Sum && !exact {
        return Ok(None);
    }
    let out = b.graph().infer(op, x).map_err(|e| PassFault::Verify(e.to_string()))?;
    let out = out[0].shape.clone();
    let mut value = b.emit(Op::View(View::Reshape(Shape(padded))), &[small])?;
    let once = Op::Reduce {
        op: *kind,
        axes: axes.clone(),
        keep_dims: true,
    };
    value = b.emit(once, &[value])?;
    if *kind == ReduceOp::Sum {
        let times = b.constant(HostTensor::scalar(
            ty.dtype,
            match ty.dtype.is_float() {
                true => Scalar::Float(times as f64),
                false => Scalar::Int(times),
            },
        ));
        value = b.emit(Op::binary(BinaryOp::Mul), &[value, times])?;
    }
    let folded: Shape = whole
        .iter()
        .enumerate()
        .map(|(axis, size)| {
            if axes.contains(&axis) {
                Dim::Const(1)
            } else {
                size.clone()
            }
        })
        .collect();
    value = b.emit(Op::View(View::Broadcast(folded)), &[value])?;
    b.emit(Op::View(View::Reshape(out)), &[value]).map(Some)
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
