//! Reading a model: ONNX, `.gir` text or an artifact, told apart by what is in the file.

use std::io::Read;
use std::path::Path;

use frontend::onnx::{ImportOptions, Size};
use ir::program::artifact::MAGIC;
use ir::{Graph, Program, Symbol};

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
pub fn load(path: &Path, options: &ImportOptions) -> Result<Model> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "graphc" || begins_as_artifact(path).map_err(Error::io("read", path))? {
        if !options.sizes.is_empty() || !options.shapes.is_empty() {
            return Err(Error::Config(format!(
                "--size and --shape: {} is compiled already; give them to `graphc compile`, or give inputs of the sizes wanted",
                path.display()
            )));
        }
        let program = Program::load(path).map_err(|e| Error::Artifact {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        return Ok(Model::Program(Box::new(program)));
    }
    match extension {
        "gir" => {
            let mut graph = load_gir(path)?;
            set_sizes(&mut graph, options)?;
            Ok(Model::Graph(Box::new(graph)))
        }
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

/// Narrows the symbols of a graph to the sizes given for them.
fn set_sizes(graph: &mut Graph, options: &ImportOptions) -> Result<()> {
    if let Some(name) = options.shapes.keys().next() {
        return Err(Error::Config(format!(
            "--shape {name}: the shapes of a .gir graph are in its text; --size fixes or bounds its symbols"
        )));
    }
    let mut symbols = graph.symbols().clone();
    for (name, size) in &options.sizes {
        let known: Vec<String> = symbols.keys().map(ToString::to_string).collect();
        let Some(info) = symbols.get_mut(&Symbol::new(name)) else {
            return Err(Error::Config(format!(
                "--size {name}: the graph has no such symbol; it has {}",
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )));
        };
        let (min, max, hint) = match *size {
            Size::Fixed(n) => (n, Some(n), Some(n)),
            Size::Bounded { min, max, hint } => (min, max.or(info.max), hint),
        };
        if min < info.min || info.max.is_some_and(|limit| max.is_none_or(|max| max > limit)) {
            let limit = info.max.map_or(String::new(), |m| m.to_string());
            return Err(Error::Config(format!(
                "--size {name}: the graph allows {}..{limit} only",
                info.min
            )));
        }
        info.min = min;
        info.max = max;
        // A hint outside of the new bounds would be a size that never is.
        info.hint = hint.unwrap_or(info.hint).clamp(min, max.unwrap_or(i64::MAX).max(min));
    }
    graph.set_symbols(symbols);
    Ok(())
}
