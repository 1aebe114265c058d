//! The verbs, as a user starts them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use graphc_llm::Tokenizer;

use super::{data, open};

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc-llm"));
    command.args(arguments).args(["--threads", "1"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut to = child.stdin.take().expect("a pipe");
    // A verb that reads nothing may have ended already.
    to.write_all(input.as_bytes()).ok();
    drop(to);
    child.wait_with_output().expect("it ends")
}

/// Runs a verb that has no threads to choose.
fn run_as_it_is(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphc-llm"));
    command.args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("whole characters")
}

fn model(name: &str) -> String {
    data(&format!("{name}.gguf")).display().to_string()
}

#[test]
fn generate_goes_on_from_a_prompt() {
    let model = model("llama");
    let arguments = ["generate", &model, "--prompt", "The model", "-n", "12"];
    let output = run(&arguments, "");
    let (out, log) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{log}");
    assert!(out.starts_with("The model") && out.ends_with('\n'), "{out}");
    assert!(
        log.contains("llama, 2 layers, width 32, 360 tokens; a context of 256 tokens on cpu"),
        "{log}"
    );
    assert!(log.contains("matrices of F32"), "{log}");
    assert_eq!(text(&run(&arguments, "").stdout), out, "greedy texts are equal");
    let drawn = |seed| {
        let quiet = [&arguments[..], &["--temperature", "1.5", "--quiet", "--seed", seed]].concat();
        let output = run(&quiet, "");
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
}

#[test]
fn a_text_ends_where_the_cache_is_full() {
    let model = model("qwen3");
    let output = run(
        &[
            "generate",
            &model,
            "--prompt",
            "kernels",
            "-n",
            "500",
            "--context",
            "20",
            "--temperature",
            "2",
        ],
        "",
    );
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");
    let tokens = log
        .split("text: ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a line of speed");
    assert!(tokens.parse::<usize>().expect("a number") <= 20, "{log}");
}

#[test]
fn chat_answers_each_line() {
    let model = model("llama");
    let output = run(
        &["chat", &model, "-n", "5", "--system", "Be brief."],
        "Hello\n\nand you?\n",
    );
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("prompt: ").count(), 2, "{log}");
    assert_eq!(text(&output.stdout).matches("> ").count(), 4);
    let output = run(&["chat", &self::model("qwen2")], "Hello\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("use generate"));
}

/// The perplexity of the recorded logits' tokens.
#[test]
fn perplexity_is_that_of_the_logits() {
    let file = open("llama");
    let tokenizer = Tokenizer::read(&file).expect("a vocabulary");
    let written = "The model reads the text and writes the next token.";
    let tokens = tokenizer.encode(written, true, false).expect("encodes");
    let mut engine = graphc_llm::Engine::load(&file, &graphc_llm::EngineOptions::default()).expect("loads");
    let logits = engine.extend_all(&tokens).expect("runs");
    let mut sum = 0.0;
    for (row, next) in logits.chunks_exact(360).zip(&tokens[1..]) {
        let all: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        sum -= (f64::from(row[*next as usize]).exp() / all).ln();
    }
    let wanted = (sum / (tokens.len() - 1) as f64).exp();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text");
    std::fs::write(&path, written).expect("writes");
    let output = run(
        &[
            "perplexity",
            &model("llama"),
            &path.display().to_string(),
            "--quiet",
            "--batch",
            "7",
        ],
        "",
    );
    let out = text(&output.stdout);
    let found: f64 = out
        .split(' ')
        .nth(1)
        .and_then(|x| x.parse().ok())
        .unwrap_or_else(|| panic!("{out}"));
    assert!((found / wanted - 1.0).abs() < 1e-3, "{found} {wanted}");
    assert!(out.contains(&format!("over {} tokens", tokens.len() - 1)), "{out}");
}

#[test]
fn mistakes_end_with_2_and_name_themselves() {
    let missing = run(&["generate", "/no/such.gguf", "--prompt", "x"], "");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/no/such.gguf"));
    for (option, value) in [
        ("--top-p", "0"),
        ("--temperature", "-1"),
        ("--min-p", "2"),
        ("--repeat-penalty", "0"),
    ] {
        let output = run(
            &[
                "generate",
                &model("llama"),
                "--prompt",
                "x",
                &format!("{option}={value}"),
            ],
            "",
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(option), "{}", text(&output.stderr));
    }
}

#[test]
fn inspect_shows_keys_tensors_and_bytes() {
    let path = model("superblocks");
    let output = run_as_it_is(&["inspect", &path]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "llama.block_count = 1",
        "(360 of String)",
        "Q6_K: 2 tensors, 69632 elements, 57120 bytes; matrices are kept as i8 with a scale of f32 for each 16",
    ] {
        assert!(out.contains(line), "{line} is not in {out}");
    }
    let output = run_as_it_is(&["inspect", &path, "--format", "json", "--all"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let file = open("superblocks");
    let tensors = value["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), file.tensors.len());
    for tensor in tensors {
        let stored = file
            .tensor(tensor["name"].as_str().expect("a name"))
            .expect("it is there");
        assert_eq!(tensor["bytes"], stored.bytes.len());
        assert_eq!(tensor["type"], stored.ty.name());
    }
    assert_eq!(
        value["keys"]["tokenizer.ggml.tokens"].as_array().map(Vec::len),
        Some(360)
    );
    assert!(value["refusal"].is_null());
}

#[test]
fn bench_has_a_row_for_each_size() {
    let path = model("llama");
    let sizes = ["--prompt", "20,7", "-n", "5", "-r", "2", "--format", "json", "--quiet"];
    let output = run(&[&["bench", &path][..], &sizes].concat(), "");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = rows.as_array().expect("a list");
    let tests: Vec<_> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
    assert_eq!(tests, ["pp20", "pp7", "tg5"]);
    for row in rows {
        assert_eq!(row["samples_ts"].as_array().map(Vec::len), Some(2));
        assert!(row["avg_ts"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    let table = run(&["bench", &path, "-p", "0", "-n", "3", "-r", "1"], "");
    let out = text(&table.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() == 3 && lines[2].contains("|      tg3 |"), "{out}");
    let csv = run(
        &["bench", &path, "-p", "4", "-n", "0", "-r", "1", "--format", "csv"],
        "",
    );
    assert_eq!(
        text(&csv.stdout).lines().nth(1).map(|row| row.split(',').count()),
        Some(10)
    );
    let long = run(&["bench", &path], "");
    assert_eq!(long.status.code(), Some(2));
    assert!(text(&long.stderr).contains("512 tokens do not fit into the context of 256"));
}
