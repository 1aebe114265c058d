//! Gated products (SwiGLU, GEGLU and their kin): gate and what it is applied to are columns side by side, in one
//! epilogue. On emulated GPUs against the reference evaluator of the graph; what no pair can be made of is as right,
//! with a kernel more.

use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::reference::{Tensors, assert_matches, compile_cpu, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Body, Kernel, Mapping};
use ir::target::MatrixFamily;
use ir::{Bindings, DType, Graph};
use passes::OptLevel;

/// What each case shows, the type that is computed in, its graph, and whether a kernel has pairs of columns.
const CASES: [(&str, DType, &str, bool); 12] = [
    (
        "a gate and its operand by two weights, tiles",
        DType::F16,
        "x = input \"x\" : f16[150, 96]\n a = constant random(seed=1) : f16[96, 136]\n b = constant random(seed=2) : f16[96, 136]\n \
         g = contract x, a\n u = contract x, b\n s = silu g\n y = mul s, u",
        true,
    ),
    (
        "one row, weights that lie along the depth",
        DType::F16,
        "x = input \"x\" : f16[1, 512]\n a = constant random(seed=1) : f16[200, 512]\n b = constant random(seed=2) : f16[200, 512]\n \
         g = contract x, a {transpose_rhs}\n u = contract x, b {transpose_rhs}\n s = silu g\n y = mul s, u",
        true,
    ),
    (
        "five rows, weights that lie along the columns",
        DType::BF16,
        "x = input \"x\" : bf16[5, 256]\n a = constant random(seed=1) : bf16[256, 64]\n b = constant random(seed=2) : bf16[256, 64]\n \
         g = contract x, a\n u = contract x, b\n s = gelu g\n y = mul u, s",
        true,
    ),
    (
        "an odd number of columns, with biases and what follows",
        DType::F16,
        "x = input \"x\" : f16[2, 33, 80]\n a = constant random(seed=1) : f16[80, 45]\n b = constant random(seed=2) : f16[80, 45]\n c = constant random(seed=3) : f16[45]\n \
         d = constant random(seed=4) : f16[45]\n r = input \"r\" : f16[2, 33, 45]\n g = contract x, a\n h = add g, c\n u = contract x, b\n \
         v = add u, d\n s = sigmoid h\n m = mul s, v\n y = add m, r",
        true,
    ),
    (
        "one product that the model itself halves, in f32",
        DType::F32,
        "x = input \"x\" : f32[40, 64]\n w = constant random(seed=1) : f32[64, 100]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[40, 50]}\n \
         u = slice p {starts=[0, 50], sizes=[40, 50]}\n s = relu g\n y = mul s, u",
        true,
    ),
    (
        "halved in the other order, behind a bias",
        DType::F32,
        "x = input \"x\" : f32[3, 128]\n w = constant random(seed=1) : f32[128, 48]\n c = constant random(seed=2) : f32[48]\n p = contract x, w\n q = add p, c\n \
         g = slice q {starts=[0, 24], sizes=[3, 24]}\n u = slice q {starts=[0, 0], sizes=[3, 24]}\n s = tanh g\n y = sub s, u",
        true,
    ),
    (
        "deep, in parts",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = constant random(seed=1) : f16[8192, 64]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[48, 32]}\n \
         u = slice p {starts=[0, 32], sizes=[48, 32]}\n s = silu g\n y = mul s, u",
        true,
    ),
    (
        "a half that is read twice",
        DType::F16,
        "x = input \"x\" : f16[70, 64]\n w = constant random(seed=1) : f16[64, 96]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[70, 48]}\n \
         u = slice p {starts=[0, 48], sizes=[70, 48]}\n s = silu g\n m = mul s, u\n t = transpose g {perm=[1, 0]}\n z = exp t\n v = transpose z {perm=[1, 0]}\n \
         w2 = slice v {starts=[0, 0], sizes=[35, 48]}\n m2 = slice m {starts=[35, 0], sizes=[35, 48]}\n y = add m2, w2",
        true,
    ),
    (
        "weights of four bits in groups",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n w = constant random(seed=1) : i4[96, 256]\n k = constant random(seed=2) : f16[96, 8]\n q = dequantize w, k {axis=1, group=32, out=f16}\n \
         p = contract x, q {transpose_rhs}\n g = slice p {starts=[0, 0], sizes=[1, 48]}\n u = slice p {starts=[0, 48], sizes=[1, 48]}\n s = silu g\n y = mul s, u",
        true,
    ),
    (
        "weights that are not known",
        DType::F16,
        "x = input \"x\" : f16[33, 64]\n w = input \"w\" : f16[64, 96]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[33, 48]}\n \
         u = slice p {starts=[0, 48], sizes=[33, 48]}\n s = silu g\n y = mul s, u",
        false,
    ),
    (
        "halves that do not meet",
        DType::F16,
        "x = input \"x\" : f16[33, 64]\n w = constant random(seed=1) : f16[64, 96]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[33, 48]}\n \
         u = slice p {starts=[0, 48], sizes=[33, 48]}\n s = silu g\n t = transpose u {perm=[1, 0]}\n y = contract s, t",
        false,
    ),
    (
        "a third reader of the product",
        DType::F16,
        "x = input \"x\" : f16[33, 64]\n w = constant random(seed=1) : f16[64, 96]\n p = contract x, w\n g = slice p {starts=[0, 0], sizes=[33, 48]}\n \
         u = slice p {starts=[0, 48], sizes=[33, 48]}\n o = slice p {starts=[0, 24], sizes=[33, 48]}\n s = silu g\n m = mul s, u\n y = add m, o",
        false,
    ),
];

