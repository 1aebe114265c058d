//! A functional AMD GPU in software: it loads the code objects that hiprtc makes and executes their instructions.
pub mod arch;
pub mod counters;
mod decode;
pub mod disasm;
pub mod error;
mod exec;
pub mod gpu;
pub mod loader;
pub mod memory;

pub use arch::{Arch, Generation};
pub use counters::{Class, Counters};
pub use disasm::{Comgr, Disassembler, Line, Listing};
pub use error::{Access, DecodeError, DisassemblyError, Fault, FaultKind, LaunchError, LoadError, MemoryError, Space};
pub use gpu::{Gpu, Kernel, LaunchOptions, Module};
pub use loader::{Arg, CodeObject, Descriptor, KernelInfo, Symbol};
pub use memory::Memory;
