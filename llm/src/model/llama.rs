//! Llama 1 to 3 (Touvron et al.), and what is built alike: Mistral, SmolLM, TinyLlama, and Mixtral,
//! whose feed-forward networks are mixtures.
//!
//! Files have pairs as neighbours; `rope_freqs` holds the factors of Llama 3.1's longer context.

use super::description::{Description, Pairs};
use super::experts::Mixture;
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, loader: &mut Loader<'_>, _: usize) -> Result<Description> {
    let factors = match loader.has("rope_freqs.weight") {
        true => Some(loader.numbers("rope_freqs.weight", config.rotated / 2)?),
        false => None,
    };
    let rope = Rope::read(keys, config, factors.as_deref())?;
    let mut description = Description::plain(config, rope);
    description.pairs = Pairs::Neighbours;
    if keys.has("attention.scale") {
        description.score_scale = keys.number("attention.scale")?;
    }
    if keys.has("expert_count") && keys.count("expert_count")? > 0 {
        description.mixture = Some(Mixture::read(keys, config.feed_forward, true)?);
    }
    Ok(description)
}
