//! Random products and convolutions of 8-bit floats through the whole compiler: both kinds of exponents, OCP's and
//! FNUZ, every transposition, scales a tensor, a row and a column, odd sizes. Results equal exact arithmetic but for
//! the order of the sum. `GRAPHC_ALL_MODELS=1` runs more.

use graphc::emu::CodeObject;
use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::float8::{Case, Shape};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::kernel::{Body, Mapping};
use ir::{DType, HostTensor, Plan, Storage};
use passes::OptLevel;

const ALL: [DType; 4] = [DType::F8E4M3FN, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ];

/// The types of the operands of a plan's products, and whether they are by matrix instructions.
fn products_of(plan: &Plan) -> Vec<([DType; 2], bool)> {
    let bodies = plan.kernels.values().filter_map(|kernel| match &kernel.body {
        Body::Contract(body) => {
            let of = |operand: &ir::kernel::Operand| operand.element(&kernel.exprs);
            let types = [of(&body.lhs), of(&body.rhs)];
            Some((types, matches!(kernel.mapping, Mapping::Matrix(_))))
        }
        _ => None,
    });
    bodies.collect()
}

#[test]
fn the_reference_is_exact_arithmetic() {
    let mut random = Random(43);
    for _ in 0..40 {
        let case = Case::new(Shape::random(&mut random, &ALL), &mut random);
        let got = ir::graph::eval::evaluate(&case.graph, &case.inputs).expect("it evaluates");
        assert_eq!(case.wrong(&got["y"]), None, "{:?}", case.shape);
    }
}

#[test]
fn products_on_the_cpu() {
    let mut random = Random(79);
    for _ in 0..if graphc_tests::everything() { 400 } else { 40 } {
        let case = Case::new(Shape::random(&mut random, &ALL), &mut random);
        let executable = compile_cpu(&case.graph, OptLevel::O2, None);
        let got = executable.run(&case.inputs).expect("it runs");
        assert_eq!(case.wrong(&got["y"]), None, "{:?}", case.shape);
    }
}

/// What a target makes of factors that are stored in some types.
fn factors(arch: &str, shape: &Shape) -> [DType; 2] {
    let is_four = |dtype: &DType| matches!(dtype, DType::F8E4M3FN | DType::F8E4M3FNUZ);
    let is_ocp = |dtype: &DType| matches!(dtype, DType::F8E4M3FN | DType::F8E5M2);
    let types = [shape.x, shape.w];
    let wide = match types.iter().all(is_four) {
        true => [DType::F16; 2],
        false => [DType::BF16; 2],
    };
    // Infinities that the other family lacks could be among what is given.
    let given = [shape.left == graphc_tests::float8::Left::Stored, shape.batched_rhs];
    let has_infinities = |i: usize| types[i] == DType::F8E5M2 && given[i];
    match (arch, types.map(|t| is_ocp(&t))) {
        ("gfx950" | "gfx1201", [true, true]) | ("gfx942", [false, false]) => types,
        ("gfx942", [true, true]) if !has_infinities(0) && !has_infinities(1) => types.map(|t| match is_four(&t) {
            true => DType::F8E4M3FNUZ,
            false => DType::F8E5M2FNUZ,
        }),
        _ => wide,
    }
}

/// The product of stored floats by a constant has its multiply-adds in instructions of its own type: no other
/// multiplies in the code, and what a run of it counts is the whole product.
#[test]
fn the_code_multiplies_8_bit_floats() {
    let Some(tools) = toolchain() else { return };
    let (four, five) = (DType::F8E4M3FN, DType::F8E5M2);
    for (arch, stored, names) in [
        (
            "gfx942",
            [four; 2],
            &["v_mfma_f32_32x32x16_fp8_fp8", "v_mfma_f32_16x16x32_fp8_fp8"][..],
        ),
        (
            "gfx942",
            [DType::F8E5M2FNUZ; 2],
            &["v_mfma_f32_32x32x16_bf8_bf8", "v_mfma_f32_16x16x32_bf8_bf8"],
        ),
        ("gfx950", [four; 2], &["_fp8_fp8", "_f8f6f4"]),
        ("gfx950", [five; 2], &["_bf8_bf8", "_f8f6f4"]),
        ("gfx1201", [four; 2], &["v_wmma_f32_16x16x16_fp8_fp8"]),
        ("gfx1201", [five; 2], &["v_wmma_f32_16x16x16_bf8_bf8"]),
        // The instructions have the right operand first.
        (
            "gfx942",
            [DType::F8E4M3FNUZ, DType::F8E5M2FNUZ],
            &["v_mfma_f32_32x32x16_bf8_fp8", "v_mfma_f32_16x16x32_bf8_fp8"],
        ),
        (
            "gfx942",
            [DType::F8E5M2FNUZ, DType::F8E4M3FNUZ],
            &["v_mfma_f32_32x32x16_fp8_bf8", "v_mfma_f32_16x16x32_fp8_bf8"],
        ),
        ("gfx950", [four, five], &["_bf8_fp8", "_f8f6f4"]),
        ("gfx950", [five, four], &["_fp8_bf8", "_f8f6f4"]),
        ("gfx1201", [four, five], &["v_wmma_f32_16x16x16_bf8_fp8"]),
        ("gfx1201", [five, four], &["v_wmma_f32_16x16x16_fp8_bf8"]),
    ] {
        let graph = product_of(stored, 128, 512);
        let [x, w] = stored;
        let stored = format!("{x} by {w}");
        let built = tools.build(&graph, arch, None);
        let mut lines = Vec::new();
        for code in built.program.variants[0].code.values().flatten() {
            let object = CodeObject::load(code).expect("a code object");
            let (at, size) = object.text();
            let bytes = &object.image()[at as usize..(at + size) as usize];
            let listing = tools
                .disassembler
                .disassemble(object.target(), at, bytes)
                .expect("code");
            lines.extend(listing.into_iter().map(|line| line.text));
        }
        let multiplies: Vec<&String> = lines
            .iter()
            .filter(|l| l.contains("mfma") || l.contains("wmma"))
            .collect();
        assert!(!multiplies.is_empty(), "{arch} {stored}");
        for line in &multiplies {
            assert!(names.iter().any(|name| line.contains(name)), "{arch} {stored}: {line}");
        }
        let bytes = |dtype| HostTensor::new(dtype, [128, 512], Storage::new(vec![0x30u8; 128 * 512])).expect("as many");
        let inputs = Tensors::from([("x".to_owned(), bytes(x)), ("w".to_owned(), bytes(w))]);
        let outcome = tools.run(&built, &inputs, 0);
        let counted: u64 = outcome.launches.iter().map(|l| l.counters.matrix_macs).sum();
        assert!(counted >= 128 * 128 * 512, "{arch} {stored}: {counted}");
        println!("{arch} {stored}: {} instructions, {}", multiplies.len(), multiplies[0]);
    }
}

