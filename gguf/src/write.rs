//! Writes GGUF files.

use bytes::Bytes;
use indexmap::IndexMap;

use crate::error::{GgufError, Problem};
use crate::header::elements;
use crate::kind::TensorType;
use crate::value::{Array, Value};

/// The alignment of tensors, where `general.alignment` says nothing.
const ALIGNMENT: usize = 32;

/// A GGUF file to be written: version 3, little-endian.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    metadata: IndexMap<String, Value>,
    tensors: IndexMap<String, (TensorType, Vec<u64>, Bytes)>,
}

impl GgufWriter {
    /// An empty model of an architecture.
    pub fn new(architecture: &str) -> GgufWriter {
        let name = Value::String(architecture.to_owned());
        GgufWriter {
            metadata: IndexMap::from([("general.architecture".to_owned(), name)]),
            tensors: IndexMap::new(),
        }
    }

    /// Adds a key.
    ///
    /// # Errors
    /// `DuplicateKey`, `EmptyKey`; `general.alignment` is the writer's own.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), GgufError> {
        if key.is_empty() {
            return Err(Problem::EmptyKey { at: 0 }.in_file("a file to be written"));
        }
        if self.metadata.contains_key(key) || key == "general.alignment" {
            return Err(Problem::DuplicateKey { key: key.to_owned() }.in_file("a file to be written"));
        }
        self.metadata.insert(key.to_owned(), value);
        Ok(())
    }

    /// Adds a tensor by its dims in ggml's order and the bytes of its blocks.
    ///
    /// # Errors
    /// `Rank`, `Block`, `Elements`, `DuplicateTensor`; `Length` where dims and bytes do not fit.
    pub fn tensor(&mut self, name: &str, ty: TensorType, dims: &[u64], bytes: &[u8]) -> Result<(), GgufError> {
        let name = name.to_owned();
        let problem = |problem: Problem| problem.in_file("a file to be written");
        if !(1..=4).contains(&dims.len()) {
            return Err(problem(Problem::Rank {
                name,
                found: dims.len() as u32,
            }));
        }
        let Some((count, needed)) = elements(dims).and_then(|count| Some((count, ty.bytes_of(count)?))) else {
            return Err(problem(Problem::Elements {
                name,
                dims: dims.to_vec(),
            }));
        };
        if !dims[0].is_multiple_of(ty.block()) {
            return Err(problem(Problem::Block {
                name,
                ty,
                columns: dims[0],
                block: ty.block(),
            }));
        }
        if needed != bytes.len() as u64 {
            let (wanted, needed) = (count as usize, needed as usize);
            return Err(problem(Problem::Length {
                ty,
                given: bytes.len(),
                wanted,
                needed,
            }));
        }
        if self.tensors.contains_key(&name) {
            return Err(problem(Problem::DuplicateTensor { name }));
        }
        self.tensors
            .insert(name, (ty, dims.to_vec(), Bytes::copy_from_slice(bytes)));
        Ok(())
    }

    /// The file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut out, key);
            out.extend((value.value_type() as i32).to_le_bytes());
            self::value(&mut out, value);
        }
        let mut offset = 0usize;
        for (name, (ty, dims, bytes)) in &self.tensors {
            string(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(ty.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += bytes.len().next_multiple_of(ALIGNMENT);
        }
        for (_, _, bytes) in self.tensors.values() {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend_from_slice(bytes);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        Ok(out)
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.push(*value),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(value) => string(out, value),
        Value::Array(array) => self::array(out, array),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    out.extend((array.element_type() as i32).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => out.extend(values),
        Array::I8(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::U16(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::I16(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::U32(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::I32(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::F32(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::Bool(values) => out.extend(values.iter().map(|&value| u8::from(value))),
        Array::String(values) => values.iter().for_each(|value| string(out, value)),
        Array::U64(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::I64(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
        Array::F64(values) => values.iter().for_each(|value| out.extend(value.to_le_bytes())),
    }
}
