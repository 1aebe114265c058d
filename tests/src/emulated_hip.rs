//! The HIP-compatible library over the emulated GPU, as tests open it: a copy with settings of its own, in this process
//! or for another.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};

use graphc::driver;
use graphc::ir::Program;
use graphc::options::Settings;
use graphc::runtime::RuntimeError;
use graphc::runtime::gpu::{GpuDevice, GpuSearch, Vendor};
use graphc::session::{OpenDevice, SessionOptions};
use tempfile::TempDir;

use crate::graphc_binary;

/// The library in a folder of its own, under the name that ROCm gives it.
pub struct EmulatedHip {
    folder: PathBuf,
    _kept: Option<TempDir>,
    variables: Vec<(String, String)>,
}

/// A library that cargo built beside the tests.
fn built(name: &str) -> Option<PathBuf> {
    let binary = graphc_binary();
    let profile = binary.parent()?;
    [profile.join("deps").join(name), profile.join(name)]
        .into_iter()
        .find(|path| path.is_file())
}

/// The wrapper under which ROCm's compile stack runs, where that is in a sysroot; None inside of one or with a native
/// ROCm.
fn wrapper() -> Option<PathBuf> {
    let named = std::env::var_os("GRAPHC_ROCM").map(|folder| PathBuf::from(folder).join("rocm-run"));
    let usual = PathBuf::from("/opt/graphc-rocm/rocm-run");
    named.into_iter().chain([usual]).find(|run| run.is_file())
}

impl EmulatedHip {
    /// Makes a copy of the library with these variables; None (and a printed line) where there is no ROCm to compile
    /// and disassemble with, or something is not built.
    ///
    /// # Panics
    /// When no folder can be made.
    pub fn new(variables: &[(&str, &str)]) -> Option<EmulatedHip> {
        let binary = graphc_binary();
        let Some(library) = built("libamdhip64_emu.so").filter(|_| binary.is_file()) else {
            println!("skipped: {} or the emulated HIP library is not built", binary.display());
            return None;
        };
        let native = Path::new("/opt/rocm/lib/libhiprtc.so").exists();
        let wrapper = wrapper();
        if wrapper.is_none() && !native {
            println!("skipped: no ROCm here; scripts/rocm-sysroot.sh sets one up");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("libamdhip64.so.7");
        std::fs::copy(library, &name).expect("copied");
        // Collectives between the emulated GPUs, where they were built.
        if let Some(rccl) = built("librccl_emu.so") {
            std::fs::copy(rccl, folder.path().join("librccl.so.1")).expect("copied");
        }
        // hiprtc asks for it by this name when it is to find out what the device is.
        std::os::unix::fs::symlink(name, folder.path().join("libamdhip64.so")).expect("linked");
        let mut all: Vec<(String, String)> = variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        if let Some(wrapper) = wrapper {
            let words = format!("{} {} __disassembler", wrapper.display(), binary.display());
            all.push(("GRAPHC_EMU_DISASSEMBLER".into(), words));
        }
        Some(EmulatedHip {
            folder: folder.path().to_owned(),
            _kept: Some(folder),
            variables: all,
        })
    }

    /// The library in a folder that [`EmulatedHip::new`] made in another process, where comgr is on the loader's path:
    /// inside a sysroot.
    pub fn at(folder: PathBuf, variables: &[(&str, &str)]) -> EmulatedHip {
        EmulatedHip {
            folder,
            _kept: None,
            variables: variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        }
    }

    /// The folder that holds the library.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command of the disassembler's worker, where ROCm is in a sysroot.
    pub fn disassembler(&self) -> Option<String> {
        let all = self.variables.iter();
        all.filter(|(name, _)| name == "GRAPHC_EMU_DISASSEMBLER")
            .map(|(_, words)| words.clone())
            .next()
    }

    /// Opens a device in this process.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open(&self, number: usize) -> Result<GpuDevice, RuntimeError> {
        self.open_with(&self.search(), number)
    }

