//! What one run at a time has to itself: streams, events, an arena, staging memory, handles of vendor libraries, and
//! the arguments of its launches, laid out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ir::entity::{Entity, Table};
use ir::library::Algorithm;
use ir::plan::{LaneId, Plan, StepId};
use ir::schedule::LaneKind;

use super::bound::Bound;
use super::constants::zeroed;
use super::driver::Priority;
use super::facts::PlanFacts;
use super::handles::{DeviceMemory, Event, Gpu, PinnedMemory, Stream, copy_by_all_cores};
use super::prepare::{Enqueue, Prepared};
use crate::error::{Planned, RuntimeError};
use crate::library::{Content, Handles, Libraries};

/// Sets of sizes whose arguments stay laid out.
const BOUND: usize = 4;

/// See the module. Fields end in this order: handles before streams, work was waited for before.
pub(super) struct Context {
    pub handles: Handles,
    /// Most recently used last.
    bound: Vec<Bound>,
    pub lanes: Table<LaneId, Stream>,
    kinds: Vec<LaneKind>,
    priority: Priority,
    /// For each step that another lane waited for in some run.
    pub events: Table<StepId, Option<Event>>,
    /// The end of each lane but the first.
    pub ends: Vec<Event>,
    /// The beginning of a capture.
    pub begin: Event,
    /// The end of a run. Others hold it too, to wait for the run.
    pub done: Arc<Event>,
    /// Start and end of each step, once a run was timed, and of the whole run.
    pub times: Vec<(Event, Event)>,
    pub span: Option<(Event, Event)>,
    arena: Option<DeviceMemory>,
    staging: Option<PinnedMemory>,
    /// For the library calls of each lane, which run one after the other.
    workspaces: Table<LaneId, Option<DeviceMemory>>,
    /// Its part of what all contexts of the program hold.
    held: Held,
    gpu: Arc<Gpu>,
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.gpu.is_lost() {
            self.handles.abandon();
        }
    }
}

