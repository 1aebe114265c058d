//! Runs a Program on a device: memory, streams, kernels, libraries, caches. Sees `ir` only.

pub mod cpu;
