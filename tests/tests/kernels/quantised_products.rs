//! Random products by quantised weights through the whole compiler, on emulated GPUs: types, groups, zero points, odd
//! sizes.
//!
//! Each result is compared with the exact product by the dequantised weight, each kernel with the interpreter of
//! kernels. Nothing is left that only dequantises, and the weights of a plan take the bytes that they are stored in.
//! `GRAPHC_ALL_MODELS=1` runs more.

use graphc::emu::TimingOptions;
use graphc::emulate::{self, Emulator};
use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::quantised::{Case, Random, Shape, Zero};
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::kernel::{Body, Mapping};
use ir::plan::Work;
use ir::{Bindings, DType, HostTensor, Plan, Program, Storage};
use passes::OptLevel;

/// What a result may differ by, over the largest: the rounding of weights and results to the type.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 1.5e-3,
        _ => 1.2e-2,
    }
}

/// Bytes of a plan's constants.
fn constant_bytes(program: &Program) -> usize {
    program.constants.values().map(|c| c.tensor.bytes.len()).sum()
}

/// How a plan's only launch is mapped.
fn only_mapping(plan: &Plan) -> &Mapping {
    let launches = plan
        .steps
        .values()
        .filter(|s| matches!(s.work, Work::Launch { .. }))
        .count();
    assert_eq!(
        (plan.kernels.len(), launches),
        (1, 1),
        "the product takes its weight as it is stored"
    );
    let kernel = plan.kernels.values().next().expect("one");
    let Body::Contract(body) = &kernel.body else {
        panic!("{} is no product", kernel.name);
    };
    assert!(body.rhs.unpacking().is_some(), "{} does not unpack", kernel.name);
    &kernel.mapping
}

/// The CPU device multiplies panels of the integers that are stored: of no weight there is ever an f32 copy.
#[test]
fn products_on_the_cpu() {
    let mut random = Random(77);
    for _ in 0..if graphc_tests::everything() { 400 } else { 20 } {
        let case = Case::new(Shape::random(&mut random), &mut random);
        let executable = compile_cpu(&case.graph, OptLevel::O2, None);
        let got = executable.run(&case.inputs).expect("it runs");
        let error = case.error(&got["y"]);
        assert!(error <= tolerance(case.shape.dtype), "{:?}: {error}", case.shape);
    }
    for _ in 0..if graphc_tests::everything() { 400 } else { 20 } {
        let case = Case::new(Shape::random_of(&mut random, &FLOATS), &mut random);
        let executable = compile_cpu(&case.graph, OptLevel::O2, None);
        let got = executable.run(&case.inputs).expect("it runs");
        let error = case.error(&got["y"]);
        assert!(error <= tolerance(case.shape.dtype), "{:?}: {error}", case.shape);
    }
    for (stored, share) in [
        (DType::I4, 0.13),
        (DType::U4, 0.13),
        (DType::I8, 0.26),
        (DType::U8, 0.26),
        (DType::F8E4M3FN, 0.26),
    ] {
        for along_k in [false, true] {
            let mut shape = Shape::plain(stored, DType::F32, [4, 512, 1024], 128);
            let zero = if stored.is_f8() { Zero::None } else { Zero::Stored };
            (shape.along_k, shape.zero) = (along_k, zero);
            let case = Case::new(shape, &mut random);
            let executable = compile_cpu(&case.graph, OptLevel::O2, None);
            let got = executable.run(&case.inputs).expect("it runs");
            assert!(case.error(&got["y"]) <= tolerance(DType::F32));
            let memory = executable.memory(&Bindings::new()).expect("it is placed");
            // Integers, and two floats a group of 128.
            let most = (512.0 * 1024.0 * 4.0 * share) as usize + 512 * 1024 / 128 * 8;
            assert!(memory.packed_weights > 0, "{stored}: it is packed");
            assert!(
                memory.packed_weights <= most,
                "{stored}: {} bytes",
                memory.packed_weights
            );
            assert!(
                memory.arena < 512 * 1024,
                "{stored}: an arena of {} bytes",
                memory.arena
            );
        }
    }
}

