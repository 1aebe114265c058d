//! Inputs of layers that are quantised: by a scale of the file, or by one of each run's own numbers.

use ir::DType;

use super::scheme::Scheme;
use super::{NnError, Params};
use crate::tensor::Tensor;
use crate::weights::Strategy;

/// How a layer quantises its input: to `i8` or an 8-bit float.
#[derive(Clone, Debug)]
pub(super) struct QuantizedInput {
    dtype: DType,
    scale: Scale,
}

#[derive(Clone, Debug)]
enum Scale {
    /// One number for all runs.
    Static { scale: Tensor, zero: Option<Tensor> },
    /// From the largest magnitudes, or the ranges, of all inputs or of each row of the last axis.
    Dynamic { by_row: bool, symmetric: bool },
}

/// The least scale that a run gives, as compressed-tensors has it: `torch.finfo(torch.float32).eps`.
const LEAST: f32 = f32::EPSILON;

impl QuantizedInput {
    /// Reads how inputs are quantised from the layer's scheme; where there is none, from `input_scale` and
    /// `input_zero_point` beside a weight that is stored in 8 bits. `None` where they are not.
    ///
    /// # Errors
    /// A scale that is missing, is no finite number above 0, or is more than one.
    #[track_caller]
    pub fn load(params: &Params, scheme: &Scheme) -> Result<Option<QuantizedInput>, NnError> {
        let dtype = match scheme.inputs() {
            Some(inputs) if inputs.dynamic => {
                let scale = Scale::Dynamic {
                    by_row: inputs.strategy == Strategy::Token,
                    symmetric: inputs.symmetric || inputs.dtype.is_f8(),
                };
                let dtype = inputs.dtype;
                return Ok(Some(QuantizedInput { dtype, scale }));
            }
            Some(_) if !params.contains("input_scale") => {
                let expected = format!(
                    "{:?} is expected of inputs that are not dynamic; save the model again with it, or quantise it with dynamic=true",
                    params.name("input_scale")
                );
                return Err(scheme.wrong(params, "the scale of the input", "missing", expected));
            }
            Some(inputs) => inputs.dtype,
            None if params.is_random() || !params.contains("input_scale") || !params.contains("weight_scale") => {
                return Ok(None);
            }
            None if !params.contains("weight") => return Ok(None),
            None => match params.stored_type("weight")? {
                Some(dtype) => dtype,
                None => return Ok(None),
            },
        };
        let zero = match dtype.is_f8() {
            true => None,
            false => params.zero_point("input_zero_point", dtype, 1, vec![1])?,
        };
        let scale = Scale::Static {
            scale: params.scale("input_scale", &[1])?.0,
            zero,
        };
        Ok(Some(QuantizedInput { dtype, scale }))
    }

    /// Quantises `x`, and gives the numbers that are left of it.
    #[track_caller]
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let one = |tensor: &Tensor| tensor.reshape(vec![1i64; x.rank()]);
        let (given, scale, zero) = match &self.scale {
            Scale::Static { scale, zero } => (x.clone(), one(scale), zero.as_ref().map(one)),
            Scale::Dynamic { by_row, symmetric } => {
                let wide = x.cast(DType::F32);
                let (scale, zero) = self.measured(&wide, *by_row, *symmetric);
                (wide, scale, zero)
            }
        };
        given
            .quantize_around(&scale, zero.as_ref(), self.dtype)
            .dequantize_groups(&scale, zero.as_ref(), None, x.dtype())
    }

    /// The scale and zero point of numbers, as `calculate_qparams` of compressed-tensors has them: half of the range
    /// that 8 bits have is the largest magnitude, or all of it the span of the numbers and 0.
    #[track_caller]
    fn measured(&self, x: &Tensor, by_row: bool, symmetric: bool) -> (Tensor, Option<Tensor>) {
        let (low, high) = match (self.dtype.f8_largest(), self.dtype.int_range()) {
            (Some(largest), _) => (-largest as f32, largest as f32),
            (None, range) => range.map_or((0.0, 0.0), |(low, high)| (low as f32, high as f32)),
        };
        let (most, least): (fn(&Tensor, bool) -> Tensor, fn(&Tensor, bool) -> Tensor) = (
            |x, by_row| if by_row { x.max_keep(-1) } else { x.max_keep(..) },
            |x, by_row| if by_row { x.min_keep(-1) } else { x.min_keep(..) },
        );
        if symmetric {
            let scale = most(&x.abs(), by_row) / ((high - low) / 2.0);
            return (scale.maximum(LEAST), None);
        }
        let (most, least) = (most(x, by_row).maximum(0.0f32), least(x, by_row).minimum(0.0f32));
        let scale = ((&most - &least) / (high - low)).maximum(LEAST);
        let zero = (low - &least / &scale).clamp(low, high).round();
        (scale, Some(zero.cast(self.dtype)))
    }
}
