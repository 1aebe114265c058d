//! The server over loopback: its routes, what it refuses, many clients at once, and its end.

use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use graphc_llm::{Engine, EngineOptions, Sampler, Sampling, Tokenizer};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::http::{Server, answer, events};
use super::{data, open};

/// The greedy text of a prompt, without a server.
fn alone(model: &str, prompt: &str, tokens: usize) -> String {
    let file = open(model);
    let tokenizer = Tokenizer::read(&file).expect("a vocabulary");
    let options = EngineOptions {
        threads: 1,
        batch: 128,
        ..EngineOptions::default()
    };
    let mut engine = Engine::load(&file, &options).expect("loads");
    let mut sampler = Sampler::new(Sampling::default());
    let prompt = tokenizer.encode(prompt, true, true).expect("encodes");
    let (mut logits, mut decoder) = (engine.extend(&prompt).expect("runs"), tokenizer.decoder(false));
    let mut text = String::new();
    for _ in 0..tokens {
        let token = sampler.choose(&logits, &[]);
        text += &decoder.push(tokenizer.bytes(token));
        logits = engine.extend(&[token]).expect("runs");
    }
    text + &decoder.finish()
}

#[test]
fn texts_are_those_of_the_engine_whole_and_in_parts() {
    let server = Server::start("llama", &[]);
    let wanted = alone("llama", "The model", 12);
    let mut body =
        json!({"model": "llama", "prompt": "The model", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let (status, whole) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["choices"][0]["text"], wanted);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let (status, text) = answer(server.send("POST", "/v1/completions", "", &body.to_string()));
    assert_eq!(status, 200);
    let parts = events(&text);
    let joined: String = parts
        .iter()
        .filter_map(|part| part["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(joined, wanted);
    assert_eq!(parts.last().expect("the counts")["usage"], whole["usage"]);
    // Two prompts, as a text and as tokens, and two answers to each.
    let (_, tokens) = server.post("/tokenize", &json!({"content": "The model", "add_special": true}));
    let (_, back) = server.post("/detokenize", &tokens);
    assert_eq!(back["content"], "The model");
    let prompts = json!(["The model", tokens["tokens"]]);
    let body = json!({"prompt": prompts, "max_tokens": 12, "temperature": 0, "n": 2, "ignore_eos": true, "echo": true});
    let (_, several) = server.post("/v1/completions", &body);
    let choices = several["choices"].as_array().expect("answers");
    assert_eq!(choices.len(), 4, "{several}");
    let count = 2 * tokens["tokens"].as_array().map_or(0, Vec::len);
    assert_eq!(several["usage"]["prompt_tokens"], count);
    assert_eq!(several["usage"]["completion_tokens"], 4 * 12);
    assert!(
        choices
            .iter()
            .all(|choice| choice["text"] == format!("The model{wanted}")),
        "{several}"
    );
}

#[test]
fn chats_have_roles_stops_and_probabilities() {
    let server = Server::start("llama", &["--name", "tiny"]);
    let messages = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    let ask = |more: Value| {
        let mut body =
            json!({"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        for (key, value) in more.as_object().expect("fields") {
            body[key] = value.clone();
        }
        let (status, text) = answer(server.send("POST", "/v1/chat/completions", "", &body.to_string()));
        assert_eq!(status, 200, "{text}");
        text
    };
    let whole: Value = serde_json::from_str(&ask(json!({"logprobs": true, "top_logprobs": 3}))).expect("JSON");
    let message = &whole["choices"][0]["message"];
    let text = message["content"].as_str().expect("a text");
    let prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, alone("llama", prompt, 12));
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 12);
    for token in tokens {
        // The most probable one was taken.
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(3));
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        assert!(token["logprob"].as_f64().expect("a number") < 0.0);
    }
    let parts = events(&ask(json!({"stream": true})));
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    let joined: String = (parts.iter())
        .filter_map(|part| part["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(joined, text);
    assert_eq!(parts.last().expect("an end")["choices"][0]["finish_reason"], "length");
    // A text of the middle ends the answer before it.
    let middle: String = text.chars().skip(4).take(3).collect();
    let stopped: Value = serde_json::from_str(&ask(json!({"stop": middle}))).expect("JSON");
    let choice = &stopped["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(
        choice["message"]["content"],
        text[..text.find(&middle).expect("it is there")]
    );
    // Equal seeds draw equal texts.
    let draw = |seed: u64| {
        ask(json!({"seed": seed, "temperature": 2}))
            .split_once("choices")
            .expect("answers")
            .1
            .to_owned()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn mistakes_have_the_status_and_the_words_of_openai() {
    let server = Server::start("llama", &["--max-body", "20000", "--context", "100"]);
    let long = "the model ".repeat(60);
    let chat = "/v1/chat/completions";
    let hello = json!([{"role": "user", "content": "Hello"}]);
    for (path, body, wanted, part) in [
        (chat, json!([1]).to_string(), 400, "a list"),
        (chat, "{\"messages\": [}".to_owned(), 400, "line 1 column 15"),
        (
            chat,
            json!({"model": "gpt-9", "messages": hello}).to_string(),
            404,
            "no model 'gpt-9'",
        ),
        (chat, json!({"messages": []}).to_string(), 400, "'messages' is empty"),
        (chat, json!({}).to_string(), 400, "'messages' is missing"),
        (
            chat,
            json!({"messages": [{"role": "user"}]}).to_string(),
            400,
            "'messages[0].content' is missing",
        ),
        (
            chat,
            json!({"messages": [{"role": "cat", "content": ""}]}).to_string(),
            400,
            "\"cat\"",
        ),
        (
            chat,
            json!({"messages": hello, "temperature": "hot"}).to_string(),
            400,
            "'temperature' is a string",
        ),
        (
            chat,
            json!({"messages": hello, "temperature": 3}).to_string(),
            400,
            "from 0 to 2",
        ),
        (chat, json!({"messages": hello, "n": 0}).to_string(), 400, "'n' is 0"),
        (
            chat,
            json!({"messages": hello, "stream": 1}).to_string(),
            400,
            "true or false",
        ),
        (
            chat,
            json!({"messages": hello, "colour": 1}).to_string(),
            400,
            "no field 'colour'",
        ),
        (
            chat,
            json!({"messages": hello, "logit_bias": {"9999": 1}}).to_string(),
            400,
            "none of the 360 tokens",
        ),
        (
            chat,
            json!({"messages": hello, "tools": [{"function": {"name": "f"}}]}).to_string(),
            400,
            "no tools",
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": long}]}).to_string(),
            400,
            "the context of 100",
        ),
        (
            chat,
            format!("{{\"x\": \"{}\"}}", "y".repeat(30_000)),
            413,
            "20000 bytes",
        ),
        (
            "/v1/completions",
            json!({"prompt": [1, 400]}).to_string(),
            400,
            "'prompt' is 400",
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "suffix": "y"}).to_string(),
            400,
            "'suffix' is not supported",
        ),
        (
            "/v1/embeddings",
            json!({"input": "x"}).to_string(),
            400,
            "no embeddings",
        ),
        ("/v1/nothing", "{}".to_owned(), 404, "nothing at /v1/nothing"),
        ("/v1/models", "{}".to_owned(), 405, "does not take POST"),
    ] {
        let (status, value) = server.post_text(path, &body);
        let error = &value["error"];
        let message = error["message"].as_str().unwrap_or_else(|| panic!("{value}"));
        assert!(status == wanted && message.contains(part), "{body}: {status} {message}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let (_, value) = server.post(chat, &json!({"messages": hello, "top_p": -1}));
    assert_eq!(value["error"]["param"], "top_p");
    // It is still there.
    let (status, value) = server.post(chat, &json!({"messages": hello, "max_tokens": 2}));
    assert_eq!(
        (status, server.get("/health").0, server.metric("requests_running")),
        (200, 200, 0),
        "{value}"
    );
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    use std::io::Write;
    let server = Server::start("llama", &["--body-timeout", "1"]);
    let mut stream = std::net::TcpStream::connect(&server.address).expect("it listens");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 50\r\n\r\n{\"prompt\"";
    stream.write_all(head.as_bytes()).expect("sends");
    let (status, text) = answer(stream);
    assert!(status == 408 && text.contains("after 1 seconds"), "{status} {text}");
    // A head that does not come either; and a client that says nothing at all.
    for head in ["GET /health HTTP/1.1\r\nHost:", ""] {
        let mut stream = std::net::TcpStream::connect(&server.address).expect("it listens");
        stream.write_all(head.as_bytes()).expect("sends");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server closes");
    }
    let mut stream = std::net::TcpStream::connect(&server.address).expect("it listens");
    let head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sends");
    assert_eq!(answer(stream).0, 413);
}

#[test]
fn a_key_is_asked_for() {
    let server = Server::start("llama", &["--api-key", "secret"]);
    let status = |headers: &str| answer(server.send("GET", "/v1/models", headers, "")).0;
    for wrong in [
        "",
        "Authorization: Bearer secre\r\n",
        "Authorization: Bearer secret2\r\n",
        "Authorization: secret\r\n",
    ] {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
    assert_eq!(status("Authorization: Bearer secret\r\n"), 200);
    assert_eq!(server.get("/health").0, 200);
    let (_, text) = server.get("/v1/models");
    assert!(text.contains("invalid_api_key"), "{text}");
}

/// Clients that ask, leave early, and ask for too much: each answer is the one that a request gets alone.
#[test]
fn many_clients_get_what_each_gets_alone() {
    const CLIENTS: usize = 16;
    const REQUESTS: usize = 8;
    let server = Server::start("llama", &["--batch", "8", "--parallel", "3"]);
    let prompts: Vec<String> = (0..6)
        .map(|at| {
            format!(
                "{}{}",
                "The model reads the text. ".repeat(1 + at % 3),
                ["a", "b", "c", "d", "e", "f"][at]
            )
        })
        .collect();
    let body = |prompt: &str, seed: usize| {
        json!({
            "prompt": prompt, "max_tokens": 8 + 10 * (seed % 3), "temperature": (seed % 2) as f64 * 1.5, "seed": seed, "ignore_eos": true,
        })
    };
    let text = |value: &Value| value["choices"][0]["text"].as_str().map(str::to_owned);
    let alone: Vec<Vec<String>> = (prompts.iter())
        .map(|prompt| {
            let ask = |seed| text(&server.post("/v1/completions", &body(prompt, seed)).1).expect("an answer");
            (0..6).map(ask).collect()
        })
        .collect();
    let before = server.metric("resident_bytes");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, prompts, alone) = (&server, &prompts, &alone);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(client as u64);
                for _ in 0..REQUESTS {
                    let (prompt, seed) = (random.random_range(0..6), random.random_range(0..6));
                    let mut asked = body(&prompts[prompt], seed);
                    match random.random_range(0..8) {
                        // Leaves before the answer, or in the middle of its stream.
                        0 => drop(server.send("POST", "/v1/completions", "", &asked.to_string())),
                        1 => {
                            asked["stream"] = true.into();
                            asked["max_tokens"] = 150.into();
                            let mut stream = server.send("POST", "/v1/completions", "", &asked.to_string());
                            let mut some = [0; 600];
                            stream.read_exact(&mut some).expect("it has begun");
                        }
                        2 => {
                            asked["prompt"] = "too long ".repeat(300).into();
                            assert_eq!(server.post("/v1/completions", &asked).0, 400);
                        }
                        3 => {
                            asked["stream"] = true.into();
                            let stream = server.send("POST", "/v1/completions", "", &asked.to_string());
                            let parts = events(&answer(stream).1);
                            let joined: String = parts
                                .iter()
                                .filter_map(|part| part["choices"][0]["text"].as_str())
                                .collect();
                            assert_eq!(joined, alone[prompt][seed]);
                        }
                        _ => {
                            let (status, value) = server.post("/v1/completions", &asked);
                            assert_eq!(status, 200, "{value}");
                            assert_eq!(text(&value).as_ref(), Some(&alone[prompt][seed]));
                        }
                    }
                }
            });
        }
    });
    // Those that left have ended within a step each.
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.metric("requests_running") + server.metric("requests_waiting") > 0 {
        assert!(Instant::now() < deadline, "jobs of clients that left go on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.metric("jobs_total{outcome=\"cancelled\"}") > 0);
    assert_eq!(server.metric("jobs_total{outcome=\"failed\"}"), 0);
    assert!(server.metric("reused_tokens_total") > 0);
    let after = server.metric("resident_bytes");
    assert!(
        after < before + (24 << 20),
        "{before} bytes before, {after} after {:?}",
        started.elapsed()
    );
}

#[test]
fn a_signal_lets_answers_end_and_a_second_one_does_not() {
    let ask = |server: &Server, tokens: usize, answers: usize| {
        let body = json!({"n": answers, "prompt": "The", "max_tokens": tokens, "stream": true, "ignore_eos": true, "temperature": 0});
        let mut stream = server.send("POST", "/v1/completions", "", &body.to_string());
        let mut first = [0; 200];
        stream.read_exact(&mut first).expect("it has begun");
        (stream, first)
    };
    let mut server = Server::start("llama", &[]);
    let (mut stream, _) = ask(&server, 240, 1);
    server.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("whole characters");
    assert!(
        rest.contains("[DONE]") && rest.contains("\"finish_reason\":\"length\""),
        "{rest}"
    );
    let status = server.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert!(std::net::TcpStream::connect(&server.address).is_err());
    // A second signal ends streams that would go on for long.
    for signals in [2, 1] {
        let drain = if signals == 1 { "0" } else { "60" };
        let mut server = Server::start("llama", &["--drain", drain]);
        let (mut stream, _) = ask(&server, 240, 16);
        for _ in 0..signals {
            server.signal("TERM");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).ok();
        assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"), "{signals} signals");
        assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Server::start("llama", &[]);
    let port = server.address.rsplit_once(':').expect("a port").1;
    let taken = Command::new(env!("CARGO_BIN_EXE_graphc-llm"))
        .arg("serve")
        .arg(data("llama.gguf"))
        .args(["--port", port])
        .output()
        .expect("it runs");
    let log = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(
        taken.status.code() == Some(2) && log.contains("cannot listen at 127.0.0.1"),
        "{log}"
    );
}

#[test]
fn a_full_queue_refuses() {
    let server = Server::start("llama", &["--parallel", "1", "--queue", "0"]);
    let body = json!({"prompt": ["a", "b"], "max_tokens": 1});
    let (status, value) = server.post("/v1/completions", &body);
    assert_eq!(
        (status, &value["error"]["code"]),
        (429, &json!("queue_full")),
        "{value}"
    );
    assert_eq!(
        server
            .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}))
            .0,
        200
    );
}

