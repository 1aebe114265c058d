//! Where models come in: recorded by the tensor DSL, imported from ONNX, with weights from files. It optimises nothing.

pub mod nn;
pub mod onnx;
pub mod tensor;
pub mod weights;

pub use ir::{DType, Dim, Shape};
