//! `graphc quantize`: files that other verbs read, the same bytes from two processes, reports as text and JSON.

use graphc::frontend::onnx::proto::TensorProto;
use graphc::ir::HostTensor;
use serde_json::Value;

use crate::mistakes::Rows;
use crate::place::{Place, digits, digits_file, f32s, text};

/// A graph of one product by a constant, large enough to be quantised.
pub const PRODUCT: &str = "graph @product stage=import {
  x = input \"x\" : f32[2, 64]
  w = constant random(seed=1) : f32[64, 64]
  y = contract x, w
  return y as \"y\"
}
";

/// The weight of a small `MatMul`.
pub fn weight() -> TensorProto {
    TensorProto {
        name: "w".to_owned(),
        dims: vec![3, 3],
        data_type: 1,
        float_data: (0..9).map(|i| i as f32 / 4.0 - 1.0).collect(),
        ..TensorProto::default()
    }
}

/// A sample of the product's input.
fn sample(seed: usize) -> HostTensor {
    let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
    f32s(&[2, 64], &(0..128).map(value).collect::<Vec<_>>())
}

#[test]
fn a_quantised_file_runs_and_is_the_same_from_two_processes() {
    let p = Place::new();
    let (images, labels) = (digits_file("test.npz"), digits_file("labels.npz"));
    for (scheme, least) in [
        ("static-int8", 353),
        ("weights-int4", 353),
        ("dynamic-int8", 353),
        ("static-fp8", 350),
        ("dynamic-fp8", 350),
    ] {
        let made = |name: &str, threads: &str| {
            let said = p.ok(&[
                "quantize",
                &digits(),
                "--scheme",
                scheme,
                "--calibrate",
                &images,
                "--threads",
                threads,
                "-o",
                name,
                "--save-recipe",
                &format!("{name}.json"),
            ]);
            let read = |name: &str| std::fs::read(p.path(name)).expect("written");
            (said, read(name), read(&format!("{name}.json")))
        };
        let (said, model, recipe) = made("q.onnx", "2");
        assert_eq!(made("r.onnx", "2"), (said.clone(), model.clone(), recipe), "{scheme}");
        assert!(said.contains("layers quantised") && said.contains("dB"), "{said}");
        assert!(said.contains("of 360 rows have the same largest element"), "{said}");
        let run = p.ok(&["run", "q.onnx", "--inputs", &images, "--labels", &labels]);
        let right: usize = run
            .split("accuracy: ")
            .nth(1)
            .and_then(|t| t.split(' ').next())
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("{run}"));
        assert!(right >= least, "{scheme}: {run}");
        // The recipe alone makes the same file.
        p.ok(&["quantize", &digits(), "--recipe", "q.onnx.json", "-o", "s.onnx"]);
        assert_eq!(std::fs::read(p.path("s.onnx")).expect("written"), model, "{scheme}");
        p.fails(
            &["quantize", "q.onnx", "--scheme", "weights-int8", "--exclude", "zz"],
            2,
            &[match scheme {
                "weights-int4" => "no layer is named",
                _ => "quantised already",
            }],
        );
    }
}

