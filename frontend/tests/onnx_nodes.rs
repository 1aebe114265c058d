//! ONNX's own node tests (see `scripts/py/onnx_node_cases.py`): each is imported, evaluated, and compared.
//!
//! A case may be refused with a typed error; the ops for which that happens are listed, so that a newly refused one
//! fails the test. Whatever is imported must give the expected values.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cases::{Case, cases, host};
use graphc_frontend::onnx::{ImportError, ImportOptions, import_model, read_bytes};

enum Outcome {
    Right,
    Refused(String),
    /// Outputs of the right types and shapes have other values.
    Differs(String),
    Wrong(String),
}

fn run(case: &Case) -> Outcome {
    let model = match read_bytes(&case.name, case.model.clone().into(), None) {
        Ok(model) => model,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let (Some(inputs), Some(expected)) = (host(&case.inputs), host(&case.outputs)) else {
        return Outcome::Refused("an element type that graphc does not have".to_owned());
    };
    // Many cases pass as inputs what models have as constants: shapes, axes, sizes. They are made constants here.
    let mut model = model;
    let as_given = import_model(&model, &ImportOptions::default());
    let graph = match as_given {
        Err(ImportError::Node(error)) if error.to_string().contains("depends on data") => {
            for tensor in &case.inputs {
                model.graph.initializer.push(tensor.clone());
            }
            import_model(&model, &ImportOptions::default())
        }
        other => other,
    };
    let graph = match graph {
        Ok(graph) => graph,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    if let Err(error) = ir::graph::verify::verify(&graph) {
        return Outcome::Wrong(error.to_string());
    }
    let outputs = match ir::graph::eval::evaluate(&graph, &inputs) {
        Ok(outputs) => outputs,
        Err(error) => return Outcome::Wrong(error.to_string()),
    };
    let mut differs = None;
    for (name, expected) in expected {
        let got = &outputs[&name];
        if got.shape != expected.shape || got.dtype != expected.dtype {
            let (a, b) = ((got.dtype, &got.shape), (expected.dtype, &expected.shape));
            return Outcome::Wrong(format!("{name}: {a:?} for {b:?}"));
        }
        let tolerance = match expected.dtype.bits() {
            _ if !expected.dtype.is_float() => 0.0,
            8 => 0.13,
            16 => 1e-2,
            _ => 1e-3,
        };
        let close =
            |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * (0.01 + b.abs());
        if let Some((a, b)) = got
            .to_f64()
            .into_iter()
            .zip(expected.to_f64())
            .find(|(a, b)| !close(*a, *b))
        {
            differs.get_or_insert(format!("{name}: {a} for {b}"));
        }
    }
    differs.map_or(Outcome::Right, Outcome::Differs)
}

/// Cases whose values differ, each by its name, and the standard's words that allow it. Their types and shapes do not
/// differ.
const DIFFERENT: [(&str, &[&str]); 5] = [
    (
        "Bernoulli: \"This operator is non-deterministic and may not produce the same values in different implementations (even if \
         a seed is specified).\"",
        &["test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"],
    ),
    (
        "Cast: \"Casting from floating point to: […] fixed point: undefined if OOR.\"",
        &[
            "test_cast_FLOAT16_to_INT4",
            "test_cast_FLOAT16_to_UINT4",
            "test_cast_FLOAT_to_INT4",
            "test_cast_FLOAT_to_UINT4",
            "test_castlike_FLOAT16_to_INT4",
            "test_castlike_FLOAT16_to_UINT4",
            "test_castlike_FLOAT_to_INT4",
            "test_castlike_FLOAT_to_UINT4",
        ],
    ),
    (
        "Dropout: \"If this input is true […], the output Y will be a random dropout\", by numbers that the standard does not give",
        &[
            "test_training_dropout",
            "test_training_dropout_default",
            "test_training_dropout_default_mask",
            "test_training_dropout_mask",
        ],
    ),
    (
        "DynamicQuantizeLinear: \"y = saturate (round (x / y_scale) + y_zero_point)\" of f32 tensors. The evaluator that this test \
         runs divides in f64, where the case is no tie; devices divide in f32",
        &["test_dynamicquantizelinear"],
    ),
    (
        "Resize: \"x_original = x_resized * (length_original - 1) / (length_resized - 1)\" with \"`length_resized` as the length of the \
         resized tensor\", which is whole; the reference that made these cases takes it before it is rounded",
        &[
            "test_resize_downsample_scales_cubic_align_corners",
            "test_resize_downsample_scales_linear_align_corners",
        ],
    ),
];

/// Set `GRAPHC_BLESS=1` to write the list of refused cases anew, `GRAPHC_NODE_CASES` to a file of other cases to list
/// what becomes of them.
#[test]
fn onnx_node_tests() {
    let mut right = 0;
    let mut refused: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    let mut listed: BTreeSet<&str> = DIFFERENT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let other = std::env::var("GRAPHC_NODE_CASES").ok();
    for case in cases(other.as_deref().unwrap_or("onnx_nodes.bin")) {
        match run(&case) {
            Outcome::Right => right += 1,
            Outcome::Refused(reason) => drop(refused.insert(case.name, reason)),
            Outcome::Differs(_) if listed.remove(case.name.as_str()) => {}
            Outcome::Differs(reason) | Outcome::Wrong(reason) => drop(wrong.insert(case.name, reason)),
        }
    }
    if other.is_some() {
        // A file of other cases (`onnx_node_cases.py --all`) is a list of work.
        println!("{right} right, refused {refused:#?}, wrong {wrong:#?}");
        return;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(listed.is_empty(), "listed as different, but are not: {listed:#?}");
    assert!(right >= 900, "only {right} cases are right");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/onnx_nodes.refused.txt");
    let line = |(name, reason): (&String, &String)| {
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{name}: {reason}\n")
    };
    let found: String = refused.iter().map(line).collect();
    if std::env::var_os("GRAPHC_BLESS").is_some() {
        std::fs::write(&list, &found).unwrap();
    }
    let names = |text: &str| -> BTreeSet<String> {
        text.lines()
            .filter_map(|l| l.split_once(':').map(|(name, _)| name.to_owned()))
            .collect()
    };
    let blessed = std::fs::read_to_string(&list).unwrap();
    let (have, want) = (names(&found), names(&blessed));
    let changed: Vec<&String> = have.symmetric_difference(&want).collect();
    assert!(
        changed.is_empty(),
        "refused or no longer refused (bless with GRAPHC_BLESS=1): {changed:#?}"
    );
}
