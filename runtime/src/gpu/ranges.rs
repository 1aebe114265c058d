//! Names of runs and steps for a profiler that watches the process: ranges of roctx (`rocprofv3 --marker-trace`) or
//! NVTX (`nsys`).
//!
//! A range lies around what the host enqueues, on the thread that does. Nothing here is opened or called unless a
//! program is loaded with [`LoadOptions::ranges`](crate::LoadOptions::ranges).

use std::ffi::{CString, c_char, c_int};

use dylib::{Loaded, Search, Sonames};
use ir::target::Platform;

use crate::error::RuntimeError;

/// ROCprofiler-SDK's library, then roctracer's, which older tools watch.
const ROCTX: Sonames<'static> = &[
    "librocprofiler-sdk-roctx.so.1",
    "librocprofiler-sdk-roctx.so",
    "libroctx64.so.4",
    "libroctx64.so",
];
/// CUDA's up to 12.8; later ones have NVTX in headers alone.
const NVTX: Sonames<'static> = &["libnvToolsExt.so.1", "libnvToolsExt.so"];

/// The two functions.
struct Api {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: libloading::Library,
}

/// See the module.
pub(super) struct Ranges {
    api: Loaded<Api>,
}

/// A range, until it is dropped.
pub(super) struct Range<'a>(&'a Api);

impl Ranges {
    /// Opens the library of a platform's profiler.
    ///
    /// # Errors
    /// `NotAvailable` with every place looked at.
    pub fn open(platform: Platform, search: &Search) -> Result<Ranges, RuntimeError> {
        let (what, names, push, pop) = match platform {
            Platform::Cuda => ("NVTX", NVTX, "nvtxRangePushA", "nvtxRangePop"),
            Platform::Hip | Platform::Cpu => ("roctx", ROCTX, "roctxRangePushA", "roctxRangePop"),
        };
        let api = dylib::open(what, names, search, |library| {
            // SAFETY: both libraries declare the functions with these types, and the library is kept with them.
            unsafe {
                Ok(Api {
                    push: *library.get(push.as_bytes())?,
                    pop: *library.get(pop.as_bytes())?,
                    _library: library,
                })
            }
        });
        api.map(|api| Ranges { api })
            .map_err(|error| RuntimeError::NotAvailable {
                what: "naming steps for a profiler".into(),
                reason: format!("{error}\ninstall it, or ask for no ranges"),
            })
    }

    /// Begins a range on this thread.
    pub fn enter(&self, name: &str) -> Range<'_> {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name ends in a zero and is read before the function returns.
        unsafe { (self.api.push)(name.as_ptr()) };
        Range(&self.api)
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        // SAFETY: ends the range that this thread began last: ranges are values of one scope each.
        unsafe { (self.0.pop)() };
    }
}