/// Bytes of the device that a context holds or is about to, counted in the sum of all contexts.
pub(super) struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    /// Counts bytes before they are allocated, so that nobody else takes them for free.
    pub fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Held {
        all.fetch_add(bytes, Ordering::Relaxed);
        Held {
            all: all.clone(),
            bytes,
        }
    }

    fn set(&mut self, bytes: usize) {
        // Only sums are read; each context changes its own part.
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A stream for each lane. What goes from device to device has few workgroups, which other ranks wait for: they come
/// before those of kernels.
fn lanes(
    gpu: &Arc<Gpu>,
    kinds: impl Iterator<Item = LaneKind>,
    priority: Priority,
) -> Result<Table<LaneId, Stream>, RuntimeError> {
    let stream = |kind| match kind {
        LaneKind::Collective => gpu.stream(Priority::High),
        LaneKind::Compute | LaneKind::Upload | LaneKind::Download => gpu.stream(priority),
    };
    kinds.map(stream).collect()
}

impl Context {
    /// Makes streams and the events of whole runs; memory and the events of steps come with [`Context::fit`].
    pub fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        libraries: &Libraries,
        priority: Priority,
        held: Held,
    ) -> Result<Context, RuntimeError> {
        Ok(Context {
            handles: libraries.handles()?,
            bound: Vec::new(),
            lanes: lanes(gpu, plan.lanes.values().map(|lane| lane.kind), priority)?,
            kinds: plan.lanes.values().map(|lane| lane.kind).collect(),
            priority,
            events: plan.steps.keys().map(|_| None).collect(),
            ends: plan
                .lanes
                .keys()
                .skip(1)
                .map(|_| gpu.event(false))
                .collect::<Result<_, _>>()?,
            begin: gpu.event(false)?,
            done: Arc::new(gpu.event(false)?),
            times: Vec::new(),
            span: None,
            arena: None,
            staging: None,
            workspaces: plan.lanes.keys().map(|_| None).collect(),
            held,
            gpu: gpu.clone(),
        })
    }

    /// Puts new streams in the place of all; nothing may be under way.
    pub fn renew_lanes(&mut self, gpu: &Arc<Gpu>) -> Result<(), RuntimeError> {
        self.lanes = lanes(gpu, self.kinds.iter().copied(), self.priority)?;
        Ok(())
    }

    /// Counts an arena of so many bytes before it is allocated.
    pub fn reserve(&mut self, arena: usize) {
        self.held.set(self.device_bytes().max(arena));
    }

    /// Makes the memory large enough, and the events that are missing; what there is is kept where it suffices.
    pub fn fit(
        &mut self,
        gpu: &Arc<Gpu>,
        facts: &PlanFacts,
        prepared: &Prepared,
        weights: usize,
    ) -> Result<(), RuntimeError> {
        let fitted = self.make_fit(gpu, facts, prepared, weights);
        self.held.set(self.device_bytes());
        fitted
    }

    fn make_fit(
        &mut self,
        gpu: &Arc<Gpu>,
        facts: &PlanFacts,
        prepared: &Prepared,
        weights: usize,
    ) -> Result<(), RuntimeError> {
        let (peak, staging) = (prepared.placed.placement.total, prepared.placed.staging);
        let planned = Some(Planned { peak, weights });
        if peak > 0 && self.arena.as_ref().is_none_or(|arena| arena.bytes < peak) {
            // What was laid out is for the old one, which goes first: both together may not fit.
            self.bound.clear();
            self.arena = None;
            self.arena = Some(gpu.allocate(peak, "the arena of a run", planned)?);
        }
        if staging > 0 && self.staging.as_ref().is_none_or(|memory| memory.bytes < staging) {
            self.bound.clear();
            self.staging = None;
            self.staging = Some(gpu.allocate_pinned(staging, "inputs and outputs on the host")?);
        }
        for (id, awaited) in prepared.order.awaited.iter() {
            if *awaited && self.events[id].is_none() {
                self.events[id] = Some(gpu.event(false)?);
            }
        }
        for (index, step) in prepared.steps.iter().enumerate() {
            let Enqueue::Call { call, workspace, .. } = step else {
                continue;
            };
            let id = StepId::new(index);
            let lane = facts.steps[id].lane;
            let at = prepared.named(facts, id).describe(id);
            let planned_for = workspace.is_some();
            let what = || format!("the search for an algorithm of {at}");
            let mut allocate = |bytes: usize, content: Content| match content {
                Content::Zeros => zeroed(gpu, bytes, &what(), planned),
                Content::Any => gpu.allocate(bytes, &what(), planned),
            };
            let bytes = self.handles.ready(call, self.lanes[lane].raw(), &mut allocate, &at)?;
            let workspace = &mut self.workspaces[lane];
            if !planned_for && bytes > 0 && workspace.as_ref().is_none_or(|memory| memory.bytes < bytes) {
                self.bound.clear();
                *workspace = None;
                *workspace = Some(gpu.allocate(bytes, &format!("the workspace of {at}"), planned)?);
            }
        }
        Ok(())
    }

    /// Lists the algorithms of each step that is a call of a library with several.
    pub fn algorithms(
        &mut self,
        facts: &PlanFacts,
        prepared: &Prepared,
    ) -> Result<Vec<(StepId, Vec<Algorithm>)>, RuntimeError> {
        let mut found = Vec::new();
        for (index, step) in prepared.steps.iter().enumerate() {
            if let Enqueue::Call { call, .. } = step {
                let id = StepId::new(index);
                let at = prepared.named(facts, id).describe(id);
                found.push((id, self.handles.algorithms(call, &at)?));
            }
        }
        found.retain(|(_, all)| !all.is_empty());
        Ok(found)
    }

    /// Takes the arguments laid out for a run, or lays them out; [`Context::keep`] gives them back.
    pub fn bind(&mut self, prepared: &Arc<Prepared>) -> Bound {
        let (arena, staging) = self.bases();
        match self.bound.iter().position(|bound| bound.is_of(prepared)) {
            Some(at) => self.bound.remove(at),
            None => Bound::new(prepared.clone(), arena, staging),
        }
    }

    /// Keeps what was laid out for later runs.
    pub fn keep(&mut self, bound: Bound) {
        if self.bound.len() >= BOUND {
            self.bound.remove(0);
        }
        self.bound.push(bound);
    }

    /// Makes an event before and after each step, and the whole run.
    pub fn with_times(&mut self, gpu: &Arc<Gpu>, steps: usize) -> Result<(), RuntimeError> {
        if self.span.is_none() {
            self.span = Some((gpu.event(true)?, gpu.event(true)?));
        }
        while self.times.len() < steps {
            self.times.push((gpu.event(true)?, gpu.event(true)?));
        }
        Ok(())
    }

    /// Where the arena and the staging memory begin.
    fn bases(&self) -> (u64, u64) {
        let arena = self.arena.as_ref().map_or(0, |arena| arena.address);
        (arena, self.staging.as_ref().map_or(0, |memory| memory.address(0)))
    }

    /// Where the workspace of a lane's calls begins.
    pub fn workspace(&self, lane: LaneId) -> u64 {
        self.workspaces[lane].as_ref().map_or(0, |memory| memory.address)
    }

    /// Writes a part of an input; nothing under way may read it.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(staging) = &mut self.staging {
            staging.write(at, bytes);
        }
    }

    /// Reads an output; the run must be done.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        if let Some(staging) = &self.staging {
            copy_by_all_cores(to, staging.bytes(at, to.len()));
        }
    }

    /// Waits for whatever is under way, unless the device is lost.
    pub fn quiesce(&self, gpu: &Gpu) {
        let ends = std::iter::once(&*self.done).chain(&self.ends);
        for (lane, end) in self.lanes.values().zip(ends) {
            if gpu.is_lost() {
                return;
            }
            // Who calls this has an error to report already.
            let _ = gpu.wait_for_stream(lane, end, || "a run that failed".to_owned());
        }
    }

    /// Bytes of pinned host memory.
    pub fn staging_bytes(&self) -> usize {
        self.staging.as_ref().map_or(0, |memory| memory.bytes)
    }

    /// Bytes of device memory.
    pub fn device_bytes(&self) -> usize {
        let all = self.workspaces.values().chain([&self.arena]);
        all.flatten().map(|memory| memory.bytes).sum()
    }
}
