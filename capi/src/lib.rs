//! graphc's C interface: `include/graphc.h` is made of what this crate exports.
//!
//! Handles are opaque, made and freed by functions of their type. Each function that can fail returns a status, which
//! is null where all went well; nothing is kept in globals or in threads. A panic inside becomes a status too and
//! never crosses into C.
//!
//! A [`Value`](graphc::runtime::Value) behind a `graphc_tensor` never changes, so tensors are shared between threads
//! without locks; a session may be run by several threads at once.

#![expect(non_camel_case_types, reason = "the names that C has for them")]

pub mod dlpack;
mod dtype;
mod model;
mod options;
mod run;
mod session;
mod state;
mod status;
mod tensor;
mod text;

pub use dlpack::{DLManagedTensor, DLManagedTensorVersioned};
pub use dtype::*;
pub use model::*;
pub use options::*;
pub use run::*;
pub use session::*;
pub use state::*;
pub use status::*;
pub use tensor::*;
pub use text::*;

use std::ffi::{CStr, c_char};

/// The version of this interface. It grows with each change: code that was compiled for a version works with each
/// later one whose number has the same hundreds.
pub const GRAPHC_API_VERSION: u32 = 100;

/// Returns the version of the interface that the library has: GRAPHC_API_VERSION when it was built.
#[unsafe(no_mangle)]
pub extern "C" fn graphc_api_version() -> u32 {
    GRAPHC_API_VERSION
}

/// Returns graphc's version, as "0.1.0". The text lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn graphc_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
