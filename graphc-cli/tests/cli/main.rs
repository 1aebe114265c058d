//! The command line as a program sees it: verbs, formats, exit codes, and a message for every mistake.

mod counters;
mod doctor;
mod files;
mod gguf;
mod in_process;
mod mistakes;
mod outputs;
mod place;
mod quantize;
mod reading;
mod refusals;
mod shared_cache;
mod times;
mod tune;

use std::path::Path;
use std::process::Command;

use graphc::arrays;
use graphc::frontend::onnx::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};
use graphc::ir::{DType, HostTensor};
use place::{Place, SMALL, compiler, digits, digits_file, f32s, refused, text};
use prost::Message;
use serde_json::Value;

fn input(name: &str, dims: &[i64]) -> ValueInfoProto {
    use graphc::frontend::onnx::proto::{TensorShapeProto, tensor_shape_proto};
    let dim = |d: &i64| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(*d)),
        ..Default::default()
    };
    let shape = TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    };
    let tensor = type_proto::Tensor {
        elem_type: 1,
        shape: Some(shape),
    };
    let ty = TypeProto {
        value: Some(type_proto::Value::TensorType(tensor)),
        ..Default::default()
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(ty),
        ..Default::default()
    }
}

/// A model of one node `op(x) -> y` over `f32[2, 3]`, with initialisers.
fn model(op: &str, inputs: &[&str], initializer: Vec<TensorProto>) -> Vec<u8> {
    model_of(op, inputs, initializer, [&[2, 3], &[2, 3]])
}

/// A model of one node, whose input and output have these sizes.
fn model_of(op: &str, inputs: &[&str], initializer: Vec<TensorProto>, [x, y]: [&[i64]; 2]) -> Vec<u8> {
    let node = NodeProto {
        name: "the_node".to_owned(),
        op_type: op.to_owned(),
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        output: vec!["y".to_owned()],
        ..Default::default()
    };
    let graph = GraphProto {
        name: "g".to_owned(),
        node: vec![node],
        initializer,
        input: vec![input("x", x)],
        output: vec![input("y", y)],
        ..Default::default()
    };
    let opset = OperatorSetIdProto {
        domain: String::new(),
        version: 17,
    };
    ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..Default::default()
    }
    .encode_to_vec()
}

#[test]
fn the_readmes_first_command_scores_the_digits() {
    let p = Place::new();
    let (inputs, expected, labels) = (
        digits_file("test.npz"),
        digits_file("expected.npz"),
        digits_file("labels.npz"),
    );
    let args = [
        "run",
        &digits(),
        "--inputs",
        &inputs,
        "--expect",
        &expected,
        "--labels",
        &labels,
    ];
    let said = p.ok(&args);
    assert!(said.contains("logits: ok: worst error"), "{said}");
    assert!(said.contains("accuracy: 355 of 360 right"), "{said}");
    for dtype in ["f16", "bf16"] {
        let said = p.ok(&[
            "run",
            &digits(),
            "--inputs",
            &inputs,
            "--labels",
            &labels,
            "--dtype",
            dtype,
        ]);
        let right: i32 = said
            .split("accuracy: ")
            .nth(1)
            .and_then(|s| s.split(' ').next())
            .expect("a score")
            .parse()
            .expect("n");
        assert!(right >= 350, "{dtype}: {said}");
    }
}

