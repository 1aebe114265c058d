//! The command line: one file per verb.
//!
//! Exit codes: 0 done; 1 a failure of graphc; 2 a mistake in what was given (options, files, models, environment).

mod bench;
mod chat;
mod generate;
mod inspect;
mod perplexity;
mod serve;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use graphc::session::DeviceChoice;
use graphc_gguf::GgufFile;

use crate::engine::{Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::loader::{self, Progress};
use crate::sampler::{Sampler, Sampling};
use crate::tokenizer::Tokenizer;

/// Runs language models from GGUF files.
#[derive(Parser)]
#[command(name = "graphc-llm", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Generate(generate::Args),
    Chat(chat::Args),
    Perplexity(perplexity::Args),
    Serve(serve::Args),
    Inspect(inspect::Args),
    Bench(bench::Args),
}

/// The model, and where it runs.
#[derive(clap::Args)]
struct ModelArgs {
    /// A GGUF file; of a split model, the first one.
    model: PathBuf,
    /// Where to run: cpu, hip or hip:N, cuda or cuda:N, auto.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Tokens that the cache has room for; by default the model's own context, 4096 at most.
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Tokens of a prompt that one run computes at most; by default 512, and 128 of a server.
    #[arg(long, value_name = "TOKENS")]
    batch: Option<usize>,
    /// Threads on the CPU; 0 is what GRAPHC_THREADS says, or one a core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print nothing but text.
    #[arg(long, short)]
    quiet: bool,
}

/// Tokens of a prompt that one run computes at most, where one user waits.
const BATCH: usize = 512;

/// How tokens are chosen.
#[derive(clap::Args)]
struct SamplingArgs {
    /// Divides the logits before a token is drawn; 0 takes the most probable one always.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Draw among so many of the most probable tokens; 0 for all.
    #[arg(long, default_value_t = 40)]
    top_k: usize,
    /// Draw among the most probable tokens whose probabilities add up to this.
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Draw among tokens that are at least that many times as probable as the most probable one.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Make tokens that were there lately less probable: 1 for not.
    #[arg(long, default_value_t = 1.0)]
    repeat_penalty: f32,
    /// How many of the last tokens --repeat-penalty is for.
    #[arg(long, default_value_t = 64, value_name = "TOKENS")]
    repeat_last: usize,
    /// The seed of what is drawn.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    fn sampler(&self) -> Result<Sampler> {
        let bad = |option: &str, value: f32, wanted: &str| Err(Error::Usage(format!("{option} {value}: {wanted}")));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return bad("--temperature", self.temperature, "a number of 0 or more is wanted");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("--top-p", self.top_p, "a number above 0, of at most 1, is wanted");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("--min-p", self.min_p, "a number from 0 to 1 is wanted");
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite()) {
            return bad("--repeat-penalty", self.repeat_penalty, "a number above 0 is wanted");
        }
        Ok(Sampler::new(Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last: self.repeat_last,
            seed: self.seed,
            ..Sampling::default()
        }))
    }
}

/// A model that is ready.
struct Ready {
    file: GgufFile,
    tokenizer: Tokenizer,
    engine: Engine,
}

impl ModelArgs {
    /// As [`ModelArgs::load`], for verbs that want texts.
    fn load_to_write(&self, batch: usize) -> Result<Ready> {
        let ready = self.load(batch)?;
        if ready.engine.decoder().pooling.is_none() {
            return Ok(ready);
        }
        let message = "makes embeddings and writes no texts; graphc-llm serve has them at /v1/embeddings";
        Err(Error::Usage(format!("{} {message}", self.model.display())))
    }

