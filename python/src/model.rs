//! Models: opened, compiled to files, explained.

use std::path::PathBuf;

use graphc::driver::{Source, model::artifact_error};
use graphc::ir::{HostTensor, Storage};
use graphc::session::NamedOptions;
use indexmap::IndexMap;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::tensor::Tensor;

/// A model as Python gives it.
#[derive(FromPyObject)]
pub enum Model {
    Bytes(Py<PyBytes>),
    File(PathBuf),
}

/// Bytes of Python's, which never change; they are shared, not copied.
struct Shared {
    _owner: Py<PyBytes>,
    address: *const u8,
    len: usize,
}

// SAFETY: the bytes never change, and live as long as their owner, which any thread may let go of.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as above; the address of an empty object's bytes is none that is null.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Model {
    fn source(self, py: Python<'_>, options: &NamedOptions) -> Source {
        match self {
            Model::File(path) => Source::File(path),
            Model::Bytes(bytes) => {
                let slice = bytes.as_bytes(py);
                options.in_memory(Storage::new(Shared {
                    address: slice.as_ptr(),
                    len: slice.len(),
                    _owner: bytes.clone_ref(py),
                }))
            }
        }
    }
}

/// Options by key and value.
fn named(pairs: &[(String, String)]) -> Outcome<NamedOptions> {
    let mut options = NamedOptions::default();
    for (key, value) in pairs {
        options.set(key, value)?;
    }
    Ok(options)
}

/// Opens a model; with inputs, for inputs like these, and with the reason where it had to be compiled for them alone.
#[pyfunction]
pub fn open(
    py: Python<'_>,
    model: Model,
    options: Vec<(String, String)>,
    inputs: Option<Vec<(String, PyRef<'_, Tensor>)>>,
) -> Result<(Session, Option<String>), Fault> {
    let options = named(&options)?;
    let source = model.source(py, &options);
    let Some(inputs) = inputs else {
        let session = py.detach(|| options.open(&source))?;
        return Ok((Session::new(session), None));
    };
    let inputs: Outcome<IndexMap<String, HostTensor>> = inputs
        .into_iter()
        .map(|(name, tensor)| Ok((name, tensor.value().clone().into_host()?)))
        .collect();
    let inputs = inputs?;
    let (session, reason) = py.detach(|| options.open_for(&source, &inputs))?;
    Ok((Session::new(session), reason))
}

/// Compiles a model for targets, separated by commas, and writes an artifact.
#[pyfunction]
pub fn compile(
    py: Python<'_>,
    model: Model,
    targets: &str,
    path: PathBuf,
    options: Vec<(String, String)>,
) -> Result<(), Fault> {
    let options = named(&options)?;
    let source = model.source(py, &options);
    py.detach(|| -> Outcome<()> {
        let program = options.compile(&source, targets)?;
        Ok(program.save(&path).map_err(|error| artifact_error(&path, error))?)
    })
}

/// Says as JSON which rules fired for targets, what is fused, and why the rest is not.
#[pyfunction]
pub fn explain(
    py: Python<'_>,
    model: Model,
    targets: &str,
    proofs: bool,
    options: Vec<(String, String)>,
) -> Result<String, Fault> {
    let options = named(&options)?;
    let source = model.source(py, &options);
    py.detach(|| {
        let build = options.build(&source, targets)?;
        Ok(graphc::facts::explained(&build, proofs).to_string())
    })
}

/// The keys of options, each with what it sets.
#[pyfunction]
pub fn option_keys() -> Vec<(&'static str, &'static str)> {
    NamedOptions::keys().collect()
}
