//! Whose files a cache is made of: what is in it runs, so nobody but its user and the system's administrator may write
//! it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Users and groups of this process.
#[derive(Clone, Copy, Debug)]
struct Own {
    user: u32,
    group: u32,
}

fn own() -> Option<Own> {
    // Belongs to the process's effective user and group.
    let meta = fs::metadata("/proc/self").ok()?;
    Some(Own {
        user: meta.uid(),
        group: meta.gid(),
    })
}

/// Makes a folder, and those above it, that others may read and not write.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Checks that nobody else could have written a file, or put one into a folder.
///
/// # Errors
/// Who could, and the way out; what the system reports.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    let Some(own) = own() else { return Ok(()) };
    match distrusted(own, meta.uid(), meta.gid(), meta.mode()) {
        None => Ok(()),
        Some(reason) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{}: {reason}", path.display()),
        )),
    }
}

fn distrusted(own: Own, user: u32, group: u32, mode: u32) -> Option<String> {
    if user != own.user && user != 0 {
        return Some(format!(
            "it belongs to user {user}, and this is user {}; name a cache of your own with GRAPHC_CACHE",
            own.user
        ));
    }
    // A group of the user's own, which many systems make, is no other.
    let by_group = mode & 0o020 != 0 && group != own.group;
    if by_group || mode & 0o002 != 0 {
        return Some(format!(
            "others may write it (its mode is {:04o}); take that from them with chmod go-w",
            mode & 0o7777
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_user_and_the_administrator_are_trusted() {
        let own = Own { user: 7, group: 9 };
        for (user, group, mode) in [(7, 9, 0o700), (0, 0, 0o755), (7, 9, 0o775), (7, 5, 0o755)] {
            assert_eq!(distrusted(own, user, group, mode), None, "{user} {group} {mode:o}");
        }
        for (user, group, mode, reason) in [
            (8, 9, 0o700, "belongs to user 8"),
            (7, 9, 0o777, "0777"),
            (7, 5, 0o775, "0775"),
            (0, 5, 0o1777, "1777"),
        ] {
            let said = distrusted(own, user, group, mode).expect("distrusted");
            assert!(said.contains(reason), "{said}");
        }
    }

    #[test]
    fn folders_are_made_so_that_they_are_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_folder(&path).unwrap();
        check(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = check(&path).unwrap_err().to_string();
        assert!(error.contains("chmod go-w") && error.contains("a/b"), "{error}");
    }
}
