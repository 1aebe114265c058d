//! Granite 3, dense: as Llama, with factors of embeddings, scores, what layers add, and logits (Yang et al., 2022,
//! gives the reason for such factors).

use super::description::{Description, Pairs};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.pairs = Pairs::Neighbours;
    description.embedding_scale = keys.number_or("embedding_scale", 1.0)?;
    description.residual_scale = keys.number_or("residual_scale", 1.0)?;
    description.score_scale = keys.number_or("attention.scale", description.score_scale)?;
    let divisor = keys.number_or("logit_scale", 1.0)?;
    if divisor == 0.0 {
        return Err(keys.refuse(
            "logit_scale",
            divisor,
            "logits are divided by it; another number is wanted",
        ));
    }
    description.logit_scale = 1.0 / divisor;
    Ok(description)
}
