//! Quantises an ONNX file: `QuantizeLinear` and `DequantizeLinear` are put before the products that a recipe names.
//!
//! ```text
//! y = MatMul(x, w)     becomes     q = QuantizeLinear(x, s, z)    d = DequantizeLinear(q, s, z)
//!                                  e = DequantizeLinear(w_i8, w_scale)    y = MatMul(d, e)
//! ```
//!
//! Before: a model as it was read, with the bytes of all its tensors. After: the same model but for those nodes, the
//! weights that only they read, and the version of the operator set where the new nodes ask for a later one (`opset`).
//! `write` brings it to a file.

mod edit;
mod opset;
mod write;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use ir::recipe::{Layer, Stored};

use super::error::ImportError;
use super::external::Links;
use super::graph::import_model;
use super::options::ImportOptions;
use super::proto::ModelProto;
use super::read::{Model, ReadError, read_file, read_proto};

pub use opset::OpsetError;

/// A model file that can be changed and written again.
#[derive(Clone, Debug)]
pub struct ModelFile {
    path: PathBuf,
    proto: ModelProto,
    external: Vec<PathBuf>,
}

/// A file cannot be quantised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("layer {layer:?} cannot be written: {reason}")]
    Layer { layer: String, reason: String },
    #[error(transparent)]
    Opset(#[from] OpsetError),
}

impl ModelFile {
    /// Reads a model file with the external data beside it. The files must stay unchanged while this lives.
    ///
    /// # Errors
    /// As [`read_model`](super::read_model).
    pub fn read(path: impl AsRef<Path>) -> Result<ModelFile, ReadError> {
        ModelFile::read_with(path, Links::default())
    }

    /// As [`ModelFile::read`], with where links of external data may lead.
    ///
    /// # Errors
    /// As [`ModelFile::read`].
    pub fn read_with(path: impl AsRef<Path>, links: Links) -> Result<ModelFile, ReadError> {
        let path = path.as_ref();
        let (proto, external) = read_file(path, links)?;
        Ok(ModelFile {
            path: path.to_path_buf(),
            proto,
            external,
        })
    }

    /// Reads a model from memory; `path` names it in errors, and external data are looked for in `folder`.
    ///
    /// # Errors
    /// As [`read_bytes`](super::read_bytes).
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Bytes, folder: Option<&Path>) -> Result<ModelFile, ReadError> {
        let path = path.as_ref();
        let (proto, external) = read_proto(path, bytes, folder, Links::default())?;
        Ok(ModelFile {
            path: path.to_path_buf(),
            proto,
            external,
        })
    }

    /// Imports the model as it is now.
    ///
    /// # Errors
    /// As [`import`](super::import).
    pub fn import(&self, options: &ImportOptions) -> Result<ir::Graph, ImportError> {
        let model = Model::of(&self.path, self.proto.clone(), self.external.clone())?;
        import_model(&model, options)
    }

    /// The messages of the file.
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// Says why a layer's product cannot be given quantised operands in this file, if it cannot. `shape` is that of the
    /// weight as the product reads it.
    pub fn refuses(&self, layer: &str, shape: &[usize]) -> Option<String> {
        edit::find(&self.proto, layer, shape).err()
    }

    /// Quantises the layers, each with its weight as it is stored. Nothing changes where an error is returned.
    ///
    /// # Errors
    /// A layer that [`ModelFile::refuses`], and nodes whose meaning would change with the version of the operator set
    /// that is needed.
    pub fn quantize(&mut self, layers: &[(&Layer, Stored)]) -> Result<(), EditError> {
        let mut proto = self.proto.clone();
        opset::raise(&mut proto, edit::needed_opset(layers))?;
        edit::quantize(&mut proto, layers)?;
        self.proto = proto;
        Ok(())
    }

    /// Writes the model; tensors go to `{path}.data` where the model had such files itself, or one file would be too
    /// large.
    ///
    /// # Errors
    /// What the system reports.
    pub fn write(&self, path: &Path) -> std::io::Result<u64> {
        write::write(&self.proto, !self.external.is_empty(), path)
    }

    /// The model as the bytes of one file.
    pub fn to_bytes(&self) -> Vec<u8> {
        use prost::Message;
        self.proto.encode_to_vec()
    }
}
