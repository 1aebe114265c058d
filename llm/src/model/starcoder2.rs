//! StarCoder 2: layer norms, biases everywhere, and a feed-forward network without a gate (Lozhkov et al., 2024).
//!
//! Its windows are as long as its context, and are left out, as llama.cpp leaves them out.

use super::description::{Activation, Biases, Description, Norms};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.norms = Norms::Layer;
    description.biases = Biases::Always;
    description.activation = Activation::Gelu;
    description.gated = false;
    Ok(description)
}
