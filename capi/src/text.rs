//! Texts that come from C, and those that are handed out.

use std::ffi::{CStr, CString, c_char};

use crate::status::{Failure, Outcome, c_text};

/// Reads a text of C's.
///
/// # Safety
/// It is null or ends with a zero byte, and stays as it is while it is read.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::argument(format!("{name} is no UTF-8: {}", text.to_string_lossy())))
}

/// Hands a text out, which graphc_text_free frees.
pub fn hand_out_text(out: &mut *mut c_char, text: String) {
    *out = c_text(text).into_raw();
}

/// Frees a text that a function of this interface handed out by a char **. Null is nothing.
///
/// # Safety
/// `text` is null or was handed out, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: `CString::into_raw` made it.
        drop(unsafe { CString::from_raw(text) });
    }
}
