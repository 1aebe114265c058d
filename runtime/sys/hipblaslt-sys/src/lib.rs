//! hipBLASLt's C interface: handles, descriptors of products and matrices, the heuristic, and the product with its
//! epilogue.
//!
//! `bindings.rs` is written by hand after ROCm 7.2's `<hipblaslt/hipblaslt.h>`, of which graphc calls few functions; a
//! test holds it against that header. The library is opened with `dlopen` by [`load`]; a table that was loaded has
//! every entry point. Enums are newtypes over the C integer: a value that a newer ROCm adds is carried, never undefined
//! behaviour.

#[expect(non_snake_case, non_camel_case_types, reason = "hipBLASLt's names")]
mod bindings;

pub use bindings::*;
pub use dylib::{Attempt, Loaded, NotFound, Search};

/// The names under which the library is looked for, in this order.
pub const SONAMES: &[&str] = &["libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"];

/// Opens hipBLASLt where `search` finds it.
///
/// # Errors
/// [`NotFound`] lists every place looked at: no file, the loader's reason, or an entry point that is missing.
pub fn load(search: &Search) -> Result<Loaded<HipblasltLibrary>, NotFound> {
    dylib::open("hipBLASLt", SONAMES, search, |library| {
        // SAFETY: the bindings' signatures are those of this library's own header.
        unsafe { HipblasltLibrary::from_library(library) }
    })
}
