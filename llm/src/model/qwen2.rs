//! Qwen 2 and 2.5: biases of queries, keys and values.

use super::description::{Biases, Description};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.biases = Biases::Always;
    Ok(description)
}
