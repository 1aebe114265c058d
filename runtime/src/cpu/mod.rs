//! The CPU device, the embedded default.

pub mod kernels;
