//! What of ROCm and CUDA is on this machine, where, and how to get what is not: the material of `graphc doctor`.

use std::path::{Path, PathBuf};

use dylib::{Search, Sonames};
use ir::target::Platform;

use crate::compile::{CompileError, CompilerSearch, discover};
use crate::gpu::GpuSearch;

/// A library that graphc opens when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    pub name: &'static str,
    /// What needs it.
    pub serves: &'static str,
    pub state: State,
}

/// Whether a library is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Found(Found),
    Missing {
        /// Every place looked at, with what was wrong there.
        looked_in: Vec<String>,
        /// The command that gets it, and what names another place.
        get: String,
    },
}

/// A library's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    /// As the file's own name has it.
    pub version: Option<String>,
    /// The program that it is used through, where it is in a sysroot.
    pub through: Option<PathBuf>,
}

/// Looks for every library that graphc may open; opens none whose file can be seen.
pub fn survey(compilers: &CompilerSearch, gpus: &GpuSearch) -> Vec<Component> {
    let (hiprtc, beside) = hiprtc(compilers);
    let through = match &hiprtc {
        State::Found(found) => found.through.clone(),
        State::Missing { .. } => None,
    };
    let mut comgr = look(comgr_sys::SONAMES, &beside, "it comes with hiprtc");
    if let State::Found(found) = &mut comgr {
        found.through = through;
    }
    let nvrtc = look(nvrtc_sys::SONAMES, &compilers.nvrtc, &way_out(Platform::Cuda));
    const HIP: &str = "install ROCm's HIP runtime (on Debian `apt install libamdhip64-5`, or AMD's packages), or name its file or \
                       folder (GRAPHC_HIP)";
    const CUDA: &str = "install NVIDIA's driver, or name libcuda.so.1 (GRAPHC_CUDA)";
    const LIBRARIES: &str = "install it with ROCm; `LIBS=1 KEEP=gfx90a scripts/rocm-sysroot.sh /opt/graphc-rocm-libs` gets it for \
                             the tests on the emulated GPU; --no-libraries does without";
    const RCCL: &str = "install RCCL with ROCm, or name its file or folder (GRAPHC_RCCL); one GPU does without";
    const NCCL: &str =
        "install NVIDIA's NCCL (PyTorch brings one), or name its file or folder (GRAPHC_RCCL); one GPU does without";
    let part = |name, serves, state| Component { name, serves, state };
    vec![
        part("hiprtc", "compiling for AMD's GPUs", hiprtc),
        part("comgr", "disassembling AMD's code (--emit asm, --emulate)", comgr),
        part(
            "HIP runtime",
            "running on AMD's GPUs",
            look(hip_sys::SONAMES, &gpus.hip, HIP),
        ),
        part(
            "rocBLAS",
            "products that a plan leaves to it",
            look(rocblas_sys::SONAMES, &gpus.libraries, LIBRARIES),
        ),
        part(
            "hipBLASLt",
            "products with a bias or an activation that a plan leaves to it",
            look(hipblaslt_sys::SONAMES, &gpus.libraries, LIBRARIES),
        ),
        part(
            "MIOpen",
            "convolutions that a plan leaves to it",
            look(miopen_sys::SONAMES, &gpus.libraries, LIBRARIES),
        ),
        part(
            "RCCL",
            "one model on several of AMD's GPUs",
            look(rccl_sys::RCCL_SONAMES, &gpus.collectives, RCCL),
        ),
        part("NVRTC", "compiling for NVIDIA's GPUs", nvrtc),
        part(
            "CUDA driver",
            "running on NVIDIA's GPUs",
            look(cuda_sys::SONAMES, &gpus.cuda, CUDA),
        ),
        part(
            "NCCL",
            "one model on several of NVIDIA's GPUs",
            look(rccl_sys::NCCL_SONAMES, &gpus.collectives, NCCL),
        ),
    ]
}

/// Says which versions of the libraries that compute products are found, and of the HIP runtime: what their times
/// depend on. One line.
pub fn libraries(gpus: &GpuSearch) -> String {
    let version = |name: &str, sonames, search: &Search| {
        let version = dylib::find(sonames, search).ok().and_then(|path| version(&path));
        format!("{name} {}", version.as_deref().unwrap_or("unknown"))
    };
    [
        version("rocBLAS", rocblas_sys::SONAMES, &gpus.libraries),
        version("hipBLASLt", hipblaslt_sys::SONAMES, &gpus.libraries),
        version("HIP", hip_sys::SONAMES, &gpus.hip),
    ]
    .join(", ")
}

