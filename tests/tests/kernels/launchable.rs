//! Kernels that lowering makes of random pointwise, transposing and window graphs can be launched on every target: they verify against the
//! target's row, and the real compilers find the LDS that was counted for them, and enough registers.
//!
//! `GRAPHC_CASES` sets how many graphs there are, `GRAPHC_COMPILED` how many of them are compiled.

use std::fmt::Write;

use graphc::driver::{self, Build, BuildOptions, build};
use graphc::options::Settings;
use graphc::passes::OptLevel;
use graphc_tests::graphc_binary;
use graphc_tests::quantised::Random;
use ir::graph::parse::parse;
use ir::kernel::Mapping;
use ir::target::{Platform, TARGETS};
use ir::{Graph, Kernel, Target};
use runtime::cache::CachedCompiler;
use runtime::code_object;

/// A graph's text as it grows.
struct Text {
    lines: String,
    values: usize,
    inputs: usize,
}

impl Text {
    fn add(&mut self, op: &str) -> String {
        self.values += 1;
        let name = format!("v{}", self.values);
        let _ = writeln!(self.lines, "  {name} = {op}");
        name
    }

    fn input(&mut self, dtype: &str, shape: [usize; 4]) -> String {
        self.inputs += 1;
        let [a, b, c, d] = shape;
        let name = self.inputs;
        self.add(&format!("input \"in{name}\" : {dtype}[{a}, {b}, {c}, {d}]"))
    }
}

/// Orders in which an image's axes may lie in memory, each with the transpose that gives `[image, channel, row, column]`.
const ORDERS: [([usize; 4], &str); 4] = [
    ([0, 1, 2, 3], ""),
    ([0, 2, 3, 1], "0, 3, 1, 2"),
    ([1, 2, 3, 0], "3, 0, 1, 2"),
    ([0, 3, 2, 1], "0, 3, 2, 1"),
];

/// An image of so many channels, rows and columns, perhaps a nearest neighbour's upsampling along some axes, from memory in any order.
fn image(text: &mut Text, random: &mut Random, dtype: &str, shape: [usize; 4]) -> String {
    let mut stored = shape;
    let mut scaled = Vec::new();
    for axis in [2, 3] {
        let factor = random.of(&[1, 1, 2, 4, 8]);
        if shape[axis].is_multiple_of(factor) && factor > 1 {
            stored[axis] /= factor;
            scaled.push((axis, factor));
        }
    }
    let (order, back) = random.of(&ORDERS);
    let mut value = text.input(dtype, order.map(|axis| stored[axis]));
    if !back.is_empty() {
        value = text.add(&format!("transpose {value} {{perm=[{back}]}}"));
    }
    for (axis, factor) in scaled {
        // By positions that are computed, or that the run gives.
        let at = if random.below(3) == 0 {
            text.inputs += 1;
            let name = text.inputs;
            text.add(&format!("input \"at{name}\" : i64[{}]", shape[axis]))
        } else {
            let iota = text.add(&format!("iota {{axis=0}} : i64[{}]", shape[axis]));
            let by = text.add(&format!("constant {factor} : i64[]"));
            text.add(&format!("div {iota}, {by}"))
        };
        value = text.add(&format!("take {value}, {at} {{axis={axis}}}"));
    }
    value
}

/// A graph of many images that are added, compared and folded, and perhaps a window over what they make.
fn text_of_graph(random: &mut Random) -> String {
    let dtype = random.of(&["f16", "f16", "f16", "f32", "bf16", "i8", "f64", "i64", "f8e4m3fn"]);
    let computed = if dtype == "f8e4m3fn" { "f32" } else { dtype };
    let shape = [
        random.of(&[1, 2, 8]),
        random.of(&[16, 18, 32, 33, 64, 144]),
        random.of(&[8, 16, 28, 56]),
        random.of(&[7, 8, 16, 56]),
    ];
    let mut text = Text {
        lines: String::new(),
        values: 0,
        inputs: 0,
    };
    let cast = |text: &mut Text, value: String| match dtype == computed {
        true => value,
        false => text.add(&format!("cast {value} {{to={computed}}}")),
    };
    let first = image(&mut text, random, dtype, shape);
    let mut sum = cast(&mut text, first);
    for _ in 0..random.below(14) {
        let other = image(&mut text, random, dtype, shape);
        let other = cast(&mut text, other);
        let op = random.of(&["add", "add", "mul", "max", "sub"]);
        sum = text.add(&format!("{op} {sum}, {other}"));
        if random.below(3) == 0 {
            sum = text.add(&format!("relu {sum}"));
        }
    }
    let (_, order) = random.of(&ORDERS);
    let turned = |text: &mut Text, value: String| match order.is_empty() {
        true => value,
        false => text.add(&format!("transpose {value} {{perm=[{order}]}}")),
    };
    let axis = random.below(4);
    let float = computed.starts_with(['f', 'b']);
    let result = match random.below(9) {
        0 | 1 => {
            let (size, stride) = (random.of(&[2, 3]), random.of(&[1, 2]));
            let kind = if float { random.of(&["max", "average"]) } else { "max" };
            let last = if random.below(2) == 0 { "" } else { ", channels_last" };
            text.add(&format!("pool {sum} {{kind={kind}, size=[{size}, {size}], strides=[{stride}, {stride}]{last}}}"))
        }
        2 => {
            let op = random.of(&["sum", "max", "min", "arg_max"]);
            text.add(&format!("reduce {sum} {{op={op}, axes=[{axis}]}}"))
        }
        3 if float => {
            let turned = turned(&mut text, sum);
            text.add(&format!("softmax {turned} {{axis={axis}}}"))
        }
        4 => text.add(&format!("scan {sum} {{op=sum, axis={axis}}}")),
        5 => {
            let turned = turned(&mut text, sum.clone());
            let _ = writeln!(text.lines, "  return {sum} as \"plain\", {turned} as \"y\"");
            return format!("graph @random stage=import {{\n{}}}\n", text.lines);
        }
        _ => turned(&mut text, sum),
    };
    let _ = writeln!(text.lines, "  return {result} as \"y\"");
    format!("graph @random stage=import {{\n{}}}\n", text.lines)
}

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

#[test]
fn random_kernels_verify_for_every_target() {
    let mut random = Random(46);
    let cases = number("GRAPHC_CASES", 100);
    let (mut kernels, mut several, mut wrong) = (0, 0, Vec::new());
    for case in 0..cases {
        let text = text_of_graph(&mut random);
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for target in targets() {
            match built(&graph, target) {
                Err(error) => wrong.push(format!("case {case}, {target}: {error}\n{text}")),
                Ok(built) => {
                    let all = &built.program.variants[0].plan.kernels;
                    let tiles = |k: &Kernel| matches!(&k.mapping, Mapping::Transpose { tiled, .. } if tiled.len() > 3);
                    kernels += all.len();
                    several += all.values().filter(|k| tiles(k)).count();
                }
            }
        }
    }
    println!("{kernels} kernels lowered, {several} with four tiles or more");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(cases < 50 || several > 0, "no kernel has several tiles");
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

/// What the compiler says of a kernel that differs from what was counted.
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
    // What is counted and not declared is not lost: tiles have no slack.
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
        let nvidia = targets.iter().filter(|t| t.platform == Platform::Cuda).take(usize::from(case % 3 == 0));
        let amd = targets.iter().filter(|t| t.platform == Platform::Hip).cycle().skip(case);
        let Some(target) = nvidia.chain(amd.take(1)).next() else { continue };
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
