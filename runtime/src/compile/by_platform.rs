//! The compilers of several platforms as one: a request goes to that of its target.

use std::ffi::OsString;
use std::path::Path;

use dylib::Search;
use ir::target::Platform;

use super::{CompileError, CompileRequest, CompiledObject, Compiler, Listing, Nvrtc, RocmSearch, WorkerPool};
use super::{discover, identity};
use crate::code_object;

/// Where the compilers are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerSearch {
    /// hiprtc, for AMD's GPUs.
    pub rocm: RocmSearch,
    /// NVRTC, for NVIDIA's.
    pub nvrtc: Search,
}

impl CompilerSearch {
    /// Looks for NVRTC at `path` and nowhere else: the library's file, the folder that holds it, a CUDA toolkit's
    /// folder, or Python's `site-packages` with the package `nvidia-cuda-nvrtc-cu12` or `nvidia-cuda-nvrtc`.
    pub fn nvrtc_at(path: impl AsRef<Path>) -> Search {
        nvrtc_sys::search_at(path.as_ref())
    }
}

impl Default for CompilerSearch {
    fn default() -> CompilerSearch {
        CompilerSearch {
            rocm: RocmSearch::default(),
            nvrtc: nvrtc_sys::default_search(),
        }
    }
}

/// A compiler for each platform that was asked for.
pub struct Compilers {
    hip: Option<Box<dyn Compiler>>,
    cuda: Option<Box<dyn Compiler>>,
}

impl Compilers {
    /// Finds the compilers of some platforms and makes them ready: pools of `workers` processes that run `worker` (a
    /// program and its arguments) when given, this process otherwise. Starts and loads as little as it can. The CPU
    /// needs none.
    ///
    /// # Errors
    /// [`CompileError::NotAvailable`] of the first that is not there, with every place looked at.
    pub fn open(
        search: &CompilerSearch,
        platforms: &[Platform],
        worker: Option<&[OsString]>,
        workers: usize,
    ) -> Result<Compilers, CompileError> {
        let mut compilers = Compilers { hip: None, cuda: None };
        if platforms.contains(&Platform::Hip) {
            let toolchain = discover(&search.rocm)?;
            compilers.hip = Some(match worker {
                Some(worker) => Box::new(toolchain.pool(worker, workers)),
                None => Box::new(toolchain.in_process()?),
            });
        }
        if platforms.contains(&Platform::Cuda) {
            compilers.cuda = Some(match worker {
                Some(worker) => Box::new(nvrtc_pool(&search.nvrtc, worker, workers)?),
                None => Box::new(Nvrtc::load(&search.nvrtc)?),
            });
        }
        Ok(compilers)
    }

    fn of(&self, platform: Platform) -> Result<&dyn Compiler, CompileError> {
        let (compiler, name) = match platform {
            Platform::Cuda => (&self.cuda, "NVRTC"),
            Platform::Hip | Platform::Cpu => (&self.hip, "hiprtc"),
        };
        compiler.as_deref().ok_or_else(|| {
            let reason = "nowhere: it was not asked for when the compilers were opened".to_owned();
            CompileError::not_available(platform, name, vec![reason])
        })
    }
}

impl Compiler for Compilers {
    fn identity(&self, platform: Platform) -> Result<String, CompileError> {
        self.of(platform)?.identity(platform)
    }

    fn parallelism(&self) -> usize {
        let compilers = [&self.hip, &self.cuda].into_iter().flatten();
        compilers.map(|compiler| compiler.parallelism()).max().unwrap_or(1)
    }

    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        self.of(request.platform())?.compile(request)
    }

    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        let platform = match code_object::is_cubin(code) {
            true => Platform::Cuda,
            false => Platform::Hip,
        };
        self.of(platform)?.disassemble(code)
    }

    fn assembly(&self, request: &CompileRequest) -> Result<String, CompileError> {
        self.of(request.platform())?.assembly(request)
    }
}

/// Finds NVRTC where `search` says and makes a pool of workers that load it; loads nothing where its file can be seen.
fn nvrtc_pool(search: &Search, worker: &[OsString], workers: usize) -> Result<WorkerPool, CompileError> {
    let pool = WorkerPool::new(worker.to_vec(), workers)
        .platform(Platform::Cuda)
        .search(search.clone());
    let file = dylib::locate(nvrtc_sys::SONAMES, search);
    if file.is_none() {
        // Nothing to be seen on disk: only the dynamic loader can still know it, and this collects its reasons.
        nvrtc_sys::load(search).map_err(|error| CompileError::not_found(Platform::Cuda, error))?;
    }
    Ok(
        match file.and_then(|file| identity::of_library(&file, &identity::NVRTC)) {
            Some(identity) => pool.known_identity(identity),
            None => pool,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> CompilerSearch {
        CompilerSearch {
            rocm: RocmSearch::only("/graphc/no/rocm"),
            nvrtc: nvrtc_sys::search_at("/graphc/no/nvrtc"),
        }
    }

    fn open(platforms: &[Platform], worker: Option<&[OsString]>) -> Result<Compilers, CompileError> {
        Compilers::open(&nowhere(), platforms, worker, 1)
    }

    #[test]
    fn a_missing_compiler_says_where_it_was_looked_for_and_how_to_get_it() {
        let worker = [OsString::from("worker")];
        for worker in [None, Some(&worker[..])] {
            let Err(error) = open(&[Platform::Cuda], worker) else {
                panic!("found nowhere")
            };
            let text = error.to_string();
            for part in [
                "NVRTC is not available",
                "/graphc/no/nvrtc",
                "GRAPHC_NVRTC",
                "pip install nvidia-cuda-nvrtc-cu12",
                "scripts/nvrtc.sh",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
            let Err(error) = open(&[Platform::Hip, Platform::Cuda], worker) else {
                panic!("found nowhere")
            };
            for part in ["scripts/rocm-sysroot.sh", "GRAPHC_ROCM"] {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn only_what_is_asked_for_is_opened() {
        let compilers = open(&[Platform::Cpu], None).unwrap_or_else(|e| panic!("{e}"));
        for platform in [Platform::Hip, Platform::Cuda] {
            assert!(matches!(
                compilers.identity(platform),
                Err(CompileError::NotAvailable { .. })
            ));
        }
    }

    #[test]
    fn folders_of_toolkits_and_packages_are_looked_into() {
        for inside in ["lib64", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", ""] {
            let folder = tempfile::tempdir().unwrap();
            let libs = folder.path().join(inside);
            std::fs::create_dir_all(&libs).unwrap();
            std::fs::write(libs.join("libnvrtc.so.12"), "not loaded to be found").unwrap();
            let search = nvrtc_sys::search_at(folder.path());
            assert_eq!(
                dylib::locate(nvrtc_sys::SONAMES, &search),
                Some(libs.join("libnvrtc.so.12"))
            );
            let pool = nvrtc_pool(&search, &["worker".into()], 1).unwrap();
            let identity = pool.identity(Platform::Cuda).unwrap();
            assert!(identity.starts_with("libnvrtc.so.12 "), "{identity}");
        }
    }
}
