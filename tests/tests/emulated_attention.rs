//! Attention on matrix instructions: really lowered kernels of many shapes on emulated GPUs, against the reference evaluator.

use graphc_tests::emulator::toolchain;
use ir::kernel::{Body, Mapping};

/// An attention's sizes.
struct Case {
    batch: i64,
    heads: i64,
    /// Heads of keys and values.
    shared: i64,
    queries: i64,
    keys: i64,
    d: i64,
    dv: i64,
    causal: bool,
    mask: bool,
}

const fn case(heads: [i64; 2], rows: [i64; 2], widths: [i64; 2], causal: bool, mask: bool) -> Case {
    Case {
        batch: 2,
        heads: heads[0],
        shared: heads[1],
        queries: rows[0],
        keys: rows[1],
        d: widths[0],
        dv: widths[1],
        causal,
        mask,
    }
}

/// Tiles whole and cut short, more keys than queries, wide and narrow heads, heads that share keys, masks.
const CASES: &[Case] = &[
    case([2, 2], [128, 128], [64, 64], false, false),
    case([2, 2], [70, 70], [64, 64], true, false),
    case([4, 2], [33, 97], [64, 64], true, false),
    case([2, 1], [130, 200], [128, 128], false, false),
    case([1, 1], [50, 75], [128, 64], true, true),
    case([2, 2], [40, 64], [32, 32], false, true),
    case([1, 1], [20, 100], [80, 80], false, false),
    case([2, 2], [1, 77], [64, 64], false, false),
    case([1, 1], [9, 33], [48, 40], true, false),
    // Few queries: waves share them.
    case([4, 2], [1, 300], [64, 64], false, false),
    case([2, 1], [3, 520], [128, 128], true, false),
];

fn text(case: &Case, dtype: &str) -> String {
    let Case {
        batch,
        heads,
        shared,
        queries,
        keys,
        d,
        dv,
        ..
    } = case;
    let mask = if case.mask {
        format!("  m = input \"m\" : {dtype}[1, 1, {queries}, {keys}]\n")
    } else {
        String::new()
    };
    let operands = if case.mask { "q, k, v, m" } else { "q, k, v" };
    let flags = match (case.causal, case.mask) {
        (true, true) => ", causal, mask",
        (true, false) => ", causal",
        (false, true) => ", mask",
        (false, false) => "",
    };
    format!(
        "graph @attention stage=import {{\n  q = input \"q\" : {dtype}[{batch}, {heads}, {queries}, {d}]\n  k = input \"k\" : \
         {dtype}[{batch}, {shared}, {keys}, {d}]\n  v = input \"v\" : {dtype}[{batch}, {shared}, {keys}, {dv}]\n{mask}  a = attention \
         {operands} {{scale=0.125{flags}}}\n  return a as \"y\"\n}}\n"
    )
}

fn check(arch: &str, dtype: &str) {
    let Some(tools) = toolchain() else { return };
    for case in CASES {
        let ran = tools.each_kernel(arch, &text(case, dtype));
        // A launch that brings parts together may follow.
        let (Some((kernel, checked)), true) = (ran.first(), ran.len() <= 2) else {
            panic!("{arch}: {} kernels", ran.len())
        };
        assert!(matches!(kernel.body, Body::Attention(_)), "{}", kernel.name);
        assert!(
            matches!(kernel.mapping, Mapping::FlashMatrix(_)),
            "{arch} {dtype}: {}",
            kernel.mapping
        );
        assert!(checked.counters.matrix_macs > 0, "{arch}: no matrix instruction ran");
    }
}

#[test]
fn attention_on_gfx90a() {
    check("gfx90a", "f16");
    check("gfx90a", "bf16");
}

#[test]
fn attention_on_gfx942() {
    check("gfx942", "f16");
}

#[test]
fn attention_on_gfx950() {
    check("gfx950", "bf16");
}

#[test]
fn attention_on_gfx1100() {
    check("gfx1100", "f16");
}

#[test]
fn attention_on_gfx1201() {
    check("gfx1201", "f16");
    check("gfx1201", "bf16");
}
