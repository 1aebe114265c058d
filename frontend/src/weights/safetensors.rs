//! Safetensors files, single and sharded.
//!
//! The format: eight bytes with the header's length, a JSON header, then the tensors' bytes. A sharded model has
//! `NAME.safetensors.index.json`, whose `weight_map` says which file holds which tensor.

use std::io;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use super::{ElementType, QuantizationConfig, TensorView, map_file};

/// The tensors of a safetensors file, or of all shards of a sharded one, memory-mapped.
#[derive(Clone, Debug)]
pub struct Weights {
    path: PathBuf,
    /// Where the checkpoint's other files are; none for one in memory.
    folder: Option<PathBuf>,
    tensors: IndexMap<String, TensorView>,
}

/// Weights could not be opened or found.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} holds no model.safetensors and no *.safetensors.index.json; name the file itself", path.display())]
    NoWeights { path: PathBuf },
    #[error("{} is not a whole safetensors file ({len} bytes): {source}; download it again", path.display())]
    Header {
        path: PathBuf,
        len: usize,
        source: SafeTensorError,
    },
    #[error("{} is not a safetensors index: {reason}", path.display())]
    Index { path: PathBuf, reason: String },
    #[error("{} is not JSON: {reason}; it says how the weights beside it were quantised", path.display())]
    Config { path: PathBuf, reason: String },
    #[error("{}: tensor {tensor:?} is in shard {shard:?}, which is not a plain file name inside the index's folder", path.display())]
    ShardPath {
        path: PathBuf,
        tensor: String,
        shard: String,
    },
    #[error("{}: the index says tensor {tensor:?} is in {shard:?}, but that file does not hold it", path.display())]
    NotInShard {
        path: PathBuf,
        tensor: String,
        shard: String,
    },
    #[error("{}: tensor {tensor:?} has the element type {found}, which graphc does not read", path.display())]
    ElementType {
        path: PathBuf,
        tensor: String,
        found: String,
    },
    #[error("{} has no tensor {name:?}{}", path.display(), nearest.as_ref().map(|n| format!("; the nearest name is {n:?}")).unwrap_or_default())]
    UnknownName {
        path: PathBuf,
        name: String,
        nearest: Option<String>,
    },
}

impl Weights {
    /// Opens a `.safetensors` file, a `.index.json` of a sharded one, or a folder that holds `model.safetensors` or
    /// exactly one index. Maps the files; nothing is copied.
    ///
    /// # Errors
    /// When a file is missing, damaged or not safetensors, or an index names a shard outside its folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights, WeightsError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Weights::open(find_in_folder(path)?);
        }
        let tensors = if path.extension().is_some_and(|extension| extension == "json") {
            read_index(path)?
        } else {
            read_file(path)?
        };
        Ok(Weights {
            path: path.to_path_buf(),
            folder: path.parent().map(Path::to_path_buf),
            tensors,
        })
    }

    /// Reads one safetensors file from memory; `path` only names it in errors. Tensors share the bytes.
    ///
    /// # Errors
    /// When the bytes are not a whole safetensors file.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Bytes) -> Result<Weights, WeightsError> {
        let path = path.into();
        let tensors = read_bytes(&path, &bytes)?;
        Ok(Weights {
            path,
            folder: None,
            tensors,
        })
    }

    /// Reads what `config.json` or `quantize_config.json` beside the file says of its quantisation; nothing where there
    /// is neither.
    ///
    /// # Errors
    /// When such a file exists and cannot be read, or is not JSON.
    pub fn quantization(&self) -> Result<QuantizationConfig, WeightsError> {
        match &self.folder {
            Some(folder) => QuantizationConfig::read(folder),
            None => Ok(QuantizationConfig::default()),
        }
    }

    /// Returns the tensor of that name.
    ///
    /// # Errors
    /// When there is none; the error carries the nearest name that exists.
    pub fn get(&self, name: &str) -> Result<&TensorView, WeightsError> {
        self.tensors.get(name).ok_or_else(|| WeightsError::UnknownName {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: nearest(name, self.names()),
        })
    }

    /// Says whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns all names: in file order, and for a sharded model in the order of the index.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns all tensors in the order of [`Weights::names`].
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorView> {
        self.tensors.values()
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Says whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the file, or the index, that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Finds the weights of a folder laid out as the Hugging Face hub does.
fn find_in_folder(folder: &Path) -> Result<PathBuf, WeightsError> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(single);
    }
    let open_error = |source| WeightsError::Open {
        path: folder.to_path_buf(),
        source,
    };
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(open_error)? {
        let path = entry.map_err(open_error)?.path();
        if path
            .to_str()
            .is_some_and(|name| name.ends_with(".safetensors.index.json"))
            && found.replace(path).is_some()
        {
            return Err(WeightsError::NoWeights {
                path: folder.to_path_buf(),
            });
        }
    }
    found.ok_or_else(|| WeightsError::NoWeights {
        path: folder.to_path_buf(),
    })
}

