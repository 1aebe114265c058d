//! Linear layers and lookup tables.

use super::input::QuantizedInput;
use super::packed::{self, PackedWeight};
use super::scheme::Scheme;
use super::{Init, Module, NnError, Params};
use crate::tensor::Tensor;

/// `x · weightᵀ + bias`, with the weight `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// With [`Linear::order`], its columns are in that order.
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    /// Which inputs to gather before the product, where a quantised weight does not take them in their order.
    pub order: Option<Tensor>,
    path: String,
    input: Option<QuantizedInput>,
}

impl Linear {
    /// Loads `weight` and `bias`. What a quantiser left stays as it is stored:
    ///
    /// - 4 and 8 bits of GPTQ (`qweight`, `qzeros`, `scales`, `g_idx`; see [`crate::weights::QuantizationConfig`] for
    ///   its two formats), where inputs that are grouped out of order are gathered once;
    /// - 4 bits of AWQ's `gemm` layout (`qweight`, `qzeros`, `scales`);
    /// - of compressed-tensors 4 and 8 bits of `pack-quantized` (`weight_packed`, ...), and `i8` and 8-bit floats with
    ///   `weight_scale` ([`Params::stored`]). Inputs are quantised as the scheme of the layer has it
    ///   ([`crate::weights::CompressedTensors`]): by `input_scale`, one number, or by the largest magnitudes of each
    ///   run, of all inputs or of each row. The product is then one of that type where the target has that.
    ///
    /// # Errors
    /// A missing or misshapen weight; a quantised one that is not as its layout or its scheme has it.
    #[track_caller]
    pub fn load(params: &Params, inputs: usize, outputs: usize) -> Result<Linear, NnError> {
        let mut linear = Linear::load_no_bias(params, inputs, outputs)?;
        linear.bias = Some(params.tensor("bias", &[outputs], Init::Uniform(-0.1, 0.1))?);
        Ok(linear)
    }

    /// Loads `weight`.
    ///
    /// # Errors
    /// As [`Linear::load`].
    #[track_caller]
    pub fn load_no_bias(params: &Params, inputs: usize, outputs: usize) -> Result<Linear, NnError> {
        let path = params.path().to_owned();
        let scheme = Scheme::of(params, "Linear")?;
        scheme.check_weight(params, inputs)?;
        let input = QuantizedInput::load(params, &scheme)?;
        if let Some(PackedWeight { weight, order }) = packed::load(params, inputs, outputs)? {
            return Ok(Linear {
                weight,
                bias: None,
                order,
                path,
                input,
            });
        }
        Ok(Linear {
            weight: params.stored("weight", &[outputs, inputs], Init::Fan)?,
            bias: None,
            order: None,
            path,
            input,
        })
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let gathered = self.order.as_ref().map(|order| x.index_select(-1, order));
        let given = gathered.as_ref().unwrap_or(x);
        let quantised = self.input.as_ref().map(|input| input.apply(given));
        let given = quantised.as_ref().unwrap_or(given);
        given
            .linear(&self.weight, self.bias.as_ref())
            .in_module(&self.path, &[x])
    }
}

/// A table of vectors, looked up by integer ids.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Tensor,
    path: String,
}

impl Embedding {
    /// Loads `weight`.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, rows: usize, width: usize) -> Result<Embedding, NnError> {
        let weight = params.tensor("weight", &[rows, width], Init::Uniform(-1.0, 1.0))?;
        Ok(Embedding {
            weight,
            path: params.path().to_owned(),
        })
    }
}

impl Module for Embedding {
    /// Ids of any shape; the result has one axis more.
    #[track_caller]
    fn forward(&self, ids: &Tensor) -> Tensor {
        self.weight.embedding(ids).in_module(&self.path, &[ids])
    }
}
