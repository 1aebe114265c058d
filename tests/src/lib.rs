//! What the tests of the whole compiler share: the filetest runner, comparison with the reference evaluator, data.

pub mod chain;
pub mod emulated_hip;
pub mod emulator;
pub mod exact_graph;
pub mod filetest;
pub mod float8;
pub mod integers;
pub mod libraries;
pub mod nvrtc;
pub mod quantised;
pub mod random_graph;
pub mod reference;
pub mod single;

use std::path::PathBuf;

/// Returns the path of a file or folder of the repository: the one that the tests were built in, or on another machine
/// the one that `GRAPHC_REPOSITORY` names.
pub fn repository(relative: &str) -> PathBuf {
    match std::env::var_os("GRAPHC_REPOSITORY") {
        Some(folder) => PathBuf::from(folder).join(relative),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(relative),
    }
}

/// Returns the path of a file or folder of `tests/data`.
pub fn data(relative: &str) -> PathBuf {
    repository("tests/data").join(relative)
}

/// Returns the graphc binary that was built with the tests.
///
/// # Panics
/// When the tests' own path is not under a target folder.
pub fn graphc_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("tests run from target/PROFILE/deps");
    folder.join(format!("graphc{}", std::env::consts::EXE_SUFFIX))
}

/// Says whether everything is to be tested, however long it takes: `GRAPHC_ALL_MODELS=1`.
pub fn everything() -> bool {
    std::env::var_os("GRAPHC_ALL_MODELS").is_some()
}
