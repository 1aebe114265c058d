//! Runs a Program on a device: memory, streams, kernels, libraries, caches. Sees `ir` only.

pub mod cache;
pub mod code_object;
pub mod compile;
pub mod cpu;
pub mod device;
pub mod error;
pub mod executable;

pub use device::{Device, LoadOptions, MemoryReport, Profile, StepTime};
pub use error::{InputError, RuntimeError};
pub use executable::{Executable, OutputBuffer, StepProfile};
