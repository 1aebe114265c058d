//! The command line of graphc: a verb a file of `commands`, on the library's public interface.

#![deny(
    clippy::print_stderr,
    reason = "it panics where stderr cannot be written: `output::say`"
)]

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
