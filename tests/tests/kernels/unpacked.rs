//! Products whose quantised weights are stored as numbers first, on emulated GPUs: every kernel against the evaluator,
//! and what comes out against the reference evaluator of the graph, on both sides of the number of rows from which that
//! is so.

use graphc::driver::{self, Build, BuildOptions};
use graphc::passes::OptLevel;
use graphc::passes::lower::unpacked::UnpackOnce;
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::{Bindings, DType, Graph, Symbol};

/// Rows from which weights are stored.
const FROM: i64 = 16;

/// The weights' type, rows, columns and depth, group, and what follows.
type Case = (&'static str, &'static str, [usize; 2], usize, &'static str);

const CASES: [Case; 6] = [
    ("i4", "n", [48, 64], 32, "y = add p, r"),
    ("u4", "n", [33, 96], 32, "y = relu p"),
    ("i8", "n", [40, 72], 24, "a = add p, r\n y = gelu a"),
    ("i4", "37", [64, 128], 128, "y = add p, r"),
    ("u8", "16", [1, 64], 64, "y = tanh p"),
    ("i4", "130", [34, 40], 8, "y = mul p, r"),
];

fn graph((stored, rows, [columns, depth], group, follows): &Case) -> Graph {
    let symbol = match *rows == "n" {
        true => "symbol n: 1..64 hint 4\n ",
        false => "",
    };
    let groups = depth / group;
    let (zero, zeros) = match stored.starts_with('u') {
        true => (
            format!("z = constant random(seed=5) : {stored}[{columns}, {groups}]\n "),
            ", z",
        ),
        false => (String::new(), ""),
    };
    let text = format!(
        "graph @unpacked stage=import {{\n {symbol}x = input \"x\" : f16[{rows}, {depth}]\n r = input \"r\" : f16[{rows}, {columns}]\n \
         w = constant random(seed=3) : {stored}[{columns}, {depth}]\n s = constant random(seed=4) : f16[{columns}, {groups}]\n {zero}\
         q = dequantize w, s{zeros} {{axis=1, group={group}, out=f16}}\n p = contract x, q {{transpose_rhs}}\n \
         {follows}\n return y as \"y\"\n}}\n"
    );
    parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn build(tools: &Toolchain, graph: &Graph, arch: &str) -> Build {
    let target = arch.parse().expect("a target of the table");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    options.plan.unpack_once = UnpackOnce::From(FROM);
    let mut built = driver::build(graph, &options).unwrap_or_else(|e| panic!("{arch}: {e}"));
    driver::compile(&mut built.program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
    built
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let (mut tally, mut runs) = (Tally::default(), 0);
    for (number, case) in CASES.iter().enumerate() {
        let graph = graph(case);
        let built = build(&tools, &graph, arch);
        assert_eq!(
            built.reports[0].unpacked.len(),
            1,
            "{arch}: {case:?}: {}",
            built.program.variants[0].plan
        );
        let counts: &[i64] = match case.1 {
            "n" => &[1, 15, 16, 41],
            _ => &[0],
        };
        for rows in counts {
            let context = format!("{arch}: {case:?}, {rows} rows");
            let mut bindings = Bindings::new();
            if case.1 == "n" {
                bindings.insert(Symbol::new("n"), *rows);
            }
            let inputs = random_inputs(&graph, &bindings, number as u64);
            let outcome = tools.run(&built, &inputs, 1 << 28);
            tally.add(&context, &outcome);
            runs += 1 + usize::from(case.1 != "n" || *rows >= FROM);
            let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_matches(&outcome.outputs, &want, DType::F16, &context);
        }
    }
    tally.finish(arch, runs);
}

#[test]
fn gfx90a_stores_weights_for_many_rows() {
    check("gfx90a");
}

#[test]
fn gfx942_stores_weights_for_many_rows() {
    check("gfx942");
}

#[test]
fn gfx950_stores_weights_for_many_rows() {
    check("gfx950");
}

#[test]
fn gfx1100_stores_weights_for_many_rows() {
    check("gfx1100");
}

#[test]
fn gfx1201_stores_weights_for_many_rows() {
    check("gfx1201");
}
