//! Memory-maps whole files as shared bytes.

use std::io;
use std::path::Path;

use bytes::Bytes;
use ir::mapped::Mapped;

/// Maps a file read-only; slices of the result keep the mapping alive.
///
/// # Errors
/// When the file cannot be opened or mapped, or is not a regular file.
pub(crate) fn map_file(path: &Path) -> io::Result<Bytes> {
    let file = ir::file::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    Ok(Bytes::from_owner(Mapped::new(&file, path)?))
}
