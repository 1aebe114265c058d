//! The scheduler's entry.

use ir::{Graph, Schedule, Stage, Target};

pub use crate::fuse::{FusionReport, ScheduleOptions};

/// The graph is not ready to be scheduled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error("graph {name:?} is at the import stage; run `optimize` first")]
    NotCore { name: String },
    #[error("composite {op} at {at} has no kernel and should have been decomposed")]
    Composite { op: &'static str, at: String },
}

/// Groups a Core graph's nodes into regions and orders them.
///
/// # Errors
/// A graph that has not been optimised to [`Stage::Core`].
pub fn schedule(
    graph: &Graph,
    target: &Target,
    options: &ScheduleOptions,
) -> Result<(Schedule, FusionReport), ScheduleError> {
    if graph.stage != Stage::Core {
        return Err(ScheduleError::NotCore {
            name: graph.name.clone(),
        });
    }
    Ok(crate::fuse::fuse(graph, target, options))
}
