//! Occupancy: how many blocks of a kernel a compute unit holds, by registers and LDS.

use super::module::by_address;
use super::{BAD_HANDLE, INVALID, hip};
use crate::pointer::put;
use crate::state::{Function, Runtime};
use crate::status::Status;
use hip_sys::{hipError_t, hipFunction_t};
use std::ffi::{c_int, c_uint, c_void};

hip! {
    /// Gives how many blocks of a kernel a compute unit holds at once.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(runtime, blocks: *mut c_int, function: hipFunction_t, block: c_int, shared: usize) {
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?.clone();
        active(runtime, blocks, &function, block, shared)
    }

    /// As [`hipModuleOccupancyMaxActiveBlocksPerMultiprocessor`]; the flags change nothing here.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(runtime, blocks: *mut c_int, function: hipFunction_t, block: c_int, shared: usize, flags: c_uint) {
        if flags > 1 {
            return Err(INVALID);
        }
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?.clone();
        active(runtime, blocks, &function, block, shared)
    }

    /// Gives the block that keeps a compute unit fullest, and the grid that fills the device with it.
    fn hipModuleOccupancyMaxPotentialBlockSize(runtime, grid: *mut c_int, block: *mut c_int, function: hipFunction_t, shared: usize, limit: c_int) {
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?.clone();
        fullest(runtime, grid, block, &function, shared, limit)
    }

    /// As [`hipModuleOccupancyMaxActiveBlocksPerMultiprocessor`], by the kernel's host address.
    fn hipOccupancyMaxActiveBlocksPerMultiprocessor(runtime, blocks: *mut c_int, host: *const c_void, block: c_int, shared: usize) {
        let function = by_address(runtime, host)?;
        active(runtime, blocks, &function, block, shared)
    }

    /// As [`hipOccupancyMaxActiveBlocksPerMultiprocessor`]; the flags change nothing here.
    fn hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(runtime, blocks: *mut c_int, host: *const c_void, block: c_int, shared: usize, flags: c_uint) {
        if flags > 1 {
            return Err(INVALID);
        }
        let function = by_address(runtime, host)?;
        active(runtime, blocks, &function, block, shared)
    }

    /// As [`hipModuleOccupancyMaxPotentialBlockSize`], by the kernel's host address.
    fn hipOccupancyMaxPotentialBlockSize(runtime, grid: *mut c_int, block: *mut c_int, host: *const c_void, shared: usize, limit: c_int) {
        let function = by_address(runtime, host)?;
        fullest(runtime, grid, block, &function, shared, limit)
    }
}

fn active(runtime: &Runtime, blocks: *mut c_int, function: &Function, block: c_int, shared: usize) -> Status {
    let block = u32::try_from(block).ok().filter(|block| *block > 0).ok_or(INVALID)?;
    put(blocks, active_blocks(runtime, function, block, shared) as c_int)
}

fn fullest(
    runtime: &Runtime,
    grid: *mut c_int,
    block: *mut c_int,
    function: &Function,
    shared: usize,
    limit: c_int,
) -> Status {
    let info = &function.info;
    let most = if info.max_block == 0 { 1024 } else { info.max_block };
    let most = u32::try_from(limit)
        .ok()
        .filter(|limit| *limit > 0)
        .map_or(most, |limit| limit.min(most));
    let wave = info.wave_size.max(1);
    let mut best = (0, 0, 0);
    for size in (1..=most / wave).map(|waves| waves * wave) {
        let blocks = active_blocks(runtime, function, size, shared);
        if blocks * size >= best.0 {
            best = (blocks * size, size, blocks);
        }
    }
    put(block, best.1 as c_int)?;
    put(
        grid,
        (best.2 * runtime.devices[function.device].gpu.arch().compute_units) as c_int,
    )
}

/// Blocks of `block` work-items on one compute unit; none where LDS does not suffice for one.
pub(super) fn active_blocks(runtime: &Runtime, function: &Function, block: u32, shared: usize) -> u32 {
    let arch = runtime.devices[function.device].gpu.arch();
    let info = &function.info;
    let lds = info
        .group_segment
        .saturating_add(u32::try_from(shared).unwrap_or(u32::MAX));
    if lds > arch.lds_bytes {
        return 0;
    }
    let waves = arch.waves_by_vgprs(info.vgprs.max(1), info.wave_size.max(1)) * arch.simds_per_cu;
    let by_waves = waves / block.div_ceil(info.wave_size.max(1)).max(1);
    arch.lds_bytes
        .checked_div(lds)
        .map_or(by_waves, |by_lds| by_waves.min(by_lds))
}

/// Refuses a grid whose blocks are not all on the device at once: they could not wait for each other.
pub(super) fn fits_at_once(
    runtime: &Runtime,
    function: &Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
) -> Status {
    let product = |sizes: [u32; 3]| sizes.iter().map(|size| u64::from(*size)).product::<u64>();
    let items = u32::try_from(product(block)).unwrap_or(u32::MAX);
    let units = runtime.devices[function.device].gpu.arch().compute_units;
    let most = u64::from(active_blocks(runtime, function, items.max(1), shared as usize)) * u64::from(units);
    if product(grid) > most {
        return Err(hipError_t::hipErrorCooperativeLaunchTooLarge);
    }
    Ok(())
}
