//! Activations by name, and dropout, which does nothing in inference.

use super::Module;
use crate::tensor::Tensor;

/// An activation function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    Identity,
    Relu,
    Relu6,
    LeakyRelu(f64),
    Elu(f64),
    /// By the error function.
    Gelu,
    /// By the tanh approximation.
    GeluTanh,
    Silu,
    Mish,
    HardSwish,
    HardSigmoid,
    Sigmoid,
    Tanh,
    Softplus,
    /// Along the last axis.
    Softmax,
}

impl Module for Activation {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        match *self {
            Activation::Identity => x.clone(),
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.relu6(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Mish => x.mish(),
            Activation::HardSwish => x.hard_swish(),
            Activation::HardSigmoid => x.hard_sigmoid(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::Softplus => x.softplus(),
            Activation::Softmax => x.softmax(-1),
        }
    }
}

/// Dropout in inference: the identity, so that models can be copied line by line.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Dropout;

impl Module for Dropout {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.clone()
    }
}
