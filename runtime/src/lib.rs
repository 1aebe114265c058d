//! Runs a Program on a device: memory, streams, kernels, libraries, caches. Sees `ir` only.

pub mod cache;
pub mod code_object;
pub mod compile;
pub mod cpu;
