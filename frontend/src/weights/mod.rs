//! Weights on disk: memory-mapped tensors of safetensors files and of ONNX models, as views that copy nothing.
//!
//! [`Weights`] opens a `.safetensors` file, a sharded one by its `.index.json`, or the folder that holds either.
//! [`TensorView`] is what every reader hands out: a name, the file's own [`ElementType`], dims, and bytes inside the
//! mapped file; [`TensorView::to_host`] turns it into the `ir`'s tensor. A mapped file should not be changed while its
//! views live: the operating system would show the change. One that becomes shorter is found by [`ir::mapped::check`].

mod compressed;
mod config;
mod element;
mod mapped;
mod safetensors;
mod tensor;
mod write;

pub use compressed::{CompressedTensors, LayerScheme, Numbers, SchemeError, Strategy};
pub use config::QuantizationConfig;
pub use element::ElementType;
pub(crate) use mapped::map_file;
pub use safetensors::{Weights, WeightsError};
pub use tensor::{TensorView, ViewError};
pub use write::write;
