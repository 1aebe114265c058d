//! The factory: on which devices the provider runs, and the provider of each session.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use graphc::options::Settings;
use graphc::prelude::DeviceChoice;
use graphc::session::OpenDevice;
use ort_sys::{
    OrtAllocator, OrtEpDevice, OrtHardwareDevice, OrtHardwareDeviceType, OrtKeyValuePairs, OrtLogger, OrtMemoryInfo,
    OrtSessionOptions, OrtStatusPtr,
};

use crate::abi::{API_VERSION, OrtDataTransferImpl, OrtEp, OrtEpFactory, OrtMemoryDevice, OrtSyncStreamImpl};
use crate::api::{Api, Logger, c_string, ok};
use crate::error::{ProviderError, Result};
use crate::options::{DeviceOption, NAME, ProviderOptions};
use crate::provider::Provider;

/// The PCI numbers of the vendors whose GPUs graphc compiles for.
const AMD: u32 = 0x1002;
const NVIDIA: u32 = 0x10de;

const VENDOR: &CStr = c"graphc";

/// Makes providers. It is made as a box whose address is the table's.
#[repr(C)]
pub struct Factory {
    table: OrtEpFactory,
    api: Api,
    logger: Logger,
    name: CString,
    version: CString,
}

impl Factory {
    pub fn new(api: Api, logger: Logger) -> Box<Factory> {
        Box::new(Factory {
            table: OrtEpFactory {
                ort_version_supported: API_VERSION,
                get_name,
                get_vendor,
                get_supported_devices,
                create_ep,
                release_ep,
                get_vendor_id,
                get_version,
                validate_compiled_model_compatibility_info: None,
                create_allocator: Some(create_allocator),
                release_allocator: Some(release_allocator),
                create_data_transfer: Some(create_data_transfer),
                is_stream_aware: Some(is_stream_aware),
                create_sync_stream_for_device: Some(create_sync_stream_for_device),
                later: [None; 16],
            },
            api,
            logger,
            name: c_string(NAME),
            version: c_string(env!("CARGO_PKG_VERSION")),
        })
    }

    /// Offers the CPU, and the GPUs that graphc can open, each with the option that chooses it.
    fn devices(
        &self,
        factory: *mut OrtEpFactory,
        devices: &[*const OrtHardwareDevice],
    ) -> Result<Vec<*mut OrtEpDevice>> {
        let mut offered = Vec::new();
        let (mut hip, mut cuda) = (0usize, 0usize);
        for device in devices {
            // SAFETY: the devices are ONNX Runtime's, valid during the call.
            let (kind, vendor) = unsafe {
                let kind = (self.api.ort.HardwareDevice_Type)(*device);
                (kind, (self.api.ort.HardwareDevice_VendorId)(*device))
            };
            let choice = match (kind, vendor) {
                (OrtHardwareDeviceType::OrtHardwareDeviceType_CPU, _) => DeviceChoice::Cpu,
                (OrtHardwareDeviceType::OrtHardwareDeviceType_GPU, AMD) => {
                    hip += 1;
                    DeviceChoice::Hip(hip - 1)
                }
                (OrtHardwareDeviceType::OrtHardwareDeviceType_GPU, NVIDIA) => {
                    cuda += 1;
                    DeviceChoice::Cuda(cuda - 1)
                }
                _ => continue,
            };
            if choice != DeviceChoice::Cpu
                && let Err(error) =
                    Settings::from_env().and_then(|settings| OpenDevice::open(choice.clone(), &settings))
            {
                self.logger.info(&format!("graphc: does not offer {choice}: {error}"));
                continue;
            }
            offered.push(self.offer(factory, *device, &choice)?);
        }
        Ok(offered)
    }

    fn offer(
        &self,
        factory: *mut OrtEpFactory,
        device: *const OrtHardwareDevice,
        choice: &DeviceChoice,
    ) -> Result<*mut OrtEpDevice> {
        let (key, value) = (c_string("device"), c_string(&choice.to_string()));
        let (mut options, mut offered) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pairs are made and freed here; the device copies them.
        let status = unsafe {
            (self.api.ort.CreateKeyValuePairs)(&mut options);
            (self.api.ort.AddKeyValuePair)(options, key.as_ptr(), value.as_ptr());
            let status = (self.api.ep.create_ep_device)(factory, device, ptr::null(), options, &mut offered);
            (self.api.ort.ReleaseKeyValuePairs)(options);
            status
        };
        self.api.check("CreateEpDevice", status)?;
        Ok(offered)
    }