    /// As [`EmulatedHip::open`], with libraries looked for elsewhere.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open_with(&self, search: &GpuSearch, number: usize) -> Result<GpuDevice, RuntimeError> {
        // The library reads its variables when it is first called.
        static ENVIRONMENT: Mutex<()> = Mutex::new(());
        let _guard = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in &self.variables {
            // SAFETY: the tests of one binary touch the environment here only, under the lock.
            unsafe { std::env::set_var(name, value) };
        }
        let device = GpuDevice::open(search, Vendor::Hip, number);
        for (name, _) in &self.variables {
            // SAFETY: as above.
            unsafe { std::env::remove_var(name) };
        }
        device
    }

    /// Opens so many devices as one, which share a model.
    ///
    /// # Errors
    /// As [`EmulatedHip::open`], and [`OpenDevice::of_gpus`].
    pub fn open_ranks(&self, ranks: usize) -> Result<OpenDevice, graphc::Error> {
        let gpus = (0..ranks).map(|number| Ok(Arc::new(self.open(number)?)));
        OpenDevice::of_gpus(gpus.collect::<Result<Vec<_>, RuntimeError>>()?)
    }

    /// How a session compiles for the first device and runs there.
    ///
    /// # Errors
    /// As [`EmulatedHip::open`].
    ///
    /// # Panics
    /// When the environment has a setting that is wrong.
    pub fn session_options(&self) -> Result<SessionOptions, RuntimeError> {
        Ok(options_on(self.open(0)?))
    }

    /// Where the runtime finds the library.
    pub fn search(&self) -> GpuSearch {
        let is_here = |name: &str| ["GRAPHC_HIP", "GRAPHC_RCCL"].contains(&name);
        let settings = Settings::read(|name| is_here(name).then(|| self.folder().into()));
        settings.expect("a folder is a valid setting").gpu_search()
    }

    /// Runs the graphc binary with the library.
    ///
    /// # Panics
    /// When the binary does not start.
    pub fn graphc(&self, words: &[&str]) -> Output {
        let mut command = Command::new(graphc_binary());
        command.args(words).env("GRAPHC_HIP", self.folder());
        command.env("GRAPHC_RCCL", self.folder());
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command.output().expect("graphc starts")
    }
}

/// How a session compiles for a device and runs there, with the binary as compile worker and without vendor libraries.
///
/// # Panics
/// When the environment has a setting that is wrong.
pub fn options_on(device: impl Into<Arc<GpuDevice>>) -> SessionOptions {
    let device = device.into();
    let target = device.target().processor();
    options_of(OpenDevice {
        target,
        device,
        fallback: None,
    })
}

/// As [`options_on`], on any device.
///
/// # Panics
/// When the environment has a setting that is wrong.
pub fn options_of(device: OpenDevice) -> SessionOptions {
    let mut settings = Settings::from_env().expect("valid settings");
    settings.worker = Some(graphc_binary().into());
    SessionOptions {
        target: device.target,
        device: Some(device),
        settings: Some(Arc::new(settings)),
        ..SessionOptions::default()
    }
}

/// Compiles the kernels of a program, with the binary as worker.
///
/// # Panics
/// When they do not compile.
pub fn compile(program: &mut Program) {
    let settings = Settings::from_env().expect("valid settings");
    let worker: [OsString; 2] = [graphc_binary().into(), "__compile-worker".into()];
    let compiler = driver::compiler(&settings, Some(&worker), driver::platforms(program)).expect("a compiler");
    driver::compile(program, &compiler, &|_| {}).expect("the kernels compile");
}

/// As [`compile`], inside a sysroot: hiprtc is in this process, and nothing is kept.
///
/// # Panics
/// When they do not compile.
pub fn compile_here(program: &mut Program) {
    let mut settings = Settings::from_env().expect("valid settings");
    (settings.rocm, settings.cache_dir) = (None, None);
    let compiler = driver::compiler(&settings, None, driver::platforms(program)).expect("a compiler");
    driver::compile(program, &compiler, &|_| {}).expect("the kernels compile");
}
