//! Kernels and variables that are linked into the program: registration, and launches and copies by host address.

use super::{INVALID, export, hip, stream_of, this_device};
use crate::launch::{Arguments, Size};
use crate::pointer::{put, text};
use crate::register::registry;
use crate::state::{Runtime, existing, report};
use crate::status::Status;
use hip_sys::{hipError_t, hipEvent_t, hipMemcpyKind, hipStream_t};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Three extents, as C passes them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl dim3 {
    fn extents(self) -> [u32; 3] {
        [self.x, self.y, self.z]
    }
}

/// One `<<<…>>>` between its configuration and its launch.
type Configuration = (dim3, dim3, usize, hipStream_t);

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Takes the bundle of device code that a program was linked with; the handle is for the other registrations.
///
/// # Safety
/// `wrapper` is the wrapper that the compiler made, and it and the code stay until they are unregistered.
pub unsafe extern "C" fn __hipRegisterFatBinary(wrapper: *const c_void) -> *mut *mut c_void {
    if wrapper.is_null() {
        return std::ptr::null_mut();
    }
    // A number, not a pointer: nobody but this library looks at it.
    registry().bundle(wrapper as u64).unwrap_or(0) as *mut *mut c_void
}

/// Lets the host address of a kernel's stub stand for the kernel.
///
/// # Safety
/// `name` is a C string.
pub unsafe extern "C" fn __hipRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_void,
    _host_name: *mut c_char,
    name: *const c_char,
    _limit: c_uint,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut dim3,
    _grid_size: *mut dim3,
    _wave: *mut c_int,
) {
    if let Ok(name) = text(name) {
        registry().kernel(handle as u64, host as u64, name);
    }
}

/// Lets the host address of a variable's shadow stand for the variable.
///
/// # Safety
/// `name` is a C string.
pub unsafe extern "C" fn __hipRegisterVar(
    handle: *mut *mut c_void,
    host: *mut c_void,
    _host_name: *mut c_char,
    name: *const c_char,
    _external: c_int,
    _size: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let Ok(name) = text(name) {
        registry().variable(handle as u64, host as u64, name);
    }
}

/// Takes the registration of a managed variable: its name is known, its host pointer is not set.
///
/// # Safety
/// `name` is a C string.
pub unsafe extern "C" fn __hipRegisterManagedVar(
    _handle: *mut *mut c_void,
    _pointer: *mut *mut c_void,
    _initial: *mut c_void,
    name: *const c_char,
    _size: usize,
    _alignment: c_uint,
) {
    let name = text(name).unwrap_or_default();
    report(&format!("the managed variable {name} is not emulated"));
}

/// Forgets a program's device code.
///
/// # Safety
/// None needed.
pub unsafe extern "C" fn __hipUnregisterFatBinary(handle: *mut *mut c_void) {
    let registration = handle as u64;
    registry().remove(registration);
    existing(|runtime| runtime.forget_program(registration));
}

export!(__hipRegisterFatBinary);
export!(__hipRegisterFunction);
export!(__hipRegisterVar);
export!(__hipRegisterManagedVar);
export!(__hipUnregisterFatBinary);

