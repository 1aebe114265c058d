//! Neural-network modules over lazy tensors: layers that load their weights by name.
//!
//! [`Params`] is a place in a tree of named weights, from a safetensors file or random; each module's `load` takes its
//! own weights from it, under PyTorch's names, and refuses a missing or misshapen tensor by name. `forward` records the
//! layer.
//!
//! ```
//! use graphc_frontend::nn::{Activation, Linear, Module, Params, Sequential};
//! use graphc_frontend::tensor::Tensor;
//! use graphc_frontend::{DType, shape};
//!
//! let params = Params::random(7);
//! let model = Sequential::new()
//!     .then(Linear::load(&params.sub("fc1"), 64, 32)?)
//!     .then(Activation::Relu)
//!     .then(Linear::load(&params.sub("fc2"), 32, 10)?);
//! let y = model.forward(&Tensor::input("x", DType::F32, shape!["batch", 64]));
//! assert_eq!(y.shape().to_string(), "[batch, 10]");
//! # Ok::<(), graphc_frontend::nn::NnError>(())
//! ```

mod activation;
mod attention;
mod conv;
mod error;
mod input;
mod linear;
mod norm;
mod packed;
mod params;
mod recurrent;
mod scheme;
mod sequential;
#[cfg(test)]
mod tests;

pub use activation::{Activation, Dropout};
pub use attention::{AttentionConfig, MultiHeadAttention};
pub use conv::{Conv2d, Conv2dConfig, MaxPool2d};
pub use error::NnError;
pub use linear::{Embedding, Linear};
pub use norm::{BatchNorm2d, GroupNorm, LayerNorm, RmsNorm};
pub use params::{Init, Params};
pub use recurrent::{Gru, Lstm, RecurrentConfig};
pub use sequential::{Residual, Sequential};

use crate::tensor::Tensor;

/// A layer from one tensor to one tensor.
pub trait Module: Send + Sync {
    /// Records the layer on `x`; what does not fit gives a poisoned tensor (see [`crate::tensor`]).
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor;
}

/// Functions are modules.
impl<F: Fn(&Tensor) -> Tensor + Send + Sync> Module for F {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self(x)
    }
}
