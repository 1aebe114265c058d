//! ROCm's device libraries as files: comgr carries those of processors in itself, and not everywhere those of generic
//! ones.

use std::path::{Path, PathBuf};

/// Folders above the compiler's library that are looked at.
const ABOVE: usize = 3;

/// Returns the option that names the folder of device libraries to the compiler, which is the library `hiprtc`; `None`
/// for processors, and where there is no such folder.
pub fn option(arch: &str, hiprtc: &Path) -> Option<String> {
    let name = arch.split(':').next().unwrap_or(arch);
    let folder = name.ends_with("-generic").then(|| folder(hiprtc))??;
    Some(format!("--rocm-device-lib-path={}", folder.display()))
}

/// Finds the folder beside a library: `/opt/rocm/lib` has it in `/opt/rocm/amdgcn/bitcode` or in a folder of clang's,
/// `/usr/lib` there.
fn folder(hiprtc: &Path) -> Option<PathBuf> {
    let roots = hiprtc.ancestors().skip(1).take(ABOVE);
    let mut all = roots.flat_map(|root| {
        let llvm = [root.to_path_buf(), root.join("lib")]
            .into_iter()
            .flat_map(|place| named(&place, "llvm"));
        let clang = llvm.flat_map(|llvm| named(&llvm.join("lib/clang"), ""));
        let inside = clang.flat_map(|clang| ["amdgcn/bitcode", "lib/amdgcn/bitcode"].map(|at| clang.join(at)));
        std::iter::once(root.join("amdgcn/bitcode"))
            .chain(inside)
            .collect::<Vec<_>>()
    });
    all.find(|folder| folder.join("ockl.bc").is_file())
}

/// The entries of a folder whose names begin so, the last by name first: the newest version.
fn named(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(beginning))
        .map(|entry| entry.path())
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_processors_are_told_where_the_libraries_are() {
        for (library, place) in [
            ("lib/libhiprtc.so.7", "amdgcn/bitcode"),
            ("lib/libhiprtc.so.7", "lib/llvm/lib/clang/20/lib/amdgcn/bitcode"),
            (
                "usr/lib/x86_64-linux-gnu/libhiprtc.so.7",
                "usr/lib/llvm-22/lib/clang/22/amdgcn/bitcode",
            ),
        ] {
            let root = tempfile::tempdir().expect("a folder");
            let (library, place) = (root.path().join(library), root.path().join(place));
            assert_eq!(option("gfx11-generic", &library), None);
            std::fs::create_dir_all(&place).expect("a folder");
            std::fs::write(place.join("ockl.bc"), b"").expect("a file");
            let expected = format!("--rocm-device-lib-path={}", place.display());
            assert_eq!(option("gfx11-generic", &library).as_ref(), Some(&expected));
            assert_eq!(option("gfx9-4-generic:xnack-", &library), Some(expected));
            assert_eq!(option("gfx1100", &library), None);
        }
    }
}
