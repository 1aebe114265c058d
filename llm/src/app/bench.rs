//! `graphc-llm bench MODEL.gguf`: how fast prompts are read and texts are written, in the rows of llama-bench.
//!
//! `pp512` reads 512 tokens with an empty cache; `tg128` writes 128 tokens from an empty cache. Each row has the mean
//! and the standard deviation over the repetitions, behind one that is not counted.

use std::time::Instant;

use clap::ValueEnum;
use serde_json::json;

use super::{BATCH, ModelArgs, print};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// Measure how fast prompts are read and texts are written.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompts that are read; 0 for none.
    #[arg(long, short, value_delimiter = ',', default_value = "512", value_name = "TOKENS")]
    prompt: Vec<usize>,
    /// Tokens of the texts that are written; 0 for none.
    #[arg(
        long,
        short = 'n',
        value_delimiter = ',',
        default_value = "128",
        value_name = "TOKENS"
    )]
    tokens: Vec<usize>,
    /// How often each is measured.
    #[arg(long, short, default_value_t = 5)]
    repetitions: usize,
    #[arg(long, value_enum, default_value_t = Format::Md)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table, as llama-bench prints it.
    Md,
    Csv,
    Json,
}

/// One measurement.
struct Row {
    test: String,
    prompt: usize,
    tokens: usize,
    /// Tokens a second of each repetition.
    rates: Vec<f64>,
}

impl Row {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn deviation(&self) -> f64 {
        let (mean, count) = (self.mean(), self.rates.len());
        let squares: f64 = self.rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        if count < 2 {
            0.0
        } else {
            (squares / (count - 1) as f64).sqrt()
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    if args.repetitions == 0 {
        return Err(Error::Usage(
            "--repetitions 0 measures nothing; give 1 or more".to_owned(),
        ));
    }
    let mut ready = args.model.load_to_write(BATCH)?;
    let capacity = ready.engine.capacity();
    let too_long = args.prompt.iter().chain(&args.tokens).find(|count| **count > capacity);
    if let Some(needed) = too_long {
        return Err(Error::Context {
            needed: *needed,
            capacity,
        });
    }
    let mut rows = Vec::new();
    for prompt in args.prompt.iter().filter(|count| **count > 0) {
        rows.push(measure(&mut ready.engine, *prompt, 0, args.repetitions)?);
    }
    for tokens in args.tokens.iter().filter(|count| **count > 0) {
        rows.push(measure(&mut ready.engine, 0, *tokens, args.repetitions)?);
    }
    let architecture = ready.file.architecture()?;
    let (mut bytes, mut elements) = (0, 0);
    for tensor in ready.file.tensors.values() {
        bytes += tensor.bytes.len();
        elements += tensor.elements();
    }
    let size = format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let params = format!("{:.2} B", elements as f64 / 1e9);
    let (device, threads) = (args.model.device.to_string(), args.model.threads);
    print(&match args.format {
        Format::Md => {
            let mut out = format!(
                "| {:10} | {:>10} | {:>10} | {:8} | {:>8} | {:>16} |\n",
                "model", "size", "params", "backend", "test", "t/s"
            );
            out += "| ---------- | ---------: | ---------: | -------- | -------: | ---------------: |\n";
            for row in &rows {
                let rate = format!("{:.2} ± {:.2}", row.mean(), row.deviation());
                out += &format!(
                    "| {architecture:10} | {size:>10} | {params:>10} | {device:8} | {:>8} | {rate:>16} |\n",
                    row.test
                );
            }
            out
        }
        Format::Csv => {
            let mut out = "model,size_bytes,params,backend,threads,test,n_prompt,n_gen,avg_ts,stddev_ts\n".to_owned();
            for row in &rows {
                out += &format!(
                    "{architecture},{bytes},{elements},{device},{threads},{},{},{},{:.4},{:.4}\n",
                    row.test,
                    row.prompt,
                    row.tokens,
                    row.mean(),
                    row.deviation()
                );
            }
            out
        }
        Format::Json => {
            let rows: Vec<_> = rows
                .iter()
                .map(|row| {
                    json!({
                        "model_filename": args.model.model.display().to_string(), "model_type": architecture,
                        "model_size": bytes, "model_n_params": elements, "backend": device, "n_threads": threads,
                        "n_batch": ready.engine.batch(), "test": row.test, "n_prompt": row.prompt,
                        "n_gen": row.tokens, "avg_ts": row.mean(), "stddev_ts": row.deviation(),
                        "samples_ts": row.rates,
                    })
                })
                .collect();
            format!("{:#}\n", json!(rows))
        }
    })
}

/// Measures a prompt, or a text of tokens one by one.
fn measure(engine: &mut Engine, prompt: usize, tokens: usize, repetitions: usize) -> Result<Row> {
    let vocabulary = engine.decoder().config.vocabulary;
    // Which tokens they are does not matter to the time.
    let all: Vec<u32> = (0..prompt.max(tokens))
        .map(|at| (at * 31 % vocabulary) as u32)
        .collect();
    let mut rates = Vec::new();
    for repetition in 0..=repetitions {
        engine.forget(0);
        let started = Instant::now();
        match prompt {
            // The first run packs weights.
            0 if repetition == 0 => drop(engine.extend(&all[..1])?),
            0 => {
                for token in &all[..tokens] {
                    engine.extend(&[*token])?;
                }
            }
            _ => drop(engine.extend(&all)?),
        }
        if repetition > 0 {
            rates.push(all.len() as f64 / started.elapsed().as_secs_f64().max(1e-9));
        }
    }
    let test = if prompt > 0 {
        format!("pp{prompt}")
    } else {
        format!("tg{tokens}")
    };
    Ok(Row {
        test,
        prompt,
        tokens,
        rates,
    })
}
