//! What a function of HIP that is not emulated does: it says so.

use crate::state::{fail, report};
use hip_sys::hipError_t;
use std::ffi::{CStr, c_char};

/// Prints the function's name and fails.
///
/// # Safety
/// `name` is a C string that lives as long as the program: the stubs of `build.rs` give theirs.
unsafe extern "C" fn missing(name: *const c_char) -> hipError_t {
    // SAFETY: as the function's own contract.
    let name = unsafe { CStr::from_ptr(name) };
    report(&format!("{} is not emulated", name.to_string_lossy()));
    fail(hipError_t::hipErrorNotSupported)
}

/// As [`missing`], for a function that gives a text: null.
///
/// # Safety
/// As [`missing`].
unsafe extern "C" fn missing_text(name: *const c_char) -> *const c_char {
    // SAFETY: as the function's own contract.
    unsafe { missing(name) };
    std::ptr::null()
}

std::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/stubs.s")),
    missing = sym missing,
    missing_text = sym missing_text,
);
