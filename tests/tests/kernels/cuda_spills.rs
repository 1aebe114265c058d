//! Kernels of sm_90 with many registers, through the real NVRTC: every tiling of products, rows that share units,
//! attention. None may keep registers in memory; `cuda_kernels::check` says which may keep a few words.

use std::collections::BTreeSet;

use codegen_hip::emit_kernel;
use graphc_tests::nvrtc::compiler;
use ir::DType;
use ir::graph::parse::parse;
use ir::kernel::{Kernel, Mapping};
use runtime::compile::CompileRequest;

use crate::cuda_kernels::{ARCH, check, headers, target};

/// The tilings of mma.sync that a large product with a bias and a GELU may get. They differ in blocks, and those of a
/// block in the number of stages, which costs no registers: one of each block is compiled, or all.
#[test]
fn tilings_of_mma_sync_compile_without_spills() {
    let Some(compiler) = compiler() else { return };
    let mut requests = Vec::new();
    for (weights, flags) in [("w", ""), ("t", "  t = transpose w {perm=[1, 0]}\n")] {
        let text = format!(
            "graph @g stage=import {{\n  x = input \"x\" : f16[4096, 4096]\n  w = input \"w\" : f16[4096, 4096]\n  b = input \"b\" : f16[4096]\n\
             {flags}  c = contract x, {weights}\n  a = add c, b\n  y = gelu a\n  return y as \"y\"\n}}\n"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
        let plan = &built.program.variants[0].plan;
        let kernel = plan.kernels.values().next().expect("a product");
        let mut blocks = BTreeSet::new();
        for mapping in passes::tuning::candidates(kernel, &plan.symbols, &plan.target) {
            let Mapping::Matrix(tiling) = &mapping else { continue };
            if tiling.instruction.waves() > 1 {
                continue;
            }
            if !blocks.insert((tiling.block, tiling.waves)) && !graphc_tests::everything() {
                continue;
            }
            let name = format!("{}_{}", kernel.name, requests.len());
            let kernel = Kernel {
                name: name.clone(),
                mapping,
                ..kernel.clone()
            };
            let source = emit_kernel(&kernel, &plan.symbols, &plan.target, &[]).unwrap_or_else(|e| panic!("{e}"));
            requests.push(CompileRequest {
                name,
                source: source.text,
                headers: headers(),
                arch: ARCH.to_owned(),
                options: source.options,
            });
        }
    }
    assert!(requests.len() >= 30, "{}", requests.len());
    check(&compiler, &requests);
    println!("{} kernels by mma.sync compiled", requests.len());
}

/// Products and a convolution by every tiling of warp groups, with what models compute behind them.
#[test]
fn tilings_of_warp_groups_compile_without_spills() {
    let Some(compiler) = compiler() else { return };
    let graphs = [
        "x = input \"x\" : f16[1024, 512]\n  w = input \"w\" : f16[512, 768]\n  b = input \"b\" : f16[768]\n  c = contract x, w\n  \
         a = add c, b\n  y = gelu a",
        "x = input \"x\" : bf16[1024, 512]\n  w = input \"w\" : bf16[768, 512]\n  r = input \"r\" : bf16[1024, 768]\n  \
         t = transpose w {perm=[1, 0]}\n  c = contract x, t\n  y = add c, r",
        "x = input \"x\" : f16[1024, 512]\n  g = constant random(seed=1) : f16[512, 384]\n  \
         u = constant random(seed=2) : f16[512, 384]\n  h = contract x, g\n  i = contract x, u\n  s = silu h\n  y = mul s, i",
        "x = input \"x\" : f16[8, 28, 28, 64]\n  w = constant random(seed=3) : f16[128, 3, 3, 64]\n  \
         c = conv x, w {channels_last, pad_low=[1, 1], pad_high=[1, 1]}\n  y = relu c",
        "x = input \"x\" : i8[1024, 512]\n  w = constant random(seed=4) : i8[768, 512]\n  s = input \"s\" : f32[768]\n  \
         t = transpose w {perm=[1, 0]}\n  c = contract x, t {out=i32}\n  f = cast c : f32[1024, 768]\n  y = mul f, s",
        "x = input \"x\" : i8[8, 28, 28, 64]\n  w = constant random(seed=5) : i8[128, 3, 3, 64]\n  \
         y = conv x, w {channels_last, pad_low=[1, 1], pad_high=[1, 1], out=i32}",
    ];
    let mut requests = Vec::new();
    let mut widths = BTreeSet::new();
    for text in graphs {
        let text = format!("graph @g stage=import {{\n  {text}\n  return y as \"y\"\n}}\n");
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
        let plan = &built.program.variants[0].plan;
        let kernels = plan
            .kernels
            .values()
            .filter(|k| matches!(k.mapping, Mapping::Matrix(_)));
        let before = requests.len();
        for kernel in kernels {
            for mapping in passes::tuning::candidates(kernel, &plan.symbols, &plan.target) {
                let Mapping::Matrix(tiling) = &mapping else { continue };
                if tiling.instruction.waves() == 1 {
                    continue;
                }
                widths.insert(tiling.block[1]);
                let kernel = Kernel {
                    mapping,
                    ..kernel.clone()
                };
                let source = emit_kernel(&kernel, &plan.symbols, &plan.target, &[]).unwrap_or_else(|e| panic!("{e}"));
                assert!(source.text.contains("MatrixTile<Wgmma<64, "), "{}", source.text);
                requests.push(CompileRequest {
                    name: kernel.name.clone(),
                    source: source.text,
                    headers: headers(),
                    arch: ARCH.to_owned(),
                    options: source.options,
                });
            }
        }
        assert!(
            requests.len() >= before + 10,
            "{} tilings of {text}",
            requests.len() - before
        );
    }
    requests.sort_by(|a, b| a.source.cmp(&b.source));
    requests.dedup_by(|a, b| a.source == b.source);
    check(&compiler, &requests);
    println!("{} kernels by warp groups compiled", requests.len());
    assert_eq!(widths, BTreeSet::from([64, 128, 192, 256]));
}

/// Rows that are many enough to share units: their registers are told to suffice for several workgroups, and do.
#[test]
fn rows_that_share_units_compile_without_spills() {
    let Some(compiler) = compiler() else { return };
    let kinds = [
        "  a = softmax x {axis=1}\n",
        "  a = log_softmax x {axis=1}\n",
        "  a = layer_norm x, g, b {axis=1, epsilon=1e-5}\n",
        "  n = layer_norm x, g, b {axis=1, epsilon=1e-5}\n  a = gelu n\n",
        "  r = add x, z\n  n = layer_norm r, g, b {axis=1, epsilon=1e-5}\n  a = tanh n\n",
        "  r = add x, z\n  n = rms_norm r, g {axis=1, epsilon=1e-5}\n  a = silu n\n",
        "  e = gelu x\n  a = softmax e {axis=1}\n",
        "  stored = add x, z\n  a = rms_norm stored, g {axis=1, epsilon=1e-5}\n",
    ];
    let (mut requests, mut told) = (Vec::new(), 0);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for cols in [512, 768, 1000, 2048, 4096, 5120, 8192, 12_345, 16_384] {
            for kind in kinds {
                let more = if kind.contains("stored") {
                    "stored as \"s\", "
                } else {
                    ""
                };
                let text = format!(
                    "graph @rows stage=import {{\n  x = input \"x\" : {dtype}[32768, {cols}]\n  z = input \"z\" : {dtype}[32768, \
                     {cols}]\n  g = input \"g\" : {dtype}[{cols}]\n  b = input \"b\" : {dtype}[{cols}]\n{kind}  return {more}a as \
                     \"y\"\n}}\n"
                );
                let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
                let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
                let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
                let kernels = built.program.variants[0].plan.kernels.values();
                told += kernels
                    .filter(|k| {
                        matches!(
                            k.mapping,
                            Mapping::Rows {
                                resident: Some(_),
                                as_needed: true,
                                ..
                            }
                        )
                    })
                    .count();
                requests.extend(graphc::driver::requests(&built.program));
            }
        }
    }
    check(&compiler, &requests);
    println!(
        "{} kernels of rows compiled, {told} with room for several workgroups",
        requests.len()
    );
    assert!(told * 4 > requests.len() * 3, "{told} of {}", requests.len());
}

