//! The thin binary: everything is in `graphc::commands`.

use std::process::ExitCode;

fn main() -> ExitCode {
    graphc::commands::main()
}
