//! Random recurrent layers through the whole compiler, on emulated GPUs: every cell, activation and option, hidden
//! sizes that no team of lanes divides, rows that share a workgroup, rows of their own lengths, open sizes.
//!
//! The result of each is compared with the evaluator of graphs, each kernel with the interpreter of kernels, and none
//! may spill. `GRAPHC_ALL_MODELS=1` runs 60 on each GPU, else a few.

use std::fmt::Write as _;

use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval;
use ir::graph::parse::parse;
use ir::kernel::{Body, Mapping};
use ir::op::ActivationKind;
use ir::{Bindings, DType, HostTensor, Symbol};
use runtime::code_object;

/// A layer: its graph's text, its type and its sizes.
struct Case {
    text: String,
    dtype: DType,
    sizes: [i64; 2],
    lengths: bool,
}

fn case(random: &mut Random, number: usize) -> Case {
    let (cell, gates, functions) = random.of(&[
        ("rnn", 1, 1),
        ("gru", 3, 2),
        ("gru_reset_after", 3, 2),
        ("lstm", 4, 3),
        ("lstm", 4, 3),
    ]);
    let hidden = random.of(&[1, 3, 4, 8, 17, 24, 32, 50, 64, 96, 130]);
    let (steps, batch) = (random.of(&[0, 1, 2, 5, 7]), random.of(&[1, 2, 3, 7]));
    let dtype = random.of(&[DType::F32, DType::F32, DType::F16, DType::BF16]);
    let open = random.below(2) == 1;
    let [t, b] = match open {
        true => ["t", "b"].map(str::to_owned),
        false => [steps, batch].map(|n: i64| n.to_string()),
    };
    let lstm = cell == "lstm";
    let (states, peepholes) = (lstm && random.below(2) == 1, lstm && random.below(3) == 0);
    let (lengths, constant) = (random.below(3) == 0, random.below(3) > 0);
    let mut body = String::new();
    if open {
        body += "  symbol t: 0..64 hint 4\n  symbol b: 1..512 hint 300\n";
    }
    let _ = writeln!(body, "  x = input \"x\" : {dtype}[{t}, {b}, {}]", gates * hidden);
    let _ = match constant {
        true => writeln!(
            body,
            "  r = constant random(seed={number}, scale=0.05) : {dtype}[{}, {hidden}]",
            gates * hidden
        ),
        false => writeln!(body, "  r = input \"r\" : {dtype}[{}, {hidden}]", gates * hidden),
    };
    let _ = writeln!(body, "  h0 = input \"h0\" : {dtype}[{b}, {hidden}]");
    let mut operands = "x, r, h0".to_owned();
    let mut operand = |wanted: bool, name: &str, ty: String| {
        if wanted {
            let _ = writeln!(body, "  {name} = input \"{name}\" : {ty}");
            let _ = write!(operands, ", {name}");
        }
    };
    operand(lstm, "c0", format!("{dtype}[{b}, {hidden}]"));
    operand(cell == "gru_reset_after", "bias", format!("{dtype}[{hidden}]"));
    operand(peepholes, "p", format!("{dtype}[{}]", 3 * hidden));
    operand(lengths, "lengths", format!("i64[{b}]"));
    let mut options = vec![format!("cell={cell}")];
    let mut flag = |on: bool, name: &str| options.extend(on.then(|| name.to_owned()));
    flag(lstm && random.below(4) == 0, "input_forget");
    flag(peepholes, "peepholes");
    flag(states, "states");
    flag(lengths, "lengths");
    flag(random.below(2) == 1, "reverse");
    flag(random.below(3) == 0, "rounded");
    let bounded = [
        ActivationKind::Sigmoid,
        ActivationKind::HardSigmoid,
        ActivationKind::Tanh,
        ActivationKind::Softsign,
    ];
    for name in &["f", "g", "h"][..functions] {
        // What a GRU's first gates make is multiplied with the state: without a bound it grows out of f32.
        let kind = match random.below(2) {
            0 if *name != "f" || gates != 3 => random.of(&ActivationKind::ALL),
            _ => random.of(&bounded),
        };
        options.push(format!("{name}={kind}"));
    }
    if random.below(4) == 0 {
        options.push("clip=0.5".to_owned());
    }
    let text = format!(
        "graph @layer_{number} stage=import {{\n{body}  y = recurrent {operands} {{{}}}\n  return y as \"y\"\n}}\n",
        options.join(", ")
    );
    Case {
        text,
        dtype,
        sizes: [steps, batch],
        lengths,
    }
}

