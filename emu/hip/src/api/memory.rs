//! Memory: device, pinned and stream-ordered allocations, copies, fills, and what a pointer is.

use super::{INVALID, device_of, hip, stream_of, this_device};
use crate::config::FaultKind;
use crate::memory::{Owner, Pinned};
use crate::pointer::put;
use crate::state::{Runtime, current_device, report};
use crate::status::{Status, of_memory};
use hip_sys::{hipDeviceptr_t, hipError_t, hipMemcpyKind, hipPointer_attribute, hipStream_t};
use std::alloc::{Layout, alloc_zeroed};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

hip! {
    /// Allocates device memory.
    fn hipMalloc(runtime, pointer: *mut *mut c_void, size: usize) {
        runtime.no_capture()?;
        allocate(runtime, current_device(), pointer, size)
    }

    /// As [`hipMalloc`]; how caches treat the memory makes no difference here.
    fn hipExtMallocWithFlags(runtime, pointer: *mut *mut c_void, size: usize, _flags: c_uint) {
        runtime.no_capture()?;
        allocate(runtime, current_device(), pointer, size)
    }

    /// Allocates rows of at least `width` bytes, each at a multiple of 256.
    fn hipMallocPitch(runtime, pointer: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        runtime.no_capture()?;
        let row = width.checked_next_multiple_of(256).ok_or(INVALID)?;
        let size = row.checked_mul(height).ok_or(INVALID)?;
        put(pitch, row)?;
        allocate(runtime, current_device(), pointer, size)
    }

    /// Allocates memory that host and devices see at one address: pinned memory here.
    fn hipMallocManaged(runtime, pointer: *mut *mut c_void, size: usize, flags: c_uint) {
        runtime.no_capture()?;
        if !matches!(flags, 1 | 2) || size == 0 {
            return Err(INVALID);
        }
        allocate_pinned(runtime, pointer, size, 0, true)
    }

    /// Gives the bytes of the allocation that begins at a pointer.
    fn hipMemPtrGetInfo(runtime, pointer: *mut c_void, size: *mut usize) {
        let facts = facts(runtime, pointer as u64)?;
        if facts.base != pointer as u64 {
            return Err(INVALID);
        }
        put(size, facts.size as usize)
    }

    /// Frees device memory, after everything on its device is done; null is freed already.
    fn hipFree(runtime, pointer: *mut c_void) {
        runtime.no_capture()?;
        let address = pointer as u64;
        if address == 0 {
            return Ok(());
        }
        match runtime.owner(address) {
            Owner::Device(device) => {
                runtime.drain(device)?;
                free(runtime, device, address)
            }
            Owner::Pinned if runtime.pinned.get(&address).is_some_and(|pinned| pinned.managed) => {
                for device in 0..runtime.devices.len() {
                    runtime.drain(device)?;
                }
                runtime.unpin(address)
            }
            Owner::Pinned | Owner::Pageable => {
                report(&format!("hipFree: {address:#x} is not device memory"));
                Err(INVALID)
            }
        }
    }

    /// Allocates pinned host memory, which devices see at the same address.
    fn hipHostMalloc(runtime, pointer: *mut *mut c_void, size: usize, flags: c_uint) {
        runtime.no_capture()?;
        allocate_pinned(runtime, pointer, size, flags, false)
    }

    /// As [`hipHostMalloc`].
    fn hipHostAlloc(runtime, pointer: *mut *mut c_void, size: usize, flags: c_uint) {
        runtime.no_capture()?;
        allocate_pinned(runtime, pointer, size, flags, false)
    }

    /// As [`hipHostMalloc`], without flags.
    fn hipMallocHost(runtime, pointer: *mut *mut c_void, size: usize) {
        runtime.no_capture()?;
        allocate_pinned(runtime, pointer, size, 0, false)
    }

    /// Gives the flags of pinned memory.
    fn hipHostGetFlags(runtime, flags: *mut c_uint, host: *mut c_void) {
        let facts = facts(runtime, host as u64)?;
        if facts.kind == HOST { put(flags, facts.flags) } else { Err(INVALID) }
    }

    /// Frees pinned host memory, after everything on every device is done.
    fn hipHostFree(runtime, pointer: *mut c_void) {
        runtime.no_capture()?;
        let address = pointer as u64;
        if address == 0 {
            return Ok(());
        }
        if runtime.pinned.get(&address).is_none_or(|pinned| pinned.layout.is_none()) {
            report(&format!("hipHostFree: {address:#x} is not the start of pinned memory"));
            return Err(INVALID);
        }
        for device in 0..runtime.devices.len() {
            runtime.drain(device)?;
        }
        runtime.unpin(address)
    }

    /// Pins a caller's host memory.
    fn hipHostRegister(runtime, pointer: *mut c_void, size: usize, flags: c_uint) {
        this_device(runtime)?;
        if pointer.is_null() || size == 0 {
            return Err(INVALID);
        }
        let (start, end) = (pointer as u64, pointer as u64 + size as u64);
        if runtime.pinned.range(..end).next_back().is_some_and(|(base, pinned)| base + pinned.size > start) {
            return Err(hipError_t::hipErrorHostMemoryAlreadyRegistered);
        }
        runtime.pin(start, size as u64, flags, false, None)
    }

    /// Ends the pinning of a caller's host memory.
    fn hipHostUnregister(runtime, pointer: *mut c_void) {
        let address = pointer as u64;
        if runtime.pinned.get(&address).is_none_or(|pinned| pinned.layout.is_some()) {
            return Err(hipError_t::hipErrorHostMemoryNotRegistered);
        }
        for device in 0..runtime.devices.len() {
            runtime.drain(device)?;
        }
        runtime.unpin(address)
    }

    /// Gives the device's address of pinned memory: the host's.
    fn hipHostGetDevicePointer(runtime, device: *mut *mut c_void, host: *mut c_void, flags: c_uint) {
        if flags != 0 || runtime.owner(host as u64) != Owner::Pinned {
            return Err(INVALID);
        }
        put(device, host)
    }

    /// Copies and waits.
    fn hipMemcpy(runtime, to: *mut c_void, from: *const c_void, size: usize, kind: hipMemcpyKind) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to as u64, from as u64, size as u64, kind.0, stream, true)
    }

    /// Copies on a stream and waits.
    fn hipMemcpyWithStream(runtime, to: *mut c_void, from: *const c_void, size: usize, kind: hipMemcpyKind, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from as u64, size as u64, kind.0, stream, true)
    }

    /// Queues a copy.
    fn hipMemcpyAsync(runtime, to: *mut c_void, from: *const c_void, size: usize, kind: hipMemcpyKind, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from as u64, size as u64, kind.0, stream, false)
    }

    /// Copies to the device and waits.
    fn hipMemcpyHtoD(runtime, to: hipDeviceptr_t, from: *const c_void, size: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to as u64, from as u64, size as u64, 1, stream, true)
    }

    /// Copies to the host and waits.
    fn hipMemcpyDtoH(runtime, to: *mut c_void, from: hipDeviceptr_t, size: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to as u64, from as u64, size as u64, 2, stream, true)
    }

    /// Copies within devices and waits.
    fn hipMemcpyDtoD(runtime, to: hipDeviceptr_t, from: hipDeviceptr_t, size: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to as u64, from as u64, size as u64, 3, stream, true)
    }

    /// Queues a copy to the device.
    fn hipMemcpyHtoDAsync(runtime, to: hipDeviceptr_t, from: *const c_void, size: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from as u64, size as u64, 1, stream, false)
    }

    /// Queues a copy to the host.
    fn hipMemcpyDtoHAsync(runtime, to: *mut c_void, from: hipDeviceptr_t, size: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from as u64, size as u64, 2, stream, false)
    }

    /// Queues a copy within devices.
    fn hipMemcpyDtoDAsync(runtime, to: hipDeviceptr_t, from: hipDeviceptr_t, size: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from as u64, size as u64, 3, stream, false)
    }

    /// Queues a copy between devices.
    fn hipMemcpyPeerAsync(runtime, to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, size: usize, stream: hipStream_t) {
        let ends = [(to as u64, device_of(runtime, to_device)?), (from as u64, device_of(runtime, from_device)?)];
        for (address, device) in ends {
            if runtime.owner(address) != Owner::Device(device) {
                return Err(INVALID);
            }
        }
        let stream = stream_of(runtime, stream)?;
        runtime.stream_mut(stream)?.carries = true;
        runtime.copy(to as u64, from as u64, size as u64, 3, stream, false)
    }

    /// Fills with a byte and waits.
    fn hipMemset(runtime, to: *mut c_void, value: c_int, size: usize) {
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.fill(to as u64, vec![value as u8], size as u64, stream, true)
    }

    /// Queues a fill with a byte.
    fn hipMemsetAsync(runtime, to: *mut c_void, value: c_int, size: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.fill(to as u64, vec![value as u8], size as u64, stream, false)
    }

    /// Queues a fill with a word.
    fn hipMemsetD32Async(runtime, to: hipDeviceptr_t, value: c_int, count: usize, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        if !(to as u64).is_multiple_of(4) {
            return Err(INVALID);
        }
        let size = (count as u64).checked_mul(4).ok_or(INVALID)?;
        runtime.fill(to as u64, value.to_le_bytes().to_vec(), size, stream, false)
    }

    /// Gives one fact of a pointer.
    fn hipPointerGetAttribute(runtime, data: *mut c_void, attribute: hipPointer_attribute, pointer: hipDeviceptr_t) {
        let facts = facts(runtime, pointer as u64)?;
        type A = hipPointer_attribute;
        match attribute {
            A::HIP_POINTER_ATTRIBUTE_MEMORY_TYPE => put(data.cast(), facts.kind),
            A::HIP_POINTER_ATTRIBUTE_DEVICE_POINTER => put(data.cast(), pointer),
            A::HIP_POINTER_ATTRIBUTE_HOST_POINTER if facts.kind != DEVICE => put(data.cast(), pointer),
            A::HIP_POINTER_ATTRIBUTE_HOST_POINTER => Err(INVALID),
            A::HIP_POINTER_ATTRIBUTE_IS_MANAGED => put(data.cast(), u32::from(facts.kind == MANAGED)),
            A::HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast(), facts.device as c_int),
            A::HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(data.cast(), facts.base),
            A::HIP_POINTER_ATTRIBUTE_RANGE_SIZE => put(data.cast(), facts.size as usize),
            A::HIP_POINTER_ATTRIBUTE_MAPPED => put(data.cast(), 1u32),
            A::HIP_POINTER_ATTRIBUTE_BUFFER_ID => put(data.cast(), facts.base),
            _ => Err(hipError_t::hipErrorNotSupported),
        }
    }

    /// Gives the facts of a pointer; host memory that HIP does not know is unregistered.
    fn hipPointerGetAttributes(runtime, attributes: *mut hipPointerAttribute_t, pointer: *const c_void) {
        let plain = hipPointerAttribute_t {
            kind: 0,
            device: -2,
            device_pointer: std::ptr::null_mut(),
            host_pointer: std::ptr::null_mut(),
            is_managed: 0,
            allocation_flags: 0,
        };
        let Ok(facts) = facts(runtime, pointer as u64) else { return put(attributes, plain) };
        let host = facts.kind != DEVICE;
        put(attributes, hipPointerAttribute_t {
            kind: facts.kind,
            device: facts.device as c_int,
            device_pointer: pointer.cast_mut(),
            host_pointer: if host { pointer.cast_mut() } else { std::ptr::null_mut() },
            is_managed: c_int::from(facts.kind == MANAGED),
            allocation_flags: facts.flags,
        })
    }

    /// Gives the allocation that a pointer lies in.
    fn hipMemGetAddressRange(runtime, base: *mut hipDeviceptr_t, size: *mut usize, pointer: hipDeviceptr_t) {
        let facts = facts(runtime, pointer as u64).map_err(|_| hipError_t::hipErrorNotFound)?;
        put(base, facts.base as hipDeviceptr_t)?;
        put(size, facts.size as usize)
    }
}

