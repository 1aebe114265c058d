//! The environment is read in one place, and every variable of graphc's is known there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use graphc_tests::repository;

/// The one place, and the stand-ins for HIP's runtime and its collectives, which are libraries of a process of their
/// own.
const READERS: [&str; 3] = ["graphc/src/options.rs", "emu/hip/src/state.rs", "emu/rccl/src/world.rs"];

/// Modules of tests whose names do not say so.
const TESTS: [&str; 1] = ["passes/src/lower/mapping/room.rs"];

/// Members that are no part of what is shipped.
const TOOLS: [&str; 4] = ["tests", "fuzz", "benches", "examples"];

/// The files below a folder with one of these ends, build outputs left out.
fn files(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if name != "target" && name != ".git" && name != "shared" {
                files(&path, ends, found);
            }
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// The repository's files with such ends: each with its path from there, and its text.
fn texts(ends: &[&str]) -> Vec<(String, String)> {
    let root = repository(".").canonicalize().expect("it is there");
    let mut found = Vec::new();
    files(&root, ends, &mut found);
    let named = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path.strip_prefix(&root).ok()?.display().to_string(), text))
    };
    let mut texts: Vec<(String, String)> = found.into_iter().filter_map(named).collect();
    texts.sort();
    texts
}

/// Reads of the environment in code that is shipped, outside of the places for it.
#[test]
fn only_the_options_read_the_environment() {
    const READS: [&str; 4] = ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("];
    let mut strays = Vec::new();
    let mut readers = BTreeSet::new();
    for (path, text) in texts(&[".rs"]) {
        let is_test = path.ends_with("/tests.rs") || path.contains("/tests/") || TESTS.contains(&path.as_str());
        let is_code =
            path.contains("src/") && !is_test && !TOOLS.iter().any(|tool| path.starts_with(&format!("{tool}/")));
        if !is_code {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if READS.iter().any(|read| line.contains(read)) {
                match READERS.contains(&path.as_str()) {
                    true => drop(readers.insert(path.clone())),
                    false => strays.push(format!("{path}:{}: {}", number + 1, line.trim())),
                }
            }
        }
    }
    assert!(
        strays.is_empty(),
        "read settings in graphc/src/options.rs:\n{}",
        strays.join("\n")
    );
    assert_eq!(readers.len(), READERS.len(), "a place for reads has none: {readers:?}");
}

/// The names of variables in a text.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let of_a_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let starts = text.match_indices("GRAPHC_").map(|(at, _)| at);
    starts.filter_map(move |at| {
        let before = text[..at].chars().next_back();
        let rest = &text[at..];
        let name = &rest[..rest.find(|c| !of_a_name(c)).unwrap_or(rest.len())];
        (!before.is_some_and(of_a_name) && name.len() > "GRAPHC_".len() && !name.ends_with('_')).then_some(name)
    })
}

/// Each variable that code, scripts or documents name is in the options' lists: else setting it would be called a
/// mistake.
#[test]
fn every_variable_is_known_to_the_options() {
    let options = std::fs::read_to_string(repository("graphc/src/options.rs")).expect("it is there");
    let code = options.split("#[cfg(test)]").next().unwrap_or_default();
    let known: BTreeSet<&str> = variables(code).collect();
    assert!(
        known.contains("GRAPHC_EMU_INSTRUCTION_LIMIT") && known.len() > 20,
        "{known:?}"
    );
    // Macros of the C header begin alike, and are no variables.
    let header = std::fs::read_to_string(repository("capi/include/graphc.h")).expect("it is there");
    let macros: BTreeSet<&str> = variables(&header).collect();
    assert!(macros.contains(concat!("GRAPHC", "_API_VERSION")), "{macros:?}");
    let mut strange = BTreeSet::new();
    for (path, text) in texts(&[".rs", ".sh", ".md", ".py"]) {
        // The command line's tests make mistakes on purpose.
        if path.starts_with("graphc/") || path.starts_with("graphc-cli/") {
            continue;
        }
        strange.extend(
            variables(&text)
                .filter(|name| !known.contains(name) && !macros.contains(name))
                .map(|name| format!("{path}: {name}")),
        );
    }
    assert!(strange.is_empty(), "not in graphc/src/options.rs: {strange:#?}");
}

/// What the environment says of runs reaches every verb: each hands its load options through the one place that fills
/// them.
#[test]
fn every_verb_fills_its_load_options_in_one_place() {
    let mut filled = 0;
    let mut strays = Vec::new();
    for (path, text) in texts(&[".rs"])
        .into_iter()
        .filter(|(path, _)| path.starts_with("graphc-cli/src/"))
    {
        for (number, line) in text.lines().enumerate() {
            let makes = line.contains("LoadOptions {") || line.contains("LoadOptions::default()");
            let rest = line.trim_start().starts_with("..LoadOptions");
            match line.contains(".loading(LoadOptions") {
                true => filled += 1,
                false if makes && !rest => strays.push(format!("{path}:{}: {}", number + 1, line.trim())),
                false => {}
            }
        }
    }
    assert!(strays.is_empty(), "ask `Settings::loading`:\n{}", strays.join("\n"));
    assert!(filled >= 4, "{filled} places");
}
