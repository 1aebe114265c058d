//! What a program registers when it is loaded: the device code that is linked into it, and the host addresses that
//! stand for its kernels and variables.
//!
//! Registration runs in initialisers, before anything is known of the GPUs, so it is apart from the library's other
//! state and touches no code: a code object is unpacked when one of its kernels is first launched on a device.

use crate::image::image_bytes;
use crate::pointer::read_bytes;
use crate::state::{Runtime, report};
use hip_sys::hipError_t;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `HIPF`, the magic of the wrapper around a linked bundle.
const WRAPPER_MAGIC: u32 = 0x4849_5046;

/// All registrations.
#[derive(Default)]
pub struct Registry {
    next: u64,
    /// The address of each bundle, by registration.
    bundles: BTreeMap<u64, u64>,
    /// Kernels by the host address that stands for them.
    kernels: BTreeMap<u64, Entry>,
    /// Variables by the host address that stands for them.
    variables: BTreeMap<u64, Entry>,
}

/// A name in a registration's code.
#[derive(Clone)]
struct Entry {
    registration: u64,
    name: String,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    next: 1,
    bundles: BTreeMap::new(),
    kernels: BTreeMap::new(),
    variables: BTreeMap::new(),
});

/// The registrations, locked.
pub fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Takes the wrapper of a linked bundle; None (and a printed line) where it is not one.
    pub fn bundle(&mut self, wrapper: u64) -> Option<u64> {
        let head = read_bytes(wrapper, 16);
        let (magic, address) = head.split_at(8);
        let magic = u32::from_le_bytes([magic[0], magic[1], magic[2], magic[3]]);
        if magic != WRAPPER_MAGIC {
            report(&format!(
                "__hipRegisterFatBinary: {magic:#010x} is not a wrapper's magic"
            ));
            return None;
        }
        let id = self.next;
        self.next += 1;
        let address = address.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.bundles.insert(id, address);
        Some(id)
    }

    /// Lets a host address stand for a kernel.
    pub fn kernel(&mut self, registration: u64, host: u64, name: String) {
        self.kernels.insert(host, Entry { registration, name });
    }

    /// Lets a host address stand for a variable.
    pub fn variable(&mut self, registration: u64, host: u64, name: String) {
        self.variables.insert(host, Entry { registration, name });
    }

    /// Forgets a registration.
    pub fn remove(&mut self, registration: u64) {
        self.bundles.remove(&registration);
        self.kernels.retain(|_, entry| entry.registration != registration);
        self.variables.retain(|_, entry| entry.registration != registration);
    }
}

impl Runtime {
    /// The handle of the kernel that a host address stands for, on a device.
    ///
    /// # Errors
    /// `hipErrorInvalidDeviceFunction` for an address that was not registered; what loading the code gives.
    pub fn registered_kernel(&mut self, device: usize, host: u64) -> Result<u64, hipError_t> {
        let entry = registry().kernels.get(&host).cloned();
        let entry = entry.ok_or(hipError_t::hipErrorInvalidDeviceFunction)?;
        let module = self.program(device, entry.registration)?;
        self.function_of(module, &entry.name).inspect_err(|_| {
            report(&format!(
                "the registered kernel {} is not in its code object",
                entry.name
            ));
        })
    }

    /// The device address and size of the variable that a host address stands for.
    ///
    /// # Errors
    /// `hipErrorInvalidSymbol` for an address that was not registered; what loading the code gives.
    pub fn registered_variable(&mut self, device: usize, host: u64) -> Result<(u64, u64), hipError_t> {
        let entry = registry().variables.get(&host).cloned();
        let entry = entry.ok_or(hipError_t::hipErrorInvalidSymbol)?;
        let module = self.program(device, entry.registration)?;
        let loaded = self.modules.get(&module).ok_or(hipError_t::hipErrorInvalidSymbol)?;
        loaded
            .module
            .global(&entry.name)
            .ok_or(hipError_t::hipErrorInvalidSymbol)
    }

    /// The module of a registration on a device, loaded when first needed.
    fn program(&mut self, device: usize, registration: u64) -> Result<u64, hipError_t> {
        if let Some(known) = self.programs.get(&(device, registration)) {
            return Ok(*known);
        }
        let bundle = registry().bundles.get(&registration).copied();
        let bytes = image_bytes(bundle.ok_or(hipError_t::hipErrorInvalidImage)? as *const u8)?;
        let module = self.load_module(device, &bytes)?;
        self.programs.insert((device, registration), module);
        Ok(module)
    }

    /// Takes a registration's modules from every device.
    pub fn forget_program(&mut self, registration: u64) {
        let gone: Vec<_> = self
            .programs
            .keys()
            .filter(|(_, id)| *id == registration)
            .copied()
            .collect();
        for key in gone {
            if let Some(module) = self.programs.remove(&key) {
                self.unload(module);
            }
        }
    }
}
