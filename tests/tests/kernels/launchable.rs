//! Kernels that lowering makes of random pointwise, transposing and window graphs can be launched on every target: the
//! real compilers find the LDS that was counted for them, and enough registers. That they verify against the targets'
//! rows is a test of the passes.
//!
//! `GRAPHC_COMPILED` sets how many graphs are compiled.

use graphc::driver::{self, Build, BuildOptions, build};
use graphc::options::Settings;
use graphc::passes::OptLevel;
use graphc_tests::graphc_binary;
use ir::graph::parse::parse;
use ir::kernel::Mapping;
use ir::target::{Platform, TARGETS};
use ir::{Graph, Kernel, Target};
use runtime::cache::CachedCompiler;
use runtime::code_object;

use crate::random_kernels::{Random, text_of_graph};

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Every GPU of the table.
fn targets() -> Vec<Target> {
    let gpus = TARGETS.iter().filter(|t| t.is_gpu());
    gpus.map(|t| t.name.parse().expect("a target of the table")).collect()
}

/// Builds a graph of generated kernels alone for a target, which verifies them against its row.
fn built(graph: &Graph, target: Target) -> Result<Build, String> {
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    build(graph, &options).map_err(|error| error.to_string())
}

/// The compiler of a platform, or a printed word on what is skipped.
fn compiler(platform: Platform) -> Option<CachedCompiler> {
    let binary = graphc_binary();
    if !binary.is_file() {
        println!("skipped: {} is not built", binary.display());
        return None;
    }
    let settings = Settings::from_env().expect("the environment's settings");
    let worker = [binary.into(), "__compile-worker".into()];
    match driver::compiler(&settings, Some(&worker), [platform]) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The difference between the compiler's numbers of a kernel and those that were counted.
fn misfit(kernel: &Kernel, target: &Target, code: &[u8]) -> Option<String> {
    let found = match code_object::read(code) {
        Ok(object) => object.kernels.into_iter().next()?,
        Err(error) => return Some(error.to_string()),
    };
    let counted = kernel.lds_bytes(target.wave_size) - u64::from(kernel.launch_lds());
    let lds = u64::from(found.lds_bytes);
    if lds > counted {
        return Some(format!("{lds} bytes of LDS, counted as {counted}"));
    }
    // Tiles have no slack.
    if matches!(kernel.mapping, Mapping::Transpose { .. }) && lds != counted {
        return Some(format!("{lds} bytes of LDS for tiles, counted as {counted}"));
    }
    (found.vgpr_spills > 0).then(|| format!("{} registers spill", found.vgpr_spills))
}

#[test]
fn random_kernels_compile_with_the_lds_that_was_counted() {
    let mut random = Random(2000);
    let cases = number("GRAPHC_COMPILED", 24);
    let compilers = [Platform::Hip, Platform::Cuda].map(|platform| (platform, compiler(platform)));
    let (targets, mut compiled, mut wrong) = (targets(), 0, Vec::new());
    for case in 0..cases {
        let text = text_of_graph(&mut random);
        // NVIDIA's every third time: it declares least.
        let nvidia = targets
            .iter()
            .filter(|t| t.platform == Platform::Cuda)
            .take(usize::from(case % 3 == 0));
        let amd = targets
            .iter()
            .filter(|t| t.platform == Platform::Hip)
            .cycle()
            .skip(case);
        let Some(target) = nvidia.chain(amd.take(1)).next() else {
            continue;
        };
        let found = compilers.iter().find(|(platform, _)| *platform == target.platform);
        let Some((_, Some(compiler))) = found else { continue };
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut built = built(&graph, *target).unwrap_or_else(|e| panic!("{target}: {e}\n{text}"));
        if let Err(error) = driver::compile(&mut built.program, compiler, &|_| ()) {
            wrong.push(format!("case {case}, {target}: {error}\n{text}"));
            continue;
        }
        let variant = &built.program.variants[0];
        for (kernel, code) in variant.plan.kernels.values().zip(variant.code.values()) {
            compiled += 1;
            let problem = code.as_ref().and_then(|code| misfit(kernel, target, code));
            wrong.extend(problem.map(|p| format!("case {case}, {target}, {}: {p}\n{text}", kernel.mapping)));
        }
    }
    println!("{compiled} kernels compiled");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Shifted windows, joined again, normed and added to: rows of which some operands are read after the first fold, by
/// the step that stores. Both places of a step compute where its elements lie.
const ROWS_READ_LATER: &str = r#"graph @rows_read_later stage=import {
  x = input "x" : f16[512, 8, 8, 96]
  s = input "s" : f16[8, 64, 64, 96]
  g = input "g" : f16[96]
  b = input "b" : f16[96]
  n2 = reshape x : f16[8, 8, 8, 8, 8, 96]
  n3 = transpose n2 {perm=[0, 1, 3, 2, 4, 5]} : f16[8, 8, 8, 8, 8, 96]
  n4 = reshape n3 : f16[8, 64, 64, 96]
  n5 = slice n4 {starts=[0, 60, 0, 0]} : f16[8, 4, 64, 96]
  n6 = slice n4 {starts=[0, 0, 0, 0]} : f16[8, 60, 64, 96]
  n7 = concat n5, n6 {axis=1} : f16[8, 64, 64, 96]
  n8 = slice n7 {starts=[0, 0, 60, 0]} : f16[8, 64, 4, 96]
  n9 = slice n7 {starts=[0, 0, 0, 0]} : f16[8, 64, 60, 96]
  n10 = concat n8, n9 {axis=2} : f16[8, 64, 64, 96]
  n11 = layer_norm n10, g, b {axis=3, epsilon=1e-5} : f16[8, 64, 64, 96]
  out = add n11, s : f16[8, 64, 64, 96]
  return out as "out"
}
"#;

#[test]
fn rows_of_which_some_is_read_later_compile() {
    let graph = parse(ROWS_READ_LATER).expect("a graph");
    for name in ["gfx90a", "gfx1201", "sm_90"] {
        let target: Target = name.parse().expect("a target of the table");
        let Some(compiler) = compiler(target.platform) else {
            continue;
        };
        let mut built = built(&graph, target).unwrap_or_else(|e| panic!("{name}: {e}"));
        driver::compile(&mut built.program, &compiler, &|_| ()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
