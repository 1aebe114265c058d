//! Resolves tensors whose data lie in files beside the model.
//!
//! Before: a tensor has `data_location = EXTERNAL` and `location`, `offset`, `length`. After: its bytes are in
//! `raw_data`, as a slice of that file's mapping, and nothing tells it from an embedded one. A location may only name a
//! file at or below the model's own folder. Symbolic links there are followed where they stay in that folder, or lead
//! to or below the folder that the model's own file really is in: in a model hub's cache, model and data are links into
//! one folder of blobs. What leads elsewhere is refused, unless the caller allows it ([`Links`]): else a model that was
//! downloaded could make any file of this machine part of its results.

use std::io;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;

use super::proto::tensor_proto::DataLocation;
use super::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use super::tensor::{TensorError, type_of};
use crate::weights::map_file;

/// Where symbolic links of a model's external data may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// To files in the model's folder, or in the folder that its own file really is in.
    #[default]
    Inside,
    /// To any file.
    Anywhere,
}

/// A tensor's external data cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("tensor {tensor:?} is in an external file, but its `{key}` is {value:?}, which is not {expected}")]
    Entry {
        tensor: String,
        key: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error(
        "tensor {tensor:?} is in {location:?}; an external file must lie in or below the model's folder (no `..`, not absolute)"
    )]
    Outside { tensor: String, location: String },
    #[error(
        "tensor {tensor:?} is in {file:?}, which is a link to {target:?}, outside of the model's folder; put the file itself there, or \
         allow such links with --follow-links"
    )]
    Link {
        tensor: String,
        file: PathBuf,
        target: PathBuf,
    },
    #[error("tensor {tensor:?} is in {file:?}, which cannot be read: {source}; put that file where it is expected")]
    Open {
        tensor: String,
        file: PathBuf,
        source: io::Error,
    },
    #[error(
        "tensor {tensor:?} is bytes {offset} to {offset}+{length} of {file:?}, which has only {file_len}; download it again"
    )]
    Range {
        tensor: String,
        file: PathBuf,
        offset: u64,
        length: u64,
        file_len: usize,
    },
    #[error("tensor {tensor:?} takes {expected} bytes, but the model says that {length} are stored in {location:?}")]
    Length {
        tensor: String,
        location: String,
        expected: usize,
        length: u64,
    },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// What is done with an external file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// It is mapped, and tensors get their bytes.
    Map,
    /// It is listed, whether it is there or not.
    Name,
}

/// The external files of one model, each mapped once.
pub(super) struct ExternalFiles<'a> {
    folder: &'a Path,
    /// Folders that files must really be in or below; None for any.
    roots: Option<Vec<PathBuf>>,
    access: Access,
    mapped: IndexMap<PathBuf, Bytes>,
}

impl<'a> ExternalFiles<'a> {
    /// Of a model in a folder; `model` is its own file, where it has one.
    pub(super) fn new(folder: &'a Path, model: &Path, links: Links) -> Self {
        let here = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let own = model.canonicalize().ok();
        let own = own.and_then(|file| file.parent().map(Path::to_path_buf));
        let roots = here.canonicalize().ok().into_iter().chain(own).collect();
        ExternalFiles {
            folder,
            roots: (links == Links::Inside).then_some(roots),
            access: Access::Map,
            mapped: IndexMap::new(),
        }
    }

    /// Of a model in a folder: lists the files that tensors name, and opens none.
    pub(super) fn names(folder: &'a Path) -> Self {
        ExternalFiles {
            folder,
            roots: None,
            access: Access::Name,
            mapped: IndexMap::new(),
        }
    }

    /// The files that tensors were found in, in the order of the model.
    pub(super) fn paths(self) -> impl Iterator<Item = PathBuf> {
        self.mapped.into_keys()
    }

    /// Resolves every tensor of a graph: initializers, attributes, and those of subgraphs.
    pub(super) fn resolve_graph(&mut self, graph: &mut GraphProto) -> Result<(), ExternalError> {
        for tensor in &mut graph.initializer {
            self.resolve(tensor)?;
        }
        for sparse in &mut graph.sparse_initializer {
            for tensor in sparse.values.iter_mut().chain(&mut sparse.indices) {
                self.resolve(tensor)?;
            }
        }
        self.resolve_nodes(&mut graph.node)
    }

