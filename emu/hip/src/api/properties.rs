//! The properties struct of ROCm 6 and 7, and the same facts as attributes.
//!
//! What decides how a kernel runs (wave size, LDS, registers, compute units) is the emulated architecture's; clocks,
//! caches and bus width are 0, because nothing here has them.

use super::device::name_of;
use super::{INVALID, device_of, hip};
use crate::pointer::put;
use crate::state::Runtime;
use graphc_emu::{Arch, Generation};
use hip_sys::{hipDeviceAttribute_t, hipError_t};
use std::ffi::{c_char, c_int, c_uint};

/// `hipDeviceProp_tR0600`, field by field as in ROCm 7.2's header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipDeviceProp_tR0600 {
    pub name: [c_char; 256],
    pub uuid: [u8; 16],
    pub luid: [c_char; 8],
    pub luidDeviceNodeMask: c_uint,
    pub totalGlobalMem: usize,
    pub sharedMemPerBlock: usize,
    pub regsPerBlock: c_int,
    pub warpSize: c_int,
    pub memPitch: usize,
    pub maxThreadsPerBlock: c_int,
    pub maxThreadsDim: [c_int; 3],
    pub maxGridSize: [c_int; 3],
    pub clockRate: c_int,
    pub totalConstMem: usize,
    pub major: c_int,
    pub minor: c_int,
    pub textureAlignment: usize,
    pub texturePitchAlignment: usize,
    pub deviceOverlap: c_int,
    pub multiProcessorCount: c_int,
    pub kernelExecTimeoutEnabled: c_int,
    pub integrated: c_int,
    pub canMapHostMemory: c_int,
    pub computeMode: c_int,
    pub maxTexture1D: c_int,
    pub maxTexture1DMipmap: c_int,
    pub maxTexture1DLinear: c_int,
    pub maxTexture2D: [c_int; 2],
    pub maxTexture2DMipmap: [c_int; 2],
    pub maxTexture2DLinear: [c_int; 3],
    pub maxTexture2DGather: [c_int; 2],
    pub maxTexture3D: [c_int; 3],
    pub maxTexture3DAlt: [c_int; 3],
    pub maxTextureCubemap: c_int,
    pub maxTexture1DLayered: [c_int; 2],
    pub maxTexture2DLayered: [c_int; 3],
    pub maxTextureCubemapLayered: [c_int; 2],
    pub maxSurface1D: c_int,
    pub maxSurface2D: [c_int; 2],
    pub maxSurface3D: [c_int; 3],
    pub maxSurface1DLayered: [c_int; 2],
    pub maxSurface2DLayered: [c_int; 3],
    pub maxSurfaceCubemap: c_int,
    pub maxSurfaceCubemapLayered: [c_int; 2],
    pub surfaceAlignment: usize,
    pub concurrentKernels: c_int,
    pub ECCEnabled: c_int,
    pub pciBusID: c_int,
    pub pciDeviceID: c_int,
    pub pciDomainID: c_int,
    pub tccDriver: c_int,
    pub asyncEngineCount: c_int,
    pub unifiedAddressing: c_int,
    pub memoryClockRate: c_int,
    pub memoryBusWidth: c_int,
    pub l2CacheSize: c_int,
    pub persistingL2CacheMaxSize: c_int,
    pub maxThreadsPerMultiProcessor: c_int,
    pub streamPrioritiesSupported: c_int,
    pub globalL1CacheSupported: c_int,
    pub localL1CacheSupported: c_int,
    pub sharedMemPerMultiprocessor: usize,
    pub regsPerMultiprocessor: c_int,
    pub managedMemory: c_int,
    pub isMultiGpuBoard: c_int,
    pub multiGpuBoardGroupID: c_int,
    pub hostNativeAtomicSupported: c_int,
    pub singleToDoublePrecisionPerfRatio: c_int,
    pub pageableMemoryAccess: c_int,
    pub concurrentManagedAccess: c_int,
    pub computePreemptionSupported: c_int,
    pub canUseHostPointerForRegisteredMem: c_int,
    pub cooperativeLaunch: c_int,
    pub cooperativeMultiDeviceLaunch: c_int,
    pub sharedMemPerBlockOptin: usize,
    pub pageableMemoryAccessUsesHostPageTables: c_int,
    pub directManagedMemAccessFromHost: c_int,
    pub maxBlocksPerMultiProcessor: c_int,
    pub accessPolicyMaxWindowSize: c_int,
    pub reservedSharedMemPerBlock: usize,
    pub hostRegisterSupported: c_int,
    pub sparseHipArraySupported: c_int,
    pub hostRegisterReadOnlySupported: c_int,
    pub timelineSemaphoreInteropSupported: c_int,
    pub memoryPoolsSupported: c_int,
    pub gpuDirectRDMASupported: c_int,
    pub gpuDirectRDMAFlushWritesOptions: c_uint,
    pub gpuDirectRDMAWritesOrdering: c_int,
    pub memoryPoolSupportedHandleTypes: c_uint,
    pub deferredMappingHipArraySupported: c_int,
    pub ipcEventSupported: c_int,
    pub clusterLaunch: c_int,
    pub unifiedFunctionPointers: c_int,
    pub reserved: [c_int; 63],
    pub hipReserved: [c_int; 32],
    pub gcnArchName: [c_char; 256],
    pub maxSharedMemoryPerMultiProcessor: usize,
    pub clockInstructionRate: c_int,
    pub arch: u32,
    pub hdpMemFlushCntl: *mut c_uint,
    pub hdpRegFlushCntl: *mut c_uint,
    pub cooperativeMultiDeviceUnmatchedFunc: c_int,
    pub cooperativeMultiDeviceUnmatchedGridDim: c_int,
    pub cooperativeMultiDeviceUnmatchedBlockDim: c_int,
    pub cooperativeMultiDeviceUnmatchedSharedMem: c_int,
    pub isLargeBar: c_int,
    pub asicRevision: c_int,
}

