//! DLPack's structures (versions 1.x, and the one before), and tensors that go in and out by them.
//!
//! <https://dmlc.github.io/dlpack/latest/c_api.html> says what they mean.

use std::ffi::c_void;

use graphc::Session;
use graphc::ir::{DType, HostTensor, Storage};
use graphc::runtime::Value;

use crate::status::{Failure, Outcome};
use crate::tensor::{Borrowed, is_aligned};

/// The version that is written here, and the one major version that is read.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const ROCM: i32 = 10;
const ROCM_HOST: i32 = 11;

/// The memory must not be written.
const READ_ONLY: u64 = 1;
/// Elements of less than a byte take a whole one each.
const PADDED: u64 = 4;

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements; null for dense ones.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

#[repr(C)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

/// DLPack's codes and bits of the element types.
const TYPES: [(u8, u8, DType); 16] = [
    (2, 32, DType::F32),
    (2, 16, DType::F16),
    (4, 16, DType::BF16),
    (2, 64, DType::F64),
    (10, 8, DType::F8E4M3FN),
    (11, 8, DType::F8E4M3FNUZ),
    (12, 8, DType::F8E5M2),
    (13, 8, DType::F8E5M2FNUZ),
    (0, 64, DType::I64),
    (0, 32, DType::I32),
    (0, 16, DType::I16),
    (0, 8, DType::I8),
    (1, 8, DType::U8),
    (0, 4, DType::I4),
    (1, 4, DType::U4),
    (6, 8, DType::Bool),
];

fn of_type(dtype: DType) -> DLDataType {
    let found = TYPES.iter().find(|(_, _, known)| *known == dtype);
    let (code, bits) = found.map_or((3, 0), |(code, bits, _)| (*code, *bits));
    DLDataType { code, bits, lanes: 1 }
}

/// A tensor of DLPack's, looked at.
struct Seen {
    dtype: DType,
    shape: Vec<usize>,
    /// In elements; None for dense ones.
    strides: Option<Vec<i64>>,
    device: DLDevice,
    address: *const u8,
    padded: bool,
}

impl Seen {
    /// Reads the descriptions, not the elements.
    ///
    /// # Safety
    /// The tensor is as DLPack has it.
    unsafe fn of(tensor: &DLTensor, flags: u64) -> Outcome<Seen> {
        let DLDataType { code, bits, lanes } = tensor.dtype;
        let found = TYPES.iter().find(|(c, b, _)| (*c, *b) == (code, bits));
        let (Some((_, _, dtype)), 1) = (found, lanes) else {
            return Err(Failure::unsupported(format!(
                "DLPack's element type of code {code}, {bits} bits and {lanes} lanes is none that graphc has"
            )));
        };
        let rank = usize::try_from(tensor.ndim).map_err(|_| Failure::argument("DLPack's ndim is below 0"))?;
        // SAFETY: as the caller says.
        let list = |at: *mut i64| unsafe { (rank > 0 && !at.is_null()).then(|| std::slice::from_raw_parts(at, rank)) };
        let sizes = match (list(tensor.shape), rank) {
            (Some(sizes), _) => sizes,
            (None, 0) => &[],
            (None, _) => return Err(Failure::argument("DLPack's shape is null")),
        };
        let shape: Result<Vec<usize>, _> = sizes.iter().map(|size| usize::try_from(*size)).collect();
        let shape = shape.map_err(|_| Failure::argument(format!("DLPack's shape {sizes:?} has a size below 0")))?;
        let elements = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
        let Some(elements) = elements.filter(|n| dtype.checked_bytes_for(*n).is_some()) else {
            return Err(Failure::argument(format!(
                "DLPack's shape {shape:?} has too many elements"
            )));
        };
        let address = tensor
            .data
            .cast::<u8>()
            .cast_const()
            .wrapping_add(tensor.byte_offset as usize);
        if tensor.data.is_null() && elements > 0 {
            return Err(Failure::argument("DLPack's data are null"));
        }
        Ok(Seen {
            dtype: *dtype,
            strides: list(tensor.strides)
                .map(<[i64]>::to_vec)
                .filter(|strides| !is_dense(&shape, strides)),
            shape,
            device: tensor.device,
            address,
            padded: bits < 8 && flags & PADDED != 0,
        })
    }

    fn bytes(&self) -> usize {
        self.dtype.bytes_for(self.shape.iter().product())
    }

