//! What one run at a time has to itself: streams, events, an arena, staging memory, handles of vendor libraries.

use std::sync::Arc;

use ir::entity::{Entity, Table};
use ir::plan::{LaneId, Plan, StepId};

use super::handles::{DeviceMemory, Event, Gpu, PinnedMemory, Stream};
use super::prepare::{Enqueue, Prepared};
use super::run::describe;
use crate::error::RuntimeError;
use crate::library::{Handles, Libraries};

/// See the module. Fields end in this order: handles before streams, work was waited for before.
pub(super) struct Context {
    pub handles: Handles,
    pub lanes: Table<LaneId, Stream>,
    /// For each step that another lane waits for.
    pub events: Table<StepId, Option<Event>>,
    /// The end of each lane but the first.
    pub ends: Vec<Event>,
    /// Start and end of each step, once a run was profiled.
    pub times: Vec<(Event, Event)>,
    arena: Option<DeviceMemory>,
    staging: Option<PinnedMemory>,
    /// For the library calls of each lane, which run one after the other.
    workspaces: Table<LaneId, Option<DeviceMemory>>,
}

impl Context {
    /// Makes streams and events; memory comes with [`Context::fit`].
    pub fn new(gpu: &Arc<Gpu>, plan: &Plan, libraries: &Libraries) -> Result<Context, RuntimeError> {
        let mut events: Table<StepId, Option<Event>> = plan.steps.keys().map(|_| None).collect();
        for step in plan.steps.values() {
            for wait in &step.waits {
                if events.get(*wait).is_some_and(Option::is_none) && plan.steps[*wait].lane != step.lane {
                    events[*wait] = Some(gpu.event(false)?);
                }
            }
        }
        Ok(Context {
            handles: libraries.handles()?,
            lanes: plan.lanes.keys().map(|_| gpu.stream()).collect::<Result<_, _>>()?,
            events,
            ends: plan
                .lanes
                .keys()
                .skip(1)
                .map(|_| gpu.event(false))
                .collect::<Result<_, _>>()?,
            times: Vec::new(),
            arena: None,
            staging: None,
            workspaces: plan.lanes.keys().map(|_| None).collect(),
        })
    }

    /// Makes the memory large enough; what there is is kept where it suffices.
    pub fn fit(&mut self, gpu: &Arc<Gpu>, prepared: &Prepared) -> Result<(), RuntimeError> {
        let (peak, staging) = (prepared.placement.total, prepared.staging);
        if peak > 0 && self.arena.as_ref().is_none_or(|arena| arena.bytes < peak) {
            // The old one goes first: both together may not fit.
            self.arena = None;
            self.arena = Some(gpu.allocate(peak, "the arena of a run", peak)?);
        }
        if staging > 0 && self.staging.as_ref().is_none_or(|memory| memory.bytes < staging) {
            self.staging = None;
            self.staging = Some(gpu.allocate_pinned(staging, "inputs and outputs on the host", peak)?);
        }
        for (index, step) in prepared.steps.iter().enumerate() {
            let Enqueue::Call { call, .. } = &step.work else {
                continue;
            };
            let at = describe(StepId::new(index), step);
            let bytes = self.handles.ready(call, self.lanes[step.lane].raw(), &at)?;
            let workspace = &mut self.workspaces[step.lane];
            if bytes > 0 && workspace.as_ref().is_none_or(|memory| memory.bytes < bytes) {
                *workspace = None;
                *workspace = Some(gpu.allocate(bytes, &format!("the workspace of {at}"), peak)?);
            }
        }
        Ok(())
    }

    /// Makes an event before and after each step.
    pub fn with_times(&mut self, gpu: &Arc<Gpu>, steps: usize) -> Result<(), RuntimeError> {
        while self.times.len() < steps {
            self.times.push((gpu.event(true)?, gpu.event(true)?));
        }
        Ok(())
    }

    /// Where the arena and the staging memory begin.
    pub fn bases(&self) -> (u64, u64) {
        let arena = self.arena.as_ref().map_or(0, |arena| arena.address);
        (arena, self.staging.as_ref().map_or(0, |memory| memory.address(0)))
    }

    /// Where the workspace of a lane's calls begins.
    pub fn workspace(&self, lane: LaneId) -> u64 {
        self.workspaces[lane].as_ref().map_or(0, |memory| memory.address)
    }

    /// Writes an input; no work may be under way.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(staging) = &mut self.staging {
            staging.write(at, bytes);
        }
    }

    /// Reads an output; the run must be done.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        if let Some(staging) = &self.staging {
            to.copy_from_slice(staging.bytes(at, to.len()));
        }
    }

    /// Waits for whatever is under way, in whatever state the device is.
    pub fn quiesce(&self) {
        for lane in self.lanes.values() {
            // Who calls this has an error to report already.
            let _ = lane.synchronize();
        }
    }

    /// Bytes of pinned host memory.
    pub fn staging_bytes(&self) -> usize {
        self.staging.as_ref().map_or(0, |memory| memory.bytes)
    }

    /// The stream of the first lane, which ends a run. A plan always has one.
    pub fn first_lane(&self) -> Option<&Stream> {
        self.lanes.get(LaneId::new(0))
    }
}
