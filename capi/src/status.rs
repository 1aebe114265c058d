//! What a function says when it fails: a code to branch on, and a text to read.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use graphc::ErrorKind;

/// What kind of failure a status is: one of the GRAPHC_CODE_ constants.
pub type graphc_code = i32;

/// No failure: the code of a null status.
pub const GRAPHC_CODE_OK: graphc_code = 0;
/// An argument is null, no UTF-8, out of range, or of another kind than the function takes.
pub const GRAPHC_CODE_ARGUMENT: graphc_code = 1;
/// An option is unknown, or its value is none that it takes.
pub const GRAPHC_CODE_OPTION: graphc_code = 2;
/// A file cannot be read or written.
pub const GRAPHC_CODE_FILE: graphc_code = 3;
/// A model or an artifact is damaged, or asks for what graphc does not have.
pub const GRAPHC_CODE_MODEL: graphc_code = 4;
/// Inputs do not fit the model: a name, an element type, a shape, or an index in the data.
pub const GRAPHC_CODE_INPUT: graphc_code = 5;
/// A device, a library, a compiler or the code for a target is not there.
pub const GRAPHC_CODE_NOT_AVAILABLE: graphc_code = 6;
/// There is too little memory.
pub const GRAPHC_CODE_MEMORY: graphc_code = 7;
/// A device was waited for longer than the option "timeout" allows.
pub const GRAPHC_CODE_TIMEOUT: graphc_code = 8;
/// A device failed, or went away.
pub const GRAPHC_CODE_DEVICE: graphc_code = 9;
/// What is asked for is not supported.
pub const GRAPHC_CODE_UNSUPPORTED: graphc_code = 10;
/// A bug of graphc, a panic among them.
pub const GRAPHC_CODE_INTERNAL: graphc_code = 11;

/// A failure. Owned by whoever was given it, and freed with graphc_status_free. It never changes: several threads may
/// read it.
#[derive(Debug)]
pub struct graphc_status {
    code: graphc_code,
    message: CString,
}

/// Why a function failed, inside of this crate.
#[derive(Debug)]
pub struct Failure {
    pub code: graphc_code,
    pub message: String,
}

impl Failure {
    /// A failure that the caller's arguments cause.
    pub fn argument(message: impl Into<String>) -> Failure {
        Failure {
            code: GRAPHC_CODE_ARGUMENT,
            message: message.into(),
        }
    }

    /// A failure because something is not supported.
    pub fn unsupported(message: impl Into<String>) -> Failure {
        Failure {
            code: GRAPHC_CODE_UNSUPPORTED,
            message: message.into(),
        }
    }
}

impl From<graphc::Error> for Failure {
    fn from(error: graphc::Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Option => GRAPHC_CODE_OPTION,
            ErrorKind::File => GRAPHC_CODE_FILE,
            ErrorKind::Model => GRAPHC_CODE_MODEL,
            ErrorKind::Input => GRAPHC_CODE_INPUT,
            ErrorKind::NotAvailable => GRAPHC_CODE_NOT_AVAILABLE,
            ErrorKind::Memory => GRAPHC_CODE_MEMORY,
            ErrorKind::Timeout => GRAPHC_CODE_TIMEOUT,
            ErrorKind::Device => GRAPHC_CODE_DEVICE,
            ErrorKind::Unsupported => GRAPHC_CODE_UNSUPPORTED,
            ErrorKind::Mismatch | ErrorKind::Internal => GRAPHC_CODE_INTERNAL,
        };
        Failure {
            code,
            message: error.to_string(),
        }
    }
}

impl From<graphc::runtime::RuntimeError> for Failure {
    fn from(error: graphc::runtime::RuntimeError) -> Failure {
        graphc::Error::from(error).into()
    }
}

pub type Outcome<T> = Result<T, Failure>;

/// Makes a text for C. Texts with zero bytes, which C cannot have, lose them.
pub fn c_text(text: impl Into<String>) -> CString {
    let mut bytes = text.into().into_bytes();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// Runs the body of a function: its failure, or its panic, becomes a status.
pub fn guard(body: impl FnOnce() -> Outcome<()>) -> *mut graphc_status {
    // Nothing that a panic left half done is looked at again: locks are taken as poisoned ones, and new handles are
    // not handed out.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure {
            code: GRAPHC_CODE_INTERNAL,
            message: format!("a bug of graphc: it panicked: {}", panic_text(panic.as_ref())),
        },
    };
    Box::into_raw(Box::new(graphc_status {
        code: failure.code,
        message: c_text(failure.message),
    }))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// Reads a handle that must not be null.
///
/// # Safety
/// It is null or of a live value.
pub unsafe fn given<'a, T>(handle: *const T, name: &str) -> Outcome<&'a T> {
    // SAFETY: as the caller says.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(format!("{name} is null")))
}

/// Checks where a result goes, and sets it to null until there is one.
///
/// # Safety
/// It is null or may be written.
pub unsafe fn place<'a, T>(out: *mut *mut T, name: &str) -> Outcome<&'a mut *mut T> {
    // SAFETY: as the caller says.
    let out = unsafe { out.as_mut() }.ok_or_else(|| Failure::argument(format!("{name} is null")))?;
    *out = std::ptr::null_mut();
    Ok(out)
}

/// Hands a new value out.
pub fn hand_out<T>(out: &mut *mut T, value: T) {
    *out = Box::into_raw(Box::new(value));
}

/// Ends a handle's value. A panic while it ends stays inside.
///
/// # Safety
/// It is null or was handed out, and is not used again.
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as the caller says.
        let value = unsafe { Box::from_raw(handle) };
        drop(catch_unwind(AssertUnwindSafe(|| drop(value))));
    }
}

/// Returns what kind of failure a status is; GRAPHC_CODE_OK for null.
///
/// # Safety
/// `status` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_status_code(status: *const graphc_status) -> graphc_code {
    // SAFETY: as the caller says.
    unsafe { status.as_ref() }.map_or(GRAPHC_CODE_OK, |status| status.code)
}

/// Returns the text of a failure, which lives as long as the status; an empty text for null.
///
/// # Safety
/// `status` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_status_message(status: *const graphc_status) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { status.as_ref() }.map_or(c"".as_ptr(), |status| status.message.as_ptr())
}

/// Frees a status. Null is nothing.
///
/// # Safety
/// `status` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_status_free(status: *mut graphc_status) {
    // SAFETY: as the caller says.
    unsafe { free(status) };
}
