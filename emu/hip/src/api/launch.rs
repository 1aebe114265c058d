//! Launches of a module's kernels.

use super::{BAD_HANDLE, INVALID, hip, stream_of};
use crate::launch::{Arguments, Size};
use hip_sys::{hipEvent_t, hipFunction_t, hipStream_t};
use std::ffi::{c_uint, c_void};

hip! {
    /// Queues a launch of `grid` blocks.
    fn hipModuleLaunchKernel(
        runtime, function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let stream = stream_of(runtime, stream)?;
        let size = Size::blocks([grid_x, grid_y, grid_z], [block_x, block_y, block_z])?;
        runtime.launch(function as u64, size, shared, stream, Arguments::new(params, extra))
    }

    /// As [`hipModuleLaunchKernel`], where all blocks are on the device at once. What joins a whole grid is not
    /// emulated.
    fn hipModuleLaunchCooperativeKernel(
        runtime, function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void,
    ) {
        let stream = stream_of(runtime, stream)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let size = Size::blocks(grid, block)?;
        let found = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?;
        super::occupancy::fits_at_once(runtime, found, grid, block, shared)?;
        runtime.launch(function as u64, size, shared, stream, Arguments::new(params, std::ptr::null_mut()))
    }

    /// Queues a launch of `global` work-items, with events before and after it. The last block along an axis may be
    /// partial.
    fn hipExtModuleLaunchKernel(
        runtime, function: hipFunction_t, global_x: c_uint, global_y: c_uint, global_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: usize, stream: hipStream_t, params: *mut *mut c_void,
        extra: *mut *mut c_void, start: hipEvent_t, stop: hipEvent_t, _flags: c_uint,
    ) {
        let id = stream_of(runtime, stream)?;
        let size = Size { items: [global_x, global_y, global_z], block: [block_x, block_y, block_z] };
        let shared = u32::try_from(shared).map_err(|_| INVALID)?;
        if !start.is_null() {
            super::event::record(runtime, start as u64, stream)?;
        }
        runtime.launch(function as u64, size, shared, id, Arguments::new(params, extra))?;
        if !stop.is_null() {
            super::event::record(runtime, stop as u64, stream)?;
        }
        Ok(())
    }
}
