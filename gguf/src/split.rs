//! Models in several files: `NAME-00001-of-0000N.gguf`, each a whole GGUF file, with the metadata in the first.

use std::path::{Path, PathBuf};

use crate::error::Problem;

/// The paths of all files of a split model, of which `path` is the first. `count` is what the first file says.
pub(crate) fn paths(path: &Path, count: u64) -> Result<Vec<PathBuf>, Problem> {
    let wrong = || Problem::SplitName { count };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
    let stem = name
        .strip_suffix(&format!("-00001-of-{count:05}.gguf"))
        .ok_or_else(wrong)?;
    // The name has five digits, so that a forged count cannot ask for more files than that.
    if count > 99_999 {
        return Err(wrong());
    }
    Ok((1..=count)
        .map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf")))
        .collect())
}