#[test]
fn run_writes_compares_and_makes_up_arrays() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let x = p.arrays("in.npz", &[("x", f32s(&[2, 3], &[1.0, -1.0, 2.0, 0.5, 0.0, -3.0]))]);
    p.ok(&["run", text(&m), "--inputs", text(&x), "-o", "out.npz"]);
    let y = arrays::read(&p.path("out.npz")).expect("written");
    assert_eq!(y["y"].to_f32(), [1.0, 0.0, 6.0, 0.5, 0.0, 0.0]);
    p.ok(&["run", text(&m), "--inputs", text(&x), "-o", "y.npy"]);
    assert_eq!(arrays::read(&p.path("y.npy")).expect("written")["y"], y["y"]);
    p.ok(&["run", text(&m), "--inputs", text(&x), "--expect", "out.npz"]);
    let wrong = p.arrays("wrong.npz", &[("y", f32s(&[2, 3], &[1.0, 0.0, 6.5, 0.5, 0.0, 0.0]))]);
    let args = ["run", text(&m), "--inputs", text(&x), "--expect", text(&wrong)];
    p.fails(&args, 1, &["1 of 1 outputs differ"]);
    let said = String::from_utf8(p.run(&args).stdout).expect("text");
    assert!(
        said.contains("y: DIFFERS: worst error 5.000e-1 absolute") && said.contains("worst at 2"),
        "{said}"
    );
    p.ok(&[
        "run",
        text(&m),
        "--inputs",
        text(&x),
        "--expect",
        text(&wrong),
        "--atol",
        "0.6",
    ]);
    // Made-up inputs are the same every time, and another seed's are others.
    let random = |seed: &str| p.ok(&["run", text(&m), "--random", "--seed", seed]);
    assert_eq!(random("1"), random("1"));
    assert_ne!(random("1"), random("2"));
    let out = p.json(&[
        "run",
        text(&m),
        "--inputs",
        text(&x),
        "--expect",
        "out.npz",
        "--format",
        "json",
    ]);
    assert_eq!(out["outputs"]["y"]["shape"], serde_json::json!([2, 3]));
    assert_eq!(out["outputs"]["y"]["difference"]["mismatches"], 0);
}

#[test]
fn json_has_the_fields_that_scripts_read() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let bench = p.json(&[
        "bench",
        text(&m),
        "--device",
        "cpu",
        "--threads",
        "2",
        "--runs",
        "3",
        "--format",
        "json",
    ]);
    for field in ["median_ms", "min_ms", "compile_ms"] {
        assert!(bench[field].as_f64().is_some_and(|v| v > 0.0), "{field}: {bench}");
    }
    assert!(bench["planned_peak_bytes"].is_u64(), "{bench}");
    // Runs at once have one time: their share of the whole.
    let at_once = p.json(&["bench", text(&m), "--runs", "5", "--overlap", "3", "--format", "json"]);
    assert!(at_once["median_ms"].as_f64().is_some_and(|v| v > 0.0), "{at_once}");
    assert_eq!(at_once["median_ms"], at_once["min_ms"]);
    assert_eq!(
        (&at_once["runs"], &at_once["overlap"]),
        (&5.into(), &3.into()),
        "{at_once}"
    );
    let targets = p.json(&["targets", "--format", "json"]);
    let names: Vec<&str> = targets
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|t| t["name"].as_str())
        .collect();
    for name in [
        "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201", "cpu", "sm_90",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let explain = p.json(&["explain", &digits(), "--target", "gfx90a", "--format", "json"]);
    assert!(explain.to_string().contains("fold_batch_norm"), "{explain}");
    assert!(
        p.ok(&["explain", &digits(), "--target", "gfx90a"])
            .contains("edges through memory")
    );
    let facts = p.json(&["inspect", text(&m), "--target", "cpu", "--format", "json"]);
    assert_eq!(
        (facts["launches"].as_u64(), facts["library_calls"].as_u64()),
        (Some(1), Some(0))
    );
    if !compiler(&p) {
        return;
    }
    let facts = p.json(&["inspect", &digits(), "--target", "gfx90a", "--format", "json"]);
    for field in [
        "launches",
        "library_calls",
        "planned_peak_bytes",
        "weight_bytes",
        "flops",
    ] {
        assert!(facts[field].is_u64(), "{field}: {facts}");
    }
    for kernel in facts["kernels"].as_array().expect("a list") {
        assert!(kernel["name"].is_string() && kernel["source"].as_str().is_some_and(|s| s.contains("__global__")));
        let numbers = [
            "vgpr",
            "agpr",
            "sgpr",
            "lds_bytes",
            "scratch_bytes",
            "vgpr_spills",
            "sgpr_spills",
            "wave_size",
        ];
        assert!(numbers.iter().all(|n| kernel[*n].is_u64()), "{kernel}");
        assert_eq!(
            (kernel["wave_size"].as_u64(), kernel["vgpr_spills"].as_u64()),
            (Some(64), Some(0))
        );
    }
}

