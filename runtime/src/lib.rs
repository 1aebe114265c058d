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
pub mod installed;
mod library;
mod miopen;
pub mod pending;
pub mod profile;
pub mod ranks;
pub mod state;
pub mod tensor;

pub use device::{Device, LoadOptions, MOST_THREADS, MemoryReport, RunStatistics, RunTimes, StepTime};
pub use error::{InputError, OutOfDeviceMemory, Planned, RuntimeError};
pub use executable::{Executable, InputBytes, OutputBuffer};
pub use miopen::{MiopenFind, MiopenOptions, UnknownFind};
pub use pending::{Pending, Values};
pub use profile::{Profile, ProfileOptions};
pub use ranks::RankedDevice;
pub use state::{Link, State};
pub use tensor::{DeviceTensor, Given, Value, Wanted, Where};
