//! ONNX's own node tests (see `scripts/py/onnx_node_cases.py`): each is imported, evaluated, and compared.
//!
//! A case may be refused with a typed error; the ops for which that happens are listed, so that a newly refused one fails
//! the test. Whatever is imported must give the expected values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_frontend::onnx::proto::TensorProto;
use graphc_frontend::onnx::{ImportError, ImportOptions, import_model, read_bytes, tensor_view};
use indexmap::IndexMap;
use ir::HostTensor;
use prost::Message;

struct Case {
    name: String,
    model: Vec<u8>,
    inputs: Vec<TensorProto>,
    outputs: Vec<TensorProto>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> usize {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_le_bytes(head.try_into().unwrap()) as usize
    }

    fn blob(&mut self) -> &'a [u8] {
        let len = self.number();
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head
    }

    fn tensors(&mut self) -> Vec<TensorProto> {
        (0..self.number())
            .map(|_| TensorProto::decode(self.blob()).unwrap())
            .collect()
    }
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/onnx_nodes.bin");
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes);
    let mut cases = Vec::new();
    while !reader.0.is_empty() {
        cases.push(Case {
            name: String::from_utf8(reader.blob().to_vec()).unwrap(),
            model: reader.blob().to_vec(),
            inputs: reader.tensors(),
            outputs: reader.tensors(),
        });
    }
    cases
}

enum Outcome {
    Right,
    Refused(String),
    /// Outputs of the right types and shapes have other values.
    Differs(String),
    Wrong(String),
}

fn host(tensors: &[TensorProto]) -> Option<IndexMap<String, HostTensor>> {
    tensors
        .iter()
        .map(|t| Some((t.name.clone(), tensor_view(t).ok()?.to_host().ok()?)))
        .collect()
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

/// Cases whose values differ, each by its name, and why that stands. Their types and shapes do not.
const DIFFERENT: [(&str, &[&str]); 6] = [
    (
        "a row whose boolean mask is all false gives NaN, as PyTorch has it",
        &[
            "test_attention_23_boolmask_fullymasked_row_nan_robustness",
            "test_attention_causal_boolmask_nan_robustness",
        ],
    ),
    (
        "random numbers of another generator",
        &["test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"],
    ),
    (
        "shifts by the width or more, or by less than 0, which only opset 26 defines",
        &[
            "test_bitshift_left_int32_negative_shift",
            "test_bitshift_left_int32_shift_ge_width",
            "test_bitshift_left_int8_negative_shift",
            "test_bitshift_left_int8_shift_ge_width",
            "test_bitshift_right_int32_negative_shift",
            "test_bitshift_right_int32_shift_ge_width",
            "test_bitshift_right_int8_negative_shift",
            "test_bitshift_right_int8_shift_ge_width",
        ],
    ),
    (
        "numbers outside the 4-bit range, for which ONNX leaves the result open",
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
        "a tie that f32 rounds and f64 does not meet",
        &["test_dynamicquantizelinear"],
    ),
    (
        "ONNX's reference takes the length before it is rounded; ONNX Runtime and PyTorch take the real one, as graphc does",
        &[
            "test_resize_downsample_scales_cubic_align_corners",
            "test_resize_downsample_scales_linear_align_corners",
        ],
    ),
];

/// Set `GRAPHC_BLESS=1` to write the list of refused cases anew.
#[test]
fn onnx_node_tests() {
    let mut right = 0;
    let mut refused: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong: BTreeMap<String, String> = BTreeMap::new();
    let mut listed: BTreeSet<&str> = DIFFERENT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    for case in cases() {
        match run(&case) {
            Outcome::Right => right += 1,
            Outcome::Refused(reason) => drop(refused.insert(case.name, reason)),
            Outcome::Differs(_) if listed.remove(case.name.as_str()) => {}
            Outcome::Differs(reason) | Outcome::Wrong(reason) => drop(wrong.insert(case.name, reason)),
        }
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
