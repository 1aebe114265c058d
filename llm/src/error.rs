//! The errors of this crate: each names the file, the key or the tensor, and the way out.

use std::path::PathBuf;

use graphc_gguf::{GgufError, TensorType};

/// Any error of running a language model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read, a key or a tensor that is missing or of another type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// What graphc reports: a device that is not there, memory, a bug.
    #[error(transparent)]
    Graphc(#[from] graphc::Error),
    #[error("{}: the architecture {name:?} is not supported; supported are {}", path.display(), known.join(", "))]
    Architecture {
        path: PathBuf,
        name: String,
        known: Vec<&'static str>,
    },
    /// A key whose value this version cannot run.
    #[error("{}: {key} is {found}; {wanted}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        found: String,
        wanted: String,
    },
    #[error(
        "{}: tensor {name:?} has the shape {found:?}, where the file's keys ask for {wanted:?}; convert the model again",
        path.display()
    )]
    Shape {
        path: PathBuf,
        name: String,
        found: Vec<u64>,
        wanted: Vec<u64>,
    },
    #[error("{}: tensor {name:?} is stored as {ty}: {reason}", path.display())]
    Blocks {
        path: PathBuf,
        name: String,
        ty: TensorType,
        reason: String,
    },
    #[error(
        "{}: {} tensors are not used by the architecture {architecture:?}, {} among them; results would be wrong. The model may be of a variant that \
         is not supported",
        path.display(), names.len(), names[..names.len().min(5)].join(", ")
    )]
    Unused {
        path: PathBuf,
        architecture: String,
        names: Vec<String>,
    },
    #[error("{}: {message}", path.display())]
    Tokenizer { path: PathBuf, message: String },
    #[error("the chat template cannot be used: {0}")]
    Template(String),
    #[error("{needed} tokens do not fit into the context of {capacity}; give a larger --context or a shorter prompt")]
    Context { needed: usize, capacity: usize },
    #[error(
        "{waiting} requests wait already, and at most {most} may; try again later, or start the server with a larger --queue"
    )]
    Busy { waiting: usize, most: usize },
    #[error(
        "no token of the vocabulary goes on as 'response_format' asks; use a schema of the characters that the model can write"
    )]
    NoToken,
    #[error("{0}")]
    Usage(String),
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// 2 for a mistake in what was given, 1 for a failure of graphc.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Graphc(error) => error.exit_code(),
            _ => 2,
        }
    }
}
