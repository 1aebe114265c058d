//! What people read: the graph without its weights, sources that they can compile, explanations, and what an artifact
//! holds.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use graphc::driver;
use graphc::ir::target::Platform;
use graphc::options::Settings;
use graphc::runtime::compile::{CompileRequest, Compiler};

use crate::place::{Place, SMALL, compiler, digits, f32s, repository, text};

/// A product with weights that are too many to read.
const LARGE: &str = "graph @large stage=import {
  x = input \"x\" : f32[2, 64]
  w = constant random(seed=1) : f32[64, 64]
  b = constant splat(0.5) : f32[64, 64]
  y = contract x, w
  z = contract y, b
  return z as \"z\"
}
";

#[test]
fn large_constants_are_elided_and_such_text_is_not_read_back() {
    let p = Place::new();
    let m = p.write("large.gir", LARGE);
    for stage in ["graph", "core"] {
        let emit = ["compile", text(&m), "--target", "cpu", "--emit", stage];
        let short = p.ok(&emit);
        assert!(
            short.len() < 2000 && short.contains("constant elided : f32[64, 64]"),
            "{stage}: {short}"
        );
        assert!(short.contains("splat(0.5)"), "{stage}: {short}");
        let whole = p.ok(&[&emit[..], &["--weights"]].concat());
        assert!(whole.len() > 64 * 64 * 4 && !whole.contains("elided"), "{stage}");
        p.write("short.gir", &short);
        p.fails(&["opt", "short.gir"], 2, &["short.gir:", "left out", "--weights"]);
        if stage == "graph" {
            p.write("whole.gir", &whole);
            p.ok(&["opt", "whole.gir"]);
        }
    }
    p.fails(
        &["compile", text(&m), "--target", "cpu", "-o", "a", "--weights"],
        2,
        &["--weights", "--emit"],
    );
}

