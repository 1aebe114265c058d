//! Whether graphc was built with optimisation. Without it the CPU device is many times slower, and whoever uses it is
//! told.

use std::sync::Once;

/// What is said of a build without optimisation.
const SLOW: &str = "graphc was built without optimisation, so that the CPU device takes about 14 times as long; build with --release, or \
                    give Cargo.toml a section [profile.dev.package.\"*\"] with opt-level = 3";

/// The note on this build, if it needs one.
pub fn note() -> Option<&'static str> {
    cfg!(unoptimised).then_some(SLOW)
}

/// Warns an app, once in a process.
pub(crate) fn warn() {
    static TOLD: Once = Once::new();
    if let Some(note) = note() {
        TOLD.call_once(|| tracing::warn!("{note}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README's section for an app is the one that the note names.
    #[test]
    fn the_note_names_the_section_that_the_readme_shows() {
        let readme = include_str!("../../README.md");
        assert!(readme.contains("[profile.dev.package.\"*\"]\nopt-level = 3\n"));
        assert!(SLOW.contains("[profile.dev.package.\"*\"]") && SLOW.contains("opt-level = 3"));
        assert_eq!(note().is_some(), cfg!(unoptimised));
    }
}
