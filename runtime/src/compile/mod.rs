//! HIP C++ in, machine code out: hiprtc for AMD's GPUs, NVRTC for NVIDIA's, in this process or in a pool of worker
//! processes.
//!
//! ```text
//! discover(&RocmSearch) -> Toolchain                  where hiprtc is, and its identity; nothing is loaded yet
//! Compilers::open(&search, platforms, worker, n)      of each platform: WorkerPool when a worker program is at hand, else
//!                                                     InProcess (hiprtc) or Nvrtc
//! compile_all(&compiler, &requests, &progress)        many kernels x targets, in parallel, in the order they were asked
//! ```
//!
//! Before: a [`CompileRequest`], plain data. After: a [`CompiledObject`] whose bytes depend on the request and the
//! compiler's [`identity`](Compiler::identity) alone, or a [`CompileError`] with the log and the source line.
//!
//! Why processes: hiprtc's back end holds one lock per process, so threads gain nothing, and it ends the process with
//! SIGABRT on some kernels (an instruction that the target lacks). In a worker both stop mattering: [`WorkerPool`].

mod batch;
mod by_platform;
mod device_libraries;
mod disassemble;
mod discover;
mod error;
mod hiprtc;
mod identity;
mod nvrtc;
mod pool;
mod process;
mod protocol;
mod texts;
mod worker;

use ir::Target;
use ir::target::Platform;
use serde::{Deserialize, Serialize};

pub use batch::{Progress, compile_all};
pub use by_platform::{CompilerSearch, Compilers};
pub use disassemble::{Instruction, Listing};
pub use discover::{RocmSearch, Toolchain, discover};
pub use dylib::Search as HiprtcSearch;
pub use error::{CompileError, Failure, SourceLine};
pub use hiprtc::InProcess;
pub use nvrtc::Nvrtc;
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
    /// The target with its features, as the compilers spell it: `gfx90a:xnack-`, `gfx1100`, `sm_90`.
    pub arch: String,
    /// Further options, in order (`-O3`, `-mcode-object-version=5`, `-DTILE=64`). The target is not among them.
    pub options: Vec<String>,
}

impl CompileRequest {
    /// Whose compiler serves it: that of the target's platform. What is no target of graphc's is AMD's: hiprtc knows
    /// more of them, and refuses what it does not know.
    pub fn platform(&self) -> Platform {
        self.arch
            .parse()
            .map_or(Platform::Hip, |target: Target| target.platform)
    }
}

/// A code object (ELF: AMD's, or NVIDIA's cubin) and what the compiler said on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledObject {
    /// The ELF file that `hipModuleLoadData` or `cuModuleLoadData` takes; [`crate::code_object::read`] reads it.
    pub bytes: Vec<u8>,
    /// Warnings, as the compiler printed them; empty for most kernels.
    pub log: String,
}

/// Turns HIP C++ into code objects. Shared between threads.
pub trait Compiler: Send + Sync {
    /// Names the compiler that serves a platform's requests, and its version: equal identities give equal bytes for
    /// equal requests.
    ///
    /// Found from the library files where they can be located, so that a warm start need not load the compiler.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] when the compiler must be asked for its version and there is none.
    fn identity(&self, platform: Platform) -> Result<String, CompileError>;

    /// How many compiles are worth asking for at once.
    fn parallelism(&self) -> usize;

    /// Compiles one source for one target; blocks until it is done (0.15 to 0.3 s for a typical kernel).
    ///
    /// # Errors
    /// Every variant of [`CompileError`].
    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError>;

    /// Disassembles the kernels of an AMD code object, in the order of its metadata.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] when comgr is missing, [`CompileError::Disassembly`] for what is no AMD code
    /// object.
    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError>;

    /// Compiles one source and gives it as assembly: the machine code disassembled, or PTX of NVRTC, which has no
    /// disassembler for the machine code it makes.
    ///
    /// # Errors
    /// As [`Compiler::compile`] and [`Compiler::disassemble`].
    fn assembly(&self, request: &CompileRequest) -> Result<String, CompileError> {
        let object = self.compile(request)?;
        Ok(self.disassemble(&object.bytes)?.iter().map(Listing::text).collect())
    }
}
