//! The vendor libraries of the sysroot, as tests run them: each test as a process of its own inside of it, on the emulated gfx90a.

use std::path::PathBuf;
use std::process::Command;

use graphc::ir::program::Variant;
use graphc::ir::{DType, Graph, HostTensor, Program, Target};
use graphc::passes::{self, PlanOptions, ScheduleOptions};

use crate::emulated_hip::EmulatedHip;

/// The folder of the HIP library, in the process that runs inside the sysroot.
const INSIDE: &str = "GRAPHC_TEST_INSIDE";

/// Runs a test inside the sysroot, as a process of its own; there it gives the HIP library with these variables. `temporary` is a folder in
/// which MIOpen keeps what it compiled.
///
/// # Panics
/// When the test fails there.
pub fn inside(test: &str, temporary: &str, variables: &[(&str, &str)]) -> Option<EmulatedHip> {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return Some(EmulatedHip::at(folder.into(), variables));
    }
    let named = std::env::var_os("GRAPHC_ROCM_LIBS").map(PathBuf::from);
    let root = named.unwrap_or_else(|| PathBuf::from("/opt/graphc-rocm-libs"));
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let run = root.join("rocm-run");
    if !run.is_file() || !libraries.join("librocblas.so").exists() || !libraries.join("libMIOpen.so").exists() {
        println!(
            "skipped: no rocBLAS and MIOpen in {root}; LIBS=1 KEEP=gfx90a scripts/rocm-sysroot.sh {root} sets them up",
            root = root.display()
        );
        return None;
    }
    let hip = EmulatedHip::new(&[])?;
    let folder = hip.folder().display().to_string();
    let output = Command::new(run)
        .arg("env")
        .args([format!("{INSIDE}={folder}"), format!("LD_LIBRARY_PATH={folder}")])
        .args(["MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"].map(|name| format!("{name}={temporary}/miopen")))
        .arg(std::env::current_exe().expect("a test knows its own path"))
        .args(["--exact", test, "--nocapture"])
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

/// A program of library calls alone, for gfx90a.
///
/// # Panics
/// When there is anything else in it.
pub fn calls(graph: &Graph) -> Program {
    let target: Target = "gfx90a".parse().expect("a target");
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
