//! The architecture of a device, as code objects name it (`gfx90a:sramecc+:xnack-`).
//!
//! No attribute gives it: it is a field of the properties struct, whose layout differs between ROCm's majors. The one
//! asked for here, `hipGetDevicePropertiesR0600`, has kept its layout and its symbol since ROCm 6.0. It is looked up by
//! itself, so that an older runtime still loads and only this question fails.

use std::ffi::c_int;
use std::path::Path;

use crate::hipError_t;

/// `offsetof(hipDeviceProp_tR0600, gcnArchName)`, a `char[256]`, and room for the whole struct (1472 bytes in ROCm
/// 7.2).
const GCN_ARCH_NAME: usize = 1160;
const ROOM: usize = 8192;

/// Why the architecture is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArchError {
    /// The runtime is older than ROCm 6: the loader's message.
    NoEntryPoint(String),
    /// The call failed.
    Call(hipError_t),
}

/// Asks the HIP runtime that was opened at `library` for a device's architecture.
///
/// # Errors
/// A runtime without the entry point, or the call's own error.
pub fn arch(library: &Path, device: i32) -> Result<String, ArchError> {
    type Properties = unsafe extern "C" fn(*mut u8, c_int) -> hipError_t;
    // SAFETY: the library is loaded already, so this runs no initialiser and gives the same one.
    let opened = unsafe { libloading::Library::new(library) };
    let opened = opened.map_err(|error| ArchError::NoEntryPoint(error.to_string()))?;
    // SAFETY: the header's signature; the struct is passed as the bytes it fills.
    let get = unsafe { opened.get::<Properties>(c"hipGetDevicePropertiesR0600") };
    let get = get.map_err(|error| ArchError::NoEntryPoint(error.to_string()))?;
    let mut properties = Box::new(Aligned([0; ROOM]));
    // SAFETY: the call fills at most the struct, for which there is ample and aligned room.
    let code = unsafe { get(properties.0.as_mut_ptr(), device) };
    if code != hipError_t::hipSuccess {
        return Err(ArchError::Call(code));
    }
    let field = &properties.0[GCN_ARCH_NAME..GCN_ARCH_NAME + 256];
    let text = field.iter().take_while(|byte| **byte != 0).copied();
    Ok(String::from_utf8_lossy(&text.collect::<Vec<u8>>()).into_owned())
}

#[repr(align(16))]
struct Aligned([u8; ROOM]);
