//! Copies and fills in two dimensions, and functions of the program that a stream calls.

use super::{INVALID, hip, stream_of};
use crate::memory::Rows;
use crate::queue::{Action, HostCall, HostFunction};
use hip_sys::{hipDeviceptr_t, hipError_t, hipMemcpyKind, hipStream_t};
use std::ffi::{c_int, c_uint, c_void};

hip! {
    /// Copies rows and waits.
    fn hipMemcpy2D(runtime, to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: hipMemcpyKind) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        let rows = rows(to_pitch, from_pitch, width, height);
        runtime.copy_rows(to as u64, from as u64, rows, kind.0, stream, true)
    }

    /// Queues a copy of rows.
    fn hipMemcpy2DAsync(runtime, to: *mut c_void, to_pitch: usize, from: *const c_void, from_pitch: usize, width: usize, height: usize, kind: hipMemcpyKind, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        let rows = rows(to_pitch, from_pitch, width, height);
        runtime.copy_rows(to as u64, from as u64, rows, kind.0, stream, false)
    }

    /// Fills rows with a byte and waits.
    fn hipMemset2D(runtime, to: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        fill_rows(runtime, to as u64, pitch, value as u8, (width, height), stream)?;
        runtime.sync_stream(stream)
    }

    /// Queues a fill of rows with a byte.
    fn hipMemset2DAsync(runtime, to: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        fill_rows(runtime, to as u64, pitch, value as u8, (width, height), stream)
    }

    /// Fills with a byte and waits.
    fn hipMemsetD8(runtime, to: hipDeviceptr_t, value: u8, count: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.fill(to as u64, vec![value], count as u64, stream, true)
    }

    /// Queues a fill with a byte.
    fn hipMemsetD8Async(runtime, to: hipDeviceptr_t, value: u8, count: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.fill(to as u64, vec![value], count as u64, stream, false)
    }

    /// Fills with a half word and waits.
    fn hipMemsetD16(runtime, to: hipDeviceptr_t, value: u16, count: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        let size = (count as u64).checked_mul(2).ok_or(INVALID)?;
        runtime.fill(to as u64, value.to_le_bytes().to_vec(), size, stream, true)
    }

    /// Queues a fill with a half word.
    fn hipMemsetD16Async(runtime, to: hipDeviceptr_t, value: u16, count: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        let size = (count as u64).checked_mul(2).ok_or(INVALID)?;
        runtime.fill(to as u64, value.to_le_bytes().to_vec(), size, stream, false)
    }

    /// Fills with a word and waits.
    fn hipMemsetD32(runtime, to: hipDeviceptr_t, value: c_int, count: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        let size = (count as u64).checked_mul(4).ok_or(INVALID)?;
        runtime.fill(to as u64, value.to_le_bytes().to_vec(), size, stream, true)
    }

    /// Queues a call of a function of the program, which must not call HIP.
    fn hipLaunchHostFunc(runtime, stream: hipStream_t, function: Option<unsafe extern "C" fn(*mut c_void)>, argument: *mut c_void) {
        let id = stream_of(runtime, stream)?;
        let call = HostCall::new(HostFunction::Plain(function.ok_or(INVALID)?), argument);
        runtime.submit(id, Action::Host(call), Vec::new())
    }

    /// As [`hipLaunchHostFunc`], for a function that also gets the stream and a code.
    fn hipStreamAddCallback(runtime, stream: hipStream_t, function: Option<unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void)>, argument: *mut c_void, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID);
        }
        let id = stream_of(runtime, stream)?;
        runtime.not_capturing(id)?;
        let call = HostCall::new(HostFunction::WithStream(function.ok_or(INVALID)?, stream), argument);
        runtime.submit(id, Action::Host(call), Vec::new())
    }
}

fn rows(to_pitch: usize, from_pitch: usize, width: usize, height: usize) -> Rows {
    Rows {
        width: width as u64,
        height: height as u64,
        to_pitch: to_pitch as u64,
        from_pitch: from_pitch as u64,
    }
}

fn fill_rows(
    runtime: &mut crate::state::Runtime,
    to: u64,
    pitch: usize,
    value: u8,
    (width, height): (usize, usize),
    stream: u64,
) -> crate::status::Status {
    if height > 1 && pitch < width {
        return Err(hipError_t::hipErrorInvalidPitchValue);
    }
    for row in 0..height as u64 {
        runtime.fill(to + row * pitch as u64, vec![value], width as u64, stream, false)?;
    }
    Ok(())
}
