//! `graphc inspect --emulate`: what one run on an emulated GPU counted.

use std::ffi::OsString;

use graphc::driver::{self, BuildOptions, Model};
use graphc::emulate::{self, Emulator};
use graphc::frontend::onnx::ImportOptions;
use graphc::ir::target::Platform;
use graphc::ir::{DType, HostTensor};
use graphc::options::Settings;
use graphc::passes::OptLevel;
use serde_json::Value;

use crate::place::{Place, SMALL, compiler, digits, f32s, text};

/// A copy with a sign change, whose traffic is known, and a product, which goes through LDS.
const TWO: &str = "graph @two stage=import {
  symbol n: 1..1024 hint 16
  x = input \"x\" : f32[n, 256]
  w = constant random(seed=3) : f32[256, 32]
  a = neg x
  b = contract x, w
  return a as \"a\", b as \"b\"
}
";

fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{path} is not a count in {value:#}"))
}

fn kernel<'a>(facts: &'a Value, name: &str) -> &'a Value {
    let kernels = facts["kernels"].as_array().expect("a list");
    let found = kernels
        .iter()
        .find(|k| k["name"].as_str().is_some_and(|n| n.starts_with(name)));
    &found.unwrap_or_else(|| panic!("no kernel {name}"))["emulated"]
}

#[test]
fn a_run_is_counted_kernel_by_kernel() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("two.gir", TWO);
    for (target, wave) in [("gfx90a", 64), ("gfx1201", 32)] {
        let args = ["inspect", text(&m), "--target", target, "--emulate", "--no-libraries"];
        let facts = p.json(&[&args[..], &["--format", "json"]].concat());
        // Sixteen rows, the hint of n: every element is read once and written once, and no piece is touched in part.
        let copy = kernel(&facts, "neg");
        assert_eq!(number(copy, "/global_load_bytes"), 16 * 256 * 4, "{target}");
        assert_eq!(number(copy, "/global_store_bytes"), 16 * 256 * 4, "{target}");
        assert_eq!(number(copy, "/global_transactions"), 2 * 16 * 256 * 4 / 64, "{target}");
        assert_eq!(copy["coalescing"].as_f64(), Some(1.0), "{target}");
        assert_eq!(
            (number(copy, "/lds_accesses"), number(copy, "/barriers")),
            (0, 0),
            "{target}"
        );
        assert!(
            number(copy, "/lane_instructions") <= number(copy, "/instructions") * wave,
            "{target}"
        );
        let product = kernel(&facts, "contract");
        for field in ["/lds_accesses", "/by_class/valu", "/by_class/lds", "/occupancy"] {
            assert!(number(product, field) > 0, "{target}: {field}");
        }
        assert_eq!(number(product, "/global_store_bytes"), 16 * 32 * 4, "{target}");
        assert!(
            number(product, "/occupancy") <= number(product, "/occupancy_by_registers"),
            "{target}"
        );
        // The total is the sum of the kernels, and the classes are all instructions.
        let total = &facts["emulated"];
        for field in [
            "/instructions",
            "/waves",
            "/global_load_bytes",
            "/lds_bank_conflicts",
            "/by_class/valu",
        ] {
            assert_eq!(
                number(total, field),
                number(copy, field) + number(product, field),
                "{target}: {field}"
            );
        }
        let classes = product["by_class"].as_object().expect("classes");
        let sum: u64 = classes.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, number(product, "/instructions"), "{target}");
        assert_eq!(number(total, "/launches"), 2, "{target}");
        // Waves as the text shows them are those of the kernels.
        let said = p.ok(&args);
        assert!(said.contains("coalescing") && said.contains("occupancy"), "{said}");
        assert!(said.contains(&format!("{} waves", number(total, "/waves"))), "{said}");
    }
}

