//! Where the time of a model's runs goes: step by step on the device, beside what each step moves and computes.
//!
//! Steps are timed by an event before and after each on its own lane (on the CPU by the clock), in runs that are
//! enqueued step by step; runs that are not profiled record nothing. A step's time is the median over the runs; what
//! concerns the whole run, its timeline among it, is of the run whose time on the device is the median.

use indexmap::IndexMap;
use ir::HostTensor;
use ir::entity::Entity;
use ir::plan::work::{Roofline, StepWork};
use ir::plan::{Plan, StepId, Work};
use ir::schedule::LaneKind;
use serde::Serialize;

use crate::device::RunTimes;
use crate::error::RuntimeError;
use crate::executable::Executable;

/// How a model is profiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileOptions {
    /// Runs that are timed; at least 1.
    pub runs: usize,
    /// Runs before those.
    pub warm_up: usize,
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions { runs: 20, warm_up: 3 }
    }
}

/// See the module. Times are in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    pub runs: usize,
    /// In the order of the plan.
    pub steps: Vec<StepProfile>,
    /// The sum of the steps' medians.
    pub steps_us: f64,
    pub run: RunProfile,
}

/// One step, over all runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepProfile {
    /// Its number in the plan.
    pub step: usize,
    /// The kernel's or call's name.
    pub name: String,
    /// What ran it: `kernel`, `copy`, a library, or one of the CPU's engines.
    pub engine: String,
    #[serde(serialize_with = "lane_name")]
    pub lane: LaneKind,
    pub median_us: f64,
    pub least_us: f64,
    #[serde(flatten)]
    pub work: StepWork,
    /// The least time at the target's data-sheet peaks; `null` for what goes over the bus, and for no work.
    pub roofline: Option<Roofline>,
    /// That over the median; above 1 where caches give what memory was taken to. `null` also where no time passed.
    pub of_roofline: Option<f64>,
}

fn lane_name<S: serde::Serializer>(lane: &LaneKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(lane.name())
}

/// The run whose time on the device is the median.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunProfile {
    /// From beginning to end on the device.
    pub device_us: f64,
    /// The same as the host sees it: inputs staged, enqueued, waited for, outputs taken.
    pub host_us: f64,
    /// What the host took until everything was enqueued; 0 on the CPU.
    pub enqueue_us: f64,
    /// While at least one step ran.
    pub busy_us: f64,
    /// While at least one copy between host and device ran.
    pub copy_us: f64,
    /// While at least one other step ran.
    pub compute_us: f64,
    /// While both ran.
    pub overlap_us: f64,
    /// While nothing ran: the gaps, together.
    pub idle_us: f64,
    pub gaps: Vec<Gap>,
    pub timeline: Vec<Interval>,
}

/// A step of one run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    pub step: usize,
    /// Since the run's beginning.
    pub start_us: f64,
    pub us: f64,
}

/// A time in which nothing ran on the device.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Gap {
    pub start_us: f64,
    pub us: f64,
    /// The step that ended it; `null` at the end of the run.
    pub before: Option<usize>,
}

impl Executable {
    /// Runs the model some times and says where the time goes.
    ///
    /// # Errors
    /// As [`Executable::run`]; no runs.
    pub fn profile(
        &self,
        inputs: &IndexMap<String, HostTensor>,
        options: &ProfileOptions,
    ) -> Result<Profile, RuntimeError> {
        if options.runs == 0 {
            return Err(RuntimeError::Program(
                "a profile of 0 runs was asked for; ask for 1 or more".into(),
            ));
        }
        let bindings = self.bind(inputs)?;
        let mut outputs = self.allocate(&bindings)?;
        let mut runs = Vec::with_capacity(options.runs);
        for run in 0..options.warm_up.saturating_add(options.runs) {
            let mut times = RunTimes::default();
            let start = std::time::Instant::now();
            self.run_into(&bindings, inputs, &mut outputs, Some(&mut times))?;
            if run >= options.warm_up {
                runs.push((times, micros(start.elapsed())));
            }
        }
        let works = self.plan().works(&bindings)?;
        Ok(Profile::of(self.plan(), &works, &runs))
    }
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The middle one, or the mean of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(value), 1) => *value,
        (Some(value), _) => (values[middle - 1] + value) / 2.0,
        (None, _) => 0.0,
    }
}

