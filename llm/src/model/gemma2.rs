//! Gemma 2: norms behind attention and feed-forward network too, capped scores and logits, every second layer sees a
//! window.
//!
//! Files have norms with their 1 added.

use super::description::{Activation, Description};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.post_norms = true;
    description.activation = Activation::Gelu;
    description.embedding_scale = (config.width as f64).sqrt();
    description.score_cap = Some(keys.number_or("attn_logit_softcapping", 50.0)?);
    description.logit_cap = Some(keys.number_or("final_logit_softcapping", 30.0)?);
    // The 27B model alone has scores scaled by the width that a head would have by its share: 46 layers.
    if config.layers == 46 {
        description.score_scale = 1.0 / (config.width as f64 / config.heads as f64).sqrt();
    }
    let window = keys.size_or("attention.sliding_window", 4096)? as i64;
    for layer in description.layers.iter_mut().step_by(2) {
        layer.window = Some(window);
    }
    Ok(description)
}
