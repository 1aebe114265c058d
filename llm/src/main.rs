//! The thin binary: everything is in `graphc_llm::app`.

use std::process::ExitCode;

fn main() -> ExitCode {
    graphc_llm::app::main()
}
