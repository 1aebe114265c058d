//! Logits and greedy texts of every architecture against plain NumPy in f64, and caches against prompts from scratch.

use graphc::passes::OptLevel;
use graphc_llm::{Engine, EngineOptions, Sampler, Sampling};
use serde_json::Value;

use super::{cases, ids, open};

fn engine(name: &str, batch: usize, level: OptLevel) -> Engine {
    let options = EngineOptions {
        batch,
        level,
        threads: 1,
        ..EngineOptions::default()
    };
    Engine::load(&open(name), &options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn floats(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().expect("a list");
    numbers.iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Holds logits against others, within a share of the largest.
fn close(found: &[f32], wanted: &[f32], share: f32, context: &str) {
    assert_eq!(found.len(), wanted.len(), "{context}");
    let largest = wanted.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let error = found
        .iter()
        .zip(wanted)
        .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= share * largest, "{context}: {error} of {largest}");
}

/// One program gives the logits of a whole prompt, of parts of it, and of single tokens.
fn check(name: &str) {
    let all = cases();
    let case = &all["models"][name];
    let tokens = ids(&case["tokens"]);
    let mut engine = engine(name, 5, OptLevel::O2);
    let vocabulary = engine.decoder().config.vocabulary;
    // In runs of 5, 5 and 4 tokens.
    let logits = engine.extend_all(&tokens).expect("runs");
    for (row, wanted) in ids(&case["rows"]).iter().zip(case["logits"].as_array().expect("rows")) {
        let found = &logits[*row as usize * vocabulary..][..vocabulary];
        close(found, &floats(wanted), 2e-3, &format!("{name}, row {row}"));
    }
    // The greedy text, token by token with the cache, and each token from scratch.
    let mut sampler = Sampler::new(Sampling::default());
    let mut last = logits[(tokens.len() - 1) * vocabulary..].to_vec();
    // Without what the compiler does to products of stored bits.
    let mut scratch = self::engine(name, 64, OptLevel::O0);
    let (mut text, mut greedy) = (tokens.clone(), Vec::new());
    for step in 0..8 {
        scratch.forget(0);
        let whole = scratch.extend(&text).expect("runs");
        close(&last, &whole, 1e-4, &format!("{name}, step {step}"));
        let token = sampler.choose(&last, &text);
        greedy.push(token);
        text.push(token);
        last = engine.extend(&[token]).expect("runs");
    }
    assert_eq!(greedy, ids(&case["greedy"]), "{name}");
    // Back to the prompt's middle, whose second half is another: nothing of the first text is seen.
    let mut other = tokens[..7].to_vec();
    other.extend([3, 4, 5]);
    assert_eq!(engine.known(&other), 7);
    let found = engine.go_to(&other).expect("runs");
    scratch.forget(0);
    close(&found, &scratch.extend(&other).expect("runs"), 1e-4, name);
}

macro_rules! checks {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )*};
}
checks!(
    llama,
    llama3,
    linear,
    quantised,
    bytes,
    superblocks,
    qwen2,
    qwen3,
    gemma2,
    gemma3,
    phi3,
    smollm3,
    granite,
    olmo2,
    starcoder2,
    mixtral,
    qwen2moe,
    qwen3moe,
    gptoss
);

/// Every recorded model has a test, and every architecture a model.
#[test]
fn nothing_is_left_out() {
    let all = cases();
    let names: Vec<&String> = all["models"].as_object().expect("models").keys().collect();
    assert_eq!(names.len(), 19);
    for (architecture, _) in graphc_llm::model::ARCHITECTURES {
        assert!(
            names
                .iter()
                .any(|name| open(name).architecture().is_ok_and(|arch| arch == *architecture))
        );
    }
}