#[test]
fn answers_are_json_of_a_schema() {
    let server = Server::start("llama", &[]);
    let chat = "/v1/chat/completions";
    let ask = |format: Value, seed: u64| {
        let messages = json!([{"role": "user", "content": "Hello"}]);
        let body =
            json!({"messages": messages, "max_tokens": 60, "temperature": 1, "seed": seed, "response_format": format});
        server.post(chat, &body)
    };
    let schema = json!({"type": "object", "required": ["kind", "count"], "additionalProperties": false, "properties": {
        "kind": {"enum": ["cat", "dog"]}, "count": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    }});
    for seed in 0..4 {
        let format = json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}});
        let (status, whole) = ask(format, seed);
        assert_eq!(status, 200, "{whole}");
        let choice = &whole["choices"][0];
        // A model that knows nothing likes white space: what is there is the beginning of a text of the schema.
        let text = choice["message"]["content"].as_str().expect("a text");
        if choice["finish_reason"] == "stop" {
            let value: Value = serde_json::from_str(text).expect("JSON");
            assert!(value["kind"] == "cat" || value["kind"] == "dog", "{value}");
            assert_eq!(value["count"].as_array().map(Vec::len), Some(2), "{value}");
        } else {
            assert!(text.trim_start().starts_with('{'), "{text}");
        }
    }
    let (status, whole) = ask(json!({"type": "json_object"}), 1);
    assert_eq!(status, 200, "{whole}");
    let text = whole["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.trim_start().starts_with('{'), "{text}");
    for (format, part) in [
        (json!({"type": "xml"}), "'response_format.type' is"),
        (json!({"type": "json_schema"}), "json_schema.schema' is missing"),
        (
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "x"}}}),
            "keyword \"pattern\"",
        ),
    ] {
        let (status, answer) = ask(format, 0);
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer["error"]["message"].as_str().expect("a message").contains(part),
            "{answer}"
        );
        assert_eq!(answer["error"]["param"], "response_format");
    }
}

