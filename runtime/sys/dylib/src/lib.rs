//! Where ROCm's and CUDA's shared libraries are looked for, and how one is opened.
//!
//! graphc builds and starts where neither is: each library is opened by name when it is first asked for. Before: a
//! [`Search`] (a plain struct; nothing here reads the environment). After: a [`Loaded`] table of entry points, every
//! one of them resolved, or a [`NotFound`] that lists each place looked at with what was wrong there.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use libloading::Library;
use serde::{Deserialize, Serialize};

/// Says where libraries are looked for, in order: `explicit` alone when given; else `dirs`, then the dynamic loader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Search {
    /// A library file, or a folder that holds it, itself or in its `lib` or `lib64`. When set, nothing else is tried:
    /// the user's word is not second-guessed.
    pub explicit: Option<PathBuf>,
    /// Folders tried before the loader's own path.
    pub dirs: Vec<PathBuf>,
    /// Whether the dynamic loader's path (`ld.so.cache`, `LD_LIBRARY_PATH`) is tried last.
    pub loader_path: bool,
}

impl Default for Search {
    /// ROCm's own install folders, then the loader's path.
    fn default() -> Search {
        Search {
            explicit: None,
            dirs: vec![PathBuf::from("/opt/rocm/lib"), PathBuf::from("/opt/rocm/lib64")],
            loader_path: true,
        }
    }
}

impl Search {
    /// Looks at `path` (a library file, or a folder that holds it, itself or in its `lib` or `lib64`) and nowhere else.
    pub fn only(path: impl Into<PathBuf>) -> Search {
        Search {
            explicit: Some(path.into()),
            dirs: Vec::new(),
            loader_path: false,
        }
    }
}

/// The file names under which one library is known, newest naming first (`libhiprtc.so`, `libhiprtc.so.7`, ...).
pub type Sonames<'a> = &'a [&'a str];

/// A library that was opened: its entry points (through `Deref`) and the path it was opened by.
///
/// The library stays loaded until the process ends, even when this value is dropped: see [`open_for_good`].
pub struct Loaded<T> {
    api: T,
    /// A bare soname when the dynamic loader's own path found it.
    pub path: PathBuf,
}

/// Shows the path: a table of entry points says nothing.
impl<T> fmt::Debug for Loaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<T> Deref for Loaded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.api
    }
}

/// One place that was looked at, and why it did not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub place: String,
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// No place that was looked at holds a usable library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub struct NotFound {
    /// What was looked for, as a user would call it (`hiprtc`).
    pub what: String,
    pub tried: Vec<Attempt>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was not found; looked at", self.what)?;
        for attempt in &self.tried {
            write!(f, "\n  {attempt}")?;
        }
        Ok(())
    }
}

/// Opens the first library of `sonames` that `search` reaches and whose entry points `resolve` finds complete.
///
/// # Errors
/// [`NotFound`] with every place looked at: no such file, the loader's own message, or the first missing entry point.
pub fn open<T>(
    what: &str,
    sonames: Sonames<'_>,
    search: &Search,
    resolve: impl Fn(Library) -> Result<T, libloading::Error>,
) -> Result<Loaded<T>, NotFound> {
    let mut tried = Vec::new();
    for candidate in candidates(sonames, search, &mut tried) {
        // SAFETY: opening a library runs its initialisers. The names are ROCm's own libraries, whose initialisers have
        // no precondition; a file that the user names instead is trusted as any plug-in is.
        let opened = unsafe { open_for_good(candidate.as_os_str()) }.and_then(&resolve);
        match opened {
            Ok(api) => return Ok(Loaded { api, path: candidate }),
            Err(error) => tried.push(Attempt {
                place: candidate.display().to_string(),
                reason: message(&error),
            }),
        }
    }
    Err(NotFound {
        what: what.to_string(),
        tried,
    })
}

