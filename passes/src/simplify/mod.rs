//! Clean-up and canonical form: small directional rules, each safe for NaN and infinity.
//!
//! Rules run while the graph is rebuilt (see [`crate::rewrite`]), so an op's operands are already in canonical form.
//! Canonical means: no views that do nothing, chains of one kind of view are one, constants are right operands, transposes
//! of matrices are flags of the contraction, reshapes are as late as they can be.

pub mod arithmetic;
pub mod casts;
pub mod contract;
pub mod reduce;
pub mod select;
pub mod slices;
pub mod views;

use ir::{Shape, Value};

use crate::error::PassFault;
use crate::options::OptimizeOptions;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "simplify",
    run: |graph, context| {
        let mut builder = Builder::new(graph, "simplify").with_rules(enabled(context.options));
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// Returns all rules, in the order in which they are tried.
pub fn rules() -> impl Iterator<Item = Rule> {
    [
        arithmetic::RULES,
        casts::RULES,
        select::RULES,
        views::RULES,
        slices::RULES,
        reduce::RULES,
        contract::RULES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Returns the rules that the options allow.
pub fn enabled(options: &OptimizeOptions) -> Vec<Rule> {
    rules().filter(|r| options.enabled(r.name)).collect()
}

/// Makes a value of the wanted shape by broadcasting, where it has another.
pub(crate) fn broadcast_to(b: &mut Builder<'_>, value: Value, shape: &Shape) -> Result<Value, PassFault> {
    if b.ty(value).shape == *shape {
        return Ok(value);
    }
    b.emit(ir::Op::View(ir::op::View::Broadcast(shape.clone())), &[value])
}
