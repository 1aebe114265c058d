//! rocBLAS: plain and batched matrix products (`rocblas_gemm_strided_batched_ex`), also of signed bytes with sums of 32
//! bits.
//!
//! rocBLAS is column-major. A row-major `[m, n]` is the column-major `n × m` of the same bytes, so `C = A · B` is asked
//! for as `Cᵀ = Bᵀ · Aᵀ`: the right operand goes first, and nothing is copied.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use dylib::Search;
use ir::dim::Bindings;
use ir::library::{Library, LibraryCall};
use ir::op::Contract;
use ir::{DType, TensorType};
use rocblas_sys::{
    RocblasLibrary, rocblas_atomics_mode, rocblas_datatype, rocblas_gemm_algo_, rocblas_handle, rocblas_operation_,
    rocblas_status, rocblas_status_,
};

use super::Opened;
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;

/// The library.
pub(crate) struct Rocblas(Opened<RocblasLibrary>);

impl Rocblas {
    /// Opens rocBLAS. A GPU must have been found: without one the library ends the process.
    pub fn open(search: &Search, at: &str, device: &str) -> Result<Rocblas, RuntimeError> {
        Opened::new(rocblas_sys::load(search), "rocBLAS", "products", at, device).map(Rocblas)
    }

    fn api(&self) -> &RocblasLibrary {
        &self.0.api
    }

    fn check(&self, call: &str, status: rocblas_status, at: impl FnOnce() -> String) -> Result<(), RuntimeError> {
        if status == rocblas_status_::rocblas_status_success {
            return Ok(());
        }
        // SAFETY: the function gives a static string for every number.
        let text = unsafe { self.api().rocblas_status_to_string(status) };
        Err(self.0.failed(call, status.0, text, at()))
    }
}

/// A handle, which serves one run at a time.
pub(crate) struct Handle {
    library: Arc<Rocblas>,
    raw: rocblas_handle,
}

// SAFETY: a handle may be used by any thread, one at a time; whoever runs has its context to itself.
unsafe impl Send for Handle {}

impl Handle {
    /// Makes a handle for the device that the thread has entered.
    pub fn new(library: &Arc<Rocblas>) -> Result<Handle, RuntimeError> {
        let mut raw = null_mut();
        // SAFETY: a place for the result; there is a device.
        let status = unsafe { library.api().rocblas_create_handle(&mut raw) };
        library.check("rocblas_create_handle", status, || "loading the program".into())?;
        let handle = Handle {
            library: library.clone(),
            raw,
        };
        // The same inputs give the same bits.
        let mode = rocblas_atomics_mode::rocblas_atomics_not_allowed;
        // SAFETY: the handle is alive.
        let status = unsafe { library.api().rocblas_set_atomics_mode(raw, mode) };
        library.check("rocblas_set_atomics_mode", status, || "loading the program".into())?;
        Ok(handle)
    }

    /// Enqueues a product.
    pub fn gemm(
        &self,
        gemm: &Gemm,
        lhs: u64,
        rhs: u64,
        result: u64,
        stream: RawStream,
        at: impl Fn() -> String,
    ) -> Result<(), RuntimeError> {
        let api = self.library.api();
        // SAFETY: the handle and the stream are alive and of one device.
        let status = unsafe { api.rocblas_set_stream(self.raw, stream.0.cast()) };
        self.library.check("rocblas_set_stream", status, &at)?;
        // Scalars are of the computing type and, by default, in the host's memory.
        let (one, zero) = match gemm.compute {
            DType::F64 => (
                (&raw const ONE_F64).cast::<c_void>(),
                (&raw const ZERO_F64).cast::<c_void>(),
            ),
            DType::I32 => ((&raw const ONE_I32).cast(), (&raw const ZERO_I32).cast()),
            _ => ((&raw const ONE_F32).cast(), (&raw const ZERO_F32).cast()),
        };
        let (kind, stored, compute) = (datatype(gemm.dtype), datatype(gemm.out), datatype(gemm.compute));
        // SAFETY: the operands lie in memory that holds the sizes, strides and batch that they were prepared with,
        // until the run was waited for; D is C.
        let status = unsafe {
            api.rocblas_gemm_strided_batched_ex(
                self.raw,
                operation(gemm.rhs_transposed),
                operation(gemm.lhs_transposed),
                gemm.n,
                gemm.m,
                gemm.k,
                one,
                rhs as *const c_void,
                kind,
                if gemm.rhs_transposed { gemm.k } else { gemm.n },
                gemm.rhs_stride,
                lhs as *const c_void,
                kind,
                if gemm.lhs_transposed { gemm.m } else { gemm.k },
                gemm.lhs_stride,
                zero,
                result as *const c_void,
                stored,
                gemm.n,
                gemm.result_stride,
                result as *mut c_void,
                stored,
                gemm.n,
                gemm.result_stride,
                gemm.batch,
                compute,
                rocblas_gemm_algo_::rocblas_gemm_algo_standard,
                0,
                0,
            )
        };
        self.library.check("rocblas_gemm_strided_batched_ex", status, at)
    }
}

