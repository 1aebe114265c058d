//! The predicted times of a plan's steps: kernel by kernel, and of the whole plan.

use std::sync::Arc;

use emu::timing::Report;
use ir::plan::{KernelId, LaneId, Plan, StepId};
use ir::{Entity, Table};
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

/// When a step begins and ends, in microseconds since a run's first step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    pub step: StepId,
    pub start: f64,
    pub micros: f64,
}

/// When each step runs: each lane does its steps in order, and a step begins when those that it waits for have ended.
/// Steps of several lanes are taken not to slow each other.
pub fn timeline(plan: &Plan, steps: &[TimedStep]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::with_capacity(plan.steps.len());
    let end = |span: &Span| span.start + span.micros;
    let mut lanes: Table<LaneId, f64> = plan.lanes.keys().map(|_| 0.0).collect();
    for (id, step) in plan.steps.iter() {
        let timed = steps.iter().find(|timed| timed.step == id);
        // Waits are earlier steps, which stand at their own place.
        let waits = step.waits.iter().filter_map(|wait| spans.get(wait.index()));
        let span = Span {
            step: id,
            start: waits.map(end).fold(lanes[step.lane], f64::max),
            micros: timed.map_or(0.0, |timed| timed.micros),
        };
        lanes[step.lane] = end(&span);
        spans.push(span);
    }
    spans
}

/// Microseconds from a run's first step to the end of its last ([`timeline`]).
pub fn makespan(plan: &Plan, steps: &[TimedStep]) -> f64 {
    let ends = timeline(plan, steps).into_iter().map(|span| span.start + span.micros);
    ends.fold(0.0, f64::max)
}
