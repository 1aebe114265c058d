//! `graphc-llm inspect MODEL.gguf`: what a file has, without loading its weights.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use graphc_gguf::{Array, GgufFile, Value};
use serde_json::{Map, json};

use super::print;
use crate::error::Result;
use crate::loader::{self, Form};
use crate::model;

/// Show a file's keys and tensors, their types and bytes, and whether it can be run.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file; of a split model, the first one.
    model: PathBuf,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Show arrays whole.
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Items of an array that are shown.
const ITEMS: usize = 6;
/// Letters of a text that are shown.
const LETTERS: usize = 120;

/// What the tensors of one type take.
#[derive(Default)]
struct OfType {
    tensors: usize,
    elements: u64,
    bytes: usize,
    kept_as: String,
}

pub fn run(args: &Args) -> Result<()> {
    let file = loader::open(&args.model)?;
    let mut types: BTreeMap<&str, OfType> = BTreeMap::new();
    for tensor in file.tensors.values() {
        let of = types.entry(tensor.ty.name()).or_default();
        of.tensors += 1;
        of.elements += tensor.elements();
        of.bytes += tensor.bytes.len();
        of.kept_as = Form::of(tensor.ty).map_or_else(String::new, |form| form.describe());
    }
    let runs = match model::find(&file) {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    print(&match args.format {
        Format::Text => text(&file, &types, runs, args.all),
        Format::Json => format!("{:#}\n", json_of(&file, &types, runs, args.all)),
    })
}

fn text(file: &GgufFile, types: &BTreeMap<&str, OfType>, refusal: Option<String>, all: bool) -> String {
    let mut out = format!("{}: GGUF version {}\n\n", file.path().display(), file.version);
    // A String takes all that is written to it.
    for (key, value) in &file.metadata {
        let _ = writeln!(out, "{key} = {}", shown(value, all));
    }
    out.push('\n');
    let width = file.tensors.keys().map(String::len).max().unwrap_or(0);
    for (name, tensor) in &file.tensors {
        let shape = format!("{:?}", tensor.shape());
        let (ty, bytes) = (tensor.ty.name(), tensor.bytes.len());
        let _ = writeln!(out, "{name:width$}  {ty:8} {shape:20} {bytes:>12} bytes");
    }
    out.push('\n');
    for (ty, of) in types {
        let kept = match of.kept_as.is_empty() {
            true => String::new(),
            false => format!("; matrices are kept as {}", of.kept_as),
        };
        let OfType {
            tensors,
            elements,
            bytes,
            ..
        } = of;
        let _ = writeln!(out, "{ty}: {tensors} tensors, {elements} elements, {bytes} bytes{kept}");
    }
    let total: usize = types.values().map(|of| of.bytes).sum();
    let elements: u64 = types.values().map(|of| of.elements).sum();
    let _ = writeln!(out, "in all {elements} elements, {total} bytes");
    if let Some(refusal) = refusal {
        let _ = writeln!(out, "cannot be run: {refusal}");
    }
    out
}

fn json_of(file: &GgufFile, types: &BTreeMap<&str, OfType>, refusal: Option<String>, all: bool) -> serde_json::Value {
    let keys: Map<_, _> = (file.metadata.iter())
        .map(|(key, value)| (key.clone(), value_of(value, all)))
        .collect();
    let tensors = file.tensors.iter().map(|(name, tensor)| {
        json!({
            "name": name, "type": tensor.ty.name(), "shape": tensor.shape(), "bytes": tensor.bytes.len(),
        })
    });
    let types = types.iter().map(|(ty, of)| {
        let kept = Some(&of.kept_as).filter(|kept| !kept.is_empty());
        let facts = json!({
            "tensors": of.tensors, "elements": of.elements, "bytes": of.bytes, "kept_as": kept,
        });
        ((*ty).to_owned(), facts)
    });
    json!({
        "path": file.path().display().to_string(),
        "version": file.version,
        "keys": keys,
        "tensors": tensors.collect::<Vec<_>>(),
        "types": types.collect::<Map<_, _>>(),
        "refusal": refusal,
    })
}

/// A value on one line.
fn shown(value: &Value, all: bool) -> String {
    match value {
        Value::String(text) if !all && text.chars().count() > LETTERS => {
            let first: String = text.chars().take(LETTERS).collect();
            format!("{first:?}… ({} bytes)", text.len())
        }
        Value::Array(array) => {
            let count = array.len();
            let items = value_of(value, all);
            let items = items.as_array().or_else(|| items["first"].as_array());
            let items: Vec<String> = items.into_iter().flatten().map(ToString::to_string).collect();
            let rest = if items.len() < count { ", …" } else { "" };
            format!("[{}{rest}] ({count} of {:?})", items.join(", "), array.element_type())
        }
        other => value_of(other, all).to_string(),
    }
}

/// A value as JSON; long arrays are an object of their length and their first items.
fn value_of(value: &Value, all: bool) -> serde_json::Value {
    let array = match value {
        Value::U8(value) => return json!(value),
        Value::I8(value) => return json!(value),
        Value::U16(value) => return json!(value),
        Value::I16(value) => return json!(value),
        Value::U32(value) => return json!(value),
        Value::I32(value) => return json!(value),
        Value::F32(value) => return json!(value),
        Value::Bool(value) => return json!(value),
        Value::String(value) => return json!(value),
        Value::U64(value) => return json!(value),
        Value::I64(value) => return json!(value),
        Value::F64(value) => return json!(value),
        Value::Array(array) => array,
    };
    let count = if all { array.len() } else { array.len().min(ITEMS) };
    let first = match array {
        Array::U8(items) => json!(items[..count]),
        Array::I8(items) => json!(items[..count]),
        Array::U16(items) => json!(items[..count]),
        Array::I16(items) => json!(items[..count]),
        Array::U32(items) => json!(items[..count]),
        Array::I32(items) => json!(items[..count]),
        Array::F32(items) => json!(items[..count]),
        Array::Bool(items) => json!(items[..count]),
        Array::String(items) => json!(items[..count]),
        Array::U64(items) => json!(items[..count]),
        Array::I64(items) => json!(items[..count]),
        Array::F64(items) => json!(items[..count]),
    };
    match count < array.len() {
        true => json!({"length": array.len(), "first": first}),
        false => first,
    }
}
