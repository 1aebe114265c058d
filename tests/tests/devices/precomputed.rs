//! Values of constants alone that are too much for folding are computed when the model is compiled: no run has a launch
//! for them, on the CPU and on an emulated GPU.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::dim::Symbol;
use graphc::ir::graph::{eval, parse};
use graphc::ir::{Bindings, DType, Graph, Program, Target};
use graphc::passes::{OptLevel, precompute};
use graphc::runtime::device::{Device, variant_for};
use graphc::runtime::{Executable, LoadOptions, RunTimes};
use graphc::session::OpenDevice;
use graphc_tests::emulated_hip::{EmulatedHip, compile};
use graphc_tests::reference::{Tensors, assert_matches, random_inputs};

/// A product of weights, standardised over its rows, that two products of a run read; what is between them is in the
/// arena.
const MODEL: &str = "graph @standardised stage=import {
  x = input \"x\" : f32[S, 256]
  left = constant random(seed=1) : f32[256, 192]
  right = constant random(seed=2) : f32[192, 256]
  w = contract left, right
  mean = reduce w {op=mean, axes=[1], keep_dims}
  off = sub w, mean
  square = mul off, off
  variance = reduce square {op=mean, axes=[1], keep_dims}
  deviation = sqrt variance
  scaled = div off, deviation
  h = contract x, scaled
  p = softmax h {axis=1}
  y = contract p, scaled
  return y as \"y\"
}
";

fn graph() -> Graph {
    parse::parse(MODEL).expect("parses")
}

/// A program, and one whose runs compute everything.
fn programs(target: &str) -> [Arc<Program>; 2] {
    [None, Some(precompute::NAME)].map(|disabled| {
        let target: Target = target.parse().expect("a target");
        let mut options = BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize.libraries = false;
        options.optimize.disable.extend(disabled.map(str::to_owned));
        let mut program = build(&graph(), &options).expect("builds").program;
        if target.is_gpu() {
            compile(&mut program);
        }
        Arc::new(program)
    })
}

/// Inputs of a number of rows, and the outputs by the reference.
fn case(rows: i64, seed: u64) -> (Tensors, Tensors) {
    let graph = graph();
    let bindings: Bindings = [(Symbol::new("S"), rows)].into_iter().collect();
    let inputs = random_inputs(&graph, &bindings, seed);
    let outputs = eval::evaluate(&graph, &inputs).expect("evaluates");
    (inputs, outputs)
}

/// Runs once, and returns how many steps were launched.
fn launched(executable: &Executable, (inputs, want): &(Tensors, Tensors), context: &str) -> usize {
    let mut times = RunTimes::default();
    let got = executable.run_profiled(inputs, Some(&mut times)).expect("runs");
    assert_matches(&got, want, DType::F32, context);
    times.steps.iter().filter(|step| step.engine != "copy").count()
}

fn check(device: &dyn Device, target: &str) {
    let [program, whole] = programs(target);
    let load = |program: &Arc<Program>| {
        let variant = variant_for(program, device).expect("a variant");
        Executable::load_on(device, program.clone(), variant, &LoadOptions::default()).expect("loads")
    };
    let cases = [case(4, 1), case(9, 2), case(2, 3)];
    let whole = launched(&load(&whole), &cases[0], "everything in each run");
    let (first, second) = (load(&program), load(&program));
    let counts: Vec<usize> = (0..9)
        .map(|turn| launched(&first, &cases[turn % 3], &format!("{target}, run {turn}")))
        .collect();
    // The two products and the softmax between them.
    assert!(
        counts.iter().all(|count| *count == counts[0] && *count <= 3),
        "{target}: {counts:?}"
    );
    assert!(
        whole >= counts[0] + 2,
        "{target}: {whole} launches against {}",
        counts[0]
    );
    // Another session of the program, beside the first.
    std::thread::scope(|scope| {
        for executable in [&first, &second] {
            let cases = &cases;
            scope.spawn(move || {
                for turn in 0..6 {
                    let (inputs, want) = &cases[turn % 3];
                    let got = executable.run(inputs).expect("runs");
                    assert_matches(&got, want, DType::F32, &format!("{target}, beside another session"));
                }
            });
        }
    });
    drop(first);
    assert_eq!(launched(&second, &cases[1], target), counts[0]);
}

#[test]
fn no_run_computes_what_is_made_of_weights_alone() {
    check(OpenDevice::cpu().device.as_ref(), "cpu");
}

#[test]
fn no_run_of_a_gpu_computes_what_is_made_of_weights_alone() {
    for arch in ["gfx90a", "gfx1100"] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", arch)]) else {
            return;
        };
        check(&hip.open(0).expect("a device"), arch);
    }
}
