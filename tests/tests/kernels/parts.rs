//! Deep contractions with few tiles, and attention of few queries to many keys: two launches share them by way of
//! scratch memory, on emulated GPUs, and what comes out is compared with the reference evaluator of the graph.

use graphc::driver::{self, BuildOptions};
use graphc::passes::OptLevel;
use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Body, Kernel};
use ir::{Bindings, DType, HostTensor, Symbol};

/// Name, the type that is computed in, what follows, and whether it comes in parts.
const CASES: [(&str, DType, &str, bool); 9] = [
    (
        "a product with an epilogue that reads more",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 72]\n b = input \"b\" : f16[72]\n r = input \"r\" : f16[48, 72]\n \
         p = contract x, w\n q = add p, b\n s = gelu q\n y = add s, r",
        true,
    ),
    (
        "odd sizes",
        DType::BF16,
        "x = input \"x\" : bf16[33, 8192]\n w = input \"w\" : bf16[8192, 47]\n y = contract x, w",
        true,
    ),
    (
        "both transposed, in f32",
        DType::F32,
        "x = input \"x\" : f32[8192, 40]\n w = input \"w\" : f32[64, 8192]\n p = contract x, w {transpose_lhs, transpose_rhs}\n y = relu p",
        true,
    ),
    (
        "batches and a view behind",
        DType::F16,
        "x = input \"x\" : f16[2, 24, 8192]\n w = input \"w\" : f16[2, 8192, 32]\n p = contract x, w\n t = transpose p {perm=[1, 0, 2]}\n \
         y = reshape t {shape=[24, 64]}",
        true,
    ),
    (
        "integers",
        DType::I8,
        "x = input \"x\" : i8[32, 8192]\n w = input \"w\" : i8[8192, 48]\n y = contract x, w {out=i32}",
        true,
    ),
    (
        "a convolution with its bias, whose padding is within the parts",
        DType::F16,
        "x = input \"x\" : f16[1, 7, 7, 1024]\n w = input \"w\" : f16[32, 3, 3, 1024]\n b = input \"b\" : f16[32]\n \
         r = input \"r\" : f16[1, 7, 7, 32]\n p = conv x, w, b {channels_last, pad_low=[1, 1], pad_high=[1, 1]}\n s = add p, r\n y = relu s",
        true,
    ),
    (
        "groups",
        DType::F16,
        "x = input \"x\" : f16[1, 5, 6, 4096]\n w = input \"w\" : f16[48, 3, 3, 2048]\n \
         y = conv x, w {channels_last, groups=2, pad_low=[1, 1], pad_high=[1, 1]}",
        true,
    ),
    (
        "too shallow to gain",
        DType::F16,
        "x = input \"x\" : f16[48, 256]\n w = input \"w\" : f16[256, 72]\n y = contract x, w",
        false,
    ),
    (
        "a depth that no part divides",
        DType::F16,
        "x = input \"x\" : f16[48, 8191]\n w = input \"w\" : f16[8191, 72]\n y = contract x, w",
        false,
    ),
];

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (what, dtype, body, in_parts) in CASES {
        let context = format!("{arch}: {what}");
        let graph = parse(&format!(
            "graph @deep stage=import {{\n {body}\n return y as \"y\"\n}}\n"
        ))
        .unwrap_or_else(|e| panic!("{context}: {e}"));
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        // What no matrix instruction takes is not cut.
        let in_parts = in_parts && plan.target.matrix.iter().any(|i| i.input == dtype);
        let partial = |k: &Kernel| matches!(k.body, Body::Contract(_)) && k.name.contains("_parts");
        let kernels: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
        assert_eq!(plan.kernels.values().any(partial), in_parts, "{context}: {kernels:?}");
        assert_eq!(
            plan.launches().0,
            if in_parts { 2 } else { 1 },
            "{context}: {kernels:?}"
        );
        let inputs = random_inputs(&graph, &Bindings::new(), 11);
        let outcome = tools.run(&built, &inputs, 1 << 28);
        tally.add(&context, &outcome);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_matches(&outcome.outputs, &want, dtype, &context);
    }
    tally.finish(arch, CASES.len());
}

/// What has no elements is one launch, which does nothing.
#[test]
fn nothing_is_not_cut() {
    for body in [
        "x = input \"x\" : f16[0, 8192]\n w = input \"w\" : f16[8192, 72]\n y = contract x, w",
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 0]\n y = contract x, w",
        "q = input \"q\" : f16[0, 4, 1, 64]\n k = input \"k\" : f16[0, 4, 8192, 64]\n v = input \"v\" : f16[0, 4, 8192, 64]\n \
         y = attention q, k, v {scale=0.125}",
    ] {
        let graph = parse(&format!(
            "graph @nothing stage=import {{\n {body}\n return y as \"y\"\n}}\n"
        ))
        .unwrap_or_else(|e| panic!("{body}: {e}"));
        let target = "gfx90a".parse().expect("a target of the table");
        let mut options = BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize.libraries = false;
        let built = driver::build(&graph, &options).unwrap_or_else(|e| panic!("{body}: {e}"));
        let plan = &built.program.variants[0].plan;
        assert!(plan.launches().0 <= 1, "{plan}");
    }
}

