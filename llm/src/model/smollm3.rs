//! SmolLM 3: as Llama, with every fourth layer without a rotary embedding (Yang et al., 2025).

use super::description::{Description, Pairs};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

/// Of so many layers, the last has none.
const PERIOD: usize = 4;

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.pairs = Pairs::Neighbours;
    for layer in description.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
        layer.rope = None;
    }
    Ok(description)
}
