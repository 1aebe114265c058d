//! The predicted times of a plan's steps: kernel by kernel, and of the whole plan.

use std::sync::Arc;

use emu::timing::Report;
use ir::plan::{KernelId, Plan, StepId};
use serde::Serialize;

use super::calls::CallTimes;

/// One timed step of a plan.
#[derive(Clone, Debug)]
pub struct TimedStep {
    pub step: StepId,
    /// 0 for a call that could not be timed.
    pub micros: f64,
    pub work: TimedWork,
}

/// What a timed step does.
#[derive(Clone, Debug)]
pub enum TimedWork {
    Copy,
    Launch(TimedLaunch),
    /// A library call, by name, and its kernels in order.
    Call {
        call: &'static str,
        kernels: CallTimes,
    },
}

/// A timed launch.
#[derive(Clone, Debug)]
pub struct TimedLaunch {
    pub kernel: KernelId,
    pub grid: [u32; 3],
    pub report: Arc<Report>,
}

impl TimedStep {
    /// The launch of a kernel of the plan.
    pub fn launch(&self) -> Option<&TimedLaunch> {
        match &self.work {
            TimedWork::Launch(launch) => Some(launch),
            _ => None,
        }
    }
}

/// The predicted time of a kernel's launches over one grid.
#[derive(Clone, Debug, Serialize)]
pub struct TimedKernel {
    pub name: String,
    /// The call that launches it, where it is a library's.
    pub call: Option<&'static str>,
    /// Of a library's kernel, all workgroups in a row.
    pub grid: [u32; 3],
    /// Launches over this grid in one run.
    pub launches: usize,
    /// Microseconds of all of them.
    pub total_micros: f64,
    /// Of each.
    pub report: Arc<Report>,
}

/// A library call whose time is not known, so not a part of any sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untimed {
    pub step: String,
    pub call: &'static str,
    pub reason: String,
}

/// The calls that could not be timed, in the order of the steps.
pub fn untimed(steps: &[TimedStep]) -> Vec<Untimed> {
    let calls = steps.iter().filter_map(|step| match &step.work {
        TimedWork::Call {
            call,
            kernels: Err(reason),
        } => Some(Untimed {
            step: step.step.to_string(),
            call,
            reason: reason.clone(),
        }),
        _ => None,
    });
    calls.collect()
}

/// Joins launches of one kernel and grid, the longest first; of library calls those that take the same.
pub fn timed(plan: &Plan, steps: &[TimedStep]) -> Vec<TimedKernel> {
    let mut all: Vec<TimedKernel> = Vec::new();
    let mut add = |name: &str, call: Option<&'static str>, grid: [u32; 3], report: &Arc<Report>| {
        let same = |k: &&mut TimedKernel| {
            k.name == name && k.call == call && k.grid == grid && (call.is_none() || k.report.cycles == report.cycles)
        };
        match all.iter_mut().find(same) {
            Some(kernel) => {
                kernel.launches += 1;
                kernel.total_micros += report.micros;
            }
            None => all.push(TimedKernel {
                name: name.to_owned(),
                call,
                grid,
                launches: 1,
                total_micros: report.micros,
                report: report.clone(),
            }),
        }
    };
    for step in steps {
        match &step.work {
            TimedWork::Launch(launch) => add(&plan.kernels[launch.kernel].name, None, launch.grid, &launch.report),
            TimedWork::Call {
                call,
                kernels: Ok(kernels),
            } => kernels.iter().for_each(|report| {
                let groups = u32::try_from(report.workgroups).unwrap_or(u32::MAX);
                add(&report.kernel, Some(call), [groups, 1, 1], report);
            }),
            TimedWork::Call { .. } | TimedWork::Copy => {}
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
