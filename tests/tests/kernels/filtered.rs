//! Convolutions by Winograd's filtering on emulated GPUs: every kernel against the evaluator, and what comes out
//! against the reference evaluator of the graph, which sums over the window.

use graphc::driver::{self, Build, BuildOptions};
use graphc::passes::OptLevel;
use graphc::passes::lower::winograd::Filtering;
use graphc::runtime::code_object;
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Body, Winograd};
use ir::{Bindings, DType, Graph};

/// The targets whose `f32` products are of multiply-adds, by matrix instructions and by lanes.
const ARCHS: [&str; 5] = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"];

/// Images, height, width, channels; filters; padding before and after, along both axes; what follows.
type Case = ([usize; 4], usize, [[usize; 2]; 2], After);

/// What follows a convolution.
#[derive(Clone, Copy, PartialEq, Debug)]
enum After {
    Nothing,
    BiasRelu,
    ResidualRelu,
    /// The result, and what is made of it, in `f16`.
    Half,
}

const CASES: [Case; 9] = [
    ([1, 8, 8, 32], 32, [[1, 1], [1, 1]], After::Nothing),
    ([2, 7, 9, 16], 24, [[1, 1], [1, 1]], After::BiasRelu),
    ([3, 5, 6, 20], 12, [[1, 1], [1, 1]], After::ResidualRelu),
    ([1, 1, 1, 8], 8, [[1, 1], [1, 1]], After::BiasRelu),
    ([1, 3, 3, 17], 5, [[0, 0], [0, 0]], After::Nothing),
    ([2, 6, 11, 8], 36, [[0, 2], [1, 0]], After::BiasRelu),
    ([1, 13, 4, 3], 33, [[2, 1], [1, 3]], After::ResidualRelu),
    ([1, 1, 19, 64], 4, [[1, 1], [1, 1]], After::Half),
    ([1, 10, 9, 1], 1, [[1, 1], [1, 1]], After::Nothing),
];

fn graph(([n, h, w, c], filters, pads, after): &Case) -> Graph {
    let [[top, bottom], [left, right]] = pads;
    let [height, width] = [h + top + bottom - 2, w + left + right - 2];
    let bias = match after {
        After::Nothing => "",
        _ => ", b",
    };
    let follows = match after {
        After::Nothing => String::new(),
        After::BiasRelu => "y = relu p".to_owned(),
        After::ResidualRelu => {
            format!("r = input \"r\" : f32[{n}, {height}, {width}, {filters}]\n s = add p, r\n y = relu s")
        }
        After::Half => format!("s = tanh p\n y = cast s : f16[{n}, {height}, {width}, {filters}]"),
    };
    let result = if *after == After::Nothing { "p" } else { "y" };
    let text = format!(
        "graph @filtered stage=import {{\n x = input \"x\" : f32[{n}, {h}, {w}, {c}]\n \
         f = constant random(seed=1) : f32[{filters}, 3, 3, {c}]\n b = constant random(seed=2) : f32[{filters}]\n \
         p = conv x, f{bias} {{channels_last, pad_low=[{top}, {left}], pad_high=[{bottom}, {right}]}}\n {follows}\n \
         return {result} as \"y\"\n}}\n"
    );
    parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn build(tools: &Toolchain, graph: &Graph, arch: &str, filtering: Filtering) -> Build {
    let target = arch.parse().expect("a target of the table");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    options.plan.filtering = filtering;
    let mut built = driver::build(graph, &options).unwrap_or_else(|e| panic!("{arch}: {e}"));
    driver::compile(&mut built.program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
    built
}

/// Asserts that no kernel spills.
fn assert_no_spills(built: &Build, context: &str) {
    for code in built.program.variants[0].code.values().flatten() {
        for kernel in &code_object::read(code).expect("a code object").kernels {
            let spilled = (kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch_bytes);
            assert_eq!(spilled, (0, 0, 0), "{context}: {}", kernel.name);
        }
    }
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (number, case) in CASES.iter().enumerate() {
        for winograd in Winograd::ALL {
            let context = format!("{arch}: {case:?} by {}", winograd.name());
            let graph = graph(case);
            let built = build(&tools, &graph, arch, Filtering::Always(winograd));
            let plan = &built.program.variants[0].plan;
            let transforms = plan.kernels.values().filter(|k| matches!(k.body, Body::Transform(_)));
            assert_eq!(transforms.count(), 2, "{context}: {plan}");
            assert!(built.reports[0].filtered.iter().all(|f| f.taken), "{context}");
            assert_no_spills(&built, &context);
            let inputs = random_inputs(&graph, &Bindings::new(), number as u64);
            let outcome = tools.run(&built, &inputs, 1 << 28);
            tally.add(&context, &outcome);
            let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            // Ten times what is allowed of a sum over the window is still within it: those errors are a tenth of what
            // tests allow of `f32`.
            let computed_in = if case.3 == After::Half { DType::F16 } else { DType::F32 };
            assert_matches(&outcome.outputs, &want, computed_in, &context);
        }
    }
    tally.finish(arch, 3 * CASES.len());
}

#[test]
fn gfx90a_filters() {
    check(ARCHS[0]);
}

#[test]
fn gfx942_filters() {
    check(ARCHS[1]);
}

#[test]
fn gfx950_filters() {
    check(ARCHS[2]);
}

#[test]
fn gfx1100_filters() {
    check(ARCHS[3]);
}

#[test]
fn gfx1201_filters() {
    check(ARCHS[4]);
}

/// The largest error over the largest result, of many channels: F(2x2, 3x3)'s is like that of the sum over the window,
/// F(4x4, 3x3)'s about ten times as large (Lavin and Gray, 2015).
#[test]
fn errors_are_bounded() {
    let Some(tools) = toolchain() else { return };
    let graph = graph(&([1, 12, 12, 256], 64, [[1, 1], [1, 1]], After::Nothing));
    let inputs = random_inputs(&graph, &Bindings::new(), 5);
    let want = evaluate(&graph, &inputs).expect("evaluates");
    for arch in ["gfx90a", "gfx1100"] {
        let mut errors = Vec::new();
        for filtering in [
            Filtering::Never,
            Filtering::Always(Winograd::F2),
            Filtering::Always(Winograd::F4),
        ] {
            let built = build(&tools, &graph, arch, filtering);
            let got = tools.run(&built, &inputs, 0).outputs;
            let d = graphc::compare::compare(&got["y"], &want["y"], 0.0, 0.0).expect("same shapes");
            let largest = want["y"].to_f64().iter().fold(0.0f64, |m, v| m.max(v.abs()));
            errors.push(d.max_abs / largest);
        }
        println!("{arch}: direct, F(2x2, 3x3), F(4x4, 3x3): {errors:?}");
        assert!(
            errors[0] < 1e-6 && errors[1] < 2e-6 && errors[2] < 1e-5,
            "{arch}: {errors:?}"
        );
    }
}

/// Threads that take several channels, as they do of large images, have registers enough, whatever follows.
#[test]
fn large_transforms_compile_without_spills() {
    let Some(tools) = toolchain() else { return };
    for arch in ARCHS {
        for winograd in Winograd::ALL {
            for after in [After::Nothing, After::BiasRelu, After::ResidualRelu, After::Half] {
                let graph = graph(&([8, 57, 57, 128], 128, [[1, 1], [1, 1]], after));
                let built = build(&tools, &graph, arch, Filtering::Always(winograd));
                assert_no_spills(&built, &format!("{arch}: {after:?} by {}", winograd.name()));
            }
        }
    }
}
