//! Reading a model: ONNX, `.gir` text or an artifact, told apart by what is in the file.

use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use frontend::onnx::{GivenEvaluator, ImportError, ImportOptions, Size};
use ir::program::artifact::{ArtifactError, Check, MAGIC};
use ir::{Graph, Program, Storage, Symbol};

use crate::error::{Error, Result};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum Source {
    File(PathBuf),
    /// The contents of a file of any kind, in memory. ONNX's external data are looked for in `folder`, and are an error
    /// without one.
    Memory {
        bytes: Storage,
        folder: Option<PathBuf>,
    },
}

/// The name that errors have for a model in memory.
const IN_MEMORY: &str = "the model in memory";

impl Source {
    /// Reads the model; its weights go on sharing the file's pages or the bytes.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self, options: &ImportOptions) -> Result<Model> {
        match self {
            Source::File(path) => load(path, options),
            Source::Memory { bytes, folder } => of_memory(bytes, folder.as_deref(), options),
        }
    }

    /// The file's path, or the name that errors have for bytes.
    pub fn name(&self) -> &Path {
        match self {
            Source::File(path) => path,
            Source::Memory { .. } => Path::new(IN_MEMORY),
        }
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Source {
        Source::File(path.to_owned())
    }
}

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
    ir::file::check_readable(path).map_err(Error::io("read", path))?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "graphc" || begins_with(path, &MAGIC[..]).map_err(Error::io("read", path))? {
        refuse_sizes(path, options)?;
        let program = Program::load(path).map_err(|e| artifact_error(path, e))?;
        return Ok(Model::Program(Box::new(program)));
    }
    if begins_with(path, GGUF).map_err(Error::io("read", path))? {
        return Err(no_graph(path));
    }
    match extension {
        "gir" => {
            let mut graph = load_gir(path)?;
            set_sizes(&mut graph, options)?;
            Ok(Model::Graph(Box::new(graph)))
        }
        // Whatever its name, anything else is tried as ONNX: the reader says what it found instead.
        _ => Ok(Model::Graph(Box::new(import(path, options)?))),
    }
}

/// What a GGUF file begins with.
const GGUF: &[u8] = b"GGUF";

fn no_graph(path: &Path) -> Error {
    Error::Config(format!(
        "{}: a GGUF file holds weights of a language model and no graph; `graphc inspect {}` shows what is in it",
        path.display(),
        path.display()
    ))
}

/// The sizes of an artifact are decided.
fn refuse_sizes(path: &Path, options: &ImportOptions) -> Result<()> {
    if options.sizes.is_empty() && options.shapes.is_empty() {
        return Ok(());
    }
    Err(Error::Config(format!(
        "--size and --shape: {} is compiled already; give them to `graphc compile`, or give inputs of the sizes wanted",
        path.display()
    )))
}

/// Reads a model in memory: by its first bytes an artifact or a `.gir` text, else ONNX.
fn of_memory(bytes: &Storage, folder: Option<&Path>, options: &ImportOptions) -> Result<Model> {
    let path = Path::new(IN_MEMORY);
    if bytes.starts_with(&MAGIC[..]) {
        refuse_sizes(path, options)?;
        let program = Program::read(bytes, Check::All).map_err(|e| artifact_error(path, e))?;
        return Ok(Model::Program(Box::new(program)));
    }
    if bytes.starts_with(GGUF) {
        return Err(no_graph(path));
    }
    if is_gir(bytes) {
        let text = std::str::from_utf8(bytes).map_err(|error| Error::Parse {
            path: path.to_owned(),
            message: format!("{}: {error}", path.display()),
        })?;
        let mut graph = parse_gir(path, text)?;
        set_sizes(&mut graph, options)?;
        return Ok(Model::Graph(Box::new(graph)));
    }
    let shared = Bytes::from_owner(Shared(bytes.clone()));
    let model = frontend::onnx::read_bytes(path, shared, folder).map_err(ImportError::from)?;
    let graph = frontend::onnx::import_model(&model, &with_evaluator(options));
    Ok(Model::Graph(Box::new(graph.map_err(|error| at(path, error))?)))
}

/// Whether bytes are a `.gir` text: neither its first word nor a comment can begin a message of ONNX's.
fn is_gir(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    [&b"graph"[..], b"//", b";"].iter().any(|start| text.starts_with(start))
}

struct Shared(Storage);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Imports an ONNX model.
///
/// # Errors
/// As [`frontend::onnx::import`], with the model's path.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Graph> {
    frontend::onnx::import(path, &with_evaluator(options)).map_err(|error| at(path, error))
}

fn with_evaluator(options: &ImportOptions) -> ImportOptions {
    let mut options = options.clone();
    if !options.given.is_empty() {
        let evaluate = super::build::evaluator();
        options.evaluator = GivenEvaluator::new(move |graph, inputs| evaluate(graph, inputs));
    }
    options
}

/// An importer's error with the model's name.
fn at(path: &Path, error: ImportError) -> Error {
    match error {
        // It names the file itself.
        ImportError::Read(_) => error.into(),
        error => Error::Model {
            path: path.to_owned(),
            error,
        },
    }
}

/// The files that a model is read from: its own and, of ONNX, those beside it that hold its weights.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let own = [path.to_owned()];
    // What cannot be read is refused when it is loaded.
    match path.extension().and_then(|e| e.to_str()) {
        Some("gir" | "graphc") => own.to_vec(),
        _ => {
            let external = frontend::onnx::external_files(path).unwrap_or_default();
            own.into_iter().chain(external).collect()
        }
    }
}

/// What is wrong with an artifact, with its path once.
pub fn artifact_error(path: &Path, error: ArtifactError) -> Error {
    match error {
        ArtifactError::Io { path, error } => Error::io("read", path)(error),
        error => Error::Artifact {
            path: path.to_owned(),
            message: error.to_string(),
        },
    }
}

/// Whether a file begins with these bytes.
pub fn begins_with(path: &Path, magic: &[u8]) -> std::io::Result<bool> {
    let mut start = Vec::new();
    ir::file::open(path)?.take(magic.len() as u64).read_to_end(&mut start)?;
    Ok(start == magic)
}

/// Reads and verifies a `.gir` file.
///
/// # Errors
/// A file that cannot be read, parsed or verified.
pub fn load_gir(path: &Path) -> Result<Graph> {
    let text = ir::file::read_to_string(path).map_err(Error::io("read", path))?;
    parse_gir(path, &text)
}

fn parse_gir(path: &Path, text: &str) -> Result<Graph> {
    let graph = ir::graph::parse::parse_file(&path.to_string_lossy(), text).map_err(|e| Error::Parse {
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
