//! Normalisation layers, in inference form.

use super::{Init, Module, NnError, Params};
use crate::tensor::Tensor;

/// Normalises channels of `[N, C, H, W]` with the running statistics of training.
#[derive(Clone, Debug)]
pub struct BatchNorm2d {
    pub scale: Tensor,
    pub bias: Tensor,
    pub mean: Tensor,
    pub variance: Tensor,
    pub epsilon: f64,
    path: String,
}

impl BatchNorm2d {
    /// Loads `weight`, `bias`, `running_mean` and `running_var`, each `[channels]`; ε is 1e-5.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, channels: usize) -> Result<BatchNorm2d, NnError> {
        let shape = [channels];
        Ok(BatchNorm2d {
            scale: params.tensor("weight", &shape, Init::Uniform(0.8, 1.2))?,
            bias: params.tensor("bias", &shape, Init::Uniform(-0.1, 0.1))?,
            mean: params.tensor("running_mean", &shape, Init::Uniform(-0.1, 0.1))?,
            variance: params.tensor("running_var", &shape, Init::Uniform(0.8, 1.2))?,
            epsilon: 1e-5,
            path: params.path().to_owned(),
        })
    }
}

impl Module for BatchNorm2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.batch_norm(&self.scale, &self.bias, &self.mean, &self.variance, self.epsilon)
            .in_module(&self.path, &[x])
    }
}

/// Normalises the last axis to mean 0 and variance 1.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    pub scale: Tensor,
    pub bias: Option<Tensor>,
    pub epsilon: f64,
    path: String,
}

impl LayerNorm {
    /// Loads `weight` and `bias`, each `[width]`.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, width: usize, epsilon: f64) -> Result<LayerNorm, NnError> {
        let scale = params.tensor("weight", &[width], Init::Uniform(0.8, 1.2))?;
        let bias = params.optional("bias", &[width], Init::Uniform(-0.1, 0.1))?;
        Ok(LayerNorm {
            scale,
            bias,
            epsilon,
            path: params.path().to_owned(),
        })
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(Some(&self.scale), self.bias.as_ref(), self.epsilon)
            .in_module(&self.path, &[x])
    }
}

/// Divides the last axis by its root mean square.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    pub scale: Tensor,
    pub epsilon: f64,
    path: String,
}

impl RmsNorm {
    /// Loads `weight`, `[width]`.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, width: usize, epsilon: f64) -> Result<RmsNorm, NnError> {
        let scale = params.tensor("weight", &[width], Init::Uniform(0.8, 1.2))?;
        Ok(RmsNorm {
            scale,
            epsilon,
            path: params.path().to_owned(),
        })
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(Some(&self.scale), self.epsilon).in_module(&self.path, &[x])
    }
}

/// Normalises groups of channels of each sample of `[N, C, …]`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    pub groups: i64,
    pub scale: Tensor,
    pub bias: Tensor,
    pub epsilon: f64,
    path: String,
}

impl GroupNorm {
    /// Loads `weight` and `bias`, each `[channels]`; ε is 1e-5.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, groups: i64, channels: usize) -> Result<GroupNorm, NnError> {
        Ok(GroupNorm {
            groups,
            scale: params.tensor("weight", &[channels], Init::Uniform(0.8, 1.2))?,
            bias: params.tensor("bias", &[channels], Init::Uniform(-0.1, 0.1))?,
            epsilon: 1e-5,
            path: params.path().to_owned(),
        })
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.group_norm(self.groups, &self.scale, &self.bias, self.epsilon)
            .in_module(&self.path, &[x])
    }
}
