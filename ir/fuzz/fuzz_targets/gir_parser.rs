//! Any text: the parser returns a graph or an error with its place; what it returns verifies or says why, and a graph that
//! verifies is the same after printing and parsing.
#![no_main]

use graphc_ir::graph::{parse::parse, verify::verify};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(graph) = parse(text) else { return };
    if verify(&graph).is_err() {
        return;
    }
    let printed = graph.to_string();
    match parse(&printed) {
        Ok(again) => assert_eq!(again.to_string(), printed),
        Err(error) => panic!("{error}\n{printed}"),
    }
});