#[test]
fn every_stage_can_be_read_and_a_graph_fed_back() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    for (stage, says) in [
        ("graph", "graph @small stage=import"),
        ("dot", "digraph"),
        ("core", "stage=core"),
        ("schedule", "relu"),
        ("plan", "plan target=gfx90a"),
        ("hip", "__global__"),
    ] {
        let text = p.ok(&["compile", text(&m), "--target", "gfx90a", "--emit", stage]);
        assert!(text.contains(says), "{stage}: {text}");
        // A second process prints the same.
        assert_eq!(
            text,
            p.ok(&[
                "compile",
                m.to_str().expect("UTF-8"),
                "--target",
                "gfx90a",
                "--emit",
                stage
            ]),
            "{stage}"
        );
    }
    p.ok(&[
        "compile",
        text(&m),
        "--target",
        "cpu",
        "--emit",
        "graph",
        "-o",
        "again.gir",
    ]);
    let again = p.ok(&["opt", "again.gir", "--target", "gfx90a"]);
    assert_eq!(
        strip_places(&again),
        strip_places(&p.ok(&["opt", text(&m), "--target", "gfx90a"]))
    );
    for stage in ["plan", "hip"] {
        let emit = || p.ok(&["compile", &digits(), "--target", "gfx942", "--emit", stage]);
        assert_eq!(emit(), emit(), "{stage} of two processes");
    }
}

/// Leaves out where nodes came from.
fn strip_places(text: &str) -> String {
    text.lines()
        .map(|l| l.split(" @ ").next().unwrap_or(l).to_owned() + "\n")
        .collect()
}

#[test]
fn an_artifact_runs_alone_is_the_same_twice_and_compiles_nothing_when_warm() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let compile = |out: &str| {
        let output = p.run(&["compile", &digits(), "--target", "gfx90a,gfx942,cpu", "-o", out]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).expect("text")
    };
    let first = compile("a.graphc");
    assert!(first.contains(" 0 from the cache"), "{first}");
    let second = compile("b.graphc");
    assert!(second.contains(" 0 kernels compiled"), "warm start: {second}");
    std::fs::remove_dir_all(p.path("cache")).expect("the cache is a folder");
    compile("c.graphc");
    let bytes = |name: &str| std::fs::read(p.path(name)).expect("written");
    assert!(
        bytes("a.graphc") == bytes("b.graphc"),
        "artifacts of a cold and a warm start differ"
    );
    assert!(
        bytes("a.graphc") == bytes("c.graphc"),
        "artifacts of two cold starts differ"
    );
    let (inputs, expected) = (digits_file("test.npz"), digits_file("expected.npz"));
    p.ok(&["run", "a.graphc", "--inputs", &inputs, "--expect", &expected]);
    // Nothing is compiled to inspect it: no compiler is needed.
    let mut inspect = p.command(&["inspect", "a.graphc", "--target", "gfx942", "--format", "json"]);
    let output = inspect.env("GRAPHC_ROCM", p.path("nowhere")).output().expect("starts");
    let facts: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(facts["kernels"][0]["vgpr"].is_u64(), "{facts}");
    p.fails(
        &["inspect", "a.graphc", "--target", "gfx1100"],
        2,
        &["no code for gfx1100", "gfx90a, gfx942, cpu"],
    );
    // A damaged cache entry is compiled again, and the answer stays the same.
    let mut entries = Vec::new();
    for folder in std::fs::read_dir(p.path("cache/kernels")).expect("a folder") {
        let folder = folder.expect("readable").path();
        if folder.is_dir() {
            entries.extend(
                std::fs::read_dir(folder)
                    .expect("a folder")
                    .map(|e| e.expect("readable").path()),
            );
        }
    }
    assert!(!entries.is_empty());
    for (i, entry) in entries.iter().enumerate() {
        let mut bytes = std::fs::read(entry).expect("readable");
        let at = i * 97 % bytes.len();
        bytes[at] ^= 0x55;
        std::fs::write(entry, bytes).expect("writable");
    }
    let third = compile("d.graphc");
    assert!(!third.contains(" 0 kernels compiled"), "{third}");
    assert!(
        bytes("a.graphc") == bytes("d.graphc"),
        "a damaged entry changed the artifact"
    );
}

