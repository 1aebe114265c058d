//! `graphc-llm chat MODEL.gguf`: a conversation by the model's own chat template, a line at a time.
//!
//! What was said is in the cache: of each turn, only what is new is computed.

use std::io::BufRead;

use super::{BATCH, ModelArgs, SamplingArgs, print, say, write};
use crate::error::{Error, Result};
use crate::template::{Message, Template};

/// Talk with a chat model. Each line of the input is a message; the end of the input ends the conversation.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// A message that comes before all others.
    #[arg(long)]
    system: Option<String>,
    /// Stop an answer after so many tokens.
    #[arg(long, short = 'n', default_value_t = 512)]
    tokens: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let mut sampler = args.sampling.sampler()?;
    let mut ready = args.model.load_to_write(BATCH)?;
    let template = Template::read(&ready.file)?;
    let mut messages: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if !args.model.quiet {
            print("> ")?;
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(|source| Error::Io {
            doing: "read",
            path: "standard input".into(),
            source,
        })?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(Message::new("user", line));
        let text = template.apply(&messages, ready.tokenizer.ends_of_text(), true)?;
        let tokens = ready.tokenizer.encode(&text, true, true)?;
        let written = write(&mut ready, &mut sampler, &tokens, args.tokens)?;
        if !args.model.quiet {
            say(format_args!("{}", written.speed()));
        }
        messages.push(Message::new("assistant", ready.tokenizer.decode(&written.tokens)));
    }
}
