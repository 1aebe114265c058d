//! Reads an ONNX file: maps it, decodes it, and brings in external data. It judges no operator.
//!
//! Before: a path. After: a [`Model`] whose tensors all have their bytes, as slices of mapped files wherever the file
//! stores them raw; no weight is copied. Tensors are checked for size, so [`super::tensor_view`] fails afterwards only
//! for text and for attributes' tensors.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;
use prost::Message;

use super::container::{ContainerError, check_container};
use super::external::{ExternalError, ExternalFiles, Links};
use super::proto::{FunctionProto, GraphProto, ModelProto};
use super::tensor::{TensorError, tensor_view};
use crate::weights::map_file;

/// The versions of ONNX's file format that are read: from the first with operator-set imports to the newest.
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=14;

/// A decoded ONNX model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The file, or the name given to bytes in memory.
    pub path: PathBuf,
    pub ir_version: i64,
    /// Name and version of the program that wrote the file.
    pub producer: String,
    /// Operator-set versions by domain; `""` is ONNX's own (`ai.onnx` is spelled so, too).
    pub opsets: IndexMap<String, i64>,
    pub graph: GraphProto,
    /// Model-local functions, which calls in the graph refer to by domain and name.
    pub functions: Vec<FunctionProto>,
    pub metadata: IndexMap<String, String>,
    /// The files beside it that hold tensors of it.
    pub external: Vec<PathBuf>,
}

/// An ONNX file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    pub path: PathBuf,
    #[source]
    pub problem: Box<ReadProblem>,
}

/// What is wrong with an ONNX file.
#[derive(Debug, thiserror::Error)]
pub enum ReadProblem {
    #[error("cannot be read: {0}")]
    Open(#[from] io::Error),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error("not an ONNX model, or damaged: {detail}; check it with onnx.checker, or export it again")]
    Malformed { detail: String },
    #[error("the file has no graph; is it a tensor or a training checkpoint rather than a model?")]
    NoGraph,
    #[error("the model imports no operator set, which every IR version from 3 on must; the file is cut off or damaged")]
    NoOperatorSet,
    #[error(
        "the file has IR version {found}; graphc reads {} to {}; save it again with another version of the onnx package",
        IR_VERSIONS.start(), IR_VERSIONS.end()
    )]
    IrVersion { found: i64 },
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    External(#[from] ExternalError),
}

/// Reads a model file and the external data beside it.
///
/// The files are memory-mapped and should stay unchanged while the model, or any tensor of it, lives.
///
/// # Errors
/// When a file is missing, is not ONNX, is cut off or damaged, has an unknown IR version, or a tensor's data does not
/// match its type; the error names the file, and the tensor or byte offset.
pub fn read_model(path: impl AsRef<Path>) -> Result<Model, ReadError> {
    read_model_with(path, Links::default())
}

/// As [`read_model`], with where links of external data may lead.
///
/// # Errors
/// As [`read_model`].
pub fn read_model_with(path: impl AsRef<Path>, links: Links) -> Result<Model, ReadError> {
    let path = path.as_ref();
    let (proto, external) = read_file(path, links)?;
    Model::of(path, proto, external)
}