    /// The elements in dense memory of their own.
    ///
    /// # Safety
    /// They lie where the shape and the strides say.
    unsafe fn packed(&self) -> Outcome<Vec<u8>> {
        let bits = self.dtype.bits() as usize;
        let width = bits.div_ceil(8);
        if bits < 8 && !self.padded {
            return Err(Failure::unsupported(format!(
                "a tensor of {} with strides: elements of half a byte must be dense",
                self.dtype
            )));
        }
        let dense = dense_strides(&self.shape);
        let strides = self.strides.as_ref().unwrap_or(&dense);
        let elements: usize = self.shape.iter().product();
        let mut bytes = Vec::with_capacity(elements * width);
        let mut index = vec![0usize; self.shape.len()];
        for _ in 0..elements {
            let offset: i64 = index.iter().zip(strides).map(|(i, stride)| *i as i64 * stride).sum();
            // SAFETY: as the caller says.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.address.offset(offset as isize * width as isize), width)
            });
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                if index[axis] < self.shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        if bits < 8 {
            bytes = bytes
                .chunks(2)
                .map(|two| (two[0] & 15) | (two.get(1).unwrap_or(&0) << 4))
                .collect();
        }
        Ok(bytes)
    }

    /// Makes a tensor of the elements; whatever owns them is ended by `release` when nobody uses them any more.
    ///
    /// # Safety
    /// They lie there until then.
    unsafe fn value(self, session: Option<&Session>, release: Box<dyn FnOnce() + Send + Sync>) -> Outcome<Value> {
        if matches!(self.device.device_type, CPU | CUDA_HOST | ROCM_HOST) {
            let dense = self.strides.is_none() && !self.padded && is_aligned(self.address, self.dtype);
            let bytes = match dense {
                // SAFETY: as the caller says.
                true => Storage::new(unsafe { Borrowed::new(self.address, self.bytes(), release) }),
                false => {
                    // SAFETY: as the caller says.
                    let bytes = Storage::new(unsafe { self.packed() }?);
                    release();
                    bytes
                }
            };
            return Ok(Value::Host(HostTensor {
                dtype: self.dtype,
                shape: self.shape,
                bytes,
            }));
        }
        let on = match self.device.device_type {
            ROCM => format!("hip:{}", self.device.device_id),
            CUDA => format!("cuda:{}", self.device.device_id),
            other => {
                return Err(Failure::unsupported(format!(
                    "DLPack's device type {other} is none that graphc computes on; it takes memory of the host, of ROCm and \
                     of CUDA"
                )));
            }
        };
        let Some(session) = session else {
            return Err(Failure::unsupported(format!(
                "the tensor is on {on}: give the session that it is for, on that device"
            )));
        };
        let device = device_of(session);
        if device != on {
            return Err(Failure::unsupported(format!(
                "the tensor is on {on}, but the session is on {device}"
            )));
        }
        if self.strides.is_some() || self.padded {
            return Err(Failure::unsupported(format!(
                "the tensor on {on} has strides; only dense memory of a GPU is taken: make it contiguous"
            )));
        }
        let owner = Owner(Some(release));
        // SAFETY: as the caller says; the session is on the device.
        let tensor = unsafe { session.borrow(self.address as u64, self.dtype, self.shape, Box::new(owner)) }?;
        Ok(Value::Device(tensor))
    }
}

/// Ends what owns a tensor's memory.
struct Owner(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// The device that a session runs on: "cpu", "hip:0".
pub fn device_of(session: &Session) -> String {
    session.device().to_owned()
}

fn dense_strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

/// Whether elements with these strides lie one after the other. Those of axes with one entry say nothing.
fn is_dense(shape: &[usize], strides: &[i64]) -> bool {
    let dense = dense_strides(shape);
    shape.contains(&0)
        || shape
            .iter()
            .zip(strides.iter().zip(dense))
            .all(|(size, (a, b))| *size == 1 || *a == b)
}

/// A managed tensor whose deleter any thread may call.
struct Managed<T>(*mut T);

// SAFETY: DLPack lets the deleter be called by any thread.
unsafe impl<T> Send for Managed<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Managed<T> {}

/// Calls a tensor's own deleter, if it has one. Whoever runs it does not use the tensor again.
fn deletion<T: 'static>(
    managed: *mut T,
    deleter: Option<unsafe extern "C" fn(*mut T)>,
) -> Box<dyn FnOnce() + Send + Sync> {
    let owned = Managed(managed);
    Box::new(move || {
        let owned = owned;
        if let Some(delete) = deleter {
            // SAFETY: the tensor is as DLPack has it, and not used again.
            unsafe { delete(owned.0) };
        }
    })
}