hip! {
    /// Gives a device's properties.
    fn hipGetDevicePropertiesR0600(runtime, properties: *mut hipDeviceProp_tR0600, device: c_int) {
        let device = device_of(runtime, device)?;
        put(properties, properties_of(runtime, device))
    }

    /// Gives one fact of a device.
    fn hipDeviceGetAttribute(runtime, value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int) {
        let device = device_of(runtime, device)?;
        put(value, attribute_of(runtime, device, attribute)?)
    }
}

/// `arch.hasXxx` bits: 32-bit and 64-bit atomics in both memories, doubles, votes, ballots, shuffles, fences, 3-D
/// grids.
const FEATURES: u32 = 0b1_1111_1111_1111_1111 & !(1 << 14);

fn properties_of(runtime: &Runtime, device: usize) -> hipDeviceProp_tR0600 {
    // SAFETY: every field is a number, an array of numbers or a pointer; all zeros are a value of each.
    let mut p: hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
    let (arch, memory) = (runtime.devices[device].gpu.arch(), runtime.devices[device].gpu.memory());
    let set = |to: &mut [c_char], text: &str| {
        for (slot, byte) in to.iter_mut().zip(text.bytes()) {
            *slot = byte as c_char;
        }
    };
    set(&mut p.name[..255], &name_of(runtime, device));
    set(&mut p.gcnArchName[..255], &full_name(arch));
    p.memoryPoolsSupported = 1;
    p.managedMemory = 1;
    p.cooperativeLaunch = 1;
    p.uuid[15] = device as u8 + 1;
    p.totalGlobalMem = memory.capacity() as usize;
    let fact = |attribute| attribute_of(runtime, device, attribute).unwrap_or(0);
    type A = hipDeviceAttribute_t;
    p.sharedMemPerBlock = arch.lds_bytes as usize;
    p.sharedMemPerMultiprocessor = arch.lds_bytes as usize;
    p.sharedMemPerBlockOptin = arch.lds_bytes as usize;
    p.maxSharedMemoryPerMultiProcessor = arch.lds_bytes as usize;
    p.regsPerBlock = fact(A::hipDeviceAttributeMaxRegistersPerBlock);
    p.regsPerMultiprocessor = fact(A::hipDeviceAttributeMaxRegistersPerMultiprocessor);
    p.warpSize = arch.default_wave_size as c_int;
    p.memPitch = i32::MAX as usize;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim = [1024; 3];
    p.maxGridSize = [i32::MAX, 65535, 65535];
    p.totalConstMem = i32::MAX as usize;
    p.major = fact(A::hipDeviceAttributeComputeCapabilityMajor);
    p.minor = fact(A::hipDeviceAttributeComputeCapabilityMinor);
    p.textureAlignment = 256;
    p.texturePitchAlignment = 256;
    p.multiProcessorCount = arch.compute_units as c_int;
    p.canMapHostMemory = 1;
    p.concurrentKernels = 1;
    p.pciBusID = device as c_int + 1;
    p.unifiedAddressing = 1;
    p.maxThreadsPerMultiProcessor = fact(A::hipDeviceAttributeMaxThreadsPerMultiProcessor);
    p.streamPrioritiesSupported = 1;
    p.canUseHostPointerForRegisteredMem = 1;
    p.hostRegisterSupported = 1;
    p.maxBlocksPerMultiProcessor = fact(A::hipDeviceAttributeMaxBlocksPerMultiProcessor);
    p.arch = FEATURES;
    p.asicRevision = 1;
    p
}

/// A processor's major and minor version: gfx90a is 9 and 0, gfx1201 is 12 and 0.
pub(super) fn capability(arch: &Arch) -> (c_int, c_int) {
    let digits = arch.name.trim_start_matches("gfx");
    // The last two digits are the minor version and the stepping.
    let (major, minor) = digits.split_at(digits.len().saturating_sub(2));
    let minor = minor.chars().next().and_then(|digit| digit.to_digit(16)).unwrap_or(0);
    (major.parse().unwrap_or(0), minor as c_int)
}

