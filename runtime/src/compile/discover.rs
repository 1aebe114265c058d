//! Finds hiprtc without loading it: ROCm's own folders, the dynamic loader's path, or a sysroot behind `rocm-run`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use dylib::{Attempt, NotFound, Search};
use ir::target::Platform;

use super::disassemble::comgr_search;
use super::{CompileError, InProcess, WorkerPool, identity};

/// Where a compiler is looked for, in order: `hiprtc` natively, then the `wrappers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocmSearch {
    /// An explicit file or folder (also the folder of a sysroot: one with `rocm-run` in it), ROCm's folders, the
    /// loader's path.
    pub hiprtc: Search,
    /// `rocm-run` programs of sysroots, as `scripts/rocm-sysroot.sh` makes them. Workers are started through them.
    pub wrappers: Vec<PathBuf>,
}

impl Default for RocmSearch {
    fn default() -> RocmSearch {
        RocmSearch {
            hiprtc: Search::default(),
            wrappers: vec![PathBuf::from("/opt/graphc-rocm/rocm-run")],
        }
    }
}

impl RocmSearch {
    /// Looks at `path` and nowhere else: a library file, a folder that holds it, or a sysroot's folder.
    pub fn only(path: impl Into<PathBuf>) -> RocmSearch {
        RocmSearch {
            hiprtc: Search::only(path),
            wrappers: Vec::new(),
        }
    }
}

/// A compiler that was found, not yet loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// What a worker (or this process) is to load.
    pub search: Search,
    /// The program through which workers must be started; None where hiprtc is native.
    pub wrapper: Option<PathBuf>,
    /// hiprtc's file as this process sees it; None where only the dynamic loader knows it.
    pub library: Option<PathBuf>,
    /// [`Compiler::identity`], where the library's file could be located.
    pub identity: Option<String>,
}

impl Toolchain {
    /// Makes a pool whose workers run `worker` (a program and its arguments, for instance `graphc __compile-worker`),
    /// through the wrapper where there is one.
    pub fn pool(&self, worker: &[OsString], workers: usize) -> WorkerPool {
        let wrapper = self.wrapper.iter().map(|path| path.clone().into_os_string());
        let pool =
            WorkerPool::new(wrapper.chain(worker.iter().cloned()).collect(), workers).search(self.search.clone());
        match &self.identity {
            Some(identity) => pool.known_identity(identity.clone()),
            None => pool,
        }
    }

    /// Where the comgr that belongs to this compiler is looked for.
    pub fn comgr_search(&self) -> Search {
        comgr_search(&self.search, self.library.as_deref().unwrap_or(Path::new("")))
    }

    /// Loads the compiler into this process.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] where it does not load, or is behind a wrapper (another C library than this
    /// process's): then only workers can use it.
    pub fn in_process(&self) -> Result<InProcess, CompileError> {
        match &self.wrapper {
            None => InProcess::load(&self.search),
            Some(wrapper) => {
                let reason = format!(
                    "{}: runs worker processes only; name a worker program: GRAPHC_WORKER for an app, `graphc` or \
                     `graphc-compile-worker`, and GRAPHC_WORKERS not 0",
                    wrapper.display()
                );
                Err(CompileError::not_available(
                    Platform::Hip,
                    "hiprtc in this process",
                    vec![reason],
                ))
            }
        }
    }
}

/// Finds hiprtc where `search` says, natively first; loads nothing where its file can be seen.
///
/// # Errors
/// [`CompileError::NotAvailable`] with every place looked at.
pub fn discover(search: &RocmSearch) -> Result<Toolchain, CompileError> {
    let mut tried = Vec::new();
    let mut old = None;
    let named_sysroot = search
        .hiprtc
        .explicit
        .iter()
        .map(|path| path.join("rocm-run"))
        .filter(|path| path.is_file());
    let mut wrappers: Vec<PathBuf> = named_sysroot.collect();
    if wrappers.is_empty() {
        match dylib::locate(hiprtc_sys::SONAMES, &search.hiprtc) {
            Some(library) if !is_rocm_5(&library) || search.hiprtc.explicit.is_some() => {
                return Ok(native(search, library));
            }
            Some(library) => old = Some(library),
            None => {}
        }
        // Who names a place wants that one: another compiler found elsewhere would be a surprise.
        if search.hiprtc.explicit.is_none() {
            wrappers.clone_from(&search.wrappers);
        }
    }
    for wrapper in wrappers {
        match in_sysroot(&wrapper) {
            Ok(library) => {
                return Ok(Toolchain {
                    search: Search::only(INSIDE),
                    identity: identity::of_library(&library, &identity::HIPRTC),
                    library: Some(library),
                    wrapper: Some(wrapper),
                });
            }
            Err(reason) => tried.push(Attempt {
                place: wrapper.display().to_string(),
                reason,
            }),
        }
    }
    if let Some(library) = old {
        return Ok(native(search, library));
    }
    // Nothing to be seen on disk: only the dynamic loader can still know it, and this collects its reasons.
    match hiprtc_sys::load(&search.hiprtc) {
        Ok(_) => Ok(Toolchain {
            search: search.hiprtc.clone(),
            wrapper: None,
            library: None,
            identity: None,
        }),
        Err(NotFound { what, tried: native }) => {
            let tried = native.into_iter().chain(tried).collect();
            Err(CompileError::not_found(Platform::Hip, NotFound { what, tried }))
        }
    }
}

