//! One run: what it waits for, every step onto its lane, or all of them as one graph, and the end that others wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ir::entity::Entity;
use ir::plan::{LaneId, StepId};

use super::bound::Bound;
use super::context::Context;
use super::driver::{Direction, DriverError, Status};
use super::facts::{Named, PlanFacts};
use super::handles::{Event, Gpu, GraphExec, Stream};
use super::prepare::{Enqueue, Prepared};
use super::ranges::Ranges;
use super::stats::Counters;
use crate::device::{RunTimes, StepTime};
use crate::error::RuntimeError;

/// An input is copied into pinned memory in parts of this many bytes, each on the bus while the next is copied.
const PART: usize = 4 << 20;
/// Runs with fewer launches gain nothing by a graph: what a driver takes for one is what it takes for two launches
/// (H100).
const LAUNCHES: usize = 2;
/// Nor do runs that copy more than this many bytes: their parts overlap, and launches are not what takes time.
const COPIED: usize = 4 << 20;
/// A set of addresses is captured when it ran this often.
const RUNS: u32 = 3;

/// What a run needs besides its context.
pub(super) struct Run<'a> {
    pub gpu: &'a Arc<Gpu>,
    pub facts: &'a PlanFacts,
    pub prepared: &'a Arc<Prepared>,
    /// The bytes of each input that is on the host.
    pub hosts: &'a [Option<&'a [u8]>],
    /// Waits for each step, so that an error names the one that it came from.
    pub synchronous: bool,
    /// Whether graphs are not to be used; set where the driver or a call refuses.
    pub no_capture: &'a AtomicBool,
    pub counters: &'a Counters,
    /// Names for a profiler.
    pub ranges: Option<&'a Ranges>,
}

