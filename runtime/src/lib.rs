//! Runs a Program on a device: memory, streams, kernels, libraries, caches. Sees `ir` only.

pub mod cache;
mod checks;
pub mod code_object;
pub mod compile;
pub mod cpu;
pub mod device;
pub mod error;
pub mod executable;
pub mod gpu;
mod library;

pub use device::{Device, LoadOptions, MemoryReport, Profile, StepTime};
pub use error::{InputError, RuntimeError};
pub use executable::{Executable, OutputBuffer, StepProfile};