/// Reads a file's messages, and the files beside it that hold tensors of it.
///
/// # Errors
/// As [`read_model`].
pub(super) fn read_file(path: &Path, links: Links) -> Result<(ModelProto, Vec<PathBuf>), ReadError> {
    let bytes = map_file(path).map_err(|error| error_at(path, error.into()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let read = read_proto(path, bytes.clone(), Some(folder), links);
    // Damage of a file that became shorter meanwhile is no damage.
    match ir::mapped::check([&bytes[..]]) {
        Ok(()) => read,
        Err(error) => Err(error_at(path, io::Error::other(error).into())),
    }
}

/// Reads a model from memory; tensors share the bytes.
///
/// `path` only names the model in errors; external data are looked for in `folder`, and are an error without one.
///
/// # Errors
/// As [`read_model`].
pub fn read_bytes(path: impl AsRef<Path>, bytes: Bytes, folder: Option<&Path>) -> Result<Model, ReadError> {
    let path = path.as_ref();
    let (proto, external) = read_proto(path, bytes, folder, Links::default())?;
    Model::of(path, proto, external)
}

fn error_at(path: &Path, problem: ReadProblem) -> ReadError {
    ReadError {
        path: path.to_path_buf(),
        problem: Box::new(problem),
    }
}

impl Model {
    /// Makes a model of messages that [`read_proto`] has read.
    ///
    /// # Errors
    /// Messages without a graph.
    pub(super) fn of(path: &Path, proto: ModelProto, external: Vec<PathBuf>) -> Result<Model, ReadError> {
        let Some(graph) = proto.graph else {
            return Err(error_at(path, ReadProblem::NoGraph));
        };
        let opsets = proto
            .opset_import
            .into_iter()
            .map(|o| (canonical_domain(&o.domain).to_owned(), o.version))
            .collect();
        Ok(Model {
            path: path.to_path_buf(),
            ir_version: proto.ir_version,
            producer: [proto.producer_name, proto.producer_version]
                .join(" ")
                .trim()
                .to_owned(),
            opsets,
            graph,
            functions: proto.functions,
            external,
            metadata: proto
                .metadata_props
                .into_iter()
                .map(|entry| (entry.key, entry.value))
                .collect(),
        })
    }

    /// Returns the operator-set version of a domain (`""` or `"ai.onnx"` is ONNX's own), if the model imports it.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.get(canonical_domain(domain)).copied()
    }
}

/// Returns the domain with ONNX's own in its short spelling.
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Reads a file's messages with the bytes of all tensors, and the files beside it that they came from.
///
/// # Errors
/// As [`read_bytes`].
pub(super) fn read_proto(
    path: &Path,
    bytes: Bytes,
    folder: Option<&Path>,
    links: Links,
) -> Result<(ModelProto, Vec<PathBuf>), ReadError> {
    decode(path, bytes, folder, links).map_err(|problem| error_at(path, problem))
}

fn decode(
    path: &Path,
    bytes: Bytes,
    folder: Option<&Path>,
    links: Links,
) -> Result<(ModelProto, Vec<PathBuf>), ReadProblem> {
    check_container(&bytes)?;
    let mut proto = ModelProto::decode(bytes).map_err(|error| ReadProblem::Malformed {
        detail: error.to_string(),
    })?;
    let Some(graph) = &mut proto.graph else {
        return Err(ReadProblem::NoGraph);
    };
    if !IR_VERSIONS.contains(&proto.ir_version) {
        return Err(ReadProblem::IrVersion {
            found: proto.ir_version,
        });
    }
    if proto.opset_import.is_empty() {
        return Err(ReadProblem::NoOperatorSet);
    }
    let external = match folder {
        Some(folder) => resolve(ExternalFiles::new(folder, path, links), graph, &mut proto.functions)?,
        None => Vec::new(),
    };
    for tensor in &graph.initializer {
        match tensor_view(tensor) {
            // Text may be there and never be used; the importer refuses its use.
            Ok(_) | Err(TensorError::Strings { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((proto, external))
}

/// Resolves the tensors of a model, and returns the files that they are in.
fn resolve(
    mut files: ExternalFiles<'_>,
    graph: &mut GraphProto,
    functions: &mut [FunctionProto],
) -> Result<Vec<PathBuf>, ExternalError> {
    files.resolve_graph(graph)?;
    for function in functions {
        files.resolve_nodes(&mut function.node)?;
    }
    Ok(files.paths().collect())
}

/// Lists the files beside a model that hold tensors of it, in the order of the model; none is opened, and none need be
/// there.
///
/// # Errors
/// A file that is missing or no ONNX, and locations outside of the model's folder.
pub fn external_files(path: impl AsRef<Path>) -> Result<Vec<PathBuf>, ReadError> {
    let path = path.as_ref();
    let list = || {
        let bytes = map_file(path)?;
        check_container(&bytes)?;
        let mut proto = ModelProto::decode(bytes).map_err(|error| ReadProblem::Malformed {
            detail: error.to_string(),
        })?;
        let graph = proto.graph.as_mut().ok_or(ReadProblem::NoGraph)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(resolve(ExternalFiles::names(folder), graph, &mut proto.functions)?)
    };
    list().map_err(|problem: ReadProblem| error_at(path, problem))
}

#[cfg(test)]
mod tests;
