//! Reading and writing through the pointers that callers of the C interface give.
//!
//! The interface's contract is C's: a pointer that is not null is valid for what the call's documentation says. Null is
//! checked here; more cannot be.

use crate::status::Status;
use hip_sys::hipError_t;
use std::ffi::{CStr, c_char};

const BAD: hipError_t = hipError_t::hipErrorInvalidValue;

/// Writes a result.
pub fn put<T>(to: *mut T, value: T) -> Status {
    if to.is_null() {
        return Err(BAD);
    }
    // SAFETY: not null, and by the interface's contract valid for a write.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads the `index`-th of an array.
pub fn get<T: Copy>(from: *const T, index: usize) -> Result<T, hipError_t> {
    if from.is_null() {
        return Err(BAD);
    }
    // SAFETY: not null, and by the interface's contract an array with such an element.
    Ok(unsafe { from.add(index).read_unaligned() })
}

/// Copies bytes out of host memory.
pub fn read_bytes(from: u64, size: usize) -> Vec<u8> {
    let mut out = vec![0u8; size];
    if size > 0 {
        // SAFETY: by the interface's contract `size` bytes at a caller's pointer can be read; `out` has room for them.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), size) };
    }
    out
}

/// Copies bytes into host memory.
pub fn write_bytes(to: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: by the interface's contract these bytes at a caller's pointer can be written. `copy` allows overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }
}

/// Reads a C string.
pub fn text(from: *const c_char) -> Result<String, hipError_t> {
    if from.is_null() {
        return Err(BAD);
    }
    // SAFETY: not null, and by the interface's contract a string that ends with a zero.
    Ok(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Writes a C string, cut to `room` bytes with its zero.
pub fn put_text(to: *mut c_char, room: usize, text: &str) -> Status {
    if to.is_null() || room == 0 {
        return Err(BAD);
    }
    let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
    bytes.push(0);
    write_bytes(to as u64, &bytes);
    Ok(())
}
