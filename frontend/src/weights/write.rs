//! Writes safetensors files.

use std::io::{self, Write};

use ir::convert::{encode_f64, encode_i64};
use ir::{DType, HostTensor};
use serde_json::{Map, Value, json};

/// The entry of a header that is no tensor.
const METADATA: &str = "__metadata__";
/// The format's readers take no header of more bytes.
const MOST_HEADER: usize = 100_000_000;

/// The format's name of an element type, and the type that elements are written as: what it lacks is widened.
fn written_as(dtype: DType) -> (&'static str, DType) {
    match dtype {
        DType::F64 => ("F64", dtype),
        DType::F32 => ("F32", dtype),
        DType::F16 => ("F16", dtype),
        DType::BF16 => ("BF16", dtype),
        DType::F8E4M3FN => ("F8_E4M3", dtype),
        DType::F8E5M2 => ("F8_E5M2", dtype),
        DType::I64 => ("I64", dtype),
        DType::I32 => ("I32", dtype),
        DType::I16 => ("I16", dtype),
        DType::I8 => ("I8", dtype),
        DType::U8 => ("U8", dtype),
        DType::Bool => ("BOOL", dtype),
        DType::I4 | DType::U4 => ("I8", DType::I8),
        DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => ("F32", DType::F32),
    }
}

/// Writes tensors by name to a stream; wide elements come first, so that all are aligned. 4-bit integers are widened to
/// `i8`, 8-bit floats of the FNUZ kinds to `f32`.
///
/// # Errors
/// What the stream reports; a name that the format keeps for itself, and more names than its header holds.
pub fn write<'a>(out: &mut dyn Write, tensors: impl IntoIterator<Item = (&'a str, &'a HostTensor)>) -> io::Result<()> {
    let mut tensors: Vec<(&str, &HostTensor)> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(written_as(tensor.dtype).1.bits()));
    let mut header = Map::new();
    let mut at = 0;
    for (name, tensor) in &tensors {
        if *name == METADATA {
            return Err(io::Error::other(format!(
                "safetensors keeps the name {METADATA:?} for itself"
            )));
        }
        let (dtype, written) = written_as(tensor.dtype);
        let end = at + written.bytes_for(tensor.elements());
        let entry = json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end] });
        header.insert((*name).to_owned(), entry);
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MOST_HEADER {
        return Err(io::Error::other(format!(
            "the names take a header of {} bytes, but safetensors files have {MOST_HEADER} at most",
            header.len()
        )));
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    tensors
        .iter()
        .try_for_each(|(_, tensor)| match written_as(tensor.dtype).1 {
            same if same == tensor.dtype => out.write_all(&tensor.bytes),
            DType::I8 => out.write_all(&encode_i64(DType::I8, &tensor.to_i64())),
            widened => out.write_all(&encode_f64(widened, &tensor.to_f64())),
        })
}

#[cfg(test)]
mod tests {
    use super::super::Weights;
    use super::*;

    #[test]
    fn every_type_is_read_back_as_it_was_or_wider() {
        let types = [
            DType::Bool,
            DType::I4,
            DType::U8,
            DType::F8E4M3FN,
            DType::F8E4M3FNUZ,
            DType::BF16,
            DType::F16,
            DType::I32,
            DType::F64,
        ];
        let named: Vec<(String, HostTensor)> = types
            .iter()
            .map(|dtype| {
                let tensor = HostTensor::from_f64(*dtype, [3], &[1.0, 0.0, 1.0]).unwrap();
                (dtype.name().to_owned(), tensor)
            })
            .collect();
        let mut bytes = Vec::new();
        write(&mut bytes, named.iter().map(|(name, tensor)| (name.as_str(), tensor))).unwrap();
        let weights = Weights::from_bytes("written", bytes.into()).unwrap();
        assert_eq!(weights.len(), types.len());
        for (name, tensor) in &named {
            let back = weights.get(name).unwrap().to_host().unwrap();
            assert_eq!((back.to_f64(), &back.shape), (tensor.to_f64(), &tensor.shape), "{name}");
            assert_eq!(back.dtype, written_as(tensor.dtype).1, "{name}");
        }
        let reserved = HostTensor::from_f32([1], &[0.0]).unwrap();
        assert!(write(&mut Vec::new(), [(METADATA, &reserved)]).is_err());
    }
}
