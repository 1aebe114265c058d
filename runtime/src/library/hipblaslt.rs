//! hipBLASLt: matrix products with scales, a bias and an activation (`hipblasLtMatmul`).
//!
//! Column-major as rocBLAS is (see [`super::rocblas`]): the result's columns are the library's rows, and so a bias of a
//! number for each column is what it adds, and a vector of `alpha` what scales each column. One scale for all is that
//! of its A, which the library has for 8-bit floats. The algorithm is the one that its heuristic ranks first, asked for
//! when a context is first fitted to the sizes; nothing is timed here. Where the plan names an algorithm of this
//! version of the library on this driver, and the heuristic offers it for these sizes, it is that one. Its workspace is
//! the plan's, and bounds what the heuristic may choose.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use dylib::Search;
use hipblaslt_sys::{
    HipblasltLibrary, hipDataType, hipblasComputeType_t, hipblasLtEpilogue_t as Epilogue, hipblasLtHandle_t,
    hipblasLtMatmulAlgo_t, hipblasLtMatmulDesc_t, hipblasLtMatmulDescAttributes_t as Attribute,
    hipblasLtMatmulHeuristicResult_t, hipblasLtMatmulPreference_t,
    hipblasLtMatmulPreferenceAttributes_t as PreferenceAttribute, hipblasLtMatrixLayout_t,
    hipblasLtMatrixLayoutAttribute_t as LayoutAttribute, hipblasLtPointerMode_t as PointerMode,
    hipblasOperation_t as Operation, hipblasStatus_t as Status,
};
use ir::DType;
use ir::library::{Algorithm, GemmEpilogue, GemmScale};

use super::Opened;
use super::rocblas::Gemm;
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;
use crate::gpu::handles::Gpu;

/// Algorithms that the heuristic is asked for, as it ranks them. It is always so many: what it lists behind the first
/// depends on how many a process asked for before, and a plan's algorithm is to be found in every process.
const OFFERED: usize = 64;

/// The library.
pub(crate) struct Hipblaslt {
    opened: Opened<HipblasltLibrary>,
    /// What the device's driver says of itself.
    driver: String,
}

impl Hipblaslt {
    /// Opens hipBLASLt. A GPU must have been found.
    pub fn open(search: &Search, at: &str, gpu: &Gpu) -> Result<Hipblaslt, RuntimeError> {
        let opened = Opened::new(hipblaslt_sys::load(search), "hipBLASLt", "products", at, &gpu.name);
        let opened = opened.map_err(|mut error| {
            if let RuntimeError::NotAvailable { reason, .. } = &mut error {
                reason.push_str("; with --disable hipblaslt they are rocBLAS's, and what follows them is kernels");
            }
            error
        })?;
        let driver = gpu.at(at, gpu.driver.describe(gpu.ordinal))?.driver;
        Ok(Hipblaslt { opened, driver })
    }

    fn api(&self) -> &HipblasltLibrary {
        &self.opened.api
    }

    fn check(&self, call: &str, status: Status, at: &str) -> Result<(), RuntimeError> {
        // The library has no texts for its statuses.
        let text = match status {
            Status::HIPBLAS_STATUS_SUCCESS => return Ok(()),
            Status::HIPBLAS_STATUS_NOT_INITIALIZED => c"HIPBLAS_STATUS_NOT_INITIALIZED",
            Status::HIPBLAS_STATUS_ALLOC_FAILED => c"HIPBLAS_STATUS_ALLOC_FAILED",
            Status::HIPBLAS_STATUS_INVALID_VALUE => c"HIPBLAS_STATUS_INVALID_VALUE",
            Status::HIPBLAS_STATUS_MAPPING_ERROR => c"HIPBLAS_STATUS_MAPPING_ERROR",
            Status::HIPBLAS_STATUS_EXECUTION_FAILED => c"HIPBLAS_STATUS_EXECUTION_FAILED",
            Status::HIPBLAS_STATUS_INTERNAL_ERROR => c"HIPBLAS_STATUS_INTERNAL_ERROR",
            Status::HIPBLAS_STATUS_NOT_SUPPORTED => c"HIPBLAS_STATUS_NOT_SUPPORTED",
            Status::HIPBLAS_STATUS_ARCH_MISMATCH => c"HIPBLAS_STATUS_ARCH_MISMATCH",
            _ => c"",
        };
        let text = if text.is_empty() {
            std::ptr::null()
        } else {
            text.as_ptr()
        };
        Err(self.opened.failed(call, status.0, text, at.to_owned()))
    }
}

