//! What a fold combines with, begins with and prefers.

use ir::graph::eval::scalar::identity;
use ir::host::block::scalar_bits;
use ir::op::{BinaryOp, ReduceOp};
use ir::types::DType;

use crate::cpu::block::{Class, ops};
use crate::cpu::env::Env;

pub(crate) fn binary_of(op: ReduceOp) -> BinaryOp {
    op.pairwise().unwrap_or(match op {
        ReduceOp::ArgMax => BinaryOp::Max,
        ReduceOp::ArgMin => BinaryOp::Min,
        _ => BinaryOp::Add,
    })
}

pub(crate) fn combine(env: &Env<'_>, op: ReduceOp, dtype: DType, a: u64, b: u64) -> u64 {
    ops::binary_scalar(env.isa, binary_of(op), dtype, a, b)
}

/// What a fold of nothing gives.
pub(crate) fn neutral(op: ReduceOp, dtype: DType) -> u64 {
    scalar_bits(dtype, identity(op, dtype))
}

/// Says whether `new` takes the place of `old`: strictly better, NaN better than any number.
pub(crate) fn better(op: ReduceOp, class: Class, new: u64, old: u64) -> bool {
    let most = op == ReduceOp::ArgMax;
    let float = |a: f64, b: f64| {
        if b.is_nan() {
            false
        } else if a.is_nan() {
            true
        } else if most {
            a > b
        } else {
            a < b
        }
    };
    match class {
        Class::F32 => float(
            f64::from(f32::from_bits(new as u32)),
            f64::from(f32::from_bits(old as u32)),
        ),
        Class::F64 => float(f64::from_bits(new), f64::from_bits(old)),
        _ if most => (new as i64) > old as i64,
        _ => (new as i64) < old as i64,
    }
}