/// Large products on gfx950 are by the instruction of twice the rate.
#[test]
fn large_products_take_the_fast_instruction() {
    let (four, five) = (DType::F8E4M3FN, DType::F8E5M2);
    for stored in [[four, four], [five, five], [four, five], [five, four]] {
        let graph = product_of(stored, 4096, 4096);
        let stored = format!("{} by {}", stored[0], stored[1]);
        let mut options = graphc::driver::BuildOptions::new(vec!["gfx950".parse().expect("a target")], OptLevel::O2);
        options.optimize.libraries = false; // hipBLASLt has such a call too
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{e}"));
        let kernel = built.program.variants[0].plan.kernels.values().next().expect("one");
        let Mapping::Matrix(tiling) = &kernel.mapping else {
            panic!("{stored}: {}", kernel.mapping);
        };
        let i = &tiling.instruction;
        assert!(
            [[32, 32, 64], [16, 16, 128]].contains(&[i.m, i.n, i.k]),
            "{stored}: {i}"
        );
    }
}

fn product_of([stored, weight]: [DType; 2], size: usize, depth: usize) -> ir::Graph {
    let text = format!(
        "graph @p stage=import {{\n  x = input \"x\" : {stored}[{size}, {depth}]\n  w = input \"w\" : {weight}[{size}, {depth}]\n  \
         s = constant [0.5] : f32[1, 1]\n  a = dequantize x, s {{out=f32}}\n  b = dequantize w, s {{out=f32}}\n  \
         y = contract a, b {{transpose_rhs}}\n  return y as \"y\"\n}}\n"
    );
    ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

fn products(arch: &str, turn: u64) {
    let Some(tools) = toolchain() else { return };
    let count = if graphc_tests::everything() { 100 } else { 4 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + turn);
    let mut tally = Tally::default();
    let (mut by_matrix, mut all, mut narrow) = (0, 0, 0);
    for i in 0..count {
        // One family for most, as models have it, and one type for half of those.
        let types = if i % 4 == 3 { &ALL[..] } else { &ALL[..2] };
        let mut shape = Shape::random(&mut random, types);
        if i % 2 == 1 && shape.x == shape.w {
            shape.w = random.of(types);
        } else if i % 4 == 2 && shape.x == shape.w {
            shape.w = types[usize::from(shape.x == types[0])];
        }
        let case = Case::new(shape, &mut random);
        let built = tools.build(&case.graph, arch, None);
        for (types, matrix) in products_of(&built.program.variants[0].plan) {
            assert_eq!(types, factors(arch, &case.shape), "{arch} {:?}", case.shape);
            all += 1;
            by_matrix += usize::from(matrix);
            narrow += usize::from(types[0].is_f8());
        }
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        tally.add(&format!("{arch} {:?}", case.shape), &outcome);
        assert_eq!(case.wrong(&outcome.outputs["y"]), None, "{arch} {:?}", case.shape);
        tally.error("exact", case.exact.len(), 0.0);
    }
    println!("{arch}: of {all} products {by_matrix} by matrix instructions, {narrow} of 8-bit floats");
    tally.finish(arch, count);
    assert!(
        by_matrix * 2 >= all,
        "{arch}: {by_matrix} of {all} by matrix instructions"
    );
    let has_some = !matches!(arch, "gfx90a" | "gfx1100");
    assert_eq!(narrow > 0, has_some, "{arch}: {narrow} of 8-bit floats");
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
    products("gfx950", 3);
}

#[test]
fn products_on_gfx1100() {
    products("gfx1100", 4);
}

#[test]
fn products_on_gfx1201() {
    products("gfx1201", 5);
}
