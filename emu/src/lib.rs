//! A functional AMD GPU in software: it loads the code objects that hiprtc makes and executes their instructions.
//!
//! ```text
//! CodeObject::load(bytes)            the ELF file, its kernels' descriptors and metadata
//!   |  Gpu::load(object, disassembler)
//! Module                             the image in device memory, relocated
//!   |  Module::kernel(name)
//! Kernel                             every instruction compiled to a closure over a whole wave
//!   |  Gpu::launch(kernel, grid, block, kernargs, dynamic_lds, options)
//! Counters, or a Fault               that names kernel, workgroup, wave, lane, instruction and address
//! ```
//!
//! The text of the instructions comes from a [`Disassembler`]: [`Comgr`] where ROCm's library can be loaded, or a
//! [`Listing`] made ahead of time. Device memory is a [`Memory`] of its own with 64-bit addresses; several GPUs may
//! share one. What is and is not modelled is written in the crate's README.

/// The README's sample compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod arch;
pub mod counters;
mod decode;
pub mod disasm;
pub mod error;
mod exec;
pub mod gpu;
pub mod loader;
pub mod memory;
pub mod timing;

pub use arch::{Arch, Generation};
pub use counters::{Class, Counters};
pub use disasm::{Comgr, Disassembler, Line, Listing, Worker};
pub use error::{
    Access, DecodeError, DisassemblyError, Fault, FaultKind, LaunchError, LoadError, MemoryError, Space, Use,
};
pub use gpu::{Gpu, INSTRUCTION_LIMIT, Kernel, LaunchOptions, MOST_GROUPS_YZ, Module};
pub use loader::{Arg, CodeObject, Descriptor, KernelInfo, Symbol};
pub use memory::Memory;
pub use timing::TimingOptions;