impl Profile {
    /// Puts runs together, each with the microseconds that the host saw.
    fn of(plan: &Plan, works: &ir::Table<StepId, StepWork>, runs: &[(RunTimes, f64)]) -> Profile {
        let mut steps = Vec::with_capacity(plan.steps.len());
        for (index, (id, step)) in plan.steps.iter().enumerate() {
            let times: Vec<f64> = runs
                .iter()
                .filter_map(|(run, _)| run.steps.get(index))
                .map(|step| micros(step.time))
                .collect();
            let Some(first) = runs.iter().find_map(|(run, _)| run.steps.get(index)) else {
                continue;
            };
            let least_us = times.iter().copied().fold(f64::INFINITY, f64::min);
            let median_us = median(times);
            let roofline = works[id].roofline(&plan.target);
            let of_roofline = roofline.filter(|_| median_us > 0.0).map(|line| line.micros / median_us);
            steps.push(StepProfile {
                step: id.index(),
                name: first.name.clone(),
                engine: first.engine.clone(),
                lane: plan.lanes[step.lane].kind,
                median_us,
                least_us,
                work: works[id],
                roofline,
                of_roofline,
            });
        }
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by_key(|run| (runs[*run].0.device, *run));
        let run = order.get((runs.len().max(1) - 1) / 2).map(|run| &runs[*run]);
        Profile {
            runs: runs.len(),
            steps_us: steps.iter().fold(0.0, |sum, step| sum + step.median_us),
            steps,
            run: run.map_or_else(
                || RunProfile::of(plan, works, &RunTimes::default(), 0.0),
                |(times, host)| RunProfile::of(plan, works, times, *host),
            ),
        }
    }
}

impl RunProfile {
    fn of(plan: &Plan, works: &ir::Table<StepId, StepWork>, times: &RunTimes, host_us: f64) -> RunProfile {
        let timeline: Vec<Interval> = times
            .steps
            .iter()
            .map(|step| Interval {
                step: step.step.index(),
                start_us: micros(step.start),
                us: micros(step.time),
            })
            .collect();
        let ends = timeline.iter().map(|at| at.start_us + at.us);
        // The clock of the events may round the end of the run below that of its last step.
        let device_us = ends.fold(micros(times.device), f64::max);
        let is_copy = |at: &&Interval| {
            let id = StepId::new(at.step);
            works[id].over_bus && matches!(plan.steps[id].work, Work::Copy { .. })
        };
        let (copies, others): (Vec<&Interval>, Vec<&Interval>) = timeline.iter().partition(is_copy);
        let all = union(timeline.iter());
        let (copies, others) = (union(copies.into_iter()), union(others.into_iter()));
        let (busy_us, copy_us, compute_us) = (length(&all), length(&copies), length(&others));
        let mut gaps = Vec::new();
        let mut at = 0.0;
        let ends = all.iter().copied().chain([(device_us, device_us)]);
        for (start, end) in ends {
            if start > at {
                let ended_by = timeline.iter().find(|i| i.us > 0.0 && i.start_us == start);
                gaps.push(Gap {
                    start_us: at,
                    us: start - at,
                    before: ended_by.map(|interval| interval.step),
                });
            }
            at = f64::max(at, end);
        }
        RunProfile {
            device_us,
            host_us,
            enqueue_us: micros(times.enqueue),
            busy_us,
            copy_us,
            compute_us,
            overlap_us: (copy_us + compute_us - busy_us).max(0.0),
            idle_us: gaps.iter().fold(0.0, |sum, gap| sum + gap.us),
            gaps,
            timeline,
        }
    }
}

/// The times that at least one interval covers, in order, apart from each other.
fn union<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = intervals
        .filter(|at| at.us > 0.0)
        .map(|at| (at.start_us, at.start_us + at.us))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (start, end) in all {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

fn length(parts: &[(f64, f64)]) -> f64 {
    parts.iter().fold(0.0, |sum, (start, end)| sum + (end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: usize, start_us: f64, us: f64) -> Interval {
        Interval { step, start_us, us }
    }

    #[test]
    fn parts_that_touch_are_one() {
        let parts = [
            at(0, 4.0, 2.0),
            at(1, 0.0, 1.0),
            at(2, 0.5, 1.5),
            at(3, 6.0, 1.0),
            at(4, 9.0, 0.0),
        ];
        assert_eq!(union(parts.iter()), [(0.0, 2.0), (4.0, 7.0)]);
        assert_eq!(length(&union(parts.iter())), 5.0);
    }

    #[test]
    fn the_median_of_an_even_count_is_between_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