#[test]
fn a_damaged_artifact_is_refused_wherever_it_is_damaged() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    p.ok(&["compile", text(&m), "--target", "cpu", "-o", "a.graphc"]);
    let good = std::fs::read(p.path("a.graphc")).expect("written");
    let x = p.arrays("in.npz", &[("x", f32s(&[1, 3], &[1.0, 2.0, 3.0]))]);
    let step = (good.len() / 24).max(1);
    for at in (0..good.len()).step_by(step).chain([good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        p.write("bad.graphc", &bad);
        p.fails(&["run", "bad.graphc", "--inputs", text(&x)], 2, &["bad.graphc"]);
    }
    for length in [0, 7, good.len() / 2, good.len() - 1] {
        p.write("bad.graphc", &good[..length]);
        p.fails(&["run", "bad.graphc", "--inputs", text(&x)], 2, &["bad.graphc"]);
    }
}

/// A weight `w` whose numbers are in a file of their own.
fn external_weight(file: &str, dims: &[i64]) -> TensorProto {
    let external = |key: &str, value: String| StringStringEntryProto {
        key: key.to_owned(),
        value,
    };
    let bytes = dims.iter().product::<i64>() * 4;
    TensorProto {
        name: "w".to_owned(),
        dims: dims.to_vec(),
        data_type: 1,
        external_data: vec![
            external("location", file.to_owned()),
            external("length", bytes.to_string()),
        ],
        data_location: 1,
        ..Default::default()
    }
}

/// A model whose weights are in a file of their own, `weights.bin`; returns the model's name.
fn external_weights(p: &Place) -> String {
    let weights = external_weight("weights.bin", &[2, 3]);
    p.write("weights.onnx", model("Add", &["x", "w"], vec![weights]));
    p.write("weights.bin", [0u8; 24]);
    "weights.onnx".to_owned()
}

#[test]
fn models_that_cannot_be_read_are_the_users_mistakes() {
    let p = Place::new();
    let whole = std::fs::read(digits()).expect("readable");
    p.write("cut.onnx", &whole[..whole.len() / 2]);
    p.fails(&["run", "cut.onnx", "--random"], 2, &["cut.onnx"]);
    p.write("text.onnx", "this is not a model\n");
    p.fails(&["run", "text.onnx", "--random"], 2, &["text.onnx"]);
    p.write("empty.onnx", "");
    p.fails(&["run", "empty.onnx", "--random"], 2, &["empty.onnx"]);
    p.fails(&["run", "none.onnx", "--random"], 2, &["none.onnx", "No such file"]);
    p.write("op.onnx", model("Frobnicate", &["x"], vec![]));
    p.fails(&["run", "op.onnx", "--random"], 2, &["Frobnicate", "the_node"]);
    external_weights(&p);
    std::fs::remove_file(p.path("weights.bin")).expect("removed");
    p.fails(&["run", "weights.onnx", "--random"], 2, &["weights.bin"]);
    p.write("weights.bin", [0u8; 10]);
    p.fails(&["run", "weights.onnx", "--random"], 2, &["weights.bin"]);
    p.write("weights.bin", [0u8; 24]);
    p.ok(&["run", "weights.onnx", "--random"]);
    p.write(
        "bad.gir",
        "graph @g stage=import {\n  n0 = input \"x\" : f32[2]\n  n1 = frob n0\n  return n1 as \"y\"\n}\n",
    );
    p.fails(&["opt", "bad.gir"], 2, &["bad.gir:3:", "frob"]);
    p.write(
        "types.gir",
        "graph @g stage=import {\n  n0 = input \"x\" : f32[2]\n  n1 = relu n0 : f32[3]\n  return n1 as \"y\"\n}\n",
    );
    p.fails(&["opt", "types.gir"], 2, &["types.gir", "n1"]);
}