#[test]
fn graphs_and_artifacts_are_written_too() {
    let p = Place::new();
    p.write("product.gir", PRODUCT);
    std::fs::create_dir(p.path("samples")).expect("a folder");
    for seed in 0..3 {
        p.arrays(&format!("samples/{seed}.npz"), &[("x", sample(seed))]);
    }
    p.arrays("x.npz", &[("x", sample(1))]);
    let quantize = |out: &str, more: &[&str]| {
        let args = [
            "quantize",
            "product.gir",
            "--scheme",
            "static-int8",
            "--calibrate",
            "samples",
            "-o",
            out,
        ];
        p.json(&[&args[..], more, &["--format", "json"]].concat())
    };
    let report = quantize("q.gir", &[]);
    assert_eq!(
        (&report["samples"], &report["layers"][0]["name"]),
        (&3.into(), &"product.gir:4".into())
    );
    assert_eq!(report["layers"][0]["bytes_before"], 64 * 64 * 4);
    assert_eq!(report["layers"][0]["bytes_after"], 64 * 64 + 64 * 4);
    let error = report["outputs"][0]["relative"].as_f64().expect("a number");
    assert!(error > 0.0 && error < 0.02, "{report}");
    assert!(
        report["layers"][0]["decibels"].as_f64().expect("a number") > 34.0,
        "{report}"
    );
    quantize("q.graphc", &["--target", "cpu"]);
    let outputs = ["q.gir", "q.graphc"].map(|model| {
        let out = format!("{model}.npz");
        p.ok(&["run", model, "--inputs", "x.npz", "-o", &out]);
        std::fs::read(p.path(&out)).expect("written")
    });
    assert_eq!(outputs[0], outputs[1]);
    let said = p.ok(&["explain", "q.gir"]);
    assert!(said.contains("1x integer_product"), "{said}");
    // Times before and after, by target.
    let args = [
        "quantize",
        "product.gir",
        "--scheme",
        "weights-int8",
        "--target",
        "gfx90a,gfx1100,cpu",
    ];
    let report = p.json(&[&args[..], &["--format", "json"]].concat());
    let predicted = report["predicted"].as_array().expect("a list");
    let targets: Vec<&Value> = predicted.iter().map(|p| &p["target"]).collect();
    assert_eq!(targets, ["gfx90a", "gfx1100", "cpu"]);
    for p in predicted {
        let [before, after] = ["before_us", "after_us"].map(|at| p[at].as_f64().expect("a number"));
        assert!(after > 0.0 && after < before, "a quarter of the weight's bytes: {p}");
        assert_eq!(p["by"], "roofline");
        assert_eq!(p["launches_before"], p["launches_after"]);
    }
    let said = p.ok(&args);
    assert!(said.contains("predicted times of a run\n  gfx90a: "), "{said}");
    // Made-up data are said to be made up.
    let args = [
        "quantize",
        "product.gir",
        "--scheme",
        "static-int8",
        "--calibrate",
        "random",
    ];
    let output = p.run(&args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("good for timing alone"),
        "{said}"
    );
    // Layers that stay are named with their reason.
    let kept: Value = p.json(&[
        "quantize",
        &digits(),
        "--scheme",
        "weights-int8",
        "--exclude",
        "/7*",
        "--format",
        "json",
    ]);
    let reasons: Vec<&str> = kept["kept"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|k| k["reason"].as_str())
        .collect();
    assert!(reasons.contains(&"it is excluded"), "{kept}");
    assert_eq!(kept["samples"], 0);
}

#[test]
fn one_flag_stores_weights_in_fewer_bits() {
    let p = Place::new();
    let path = p.write("product.gir", PRODUCT);
    p.arrays("x.npz", &[("x", sample(4))]);
    for (dtype, note, rtol) in [
        ("int8", "i8, a scale a column", "0.05"),
        ("int4", "u4 in groups of 64", "0.5"),
        ("f16+int4", "u4 in groups of 64", "0.5"),
        ("fp8", "f8e4m3fn, a scale a column", "0.1"),
        ("f16+fp8", "f8e4m3fn, a scale a column", "0.1"),
    ] {
        let said = p.ok(&["explain", text(&path), "--dtype", dtype]);
        assert!(said.contains(&format!("quantized_weight: {note}")), "{dtype}: {said}");
        p.ok(&["run", text(&path), "--inputs", "x.npz", "-o", "y.npz"]);
        p.ok(&[
            "run",
            text(&path),
            "--inputs",
            "x.npz",
            "--dtype",
            dtype,
            "--expect",
            "y.npz",
            "--rtol",
            rtol,
            "--atol",
            "0.5",
        ]);
        p.ok(&[
            "compile",
            text(&path),
            "--target",
            "cpu",
            "--dtype",
            dtype,
            "-o",
            "a.graphc",
        ]);
        let facts = p.ok(&["inspect", "a.graphc"]);
        assert!(
            facts.contains(match dtype {
                "int8" => "i8",
                "fp8" | "f16+fp8" => "f8e4m3fn",
                _ => "u4",
            }),
            "{dtype}: {facts}"
        );
    }
    let said = p.ok(&["explain", &digits(), "--dtype", "int8"]);
    assert!(said.contains("weight_kept: it has 640 weights"), "{said}");
}