    /// Resolves the tensors in the attributes of nodes. The nesting is bounded: prost refuses more than 100 levels.
    pub(super) fn resolve_nodes(&mut self, nodes: &mut [NodeProto]) -> Result<(), ExternalError> {
        nodes
            .iter_mut()
            .flat_map(|node| &mut node.attribute)
            .try_for_each(|attribute| self.resolve_attribute(attribute))
    }

    fn resolve_attribute(&mut self, attribute: &mut AttributeProto) -> Result<(), ExternalError> {
        for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
            self.resolve(tensor)?;
        }
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            self.resolve_graph(graph)?;
        }
        Ok(())
    }

    fn resolve(&mut self, tensor: &mut TensorProto) -> Result<(), ExternalError> {
        if tensor.data_location != DataLocation::External as i32 {
            return Ok(());
        }
        let (element, dims) = type_of(tensor)?;
        let too_large = || TensorError::TooLarge {
            name: tensor.name.clone(),
            element,
            dims: dims.clone(),
        };
        let expected = element.bytes_for(&dims).ok_or_else(too_large)?;
        let entry = |key: &str| {
            tensor
                .external_data
                .iter()
                .find(|e| e.key == key)
                .map(|e| e.value.as_str())
        };
        let number = |key: &'static str| {
            let Some(value) = entry(key) else { return Ok(None) };
            value.parse::<u64>().map(Some).map_err(|_| {
                let (tensor, value) = (tensor.name.clone(), value.to_owned());
                ExternalError::Entry {
                    tensor,
                    key,
                    value,
                    expected: "a byte count",
                }
            })
        };
        let location = entry("location").unwrap_or_default();
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?.unwrap_or(expected as u64);
        if length != expected as u64 {
            let (tensor, location) = (tensor.name.clone(), location.to_owned());
            return Err(ExternalError::Length {
                tensor,
                location,
                expected,
                length,
            });
        }
        let file = self.inside(location, &tensor.name)?;
        if self.access == Access::Name {
            self.mapped.entry(file).or_default();
            return Ok(());
        }
        if !self.mapped.contains_key(&file) {
            let open = |source| ExternalError::Open {
                tensor: tensor.name.clone(),
                file: file.clone(),
                source,
            };
            // What is mapped is what was looked at, whatever becomes of the link.
            let target = file.canonicalize().map_err(open)?;
            if let Some(roots) = &self.roots
                && !roots.iter().any(|root| target.starts_with(root))
            {
                let tensor = tensor.name.clone();
                return Err(ExternalError::Link { tensor, file, target });
            }
            let map = map_file(&target).map_err(open)?;
            self.mapped.insert(file.clone(), map);
        }
        let whole = &self.mapped[&file];
        let start = usize::try_from(offset).ok();
        let range = start
            .and_then(|start| Some(start..start.checked_add(expected)?))
            .filter(|r| r.end <= whole.len());
        let Some(range) = range else {
            let (tensor, file_len) = (tensor.name.clone(), whole.len());
            return Err(ExternalError::Range {
                tensor,
                file,
                offset,
                length,
                file_len,
            });
        };
        tensor.raw_data = whole.slice(range);
        tensor.external_data.clear();
        tensor.data_location = DataLocation::Default as i32;
        Ok(())
    }

    /// Returns the file of a location, if that stays in the folder.
    fn inside(&self, location: &str, tensor: &str) -> Result<PathBuf, ExternalError> {
        let path = Path::new(location);
        let plain = path
            .components()
            .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || !plain {
            return Err(ExternalError::Outside {
                tensor: tensor.to_owned(),
                location: location.to_owned(),
            });
        }
        // Without `.` components, so that each file has one key.
        Ok(self.folder.join(
            path.components()
                .filter(|c| matches!(c, Component::Normal(_)))
                .collect::<PathBuf>(),
        ))
    }
}
