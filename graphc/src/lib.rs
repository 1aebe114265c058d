//! A lazy computation-graph compiler for AMD GPUs.
//!
//! A model comes in (the [`frontend`]'s DSL, ONNX, `.gir` text), is optimised as a graph and leaves as a small program
//! of fused HIP C++ kernels, which hiprtc compiles, or runs on the CPU with nothing installed.
//!
//! ```text
//! driver::load -> driver::build -> driver::compile -> runtime::Executable
//! ```

/// The samples of the README and of the book compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/src/own-model.md")]
struct Documents;

#[cfg(feature = "npz")]
pub mod arrays;
pub mod compare;
pub mod driver;
pub mod eager;
#[cfg(feature = "emulate")]
pub mod emulate;
pub mod error;
mod exit;
pub mod facts;
pub mod optimised;
pub mod options;
pub mod prelude;
#[cfg(feature = "quantize")]
pub mod quantize;
pub mod random;
pub mod session;
pub mod texts;
#[cfg(feature = "tune")]
pub mod tune;

pub use error::{Error, ErrorKind, Result};
pub use session::{Session, SessionOptions, cpu_device, jit};

#[cfg(feature = "emulate")]
pub use emu;
pub use {codegen_cpu, codegen_hip, frontend, ir, passes, runtime};
