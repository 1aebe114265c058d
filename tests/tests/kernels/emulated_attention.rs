//! Attention on matrix instructions, and by multiply-adds of lanes where a type has none: really lowered kernels of
//! many shapes on emulated GPUs, against the reference evaluator.

use graphc::driver::{self, BuildOptions};
use graphc::passes::{OptLevel, tuning};
use graphc_tests::emulator::toolchain;
use ir::graph::parse::parse;
use ir::kernel::{Body, Mapping};
use runtime::code_object;

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
    // Widths that are no whole chunks.
    case([1, 1], [17, 41], [25, 7], false, false),
    // Few queries: waves share them.
    case([4, 2], [1, 300], [64, 64], false, false),
    case([2, 1], [3, 520], [128, 128], true, false),
];

/// Heads of which each half of a wave holds its own half of a query by WMMA on gfx11.
const HALVED: [Case; 3] = [
    case([2, 1], [70, 97], [160, 160], true, false),
    case([2, 2], [130, 64], [144, 144], false, false),
    case([1, 1], [128, 200], [160, 160], false, true),
];

/// Heads that are wider than WMMA has registers for.
const WIDE: Case = case([1, 1], [6, 50], [256, 256], true, false);

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

/// Runs all cases; returns how many kernels were mapped onto matrix instructions, and how many onto lanes.
fn check<'a>(arch: &str, dtype: &str, cases: impl IntoIterator<Item = &'a Case>) -> [usize; 2] {
    let mut mapped = [0, 0];
    let Some(tools) = toolchain() else { return mapped };
    for case in cases {
        let ran = tools.each_kernel(arch, &text(case, dtype));
        // A launch that brings parts together may follow.
        let (Some((kernel, checked)), true) = (ran.first(), ran.len() <= 2) else {
            panic!("{arch}: {} kernels", ran.len())
        };
        let Body::Attention(body) = &kernel.body else {
            panic!("{}", kernel.name)
        };
        let by_matrix = match &kernel.mapping {
            Mapping::FlashMatrix(_) => true,
            Mapping::FlashLanes(_) => false,
            other => panic!("{arch} {dtype}: {other}"),
        };
        assert_eq!(
            checked.counters.matrix_macs > 0,
            by_matrix,
            "{arch}: {}",
            kernel.mapping
        );
        // By WMMA, parts of wide heads would have too few registers.
        if body.row_weights.is_some() && case.d.max(case.dv) > 96 && arch.starts_with("gfx1") {
            assert!(!by_matrix, "{arch}: {}", kernel.mapping);
            continue;
        }
        mapped[usize::from(!by_matrix)] += 1;
    }
    mapped
}

/// Every kernel is on matrix instructions.
fn check_on_matrix_units(arch: &str, dtype: &str) {
    let [_, by_lanes] = check(arch, dtype, CASES);
    assert_eq!(by_lanes, 0, "{arch} {dtype}");
}

/// Wide heads are on matrix instructions too, and spill nothing once a build has looked for what does not: they are
/// near to what a lane has of registers.
fn check_wide(arch: &str, dtype: &str) {
    let Some(tools) = toolchain() else { return };
    for case in &HALVED {
        let graph = parse(&text(case, dtype)).expect("a graph");
        let mut built = tools.build(&graph, arch, None);
        driver::mend_spills(&mut built.program, &tools.compiler, &|_| ()).expect("it compiles");
        let variant = &built.program.variants[0];
        for code in variant.code.values().flatten() {
            for kernel in &code_object::read(code).expect("a code object").kernels {
                assert_eq!(
                    (kernel.vgpr_spills, kernel.scratch_bytes),
                    (0, 0),
                    "{arch} {}",
                    kernel.name
                );
            }
        }
        for (kernel, _) in tools.each_of(arch, &built) {
            assert!(
                matches!(kernel.mapping, Mapping::FlashMatrix(_)),
                "{arch}: {}",
                kernel.mapping
            );
        }
    }
}

/// Every kernel is by lanes: the target has no instruction for the type.
fn check_by_lanes(arch: &str, dtype: &str) {
    let [by_matrix, _] = check(arch, dtype, CASES);
    assert_eq!(by_matrix, 0, "{arch} {dtype}");
}

#[test]
fn attention_on_gfx90a() {
    check_on_matrix_units("gfx90a", "f16");
    check_on_matrix_units("gfx90a", "bf16");
}

#[test]
fn attention_on_gfx942() {
    check_on_matrix_units("gfx942", "f16");
}

#[test]
fn attention_on_gfx950() {
    check_on_matrix_units("gfx950", "bf16");
}

#[test]
fn attention_on_gfx1100() {
    check_on_matrix_units("gfx1100", "f16");
    check_wide("gfx1100", "f16");
}

#[test]
fn attention_on_gfx1201() {
    check_on_matrix_units("gfx1201", "f16");
    check_on_matrix_units("gfx1201", "bf16");
    check_wide("gfx1201", "bf16");
}

/// Long rows of queries are worth the matrix unit's twice the rate, few are not.
#[test]
fn attention_of_f32_on_gfx90a() {
    let [by_matrix, by_lanes] = check("gfx90a", "f32", CASES.iter().chain([&WIDE]));
    assert!(
        toolchain().is_none() || by_matrix > 0 && by_lanes > 0,
        "{by_matrix}, {by_lanes}"
    );
}