/// A product with what is done to it, at some sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Matmul {
    pub gemm: Gemm,
    pub scale: GemmScale,
    pub epilogue: GemmEpilogue,
    /// The type of the bias that the epilogue has.
    pub bias: Option<DType>,
    /// Bytes of workspace that the plan has for it: algorithms that take more are not asked for.
    pub most_workspace: u64,
    /// The algorithm that the plan asks for.
    pub algorithm: Option<Algorithm>,
}

/// A handle, which serves one run at a time, and the products that were made ready on it.
pub(crate) struct Handle {
    ready: HashMap<Matmul, Ready>,
    library: Arc<Hipblaslt>,
    raw: hipblasLtHandle_t,
    /// Which library on which driver, as algorithms say it: once it was asked.
    version: Option<String>,
}

// SAFETY: a handle may be used by any thread, one at a time; whoever runs has its context to itself.
unsafe impl Send for Handle {}

/// A product with its algorithm chosen.
struct Ready {
    descriptors: Descriptors,
    algorithm: hipblasLtMatmulAlgo_t,
    workspace: usize,
}

impl Handle {
    /// Makes a handle for the device that the thread has entered.
    pub fn new(library: &Arc<Hipblaslt>) -> Result<Handle, RuntimeError> {
        let mut raw = null_mut();
        // SAFETY: a place for the result; there is a device.
        let status = unsafe { library.api().hipblasLtCreate(&mut raw) };
        library.check("hipblasLtCreate", status, "loading the program")?;
        Ok(Handle {
            ready: HashMap::new(),
            library: library.clone(),
            raw,
            version: None,
        })
    }

    /// Says of which library and driver this handle's algorithms are.
    fn version(&mut self, at: &str) -> Result<String, RuntimeError> {
        if let Some(known) = &self.version {
            return Ok(known.clone());
        }
        let mut number = 0;
        // SAFETY: the handle is alive, and there is a place for the result.
        let status = unsafe { self.library.api().hipblasLtGetVersion(self.raw, &mut number) };
        self.library.check("hipblasLtGetVersion", status, at)?;
        let version = format!("hipBLASLt {number} on {}", self.library.driver);
        self.version = Some(version.clone());
        Ok(version)
    }

