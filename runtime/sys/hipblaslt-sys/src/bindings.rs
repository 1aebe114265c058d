//! Types, constants and entry points, in the header's own names.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

pub type hipblasLtHandle_t = *mut c_void;
pub type hipblasLtMatrixLayout_t = *mut c_void;
pub type hipblasLtMatmulDesc_t = *mut c_void;
pub type hipblasLtMatmulPreference_t = *mut c_void;
pub type hipStream_t = *mut c_void;

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasStatus_t(pub c_uint);

impl hipblasStatus_t {
    pub const HIPBLAS_STATUS_SUCCESS: hipblasStatus_t = hipblasStatus_t(0);
    pub const HIPBLAS_STATUS_NOT_INITIALIZED: hipblasStatus_t = hipblasStatus_t(1);
    pub const HIPBLAS_STATUS_ALLOC_FAILED: hipblasStatus_t = hipblasStatus_t(2);
    pub const HIPBLAS_STATUS_INVALID_VALUE: hipblasStatus_t = hipblasStatus_t(3);
    pub const HIPBLAS_STATUS_MAPPING_ERROR: hipblasStatus_t = hipblasStatus_t(4);
    pub const HIPBLAS_STATUS_EXECUTION_FAILED: hipblasStatus_t = hipblasStatus_t(5);
    pub const HIPBLAS_STATUS_INTERNAL_ERROR: hipblasStatus_t = hipblasStatus_t(6);
    pub const HIPBLAS_STATUS_NOT_SUPPORTED: hipblasStatus_t = hipblasStatus_t(7);
    pub const HIPBLAS_STATUS_ARCH_MISMATCH: hipblasStatus_t = hipblasStatus_t(8);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipDataType(pub c_uint);

impl hipDataType {
    pub const HIP_R_32F: hipDataType = hipDataType(0);
    pub const HIP_R_16F: hipDataType = hipDataType(2);
    pub const HIP_R_16BF: hipDataType = hipDataType(14);
    pub const HIP_R_8F_E4M3: hipDataType = hipDataType(28);
    pub const HIP_R_8F_E5M2: hipDataType = hipDataType(29);
    pub const HIP_R_8F_E4M3_FNUZ: hipDataType = hipDataType(1000);
    pub const HIP_R_8F_E5M2_FNUZ: hipDataType = hipDataType(1001);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasComputeType_t(pub c_uint);

impl hipblasComputeType_t {
    pub const HIPBLAS_COMPUTE_32F: hipblasComputeType_t = hipblasComputeType_t(2);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasOperation_t(pub c_uint);

impl hipblasOperation_t {
    pub const HIPBLAS_OP_N: hipblasOperation_t = hipblasOperation_t(111);
    pub const HIPBLAS_OP_T: hipblasOperation_t = hipblasOperation_t(112);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasLtEpilogue_t(pub c_uint);

impl hipblasLtEpilogue_t {
    pub const HIPBLASLT_EPILOGUE_DEFAULT: hipblasLtEpilogue_t = hipblasLtEpilogue_t(1);
    pub const HIPBLASLT_EPILOGUE_RELU: hipblasLtEpilogue_t = hipblasLtEpilogue_t(2);
    pub const HIPBLASLT_EPILOGUE_BIAS: hipblasLtEpilogue_t = hipblasLtEpilogue_t(4);
    pub const HIPBLASLT_EPILOGUE_RELU_BIAS: hipblasLtEpilogue_t = hipblasLtEpilogue_t(6);
    pub const HIPBLASLT_EPILOGUE_GELU: hipblasLtEpilogue_t = hipblasLtEpilogue_t(32);
    pub const HIPBLASLT_EPILOGUE_GELU_BIAS: hipblasLtEpilogue_t = hipblasLtEpilogue_t(36);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasLtMatrixLayoutAttribute_t(pub c_uint);

impl hipblasLtMatrixLayoutAttribute_t {
    pub const HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT: hipblasLtMatrixLayoutAttribute_t =
        hipblasLtMatrixLayoutAttribute_t(0);
    pub const HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: hipblasLtMatrixLayoutAttribute_t =
        hipblasLtMatrixLayoutAttribute_t(1);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasLtMatmulDescAttributes_t(pub c_uint);

impl hipblasLtMatmulDescAttributes_t {
    pub const HIPBLASLT_MATMUL_DESC_TRANSA: hipblasLtMatmulDescAttributes_t = hipblasLtMatmulDescAttributes_t(0);
    pub const HIPBLASLT_MATMUL_DESC_TRANSB: hipblasLtMatmulDescAttributes_t = hipblasLtMatmulDescAttributes_t(1);
    pub const HIPBLASLT_MATMUL_DESC_EPILOGUE: hipblasLtMatmulDescAttributes_t = hipblasLtMatmulDescAttributes_t(2);
    pub const HIPBLASLT_MATMUL_DESC_BIAS_POINTER: hipblasLtMatmulDescAttributes_t = hipblasLtMatmulDescAttributes_t(3);
    pub const HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: hipblasLtMatmulDescAttributes_t =
        hipblasLtMatmulDescAttributes_t(4);
    pub const HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER: hipblasLtMatmulDescAttributes_t =
        hipblasLtMatmulDescAttributes_t(5);
    pub const HIPBLASLT_MATMUL_DESC_POINTER_MODE: hipblasLtMatmulDescAttributes_t = hipblasLtMatmulDescAttributes_t(13);
}

/// Where the number is that a product is multiplied by.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasLtPointerMode_t(pub c_uint);

impl hipblasLtPointerMode_t {
    pub const HIPBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST: hipblasLtPointerMode_t = hipblasLtPointerMode_t(4);
}

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct hipblasLtMatmulPreferenceAttributes_t(pub c_uint);

impl hipblasLtMatmulPreferenceAttributes_t {
    pub const HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: hipblasLtMatmulPreferenceAttributes_t =
        hipblasLtMatmulPreferenceAttributes_t(1);
}

/// An algorithm, which only the library understands.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct hipblasLtMatmulAlgo_t {
    pub data: [u8; 16],
    pub max_workspace_bytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hipblasLtMatmulHeuristicResult_t {
    pub algo: hipblasLtMatmulAlgo_t,
    pub workspaceSize: usize,
    pub state: hipblasStatus_t,
    pub wavesCount: f32,
    pub reserved: [c_int; 4],
}

/// The entry points.
pub struct HipblasltLibrary {
    __library: Library,
    pub hipblasLtCreate: unsafe extern "C" fn(handle: *mut hipblasLtHandle_t) -> hipblasStatus_t,
    pub hipblasLtGetVersion: unsafe extern "C" fn(handle: hipblasLtHandle_t, version: *mut c_int) -> hipblasStatus_t,
    pub hipblasLtDestroy: unsafe extern "C" fn(handle: hipblasLtHandle_t) -> hipblasStatus_t,
    pub hipblasLtMatrixLayoutCreate: unsafe extern "C" fn(
        layout: *mut hipblasLtMatrixLayout_t,
        dtype: hipDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> hipblasStatus_t,
    pub hipblasLtMatrixLayoutDestroy: unsafe extern "C" fn(layout: hipblasLtMatrixLayout_t) -> hipblasStatus_t,
    pub hipblasLtMatrixLayoutSetAttribute: unsafe extern "C" fn(
        layout: hipblasLtMatrixLayout_t,
        attribute: hipblasLtMatrixLayoutAttribute_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t,
    pub hipblasLtMatmulDescCreate: unsafe extern "C" fn(
        description: *mut hipblasLtMatmulDesc_t,
        compute: hipblasComputeType_t,
        scale: hipDataType,
    ) -> hipblasStatus_t,
    pub hipblasLtMatmulDescDestroy: unsafe extern "C" fn(description: hipblasLtMatmulDesc_t) -> hipblasStatus_t,
    pub hipblasLtMatmulDescSetAttribute: unsafe extern "C" fn(
        description: hipblasLtMatmulDesc_t,
        attribute: hipblasLtMatmulDescAttributes_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t,
    pub hipblasLtMatmulPreferenceCreate:
        unsafe extern "C" fn(preference: *mut hipblasLtMatmulPreference_t) -> hipblasStatus_t,
    pub hipblasLtMatmulPreferenceDestroy:
        unsafe extern "C" fn(preference: hipblasLtMatmulPreference_t) -> hipblasStatus_t,
    pub hipblasLtMatmulPreferenceSetAttribute: unsafe extern "C" fn(
        preference: hipblasLtMatmulPreference_t,
        attribute: hipblasLtMatmulPreferenceAttributes_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t,
    pub hipblasLtMatmulAlgoGetHeuristic: unsafe extern "C" fn(
        handle: hipblasLtHandle_t,
        description: hipblasLtMatmulDesc_t,
        a: hipblasLtMatrixLayout_t,
        b: hipblasLtMatrixLayout_t,
        c: hipblasLtMatrixLayout_t,
        d: hipblasLtMatrixLayout_t,
        preference: hipblasLtMatmulPreference_t,
        wanted: c_int,
        results: *mut hipblasLtMatmulHeuristicResult_t,
        found: *mut c_int,
    ) -> hipblasStatus_t,
    pub hipblasLtMatmul: unsafe extern "C" fn(
        handle: hipblasLtHandle_t,
        description: hipblasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: hipblasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: hipblasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: hipblasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: hipblasLtMatrixLayout_t,
        algorithm: *const hipblasLtMatmulAlgo_t,
        workspace: *mut c_void,
        bytes: usize,
        stream: hipStream_t,
    ) -> hipblasStatus_t,
}

impl HipblasltLibrary {
    /// Looks every entry point up.
    ///
    /// # Safety
    /// The library is hipBLASLt.
    ///
    /// # Errors
    /// The first entry point that is missing.
    pub unsafe fn from_library(library: Library) -> Result<HipblasltLibrary, libloading::Error> {
        // SAFETY: the caller's word that these are hipBLASLt's functions, whose signatures the fields have.
        unsafe {
            Ok(HipblasltLibrary {
                hipblasLtCreate: *library.get(b"hipblasLtCreate\0")?,
                hipblasLtGetVersion: *library.get(b"hipblasLtGetVersion\0")?,
                hipblasLtDestroy: *library.get(b"hipblasLtDestroy\0")?,
                hipblasLtMatrixLayoutCreate: *library.get(b"hipblasLtMatrixLayoutCreate\0")?,
                hipblasLtMatrixLayoutDestroy: *library.get(b"hipblasLtMatrixLayoutDestroy\0")?,
                hipblasLtMatrixLayoutSetAttribute: *library.get(b"hipblasLtMatrixLayoutSetAttribute\0")?,
                hipblasLtMatmulDescCreate: *library.get(b"hipblasLtMatmulDescCreate\0")?,
                hipblasLtMatmulDescDestroy: *library.get(b"hipblasLtMatmulDescDestroy\0")?,
                hipblasLtMatmulDescSetAttribute: *library.get(b"hipblasLtMatmulDescSetAttribute\0")?,
                hipblasLtMatmulPreferenceCreate: *library.get(b"hipblasLtMatmulPreferenceCreate\0")?,
                hipblasLtMatmulPreferenceDestroy: *library.get(b"hipblasLtMatmulPreferenceDestroy\0")?,
                hipblasLtMatmulPreferenceSetAttribute: *library.get(b"hipblasLtMatmulPreferenceSetAttribute\0")?,
                hipblasLtMatmulAlgoGetHeuristic: *library.get(b"hipblasLtMatmulAlgoGetHeuristic\0")?,
                hipblasLtMatmul: *library.get(b"hipblasLtMatmul\0")?,
                __library: library,
            })
        }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtCreate(&self, handle: *mut hipblasLtHandle_t) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtCreate)(handle) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtGetVersion(&self, handle: hipblasLtHandle_t, version: *mut c_int) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtGetVersion)(handle, version) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtDestroy(&self, handle: hipblasLtHandle_t) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtDestroy)(handle) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatrixLayoutCreate(
        &self,
        layout: *mut hipblasLtMatrixLayout_t,
        dtype: hipDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatrixLayoutCreate)(layout, dtype, rows, cols, ld) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatrixLayoutDestroy(&self, layout: hipblasLtMatrixLayout_t) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatrixLayoutDestroy)(layout) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatrixLayoutSetAttribute(
        &self,
        layout: hipblasLtMatrixLayout_t,
        attribute: hipblasLtMatrixLayoutAttribute_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatrixLayoutSetAttribute)(layout, attribute, value, bytes) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulDescCreate(
        &self,
        description: *mut hipblasLtMatmulDesc_t,
        compute: hipblasComputeType_t,
        scale: hipDataType,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulDescCreate)(description, compute, scale) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulDescDestroy(&self, description: hipblasLtMatmulDesc_t) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulDescDestroy)(description) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulDescSetAttribute(
        &self,
        description: hipblasLtMatmulDesc_t,
        attribute: hipblasLtMatmulDescAttributes_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulDescSetAttribute)(description, attribute, value, bytes) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulPreferenceCreate(
        &self,
        preference: *mut hipblasLtMatmulPreference_t,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulPreferenceCreate)(preference) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulPreferenceDestroy(&self, preference: hipblasLtMatmulPreference_t) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulPreferenceDestroy)(preference) }
    }