#[test]
fn wrong_inputs_name_the_input_and_what_it_should_be() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let run = |file: &Path, code: i32, says: &[&str]| {
        p.fails(&["run", text(&m), "--inputs", text(file)], code, says);
    };
    run(
        &p.arrays("name.npz", &[("z", f32s(&[1, 3], &[0.0; 3]))]),
        2,
        &["no input \"z\"", "x: f32[n, 3]"],
    );
    run(
        &p.arrays("shape.npz", &[("x", f32s(&[1, 4], &[0.0; 4]))]),
        2,
        &["\"x\"", "axis 1 is 4"],
    );
    run(
        &p.arrays("rank.npz", &[("x", f32s(&[3], &[0.0; 3]))]),
        2,
        &["\"x\"", "rank 1"],
    );
    run(
        &p.arrays("large.npz", &[("x", f32s(&[65, 3], &[0.0; 195]))]),
        2,
        &["\"x\"", "65", "1..=64"],
    );
    let ints = HostTensor::from_i64(DType::I64, [1, 3], &[0; 3]).expect("3");
    run(&p.arrays("type.npz", &[("x", ints)]), 2, &["\"x\"", "i64", "f32"]);
    run(&p.write("junk.npz", "junk"), 2, &["junk.npz"]);
    run(&p.path("absent.npz"), 2, &["absent.npz"]);
    run(&p.write("x.txt", ""), 2, &["x.txt", ".npz"]);
    let x = p.arrays("in.npz", &[("x", f32s(&[1, 3], &[0.0; 3]))]);
    let other = p.arrays("other.npz", &[("nope", f32s(&[1], &[0.0]))]);
    p.fails(
        &["run", text(&m), "--inputs", text(&x), "--expect", text(&other)],
        2,
        &["nope", "\"y\""],
    );
    p.fails(
        &["run", text(&m), "--inputs", text(&x), "-o", "no/such/folder/out.npz"],
        2,
        &["no/such/folder"],
    );
    p.fails(
        &["run", text(&m), "--inputs", text(&x), "-o", "out.xyz"],
        2,
        &["out.xyz", ".npz"],
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let m = text(&m);
    p.fails(
        &["compile", m, "--target", "gfx999", "-o", "a.graphc"],
        2,
        &["gfx999", "gfx90a", "gfx1201", "cpu"],
    );
    p.fails(&["compile", m, "--target", "", "-o", "a.graphc"], 2, &["--target"]);
    p.fails(
        &["compile", m, "--target", "cpu", "-o", "no/such/folder/a.graphc"],
        2,
        &["no/such/folder"],
    );
    p.fails(&["compile", m, "--target", "cpu", "-o", "."], 2, &["."]);
    p.fails(&["compile", m, "--target", "cpu", "--emit", "hip"], 2, &["cpu"]);
    p.fails(&["compile", m, "--traget", "cpu"], 2, &["--traget", "--target"]);
    p.fails(&["frun", m], 2, &["frun", "run"]);
    p.fails(&["run", m], 2, &["--inputs"]);
    p.fails(&["run", m, "--random", "--device", "gfx90a"], 2, &["gfx90a"]);
    p.fails(&["run", m, "--random", "--device", "abacus"], 2, &["abacus", "cpu"]);
    p.fails(&["run", m, "--random", "-O7"], 2, &["-O"]);
    p.fails(&["run", m, "--random", "--dtype", "f31"], 2, &["--dtype"]);
    p.fails(&["run", m, "--random", "--dtype", "i8"], 2, &["--dtype", "f16"]);
    p.fails(&["run", m, "--random", "--size", "n"], 2, &["--size"]);
    p.fails(
        &["run", m, "--random", "--disable", "simplfy"],
        2,
        &["--disable", "simplfy", "meant \"simplify\"", "fold_constants"],
    );
    p.fails(
        &["explain", m, "--disable", "decompose"],
        2,
        &["decompose", "cannot be left out"],
    );
    p.ok(&[
        "run",
        m,
        "--random",
        "--disable",
        "simplify",
        "--disable",
        "merge_contractions",
    ]);
    p.fails(
        &["run", m, "--random", "--size", "rows=3"],
        2,
        &["rows", "no such symbol", "n"],
    );
    p.fails(&["run", m, "--random", "--size", "n=65"], 2, &["n", "1..64"]);
    p.fails(
        &["run", m, "--random", "--shape", "x=[2, 3]"],
        2,
        &["--shape", "--size"],
    );
    let said = p.ok(&["run", m, "--random", "--size", "n=5"]);
    assert!(said.contains("[5, 3]"), "{said}");
    p.fails(&["bench", m, "--runs", "0"], 2, &["--runs"]);
    p.fails(&["opt", m, "--stop-after", "simplyfy"], 2, &["simplyfy", "simplify"]);
    p.fails(&["inspect", m, "--target", "cpu,gfx90a"], 2, &["one target"]);
    let output = p
        .command(&["targets"])
        .env("GRAPHC_WORKERS", "many")
        .output()
        .expect("starts");
    refused(&["targets"], &output, 2, &["GRAPHC_WORKERS=many"]);
}

