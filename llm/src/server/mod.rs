//! A model over HTTP, as OpenAI's API has it.
//!
//! | route | what it gives |
//! |---|---|
//! | `POST /v1/chat/completions` | an answer to a conversation, whole or as server-sent events |
//! | `POST /v1/completions` | what goes on from a text |
//! | `POST /v1/embeddings` | vectors of texts, of a model that makes these |
//! | `GET /v1/models`, `/v1/models/NAME` | the model that is served |
//! | `POST /tokenize`, `/detokenize` | text to tokens and back |
//! | `GET /health`, `/metrics` | whether it runs; counts for Prometheus |
//!
//! Handlers check what they are given and hand jobs to the [scheduler](crate::scheduler); the model runs in that one's
//! thread. A client that goes away drops its handler or stream, and with it the receiver of its jobs' events, which
//! ends them.

mod answer;
mod chat;
mod completions;
mod connections;
mod embeddings;
mod fields;
mod metrics;
mod problem;
mod request;
mod routes;
mod run;
mod state;
mod tools;

pub use run::{ServeOptions, Served, listen, serve};
