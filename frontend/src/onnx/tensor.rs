//! Turns ONNX's tensor messages into [`TensorView`]s.
//!
//! `raw_data` is shared (it points into the mapped file); the typed fields (`float_data`, `int32_data`, …) are copied.
//! Which typed field holds which element type is fixed by the comments of `onnx-ml.proto3`.

use bytes::Bytes;
use prost::Message;

use super::proto::TensorProto;
use super::proto::tensor_proto::{DataLocation, DataType};
use crate::weights::{ElementType, TensorView};

/// A tensor message does not describe a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("tensor {name:?} has element type {code}, which ONNX does not define (or not up to IR version 14)")]
    ElementType { name: String, code: i32 },
    #[error(
        "tensor {name:?} holds strings, which graphc does not compute with; move the text handling out of the model"
    )]
    Strings { name: String },
    #[error("tensor {name:?}: dim {index} is {value}")]
    Dim { name: String, index: usize, value: i64 },
    #[error("tensor {name:?} {element}{dims:?} has more bytes than this machine can address")]
    TooLarge {
        name: String,
        element: ElementType,
        dims: Vec<usize>,
    },
    #[error("tensor {name:?} is {element}{dims:?}, which takes {expected} bytes, but {field} has {found}")]
    Size {
        name: String,
        element: ElementType,
        dims: Vec<usize>,
        expected: usize,
        field: &'static str,
        found: usize,
    },
    #[error("tensor {name:?} is {element}{dims:?}: {field} should have {expected} entries, but has {found}")]
    Count {
        name: String,
        element: ElementType,
        dims: Vec<usize>,
        expected: usize,
        field: &'static str,
        found: usize,
    },
    #[error("tensor {name:?}: {field}[{index}] is {value}, which does not fit {element}")]
    Range {
        name: String,
        element: ElementType,
        field: &'static str,
        index: usize,
        value: i128,
    },
    #[error(
        "tensor {name:?} is stored in segments, which no exporter writes any more; save the model again with onnx.save"
    )]
    Segmented { name: String },
    #[error("tensor {name:?} is in another file, and the model was read without a folder to look for it")]
    External { name: String },
    #[error("it is not a tensor message (TensorProto): {reason}")]
    Message { reason: String },
}

/// Reads a tensor message by itself, as the `input_0.pb` files beside ONNX's test models are.
///
/// # Errors
/// When the bytes are no such message, and as [`tensor_view`].
pub fn read_tensor(bytes: Bytes) -> Result<TensorView, TensorError> {
    let tensor = TensorProto::decode(bytes).map_err(|error| TensorError::Message {
        reason: error.to_string(),
    })?;
    tensor_view(&tensor)
}

/// Returns a tensor message as a view with checked size.
///
/// # Errors
/// When the element type is unknown or text, the dims are negative or too large, the data do not match them, a number
/// does not fit its type, or the data lie in an external file that was not resolved.
pub fn tensor_view(tensor: &TensorProto) -> Result<TensorView, TensorError> {
    let name = || tensor.name.clone();
    let (element, dims) = type_of(tensor)?;
    if tensor.data_location == DataLocation::External as i32 {
        return Err(TensorError::External { name: name() });
    }
    let expected = element.bytes_for(&dims).ok_or_else(|| TensorError::TooLarge {
        name: name(),
        element,
        dims: dims.clone(),
    })?;
    let bytes = if tensor.raw_data.is_empty() && expected > 0 {
        Bytes::from(typed_data(tensor, element, &dims, expected)?)
    } else {
        tensor.raw_data.clone()
    };
    if bytes.len() != expected {
        let (field, found) = ("raw_data", bytes.len());
        return Err(TensorError::Size {
            name: name(),
            element,
            dims,
            expected,
            field,
            found,
        });
    }
    Ok(TensorView {
        name: name(),
        element,
        dims,
        bytes,
    })
}

/// Returns a tensor message's element type and dims, without looking at its data.
///
/// # Errors
/// When the element type is unknown or text, a dim is negative, or the tensor is segmented.
pub fn type_of(tensor: &TensorProto) -> Result<(ElementType, Vec<usize>), TensorError> {
    let name = || tensor.name.clone();
    if tensor.segment.is_some() {
        return Err(TensorError::Segmented { name: name() });
    }
    if tensor.data_type == DataType::String as i32 {
        return Err(TensorError::Strings { name: name() });
    }
    let element = element_type(tensor.data_type).ok_or_else(|| TensorError::ElementType {
        name: name(),
        code: tensor.data_type,
    })?;
    let mut dims = Vec::with_capacity(tensor.dims.len());
    for (index, &value) in tensor.dims.iter().enumerate() {
        dims.push(usize::try_from(value).map_err(|_| TensorError::Dim {
            name: name(),
            index,
            value,
        })?);
    }
    Ok((element, dims))
}

