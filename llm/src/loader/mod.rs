//! From a GGUF file to what a model is made of: keys to a [`Config`], tensors to weights.
//!
//! Before: a file that `graphc-gguf` has checked. After: sizes that fit each other, and weights as constants of graphs;
//! bytes of the file are not copied where they stay as they are.

mod blocks;
mod config;
mod weights;

pub use blocks::Form;
pub use config::{Config, Keys};
pub use weights::{Loader, Matrix, Progress, Rows, Stored};

use std::path::Path;

use graphc::ir::mapped::Mapped;
use graphc_gguf::{GgufError, GgufFile};

/// Maps a model's files, which are watched: [`Engine::load`](crate::engine::Engine::load) and runs say where one of
/// them became shorter.
///
/// # Errors
/// As [`GgufFile::open`].
pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
    GgufFile::open_with(path, Mapped::new)
}