/// Rows of the table of mistakes.
pub fn mistakes(rows: &mut Rows) {
    let weights = "--scheme weights-int8";
    for (command, says) in [
        ("product.gir", &["--scheme"][..]),
        ("product.gir --scheme int8", &["--scheme", "weights-int8"]),
        (
            "product.gir --scheme static-int8",
            &["--calibrate FILE.npz", "random", "dynamic-int8"],
        ),
        ("product.gir --scheme weights-int4 --rounding gptq", &["--calibrate"]),
        ("product.gir --scheme weights-int8 --max-error 0.1", &["--calibrate"]),
        (
            "product.gir --scheme weights-int8 --max-error nan",
            &["--max-error", "finite"],
        ),
        ("product.gir --scheme weights-int8 --max-error=-1", &["--max-error"]),
        (
            "product.gir --scheme weights-int4 --group 48",
            &["groups of 48", "(64)", "such as 64"],
        ),
        ("product.gir --scheme weights-int4 --group 0", &["--group"]),
        ("product.gir --scheme weights-int4 --group x", &["--group"]),
        (
            "product.gir --scheme static-int8 --group 32",
            &["--group", "weights-int8, weights-int4 and weights-fp8"],
        ),
        ("product.gir --scheme weights-int4 --per-tensor", &["--per-tensor"]),
        (
            "product.gir --scheme weights-int8 --per-tensor --group 32",
            &["--per-tensor"],
        ),
        (
            "product.gir --scheme weights-int8 --method mse",
            &["--method", "static-int8"],
        ),
        (
            "product.gir --scheme static-fp8 --calibrate random --method mse",
            &["--method", "min-max or percentile"],
        ),
        (
            "product.gir --scheme weights-fp8 --rounding gptq --calibrate random",
            &["--rounding gptq", "to the nearest"],
        ),
        (
            "product.gir --scheme static-int8 --rounding awq --calibrate random",
            &["--rounding awq", "weights-int4 and weights-int8"],
        ),
        ("product.gir --scheme weights-int8 --emulate", &["--target"]),
        (
            "product.gir --scheme weights-int8 --emulate --target cpu",
            &["cpu is no GPU", "--emulate"],
        ),
        (
            "product.gir --scheme dynamic-fp8 --group 32",
            &["--group", "weights-fp8"],
        ),
        (
            "product.gir --scheme static-fp8",
            &["--calibrate FILE.npz", "dynamic-fp8"],
        ),
        (
            "product.gir --scheme static-int8 --method best",
            &["--method", "entropy"],
        ),
        (
            "product.gir --scheme static-int8 --percentile 99",
            &["--percentile", "--method percentile"],
        ),
        (
            "product.gir --scheme static-int8 --method percentile --percentile 5",
            &["--percentile", "above 50"],
        ),
        (
            "product.gir --scheme weights-int8 --exclude product.gir:9",
            &["\"product.gir:9\"", "meant \"product.gir:4\""],
        ),
        (
            "product.gir --scheme weights-int8 --exclude zz*",
            &["\"zz*\"", "the layers are \"product.gir:4\""],
        ),
        (
            "product.gir --scheme weights-int8 --exclude *",
            &["no layer is left", "it is excluded"],
        ),
        (
            "product.gir --scheme static-int8 --calibrate nothing.npz",
            &["nothing.npz"],
        ),
        (
            "product.gir --scheme static-int8 --calibrate folder",
            &["folder", ".npz"],
        ),
        (
            "product.gir --scheme static-int8 --calibrate y.npz",
            &["y.npz", "no array \"x\""],
        ),
        (
            "product.gir --scheme static-int8 --calibrate rank.npz",
            &["\"x\"", "f32[3]"],
        ),
        ("product.gir --scheme static-int8 --calibrate cut.onnx", &["cut.onnx"]),
        ("product.gir --recipe nothing.json", &["nothing.json"]),
        (
            "product.gir --recipe product.gir",
            &["--recipe product.gir", "--save-recipe"],
        ),
        ("product.gir --recipe digits.json", &["--recipe digits.json"]),
        ("product.gir --recipe other.json", &["no layer is named \"gone\""]),
        (
            "product.gir --recipe recipe.json --scheme weights-int8",
            &["--recipe", "--scheme"],
        ),
        ("small.gir --scheme weights-int8", &["no product or convolution"]),
        ("good.onnx --scheme weights-int4", &["no product or convolution"]),
        ("a.graphc --scheme weights-int8", &["a.graphc is compiled already"]),
        ("nothing.onnx --scheme weights-int8", &["nothing.onnx"]),
        ("cut.onnx --scheme weights-int8", &["cut.onnx"]),
        (
            "product.onnx --scheme weights-int8",
            &["no layer is left", "fewer than 4096"],
        ),
    ] {
        rows.add(format!("quantize {command}"), 2, says);
    }
    for (output, says) in [
        ("product.gir", &["would replace"][..]),
        ("out.onnx", &["no ONNX nodes", ".gir"]),
        ("out.txt", &["out.txt", ".onnx, .gir or .graphc"]),
        ("out.graphc", &["--target"]),
        ("out.graphc --target gfx999", &["gfx999"]),
        ("nowhere/out.gir", &["nowhere/out.gir"]),
        ("folder", &["folder"]),
        ("out.gir --save-recipe nowhere/r.json", &["nowhere/r.json"]),
        ("out.gir --save-recipe product.gir", &["would replace"]),
    ] {
        rows.add(format!("quantize product.gir {weights} -o {output}"), 2, says);
    }
    rows.add(
        "quantize product.gir --recipe recipe.json --save-recipe recipe.json",
        2,
        &["recipe.json", "would replace"],
    );
}
