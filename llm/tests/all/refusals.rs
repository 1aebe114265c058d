//! Files that cannot be run are refused by the name of what is wrong, and the way out.

use graphc_gguf::{GgufFile, Value};
use graphc_llm::{Engine, EngineOptions, Error, Template, Tokenizer};

use super::open;

fn refused(file: &GgufFile) -> Error {
    match Engine::load(file, &EngineOptions::default()) {
        Ok(_) => panic!("it loads"),
        Err(error) => error,
    }
}

/// The message of a recorded file that was changed.
fn message(name: &str, change: impl FnOnce(&mut GgufFile)) -> String {
    let mut file = open(name);
    change(&mut file);
    let error = refused(&file);
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

fn set(file: &mut GgufFile, key: &str, value: Value) {
    file.metadata.insert(key.to_owned(), value);
}

#[test]
fn keys_and_tensors_that_do_not_fit_are_named() {
    let text = message("llama", |file| {
        set(file, "general.architecture", Value::String("rwkv7".to_owned()))
    });
    assert!(
        text.contains("llama.gguf") && text.contains("rwkv7") && text.contains("qwen3"),
        "{text}"
    );

    let text = message("llama", |file| drop(file.metadata.shift_remove("llama.block_count")));
    assert!(text.contains("\"llama.block_count\" is missing"), "{text}");

    let text = message("llama", |file| {
        set(file, "llama.attention.head_count_kv", Value::U32(3))
    });
    assert!(
        text.contains("llama.attention.head_count_kv is 3; it must divide the 4 heads"),
        "{text}"
    );

    let text = message("llama", |file| set(file, "llama.block_count", Value::U32(4_000_000)));
    assert!(text.contains("llama.block_count is 4000000"), "{text}");

    let text = message("llama", |file| set(file, "llama.feed_forward_length", Value::U32(65)));
    assert!(
        text.contains("\"blk.0.ffn_gate.weight\" has the shape [64, 32]") && text.contains("[65, 32]"),
        "{text}"
    );

    let text = message("qwen2", |file| drop(file.tensors.shift_remove("blk.1.attn_k.bias")));
    assert!(text.contains("\"blk.1.attn_k.bias\" is missing"), "{text}");

    // Norms of heads that the architecture has not: results would be wrong.
    let text = message("qwen3", |file| {
        for (key, value) in open("qwen3").metadata {
            set(file, &key.replace("qwen3.", "llama."), value);
        }
        set(file, "general.architecture", Value::String("llama".to_owned()));
    });
    assert!(
        text.contains("4 tensors are not used") && text.contains("blk.0.attn_q_norm.weight"),
        "{text}"
    );

    let text = message("linear", |file| {
        set(file, "llama.rope.scaling.type", Value::String("twist".to_owned()))
    });
    assert!(text.contains("llama.rope.scaling.type is twist"), "{text}");

    let text = message("mixtral", |file| set(file, "llama.expert_used_count", Value::U32(5)));
    assert!(
        text.contains("llama.expert_used_count is 5; there are 4 experts"),
        "{text}"
    );

    let text = message("qwen3moe", |file| {
        set(file, "qwen3moe.expert_gating_func", Value::U32(2))
    });
    assert!(text.contains("qwen3moe.expert_gating_func is 2"), "{text}");

    let text = message("llama", |file| {
        let tensor = file.tensors.get_mut("blk.0.ffn_up.weight").expect("it is there");
        tensor.ty = graphc_gguf::TensorType::IQ2_XS;
    });
    assert!(text.contains("\"blk.0.ffn_up.weight\" is stored as IQ2_XS"), "{text}");
}

#[test]
fn a_context_that_the_model_was_not_trained_for_is_refused() {
    for (context, part) in [(65, "trained for a context of 64 tokens"), (0, "give 1 or more")] {
        let options = EngineOptions {
            context: Some(context),
            ..EngineOptions::default()
        };
        let error = Engine::load(&open("linear"), &options)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn vocabularies_that_are_not_known_are_named() {
    for (key, value, part) in [
        ("tokenizer.ggml.model", "rwkv", "\"rwkv\" is not supported; llama"),
        ("tokenizer.ggml.pre", "nonsense", "\"nonsense\", a way of splitting"),
    ] {
        let mut file = open("bpe");
        set(&mut file, key, Value::String(value.to_owned()));
        let error = Tokenizer::read(&file).err().expect("refused").to_string();
        assert!(error.contains(part) && error.contains("bpe.gguf"), "{error}");
    }
    let mut file = open("bpe");
    file.metadata.shift_remove("tokenizer.ggml.pre");
    let tokenizer = Tokenizer::read(&file).expect("the default rule");
    assert!(
        tokenizer
            .warning
            .expect("a warning")
            .contains("tokenizer.ggml.pre is missing")
    );
    set(&mut file, "tokenizer.ggml.eos_token_id", Value::U32(100_000));
    let error = Tokenizer::read(&file).err().expect("refused").to_string();
    assert!(error.contains("eos_token_id is 100000"), "{error}");

    let error = Template::read(&open("qwen2")).err().expect("refused").to_string();
    assert!(error.contains("tokenizer.chat_template"), "{error}");
}

/// What is missing reads as zeros, of which no model is made; without the watch over the file the process would end.
#[test]
fn a_file_that_becomes_shorter_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    std::fs::copy(crate::data("llama.gguf"), &path).expect("copies");
    let file = graphc_llm::loader::open(&path).expect("a whole file");
    let length = std::fs::metadata(&path).expect("a file").len();
    let cut = std::fs::File::options().write(true).open(&path).expect("opens");
    cut.set_len(length / 2).expect("shorter");
    let said = refused(&file).to_string();
    assert!(said.contains("model.gguf") && said.contains("became shorter"), "{said}");
}
