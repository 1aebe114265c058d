//! Reading a model: ONNX, `.gir` text or an artifact, told apart by what is in the file.

use std::io::Read;
use std::path::Path;

use ir::program::artifact::MAGIC;
use ir::{Graph, Program};

use crate::error::{Error, Result};

/// What a model file holds.
#[derive(Debug)]
pub enum Model {
    /// A graph that is yet to be compiled.
    Graph(Box<Graph>),
    /// An artifact.
    Program(Box<Program>),
}

/// Reads a model.
///
/// # Errors
/// A file that is missing, damaged, or of none of the three kinds; imports name the node at fault.
pub fn load(path: &Path, options: &frontend::onnx::ImportOptions) -> Result<Model> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "graphc" || begins_as_artifact(path).map_err(Error::io("read", path))? {
        let program = Program::load(path).map_err(|e| Error::Artifact {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        return Ok(Model::Program(Box::new(program)));
    }
    match extension {
        "gir" => load_gir(path).map(|g| Model::Graph(Box::new(g))),
        // Whatever its name, anything else is tried as ONNX: the reader says what it found instead.
        _ => Ok(Model::Graph(Box::new(frontend::onnx::import(path, options)?))),
    }
}

fn begins_as_artifact(path: &Path) -> std::io::Result<bool> {
    let mut start = Vec::new();
    std::fs::File::open(path)?
        .take(MAGIC.len() as u64)
        .read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

/// Reads and verifies a `.gir` file.
///
/// # Errors
/// A file that cannot be read, parsed or verified.
pub fn load_gir(path: &Path) -> Result<Graph> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let graph = ir::graph::parse::parse_file(&path.to_string_lossy(), &text).map_err(|e| Error::Parse {
        path: path.to_owned(),
        message: e.to_string(),
    })?;
    if let Err(errors) = graph.verify() {
        return Err(Error::Verify {
            path: path.to_owned(),
            errors: errors.to_string(),
        });
    }
    Ok(graph)
}
