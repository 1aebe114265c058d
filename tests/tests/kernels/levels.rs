//! No bit of a result depends on the optimisation level or on the device where the standards give every bit: the CPU
//! and emulated GPUs, whose kernels fuse more at each level.
//!
//! The GPUs take turns, and -O0, where each op is a kernel, has an eighth of the graphs. `GRAPHC_CASES` sets how
//! many graphs (8 by default), `GRAPHC_SEED` the first.

use std::sync::Arc;

use graphc::driver::{self, BuildOptions, build};
use graphc::emulate::{Emulator, Options};
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::emulator::{Toolchain, toolchain};
use graphc_tests::exact_graph::{Case, DOCUMENTED, case, first_difference};
use graphc_tests::reference::Tensors;
use ir::Program;
use ir::graph::parse::parse;
use passes::OptLevel;

const LEVELS: [OptLevel; 4] = [OptLevel::O3, OptLevel::O2, OptLevel::O1, OptLevel::O0];

fn program(case: &Case, target: &str, level: OptLevel) -> Result<Program, String> {
    let graph = parse(&case.text).map_err(|e| e.to_string())?;
    let mut options = BuildOptions::new(vec![target.parse().expect("a target of the table")], level);
    options.optimize.disable.extend(DOCUMENTED.map(str::to_owned));
    options.optimize.libraries = false;
    build(&graph, &options).map(|b| b.program).map_err(|e| e.to_string())
}

fn on_cpu(case: &Case) -> Result<Tensors, String> {
    let program = Arc::new(program(case, "cpu", OptLevel::O0)?);
    let loaded = Executable::load_on(&graphc::cpu_device(), program, 0, &LoadOptions::default());
    loaded.and_then(|exe| exe.run(&case.inputs)).map_err(|e| e.to_string())
}

fn emulated(tools: &Toolchain, case: &Case, arch: &str, level: OptLevel) -> Result<Tensors, String> {
    let mut program = program(case, arch, level)?;
    driver::compile(&mut program, &tools.compiler, &|_| ()).map_err(|e| e.to_string())?;
    let emulator = Emulator::load(&program, 0, &tools.disassembler, Options::default());
    let outcome = emulator.and_then(|e| e.run(&case.inputs)).map_err(|e| e.to_string())?;
    Ok(outcome.outputs)
}

#[test]
fn every_level_and_device_gives_the_same_bits() {
    let Some(tools) = toolchain() else { return };
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, cases) = (number("GRAPHC_SEED", 0), number("GRAPHC_CASES", 8));
    let mut wrong = Vec::new();
    for seed in first..first + cases {
        let case = case(seed);
        let want = on_cpu(&case).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.text));
        let arch = ["gfx90a", "gfx1100"][seed as usize % 2];
        let levels = if seed % 16 < 2 { &LEVELS[..] } else { &LEVELS[..3] };
        for &level in levels {
            let problem = match emulated(&tools, &case, arch, level) {
                Ok(got) => first_difference(&got, &want),
                Err(error) => Some(error),
            };
            if let Some(problem) = problem {
                wrong.push(format!("seed {seed}, {arch} at {level:?}: {problem}\n{}", case.text));
                break;
            }
        }
    }
    println!("{cases} graphs, {} wrong", wrong.len());
    wrong.truncate(8);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
