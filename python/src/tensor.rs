//! Tensors between graphc and Python: by addresses (NumPy) and by DLPack's capsules.

use std::ffi::{CStr, c_void};

use graphc::ir::{DType, HostTensor, Storage};
use graphc::runtime::{Given, Value};
use graphc_c::dlpack::{self, DLManagedTensor, DLManagedTensorVersioned};
use graphc_c::{Borrowed, Failure, is_aligned};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Fault, Outcome};
use crate::session::Session;

/// A tensor, dense and row by row, on the host or on a device. Its values never change.
#[pyclass(frozen, module = "graphc")]
pub struct Tensor {
    value: Value,
}

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

impl Tensor {
    pub fn new(value: Value) -> Tensor {
        Tensor { value }
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The tensor as an input of a run; nothing is copied.
    pub fn given(&self) -> Given {
        self.value.clone().into()
    }

    fn ty(&self) -> (DType, &[usize]) {
        match &self.value {
            Value::Host(tensor) => (tensor.dtype, &tensor.shape),
            Value::Device(tensor) => (tensor.dtype(), tensor.shape()),
        }
    }
}

#[pymethods]
impl Tensor {
    /// Makes a tensor of memory that `owner` keeps, which must not change meanwhile; copied where the address is no
    /// multiple of the element's size. Only for `graphc`'s own files, which know what lies there.
    #[staticmethod]
    fn from_memory(
        address: usize,
        bytes: usize,
        dtype: &str,
        shape: Vec<usize>,
        owner: Py<PyAny>,
    ) -> Result<Tensor, Fault> {
        let dtype: DType = dtype
            .parse()
            .map_err(|_| Failure::argument(format!("there is no element type {dtype:?}")))?;
        let address = address as *const u8;
        // Any thread may let go of it: Python counts it down when its lock is next taken.
        let release = Box::new(move || drop(owner));
        // SAFETY: the caller gives an address that its owner keeps.
        let borrowed = unsafe { Borrowed::new(address, bytes, release) };
        let bytes = match is_aligned(address, dtype) {
            true => Storage::new(borrowed),
            false => Storage::new(borrowed.as_ref().to_vec()),
        };
        let tensor = HostTensor::new(dtype, shape, bytes);
        let tensor = tensor.map_err(|error| Failure::argument(error.to_string()))?;
        Ok(Tensor::new(Value::Host(tensor)))
    }

