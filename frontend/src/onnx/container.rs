//! Looks at a file's outermost protobuf fields before it is decoded, so that errors can name an offset.
//!
//! Prost's decoder says only that some field underflowed. This walk over the dozen fields of `ModelProto` costs nothing
//! and tells a file that was cut off from one that was never ONNX.

/// The bytes are not the outside of an ONNX model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    #[error("the file is empty; download or export it again")]
    Empty,
    #[error("this is {what}, not an ONNX model; {way_out}")]
    Other { what: &'static str, way_out: &'static str },
    #[error("not an ONNX model: byte {offset} is no field of a protobuf message; export the model to .onnx")]
    NotProtobuf { offset: usize },
    #[error(
        "the file is cut off: field `{field}` at byte {offset} needs {need} bytes, but only {have} are left; download it again"
    )]
    Truncated {
        offset: usize,
        field: &'static str,
        need: u64,
        have: usize,
    },
}

/// The fields of `ModelProto`: number, wire type, name.
const FIELDS: [(u64, u8, &str); 12] = [
    (1, VARINT, "ir_version"),
    (2, LENGTH, "producer_name"),
    (3, LENGTH, "producer_version"),
    (4, LENGTH, "domain"),
    (5, VARINT, "model_version"),
    (6, LENGTH, "doc_string"),
    (7, LENGTH, "graph"),
    (8, LENGTH, "opset_import"),
    (14, LENGTH, "metadata_props"),
    (20, LENGTH, "training_info"),
    (25, LENGTH, "functions"),
    (26, LENGTH, "configuration"),
];

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

/// First bytes of files that people hand over by mistake.
const MAGIC: [(&[u8], &str, &str); 8] = [
    (
        b"version https://git-lfs",
        "a Git LFS pointer",
        "fetch the file it points to with `git lfs pull`",
    ),
    (
        b"PK\x03\x04",
        "a zip archive (PyTorch checkpoints are, too)",
        "unpack it, or export the model to .onnx",
    ),
    (b"GGUF", "a GGUF file", "convert it to .onnx"),
    (
        b"<!DOCTYPE",
        "an HTML page",
        "the download address was probably a web page's, not the file's",
    ),
    (
        b"<html",
        "an HTML page",
        "the download address was probably a web page's, not the file's",
    ),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x89HDF", "an HDF5 file", "export the model to .onnx"),
    (b"\x80\x02", "a Python pickle", "export the model to .onnx"),
];

/// Checks the outermost fields.
///
/// # Errors
/// When the bytes are empty, something else, or cut off. A message that is well-formed here may still be malformed
/// inside.
pub fn check_container(bytes: &[u8]) -> Result<(), ContainerError> {
    if bytes.is_empty() {
        return Err(ContainerError::Empty);
    }
    for (magic, what, way_out) in MAGIC {
        if bytes.starts_with(magic) {
            return Err(ContainerError::Other { what, way_out });
        }
    }
    // A safetensors file: a small length, then the JSON header.
    if bytes.get(8..10) == Some(b"{\"") {
        let way_out = "weights alone have no graph; export the model to .onnx";
        return Err(ContainerError::Other {
            what: "a safetensors file",
            way_out,
        });
    }
    let mut offset = 0;
    while offset < bytes.len() {
        offset = skip_field(bytes, offset)?;
    }
    Ok(())
}

/// Returns the offset after the field that starts at `start`.
fn skip_field(bytes: &[u8], start: usize) -> Result<usize, ContainerError> {
    let foreign = ContainerError::NotProtobuf { offset: start };
    let Some((tag, after_tag)) = varint(bytes, start) else {
        return Err(foreign);
    };
    let (number, wire) = (tag >> 3, (tag & 7) as u8);
    let known = FIELDS.iter().find(|(field, ..)| *field == number);
    if number == 0 || known.is_some_and(|(_, expected, _)| *expected != wire) {
        return Err(foreign);
    }
    let left = bytes.len() - after_tag;
    // An unknown field that runs over the end is more likely no field at all than one that was cut off.
    let overrun = |need: u64| match known {
        Some((_, _, field)) => ContainerError::Truncated {
            offset: start,
            field,
            need,
            have: left,
        },
        None => ContainerError::NotProtobuf { offset: start },
    };
    match wire {
        VARINT => varint(bytes, after_tag)
            .map(|(_, end)| end)
            .ok_or_else(|| overrun(left as u64 + 1)),
        FIXED64 if left >= 8 => Ok(after_tag + 8),
        FIXED64 => Err(overrun(8)),
        FIXED32 if left >= 4 => Ok(after_tag + 4),
        FIXED32 => Err(overrun(4)),
        LENGTH => {
            let (length, begin) = varint(bytes, after_tag).ok_or_else(|| overrun(left as u64 + 1))?;
            let have = bytes.len() - begin;
            match usize::try_from(length) {
                Ok(length) if length <= have => Ok(begin + length),
                _ => Err(match known {
                    Some((_, _, field)) => ContainerError::Truncated {
                        offset: start,
                        field,
                        need: length,
                        have,
                    },
                    None => foreign,
                }),
            }
        }
        _ => Err(foreign),
    }
}

/// Returns the base-128 number at `start` and the offset after it.
fn varint(bytes: &[u8], start: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, &byte) in bytes.get(start..)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte < 0x80 {
            return Some((value, start + index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_named() {
        for (bytes, what) in [
            (&b"version https://git-lfs.github.com/spec/v1\n"[..], "Git LFS"),
            (b"PK\x03\x04rest", "zip"),
            (b"<!DOCTYPE html>", "HTML"),
            (b"\x10\0\0\0\0\0\0\0{\"a\":{}}", "safetensors"),
        ] {
            let error = check_container(bytes).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert_eq!(check_container(b""), Err(ContainerError::Empty));
        assert!(matches!(
            check_container(b"just some text"),
            Err(ContainerError::NotProtobuf { .. })
        ));
        // Field 7 (the graph) as a number instead of a message.
        assert_eq!(
            check_container(&[0x08, 8, 0x38, 1]),
            Err(ContainerError::NotProtobuf { offset: 2 })
        );
    }

    #[test]
    fn a_cut_names_the_field_and_the_offset() {
        // ir_version 8; a graph of 200 bytes, of which 3 are there.
        let error = check_container(&[0x08, 8, 0x3a, 0xc8, 1, 1, 2, 3]).unwrap_err();
        assert_eq!(
            error,
            ContainerError::Truncated {
                offset: 2,
                field: "graph",
                need: 200,
                have: 3
            }
        );
    }
}
