//! Phi 3 and 4-mini: queries, keys and values are one matrix, gate and up another; frequencies have factors for short
//! and long contexts.

use super::description::{Description, Fused};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, loader: &mut Loader<'_>, capacity: usize) -> Result<Description> {
    let original = keys.size_or("rope.scaling.original_context_length", config.context)?;
    let mut factors = None;
    for (name, is_wanted) in [
        ("rope_factors_long.weight", capacity > original),
        ("rope_factors_short.weight", capacity <= original),
    ] {
        if loader.has(name) {
            let numbers = loader.numbers(name, config.rotated / 2)?;
            if is_wanted {
                factors = Some(numbers);
            }
        }
    }
    let mut rope = Rope::read(keys, config, factors.as_deref())?;
    rope.magnitude = keys.number_or("rope.scaling.attn_factor", 1.0)?;
    let mut description = Description::plain(config, rope);
    description.fused = Fused::Together;
    Ok(description)
}
