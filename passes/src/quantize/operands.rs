//! Products of two quantised activations, such as the scores of attention.
//!
//! `Σ (x − z)(y − v) = Σ x·y − v·Σ x − z·Σ y + K·z·v`: a product of `i8`, a number a row and a number a column. Both zero points are
//! constants, and so is the depth `K`; sums that could leave 32 bits are left alone.

use ir::op::{BinaryOp, Contract, View};
use ir::{DType, HostTensor, Op, Storage, Value};

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
    let Some(depth) = b.ty(lhs).shape[x_axis].as_const() else {
        return Ok(None);
    };
    let reach = |zero: i64| Zero::Known(zero).reach();
    let most = (depth.checked_mul(reach(left))).and_then(|most| most.checked_mul(reach(right)));
    if most.is_none_or(|most| most > i64::from(i32::MAX)) {
        return Ok(None);
    }
    let (xs, _) = signed_operand(b, signed, &x)?;
    let (ys, _) = signed_operand(b, signed, &y)?;
    let integers = Contract { out: DType::I32, ..*c };
    let mut sum = b.emit(Op::Contract(integers), &[xs, ys])?;
    // Sums along the depth are products by a column of ones, as those for the zero points of weights are.
    let of_ones = |count| HostTensor::new(DType::I8, [1, count], Storage::new(vec![1u8; count])).ok();
    let Some(ones) = usize::try_from(depth).ok().and_then(of_ones) else {
        return Ok(None);
    };
    let ones = b.constant(ones);
    let sides = [(xs, c.transpose_lhs, right), (ys, !c.transpose_rhs, left)];
    let mut rest = depth * left * right;
    for (side, (operand, transpose_lhs, other)) in sides.into_iter().enumerate() {
        if other == 0 {
            continue;
        }
        let along = Contract {
            transpose_lhs,
            transpose_rhs: true,
            out: DType::I32,
        };
        let mut sums = b.emit(Op::Contract(along), &[operand, ones])?;
        if side == 1 {
            let rank = b.ty(sums).rank();
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 2, rank - 1);
            sums = b.emit(Op::View(View::Transpose(order)), &[sums])?;
        }
        let by = b.scalar(DType::I32, -other as f64);
        let mut more = b.emit(Op::binary(BinaryOp::Mul), &[sums, by])?;
        if rest != 0 {
            let rest = b.scalar(DType::I32, std::mem::take(&mut rest) as f64);
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
