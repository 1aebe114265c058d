//! Memory pools and stream-ordered allocation.

use super::{INVALID, device_of, hip, stream_of, this_device};
use crate::pointer::{get, put};
use crate::queue::Action;
use crate::state::{Runtime, current_device};
use crate::status::Status;
use hip_sys::{hipError_t, hipStream_t};
use std::ffi::{c_int, c_void};

/// A pool's handle.
pub type hipMemPool_t = *mut c_void;

/// `hipMemPoolProps` as in ROCm 7.2's header, the unused end left out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipMemPoolProps {
    /// `hipMemAllocationType`: 1 is the one that there is.
    pub kind: c_int,
    /// `hipMemAllocationHandleType`: 0 for none.
    pub handles: c_int,
    /// `hipMemLocationType`: 1 for a device.
    pub location_kind: c_int,
    pub device: c_int,
    pub security: *mut c_void,
    pub limit: usize,
}

hip! {
    /// Gives the pool that a device begins with.
    fn hipDeviceGetDefaultMemPool(runtime, pool: *mut hipMemPool_t, device: c_int) {
        let device = device_of(runtime, device)?;
        put(pool, runtime.devices[device].default_pool as hipMemPool_t)
    }

    /// Gives the pool that a device's `hipMallocAsync` takes from.
    fn hipDeviceGetMemPool(runtime, pool: *mut hipMemPool_t, device: c_int) {
        let device = device_of(runtime, device)?;
        put(pool, runtime.devices[device].pool as hipMemPool_t)
    }

    /// Chooses the pool that a device's `hipMallocAsync` takes from.
    fn hipDeviceSetMemPool(runtime, device: c_int, pool: hipMemPool_t) {
        let device = device_of(runtime, device)?;
        if runtime.pools.get(&(pool as u64)).ok_or(INVALID)?.device != device {
            return Err(INVALID);
        }
        runtime.devices[device].pool = pool as u64;
        Ok(())
    }

    /// Makes a pool on a device.
    fn hipMemPoolCreate(runtime, pool: *mut hipMemPool_t, properties: *const hipMemPoolProps) {
        let properties = get(properties, 0)?;
        if pool.is_null() || properties.kind != 1 || properties.location_kind != 1 {
            return Err(INVALID);
        }
        if properties.handles != 0 {
            return Err(hipError_t::hipErrorNotSupported);
        }
        let device = device_of(runtime, properties.device)?;
        let id = runtime.new_pool(device);
        runtime.pools.get_mut(&id).ok_or(INVALID)?.limit = properties.limit as u64;
        put(pool, id as hipMemPool_t)
    }

    /// Ends a pool that is not a device's first one; what was allocated from it lives on.
    fn hipMemPoolDestroy(runtime, pool: hipMemPool_t) {
        let id = pool as u64;
        if runtime.devices.iter().any(|device| device.default_pool == id) {
            return Err(INVALID);
        }
        runtime.pools.remove(&id).ok_or(INVALID)?;
        for device in &mut runtime.devices {
            if device.pool == id {
                device.pool = device.default_pool;
            }
        }
        Ok(())
    }

    /// Gives a pool's unused memory back: it keeps none.
    fn hipMemPoolTrimTo(runtime, pool: hipMemPool_t, _keep: usize) {
        runtime.pools.get(&(pool as u64)).map(|_| ()).ok_or(INVALID)
    }

    /// Sets a fact of a pool; the high-water marks can be set to zero only.
    fn hipMemPoolSetAttribute(runtime, pool: hipMemPool_t, attribute: c_int, value: *mut c_void) {
        let pool = runtime.pools.get_mut(&(pool as u64)).ok_or(INVALID)?;
        match attribute {
            1..=3 => {
                pool.settings[attribute as usize - 1] = u64::from(get(value.cast::<c_int>(), 0)? != 0);
                Ok(())
            }
            4 => {
                pool.settings[3] = get(value.cast::<u64>(), 0)?;
                Ok(())
            }
            6 | 8 if get(value.cast::<u64>(), 0)? == 0 => {
                pool.used_high = pool.used;
                Ok(())
            }
            _ => Err(INVALID),
        }
    }

    /// Gives a fact of a pool.
    fn hipMemPoolGetAttribute(runtime, pool: hipMemPool_t, attribute: c_int, value: *mut c_void) {
        let pool = runtime.pools.get(&(pool as u64)).ok_or(INVALID)?;
        match attribute {
            1..=3 => put(value.cast(), pool.settings[attribute as usize - 1] as c_int),
            4 => put(value.cast(), pool.settings[3]),
            5 | 7 => put(value.cast(), pool.used),
            6 | 8 => put(value.cast(), pool.used_high),
            _ => Err(INVALID),
        }
    }

    /// Allocates device memory from the device's pool; the stream's order matters only for when it is freed.
    fn hipMallocAsync(runtime, pointer: *mut *mut c_void, size: usize, stream: hipStream_t) {
        this_device(runtime)?;
        let pool = runtime.devices[current_device()].pool;
        allocate(runtime, pointer, size, pool, stream)
    }

    /// As [`hipMallocAsync`], from a pool that the caller names.
    fn hipMallocFromPoolAsync(runtime, pointer: *mut *mut c_void, size: usize, pool: hipMemPool_t, stream: hipStream_t) {
        allocate(runtime, pointer, size, pool as u64, stream)
    }

    /// Frees device memory when the stream comes to it.
    fn hipFreeAsync(runtime, pointer: *mut c_void, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.not_capturing(stream)?;
        let address = pointer as u64;
        if address == 0 {
            return Ok(());
        }
        let crate::memory::Owner::Device(device) = runtime.owner(address) else { return Err(INVALID) };
        if runtime.devices[device].gpu.memory().allocation(address).is_none_or(|(base, _)| base != address) {
            return Err(INVALID);
        }
        runtime.submit(stream, Action::Free { device, address }, Vec::new())
    }
}

fn allocate(runtime: &mut Runtime, pointer: *mut *mut c_void, size: usize, pool: u64, stream: hipStream_t) -> Status {
    let stream = stream_of(runtime, stream)?;
    runtime.not_capturing(stream)?;
    let found = runtime.pools.get(&pool).ok_or(INVALID)?;
    if found.limit != 0 && found.used.saturating_add(size as u64) > found.limit {
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    let device = found.device;
    super::memory::allocate(runtime, device, pointer, size)?;
    if size > 0 {
        let address = get(pointer.cast_const(), 0)? as u64;
        runtime.pooled.insert(address, pool);
        runtime.pool_takes(pool, size as u64);
    }
    Ok(())
}
