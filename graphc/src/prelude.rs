//! What an app that builds or runs models needs: `use graphc::prelude::*;`.

pub use frontend::nn::{self, Module, Params};
pub use frontend::shape;
pub use frontend::tensor::{InputSpec, Tensor, TensorError, build_graph, trace};
pub use frontend::weights::Weights;
pub use ir::{DType, Dim, Graph, HostTensor, Shape};

pub use runtime::{DeviceTensor, Given, Pending, Value, Wanted, Where};

pub use crate::eager::{Eager, Realize};
pub use crate::session::{DeviceChoice, Engine, Jit, Session, SessionOptions, jit};
