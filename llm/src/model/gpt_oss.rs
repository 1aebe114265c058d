//! gpt-oss: mixtures with biases and a clamped gate, a sink for each head of attention, a window in every other layer.

use super::description::{Activation, Description, Layer};
use super::experts::Mixture;
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.second_norm = "post_attention_norm";
    description.sinks = true;
    description.activation = Activation::Clamped;
    // A softmax over the chosen is the chosen's share of a softmax over all.
    let mut mixture = Mixture::read(keys, config.feed_forward, true)?;
    mixture.biases = true;
    mixture.activation = Activation::Clamped;
    description.mixture = Some(mixture);
    let window = keys.size("attention.sliding_window")? as i64;
    for layer in description.layers.iter_mut().step_by(2) {
        *layer = Layer {
            window: Some(window),
            ..*layer
        };
    }
    Ok(description)
}
