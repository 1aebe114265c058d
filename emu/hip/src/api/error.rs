//! Errors: the thread's last one, names and descriptions.

use super::{INVALID, export, hip};
use crate::pointer::put;
use crate::state::{last_call, last_error};
use crate::status::describe;
use hip_sys::hipError_t;
use std::ffi::c_char;

/// Gives the thread's last failure and forgets it.
///
/// # Safety
/// None needed.
pub unsafe extern "C" fn hipGetLastError() -> hipError_t {
    last_error(true)
}

/// Gives the code of the thread's last call, success included, and forgets it.
///
/// # Safety
/// None needed.
pub unsafe extern "C" fn hipExtGetLastError() -> hipError_t {
    last_call()
}

/// Gives the thread's last failure.
///
/// # Safety
/// None needed.
pub unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    last_error(false)
}

/// Gives a code's name, `hipErrorOutOfMemory`.
///
/// # Safety
/// None needed; the text lives as long as the program.
pub unsafe extern "C" fn hipGetErrorName(code: hipError_t) -> *const c_char {
    describe(code).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr()
}

/// Gives a code's description.
///
/// # Safety
/// None needed; the text lives as long as the program.
pub unsafe extern "C" fn hipGetErrorString(code: hipError_t) -> *const c_char {
    describe(code)
        .map_or(c"unrecognized error code", |(_, text)| text)
        .as_ptr()
}

export!(hipGetLastError);
export!(hipExtGetLastError);
export!(hipPeekAtLastError);
export!(hipGetErrorName);
export!(hipGetErrorString);

hip! {
    /// Gives a code's name, or an error for a code that HIP does not have.
    fn hipDrvGetErrorName(_runtime, code: hipError_t, name: *mut *const c_char) {
        put(name, describe(code).ok_or(INVALID)?.0.as_ptr())
    }

    /// Gives a code's description, or an error for a code that HIP does not have.
    fn hipDrvGetErrorString(_runtime, code: hipError_t, text: *mut *const c_char) {
        put(text, describe(code).ok_or(INVALID)?.1.as_ptr())
    }
}
