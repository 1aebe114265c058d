//! A functional AMD GPU in software: it loads the code objects that hiprtc makes and executes their instructions.
pub mod arch;
pub mod disasm;
pub mod error;
pub mod loader;
pub mod memory;

pub use arch::{Arch, Generation};
pub use disasm::{Comgr, Disassembler, Line, Listing};
pub use error::{Access, DecodeError, DisassemblyError, Fault, FaultKind, LaunchError, LoadError, MemoryError, Space};
pub use loader::{Arg, CodeObject, Descriptor, KernelInfo, Symbol};
pub use memory::Memory;
