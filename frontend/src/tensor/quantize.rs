//! Numbers in 8 bits or fewer with scales.

use ir::DType;
use ir::graph::op::{Composite, Op};

use super::Tensor;

impl Tensor {
    /// `x · scale` of stored integers or 8-bit floats, in the type `out`; products read what is stored. The scale has
    /// the rank of `x`, and along each axis its size or 1.
    #[track_caller]
    #[must_use]
    pub fn dequantize(&self, scale: &Tensor, out: DType) -> Tensor {
        let op = Composite::Dequantize { groups: None, out };
        Tensor::op(Op::Composite(op), &[self, scale])
    }

    /// `saturate(round(x / scale))` in `out`, an integer of 8 bits or an 8-bit float, with a scale as
    /// [`Tensor::dequantize`] has it.
    #[track_caller]
    #[must_use]
    pub fn quantize(&self, scale: &Tensor, out: DType) -> Tensor {
        Tensor::op(Op::Composite(Composite::Quantize { out }), &[self, scale])
    }
}