#[test]
fn attention_of_f32_on_gfx942() {
    check("gfx942", "f32", CASES);
}

#[test]
fn attention_by_lanes_on_gfx1100() {
    check_by_lanes("gfx1100", "f32");
}

#[test]
fn attention_by_lanes_on_gfx1201() {
    check_by_lanes("gfx1201", "f32");
}

#[test]
fn attention_by_lanes_on_gfx1030() {
    check_by_lanes("gfx1030", "f16");
}

#[test]
fn attention_by_lanes_on_gfx906() {
    check_by_lanes("gfx906", "bf16");
}

/// Few queries, which are turned by their positions where they are read: heads of one query together, some queries of a
/// head, parts of the keys.
const TURNED: &[Case] = &[
    case([4, 2], [1, 77], [64, 64], false, false),
    case([2, 1], [3, 520], [128, 128], true, false),
    case([3, 3], [5, 40], [32, 24], false, true),
];

/// As `text`, of queries that are turned as rotary embeddings turn them (Su et al., RoFormer, 2021) before the
/// attention reads them.
fn turned(case: &Case, dtype: &str) -> String {
    let Case {
        batch,
        heads,
        queries,
        d,
        ..
    } = case;
    let half = d / 2;
    let given = format!("  q = input \"q\" : {dtype}[{batch}, {heads}, {queries}, {d}]\n");
    let halves = format!("sizes=[{batch}, {heads}, {queries}, {half}]");
    let made = format!(
        "  x = input \"x\" : {dtype}[{batch}, {queries}, {width}]\n  c = input \"c\" : {dtype}[{queries}, {d}]\n  s = input \"s\" : \
         {dtype}[{queries}, {d}]\n  r = reshape x : {dtype}[{batch}, {queries}, {heads}, {d}]\n  t = transpose r {{perm=[0, 2, 1, 3]}}\n  lower = slice t \
         {{starts=[0, 0, 0, 0], {halves}}}\n  upper = slice t {{starts=[0, 0, 0, {half}], {halves}}}\n  n = neg upper\n  h = concat n, \
         lower {{axis=3}}\n  tc = mul t, c\n  hs = mul h, s\n  q = add tc, hs\n",
        width = heads * d
    );
    let text = text(case, dtype);
    assert!(text.contains(&given));
    text.replace(&given, &made)
}

/// No launch makes the queries, and what the attention makes of them is right.
fn check_turned(arch: &str, dtypes: &[&str]) {
    let Some(tools) = toolchain() else { return };
    for (case, dtype) in TURNED.iter().flat_map(|case| dtypes.iter().map(move |t| (case, t))) {
        let ran = tools.each_kernel(arch, &turned(case, dtype));
        let Body::Attention(body) = &ran[0].0.body else {
            panic!("{arch} {dtype}: {} comes first", ran[0].0.name)
        };
        let query = ir::kernel::OperandAccess::of(&ran[0].0.exprs, body.query);
        assert!(
            query.is_none() && ran.len() <= 2,
            "{arch} {dtype}: {} kernels",
            ran.len()
        );
    }
}

#[test]
fn turned_queries_on_gfx90a() {
    check_turned("gfx90a", &["f16", "bf16", "f32"]);
}

#[test]
fn turned_queries_on_gfx942_and_gfx950() {
    check_turned("gfx942", &["bf16"]);
    check_turned("gfx950", &["f16"]);
}

#[test]
fn turned_queries_on_gfx1100() {
    check_turned("gfx1100", &["f16", "f32"]);
}

#[test]
fn turned_queries_on_gfx1201_and_gfx1030() {
    check_turned("gfx1201", &["f16", "bf16"]);
    check_turned("gfx1030", &["f16"]);
}

/// Every mapping that tuning may choose computes the same.
fn check_candidates(arch: &str, dtype: &str) {
    let Some(tools) = toolchain() else { return };
    let case = case([2, 1], [70, 97], [64, 64], true, false);
    let graph = parse(&text(&case, dtype)).expect("parses");
    let built = tools.build(&graph, arch, None);
    let plan = &built.program.variants[0].plan;
    let kernel = plan.kernels.values().next().expect("a kernel");
    let line = tuning::product(kernel, &plan.symbols, &plan.target).expect("it is tuned");
    let all = tuning::candidates(kernel, &plan.symbols, &plan.target);
    assert!(all.len() > 5 && all[0] == kernel.mapping, "{arch}: {}", all.len());
    // The last ones are those that nobody predicts to be good.
    let some = all.iter().step_by(all.len() / 5).chain(all.last());
    for mapping in some {
        let mut options = BuildOptions::new(vec![plan.target], OptLevel::O2);
        options.optimize.libraries = false;
        options.plan.tuning = [(line.clone(), mapping.to_string())].into_iter().collect();
        let mut built = driver::build(&graph, &options).expect("builds");
        driver::compile(&mut built.program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{mapping}: {e}"));
        let checked = tools.each_of(arch, &built);
        assert!(
            checked.len() == 1 && checked[0].0.mapping == *mapping,
            "{arch}: {mapping}"
        );
    }
}

#[test]
fn candidates_of_attention_on_gfx90a() {
    check_candidates("gfx90a", "f16");
    check_candidates("gfx90a", "f32");
}

#[test]
fn candidates_of_attention_on_gfx1100() {
    check_candidates("gfx1100", "f16");
    check_candidates("gfx1100", "f32");
}