#[test]
fn a_compiler_that_is_missing_or_dies_is_an_error_that_says_where() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let args = ["compile", text(&m), "--target", "gfx90a", "-o", "a.graphc"];
    let with = |rocm: &Path| p.command(&args).env("GRAPHC_ROCM", rocm).output().expect("starts");
    let nowhere = p.path("nowhere");
    refused(&args, &with(&nowhere), 2, &["hiprtc", text(&nowhere)]);
    assert!(!p.path("a.graphc").exists(), "no artifact without its kernels");
    // A compiler that kills its process.
    let source = p.write(
        "die.c",
        "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n",
    );
    let library = p.path("libhiprtc.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    if !built.is_ok_and(|s| s.success()) {
        println!("skipped: no C compiler to make a library that dies");
        return;
    }
    refused(&args, &with(&library), 1, &["compile worker", "SIGABRT"]);
    assert!(!p.path("a.graphc").exists(), "no artifact without its kernels");
    // A file that is no library.
    let junk = p.write("junk.so", "junk");
    let output = with(&junk);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{output:?}");
    refused(&args, &output, output.status.code().unwrap_or_default(), &["junk.so"]);
}

/// A hint is an estimate: a model whose sizes do not work out there runs at sizes where they do.
#[test]
fn a_hint_that_is_too_small_is_no_error_until_it_is_run() {
    let p = Place::new();
    let m = p.write(
        "top.gir",
        "graph @top stage=import {
  symbol n: 1..64 hint 2
  x = input \"x\" : f32[1, n]
  v = top_k x {axis=1, k=3}
  return v as \"v\", v.1 as \"i\"
}
",
    );
    let x = p.arrays("x.npz", &[("x", f32s(&[1, 5], &[1.0, 5.0, 2.0, 4.0, 3.0]))]);
    p.ok(&["run", text(&m), "--inputs", text(&x), "-o", "out.npz"]);
    let out = arrays::read(&p.path("out.npz")).expect("written");
    assert_eq!(
        (out["v"].to_f32(), out["i"].to_i64()),
        (vec![5.0, 4.0, 3.0], vec![1, 3, 4])
    );
    p.ok(&["compile", text(&m), "--target", "cpu", "-o", "top.graphc"]);
    p.ok(&["run", "top.graphc", "--inputs", text(&x)]);
    let small = p.arrays("small.npz", &[("x", f32s(&[1, 2], &[1.0, 5.0]))]);
    p.fails(
        &["run", text(&m), "--inputs", text(&small)],
        2,
        &["k of top_k at", "needs 3 <= n", "n=2"],
    );
}