/// Maps ONNX's element type codes; `None` for an unknown one and for text.
pub fn element_type(code: i32) -> Option<ElementType> {
    Some(match DataType::try_from(code).ok()? {
        DataType::Float => ElementType::F32,
        DataType::Double => ElementType::F64,
        DataType::Float16 => ElementType::F16,
        DataType::Bfloat16 => ElementType::BF16,
        DataType::Float8e4m3fn => ElementType::F8E4M3FN,
        DataType::Float8e4m3fnuz => ElementType::F8E4M3FNUZ,
        DataType::Float8e5m2 => ElementType::F8E5M2,
        DataType::Float8e5m2fnuz => ElementType::F8E5M2FNUZ,
        DataType::Float8e8m0 => ElementType::F8E8M0,
        DataType::Float6e2m3 => ElementType::F6E2M3,
        DataType::Float6e3m2 => ElementType::F6E3M2,
        DataType::Float4e2m1 => ElementType::F4E2M1,
        DataType::Int64 => ElementType::I64,
        DataType::Int32 => ElementType::I32,
        DataType::Int16 => ElementType::I16,
        DataType::Int8 => ElementType::I8,
        DataType::Int4 => ElementType::I4,
        DataType::Int2 => ElementType::I2,
        DataType::Uint64 => ElementType::U64,
        DataType::Uint32 => ElementType::U32,
        DataType::Uint16 => ElementType::U16,
        DataType::Uint8 => ElementType::U8,
        DataType::Uint4 => ElementType::U4,
        DataType::Uint2 => ElementType::U2,
        DataType::Bool => ElementType::Bool,
        DataType::Complex64 => ElementType::Complex64,
        DataType::Complex128 => ElementType::Complex128,
        DataType::String | DataType::Undefined => return None,
    })
}

/// Encodes the typed field that belongs to the element type.
fn typed_data(t: &TensorProto, element: ElementType, dims: &[usize], expected: usize) -> Result<Vec<u8>, TensorError> {
    use ElementType as E;
    let name = || t.name.clone();
    let check = |field: &'static str, found: usize, width: usize| {
        if expected == found * width {
            return Ok(());
        }
        let (dims, expected) = (dims.to_vec(), expected / width);
        Err(TensorError::Count {
            name: name(),
            element,
            dims,
            expected,
            field,
            found,
        })
    };
    match element {
        E::F32 | E::Complex64 => {
            check("float_data", t.float_data.len(), 4)?;
            Ok(t.float_data.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        E::F64 | E::Complex128 => {
            check("double_data", t.double_data.len(), 8)?;
            Ok(t.double_data.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        E::I64 => {
            check("int64_data", t.int64_data.len(), 8)?;
            Ok(t.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        E::U64 => {
            check("uint64_data", t.uint64_data.len(), 8)?;
            Ok(t.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        E::U32 => {
            check("uint64_data", t.uint64_data.len(), 4)?;
            let mut out = Vec::with_capacity(expected);
            for (index, &value) in t.uint64_data.iter().enumerate() {
                let narrow = u32::try_from(value).map_err(|_| TensorError::Range {
                    name: name(),
                    element,
                    field: "uint64_data",
                    index,
                    value: value.into(),
                })?;
                out.extend_from_slice(&narrow.to_le_bytes());
            }
            Ok(out)
        }
        E::I32 => {
            check("int32_data", t.int32_data.len(), 4)?;
            Ok(t.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        // 16-bit types have one entry an element; 8-bit and packed types one entry a byte.
        E::F16 | E::BF16 | E::I16 | E::U16 => {
            check("int32_data", t.int32_data.len(), 2)?;
            narrow(t, element, expected, 16)
        }
        E::F8E4M3FN | E::F8E4M3FNUZ | E::F8E5M2 | E::F8E5M2FNUZ | E::F8E8M0 | E::I8 | E::U8 | E::Bool => {
            check("int32_data", t.int32_data.len(), 1)?;
            narrow(t, element, expected, 8)
        }
        E::F6E2M3 | E::F6E3M2 | E::F4E2M1 | E::I4 | E::U4 | E::I2 | E::U2 => {
            check("int32_data", t.int32_data.len(), 1)?;
            narrow(t, element, expected, 8)
        }
    }
}

/// Encodes `int32_data` whose entries hold `bits` bits each, sign-extended or not.
fn narrow(t: &TensorProto, element: ElementType, expected: usize, bits: u32) -> Result<Vec<u8>, TensorError> {
    let (low, high) = match element {
        ElementType::I8 | ElementType::I16 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        ElementType::U8 | ElementType::U16 => (0, (1 << bits) - 1),
        ElementType::Bool => (i32::MIN, i32::MAX),
        _ => (-(1 << (bits - 1)), (1 << bits) - 1),
    };
    let mut out = Vec::with_capacity(expected);
    for (index, &value) in t.int32_data.iter().enumerate() {
        if value < low || value > high {
            let (name, field, value) = (t.name.clone(), "int32_data", value.into());
            return Err(TensorError::Range {
                name,
                element,
                field,
                index,
                value,
            });
        }
        let value = if element == ElementType::Bool {
            i32::from(value != 0)
        } else {
            value
        };
        out.extend_from_slice(&value.to_le_bytes()[..bits as usize / 8]);
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
