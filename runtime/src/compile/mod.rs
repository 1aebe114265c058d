//! HIP C++ in, code object out: hiprtc in this process, or in a pool of worker processes.
//!
//! ```text
//! discover(&RocmSearch) -> Toolchain            where hiprtc is, and its identity; nothing is loaded yet
//! open(&RocmSearch, worker, n) -> dyn Compiler  WorkerPool when a worker program is at hand, InProcess otherwise
//! compile_all(&compiler, &requests, &progress)  many kernels x targets, in parallel, in the order they were asked
//! ```
//!
//! Before: a [`CompileRequest`], plain data. After: a [`CompiledObject`] whose bytes depend on the request and the
//! compiler's [`identity`](Compiler::identity) alone, or a [`CompileError`] with the log and the source line.
//!
//! Why processes: hiprtc's back end holds one lock per process, so threads gain nothing, and it ends the process with
//! SIGABRT on some kernels (an instruction that the target lacks). In a worker both stop mattering: [`WorkerPool`].

mod batch;
mod disassemble;
mod discover;
mod error;
mod hiprtc;
mod identity;
mod pool;
mod process;
mod protocol;
mod worker;

use serde::{Deserialize, Serialize};

pub use batch::{Progress, compile_all};
pub use disassemble::{Instruction, Listing};
pub use discover::{RocmSearch, Toolchain, discover, open};
pub use dylib::Search as HiprtcSearch;
pub use error::{CompileError, Failure, SourceLine};
pub use hiprtc::InProcess;
pub use pool::WorkerPool;
pub use worker::worker_main;

/// One source to compile for one target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CompileRequest {
    /// The kernel's name: names the source in the compiler's log, and the failure in errors.
    pub name: String,
    /// HIP C++.
    pub source: String,
    /// `(name as included, text)`: what `#include "name"` finds.
    pub headers: Vec<(String, String)>,
    /// The target with its features, as hiprtc spells it: `gfx90a:xnack-`, `gfx1100`.
    pub arch: String,
    /// Further options, in order (`-O3`, `-mcode-object-version=5`, `-DTILE=64`). The target is not among them.
    pub options: Vec<String>,
}

/// An AMD GPU code object (ELF) and what the compiler said on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledObject {
    /// The ELF file that `hipModuleLoadData` takes; [`crate::code_object::read`] reads it.
    pub bytes: Vec<u8>,
    /// Warnings, as the compiler printed them; empty for most kernels.
    pub log: String,
}

/// Turns HIP C++ into code objects. Shared between threads.
pub trait Compiler: Send + Sync {
    /// Names the compiler and its version: equal identities give equal bytes for equal requests.
    ///
    /// Found from the library files where they can be located, so that a warm start need not load hiprtc.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] when the compiler must be asked for its version and there is none.
    fn identity(&self) -> Result<String, CompileError>;

    /// How many compiles are worth asking for at once.
    fn parallelism(&self) -> usize;

    /// Compiles one source for one target; blocks until it is done (0.15 to 0.3 s for a typical kernel).
    ///
    /// # Errors
    /// Every variant of [`CompileError`].
    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError>;

    /// Disassembles the kernels of a code object, in the order of its metadata.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] when comgr is missing, [`CompileError::Disassembly`] for what is no code object.
    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError>;
}
