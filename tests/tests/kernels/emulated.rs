//! Models end to end on emulated GPUs: their own HIP code, by the real hiprtc, instruction by instruction.
//!
//! Through the command line; `emulated_models` has the other models. Without a ROCm the tests print `skipped: …` and
//! pass.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc::ir::{DType, HostTensor};
use graphc_tests::emulator::{ARCHS, toolchain};
use graphc_tests::{data, graphc_binary, reference, repository};

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
fn an_export_with_two_sizes() {
    export("gpt2.dy");
}

#[test]
fn each_kernel_matches_the_evaluator() {
    let model = text(&repository("examples/digits/digits.onnx"));
    let words = [
        "verify",
        "-q",
        "--emulate",
        "--no-libraries",
        "--format",
        "json",
        "--target",
    ];
    let Some(output) = graphc(&[&words[..], &["gfx90a,gfx1100", "--size", "batch=2", &model]].concat()) else {
        return;
    };
    let report = json(&output);
    let targets = report.as_array().expect("a list");
    assert_eq!(targets.len(), 2);
    for target in targets {
        // The two products at the end are one kernel where the target chains them.
        let chained = target["target"] == "gfx90a";
        let names: Vec<&str> = target["kernels"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|k| k["kernel"].as_str())
            .collect();
        assert_eq!(names.len(), if chained { 6 } else { 7 }, "{names:?}");
        assert_eq!(names.contains(&"contract_add_relu_add"), chained, "{names:?}");
        assert_eq!(target["unchecked"].as_array().expect("a list").len(), 0, "{target}");
    }
    // By samples the same kernels are compared, each by less.
    let elements = |report: &serde_json::Value| -> u64 {
        let kernels = report[0]["kernels"].as_array().expect("a list").iter();
        let results = kernels.flat_map(|k| k["results"].as_array().expect("a list").clone());
        results
            .map(|r| r["difference"]["elements"].as_u64().expect("a count"))
            .sum()
    };
    let words = [&words[..], &["gfx1100", "--size", "batch=2", "--sample", "2", &model]].concat();
    let Some(output) = graphc(&words) else { return };
    let sampled = json(&output);
    assert_eq!(
        sampled[0]["kernels"].as_array().map(Vec::len),
        targets[1]["kernels"].as_array().map(Vec::len)
    );
    let (some, all) = (elements(&sampled), elements(&report));
    assert!(some > 0 && some < all, "{some} of {all}");
}

fn json(output: &Output) -> serde_json::Value {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}{out}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&out).expect("json")
}

/// Three updates for two rows: of those that meet, the last stays on a GPU too, whatever order its threads run in.
#[test]
fn of_equal_indices_the_last_update_stays() {
    let Some(tools) = toolchain() else { return };
    for name in ["scatter_elements_last_stays", "scatter_nd_last_stays"] {
        let path = repository(&format!("tests/filetests/plan/{name}.gir"));
        let graph = graphc::driver::model::load_gir(&path).expect("a graph");
        let inputs = reference::random_inputs(&graph, &Default::default(), 5);
        let want = ir::graph::eval::evaluate(&graph, &inputs).expect("evaluates");
        for arch in ARCHS {
            let outcome = tools.run(&tools.build(&graph, arch, None), &inputs, 1 << 20);
            assert_eq!(outcome.outputs["y"].to_f32(), want["y"].to_f32(), "{name} {arch}");
            // Nothing is left to the order of threads: without races between them, either.
            let options = graphc::emulate::Options {
                launch: graphc::emu::LaunchOptions {
                    races: true,
                    ..Default::default()
                },
                ..Default::default()
            };
            let built = tools.build(&graph, arch, None);
            let emulator = graphc::emulate::Emulator::load(&built.program, 0, &tools.disassembler, options);
            emulator
                .and_then(|e| e.run(&inputs))
                .unwrap_or_else(|e| panic!("{name} {arch}: {e}"));
        }
    }
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

/// On GPUs an index outside its axis is clamped, unless one asks for the check.
#[test]
fn indices_are_checked_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, inputs) = (folder.path().join("take.gir"), folder.path().join("in.npz"));
    let graph = "graph @take stage=import {\n  t = input \"t\" : f32[3]\n  i = input \"i\" : i64[2]\n  \
                 y = take t, i {axis=0}\n  return y as \"y\"\n}\n";
    std::fs::write(&model, graph).expect("writable");
    let arrays = [
        ("t", HostTensor::from_f32([3], &[1.0, 2.0, 3.0]).expect("fits")),
        ("i", HostTensor::from_i64(DType::I64, [2], &[0, 5]).expect("fits")),
    ];
    let arrays = arrays
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .into_iter()
        .collect();
    graphc::arrays::write(&inputs, &arrays).expect("writable");
    let (model, inputs) = (text(&model), text(&inputs));
    let words = ["run", "--emulate", "--target", "gfx90a", &model, "--inputs", &inputs];
    let Some(clamped) = graphc(&words) else { return };
    assert!(clamped.status.success(), "{}", String::from_utf8_lossy(&clamped.stderr));
    let Some(checked) = graphc(&[&words[..], &["--check-indices"]].concat()) else {
        return;
    };
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "{errors}");
    assert!(errors.contains("axis 0 of f32[3]"), "{errors}");
}
