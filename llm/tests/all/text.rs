//! Tokenizers against the `tokenizers` and `sentencepiece` packages of Python, templates against Jinja2.

use graphc_gguf::Value as Key;
use graphc_llm::{Message, Template, Tokenizer};
use serde_json::Value;

use super::{cases, ids, open};

fn tokenizer(name: &str) -> Tokenizer {
    let mut file = open(if name == "sentencepiece" { name } else { "bpe" });
    if name != "sentencepiece" {
        file.metadata
            .insert("tokenizer.ggml.pre".to_owned(), Key::String(name.to_owned()));
    }
    Tokenizer::read(&file).expect("a vocabulary")
}

fn texts(all: &Value) -> Vec<String> {
    let texts = all["texts"].as_array().expect("a list");
    texts
        .iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn texts_become_the_tokens_of_the_reference_and_come_back() {
    let all = cases();
    let recorded = all["tokenizers"].as_object().expect("tokenizers");
    assert_eq!(recorded.len(), 5);
    for (name, wanted) in recorded {
        let tokenizer = tokenizer(name);
        for (text, wanted) in texts(&all).iter().zip(wanted.as_array().expect("a list")) {
            let found = tokenizer.encode(text, false, false).expect("encodes");
            assert_eq!(found, ids(wanted), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&found), *text, "{name}");
            // A token at a time, nothing but whole characters.
            let mut decoder = tokenizer.decoder(true);
            let pieces: Vec<String> = found
                .iter()
                .map(|token| decoder.push(tokenizer.bytes(*token)))
                .collect();
            assert_eq!(pieces.concat() + &decoder.finish(), *text, "{name}");
            assert!(
                !pieces.concat().contains(char::REPLACEMENT_CHARACTER),
                "{name}: {text:?}"
            );
        }
    }
}

/// llama.cpp's rule for files that name none.
#[test]
fn the_default_rule_cuts_numbers_in_threes_and_punctuation_apart() {
    let tokenizer = tokenizer("default");
    let text = "is 12345 (or so)...";
    let tokens = tokenizer.encode(text, false, false).expect("encodes");
    assert_eq!(tokenizer.decode(&tokens), text);
    let mut ends = vec![];
    let mut at = 0;
    for token in &tokens {
        at += tokenizer.bytes(*token).expect("a text").len();
        ends.push(at);
    }
    // Pieces end behind "is", " ", "123", "45", " ", "(", "or", " so" and ")...": no token goes over such an end.
    for end in [2, 3, 6, 8, 9, 10, 12, 15, 19] {
        assert!(ends.contains(&end), "{end}: {ends:?}");
    }
}

#[test]
fn control_tokens_are_tokens_in_trusted_text_alone() {
    for (name, text, control) in [("llama-bpe", "<|im_start|>", 2usize), ("sentencepiece", "</s>", 1)] {
        let tokenizer = tokenizer(name);
        let begin = tokenizer.encode("", true, false).expect("encodes");
        assert_eq!(begin.len(), 1, "{name}");
        let written = tokenizer.ends_of_text()[0].to_owned();
        // A beginning that is written out does not make two.
        let twice = tokenizer
            .encode(&format!("{written}a{text}"), true, true)
            .expect("encodes");
        let once = tokenizer.encode(&format!("a{text}"), true, true).expect("encodes");
        assert_eq!(twice, once, "{name}");
        let token = *once.last().expect("tokens");
        assert_eq!(tokenizer.text(token), Some(text), "{name}");
        assert_eq!(tokenizer.bytes(token), None, "{name}");
        let letters = tokenizer.encode(&format!("a{text}"), true, false).expect("encodes");
        assert!(!letters.contains(&token) && letters.len() > control, "{name}");
        assert_eq!(tokenizer.decode(&letters), format!("a{text}"), "{name}");
    }
    let tokenizer = tokenizer("qwen2");
    assert!(
        tokenizer.encode("", true, true).expect("encodes").is_empty(),
        "no beginning"
    );
    let end = tokenizer.encode("<|im_end|>", false, true).expect("encodes");
    assert!(tokenizer.is_end(end[0]) && !tokenizer.is_end(0));
}

#[test]
fn templates_write_what_jinja2_writes() {
    let all = cases();
    let recorded = all["templates"].as_array().expect("a list");
    assert_eq!(recorded.len(), 32);
    for case in recorded {
        let template = Template::new(case["template"].as_str().expect("a text")).expect("parses");
        let messages = case["messages"].as_array().expect("a list").iter().map(|message| {
            let text = |key: &str| message[key].as_str().expect("a text").to_owned();
            Message::new(&text("role"), text("content"))
        });
        let messages: Vec<Message> = messages.collect();
        let answers = case["add_generation_prompt"].as_bool().expect("a flag");
        let found = template.apply(&messages, ["<s>", "</s>"], answers);
        match case["text"].as_str() {
            Some(text) => assert_eq!(found.expect("renders"), text, "{}", case["name"]),
            None => {
                let (error, refused) = (found.expect_err("refused").to_string(), &case["text"]["refused"]);
                assert!(error.contains(refused.as_str().expect("a text")), "{error}");
            }
        }
    }
}
