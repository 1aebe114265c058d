//! Errors: the thread's last one, names and descriptions.

use crate::state::last_error;
use crate::status::describe;
use hip_sys::hipError_t;
use std::ffi::c_char;

/// Gives the thread's last failure and forgets it.
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetLastError() -> hipError_t {
    last_error(true)
}

/// Gives the thread's last failure.
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    last_error(false)
}

/// Gives a code's name, `hipErrorOutOfMemory`.
///
/// # Safety
/// None needed; the text lives as long as the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorName(code: hipError_t) -> *const c_char {
    describe(code).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr()
}

/// Gives a code's description.
///
/// # Safety
/// None needed; the text lives as long as the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetErrorString(code: hipError_t) -> *const c_char {
    describe(code)
        .map_or(c"unrecognized error code", |(_, text)| text)
        .as_ptr()
}
