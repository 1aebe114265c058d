//! The HIP runtime's C interface over the emulated GPU: a stand-in for `libamdhip64.so.7`.
//!
//! Everything that is enqueued is queued per stream and runs when somebody waits for it, one piece of work at a time,
//! in submission order or, seeded, in any order that streams and events allow. So a program that forgets to wait sees
//! what a real device may show it. Signatures and error codes are HIP's; handles are never reused and always checked.
//!
//! Unlike the project's other libraries this one reads the environment (once, see [`config`]) and writes reports of
//! faults to standard error: its callers are programs that know nothing of it.

mod api;
pub mod config;
mod disassembled;
mod fault;
mod graph;
mod image;
mod launch;
mod memory;
mod pointer;
mod pool;
mod queue;
mod register;
mod state;
mod status;

pub use api::*;