static ONE_F32: f32 = 1.0;
static ZERO_F32: f32 = 0.0;
static ONE_F64: f64 = 1.0;
static ZERO_F64: f64 = 0.0;
static ONE_I32: i32 = 1;
static ZERO_I32: i32 = 0;

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own, and this is its end. A failure leaves nothing to do.
        let _ = unsafe { self.library.api().rocblas_destroy_handle(self.raw) };
    }
}

fn operation(transposed: bool) -> rocblas_operation_ {
    if transposed {
        rocblas_operation_::rocblas_operation_transpose
    } else {
        rocblas_operation_::rocblas_operation_none
    }
}

fn datatype(dtype: DType) -> rocblas_datatype {
    match dtype {
        DType::F16 => rocblas_datatype::rocblas_datatype_f16_r,
        DType::BF16 => rocblas_datatype::rocblas_datatype_bf16_r,
        DType::F64 => rocblas_datatype::rocblas_datatype_f64_r,
        DType::I8 => rocblas_datatype::rocblas_datatype_i8_r,
        DType::I32 => rocblas_datatype::rocblas_datatype_i32_r,
        _ => rocblas_datatype::rocblas_datatype_f32_r,
    }
}

/// A product of row-major operands: `batch` times `[m, k] · [k, n]`, either operand possibly stored transposed. Strides
/// are in elements; 0 repeats one matrix.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Gemm {
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub batch: i32,
    pub lhs_stride: i64,
    pub rhs_stride: i64,
    pub result_stride: i64,
    pub lhs_transposed: bool,
    pub rhs_transposed: bool,
    /// Of the left operand, and of the right one but for 8-bit floats.
    pub dtype: DType,
    pub rhs_dtype: DType,
    /// Of the result.
    pub out: DType,
    compute: DType,
}

impl Gemm {
    /// Restates a contraction at some sizes; None where the result has no elements.
    ///
    /// # Errors
    /// Types that the call's library is not asked for here, a batch that broadcasts along some axes only, sizes beyond
    /// 32 bits.
    pub fn new(
        call: &LibraryCall,
        contract: &Contract,
        [lhs, rhs, result]: [&TensorType; 3],
        bindings: &Bindings,
        at: &str,
    ) -> Result<Option<Gemm>, RuntimeError> {
        let refuse = |what: String| RuntimeError::Unsupported {
            what: format!("{} of {what}", call.name()),
            at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
        };
        let compute = match lhs.dtype {
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            DType::F64 if call.library == Library::RocBlas => DType::F64,
            DType::I8 if call.library == Library::RocBlas => DType::I32,
            dtype if dtype.is_f8() && call.library == Library::HipBlasLt => DType::F32,
            other => return Err(refuse(format!("{other}"))),
        };
        let takes = match lhs.dtype {
            dtype if dtype.is_f8() => {
                rhs.dtype.is_f8() && matches!(result.dtype, DType::F32 | DType::F16 | DType::BF16)
            }
            dtype => rhs.dtype == dtype && result.dtype == if compute == DType::I32 { compute } else { dtype },
        };
        if !takes {
            return Err(refuse(format!("{lhs} and {rhs} to {result}")));
        }
        let (l, r) = (lhs.shape.eval(bindings)?, rhs.shape.eval(bindings)?);
        let (Some((l_batch, &[l0, l1])), Some((r_batch, &[r0, r1]))) = (split(&l), split(&r)) else {
            return Err(refuse(format!("{lhs} and {rhs}")));
        };
        let (mut m, k) = if contract.transpose_lhs { (l1, l0) } else { (l0, l1) };
        let n = if contract.transpose_rhs { r0 } else { r1 };
        let (l_count, r_count): (i64, i64) = (l_batch.iter().product(), r_batch.iter().product());
        let mut batch = l_count.max(r_count);
        if r_count == 1 && !contract.transpose_lhs {
            // One right operand for all: the batch is more rows.
            (m, batch) = (m * l_count, 1);
        } else if l_count != 1 && r_count != 1 && l_batch != r_batch {
            return Err(refuse(format!(
                "a batch that broadcasts along some axes: {lhs} and {rhs}"
            )));
        }
        let count = result.elements().eval(bindings)?;
        if count == 0 || batch * m * n == 0 {
            return Ok(None);
        }
        if count != batch * m * n {
            return Err(refuse(format!("{lhs} and {rhs} to {result}")));
        }
        let word = |size: i64| i32::try_from(size).map_err(|_| refuse(format!("a size of {size}")));
        let stride = |own: i64, size: i64| if own == 1 && batch > 1 { 0 } else { size };
        Ok(Some(Gemm {
            m: word(m)?,
            n: word(n)?,
            k: word(k)?,
            batch: word(batch)?,
            lhs_stride: stride(l_count, m * k),
            rhs_stride: stride(r_count, k * n),
            result_stride: m * n,
            lhs_transposed: contract.transpose_lhs,
            rhs_transposed: contract.transpose_rhs,
            dtype: lhs.dtype,
            rhs_dtype: rhs.dtype,
            out: result.dtype,
            compute,
        }))
    }
}

