//! The shape of the house: which crate may see which.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use graphc_tests::repository;
use serde_json::{Value, json};

/// What each member of the workspace may depend on, of its members: for its code (`normal`) and for its tests (`dev`).
/// No build script sees one.
const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("graphc-ir", &[], &[]),
    ("graphc-frontend", &["graphc-ir"], &[]),
    ("graphc-passes", &["graphc-ir"], &[]),
    ("graphc-codegen-hip", &["graphc-ir"], &[]),
    ("graphc-codegen-cpu", &["graphc-ir"], &[]),
    (
        "graphc-runtime",
        &[
            "comgr-sys",
            "graphc-cuda-sys",
            "graphc-dylib",
            "graphc-hip-sys",
            "graphc-ir",
            "hipblaslt-sys",
            "hiprtc-sys",
            "miopen-sys",
            "nvrtc-sys",
            "rccl-sys",
            "rocblas-sys",
        ],
        // Kernels by hand are lowered, and run.
        &["graphc-codegen-cpu"],
    ),
    ("graphc-dylib", &[], &[]),
    ("comgr-sys", &["graphc-dylib"], &[]),
    ("graphc-cuda-sys", &["graphc-dylib"], &[]),
    ("graphc-hip-sys", &["graphc-dylib"], &[]),
    ("hipblaslt-sys", &["graphc-dylib"], &[]),
    ("hiprtc-sys", &["graphc-dylib"], &[]),
    ("miopen-sys", &["graphc-dylib"], &[]),
    ("nvrtc-sys", &["graphc-dylib"], &[]),
    ("rccl-sys", &["graphc-dylib"], &[]),
    ("rocblas-sys", &["graphc-dylib"], &[]),
    // The file format of language models, for whoever loads them.
    ("graphc-gguf", &[], &[]),
    // Its decoder reads comgr's text, by the same bindings as the runtime's listings: a process has one comgr.
    ("graphc-emu", &["comgr-sys"], &[]),
    // The stand-in for the HIP runtime has its types; its tests load it as the runtime would.
    ("graphc-emu-hip", &["graphc-emu", "graphc-hip-sys"], &["graphc-dylib"]),
    // Between the runtime and ROCm's libraries, in tests.
    ("graphc-emu-libraries", &[], &[]),
    // Beside the stand-in for the HIP runtime, which it finds in its own folder.
    ("graphc-emu-rccl", &[], &[]),
    (
        "graphc",
        &[
            "graphc-codegen-cpu",
            "graphc-codegen-hip",
            "graphc-emu",
            "graphc-frontend",
            "graphc-ir",
            "graphc-passes",
            "graphc-runtime",
        ],
        // With all of its features.
        &["graphc"],
    ),
    (
        "graphc-cli",
        &[
            "graphc",
            "graphc-emu",
            "graphc-frontend",
            "graphc-gguf",
            "graphc-ir",
            "graphc-passes",
            "graphc-runtime",
        ],
        &[],
    ),
    // An app of graphc's public API: language models from GGUF files.
    ("graphc-llm", &["graphc", "graphc-gguf"], &[]),
    // A plugin of ONNX Runtime, on graphc's public API.
    ("graphc-ort-provider", &["graphc"], &[]),
    // The doors for other languages, on graphc's public API alone; Python's shares DLPack and the codes of failures
    // with C's.
    ("graphc-capi", &["graphc"], &["graphc"]),
    ("graphc-python", &["graphc", "graphc-capi"], &[]),
    (
        "graphc-tests",
        &["graphc"],
        &[
            "graphc-codegen-hip",
            "graphc-emu-hip",
            "graphc-emu-libraries",
            "graphc-emu-rccl",
            "graphc-examples",
            "graphc-frontend",
            "graphc-ir",
            "graphc-passes",
            "graphc-runtime",
        ],
    ),
    ("graphc-fuzz", &["graphc", "graphc-tests"], &[]),
    ("graphc-examples", &["graphc"], &[]),
    ("graphc-benches", &["graphc", "graphc-examples"], &[]),
];

/// The workspace as cargo reads it: every section of every manifest, for all targets and features, and names as they
/// are.
fn workspace() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository("."))
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn name<'a>(value: &'a Value, what: &str) -> &'a str {
    value["name"]
        .as_str()
        .unwrap_or_else(|| panic!("{what} without a name"))
}

