//! Failures as exceptions: the classes of `graphc.errors`.

use graphc_c::{
    Failure, GRAPHC_CODE_ARGUMENT, GRAPHC_CODE_DEVICE, GRAPHC_CODE_FILE, GRAPHC_CODE_INPUT, GRAPHC_CODE_MEMORY,
    GRAPHC_CODE_MODEL, GRAPHC_CODE_NOT_AVAILABLE, GRAPHC_CODE_OPTION, GRAPHC_CODE_TIMEOUT, GRAPHC_CODE_UNSUPPORTED,
};
use pyo3::prelude::*;

/// A failure on its way to Python.
pub struct Fault(Failure);

impl<E: Into<Failure>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault(error.into())
    }
}

pub type Outcome<T> = Result<T, Fault>;

impl From<Fault> for PyErr {
    fn from(Fault(failure): Fault) -> PyErr {
        let class = match failure.code {
            GRAPHC_CODE_ARGUMENT => "ArgumentError",
            GRAPHC_CODE_OPTION => "OptionError",
            GRAPHC_CODE_FILE => "FileError",
            GRAPHC_CODE_MODEL => "ModelError",
            GRAPHC_CODE_INPUT => "InputError",
            GRAPHC_CODE_NOT_AVAILABLE => "NotAvailableError",
            GRAPHC_CODE_MEMORY => "OutOfMemoryError",
            GRAPHC_CODE_TIMEOUT => "TimeoutError",
            GRAPHC_CODE_DEVICE => "DeviceError",
            GRAPHC_CODE_UNSUPPORTED => "UnsupportedError",
            _ => "InternalError",
        };
        Python::attach(|py| {
            let made = py
                .import("graphc.errors")
                .and_then(|errors| errors.getattr(class)?.call1((failure.message,)));
            made.map_or_else(|error| error, PyErr::from_value)
        })
    }
}
