//! The tables of functions by which a plugin provider and ONNX Runtime call each other, in the layout of API version
//! 24.
//!
//! `ort-sys` has the general interface (`OrtApi`) and leaves these out. ONNX Runtime only appends to them, and reads
//! no further than the version that a table names in its first field. `tests` holds the layouts against offsets that
//! were counted in the header.

use std::ffi::{c_char, c_int, c_void};

use ort_sys::{
    OrtAllocator, OrtCompiledModelCompatibility, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtKernelContext,
    OrtKeyValuePairs, OrtLogger, OrtMemoryInfo, OrtNode, OrtRunOptions, OrtSessionOptions, OrtStatusPtr,
};

/// The version of the interface that this library is written for: ONNX Runtime 1.24, and all later ones.
pub const API_VERSION: u32 = 24;

/// A type of ONNX Runtime's of which only addresses are known.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _unused: [u8; 0],
            }
        )*
    };
}

opaque!(
    OrtEpGraphSupportInfo,
    OrtMemoryDevice,
    OrtNodeComputeContext,
    OrtDataTransferImpl,
    OrtSyncStreamImpl
);

/// The entries of ONNX Runtime's `OrtEpApi` up to the last one that is called here; the table is longer.
#[repr(C)]
pub struct OrtEpApi {
    pub create_ep_device: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const OrtHardwareDevice,
        *const OrtKeyValuePairs,
        *const OrtKeyValuePairs,
        *mut *mut OrtEpDevice,
    ) -> OrtStatusPtr,
    pub release_ep_device: unsafe extern "C" fn(*mut OrtEpDevice),
    pub add_nodes_to_fuse: unsafe extern "C" fn(
        *mut OrtEpGraphSupportInfo,
        *const *const OrtNode,
        usize,
        *const OrtNodeFusionOptions,
    ) -> OrtStatusPtr,
}

/// How a set of nodes becomes one.
#[repr(C)]
pub struct OrtNodeFusionOptions {
    pub ort_version_supported: u32,
    /// Whether the provider keeps constant initializers itself, so that the fused node does not have them as inputs.
    pub drop_constant_initializers: bool,
}

/// How a compiled region is run.
#[repr(C)]
pub struct OrtNodeComputeInfo {
    pub ort_version_supported: u32,
    pub create_state:
        unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut OrtNodeComputeContext, *mut *mut c_void) -> OrtStatusPtr,
    pub compute: unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut c_void, *mut OrtKernelContext) -> OrtStatusPtr,
    pub release_state: unsafe extern "C" fn(*mut OrtNodeComputeInfo, *mut c_void),
}

/// A provider of one session. Functions that are `None` are optional and not there.
#[repr(C)]
pub struct OrtEp {
    pub ort_version_supported: u32,
    pub get_name: unsafe extern "C" fn(*const OrtEp) -> *const c_char,
    pub get_capability: unsafe extern "C" fn(*mut OrtEp, *const OrtGraph, *mut OrtEpGraphSupportInfo) -> OrtStatusPtr,
    pub compile: unsafe extern "C" fn(
        *mut OrtEp,
        *const *const OrtGraph,
        *const *const OrtNode,
        usize,
        *mut *mut OrtNodeComputeInfo,
        *mut *mut OrtNode,
    ) -> OrtStatusPtr,
    pub release_node_compute_infos: unsafe extern "C" fn(*mut OrtEp, *mut *mut OrtNodeComputeInfo, usize),
    pub get_preferred_data_layout: Option<unsafe extern "C" fn(*mut OrtEp, *mut c_int) -> OrtStatusPtr>,
    pub should_convert_data_layout_for_op:
        Option<unsafe extern "C" fn(*mut OrtEp, *const c_char, *const c_char, c_int, *mut c_int) -> OrtStatusPtr>,
    pub set_dynamic_options:
        Option<unsafe extern "C" fn(*mut OrtEp, *const *const c_char, *const *const c_char, usize) -> OrtStatusPtr>,
    pub on_run_start: Option<unsafe extern "C" fn(*mut OrtEp, *const OrtRunOptions) -> OrtStatusPtr>,
    pub on_run_end: Option<unsafe extern "C" fn(*mut OrtEp, *const OrtRunOptions, bool) -> OrtStatusPtr>,
    pub create_allocator:
        Option<unsafe extern "C" fn(*mut OrtEp, *const OrtMemoryInfo, *mut *mut OrtAllocator) -> OrtStatusPtr>,
    pub create_sync_stream_for_device:
        Option<unsafe extern "C" fn(*mut OrtEp, *const OrtMemoryDevice, *mut *mut OrtSyncStreamImpl) -> OrtStatusPtr>,
    pub get_compiled_model_compatibility_info:
        Option<unsafe extern "C" fn(*mut OrtEp, *const OrtGraph) -> *const c_char>,
    pub get_kernel_registry: Option<unsafe extern "C" fn(*mut OrtEp, *mut *const c_void) -> OrtStatusPtr>,
    /// Optional functions that came later, none of which is there.
    pub later: [Option<unsafe extern "C" fn()>; 16],
}