impl Run<'_> {
    /// Enqueues the run after `before`, which is given each event that it must come after and each lane. After an error
    /// work may be under way.
    pub fn enqueue(
        &self,
        context: &mut Context,
        bound: &mut Bound,
        mut before: impl FnMut(&mut dyn FnMut(&Event) -> Status<()>) -> Status<()>,
        profile: bool,
    ) -> Result<(), RuntimeError> {
        const AT: &str = "waiting for inputs";
        if profile {
            context.with_times(self.gpu, self.prepared.steps.len())?;
        }
        let graph = if profile { None } else { self.graph(context, bound)? };
        let lanes = &context.lanes;
        let alone = graph.is_some();
        let waited = before(&mut |event| {
            // A run ends on the first lane, and a graph begins there too. Lanes that do nothing wait for nothing.
            let waits = |lane: LaneId| lane.index() == 0 || !alone && self.prepared.order.used[lane];
            let mut waiting = lanes.iter().filter(|(id, _)| waits(*id));
            waiting.try_for_each(|(_, lane)| lane.wait(event))
        });
        self.gpu.at(AT, waited)?;
        let begun = if profile { begin(context) } else { Ok(()) };
        self.gpu.at("the beginning of a run", begun)?;
        if let Some(graph) = graph {
            self.stage(context);
            if let Some(first) = context.lanes.get(LaneId::new(0)) {
                // SAFETY: it was captured with this context's memory and these addresses; what they are of lives until
                // the run was waited for.
                let launched = unsafe { first.launch_graph(&graph) };
                if let Some(variant) = bound.variant() {
                    variant.graph = Some(graph);
                }
                if launched.is_ok() {
                    Counters::add(&self.counters.replayed);
                    return self.gpu.at("the end of a run", first.record(&context.done));
                }
            }
            // Refused, and nothing is under way: step by step from now on.
            self.refuse();
        }
        let fail = |index: usize, error: DriverError| {
            let id = StepId::new(index);
            self.gpu.error(error, &self.named(id).describe(id))
        };
        self.steps(context, bound, Some(self.hosts), profile, &fail)?;
        let joined = self.join(context, profile);
        self.gpu.at("the end of a run", joined)
    }

    fn named(&self, step: StepId) -> &Named {
        self.prepared.named(self.facts, step)
    }

    fn refuse(&self) {
        if !self.no_capture.swap(true, Ordering::Relaxed) {
            Counters::add(&self.counters.refused);
        }
    }

    /// Copies the inputs that are on the host into staging memory.
    fn stage(&self, context: &mut Context) {
        for (at, host) in self.prepared.placed.inputs.iter().zip(self.hosts) {
            if let (Some(at), Some(bytes)) = (at, host) {
                context.write(*at, bytes);
            }
        }
    }

    /// The graph of these addresses, captured now if they came often enough. None where the steps are better enqueued.
    fn graph(&self, context: &mut Context, bound: &mut Bound) -> Result<Option<GraphExec>, RuntimeError> {
        if self.synchronous || self.no_capture.load(Ordering::Relaxed) || self.facts.launches < LAUNCHES {
            return Ok(None);
        }
        let Some(variant) = bound.variant() else {
            return Ok(None);
        };
        if let Some(graph) = variant.graph.take() {
            return Ok(Some(graph));
        }
        if variant.runs < RUNS || self.prepared.staged_bytes() > COPIED {
            return Ok(None);
        }
        let graph = self.capture(context, bound)?;
        match graph {
            Some(_) => Counters::add(&self.counters.captured),
            None => self.refuse(),
        }
        Ok(graph)
    }

    /// Captures the steps; None where that is refused. Nothing runs by it, so they can be enqueued as ever then.
    fn capture(&self, context: &mut Context, bound: &mut Bound) -> Result<Option<GraphExec>, RuntimeError> {
        let Some(first) = context.lanes.values().next() else {
            return Ok(None);
        };
        if first.begin_capture().is_err() {
            return Ok(None);
        }
        let captured = self.captured(context, bound);
        // Also after a failure: the stream must take work again.
        let ended = match context.lanes.values().next() {
            Some(first) => first.end_capture(),
            None => return Ok(None),
        };
        let Ok(graph) = ended else {
            // Whether the capture goes on is not known. Streams that are new take work for certain.
            context.renew_lanes(self.gpu)?;
            return Ok(None);
        };
        if captured.is_err() {
            return Ok(None);
        }
        if let Some(mut spare) = bound.spare()
            && spare.update(&graph) == Ok(true)
        {
            return Ok(Some(spare));
        }
        Ok(graph.instantiate().ok())
    }

    fn captured(&self, context: &mut Context, bound: &mut Bound) -> Result<(), ()> {
        let first = LaneId::new(0);
        context.lanes[first].record(&context.begin).map_err(drop)?;
        let used = |id: LaneId| self.prepared.order.used[id];
        for (_, lane) in context.lanes.iter().skip(1).filter(|(id, _)| used(*id)) {
            lane.wait(&context.begin).map_err(drop)?;
        }
        // Not by `Gpu::error`, which waits for the device: that is not allowed in a capture.
        let fail = |_: usize, error: DriverError| RuntimeError::Program(error.to_string());
        self.steps(context, bound, None, false, &fail).map_err(drop)?;
        // All that were waited for by way of others too: a capture ends where each stream of it does.
        self.join_lanes(context, used).map_err(drop)
    }

    /// Enqueues every step. Without `hosts` the inputs are in staging memory, or will be.
    fn steps(
        &self,
        context: &mut Context,
        bound: &mut Bound,
        hosts: Option<&[Option<&[u8]>]>,
        profile: bool,
        fail: &dyn Fn(usize, DriverError) -> RuntimeError,
    ) -> Result<(), RuntimeError> {
        for (index, step) in self.prepared.steps.iter().enumerate() {
            let id = StepId::new(index);
            let facts = &self.facts.steps[id];
            let failed = |error| fail(index, error);
            let named = self.named(id);
            let _range = self.ranges.map(|ranges| ranges.enter(&named.name));
            for wait in &self.prepared.order.waits[id] {
                if let Some(event) = &context.events[*wait] {
                    context.lanes[facts.lane].wait(event).map_err(failed)?;
                }
            }
            if profile {
                context.lanes[facts.lane]
                    .record(&context.times[index].0)
                    .map_err(failed)?;
            }
            match step {
                Enqueue::Nothing => {}
                Enqueue::Launch { launch, first, count } => {
                    let arguments = bound.arguments(*first, *count);
                    // SAFETY: the words are those of the kernel's signature; buffers were checked against its
                    // parameters when the step was prepared, and what they are in lives until the run was waited for.
                    unsafe { context.lanes[facts.lane].launch(*launch, arguments) }.map_err(failed)?;
                }
                Enqueue::Upload {
                    input,
                    at,
                    to,
                    bytes,
                    direction,
                } => {
                    let host = hosts.and_then(|hosts| hosts[*input as usize]);
                    let part = if host.is_some() { PART } else { *bytes };
                    let (to, from) = (bound.address(*to), bound.address(super::prepare::Spot::Staging(*at)));
                    for start in (0..*bytes).step_by(part.max(1)) {
                        let length = part.min(bytes - start);
                        if let Some(host) = host {
                            context.write(at + start, &host[start..start + length]);
                        }
                        let lane = &context.lanes[facts.lane];
                        copy(lane, to + start as u64, from + start as u64, length, *direction).map_err(failed)?;
                    }
                }
                Enqueue::Copy {
                    from,
                    to,
                    bytes,
                    direction,
                } => {
                    let (to, from) = (bound.address(*to), bound.address(*from));
                    copy(&context.lanes[facts.lane], to, from, *bytes, *direction).map_err(failed)?;
                }
                Enqueue::Call {
                    call,
                    buffers,
                    workspace,
                } => {
                    let addresses: smallvec::SmallVec<[u64; 8]> =
                        buffers.iter().map(|spot| bound.address(*spot)).collect();
                    let workspace = workspace.map_or_else(|| context.workspace(facts.lane), |spot| bound.address(spot));
                    let stream = context.lanes[facts.lane].raw();
                    let at = || named.describe(id);
                    context.handles.enqueue(call, &addresses, workspace, stream, at)?;
                }
            }
            let lane = &context.lanes[facts.lane];
            if profile {
                lane.record(&context.times[index].1).map_err(failed)?;
            }
            let awaited = self.prepared.order.awaited[id];
            if let Some(event) = context.events[id].as_ref().filter(|_| awaited) {
                lane.record(event).map_err(failed)?;
            }
            if self.synchronous {
                self.gpu.wait_for_stream(lane, &context.done, || named.describe(id))?;
            }
        }
        Ok(())
    }

    /// Lets the first lane wait for others.
    fn join_lanes(&self, context: &Context, others: impl Fn(LaneId) -> bool) -> Status<()> {
        let mut lanes = context.lanes.iter();
        let Some((_, first)) = lanes.next() else { return Ok(()) };
        for ((_, lane), end) in lanes.zip(&context.ends).filter(|((id, _), _)| others(*id)) {
            lane.record(end)?;
            first.wait(end)?;
        }
        Ok(())
    }

    /// Lets the first lane wait for those that it has not waited for, and marks the end of the run.
    fn join(&self, context: &Context, profile: bool) -> Status<()> {
        // Events of a profile are also on lanes that do nothing.
        self.join_lanes(context, |id| profile || self.prepared.order.open[id])?;
        let Some(first) = context.lanes.values().next() else {
            return Ok(());
        };
        if let Some((_, end)) = context.span.as_ref().filter(|_| profile) {
            first.record(end)?;
        }
        first.record(&context.done)
    }

    /// The host's time of the launches alone, all on the first lane. Their operands are whatever the arena has; nothing
    /// reads the results.
    pub fn bare(&self, context: &Context, bound: &mut Bound, turns: usize) -> Result<Option<Duration>, RuntimeError> {
        const AT: &str = "launching";
        let Some(first) = context.lanes.values().next() else {
            return Ok(None);
        };
        let mut times = Vec::with_capacity(turns);
        for _ in 0..turns {
            let start = Instant::now();
            for step in &self.prepared.steps {
                if let Enqueue::Launch {
                    launch,
                    first: at,
                    count,
                } = step
                {
                    let arguments = bound.arguments(*at, *count);
                    // SAFETY: as in a run, whose ports are all on the host: every buffer is in the arena or a constant.
                    let launched = unsafe { first.launch(*launch, arguments) };
                    self.gpu.at(AT, launched)?;
                }
            }
            times.push(start.elapsed());
            self.gpu.wait_for_stream(first, &context.done, || AT.to_owned())?;
        }
        times.sort_unstable();
        Ok(times.get(turns / 2).copied().filter(|_| self.facts.launches > 0))
    }

    /// The times of a run that is done.
    pub fn times(&self, context: &Context, times: &mut RunTimes) -> Result<(), RuntimeError> {
        let Some((begin, end)) = &context.span else {
            return Ok(());
        };
        let since = |start: &Event, stop: &Event| -> Status<Duration> {
            let milliseconds = f64::from(stop.since(start)?.max(0.0));
            Ok(Duration::from_secs_f64(milliseconds / 1e3))
        };
        times.device = self.gpu.at("the end of a run", since(begin, end))?;
        for (id, (start, stop)) in self.facts.steps.keys().zip(&context.times) {
            let step = self.named(id);
            let at = || step.describe(id);
            times.steps.push(StepTime {
                step: id,
                name: step.name.clone(),
                engine: step.engine.to_owned(),
                start: self.gpu.at_with(at, since(begin, start))?,
                time: self.gpu.at_with(at, since(start, stop))?,
            });
        }
        Ok(())
    }
}

/// Marks the beginning of a run that is timed: no lane works before it.
fn begin(context: &Context) -> Status<()> {
    let Some((begin, _)) = &context.span else { return Ok(()) };
    let mut lanes = context.lanes.values();
    let Some(first) = lanes.next() else { return Ok(()) };
    first.record(begin)?;
    lanes.try_for_each(|lane| lane.wait(begin))
}

fn copy(lane: &Stream, to: u64, from: u64, bytes: usize, direction: Direction) -> Status<()> {
    // SAFETY: both buffers have at least that many bytes, and live until the run was waited for.
    unsafe { lane.copy(to, from, bytes, direction) }
}
