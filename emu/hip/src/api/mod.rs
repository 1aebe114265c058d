//! The C functions, one file a family.
#![expect(non_snake_case, non_camel_case_types, reason = "HIP's names")]

mod control;
mod copy;
mod device;
mod error;
mod event;
mod graph;
mod launch;
mod memory;
mod missing;
mod module;
mod occupancy;
mod pool;
mod properties;
mod register;
mod stream;

pub use control::*;
pub use copy::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use occupancy::*;
pub use pool::*;
pub use properties::*;
pub use register::*;
pub use stream::*;

use crate::state::{Runtime, current_device};
use hip_sys::{hipError_t, hipStream_t};

/// Declares functions of the interface: each runs on the library's one state and gives a code.
macro_rules! hip {
    ($($(#[$meta:meta])* fn $name:ident($runtime:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As HIP's function of this name: pointers are null or valid for what it does with them.
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> hip_sys::hipError_t {
                crate::state::enter(stringify!($name), |$runtime| $body)
            }
            crate::api::export!($name);
        )*
    };
}
pub(crate) use hip;

/// Gives a function its C name.
///
/// Not `no_mangle`: rustc would list the name for the linker without a version, and the first listing counts. So the C
/// name is a jump of its own, which only the version script of `build.rs` names.
macro_rules! export {
    ($name:ident) => {
        std::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "jmp {target}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            target = sym $name,
        );
    };
}
pub(crate) use export;

const INVALID: hipError_t = hipError_t::hipErrorInvalidValue;
const BAD_HANDLE: hipError_t = hipError_t::hipErrorInvalidHandle;

/// The stream of a handle: null, `hipStreamLegacy` and `hipStreamPerThread` are the thread's device's null stream.
fn stream_of(runtime: &mut Runtime, stream: hipStream_t) -> Result<u64, hipError_t> {
    let id = stream as u64;
    let id = if id <= 2 { runtime.current()?.null_stream } else { id };
    let found = runtime.stream(id)?;
    if found.destroyed {
        return Err(BAD_HANDLE);
    }
    let capturing = runtime.captures.values().any(|capture| !capture.relaxed);
    if found.capture.is_none() && capturing && id == runtime.devices[found.device].null_stream {
        return Err(hipError_t::hipErrorStreamCaptureImplicit);
    }
    Ok(id)
}

/// Checks a device's number.
fn device_of(runtime: &Runtime, device: i32) -> Result<usize, hipError_t> {
    usize::try_from(device)
        .ok()
        .filter(|device| *device < runtime.devices.len())
        .ok_or(hipError_t::hipErrorInvalidDevice)
}

/// The thread's device's number.
fn this_device(runtime: &mut Runtime) -> Result<usize, hipError_t> {
    runtime.healthy()?;
    Ok(current_device())
}
