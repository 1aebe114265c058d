//! Weights on disk: memory-mapped tensors of safetensors files and of ONNX models, as views that copy nothing.
//!
//! [`Weights`] opens a `.safetensors` file, a sharded one by its `.index.json`, or the folder that holds either.
//! [`TensorView`] is what every reader hands out: a name, the file's own [`ElementType`], dims, and bytes inside the
//! mapped file; [`TensorView::to_host`] turns it into the `ir`'s tensor. A mapped file must not be changed or truncated
//! while its views live: the operating system would show the change, or end the process with SIGBUS.

mod compressed;
mod config;
mod element;
mod mapped;
mod safetensors;
mod tensor;

pub use compressed::{CompressedTensors, LayerScheme, Numbers, SchemeError, Strategy};
pub use config::QuantizationConfig;
pub use element::ElementType;
pub(crate) use mapped::map_file;
pub use safetensors::{Weights, WeightsError};
pub use tensor::{TensorView, ViewError};