#[test]
fn emit_hip_writes_a_folder_that_a_compiler_takes() {
    let p = Place::new();
    p.ok(&["compile", &digits(), "--target", "gfx90a", "--emit", "hip", "-o", "one"]);
    let read = |name: &str| std::fs::read_to_string(p.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let launches: serde_json::Value = serde_json::from_str(&read("one/launches.json")).expect("JSON");
    let script = read("one/build.sh");
    let steps = launches["steps"].as_array().expect("a list");
    let kernels: Vec<&str> = steps.iter().filter_map(|s| s["file"].as_str()).collect();
    assert!(!kernels.is_empty());
    for (step, file) in steps.iter().filter(|s| s["file"].is_string()).zip(&kernels) {
        let source = read(&format!("one/{file}"));
        let entry = step["launch"].as_str().expect("a name");
        assert!(
            source.contains("#include <hip/hip_runtime.h>") && source.contains(&format!("{entry}(")),
            "{file}"
        );
        let line = script
            .lines()
            .find(|l| l.contains(&format!(" {file} ")))
            .expect("a line of the script");
        assert!(line.contains("hipcc} --genco --offload-arch=gfx90a -O3"), "{line}");
        let sizes = step["launch_sizes"].as_array().expect("a list");
        assert!(
            sizes[0]["grid"][0].as_u64() > Some(0)
                && sizes[0]["block"][0].as_u64() > Some(0)
                && sizes[0]["lds"].is_u64(),
            "{step:#}"
        );
        assert!(!step["arguments"].as_array().expect("a list").is_empty());
        // Every header that it includes is there.
        for name in source.lines().filter_map(|l| l.strip_prefix("#include \"")) {
            read(&format!("one/{}", name.trim_end_matches('"')));
        }
    }
    let ran = Command::new("sh")
        .arg("build.sh")
        .env("HIPCC", "echo")
        .current_dir(p.path("one"))
        .output();
    let said = String::from_utf8(ran.expect("sh").stdout).expect("text");
    assert_eq!(said.lines().count(), script.matches("--genco").count());
    compiles(&p, &p.path("one"), &kernels);
    // The same twice, a folder a target, and no file in its place.
    p.ok(&[
        "compile",
        &digits(),
        "--target",
        "gfx90a,gfx1100",
        "--emit",
        "hip",
        "-o",
        "two",
    ]);
    assert_eq!(read("two/gfx90a/launches.json"), read("one/launches.json"));
    assert!(read("two/gfx1100/build.sh").contains("--offload-arch=gfx1100"));
    p.write("file", "mine");
    let digits = digits();
    let emit = |target: &str, to: &str, says: &[&str]| {
        p.fails(
            &["compile", &digits, "--target", target, "--emit", "hip", "-o", to],
            2,
            says,
        );
    };
    emit("gfx90a", "file", &["file", "writes a folder"]);
    emit("cpu", "three", &["cpu", "no HIP source"]);
    assert_eq!(read("file"), "mine");
    assert!(!p.path("three").exists());
}

/// The files as they are, and nothing else, go through the real hiprtc.
fn compiles(p: &Place, folder: &Path, kernels: &[&str]) {
    if !compiler(p) {
        return;
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("written");
    let names = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("readable").file_name());
    let names = names
        .map(|n| n.to_string_lossy().into_owned())
        .filter(|n| n.ends_with(".hip.h"));
    let headers: Vec<(String, String)> = names.map(|n| (n.clone(), read(&n))).collect();
    let settings = Settings::read(|name| (name == "GRAPHC_CACHE").then(|| "off".into())).expect("valid");
    let worker = [OsString::from(env!("CARGO_BIN_EXE_graphc")), "__compile-worker".into()];
    let compiler = driver::compiler(&settings, Some(&worker), [Platform::Hip]).expect("hiprtc");
    for file in kernels {
        let request = CompileRequest {
            name: (*file).to_owned(),
            source: read(file),
            headers: headers.clone(),
            arch: "gfx90a".to_owned(),
            options: vec!["-O3".to_owned(), "-std=c++17".to_owned()],
        };
        compiler.compile(&request).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

#[test]
fn explain_groups_equal_layers_and_keeps_proofs_for_who_asks() {
    let p = Place::new();
    let layer = |from: &str, i: usize| {
        format!("  r{i} = contract {from}, w\n  e{i} = softmax r{i} {{axis=1}}\n  l{i} = relu e{i}\n")
    };
    let layers: String = (0..12)
        .map(|i| layer(&if i == 0 { "x".to_owned() } else { format!("l{}", i - 1) }, i))
        .collect();
    let m = p.write(
        "deep.gir",
        format!(
            "graph @deep stage=import {{\n  x = input \"x\" : f32[8, 64]\n  w = constant random(seed=1) : f32[64, 64]\n{layers}  \
             return l11 as \"y\"\n}}\n"
        ),
    );
    let args = ["explain", text(&m), "--target", "gfx90a", "--no-libraries"];
    let said = p.ok(&args);
    assert!(said.contains("12x contract") && said.lines().count() < 40, "{said}");
    assert!(said.contains("->"), "what to do is said: {said}");
    let bert = repository("tests/data/exports/bert.ts.onnx");
    let args = ["explain", text(&bert), "--target", "gfx90a"];
    let (plain, proofs) = (p.ok(&args), p.ok(&[&args[..], &["--proofs"]].concat()));
    assert!(plain.contains("--proofs") && !plain.contains(" by "), "{plain}");
    assert!(proofs.contains(" by ") && proofs.len() > plain.len(), "{proofs}");
    let json = |more: &[&str]| p.json(&[&args[..], &["--format", "json"], more].concat()).to_string();
    assert!(!json(&[]).contains("\"proof\"") && json(&["--proofs"]).contains("\"proof\""));
    assert!(json(&[]).contains("\"advice\""));
}

#[test]
fn inspect_says_what_a_model_and_an_artifact_hold() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let said = p.ok(&["inspect", text(&m)]);
    for part in [
        "size n: 1..64, hint 4",
        "input x: f32[n, 3]",
        "output y: f32[n, 3]",
        "weights: 1 of f32, 12 B",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let facts = p.json(&["inspect", text(&m), "--format", "json"]);
    assert_eq!(facts["inputs"][0]["shape"], serde_json::json!(["n", "3"]));
    assert_eq!(
        (&facts["outputs"][0]["dtype"], &facts["sizes"][0]["max"]),
        (&"f32".into(), &64.into())
    );
    assert!(facts["artifact"].is_null() && facts["launches"] == 1, "{facts:#}");
    if !compiler(&p) {
        return;
    }
    p.ok(&["compile", text(&m), "--target", "gfx90a,gfx1100,cpu", "-o", "a.graphc"]);
    let said = p.ok(&["inspect", "a.graphc"]);
    let version = format!("an artifact of graphc {} in format", env!("CARGO_PKG_VERSION"));
    for part in [
        &version,
        "gfx90a, gfx1100, cpu",
        "\ngfx90a: 1 launches",
        "\ngfx1100: 1 launches",
        "\ncpu: 1 launches",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let facts = p.json(&["inspect", "a.graphc", "--format", "json"]);
    assert_eq!(facts["targets"], serde_json::json!(["gfx90a", "gfx1100", "cpu"]));
    assert_eq!(facts["variants"][1]["target"], "gfx1100");
    assert_eq!(facts["artifact"]["graphc"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_lone_npy_serves_a_model_with_one_input() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    p.arrays("images.npy", &[("any", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    p.arrays("scores.npy", &[("any", f32s(&[1, 3], &[1.0, 0.0, 6.0]))]);
    let said = p.ok(&["run", text(&m), "--inputs", "images.npy", "--expect", "scores.npy"]);
    assert!(said.contains("y: ok"), "{said}");
    p.ok(&["bench", text(&m), "--inputs", "images.npy", "--runs", "1"]);
    p.ok(&["bench", text(&m), "--inputs", "images.npy", "--runs", "1", "--resident"]);
    // Of two inputs it could be either.
    let two = p.write(
        "two.gir",
        "graph @two stage=import {\n  a = input \"a\" : f32[3]\n  b = input \"b\" : f32[3]\n  y = add a, b\n  return y as \"y\"\n}\n",
    );
    p.fails(
        &["run", text(&two), "--inputs", "images.npy"],
        2,
        &["no input \"images\"", "a: f32[3], b: f32[3]"],
    );
    // An array is given once.
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[0.0; 3]))]);
    let args = ["run", text(&m), "--inputs", "x.npz", "--inputs", "x.npz"];
    p.fails(&args, 2, &["x.npz", "\"x\"", "leave one of them out"]);
}
