//! What keeps a model from being quantised.

use ir::recipe::WeightError;

use crate::error::PassFault;

/// A model cannot be quantised as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QuantizeError {
    #[error("layer {layer:?}: {error}")]
    Weight { layer: String, error: WeightError },
    #[error(
        "groups of {group} do not divide the depth of {}; give a size that divides all of them{}, or leave these out with --exclude",
        some(layers.iter().map(|(name, depth)| format!("{name:?} ({depth})"))),
        common.map_or(String::new(), |size| format!(", such as {size}"))
    )]
    Group {
        group: i64,
        /// With their depths.
        layers: Vec<(String, usize)>,
        /// A size that would do.
        common: Option<usize>,
    },
    #[error("no layer is named {name:?}{}; the layers are {}", meant(near), some(known.iter().map(|n| format!("{n:?}"))))]
    UnknownLayer {
        name: String,
        near: Option<String>,
        known: Vec<String>,
    },
    #[error(
        "layer {layer:?}: no calibration data reached its operand; give samples that reach it, or leave it out with --exclude"
    )]
    NoRange { layer: String },
    #[error(
        "layer {layer:?}: its operand ranges from {low} to {high}; give calibration data for which the model computes finite numbers"
    )]
    Range { layer: String, low: f64, high: f64 },
    #[error(
        "scales that hold for all runs, and --rounding gptq and awq, need calibration data: give --calibrate FILE.npz or a folder of such files, \
         or --calibrate random where only times matter; --scheme dynamic-int8 and dynamic-fp8, rounded to the nearest, need none"
    )]
    NoSamples,
    #[error("the model has no product or convolution by a constant: there is nothing to quantise")]
    NoLayers,
    #[error("all {layers} products of the model are quantised already; quantise the model that it was made from")]
    Already { layers: usize },
    #[error("no layer is left to quantise: {}", some(reasons.iter().cloned()))]
    NothingLeft {
        /// Of each layer, why it stays.
        reasons: Vec<String>,
    },
    #[error(transparent)]
    Rewrite(#[from] PassFault),
}

fn meant(near: &Option<String>) -> String {
    near.as_ref().map_or(String::new(), |n| format!(" (meant {n:?}?)"))
}

/// The first of a list, and how many more there are.
fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let count = all.len();
    let mut text = all.take(SHOWN).collect::<Vec<_>>().join(", ");
    if count > SHOWN {
        text += &format!(" and {} more", count - SHOWN);
    }
    text
}
