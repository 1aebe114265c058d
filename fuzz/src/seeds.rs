//! Valid programs to begin with: random graphs, and one of each kind of kernel, compiled for the CPU.

use std::sync::OnceLock;

use graphc::driver::{BuildOptions, build};
use graphc::ir::{Graph, Program, Target};
use graphc::passes::OptLevel;
use graphc_tests::random_graph::{Step, case};

use crate::random::Random;

/// Graphs whose kernels take every way through the CPU device.
const GRAPHS: [&str; 18] = [
    "x = input \"x\" : f32[2, 5, 6, 3]\n f = constant random(seed=1) : f32[8, 3, 3, 3]\n b = constant random(seed=2) : f32[8]\n \
     y = conv x, f, b {pad_low=[1, 1], pad_high=[1, 1], channels_last}\n z = relu y\n return z as \"y\"",
    "x = input \"x\" : f32[2, 6, 7, 5]\n f = constant random(seed=1) : f32[4, 3, 3, 3]\n \
     y = conv x, f {groups=2, strides=[2, 1], pad_low=[1, 0], pad_high=[1, 0]}\n return y as \"y\"",
    "x = input \"x\" : f32[1, 16, 14, 14]\n f = constant random(seed=1) : f32[32, 16, 3, 3]\n \
     y = conv x, f {pad_low=[1, 1], pad_high=[1, 1]}\n return y as \"y\"",
    "x = input \"x\" : f32[1, 6, 8, 6]\n f = constant random(seed=1) : f32[6, 3, 3, 1]\n \
     y = conv x, f {groups=6, channels_last}\n z = silu y\n return z as \"y\"",
    "symbol n: 0..9 hint 4\n x = input \"x\" : f32[n, 12]\n w = constant random(seed=3) : f32[12, 20]\n b = constant \
     random(seed=4) : f32[20]\n y = contract x, w\n z = add y, b\n g = gelu z\n return g as \"y\"",
    "x = input \"x\" : f16[3, 8, 6]\n w = input \"w\" : f16[3, 6, 10]\n r = input \"r\" : f16[3, 8, 10]\n y = contract x, w\n \
     z = add y, r\n return z as \"y\"",
    "symbol s: 1..8 hint 5\n q = input \"q\" : f32[2, 3, s, 8]\n k = input \"k\" : f32[2, 3, s, 8]\n v = input \"v\" : f32[2, 3, s, \
     8]\n y = attention q, k, v {scale=0.5, causal}\n return y as \"y\"",
    "symbol n: 1..8 hint 4\n x = input \"x\" : f32[n, 33]\n y = softmax x {axis=1}\n return y as \"y\"",
    "x = input \"x\" : f32[5, 40]\n v = top_k x {axis=1, k=3} : f32[5, 3], i64[5, 3]\n return v as \"y\", v.1 as \"i\"",
    "x = input \"x\" : f32[4, 30]\n y = scan x {op=sum, axis=1}\n return y as \"y\"",
    "x = input \"x\" : f32[6, 5]\n i = input \"i\" : i64[7]\n y = take x, i {axis=0}\n return y as \"y\"",
    "x = input \"x\" : f32[3, 40, 50]\n y = transpose x {perm=[0, 2, 1]}\n return y as \"y\"",
    "a = input \"a\" : f32[30, 20, 10]\n b = input \"b\" : f32[30, 9, 10]\n y = concat a, b {axis=1}\n return y as \"y\"",
    "x = input \"x\" : f32[1, 8, 9, 9]\n y = pool x {kind=max, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1]}\n return \
     y as \"y\"",
    "x = input \"x\" : f32[2, 9, 7, 5]\n y = pool x {kind=average, size=[2, 3], pad_low=[1, 1], pad_high=[0, 1], channels_last}\n \
     return y as \"y\"",
    "x = input \"x\" : f32[6, 48]\n g = constant random(seed=5) : f32[48]\n b = constant random(seed=6) : f32[48]\n y = \
     layer_norm x, g, b {axis=1, epsilon=1e-5}\n return y as \"y\"",
    "d = input \"d\" : f32[6, 5]\n i = input \"i\" : i64[4, 1]\n u = input \"u\" : f32[4, 5]\n y = scatter_nd d, i, u \
     {reduce=sum}\n return y as \"y\"",
    "x = input \"x\" : i8[9, 4]\n w = constant random(seed=3) : i8[4, 6]\n y = contract x, w {out=i32}\n return y as \"y\"",
];

/// Random graphs besides.
const RANDOM: u64 = 40;

/// The programs, compiled once a process.
///
/// # Panics
/// When a seed does not compile: a bug of this file, or of graphc.
pub fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut graphs: Vec<Graph> = GRAPHS.iter().map(|body| parse(body)).collect();
        graphs.extend((0..RANDOM).map(|number| {
            let mut random = Random::new(0x5EED, number);
            let steps: Vec<Step> = (0..8).map(|_| std::array::from_fn(|_| random.bits() as u16)).collect();
            case(random.bits() as u16, &steps).graph
        }));
        graphs.iter().map(compile).collect()
    })
}

fn parse(body: &str) -> Graph {
    let text = format!("graph @seed stage=import {{\n {body}\n}}");
    graphc::ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn compile(graph: &Graph) -> Program {
    let options = BuildOptions::new(vec![Target::cpu()], OptLevel::O2);
    let built = build(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    built.program
}

/// The seeds' graphs as text.
pub fn texts() -> &'static [String] {
    static TEXTS: OnceLock<Vec<String>> = OnceLock::new();
    TEXTS.get_or_init(|| GRAPHS.iter().map(|body| parse(body).to_string()).collect())
}