    /// Makes a tensor of a DLPack capsule, which is used up; memory of a GPU needs the session that it is for.
    #[staticmethod]
    fn from_capsule(capsule: &Bound<'_, PyAny>, session: Option<&Session>) -> Result<Tensor, PyErr> {
        let session = session.map(Session::inner);
        let is = |name: &CStr| {
            // SAFETY: any object may be asked.
            unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1 }
        };
        let pointer = |name: &CStr| {
            // SAFETY: it is a capsule of that name.
            unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) }
        };
        let (value, used) = if is(VERSIONED) {
            let managed = pointer(VERSIONED).cast::<DLManagedTensorVersioned>();
            // SAFETY: such a capsule has such a structure.
            let value = unsafe { dlpack::take_versioned(managed, session) };
            (value, c"used_dltensor_versioned")
        } else if is(UNVERSIONED) {
            let managed = pointer(UNVERSIONED).cast::<DLManagedTensor>();
            // SAFETY: as above.
            let value = unsafe { dlpack::take_unversioned(managed, session) };
            (value, c"used_dltensor")
        } else {
            let failure = Failure::argument("this is no DLPack capsule, or one that was used already");
            return Err(Fault::from(failure).into());
        };
        let value = value.map_err(Fault::from)?;
        // SAFETY: it is a capsule, and the name lives for ever.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) };
        Ok(Tensor::new(value))
    }

    /// Makes a DLPack capsule of the values, which are not copied.
    fn to_capsule(&self, py: Python<'_>, versioned: bool, read_only: bool) -> Result<Py<PyAny>, PyErr> {
        let value = self.value.clone();
        // Addresses go through the lock's release, pointers may not.
        let lend = || match versioned {
            true => dlpack::lend_versioned(value, read_only).map(|managed| managed as usize),
            false => dlpack::lend_unversioned(value).map(|managed| managed as usize),
        };
        let managed = py.detach(lend).map_err(Fault::from)? as *mut c_void;
        // SAFETY: the destructors are for what the names say.
        let capsule = unsafe {
            match versioned {
                true => ffi::PyCapsule_New(managed, VERSIONED.as_ptr(), Some(end_versioned)),
                false => ffi::PyCapsule_New(managed, UNVERSIONED.as_ptr(), Some(end_unversioned)),
            }
        };
        // SAFETY: a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.ty().0.name()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.ty().1.to_vec()
    }

    #[getter]
    fn device(&self) -> String {
        match &self.value {
            Value::Host(_) => "cpu".to_owned(),
            Value::Device(tensor) => tensor.device().to_owned(),
        }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        match &self.value {
            Value::Host(tensor) => tensor.bytes.len(),
            Value::Device(tensor) => tensor.bytes(),
        }
    }

    /// The address of the bytes on the host; waits for the run that makes them.
    fn address(&self, py: Python<'_>) -> Result<usize, Fault> {
        match &self.value {
            Value::Host(tensor) => Ok(tensor.bytes.as_ptr() as usize),
            Value::Device(tensor) if tensor.device() == "cpu" => {
                py.detach(|| tensor.wait())?;
                Ok(tensor.address() as usize)
            }
            Value::Device(tensor) => Err(Failure::unsupported(format!(
                "the tensor is on {}; Tensor.host() copies it to the host",
                tensor.device()
            ))
            .into()),
        }
    }

    /// Returns the tensor on the host; one of a GPU is copied.
    fn host(&self, py: Python<'_>) -> Result<Tensor, Fault> {
        let value = self.value.clone();
        Ok(Tensor::new(Value::Host(py.detach(|| value.into_host())?)))
    }

    /// Returns the values as a NumPy array, which shares them and must not be written.
    fn numpy<'py>(slf: &Bound<'py, Tensor>) -> Result<Bound<'py, PyAny>, PyErr> {
        arrays(slf.py())?.call_method1("to_numpy", (slf,))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Tensor>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, PyErr> {
        arrays(slf.py())?.call_method1("as_array", (slf, dtype, copy))
    }

    /// Lends the values to another framework by DLPack; nothing is copied unless `copy` asks for it.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Tensor>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, PyErr> {
        arrays(slf.py())?.call_method1("to_dlpack", (slf, stream, max_version, dl_device, copy))
    }

    fn __dlpack_device__<'py>(slf: &Bound<'py, Tensor>) -> Result<Bound<'py, PyAny>, PyErr> {
        arrays(slf.py())?.call_method1("dlpack_device", (slf,))
    }

    fn __repr__(&self) -> String {
        let (dtype, shape) = self.ty();
        format!("<graphc.Tensor {dtype}{shape:?} on {}>", self.device())
    }
}

/// What Python does with arrays.
fn arrays(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("graphc._arrays")
}

/// Ends what a capsule holds, unless somebody took it over.
unsafe extern "C" fn end_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls it with the capsule; a used one has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast::<DLManagedTensorVersioned>();
            if let Some(delete) = (*managed).deleter {
                delete(managed);
            }
        }
    }
}

/// The same, of the structure before version 1.
unsafe extern "C" fn end_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast::<DLManagedTensor>();
            if let Some(delete) = (*managed).deleter {
                delete(managed);
            }
        }
    }
}

/// Values by name, in an order.
pub fn by_name<'py>(
    py: Python<'py>,
    values: impl IntoIterator<Item = (String, Value)>,
) -> Result<Bound<'py, PyDict>, PyErr> {
    let all = PyDict::new(py);
    for (name, value) in values {
        all.set_item(name, Tensor::new(value))?;
    }
    Ok(all)
}

/// Tensors on the host.
pub fn hosts(inputs: Vec<(String, Given)>) -> Outcome<indexmap::IndexMap<String, HostTensor>> {
    let host = |given: Given| match given {
        Given::Host(tensor) => Ok(tensor),
        Given::Device(tensor) | Given::Donated(tensor) => tensor.download(),
    };
    inputs
        .into_iter()
        .map(|(name, given)| Ok((name, host(given)?)))
        .collect()
}
