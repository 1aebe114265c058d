//! Random products and convolutions through the whole compiler, on emulated GPUs: every shape of operands, odd sizes,
//! batches, every transpose, windows along one to three axes, groups, biases, activations and residuals, in the types
//! that matrix instructions take, or the lanes in their place.
//!
//! Each kernel is compared with the interpreter of kernels, which the evaluator of graphs checks elsewhere.
//! `GRAPHC_ALL_MODELS=1` runs 80 products and 20 convolutions on each; else a part runs.

use std::fmt::Write as _;

use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::reference::Tensors;
use ir::kernel::{Body, Mapping};
use ir::{DType, HostTensor};

const ARCHS: [&str; 7] = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx906", "gfx1030"];

/// Numbers that are the same every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Small integers and quarters: products of integers are exact, those of floats round.
    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        let count = shape.iter().product();
        if dtype.is_int() {
            let values: Vec<i64> = (0..count).map(|_| self.below(255) as i64 - 127).collect();
            return HostTensor::from_i64(dtype, shape.to_vec(), &values).expect("fits");
        }
        let values: Vec<f64> = (0..count).map(|_| self.below(4001) as f64 / 1000.0 - 2.0).collect();
        HostTensor::from_f64(dtype, shape.to_vec(), &values).expect("fits")
    }
}

/// A graph's text and its inputs.
struct Case {
    text: String,
    inputs: Tensors,
}

/// A size: small, around the tiles' edges, or one that divides nothing.
fn size(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.of(&[1, 2, 3, 5, 7, 8, 13]),
        1 => random.of(&[15, 16, 17, 31, 32, 33, 40, 48]),
        2 => random.of(&[63, 64, 65, 72, 96, 100, 127]),
        _ => random.of(&[128, 129, 136, 160, 200, 257]),
    }
}

fn product(random: &mut Random, number: usize) -> Case {
    let dtype = random.of(&[DType::F16, DType::F16, DType::BF16, DType::F32, DType::I8]);
    let (m, n, k) = (size(random), size(random), size(random));
    let batch = random.of(&[0, 0, 0, 1, 3]);
    let (transpose_lhs, transpose_rhs) = (random.below(2) == 1, random.below(2) == 1);
    let shared = batch > 0 && random.below(3) == 0 && !transpose_lhs;
    let shape = |rows: usize, cols: usize, batched: bool| match batched && batch > 0 {
        true => vec![batch, rows, cols],
        false => vec![rows, cols],
    };
    let lhs = if transpose_lhs {
        shape(k, m, true)
    } else {
        shape(m, k, true)
    };
    let rhs = if transpose_rhs {
        shape(n, k, !shared)
    } else {
        shape(k, n, !shared)
    };
    let out = shape(m, n, true);
    let mut flags: Vec<String> = Vec::new();
    if transpose_lhs {
        flags.push("transpose_lhs".to_owned());
    }
    if transpose_rhs {
        flags.push("transpose_rhs".to_owned());
    }
    let sum = if dtype == DType::I8 { DType::I32 } else { dtype };
    if dtype == DType::I8 {
        flags.push("out=i32".to_owned());
    }
    let mut inputs = Tensors::new();
    let mut body = String::new();
    let mut input = |random: &mut Random, body: &mut String, name: &str, dtype: DType, shape: &[usize]| {
        let _ = writeln!(body, "  {name} = input \"{name}\" : {dtype}{shape:?}");
        inputs.insert(name.to_owned(), random.tensor(dtype, shape));
    };
    input(random, &mut body, "x", dtype, &lhs);
    input(random, &mut body, "w", dtype, &rhs);
    let epilogue = random.below(4);
    if epilogue & 1 == 1 {
        input(random, &mut body, "b", sum, &[n]);
    }
    if epilogue & 2 == 2 {
        input(random, &mut body, "r", sum, &out);
    }
    let flags = if flags.is_empty() {
        String::new()
    } else {
        format!(" {{{}}}", flags.join(", "))
    };
    let _ = writeln!(body, "  p = contract x, w{flags}");
    let mut last = "p";
    if epilogue & 1 == 1 {
        let _ = writeln!(body, "  p1 = add {last}, b");
        last = "p1";
    }
    if epilogue & 2 == 2 {
        let _ = writeln!(body, "  p2 = add {last}, r");
        last = "p2";
    }
    if random.below(2) == 1 {
        let _ = writeln!(body, "  p3 = relu {last}");
        last = "p3";
    }
    let text = format!("graph @product_{number} stage=import {{\n{body}  return {last} as \"y\"\n}}\n");
    Case { text, inputs }
}

