//! Attention ops against what onnxruntime gives (see `scripts/py/attention_cases.py`): each form alone, and a small
//! language model.

#[path = "cases/against.rs"]
mod against;
mod cases;

use against::{Bound, differ, outputs};
use cases::cases;
use graphc_frontend::onnx::ImportOptions;

/// The evaluator computes in f64, onnxruntime in f32, in another order.
const BOUND: Bound = Bound {
    worst: 2e-6,
    mean: 5e-7,
};
/// Results in f16 are rounded to 11 bits.
const HALF: Bound = Bound {
    worst: 1e-3,
    mean: 2e-4,
};

fn check(prefix: &str, count: usize) {
    let mut all = cases("onnx_attention.bin");
    all.retain(|case| case.name.starts_with(prefix));
    let mut wrong = Vec::new();
    for case in &all {
        let bound = if case.name.ends_with("f16") { &HALF } else { &BOUND };
        match outputs(case, &ImportOptions::default()) {
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
            Ok(found) => wrong.extend(found.iter().filter_map(|(name, got, want)| {
                let (problem, _) = differ(&case.name, got, want, bound);
                problem.map(|text| format!("{} {name}: {text}", case.name))
            })),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(all.len(), count, "cases of {prefix}");
}

#[test]
fn group_query_attention() {
    check("gqa_", 24);
}

#[test]
fn multi_head_attention() {
    check("mha_", 21);
}

#[test]
fn self_attention() {
    check("attention_", 12);
}

#[test]
fn rotary_embedding() {
    check("rotary_", 6);
}

#[test]
fn attention_with_a_cache() {
    check("onnx_", 7);
}

/// A prompt and three tokens, the cache of each being what the step before gave.
#[test]
fn a_language_model() {
    check("decoder_", 4);
}
