//! Norms whose scale is applied behind the products that read them: products row by row that fold the squares of their
//! rows. On emulated GPUs against the reference evaluator of the graph; where the norm keeps its kernel, the plan has
//! it.

use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, assert_matches, compile_cpu, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Body, Kernel};
use ir::{Bindings, DType, Graph, HostTensor};
use passes::OptLevel;

/// What each case shows, the type that is computed in, its graph, how many kernels fold rows, and how many launches
/// there are.
pub type Case = (&'static str, DType, &'static str, usize, u32);

/// Norms that move.
pub const MOVED: [Case; 10] = [
    (
        "one row, weights along the depth",
        DType::F16,
        "x = input \"x\" : f16[1, 512]\n g = constant random(seed=1) : f16[512]\n w = constant random(seed=2) : f16[200, 512]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, w {transpose_rhs}",
        1,
        1,
    ),
    (
        "five rows, weights along the columns",
        DType::BF16,
        "x = input \"x\" : bf16[5, 264]\n g = constant random(seed=1) : bf16[264]\n w = constant random(seed=2) : bf16[264, 72]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n p = contract n, w\n y = relu p",
        1,
        1,
    ),
    (
        "an odd number of groups, in f32, without a gain",
        DType::F32,
        "x = input \"x\" : f32[3, 1, 250]\n w = constant random(seed=2) : f32[33, 250]\n n = rms_norm x {axis=2, epsilon=0.001}\n \
         y = contract n, w {transpose_rhs}",
        1,
        1,
    ),
    (
        "a gate and its operand",
        DType::F16,
        "x = input \"x\" : f16[2, 256]\n g = constant random(seed=1) : f16[256]\n a = constant random(seed=2) : f16[96, 256]\n \
         b = constant random(seed=3) : f16[96, 256]\n n = rms_norm x, g {axis=1, epsilon=0.00001}\n p = contract n, a {transpose_rhs}\n \
         u = contract n, b {transpose_rhs}\n s = silu p\n y = mul s, u",
        1,
        1,
    ),
    (
        "the exporters' spelling: wide, narrowed, then the gain",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n g = constant random(seed=1) : f16[256]\n w = constant random(seed=2) : f16[256, 128]\n \
         f = cast x {to=f32}\n q = mul f, f\n m = reduce q {op=mean, axes=[1], keep_dims}\n e = constant [0.00001] : f32[]\n v = add m, e\n \
         r = rsqrt v\n n = mul f, r\n h = cast n {to=f16}\n o = mul g, h\n y = contract o, w",
        1,
        1,
    ),
    (
        "a block: a product with its residual, the norm, gate and operand, and a product back",
        DType::F16,
        "x = input \"x\" : f16[1, 1, 128]\n z = input \"z\" : f16[1, 1, 128]\n g = constant random(seed=1) : f16[128]\n \
         o = constant random(seed=2) : f16[128, 128]\n a = constant random(seed=3) : f16[192, 128]\n b = constant random(seed=4) : f16[192, 128]\n \
         d = constant random(seed=5) : f16[128, 192]\n p = contract z, o {transpose_rhs}\n h = add x, p\n \
         n = rms_norm h, g {axis=2, epsilon=0.00001}\n e = contract n, a {transpose_rhs}\n u = contract n, b {transpose_rhs}\n s = silu e\n \
         m = mul s, u\n q = contract m, d {transpose_rhs}\n y = add h, q",
        1,
        3,
    ),
    (
        "rows longer than a workgroup's step, and as many as are computed row by row",
        DType::F16,
        "x = input \"x\" : f16[16, 1544]\n g = constant random(seed=1) : f16[1544]\n w = constant random(seed=2) : f16[24, 1544]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, w {transpose_rhs}",
        1,
        1,
    ),
    (
        "three products that cannot be one",
        DType::F16,
        "x = input \"x\" : f16[1, 512]\n g = constant random(seed=1) : f16[512]\n a = constant random(seed=2) : f16[64, 512]\n \
         w = constant random(seed=3) : f16[512, 48]\n n = rms_norm x, g {axis=1, epsilon=0.00001}\n p = contract n, a {transpose_rhs}\n \
         q = contract n, w\n y = concat p, q {axis=1}",
        2,
        2,
    ),
    (
        "weights of four bits without a gain",
        DType::BF16,
        "x = input \"x\" : bf16[1, 1056]\n w = constant random(seed=2) : i4[96, 1056]\n k = constant random(seed=3) : bf16[96, 33]\n \
         q = dequantize w, k {axis=1, group=32, out=bf16}\n n = rms_norm x {axis=1, epsilon=0.00001}\n \
         y = contract n, q {transpose_rhs}",
        1,
        1,
    ),
    (
        "five rows by weights of four bits",
        DType::BF16,
        "x = input \"x\" : bf16[5, 512]\n w = constant random(seed=2) : i4[256, 512]\n k = constant random(seed=3) : bf16[256, 4]\n \
         q = dequantize w, k {axis=1, group=128, out=bf16}\n n = rms_norm x {axis=1, epsilon=0.00001}\n \
         p = contract n, q {transpose_rhs}\n y = silu p",
        1,
        1,
    ),
];

