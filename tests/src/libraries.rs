//! The vendor libraries of the sysroot, as tests run them: each test as a process of its own inside of it, on the
//! emulated gfx90a.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;

use graphc::ir::program::Variant;
use graphc::ir::{DType, Graph, HostTensor, Program, Target};
use graphc::passes::{self, PlanOptions, ScheduleOptions};
use libloading::Library;

use crate::emulated_hip::EmulatedHip;

/// The folder of the HIP library, in the process that runs inside the sysroot.
const INSIDE: &str = "GRAPHC_TEST_INSIDE";

/// Where the sysroot is, if it is there.
fn root() -> PathBuf {
    let named = std::env::var_os("GRAPHC_ROCM_LIBS").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from("/opt/graphc-rocm-libs"))
}

/// Whether this is a test's first process, from which [`inside`] will start the second one.
pub fn is_outside() -> bool {
    std::env::var_os(INSIDE).is_none() && root().join("usr/lib/x86_64-linux-gnu/libMIOpen.so").exists()
}

/// Runs a test of `module` (a `module_path!()`) inside the sysroot, as a process of its own; there it gives the HIP
/// library with these variables (MIOpen's own are the process's). `temporary` is a folder in which MIOpen keeps what it
/// compiled.
///
/// # Panics
/// When the test fails there.
pub fn inside(module: &str, test: &str, temporary: &str, variables: &[(&str, &str)]) -> Option<EmulatedHip> {
    let (miopen, variables): (Vec<_>, Vec<_>) = variables.iter().partition(|(name, _)| name.starts_with("MIOPEN_"));
    if let Some(folder) = std::env::var_os(INSIDE) {
        return Some(EmulatedHip::at(folder.into(), &variables));
    }
    let root = root();
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let run = root.join("rocm-run");
    if !run.is_file() || !libraries.join("librocblas.so").exists() || !libraries.join("libMIOpen.so").exists() {
        println!(
            "skipped: no rocBLAS and MIOpen in {root}; LIBS=1 KEEP=\"gfx90a gfx1201\" scripts/rocm-sysroot.sh {root} sets them up",
            root = root.display()
        );
        return None;
    }
    let arch = variables
        .iter()
        .find(|(name, _)| *name == "GRAPHC_EMU_ARCH")
        .map_or("gfx90a", |(_, arch)| *arch);
    let kernels = std::fs::read_dir(libraries.join("hipblaslt/library"));
    let named = |file: std::io::Result<std::fs::DirEntry>| {
        file.is_ok_and(|file| file.file_name().to_string_lossy().contains(&format!("_{arch}.")))
    };
    if !kernels.is_ok_and(|mut files| files.any(named)) {
        println!(
            "skipped: no kernels of {arch} in {root}; LIBS=1 KEEP=\"gfx90a {arch}\" scripts/rocm-sysroot.sh {root} sets them up",
            root = root.display()
        );
        return None;
    }
    let hip = EmulatedHip::new(&[])?;
    let folder = hip.folder().display().to_string();
    // A test is called by its path behind the name of the executable.
    let name = module
        .split_once("::")
        .map_or(test.to_owned(), |(_, within)| format!("{within}::{test}"));
    let output = Command::new(run)
        .arg("env")
        .args([format!("{INSIDE}={folder}"), format!("LD_LIBRARY_PATH={folder}")])
        .args(["MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"].map(|name| format!("{name}={temporary}/miopen")))
        // Debian builds MIOpen without its kernels in assembly but with the solvers that use them, which then all fail.
        .arg("MIOPEN_DEBUG_GCN_ASM_KERNELS=0")
        .args(miopen.iter().map(|(name, value)| format!("{name}={value}")))
        .arg(std::env::current_exe().expect("a test knows its own path"))
        .args(["--exact", &name, "--nocapture"])
        .output()
        .expect("the wrapper starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert!(said.contains("1 passed") && !said.contains("skipped:"), "{said}");
    None
}

/// Numbers that are small multiples of a quarter (integers: small): products and sums of them are exact in f32.
///
/// # Panics
/// When the type holds no such numbers.
pub fn tensor(dtype: DType, shape: &[usize], seed: usize) -> HostTensor {
    let count = shape.iter().product();
    let step = if dtype.is_float() { 4.0 } else { 1.0 };
    let values: Vec<f64> = (0..count)
        .map(|i| (((i * 7 + seed * 5 + i / 3) % 9) as f64 - 4.0) / step)
        .collect();
    HostTensor::from_f64(dtype, shape.to_vec(), &values).expect("fits")
}

/// The library that stands between the runtime and the real ones, under all their names, and what steers it.
pub struct Failing {
    folder: tempfile::TempDir,
    library: Library,
}

impl Failing {
    /// Makes a folder with the library under the names of the real ones, which the loader must find by theirs.
    ///
    /// # Panics
    /// When cargo has not built it with the tests.
    #[expect(clippy::new_without_default, reason = "it makes a folder and loads a library")]
    pub fn new() -> Failing {
        let test = std::env::current_exe().expect("a test knows its own path");
        let built = test.with_file_name("libgraphc_emu_libraries.so");
        let folder = tempfile::tempdir().expect("a folder");
        let link = |name: &str| folder.path().join(name);
        for name in ["librocblas.so", "libhipblaslt.so", "libMIOpen.so"] {
            std::os::unix::fs::symlink(&built, link(name)).expect("linked");
        }
        // SAFETY: it has no initialiser.
        let library = unsafe { Library::new(link("librocblas.so")) }.expect("cargo builds it with the tests");
        Failing { folder, library }
    }

    /// The folder, for the runtime to look in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the `number`-th call of a function from now on give a status; an empty name lets none.
    ///
    /// # Panics
    /// When the name has a zero.
    pub fn fail(&self, name: &str, number: u64, status: i32) {
        type Fail = unsafe extern "C" fn(*const c_char, u64, c_int);
        let text = CString::new(name).expect("no zero");
        let name = if name.is_empty() {
            std::ptr::null()
        } else {
            text.as_ptr()
        };
        // SAFETY: the function's own signature, and null or a C string.
        unsafe { self.library.get::<Fail>(b"graphc_fail\0").expect("is there")(name, number, status) };
    }

    /// How often each function was called since.
    ///
    /// # Panics
    /// When there are more names than any library has.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        type Calls = unsafe extern "C" fn(*mut c_char, usize) -> c_int;
        let mut text = vec![0u8; 1 << 14];
        // SAFETY: the function's own signature, and room as is said.
        let code = unsafe {
            self.library.get::<Calls>(b"graphc_fail_calls\0").expect("is there")(text.as_mut_ptr().cast(), text.len())
        };
        assert_eq!(code, 0);
        let text = CStr::from_bytes_until_nul(&text)
            .expect("a zero")
            .to_str()
            .expect("names");
        let line = |line: &str| {
            let (name, count) = line.split_once(' ').expect("a name and a count");
            (name.to_owned(), count.parse().expect("a count"))
        };
        text.lines().map(line).collect()
    }
}

/// A program of library calls alone, for gfx90a.
///
/// # Panics
/// When there is anything else in it.
pub fn calls(graph: &Graph) -> Program {
    calls_for(graph, "gfx90a".parse().expect("a target"))
}

/// The same for any target.
///
/// # Panics
/// When there is anything else in it.
pub fn calls_for(graph: &Graph, target: Target) -> Program {
    let (schedule, _) = passes::schedule(graph, &target, &ScheduleOptions::default()).expect("schedules");
    let plan = passes::plan(graph, &schedule, &target, &PlanOptions::default()).expect("plans");
    assert_eq!(plan.launches().0, 0, "{plan}");
    Program {
        name: graph.name.clone(),
        variants: vec![Variant {
            plan,
            sources: Default::default(),
            code: Default::default(),
        }],
        constants: Default::default(),
    }
}