fn native(search: &RocmSearch, library: PathBuf) -> Toolchain {
    let identity = identity::of_library(&library, &identity::HIPRTC);
    Toolchain {
        search: search.hiprtc.clone(),
        wrapper: None,
        library: Some(library),
        identity,
    }
}

/// ROCm 5's hiprtc is inside its HIP runtime. It ends the process for gfx942 and later, so a sysroot is preferred to
/// it.
fn is_rocm_5(library: &Path) -> bool {
    library
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("libamdhip64"))
}

/// Where Debian's packages put libraries, inside a sysroot.
const INSIDE: &str = "/usr/lib/x86_64-linux-gnu";

fn in_sysroot(wrapper: &Path) -> Result<PathBuf, String> {
    if !wrapper.is_file() {
        return Err("no such file".into());
    }
    let real = wrapper.canonicalize().map_err(|error| error.to_string())?;
    let root = real.parent().unwrap_or(Path::new("/"));
    let folder = root.join(INSIDE.trim_start_matches('/'));
    dylib::locate(hiprtc_sys::SONAMES, &Search::only(&folder))
        .ok_or_else(|| format!("its sysroot holds no hiprtc in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> RocmSearch {
        let hiprtc = Search {
            explicit: None,
            dirs: vec!["/graphc/no/rocm".into()],
            loader_path: false,
        };
        RocmSearch {
            hiprtc,
            wrappers: vec!["/graphc/no/rocm-run".into()],
        }
    }

    #[test]
    fn nothing_found_says_where_it_looked_and_the_way_out() {
        let error = discover(&nowhere()).unwrap_err();
        assert!(
            matches!(&error, CompileError::NotAvailable { looked_in, .. } if looked_in.len() == 2),
            "{error}"
        );
        let text = error.to_string();
        for part in [
            "/graphc/no/rocm: no such folder",
            "/graphc/no/rocm-run: no such file",
            "scripts/rocm-sysroot.sh",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_sysroot_is_preferred_to_rocm_5_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (rocm, root) = (dir.path().join("rocm"), dir.path().join("sysroot"));
        let libs = root.join("usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&rocm).unwrap();
        std::fs::create_dir_all(&libs).unwrap();
        std::fs::write(rocm.join("libamdhip64.so.5"), "").unwrap();
        let hiprtc = Search {
            explicit: None,
            dirs: vec![rocm.clone()],
            loader_path: false,
        };
        let search = RocmSearch {
            hiprtc,
            wrappers: vec![root.join("rocm-run")],
        };
        assert_eq!(
            discover(&search).unwrap().library,
            Some(rocm.join("libamdhip64.so.5")),
            "better than none"
        );
        std::fs::write(root.join("rocm-run"), "").unwrap();
        std::fs::write(libs.join("libhiprtc.so.7"), "").unwrap();
        assert_eq!(discover(&search).unwrap().library, Some(libs.join("libhiprtc.so.7")));
        assert_eq!(
            discover(&RocmSearch::only(&rocm)).unwrap().wrapper,
            None,
            "the user's word"
        );
        std::fs::write(rocm.join("libhiprtc.so.7"), "").unwrap();
        assert_eq!(discover(&search).unwrap().library, Some(rocm.join("libhiprtc.so.7")));
    }

    #[test]
    fn a_sysroot_is_found_by_its_wrapper_or_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let libs = root.path().join("usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&libs).unwrap();
        std::fs::write(root.path().join("rocm-run"), "").unwrap();
        let by_wrapper = RocmSearch {
            wrappers: vec![root.path().join("rocm-run")],
            ..nowhere()
        };
        assert!(
            discover(&by_wrapper)
                .unwrap_err()
                .to_string()
                .contains("holds no hiprtc")
        );
        std::fs::write(libs.join("libhiprtc.so.7"), "not loaded by discover").unwrap();
        let found = discover(&by_wrapper).unwrap();
        assert_eq!(found.wrapper, Some(root.path().join("rocm-run")));
        assert!(
            found
                .identity
                .as_deref()
                .is_some_and(|identity| identity.starts_with("libhiprtc.so.7 "))
        );
        assert_eq!(discover(&RocmSearch::only(root.path())).unwrap(), found);
        let error = found.in_process().unwrap_err();
        assert!(error.to_string().contains("worker"), "{error}");
    }
}
