//! An execution provider plugin for ONNX Runtime: models, or the parts of them that graphc supports, are compiled by
//! graphc and run inside of ONNX Runtime's sessions.
//!
//! ONNX Runtime loads this library at run time and finds two functions in it, [`CreateEpFactories`] and
//! [`ReleaseEpFactory`]. Nothing of ONNX Runtime is linked: its functions come in tables.
//!
//! ```text
//! factory      devices, and a provider for each session
//! provider     OrtGraph -> regions (capability, partition) -> models (region) -> compiled sessions
//! compute      a run of a region: tensors in, tensors out
//! context      compiled regions in models, ahead of time
//! ```
//!
//! Invariant: no panic and no error leaves the library but as a status (`Api::guard`).

mod abi;
mod api;
mod capability;
mod compute;
mod context;
mod counters;
mod error;
mod factory;
mod files;
mod graph;
mod options;
mod partition;
mod provider;
mod region;

use std::ffi::c_char;

use ort_sys::{OrtApiBase, OrtLogger, OrtStatusPtr};

use crate::abi::OrtEpFactory;
use crate::api::{Api, Logger, ok};
use crate::error::ProviderError;
use crate::factory::Factory;

pub use counters::GraphcProviderCounters;

/// Makes the factory. ONNX Runtime calls it when the library is registered.
///
/// # Safety
/// As ONNX Runtime calls it: `base` and `logger` are its own, and there is room for `most` factories.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    logger: *const OrtLogger,
    factories: *mut *mut OrtEpFactory,
    most: usize,
    count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise. There is none where something is wrong.
    unsafe { count.write(0) };
    // SAFETY: the base table is ONNX Runtime's.
    let api = match unsafe { Api::of(base) } {
        Ok(api) => api,
        Err(status) => return status,
    };
    api.guard(|| {
        if most == 0 {
            return Err(ProviderError::Unexpected("there is no room for a factory".to_owned()));
        }
        // SAFETY: the environment's logger lives as long as the library is registered.
        let logger = unsafe { Logger::new(api, logger) };
        // SAFETY: the caller's promise. The factory comes back through `ReleaseEpFactory`.
        unsafe {
            factories.write(Box::into_raw(Factory::new(api, logger)).cast());
            count.write(1);
        }
        Ok(())
    })
}

/// Frees the factory.
///
/// # Safety
/// As ONNX Runtime calls it: `factory` came from [`CreateEpFactories`], and is given back once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut OrtEpFactory) -> OrtStatusPtr {
    if !factory.is_null() {
        // SAFETY: it was made as a box.
        drop(unsafe { Box::from_raw(factory.cast::<Factory>()) });
    }
    ok()
}
