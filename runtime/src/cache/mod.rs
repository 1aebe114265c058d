//! Code objects on disk, so that a kernel is compiled once per machine and not once per start; and finished [programs].
//!
//! ```text
//! Cache::open(dir, max_bytes)                       never fails: a folder that cannot be used is noted, and nothing is cached
//! CachedCompiler::new(compiler, cache).compile(..)  asks the cache first; a warm start never touches the compiler
//! ```
//!
//! Invariants: an entry's name is the hash of all that decides its bytes (source, headers, target, options, compiler);
//! it appears whole or not at all (written beside, then renamed); it is made once, however many want it at the same
//! time; it carries a checksum and is never trusted without it: a damaged one is counted, removed and compiled again.
//! Nobody but the user and the administrator may have written it.

mod cached;
mod entry;
mod evict;
mod lock;
mod programs;
mod trust;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::compile::{CompileRequest, CompiledObject};
use lock::Lock;

pub use cached::CachedCompiler;
pub use programs::{ProgramCache, ProgramKey};

/// The name of one entry: a hash of all that decides the compiled bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(blake3::Hash);

impl CacheKey {
    /// Hashes a request together with the [`identity`](crate::compile::Compiler::identity) of the compiler that would
    /// serve it.
    pub fn new(request: &CompileRequest, compiler: &str) -> CacheKey {
        let mut hasher = blake3::Hasher::new();
        // Each field with its length, so that no two requests spell the same bytes.
        let mut field = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        field(entry::FORMAT);
        for text in [compiler, &request.name, &request.arch, &request.source] {
            field(text);
        }
        field(&request.headers.len().to_string());
        for (name, text) in &request.headers {
            field(name);
            field(text);
        }
        request.options.iter().for_each(|option| field(option));
        CacheKey(hasher.finalize())
    }
}

/// What a cache has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// Requests answered from disk.
    pub hits: u64,
    /// Requests that found no entry.
    pub misses: u64,
    /// Entries that were there but did not pass their checksum.
    pub damaged: u64,
    /// Requests handed to the compiler (a warm start asserts 0).
    pub compiles: u64,
    /// Entries removed to stay within the size.
    pub evicted: u64,
}

/// A folder of compiled code objects. Shared between threads and between processes.
#[derive(Debug)]
pub struct Cache {
    /// None: nothing is read or written.
    dir: Option<PathBuf>,
    max_bytes: u64,
    /// Bytes on disk as far as known; None until the first write has looked.
    known_bytes: Mutex<Option<u64>>,
    /// Why nothing (more) is written.
    note: OnceLock<String>,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    compiles: AtomicU64,
    evicted: AtomicU64,
}

impl Cache {
    /// Uses the folder `dir`, made if need be, for at most `max_bytes` of entries (the least recently used go first).
    ///
    /// A folder that cannot be made or written is not an error: [`Cache::note`] says so, what it holds is still read,
    /// and everything else is compiled.
    pub fn open(dir: impl Into<PathBuf>, max_bytes: u64) -> Cache {
        let dir = dir.into();
        let cache = Cache {
            max_bytes,
            ..Cache::disabled()
        };
        match trust::make_folder(&dir).and_then(|()| trust::check(&dir)) {
            Ok(()) => Cache {
                dir: Some(dir),
                ..cache
            },
            Err(error) => {
                cache.give_up(&dir, &error);
                cache
            }
        }
    }

    /// A cache that holds nothing and counts all the same.
    pub fn disabled() -> Cache {
        Cache {
            dir: None,
            max_bytes: 0,
            known_bytes: Mutex::new(None),
            note: OnceLock::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            compiles: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Why new entries are not kept, once that is so; for the user to read.
    pub fn note(&self) -> Option<&str> {
        self.note.get().map(String::as_str)
    }

    /// The counters so far.
    pub fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hits: get(&self.hits),
            misses: get(&self.misses),
            damaged: get(&self.damaged),
            compiles: get(&self.compiles),
            evicted: get(&self.evicted),
        }
    }

    /// Reads an entry; None where there is none, or none that passes its checksum.
    pub fn get(&self, key: CacheKey) -> Option<CompiledObject> {
        let found = self.find(key);
        self.count(&found);
        found.object()
    }

