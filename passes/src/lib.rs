//! The passes of graphc: from an imported graph to a schedule and a plan.
//!
//! ```text
//! Graph (Import)  --optimize-->  Graph (Core)  --schedule-->  Schedule  --plan-->  Plan
//! ```
//!
//! [`optimize`] is the graph level: [`pipeline`] is THE order of its passes, [`runner`] runs them.

mod alone;
pub mod analysis;
pub mod chains;
pub mod check_indices;
pub mod cost;
mod cse;
pub mod dce;
pub mod decompose;
pub mod egraph;
pub mod error;
pub mod few_rows;
pub mod filters;
pub mod flops;
pub mod fold;
pub mod fold_batch_norm;
pub mod fold_channels;
pub mod fold_gains;
pub mod fuse;
pub mod layout;
pub mod lower;
pub mod masks;
pub mod names;
pub mod options;
pub mod order;
pub mod pairs;
pub mod pipeline;
pub mod plan;
pub mod positions;
pub mod precompute;
pub mod quantize;
pub mod report;
pub mod rewrite;
pub mod route;
pub mod row_scales;
pub mod runner;
pub mod schedule;
pub mod shard;
pub mod simplify;
pub mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_egraph;
#[cfg(test)]
mod testing_exact;
#[cfg(test)]
mod testing_folds;
#[cfg(test)]
mod testing_kernels;
pub mod tuning;

pub use error::{PassError, PassFault};
pub use fuse::{Barrier, FusedEdge, Fusion, FusionReport, ScheduleOptions, UnfusedEdge};
pub use lower::LowerError;
pub use options::{Keep, OptLevel, OptimizeOptions, WeightType};
pub use plan::{
    Convolution, Decided, FilteredConvolution, PlanOptions, Planned, Prefer, UnpackedProduct, plan, plan_and_decided,
    reopen,
};
pub use report::{Fired, OptimizeReport, PassRun};
pub use schedule::{ScheduleError, schedule};
pub use shard::{ShardError, ShardOptions};
pub use tuning::Tuning;

use ir::{Graph, Target};

/// Optimises a graph for a target, from `Stage::Import` to `Stage::Core`.
///
/// # Errors
/// A pass that fails or leaves a graph that does not verify; the error names the pass and carries the graph's text.
pub fn optimize(
    graph: Graph,
    target: &Target,
    options: &OptimizeOptions,
) -> Result<(Graph, OptimizeReport), PassError> {
    runner::run(graph, target, options, &pipeline::passes(options.level))
}
