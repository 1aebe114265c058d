//! `graphc-llm generate MODEL.gguf --prompt TEXT`: goes on from a text.

use super::{BATCH, ModelArgs, SamplingArgs, print, say, write};
use crate::error::{Error, Result};

/// Go on from a text.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// The text to go on from.
    #[arg(long, short)]
    prompt: String,
    /// Stop after so many tokens.
    #[arg(long, short = 'n', default_value_t = 128)]
    tokens: usize,
    /// Control tokens that are written out in the prompt are these tokens.
    #[arg(long)]
    special: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let mut sampler = args.sampling.sampler()?;
    let mut ready = args.model.load_to_write(BATCH)?;
    let tokens = ready.tokenizer.encode(&args.prompt, true, args.special)?;
    if tokens.is_empty() {
        let message = "the prompt has no tokens, and the model has none that begins a text; give a --prompt";
        return Err(Error::Usage(message.to_owned()));
    }
    print(&args.prompt)?;
    let written = write(&mut ready, &mut sampler, &tokens, args.tokens)?;
    if !args.model.quiet {
        say(format_args!("{}", written.speed()));
    }
    Ok(())
}