/// Norms that stay.
const STAYED: [Case; 7] = [
    (
        "another reader",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n g = constant random(seed=1) : f16[256]\n w = constant random(seed=2) : f16[256, 256]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n p = contract n, w {transpose_rhs}\n y = add p, n",
        0,
        2,
    ),
    (
        "a gain that is given",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n g = input \"g\" : f16[256]\n w = constant random(seed=2) : f16[64, 256]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, w {transpose_rhs}",
        0,
        2,
    ),
    (
        "many rows",
        DType::F16,
        "x = input \"x\" : f16[17, 256]\n g = constant random(seed=1) : f16[256]\n w = constant random(seed=2) : f16[64, 256]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, w {transpose_rhs}",
        0,
        2,
    ),
    (
        "a layer norm",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n w = constant random(seed=2) : f16[64, 256]\n n = layer_norm x {axis=1, epsilon=0.00001}\n \
         y = contract n, w {transpose_rhs}",
        0,
        2,
    ),
    (
        "parts of the product before it, which the norm's kernel adds up",
        DType::F16,
        "x = input \"x\" : f16[1, 28672]\n w = constant random(seed=2) : f16[256, 28672]\n g = constant random(seed=3) : f16[256]\n \
         v = constant random(seed=4) : f16[64, 256]\n p = contract x, w {transpose_rhs}\n n = rms_norm p, g {axis=1, epsilon=0.00001}\n \
         y = contract n, v {transpose_rhs}",
        0,
        3,
    ),
    (
        "weights of four bits, which take no gain",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n g = constant random(seed=1) : f16[256]\n w = constant random(seed=2) : i4[64, 256]\n \
         k = constant random(seed=3) : f16[64, 8]\n q = dequantize w, k {axis=1, group=32, out=f16}\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, q {transpose_rhs}",
        0,
        2,
    ),
    (
        "a gain that f16 has no weights for",
        DType::F16,
        "x = input \"x\" : f16[1, 256]\n g = constant random(seed=1, scale=0.00003) : f16[256]\n w = constant random(seed=2) : f16[64, 256]\n \
         n = rms_norm x, g {axis=1, epsilon=0.00001}\n y = contract n, w {transpose_rhs}",
        0,
        2,
    ),
];

pub fn graph(what: &str, body: &str) -> Graph {
    let text = format!("graph @scaled stage=import {{\n {body}\n return y as \"y\"\n}}\n");
    parse(&text).unwrap_or_else(|e| panic!("{what}: {e}"))
}

pub fn folds_rows(kernel: &Kernel) -> bool {
    matches!(&kernel.body, Body::Contract(c) if c.statistic.is_some())
}

