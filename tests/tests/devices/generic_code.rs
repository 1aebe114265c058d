//! One file for a family of GPUs: a generic code object runs on each of them, and a device takes its own processor's
//! code where there is some.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::parse::parse;
use graphc::ir::{HostTensor, Target};
use graphc::passes::OptLevel;
use graphc::runtime::device::{Device, variant_for};
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::emulated_hip::{EmulatedHip, compile};
use graphc_tests::reference::{Tensors, assert_matches, random_inputs};
use ir::{Bindings, DType, Program};

const GRAPH: &str = "graph @family stage=import {
  x = input \"x\" : f16[64, 64]
  w = constant random(seed=1) : f16[64, 64]
  c = contract x, w
  y = softmax c {axis=1}
  return y as \"y\"
}
";

fn program(targets: &[&str]) -> Program {
    let targets: Vec<Target> = targets
        .iter()
        .map(|t| t.parse().expect("a target of the table"))
        .collect();
    let mut options = BuildOptions::new(targets, OptLevel::O2);
    options.optimize.libraries = false;
    let mut program = build(&parse(GRAPH).expect("parses"), &options).expect("builds").program;
    compile(&mut program);
    program
}

#[test]
fn generic_code_runs_on_a_family_and_own_code_goes_first() {
    for (arch, targets, taken) in [
        ("gfx1102", &["gfx12-generic", "gfx11-generic"][..], Some(1)),
        ("gfx1102", &["gfx11-generic", "gfx1102"][..], Some(1)),
        ("gfx1034", &["gfx10-3-generic", "gfx1030"][..], Some(0)),
        ("gfx942", &["gfx9-4-generic"][..], Some(0)),
        ("gfx1200", &["gfx11-generic", "gfx1201"][..], None),
    ] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", arch)]) else {
            return;
        };
        let device = hip.open(0).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let program = Arc::new(program(targets));
        let chosen = variant_for(&program, &device as &dyn Device).ok();
        assert_eq!(chosen, taken, "{arch}: {targets:?}");
        let Some(variant) = chosen else { continue };
        let graph = parse(GRAPH).expect("parses");
        let inputs: Tensors = random_inputs(&graph, &Bindings::new(), 7);
        let want = ir::graph::eval::evaluate(&graph, &inputs).expect("evaluates");
        let executable = Executable::load_on(&device, program, variant, &LoadOptions::default())
            .unwrap_or_else(|e| panic!("{arch}: {e}"));
        let got: Tensors = executable.run(&inputs).unwrap_or_else(|e| panic!("{arch}: {e}"));
        assert!(got.values().all(|t: &HostTensor| t.dtype == DType::F16));
        assert_matches(&got, &want, DType::F16, arch);
    }
}
