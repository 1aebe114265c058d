//! `graphc inspect FILE.gguf`: the keys and tensors of a language model's file, and the memory that it would take.
//!
//! Before: the path of a GGUF file. After: a text or a JSON document. Nothing is compiled.

use std::io::Read;
use std::path::Path;

use graphc_gguf::{GgufFile, TensorType, file_type_name};
use indexmap::IndexMap;
use ir::Target;
use ir::target::{Architecture, TARGETS};
use serde_json::{Value, json};

use super::args::Format;
use super::output;
use graphc::error::{Error, Result};

/// Whether a file begins as GGUF does. A file that cannot be read is left to its reader's message.
pub fn is_gguf(path: &Path) -> bool {
    let mut start = [0; 4];
    ir::file::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == *b"GGUF"
}

/// Prints what is in a GGUF file; of `target` alone, or of all GPUs, how long its bytes take.
///
/// # Errors
/// A file that is damaged, or a part of a split model that is not there.
pub fn inspect(path: &Path, target: Option<Target>, format: Format) -> Result<()> {
    let file = GgufFile::open_with(path, ir::mapped::Mapped::new).map_err(of_file)?;
    let wanted = |arch: &&Architecture| target.map_or(arch.is_gpu(), |target| target.name == arch.name);
    let targets: Vec<&Architecture> = TARGETS.iter().filter(wanted).collect();
    let contents = Contents::of(&file);
    match format {
        Format::Json => output::print_json(&as_json(&file, &contents, &targets)),
        Format::Text => output::print(&text(&file, &contents, &targets)),
    }
}