/// Opens a library that stays loaded until the process ends, whatever becomes of the value.
///
/// ROCm's libraries start threads and register exit handlers, which must not outlive their code. Those that are built
/// on LLVM register its options as well: LLVM stays when they are closed, and ends the process when they are opened
/// again.
///
/// # Safety
/// As for [`Library::new`]: the library's initialisers run.
///
/// # Errors
/// The loader's reason.
pub unsafe fn open_for_good(file: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: by the caller.
    let library = unsafe { Library::new(file) }?;
    // SAFETY: it is loaded, so nothing runs; the loader counts one more user, who never leaves.
    std::mem::forget(unsafe { Library::new(file) });
    Ok(library)
}

/// Says whether this process has loaded a library of one of these names, by whomever.
#[cfg(unix)]
pub fn is_loaded(sonames: Sonames<'_>) -> bool {
    loaded_name(sonames).is_some()
}

/// Finds the first of these names under which this process has loaded a library, by whomever.
#[cfg(unix)]
pub fn loaded_name<'a>(sonames: Sonames<'a>) -> Option<&'a str> {
    use libloading::os::unix::{Library, RTLD_LAZY};
    /// `RTLD_NOLOAD`: gives what is loaded, and loads nothing.
    const NO_LOAD: std::ffi::c_int = 4;
    sonames.iter().copied().find(|name| {
        // SAFETY: nothing is loaded, so no initialiser runs; closing takes back what this call counted, no more.
        unsafe { Library::open(Some(*name), RTLD_LAZY | NO_LOAD) }.is_ok()
    })
}

/// Finds the file that [`open`] would open first, without opening it; None where only the loader could say.
///
/// The loader's path is approximated by its standard folders.
pub fn locate(sonames: Sonames<'_>, search: &Search) -> Option<PathBuf> {
    let mut found = candidates(sonames, search, &mut Vec::new()).into_iter();
    let in_dirs = found.by_ref().find(|path| path.components().count() > 1);
    if in_dirs.is_some() || search.explicit.is_some() || !search.loader_path {
        return in_dirs;
    }
    const STANDARD: [&str; 6] = [
        "/usr/local/lib",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/usr/lib",
    ];
    STANDARD
        .iter()
        .flat_map(|dir| sonames.iter().map(move |name| Path::new(dir).join(name)))
        .find(|path| path.is_file())
}

/// Finds the file that [`open`] would open first, as [`locate`] does.
///
/// # Errors
/// Every place looked at, with what was wrong there.
pub fn find(sonames: Sonames<'_>, search: &Search) -> Result<PathBuf, Vec<Attempt>> {
    locate(sonames, search).ok_or_else(|| {
        let mut tried = Vec::new();
        let names: Vec<String> = candidates(sonames, search, &mut tried)
            .iter()
            .map(|name| name.display().to_string())
            .collect();
        if !names.is_empty() {
            tried.push(Attempt {
                place: "the loader's folders".to_string(),
                reason: format!("hold none of {}", names.join(", ")),
            });
        }
        tried
    })
}

/// Lists what to try: existing files, then bare sonames; what does not exist goes to `tried`.
fn candidates(sonames: Sonames<'_>, search: &Search, tried: &mut Vec<Attempt>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut in_folder = |dir: &Path, tried: &mut Vec<Attempt>| {
        let present: Vec<PathBuf> = sonames
            .iter()
            .map(|name| dir.join(name))
            .filter(|path| path.is_file())
            .collect();
        if present.is_empty() {
            let reason = match dir.is_dir() {
                true => format!("holds none of {}", sonames.join(", ")),
                false => "no such folder".to_string(),
            };
            tried.push(Attempt {
                place: dir.display().to_string(),
                reason,
            });
        }
        paths.extend(present);
    };
    if let Some(explicit) = &search.explicit {
        if explicit.is_file() {
            return vec![explicit.clone()];
        }
        in_folder(explicit, tried);
        // An installation's own folder, such as /opt/rocm.
        for sub in ["lib", "lib64"].map(|sub| explicit.join(sub)) {
            if sub.is_dir() {
                in_folder(&sub, tried);
            }
        }
        return paths;
    }
    for dir in &search.dirs {
        in_folder(dir, tried);
    }
    if search.loader_path {
        paths.extend(sonames.iter().map(PathBuf::from));
    }
    paths
}

