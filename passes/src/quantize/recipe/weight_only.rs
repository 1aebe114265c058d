//! Stores the weights of products in 8 or 4 bits: what `--dtype int8`, `fp8` and `int4` ask for.
//!
//! ```text
//! contract x, w     becomes     contract x, (dequantize w', scales, zeros)
//! ```
//!
//! Before: constants are final, what scales channels is folded into filters. After: products of constants read
//! integers; which stay as they are, and why, is in the report. Rounding is to the nearest; `graphc quantize` has the
//! ways that look at data.

use indexmap::IndexMap;
use ir::DType;
use ir::recipe::{Kept, Layer, Recipe};
use ir::target::F8Family;

use super::apply::applied;
use super::decide::{Decision, Scheme, decide};
use super::error::QuantizeError;
use super::layers::layers;
use crate::error::PassFault;
use crate::report::Fired;
use crate::runner::Pass;

const NAME: &str = "weight_only";
/// The names of what is reported.
pub const QUANTIZED: &str = "quantized_weight";
pub const KEPT: &str = "weight_kept";

/// How weights are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightType {
    /// `i8`, a scale for each column.
    Int8,
    /// `u4` in groups along the depth, with zero points; weights that cannot be grouped as [`WeightType::Int8`].
    Int4,
    /// 8-bit floats with four exponent bits, of the family that the target converts, a scale for each column.
    Fp8,
}

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let scheme = match context.options.weights {
            None => return Ok(graph.clone()),
            Some(WeightType::Int8) => Scheme::WeightsInt8,
            Some(WeightType::Int4) => Scheme::WeightsInt4,
            Some(WeightType::Fp8) => Scheme::WeightsFp8,
        };
        let float = match context.target.f8 {
            Some(F8Family::Fnuz) => DType::F8E4M3FNUZ,
            Some(F8Family::Ocp) | None => DType::F8E4M3FN,
        };
        let fault = |error| match error {
            QuantizeError::Rewrite(fault) => fault,
            error => PassFault::Model(error.to_string()),
        };
        let mut found = layers(graph);
        let mut others = std::mem::take(&mut found.others);
        found.found.retain(|layer| {
            let stays = layer.is_conv();
            if stays {
                others.push(Kept {
                    name: layer.name.clone(),
                    reason: "the filter of a convolution would be dequantised by a kernel of its own in each run"
                        .to_owned(),
                });
            }
            !stays
        });
        found.others = others;
        let decision = Decision {
            float,
            ..Decision::new(scheme)
        };
        let recipe = decide(&found, &decision, &IndexMap::new()).map_err(fault)?;
        let note = |b: &mut crate::rewrite::Builder<'_>, layer: &Layer| {
            let origins = vec![b.origin.clone()];
            b.note(QUANTIZED, origins, None, Some(described(layer)));
        };
        let made = applied(graph, &found, &recipe, NAME, &mut context.fired, note).map_err(fault)?;
        context.fired.extend(kept(&recipe));
        Ok(made)
    },
    required: true,
};

fn described(layer: &Layer) -> String {
    let weight = &layer.weight;
    match weight.groups {
        Some(groups) => format!("{} in groups of {}", weight.dtype, groups.size),
        None => format!("{}, a scale a column", weight.dtype),
    }
}

fn kept(recipe: &Recipe) -> impl Iterator<Item = Fired> {
    recipe.kept.iter().map(|kept| Fired {
        pass: NAME,
        rule: KEPT,
        origins: vec![ir::Origin::Named(kept.name.as_str().into())],
        cost: None,
        note: Some(kept.reason.clone()),
        proof: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use ir::Target;
    use ir::graph::parse::parse;

    use super::*;
    use crate::{OptimizeOptions, optimize};

    /// Several pieces of work for each weight, one of an odd number of rows.
    const MODEL: &str = "graph @g stage=import {
  x = input \"x\" : f32[4, 515]
  w1 = constant random(seed=1) : f32[515, 768]
  w2 = constant random(seed=2) : f32[768, 640]
  h = contract x, w1
  y = contract h, w2
  return y as \"y\"
}
";

    #[test]
    fn bytes_are_the_same_whatever_the_number_of_threads() {
        for weights in [WeightType::Int8, WeightType::Int4, WeightType::Fp8] {
            let made = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .expect("threads");
                let options = OptimizeOptions {
                    weights: Some(weights),
                    ..OptimizeOptions::default()
                };
                let graph = pool.install(|| optimize(parse(MODEL).expect("parses"), &Target::cpu(), &options));
                let (graph, report) = graph.expect("optimises");
                assert_eq!(
                    report.fired.iter().filter(|f| f.used(QUANTIZED)).count(),
                    2,
                    "{weights:?}"
                );
                let constants = graph.constants().values().map(|c| c.tensor.clone());
                constants.collect::<Vec<_>>()
            };
            let one = made(1);
            for threads in [2, 3, 8] {
                assert_eq!(made(threads), one, "{weights:?}, {threads} threads");
            }
        }
    }
}