fn convolution(random: &mut Random, number: usize) -> Case {
    let dtype = random.of(&[DType::F16, DType::F16, DType::BF16, DType::F32]);
    let axes = random.of(&[1, 2, 2, 2, 3]);
    let batch = random.of(&[1, 1, 2, 3]);
    let groups = random.of(&[1, 1, 1, 2, 5]);
    // Of a depthwise convolution a group is a channel.
    let each = random.of(&[1, 3, 8, 16, 20, 33]);
    let filters = random.of(&[1, 2, 7, 16, 24, 40]);
    let most = if axes == 3 { 5 } else { 14 };
    let window: Vec<usize> = (0..axes).map(|_| random.of(&[1, 2, 3, 3, 5])).collect();
    let strides: Vec<usize> = (0..axes).map(|_| random.of(&[1, 1, 2, 3])).collect();
    let dilations: Vec<usize> = (0..axes).map(|_| random.of(&[1, 1, 1, 2])).collect();
    let low: Vec<usize> = (0..axes).map(|_| random.below(3)).collect();
    let high: Vec<usize> = (0..axes).map(|_| random.below(3)).collect();
    let reach = |a: usize| (window[a] - 1) * dilations[a] + 1;
    let image: Vec<usize> = (0..axes)
        .map(|a| reach(a).saturating_sub(low[a] + high[a]).max(1) + random.below(most))
        .collect();
    let points = (0..axes).map(|a| (image[a] + low[a] + high[a] - reach(a)) / strides[a] + 1);
    let shape = |first: [usize; 2], rest: &[usize]| [&first[..], rest].concat();
    let out = shape([batch, filters * groups], &points.collect::<Vec<_>>());
    let mut inputs = Tensors::new();
    let mut body = String::new();
    let mut input = |random: &mut Random, body: &mut String, name: &str, shape: &[usize]| {
        let _ = writeln!(body, "  {name} = input \"{name}\" : {dtype}{shape:?}");
        inputs.insert(name.to_owned(), random.tensor(dtype, shape));
    };
    input(random, &mut body, "x", &shape([batch, each * groups], &image));
    input(random, &mut body, "w", &shape([filters * groups, each], &window));
    let bias = random.below(2) == 1;
    if bias {
        input(random, &mut body, "b", &[filters * groups]);
    }
    let residual = random.below(2) == 1;
    if residual {
        input(random, &mut body, "r", &out);
    }
    let operands = if bias { "x, w, b" } else { "x, w" };
    let _ = writeln!(
        body,
        "  c = conv {operands} {{groups={groups}, strides={strides:?}, dilations={dilations:?}, pad_low={low:?}, pad_high={high:?}}}"
    );
    let mut last = "c";
    if residual {
        let _ = writeln!(body, "  c1 = add {last}, r");
        last = "c1";
    }
    if random.below(2) == 1 {
        let _ = writeln!(body, "  c2 = relu {last}");
        last = "c2";
    }
    let text = format!("graph @convolution_{number} stage=import {{\n{body}  return {last} as \"y\"\n}}\n");
    Case { text, inputs }
}

/// Runs cases on an arch; says how many products went to matrix instructions.
fn run(arch: &str, cases: &[Case], least_matrix: usize) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    let mut by_matrix = 0;
    for case in cases {
        let graph = ir::graph::parse::parse(&case.text).unwrap_or_else(|e| panic!("{e}\n{}", case.text));
        let built = tools.build(&graph, arch, None);
        let kernels = built.program.variants[0].plan.kernels.values();
        by_matrix += kernels
            .filter(|k| matches!(k.body, Body::Contract(_)) && matches!(k.mapping, Mapping::Matrix(_)))
            .count();
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        tally.add(&format!("{arch} {}", case.text), &outcome);
    }
    println!("{arch}: {by_matrix} of {} by matrix instructions", cases.len());
    tally.finish(arch, cases.len());
    assert!(
        by_matrix >= least_matrix,
        "{arch}: only {by_matrix} of the cases use matrix instructions"
    );
}

fn convolutions(arch: &str) {
    let turn = ARCHS.iter().position(|a| *a == arch).expect("one of them");
    let count = if graphc_tests::everything() { 20 } else { 8 };
    let mut random = Random(0x6a09_e667_f3bc_c908 + turn as u64);
    let cases: Vec<Case> = (0..count).map(|i| convolution(&mut random, i)).collect();
    run(arch, &cases, count / 4);
}

#[test]
fn convolutions_on_gfx90a() {
    convolutions("gfx90a");
}

#[test]
fn convolutions_on_gfx942() {
    convolutions("gfx942");
}

#[test]
fn convolutions_on_gfx950() {
    convolutions("gfx950");
}

#[test]
fn convolutions_on_gfx1100() {
    convolutions("gfx1100");
}

#[test]
fn convolutions_on_gfx1201() {
    convolutions("gfx1201");
}

fn products(arch: &str) {
    let turn = ARCHS.iter().position(|a| *a == arch).expect("one of them");
    let count = if graphc_tests::everything() { 80 } else { 24 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + turn as u64);
    let cases: Vec<Case> = (0..count).map(|i| product(&mut random, i)).collect();
    run(arch, &cases, count / 2);
}

#[test]
fn products_on_gfx90a() {
    products("gfx90a");
}

#[test]
fn products_on_gfx942() {
    products("gfx942");
}

#[test]
fn products_on_gfx950() {
    products("gfx950");
}

#[test]
fn products_on_gfx1100() {
    products("gfx1100");
}

#[test]
fn products_on_gfx1201() {
    products("gfx1201");
}

#[test]
fn products_on_gfx906() {
    products("gfx906");
}

#[test]
fn products_on_gfx1030() {
    products("gfx1030");
}
