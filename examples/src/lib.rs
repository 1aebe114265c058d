//! Models written in graphc's DSL, which the examples run and the tests and benchmarks compile.

pub mod models;