/// `hipMemoryTypeHost` and `hipMemoryTypeDevice`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `hipMemoryTypeManaged`.
const MANAGED: u32 = 3;

/// `hipPointerAttribute_t` of ROCm 6 and 7.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipPointerAttribute_t {
    /// `hipMemoryType`.
    pub kind: u32,
    pub device: c_int,
    pub device_pointer: *mut c_void,
    pub host_pointer: *mut c_void,
    pub is_managed: c_int,
    pub allocation_flags: c_uint,
}

/// What an address of the program's points to.
struct Pointee {
    kind: u32,
    device: usize,
    base: u64,
    size: u64,
    flags: u32,
}

fn facts(runtime: &Runtime, address: u64) -> Result<Pointee, hipError_t> {
    match runtime.owner(address) {
        Owner::Device(device) => {
            let (base, size) = runtime.devices[device]
                .gpu
                .memory()
                .allocation(address)
                .ok_or(INVALID)?;
            Ok(Pointee {
                kind: DEVICE,
                device,
                base,
                size,
                flags: 0,
            })
        }
        Owner::Pinned => {
            let (base, pinned) = runtime.pinned.range(..=address).next_back().ok_or(INVALID)?;
            Ok(Pointee {
                kind: if pinned.managed { MANAGED } else { HOST },
                device: pinned.device,
                base: *base,
                size: pinned.size,
                flags: pinned.flags,
            })
        }
        Owner::Pageable => Err(INVALID),
    }
}

