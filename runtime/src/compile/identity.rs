//! What names a compiler: the files that decide its output, without loading them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The libraries that take part in a compile by NVRTC: itself and its built-in headers.
pub(super) const NVRTC: [&str; 2] = ["libnvrtc.so", "libnvrtc-builtins.so"];

/// The libraries that take part in a compile by hiprtc: itself and its built-in headers, comgr, and LLVM where comgr
/// links it.
pub(super) const HIPRTC: [&str; 6] = [
    "libhiprtc.so",
    "libhiprtc-builtins.so",
    "libamdhip64.so",
    "libamd_comgr.so",
    "libLLVM",
    "libclang-cpp",
];

/// Names the compiler whose entry is the file `library`, by the names, sizes and dates of its parts beside it.
///
/// The folder is left out: the same ROCm under another path is the same compiler. None where the file cannot be read.
pub(super) fn of_library(library: &Path, parts: &[&str]) -> Option<String> {
    let real = library.canonicalize().ok()?;
    let mut files: BTreeSet<PathBuf> = BTreeSet::from([real.clone()]);
    for entry in real.parent()?.read_dir().ok()?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if parts.iter().any(|part| name.starts_with(part)) {
            files.extend(entry.path().canonicalize());
        }
    }
    let mut found: Vec<(String, u64, u64)> = Vec::new();
    for file in &files {
        let meta = file.metadata().ok()?;
        let seconds = meta
            .modified()
            .ok()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_secs());
        found.push((file.file_name()?.to_string_lossy().into_owned(), meta.len(), seconds));
    }
    found.sort();
    let mut hasher = blake3::Hasher::new();
    for (name, bytes, seconds) in &found {
        hasher.update(format!("{name} {bytes} {seconds}\n").as_bytes());
    }
    let name = real.file_name()?.to_string_lossy().into_owned();
    Some(format!("{name} {}", &hasher.finalize().to_hex()[..16]))
}

/// Finds which file of this process's memory map is the library that was opened as `opened` (a path or a bare soname).
pub(super) fn mapped_file(opened: &Path) -> Option<PathBuf> {
    if opened.components().count() > 1 {
        return Some(opened.to_path_buf());
    }
    let stem = opened.to_str()?.split(".so").next()?.to_string() + ".so";
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&stem))
        })
        .map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_follows_the_files_and_not_the_folder() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let write = |dir: &Path, name: &str, text: &str| {
            std::fs::write(dir.join(name), text).unwrap();
            std::fs::File::options()
                .write(true)
                .open(dir.join(name))
                .unwrap()
                .set_modified(at)
                .unwrap();
        };
        for dir in [a.path(), b.path()] {
            write(dir, "libhiprtc.so.7", "one");
            write(dir, "libamd_comgr.so.3", "two");
            write(dir, "unrelated.so", &dir.to_string_lossy());
        }
        let of = |dir: &Path| of_library(&dir.join("libhiprtc.so.7"), &HIPRTC).unwrap();
        assert_eq!(of(a.path()), of(b.path()));
        write(b.path(), "libamd_comgr.so.3", "three");
        assert_ne!(of(a.path()), of(b.path()), "another comgr is another compiler");
        assert_eq!(of_library(Path::new("/graphc/no/such/libhiprtc.so"), &HIPRTC), None);
    }
}
