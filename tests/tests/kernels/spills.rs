//! Kernels whose registers spill get other code, as the real compiler says: convolutions of networks' first layers,
//! grouped ones, products whose few steps along k are unrolled.
//!
//! `GRAPHC_ALL_MODELS=1` has 100 random convolutions and 100 random products on each
//! GPU, otherwise a few.

use std::fmt::Write as _;

use graphc::driver::{self, Build, BuildOptions, build};
use graphc::passes::OptLevel;
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::everything;
use ir::graph::parse::parse;
use ir::kernel::verify::verify;
use ir::{Program, Target};
use runtime::code_object;

use crate::random_kernels::Random;

const ARCHS: [&str; 3] = ["gfx90a", "gfx1100", "gfx1201"];

/// Registers and bytes in memory of each kernel.
fn in_memory(program: &Program) -> Vec<[u32; 2]> {
    let code = program.variants[0].code.values().flatten();
    code.map(|code| {
        let kernel = &code_object::read(code).expect("a code object").kernels[0];
        [kernel.vgpr_spills, kernel.scratch_bytes]
    })
    .collect()
}

/// What mending made of a graph's kernels.
struct Mended {
    built: Build,
    /// Kernels that spilled at first.
    spilling: usize,
    /// Kernels whose loops are kept.
    kept: usize,
}

