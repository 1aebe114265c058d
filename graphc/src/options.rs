//! Every setting of graphc in one table: command-line flags fall back to `GRAPHC_*` variables, and those to defaults.
//!
//! Libraries read no environment; what is read here is passed down in structs.
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `GRAPHC_CACHE` | folder of compiled code objects; `off` keeps none | the user's cache folder |
//! | `GRAPHC_CACHE_MIB` | most MiB kept there | 1024 |
//! | `GRAPHC_ROCM` | ROCm's folder (or its `lib`), a sysroot's folder, or the file of hiprtc | `/opt/rocm`, the loader's path, `/opt/graphc-rocm` |
//! | `GRAPHC_HIP` | the HIP runtime's file or its folder, and no other is tried | `GRAPHC_ROCM`'s folder, `/opt/rocm`, the loader's path |
//! | `GRAPHC_NVRTC` | NVRTC's file or folder, a CUDA toolkit's folder, or Python's `site-packages` | `/usr/local/cuda`, `/opt/graphc-nvrtc`, the loader's path |
//! | `GRAPHC_CUDA` | the CUDA driver's file (`libcuda.so.1`) or its folder, and no other is tried | the loader's path |
//! | `GRAPHC_SYNCHRONOUS` | 1: a GPU finishes each step before the next, so that errors name their step | 0 |
//! | `GRAPHC_WORKERS` | compiler processes; 0 compiles in process | one a core |
//! | `GRAPHC_THREADS` | threads of the CPU device | one a core |
//! | `GRAPHC_WORKER` | the program that embedding apps start as compile worker: `graphc` or `graphc-compile-worker` | none: in process |

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use runtime::compile::{CompilerSearch, HiprtcSearch as Search, RocmSearch};
use runtime::gpu::GpuSearch;

/// Settings of the process, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `None`: nothing is kept.
    pub cache_dir: Option<PathBuf>,
    pub cache_bytes: u64,
    pub rocm: Option<PathBuf>,
    pub hip: Option<PathBuf>,
    pub nvrtc: Option<PathBuf>,
    pub cuda: Option<PathBuf>,
    pub synchronous: bool,
    pub workers: usize,
    pub threads: usize,
    pub worker: Option<OsString>,
}

impl Settings {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// A variable whose value is not of its kind.
    pub fn from_env() -> Result<Settings, crate::Error> {
        Settings::read(|name| std::env::var_os(name))
    }

    /// The program and arguments of an embedding app's compile workers; None compiles in the app's process.
    pub fn worker_command(&self) -> Option<Vec<OsString>> {
        let program = self.worker.clone()?;
        let is_graphc = Path::new(&program).file_stem().is_some_and(|name| name == "graphc");
        let verb = is_graphc.then(|| OsString::from(crate::commands::WORKER_VERB));
        Some(std::iter::once(program).chain(verb).collect())
    }

    /// Where the compilers of kernels are looked for.
    pub fn compiler_search(&self) -> CompilerSearch {
        let default = CompilerSearch::default();
        CompilerSearch {
            rocm: self.rocm_search(),
            nvrtc: self.nvrtc.as_ref().map_or(default.nvrtc, CompilerSearch::nvrtc_at),
        }
    }

    /// Where hiprtc, and what comes with it, is looked for.
    pub fn rocm_search(&self) -> RocmSearch {
        RocmSearch {
            hiprtc: Search {
                explicit: self.rocm.clone(),
                ..Search::default()
            },
            ..RocmSearch::default()
        }
    }

    /// Where the GPUs' runtimes and the vendor libraries are looked for.
    pub fn gpu_search(&self) -> GpuSearch {
        let folders = self.rocm.iter().filter(|p| p.is_dir());
        let mut dirs: Vec<PathBuf> = folders
            .flat_map(|p| [p.clone(), p.join("lib"), p.join("lib64")])
            .collect();
        let search = Search::default();
        dirs.extend(search.dirs.clone());
        let search = Search { dirs, ..search };
        GpuSearch {
            hip: Search {
                explicit: self.hip.clone(),
                ..search.clone()
            },
            libraries: search,
            cuda: match &self.cuda {
                Some(path) => Search::only(path),
                None => GpuSearch::default().cuda,
            },
        }
    }

    /// Reads settings from any lookup.
    ///
    /// # Errors
    /// A variable whose value is not of its kind.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, crate::Error> {
        let number = |name: &str, default: usize| match get(name) {
            None => Ok(default),
            Some(text) => text
                .to_str()
                .and_then(|t| t.trim().parse().ok())
                .ok_or_else(|| crate::Error::Config(format!("{name}={} is not a number", text.to_string_lossy()))),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let home_cache = || {
            let base = get("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
            base.or_else(|| get("HOME").map(|h| PathBuf::from(h).join(".cache")))
                .map(|b| b.join("graphc"))
        };
        let cache_dir = match get("GRAPHC_CACHE") {
            Some(v) if v == "off" || v.is_empty() => None,
            Some(v) => Some(PathBuf::from(v)),
            None => home_cache(),
        };
        Ok(Settings {
            cache_dir,
            cache_bytes: (number("GRAPHC_CACHE_MIB", 1024)? as u64) << 20,
            rocm: get("GRAPHC_ROCM").map(PathBuf::from),
            hip: get("GRAPHC_HIP").map(PathBuf::from),
            nvrtc: get("GRAPHC_NVRTC").map(PathBuf::from),
            cuda: get("GRAPHC_CUDA").map(PathBuf::from),
            synchronous: number("GRAPHC_SYNCHRONOUS", 0)? != 0,
            workers: number("GRAPHC_WORKERS", cores)?,
            threads: number("GRAPHC_THREADS", cores)?.max(1),
            worker: get("GRAPHC_WORKER"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_checked() {
        let settings = Settings::read(|name| match name {
            "GRAPHC_CACHE" => Some("off".into()),
            "GRAPHC_THREADS" => Some("3".into()),
            _ => None,
        })
        .expect("valid");
        assert_eq!((settings.cache_dir, settings.threads), (None, 3));
        let error = Settings::read(|name| (name == "GRAPHC_WORKERS").then(|| "many".into())).expect_err("not a number");
        assert!(error.to_string().contains("GRAPHC_WORKERS=many"), "{error}");
    }
}
