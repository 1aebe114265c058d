//! Linear layers and lookup tables.

use ir::DType;

use super::{Init, Module, NnError, Params};
use crate::tensor::Tensor;

/// `x · weightᵀ + bias`, with the weight `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    path: String,
    /// The 8-bit float that inputs are quantised to, and their one scale.
    input: Option<(DType, Tensor)>,
}

impl Linear {
    /// Loads `weight` and `bias`. A weight in 8-bit floats with `weight_scale` stays so ([`Params::stored`]); with
    /// `input_scale`, one number, inputs are quantised to the same type, and the product is one of 8-bit floats where
    /// the target has that.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, inputs: usize, outputs: usize) -> Result<Linear, NnError> {
        let mut linear = Linear::load_no_bias(params, inputs, outputs)?;
        linear.bias = Some(params.tensor("bias", &[outputs], Init::Uniform(-0.1, 0.1))?);
        Ok(linear)
    }

    /// Loads `weight`.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load_no_bias(params: &Params, inputs: usize, outputs: usize) -> Result<Linear, NnError> {
        let weight = params.stored("weight", &[outputs, inputs], Init::Fan)?;
        let input = match params.stored_type("weight")? {
            Some(dtype) if params.contains("input_scale") && params.contains("weight_scale") => {
                Some((dtype, params.scale("input_scale", 1, 1)?))
            }
            _ => None,
        };
        Ok(Linear {
            weight,
            bias: None,
            path: params.path().to_owned(),
            input,
        })
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let quantised = self.input.as_ref().map(|(dtype, scale)| {
            let scale = scale.reshape(vec![1i64; x.rank()]);
            x.quantize(&scale, *dtype).dequantize(&scale, x.dtype())
        });
        let given = quantised.as_ref().unwrap_or(x);
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
