//! Each op of a pointwise kernel rounds its result, as the reference evaluator does: compilers fuse no multiply-add.

use graphc::ir::graph::eval::evaluate;
use graphc_tests::emulator::{ARCHS, toolchain};
use graphc_tests::reference::Tensors;
use ir::graph::parse::parse;
use ir::{DType, Graph, HostTensor};

/// Expressions of `x`, `y` (which is `x` in every other element) and `z`; in every one a fused multiply-add gives other
/// bits.
const BODIES: [&str; 7] = [
    "a = mul x, x\n b = mul y, y\n w = sub a, b",
    "a = mul x, z\n b = mul z, x\n d = sub a, b\n w = sqrt d",
    "a = mul x, y\n w = add a, z",
    "a = mul x, y\n b = mul y, z\n c = add a, b\n d = mul c, x\n w = sub d, y",
    "a = mul x, y\n b = sub z, a\n w = add b, x",
    // Behind a product, where it is the epilogue that rounds.
    "p = contract x, y\n a = mul p, x\n b = mul p, y\n w = sub a, b",
    // In a row whose elements are held.
    "a = mul x, y\n b = sub a, z\n m = reduce b {op=max, axes=[1], keep_dims}\n w = sub b, m",
];

/// Numbers with few digits, whose sums of products are exact, or with many.
fn inputs(digits: i32) -> Tensors {
    let numbers = |seed: usize| -> Vec<f64> {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 4093) as f64 / 4093.0 * 2.0 - 1.0;
        let scale = 2f64.powi(digits);
        (0..64 * 64).map(|i| (number(i) * scale).round() / scale).collect()
    };
    let (x, mut y, z) = (numbers(1), numbers(2), numbers(3));
    y.iter_mut().zip(&x).step_by(2).for_each(|(y, x)| *y = *x);
    let tensor = |values: Vec<f64>| HostTensor::from_f64(DType::F32, [64, 64], &values).expect("as many");
    [("x", x), ("y", y), ("z", z)]
        .map(|(name, values)| (name.to_owned(), tensor(values)))
        .into_iter()
        .collect()
}

/// The graph with each op's result rounded to f32: the evaluator rounds nothing between ops.
fn rounded(text: &str) -> Graph {
    let line = |line: &str| match line.trim().split_once(" = ") {
        Some((name, op)) if !op.starts_with("input") => {
            format!(" {name}_exact = {op}\n {name} = cast {name}_exact {{to=f32}}\n")
        }
        _ => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn each_op_rounds_on_emulated_gpus() {
    let Some(tools) = toolchain() else { return };
    for (arch, body) in ARCHS.iter().flat_map(|arch| BODIES.map(|body| (*arch, body))) {
        let input = |name: &str| format!(" {name} = input \"{name}\" : f32[64, 64]\n");
        let [x, y, z] = ["x", "y", "z"].map(input);
        let text = format!("graph @rounds stage=import {{\n{x}{y}{z} {body}\n return w as \"w\"\n}}\n");
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let built = tools.build(&graph, arch, None);
        // The product's own sums may be in any order, so that its operands' are exact.
        let inputs = inputs(if body.contains("contract") { 7 } else { 30 });
        let want = evaluate(&rounded(&text), &inputs).expect("it evaluates")["w"].to_f64();
        let outcome = tools.run(&built, &inputs, 1 << 22);
        assert!(
            outcome.verdicts.iter().all(|v| v.is_within()),
            "{arch}: {:?}\n{body}",
            outcome.verdicts
        );
        let got = outcome.outputs["w"].to_f64();
        let differ = |at: &usize| got[*at] != want[*at] && !(got[*at].is_nan() && want[*at].is_nan());
        let first = (0..want.len()).find(differ);
        assert_eq!(
            first.map(|at| (got[at], want[at])),
            None,
            "{arch}: element {first:?}\n{body}"
        );
    }
}
