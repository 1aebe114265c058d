//! Numbers in 8 bits or fewer with scales.

use ir::DType;
use ir::graph::op::{Composite, Groups, Op};

use super::Tensor;

impl Tensor {
    /// `x · scale` of stored integers or 8-bit floats, in the type `out`; products read what is stored. The scale has
    /// the rank of `x`, and along each axis its size or 1.
    #[track_caller]
    #[must_use]
    pub fn dequantize(&self, scale: &Tensor, out: DType) -> Tensor {
        self.dequantize_groups(scale, None, None, out)
    }

    /// `(x − zero) · scale`. Scale and zero point have the rank of `x`, and along each axis its size or 1; along the
    /// axis of groups they have an entry for each so many elements, or 1. 8-bit floats have no zero point.
    #[track_caller]
    #[must_use]
    pub fn dequantize_groups(
        &self,
        scale: &Tensor,
        zero: Option<&Tensor>,
        groups: Option<Groups>,
        out: DType,
    ) -> Tensor {
        let op = Op::Composite(Composite::Dequantize { groups, out });
        match zero {
            Some(zero) => Tensor::op(op, &[self, scale, zero]),
            None => Tensor::op(op, &[self, scale]),
        }
    }

    /// `saturate(round(x / scale))` in `out`, an integer of 8 bits or an 8-bit float, with a scale as
    /// [`Tensor::dequantize`] has it.
    #[track_caller]
    #[must_use]
    pub fn quantize(&self, scale: &Tensor, out: DType) -> Tensor {
        self.quantize_around(scale, None, out)
    }

    /// `saturate(round(x / scale) + zero)` in `out`, with a scale and a zero point as [`Tensor::dequantize`] has the
    /// scale. 8-bit floats have no zero point.
    #[track_caller]
    #[must_use]
    pub fn quantize_around(&self, scale: &Tensor, zero: Option<&Tensor>, out: DType) -> Tensor {
        let op = Op::Composite(Composite::Quantize { out });
        match zero {
            Some(zero) => Tensor::op(op, &[self, scale, zero]),
            None => Tensor::op(op, &[self, scale]),
        }
    }
}
