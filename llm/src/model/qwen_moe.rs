//! Mixtures of Qwen: 2, with an expert that all tokens share, and 3.

use super::description::Description;
use super::experts::Mixture;
use super::{qwen2, qwen3};
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

/// Qwen 1.5 and 2: weights are probabilities among all experts.
pub fn second(keys: &Keys<'_>, config: &Config, loader: &mut Loader<'_>, capacity: usize) -> Result<Description> {
    let mut description = qwen2::describe(keys, config, loader, capacity)?;
    let mut mixture = Mixture::read(keys, config.feed_forward, false)?;
    mixture.shared = Some(keys.size_or("expert_shared_feed_forward_length", config.feed_forward)?);
    description.mixture = Some(mixture);
    Ok(description)
}

/// Qwen 3: weights of the chosen experts add up to 1.
pub fn third(keys: &Keys<'_>, config: &Config, loader: &mut Loader<'_>, capacity: usize) -> Result<Description> {
    let mut description = qwen3::describe(keys, config, loader, capacity)?;
    description.mixture = Some(Mixture::read(keys, config.feed_forward, true)?);
    Ok(description)
}