/// Builds a graph and mends its kernels, none of which may spill then, or have another mapping that the verifier
/// refuses.
fn mended(tools: &Toolchain, arch: &str, text: &str) -> Mended {
    let target: Target = arch.parse().expect("a target of the table");
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    let mut built = build(&graph, &options).unwrap_or_else(|e| panic!("{arch}: {e}\n{text}"));
    let program = &mut built.program;
    driver::compile(program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}\n{text}"));
    let before: Vec<String> = program.variants[0]
        .plan
        .kernels
        .values()
        .map(|k| k.mapping.to_string())
        .collect();
    let at_first = in_memory(program);
    let changed = driver::mend_spills(program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
    let now = in_memory(program);
    let spilling = at_first.iter().filter(|m| **m != [0, 0]).count();
    let variant = &program.variants[0];
    let mut kept = 0;
    for (i, (kernel, source)) in variant.plan.kernels.values().zip(variant.sources.values()).enumerate() {
        verify(kernel).unwrap_or_else(|e| panic!("{arch}: {e}\n{text}"));
        if at_first[i] != [0, 0] {
            let keeps = source.options.iter().any(|option| option == "-fno-unroll-loops");
            kept += usize::from(keeps);
            let us = passes::lower::mapping::predicted_us(kernel, &variant.plan.symbols, &target);
            println!("{arch} {}: {:?} by {}", kernel.name, at_first[i], before[i]);
            println!(
                "  now {:?} by {}{}, predicted {us:?} us",
                now[i],
                kernel.mapping,
                if keeps { ", loops kept" } else { "" }
            );
        }
    }
    assert_eq!(changed, spilling, "{arch}\n{text}");
    assert!(now.iter().all(|m| *m == [0, 0]), "{arch}: {now:?}\n{text}");
    // Nothing is left to mend.
    assert_eq!(driver::mend_spills(program, &tools.compiler, &|_| ()).ok(), Some(0));
    Mended { built, spilling, kept }
}

/// A convolution of halves and its activation.
fn convolution(image: &str, filter: &str, window: &str) -> String {
    format!(
        "graph @conv stage=import {{\n  x = input \"x\" : f16[{image}]\n  w = constant random(seed=1) : f16[{filter}]\n  \
         c = conv x, w {{{window}}}\n  y = relu c\n  return y as \"y\"\n}}\n"
    )
}

#[test]
fn nothing_spills_that_spilled_at_first() {
    let Some(tools) = toolchain() else { return };
    let product = |text: &str, m: u32, n: u32, k: u32| {
        format!(
            "graph @product stage=import {{\n  x = input \"x\" : {text}[{m}, {k}]\n  w = input \"w\" : {text}[{k}, {n}]\n  \
             y = contract x, w\n  return y as \"y\"\n}}\n"
        )
    };
    let texts = [
        convolution(
            "8, 3, 224, 224",
            "64, 3, 7, 7",
            "strides=[2, 2], pad_low=[3, 3], pad_high=[3, 3]",
        ),
        convolution(
            "8, 128, 28, 28",
            "128, 4, 3, 3",
            "pad_low=[1, 1], pad_high=[1, 1], groups=32",
        ),
        convolution("1, 512, 7, 7", "512, 512, 3, 3", "pad_low=[1, 1], pad_high=[1, 1]"),
        // Six steps along k.
        convolution(
            "8, 512, 26, 26",
            "256, 128, 1, 3",
            "strides=[2, 2], pad_low=[0, 1], pad_high=[0, 1], groups=4",
        ),
        // Two sizes of the shipped tables.
        product("f16", 1024, 4096, 4096),
        product("bf16", 128, 768, 768),
    ];
    let (mut spilling, mut kept, mut tally) = (0, 0, Tally::default());
    for arch in ARCHS {
        for text in &texts {
            let mended = mended(&tools, arch, text);
            spilling += mended.spilling;
            kept += mended.kept;
            if mended.spilling > 0 {
                tally.add(&format!("{arch}\n{text}"), &tools.sample(&mended.built, 2));
            }
        }
    }
    assert!(spilling > 0, "nothing of this spills at first: find what does");
    assert!(
        kept > 0,
        "no kernel's loops are kept: find one that needs it, or do without"
    );
    tally.finish("mended kernels", spilling);
}

/// A random convolution: its groups, channels, window, strides, layout, type and what follows it.
fn random_convolution(random: &mut Random, number: usize) -> String {
    let dtype = random.of(&["f16", "f16", "bf16", "f32", "i8"]);
    let groups = random.of(&[1, 1, 1, 1, 2, 4, 8, 32]);
    let per_input = random
        .of(&[1, 2, 3, 3, 4, 8, 16, 24, 64, 128, 256, 512])
        .min(512 / groups);
    let per_output = random.of(&[1, 2, 4, 8, 16, 32, 64, 96, 256, 512]).min(512 / groups);
    let (channels, filters) = (per_input * groups, per_output * groups);
    let window = [
        random.of(&[1, 1, 3, 3, 3, 5, 7, 11]),
        random.of(&[1, 3, 3, 3, 5, 7, 11]),
    ];
    let stride = random.of(&[1, 1, 2, 2, 4]);
    let pad = [random.of(&[0, window[0] / 2]), window[1] / 2];
    let most = if channels > 64 { 28 } else { 112 };
    let size = window[0].max(window[1]) + random.below(most);
    let batch = random.of(&[1, 1, 2, 8]);
    let points = [0, 1].map(|axis: usize| (size + 2 * pad[axis] - window[axis]) / stride + 1);
    let last = random.below(3) == 0;
    let shape = |of: usize, channels: usize, [rows, columns]: [usize; 2]| match last {
        true => [of, rows, columns, channels],
        false => [of, channels, rows, columns],
    };
    let (image, filter) = (shape(batch, channels, [size; 2]), shape(filters, per_input, window));
    let mut text = format!("graph @conv_{number} stage=import {{\n  x = input \"x\" : {dtype}{image:?}\n");
    let _ = writeln!(text, "  w = constant random(seed=1) : {dtype}{filter:?}");
    let (sums, wide) = if dtype == "i8" {
        ("i32", ", out=i32")
    } else {
        (dtype, "")
    };
    let bias = random.below(2) == 0;
    if bias {
        let _ = writeln!(text, "  b = input \"b\" : {sums}[{filters}]");
    }
    let operands = if bias { "x, w, b" } else { "x, w" };
    let layout = if last { ", channels_last" } else { "" };
    let _ = writeln!(
        text,
        "  p = conv {operands} {{groups={groups}, strides=[{stride}, {stride}], pad_low={pad:?}, \
         pad_high={pad:?}{layout}{wide}}}"
    );
    text + &followed(random, dtype, &format!("{:?}", shape(batch, filters, points)))
}

/// What follows the sums `p` of a product: scales of integers and perhaps their quantisation, an activation or a
/// residual, and the end of the graph.
fn followed(random: &mut Random, dtype: &str, shape: &str) -> String {
    let (start, float) = match dtype {
        "i8" => (
            "  f = cast p {to=f32}\n  s = constant 0.0123 : f32[]\n  c = mul f, s\n",
            "f32",
        ),
        _ => ("  z = constant 0.37 : DTYPE[]\n  c = max p, z\n", dtype),
    };
    let mut text = start.replace("DTYPE", dtype);
    text += &match random.below(5) {
        0 => "  y = abs c\n".to_owned(),
        1 => "  y = relu c\n".to_owned(),
        2 => "  s1 = sigmoid c\n  y = mul c, s1\n".to_owned(),
        3 => "  y = gelu c\n".to_owned(),
        _ => format!("  r = input \"r\" : {float}{shape}\n  a = add c, r\n  y = relu a\n"),
    };
    let ends = dtype == "i8" && random.below(2) == 0;
    text += if ends {
        "  o = round y\n  i = cast o {to=i8}\n"
    } else {
        ""
    };
    let _ = writeln!(text, "  return {} as \"y\"\n}}", if ends { "i" } else { "y" });
    text
}

/// A random product: its sizes, whether weights are transposed, a batch, type and what follows it.
fn random_product(random: &mut Random, number: usize) -> String {
    let dtype = random.of(&["f16", "f16", "bf16", "f32", "i8", "i8"]);
    let m = random.of(&[1, 2, 5, 16, 50, 128, 197, 512, 1000, 4096]);
    let n = random.of(&[1, 8, 10, 64, 96, 127, 256, 768, 1000, 3072]);
    let k = random.of(&[3, 7, 16, 64, 100, 147, 256, 768, 2048, 4608]);
    let batch = random.of(&["", "", "", "6, "]);
    let mut text = format!("graph @product_{number} stage=import {{\n  x = input \"x\" : {dtype}[{batch}{m}, {k}]\n");
    let given = random.below(3) == 0;
    let weights = |text: &mut String, [rows, columns]: [usize; 2]| {
        let _ = match given {
            true => writeln!(text, "  w = input \"w\" : {dtype}[{batch}{rows}, {columns}]"),
            false => writeln!(
                text,
                "  w = constant random(seed=1) : {dtype}[{batch}{rows}, {columns}]"
            ),
        };
    };
    let out = if dtype == "i8" { "i32" } else { dtype };
    if random.below(2) == 0 {
        weights(&mut text, [k, n]);
        let _ = writeln!(text, "  p = contract x, w {{out={out}}}");
    } else {
        weights(&mut text, [n, k]);
        let _ = writeln!(text, "  p = contract x, w {{transpose_rhs, out={out}}}");
    }
    text + &followed(random, dtype, &format!("[{batch}{m}, {n}]"))
}

fn none_spills(what: &str, texts: &[String], least: usize) {
    let Some(tools) = toolchain() else { return };
    let mut spilling = 0;
    for arch in ARCHS {
        let of_arch: usize = texts.iter().map(|text| mended(&tools, arch, text).spilling).sum();
        println!("{arch}: {} {what}, {of_arch} kernels spilled at first", texts.len());
        spilling += of_arch;
    }
    assert!(spilling >= least, "nothing of this spills at first: find what does");
}

fn texts(seed: u64, make: fn(&mut Random, usize) -> String) -> Vec<String> {
    let cases = if everything() { 100 } else { 9 };
    let mut random = Random(seed);
    (0..cases).map(|number| make(&mut random, number)).collect()
}

#[test]
fn no_random_convolution_spills() {
    none_spills("convolutions", &texts(46, random_convolution), 1);
}

#[test]
fn no_random_product_spills() {
    none_spills("products", &texts(47, random_product), 0);
}
