//! Why a region could not become a kernel.

use ir::Value;
use ir::kernel::bounds::BoundsError;
use ir::plan::verify::{InvalidPlan, PlanError};

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
    Plan(InvalidPlan),
    /// Kernels would do more than any machine can, at the sizes' hints.
    #[error("the model is too large at these sizes: {0}; give smaller ones, with --size where they are named")]
    Sizes(BoundsError),
}

impl From<InvalidPlan> for LowerError {
    fn from(invalid: InvalidPlan) -> LowerError {
        let sizes = |error: &PlanError| match error {
            PlanError::Sizes(error) => Some(error.clone()),
            _ => None,
        };
        match invalid.errors.first().and_then(sizes) {
            Some(first) if invalid.errors.iter().all(|error| sizes(error).is_some()) => LowerError::Sizes(first),
            _ => LowerError::Plan(invalid),
        }
    }
}
