//! The values that `graphc inspect` and `graphc explain` print as JSON, for apps that compile models themselves.

mod contents;
pub mod explain;
mod inspect;

use std::path::Path;

use ir::Program;
use serde_json::{Value, json};

use crate::driver::Build;
use crate::error::Result;

pub use contents::{Contents, PortFacts, Size, Weights};
pub use inspect::{KernelFacts, StreamedWeight, StreamingFacts, VariantFacts, as_json, facts};

/// Returns the facts of a program: sizes, inputs, outputs and weights, and for each of some variants its kernels,
/// memory and work.
///
/// # Errors
/// Sizes that do not work out at the symbols' hints, or code that cannot be read.
pub fn inspected(program: &Program, variants: impl IntoIterator<Item = usize>) -> Result<Value> {
    let contents = Contents::of(program, Path::new(""), false)?;
    let all = variants.into_iter().map(|variant| facts(program, variant));
    Ok(as_json(&contents, &all.collect::<Result<Vec<_>>>()?))
}

/// Returns the decisions for the target of a build, or a list of them for each of several: rules that fired, with
/// their proofs where `proofs` is set, and what is fused, and why other edges are not.
pub fn explained(build: &Build, proofs: bool) -> Value {
    let each = build.program.variants.iter().zip(&build.reports);
    let explain =
        each.map(|(variant, report)| explain::as_json(&variant.plan.target.to_string(), &variant.plan, report, proofs));
    let mut all: Vec<Value> = explain.collect();
    match all.len() {
        1 => all.remove(0),
        _ => json!(all),
    }
}
