//! Sentence embeddings with real weights: which of some sentences mean nearly the same?
//!
//!     scripts/fetch-minilm.sh
//!     cargo run --release --example minilm [FOLDER [GRAPH]]
//!
//! FOLDER holds model.safetensors and tokenizer.json; by default target/minilm. The model is
//! examples/src/models/minilm.rs. Where GRAPH (`minilm.gir`) is named, the graph is written there with its weights, for
//! the command line: `graphc quantize minilm.gir ...`.

use std::path::PathBuf;

use anyhow::Context;
use graphc::ir::graph::print::{PrintOptions, print};
use graphc::prelude::*;
use graphc_examples::models::minilm::{Config, MiniLm};
use tokenizers::{PaddingParams, Tokenizer};

const SENTENCES: [&str; 6] = [
    "A man is playing a guitar on the stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "Rust compiles to fast native code, without a garbage collector.",
    "The cat sleeps on the warm window sill.",
];

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/minilm")),
        PathBuf::from,
    );
    let weights =
        Weights::open(folder.join("model.safetensors")).context("fetch the weights by scripts/fetch-minilm.sh")?;
    let model = MiniLm::load(&Params::new(weights), Config::default())?;
    let graph = model.graph()?;
    if let Some(file) = std::env::args().nth(2) {
        std::fs::write(&file, print(&graph, PrintOptions::default())).with_context(|| format!("write {file}"))?;
    }
    let session = Session::compile(graph, &SessionOptions::default())?;

    // Tokens, padded to the longest sentence.
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(anyhow::Error::msg)?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    let tokens = tokenizer
        .encode_batch(SENTENCES.to_vec(), true)
        .map_err(anyhow::Error::msg)?;
    let shape = [tokens.len(), tokens[0].len()];
    let tensor = |values: fn(&tokenizers::Encoding) -> &[u32]| {
        let values: Vec<i64> = tokens
            .iter()
            .flat_map(|t| values(t).iter().map(|v| i64::from(*v)))
            .collect();
        HostTensor::from_i64(DType::I64, shape, &values)
    };
    let ids = tensor(|t| t.get_ids())?;
    let mask = tensor(|t| t.get_attention_mask())?;
    let types = tensor(|t| t.get_type_ids())?;

    let outputs = session.run(&[
        ("input_ids", &ids),
        ("attention_mask", &mask),
        ("token_type_ids", &types),
    ])?;
    let embeddings = outputs["embeddings"].to_f32();
    let width = embeddings.len() / SENTENCES.len();
    let similarity = |a: usize, b: usize| -> f32 {
        // The embeddings have length 1: their product is the cosine of the angle between them.
        let (a, b) = (&embeddings[a * width..][..width], &embeddings[b * width..][..width]);
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    };
    for (i, sentence) in SENTENCES.iter().enumerate() {
        let others = (0..SENTENCES.len()).filter(|j| *j != i);
        let nearest = others
            .max_by(|a, b| similarity(i, *a).total_cmp(&similarity(i, *b)))
            .context("one sentence")?;
        println!(
            "{sentence}\n  is nearest to ({:.3}): {}",
            similarity(i, nearest),
            SENTENCES[nearest]
        );
    }
    Ok(())
}
