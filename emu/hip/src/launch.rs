//! From a launch call's arguments to work: checks that HIP makes at the call, and the argument block.

use crate::pointer;
use crate::queue::Action;
use crate::state::{Function, Runtime, report};
use crate::status::Status;
use graphc_emu::Kernel;
use hip_sys::hipError_t;
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel with everything that one launch needs.
pub struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub kernargs: Vec<u8>,
    /// Bytes of dynamic LDS.
    pub lds: u32,
}

/// `HIP_LAUNCH_PARAM_BUFFER_POINTER` and its companions.
const BUFFER_POINTER: u64 = 1;
const BUFFER_SIZE: u64 = 2;
const END: u64 = 3;

impl Runtime {
    /// Queues a launch.
    pub fn launch(
        &mut self,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        lds: u32,
        stream: u64,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Status {
        const INVALID: hipError_t = hipError_t::hipErrorInvalidValue;
        let Function { device, kernel } = self
            .functions
            .get(&function)
            .ok_or(hipError_t::hipErrorInvalidHandle)?
            .clone();
        if self.stream(stream)?.device != device {
            return Err(hipError_t::hipErrorInvalidHandle);
        }
        let info = kernel.info();
        let threads = |axis: usize| u64::from(grid[axis]) * u64::from(block[axis]);
        if grid.contains(&0) || block.contains(&0) || (0..3).any(|axis| threads(axis) > u64::from(u32::MAX)) {
            report(&format!("{}: a grid of {grid:?} blocks of {block:?}", info.name));
            return Err(INVALID);
        }
        let items: u64 = block.iter().map(|extent| u64::from(*extent)).product();
        if items > 1024 {
            return Err(INVALID);
        }
        if info.max_block != 0 && items > u64::from(info.max_block) {
            report(&format!(
                "{}: {items} work-items a block; compiled for {}",
                info.name, info.max_block
            ));
            return Err(hipError_t::hipErrorLaunchFailure);
        }
        let group = u64::from(info.descriptor.group_segment.max(info.group_segment)) + u64::from(lds);
        if group > u64::from(self.devices[device].gpu.arch().lds_bytes) {
            return Err(hipError_t::hipErrorLaunchOutOfResources);
        }
        let kernargs = match (params.is_null(), extra.is_null()) {
            (false, true) => from_params(&kernel, params)?,
            (true, false) => from_buffer(&kernel, extra)?,
            (true, true) if info.explicit_size() == 0 => Vec::new(),
            // Both, or neither though the kernel takes arguments.
            _ => return Err(INVALID),
        };
        let launch = Launch {
            kernel,
            grid,
            block,
            kernargs,
            lds,
        };
        self.submit(stream, Action::Launch(Arc::new(launch)), Vec::new())
    }
}

fn from_params(kernel: &Kernel, params: *mut *mut c_void) -> Result<Vec<u8>, hipError_t> {
    let info = kernel.info();
    let mut bytes = vec![0u8; info.explicit_size() as usize];
    for (index, arg) in info.args.iter().filter(|arg| !arg.hidden()).enumerate() {
        let value = pointer::get(params.cast_const(), index)?;
        if value.is_null() {
            return Err(hipError_t::hipErrorInvalidValue);
        }
        let start = arg.offset as usize;
        bytes[start..start + arg.size as usize].copy_from_slice(&pointer::read_bytes(value as u64, arg.size as usize));
    }
    Ok(bytes)
}

fn from_buffer(kernel: &Kernel, extra: *mut *mut c_void) -> Result<Vec<u8>, hipError_t> {
    let word = |index: usize| pointer::get(extra.cast_const(), index).map(|word| word as u64);
    let (mut buffer, mut size) = (0, None);
    let mut index = 0;
    loop {
        match word(index)? {
            END => break,
            BUFFER_POINTER => buffer = word(index + 1)?,
            BUFFER_SIZE => size = Some(pointer::get(word(index + 1)? as *const usize, 0)?),
            _ => return Err(hipError_t::hipErrorInvalidValue),
        }
        index += 2;
    }
    let needed = kernel.info().explicit_size() as usize;
    match (buffer, size) {
        (0, _) | (_, None) => Err(hipError_t::hipErrorInvalidValue),
        (_, Some(size)) if size < needed => {
            report(&format!(
                "{}: {size} bytes of arguments; it takes {needed}",
                kernel.info().name
            ));
            Err(hipError_t::hipErrorInvalidValue)
        }
        (buffer, Some(size)) => Ok(pointer::read_bytes(buffer, size)),
    }
}
