//! Where models come in: recorded by the tensor DSL, imported from ONNX, with weights from files. It optimises nothing.

pub mod onnx;
pub mod weights;
