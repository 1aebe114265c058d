//! Plans that fit a device's memory: weights that have no room there stay on the host and are copied ahead of their
//! use.
//!
//! Before: a plan whose weights are all resident. After, where weights and arena take more than the limit: some weights
//! are [`Place::Streamed`], and a copy on the upload lane brings each into the arena for the steps that read it:
//!
//! ```text
//! s4 l0 launch k2 matmul(x, w1, h1)            s4 l1 copy w2 -> w2_device after s3
//! s5 l0 launch k2 matmul(h1, w2, h2)           s5 l0 launch k2 matmul(x, w1, h1)
//!                                              s6 l0 launch k2 matmul(h1, w2_device, h2) after s4
//! ```
//!
//! A copy is placed `distance` uses of streamed weights ahead of its own, and waits for the compute step before that
//! place: so at most `distance + 1` streamed weights are in the arena at a time, which the arena's own placement sees.
//! Weights that are streamed are spread evenly over the plan, so that copies go on while resident weights are computed
//! with. Of the distances above 0 the one is taken that streams the fewest bytes; of equal ones the larger. At a
//! distance of 0 a copy and its use take turns: that is the least memory for which there is a plan.

use ir::dim::{Bindings, DimError, hints};
use ir::plan::arena::{place, room};
use ir::plan::verify::InvalidPlan;
use ir::plan::{Buffer, BufferId, Lane, Place, Plan, Step, StepId, Streaming, Work};
use ir::schedule::LaneKind;
use ir::{ConstId, Dim, Entity, Table};

/// Weights of fewer bytes always stay on the device: a copy of them takes longer than the bus needs for its bytes.
const SMALL: usize = 16 << 10;
/// Distances that are looked at, besides 0.
const DISTANCES: [usize; 3] = [3, 2, 1];
/// How finely the part of the weights is looked for that is streamed.
const PARTS: usize = 64;

/// There is no plan.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum StreamError {
    #[error(
        "{limit} bytes of device memory are too few: the weights take {weights} bytes and a run's arena {arena}; with weights \
         streamed from the host, {least} bytes are the least that would do. Give {least} bytes or more, or use smaller inputs"
    )]
    TooSmall {
        limit: usize,
        weights: usize,
        arena: usize,
        least: usize,
    },
    #[error("the plan was made to fit {limit} bytes already; compile the model it was made from for another limit")]
    Again { limit: usize },
    #[error("a size of the plan cannot be computed: {0}")]
    Size(#[from] DimError),
    /// A bug of graphc.
    #[error("the plan that streams its weights does not verify: {0}")]
    Invalid(#[from] InvalidPlan),
}

/// Makes a plan fit `limit` bytes of a device, weights and the arena of one run together, at the sizes' hints.
///
/// # Errors
/// `TooSmall` with the least limit that would do; a plan that was made to fit before.
pub fn stream(plan: &Plan, limit: usize) -> Result<Plan, StreamError> {
    if let Some(before) = plan.streaming {
        return Err(StreamError::Again { limit: before.limit });
    }
    let streamer = Streamer::new(plan)?;
    let everything = streamer.weights;
    let arena = place(plan, &streamer.bindings)?.total;
    let as_it_is = everything + arena;
    let least = streamer.least(as_it_is)?;
    let fits = |mut plan: Plan, distance: usize| {
        plan.streaming = Some(Streaming { limit, distance, least });
        plan
    };
    if as_it_is <= limit {
        return Ok(fits(plan.clone(), 0));
    }
    let mut best: Option<(usize, usize, Plan)> = None;
    for distance in DISTANCES {
        if let Some((streamed, plan)) = streamer.fewest(as_it_is - limit, distance, limit)?
            && best.as_ref().is_none_or(|(bytes, ..)| streamed < *bytes)
        {
            best = Some((streamed, distance, plan));
        }
    }
    if best.is_none() {
        let found = streamer.fewest(as_it_is - limit, 0, limit)?;
        best = found.map(|(streamed, plan)| (streamed, 0, plan));
    }
    let Some((_, distance, plan)) = best else {
        return Err(StreamError::TooSmall {
            limit,
            weights: everything,
            arena,
            least,
        });
    };
    let plan = fits(plan, distance);
    ir::plan::verify::verify(&plan)?;
    Ok(plan)
}

/// The least limit for which [`stream`] makes a plan.
///
/// # Errors
/// A size that does not evaluate.
pub fn least(plan: &Plan) -> Result<usize, StreamError> {
    match plan.streaming {
        Some(streaming) => Ok(streaming.least),
        None => {
            let streamer = Streamer::new(plan)?;
            streamer.least(streamer.weights + place(plan, &streamer.bindings)?.total)
        }
    }
}

/// Steps that read one weight, with no other weight's reader between them: it is on the device from the first to the
/// last.
struct Visit {
    constant: ConstId,
    /// The buffer that the first of them reads it from.
    buffer: BufferId,
    first: StepId,
    last: StepId,
}

struct Streamer<'a> {
    plan: &'a Plan,
    bindings: Bindings,
    /// Bytes of all weights on the device.
    weights: usize,
    /// Those that may be streamed, with their room, in the order of their first use.
    candidates: Vec<(ConstId, usize)>,
    visits: Vec<Visit>,
}