hip! {
    /// Notes the configuration of the thread's next launch.
    fn __hipPushCallConfiguration(_runtime, grid: dim3, block: dim3, shared: usize, stream: hipStream_t) {
        CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream)));
        Ok(())
    }

    /// Gives the noted configuration back.
    fn __hipPopCallConfiguration(_runtime, grid: *mut dim3, block: *mut dim3, shared: *mut usize, stream: *mut hipStream_t) {
        let noted = CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(hipError_t::hipErrorMissingConfiguration)?;
        put(grid, noted.0)?;
        put(block, noted.1)?;
        put(shared, noted.2)?;
        put(stream, noted.3)
    }

    /// Queues a launch of the kernel that a host address stands for.
    fn hipLaunchKernel(runtime, host: *const c_void, grid: dim3, block: dim3, params: *mut *mut c_void, shared: usize, stream: hipStream_t) {
        launch(runtime, host, grid, block, params, shared, stream)
    }

    /// As [`hipLaunchKernel`], with events before and after it.
    fn hipExtLaunchKernel(
        runtime, host: *const c_void, grid: dim3, block: dim3, params: *mut *mut c_void, shared: usize,
        stream: hipStream_t, start: hipEvent_t, stop: hipEvent_t, _flags: c_int,
    ) {
        if !start.is_null() {
            super::event::record(runtime, start as u64, stream)?;
        }
        launch(runtime, host, grid, block, params, shared, stream)?;
        if !stop.is_null() {
            super::event::record(runtime, stop as u64, stream)?;
        }
        Ok(())
    }

    /// As [`hipLaunchKernel`], where all blocks are on the device at once. What joins a whole grid is not emulated.
    fn hipLaunchCooperativeKernel(runtime, host: *const c_void, grid: dim3, block: dim3, params: *mut *mut c_void, shared: c_uint, stream: hipStream_t) {
        let function = super::module::by_address(runtime, host)?;
        super::occupancy::fits_at_once(runtime, &function, grid.extents(), block.extents(), shared)?;
        launch(runtime, host, grid, block, params, shared as usize, stream)
    }

    /// Gives the device address of the variable that a host address stands for.
    fn hipGetSymbolAddress(runtime, address: *mut *mut c_void, symbol: *const c_void) {
        let device = this_device(runtime)?;
        put(address, runtime.registered_variable(device, symbol as u64)?.0 as *mut c_void)
    }

    /// Gives the bytes of the variable that a host address stands for.
    fn hipGetSymbolSize(runtime, size: *mut usize, symbol: *const c_void) {
        let device = this_device(runtime)?;
        put(size, runtime.registered_variable(device, symbol as u64)?.1 as usize)
    }

    /// Copies into a variable and waits.
    fn hipMemcpyToSymbol(runtime, symbol: *const c_void, from: *const c_void, size: usize, offset: usize, kind: hipMemcpyKind) {
        let to = place(runtime, symbol, size, offset)?;
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to, from as u64, size as u64, kind.0, stream, true)
    }

    /// Queues a copy into a variable.
    fn hipMemcpyToSymbolAsync(runtime, symbol: *const c_void, from: *const c_void, size: usize, offset: usize, kind: hipMemcpyKind, stream: hipStream_t) {
        let to = place(runtime, symbol, size, offset)?;
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to, from as u64, size as u64, kind.0, stream, false)
    }

    /// Copies out of a variable and waits.
    fn hipMemcpyFromSymbol(runtime, to: *mut c_void, symbol: *const c_void, size: usize, offset: usize, kind: hipMemcpyKind) {
        let from = place(runtime, symbol, size, offset)?;
        let stream = stream_of(runtime, std::ptr::null_mut())?;
        runtime.copy(to as u64, from, size as u64, kind.0, stream, true)
    }

    /// Queues a copy out of a variable.
    fn hipMemcpyFromSymbolAsync(runtime, to: *mut c_void, symbol: *const c_void, size: usize, offset: usize, kind: hipMemcpyKind, stream: hipStream_t) {
        let from = place(runtime, symbol, size, offset)?;
        let stream = stream_of(runtime, stream)?;
        runtime.copy(to as u64, from, size as u64, kind.0, stream, false)
    }
}

fn launch(
    runtime: &mut Runtime,
    host: *const c_void,
    grid: dim3,
    block: dim3,
    params: *mut *mut c_void,
    shared: usize,
    stream: hipStream_t,
) -> Status {
    let stream = stream_of(runtime, stream)?;
    let device = runtime.stream(stream)?.device;
    let function = runtime.registered_kernel(device, host as u64)?;
    let size = Size::blocks(grid.extents(), block.extents())?;
    let shared = u32::try_from(shared).map_err(|_| INVALID)?;
    runtime.launch(
        function,
        size,
        shared,
        stream,
        Arguments::new(params, std::ptr::null_mut()),
    )
}

/// `size` bytes at `offset` of a variable.
fn place(runtime: &mut Runtime, symbol: *const c_void, size: usize, offset: usize) -> Result<u64, hipError_t> {
    let device = this_device(runtime)?;
    let (address, length) = runtime.registered_variable(device, symbol as u64)?;
    let end = (offset as u64).checked_add(size as u64).ok_or(INVALID)?;
    if end > length {
        return Err(INVALID);
    }
    Ok(address + offset as u64)
}