/// Makes providers, and says on which devices they run.
#[repr(C)]
pub struct OrtEpFactory {
    pub ort_version_supported: u32,
    pub get_name: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub get_vendor: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub get_supported_devices: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const *const OrtHardwareDevice,
        usize,
        *mut *mut OrtEpDevice,
        usize,
        *mut usize,
    ) -> OrtStatusPtr,
    pub create_ep: unsafe extern "C" fn(
        *mut OrtEpFactory,
        *const *const OrtHardwareDevice,
        *const *const OrtKeyValuePairs,
        usize,
        *const OrtSessionOptions,
        *const OrtLogger,
        *mut *mut OrtEp,
    ) -> OrtStatusPtr,
    pub release_ep: unsafe extern "C" fn(*mut OrtEpFactory, *mut OrtEp),
    pub get_vendor_id: unsafe extern "C" fn(*const OrtEpFactory) -> u32,
    pub get_version: unsafe extern "C" fn(*const OrtEpFactory) -> *const c_char,
    pub validate_compiled_model_compatibility_info: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const *const OrtHardwareDevice,
            usize,
            *const c_char,
            *mut OrtCompiledModelCompatibility,
        ) -> OrtStatusPtr,
    >,
    pub create_allocator: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const OrtMemoryInfo,
            *const OrtKeyValuePairs,
            *mut *mut OrtAllocator,
        ) -> OrtStatusPtr,
    >,
    pub release_allocator: Option<unsafe extern "C" fn(*mut OrtEpFactory, *mut OrtAllocator)>,
    pub create_data_transfer:
        Option<unsafe extern "C" fn(*mut OrtEpFactory, *mut *mut OrtDataTransferImpl) -> OrtStatusPtr>,
    pub is_stream_aware: Option<unsafe extern "C" fn(*const OrtEpFactory) -> bool>,
    pub create_sync_stream_for_device: Option<
        unsafe extern "C" fn(
            *mut OrtEpFactory,
            *const OrtMemoryDevice,
            *const OrtKeyValuePairs,
            *mut *mut OrtSyncStreamImpl,
        ) -> OrtStatusPtr,
    >,
    /// Optional functions that came later, none of which is there.
    pub later: [Option<unsafe extern "C" fn()>; 16],
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Each table is its version, padded to a pointer, and then one pointer a function, in the header's order.
    #[test]
    fn tables_are_laid_out_as_in_the_header() {
        let pointer = size_of::<*const ()>();
        assert_eq!(size_of::<OrtEp>(), (14 + 16) * pointer);
        assert_eq!(offset_of!(OrtEp, get_capability), 2 * pointer);
        assert_eq!(offset_of!(OrtEp, release_node_compute_infos), 4 * pointer);
        assert_eq!(offset_of!(OrtEp, set_dynamic_options), 7 * pointer);
        assert_eq!(offset_of!(OrtEp, create_allocator), 10 * pointer);
        assert_eq!(offset_of!(OrtEp, get_kernel_registry), 13 * pointer);
        assert_eq!(size_of::<OrtEpFactory>(), (14 + 16) * pointer);
        assert_eq!(offset_of!(OrtEpFactory, create_ep), 4 * pointer);
        assert_eq!(offset_of!(OrtEpFactory, get_version), 7 * pointer);
        assert_eq!(offset_of!(OrtEpFactory, create_data_transfer), 11 * pointer);
        assert_eq!(offset_of!(OrtEpFactory, create_sync_stream_for_device), 13 * pointer);
        assert_eq!(size_of::<OrtNodeComputeInfo>(), 4 * pointer);
        assert_eq!(size_of::<OrtNodeFusionOptions>(), 8);
        assert_eq!(offset_of!(OrtNodeFusionOptions, drop_constant_initializers), 4);
        assert_eq!(offset_of!(OrtEpApi, add_nodes_to_fuse), 2 * pointer);
    }
}
