//! Algorithms of hipBLASLt by name: a plan that names one launches its kernel, with the real library on the emulated
//! gfx90a.
//!
//! Set up as [`crate::hip_libraries`] is; without the libraries they print `skipped: …` and pass.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use graphc::ir::graph::{eval, parse};
use graphc::ir::library::Algorithm;
use graphc::ir::plan::Work;
use graphc::ir::{Bindings, DType, Graph, Program};
use graphc::runtime::gpu::GpuDevice;
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::emulated_hip::EmulatedHip;
use graphc_tests::libraries::{self, calls, tensor};
use graphc_tests::reference::Tensors;

/// As [`libraries::inside`].
fn inside(test: &str, variables: &[(&str, &str)]) -> Option<EmulatedHip> {
    libraries::inside(module_path!(), test, env!("CARGO_TARGET_TMPDIR"), variables)
}

/// A product with a bias and an activation.
fn product() -> (Graph, Tensors) {
    let text = "graph @product stage=core {
        x = input \"x\" : f16[96, 64]
        w = input \"w\" : f16[64, 128]
        b = input \"b\" : f16[128]
        y = hipblaslt_matmul x, w, b {epilogue=bias_relu}
        return y as \"y\"
    }";
    let inputs = [("x", &[96, 64][..]), ("w", &[64, 128]), ("b", &[128])];
    let input = |(seed, (name, shape)): (usize, (&str, &[usize]))| (name.to_owned(), tensor(DType::F16, shape, seed));
    (
        parse::parse(text).expect("parses"),
        inputs.into_iter().enumerate().map(input).collect(),
    )
}

/// The program with a call by this algorithm.
fn by(program: &Program, asked: Option<Algorithm>) -> Arc<Program> {
    let mut program = program.clone();
    for step in program.variants[0].plan.steps.values_mut() {
        if let Work::Call { algorithm, .. } = &mut step.work {
            *algorithm = asked.clone().map(Box::new);
        }
    }
    Arc::new(program)
}

fn load(device: &GpuDevice, program: Arc<Program>) -> Executable {
    Executable::load_on(device, program, 0, &LoadOptions::default()).expect("loads")
}

/// What the library offers for the program's one call.
fn offered(device: &GpuDevice, program: &Program) -> Vec<Algorithm> {
    let of_steps = load(device, by(program, None)).algorithms(&Bindings::new());
    let [(_, algorithms)] = &of_steps.expect("asked")[..] else {
        panic!("one call")
    };
    algorithms.clone()
}

/// What an algorithm is where the plan was made elsewhere, or the file is damaged.
fn of_others(algorithm: &Algorithm) -> [Algorithm; 3] {
    let other = |of: &str, words: &[u8]| Algorithm {
        of: of.to_owned(),
        words: words.to_vec(),
    };
    [
        other("hipBLASLt 1 on another driver", &algorithm.words),
        other(&algorithm.of, &[0xff; 16]),
        other(&algorithm.of, &algorithm.words[..3]),
    ]
}

#[test]
fn every_algorithm_that_is_offered_computes_the_product() {
    let test = "every_algorithm_that_is_offered_computes_the_product";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let (graph, inputs) = product();
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let device = hip.open(0).expect("a device");
    let program = calls(&graph);
    let algorithms = offered(&device, &program);
    assert!(algorithms.len() > 4, "{algorithms:?}");
    let distinct: BTreeSet<&Algorithm> = algorithms.iter().collect();
    assert_eq!(distinct.len(), algorithms.len());
    let others = of_others(&algorithms[1]);
    for algorithm in algorithms.iter().take(6).chain(&others) {
        let executable = load(&device, by(&program, Some(algorithm.clone())));
        let got = executable.run(&inputs).expect("runs");
        // Sums are exact in f32 and rounded once.
        assert_eq!(got["y"].to_f64(), want["y"].to_f64(), "{algorithm}");
    }
}

/// The kernels that the stand-in has launched since, by name.
fn launched(reports: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(reports).expect("reports");
    std::fs::remove_file(reports).expect("is there");
    let name = |line: &str| {
        let report: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        report["kernel"].as_str().expect("a name").to_owned()
    };
    text.lines().map(name).collect()
}

#[test]
fn the_algorithm_that_a_plan_names_is_launched() {
    let test = "the_algorithm_that_a_plan_names_is_launched";
    let reports = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.reports"));
    // Kernels are timed here and not run: what counts is which.
    let variables = [
        ("GRAPHC_EMU_ARCH", "gfx90a"),
        ("GRAPHC_EMU_TIME", reports.to_str().expect("a path")),
    ];
    let Some(hip) = inside(test, &variables) else {
        return;
    };
    let (graph, inputs) = product();
    let device = hip.open(0).expect("a device");
    let program = calls(&graph);
    let kernels = |asked: Option<Algorithm>| {
        let executable = load(&device, by(&program, asked));
        let _ = std::fs::remove_file(&reports);
        executable.run(&inputs).expect("runs");
        launched(&reports)
    };
    let algorithms = offered(&device, &program);
    let chosen = kernels(None);
    assert_eq!(kernels(Some(algorithms[0].clone())), chosen);
    let few = algorithms.iter().take(6);
    let by_name: BTreeSet<Vec<String>> = few.map(|algorithm| kernels(Some(algorithm.clone()))).collect();
    assert!(by_name.len() > 3, "{by_name:?}");
    for other in of_others(&algorithms[1]) {
        assert_eq!(kernels(Some(other.clone())), chosen, "{other}: the library chooses");
    }
}