/// The processor with the features that its code objects are told apart by, as the driver names it:
/// `gfx90a:sramecc+:xnack-`.
fn full_name(arch: &Arch) -> String {
    // Memory with error correction and a switch for retries came with HBM on the wave64 parts.
    match arch.generation {
        Generation::Gfx9 => format!("{}:sramecc+:xnack-", arch.name),
        _ => arch.name.to_string(),
    }
}

fn attribute_of(runtime: &Runtime, device: usize, attribute: hipDeviceAttribute_t) -> Result<c_int, hipError_t> {
    let arch = runtime.devices[device].gpu.arch();
    let (major, minor) = capability(arch);
    type A = hipDeviceAttribute_t;
    let registers = arch.vgprs_per_simd * arch.simds_per_cu * arch.default_wave_size;
    let value = match attribute {
        A::hipDeviceAttributeMaxThreadsPerBlock
        | A::hipDeviceAttributeMaxBlockDimX
        | A::hipDeviceAttributeMaxBlockDimY
        | A::hipDeviceAttributeMaxBlockDimZ => 1024,
        A::hipDeviceAttributeMaxGridDimX => i64::from(i32::MAX),
        A::hipDeviceAttributeMaxGridDimY | A::hipDeviceAttributeMaxGridDimZ => 65535,
        A::hipDeviceAttributeMaxSharedMemoryPerBlock
        | A::hipDeviceAttributeSharedMemPerBlockOptin
        | A::hipDeviceAttributeSharedMemPerMultiprocessor
        | A::hipDeviceAttributeMaxSharedMemoryPerMultiprocessor => i64::from(arch.lds_bytes),
        A::hipDeviceAttributeWarpSize => i64::from(arch.default_wave_size),
        A::hipDeviceAttributeMultiprocessorCount | A::hipDeviceAttributePhysicalMultiProcessorCount => {
            i64::from(arch.compute_units)
        }
        A::hipDeviceAttributeMaxRegistersPerBlock | A::hipDeviceAttributeMaxRegistersPerMultiprocessor => {
            i64::from(registers)
        }
        A::hipDeviceAttributeMaxAvailableVgprsPerThread => i64::from(arch.vgprs_per_simd.min(512)),
        A::hipDeviceAttributeMaxThreadsPerMultiProcessor => {
            i64::from(arch.max_waves_per_simd * arch.simds_per_cu * arch.default_wave_size)
        }
        A::hipDeviceAttributeMaxBlocksPerMultiProcessor => i64::from(arch.max_waves_per_simd * arch.simds_per_cu),
        A::hipDeviceAttributeComputeCapabilityMajor => i64::from(major),
        A::hipDeviceAttributeComputeCapabilityMinor => i64::from(minor),
        A::hipDeviceAttributeTotalGlobalMem => i64::try_from(runtime.devices[device].gpu.memory().capacity())
            .unwrap_or(i64::MAX)
            .min(i64::from(i32::MAX)),
        A::hipDeviceAttributePciBusId => device as i64 + 1,
        A::hipDeviceAttributePciDeviceId | A::hipDeviceAttributePciDomainID => 0,
        A::hipDeviceAttributeCanMapHostMemory
        | A::hipDeviceAttributeCanUseHostPointerForRegisteredMem
        | A::hipDeviceAttributeConcurrentKernels
        | A::hipDeviceAttributeUnifiedAddressing
        | A::hipDeviceAttributeHostRegisterSupported
        | A::hipDeviceAttributeStreamPrioritiesSupported
        | A::hipDeviceAttributeNumberOfXccs
        | A::hipDeviceAttributeMemoryPoolsSupported
        | A::hipDeviceAttributeManagedMemory
        | A::hipDeviceAttributeCooperativeLaunch
        | A::hipDeviceAttributeAsicRevision => 1,
        A::hipDeviceAttributeAsyncEngineCount => 2,
        A::hipDeviceAttributeTextureAlignment | A::hipDeviceAttributeTexturePitchAlignment => 256,
        A::hipDeviceAttributeMaxPitch | A::hipDeviceAttributeTotalConstantMemory => i64::from(i32::MAX),
        // What remains are clocks, caches, textures and features that the emulator does not have.
        hipDeviceAttribute_t(number) if number <= 92 || (10000..=10020).contains(&number) => 0,
        _ => return Err(INVALID),
    };
    Ok(value as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets as a C compiler gives them for ROCm 7.2's header.
    #[test]
    fn the_struct_is_laid_out_as_in_the_header() {
        assert_eq!(size_of::<hipDeviceProp_tR0600>(), SIZE_OF);
        assert_eq!(std::mem::offset_of!(hipDeviceProp_tR0600, gcnArchName), GCN_ARCH_NAME);
        assert_eq!(
            std::mem::offset_of!(hipDeviceProp_tR0600, multiProcessorCount),
            MULTI_PROCESSOR_COUNT
        );
    }
    const SIZE_OF: usize = 1472;
    const GCN_ARCH_NAME: usize = 1160;
    const MULTI_PROCESSOR_COUNT: usize = 388;
}
