//! RCCL's and NCCL's C interface, which is one: communicators, sums and joins over several GPUs.
//!
//! `bindings.rs` has what graphc calls of ROCm 7.2's `rccl.h`, in the form that `scripts/generate-bindings.sh` gives,
//! and is checked in, so no ROCm is needed to build. NVIDIA's `nccl.h` declares the same functions with the same
//! numbers from NCCL 2.10 on. The library is opened with `dlopen` by [`load`]; a table that was loaded has every entry
//! point.

#[allow(
    warnings,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "in the form of bindgen, in C's own naming"
)]
mod bindings;

pub use bindings::*;
pub use dylib::{Attempt, Loaded, NotFound, Search};

/// The names under which AMD's library is looked for, in this order.
pub const RCCL_SONAMES: &[&str] = &["librccl.so", "librccl.so.1"];

/// The names under which NVIDIA's library is looked for, in this order.
pub const NCCL_SONAMES: &[&str] = &["libnccl.so", "libnccl.so.2"];

/// Opens RCCL, or NCCL, by its names where `search` finds it.
///
/// # Errors
/// [`NotFound`] lists every place looked at: no file, the loader's reason, or an entry point that is missing.
pub fn load(what: &str, sonames: &[&str], search: &Search) -> Result<Loaded<RcclLibrary>, NotFound> {
    dylib::open(what, sonames, search, |library| {
        // SAFETY: the bindings' signatures are those of these libraries' own headers.
        unsafe { RcclLibrary::from_library(library) }
    })
}