    /// # Safety
    /// As the library's own function of this name.
    pub unsafe fn hipblasLtMatmulPreferenceSetAttribute(
        &self,
        preference: hipblasLtMatmulPreference_t,
        attribute: hipblasLtMatmulPreferenceAttributes_t,
        value: *const c_void,
        bytes: usize,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe { (self.hipblasLtMatmulPreferenceSetAttribute)(preference, attribute, value, bytes) }
    }

    /// # Safety
    /// As the library's own function of this name.
    #[expect(clippy::too_many_arguments, reason = "the library's own")]
    pub unsafe fn hipblasLtMatmulAlgoGetHeuristic(
        &self,
        handle: hipblasLtHandle_t,
        description: hipblasLtMatmulDesc_t,
        a: hipblasLtMatrixLayout_t,
        b: hipblasLtMatrixLayout_t,
        c: hipblasLtMatrixLayout_t,
        d: hipblasLtMatrixLayout_t,
        preference: hipblasLtMatmulPreference_t,
        wanted: c_int,
        results: *mut hipblasLtMatmulHeuristicResult_t,
        found: *mut c_int,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe {
            (self.hipblasLtMatmulAlgoGetHeuristic)(handle, description, a, b, c, d, preference, wanted, results, found)
        }
    }

    /// # Safety
    /// As the library's own function of this name.
    #[expect(clippy::too_many_arguments, reason = "the library's own")]
    pub unsafe fn hipblasLtMatmul(
        &self,
        handle: hipblasLtHandle_t,
        description: hipblasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: hipblasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: hipblasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: hipblasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: hipblasLtMatrixLayout_t,
        algorithm: *const hipblasLtMatmulAlgo_t,
        workspace: *mut c_void,
        bytes: usize,
        stream: hipStream_t,
    ) -> hipblasStatus_t {
        // SAFETY: the caller's.
        unsafe {
            (self.hipblasLtMatmul)(
                handle,
                description,
                alpha,
                a,
                a_layout,
                b,
                b_layout,
                beta,
                c,
                c_layout,
                d,
                d_layout,
                algorithm,
                workspace,
                bytes,
                stream,
            )
        }
    }
}
