//! From a launch call's arguments to work: checks that HIP makes at the call, and the argument block.

use crate::pointer;
use crate::queue::Action;
use crate::state::{Runtime, report};
use crate::status::Status;
use graphc_emu::{Kernel, KernelInfo, MOST_GROUPS_YZ};
use hip_sys::hipError_t;
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel with everything that one launch needs.
pub struct Launch {
    pub kernel: Kernel,
    pub size: Size,
    pub kernargs: Vec<u8>,
    /// Bytes of dynamic LDS.
    pub lds: u32,
}

/// `HIP_LAUNCH_PARAM_BUFFER_POINTER` and its companions.
const BUFFER_POINTER: u64 = 1;
const BUFFER_SIZE: u64 = 2;
const END: u64 = 3;

/// How many work-items, in what blocks.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub items: [u32; 3],
    pub block: [u32; 3],
}

impl Size {
    /// A grid of whole blocks.
    ///
    /// # Errors
    /// `hipErrorInvalidValue` where an axis has more work-items than 32 bits count.
    pub fn blocks(grid: [u32; 3], block: [u32; 3]) -> Result<Size, hipError_t> {
        let mut items = [0; 3];
        for axis in 0..3 {
            let product = grid[axis].checked_mul(block[axis]);
            items[axis] = product.ok_or_else(|| {
                report(&format!("a grid of {grid:?} blocks of {block:?}"));
                hipError_t::hipErrorInvalidValue
            })?;
        }
        Ok(Size { items, block })
    }
}

/// A kernel's arguments as a caller gives them: one pointer each, or HIP's list that names a buffer of all.
#[derive(Clone, Copy)]
pub struct Arguments {
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl Arguments {
    pub fn new(params: *mut *mut c_void, extra: *mut *mut c_void) -> Arguments {
        Arguments { params, extra }
    }
}

impl Runtime {
    /// Queues a launch.
    pub fn launch(&mut self, function: u64, size: Size, lds: u32, stream: u64, arguments: Arguments) -> Status {
        const INVALID: hipError_t = hipError_t::hipErrorInvalidValue;
        let function = self
            .functions
            .get(&function)
            .ok_or(hipError_t::hipErrorInvalidHandle)?
            .clone();
        let device = function.device;
        if self.stream(stream)?.device != device {
            return Err(hipError_t::hipErrorInvalidHandle);
        }
        let info = &function.info;
        if size.items.contains(&0) || size.block.contains(&0) {
            report(&format!(
                "{}: {:?} work-items in blocks of {:?}",
                info.name, size.items, size.block
            ));
            return Err(INVALID);
        }
        let groups = |axis: usize| size.items[axis].div_ceil(size.block[axis]);
        if groups(1) > MOST_GROUPS_YZ || groups(2) > MOST_GROUPS_YZ {
            report(&format!(
                "{}: {:?} workgroups; at most {MOST_GROUPS_YZ} along y and z",
                info.name,
                [groups(0), groups(1), groups(2)]
            ));
            return Err(INVALID);
        }
        let items: u64 = size.block.iter().map(|extent| u64::from(*extent)).product();
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
        let kernargs = match (arguments.params.is_null(), arguments.extra.is_null()) {
            (false, true) => from_params(info, arguments.params)?,
            (true, false) => from_buffer(info, arguments.extra)?,
            (true, true) if info.explicit_size() == 0 => Vec::new(),
            // Both, or neither though the kernel takes arguments.
            _ => return Err(INVALID),
        };
        let launch = Launch {
            kernel: function.kernel()?,
            size,
            kernargs,
            lds,
        };
        self.submit(stream, Action::Launch(Arc::new(launch)), Vec::new())
    }
}

fn from_params(info: &KernelInfo, params: *mut *mut c_void) -> Result<Vec<u8>, hipError_t> {
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

fn from_buffer(info: &KernelInfo, extra: *mut *mut c_void) -> Result<Vec<u8>, hipError_t> {
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
    let needed = info.explicit_size() as usize;
    // HIP does not look at the size. Tensile's launches leave out an unused last number; what is more than that is a
    // mistake.
    let last = info.args.iter().rfind(|arg| !arg.hidden());
    let least = last
        .filter(|arg| arg.kind == "by_value" && arg.size <= 4)
        .map_or(needed, |arg| arg.offset as usize);
    match (buffer, size) {
        (0, _) | (_, None) => Err(hipError_t::hipErrorInvalidValue),
        (_, Some(size)) if size < least => {
            report(&format!("{}: {size} bytes of arguments; it takes {needed}", info.name));
            Err(hipError_t::hipErrorInvalidValue)
        }
        (buffer, Some(size)) => {
            let mut bytes = pointer::read_bytes(buffer, size);
            bytes.resize(size.max(needed), 0);
            Ok(bytes)
        }
    }
}
