//! Random tiny models, tokenizers and templates against what `scripts/py/gguf_models.py` recorded, errors, and the
//! command line.

mod command_line;
mod http;
mod models;
mod refusals;
mod server;
mod text;

use std::path::{Path, PathBuf};

use graphc_gguf::GgufFile;
use serde_json::Value;

/// The path of a recorded file.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data/llm")
        .join(name)
}

fn open(name: &str) -> GgufFile {
    GgufFile::open(data(&format!("{name}.gguf"))).expect("a recorded file")
}

/// What was recorded.
fn cases() -> Value {
    let text = std::fs::read_to_string(data("cases.json")).expect("a recorded file");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().expect("a list");
    numbers.iter().map(|id| id.as_u64().expect("a number") as u32).collect()
}
