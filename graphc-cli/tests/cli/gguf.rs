//! Files of language models: what `inspect` says of them, and other verbs.

use graphc_gguf::{GgufWriter, TensorType, Value};

use crate::place::Place;

/// A model of two layers: 4 and 2 heads of keys and values, a mixture of 8 experts of which 2 are chosen.
fn model() -> Vec<u8> {
    let mut writer = GgufWriter::new("llama");
    let number = |value: u32| Value::U32(value);
    for (key, value) in [
        ("general.file_type", number(2)),
        ("general.name", Value::String("tiny\u{1b}[31m".into())),
        ("llama.block_count", number(2)),
        ("llama.embedding_length", number(64)),
        ("llama.attention.head_count", number(8)),
        (
            "llama.attention.head_count_kv",
            Value::Array(graphc_gguf::Array::I32(vec![4, 2])),
        ),
        ("llama.expert_count", number(8)),
        ("llama.expert_used_count", number(2)),
    ] {
        writer.set(key, value).unwrap();
    }
    writer
        .tensor("token_embd.weight", TensorType::Q4_0, &[64, 10], &[0; 360])
        .unwrap();
    writer
        .tensor("output.weight", TensorType::F32, &[64, 10], &[0; 2560])
        .unwrap();
    writer
        .tensor("blk.0.ffn_up_exps.weight", TensorType::F32, &[1, 1, 8], &[0; 32])
        .unwrap();
    writer.to_bytes().unwrap()
}

#[test]
fn inspect_shows_keys_tensors_and_memory() {
    let p = Place::new();
    // Whatever its name.
    p.write("tiny.bin", model());
    let shown = p.ok(&["inspect", "tiny.bin"]);
    for part in [
        "GGUF version 3, 9 keys, 3 tensors, mostly Q4_0",
        "general.name = \"tiny\\u{1b}[31m\"",
        "llama.attention.head_count_kv = 2 [4, 2]",
        "blk.0.ffn_up_exps.weight: F32 [8, 1, 1]",
        // The table of embeddings is looked up, and a quarter of the experts is read: 2560 + 32 / 4.
        "weights 2952 bytes, of which a token reads 2568",
        // (4 + 2) heads of 8 + 8.
        "keys and values: 192 bytes a token in f16",
        "gfx90a",
        "sm_90",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = p.json(&["inspect", "tiny.bin", "--target", "gfx942", "--format", "json"]);
    assert_eq!(json["by_type"]["Q4_0"]["bytes"], 360);
    assert_eq!(json["bounds"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["bounds"][0]["target"], "gfx942");
    assert_eq!(json["tensors"][1]["shape"], serde_json::json!([10, 64]));
}

#[test]
fn damaged_files_and_other_verbs_are_refused() {
    let p = Place::new();
    let whole = model();
    p.write("cut.gguf", &whole[..whole.len() - 64]);
    p.fails(
        &["inspect", "cut.gguf"],
        2,
        &["cut.gguf", "tensor", "the file is cut or damaged"],
    );
    p.write("tiny.gguf", whole);
    p.fails(
        &["run", "tiny.gguf", "--random"],
        2,
        &["tiny.gguf", "GGUF", "graphc inspect tiny.gguf"],
    );
}