/// The loader's message: libloading's own says only that `dlopen` failed.
fn message(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_nothing(search: &Search) -> NotFound {
        open(
            "nothing",
            &["libgraphc-no-such.so", "libgraphc-no-such.so.7"],
            search,
            |_| Ok(()),
        )
        .unwrap_err()
    }

    #[test]
    fn not_found_lists_every_place() {
        let dir = tempfile::tempdir().unwrap();
        let search = Search {
            explicit: None,
            dirs: vec![dir.path().into(), "/graphc/no/such/folder".into()],
            loader_path: true,
        };
        let text = open_nothing(&search).to_string();
        assert!(text.starts_with("nothing was not found"), "{text}");
        assert!(
            text.contains("holds none of libgraphc-no-such.so, libgraphc-no-such.so.7"),
            "{text}"
        );
        assert!(text.contains("/graphc/no/such/folder: no such folder"), "{text}");
        assert!(
            text.contains("\n  libgraphc-no-such.so.7: "),
            "the loader's own answer is kept: {text}"
        );
    }

    #[test]
    fn a_file_that_is_no_library_gives_the_loaders_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libgraphc-no-such.so");
        std::fs::write(&path, b"not an ELF file").unwrap();
        let error = open_nothing(&Search::only(dir.path()));
        assert_eq!(error.tried.len(), 1);
        assert_eq!(error.tried[0].place, path.display().to_string());
        assert!(!error.tried[0].reason.is_empty());
        assert_eq!(locate(&["libgraphc-no-such.so"], &Search::only(dir.path())), Some(path));
    }

    #[test]
    fn an_explicit_place_is_the_only_one_tried() {
        let error = open_nothing(&Search {
            explicit: Some("/graphc/nowhere".into()),
            ..Search::default()
        });
        assert_eq!(error.tried.len(), 1);
    }

    #[test]
    fn an_installations_folder_is_searched_where_it_keeps_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let sonames: Sonames<'_> = &["libgraphc-no-such.so"];
        let search = Search::only(dir.path());
        for sub in ["lib64", "lib", ""] {
            let folder = dir.path().join(sub);
            std::fs::create_dir_all(&folder).unwrap();
            assert!(
                open_nothing(&search)
                    .to_string()
                    .contains(&folder.display().to_string())
            );
            let path = folder.join("libgraphc-no-such.so");
            std::fs::write(&path, b"not an ELF file").unwrap();
            assert_eq!(locate(sonames, &search), Some(path), "the first of the three");
        }
    }

    #[test]
    fn what_is_loaded_is_known() {
        assert!(is_loaded(&["libgraphc-no-such.so", "libc.so.6"]));
        assert!(!is_loaded(&["libgraphc-no-such.so"]));
    }

    /// One that was taken and let go, and one that was opened and refused.
    #[test]
    fn what_was_opened_stays() {
        for (name, entry) in [("libresolv.so.2", true), ("libanl.so.1", false)] {
            assert!(!is_loaded(&[name]), "{name}: nothing else in this process needs it");
            let resolve = |library: Library| match entry {
                true => Ok(library),
                // SAFETY: the symbol is not called.
                false => unsafe { library.get::<unsafe extern "C" fn()>(c"graphc_no_such_entry_point") }
                    .map(|_| unreachable!("there is none")),
            };
            let opened = open("a library", &[name], &Search::default(), resolve);
            assert_eq!(opened.is_ok(), entry, "{name}");
            drop(opened);
            assert_eq!(loaded_name(&["libgraphc-no-such.so", name]), Some(name));
        }
    }

    #[test]
    fn a_library_without_the_entry_point_is_refused() {
        let resolve = |library: Library| {
            // SAFETY: the symbol is not called.
            unsafe { library.get::<unsafe extern "C" fn()>(c"graphc_no_such_entry_point") }.map(|_| ())
        };
        let error = open("libc", &["libc.so.6"], &Search::default(), resolve).unwrap_err();
        assert!(error.to_string().contains("graphc_no_such_entry_point"), "{error}");
    }
}
