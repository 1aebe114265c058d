//! Writes a model: as one file, or with its large tensors in a second one.

use std::path::Path;

use bytes::Bytes;
use prost::Message;

use crate::onnx::proto::tensor_proto::DataLocation;
use crate::onnx::proto::{ModelProto, StringStringEntryProto};

/// Protobuf's limit is 2 GiB; beyond this a model has its tensors in a second file.
const LARGEST_FILE: usize = 2_000_000_000;
/// Smaller tensors stay in the model's own file.
const SMALLEST_EXTERNAL: usize = 1024;
/// Where tensors begin in the second file, so that it can be mapped and read with wide loads.
const ALIGNMENT: usize = 64;

/// Writes a model and returns the bytes of all that was written.
pub(super) fn write(model: &ModelProto, external: bool, path: &Path) -> std::io::Result<u64> {
    let regular = std::fs::metadata(path).map_or(true, |m| m.is_file()) && !ir::file::is_stdout(path);
    if !regular || !(external || model.encoded_len() > LARGEST_FILE) {
        let bytes = model.encode_to_vec();
        ir::file::write(path, |out| out.write_all(&bytes))?;
        return Ok(bytes.len() as u64);
    }
    let mut model = model.clone();
    let mut beside = path.as_os_str().to_owned();
    beside.push(".data");
    let beside = Path::new(&beside);
    let location = beside.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut parts: Vec<(usize, Bytes)> = Vec::new();
    let mut end = 0usize;
    for tensor in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
        if tensor.raw_data.len() < SMALLEST_EXTERNAL {
            continue;
        }
        let data = std::mem::take(&mut tensor.raw_data);
        let offset = end.next_multiple_of(ALIGNMENT);
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: key.to_owned(),
            value,
        };
        tensor.external_data = vec![
            entry("location", location.clone()),
            entry("offset", offset.to_string()),
            entry("length", data.len().to_string()),
        ];
        tensor.data_location = DataLocation::External as i32;
        parts.push((offset - end, data.clone()));
        end = offset + data.len();
    }
    ir::file::write(beside, |out| {
        for (gap, data) in &parts {
            out.write_all(&[0; ALIGNMENT][..*gap])?;
            out.write_all(data)?;
        }
        Ok(())
    })?;
    let bytes = model.encode_to_vec();
    ir::file::write(path, |out| out.write_all(&bytes))?;
    Ok((bytes.len() + end) as u64)
}