/// What became of a concat that has no kernel.
#[test]
fn explain_says_which_parts_are_stored_in_their_places() {
    let p = Place::new();
    let m = p.write(
        "parts.gir",
        "graph @parts stage=import {\n  x = input \"x\" : f32[4, 6]\n  a = softmax x {axis=1}\n  b = reduce x {op=max, axes=[1], keep_dims}\n  \
         c = concat a, b {axis=1}\n  return c as \"y\"\n}\n",
    );
    let text = p.ok(&["explain", text(&m), "--target", "gfx90a"]);
    assert!(
        text.contains("stored as part 0 of") && text.contains("stored as part 1 of"),
        "{text}"
    );
}

/// Sizes that no machine has memory for are the user's to mend, and no abort.
#[test]
fn sizes_beyond_all_memory_are_refused() {
    let p = Place::new();
    let m = p.write(
        "wide.gir",
        "graph @wide stage=import {\n  symbol n: 1..99999999999999 hint 4\n  x = input \"x\" : f32[n]\n  y = broadcast x {shape=[70368744177664, n]}\n  \
         z = exp y\n  return z as \"z\"\n}\n",
    );
    let x = p.arrays("x.npz", &[("x", f32s(&[1], &[1.0]))]);
    p.fails(
        &["run", text(&m), "--inputs", text(&x)],
        2,
        &["a run with n=1 takes 281474976710916 bytes", "smaller sizes or inputs"],
    );
    let x = p.arrays("y.npz", &[("x", f32s(&[40_000], &[1.0; 40_000]))]);
    p.fails(&["run", text(&m), "--inputs", text(&x)], 2, &["does not fit 64 bits"]);
}

/// What no kernel checks: positions and sizes that only a run decides.
#[test]
fn sizes_at_which_a_model_has_no_meaning_are_refused() {
    let p = Place::new();
    for (name, body, wrong, right, says) in [
        (
            "slice",
            "y = slice x {starts=[0, 0, 3], sizes=[1, 4, 2], steps=[1, 1, 1]}",
            4,
            5,
            "needs 4 <= n - 1",
        ),
        (
            "conv",
            "w = constant random(seed=1) : f32[2, 4, 7]\n  y = conv x, w",
            5,
            7,
            "needs 0 <= n - 6",
        ),
        (
            "pad",
            "y = pad x {low=[0, 0, 3], high=[0, 0, 0], mode=reflect}",
            3,
            4,
            "needs 3 <= n - 1",
        ),
    ] {
        let m = p.write(
            &format!("{name}.gir"),
            format!(
                "graph @{name} stage=import {{\n  symbol n: 1..64 hint 8\n  x = input \"x\" : f32[1, 4, n]\n  {body}\n  \
                 return y as \"y\"\n}}\n"
            ),
        );
        let artifact = p.path(&format!("{name}.graphc"));
        p.ok(&["compile", text(&m), "--target", "cpu", "-o", text(&artifact)]);
        for model in [&m, &artifact] {
            let x = |n: usize| p.arrays(&format!("{name}{n}.npz"), &[("x", f32s(&[1, 4, n], &vec![1.0; 4 * n]))]);
            p.ok(&["run", text(model), "--inputs", text(&x(right))]);
            p.fails(
                &["run", text(model), "--inputs", text(&x(wrong))],
                2,
                &[name, says, &format!("n={wrong}")],
            );
        }
    }
}
