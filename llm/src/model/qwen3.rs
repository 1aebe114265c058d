//! Qwen 3, dense: heads of queries and keys are normalised; a head may be wider than its share of the model.

use super::description::{Description, HeadNorms};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.head_norms = HeadNorms::Each;
    Ok(description)
}