#[test]
fn what_became_of_each_type_is_known() {
    for (name, types) in [
        (
            "quantised",
            &[
                ("Q4_0", "i4 with a scale of f16 for each 32"),
                ("Q4_1", "u4 with a scale of f16 and a zero point for each 32"),
                ("Q5_0", "i8 with a scale of f16 for each 32"),
                ("Q5_1", "i8 with a scale of f16 and a zero point for each 32"),
                ("Q8_0", "i8 with a scale of f16 for each 32"),
            ][..],
        ),
        ("bytes", &[("Q8_0", "i8 with a scale of f16 for each 32")]),
        ("llama3", &[("F16", "f16")]),
    ] {
        let engine = engine(name, 8, OptLevel::O2);
        let stored = engine.decoder().stored.iter();
        let kept: Vec<_> = stored.map(|(ty, stored)| (*ty, stored.kept_as.as_str())).collect();
        assert_eq!(kept, types, "{name}");
    }
    let engine = engine("qwen2", 8, OptLevel::O2);
    let stored = &engine.decoder().stored["BF16"];
    assert_eq!((stored.kept_as.as_str(), stored.bytes.0), ("bf16", stored.bytes.1));
}

#[test]
fn a_full_cache_is_an_error_that_loses_nothing() {
    let all = cases();
    let tokens = ids(&all["models"]["llama"]["tokens"]);
    let options = EngineOptions {
        context: Some(14),
        threads: 1,
        ..EngineOptions::default()
    };
    let mut engine = Engine::load(&open("llama"), &options).expect("loads");
    let logits = engine.extend(&tokens).expect("fits");
    let error = engine.extend(&[3]).expect_err("no room").to_string();
    assert!(error.contains("15 tokens do not fit into the context of 14"), "{error}");
    engine.forget(13);
    close(&engine.extend(&tokens[13..]).expect("fits"), &logits, 1e-5, "again");
    let error = engine.go_to(&[100_000]).expect_err("no such token").to_string();
    assert!(error.contains("token 100000"), "{error}");
}

#[test]
fn embeddings_are_the_last_row_or_the_mean_of_all() {
    for name in ["lastrow", "meanrow"] {
        let case = &cases()["embeddings"][name];
        let tokens = ids(&case["tokens"]);
        let mut engine = engine(name, 4, OptLevel::O2);
        let wanted = floats(&case["embedding"]);
        close(&engine.embed(&tokens).expect("runs"), &wanted, 2e-3, name);
        // What the cache has from before changes nothing.
        engine.embed(&tokens[3..]).expect("runs");
        close(&engine.embed(&tokens).expect("runs"), &wanted, 2e-3, name);
    }
    let error = engine("qwen3", 4, OptLevel::O2)
        .embed(&[3])
        .expect_err("it writes texts");
    assert!(error.to_string().contains("has no embeddings"), "{error}");
}

/// Causal attention shows the first row no other token: it is the last row of a text of one token.
#[test]
fn embeddings_of_the_first_row_are_those_of_the_first_token() {
    let tokens = ids(&cases()["embeddings"]["lastrow"]["tokens"]);
    let pooled = |pooling: u32| {
        let mut file = open("lastrow");
        let key = "qwen3.pooling_type".to_owned();
        file.metadata.insert(key, graphc_gguf::Value::U32(pooling));
        let options = EngineOptions {
            batch: 4,
            threads: 1,
            ..EngineOptions::default()
        };
        Engine::load(&file, &options)
    };
    let mut first = pooled(2).expect("it loads");
    let mut last = pooled(3).expect("it loads");
    let wanted = last.embed(&tokens[..1]).expect("runs");
    close(&first.embed(&tokens).expect("runs"), &wanted, 1e-5, "first");
    for engine in [&mut first, &mut last, &mut pooled(1).expect("it loads")] {
        let error = engine.embed(&[]).expect_err("no token").to_string();
        assert!(error.contains("without tokens"), "{error}");
    }
    let error = pooled(4).err().expect("refused").to_string();
    assert!(error.contains("qwen3.pooling_type is 4"), "{error}");
    assert!(pooled(0).expect("it loads").embed(&tokens).is_err(), "it writes texts");
}
