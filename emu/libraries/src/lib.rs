//! A library that stands between a program and rocBLAS, hipBLASLt and MIOpen: each call is counted and goes on to the
//! real library, or fails on request and does nothing.
//!
//! Under the name of such a library (`librocblas.so`, `libhipblaslt.so`, `libMIOpen.so`) it gives the functions that
//! graphc's runtime looks for. It knows no signatures: a function saves the registers that arguments come in, asks what
//! to do, and jumps. The real libraries are those that the dynamic loader finds. Tests steer it by [`graphc_fail`] and
//! read [`graphc_fail_calls`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// What stands for success in all of the libraries.
const SUCCESS: c_int = 0;
/// What [`graphc_fail`] and [`graphc_fail_calls`] give for what they cannot do.
const BAD: c_int = 1;

/// By the beginning of a function's name, the library that it is of.
const LIBRARIES: [(&str, &str); 3] = [
    ("rocblas", "librocblas.so.5"),
    ("hipblasLt", "libhipblaslt.so.1"),
    ("miopen", "libMIOpen.so.1"),
];

/// Calls and what is to become of them.
#[derive(Default)]
struct State {
    calls: BTreeMap<&'static CStr, u64>,
    /// The call that fails: the function, counted from 1, its status.
    fails: Option<(String, u64, c_int)>,
}

static STATE: Mutex<State> = Mutex::new(State {
    calls: BTreeMap::new(),
    fails: None,
});

thread_local! {
    /// The status of the call that fails now.
    static STATUS: Cell<c_int> = const { Cell::new(SUCCESS) };
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for a failure: the `number`-th call of a function from now on gives a status and does nothing. Null asks for
/// none. Calls are counted from 0 on.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_fail(name: *const c_char, number: u64, status: c_int) {
    let fails = (!name.is_null()).then(|| {
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr(name) };
        (name.to_string_lossy().into_owned(), number, status)
    });
    *state() = State {
        calls: BTreeMap::new(),
        fails,
    };
}

/// Writes how often each function was called since: `rocblas_set_stream 3`, a line each, by name. Gives 1 where `room`
/// is too small.
///
/// # Safety
/// `to` has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_fail_calls(to: *mut c_char, room: usize) -> c_int {
    let mut text = String::new();
    for (name, count) in &state().calls {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {count}", name.to_string_lossy());
    }
    if text.len() >= room {
        return BAD;
    }
    // SAFETY: there is room for the text and a zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

/// Counts a call and gives where it goes on: the real function, or one that gives the status that was asked for.
extern "C" fn next(name: *const c_char) -> *const c_void {
    // SAFETY: the functions below give their own names, which are static and end in a zero.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    let text = name.to_str().unwrap_or_default();
    let mut state = state();
    let count = state.calls.entry(name).or_default();
    *count += 1;
    let count = *count;
    if let Some((fails, number, status)) = &state.fails
        && fails == text
        && *number == count
    {
        STATUS.set(*status);
        return fail as *const c_void;
    }
    drop(state);
    match real(name, text) {
        Ok(function) => function,
        Err(error) => {
            eprintln!("graphc-emu-libraries: {text}: {error}");
            STATUS.set(BAD);
            fail as *const c_void
        }
    }
}

extern "C" fn fail() -> c_int {
    STATUS.get()
}

/// The function of the real library, which stays loaded.
fn real(name: &CStr, text: &str) -> Result<*const c_void, libloading::Error> {
    let of = LIBRARIES.iter().find(|(beginning, _)| text.starts_with(beginning));
    let file = of.map_or("", |(_, file)| *file);
    // SAFETY: a library of ROCm, which has no precondition; it may be loaded already.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }?;
    // SAFETY: an address, whose type is its caller's.
    let function = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) }?.as_raw_ptr();
    std::mem::forget(library);
    Ok(function.cast_const())
}

/// Functions under the names of the libraries' own.
macro_rules! forward {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, counted or failed.")]
            ///
            /// # Safety
            /// As the library's own.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    // What arguments come in, and eight bytes that align the stack.
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "sub rsp, 128",
                    "movups [rsp], xmm0",
                    "movups [rsp + 16], xmm1",
                    "movups [rsp + 32], xmm2",
                    "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4",
                    "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6",
                    "movups [rsp + 112], xmm7",
                    "lea rdi, [rip + 2f]",
                    "call {next}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]",
                    "movups xmm1, [rsp + 16]",
                    "movups xmm2, [rsp + 32]",
                    "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]",
                    "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]",
                    "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    concat!("2: .asciz \"", stringify!($name), "\""),
                    next = sym next,
                )
            }
        )*
    };
}

/// The functions that graphc's runtime looks for.
mod functions {
    use super::next;

    forward! {
        rocblas_create_handle rocblas_destroy_handle rocblas_set_stream rocblas_get_stream rocblas_set_pointer_mode
        rocblas_set_atomics_mode rocblas_gemm_ex rocblas_gemm_batched_ex rocblas_gemm_strided_batched_ex
        rocblas_status_to_string rocblas_get_version_string rocblas_get_version_string_size
        rocblas_start_device_memory_size_query rocblas_stop_device_memory_size_query rocblas_set_workspace
        miopenGetErrorString miopenGetVersion miopenCreate miopenCreateWithStream miopenDestroy miopenSetStream
        miopenCreateTensorDescriptor miopenSetTensorDescriptor miopenDestroyTensorDescriptor
        miopenCreateConvolutionDescriptor miopenInitConvolutionNdDescriptor miopenSetConvolutionGroupCount
        miopenGetConvolutionNdForwardOutputDim miopenDestroyConvolutionDescriptor miopenSetConvolutionAttribute
        miopenConvolutionForwardGetSolutionCount miopenConvolutionForwardGetSolution
        miopenConvolutionForwardGetSolutionWorkspaceSize miopenConvolutionForwardCompileSolution
        miopenConvolutionForwardImmediate miopenConvolutionForwardGetWorkSpaceSize
        miopenFindConvolutionForwardAlgorithm miopenConvolutionForward miopenConvolutionForwardBias
        miopenCreatePoolingDescriptor miopenSetPoolingIndexType miopenSetPoolingWorkSpaceIndexMode
        miopenSetNdPoolingDescriptor miopenGetPoolingNdForwardOutputDim miopenPoolingGetWorkSpaceSizeV2
        miopenPoolingForward miopenDestroyPoolingDescriptor miopenDeriveBNTensorDescriptor
        miopenSoftmaxForward_V2 miopenSetConvolutionFindMode miopenGetConvolutionFindMode
        miopenBatchNormalizationForwardInference miopenCreateActivationDescriptor miopenSetActivationDescriptor
        miopenActivationForward miopenDestroyActivationDescriptor
        hipblasLtCreate hipblasLtGetVersion hipblasLtDestroy hipblasLtMatrixLayoutCreate hipblasLtMatrixLayoutDestroy
        hipblasLtMatrixLayoutSetAttribute hipblasLtMatmulDescCreate hipblasLtMatmulDescDestroy
        hipblasLtMatmulDescSetAttribute hipblasLtMatmulPreferenceCreate hipblasLtMatmulPreferenceDestroy
        hipblasLtMatmulPreferenceSetAttribute hipblasLtMatmulAlgoGetHeuristic hipblasLtMatmul
    }
}
