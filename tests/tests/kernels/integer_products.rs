//! Random products and convolutions of quantised tensors through the whole compiler: types, zero points, scales a
//! column, odd sizes, padding, groups. Results in eight bits are equal to integer arithmetic; no operand is made a
//! float on its way into a product. `GRAPHC_ALL_MODELS=1` runs more.

use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::integers::{Case, Shape};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::graph::parse::parse;
use ir::kernel::{Body, Mapping};
use ir::{DType, HostTensor, Plan};
use passes::OptLevel;

/// The mappings of a plan's products, all of which must be of signed bytes.
fn mappings(plan: &Plan, shape: &Shape) -> Vec<Mapping> {
    let mut found = Vec::new();
    for kernel in plan.kernels.values() {
        if let Body::Contract(body) = &kernel.body {
            for operand in [&body.lhs, &body.rhs] {
                assert_eq!(
                    operand.element(&kernel.exprs),
                    DType::I8,
                    "{} of {shape:?}",
                    kernel.name
                );
            }
            found.push(kernel.mapping.clone());
        }
    }
    found
}

#[test]
fn the_reference_is_integer_arithmetic() {
    let mut random = Random(41);
    for i in 0..40 {
        let case = Case::new(Shape::random(&mut random, i % 2 == 0), &mut random);
        let got = ir::graph::eval::evaluate(&case.graph, &case.inputs).expect("it evaluates");
        assert_eq!(case.wrong(&got["y"]), None, "{:?}", case.shape);
    }
}

#[test]
fn products_on_the_cpu() {
    let mut random = Random(77);
    for i in 0..if graphc_tests::everything() { 600 } else { 60 } {
        let case = Case::new(Shape::random(&mut random, i % 4 != 0), &mut random);
        let executable = compile_cpu(&case.graph, OptLevel::O2, None);
        let got = executable.run(&case.inputs).expect("it runs");
        assert_eq!(case.wrong(&got["y"]), None, "{:?}", case.shape);
    }
}

fn products(arch: &str, turn: u64) {
    let Some(tools) = toolchain() else { return };
    let count = if graphc_tests::everything() { 100 } else { 8 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + turn);
    let mut tally = Tally::default();
    let (mut by_matrix, mut all) = (0, 0);
    for i in 0..count {
        let case = Case::new(Shape::random(&mut random, i % 4 != 0), &mut random);
        let built = tools.build(&case.graph, arch, None);
        let found = mappings(&built.program.variants[0].plan, &case.shape);
        all += found.len();
        by_matrix += found.iter().filter(|m| matches!(m, Mapping::Matrix(_))).count();
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        tally.add(&format!("{arch} {:?}", case.shape), &outcome);
        assert_eq!(case.wrong(&outcome.outputs["y"]), None, "{arch} {:?}", case.shape);
        tally.error("exact", case.expected.len(), 0.0);
    }
    println!("{arch}: of {all} products {by_matrix} by matrix instructions");
    tally.finish(arch, count);
    assert!(
        by_matrix * 2 >= all,
        "{arch}: {by_matrix} of {all} by matrix instructions"
    );
}

#[test]
fn products_on_gfx90a() {
    products("gfx90a", 1);
}

#[test]
fn products_on_gfx942() {
    products("gfx942", 2);
}

#[test]
fn products_on_gfx950() {
    products("gfx950", 5);
}

#[test]
fn products_on_gfx1100() {
    products("gfx1100", 3);
}

#[test]
fn products_on_gfx1201() {
    products("gfx1201", 4);
}

/// Attention's weights by values, whose depth the run gives: both in eight bits, with zero points.
fn open_depths(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(61);
    let mut bytes = |shape: [usize; 3]| {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.below(256) as f64).collect();
        HostTensor::from_f64(DType::U8, shape.to_vec(), &values).expect("as many as the shape says")
    };
    for (m, n) in [(24, 16), (5, 33)] {
        let text = format!(
            "graph @open stage=import {{
  symbol k: 1..64 hint 24
  x = input \"x\" : u8[2, {m}, k]
  w = input \"w\" : u8[2, k, {n}]
  z = constant [3] : u8[1, 1, 1]
  v = constant [131] : u8[1, 1, 1]
  s = constant [0.125] : f32[1, 1, 1]
  xd = dequantize x, s, z {{out=f32}}
  wd = dequantize w, s, v {{out=f32}}
  p = contract xd, wd {{out=f32}}
  o = constant [64.0] : f32[1, 1, 1]
  oz = constant [9] : u8[1, 1, 1]
  y = quantize p, o, oz {{out=u8}}
  return y as \"y\"
}}
"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
        for k in [1usize, 24, 37] {
            let inputs = Tensors::from([("x".to_owned(), bytes([2, m, k])), ("w".to_owned(), bytes([2, k, n]))]);
            let want = ir::graph::eval::evaluate(&graph, &inputs).expect("it evaluates");
            let built = tools.build(&graph, arch, None);
            let outcome = tools.run(&built, &inputs, 1 << 26);
            assert_eq!(outcome.outputs["y"].to_f64(), want["y"].to_f64(), "{arch} {m}x{k}x{n}");
        }
    }
}

#[test]
fn open_depths_on_gfx90a() {
    open_depths("gfx90a");
}

#[test]
fn open_depths_on_gfx1100() {
    open_depths("gfx1100");
}
