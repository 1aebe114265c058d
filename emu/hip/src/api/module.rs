//! Modules, kernels and their facts.

use super::{BAD_HANDLE, INVALID, hip, this_device};
use crate::config::FaultKind;
use crate::image::image_bytes;
use crate::pointer::{put, text};
use crate::state::{Function, Runtime, report};
use crate::status::Status;
use hip_sys::{hipDeviceptr_t, hipError_t, hipFuncAttribute, hipFunction_attribute, hipFunction_t, hipModule_t};
use std::ffi::{c_char, c_int, c_uint, c_void};

hip! {
    /// Loads a code object or an offload bundle.
    fn hipModuleLoadData(runtime, module: *mut hipModule_t, image: *const c_void) {
        if image.is_null() {
            return Err(INVALID);
        }
        load(runtime, module, || image_bytes(image.cast()))
    }

    /// Loads a code object or an offload bundle from a file.
    fn hipModuleLoad(runtime, module: *mut hipModule_t, path: *const c_char) {
        let path = text(path)?;
        load(runtime, module, || {
            std::fs::read(&path).map_err(|error| {
                report(&format!("hipModuleLoad: {path}: {error}"));
                hipError_t::hipErrorFileNotFound
            })
        })
    }

    /// As [`hipModuleLoadData`]; the compiler's options mean nothing for code that is compiled.
    fn hipModuleLoadDataEx(runtime, module: *mut hipModule_t, image: *const c_void, _count: c_uint, _options: *mut c_int, _values: *mut *mut c_void) {
        if image.is_null() {
            return Err(INVALID);
        }
        load(runtime, module, || image_bytes(image.cast()))
    }

    /// Unloads a module, after everything on its device is done.
    fn hipModuleUnload(runtime, module: hipModule_t) {
        let device = runtime.modules.get(&(module as u64)).ok_or(BAD_HANDLE)?.device;
        runtime.drain(device)?;
        runtime.unload(module as u64);
        Ok(())
    }

    /// Finds a kernel by its name.
    fn hipModuleGetFunction(runtime, function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) {
        if function.is_null() {
            return Err(INVALID);
        }
        let id = runtime.function_of(module as u64, &text(name)?)?;
        put(function, id as hipFunction_t)
    }

    /// Counts a module's kernels.
    fn hipModuleGetFunctionCount(runtime, count: *mut c_uint, module: hipModule_t) {
        let loaded = runtime.modules.get(&(module as u64)).ok_or(BAD_HANDLE)?;
        put(count, loaded.module.object().kernels().count() as c_uint)
    }

    /// Finds a variable by its name.
    fn hipModuleGetGlobal(runtime, pointer: *mut hipDeviceptr_t, bytes: *mut usize, module: hipModule_t, name: *const c_char) {
        let loaded = runtime.modules.get(&(module as u64)).ok_or(BAD_HANDLE)?;
        let (address, size) = loaded.module.global(&text(name)?).ok_or(hipError_t::hipErrorNotFound)?;
        if !bytes.is_null() {
            put(bytes, size as usize)?;
        }
        if pointer.is_null() { Ok(()) } else { put(pointer, address as hipDeviceptr_t) }
    }

    /// Gives one fact of a kernel.
    fn hipFuncGetAttribute(runtime, value: *mut c_int, attribute: hipFunction_attribute, function: hipFunction_t) {
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?;
        let facts = facts(runtime, function);
        type A = hipFunction_attribute;
        put(value, match attribute {
            A::HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => facts.max_block,
            A::HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => facts.shared as c_int,
            A::HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => facts.local as c_int,
            A::HIP_FUNC_ATTRIBUTE_NUM_REGS => facts.registers,
            A::HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => facts.max_dynamic_shared,
            A::HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
            | A::HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA
            | A::HIP_FUNC_ATTRIBUTE_PTX_VERSION
            | A::HIP_FUNC_ATTRIBUTE_BINARY_VERSION
            | A::HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => 0,
            _ => return Err(INVALID),
        })
    }

    /// Gives the facts of a kernel by its host address.
    fn hipFuncGetAttributes(runtime, attributes: *mut hipFuncAttributes, host: *const c_void) {
        let function = by_address(runtime, host)?;
        put(attributes, facts(runtime, &function))
    }

    /// Takes a kernel's wish for more dynamic LDS: every kernel may have all of it already.
    fn hipFuncSetAttribute(runtime, host: *const c_void, attribute: hipFuncAttribute, value: c_int) {
        let function = by_address(runtime, host)?;
        let most = runtime.devices[function.device].gpu.arch().lds_bytes;
        match attribute {
            hipFuncAttribute::hipFuncAttributeMaxDynamicSharedMemorySize => {
                if u32::try_from(value).is_ok_and(|value| value <= most) { Ok(()) } else { Err(INVALID) }
            }
            hipFuncAttribute::hipFuncAttributePreferredSharedMemoryCarveout => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Takes a wish for more cache or more LDS, which changes nothing here.
    fn hipFuncSetCacheConfig(runtime, host: *const c_void, _config: c_uint) {
        by_address(runtime, host).map(|_| ())
    }

    /// Gives the kernel of a host address as a handle.
    fn hipGetFuncBySymbol(runtime, function: *mut hipFunction_t, host: *const c_void) {
        let device = this_device(runtime)?;
        let id = runtime.registered_kernel(device, host as u64)?;
        put(function, id as hipFunction_t)
    }
}

/// `hipFuncAttributes` as in ROCm 7.2's header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hipFuncAttributes {
    pub binary_version: c_int,
    pub cache_mode: c_int,
    pub constant: usize,
    /// Bytes of scratch of a lane.
    pub local: usize,
    pub max_dynamic_shared: c_int,
    pub max_block: c_int,
    /// Vector registers.
    pub registers: c_int,
    pub carveout: c_int,
    pub ptx_version: c_int,
    /// Bytes of static LDS.
    pub shared: usize,
}

fn facts(runtime: &Runtime, function: &Function) -> hipFuncAttributes {
    let (info, arch) = (&function.info, runtime.devices[function.device].gpu.arch());
    let group = info.descriptor.group_segment.max(info.group_segment);
    hipFuncAttributes {
        local: info.private_segment as usize,
        max_dynamic_shared: arch.lds_bytes.saturating_sub(group) as c_int,
        max_block: if info.max_block == 0 {
            1024
        } else {
            info.max_block as c_int
        },
        registers: info.vgprs as c_int,
        shared: group as usize,
        ..hipFuncAttributes::default()
    }
}

/// The kernel that a host address stands for on the thread's device; a handle of one is taken too.
pub(super) fn by_address(runtime: &mut Runtime, host: *const c_void) -> Result<Function, hipError_t> {
    let device = this_device(runtime)?;
    let id = if runtime.functions.contains_key(&(host as u64)) {
        host as u64
    } else {
        runtime.registered_kernel(device, host as u64)?
    };
    runtime
        .functions
        .get(&id)
        .cloned()
        .ok_or(hipError_t::hipErrorInvalidDeviceFunction)
}

fn load(
    runtime: &mut Runtime,
    module: *mut hipModule_t,
    bytes: impl FnOnce() -> Result<Vec<u8>, hipError_t>,
) -> Status {
    if module.is_null() {
        return Err(INVALID);
    }
    let device = this_device(runtime)?;
    if runtime.faults.hit(&FaultKind::Module) {
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    let id = runtime.load_module(device, &bytes()?)?;
    put(module, id as hipModule_t)
}
