//! Modules, functions, launches and occupancy.

use super::{BAD_HANDLE, INVALID, hip, stream_of, this_device};
use crate::config::FaultKind;
use crate::pointer::{get, put, read_bytes, text};
use crate::state::{Function, Handle, LoadedModule, Runtime, report};
use crate::status::{Status, of_load};
use graphc_emu::{CodeObject, LoadError};
use hip_sys::{
    hipDeviceptr_t, hipError_t, hipEvent_t, hipFuncAttribute, hipFunction_attribute, hipFunction_t, hipModule_t,
    hipStream_t,
};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

hip! {
    /// Loads a code object or an offload bundle.
    fn hipModuleLoadData(runtime, module: *mut hipModule_t, image: *const c_void) {
        load(runtime, module, image)
    }

    /// As [`hipModuleLoadData`]; the compiler's options mean nothing for code that is compiled.
    fn hipModuleLoadDataEx(runtime, module: *mut hipModule_t, image: *const c_void, _count: c_uint, _options: *mut c_int, _values: *mut *mut c_void) {
        load(runtime, module, image)
    }

    /// Unloads a module, after everything on its device is done.
    fn hipModuleUnload(runtime, module: hipModule_t) {
        let device = runtime.modules.get(&(module as u64)).ok_or(BAD_HANDLE)?.device;
        runtime.drain(device)?;
        if let Some(module) = runtime.modules.remove(&(module as u64)) {
            for function in module.functions.values() {
                runtime.functions.remove(function);
            }
        }
        Ok(())
    }

    /// Finds a kernel by its name and decodes it.
    fn hipModuleGetFunction(runtime, function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) {
        if function.is_null() {
            return Err(INVALID);
        }
        let name = text(name)?;
        let loaded = runtime.modules.get(&(module as u64)).ok_or(BAD_HANDLE)?;
        if let Some(known) = loaded.functions.get(&name) {
            return put(function, *known as hipFunction_t);
        }
        let (device, kernel) = (loaded.device, loaded.module.kernel(&name).map_err(refused)?);
        let id = runtime.handle(Handle::Function);
        runtime.functions.insert(id, Function { device, kernel });
        runtime.modules.get_mut(&(module as u64)).ok_or(BAD_HANDLE)?.functions.insert(name, id);
        put(function, id as hipFunction_t)
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

    /// Queues a launch of `grid` blocks.
    fn hipModuleLaunchKernel(
        runtime, function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let stream = stream_of(runtime, stream)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        runtime.launch(function as u64, grid, block, shared, stream, params, extra)
    }

    /// Queues a launch of `global` work-items, with events before and after it. Blocks must fill the grid.
    fn hipExtModuleLaunchKernel(
        runtime, function: hipFunction_t, global_x: c_uint, global_y: c_uint, global_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: usize, stream: hipStream_t, params: *mut *mut c_void,
        extra: *mut *mut c_void, start: hipEvent_t, stop: hipEvent_t, _flags: c_uint,
    ) {
        let id = stream_of(runtime, stream)?;
        let (global, block) = ([global_x, global_y, global_z], [block_x, block_y, block_z]);
        if block.contains(&0) {
            return Err(INVALID);
        }
        let mut grid = [0; 3];
        for axis in 0..3 {
            if global[axis] % block[axis] != 0 {
                report(&format!("{global:?} work-items in blocks of {block:?}: a part of a block is not emulated"));
                return Err(hipError_t::hipErrorNotSupported);
            }
            grid[axis] = global[axis] / block[axis];
        }
        let shared = u32::try_from(shared).map_err(|_| INVALID)?;
        if !start.is_null() {
            super::event::record(runtime, start as u64, stream)?;
        }
        runtime.launch(function as u64, grid, block, shared, id, params, extra)?;
        if !stop.is_null() {
            super::event::record(runtime, stop as u64, stream)?;
        }
        Ok(())
    }

    /// Gives one fact of a kernel.
    fn hipFuncGetAttribute(runtime, value: *mut c_int, attribute: hipFunction_attribute, function: hipFunction_t) {
        let Function { device, kernel } = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?;
        let (info, arch) = (kernel.info(), runtime.devices[*device].gpu.arch());
        let group = info.descriptor.group_segment.max(info.group_segment);
        type A = hipFunction_attribute;
        let fact = match attribute {
            A::HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => if info.max_block == 0 { 1024 } else { info.max_block },
            A::HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => group,
            A::HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES | A::HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
            A::HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => info.private_segment,
            A::HIP_FUNC_ATTRIBUTE_NUM_REGS => info.vgprs,
            A::HIP_FUNC_ATTRIBUTE_PTX_VERSION | A::HIP_FUNC_ATTRIBUTE_BINARY_VERSION => 0,
            A::HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => arch.lds_bytes.saturating_sub(group),
            A::HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => 0,
            _ => return Err(INVALID),
        };
        put(value, fact as c_int)
    }

    /// Takes a kernel's wish for more dynamic LDS: every kernel may have all of it already.
    fn hipFuncSetAttribute(runtime, function: *const c_void, attribute: hipFuncAttribute, value: c_int) {
        let function = runtime.functions.get(&(function as u64)).ok_or(hipError_t::hipErrorInvalidDeviceFunction)?;
        let most = runtime.devices[function.device].gpu.arch().lds_bytes;
        match attribute {
            hipFuncAttribute::hipFuncAttributeMaxDynamicSharedMemorySize => {
                if u32::try_from(value).is_ok_and(|value| value <= most) { Ok(()) } else { Err(INVALID) }
            }
            hipFuncAttribute::hipFuncAttributePreferredSharedMemoryCarveout => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// Gives how many blocks of a kernel a compute unit holds at once, by registers and LDS.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(runtime, blocks: *mut c_int, function: hipFunction_t, block: c_int, shared: usize) {
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?;
        let block = u32::try_from(block).ok().filter(|block| *block > 0).ok_or(INVALID)?;
        put(blocks, active_blocks(runtime, function, block, shared) as c_int)
    }

    /// Gives the block that keeps a compute unit fullest, and the grid that fills the device with it.
    fn hipModuleOccupancyMaxPotentialBlockSize(runtime, grid: *mut c_int, block: *mut c_int, function: hipFunction_t, shared: usize, limit: c_int) {
        let function = runtime.functions.get(&(function as u64)).ok_or(BAD_HANDLE)?;
        let info = function.kernel.info();
        let most = if info.max_block == 0 { 1024 } else { info.max_block };
        let most = u32::try_from(limit).ok().filter(|limit| *limit > 0).map_or(most, |limit| limit.min(most));
        let wave = info.wave_size.max(1);
        let mut best = (0, 0, 0);
        for size in (1..=most / wave).map(|waves| waves * wave) {
            let blocks = active_blocks(runtime, function, size, shared);
            if blocks * size >= best.0 {
                best = (blocks * size, size, blocks);
            }
        }
        put(block, best.1 as c_int)?;
        put(grid, (best.2 * runtime.devices[function.device].gpu.arch().compute_units) as c_int)
    }
}

/// Blocks of `block` work-items on one compute unit; none where LDS does not suffice for one.
fn active_blocks(runtime: &Runtime, function: &Function, block: u32, shared: usize) -> u32 {
    let arch = runtime.devices[function.device].gpu.arch();
    let info = function.kernel.info();
    let lds = info
        .group_segment
        .saturating_add(u32::try_from(shared).unwrap_or(u32::MAX));
    if lds > arch.lds_bytes {
        return 0;
    }
    let waves = function.kernel.occupancy(arch, block, 0) * arch.simds_per_cu;
    let by_waves = waves / block.div_ceil(info.wave_size.max(1)).max(1);
    arch.lds_bytes
        .checked_div(lds)
        .map_or(by_waves, |by_lds| by_waves.min(by_lds))
}

fn refused(error: LoadError) -> hipError_t {
    report(&error.to_string());
    of_load(&error)
}

fn load(runtime: &mut Runtime, module: *mut hipModule_t, image: *const c_void) -> Status {
    if module.is_null() || image.is_null() {
        return Err(INVALID);
    }
    let device = this_device(runtime)?;
    if runtime.faults.hit(FaultKind::Module) {
        return Err(hipError_t::hipErrorOutOfMemory);
    }
    let bytes = image_bytes(image.cast())?;
    let disassembler = runtime.disassembler()?;
    let gpu = &runtime.devices[device].gpu;
    let object = CodeObject::load_for(&bytes, gpu.arch()).map_err(refused)?;
    let loaded = gpu.load(object, disassembler).map_err(refused)?;
    let id = runtime.handle(Handle::Module);
    runtime.modules.insert(
        id,
        LoadedModule {
            device,
            module: loaded,
            functions: BTreeMap::new(),
        },
    );
    put(module, id as hipModule_t)
}

/// Copies a code object or a bundle whose size only its own header says.
fn image_bytes(image: *const u8) -> Result<Vec<u8>, hipError_t> {
    const ELF: &[u8] = b"\x7fELF";
    const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
    const WRONG: hipError_t = hipError_t::hipErrorInvalidImage;
    const LARGEST: u64 = 1 << 32;
    let begins = |magic: &[u8]| (0..magic.len()).all(|index| get(image, index) == Ok(magic[index]));
    let word = |offset: u64| -> Result<u64, hipError_t> {
        let bytes = read_bytes(image as u64 + offset, 8);
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| WRONG)?))
    };
    let mut end = 64u64;
    if begins(ELF) {
        // The header's tables, and what they say lies in the file.
        let half = |offset: u64| Ok::<u64, hipError_t>(word(offset)? & 0xffff);
        let (programs, sections) = (word(32)?, word(40)?);
        let (program_size, program_count) = (half(54)?, half(56)?);
        let (section_size, section_count) = (half(58)?, half(60)?);
        end = end.max(programs.saturating_add(program_size * program_count));
        end = end.max(sections.saturating_add(section_size * section_count));
        for index in 0..program_count {
            let at = programs + index * program_size;
            end = end.max(word(at + 8)?.saturating_add(word(at + 32)?));
        }
    } else if begins(BUNDLE) {
        let count = word(24)?;
        let mut at = 32;
        for _ in 0..count.min(1024) {
            let (offset, size, name) = (word(at)?, word(at + 8)?, word(at + 16)?);
            end = end.max(offset.saturating_add(size));
            at += 24 + name.min(4096);
        }
        end = end.max(at);
    } else {
        report("the image is neither an ELF file nor an offload bundle");
        return Err(WRONG);
    }
    if end > LARGEST {
        return Err(WRONG);
    }
    Ok(read_bytes(image as u64, end as usize))
}
