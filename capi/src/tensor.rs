//! Tensors: of copied or borrowed memory of the host, of DLPack, and of runs.

use std::ffi::{CString, c_char, c_void};

use graphc::ir::{DType, HostTensor, Storage};
use graphc::runtime::{DeviceTensor, Given, Value};

use crate::dlpack;
use crate::dlpack::{DLManagedTensor, DLManagedTensorVersioned};
use crate::dtype::{graphc_dtype, number, of_number};
use crate::session::graphc_session;
use crate::status::{Failure, Outcome, c_text, free, given, graphc_status, guard, hand_out, place};

/// A tensor, dense and row by row. Its values never change, so several threads may read it and give it to runs.
pub struct graphc_tensor {
    pub(crate) value: Value,
    shape: Vec<i64>,
    device: CString,
}

/// What a tensor is. Pointers live as long as the tensor.
#[repr(C)]
pub struct graphc_tensor_info {
    pub dtype: graphc_dtype,
    /// How many sizes the shape has; 0 for a scalar.
    pub rank: usize,
    pub shape: *const i64,
    /// The bytes of all elements; 4-bit types take half a byte each, rounded up.
    pub bytes: usize,
    /// "cpu", "hip:0", "cuda:1".
    pub device: *const c_char,
}

/// Lets borrowed memory go.
pub type graphc_release = Option<unsafe extern "C" fn(context: *mut c_void)>;

impl graphc_tensor {
    pub(crate) fn new(value: Value) -> graphc_tensor {
        let (shape, device): (&[usize], &str) = match &value {
            Value::Host(tensor) => (&tensor.shape, "cpu"),
            Value::Device(tensor) => (tensor.shape(), tensor.device()),
        };
        graphc_tensor {
            shape: shape.iter().map(|size| *size as i64).collect(),
            device: c_text(device),
            value,
        }
    }

    fn dtype(&self) -> DType {
        match &self.value {
            Value::Host(tensor) => tensor.dtype,
            Value::Device(tensor) => tensor.dtype(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.value {
            Value::Host(tensor) => tensor.bytes.len(),
            Value::Device(tensor) => tensor.bytes(),
        }
    }

    /// The tensor as an input of a run; nothing is copied.
    pub(crate) fn given(&self) -> Given {
        self.value.clone().into()
    }

    /// The tensor on the host.
    pub(crate) fn host(&self) -> Outcome<HostTensor> {
        Ok(self.value.clone().into_host()?)
    }
}

/// Memory of the host that something else owns, until its last user lets it go.
pub struct Borrowed {
    address: *const u8,
    len: usize,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

// SAFETY: the memory does not change while it is borrowed, and whoever lent it lets it be released by any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Borrows memory; `release` runs when nobody uses it any more.
    ///
    /// # Safety
    /// `len` bytes are at `address` and do not change until then; `address` may be anything where there are none.
    pub unsafe fn new(address: *const u8, len: usize, release: Box<dyn FnOnce() + Send + Sync>) -> Borrowed {
        Borrowed {
            address,
            len,
            release: Some(release),
        }
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: as `Borrowed::new` was told.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// A pointer that may go to another thread.
pub(crate) struct Anywhere(pub *mut c_void);

// SAFETY: it is handed back to whoever gave it, who allows any thread.
unsafe impl Send for Anywhere {}
// SAFETY: as above.
unsafe impl Sync for Anywhere {}

/// Says whether kernels can read elements where they lie.
pub fn is_aligned(address: *const u8, dtype: DType) -> bool {
    (address as usize).is_multiple_of((dtype.bits() as usize).div_ceil(8))
}

/// Reads a shape, and checks that the bytes given are those that it takes.
unsafe fn layout(dtype: graphc_dtype, shape: *const i64, rank: usize, bytes: usize) -> Outcome<(DType, Vec<usize>)> {
    let dtype = of_number(dtype)?;
    if shape.is_null() && rank > 0 {
        return Err(Failure::argument("shape is null"));
    }
    let sizes = match rank {
        0 => &[][..],
        // SAFETY: it is not null, and the caller says that `rank` sizes are there.
        _ => unsafe { std::slice::from_raw_parts(shape, rank) },
    };
    let shape = sizes.iter().map(|size| usize::try_from(*size));
    let shape: Vec<usize> = shape
        .collect::<Result<_, _>>()
        .map_err(|_| Failure::argument(format!("shape {sizes:?} has a size below 0")))?;
    let elements = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
    let expected = elements.and_then(|elements| dtype.checked_bytes_for(elements));
    if expected != Some(bytes) {
        let takes = expected.map_or("more than there can be".to_owned(), |n| format!("{n}"));
        return Err(Failure::argument(format!(
            "a tensor {dtype}{shape:?} takes {takes} bytes, but {bytes} were given"
        )));
    }
    Ok((dtype, shape))
}

/// Makes a tensor of memory that is copied. Null data are zeros.
///
/// # Safety
/// `rank` sizes are at `shape`, `bytes` bytes are at `data` unless it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_new(
    dtype: graphc_dtype,
    shape: *const i64,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, (dtype, shape)) = unsafe { (place(out, "out")?, layout(dtype, shape, rank, bytes)?) };
        let copied = match data.is_null() || bytes == 0 {
            true => vec![0; bytes],
            // SAFETY: as the caller says.
            false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec(),
        };
        let tensor = HostTensor::new(dtype, shape, Storage::new(copied));
        let tensor = tensor.map_err(|error| Failure::argument(error.to_string()))?;
        hand_out(out, graphc_tensor::new(Value::Host(tensor)));
        Ok(())
    })
}

