//! No bit of a result depends on the optimisation level where the standards give every bit, on the CPU; `levels` of the
//! kernels' tests has the emulated GPUs.
//!
//! `GRAPHC_CASES` sets how many graphs (1,500 by default), `GRAPHC_SEED` the first.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::Target;
use graphc::ir::graph::parse::parse;
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::exact_graph::{Case, DOCUMENTED, case, first_difference};
use graphc_tests::reference::Tensors;

fn run(case: &Case, level: OptLevel) -> Result<Tensors, String> {
    let graph = parse(&case.text).map_err(|e| e.to_string())?;
    let mut options = BuildOptions::new(vec![Target::cpu()], level);
    options.optimize.disable.extend(DOCUMENTED.map(str::to_owned));
    options.optimize.verify = true;
    let program = build(&graph, &options).map_err(|e| e.to_string())?.program;
    let load = LoadOptions {
        threads: 1,
        ..LoadOptions::default()
    };
    let loaded = Executable::load_on(&graphc::cpu_device(), Arc::new(program), 0, &load);
    loaded.and_then(|exe| exe.run(&case.inputs)).map_err(|e| e.to_string())
}

#[test]
fn every_level_gives_the_same_bits() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, cases) = (number("GRAPHC_SEED", 0), number("GRAPHC_CASES", 1500));
    let mut wrong = Vec::new();
    for seed in first..first + cases {
        let case = case(seed);
        let want = run(&case, OptLevel::O0).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
        for level in [OptLevel::O1, OptLevel::O2, OptLevel::O3] {
            let problem = match run(&case, level) {
                Ok(got) => first_difference(&got, &want),
                Err(error) => Some(error),
            };
            if let Some(problem) = problem {
                wrong.push(format!("seed {seed} at {level:?}: {problem}\n{}", case.text));
                break;
            }
        }
    }
    println!("{cases} graphs, {} wrong", wrong.len());
    wrong.truncate(8);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
