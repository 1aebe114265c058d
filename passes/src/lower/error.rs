//! Why a region could not become a kernel.

use ir::Value;

/// A region that no kernel can be made of.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LowerError {
    /// The op has no kernel.
    #[error("{op} at {at} has no kernel for target {target}: {why}")]
    Unsupported {
        op: &'static str,
        at: String,
        target: String,
        why: String,
    },
    /// A bug of graphc: the schedule broke its own rules.
    #[error("internal error: region of {anchor} reads {value}, which it neither computes nor lists as an input")]
    NotInRegion { anchor: String, value: Value },
    /// A bug of graphc: the plan broke its own rules.
    #[error("internal error: {0}")]
    Plan(#[from] ir::plan::verify::InvalidPlan),
}