impl<'a> Streamer<'a> {
    fn new(plan: &'a Plan) -> Result<Streamer<'a>, StreamError> {
        let bindings = hints(&plan.symbols);
        let mut sizes: Vec<(ConstId, usize)> = Vec::new();
        for buffer in plan.buffers.values() {
            if let Place::Constant(id) = buffer.place
                && !sizes.iter().any(|(known, _)| *known == id)
            {
                let bytes = usize::try_from(buffer.ty.bytes().eval(&bindings)?).unwrap_or(0);
                sizes.push((id, room(bytes)));
            }
        }
        // What is an output, or copied, or read on another lane, stays.
        let mut fixed: Vec<ConstId> = plan
            .outputs
            .iter()
            .filter_map(|port| constant(plan, port.buffer))
            .collect();
        for step in plan.steps.values() {
            let computes = plan.lanes[step.lane].kind == LaneKind::Compute;
            if matches!(step.work, Work::Copy { .. }) || !computes {
                fixed.extend(reads(step).filter_map(|buffer| constant(plan, buffer)));
            }
        }
        let may = |id: ConstId| {
            let size = sizes
                .iter()
                .find(|(known, _)| *known == id)
                .map_or(0, |(_, bytes)| *bytes);
            (size >= SMALL && !fixed.contains(&id)).then_some(size)
        };
        let mut candidates: Vec<(ConstId, usize)> = Vec::new();
        let mut visits: Vec<Visit> = Vec::new();
        for (id, step) in plan.steps.iter() {
            for buffer in reads(step) {
                let Some(read) = constant(plan, buffer) else { continue };
                let Some(size) = may(read) else { continue };
                if !candidates.iter().any(|(known, _)| *known == read) {
                    candidates.push((read, size));
                }
                let between = |visit: &Visit| {
                    visits
                        .iter()
                        .any(|v| v.constant != read && v.last > visit.last && v.last < id)
                };
                let open = visits.iter().rposition(|visit| visit.constant == read);
                match open.filter(|at| !between(&visits[*at])) {
                    Some(at) => visits[at].last = id,
                    None => visits.push(Visit {
                        constant: read,
                        buffer,
                        first: id,
                        last: id,
                    }),
                }
            }
        }
        Ok(Streamer {
            plan,
            bindings,
            weights: sizes.iter().map(|(_, bytes)| bytes).sum(),
            candidates,
            visits,
        })
    }

    /// The least limit, where a plan that streams nothing takes `as_it_is`.
    fn least(&self, as_it_is: usize) -> Result<usize, StreamError> {
        let (_, takes) = self.made(self.candidate_bytes(), 0)?;
        Ok(takes.min(as_it_is))
    }

    fn candidate_bytes(&self) -> usize {
        self.candidates.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The plan that streams the fewest bytes at a distance, from `from` on, and fits; with those bytes.
    fn fewest(&self, from: usize, distance: usize, limit: usize) -> Result<Option<(usize, Plan)>, StreamError> {
        let all = self.candidate_bytes();
        let part = all.div_ceil(PARTS).max(1);
        let mut wanted = from.min(all);
        loop {
            let (plan, takes) = self.made(wanted, distance)?;
            if takes <= limit {
                let streamed = streamed_bytes(&plan, &self.bindings)?;
                return Ok(Some((streamed, plan)));
            }
            if wanted >= all {
                return Ok(None);
            }
            wanted = (wanted + part).min(all);
        }
    }

    /// The plan that streams about `wanted` bytes of different weights, and the bytes of the device that it takes.
    fn made(&self, wanted: usize, distance: usize) -> Result<(Plan, usize), StreamError> {
        let all = self.candidate_bytes().max(1);
        let (mut seen, mut taken) = (0usize, 0usize);
        let mut chosen: Vec<ConstId> = Vec::new();
        for (id, bytes) in &self.candidates {
            seen += bytes;
            // As many of the bytes so far as of all, to half of a weight.
            if wanted >= all || (taken + bytes / 2) as u128 * all as u128 <= wanted as u128 * seen as u128 {
                taken += bytes;
                chosen.push(*id);
            }
        }
        let plan = self.rebuilt(&chosen, distance);
        let arena = place(&plan, &self.bindings)?.total;
        Ok((plan, self.weights - taken + arena))
    }

    fn rebuilt(&self, chosen: &[ConstId], distance: usize) -> Plan {
        let mut plan = self.plan.clone();
        let visits: Vec<&Visit> = self.visits.iter().filter(|v| chosen.contains(&v.constant)).collect();
        let upload = plan.lanes.iter().find(|(_, lane)| lane.kind == LaneKind::Upload);
        let upload = match upload.map(|(id, _)| id) {
            Some(lane) => lane,
            None if visits.is_empty() => return plan,
            None => plan.lanes.push(Lane { kind: LaneKind::Upload }),
        };
        // Copies of inputs come first, as they do without streaming.
        let begin = self.plan.steps.iter().find(|(_, step)| step.lane != upload);
        let begin = begin.map_or(StepId::new(0), |(id, _)| id);
        let before: Vec<StepId> = (0..visits.len())
            .map(|at| at.checked_sub(distance).map_or(begin, |ahead| visits[ahead].first))
            .collect();
        let mut renumbered: Table<StepId, StepId> = Table::new();
        let mut steps: Table<StepId, Step> = Table::new();
        let mut copies: Vec<Copied> = Vec::with_capacity(visits.len());
        let mut computed: Option<StepId> = None;
        for (id, step) in self.plan.steps.iter() {
            for at in copies.len()..visits.len() {
                if before[at] != id {
                    break;
                }
                let from = visits[at].buffer;
                // Its lifetime is found below.
                let weight = &plan.buffers[from];
                let to = plan.buffers.push(Buffer {
                    name: format!("{}_device", weight.name),
                    ty: weight.ty.clone(),
                    place: Place::Arena {
                        first: StepId::new(0),
                        last: StepId::new(0),
                        in_place_of: None,
                    },
                });
                let waits = computed.into_iter().collect();
                let copy = steps.push(Step::new(upload, waits, Work::Copy { from, to }, Dim::Const(0)));
                copies.push(Copied { copy, to });
            }
            let mut step = step.clone();
            for wait in &mut step.waits {
                *wait = renumbered[*wait];
            }
            for (visit, copied) in visits.iter().zip(&copies) {
                if visit.first <= id && id <= visit.last && replace(&self.plan.buffers, &mut step, visit, copied.to) {
                    step.waits.push(copied.copy);
                }
            }
            step.waits.sort();
            step.waits.dedup();
            let computes = self.plan.lanes[step.lane].kind == LaneKind::Compute;
            let new = steps.push(step);
            renumbered.push(new);
            if computes {
                computed = Some(new);
            }
        }
        plan.steps = steps;
        for buffer in plan.buffers.values_mut() {
            if let Place::Arena { first, last, .. } = &mut buffer.place {
                // What was uploaded lives from the beginning on.
                *first = if first.index() == 0 { *first } else { renumbered[*first] };
                *last = renumbered.get(*last).copied().unwrap_or(*last);
            }
            if let Place::Constant(id) = buffer.place
                && chosen.contains(&id)
            {
                buffer.place = Place::Streamed(id);
            }
        }
        for (visit, copied) in visits.iter().zip(&copies) {
            if let Place::Arena { first, last, .. } = &mut plan.buffers[copied.to].place {
                (*first, *last) = (copied.copy, renumbered[visit.last]);
            }
        }
        plan
    }
}

/// The copy of a visit.
struct Copied {
    copy: StepId,
    to: BufferId,
}

/// Lets a step read the copy of a weight; false where it does not read the weight.
fn replace(buffers: &Table<BufferId, Buffer>, step: &mut Step, visit: &Visit, to: BufferId) -> bool {
    let mut found = false;
    for work in step.works_mut() {
        let read = match work {
            Work::Launch { args, .. } => args,
            Work::Call { operands, .. } => operands,
            Work::Copy { .. } => continue,
        };
        for buffer in read {
            if buffers.get(*buffer).and_then(|b| b.place.constant()) == Some(visit.constant) {
                *buffer = to;
                found = true;
            }
        }
    }
    found
}

/// Bytes of weights that one run copies to the device.
///
/// # Errors
/// A size that is not bound.
pub fn streamed_bytes(plan: &Plan, bindings: &Bindings) -> Result<usize, DimError> {
    let mut sum = 0;
    for step in plan.steps.values() {
        if let Work::Copy { from, .. } = step.work
            && matches!(plan.buffers[from].place, Place::Streamed(_))
        {
            sum += usize::try_from(plan.buffers[from].ty.bytes().eval(bindings)?).unwrap_or(0);
        }
    }
    Ok(sum)
}

fn constant(plan: &Plan, buffer: BufferId) -> Option<ConstId> {
    plan.buffers.get(buffer)?.place.constant()
}

fn reads(step: &Step) -> impl Iterator<Item = BufferId> {
    let of_work = |work: &'_ Work| -> Vec<BufferId> {
        match work {
            Work::Launch { args, .. } => args.clone(),
            Work::Call { operands, .. } => operands.clone(),
            Work::Copy { from, .. } => vec![*from],
        }
    };
    let mut all: Vec<BufferId> = Vec::new();
    for buffer in step.works().flat_map(of_work) {
        // Choices read what the step's own work does, once in a run.
        if step.choices.is_empty() || !all.contains(&buffer) {
            all.push(buffer);
        }
    }
    all.into_iter()
}
