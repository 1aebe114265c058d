//! What is printed: results to stdout, progress to a terminal's stderr.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Context, escape};
use graphc::driver::model;
use graphc::error::{Error, Result};

/// Prints text for people to stdout. A reader that has gone away (`| head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    write(&escape::text(&escape::words(text)))
}

/// Prints a text that something reads again, with names of any length.
pub fn print_whole(text: &str) -> Result<()> {
    write(&escape::text(text))
}

fn write(text: &str) -> Result<()> {
    // Numbers that were made of a file that became shorter are wrong.
    ir::mapped::check_all()?;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write", "standard output")(e)),
        _ => Ok(()),
    }
}

/// Finds out before the work whether `-o` can be written, and refuses a file that the command reads: the model's, or
/// one of `others`.
pub fn check<'a>(path: &Path, model: &Path, others: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
    // Only a file that is there can be an input.
    let inputs = match path.exists() {
        true => model::files(model)
            .into_iter()
            .chain(others.into_iter().cloned())
            .collect(),
        false => Vec::new(),
    };
    if let Some(input) = inputs.iter().find(|input| ir::file::is_same(path, input)) {
        return Err(Error::Config(format!(
            "-o {} would replace {}, which is read; name another file",
            path.display(),
            input.display()
        )));
    }
    ir::file::check(path).map_err(Error::io("write", path))
}

/// Writes a text to the file that `-o` names.
pub fn save(path: &Path, text: &str) -> Result<()> {
    ir::file::write(path, |out| out.write_all(text.as_bytes())).map_err(Error::io("write", path))
}

/// Prints a value as JSON, one document.
pub fn print_json(value: &serde_json::Value) -> Result<()> {
    write(&escape::json(&format!("{value:#}\n")))
}

/// A bar that counts, on a terminal and unless `--quiet`; otherwise nothing.
pub fn bar(context: &Context, what: &'static str, total: usize) -> ProgressBar {
    if context.quiet || total < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total as u64).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {prefix}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A spinner for work of unknown length, on a terminal and unless `--quiet`.
pub fn spinner(context: &Context, what: &'static str) -> ProgressBar {
    if context.quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Prints a note to stderr unless `--quiet`.
pub fn note(context: &Context, text: &str) {
    if !context.quiet {
        say(format_args!("graphc: {}", escape::text(&escape::words(text))));
    }
}

/// Writes a line to stderr. Where nobody reads stderr, or it is full, the work goes on.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes a number of bytes for people: `96.0 KiB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}
