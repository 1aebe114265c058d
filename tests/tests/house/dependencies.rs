//! Where dependencies come from, and under which licences: `deny.toml` has the list, which `cargo deny` reads too.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// All packages that a build here is made of.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(repository())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    match all["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no packages: {other}"),
    }
}

/// The licences that `deny.toml` allows.
fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("deny.toml")).expect("deny.toml");
    let list = text.split_once("allow = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.expect("a list of licences");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an expression of licences holds where those of `allowed` are. Slashes are an old way to write OR.
fn holds(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    // In these files parentheses are only ever around an OR.
    plain
        .split(" AND ")
        .all(|part| part.split(" OR ").any(|one| allowed.contains(one.trim())))
}

#[test]
fn dependencies_are_of_the_registry_and_of_known_licences() {
    let allowed = allowed();
    let mut wrong = Vec::new();
    for package in packages() {
        let name = format!("{} {}", package["name"], package["version"]);
        match package["source"].as_str() {
            // A member.
            None => continue,
            Some(REGISTRY) => {}
            Some(source) => wrong.push(format!("{name} comes from {source}")),
        }
        let licence = package["license"].as_str().unwrap_or("none");
        if !holds(licence, &allowed) {
            wrong.push(format!("{name} has the licence {licence:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\nsee deny.toml", wrong.join("\n"));
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed: BTreeSet<String> = ["MIT", "Zlib"].map(str::to_owned).into();
    for (expression, is) in [
        ("MIT", true),
        ("Apache-2.0 OR MIT", true),
        ("Unlicense/MIT", true),
        ("(MIT OR Apache-2.0) AND Zlib", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("LGPL-2.1", false),
        ("none", false),
    ] {
        assert_eq!(holds(expression, &allowed), is, "{expression}");
    }
}

/// Every package that an app gets with `graphc` and no feature of it, for its code and its build scripts.
#[test]
fn an_app_gets_no_tool_with_the_library() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", "graphc"])
        .args(["--edges", "normal,build", "--prefix", "none", "--format", "{p}"])
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .current_dir(repository())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let tools = [
        "clap",
        "indicatif",
        "rusqlite",
        "libsqlite3-sys",
        "zip",
        "graphc-emu",
        "graphc-gguf",
        "axum",
        "tokio",
    ];
    let found: Vec<_> = tools.iter().filter(|tool| names.contains(**tool)).collect();
    assert!(found.is_empty(), "the library has come to depend on {found:?}");
    // Its limit falls with it, and is not raised.
    assert!(names.len() <= 100, "{} packages: {names:?}", names.len());
    assert!(names.len() > 60, "cargo tree printed only {names:?}");
}