fn read_file(path: &Path) -> Result<IndexMap<String, TensorView>, WeightsError> {
    let bytes = map_file(path).map_err(|source| WeightsError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    read_bytes(path, &bytes)
}

/// Reads one file's tensors, in file order.
fn read_bytes(path: &Path, bytes: &Bytes) -> Result<IndexMap<String, TensorView>, WeightsError> {
    let damaged = |source| WeightsError::Header {
        path: path.to_path_buf(),
        len: bytes.len(),
        source,
    };
    let (header_len, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    // `read_metadata` has checked that the offsets cover the rest of the file without gaps and match type and shape.
    let data = bytes.slice(header_len + 8..);
    let mut tensors = IndexMap::new();
    let mut names = metadata.offset_keys();
    // Empty tensors share an offset, so the name decides.
    names.sort_by_cached_key(|name| (metadata.info(name).map(|info| info.data_offsets), name.clone()));
    for name in names {
        let Some(info) = metadata.info(&name) else { continue };
        let Some(element) = element_type(info.dtype) else {
            let found = format!("{:?}", info.dtype);
            return Err(WeightsError::ElementType {
                path: path.to_path_buf(),
                tensor: name,
                found,
            });
        };
        let bytes = data.slice(info.data_offsets.0..info.data_offsets.1);
        tensors.insert(
            name.clone(),
            TensorView {
                name,
                element,
                dims: info.shape.clone(),
                bytes,
            },
        );
    }
    Ok(tensors)
}

fn read_index(path: &Path) -> Result<IndexMap<String, TensorView>, WeightsError> {
    let text = ir::file::read(path).map_err(|source| WeightsError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    let bad = |reason: String| WeightsError::Index {
        path: path.to_path_buf(),
        reason,
    };
    let index: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| bad("it has no object `weight_map`".to_owned()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut shards: IndexMap<String, IndexMap<String, TensorView>> = IndexMap::new();
    let mut tensors = IndexMap::new();
    for (name, shard) in map {
        let shard = shard
            .as_str()
            .ok_or_else(|| bad(format!("weight_map[{name:?}] is not a file name")))?;
        let mut components = Path::new(shard).components();
        if !matches!(
            (components.next(), components.next()),
            (Some(Component::Normal(_)), None)
        ) {
            let (tensor, shard) = (name.clone(), shard.to_owned());
            return Err(WeightsError::ShardPath {
                path: path.to_path_buf(),
                tensor,
                shard,
            });
        }
        if !shards.contains_key(shard) {
            shards.insert(shard.to_owned(), read_file(&folder.join(shard))?);
        }
        let Some(view) = shards.get(shard).and_then(|tensors| tensors.get(name)) else {
            let (tensor, shard) = (name.clone(), shard.to_owned());
            return Err(WeightsError::NotInShard {
                path: path.to_path_buf(),
                tensor,
                shard,
            });
        };
        tensors.insert(name.clone(), view.clone());
    }
    Ok(tensors)
}

/// Maps safetensors' element types to ours; its F8_E4M3 is the OCP type (FN).
fn element_type(dtype: Dtype) -> Option<ElementType> {
    Some(match dtype {
        Dtype::BOOL => ElementType::Bool,
        Dtype::F4 => ElementType::F4E2M1,
        Dtype::F6_E2M3 => ElementType::F6E2M3,
        Dtype::F6_E3M2 => ElementType::F6E3M2,
        Dtype::U8 => ElementType::U8,
        Dtype::I8 => ElementType::I8,
        Dtype::F8_E5M2 => ElementType::F8E5M2,
        Dtype::F8_E4M3 => ElementType::F8E4M3FN,
        Dtype::F8_E8M0 => ElementType::F8E8M0,
        Dtype::I16 => ElementType::I16,
        Dtype::U16 => ElementType::U16,
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::BF16,
        Dtype::I32 => ElementType::I32,
        Dtype::U32 => ElementType::U32,
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::I64 => ElementType::I64,
        Dtype::U64 => ElementType::U64,
        _ => return None,
    })
}

/// Returns the name with the smallest edit distance, if it is near enough to be what was meant.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let (distance, found) = names.map(|n| (strsim::osa_distance(name, n), n)).min()?;
    (distance <= name.len().max(found.len()) / 2).then(|| found.to_owned())
}

#[cfg(test)]
mod tests;
