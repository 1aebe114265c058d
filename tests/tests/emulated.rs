//! Models end to end on emulated GPUs: their own HIP code, by the real hiprtc, instruction by instruction.
//!
//! Outputs are compared with what PyTorch gave, each kernel with the reference evaluator. Without a ROCm the tests print
//! `skipped: …` and pass.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc::ir::HostTensor;
use graphc_tests::{data, graphc_binary, repository};

const ARCHS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

/// Runs the graphc binary; None (and a printed line) where no ROCm is found or the binary is not built.
fn graphc(words: &[&str]) -> Option<Output> {
    let binary = graphc_binary();
    if !binary.is_file() {
        println!("skipped: {} is not built", binary.display());
        return None;
    }
    let output = Command::new(binary).args(words).output().expect("graphc starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(2) && errors.contains("was not found") || errors.contains("scripts/rocm-sysroot.sh")
    {
        println!("skipped: {errors}");
        return None;
    }
    Some(output)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs a model on every arch and fails with everything that went wrong.
fn run_everywhere(model: &Path, inputs: &Path, expect: &Path, more: &[&str]) {
    let mut wrong = Vec::new();
    for arch in ARCHS {
        let (model, inputs, expect) = (text(model), text(inputs), text(expect));
        let mut words = vec!["run", "-q", "--emulate", "--no-libraries", "--target", arch, &model];
        words.extend(["--inputs", &inputs, "--expect", &expect]);
        words.extend(more);
        let Some(output) = graphc(&words) else { return };
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.push(format!("{arch}: {}{errors}", String::from_utf8_lossy(&output.stdout)));
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", model.display());
}

fn export(name: &str) {
    let model = name.split('.').next().expect("a name");
    let file = |suffix: &str| -> PathBuf { data(&format!("exports/{model}.{suffix}.npz")) };
    let tolerance = ["--rtol", "1e-3", "--atol", "1e-5"];
    run_everywhere(
        &data(&format!("exports/{name}.onnx")),
        &file("in"),
        &file("out"),
        &tolerance,
    );
}

/// The first rows of an array file.
fn head(from: &Path, to: &Path, rows: usize) {
    let arrays = graphc::arrays::read(from).expect("readable");
    let cut = arrays.into_iter().map(|(name, tensor)| {
        let row: usize = tensor.shape[1..].iter().product();
        let bytes = tensor.bytes.len() / tensor.shape[0] * rows;
        assert!(row > 0);
        let mut shape = tensor.shape.clone();
        shape[0] = rows;
        let bytes = tensor.bytes.slice(0, bytes).expect("inside");
        (name, HostTensor::new(tensor.dtype, shape, bytes).expect("fits"))
    });
    graphc::arrays::write(to, &cut.collect()).expect("writable");
}

#[test]
fn the_shipped_digits_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let (inputs, expect) = (folder.path().join("in.npz"), folder.path().join("out.npz"));
    head(&repository("examples/digits/test.npz"), &inputs, 16);
    head(&repository("examples/digits/expected.npz"), &expect, 16);
    run_everywhere(&repository("examples/digits/digits.onnx"), &inputs, &expect, &[]);
}

#[test]
fn bert() {
    export("bert.ts");
}

#[test]
fn gpt2() {
    export("gpt2.dy");
}

#[test]
fn llama() {
    export("llama.dy");
}

#[test]
fn vit() {
    export("vit.ts");
}

#[test]
fn mobilenet() {
    export("mobilenet.ts");
}

#[test]
fn each_kernel_matches_the_evaluator() {
    let mut checked = 0;
    for name in ["bert.ts", "gpt2.dy", "llama.dy", "vit.ts"] {
        let model = text(&data(&format!("exports/{name}.onnx")));
        let words = [
            "verify",
            "-q",
            "--emulate",
            "--no-libraries",
            "--limit",
            "3000000",
            "--format",
            "json",
        ];
        let Some(output) = graphc(&[&words[..], &["--target", "gfx90a,gfx1100", &model]].concat()) else {
            return;
        };
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{name}: {}{out}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: serde_json::Value = serde_json::from_str(&out).expect("json");
        for target in report.as_array().expect("a list") {
            checked += target["kernels"].as_array().map_or(0, Vec::len);
        }
    }
    assert!(checked > 60, "only {checked} kernels were compared");
}

#[test]
fn mistakes_are_said() {
    let model = text(&data("exports/bert.ts.onnx"));
    let Some(output) = graphc(&["verify", "--target", "gfx942", &model]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--emulate"));
    let Some(output) = graphc(&["run", "--emulate", "--target", "cpu", "--random", &model]) else {
        return;
    };
    assert_eq!(
        output.status.code(),
        Some(2),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("gfx90a"),
        "the known GPUs are listed"
    );
}
