//! Every `.gir` file under `filetests`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use graphc_tests::{filetest, repository};

#[test]
fn filetests() {
    let bless = std::env::var_os("GRAPHC_BLESS").is_some();
    let files = filetest::list(&repository("tests/filetests"));
    assert!(files.len() >= 60, "only {} filetests were found", files.len());
    let mut failures = Vec::new();
    for file in &files {
        assert_eq!(
            file.extension().and_then(|e| e.to_str()),
            Some("gir"),
            "{} is not a filetest",
            file.display()
        );
        let result = catch_unwind(AssertUnwindSafe(|| filetest::check(file, bless))).unwrap_or_else(|panic| {
            Err(panic
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| "panicked".into()))
        });
        if let Err(message) = result {
            failures.push(format!("{}:\n{message}", file.display()));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} fail\n\n{}",
        failures.len(),
        files.len(),
        failures.join("\n\n")
    );
}

/// A file that no test reads is forgotten: snapshots whose test is gone, and snapshots that nobody accepted.
#[test]
fn no_snapshot_is_forgotten() {
    let mut wrong = Vec::new();
    for folder in [
        "ir",
        "frontend",
        "passes",
        "codegen-hip",
        "runtime",
        "graphc",
        "emu",
        "tests",
    ] {
        let mut folders = vec![repository(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
                let path = entry.expect("readable").path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if name.ends_with(".snap.new") || name.ends_with(".pending-snap") {
                    wrong.push(format!("{} was not accepted", path.display()));
                } else if name.ends_with(".snap") {
                    let text = std::fs::read_to_string(&path).expect("readable");
                    let source = text.lines().find_map(|l| l.strip_prefix("source: "));
                    let exists = source.is_some_and(|s| repository(s.trim_matches('"')).is_file());
                    if !exists {
                        wrong.push(format!("{}: its test {source:?} is gone", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
