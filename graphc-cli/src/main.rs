//! The command line of graphc: a verb a file of `commands`, on the library's public interface.

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