fn look(sonames: Sonames<'_>, search: &Search, get: &str) -> State {
    match dylib::find(sonames, search) {
        Ok(path) => State::Found(Found::at(path, None)),
        Err(tried) => State::Missing {
            looked_in: tried.iter().map(ToString::to_string).collect(),
            get: get.to_owned(),
        },
    }
}

/// Finds hiprtc, and where what comes with it is.
fn hiprtc(compilers: &CompilerSearch) -> (State, Search) {
    match discover(&compilers.rocm) {
        Ok(toolchain) => {
            let path = toolchain.library.unwrap_or_else(|| hiprtc_sys::SONAMES[0].into());
            let beside = match path.parent().filter(|folder| folder.is_absolute()) {
                Some(folder) => Search::only(folder),
                None => toolchain.search,
            };
            (State::Found(Found::at(path, toolchain.wrapper)), beside)
        }
        Err(error) => {
            let (looked_in, get) = match error {
                CompileError::NotAvailable { looked_in, way_out, .. } => (looked_in, way_out),
                other => (vec![other.to_string()], way_out(Platform::Hip)),
            };
            (State::Missing { looked_in, get }, compilers.rocm.hiprtc.clone())
        }
    }
}

fn way_out(platform: Platform) -> String {
    match CompileError::not_available(platform, "", Vec::new()) {
        CompileError::NotAvailable { way_out, .. } => way_out,
        other => other.to_string(),
    }
}

impl Found {
    fn at(path: PathBuf, through: Option<PathBuf>) -> Found {
        Found {
            version: version(&path),
            path,
            through,
        }
    }
}

/// The version in a library's real file name: `libhiprtc.so.7.2.53211` is 7.2.53211.
fn version(path: &Path) -> Option<String> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name()?.to_str()?.to_owned();
    let (_, version) = name.split_once(".so.")?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::RocmSearch;

    fn component<'a>(all: &'a [Component], name: &str) -> &'a Component {
        all.iter().find(|c| c.name == name).expect("surveyed")
    }

    #[test]
    fn what_is_there_is_found_with_its_version_and_what_is_not_with_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "libhiprtc.so.7.2.53211",
            "libamd_comgr.so.3.0.0",
            "libamdhip64.so.7.2.1",
        ] {
            std::fs::write(at(name), "not opened").unwrap();
        }
        for (link, to) in [
            ("libhiprtc.so.7", "libhiprtc.so.7.2.53211"),
            ("libamd_comgr.so.3", "libamd_comgr.so.3.0.0"),
            ("libamdhip64.so.7", "libamdhip64.so.7.2.1"),
        ] {
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        let compilers = CompilerSearch {
            rocm: RocmSearch::only(dir.path()),
            nvrtc: Search::only("/graphc/no/nvrtc"),
        };
        let gpus = GpuSearch {
            hip: Search::only(dir.path()),
            cuda: Search::only("/graphc/no/cuda"),
            libraries: Search::only(dir.path()),
            collectives: Search::only(dir.path()),
        };
        let all = survey(&compilers, &gpus);
        for (name, file, version) in [
            ("hiprtc", "libhiprtc.so.7", "7.2.53211"),
            ("comgr", "libamd_comgr.so.3", "3.0.0"),
            ("HIP runtime", "libamdhip64.so.7", "7.2.1"),
        ] {
            let State::Found(found) = &component(&all, name).state else {
                panic!("{name} is there")
            };
            assert_eq!((&found.path, found.version.as_deref()), (&at(file), Some(version)));
        }
        for (name, place, command) in [
            ("NVRTC", "/graphc/no/nvrtc", "scripts/nvrtc.sh"),
            ("CUDA driver", "/graphc/no/cuda", "GRAPHC_CUDA"),
            ("rocBLAS", "librocblas.so", "scripts/rocm-sysroot.sh"),
        ] {
            let State::Missing { looked_in, get } = &component(&all, name).state else {
                panic!("{name} is not there")
            };
            assert!(looked_in.iter().any(|l| l.contains(place)), "{name}: {looked_in:?}");
            assert!(get.contains(command), "{name}: {get}");
        }
    }
}
