//! Files that hold initializers, each mapped once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use graphc::ir::Storage;
use graphc::ir::program::artifact;

/// Mapped files by path.
#[derive(Default)]
pub struct Files {
    mapped: HashMap<PathBuf, Bytes>,
}

struct Mapped(Storage);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Files {
    /// Returns a part of a file, or `None` where the file cannot be mapped or is shorter.
    pub fn part(&mut self, path: &Path, offset: usize, length: usize) -> Option<Bytes> {
        if !self.mapped.contains_key(path) {
            let mapped = Mapped(artifact::map(path).ok()?);
            self.mapped.insert(path.to_owned(), Bytes::from_owner(mapped));
        }
        let file = self.mapped.get(path)?;
        let end = offset.checked_add(length)?;
        (end <= file.len()).then(|| file.slice(offset..end))
    }
}
