//! rocBLAS's own names and numbers.

use super::Rocm;
use std::ffi::{c_int, c_void};

pub const LIBRARY: &str = "librocblas.so.5";
pub const OK: c_int = 0;
pub const NONE: c_int = 111;
pub const TRANSPOSED: c_int = 112;
pub const UPPER: c_int = 121;
pub const LOWER: c_int = 122;
pub const NON_UNIT: c_int = 131;
pub const UNIT: c_int = 132;

pub type Handle = *mut c_void;

/// `rocblas_gemm_ex`.
pub type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    i32,
    u32,
) -> c_int;

/// rocBLAS with one handle.
pub struct Blas {
    pub rocm: Rocm,
    pub handle: Handle,
}

impl Blas {
    /// Opens the library and makes a handle.
    pub fn open() -> Blas {
        let rocm = Rocm::open(LIBRARY);
        let mut handle = std::ptr::null_mut();
        let create: unsafe extern "C" fn(*mut Handle) -> c_int = rocm.symbol("rocblas_create_handle");
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut handle) }, OK);
        Blas { rocm, handle }
    }
}