#[test]
fn embeddings_are_served_as_openai_has_them() {
    let server = Server::start("lastrow", &[]);
    let (status, both) = server.post(
        "/v1/embeddings",
        &json!({"input": ["Hello", "The model"], "user": "me"}),
    );
    assert_eq!(status, 200, "{both}");
    assert_eq!(both["object"], "list");
    let vector = |answer: &Value, at: usize| -> Vec<f64> {
        let numbers = answer["data"][at]["embedding"].as_array().expect("numbers");
        numbers.iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let length = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let hello = vector(&both, 0);
    assert!(
        (length(&hello) - 1.0).abs() < 1e-5 && hello != vector(&both, 1),
        "{both}"
    );
    assert_eq!(both["usage"]["prompt_tokens"], both["usage"]["total_tokens"]);
    let (_, alone) = server.post("/v1/embeddings", &json!({"input": "Hello"}));
    assert_eq!(vector(&alone, 0), hello);
    let (_, short) = server.post("/v1/embeddings", &json!({"input": "Hello", "dimensions": 8}));
    assert_eq!(vector(&short, 0).len(), 8);
    assert!((length(&vector(&short, 0)) - 1.0).abs() < 1e-5);
    let (_, coded) = server.post(
        "/v1/embeddings",
        &json!({"input": "Hello", "encoding_format": "base64"}),
    );
    let text = coded["data"][0]["embedding"].as_str().expect("a text");
    assert_eq!(text.len(), (hello.len() * 4).div_ceil(3) * 4);
    for (path, body, part) in [
        ("/v1/embeddings", json!({}), "'input' is missing"),
        ("/v1/embeddings", json!({"input": 3}), "'input' is 3"),
        (
            "/v1/embeddings",
            json!({"input": "x", "dimensions": 1000}),
            "'dimensions' is 1000",
        ),
        (
            "/v1/embeddings",
            json!({"input": "x", "encoding_format": "f16"}),
            "'encoding_format' is",
        ),
        (
            "/v1/embeddings",
            json!({"input": "x", "temperature": 1}),
            "no field 'temperature'",
        ),
        ("/v1/completions", json!({"prompt": "x"}), "writes no texts"),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer["error"]["message"].as_str().expect("a message").contains(part),
            "{answer}"
        );
    }
}