/// The tensors of one type.
#[derive(Default)]
struct Sum {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// Sums over a file's tensors.
struct Contents {
    by_type: IndexMap<TensorType, Sum>,
    all: Sum,
    /// Bytes of weights that each token reads: all but the rows of the embedding table (of which a token reads one),
    /// and of a mixture of experts those that are chosen.
    token_bytes: u64,
    /// Elements that a token adds to the cache of keys and values. None where the file does not say enough.
    cache_elements: Option<u64>,
}

impl Contents {
    fn of(file: &GgufFile) -> Contents {
        let mut by_type: IndexMap<TensorType, Sum> = IndexMap::new();
        let (mut all, mut token_bytes) = (Sum::default(), 0);
        let tied = !file.tensors.contains_key("output.weight");
        let share = chosen_experts(file);
        for (name, tensor) in &file.tensors {
            let (elements, bytes) = (tensor.elements(), tensor.bytes.len() as u64);
            for sum in [by_type.entry(tensor.ty).or_default(), &mut all] {
                sum.tensors += 1;
                sum.elements += elements;
                sum.bytes += bytes;
            }
            token_bytes += match name.as_str() {
                "token_embd.weight" if !tied => 0,
                name if name.contains("_exps.") => (bytes as f64 * share) as u64,
                _ => bytes,
            };
        }
        by_type.sort_by(|_, one, _, other| other.bytes.cmp(&one.bytes));
        Contents {
            by_type,
            all,
            token_bytes,
            cache_elements: cache_elements(file),
        }
    }
}

/// Which share of its experts a token reads; 1 of a model without.
fn chosen_experts(file: &GgufFile) -> f64 {
    let key = |name: &str| {
        file.architecture()
            .and_then(|arch| file.unsigned(&format!("{arch}.{name}")))
            .ok()
    };
    match (key("expert_used_count"), key("expert_count")) {
        (Some(used), Some(count)) if count > 0 => (used as f64 / count as f64).min(1.0),
        _ => 1.0,
    }
}

/// Keys and values that all layers keep of one token, by the file's numbers of heads and their lengths.
fn cache_elements(file: &GgufFile) -> Option<u64> {
    let arch = file.architecture().ok()?;
    let key = |name: &str| format!("{arch}.{name}");
    let layers = usize::try_from(file.unsigned(&key("block_count")).ok()?).ok()?;
    // A file has tensors for each of its layers: more are damage, and are not to be allocated for.
    if layers > file.tensors.len() {
        return None;
    }
    let heads = file.unsigned_by_layer(&key("attention.head_count"), layers).ok()?;
    let shared = file
        .unsigned_by_layer(&key("attention.head_count_kv"), layers)
        .unwrap_or_else(|_| heads.clone());
    let width = file.unsigned(&key("embedding_length")).ok()?;
    let length = |name: &str, heads: u64| file.unsigned(&key(name)).ok().or_else(|| width.checked_div(heads));
    heads.iter().zip(&shared).try_fold(0u64, |sum, (&heads, &shared)| {
        let each = length("attention.key_length", heads)?.checked_add(length("attention.value_length", heads)?)?;
        sum.checked_add(shared.checked_mul(each)?)
    })
}

/// Microseconds in which a target reads as many bytes, and tokens a second if a token took no more than that.
fn bound(arch: &Architecture, bytes: u64) -> (f64, f64) {
    let seconds = bytes as f64 / (arch.memory_tbps * 1e12);
    (seconds * 1e6, 1.0 / seconds)
}

fn text(file: &GgufFile, contents: &Contents, targets: &[&Architecture]) -> String {
    let several = if file.files > 1 {
        format!(" in {} files", file.files)
    } else {
        String::new()
    };
    let kind = file.unsigned("general.file_type").ok().and_then(file_type_name);
    let mut out = format!(
        "{}: GGUF version {}{several}, {} keys, {} tensors{}\n\nkeys\n",
        file.path().display(),
        file.version,
        file.metadata.len(),
        file.tensors.len(),
        kind.map_or(String::new(), |kind| format!(", mostly {kind}")),
    );
    for (key, value) in &file.metadata {
        out += &format!("  {} = {value}\n", key.escape_debug());
    }
    out += "\ntensors by type\n  tensors     elements         bytes   bits  type\n";
    for (ty, sum) in &contents.by_type {
        out += &format!(
            "  {:>7} {:>12} {:>13} {:>6.2}  {ty}\n",
            sum.tensors,
            sum.elements,
            sum.bytes,
            ty.bits()
        );
    }
    out += &format!(
        "  {:>7} {:>12} {:>13}\n\ntensors\n",
        contents.all.tensors, contents.all.elements, contents.all.bytes
    );
    for (name, tensor) in &file.tensors {
        out += &format!("  {}: {} {:?}\n", name.escape_debug(), tensor.ty, tensor.shape());
    }
    out += &format!(
        "\nmemory\n  weights {} bytes, of which a token reads {}\n",
        contents.all.bytes, contents.token_bytes
    );
    if let Some(elements) = contents.cache_elements {
        out += &format!("  keys and values: {} bytes a token in f16\n", 2 * elements);
    }
    if contents.token_bytes > 0 {
        out +=
            "\nbound of one token's weights by the memory's rate (no kernel is faster; no kernel is compiled here)\n";
        for arch in targets.iter().filter(|arch| arch.memory_tbps > 0.0) {
            let (us, rate) = bound(arch, contents.token_bytes);
            out += &format!("  {:<9} {:>10.1} us {:>9.1} tokens/s\n", arch.name, us, rate);
        }
    }
    out
}

fn as_json(file: &GgufFile, contents: &Contents, targets: &[&Architecture]) -> Value {
    let keys: serde_json::Map<String, Value> = file
        .metadata
        .iter()
        .map(|(key, value)| (key.clone(), json!(value.to_string())))
        .collect();
    let sum = |sum: &Sum| json!({"tensors": sum.tensors, "elements": sum.elements, "bytes": sum.bytes});
    let tensors: Vec<Value> = file
        .tensors
        .iter()
        .map(|(name, tensor)| {
            json!({"name": name, "type": tensor.ty.name(), "shape": tensor.shape(), "bytes": tensor.bytes.len()})
        })
        .collect();
    let by_type: serde_json::Map<String, Value> = contents
        .by_type
        .iter()
        .map(|(ty, one)| (ty.name().to_owned(), sum(one)))
        .collect();
    let bounds: Vec<Value> = targets
        .iter()
        .filter(|arch| arch.memory_tbps > 0.0 && contents.token_bytes > 0)
        .map(|arch| {
            let (us, rate) = bound(arch, contents.token_bytes);
            json!({"target": arch.name, "us_a_token": us, "tokens_a_second": rate})
        })
        .collect();
    json!({
        "path": file.path(), "format": "gguf", "version": file.version, "files": file.files, "keys": keys,
        "all": sum(&contents.all), "by_type": by_type, "tensors": tensors, "token_bytes": contents.token_bytes,
        "cache_bytes_a_token": contents.cache_elements.map(|elements| 2 * elements), "bounds": bounds,
    })
}

fn of_file(error: graphc_gguf::GgufError) -> Error {
    Error::Artifact {
        path: error.path,
        message: error.problem.to_string(),
    }
}