/// Heads of many widths, with few queries and many: what goes through registers, through LDS, and what waves share.
/// Some of the few are turned by their positions where they are read.
#[test]
fn attention_of_all_widths_compiles_without_spills() {
    let Some(compiler) = compiler() else { return };
    let (mut requests, mut by_matrix, mut turned) = (Vec::new(), 0, 0);
    for (number, width) in [7, 40, 64, 80, 96, 128, 160, 192, 224, 256].into_iter().enumerate() {
        for (queries, keys, turn) in [
            (1, 300, false),
            (20, 300, false),
            (70, 300, false),
            (2048, 2048, false),
            (1, 1025, true),
            (3, 300, true),
        ] {
            if turn && width % 2 == 1 {
                continue;
            }
            let causal = if (number + queries) % 2 == 0 { ", causal" } else { "" };
            let shape = format!("f16[1, 32, {queries}, {width}]");
            let query = match turn {
                false => format!("q = input \"q\" : {shape}"),
                true => {
                    let half = width / 2;
                    let sizes = format!("sizes=[1, 32, {queries}, {half}]");
                    format!(
                        "x = input \"x\" : {shape}\n  c = input \"c\" : f16[{queries}, {width}]\n  l = slice x {{starts=[0, 0, 0, 0], \
                         {sizes}}}\n  u = slice x {{starts=[0, 0, 0, {half}], {sizes}}}\n  n = neg u\n  h = concat n, l {{axis=3}}\n  \
                         xc = mul x, c\n  q = add xc, h"
                    )
                }
            };
            let text = format!(
                "graph @a stage=import {{\n  {query}\n  \
                 k = input \"k\" : f16[1, 8, {keys}, {width}]\n  v = input \"v\" : f16[1, 8, {keys}, {width}]\n  \
                 y = attention q, k, v {{scale=0.125{causal}}}\n  return y as \"y\"\n}}\n"
            );
            let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
            let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
            let sources = graphc::driver::requests(&built.program);
            let flash = |source: &str| source.contains("FlashTile<MmaSync");
            by_matrix += sources.iter().filter(|r| flash(&r.source)).count();
            let computed = |source: &str| flash(source) && source.contains("query = values<f16");
            turned += sources.iter().filter(|r| computed(&r.source)).count();
            requests.extend(sources);
        }
    }
    check(&compiler, &requests);
    println!(
        "{} kernels compiled, {by_matrix} by mma.sync, {turned} of which turn their queries",
        requests.len()
    );
    assert!(
        by_matrix >= 20 && turned >= 10,
        "{by_matrix} and {turned} of {}",
        requests.len()
    );
}