#[test]
fn given_inputs_say_how_large_the_run_is() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("small.gir", SMALL);
    let x = p.arrays("in.npz", &[("x", f32s(&[7, 3], &[0.5; 21]))]);
    let stored = |more: &[&str]| {
        let args = [
            "inspect",
            text(&m),
            "--target",
            "gfx1100",
            "--emulate",
            "--format",
            "json",
        ];
        number(&p.json(&[&args[..], more].concat()), "/emulated/global_store_bytes")
    };
    assert_eq!(stored(&[]), 4 * 3 * 4, "the hint");
    assert_eq!(stored(&["--inputs", text(&x)]), 7 * 3 * 4, "what is given");
    assert_eq!(stored(&["--size", "n=5"]), 5 * 3 * 4, "what is fixed");
    let facts = p.json(&["inspect", text(&m), "--target", "gfx1100", "--format", "json"]);
    assert!(facts.get("emulated").is_none(), "nothing is run unless asked: {facts}");
    let wrong = p.arrays(
        "wrong.npz",
        &[(
            "x",
            HostTensor::from_i64(DType::I64, [7, 3], &[1; 21]).expect("21 numbers"),
        )],
    );
    let args = [
        "inspect",
        text(&m),
        "--target",
        "gfx1100",
        "--emulate",
        "--inputs",
        text(&wrong),
    ];
    p.fails(&args, 2, &["\"x\"", "i64", "f32"]);
}

#[test]
fn what_cannot_be_emulated_is_said() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    p.fails(&["inspect", text(&m), "--emulate"], 2, &["--target"]);
    p.fails(
        &["inspect", text(&m), "--target", "cpu", "--emulate"],
        2,
        &["cpu", "gfx90a"],
    );
    p.fails(
        &["inspect", text(&m), "--target", "gfx90a", "--inputs", "x.npz"],
        2,
        &["--emulate"],
    );
    if compiler(&p) {
        let args = [
            "inspect",
            &digits(),
            "--target",
            "gfx90a",
            "--emulate",
            "--inputs",
            "no.npz",
        ];
        p.fails(&args, 2, &["no.npz"]);
    }
}

/// A kernel that leaves an element out: nothing wrote it, whatever the memory holds there.
#[test]
fn an_output_with_a_hole_is_said() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("small.gir", SMALL);
    let Ok(Model::Graph(graph)) = driver::load(&m, &ImportOptions::default()) else {
        panic!("a graph")
    };
    let worker = |verb: &str| [env!("CARGO_BIN_EXE_graphc"), verb].map(OsString::from);
    let settings = Settings {
        cache_dir: Some(p.path("cache")),
        ..Settings::from_env().expect("valid")
    };
    let compiler = driver::compiler(&settings, Some(&worker("__compile-worker")), [Platform::Hip]).expect("it is here");
    let run = |hole: bool| {
        let options = BuildOptions::new(vec!["gfx90a".parse().expect("a target")], OptLevel::O2);
        let mut program = driver::build(&graph, &options).expect("builds").program;
        for source in program.variants[0].sources.values_mut().filter(|_| hole) {
            let text = source.text.replace("out[at_0] =", "if (at_0 != 4) out[at_0] =");
            assert_ne!(text, source.text);
            source.text = text;
        }
        driver::compile(&mut program, &compiler, &|_| {}).expect("compiles");
        let disassembler = emulate::disassembler(&settings, Some(&worker("__disassembler"))).expect("it is here");
        let emulator = Emulator::load(&program, 0, &disassembler, emulate::Options::default()).expect("loads");
        let inputs = [("x".to_owned(), f32s(&[2, 3], &[1.0; 6]))].into_iter().collect();
        emulator.run(&inputs).map(|outcome| outcome.outputs["y"].to_f32())
    };
    assert_eq!(run(false).expect("runs"), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    let error = run(true).expect_err("a hole").to_string();
    assert!(
        error.contains("output \"y\"") && error.contains("byte 16 of its 24"),
        "{error}"
    );
}
