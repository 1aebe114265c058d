//! Comparison of everything with the reference evaluator.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::eval;
use graphc::ir::{Bindings, DType, Graph, HostTensor, Target};
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions};
use indexmap::IndexMap;

/// Named tensors.
pub type Tensors = IndexMap<String, HostTensor>;

/// Makes up the inputs of a graph at given sizes.
///
/// # Panics
/// When a size is missing.
pub fn random_inputs(graph: &Graph, bindings: &Bindings, seed: u64) -> Tensors {
    graph
        .inputs()
        .iter()
        .map(|input| {
            let ty = graph.ty(input.node.into());
            let t = graphc::random::tensor(&input.name, ty, bindings, seed).expect("every size is bound");
            (input.name.clone(), t)
        })
        .collect()
}

/// The tolerance for results of a type: relative, and absolute in units of the largest expected magnitude.
///
/// f32 accumulates over a few thousand terms; f16 and bf16 round every stored intermediate (11 and 8 bits).
pub fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-9, 1e-10),
        DType::F32 => (2e-4, 2e-5),
        DType::F16 => (2e-2, 4e-3),
        DType::BF16 => (1e-1, 3e-2),
        _ => (0.0, 0.0),
    }
}

/// Asserts that outputs are what the reference says, within [`tolerance`] of `computed_in`.
///
/// # Panics
/// When they are not: the message has the worst element.
pub fn assert_matches(got: &Tensors, want: &Tensors, computed_in: DType, context: &str) {
    assert_eq!(
        got.keys().collect::<Vec<_>>(),
        want.keys().collect::<Vec<_>>(),
        "{context}: names of outputs"
    );
    for (name, want) in want {
        let got = &got[name];
        assert_eq!(
            (got.dtype, &got.shape),
            (want.dtype, &want.shape),
            "{context}: output {name}"
        );
        let scale = want
            .to_f64()
            .iter()
            .filter(|v| v.is_finite())
            .fold(0.0f64, |m, v| m.max(v.abs()))
            .max(1e-6);
        let (rtol, atol) = if want.dtype.is_float() {
            tolerance(computed_in)
        } else {
            (0.0, 0.0)
        };
        let d = graphc::compare::compare(got, want, rtol, atol * scale).expect("same shapes");
        assert!(
            d.is_within(),
            "{context}: output {name}: {} of {} elements differ; worst at {}: got {}, expected {} (max error {:.3e})",
            d.mismatches,
            d.elements,
            d.worst,
            d.got,
            d.want,
            d.max_abs
        );
    }
}

/// Compiles a graph for the CPU at a level.
///
/// # Panics
/// When the graph does not compile.
pub fn compile_cpu(graph: &Graph, level: OptLevel, dtype: Option<DType>) -> Executable {
    let mut options = BuildOptions::new(vec![Target::cpu()], level).dtype(dtype);
    options.optimize.verify = true;
    // The evaluator clamps indices outside their axes, and so do kernels.
    options.check_indices = Some(false);
    let built = build(graph, &options).unwrap_or_else(|e| panic!("the graph compiles at {level:?}: {e}"));
    Executable::load_on(
        &graphc::cpu_device(),
        Arc::new(built.program),
        0,
        &LoadOptions {
            threads: 2,
            ..LoadOptions::default()
        },
    )
    .unwrap_or_else(|e| panic!("the program loads: {e}"))
}

/// Asserts that a graph means the same to the reference evaluator and, at every level, to the CPU device.
///
/// # Panics
/// When it does not.
pub fn check_all_levels(graph: &Graph, inputs: &Tensors, context: &str) {
    let want = eval::evaluate(graph, inputs).expect("the reference evaluates");
    for level in [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3] {
        let got = compile_cpu(graph, level, None)
            .run(inputs)
            .unwrap_or_else(|e| panic!("{context} at {level:?}: {e}\n{graph}"));
        assert_matches(&got, &want, DType::F32, &format!("{context} at {level:?}"));
    }
}
