//! Every `.gir` file under `filetests`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use graphc_tests::{filetest, repository};

#[test]
fn filetests() {
    let bless = std::env::var_os("GRAPHC_BLESS").is_some();
    let files = filetest::list(&repository("tests/filetests"));
    assert!(files.len() >= 30, "only {} filetests were found", files.len());
    let mut failures = Vec::new();
    for file in &files {
        assert_eq!(file.extension().and_then(|e| e.to_str()), Some("gir"), "{} is not a filetest", file.display());
        let result = catch_unwind(AssertUnwindSafe(|| filetest::check(file, bless)))
            .unwrap_or_else(|panic| Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".into())));
        if let Err(message) = result {
            failures.push(format!("{}:\n{message}", file.display()));
        }
    }
    assert!(failures.is_empty(), "{} of {} fail\n\n{}", failures.len(), files.len(), failures.join("\n\n"));
}
