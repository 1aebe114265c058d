//! Random graphs: the reference evaluator = the optimised graph = the plan = the CPU device, at every level.
//!
//! `GRAPHC_CASES` sets how many (6,000 by default). A case that fails is shrunk and printed as a `.gir` text, which
//! belongs into `tests/filetests/regressions` when it is mended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::kernel::bounds::unproven;
use graphc::ir::{self, DType, Target};
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::random_graph::{Case, Step, case};
use graphc_tests::reference::Tensors;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Compares outputs; errors are measured in units of the largest value on the way.
fn compare(case: &Case, got: &Tensors, want: &Tensors, scale: f64, context: &str) -> Result<(), String> {
    let (rtol, atol) = match case.precision {
        DType::F16 => (2e-2, 2e-2),
        _ => (5e-5, 2e-5),
    };
    for (name, want) in want {
        let got = got.get(name).ok_or_else(|| format!("{context}: no output {name}"))?;
        if got.dtype != want.dtype {
            return Err(format!("{context}: {name} is {}, not {}", got.dtype, want.dtype));
        }
        let (rtol, atol) = if want.dtype.is_float() {
            (rtol, atol * scale)
        } else {
            (0.0, 0.0)
        };
        let d = graphc::compare::compare(got, want, rtol, atol).map_err(|e| format!("{context}: {name}: {e}"))?;
        if !d.is_within() {
            return Err(format!(
                "{context}: {name}: {} of {} differ; at {}: got {}, expected {}",
                d.mismatches, d.elements, d.worst, d.got, d.want
            ));
        }
    }
    Ok(())
}

fn check(case: &Case, thorough: bool) -> Result<(), String> {
    ir::graph::verify::verify(&case.graph).map_err(|e| format!("the graph does not verify: {e}"))?;
    let want = ir::graph::eval::evaluate(&case.graph, &case.inputs).map_err(|e| format!("reference: {e}"))?;
    let values = ir::graph::eval::evaluate_values(&case.graph, &case.inputs).map_err(|e| format!("reference: {e}"))?;
    let mut scale = 1.0f64;
    for (id, results) in values.iter() {
        if case.graph.node(id).results[0].dtype.is_float() {
            for array in results {
                scale = array
                    .to_f64()
                    .iter()
                    .filter(|v| v.is_finite())
                    .fold(scale, |m, v| m.max(v.abs()));
            }
        }
    }
    let text = |graph: &ir::Graph| ir::graph::print::print(graph, Default::default());
    let again = ir::graph::parse::parse(&text(&case.graph)).map_err(|e| format!("printed text: {e}"))?;
    if text(&again) != text(&case.graph) {
        return Err("the text does not read back to the same graph".to_owned());
    }
    for level in [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3] {
        if !thorough && matches!(level, OptLevel::O1 | OptLevel::O3) {
            continue;
        }
        for target in ["cpu", "gfx90a"] {
            if target == "gfx90a" && level != OptLevel::O2 && !thorough {
                continue;
            }
            let context = |what: &str| format!("{what}, {target} at {level:?}");
            let target: Target = target.parse().expect("known");
            let mut options = BuildOptions::new(vec![target], level);
            options.check_indices = Some(false);
            options.optimize.verify = true;
            let built = build(&case.graph, &options).map_err(|e| format!("{}: {e}", context("build")))?;
            let core = &built.reports[0].core;
            let got = ir::graph::eval::evaluate(core, &case.inputs).map_err(|e| format!("{}: {e}", context("core")))?;
            compare(case, &got, &want, scale, &context("optimised graph"))?;
            let plan = &built.program.variants[0].plan;
            ir::plan::verify::verify(plan).map_err(|e| format!("{}: {e:?}", context("plan does not verify")))?;
            let got = ir::plan::eval::evaluate(plan, &built.program.constants, &case.inputs)
                .map_err(|e| format!("{}: {e}", context("plan")))?;
            compare(case, &got, &want, scale, &context("plan"))?;
            if target.is_gpu() {
                let at = |size: fn(&ir::SymbolInfo) -> i64| -> ir::dim::Bindings {
                    plan.symbols.iter().map(|(s, info)| (s.clone(), size(info))).collect()
                };
                for sizes in [
                    at(|i| i.hint),
                    at(|i| i.min),
                    at(|i| i.min + 1),
                    at(|i| i.min + 5),
                    at(|i| i.hint + 3),
                ] {
                    if plan.requirements.iter().any(|r| r.check(&sizes).is_err()) {
                        continue;
                    }
                    for kernel in plan.kernels.values() {
                        let open = unproven(kernel, &sizes).map_err(|e| format!("{}: {e}", context("bounds")))?;
                        if let Some(access) = open.first() {
                            let what = context("a GPU refuses it");
                            return Err(format!("{what}: kernel {} at {sizes:?}: {access}", kernel.name));
                        }
                    }
                }
                continue;
            }
            let threads = if thorough { 2 } else { 1 };
            let load = LoadOptions {
                threads,
                ..LoadOptions::default()
            };
            let exe = Executable::load_on(&graphc::cpu_device(), Arc::new(built.program), 0, &load)
                .map_err(|e| format!("{}: {e}", context("load")))?;
            for run in ["first run", "second run"] {
                let got = exe.run(&case.inputs).map_err(|e| format!("{}: {e}", context(run)))?;
                compare(case, &got, &want, scale, &context(run))?;
            }
        }
    }
    Ok(())
}

fn quietly(case: &Case, thorough: bool) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| check(case, thorough))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panic: {}",
            text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default()
        ))
    })
}

#[test]
fn random_graphs_mean_the_same_everywhere() {
    let number = |name: &str, default: u32| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let cases = number("GRAPHC_CASES", 6000);
    let seed = number("GRAPHC_SEED", 0);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    };
    let mut bytes = [7u8; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let words = prop::array::uniform8(any::<u16>());
    let strategy = (any::<u16>(), prop::collection::vec(words, 1..14));
    // Shrinking runs a failing case hundreds of times: its panics would fill the screen.
    std::panic::set_hook(Box::new(|_| {}));
    let result = runner.run(&strategy, |(head, steps): (u16, Vec<Step>)| {
        let case = case(head, &steps);
        quietly(&case, head % 8 == 7).map_err(TestCaseError::fail)
    });
    let _ = std::panic::take_hook();
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (head, steps))) => {
            let case = case(head, &steps);
            let inputs: Vec<String> = case
                .inputs
                .iter()
                .map(|(n, t)| format!("// {n} = {:?}{:?}", t.shape, t.to_f64()))
                .collect();
            panic!("{why}\nseed {seed}, head {head}\n{}\n{}", case.graph, inputs.join("\n"));
        }
        Err(other) => panic!("{other}"),
    }
}