/// The same inputs with all numbers times a factor, so that epsilon counts, and with the first row's first element as
/// given.
fn changed(inputs: &Tensors, factor: f64, first: Option<f64>) -> Tensors {
    let change = |t: &HostTensor| {
        let mut values: Vec<f64> = t.to_f64().iter().map(|v| v * factor).collect();
        if let (Some(first), Some(value)) = (first, values.first_mut()) {
            *value = first;
        }
        HostTensor::from_f64(t.dtype, t.shape.clone(), &values).expect("as many numbers")
    };
    inputs.iter().map(|(name, t)| (name.clone(), change(t))).collect()
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (what, dtype, body, folded, launches) in MOVED.into_iter().chain(STAYED) {
        let context = format!("{arch}: {what}");
        let graph = graph(what, body);
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        let kernels: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
        // Where a product is in parts is for the prediction to say; their sum is the norm's then.
        let whole = what.starts_with("parts") && !kernels.iter().any(|k| k.ends_with("_parts"));
        assert!(!whole || arch == "gfx1201", "{context}: {kernels:?}");
        let (folded, launches) = if whole { (1, 2) } else { (folded, launches) };
        let found = plan.kernels.values().filter(|k| folds_rows(k)).count();
        assert_eq!(found, folded, "{context}: {kernels:?}");
        assert_eq!(plan.launches().0, launches as usize, "{context}: {kernels:?}");
        let plain = random_inputs(&graph, &Bindings::new(), 5);
        let infinite = Some(f64::INFINITY);
        // gfx90a's dot products take subnormal numbers for 0. Products that fold their rows do not use them there.
        let (flushes, tiny_gain) = (arch == "gfx90a", what == "a gain that f16 has no weights for");
        let mut all = Vec::new();
        if !(flushes && tiny_gain) {
            all.push(plain.clone());
        }
        if !flushes || folded == launches as usize {
            all.push(changed(&plain, 0.002, None));
        }
        if folded == 1 {
            all.extend([changed(&plain, 1.0, infinite), changed(&plain, 1.0, Some(f64::NAN))]);
        }
        for inputs in all {
            let outcome = tools.run(&built, &inputs, 1 << 28);
            tally.add(&context, &outcome);
            let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_matches(&outcome.outputs, &want, dtype, &context);
        }
    }
    tally.finish(arch, MOVED.len());
}

#[test]
fn row_scales_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn row_scales_on_gfx942() {
    check("gfx942");
}

#[test]
fn row_scales_on_gfx1100() {
    check("gfx1100");
}

#[test]
fn row_scales_on_gfx1201() {
    check("gfx1201");
}

/// A norm and a product of random sizes and types, with or without a gain, weights that lie along the depth or the
/// columns.
fn random_case(random: &mut Random) -> (DType, String) {
    let mut of = |all: &[usize]| all[random.below(all.len())];
    let dtype = [DType::F16, DType::BF16, DType::F32][of(&[0, 1, 2])];
    let rows = of(&[1, 2, 3, 5, 7, 8, 9, 13, 16]);
    let depth = of(&[24, 33, 64, 72, 250, 264, 520, 1032, 1100]);
    let columns = of(&[1, 3, 8, 17, 40, 64, 96, 130]);
    let (gain, operand) = match of(&[0, 1, 2]) {
        0 => (String::new(), ""),
        _ => (format!("g = constant random(seed=7) : {dtype}[{depth}]\n "), ", g"),
    };
    let (shape, transpose) = match of(&[0, 1]) {
        0 => (format!("[{depth}, {columns}]"), ""),
        _ => (format!("[{columns}, {depth}]"), " {transpose_rhs}"),
    };
    let body = format!(
        "x = input \"x\" : {dtype}[{rows}, {depth}]\n {gain}w = constant random(seed=8) : {dtype}{shape}\n \
         n = rms_norm x{operand} {{axis=1, epsilon=0.00001}}\n y = contract n, w{transpose}"
    );
    (dtype, body)
}

#[test]
fn random_row_scales() {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(31);
    let (cases, mut folded) = (if graphc_tests::everything() { 120 } else { 24 }, 0);
    for number in 0..cases {
        let arch = ["gfx90a", "gfx942", "gfx1100", "gfx1201"][number % 4];
        let (dtype, body) = random_case(&mut random);
        let context = format!("{arch}: {body}");
        let graph = graph(&context, &body);
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        folded += plan.kernels.values().filter(|k| folds_rows(k)).count();
        let plain = random_inputs(&graph, &Bindings::new(), number as u64);
        for inputs in [plain.clone(), changed(&plain, 0.001, None)] {
            let outcome = tools.run(&built, &inputs, 1 << 28);
            let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_matches(&outcome.outputs, &want, dtype, &context);
        }
    }
    println!("{folded} of {cases} products fold their rows");
    assert!(folded * 2 > cases, "{folded} of {cases}");
}

/// The CPU keeps the norms, and computes the same.
#[test]
fn row_scales_on_the_cpu() {
    for (what, dtype, body, ..) in MOVED {
        let graph = graph(what, body);
        let inputs = random_inputs(&graph, &Bindings::new(), 5);
        let got = compile_cpu(&graph, OptLevel::O2, None)
            .run(&inputs)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_matches(&got, &want, dtype, what);
    }
}