    /// Loads and compiles, and says what it did on the error stream. `batch` is the default of `--batch`.
    fn load(&self, batch: usize) -> Result<Ready> {
        let started = Instant::now();
        let file = loader::open(&self.model)?;
        let tokenizer = Tokenizer::read(&file)?;
        let options = EngineOptions {
            device: self.device.clone(),
            context: self.context,
            batch: self.batch.unwrap_or(batch),
            threads: self.threads,
            progress: (!self.quiet && std::io::stderr().is_terminal()).then_some(show as fn(Progress)),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&file, &options)?;
        if options.progress.is_some() {
            rewrite(format_args!(""));
        }
        let vocabulary = engine.decoder().config.vocabulary;
        if tokenizer.len() > vocabulary {
            return Err(Error::Tokenizer {
                path: self.model.clone(),
                message: format!("there are {} tokens, but {vocabulary} embeddings", tokenizer.len()),
            });
        }
        for warning in tokenizer.warning.iter().chain(&engine.fallback) {
            say(format_args!("warning: {warning}"));
        }
        if !self.quiet {
            let config = &engine.decoder().config;
            let seconds = started.elapsed().as_secs_f64();
            say(format_args!(
                "{}: {}, {} layers, width {}, {} tokens; a context of {} tokens on {}; ready after {seconds:.2} s",
                self.model.display(),
                file.architecture()?,
                config.layers,
                config.width,
                config.vocabulary,
                engine.capacity(),
                self.device
            ));
            for (ty, stored) in &engine.decoder().stored {
                say(format_args!(
                    "  {} matrices of {ty}: {} bytes in the file, {} as {}",
                    stored.tensors, stored.bytes.0, stored.bytes.1, stored.kept_as
                ));
            }
        }
        Ok(Ready {
            file,
            tokenizer,
            engine,
        })
    }
}

/// Writes a line to stderr. Where nobody reads stderr, or it is full, the work goes on.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes over the line before.
fn rewrite(line: std::fmt::Arguments<'_>) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
}

/// Says how far loading is.
fn show(progress: Progress) {
    match progress {
        Progress::Weights { taken, all } => rewrite(format_args!("reading weights: {}%", taken * 100 / all.max(1))),
        Progress::Compiling => rewrite(format_args!("compiling, and packing weights")),
    }
}

/// What a text that was generated is, and how long it took.
struct Written {
    tokens: Vec<u32>,
    prompt: usize,
    prompt_time: Duration,
    time: Duration,
}

impl Written {
    /// A line of how fast it was.
    fn speed(&self) -> String {
        let rate = |count: usize, time: Duration| count as f64 / time.as_secs_f64().max(1e-9);
        format!(
            "prompt: {} tokens, {:.1} a second; text: {} tokens, {:.1} a second",
            self.prompt,
            rate(self.prompt, self.prompt_time),
            self.tokens.len(),
            rate(self.tokens.len(), self.time)
        )
    }
}

/// Goes on from tokens until an end, `most` tokens or a full cache, and prints each character as soon as it is whole.
fn write(ready: &mut Ready, sampler: &mut Sampler, prompt: &[u32], most: usize) -> Result<Written> {
    let Ready { tokenizer, engine, .. } = ready;
    let computed = prompt.len() - engine.known(prompt);
    let started = Instant::now();
    let mut logits = engine.go_to(prompt)?;
    let prompt_time = started.elapsed();
    let (mut decoder, mut tokens) = (tokenizer.decoder(false), Vec::new());
    let started = Instant::now();
    while tokens.len() < most {
        let token = sampler.choose(&logits, engine.tokens());
        if tokenizer.is_end(token) {
            break;
        }
        tokens.push(token);
        print(&decoder.push(tokenizer.bytes(token)))?;
        if engine.tokens().len() == engine.capacity() || tokens.len() == most {
            break;
        }
        logits = engine.extend(&[token])?;
    }
    print(&(decoder.finish() + "\n"))?;
    Ok(Written {
        tokens,
        prompt: computed,
        prompt_time,
        time: started.elapsed(),
    })
}

/// Writes to standard output at once.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| Error::Io {
        doing: "write to",
        path: "standard output".into(),
        source,
    })
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Generate(args) => generate::run(&args),
        Verb::Chat(args) => chat::run(&args),
        Verb::Perplexity(args) => perplexity::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
