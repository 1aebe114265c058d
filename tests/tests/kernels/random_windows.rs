//! Random convolutions of few channels a group through the whole compiler, on emulated GPUs: depthwise ones, several
//! filters a channel, a few channels a filter, channels last and first, one to three axes, strides, dilations, pads on
//! either side, open sizes, biases, activations and residuals.
//!
//! The result of each is compared with the evaluator of graphs, each kernel with the interpreter of kernels, and none
//! may spill. `GRAPHC_ALL_MODELS=1` runs 300, else a few on each GPU.

use std::fmt::Write as _;

use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval;
use ir::graph::parse::parse;
use ir::kernel::{Body, Mapping};
use ir::{Bindings, DType, Symbol};
use runtime::code_object;

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
}

/// A convolution: its graph's text, and the sizes that it leaves open.
struct Case {
    text: String,
    dtype: DType,
    bindings: Bindings,
}

fn case(random: &mut Random, number: usize) -> Case {
    let dtype = random.of(&[DType::F16, DType::F16, DType::BF16, DType::F32]);
    let axes = random.of(&[1, 2, 2, 2, 3]);
    let last = random.below(3) > 0;
    let groups = random.of(&[3, 8, 16, 24, 40, 72]);
    let filters = random.of(&[1, 1, 1, 1, 2, 4]) * groups;
    let depth = random.of(&[1, 1, 1, 2, 3, 4]);
    let most = if axes == 3 { 4 } else { 13 };
    let mut each = |of: &[usize]| (0..axes).map(|_| random.of(of)).collect::<Vec<_>>();
    let window = each(&[1, 2, 3, 3, 5, 7]);
    let (strides, dilations) = (each(&[1, 1, 1, 2, 3]), each(&[1, 1, 1, 2]));
    let (low, high) = (each(&[0, 1, 1, 2, 3]), each(&[0, 1, 1, 2, 3]));
    let reach = |a: usize| (window[a] - 1) * dilations[a] + 1;
    let image: Vec<usize> = (0..axes)
        .map(|a| reach(a).saturating_sub(low[a] + high[a]).max(1) + random.below(most))
        .collect();
    let points: Vec<usize> = (0..axes)
        .map(|a| (image[a] + low[a] + high[a] - reach(a)) / strides[a] + 1)
        .collect();
    let shape = |of: usize, channels: usize, rest: &[usize]| match last {
        true => [&[of], rest, &[channels]].concat(),
        false => [&[of, channels], rest].concat(),
    };
    let batch = random.of(&[1, 2, 3]);
    let (input, output) = (shape(batch, groups * depth, &image), shape(batch, filters, &points));
    let (mut names, mut bindings, mut body) = (String::new(), Bindings::new(), String::new());
    let sizes = |dims: &[usize]| dims.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (mut of_input, mut of_output) = (sizes(&input), sizes(&output));
    // Images and, where windows step by one, rows may be open.
    if random.below(4) == 0 {
        names += "  symbol n: 1..64 hint 8\n";
        bindings.insert(Symbol::new("n"), batch as i64);
        "n".clone_into(&mut of_input[0]);
        "n".clone_into(&mut of_output[0]);
        let rows = if last { 1 } else { 2 };
        let change = output[rows] as i64 - input[rows] as i64;
        if strides[0] == 1 && input[rows] as i64 + change.min(0) > 0 {
            let _ = writeln!(names, "  symbol h: {}..100 hint 40", 1 - change.min(0));
            bindings.insert(Symbol::new("h"), input[rows] as i64);
            of_input[rows] = "h".to_owned();
            of_output[rows] = match change {
                0 => "h".to_owned(),
                1.. => format!("h + {change}"),
                _ => format!("h - {}", -change),
            };
        }
    }
    let _ = writeln!(body, "  x = input \"x\" : {dtype}[{}]", of_input.join(", "));
    let filter = shape(filters, depth, &window);
    match random.below(4) {
        0 => drop(writeln!(body, "  w = input \"w\" : {dtype}{filter:?}")),
        _ => drop(writeln!(
            body,
            "  w = constant random(seed={number}, scale=0.5) : {dtype}{filter:?}"
        )),
    }
    let bias = random.below(2) == 1;
    if bias {
        let _ = writeln!(body, "  b = input \"b\" : {dtype}[{filters}]");
    }
    let residual = random.below(3) == 0;
    if residual {
        let _ = writeln!(body, "  r = input \"r\" : {dtype}[{}]", of_output.join(", "));
    }
    let operands = if bias { "x, w, b" } else { "x, w" };
    let layout = if last { ", channels_last" } else { "" };
    let _ = writeln!(
        body,
        "  c = conv {operands} {{groups={groups}, strides={strides:?}, dilations={dilations:?}, pad_low={low:?}, pad_high={high:?}{layout}}}"
    );
    let mut result = "c";
    if random.below(2) == 1 {
        let _ = writeln!(body, "  c1 = relu {result}");
        result = "c1";
    }
    if residual {
        let _ = writeln!(body, "  c2 = add {result}, r");
        result = "c2";
    }
    let text = format!("graph @window_{number} stage=import {{\n{names}{body}  return {result} as \"y\"\n}}\n");
    Case { text, dtype, bindings }
}

/// Runs a case; returns how many of its kernels take strips.
fn run(tools: &Toolchain, arch: &str, case: &Case, tally: &mut Tally) -> usize {
    let context = format!("{arch} {}", case.text);
    let graph = parse(&case.text).unwrap_or_else(|e| panic!("{e}\n{context}"));
    let built = tools.build(&graph, arch, None);
    let variant = &built.program.variants[0];
    let mut strips = 0;
    for (id, kernel) in variant.plan.kernels.iter() {
        strips += usize::from(matches!(
            (&kernel.body, &kernel.mapping),
            (Body::Window(_), Mapping::Strips(_))
        ));
        let code = variant.code[id].as_ref().expect("it was compiled");
        for resources in &code_object::read(code).expect("a code object").kernels {
            let spilled = (resources.vgpr_spills, resources.scratch_bytes);
            assert_eq!(spilled, (0, 0), "{} spills, {}: {context}", kernel.name, kernel.mapping);
        }
    }
    let inputs = random_inputs(&graph, &case.bindings, 7);
    let outcome = tools.run(&built, &inputs, 1 << 26);
    tally.add(&context, &outcome);
    let want = eval::evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{e}: {context}"));
    assert_matches(&outcome.outputs, &want, case.dtype, &context);
    strips
}

const ARCHS: [&str; 4] = graphc_tests::emulator::ARCHS;

fn windows(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let turn = ARCHS.iter().position(|a| *a == arch).expect("one of them");
    let count = if graphc_tests::everything() { 75 } else { 9 };
    let mut random = Random(0xbb67_ae85_84ca_a73b + turn as u64);
    let mut tally = Tally::default();
    let mut strips = 0;
    for number in 0..count {
        let case = case(&mut random, number);
        strips += run(&tools, arch, &case, &mut tally);
    }
    tally.finish(arch, count);
    assert!(3 * strips >= 2 * count, "{arch}: only {strips} of {count} take strips");
}

#[test]
fn windows_on_gfx90a() {
    windows("gfx90a");
}

#[test]
fn windows_on_gfx942() {
    windows("gfx942");
}

#[test]
fn windows_on_gfx1100() {
    windows("gfx1100");
}

#[test]
fn windows_on_gfx1201() {
    windows("gfx1201");
}
