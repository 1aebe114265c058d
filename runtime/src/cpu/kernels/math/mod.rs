//! Elementwise functions over blocks of f32: the inner loops of the block interpreter.
//!
//! Errors are at most 2 ulp for exp, log, tanh, sigmoid, erf and the like at the levels with FMA (4 at the portable
//! level); the tests hold them to that. Slices of one call have one length, else the call panics.

pub(crate) mod funcs;
mod ops;

use ir::op::UnaryOp;
pub use ops::{Input, binary_ptr, compare_ptr, unary_ptr, unary_rows};

use super::isa::Isa;

/// `dst[i] = op(src[i])` of an op whose results are numbers.
pub fn unary(isa: Isa, op: UnaryOp, dst: &mut [f32], src: &[f32]) {
    assert!(dst.len() == src.len() && !op.is_predicate());
    // SAFETY: slices of equal length.
    unsafe { unary_ptr(isa, op, dst.as_mut_ptr().cast(), src.as_ptr(), dst.len()) }
}
