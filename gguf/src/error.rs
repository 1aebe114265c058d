//! The errors of this crate: each names its file, its place and the values.

use std::io;
use std::path::PathBuf;

use crate::kind::TensorType;

/// A GGUF file could not be read, written or understood.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    pub path: PathBuf,
    #[source]
    pub problem: Problem,
}

/// The problem with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("not a GGUF file: it begins with {found:02x?}, where GGUF files begin with \"GGUF\"")]
    Magic { found: Vec<u8> },
    #[error("GGUF version {found} is not read; versions 2 and 3 are (convert older files with llama.cpp's gguf tools)")]
    Version { found: u32 },
    #[error("the file is big-endian GGUF; convert it with gguf_convert_endian.py of PyPI's gguf package")]
    BigEndian,
    #[error("the file ends in {what} at byte {at}: {wanted} more bytes are wanted, {left} are left")]
    Truncated {
        what: String,
        at: u64,
        wanted: u64,
        left: u64,
    },
    #[error("{what} at byte {at} has a length of {found}; at most {limit} is read")]
    TooLong {
        what: String,
        at: u64,
        found: u64,
        limit: u64,
    },
    #[error("{what} at byte {at} is not UTF-8 text")]
    NotText { what: String, at: u64 },
    #[error("key {key:?} at byte {at} has value type {found}; the format has 0 to 12")]
    ValueType { key: String, at: u64, found: i32 },
    #[error("key {key:?} at byte {at} is an array of arrays, which neither ggml nor graphc reads")]
    NestedArray { key: String, at: u64 },
    #[error("key {key:?} at byte {at} is a bool of {found}; bools are 0 or 1")]
    Bool { key: String, at: u64, found: u8 },
    #[error("key {key:?} is given twice")]
    DuplicateKey { key: String },
    #[error("a key at byte {at} is empty")]
    EmptyKey { at: u64 },
    #[error("tensor {name:?} is there twice")]
    DuplicateTensor { name: String },
    #[error("tensor {name:?} has {found} dims; tensors have 1 to 4")]
    Rank { name: String, found: u32 },
    #[error("tensor {name:?} has dims {dims:?}, whose product is beyond 2^63")]
    Elements { name: String, dims: Vec<u64> },
    #[error("tensor {name:?} has ggml type {found}, {reason}")]
    TensorType { name: String, found: i32, reason: String },
    #[error("tensor {name:?} has rows of {columns} elements; {ty} has blocks of {block}, which never straddle rows")]
    Block {
        name: String,
        ty: TensorType,
        columns: u64,
        block: u64,
    },
    #[error(
        "tensor {name:?} begins at byte {offset} of the data, which is no multiple of the alignment of {alignment}"
    )]
    Unaligned { name: String, offset: u64, alignment: u64 },
    #[error("tensor {name:?} takes bytes {first} to {last} of a file of {length} bytes: the file is cut or damaged")]
    Outside {
        name: String,
        first: u64,
        last: u64,
        length: u64,
    },
    #[error("tensors {one:?} and {other:?} share bytes of the file")]
    Overlap { one: String, other: String },
    #[error("general.alignment is {found}; it is to be a power of two of 8 or more")]
    Alignment { found: u64 },
    #[error("key {key:?} is missing; the file has {}", list(.similar))]
    MissingKey { key: String, similar: Vec<String> },
    #[error("key {key:?} is {found}, where {wanted} is wanted")]
    WrongValue { key: String, found: String, wanted: String },
    #[error("tensor {name:?} is missing; the file has {}", list(.similar))]
    MissingTensor { name: String, similar: Vec<String> },
    #[error(
        "split.count is {count}, but the name does not end in -00001-of-{count:05}.gguf; name the first file of the split"
    )]
    SplitName { count: u64 },
    #[error("file {number} of a split model says that it is file {found} of {found_count}")]
    SplitOrder { number: u64, found: u64, found_count: u64 },
    #[error("the files of the split model have {found} tensors; split.tensors.count says {wanted}")]
    SplitTensors { found: u64, wanted: u64 },
    #[error("{ty} has no numbers here: {reason}")]
    NoNumbers { ty: TensorType, reason: String },
    #[error("{given} bytes of {ty} for {wanted} numbers; {needed} bytes are needed")]
    Length {
        ty: TensorType,
        given: usize,
        wanted: usize,
        needed: usize,
    },
}

impl Problem {
    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> GgufError {
        GgufError {
            path: path.into(),
            problem: self,
        }
    }
}

/// Names for a message: the first few, and how many there are.
fn list(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        count @ 1..=5 => format!("{count}: {}", names.join(", ")),
        count => format!("{count}, {} among them", names[..5].join(", ")),
    }
}