/// Name, the graph, sizes of its symbols, and whether it comes in parts.
const ATTENTIONS: [(&str, &str, &[(&str, i64)], bool); 7] = [
    (
        "one query, and keys that no number of parts divides, in groups of heads",
        "q = input \"q\" : f16[1, 8, 1, 128]\n k = input \"k\" : f16[1, 2, 1031, 128]\n v = input \"v\" : f16[1, 2, 1031, 128]\n \
         y = attention q, k, v {scale=0.088}",
        &[],
        true,
    ),
    (
        "what follows, in batches",
        "q = input \"q\" : bf16[2, 4, 1, 64]\n k = input \"k\" : bf16[2, 4, 2048, 64]\n v = input \"v\" : bf16[2, 4, 2048, 64]\n \
         r = input \"r\" : bf16[2, 1, 256]\n a = attention q, k, v {scale=0.125}\n t = transpose a {perm=[0, 2, 1, 3]}\n \
         s = reshape t {shape=[2, 1, 256]}\n y = add s, r",
        &[],
        true,
    ),
    (
        "causal, a few queries",
        "q = input \"q\" : f16[1, 2, 5, 64]\n k = input \"k\" : f16[1, 2, 2100, 64]\n v = input \"v\" : f16[1, 2, 2100, 64]\n \
         y = attention q, k, v {scale=0.125, causal}",
        &[],
        true,
    ),
    (
        "parts whose keys are all masked",
        "q = input \"q\" : f16[1, 4, 2, 64]\n k = input \"k\" : f16[1, 4, 2048, 64]\n v = input \"v\" : f16[1, 4, 2048, 64]\n \
         m = input \"m\" : bool[1, 1, 2, 2048]\n y = attention q, k, v, m {scale=0.125, mask}",
        &[],
        true,
    ),
    (
        "a cache of any length, long",
        "q = input \"q\" : f16[1, 4, 1, 64]\n k = input \"k\" : f16[1, 4, n, 64]\n v = input \"v\" : f16[1, 4, n, 64]\n \
         y = attention q, k, v {scale=0.125}",
        &[("n", 2100)],
        true,
    ),
    (
        "a cache of any length, shorter than there are parts",
        "q = input \"q\" : f16[1, 4, 1, 64]\n k = input \"k\" : f16[1, 4, n, 64]\n v = input \"v\" : f16[1, 4, n, 64]\n \
         y = attention q, k, v {scale=0.125}",
        &[("n", 3)],
        true,
    ),
    (
        "many queries",
        "q = input \"q\" : f16[1, 4, 300, 64]\n k = input \"k\" : f16[1, 4, 300, 64]\n v = input \"v\" : f16[1, 4, 300, 64]\n \
         y = attention q, k, v {scale=0.125}",
        &[],
        false,
    ),
];

fn check_attention(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (what, body, sizes, in_parts) in ATTENTIONS {
        let context = format!("{arch}: {what}");
        let symbols: String = sizes
            .iter()
            .map(|(name, _)| format!(" symbol {name}: 1..4096 hint 2048\n"))
            .collect();
        let graph = parse(&format!(
            "graph @few stage=import {{\n{symbols} {body}\n return y as \"y\"\n}}\n"
        ))
        .unwrap_or_else(|e| panic!("{context}: {e}"));
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        let partial = |k: &Kernel| matches!(&k.body, Body::Attention(a) if a.row_weights.is_some());
        assert_eq!(plan.kernels.values().any(partial), in_parts, "{context}");
        let bindings: Bindings = sizes.iter().map(|(name, size)| (Symbol::new(name), *size)).collect();
        let mut inputs = random_inputs(&graph, &bindings, 11);
        if let Some(mask) = inputs.get_mut("m") {
            // Only keys from 1400 on, but for the second query some before.
            let seen = |i: usize| (1400..2048).contains(&i) || i > 2048 + 600;
            let values: Vec<i64> = (0..4096).map(|i| i64::from(seen(i))).collect();
            *mask = HostTensor::from_i64(DType::Bool, [1, 1, 2, 2048], &values).expect("fits");
        }
        let outcome = tools.run(&built, &inputs, 1 << 28);
        tally.add(&context, &outcome);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
        let dtype = want["y"].dtype;
        assert_matches(&outcome.outputs, &want, dtype, &context);
    }
    tally.finish(arch, ATTENTIONS.len());
}

