//! Ops against what onnxruntime gives: attention (see `scripts/py/attention_cases.py`), each form alone, and a small
//! language model; and others, at odd sizes (see `scripts/py/op_cases.py`).

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

/// Recurrences, powers and tables add up what the evaluator does in f64.
const OPS: Bound = Bound {
    worst: 2e-5,
    mean: 5e-6,
};

fn check(prefix: &str, count: usize) {
    check_in("onnx_attention.bin", prefix, count, &BOUND);
}

fn check_in(file: &str, prefix: &str, count: usize, usual: &Bound) {
    let mut all = cases(file);
    all.retain(|case| case.name.starts_with(prefix));
    let mut wrong = Vec::new();
    for case in &all {
        let bound = if case.name.ends_with("f16") { &HALF } else { usual };
        match outputs(case, &ImportOptions::default()) {
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
            Ok(found) => wrong.extend(found.iter().filter_map(|(name, got, want)| {
                let (mut problem, off) = differ(&case.name, got, want, bound);
                if off > 0 {
                    problem = Some(format!("{off} integers are others"));
                }
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

#[test]
fn recurrent_layers() {
    check_in("onnx_ops.bin", "rnn_", 36, &OPS);
}

#[test]
fn sampling() {
    check_in("onnx_ops.bin", "sample_", 30, &OPS);
}

#[test]
fn transforms_of_signals() {
    check_in("onnx_ops.bin", "signal_", 26, &OPS);
}

#[test]
fn windows() {
    check_in("onnx_ops.bin", "window_", 16, &OPS);
}

#[test]
fn resizing() {
    check_in("onnx_ops.bin", "resize_", 14, &OPS);
}

#[test]
fn classical_learning() {
    check_in("onnx_ops.bin", "learned_", 22, &OPS);
}

#[test]
fn fused_ops() {
    check_in("onnx_ops.bin", "fused_", 14, &OPS);
}
