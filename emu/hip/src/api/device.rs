//! Devices: which there are, and what is asked of them as a whole.

use super::{INVALID, device_of, hip};
use crate::pointer::{put, put_text, text};
use crate::state::{Runtime, current_device, set_current_device};
use hip_sys::{hipDevice_t, hipError_t};
use std::ffi::{c_char, c_int, c_uint};

/// ROCm 7.2's version number, as both version queries give it.
const VERSION: c_int = 70_226_015;

hip! {
    /// Makes the library ready.
    fn hipInit(_runtime, flags: c_uint) {
        if flags == 0 { Ok(()) } else { Err(INVALID) }
    }

    /// Counts the devices.
    fn hipGetDeviceCount(runtime, count: *mut c_int) {
        put(count, runtime.devices.len() as c_int)?;
        if runtime.devices.is_empty() { Err(hipError_t::hipErrorNoDevice) } else { Ok(()) }
    }

    /// Chooses the thread's device.
    fn hipSetDevice(runtime, device: c_int) {
        set_current_device(device_of(runtime, device)?);
        Ok(())
    }

    /// Gives the thread's device.
    fn hipGetDevice(runtime, device: *mut c_int) {
        runtime.current()?;
        put(device, current_device() as c_int)
    }

    /// Gives a device by its number.
    fn hipDeviceGet(runtime, device: *mut hipDevice_t, ordinal: c_int) {
        put(device, device_of(runtime, ordinal)? as c_int)
    }

    /// Gives a device's name.
    fn hipDeviceGetName(runtime, name: *mut c_char, len: c_int, device: hipDevice_t) {
        let device = device_of(runtime, device)?;
        put_text(name, usize::try_from(len).unwrap_or(0), &name_of(runtime, device))
    }

    /// Gives a device's place on the bus; the emulated ones have the numbers from 1 on.
    fn hipDeviceGetPCIBusId(runtime, id: *mut c_char, len: c_int, device: c_int) {
        let device = device_of(runtime, device)?;
        put_text(id, usize::try_from(len).unwrap_or(0), &bus_id(device))
    }

    /// Gives a device's memory in bytes.
    fn hipDeviceTotalMem(runtime, bytes: *mut usize, device: hipDevice_t) {
        let device = device_of(runtime, device)?;
        put(bytes, runtime.devices[device].gpu.memory().capacity() as usize)
    }

    /// Gives the free and all memory of the thread's device in bytes.
    fn hipMemGetInfo(runtime, free: *mut usize, total: *mut usize) {
        let memory = runtime.current()?.gpu.memory();
        put(free, memory.capacity().saturating_sub(memory.used()) as usize)?;
        put(total, memory.capacity() as usize)
    }

    /// Waits for everything on the thread's device.
    fn hipDeviceSynchronize(runtime) {
        runtime.no_capture()?;
        runtime.current()?;
        runtime.drain(current_device())
    }

    /// Ends everything on the thread's device: its memory, streams, events and modules.
    fn hipDeviceReset(runtime) {
        runtime.current()?;
        let device = current_device();
        runtime.captures.clear();
        runtime.streams.retain(|_, stream| stream.device != device);
        runtime.events.retain(|_, event| event.device != device);
        runtime.modules.retain(|_, module| module.device != device);
        runtime.functions.retain(|_, function| function.device != device);
        runtime.execs.retain(|_, exec| exec.device != device);
        runtime.programs.retain(|(on, _), _| *on != device);
        runtime.pools.retain(|_, pool| pool.device != device);
        let pinned: Vec<u64> =
            runtime.pinned.iter().filter(|(_, pinned)| pinned.device == device).map(|(address, _)| *address).collect();
        for address in pinned {
            runtime.unpin(address)?;
        }
        let fresh = runtime.new_device(device);
        runtime.devices[device] = fresh;
        for (address, size) in runtime.pinned.iter().map(|(address, pinned)| (*address, pinned.size)).collect::<Vec<_>>() {
            runtime.map_host(device, address, size)?;
        }
        Ok(())
    }

    /// Gives the device at a place on the bus.
    fn hipDeviceGetByPCIBusId(runtime, device: *mut c_int, id: *const c_char) {
        let id = text(id)?;
        let found = (0..runtime.devices.len()).find(|device| bus_id(*device) == id).ok_or(INVALID)?;
        put(device, found as c_int)
    }

    /// Gives the two numbers that stand for a device's processor.
    fn hipDeviceComputeCapability(runtime, major: *mut c_int, minor: *mut c_int, device: hipDevice_t) {
        let device = device_of(runtime, device)?;
        let (first, second) = super::properties::capability(runtime.devices[device].gpu.arch());
        put(major, first)?;
        put(minor, second)
    }

    /// Gives the flags that the thread's device was given: none, because nothing here depends on them.
    fn hipGetDeviceFlags(runtime, flags: *mut c_uint) {
        runtime.current()?;
        put(flags, 0)
    }

    /// Takes wishes of how to wait for the thread's device.
    fn hipSetDeviceFlags(runtime, flags: c_uint) {
        runtime.current()?;
        if flags & !0x1f == 0 { Ok(()) } else { Err(INVALID) }
    }

    /// Takes a wish for more cache or more LDS, which changes nothing here.
    fn hipDeviceSetCacheConfig(_runtime, config: c_uint) {
        if config <= 3 { Ok(()) } else { Err(INVALID) }
    }

    /// Gives a limit of the thread's device: the stack of a lane where its need is not known, and no heap.
    fn hipDeviceGetLimit(runtime, value: *mut usize, limit: c_uint) {
        runtime.current()?;
        match limit {
            0 => put(value, runtime.config.launch.dynamic_stack as usize),
            1 | 2 => put(value, 0),
            _ => Err(hipError_t::hipErrorUnsupportedLimit),
        }
    }

    /// Gives the driver's version.
    fn hipDriverGetVersion(_runtime, version: *mut c_int) {
        put(version, VERSION)
    }

    /// Gives the runtime's version.
    fn hipRuntimeGetVersion(_runtime, version: *mut c_int) {
        put(version, VERSION)
    }

    /// Gives the range of stream priorities.
    fn hipDeviceGetStreamPriorityRange(_runtime, least: *mut c_int, greatest: *mut c_int) {
        if !least.is_null() {
            put(least, super::stream::PRIORITY_LEAST)?;
        }
        if !greatest.is_null() {
            put(greatest, super::stream::PRIORITY_GREATEST)?;
        }
        Ok(())
    }

    /// Says that no device reads another's memory: the emulated ones are joined by copies only.
    fn hipDeviceCanAccessPeer(runtime, can: *mut c_int, device: c_int, peer: c_int) {
        device_of(runtime, device)?;
        device_of(runtime, peer)?;
        put(can, 0)
    }

    /// Refuses: see [`hipDeviceCanAccessPeer`].
    fn hipDeviceEnablePeerAccess(runtime, peer: c_int, flags: c_uint) {
        let peer = device_of(runtime, peer)?;
        if flags != 0 {
            return Err(INVALID);
        }
        if peer == current_device() {
            return Err(hipError_t::hipErrorInvalidDevice);
        }
        Err(hipError_t::hipErrorPeerAccessUnsupported)
    }
}

fn bus_id(device: usize) -> String {
    format!("0000:{:02x}:00.0", device + 1)
}

/// A device's name, which says that it is emulated.
pub(super) fn name_of(runtime: &Runtime, device: usize) -> String {
    format!("graphc emulated {}", runtime.devices[device].gpu.arch().name)
}