/// What differs between the workspace and [`EDGES`]: edges that are not allowed, edges allowed and not there, members
/// without a row.
fn strays(workspace: &Value) -> Vec<String> {
    let packages = list(workspace, "packages");
    let members: BTreeSet<&str> = packages.iter().map(|p| name(p, "a member")).collect();
    let mut found: BTreeSet<(String, String, String)> = BTreeSet::new();
    for package in packages {
        for dependency in list(package, "dependencies") {
            let to = name(dependency, "a dependency");
            // A folder is a crate of ours, listed as a member or not.
            if members.contains(to) || dependency["path"].is_string() {
                let kind = dependency["kind"].as_str().unwrap_or("normal");
                found.insert((name(package, "a member").into(), kind.into(), to.into()));
            }
        }
    }
    let mut allowed = BTreeSet::new();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for (from, normal, dev) in EDGES {
        *rows.entry(from).or_default() += 1;
        for (kind, to) in [("normal", normal), ("dev", dev)] {
            allowed.extend(
                to.iter()
                    .map(|to| ((*from).to_owned(), kind.to_owned(), (*to).to_owned())),
            );
        }
    }
    let edge = |what: &str, (from, kind, to): &(String, String, String)| format!("{what}: {from} -> {to} ({kind})");
    let mut strays: Vec<String> = found.difference(&allowed).map(|e| edge("not allowed", e)).collect();
    strays.extend(allowed.difference(&found).map(|e| edge("allowed, but not there", e)));
    strays.extend(
        members
            .iter()
            .filter(|m| !rows.contains_key(*m))
            .map(|m| format!("no row: {m}")),
    );
    strays.extend(
        rows.keys()
            .filter(|m| !members.contains(*m))
            .map(|m| format!("no member: {m}")),
    );
    strays
}

#[test]
fn crates_see_what_they_may_and_nothing_else() {
    let strays = strays(&workspace());
    assert!(strays.is_empty(), "{strays:#?}");
}

/// However an edge is written, it is seen.
#[test]
fn an_edge_that_is_not_allowed_is_seen() {
    let mut workspace = workspace();
    let packages = workspace["packages"].as_array_mut().expect("members");
    let package = |name: &str| packages.iter().position(|p| p["name"] == name).expect("a member");
    let (ir, passes, runtime) = (
        package("graphc-ir"),
        package("graphc-passes"),
        package("graphc-runtime"),
    );
    let mut add = |at: usize, dependency: Value| {
        packages[at]["dependencies"]
            .as_array_mut()
            .expect("a list")
            .push(dependency);
    };
    add(ir, json!({ "name": "graphc-emu", "kind": "build", "rename": "e" }));
    add(passes, json!({ "name": "graphc-frontend", "kind": "dev" }));
    add(
        runtime,
        json!({ "name": "graphc-emu", "kind": null, "optional": true, "target": "cfg(unix)" }),
    );
    add(
        runtime,
        json!({ "name": "stranger", "kind": null, "path": "/elsewhere" }),
    );
    packages.push(json!({ "name": "graphc-new", "dependencies": [] }));
    assert_eq!(
        strays(&workspace),
        [
            "not allowed: graphc-ir -> graphc-emu (build)",
            "not allowed: graphc-passes -> graphc-frontend (dev)",
            "not allowed: graphc-runtime -> graphc-emu (normal)",
            "not allowed: graphc-runtime -> stranger (normal)",
            "no row: graphc-new",
        ]
    );
}

/// A file that is very long is two files.
#[test]
fn no_file_over_its_size() {
    let mut large = Vec::new();
    for folder in [
        "ir",
        "frontend",
        "passes",
        "codegen-hip",
        "runtime",
        "graphc",
        "llm",
        "capi",
        "python",
        "emu",
    ] {
        let mut folders = vec![repository(folder).join("src")];
        while let Some(f) = folders.pop() {
            for entry in std::fs::read_dir(&f).unwrap_or_else(|e| panic!("{}: {e}", f.display())) {
                let path = entry.expect("readable").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let lines = std::fs::read_to_string(&path).map_or(0, |t| t.lines().count());
                    // Generated code and tables are not read from top to bottom.
                    let table = ["proto.rs", "bindings.rs", "tests.rs"]
                        .iter()
                        .any(|n| path.ends_with(n));
                    if lines > 1000 && !table {
                        large.push(format!("{} ({lines} lines)", path.display()));
                    }
                }
            }
        }
    }
    assert!(large.is_empty(), "files that are two: {large:#?}");
}