/// Predicted from the kernel's cycles at the boost clock: one row by weights of four bits in groups of 128 takes at
/// most a quarter more than a stream of the same bytes does on the part (MI210 1.37 TB/s, MI300X 4.06 TB/s, RX 7900 XTX
/// 0.96 TB/s by its data sheet).
#[test]
fn one_row_by_four_bits_is_as_fast_as_memory() {
    let Some(tools) = toolchain() else { return };
    let rates = [("gfx90a", 1.37), ("gfx942", 4.06), ("gfx1100", 0.96)];
    let sizes = [(4096usize, 4096usize), (14336, 4096), (4096, 14336)];
    for ((arch, rate), (columns, depth)) in rates.into_iter().flat_map(|rate| sizes.map(|size| (rate, size))) {
        let groups = depth / 128;
        let text = format!(
            "graph @row stage=import {{\n  x = input \"x\" : f16[1, {depth}]\n  w = input \"w\" : i4[{columns}, {depth}]\n  \
             s = input \"s\" : f16[{columns}, {groups}]\n  q = dequantize w, s {{axis=1, group=128, out=f16}}\n  \
             y = contract x, q {{transpose_rhs}}\n  return y as \"y\"\n}}\n"
        );
        let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let built = tools.build(&graph, arch, None);
        assert!(matches!(
            only_mapping(&built.program.variants[0].plan),
            Mapping::Gemv(_)
        ));
        let zeros = |ty: DType, shape: [usize; 2]| {
            let bytes = vec![0u8; ty.bytes_for(shape[0] * shape[1])];
            HostTensor::new(ty, shape, Storage::new(bytes)).expect("as many bytes")
        };
        let inputs = Tensors::from([
            ("x".to_owned(), zeros(DType::F16, [1, depth])),
            ("w".to_owned(), zeros(DType::I4, [columns, depth])),
            ("s".to_owned(), zeros(DType::F16, [columns, groups])),
        ]);
        let options = emulate::Options {
            time: Some(TimingOptions::default()),
            ..emulate::Options::default()
        };
        let outcome = Emulator::load(&built.program, 0, &tools.disassembler, options)
            .and_then(|emulator| emulator.run(&inputs))
            .unwrap_or_else(|e| panic!("{arch}: {e}"));
        let launch = outcome.timed.iter().find_map(|step| step.launch());
        let report = &launch.expect("one launch").report;
        let bytes = (columns * depth / 2 + columns * groups * 2) as f64;
        let reached = bytes / (report.cycles as f64 / report.ghz) / 1e3;
        println!(
            "{arch}: {columns} columns of {depth} in {} cycles, {reached:.2} TB/s",
            report.cycles
        );
        assert!(
            reached >= 0.8 * rate,
            "{arch}: {columns} of {depth}: {reached} TB/s of {rate}"
        );
    }
}

const INTEGERS: [DType; 4] = [DType::I4, DType::U4, DType::I8, DType::U8];
const FLOATS: [DType; 4] = [DType::F8E4M3FN, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ];

/// By 8-bit floats: each target converts those of its own family in hardware.
fn products_of_floats(arch: &str, turn: u64) {
    products_of(arch, turn, &FLOATS, 3);
}

fn products(arch: &str, turn: u64) {
    products_of(arch, turn, &INTEGERS, 8);
}

fn products_of(arch: &str, turn: u64, stored: &[DType], few: usize) {
    let Some(tools) = toolchain() else { return };
    let count = if graphc_tests::everything() { 100 } else { few };
    let mut random = Random(0x9e37_79b9_7f4a_7c15 + turn);
    let mut tally = Tally::default();
    let (mut row_by_row, mut by_matrix) = (0, 0);
    for i in 0..count {
        let shape = match i {
            // One row by a weight whose bytes come in wide accesses.
            0 => Shape::plain(stored[turn as usize % 2], DType::F16, [1, 2048, 1024], 128),
            _ => Shape::random_of(&mut random, stored),
        };
        let case = Case::new(shape, &mut random);
        let built = tools.build(&case.graph, arch, None);
        match only_mapping(&built.program.variants[0].plan) {
            Mapping::Gemv(_) => row_by_row += 1,
            Mapping::Matrix(_) => by_matrix += 1,
            _ => {}
        }
        // One number is part of the kernel's text.
        let bias = match case.shape.bias && case.shape.n > 1 {
            true => case.shape.n * case.shape.dtype.bits() as usize / 8,
            false => 0,
        };
        assert_eq!(
            constant_bytes(&built.program),
            case.weight_bytes + bias,
            "{:?}",
            case.shape
        );
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        tally.add(&format!("{arch} {:?}", case.shape), &outcome);
        let error = case.error(&outcome.outputs["y"]);
        assert!(error <= tolerance(case.shape.dtype), "{arch} {:?}: {error}", case.shape);
        tally.error("exact", case.exact.len(), error);
    }
    println!("{arch}: of {count} {row_by_row} row by row, {by_matrix} by matrix instructions");
    tally.finish(arch, count);
    assert!(row_by_row > 0, "{arch}: only {row_by_row} row by row");
    assert!(
        by_matrix >= count / 5 && 2 * (row_by_row + by_matrix) >= count,
        "{arch}: only {by_matrix} by matrix instructions"
    );
}

#[test]
fn products_of_floats_on_gfx90a() {
    products_of_floats("gfx90a", 1);
}

#[test]
fn products_of_floats_on_gfx942() {
    products_of_floats("gfx942", 2);
}

#[test]
fn products_of_floats_on_gfx1100() {
    products_of_floats("gfx1100", 3);
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
