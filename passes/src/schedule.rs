//! The scheduler's entry.

use ir::{Graph, Schedule, Stage, Target};

pub use crate::fuse::{FusionReport, ScheduleOptions};

/// The graph is not ready to be scheduled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error("graph {name:?} is at the import stage; run `optimize` first")]
    NotCore { name: String },
    /// A bug of graphc: regions that wait for each other, or a value that none of them gives.
    #[error("internal error: {0}")]
    Invalid(#[from] ir::schedule::verify::InvalidSchedule),
}

/// Groups a Core graph's nodes into regions and orders them.
///
/// # Errors
/// A graph that has not been optimised to [`Stage::Core`]; a schedule that does not verify.
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
    let (mut schedule, mut report) = crate::fuse::fuse(graph, target, options);
    if options.fuse {
        crate::row_scales::take_in(graph, target, &mut schedule, &mut report);
        crate::chains::take_in(graph, target, options.chains, &mut schedule, &mut report);
    }
    ir::schedule::verify::verify(graph, &schedule)?;
    Ok((schedule, report))
}