    fn provider(
        &self,
        options: *const OrtSessionOptions,
        devices: usize,
        logger: *const OrtLogger,
    ) -> Result<Box<Provider>> {
        // SAFETY: the options are valid during the call.
        let entries = unsafe { self.api.session_entries(options)? };
        if devices > 1 {
            return Err(ProviderError::Unexpected(
                "a session has one device of graphc's; several GPUs for one model are device=hip:0,1".to_owned(),
            ));
        }
        let options = ProviderOptions::of_session(&entries)?;
        let settings = Settings::from_env()?;
        let open = |choice: DeviceChoice| OpenDevice::open(choice, &settings);
        let device = match &options.device {
            DeviceOption::Choice(choice) => open(choice.clone())?,
            DeviceOption::Gpu => match open(DeviceChoice::Hip(0)) {
                Ok(device) => device,
                Err(hip) => open(DeviceChoice::Cuda(0))
                    .map_err(|cuda| graphc::Error::Config(format!("there is no GPU: {hip}; {cuda}")))?,
            },
        };
        // SAFETY: the session's logger outlives its provider.
        let logger = unsafe { Logger::new(self.api, logger) };
        Ok(Provider::new(self.api, logger, options, device))
    }
}

/// # Safety
/// As ONNX Runtime calls it: `table` is a factory's.
unsafe fn of<'a>(table: *const OrtEpFactory) -> &'a Factory {
    // SAFETY: the table is the factory's first field, and factories are only read.
    unsafe { &*table.cast::<Factory>() }
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_name(table: *const OrtEpFactory) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { of(table) }.name.as_ptr()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_vendor(_: *const OrtEpFactory) -> *const c_char {
    VENDOR.as_ptr()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_vendor_id(_: *const OrtEpFactory) -> u32 {
    // A provider of no vendor of devices.
    0
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_version(table: *const OrtEpFactory) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { of(table) }.version.as_ptr()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn is_stream_aware(_: *const OrtEpFactory) -> bool {
    false
}

// Tensors are the host's: regions copy them to their device and back. ONNX Runtime calls these four all the same.

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn create_allocator(
    _: *mut OrtEpFactory,
    _: *const OrtMemoryInfo,
    _: *const OrtKeyValuePairs,
    allocator: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise. None is ONNX Runtime's own for the host.
    unsafe { allocator.write(ptr::null_mut()) };
    ok()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn release_allocator(_: *mut OrtEpFactory, _: *mut OrtAllocator) {}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn create_data_transfer(
    _: *mut OrtEpFactory,
    transfer: *mut *mut OrtDataTransferImpl,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    unsafe { transfer.write(ptr::null_mut()) };
    ok()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn create_sync_stream_for_device(
    _: *mut OrtEpFactory,
    _: *const OrtMemoryDevice,
    _: *const OrtKeyValuePairs,
    stream: *mut *mut OrtSyncStreamImpl,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    unsafe { stream.write(ptr::null_mut()) };
    ok()
}

/// # Safety
/// As ONNX Runtime calls it: there are `count` devices, and room for `most`.
unsafe extern "C" fn get_supported_devices(
    table: *mut OrtEpFactory,
    devices: *const *const OrtHardwareDevice,
    count: usize,
    offered: *mut *mut OrtEpDevice,
    most: usize,
    offered_count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    let factory = unsafe { of(table) };
    factory.api.guard(|| {
        let devices = match count {
            0 => &[],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(devices, count) },
        };
        let mut found = factory.devices(table, devices)?.into_iter();
        let mut written = 0;
        for device in found.by_ref().take(most) {
            // SAFETY: there is room for `most`.
            unsafe { offered.add(written).write(device) };
            written += 1;
        }
        for device in found {
            // SAFETY: it was made here, and nobody has it.
            unsafe { (factory.api.ep.release_ep_device)(device) };
        }
        // SAFETY: the caller's promise.
        unsafe { offered_count.write(written) };
        Ok(())
    })
}

/// # Safety
/// As ONNX Runtime calls it: there are `count` devices.
unsafe extern "C" fn create_ep(
    table: *mut OrtEpFactory,
    _: *const *const OrtHardwareDevice,
    _: *const *const OrtKeyValuePairs,
    count: usize,
    options: *const OrtSessionOptions,
    logger: *const OrtLogger,
    ep: *mut *mut OrtEp,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    let factory = unsafe { of(table) };
    factory.api.guard(|| {
        let provider = factory.provider(options, count, logger)?;
        // SAFETY: the caller's promise. It comes back through `release_ep`.
        unsafe { ep.write(Box::into_raw(provider).cast()) };
        Ok(())
    })
}

/// # Safety
/// As ONNX Runtime calls it: `ep` is a provider that `create_ep` gave.
unsafe extern "C" fn release_ep(table: *mut OrtEpFactory, ep: *mut OrtEp) {
    // SAFETY: the caller's promise.
    let factory = unsafe { of(table) };
    // A panic while something is freed has nowhere to go.
    let _ = factory.api.guard(|| {
        if !ep.is_null() {
            // SAFETY: it was made as a box, and is given back once.
            drop(unsafe { Box::from_raw(ep.cast::<Provider>()) });
        }
        Ok(())
    });
}
