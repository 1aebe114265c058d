//! Products of two quantised activations, such as the scores of attention.
//!
//! `Σ (x − z)(y − v) = Σ x·y − v·Σ x − z·Σ y + K·z·v`: a product of `i8`, a number a row and a number a column. Both
//! zero points are constants; the depth `K` is, or is open, as it is where attention's weights multiply values. Of
//! numbers, sums that could leave 32 bits are left alone; a product of integers wraps, and so do all terms of its sum.

use ir::op::{BinaryOp, Contract, ReduceOp, View};
use ir::{DType, Dim, HostTensor, Op, Storage, Value};

use super::integers::{Zero, activations, signed_operand, signed_zero};
use super::signed::Signed;
use crate::error::PassFault;
use crate::rewrite::Builder;

/// Returns the product in `c.out`; `None` where the operands are not quantised by one scale each.
pub(super) fn product(
    b: &mut Builder<'_>,
    signed: &mut Signed,
    [lhs, rhs]: [Value; 2],
    c: &Contract,
) -> Result<Option<Value>, PassFault> {
    let (Some(x), Some(y)) = (activations(b, lhs, None), activations(b, rhs, None)) else {
        return Ok(None);
    };
    let scale = match (x.scale, y.scale) {
        (None, None) => None,
        (Some(x), Some(y)) => match (b.as_scalar(x), b.as_scalar(y)) {
            (Some(x), Some(y)) => Some(x.as_f64() * y.as_f64()),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let (Zero::Known(left), Zero::Known(right)) = (signed_zero(b, &x), signed_zero(b, &y)) else {
        return Ok(None);
    };
    let depth_axis = |v: Value, first: bool| b.ty(v).rank().checked_sub(if first { 2 } else { 1 });
    let Some(x_axis) = depth_axis(lhs, c.transpose_lhs) else {
        return Ok(None);
    };
    let depth = b.ty(lhs).shape[x_axis].clone();
    let reach = |zero: i64| Zero::Known(zero).reach();
    let longest = depth.bounds(b.symbols()).1;
    let most = (longest.and_then(|k| k.checked_mul(reach(left)))).and_then(|most| most.checked_mul(reach(right)));
    if scale.is_some() && most.is_none_or(|most| most > i64::from(i32::MAX)) {
        return Ok(None);
    }
    let (xs, _) = signed_operand(b, signed, &x)?;
    let (ys, _) = signed_operand(b, signed, &y)?;
    let integers = Contract { out: DType::I32, ..*c };
    let mut sum = b.emit(Op::Contract(integers), &[xs, ys])?;
    let mut rest = Some(left.wrapping_mul(right)).filter(|both| *both != 0);
    let sides = [(xs, c.transpose_lhs, right), (ys, !c.transpose_rhs, left)];
    for (side, (operand, transpose_lhs, other)) in sides.into_iter().enumerate() {
        if other == 0 {
            continue;
        }
        let sums = sums(b, operand, &depth, transpose_lhs, side == 1)?;
        let by = b.scalar(DType::I32, f64::from(-other as i32));
        let mut more = b.emit(Op::binary(BinaryOp::Mul), &[sums, by])?;
        if let Some(both) = rest.take() {
            let rest = match depth.as_const() {
                Some(depth) => b.scalar(DType::I32, f64::from(both.wrapping_mul(depth) as i32)),
                None => {
                    let wide = b.emit(Op::DimValue(depth.clone()), &[])?;
                    let count = b.emit(Op::cast(DType::I32), &[wide])?;
                    let both = b.scalar(DType::I32, f64::from(both as i32));
                    b.emit(Op::binary(BinaryOp::Mul), &[count, both])?
                }
            };
            more = b.emit(Op::binary(BinaryOp::Add), &[more, rest])?;
        }
        sum = b.emit(Op::binary(BinaryOp::Add), &[sum, more])?;
    }
    if let Some(scale) = scale {
        let value = b.emit(Op::cast(DType::F32), &[sum])?;
        let scale = b.scalar(DType::F32, scale);
        sum = b.emit(Op::binary(BinaryOp::Mul), &[value, scale])?;
    }
    super::integers::finished(b, sum, c.out).map(Some)
}

/// Sums of an operand along its depth, which is its last axis but one if it is `turned`: one a row, or one a column of
/// what is to be a right operand.
fn sums(b: &mut Builder<'_>, operand: Value, depth: &Dim, turned: bool, of_columns: bool) -> Result<Value, PassFault> {
    let rank = b.ty(operand).rank();
    // They are products by a column of ones, as those for the zero points of weights are, if it is known how many.
    let count = depth.as_const().and_then(|k| usize::try_from(k).ok());
    let ones = count.and_then(|count| HostTensor::new(DType::I8, [1, count], Storage::new(vec![1u8; count])).ok());
    let (sums, lies_across) = match ones {
        Some(ones) => {
            let ones = b.constant(ones);
            let along = Contract {
                transpose_lhs: turned,
                transpose_rhs: true,
                out: DType::I32,
            };
            (b.emit(Op::Contract(along), &[operand, ones])?, false)
        }
        None => {
            let wide = b.emit(Op::cast(DType::I32), &[operand])?;
            let fold = Op::Reduce {
                op: ReduceOp::Sum,
                axes: vec![if turned { rank - 2 } else { rank - 1 }],
                keep_dims: true,
            };
            (b.emit(fold, &[wide])?, turned)
        }
    };
    if lies_across == of_columns {
        return Ok(sums);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    b.emit(Op::View(View::Transpose(order)), &[sums])
}
