//! Errors of passes: which pass, what went wrong, and the graph's text.

use ir::Origin;

/// What went wrong inside a pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PassFault {
    /// A rewrite asked for an op that its operands do not allow: a bug of the pass.
    #[error("a rewrite of {origin} does not type: {error}")]
    Infer {
        origin: Origin,
        error: Box<ir::graph::infer::InferError>,
    },
    /// The pass left a graph that does not verify: a bug of the pass.
    #[error("the graph does not verify: {0}")]
    Verify(String),
    /// The op cannot be expressed at `Stage::Core`.
    #[error("{at}: {what}")]
    Unsupported { what: String, at: Origin },
    /// The model does not allow what the options ask for.
    #[error("{0}")]
    Model(String),
    #[error("element type {0} is not one to compute a model in; use f32, f16 or bf16")]
    Precision(ir::DType),
}

/// A pass failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("pass {pass}: {fault}")]
pub struct PassError {
    pub pass: &'static str,
    pub fault: PassFault,
    /// The text of the graph that the pass was given, or left when verification failed.
    pub graph: String,
}