/// Name, the type that is computed in, the graph, and how many launches there are.
const ROWS: [(&str, DType, &str, usize); 8] = [
    (
        "a bias, a residual and a layer norm",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 72]\n b = input \"b\" : f16[72]\n r = input \"r\" : f16[48, 72]\n \
         g = input \"g\" : f16[72]\n h = input \"h\" : f16[72]\n p = contract x, w\n q = add p, b\n s = add q, r\n \
         y = layer_norm s, g, h {axis=1, epsilon=1e-5}\n return y as \"y\"",
        2,
    ),
    (
        "an RMS norm and what follows it, in batches",
        DType::BF16,
        "x = input \"x\" : bf16[2, 20, 8192]\n w = input \"w\" : bf16[8192, 96]\n g = input \"g\" : bf16[96]\n p = contract x, w\n \
         n = rms_norm p, g {axis=2, epsilon=1e-5}\n y = silu n\n return y as \"y\"",
        2,
    ),
    (
        "odd columns, and a softmax behind a scale",
        DType::F16,
        "x = input \"x\" : f16[33, 8192]\n w = input \"w\" : f16[8192, 47]\n c = constant 0.01 : f16[]\n p = contract x, w\n \
         s = mul p, c\n y = softmax s {axis=1}\n return y as \"y\"",
        2,
    ),
    (
        "one product a batch, transposed",
        DType::F32,
        "x = input \"x\" : f32[2, 8192, 24]\n w = input \"w\" : f32[2, 40, 8192]\n p = contract x, w {transpose_lhs, transpose_rhs}\n \
         y = softmax p {axis=2}\n return y as \"y\"",
        2,
    ),
    (
        "sums of rows",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 72]\n p = contract x, w\n s = mul p, p\n \
         y = reduce s {op=sum, axes=[1]}\n return y as \"y\"",
        2,
    ),
    (
        "a norm along the rows of another shape",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 64]\n p = contract x, w\n s = reshape p {shape=[48, 2, 32]}\n \
         y = softmax s {axis=2}\n return y as \"y\"",
        2,
    ),
    (
        "what the norm reads is an output too",
        DType::F16,
        "x = input \"x\" : f16[48, 8192]\n w = input \"w\" : f16[8192, 72]\n r = input \"r\" : f16[48, 72]\n p = contract x, w\n \
         s = add p, r\n y = softmax s {axis=1}\n return y as \"y\", s as \"s\"",
        3,
    ),
    (
        "rows that one compute unit takes long to add up",
        DType::F16,
        "x = input \"x\" : f16[2, 16384]\n w = input \"w\" : f16[16384, 16384]\n p = contract x, w\n \
         y = softmax p {axis=1}\n return y as \"y\"",
        0,
    ),
];

/// Folds of rows behind a product in parts add the parts up as they read them.
fn check_rows(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (what, dtype, body, launches) in ROWS {
        let context = format!("{arch}: {what}");
        let graph =
            parse(&format!("graph @rows stage=import {{\n {body}\n}}\n")).unwrap_or_else(|e| panic!("{context}: {e}"));
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        let kernels: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
        let sums = |k: &Kernel| matches!(k.body, Body::Row(_)) && k.name.contains("_sum");
        let in_parts = plan.target.matrix.iter().any(|i| i.input == dtype) && launches > 0;
        assert_eq!(
            plan.kernels.values().any(sums),
            in_parts && launches == 2,
            "{context}: {kernels:?}"
        );
        if launches == 0 {
            continue;
        }
        if in_parts {
            assert_eq!(plan.launches().0, launches, "{context}: {kernels:?}");
        }
        let inputs = random_inputs(&graph, &Bindings::new(), 13);
        let outcome = tools.run(&built, &inputs, 1 << 28);
        tally.add(&context, &outcome);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_matches(&outcome.outputs, &want, dtype, &context);
    }
    tally.finish(arch, ROWS.iter().filter(|case| case.3 > 0).count());
}

#[test]
fn rows_on_gfx90a() {
    check_rows("gfx90a");
}

#[test]
fn rows_on_gfx1201() {
    check_rows("gfx1201");
}

#[test]
fn on_gfx90a() {
    check("gfx90a");
}

#[test]
fn on_gfx942() {
    check("gfx942");
}

#[test]
fn on_gfx1100() {
    check("gfx1100");
}

#[test]
fn on_gfx1201() {
    check("gfx1201");
}

#[test]
fn attention_on_gfx90a() {
    check_attention("gfx90a");
}

#[test]
fn attention_on_gfx942() {
    check_attention("gfx942");
}

#[test]
fn attention_on_gfx1100() {
    check_attention("gfx1100");
}

#[test]
fn attention_on_gfx1201() {
    check_attention("gfx1201");
}
