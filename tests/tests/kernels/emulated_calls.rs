//! Library calls within a plan are timed on the emulated GPU, by the real rocBLAS in a process of its own; those that
//! cannot be timed say why.
//!
//! The library is that of the sysroot that `LIBS=1 KEEP="gfx90a gfx1201" scripts/rocm-sysroot.sh /opt/graphc-rocm-libs`
//! makes (or the one that `GRAPHC_ROCM_LIBS` names). Without it the first test prints `skipped: …` and passes.

use std::path::{Path, PathBuf};
use std::process::Command;

use graphc_tests::emulator::toolchain;
use graphc_tests::graphc_binary;
use serde_json::Value;

/// Two products of one size with other values, one of another size, and kernels of graphc between them.
const MODEL: &str = "graph @calls stage=core {
  x = input \"x\" : f16[256, 512]
  w = input \"w\" : f16[512, 512]
  u = input \"u\" : f16[512, 128]
  a = rocblas_gemm x, w
  b = relu a
  c = rocblas_gemm b, w
  d = neg c
  e = rocblas_gemm d, u
  return e as \"e\"
}
";

/// Predicts the model's time with these options and variables; None where what that needs is not here.
fn predict(words: &[&str], variables: &[(&str, &str)]) -> Option<Value> {
    toolchain()?;
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("calls.gir");
    std::fs::write(&model, MODEL).expect("written");
    let output = Command::new(graphc_binary())
        .args([
            "bench",
            "--quiet",
            "--emulate",
            "--target",
            "gfx90a",
            "--format",
            "json",
        ])
        .args(words)
        .arg(&model)
        .envs(variables.iter().copied())
        .output()
        .expect("graphc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// The rows of kernels that calls launch.
fn of_calls(run: &Value) -> Vec<&Value> {
    let kernels = run["kernels"].as_array().expect("a list");
    kernels
        .iter()
        .filter(|kernel| kernel["call"] == "rocblas_gemm")
        .collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn calls_are_timed_by_the_library_s_own_kernels() {
    let named = std::env::var_os("GRAPHC_ROCM_LIBS").map(PathBuf::from);
    let root = named.unwrap_or_else(|| PathBuf::from("/opt/graphc-rocm-libs"));
    if !root.join("usr/lib/x86_64-linux-gnu/librocblas.so").exists() {
        println!("skipped: no rocBLAS in {}", root.display());
        return;
    }
    let Some(run) = predict(&[], &[]) else { return };
    assert_eq!(run["untimed"], Value::Array(Vec::new()));
    let calls = of_calls(&run);
    let launches: u64 = calls
        .iter()
        .map(|kernel| kernel["launches"].as_u64().expect("a number"))
        .sum();
    assert_eq!(launches, 3, "{run:#}");
    for kernel in &calls {
        assert!(
            kernel["name"].as_str().is_some_and(|name| name.starts_with("Cijk_")),
            "{kernel:#}"
        );
        assert_eq!(kernel["report"]["arch"], "gfx90a");
        assert!(number(&kernel["report"]["cycles"]) > 1000.0, "{kernel:#}");
    }
    let twice = calls.iter().filter(|kernel| kernel["launches"] == 2).count();
    assert_eq!(twice, 1, "calls of one size are timed alike: {run:#}");
    // What the steps take is the sum of what is listed.
    let kernels = run["kernels"].as_array().expect("a list");
    let listed: f64 = kernels.iter().map(|kernel| number(&kernel["total_micros"])).sum();
    assert!(number(&run["in_sequence_ms"]) * 1e3 >= listed - 1e-6, "{run:#}");
    // The clock that is asked for is also theirs.
    let slow = predict(&["--clock", "0.85"], &[]).expect("it was here before");
    for kernel in of_calls(&slow) {
        assert_eq!(kernel["report"]["ghz"], 0.85);
    }
}

#[test]
fn a_call_that_cannot_be_timed_says_why() {
    for (variable, place, word) in [
        ("GRAPHC_ROCM_LIBS", "/no/such/sysroot", "rocm-run"),
        ("GRAPHC_EMU_HIP", "/no/such/library.so", "cargo build -p graphc-emu-hip"),
    ] {
        assert!(!Path::new(place).exists());
        let Some(run) = predict(&[], &[(variable, place)]) else {
            return;
        };
        let untimed = run["untimed"].as_array().expect("a list");
        assert_eq!(untimed.len(), 3, "{run:#}");
        for call in untimed {
            assert_eq!(call["call"], "rocblas_gemm");
            let reason = call["reason"].as_str().expect("a text");
            assert!(reason.contains(place) && reason.contains(word), "{reason}");
        }
        assert_eq!(of_calls(&run).len(), 0);
        // The kernels that are graphc's own are timed all the same.
        assert!(!run["kernels"].as_array().expect("a list").is_empty(), "{run:#}");
    }
}

/// A product that hipBLASLt does whole.
const ACTIVATED: &str = "graph @activated stage=import {
  x = input \"x\" : f16[256, 256]
  w = constant random(seed=1, scale=0.05) : f16[256, 256]
  b = constant random(seed=2, scale=0.05) : f16[256]
  y = contract x, w
  z = add y, b
  r = relu z
  return r as \"r\"
}
";

#[test]
fn the_algorithms_of_a_call_are_timed_each_by_its_own_kernels() {
    let named = std::env::var_os("GRAPHC_ROCM_LIBS").map(PathBuf::from);
    let root = named.unwrap_or_else(|| PathBuf::from("/opt/graphc-rocm-libs"));
    if !root.join("usr/lib/x86_64-linux-gnu/libhipblaslt.so").exists() {
        println!("skipped: no hipBLASLt in {}", root.display());
        return;
    }
    if toolchain().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("activated.gir");
    std::fs::write(&model, ACTIVATED).expect("written");
    let output = Command::new(graphc_binary())
        .args([
            "tune",
            "run",
            "--quiet",
            "--emulate",
            "--target",
            "gfx90a",
            "--format",
            "json",
        ])
        .args(["--candidates", "4", "--database"])
        .arg(folder.path().join("times.db"))
        .arg(&model)
        .output()
        .expect("graphc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let calls = found["products"][0]["calls"].as_array().expect("a list");
    let of_algorithms = calls
        .iter()
        .filter(|call| call["call"].as_str().is_some_and(|name| name.contains(" algorithm ")));
    let times: Vec<u64> = of_algorithms.map(|call| number(&call["us"]).to_bits()).collect();
    assert_eq!(times.len(), 4, "{found:#}");
    // The process that lists algorithms is another than the one that runs them. Were they not found there, all would be
    // the library's choice.
    let distinct: std::collections::BTreeSet<u64> = times.into_iter().collect();
    assert!(distinct.len() > 1, "{found:#}");
}
