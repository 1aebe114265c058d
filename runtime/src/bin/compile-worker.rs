//! A compile worker and nothing else: for apps that embed graphc without its command line, and for this crate's tests.
//!
//! The `graphc` binary serves the same protocol itself; name this program as the pool's worker where it is not
//! installed.

fn main() -> std::process::ExitCode {
    graphc_runtime::compile::worker_main()
}
