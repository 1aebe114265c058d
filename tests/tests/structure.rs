//! The shape of the house: which crate may see which.

use std::collections::BTreeSet;

use graphc_tests::repository;

/// The members that a crate names in its `[dependencies]`.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let members = [
        "ir",
        "frontend",
        "passes",
        "codegen-hip",
        "runtime",
        "graphc",
        "emu",
        "hip-sys",
        "hiprtc-sys",
        "rocblas-sys",
        "miopen-sys",
        "comgr-sys",
        "dylib",
    ];
    let path = repository(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut section = String::new();
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            section = line.trim().to_owned();
        } else if section == "[dependencies]"
            && let Some(name) = line.split(['.', ' ', '=']).next()
            && members.contains(&name)
        {
            found.insert(name.to_owned());
        }
    }
    found
}

#[test]
fn the_siblings_meet_only_in_ir() {
    let ir_only = BTreeSet::from(["ir".to_owned()]);
    assert_eq!(dependencies("ir"), BTreeSet::new());
    for sibling in ["frontend", "passes", "codegen-hip"] {
        assert_eq!(dependencies(sibling), ir_only, "{sibling}");
    }
    let runtime = dependencies("runtime");
    assert!(runtime.contains("ir"), "runtime");
    for other in ["frontend", "passes", "codegen-hip", "graphc", "emu"] {
        assert!(!runtime.contains(other), "runtime must not see {other}");
    }
    assert_eq!(dependencies("emu"), BTreeSet::new(), "emu stands alone");
}

/// A file that is very long is two files.
#[test]
fn no_file_over_its_size() {
    let mut large = Vec::new();
    for folder in ["ir", "frontend", "passes", "codegen-hip", "runtime", "graphc", "emu"] {
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