    /// Reads an entry, or makes it: of all threads and processes that want one, one makes it while the others wait.
    ///
    /// # Errors
    /// What `make` reports; it is not kept.
    pub(crate) fn get_or<E>(
        &self,
        key: CacheKey,
        make: impl FnOnce() -> Result<CompiledObject, E>,
    ) -> Result<CompiledObject, E> {
        let first = self.find(key);
        let was_damaged = matches!(first, Found::Damaged);
        if let Found::Entry(object) = first {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(object);
        }
        let path = self.path(key).filter(|_| self.note.get().is_none());
        let _lock = path.and_then(|path| Lock::wait(&path.with_extension(lock::EXTENSION)));
        // Another may have made it before the lock was had.
        match self.find(key) {
            Found::Entry(object) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(object);
            }
            Found::Nothing if was_damaged => self.count(&Found::Damaged),
            other => self.count(&other),
        }
        self.compiles.fetch_add(1, Ordering::Relaxed);
        let object = make()?;
        self.put(key, &object);
        Ok(object)
    }

    fn find(&self, key: CacheKey) -> Found {
        match self.path(key).map(|path| (read_trusted(&path), path)) {
            None => Found::Nothing,
            Some((Err(error), _)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                Found::Nothing
            }
            Some((Ok(bytes), path)) => match entry::decode(&bytes, key.0.as_bytes()) {
                Some(object) => {
                    evict::mark_used(&path);
                    Found::Entry(object)
                }
                None => {
                    let _ = fs::remove_file(&path);
                    Found::Damaged
                }
            },
            // There, but not to be read (a folder of that name, a bad sector): as good as damaged.
            Some((Err(_), _)) => Found::Damaged,
        }
    }

    fn count(&self, found: &Found) {
        let counter = match found {
            Found::Entry(_) => &self.hits,
            Found::Nothing => &self.misses,
            Found::Damaged => &self.damaged,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes an entry, whole or not at all, and evicts old ones if there are too many bytes.
    ///
    /// A failure is not the caller's: it is noted, and later entries are not written.
    pub fn put(&self, key: CacheKey, object: &CompiledObject) {
        let (Some(dir), Some(path)) = (&self.dir, self.path(key)) else {
            return;
        };
        if self.note.get().is_some() {
            return;
        }
        let bytes = entry::encode(object, key.0.as_bytes());
        if let Err(error) = write_whole(&path, &bytes) {
            self.give_up(dir, &error);
            return;
        }
        let mut known = self.known_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // The first write looks at what is there, this entry included.
        let total = known.map_or_else(
            || evict::total_bytes(dir, entry::EXTENSION),
            |total| total + bytes.len() as u64,
        );
        *known = Some(total);
        if total > self.max_bytes {
            let (left, removed) = evict::shrink(dir, entry::EXTENSION, self.max_bytes - self.max_bytes / 10);
            *known = Some(left);
            self.evicted.fetch_add(removed, Ordering::Relaxed);
        }
    }

    /// `DIR/ab/abcd...`: 256 folders keep each listing short.
    fn path(&self, key: CacheKey) -> Option<PathBuf> {
        let name = key.0.to_hex();
        self.dir
            .as_ref()
            .map(|dir| dir.join(&name[..2]).join(format!("{name}.{}", entry::EXTENSION)))
    }

    fn give_up(&self, dir: &Path, error: &io::Error) {
        let _ = self
            .note
            .set(format!("compiled kernels are not kept: {}: {error}", dir.display()));
    }
}

/// What is under a key.
enum Found {
    Entry(CompiledObject),
    Nothing,
    /// Bytes that do not pass their checksum; they are removed.
    Damaged,
}

impl Found {
    fn object(self) -> Option<CompiledObject> {
        match self {
            Found::Entry(object) => Some(object),
            Found::Nothing | Found::Damaged => None,
        }
    }
}

/// Reads a file that nobody else could have written.
fn read_trusted(path: &Path) -> io::Result<Vec<u8>> {
    trust::check(path)?;
    ir::file::read(path)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_whole_with(path, |file| file.write_all(bytes))
}

fn write_whole_with(path: &Path, fill: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    trust::make_folder(folder)?;
    // Other users can read a cache that they are let into, and write none.
    let mut file = tempfile::Builder::new()
        .prefix(evict::TEMPORARY)
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    fill(file.as_file_mut())?;
    // An entry that is made of missing pages would be found again under the right key.
    ir::mapped::check_all().map_err(io::Error::other)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests;
