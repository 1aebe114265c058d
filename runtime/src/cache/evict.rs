//! Keeps the cache within its size: the least recently used entries go first.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::lock;

/// Prefix of files being written; a process that died left one behind.
pub(super) const TEMPORARY: &str = ".writing-";
const STALE: Duration = Duration::from_secs(3600);

struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Adds up the entries, and removes what crashed processes left an hour ago or more.
pub(super) fn total_bytes(dir: &Path, extension: &str) -> u64 {
    entries(dir, extension).iter().map(|entry| entry.bytes).sum()
}

/// Removes the least recently used entries until at most `target` bytes are left; returns the bytes left and the
/// number removed.
pub(super) fn shrink(dir: &Path, extension: &str, target: u64) -> (u64, u64) {
    let mut entries = entries(dir, extension);
    entries.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
    let mut left: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let mut removed = 0;
    for entry in &entries {
        if left <= target {
            break;
        }
        // Another process may have been first; either way it is gone.
        let _ = fs::remove_file(&entry.path);
        left -= entry.bytes;
        removed += 1;
    }
    (left, removed)
}

/// Marks an entry as used now: the date is the order of eviction. In a read-only folder it stays; nothing is evicted
/// there.
pub(super) fn mark_used(path: &Path) {
    let _ = ir::file::open_at_once(fs::File::options().append(true), path)
        .and_then(|file| file.set_modified(SystemTime::now()));
}

fn entries(dir: &Path, extension: &str) -> Vec<Found> {
    let files_of = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for file in files_of(dir).flat_map(|folder| files_of(&folder.path())) {
        let Ok(meta) = file.metadata() else { continue };
        let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if file.path().extension() == Some(OsStr::new(extension)) {
            found.push(Found {
                path: file.path(),
                bytes: meta.len(),
                used,
            });
        } else if (file.file_name().to_string_lossy().starts_with(TEMPORARY)
            || file.path().extension() == Some(OsStr::new(lock::EXTENSION)))
            && used.elapsed().is_ok_and(|age| age > STALE)
        {
            let _ = fs::remove_file(file.path());
        }
    }
    found
}