fn split(shape: &[i64]) -> Option<(&[i64], &[i64; 2])> {
    shape.split_last_chunk::<2>()
}

#[cfg(test)]
mod tests {
    use ir::library::{GemmEpilogue, GemmScale, LibraryOp};

    use super::*;

    fn gemm(lhs: &[i64], rhs: &[i64], transpose_lhs: bool, transpose_rhs: bool) -> Result<Option<Gemm>, RuntimeError> {
        let ty = |shape: &[i64]| TensorType::new(DType::F16, shape.to_vec());
        let contract = Contract {
            transpose_lhs,
            transpose_rhs,
            out: DType::F16,
        };
        let (a, b) = (split(lhs).unwrap(), split(rhs).unwrap());
        let (m, n) = (a.1[usize::from(transpose_lhs)], b.1[usize::from(!transpose_rhs)]);
        let batch = if a.0.len() >= b.0.len() { a.0 } else { b.0 };
        let result = [batch, &[m, n]].concat();
        let call = LibraryCall {
            library: Library::RocBlas,
            op: LibraryOp::Gemm {
                contract,
                scale: GemmScale::None,
                epilogue: GemmEpilogue::None,
            },
        };
        Gemm::new(
            &call,
            &contract,
            [&ty(lhs), &ty(rhs), &ty(&result)],
            &Bindings::default(),
            "s0",
        )
    }

    fn facts(g: &Gemm) -> ([i32; 4], [i64; 3]) {
        ([g.m, g.n, g.k, g.batch], [g.lhs_stride, g.rhs_stride, g.result_stride])
    }

    #[test]
    fn shapes_are_restated() {
        let plain = gemm(&[5, 7], &[7, 3], false, false).unwrap().unwrap();
        assert_eq!(facts(&plain), ([5, 3, 7, 1], [35, 21, 15]));
        assert_eq!((plain.dtype, plain.compute), (DType::F16, DType::F32));
        let transposed = gemm(&[7, 5], &[3, 7], true, true).unwrap().unwrap();
        assert_eq!(facts(&transposed), ([5, 3, 7, 1], [35, 21, 15]));
        let shared = gemm(&[2, 4, 5, 7], &[7, 3], false, false).unwrap().unwrap();
        assert_eq!(facts(&shared).0, [40, 3, 7, 1], "the batch is more rows");
        let repeated = gemm(&[2, 7, 5], &[7, 3], true, false).unwrap().unwrap();
        assert_eq!(
            facts(&repeated),
            ([5, 3, 7, 2], [35, 0, 15]),
            "the right operand is repeated"
        );
        let batched = gemm(&[2, 4, 5, 7], &[2, 4, 7, 3], false, false).unwrap().unwrap();
        assert_eq!(facts(&batched), ([5, 3, 7, 8], [35, 21, 15]));
        assert_eq!(gemm(&[0, 7], &[7, 3], false, false).unwrap(), None);
        assert_eq!(
            facts(&gemm(&[5, 0], &[0, 3], false, false).unwrap().unwrap()).0,
            [5, 3, 0, 1]
        );
    }

    #[test]
    fn bytes_are_summed_in_32_bits() {
        let bytes = TensorType::new(DType::I8, vec![5, 5]);
        let gemm = |library: Library, out: DType| {
            let contract = Contract {
                transpose_lhs: false,
                transpose_rhs: false,
                out,
            };
            let op = LibraryOp::Gemm {
                contract,
                scale: GemmScale::None,
                epilogue: GemmEpilogue::None,
            };
            let result = TensorType::new(out, vec![5, 5]);
            let call = LibraryCall { library, op };
            Gemm::new(&call, &contract, [&bytes, &bytes, &result], &Bindings::default(), "s0")
        };
        let made = gemm(Library::RocBlas, DType::I32).unwrap().unwrap();
        assert_eq!(
            (made.dtype, made.out, made.compute),
            (DType::I8, DType::I32, DType::I32)
        );
        for (library, out) in [(Library::RocBlas, DType::I8), (Library::HipBlasLt, DType::I32)] {
            let error = gemm(library, out).unwrap_err().to_string();
            assert!(error.contains("i8") && error.contains("--no-libraries"), "{error}");
        }
    }

    #[test]
    fn what_it_does_not_take_is_refused_with_the_way_out() {
        for error in [
            gemm(&[2, 1, 5, 7], &[1, 4, 7, 3], false, false),
            gemm(&[1 << 33, 7], &[7, 1], false, false),
        ] {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("--no-libraries"), "{text}");
        }
    }
}