/// Makes a tensor of memory that is not copied. It must stay as it is until `release` is called with `context`: once,
/// by any thread, when the tensor and all runs and tensors that use it are gone. Memory whose address is no multiple
/// of the element's size is copied, and released at once. After a failure `release` is not called. A null `release`
/// is for memory that outlives everything.
///
/// # Safety
/// As said; `rank` sizes are at `shape`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_borrow(
    dtype: graphc_dtype,
    shape: *const i64,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    release: graphc_release,
    context: *mut c_void,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, (dtype, shape)) = unsafe { (place(out, "out")?, layout(dtype, shape, rank, bytes)?) };
        if data.is_null() && bytes > 0 {
            return Err(Failure::argument("data is null"));
        }
        let context = Anywhere(context);
        let release = Box::new(move || {
            let context = context;
            if let Some(release) = release {
                // SAFETY: the caller gave both for this.
                unsafe { release(context.0) };
            }
        });
        // SAFETY: as the caller says.
        let borrowed = unsafe { Borrowed::new(data.cast(), bytes, release) };
        let bytes = match is_aligned(data.cast(), dtype) {
            true => Storage::new(borrowed),
            false => Storage::new(borrowed.as_ref().to_vec()),
        };
        // The sizes were compared.
        hand_out(out, graphc_tensor::new(Value::Host(HostTensor { dtype, shape, bytes })));
        Ok(())
    })
}

/// Says what a tensor is.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_describe(
    tensor: *const graphc_tensor,
    out: *mut graphc_tensor_info,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, out.as_mut()) };
        let out = out.ok_or_else(|| Failure::argument("out is null"))?;
        *out = graphc_tensor_info {
            dtype: number(tensor.dtype()),
            rank: tensor.shape.len(),
            shape: tensor.shape.as_ptr(),
            bytes: tensor.bytes(),
            device: tensor.device.as_ptr(),
        };
        Ok(())
    })
}

/// Gives the address of a tensor's bytes on the host, which live as long as the tensor and must not be written. A
/// tensor of a GPU has none: graphc_tensor_to_host copies it.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_data(
    tensor: *const graphc_tensor,
    out: *mut *const c_void,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, out.as_mut()) };
        let out = out.ok_or_else(|| Failure::argument("out is null"))?;
        *out = std::ptr::null();
        match &tensor.value {
            Value::Host(host) => *out = host.bytes.as_ptr().cast(),
            Value::Device(device) if device.device() == "cpu" => {
                device.wait()?;
                *out = device.address() as *const c_void;
            }
            Value::Device(device) => {
                return Err(Failure::unsupported(format!(
                    "the tensor is on {}; graphc_tensor_to_host copies it to the host",
                    device.device()
                )));
            }
        }
        Ok(())
    })
}

/// Copies a tensor to the host, after the run that makes it. One of the host, or of the CPU device, is shared and not
/// copied.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_to_host(
    tensor: *const graphc_tensor,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, place(out, "out")?) };
        hand_out(out, graphc_tensor::new(Value::Host(tensor.host()?)));
        Ok(())
    })
}

/// Makes another handle on the same values.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_share(
    tensor: *const graphc_tensor,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, place(out, "out")?) };
        hand_out(out, graphc_tensor::new(tensor.value.clone()));
        Ok(())
    })
}

/// Takes a tensor over from DLPack 1.x; `managed` is then graphc's, which calls its deleter when nothing uses it any
/// more. After a failure it stays the caller's. Dense memory of the host is not copied; memory with strides is, into
/// dense memory. Memory of a GPU is not copied either: `session` must then be on that GPU, and what fills the memory
/// must be done. `session` may be null for the host's.
///
/// # Safety
/// `managed` is null or as DLPack has it; `session` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_from_dlpack(
    managed: *mut DLManagedTensorVersioned,
    session: *const graphc_session,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, session.as_ref()) };
        // SAFETY: as the caller says.
        let value = unsafe { dlpack::take_versioned(managed, session.map(|session| &session.session)) }?;
        hand_out(out, graphc_tensor::new(value));
        Ok(())
    })
}

/// As graphc_tensor_from_dlpack, for the structure that DLPack had before version 1.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_from_dlpack_unversioned(
    managed: *mut DLManagedTensor,
    session: *const graphc_session,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, session.as_ref()) };
        // SAFETY: as the caller says.
        let value = unsafe { dlpack::take_unversioned(managed, session.map(|session| &session.session)) }?;
        hand_out(out, graphc_tensor::new(value));
        Ok(())
    })
}

/// Lends a tensor to DLPack 1.x, marked as read-only. Nothing is copied; the values live until the deleter is called,
/// also when the tensor is freed before. A tensor on several devices cannot be lent.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_to_dlpack(
    tensor: *const graphc_tensor,
    out: *mut *mut DLManagedTensorVersioned,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, place(out, "out")?) };
        *out = dlpack::lend_versioned(tensor.value.clone(), true)?;
        Ok(())
    })
}

/// As graphc_tensor_to_dlpack, in the structure that DLPack had before version 1. It cannot say that the memory must
/// not be written.
///
/// # Safety
/// `tensor` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_to_dlpack_unversioned(
    tensor: *const graphc_tensor,
    out: *mut *mut DLManagedTensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (tensor, out) = unsafe { (given(tensor, "tensor")?, place(out, "out")?) };
        *out = dlpack::lend_unversioned(tensor.value.clone())?;
        Ok(())
    })
}

/// Frees a tensor; runs under way and outputs that share its values keep them. Null is nothing.
///
/// # Safety
/// `tensor` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_tensor_free(tensor: *mut graphc_tensor) {
    // SAFETY: as the caller says.
    unsafe { free(tensor) };
}

/// A tensor of a device as a value.
pub(crate) fn of_device(tensor: DeviceTensor) -> graphc_tensor {
    graphc_tensor::new(Value::Device(tensor))
}
