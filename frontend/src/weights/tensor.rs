//! A named tensor inside a file.

use bytes::Bytes;
use ir::data::{HostTensor, Storage};

use super::ElementType;

/// One tensor of a weight file: its name, element type, dims and bytes.
///
/// The bytes are little-endian, row-major and packed; they usually point into the mapped file, so they promise no
/// alignment. There are always exactly as many as [`ElementType::bytes_for`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    pub name: String,
    pub element: ElementType,
    pub dims: Vec<usize>,
    pub bytes: Bytes,
}

/// The tensor cannot become one of the `ir`'s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    #[error(
        "tensor {name:?} has element type {element}, which graphc has no type for; cast it to one of f32 f16 bf16 f64 \
         f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz i64 i32 i16 i8 u8 i4 u4 bool before export"
    )]
    NoDType { name: String, element: ElementType },
    #[error("tensor {name:?}: element {index} is the u64 {value}, above the largest i64; graphc computes with i64")]
    Unsigned { name: String, index: usize, value: u64 },
    #[error("tensor {name:?} is {element}{dims:?}, which takes {expected} bytes, but its data has {found}")]
    Size {
        name: String,
        element: ElementType,
        dims: Vec<usize>,
        expected: usize,
        found: usize,
    },
}

impl TensorView {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Converts to the `ir`'s tensor; shares the bytes except for `u16`, `u32` and `u64`, which are widened.
    ///
    /// # Errors
    /// When the `ir` has no such element type, or a `u64` does not fit an `i64`.
    pub fn to_host(&self) -> Result<HostTensor, ViewError> {
        let Some(dtype) = self.element.dtype() else {
            return Err(ViewError::NoDType {
                name: self.name.clone(),
                element: self.element,
            });
        };
        let bytes = if self.element.is_widened() {
            Bytes::from(self.widen()?)
        } else {
            self.bytes.clone()
        };
        HostTensor::new(dtype, self.dims.clone(), Storage::new(bytes)).map_err(|mismatch| ViewError::Size {
            name: self.name.clone(),
            element: self.element,
            dims: self.dims.clone(),
            expected: mismatch.expected,
            found: mismatch.got,
        })
    }

    fn widen(&self) -> Result<Vec<u8>, ViewError> {
        let mut out = Vec::with_capacity(self.bytes.len() * 2);
        match self.element {
            ElementType::U16 => {
                for chunk in self.bytes.as_chunks().0 {
                    out.extend_from_slice(&i32::from(u16::from_le_bytes(*chunk)).to_le_bytes());
                }
            }
            ElementType::U32 => {
                for chunk in self.bytes.as_chunks().0 {
                    out.extend_from_slice(&i64::from(u32::from_le_bytes(*chunk)).to_le_bytes());
                }
            }
            _ => {
                for (index, chunk) in self.bytes.as_chunks().0.iter().enumerate() {
                    let value = u64::from_le_bytes(*chunk);
                    let signed = i64::try_from(value).map_err(|_| ViewError::Unsigned {
                        name: self.name.clone(),
                        index,
                        value,
                    })?;
                    out.extend_from_slice(&signed.to_le_bytes());
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(element: ElementType, dims: &[usize], bytes: &[u8]) -> TensorView {
        TensorView {
            name: "t".into(),
            element,
            dims: dims.into(),
            bytes: Bytes::copy_from_slice(bytes),
        }
    }

    #[test]
    fn unsigned_types_widen() {
        let host = view(ElementType::U16, &[2], &[0xff, 0xff, 1, 0]).to_host().unwrap();
        assert_eq!((host.dtype, host.to_i64()), (ir::types::DType::I32, vec![65535, 1]));
        let host = view(ElementType::U32, &[1], &[0xff; 4]).to_host().unwrap();
        assert_eq!((host.dtype, host.to_i64()), (ir::types::DType::I64, vec![4294967295]));
        assert_eq!(
            view(ElementType::U64, &[1], &7u64.to_le_bytes())
                .to_host()
                .unwrap()
                .to_i64(),
            [7]
        );
    }

    #[test]
    fn what_has_no_type_is_named() {
        let error = view(ElementType::U64, &[1], &[0xff; 8]).to_host().unwrap_err();
        assert!(matches!(
            error,
            ViewError::Unsigned {
                index: 0,
                value: u64::MAX,
                ..
            }
        ));
        let error = view(ElementType::Complex64, &[1], &[0; 8]).to_host().unwrap_err();
        assert!(error.to_string().contains("complex64"), "{error}");
    }

    #[test]
    fn bytes_are_shared() {
        let view = view(ElementType::F32, &[2], &[0; 8]);
        assert_eq!(view.to_host().unwrap().bytes.as_ptr(), view.bytes.as_ptr());
    }

    #[test]
    fn sizes_round_up_to_bytes_and_refuse_overflow() {
        assert_eq!(ElementType::I4.bytes_for(&[3]), Some(2));
        assert_eq!(ElementType::F6E2M3.bytes_for(&[4]), Some(3));
        assert_eq!(ElementType::F32.bytes_for(&[usize::MAX, 2]), None);
        assert_eq!(ElementType::F32.bytes_for(&[]), Some(4));
    }
}
