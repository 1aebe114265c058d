//! Reading a model: ONNX, `.gir` text or an artifact, told apart by what is in the file.

use std::path::Path;

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
    if ir::program::artifact::is_artifact(path).map_err(Error::io("read", path))? {
        let program = ir::program::artifact::load(path)
            .map_err(|e| Error::Artifact { path: path.to_owned(), message: e.to_string() })?;
        return Ok(Model::Program(Box::new(program)));
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("gir") => load_gir(path).map(|g| Model::Graph(Box::new(g))),
        Some("graphc") => Err(Error::NotAModel {
            path: path.to_owned(),
            why: "it does not begin as an artifact does".to_owned(),
        }),
        // Whatever its name, anything else is tried as ONNX: the reader says what it found instead.
        _ => Ok(Model::Graph(Box::new(frontend::onnx::import(path, options)?))),
    }
}

/// Reads and verifies a `.gir` file.
///
/// # Errors
/// A file that cannot be read, parsed or verified.
pub fn load_gir(path: &Path) -> Result<Graph> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let graph = ir::graph::parse::parse_file(&path.to_string_lossy(), &text)
        .map_err(|e| Error::Parse { path: path.to_owned(), message: e.to_string() })?;
    if let Err(errors) = graph.verify() {
        return Err(Error::Verify { path: path.to_owned(), errors: errors.to_string() });
    }
    Ok(graph)
}