    /// Asks the heuristic for algorithms, the one that it would choose first.
    fn offered(
        &self,
        matmul: &Matmul,
        descriptors: &Descriptors,
        at: &str,
    ) -> Result<Vec<hipblasLtMatmulHeuristicResult_t>, RuntimeError> {
        // What is chosen depends on there being a bias and a scale. They are not read until a run has set its own.
        let unread = NonNull::<u128>::dangling().as_ptr() as u64;
        if matmul.bias.is_some() {
            descriptors.set_bias(unread, at)?;
        }
        if matmul.scale == GemmScale::Tensor {
            descriptors.set_scale(unread, at)?;
        }
        let none = hipblasLtMatmulHeuristicResult_t {
            algo: hipblasLtMatmulAlgo_t::default(),
            workspaceSize: 0,
            state: Status::HIPBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut count) = (vec![none; OFFERED], 0);
        let [a, b, d] = descriptors.layouts;
        // SAFETY: handle and descriptors are alive, and there is room for as many results as are asked for.
        let status = unsafe {
            self.library.api().hipblasLtMatmulAlgoGetHeuristic(
                self.raw,
                descriptors.product,
                a,
                b,
                d,
                d,
                descriptors.preference,
                OFFERED as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if status == Status::HIPBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        self.library.check("hipblasLtMatmulAlgoGetHeuristic", status, at)?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        found.retain(|result| {
            result.state == Status::HIPBLAS_STATUS_SUCCESS && result.workspaceSize as u64 <= matmul.most_workspace
        });
        Ok(found)
    }

    /// Lists the algorithms that the heuristic offers for a product, the one that it would choose first.
    pub fn algorithms(&mut self, matmul: &Matmul, at: &str) -> Result<Vec<Algorithm>, RuntimeError> {
        let of = self.version(at)?;
        let descriptors = Descriptors::new(&self.library, matmul, at)?;
        let offered = self.offered(matmul, &descriptors, at)?;
        let named = |result: hipblasLtMatmulHeuristicResult_t| Algorithm {
            of: of.clone(),
            words: result.algo.data.to_vec(),
        };
        Ok(offered.into_iter().map(named).collect())
    }

    /// Finds the algorithm that a product asks for, where it is one of this library's for its sizes.
    fn asked(
        &mut self,
        matmul: &Matmul,
        descriptors: &Descriptors,
        at: &str,
    ) -> Result<Option<hipblasLtMatmulHeuristicResult_t>, RuntimeError> {
        let Some(algorithm) = &matmul.algorithm else {
            return Ok(None);
        };
        if self.version(at)? != algorithm.of {
            return Ok(None);
        }
        // The words of a file are not given to the library: they are looked for among its own.
        let offered = self.offered(matmul, descriptors, at)?;
        Ok(offered
            .into_iter()
            .find(|result| result.algo.data[..] == algorithm.words[..]))
    }

    /// Asks for an algorithm, unless that was done; returns the bytes of workspace that it takes.
    pub fn ready(&mut self, matmul: &Matmul, at: &str) -> Result<usize, RuntimeError> {
        if let Some(ready) = self.ready.get(matmul) {
            return Ok(ready.workspace);
        }
        let library = self.library.clone();
        let descriptors = Descriptors::new(&library, matmul, at)?;
        let mut found = self.asked(matmul, &descriptors, at)?;
        if found.is_none() {
            found = self.offered(matmul, &descriptors, at)?.into_iter().next();
        }
        let Some(found) = found else {
            return Err(RuntimeError::Unsupported {
                what: format!(
                    "hipblaslt_matmul: hipBLASLt has no algorithm for this product of {} by {} to {} with scale {} and epilogue {}",
                    matmul.gemm.dtype,
                    matmul.gemm.rhs_dtype,
                    matmul.gemm.out,
                    matmul.scale.name(),
                    matmul.epilogue.name()
                ),
                at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
            });
        };
        let workspace = found.workspaceSize;
        self.ready.insert(
            matmul.clone(),
            Ready {
                descriptors,
                algorithm: found.algo,
                workspace,
            },
        );
        Ok(workspace)
    }

    /// Enqueues a product that was made ready. `buffers` are the operands, a scale and a bias among them where there
    /// are such, and the result; the workspace has at least the bytes that it takes.
    pub fn matmul(
        &self,
        matmul: &Matmul,
        buffers: &[u64],
        workspace: u64,
        stream: RawStream,
        at: &str,
    ) -> Result<(), RuntimeError> {
        let (Some(ready), &[lhs, rhs, ref others @ .., result]) = (self.ready.get(matmul), buffers) else {
            return Err(RuntimeError::Program(format!(
                "{at}: a product that was not made ready"
            )));
        };
        let missing = || RuntimeError::Program(format!("{at}: a product without its scale or bias"));
        let (scale, bias) = match (matmul.scale, matmul.bias) {
            (GemmScale::None, _) => (0, others.first()),
            (_, _) => (*others.first().ok_or_else(missing)?, others.get(1)),
        };
        if matmul.bias.is_some() {
            ready.descriptors.set_bias(*bias.ok_or_else(missing)?, at)?;
        }
        if matmul.scale == GemmScale::Tensor {
            ready.descriptors.set_scale(scale, at)?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let alpha = match matmul.scale {
            GemmScale::Columns => scale as *const c_void,
            GemmScale::None | GemmScale::Tensor => (&raw const one).cast(),
        };
        let [a, b, d] = ready.descriptors.layouts;
        // SAFETY: handle, descriptors and stream are alive; the operands lie in memory that holds what the layouts say,
        // until the run was waited for, and so does a vector of alpha; scalars are read by the call.
        let status = unsafe {
            self.library.api().hipblasLtMatmul(
                self.raw,
                ready.descriptors.product,
                alpha,
                rhs as *const c_void,
                a,
                lhs as *const c_void,
                b,
                (&raw const zero).cast(),
                result as *const c_void,
                d,
                result as *mut c_void,
                d,
                &ready.algorithm,
                if ready.workspace == 0 {
                    null_mut()
                } else {
                    workspace as *mut c_void
                },
                ready.workspace,
                stream.0.cast(),
            )
        };
        self.library.check("hipblasLtMatmul", status, at)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.ready.clear();
        // SAFETY: the handle is this value's own, and this is its end. A failure leaves nothing to do.
        let _ = unsafe { self.library.api().hipblasLtDestroy(self.raw) };
    }
}

/// hipBLASLt's descriptions of one product; null where not made yet.
struct Descriptors {
    library: Arc<Hipblaslt>,
    product: hipblasLtMatmulDesc_t,
    /// Of its A (the right operand), its B (the left one), and the result.
    layouts: [hipblasLtMatrixLayout_t; 3],
    preference: hipblasLtMatmulPreference_t,
}

fn datatype(dtype: DType) -> hipDataType {
    match dtype {
        DType::F16 => hipDataType::HIP_R_16F,
        DType::BF16 => hipDataType::HIP_R_16BF,
        DType::F8E4M3FN => hipDataType::HIP_R_8F_E4M3,
        DType::F8E5M2 => hipDataType::HIP_R_8F_E5M2,
        DType::F8E4M3FNUZ => hipDataType::HIP_R_8F_E4M3_FNUZ,
        DType::F8E5M2FNUZ => hipDataType::HIP_R_8F_E5M2_FNUZ,
        _ => hipDataType::HIP_R_32F,
    }
}

impl Descriptors {
    fn new(library: &Arc<Hipblaslt>, matmul: &Matmul, at: &str) -> Result<Descriptors, RuntimeError> {
        let mut made = Descriptors {
            library: library.clone(),
            product: null_mut(),
            layouts: [null_mut(); 3],
            preference: null_mut(),
        };
        let api = library.api();
        let gemm = &matmul.gemm;
        let compute = hipblasComputeType_t::HIPBLAS_COMPUTE_32F;
        // SAFETY: a place for the result.
        let status = unsafe { api.hipblasLtMatmulDescCreate(&mut made.product, compute, hipDataType::HIP_R_32F) };
        library.check("hipblasLtMatmulDescCreate", status, at)?;
        let operation = |transposed: bool| {
            if transposed {
                Operation::HIPBLAS_OP_T
            } else {
                Operation::HIPBLAS_OP_N
            }
        };
        made.set(
            Attribute::HIPBLASLT_MATMUL_DESC_TRANSA,
            operation(gemm.rhs_transposed).0,
            at,
        )?;
        made.set(
            Attribute::HIPBLASLT_MATMUL_DESC_TRANSB,
            operation(gemm.lhs_transposed).0,
            at,
        )?;
        let epilogue = match matmul.epilogue {
            GemmEpilogue::None => Epilogue::HIPBLASLT_EPILOGUE_DEFAULT,
            GemmEpilogue::Bias => Epilogue::HIPBLASLT_EPILOGUE_BIAS,
            GemmEpilogue::Relu => Epilogue::HIPBLASLT_EPILOGUE_RELU,
            GemmEpilogue::BiasRelu => Epilogue::HIPBLASLT_EPILOGUE_RELU_BIAS,
            GemmEpilogue::GeluTanh => Epilogue::HIPBLASLT_EPILOGUE_GELU,
            GemmEpilogue::BiasGeluTanh => Epilogue::HIPBLASLT_EPILOGUE_GELU_BIAS,
        };
        made.set(Attribute::HIPBLASLT_MATMUL_DESC_EPILOGUE, epilogue.0, at)?;
        if let Some(bias) = matmul.bias {
            made.set(Attribute::HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, datatype(bias).0, at)?;
        }
        if matmul.scale == GemmScale::Columns {
            let mode = PointerMode::HIPBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST;
            made.set(Attribute::HIPBLASLT_MATMUL_DESC_POINTER_MODE, mode.0, at)?;
        }
        // Rows and columns as they are stored, column-major.
        let stored =
            |transposed: bool, rows: i32, columns: i32| if transposed { (columns, rows) } else { (rows, columns) };
        let matrices = [
            (
                gemm.rhs_dtype,
                stored(gemm.rhs_transposed, gemm.n, gemm.k),
                gemm.rhs_stride,
            ),
            (gemm.dtype, stored(gemm.lhs_transposed, gemm.k, gemm.m), gemm.lhs_stride),
            (gemm.out, (gemm.n, gemm.m), gemm.result_stride),
        ];
        for (layout, (dtype, (rows, columns), stride)) in made.layouts.iter_mut().zip(matrices) {
            let (dtype, rows, columns) = (datatype(dtype), rows as u64, columns as u64);
            // SAFETY: a place for the result.
            let status = unsafe { api.hipblasLtMatrixLayoutCreate(layout, dtype, rows, columns, rows.max(1) as i64) };
            library.check("hipblasLtMatrixLayoutCreate", status, at)?;
            if gemm.batch > 1 {
                let count = LayoutAttribute::HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
                let offset = LayoutAttribute::HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                // SAFETY: a layout that was made, and values of the attributes' own types.
                let set = unsafe {
                    [
                        api.hipblasLtMatrixLayoutSetAttribute(
                            *layout,
                            count,
                            (&raw const gemm.batch).cast(),
                            size_of::<i32>(),
                        ),
                        api.hipblasLtMatrixLayoutSetAttribute(
                            *layout,
                            offset,
                            (&raw const stride).cast(),
                            size_of::<i64>(),
                        ),
                    ]
                };
                for status in set {
                    library.check("hipblasLtMatrixLayoutSetAttribute", status, at)?;
                }
            }
        }
        // SAFETY: a place for the result.
        let status = unsafe { api.hipblasLtMatmulPreferenceCreate(&mut made.preference) };
        library.check("hipblasLtMatmulPreferenceCreate", status, at)?;
        let most = PreferenceAttribute::HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: a preference that was made, and a number of the attribute's own type.
        let status = unsafe {
            api.hipblasLtMatmulPreferenceSetAttribute(
                made.preference,
                most,
                (&raw const matmul.most_workspace).cast(),
                size_of::<u64>(),
            )
        };
        library.check("hipblasLtMatmulPreferenceSetAttribute", status, at)?;
        Ok(made)
    }

    /// Sets an attribute of the product whose type is `T`.
    fn set<T: Copy>(&self, attribute: Attribute, value: T, at: &str) -> Result<(), RuntimeError> {
        let api = self.library.api();
        // SAFETY: a description that was made, and a value of the attribute's own type, which the call copies.
        let status = unsafe {
            api.hipblasLtMatmulDescSetAttribute(self.product, attribute, (&raw const value).cast(), size_of::<T>())
        };
        self.library.check("hipblasLtMatmulDescSetAttribute", status, at)
    }

    fn set_bias(&self, address: u64, at: &str) -> Result<(), RuntimeError> {
        self.set(Attribute::HIPBLASLT_MATMUL_DESC_BIAS_POINTER, address, at)
    }

    /// Sets the one number that the sums are multiplied by.
    fn set_scale(&self, address: u64, at: &str) -> Result<(), RuntimeError> {
        self.set(Attribute::HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER, address, at)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let api = self.library.api();
        // SAFETY: these are this value's own, and this is their end. A failure leaves nothing to do.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = api.hipblasLtMatrixLayoutDestroy(layout);
            }
            if !self.preference.is_null() {
                let _ = api.hipblasLtMatmulPreferenceDestroy(self.preference);
            }
            if !self.product.is_null() {
                let _ = api.hipblasLtMatmulDescDestroy(self.product);
            }
        }
    }
}
