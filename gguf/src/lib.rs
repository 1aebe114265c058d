//! GGUF, the file format of llama.cpp's models: reading, writing, and the numbers that its blocks stand for.
//!
//! [`GgufFile`] maps a file, or all files of a split model, and checks it whole before it gives anything: each count
//! against the bytes that are left, each tensor's place against the file's end. [`dequantize`] turns blocks into `f32`,
//! by the formulas of ggml's `ggml-quants.c`. [`GgufWriter`] writes files, for tests and converters.
//!
//! The format is version 3 of ggml's `docs/gguf.md`, little-endian; version 2 is laid out alike and is read too.
//!
//! ```
//! use graphc_gguf::{GgufFile, GgufWriter, TensorType, Value};
//!
//! let mut writer = GgufWriter::new("llama");
//! writer.set("llama.block_count", Value::U32(2))?;
//! writer.tensor("token_embd.weight", TensorType::F32, &[2, 3], &[0; 24])?;
//! let file = GgufFile::from_bytes("tiny.gguf", writer.to_bytes()?)?;
//! assert_eq!(file.architecture()?, "llama");
//! assert_eq!(file.unsigned("llama.block_count")?, 2);
//! assert_eq!(file.tensor("token_embd.weight")?.dims, [2, 3]);
//! # Ok::<(), graphc_gguf::GgufError>(())
//! ```

mod blocks;
mod cursor;
mod error;
mod file;
mod header;
mod kind;
mod split;
mod value;
mod write;

pub use blocks::dequantize;
pub use error::{GgufError, Problem};
pub use file::{GgufFile, Tensor};
pub use kind::{TensorType, file_type_name};
pub use value::{Array, Value, ValueType};
pub use write::GgufWriter;
