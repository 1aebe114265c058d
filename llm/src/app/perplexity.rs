//! `graphc-llm perplexity MODEL.gguf FILE`: how well a model foretells a text: `exp(−mean ln p)` of its tokens.

use std::path::PathBuf;

use super::{BATCH, ModelArgs, print};
use crate::error::{Error, Result};

/// Measure how well a model foretells a text.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A file of text.
    text: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(&args.text).map_err(|source| Error::Io {
        doing: "read",
        path: args.text.clone(),
        source,
    })?;
    let mut ready = args.model.load_to_write(BATCH)?;
    let tokens = ready.tokenizer.encode(&text, true, false)?;
    let (mut sum, mut count) = (0.0, 0usize);
    // Each window is read anew, as long texts do not fit the context; its first token is foretold by nothing.
    for window in tokens.chunks(ready.engine.capacity()) {
        ready.engine.forget(0);
        let mut foretold = window.iter().skip(1);
        for part in window.chunks(ready.engine.batch()) {
            let logits = ready.engine.extend_all(part)?;
            let rows = logits.chunks_exact(ready.engine.decoder().config.vocabulary);
            for (row, next) in rows.zip(foretold.by_ref().take(part.len())) {
                sum -= log_probability(row, *next as usize);
                count += 1;
            }
        }
    }
    if count == 0 {
        return Err(Error::Usage(format!(
            "{}: a text of 2 tokens or more is wanted",
            args.text.display()
        )));
    }
    let mean = sum / count as f64;
    print(&format!(
        "perplexity {:.4} over {count} tokens ({mean:.4} nats a token)\n",
        mean.exp()
    ))
}

/// The logarithm of a token's probability.
fn log_probability(logits: &[f32], token: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[token] - largest) - sum.ln()
}
