//! Language models from GGUF files, on graphc's public API.
//!
//! ```text
//! GgufFile -> loader (keys, weights) -> model (one graph with open sizes) -> engine (a session with a cache)
//!          -> tokenizer, template -> sampler -> app (the verbs)
//! scheduler (many requests, an engine each) -> server (HTTP, as OpenAI's API has it)
//! ```
//!
//! One compiled program serves prompts of any length and single tokens: how many tokens are new and how many are seen
//! are open sizes, and keys and values are state of the session, which each run adds to where it is.

#![cfg_attr(
    not(test),
    deny(
        clippy::print_stderr,
        reason = "it panics where stderr cannot be written: `app::say`"
    )
)]

pub mod app;
pub mod engine;
pub mod error;
pub mod grammar;
pub mod loader;
pub mod model;
pub mod sampler;
pub mod scheduler;
pub mod server;
pub mod template;
pub mod tokenizer;

pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use sampler::{Sampler, Sampling};
pub use template::{Message, Template};
pub use tokenizer::Tokenizer;
