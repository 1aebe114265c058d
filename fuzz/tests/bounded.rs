//! A bounded number of cases of every target; `scripts/fuzz.sh` runs as many as one likes.

use graphc_fuzz::{Counts, run, targets};

/// `GRAPHC_FUZZ_CASES` sets how many of each.
fn cases() -> u64 {
    let given = std::env::var("GRAPHC_FUZZ_CASES").ok();
    given.map_or(400, |n| n.parse().expect("GRAPHC_FUZZ_CASES is a number"))
}

fn check(name: &str, most_refused: f64) {
    let target = targets::named(name).expect("a target of that name");
    let mut counts = Counts::default();
    for number in 0..cases() {
        counts.count(run(target.as_ref(), 1, number));
    }
    // A target whose every case is refused at the door looks at nothing.
    let refused = counts.refused as f64 / counts.total() as f64;
    assert!(refused <= most_refused, "{name}: {counts:?}");
}

#[test]
fn artifacts() {
    check("artifact", 0.98);
}

#[test]
fn plans() {
    check("plan", 0.95);
}

#[test]
fn kernels() {
    check("kernel", 0.9);
}

#[test]
fn cache_entries() {
    check("cache", 0.98);
}

#[test]
fn graph_texts() {
    check("gir", 0.99);
}

#[test]
fn arrays() {
    check("npz", 0.99);
    check("npy", 0.99);
    check("safetensors", 0.99);
}

#[test]
fn onnx_models() {
    check("onnx", 0.99);
}
