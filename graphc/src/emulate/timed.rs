//! The predicted times of a plan's steps: kernel by kernel, and of the whole plan.

use std::sync::Arc;

use emu::timing::Report;
use ir::plan::{KernelId, Plan, StepId};
use serde::Serialize;

/// One timed step of a plan.
#[derive(Clone, Debug)]
pub struct TimedStep {
    pub step: StepId,
    pub micros: f64,
    /// None for a copy.
    pub launch: Option<TimedLaunch>,
}

/// A timed launch.
#[derive(Clone, Debug)]
pub struct TimedLaunch {
    pub kernel: KernelId,
    pub grid: [u32; 3],
    pub report: Arc<Report>,
}

/// The predicted time of a kernel's launches over one grid.
#[derive(Clone, Debug, Serialize)]
pub struct TimedKernel {
    pub name: String,
    pub grid: [u32; 3],
    /// Launches over this grid in one run.
    pub launches: usize,
    /// Microseconds of all of them.
    pub total_micros: f64,
    /// Of each.
    pub report: Arc<Report>,
}

/// Joins launches of one kernel and grid, the longest first.
pub fn timed(plan: &Plan, steps: &[TimedStep]) -> Vec<TimedKernel> {
    let mut all: Vec<TimedKernel> = Vec::new();
    for launch in steps.iter().filter_map(|step| step.launch.as_ref()) {
        let name = &plan.kernels[launch.kernel].name;
        match all.iter_mut().find(|k| k.name == *name && k.grid == launch.grid) {
            Some(kernel) => {
                kernel.launches += 1;
                kernel.total_micros += launch.report.micros;
            }
            None => all.push(TimedKernel {
                name: name.clone(),
                grid: launch.grid,
                launches: 1,
                total_micros: launch.report.micros,
                report: launch.report.clone(),
            }),
        }
    }
    all.sort_by(|a, b| b.total_micros.total_cmp(&a.total_micros));
    all
}

/// Microseconds from a run's first step to the end of its last: each lane does its steps in order, and a step begins when those
/// that it waits for have ended. Steps of several lanes are taken not to slow each other.
pub fn makespan(plan: &Plan, steps: &[TimedStep]) -> f64 {
    let mut ends: Vec<(StepId, f64)> = Vec::new();
    let mut lanes: Vec<(ir::plan::LaneId, f64)> = Vec::new();
    let mut last = 0.0f64;
    for (id, step) in plan.steps.iter() {
        let micros = steps
            .iter()
            .find(|timed| timed.step == id)
            .map_or(0.0, |timed| timed.micros);
        let end_of = |wanted: StepId| {
            ends.iter()
                .find(|(step, _)| *step == wanted)
                .map_or(0.0, |(_, end)| *end)
        };
        let free = lanes
            .iter()
            .find(|(lane, _)| *lane == step.lane)
            .map_or(0.0, |(_, end)| *end);
        let end = step.waits.iter().map(|wait| end_of(*wait)).fold(free, f64::max) + micros;
        lanes.retain(|(lane, _)| *lane != step.lane);
        lanes.push((step.lane, end));
        ends.push((id, end));
        last = last.max(end);
    }
    last
}
