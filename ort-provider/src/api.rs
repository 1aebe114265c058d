//! ONNX Runtime's functions as Rust calls them: results for statuses, strings for pointers; and the way back, where
//! results become statuses and panics end.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ort_sys::{
    OrtApi, OrtApiBase, OrtErrorCode, OrtKeyValuePairs, OrtLogger, OrtLoggingLevel, OrtModelEditorApi,
    OrtSessionOptions, OrtStatusPtr,
};

use crate::abi::{API_VERSION, OrtEpApi};
use crate::error::{ProviderError, Result};

/// ONNX Runtime's tables, which live as long as the process.
#[derive(Clone, Copy)]
pub struct Api {
    pub ort: &'static OrtApi,
    pub ep: &'static OrtEpApi,
    pub editor: &'static OrtModelEditorApi,
}

/// The oldest table that has the two functions of statuses as all later ones do.
const OLDEST: u32 = 17;

/// Success.
pub const fn ok() -> OrtStatusPtr {
    OrtStatusPtr(ptr::null_mut())
}

impl Api {
    /// Gets the tables.
    ///
    /// # Errors
    /// A status that says which version there is, where it is too old.
    ///
    /// # Safety
    /// `base` is ONNX Runtime's.
    pub unsafe fn of(base: *const OrtApiBase) -> std::result::Result<Api, OrtStatusPtr> {
        // SAFETY: the base table is the caller's promise; tables that are not null live as long as the library.
        unsafe {
            if let Some(ort) = ((*base).GetApi)(API_VERSION).as_ref() {
                let ep = (ort.GetEpApi)().cast::<OrtEpApi>().as_ref();
                let editor = (ort.GetModelEditorApi)().as_ref();
                if let (Some(ep), Some(editor)) = (ep, editor) {
                    return Ok(Api { ort, ep, editor });
                }
            }
            let version = text(((*base).GetVersionString)());
            let message = format!("graphc's provider needs ONNX Runtime 1.{API_VERSION} or later; this is {version}");
            match ((*base).GetApi)(OLDEST).as_ref() {
                Some(old) => Err(status_of(old, OrtErrorCode::ORT_NOT_IMPLEMENTED, &message)),
                None => Err(ok()),
            }
        }
    }

    /// Turns a status into a result, and frees it.
    ///
    /// # Errors
    /// The status's message.
    pub fn check(&self, function: &'static str, status: OrtStatusPtr) -> Result<()> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the status is not null, is ours, and is freed once.
        let message = unsafe {
            let message = text((self.ort.GetErrorMessage)(status.0));
            (self.ort.ReleaseStatus)(status.0);
            message
        };
        Err(ProviderError::OnnxRuntime { function, message })
    }

    /// Runs what ONNX Runtime calls: errors and panics become statuses.
    pub fn guard(&self, body: impl FnOnce() -> Result<()>) -> OrtStatusPtr {
        // State behind locks is given up by poisoning, which those who lock it look at.
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => ok(),
            Ok(Err(error)) => status_of(self.ort, error.code(), &error.to_string()),
            Err(panic) => {
                let message = format!("graphc: a bug: {}", panic_text(&*panic));
                status_of(self.ort, OrtErrorCode::ORT_RUNTIME_EXCEPTION, &message)
            }
        }
    }

    /// All configuration entries of a session, provider options among them.
    ///
    /// # Errors
    /// Errors of ONNX Runtime.
    ///
    /// # Safety
    /// `options` are a session's.
    pub unsafe fn session_entries(&self, options: *const OrtSessionOptions) -> Result<Vec<(String, String)>> {
        let mut pairs: *mut OrtKeyValuePairs = ptr::null_mut();
        // SAFETY: the options are the caller's promise; the pairs are ours to free, after they were copied.
        unsafe {
            let status = (self.ort.GetSessionOptionsConfigEntries)(options, &mut pairs);
            self.check("GetSessionOptionsConfigEntries", status)?;
            let entries = self.pairs(pairs);
            (self.ort.ReleaseKeyValuePairs)(pairs);
            Ok(entries)
        }
    }

    /// Copies pairs.
    ///
    /// # Safety
    /// `pairs` are null or valid.
    unsafe fn pairs(&self, pairs: *const OrtKeyValuePairs) -> Vec<(String, String)> {
        if pairs.is_null() {
            return Vec::new();
        }
        let (mut keys, mut values, mut count) = (ptr::null(), ptr::null(), 0usize);
        // SAFETY: both arrays have `count` strings, which live as long as the pairs.
        unsafe {
            (self.ort.GetKeyValuePairs)(pairs, &mut keys, &mut values, &mut count);
            (0..count).map(|i| (text(*keys.add(i)), text(*values.add(i)))).collect()
        }
    }
}

/// Where messages go.
#[derive(Clone, Copy)]
pub struct Logger {
    api: Api,
    logger: *const OrtLogger,
}

// SAFETY: ONNX Runtime's loggers may be used from any thread.
unsafe impl Send for Logger {}
// SAFETY: as above.
unsafe impl Sync for Logger {}

impl Logger {
    /// # Safety
    /// `logger` outlives this value.
    pub unsafe fn new(api: Api, logger: *const OrtLogger) -> Logger {
        Logger { api, logger }
    }

    pub fn info(&self, message: &str) {
        self.log(OrtLoggingLevel::ORT_LOGGING_LEVEL_INFO, message);
    }

    pub fn warn(&self, message: &str) {
        self.log(OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING, message);
    }

    fn log(&self, level: OrtLoggingLevel, message: &str) {
        if self.logger.is_null() {
            return;
        }
        let message = c_string(message);
        // SAFETY: the logger lives, and the strings are copied. A message that cannot be logged is left out.
        unsafe {
            let (file, function) = (c"graphc", c"graphc");
            let log = self.api.ort.Logger_LogMessage;
            let status = log(
                self.logger,
                level,
                message.as_ptr(),
                file.as_ptr(),
                0,
                function.as_ptr(),
            );
            if !status.0.is_null() {
                (self.api.ort.ReleaseStatus)(status.0);
            }
        }
    }
}

/// Copies a C string; null is empty.
///
/// # Safety
/// `pointer` is null or a string that ends with 0.
pub unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A C string, cut at a zero in the text.
pub fn c_string(text: &str) -> CString {
    let bytes = text.split('\0').next().unwrap_or_default();
    CString::new(bytes).unwrap_or_default()
}

fn status_of(ort: &OrtApi, code: OrtErrorCode, message: &str) -> OrtStatusPtr {
    let message = c_string(message);
    // SAFETY: the message is copied.
    unsafe { (ort.CreateStatus)(code, message.as_ptr()) }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