/// Takes a tensor over; after a failure it stays the caller's.
///
/// # Safety
/// It is null or as DLPack has it.
pub unsafe fn take_versioned(managed: *mut DLManagedTensorVersioned, session: Option<&Session>) -> Outcome<Value> {
    // SAFETY: as the caller says.
    let Some(tensor) = (unsafe { managed.as_ref() }) else {
        return Err(Failure::argument("the DLPack tensor is null"));
    };
    if tensor.version.major != VERSION.major {
        let DLPackVersion { major, minor } = tensor.version;
        return Err(Failure::unsupported(format!(
            "the DLPack tensor is of version {major}.{minor}; graphc reads versions 1.x"
        )));
    }
    let release = deletion(managed, tensor.deleter);
    // SAFETY: as the caller says.
    unsafe { Seen::of(&tensor.dl_tensor, tensor.flags)?.value(session, release) }
}

/// As [`take_versioned`], of the structure before version 1.
///
/// # Safety
/// As there.
pub unsafe fn take_unversioned(managed: *mut DLManagedTensor, session: Option<&Session>) -> Outcome<Value> {
    // SAFETY: as the caller says.
    let Some(tensor) = (unsafe { managed.as_ref() }) else {
        return Err(Failure::argument("the DLPack tensor is null"));
    };
    let release = deletion(managed, tensor.deleter);
    // SAFETY: as the caller says.
    unsafe { Seen::of(&tensor.dl_tensor, 0)?.value(session, release) }
}

/// What a lent tensor keeps.
struct Lent {
    /// Keeps the values.
    _value: Value,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Lent {
    /// Keeps a value, and describes it.
    fn new(value: Value) -> Outcome<(*mut Lent, DLTensor)> {
        let (dtype, shape, data, device) = match &value {
            Value::Host(tensor) => {
                let data = tensor.bytes.as_ptr() as *mut c_void;
                (
                    tensor.dtype,
                    tensor.shape.clone(),
                    data,
                    DLDevice {
                        device_type: CPU,
                        device_id: 0,
                    },
                )
            }
            Value::Device(tensor) => {
                let name = tensor.device();
                let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
                let device_type = match kind {
                    "cpu" => Some(CPU),
                    "hip" => Some(ROCM),
                    "cuda" => Some(CUDA),
                    _ => None,
                };
                let (Some(device_type), Ok(device_id)) = (device_type, number.parse()) else {
                    return Err(Failure::unsupported(format!(
                        "a tensor on {name} has no one address; copy it to the host first"
                    )));
                };
                tensor.wait()?;
                let device = DLDevice { device_type, device_id };
                (
                    tensor.dtype(),
                    tensor.shape().to_vec(),
                    tensor.address() as *mut c_void,
                    device,
                )
            }
        };
        let lent = Box::into_raw(Box::new(Lent {
            _value: value,
            strides: dense_strides(&shape),
            shape: shape.iter().map(|size| *size as i64).collect(),
        }));
        // SAFETY: it was just made.
        let kept = unsafe { &mut *lent };
        let tensor = DLTensor {
            data,
            device,
            ndim: kept.shape.len() as i32,
            dtype: of_type(dtype),
            shape: kept.shape.as_mut_ptr(),
            strides: kept.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Ok((lent, tensor))
    }
}

unsafe extern "C" fn end_versioned(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: `lend_versioned` made both.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.manager_ctx.cast::<Lent>()));
        }
    }
}

unsafe extern "C" fn end_unversioned(managed: *mut DLManagedTensor) {
    if !managed.is_null() {
        // SAFETY: `lend_unversioned` made both.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.manager_ctx.cast::<Lent>()));
        }
    }
}

/// Lends a value; its deleter gives it back.
///
/// # Errors
/// A tensor on several devices, or a run that failed to make it.
pub fn lend_versioned(value: Value, read_only: bool) -> Outcome<*mut DLManagedTensorVersioned> {
    let (lent, dl_tensor) = Lent::new(value)?;
    Ok(Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: lent.cast(),
        deleter: Some(end_versioned),
        flags: if read_only { READ_ONLY } else { 0 },
        dl_tensor,
    })))
}

/// As [`lend_versioned`], in the structure before version 1.
///
/// # Errors
/// As there.
pub fn lend_unversioned(value: Value) -> Outcome<*mut DLManagedTensor> {
    let (lent, dl_tensor) = Lent::new(value)?;
    Ok(Box::into_raw(Box::new(DLManagedTensor {
        dl_tensor,
        manager_ctx: lent.cast(),
        deleter: Some(end_unversioned),
    })))
}
