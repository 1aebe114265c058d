//! Tensors on the host: bytes that are owned or borrowed from a mapped file.

use std::fmt;
use std::sync::Arc;

use crate::types::{DType, Scalar};

/// Bytes that several owners share without copying: a vector, or part of a memory-mapped file.
#[derive(Clone)]
pub struct Storage {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Storage {
    /// Shares all bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Storage {
        let len = owner.as_ref().len();
        Storage {
            owner: Arc::new(owner),
            start: 0,
            len,
        }
    }

    /// Shares a part; `None` when the range is not inside.
    pub fn slice(&self, start: usize, len: usize) -> Option<Storage> {
        (start.checked_add(len)? <= self.len).then(|| Storage {
            owner: self.owner.clone(),
            start: self.start + start,
            len,
        })
    }
}

impl AsRef<[u8]> for Storage {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::ops::Deref for Storage {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}
impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A dense row-major tensor on the host, little-endian, 4-bit types packed low nibble first.
#[derive(Clone, PartialEq, Debug)]
pub struct HostTensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Storage,
}

/// The bytes do not match the element type and shape.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a tensor {dtype}{shape:?} takes {expected} bytes, but {got} were given")]
pub struct SizeMismatch {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub expected: usize,
    pub got: usize,
}

impl HostTensor {
    /// Makes a tensor over existing bytes.
    ///
    /// # Errors
    /// When the number of bytes is not what the type and shape ask for.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, bytes: Storage) -> Result<HostTensor, SizeMismatch> {
        let shape = shape.into();
        let elements = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
        let expected = elements
            .and_then(|n| n.checked_mul(dtype.bits() as usize))
            .map(|bits| bits.div_ceil(8));
        if expected == Some(bytes.len()) {
            Ok(HostTensor { dtype, shape, bytes })
        } else {
            Err(SizeMismatch {
                dtype,
                shape,
                expected: expected.unwrap_or(usize::MAX),
                got: bytes.len(),
            })
        }
    }

    /// Makes a tensor from numbers, rounding each to `dtype` (integers saturate).
    ///
    /// # Errors
    /// When the count is not the product of the shape.
    pub fn from_f64(dtype: DType, shape: impl Into<Vec<usize>>, values: &[f64]) -> Result<HostTensor, SizeMismatch> {
        HostTensor::new(dtype, shape, Storage::new(crate::convert::encode_f64(dtype, values)))
    }

    /// Makes an `f32` tensor.
    ///
    /// # Errors
    /// When the count is not the product of the shape.
    pub fn from_f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> Result<HostTensor, SizeMismatch> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostTensor::new(DType::F32, shape, Storage::new(bytes))
    }

    /// Makes an integer tensor from `i64`s (saturating to the type; for `bool`, non-zero is true).
    ///
    /// # Errors
    /// When the count is not the product of the shape.
    pub fn from_i64(dtype: DType, shape: impl Into<Vec<usize>>, values: &[i64]) -> Result<HostTensor, SizeMismatch> {
        HostTensor::new(dtype, shape, Storage::new(crate::convert::encode_i64(dtype, values)))
    }

    /// Makes a tensor of rank 0.
    pub fn scalar(dtype: DType, value: Scalar) -> HostTensor {
        let bytes = match value {
            Scalar::Float(v) => crate::convert::encode_f64(dtype, &[v]),
            other => crate::convert::encode_i64(dtype, &[other.as_i64()]),
        };
        HostTensor {
            dtype,
            shape: Vec::new(),
            bytes: Storage::new(bytes),
        }
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Decodes every element as `f64` (`true` is 1).
    pub fn to_f64(&self) -> Vec<f64> {
        crate::convert::decode_f64(self.dtype, &self.bytes, self.elements())
    }

    /// Decodes every element as `i64`; floats are truncated and saturate.
    pub fn to_i64(&self) -> Vec<i64> {
        crate::convert::decode_i64(self.dtype, &self.bytes, self.elements())
    }

    /// Decodes every element as `f32`.
    pub fn to_f32(&self) -> Vec<f32> {
        if self.dtype == DType::F32 {
            return self
                .bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
        }
        self.to_f64().into_iter().map(|v| v as f32).collect()
    }

    /// Returns `count` entries of an axis from `start` on; None where they are not there, or do not begin and end with
    /// a byte. Of the first axis nothing is copied.
    pub fn part(&self, axis: usize, start: usize, count: usize) -> Option<HostTensor> {
        let size = *self.shape.get(axis)?;
        if start.checked_add(count)? > size {
            return None;
        }
        let bits = self.shape[axis + 1..].iter().product::<usize>() * self.dtype.bits() as usize;
        let outer: usize = self.shape[..axis].iter().product();
        let (row, from, length) = (size * bits, start * bits, count * bits);
        if !from.is_multiple_of(8) || !length.is_multiple_of(8) || (outer > 1 && !row.is_multiple_of(8)) {
            return None;
        }
        let (row, from, length) = (row / 8, from / 8, length / 8);
        let bytes = if outer == 1 {
            self.bytes.slice(from, length)?
        } else {
            let mut bytes = Vec::with_capacity(outer * length);
            for at in 0..outer {
                let first = at * row + from;
                bytes.extend_from_slice(self.bytes.get(first..first + length)?);
            }
            Storage::new(bytes)
        };
        let mut shape = self.shape.clone();
        shape[axis] = count;
        HostTensor::new(self.dtype, shape, bytes).ok()
    }

    /// Joins tensors along an axis: what [`HostTensor::part`] took apart. None where there are none, or they do not fit
    /// each other.
    pub fn join(parts: &[HostTensor], axis: usize) -> Option<HostTensor> {
        let first = parts.first()?;
        let mut shape = first.shape.clone();
        *shape.get_mut(axis)? = parts
            .iter()
            .map(|part| part.shape.get(axis).copied().unwrap_or(0))
            .sum();
        let outer: usize = shape[..axis].iter().product();
        let beside = |part: &HostTensor| {
            let mut shape = part.shape.clone();
            *shape.get_mut(axis)? = 0;
            Some((part.dtype, shape))
        };
        if parts.iter().any(|part| beside(part) != beside(first)) {
            return None;
        }
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.bytes.len()).sum());
        for at in 0..outer {
            for part in parts {
                let row = part.bytes.len() / outer;
                bytes.extend_from_slice(&part.bytes[at * row..(at + 1) * row]);
            }
        }
        HostTensor::new(first.dtype, shape, Storage::new(bytes)).ok()
    }

    /// Returns the one value that every element has, if it is so and the tensor has fewer than 2^16 elements.
    pub fn splat(&self) -> Option<Scalar> {
        let n = self.elements();
        if n == 0 || n > 1 << 16 {
            return None;
        }
        let width = self.dtype.bits() as usize / 8;
        if width == 0 {
            return None;
        }
        let first = &self.bytes[..width];
        if !self.bytes.chunks_exact(width).all(|c| c == first) {
            return None;
        }
        Some(match self.dtype {
            DType::Bool => Scalar::Bool(first[0] != 0),
            d if d.is_int() => Scalar::Int(crate::convert::decode_i64(d, first, 1)[0]),
            d => Scalar::Float(crate::convert::decode_f64(d, first, 1)[0]),
        })
    }
}
