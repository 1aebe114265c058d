//! Memory-maps whole files as shared bytes.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;

/// Maps a file read-only; slices of the result keep the mapping alive.
///
/// # Errors
/// When the file cannot be opened or mapped, or is not a regular file.
pub(crate) fn map_file(path: &Path) -> io::Result<Bytes> {
    // Before it is opened: opening a FIFO waits for a writer.
    ir::file::check_readable(path)?;
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. That no one truncates or rewrites a model file while it is in use
    // is the documented condition of every caller's public function; all reads go through bounds-checked slices.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}
