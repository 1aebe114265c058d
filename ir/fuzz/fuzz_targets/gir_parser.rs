//! Any text: the parser returns a graph or an error with its place; what it returns verifies or says why, and a graph
//! that verifies is the same after printing and parsing.
#![no_main]

use graphc_ir::graph::parse::parse;
use graphc_ir::graph::print::{PrintOptions, print};
use graphc_ir::graph::verify::verify;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(graph) = parse(text) else { return };
    if verify(&graph).is_err() {
        return;
    }
    let printed = print(&graph, PrintOptions::default());
    match parse(&printed) {
        Ok(again) => assert_eq!(print(&again, PrintOptions::default()), printed),
        Err(error) => panic!("{error}\n{printed}"),
    }
});