/// Allocates on a device.
pub(super) fn allocate(runtime: &mut Runtime, device: usize, pointer: *mut *mut c_void, size: usize) -> Status {
    if pointer.is_null() {
        return Err(INVALID);
    }
    runtime.healthy()?;
    if size == 0 {
        return put(pointer, std::ptr::null_mut());
    }
    if runtime.faults.hit(&FaultKind::Malloc) {
        report(&format!("out of memory on request: {size} bytes"));
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    let memory = runtime.devices[device].gpu.memory();
    let address = memory.alloc(size as u64).map_err(|error| of_memory(&error))?;
    put(pointer, address as *mut c_void)
}

fn allocate_pinned(
    runtime: &mut Runtime,
    pointer: *mut *mut c_void,
    size: usize,
    flags: c_uint,
    managed: bool,
) -> Status {
    if pointer.is_null() {
        return Err(INVALID);
    }
    this_device(runtime)?;
    if size == 0 {
        return put(pointer, std::ptr::null_mut());
    }
    if runtime.faults.hit(&FaultKind::HostMalloc) {
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    let layout = Layout::from_size_align(size, 4096).map_err(|_| hipError_t::hipErrorOutOfMemory)?;
    // SAFETY: the size is not zero.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    runtime.pin(address as u64, size as u64, flags, managed, Some(layout))?;
    put(pointer, address.cast())
}

fn free(runtime: &mut Runtime, device: usize, address: u64) -> Status {
    let allocation = runtime.devices[device].gpu.memory().allocation(address);
    if let Some((base, size)) = allocation
        && base == address
    {
        runtime.pool_gets_back(address, size);
    }
    runtime.devices[device].gpu.memory().free(address).map_err(|error| {
        report(&format!("hipFree: {error}"));
        of_memory(&error)
    })
}

impl Runtime {
    fn pin(&mut self, address: u64, size: u64, flags: u32, managed: bool, layout: Option<Layout>) -> Status {
        for device in 0..self.devices.len() {
            self.map_host(device, address, size)?;
        }
        self.pinned.insert(
            address,
            Pinned {
                size,
                device: current_device(),
                flags,
                managed,
                layout,
            },
        );
        Ok(())
    }

    /// Makes pinned memory visible to a device.
    pub(super) fn map_host(&mut self, device: usize, address: u64, size: u64) -> Status {
        let host = NonNull::new(address as *mut u8).ok_or(INVALID)?;
        // SAFETY: the library's own allocation, or a caller's that HIP's contract keeps alive until it is unregistered;
        // `unpin` takes it out of every device before the memory goes.
        unsafe { self.devices[device].gpu.memory().register_host(host, size) };
        Ok(())
    }

    /// Takes pinned memory from the devices and frees what the library allocated.
    pub(super) fn unpin(&mut self, address: u64) -> Status {
        let pinned = self.pinned.remove(&address).ok_or(INVALID)?;
        for device in &self.devices {
            device.gpu.memory().free(address).map_err(|error| of_memory(&error))?;
        }
        pinned.release(address);
        Ok(())
    }
}
