//! Inputs of layers that are quantised by a scale of the file.

use ir::DType;

use super::{NnError, Params};
use crate::tensor::Tensor;

/// How a layer quantises its input: to `i8` or an 8-bit float, by one scale.
#[derive(Clone, Debug)]
pub(super) struct QuantizedInput {
    dtype: DType,
    scale: Tensor,
    zero: Option<Tensor>,
}

impl QuantizedInput {
    /// Reads `input_scale` and `input_zero_point` beside a weight that is stored in 8 bits; `None` where there is no scale.
    ///
    /// # Errors
    /// A scale that is no finite number above 0, or more than one.
    #[track_caller]
    pub fn load(params: &Params) -> Result<Option<QuantizedInput>, NnError> {
        let Some(dtype) = params.stored_type("weight")? else {
            return Ok(None);
        };
        if !params.contains("input_scale") || !params.contains("weight_scale") {
            return Ok(None);
        }
        let zero = match dtype.is_f8() {
            true => None,
            false => params.zero_point("input_zero_point", dtype, 1, vec![1])?,
        };
        Ok(Some(QuantizedInput {
            dtype,
            scale: params.scale("input_scale", &[1])?.0,
            zero,
        }))
    }

    /// Quantises `x`, and gives the numbers that are left of it.
    #[track_caller]
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let one = |tensor: &Tensor| tensor.reshape(vec![1i64; x.rank()]);
        let (scale, zero) = (one(&self.scale), self.zero.as_ref().map(one));
        x.quantize_around(&scale, zero.as_ref(), self.dtype)
            .dequantize_groups(&scale, zero.as_ref(), None, x.dtype())
    }
}
