//! The architectures, and the graph that all of them become.
//!
//! Before: a file's keys and tensors. After: one graph with open sizes, which serves prompts and single tokens alike.
//! What an architecture has of its own is a [`Description`]: one file each, and a row in [`ARCHITECTURES`].

mod attention;
mod decoder;
mod description;
mod experts;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod llama;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen_moe;
mod rope;
mod smollm3;
mod starcoder2;

pub use decoder::{Decoder, NAMES};
pub use description::{Activation, Biases, Description, Fused, HeadNorms, Layer, Norms, Pairs, Pooling};
pub use experts::Mixture;
pub use rope::Rope;

use graphc_gguf::GgufFile;

use crate::error::{Error, Result};
use crate::loader::{Config, Keys, Loader, Progress};

/// Reads what an architecture has of its own, for a cache of so many tokens.
pub type Describe = fn(&Keys<'_>, &Config, &mut Loader<'_>, usize) -> Result<Description>;

/// Every architecture by the name that files have it under.
pub const ARCHITECTURES: &[(&str, Describe)] = &[
    ("llama", llama::describe),
    ("qwen2", qwen2::describe),
    ("qwen3", qwen3::describe),
    ("qwen2moe", qwen_moe::second),
    ("qwen3moe", qwen_moe::third),
    ("gemma2", gemma2::describe),
    ("gemma3", gemma3::describe),
    ("gpt-oss", gpt_oss::describe),
    ("phi3", phi3::describe),
    ("smollm3", smollm3::describe),
    ("granite", granite::describe),
    ("olmo2", olmo2::describe),
    ("starcoder2", starcoder2::describe),
];

/// Finds the architecture of a file.
///
/// # Errors
/// One that is not in the table, with those that are.
pub fn find(file: &GgufFile) -> Result<Describe> {
    let name = file.architecture()?;
    match ARCHITECTURES.iter().find(|(known, _)| *known == name) {
        Some((_, describe)) => Ok(*describe),
        None => Err(Error::Architecture {
            path: file.path().to_owned(),
            name: name.to_owned(),
            known: ARCHITECTURES.iter().map(|(known, _)| *known).collect(),
        }),
    }
}

/// Loads the model of a file, for a cache of `capacity` tokens; None is the context that it was trained for, `most` at
/// most. `stacks` says that the device's products choose among stacked matrices.
///
/// # Errors
/// As [`find`]; a context that it was not trained for; keys and tensors that are missing or do not fit; tensors that
/// nothing uses.
pub fn load(
    file: &GgufFile,
    capacity: Option<usize>,
    most: usize,
    stacks: bool,
    progress: Option<fn(Progress)>,
) -> Result<Decoder> {
    let describe = find(file)?;
    let keys = Keys::of(file)?;
    let config = Config::read(&keys)?;
    let trained = config.context;
    let capacity = match capacity {
        Some(0) => {
            return Err(Error::Usage(
                "a context of 0 tokens holds nothing; give 1 or more".to_owned(),
            ));
        }
        Some(capacity) if capacity > trained => {
            let message = format!("the model was trained for a context of {trained} tokens; {capacity} are too many");
            return Err(Error::Usage(message));
        }
        Some(capacity) => capacity,
        None => trained.min(most),
    };
    let mut loader = Loader::new(file, stacks, progress);
    let description = describe(&keys, &config, &mut loader, capacity)?;
    let pooling = Pooling::read(&keys)?;
    Decoder::load(config, description, pooling, loader, capacity)
}
