//! OLMo 2: norms behind attention and feed-forward network in place of those before them, and norms of all queries and
//! all keys.

use super::description::{Description, HeadNorms};
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader};

pub fn describe(keys: &Keys<'_>, config: &Config, _: &mut Loader<'_>, _: usize) -> Result<Description> {
    let mut description = Description::plain(config, Rope::read(keys, config, None)?);
    description.pre_norms = false;
    description.post_norms = true;
    description.head_norms = HeadNorms::All;
    Ok(description)
}