fn case(what: &str, body: &str) -> (Graph, Tensors) {
    let text = format!("graph @gated stage=import {{\n {body}\n return y as \"y\"\n}}\n");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{what}: {e}"));
    let inputs = random_inputs(&graph, &Bindings::new(), 5);
    (graph, inputs)
}

fn has_pairs(kernel: &Kernel) -> bool {
    matches!(&kernel.body, Body::Contract(c) if c.pair.is_some())
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (what, dtype, body, in_pairs) in CASES {
        let context = format!("{arch}: {what}");
        let (graph, inputs) = case(what, body);
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        let kernels: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
        // In parts, the second launch has the pairs: it reads both sums.
        let parts = kernels.iter().any(|k| k.contains("_parts"));
        let found = plan.kernels.values().any(has_pairs) || parts && what.contains("parts");
        assert_eq!(found, in_pairs, "{context}: {kernels:?}");
        // Nothing is left that only reads the product.
        if in_pairs && !what.contains("twice") {
            assert_eq!(plan.launches().0, if parts { 2 } else { 1 }, "{context}: {kernels:?}");
        }
        let outcome = tools.run(&built, &inputs, 1 << 28);
        tally.add(&context, &outcome);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_matches(&outcome.outputs, &want, dtype, &context);
    }
    tally.finish(arch, CASES.len());
}

#[test]
fn gated_products_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn gated_products_on_gfx942() {
    check("gfx942");
}

#[test]
fn gated_products_on_gfx950() {
    check("gfx950");
}

#[test]
fn gated_products_on_gfx1100() {
    check("gfx1100");
}

#[test]
fn gated_products_on_gfx1201() {
    check("gfx1201");
}

/// A target without matrix instructions has pairs in the same tilings by multiply-adds of its lanes; in f64 in plain
/// tiles.
#[test]
fn gated_products_on_gfx1030() {
    let Some(tools) = toolchain() else { return };
    let (what, _, body, _) = CASES[4];
    let by_lanes = |m: &Mapping| matches!(m, Mapping::Matrix(m) if m.instruction.family == MatrixFamily::Lanes);
    let plain = |m: &Mapping| matches!(m, Mapping::Tile { .. });
    let mapped: [(DType, &dyn Fn(&Mapping) -> bool); 2] = [(DType::F32, &by_lanes), (DType::F64, &plain)];
    for (dtype, is_mapped) in mapped {
        let (graph, inputs) = case(what, &body.replace("f32", &dtype.to_string()));
        let built = tools.build(&graph, "gfx1030", None);
        let plan = &built.program.variants[0].plan;
        let found = plan.kernels.values().any(|k| has_pairs(k) && is_mapped(&k.mapping));
        assert!(found, "{dtype}: {plan}");
        let outcome = tools.run(&built, &inputs, 1 << 28);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_matches(&outcome.outputs, &want, dtype, what);
    }
}

/// The CPU keeps the halves where they are, and computes the same.
#[test]
fn gated_products_on_the_cpu() {
    for (what, dtype, body, _) in CASES {
        let (graph, inputs) = case(what, body);
        let got = compile_cpu(&graph, OptLevel::O2, None)
            .run(&inputs)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_matches(&got, &want, dtype, what);
    }
}