/// Runs a case; returns how many of its kernels go through steps.
fn run(tools: &Toolchain, arch: &str, case: &Case, tally: &mut Tally) -> usize {
    let context = format!("{arch} {}", case.text);
    let graph = parse(&case.text).unwrap_or_else(|e| panic!("{e}\n{context}"));
    let built = tools.build(&graph, arch, None);
    let variant = &built.program.variants[0];
    let mut layers = 0;
    for (id, kernel) in variant.plan.kernels.iter() {
        layers += usize::from(matches!(
            (&kernel.body, &kernel.mapping),
            (Body::Recurrent(_), Mapping::Steps(_))
        ));
        let code = variant.code[id].as_ref().expect("it was compiled");
        for resources in &code_object::read(code).expect("a code object").kernels {
            let spilled = (resources.vgpr_spills, resources.scratch_bytes);
            assert_eq!(spilled, (0, 0), "{} spills, {}: {context}", kernel.name, kernel.mapping);
        }
    }
    let [steps, batch] = case.sizes;
    let bindings = Bindings::from_iter([(Symbol::new("t"), steps), (Symbol::new("b"), batch)]);
    let mut inputs = random_inputs(&graph, &bindings, 7);
    // As small as those of the constants: layers of many units with larger ones magnify every rounding, step by step.
    if let Some(r) = inputs.get_mut("r") {
        let small: Vec<f64> = r.to_f64().iter().map(|x| x * 0.05).collect();
        *r = HostTensor::from_f64(r.dtype, r.shape.clone(), &small).expect("as many");
    }
    if case.lengths {
        // From no step to all of them.
        let lengths: Vec<i64> = (0..batch).map(|row| (row * 3 + 1) % (steps + 1)).collect();
        let lengths = HostTensor::from_i64(DType::I64, [batch as usize], &lengths).expect("as many");
        inputs.insert("lengths".to_owned(), lengths);
    }
    let outcome = tools.run(&built, &inputs, 1 << 26);
    tally.add(&context, &outcome);
    let want = eval::evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{e}: {context}"));
    assert_matches(&outcome.outputs, &want, case.dtype, &context);
    layers
}

fn layers(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let count = if graphc_tests::everything() { 60 } else { 8 };
    let mut random = Random(0x3c6e_f372_fe94_f82b ^ arch.len() as u64 ^ u64::from(arch.as_bytes()[arch.len() - 1]));
    let mut tally = Tally::default();
    let mut found = 0;
    for number in 0..count {
        let case = case(&mut random, number);
        found += run(&tools, arch, &case, &mut tally);
    }
    tally.finish(arch, count);
    assert!(2 * found >= count, "{arch}: only {found} of {count} are one kernel");
}

#[test]
fn recurrent_layers_compile_for_sm_90() {
    let Some(compiler) = graphc_tests::nvrtc::compiler() else {
        return;
    };
    let mut random = Random(0x510e_527f_ade6_82d1);
    let mut requests = Vec::new();
    for number in 0..if graphc_tests::everything() { 200 } else { 16 } {
        let text = case(&mut random, number).text;
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let target = "sm_90".parse().expect("a target of the table");
        let options = graphc::driver::BuildOptions::new(vec![target], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{e}: {text}"));
        requests.extend(graphc::driver::requests(&built.program));
    }
    crate::cuda_kernels::check(&compiler, &requests);
}

#[test]
fn layers_on_gfx90a() {
    layers("gfx90a");
}

#[test]
fn layers_on_gfx942() {
    layers("gfx942");
}

#[test]
fn layers_on_gfx1100() {
    layers("gfx1100");
}

#[test]
fn layers_on_gfx1201() {
    layers("gfx1201");
}
