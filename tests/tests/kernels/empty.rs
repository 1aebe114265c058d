//! Sizes of 0: an empty batch, an empty past, and every family of ops on nothing, on the CPU and on emulated GPUs.

use graphc::ir::graph::{eval, parse, verify};
use graphc::ir::{Bindings, DType, Graph, HostTensor, Symbol};
use graphc::passes::OptLevel;
use graphc_tests::emulator::{Toolchain, toolchain};
use graphc_tests::reference::{Tensors, assert_matches, compile_cpu, random_inputs};

/// Every graph has a symbol `n` that may be 0; `x` is `f32[n, 6]`, `w` `f32[6, 4]`, `i` `i64[n]`, all below 6.
const BODIES: &[(&str, &str)] = &[
    ("pointwise", "a = exp x\n  b = add a, x\n  return b as \"y\""),
    ("softmax", "y = softmax x {axis=1}\n  return y as \"y\""),
    ("softmax_of_none", "y = softmax x {axis=0}\n  return y as \"y\""),
    (
        "norm",
        "s = constant [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] : f32[6]\n  y = layer_norm x, s, s {axis=1, epsilon=1e-5}\n  return y as \"y\"",
    ),
    (
        "folds_along",
        "a = reduce x {op=sum, axes=[1]}\n  b = reduce x {op=max, axes=[1]}\n  return a as \"a\", b as \"b\"",
    ),
    (
        "folds_across",
        "a = reduce x {op=sum, axes=[0]}\n  b = reduce x {op=max, axes=[0]}\n  c = reduce x {op=min, axes=[0, 1]}\n  \
         d = reduce x {op=prod, axes=[0]}\n  e = reduce x {op=arg_max, axes=[0]}\n  f = reduce x {op=mean, axes=[0]}\n  \
         return a as \"a\", b as \"b\", c as \"c\", d as \"d\", e as \"e\", f as \"f\"",
    ),
    ("product", "a = contract x, w\n  y = relu a\n  return y as \"y\""),
    (
        "product_over_none",
        "y = contract x, x {transpose_lhs}\n  return y as \"y\"",
    ),
    (
        "scan",
        "a = scan x {op=sum, axis=0}\n  b = scan x {op=sum, axis=1}\n  return a as \"a\", b as \"b\"",
    ),
    (
        "orders",
        "a = top_k x {axis=1, k=2}\n  b = top_k x {axis=0, k=n}\n  return a.0 as \"a\", a.1 as \"p\", b.0 as \"b\"",
    ),
    (
        "take",
        "a = transpose w {perm=[1, 0]}\n  y = take a, i {axis=1}\n  return y as \"y\"",
    ),
    (
        "scatter",
        "z = constant [0.0] : f32[1]\n  d = broadcast z : f32[6]\n  u = cast i {to=f32}\n  \
         y = scatter_elements d, i, u {axis=0, reduce=sum}\n  return y as \"y\"",
    ),
    (
        "joined",
        "a = concat x, x {axis=0}\n  b = concat x, w2 {axis=0}\n  return a as \"a\", b as \"b\"",
    ),
    (
        "neighbours",
        "d = contract x, w\n  p = slice d {starts=[0, 0], sizes=[n, 2]}\n  q = slice d {starts=[0, 2], sizes=[n, 2]}\n  \
         a = concat p, q {axis=0}\n  b = concat q, p {axis=0}\n  return a as \"a\", b as \"b\"",
    ),
    (
        "views",
        "a = transpose x {perm=[1, 0]}\n  b = reshape x : f32[2, n, 3]\n  c = slice x {starts=[0, 1], sizes=[n, 2]}\n  \
         d = pad x {low=[1, 0], high=[1, 2]}\n  return a as \"a\", b as \"b\", c as \"c\", d as \"d\"",
    ),
    (
        "convolution",
        "a = reshape x : f32[n, 1, 2, 3]\n  f = constant [1.0, -1.0] : f32[2, 1, 1, 1]\n  b = conv a, f\n  \
         c = pool b {kind=max, size=[2, 2], strides=[1, 1]}\n  return c as \"y\"",
    ),
    (
        "attention",
        "q = reshape x : f32[n, 1, 2, 3]\n  y = attention q, q, q {scale=0.5, causal}\n  return y as \"y\"",
    ),
    (
        "past",
        "n1 = constant [0.5] : f32[1]\n  q = broadcast n1 : f32[1, 2, 3, 4]\n  p = reshape x : f32[1, 2, n, 3]\n  \
         l = constant [0.0] : f32[1]\n  o = broadcast l : f32[1, 2, n, 1]\n  past = concat p, o {axis=3}\n  \
         k = concat past, q {axis=2}\n  y = attention q, k, k {scale=0.5, causal}\n  return y as \"y\", k as \"present\"",
    ),
    (
        "only_past",
        "n1 = constant [0.5] : f32[1]\n  q = broadcast n1 : f32[1, 2, 4, 3]\n  k = reshape x : f32[1, 2, n, 3]\n  \
         y = attention q, k, k {scale=0.5}\n  return y as \"y\"",
    ),
    (
        "positions",
        "a = iota {axis=0} : f32[n]\n  c = dim {size=2*n}\n  return a as \"a\", c as \"c\"",
    ),
];

