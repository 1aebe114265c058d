//! ONNX at run time: reading model files, and importing them into a graph.
//!
//! [`read`] maps and decodes a file, [`tensor`] turns its tensors into views, [`proto`] has the generated messages, and
//! [`randomize`] gives a model reproducible random weights for tests and benches.

pub mod container;
pub mod external;
pub mod proto;
pub mod randomize;
pub mod read;
pub mod tensor;

pub use read::{Model, ReadError, ReadProblem, read_bytes, read_model};
pub use tensor::{TensorError, tensor_view};
