//! Clean-up and canonical form: small directional rules, each safe for NaN and infinity.
//!
//! They may round differently (`x / 3` → `x · (1/3)`), as a GPU's division does anyway. They keep the sign of every
//! zero but in two places: `x + 0.0` and `x - -0.0` become `x` ([`arithmetic`], "identity_element"), and `max(x, 0.0)`
//! becomes `relu x` ("max_with_zero"). There `-0.0` stays `-0.0` where the model's own arithmetic gives `+0.0`, which
//! only a division by that zero, `rsqrt`, `atan2` or a look at its bits can tell. Exported models carry such sums
//! (masks of zeros, biases that were never trained), and an attention without its mask of zeros is a kernel less;
//! whoever needs the sign disables the two rules.
//! Of `0.0` and `-0.0`, `max` and `min` give either, as IEEE 754 allows: which one depends on the order of operands,
//! and "constant_right" swaps them.
//!
//! Rules run while the graph is rebuilt (see [`crate::rewrite`]), so an op's operands are already in canonical form.
//! Canonical means: no views that do nothing, chains of one kind of view are one, constants are right operands,
//! transposes of matrices are flags of the contraction, reshapes are as late as they can be.

pub mod arithmetic;
pub mod casts;
pub mod contract;
pub mod quantized;
pub mod reduce;
pub mod select;
pub mod slices;
pub mod views;
pub mod windows;

use ir::{Shape, Value};

use crate::error::PassFault;
use crate::options::OptimizeOptions;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "simplify",
    run: |graph, context| {
        let mut builder = Builder::new(graph, "simplify").with_rules(enabled(context.options), context.options);
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
        windows::RULES,
        reduce::RULES,
        contract::RULES,
        quantized::RULES,
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
