//! Linear layers and lookup tables.

use super::{Init, Module, NnError, Params};
use crate::tensor::Tensor;

/// `x · weightᵀ + bias`, with the weight `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    path: String,
}

impl Linear {
    /// Loads `weight` and `bias`.
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
        let weight = params.tensor("weight", &[outputs, inputs], Init::Fan)?;
        Ok(Linear {
            weight,
            bias: None,
            path: params.path().to_owned(),
        })
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, self.bias.as_ref()).in_module(&self.path, &[x])
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
