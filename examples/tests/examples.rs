//! Every example runs and ends well. Cargo builds the examples before a package's tests.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example and returns what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("tests run from target/PROFILE/deps");
    let program = folder
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(&program).args(arguments).output().unwrap_or_else(|e| {
        panic!(
            "cannot run {}: {e}; build it by `cargo build -p graphc-examples --examples`",
            program.display()
        )
    });
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{name} failed:\n{out}\n{err}");
    out.into_owned()
}

#[test]
fn mlp() {
    assert!(run("mlp", &[]).contains("a² + 1 = [2.0, 5.0, 10.0]"));
}

#[test]
fn resnet50() {
    assert!(run("resnet50", &[]).contains("class "));
}

#[test]
fn jit_app() {
    assert!(run("jit_app", &[]).contains("8 calls, compiled 1 time"));
}

#[test]
fn minilm() {
    let default = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/minilm"));
    let folder = std::env::var_os("GRAPHC_MINILM").map_or(default, PathBuf::from);
    if !folder.join("model.safetensors").is_file() {
        println!(
            "skipped: no MiniLM weights in {}; scripts/fetch-minilm.sh fetches them",
            folder.display()
        );
        return;
    }
    let out = run("minilm", &[&folder.to_string_lossy()]);
    let nearest = |sentence: &str| {
        out.lines()
            .skip_while(|l| *l != sentence)
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    };
    assert!(
        nearest("A man is playing a guitar on the stage.").contains("string instrument"),
        "{out}"
    );
    assert!(
        nearest("The stock market fell sharply on Monday.").contains("Shares lost"),
        "{out}"
    );
}