fn graph(name: &str, body: &str) -> Graph {
    let uses = |word: &str| {
        body.contains(&format!(" {word},"))
            || body.contains(&format!(" {word} "))
            || body.contains(&format!(" {word}\n"))
    };
    let mut inputs = String::new();
    for (word, ty) in [
        ("x", "f32[n, 6]"),
        ("w", "f32[6, 4]"),
        ("w2", "f32[2, 6]"),
        ("i", "i64[n]"),
    ] {
        if uses(word) || word == "x" {
            inputs += &format!("  {word} = input \"{word}\" : {ty}\n");
        }
    }
    let text = format!("graph @{name} stage=import {{\n  symbol n: 0..64 hint 4\n{inputs}  {body}\n}}\n");
    let graph = parse::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    verify::verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}"));
    graph
}

fn inputs(graph: &Graph, n: i64) -> Tensors {
    let bindings = Bindings::from_iter([(Symbol::new("n"), n)]);
    let mut inputs = random_inputs(graph, &bindings, 7);
    if let Some(i) = inputs.get_mut("i") {
        let indices: Vec<i64> = (0..n).map(|i| i * 5 % 6).collect();
        *i = HostTensor::from_i64(DType::I64, [n as usize], &indices).expect("as many numbers as elements");
    }
    inputs
}

#[test]
fn on_the_cpu() {
    for (name, body) in BODIES {
        let graph = graph(name, body);
        for level in [OptLevel::O0, OptLevel::O2] {
            let executable = compile_cpu(&graph, level, None);
            for n in [0, 1, 0, 5] {
                let inputs = inputs(&graph, n);
                let want = eval::evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
                let got = executable.run(&inputs).unwrap_or_else(|e| panic!("{name} at {n}: {e}"));
                assert_matches(&got, &want, DType::F32, &format!("{name} at {n}, {level:?}"));
            }
        }
    }
}

fn emulated(tools: &Toolchain, arch: &str) {
    for (name, body) in BODIES {
        let graph = graph(name, body);
        let built = tools.build(&graph, arch, None);
        for n in [0, 3] {
            let inputs = inputs(&graph, n);
            let want = eval::evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
            let got = tools.run(&built, &inputs, 0).outputs;
            assert_matches(&got, &want, DType::F32, &format!("{name} at {n} on {arch}"));
        }
    }
}

#[test]
fn on_gfx90a() {
    if let Some(tools) = toolchain() {
        emulated(&tools, "gfx90a");
    }
}

#[test]
fn on_gfx1100() {
    if let Some(tools) = toolchain() {
        emulated(&tools, "gfx1100");
    }
}
