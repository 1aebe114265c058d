//! Kernels to HIP C++: a printer that decides nothing.
//!
//! ```text
//! plan::Plan  --emit-->  Table<KernelId, Source>      each includes headers of [`device`] by name
//! ```
//!
//! Which thread does what is the kernel's [`ir::kernel::Mapping`]; what is read wide, which index fits 32 bits and in
//! which order a tile walks memory follow from provable facts of the kernel. The hand-written part (folds over waves,
//! tiles through LDS, online softmax, conversions) is the device library, so that a generated kernel is index
//! arithmetic and the model's own formulas.

mod body;
pub mod device;
mod emit;
mod expr;
mod index;
mod name;
mod signature;
mod source;
mod stmt;
mod types;

pub use emit::{EmitError, emit, emit_by, emit_kernel, keep_loops};
