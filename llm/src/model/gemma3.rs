//! Gemma 3, text: as Gemma 2 without caps, with norms of heads; five of six layers see a window, with a rotary
//! embedding of their own.

use super::description::{Activation, Description, HeadNorms, Layer};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

/// Every so many layers, the last sees all.
const PERIOD: usize = 6;

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.head_norms = HeadNorms::Each;
    description.post_norms = true;
    description.activation = Activation::Gelu;
    description.embedding_scale = (config.width as f64).sqrt();
    // The 27B model alone has scores scaled by the width that a head would have by its share: 62 layers.
    if config.layers == 62 {
        description.score_scale = 1.0 / (config.width as f64 / config.heads as f64).sqrt();
    }
    let local = keys.number_or("rope.freq_base_swa", 10_000.0)?;
    description.ropes.push(Rope::new(config.rotated, local, |_| 1.0));
    let window = keys.size("attention.sliding_window")? as i64;
    for (index, layer) in description.layers.iter_mut().enumerate() {
        if index % PERIOD < PERIOD - 1 {
            *layer = Layer {
                window: Some(window),
                rope: Some(1),
            };
        }
    }
    Ok(description)
}
