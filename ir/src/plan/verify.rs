//! Checks a plan against its invariants and collects every error.

mod states;

use std::collections::BTreeSet;

use super::arena::place;
use super::{BufferId, Place, Plan, Source, Step, StepId, Work};
use crate::dim::hints;
use crate::entity::{Entity, Table};
use crate::graph::infer::infer;
use crate::graph::op::Op;
use crate::kernel::bounds::{BoundsError, unproven};
use crate::kernel::limits::{self, LimitError};
use crate::kernel::verify::{InvalidKernel, verify as verify_kernel};
use crate::library::{Collective, LibraryCall};
use crate::types::TensorType;

/// One way in which a plan is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Kernel(#[from] InvalidKernel),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error("{at} names {what}, which the plan does not have")]
    Unknown { at: String, what: String },
    #[error("step {step} has {got} arguments, but its kernel takes {expected}")]
    Arguments { step: StepId, got: usize, expected: usize },
    #[error("step {step}: the sizes from which its choices hold do not ascend")]
    Choices { step: StepId },
    #[error("step {step}: from {from} on it {problem}")]
    Choice {
        step: StepId,
        from: i64,
        problem: &'static str,
    },
    #[error("step {step}: argument {buffer} is {got}, but {param} is {expected}")]
    Argument {
        step: StepId,
        buffer: BufferId,
        param: String,
        got: String,
        expected: String,
    },
    #[error("step {step} waits for {wait}, which does not come before it")]
    Wait { step: StepId, wait: StepId },
    #[error("step {step} reads {buffer} before any step writes it")]
    Unwritten { step: StepId, buffer: BufferId },
    #[error("step {step} writes {buffer}, which is {place}")]
    ReadOnly {
        step: StepId,
        buffer: BufferId,
        place: &'static str,
    },
    #[error("step {step} uses {buffer}, which lives from {first} to {last} only")]
    Lifetime {
        step: StepId,
        buffer: BufferId,
        first: StepId,
        last: StepId,
    },
    #[error("step {step} uses {buffer} in another lane than {writer}, which writes it, and does not wait for it")]
    Unordered {
        step: StepId,
        buffer: BufferId,
        writer: StepId,
    },
    #[error("{buffer} is in place of {of}: {problem}")]
    InPlace {
        buffer: BufferId,
        of: BufferId,
        problem: &'static str,
    },
    #[error("{a} and {b} share bytes while both are in use")]
    Overlap { a: BufferId, b: BufferId },
    #[error("step {step} computes with {buffer}, which stays on the host: only copies read it")]
    OnHost { step: StepId, buffer: BufferId },
    #[error("output {name:?} reads {buffer}, which nothing writes")]
    Output { name: String, buffer: BufferId },
    #[error("the condition {message:?} is {ty}, but must be {expected}")]
    Check {
        message: String,
        ty: TensorType,
        expected: TensorType,
    },
    #[error("there are {checks} conditions, but {outputs} outputs")]
    Checks { checks: usize, outputs: usize },
    #[error("input {name:?} is in {buffer}, which is not an input buffer")]
    Input { name: String, buffer: BufferId },
    #[error("port {name:?} is {got}, but {buffer} is {expected}")]
    Port {
        name: String,
        buffer: BufferId,
        got: String,
        expected: String,
    },
    #[error("step {step} uses {buffer}, which is an input or output, but no port names it")]
    NoPort { step: StepId, buffer: BufferId },
    #[error("step {step}: {call}: {problem}")]
    Call {
        step: StepId,
        call: &'static str,
        problem: String,
    },
    #[error("the plan is rank {rank} of {ranks}, with {inputs} inputs and {outputs} outputs said to be cut or not")]
    Share {
        rank: u32,
        ranks: u32,
        inputs: usize,
        outputs: usize,
    },
    #[error(
        "the plan is stage {stage}, which says of {inputs} inputs and {results} results where they belong: that must be all \
         of them, each from an earlier stage or the model, and none cut"
    )]
    Stage { stage: u32, inputs: usize, results: usize },
    #[error("port {name:?} is cut along axis {axis}, but is {ty}")]
    Cut { name: String, axis: u32, ty: TensorType },
    #[error(
        "the state from output {output:?} to input {input:?} is not of two ports of one type that are in no other state"
    )]
    State { input: String, output: String },
    #[error("step {step}: a collective of {got} ranks, in a plan of {expected}")]
    Ranks { step: StepId, got: u32, expected: u32 },
    #[error(transparent)]
    Sizes(#[from] BoundsError),
    #[error("the arena cannot be placed at the symbols' hints: {0}")]
    Place(String),
}

/// All errors of a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the plan is not valid:\n{}", errors.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))]
pub struct InvalidPlan {
    /// Never empty.
    pub errors: Vec<PlanError>,
}

/// Checks a plan: every kernel, every reference, reads after writes, lifetimes, waits between lanes, and that no bytes
/// are shared in time at the symbols' hints.
///
/// # Errors
/// Every error found. Where references dangle, what follows them is not looked at.
pub fn verify(plan: &Plan) -> Result<(), InvalidPlan> {
    check(plan, true)
}

/// As [`verify`], of a plan whose steps are not all on one device, so that its arena buffers lie in several arenas:
/// which bytes they share is checked in the plan of each.
///
/// # Errors
/// As [`verify`].
pub fn verify_order(plan: &Plan) -> Result<(), InvalidPlan> {
    check(plan, false)
}

fn check(plan: &Plan, one_arena: bool) -> Result<(), InvalidPlan> {
    let mut errors: Vec<PlanError> = Vec::new();
    for kernel in plan.kernels.values() {
        match verify_kernel(kernel) {
            Ok(()) => errors.extend(
                limits::check(kernel, &plan.symbols, &plan.target)
                    .into_iter()
                    .map(PlanError::Limit),
            ),
            Err(invalid) => errors.push(PlanError::Kernel(invalid)),
        }
    }
    references(plan, &mut errors);
    if !errors.iter().any(|e| matches!(e, PlanError::Unknown { .. })) {
        let uses = uses(plan);
        let clocks = clocks(plan, &mut errors);
        order(plan, &uses, &clocks, &mut errors);
        in_place(plan, &uses, &mut errors);
        if one_arena {
            overlap(plan, &uses, &clocks, &mut errors);
        }
        ports(plan, &uses, &mut errors);
        calls(plan, &mut errors);
        share(plan, &mut errors);
        states::check(plan, &mut errors);
    }
    // Bounds are asked of kernels and plans that hold together.
    if errors.is_empty() {
        bounds(plan, &mut errors);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(InvalidPlan { errors })
    }
}

/// What a step does with a buffer.
#[derive(Clone, Copy)]
struct Use {
    buffer: BufferId,
    reads: bool,
    writes: bool,
}

fn step_uses(plan: &Plan, work: &Work) -> Vec<Use> {
    let make = |buffer: BufferId, reads, writes| Use { buffer, reads, writes };
    match work {
        Work::Launch { kernel, args } => {
            let params = plan.kernels.get(*kernel).into_iter().flat_map(|k| k.params.values());
            args.iter()
                .zip(params)
                .map(|(b, p)| make(*b, p.access.reads(), p.access.writes()))
                .collect()
        }
        Work::Call {
            operands,
            results,
            workspace,
            ..
        } => {
            let operands = operands.iter().map(|b| make(*b, true, false));
            operands
                .chain(results.iter().chain(workspace).map(|b| make(*b, false, true)))
                .collect()
        }
        Work::Copy { from, to } => vec![make(*from, true, false), make(*to, false, true)],
    }
}

fn uses(plan: &Plan) -> Table<StepId, Vec<Use>> {
    let of_step = |step: &Step| {
        let mut all: Vec<Use> = Vec::new();
        for one in step.works().flat_map(|work| step_uses(plan, work)) {
            match all.iter_mut().find(|known| known.buffer == one.buffer) {
                // A launch may take one buffer as several arguments; each is a use of its own.
                Some(known) if !step.choices.is_empty() => {
                    known.reads |= one.reads;
                    known.writes |= one.writes;
                }
                _ => all.push(one),
            }
        }
        all
    };
    plan.steps.values().map(of_step).collect()
}

/// Choices compute what the step's own work does: they write the same buffers, and are ordered by one size.
fn choices(plan: &Plan, id: StepId, step: &Step, errors: &mut Vec<PlanError>) {
    if step
        .choices
        .windows(2)
        .any(|pair| pair[0].from >= pair[1].from || pair[0].size != pair[1].size)
    {
        errors.push(PlanError::Choices { step: id });
    }
    let written = |work: &Work| -> BTreeSet<BufferId> {
        let workspace = match work {
            Work::Call { workspace, .. } => *workspace,
            Work::Launch { .. } | Work::Copy { .. } => None,
        };
        let writes = step_uses(plan, work).into_iter().filter(|u| u.writes);
        writes.map(|u| u.buffer).filter(|b| Some(*b) != workspace).collect()
    };
    let copies = |work: &Work| matches!(work, Work::Copy { .. });
    for choice in &step.choices {
        let problem = match &choice.work {
            work if copies(work) || copies(&step.work) => "is chosen among works of which one is a copy",
            work if written(work) != written(&step.work) => "writes other buffers than its own work",
            work if work.library_call().and_then(LibraryCall::as_collective).is_some() => {
                "is a collective, which all ranks must make"
            }
            _ => continue,
        };
        errors.push(PlanError::Choice {
            step: id,
            from: choice.from,
            problem,
        });
    }
}

fn references(plan: &Plan, errors: &mut Vec<PlanError>) {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut buffer = |at: String, b: BufferId| {
        if plan.buffers.get(b).is_none() {
            found.push((at, b.to_string()));
        }
    };
    for port in plan.inputs.iter().chain(&plan.outputs) {
        buffer(format!("port {:?}", port.name), port.buffer);
    }
    for (id, b) in plan.buffers.iter() {
        if let Place::Arena {
            in_place_of: Some(of), ..
        } = b.place
        {
            buffer(format!("buffer {id}"), of);
        }
    }
    for (id, step) in plan.steps.iter() {
        step.works()
            .flat_map(Work::buffers)
            .for_each(|b| buffer(format!("step {id}"), b));
    }
    for (id, step) in plan.steps.iter() {
        if plan.lanes.get(step.lane).is_none() {
            found.push((format!("step {id}"), step.lane.to_string()));
        }
        let unknown = step.kernels().filter(|k| plan.kernels.get(*k).is_none());
        found.extend(unknown.map(|k| (format!("step {id}"), k.to_string())));
    }
    for (id, b) in plan.buffers.iter() {
        if let Place::Arena { first, last, .. } = b.place {
            for step in [first, last].into_iter().filter(|s| plan.steps.get(*s).is_none()) {
                found.push((format!("buffer {id}"), step.to_string()));
            }
        }
    }
    errors.extend(found.into_iter().map(|(at, what)| PlanError::Unknown { at, what }));
}

/// For each step, the last step of each lane that is known to have finished when it starts (itself in its own).
fn clocks(plan: &Plan, errors: &mut Vec<PlanError>) -> Table<StepId, Vec<Option<StepId>>> {
    let mut clocks: Table<StepId, Vec<Option<StepId>>> = Table::new();
    let mut last: Vec<Option<StepId>> = vec![None; plan.lanes.len()];
    for (id, step) in plan.steps.iter() {
        let mut clock = vec![None; plan.lanes.len()];
        let lane = step.lane.index();
        for before in last[lane].iter().chain(&step.waits) {
            match clocks.get(*before) {
                Some(seen) => clock.iter_mut().zip(seen).for_each(|(c, s)| *c = (*c).max(*s)),
                None => errors.push(PlanError::Wait {
                    step: id,
                    wait: *before,
                }),
            }
        }
        clock[lane] = Some(id);
        last[lane] = Some(id);
        clocks.push(clock);
    }
    clocks
}

/// Says whether `earlier` has finished when `later` starts.
fn finished(plan: &Plan, clocks: &Table<StepId, Vec<Option<StepId>>>, earlier: StepId, later: StepId) -> bool {
    clocks[later][plan.steps[earlier].lane.index()] >= Some(earlier)
}

fn order(
    plan: &Plan,
    uses: &Table<StepId, Vec<Use>>,
    clocks: &Table<StepId, Vec<Option<StepId>>>,
    errors: &mut Vec<PlanError>,
) {
    let mut writers: Table<BufferId, Option<StepId>> = plan.buffers.keys().map(|_| None).collect();
    for (id, step) in plan.steps.iter() {
        choices(plan, id, step, errors);
        for work in step.works() {
            let Work::Launch { kernel, args } = work else { continue };
            let kernel = &plan.kernels[*kernel];
            if kernel.params.len() != args.len() {
                errors.push(PlanError::Arguments {
                    step: id,
                    got: args.len(),
                    expected: kernel.params.len(),
                });
            }
            for (param, arg) in kernel.params.values().zip(args) {
                let ty = &plan.buffers[*arg].ty;
                let (have, need) = (ty.elements(), &param.elements);
                let at_hints = || have.hint(&plan.symbols) >= need.hint(&plan.symbols);
                if ty.dtype != param.dtype || (have != *need && !at_hints()) {
                    errors.push(PlanError::Argument {
                        step: id,
                        buffer: *arg,
                        param: param.name.clone(),
                        got: ty.to_string(),
                        expected: format!("{} with {} elements", param.dtype, param.elements),
                    });
                }
            }
        }
        for u in &uses[id] {
            let place = &plan.buffers[u.buffer].place;
            let handed_over = match place {
                Place::Arena {
                    in_place_of: Some(of), ..
                } => writers[*of],
                _ => None,
            };
            if let Place::Arena { first, last, .. } = *place
                && (id < first || id > last)
            {
                errors.push(PlanError::Lifetime {
                    step: id,
                    buffer: u.buffer,
                    first,
                    last,
                });
            }
            if matches!(place, Place::Streamed(_)) && !matches!(step.work, Work::Copy { .. }) {
                errors.push(PlanError::OnHost {
                    step: id,
                    buffer: u.buffer,
                });
            }
            let writer = writers[u.buffer].or(handed_over);
            match writer {
                Some(writer) if !finished(plan, clocks, writer, id) => errors.push(PlanError::Unordered {
                    step: id,
                    buffer: u.buffer,
                    writer,
                }),
                None if u.reads && matches!(place, Place::Arena { .. } | Place::Output) => {
                    errors.push(PlanError::Unwritten {
                        step: id,
                        buffer: u.buffer,
                    });
                }
                _ => {}
            }
        }
        for u in uses[id].iter().filter(|u| u.writes) {
            let place = match plan.buffers[u.buffer].place {
                Place::Input => "an input",
                Place::Constant(_) | Place::Streamed(_) => "a constant",
                Place::Output | Place::Arena { .. } => {
                    writers[u.buffer] = Some(id);
                    continue;
                }
            };
            errors.push(PlanError::ReadOnly {
                step: id,
                buffer: u.buffer,
                place,
            });
        }
    }
    for port in &plan.outputs {
        let given = matches!(plan.buffers[port.buffer].place, Place::Input | Place::Constant(_));
        if !given && writers[port.buffer].is_none() {
            errors.push(PlanError::Output {
                name: port.name.clone(),
                buffer: port.buffer,
            });
        }
    }
    if plan.checks.len() > plan.outputs.len() {
        errors.push(PlanError::Checks {
            checks: plan.checks.len(),
            outputs: plan.outputs.len(),
        });
    }
    for (check, port) in plan.conditions() {
        if port.ty != check.ty() {
            errors.push(PlanError::Check {
                message: port.name.clone(),
                ty: port.ty.clone(),
                expected: check.ty(),
            });
        }
    }
    for port in &plan.inputs {
        if plan.buffers[port.buffer].place != Place::Input {
            errors.push(PlanError::Input {
                name: port.name.clone(),
                buffer: port.buffer,
            });
        }
    }
}

/// Memory that the caller gives is found through the ports.
fn ports(plan: &Plan, uses: &Table<StepId, Vec<Use>>, errors: &mut Vec<PlanError>) {
    let mut named: Table<BufferId, bool> = plan.buffers.keys().map(|_| false).collect();
    for (list, place) in [(&plan.inputs, Place::Input), (&plan.outputs, Place::Output)] {
        for port in list {
            let buffer = &plan.buffers[port.buffer];
            named[port.buffer] |= buffer.place == place;
            if port.ty.dtype != buffer.ty.dtype || port.ty.elements() != buffer.ty.elements() {
                errors.push(PlanError::Port {
                    name: port.name.clone(),
                    buffer: port.buffer,
                    got: port.ty.to_string(),
                    expected: buffer.ty.to_string(),
                });
            }
        }
    }
    for (step, uses) in uses.iter() {
        for u in uses {
            let given = matches!(plan.buffers[u.buffer].place, Place::Input | Place::Output);
            if given && !named[u.buffer] {
                errors.push(PlanError::NoPort { step, buffer: u.buffer });
            }
        }
    }
}

/// Libraries take sizes from the op: its operands and results must be the buffers' own.
fn calls(plan: &Plan, errors: &mut Vec<PlanError>) {
    let works = plan
        .steps
        .iter()
        .flat_map(|(id, step)| step.works().map(move |work| (id, work)));
    for (step, work) in works {
        let Work::Call {
            call,
            operands,
            results,
            algorithm,
            ..
        } = work
        else {
            continue;
        };
        let ty = |b: &BufferId| &plan.buffers[*b].ty;
        let given: Vec<&TensorType> = operands.iter().map(ty).collect();
        let problem = match infer(&Op::Call(call.clone()), &given, &plan.symbols) {
            Err(error) => Some(error.to_string()),
            Ok(types) => {
                let fits = |(want, b): (&TensorType, &BufferId)| {
                    want.dtype == ty(b).dtype && want.elements() == ty(b).elements()
                };
                let fit = types.len() == results.len() && types.iter().zip(results).all(fits);
                let list = |types: &mut dyn Iterator<Item = &TensorType>| {
                    types.map(ToString::to_string).collect::<Vec<_>>().join(", ")
                };
                (!fit).then(|| {
                    let (made, have) = (list(&mut types.iter()), list(&mut results.iter().map(ty)));
                    format!("it makes {made}, but its results are {have}")
                })
            }
        };
        let unasked = (algorithm.is_some() && !call.has_algorithms())
            .then(|| "it names an algorithm, and its library is asked for none".to_owned());
        errors.extend(problem.or(unasked).map(|problem| PlanError::Call {
            step,
            call: call.name(),
            problem,
        }));
    }
}

/// Says of which part of a model the plan is, if it is of a part.
fn share(plan: &Plan, errors: &mut Vec<PlanError>) {
    // The planner leaves it to who knows of the other ranks.
    let Some(share) = &plan.share else { return };
    let counts = (share.inputs.len(), share.outputs.len());
    if !(2..=Collective::MOST_RANKS).contains(&share.ranks)
        || share.rank >= share.ranks
        || counts != (plan.inputs.len(), plan.outputs.len())
    {
        errors.push(PlanError::Share {
            rank: share.rank,
            ranks: share.ranks,
            inputs: counts.0,
            outputs: counts.1,
        });
    }
    if let Some(stage) = &share.stage {
        let later = |source: &Source| matches!(source, Source::Stage { stage, .. } if *stage >= share.rank);
        let cut = share.inputs.iter().chain(&share.outputs).any(Option::is_some);
        if stage.inputs.len() != plan.inputs.len()
            || stage.results.len() != plan.results().len()
            || stage.inputs.iter().any(later)
            || cut
        {
            errors.push(PlanError::Stage {
                stage: share.rank,
                inputs: stage.inputs.len(),
                results: stage.results.len(),
            });
        }
    }
    let cut = share.inputs.iter().zip(&plan.inputs);
    for (axis, port) in cut.chain(share.outputs.iter().zip(&plan.outputs)) {
        if let Some(axis) = *axis
            && port.ty.shape.get(axis as usize).is_none()
        {
            errors.push(PlanError::Cut {
                name: port.name.clone(),
                axis,
                ty: port.ty.clone(),
            });
        }
    }
    for (step, s) in plan.steps.iter() {
        if let Work::Call { call, .. } = &s.work
            && let Some(collective) = call.as_collective()
            && collective.ranks != share.ranks
        {
            errors.push(PlanError::Ranks {
                step,
                got: collective.ranks,
                expected: share.ranks,
            });
        }
    }
}

/// Checks at the sizes that are expected that each kernel's buffers can be, and that a convolution's facts are those of
/// its operands. Accesses that are not proved are no error here: the CPU looks at them when it runs, and of a GPU
/// kernel the code that an artifact holds decides, which no plan binds.
fn bounds(plan: &Plan, errors: &mut Vec<PlanError>) {
    let sizes = hints(&plan.symbols);
    if plan.check_sizes(&sizes).is_err() {
        return;
    }
    for kernel in plan.kernels.values() {
        match unproven(kernel, &sizes) {
            Ok(_) => {}
            Err(BoundsError::Size { .. }) if !plan.symbols.is_empty() => {}
            Err(error) => errors.push(PlanError::Sizes(error)),
        }
    }
}

fn in_place(plan: &Plan, uses: &Table<StepId, Vec<Use>>, errors: &mut Vec<PlanError>) {
    for (id, buffer) in plan.buffers.iter() {
        let Place::Arena {
            first,
            in_place_of: Some(of),
            ..
        } = buffer.place
        else {
            continue;
        };
        let problem = match plan.buffers[of].place {
            _ if of >= id => Some("that buffer comes later in the table"),
            Place::Arena { last, .. } if last > first => Some("that buffer is read after this one is written"),
            Place::Arena { .. } if !uses[first].iter().any(|u| u.buffer == id && u.writes) => {
                Some("its first step does not write it")
            }
            Place::Arena { .. } => None,
            _ => Some("that buffer is not in the arena"),
        };
        errors.extend(problem.map(|problem| PlanError::InPlace {
            buffer: id,
            of,
            problem,
        }));
    }
}

fn overlap(
    plan: &Plan,
    uses: &Table<StepId, Vec<Use>>,
    clocks: &Table<StepId, Vec<Option<StepId>>>,
    errors: &mut Vec<PlanError>,
) {
    let placement = match place(plan, &hints(&plan.symbols)) {
        Ok(placement) => placement,
        Err(error) => {
            errors.push(PlanError::Place(error.to_string()));
            return;
        }
    };
    let mut users: Table<BufferId, Vec<StepId>> = plan.buffers.keys().map(|_| Vec::new()).collect();
    for (step, uses) in uses.iter() {
        uses.iter().for_each(|u| users[u.buffer].push(step));
    }
    // Buffers handed on in place share bytes by intent.
    let mut root: Table<BufferId, BufferId> = plan.buffers.keys().collect();
    for (id, b) in plan.buffers.iter() {
        if let Place::Arena {
            in_place_of: Some(of), ..
        } = b.place
            && of < id
        {
            root[id] = root[of];
        }
    }
    let mut ranges: Vec<(usize, usize, BufferId)> = plan
        .buffers
        .keys()
        .filter_map(|id| placement.offsets[id].map(|at| (at, at + placement.sizes[id], id)))
        .filter(|(start, end, _)| start < end)
        .collect();
    ranges.sort_unstable();
    for (i, &(_, end, a)) in ranges.iter().enumerate() {
        for &(start, _, b) in &ranges[i + 1..] {
            if start >= end {
                break;
            }
            let all_before = |x: BufferId, y: BufferId| {
                users[x]
                    .iter()
                    .all(|u| users[y].iter().all(|v| u < v && finished(plan, clocks, *u, *v)))
            };
            if root[a] != root[b] && !all_before(a, b) && !all_before(b, a) {
                errors.push(PlanError::Overlap { a, b });
            }
        }
    }
}

#[cfg(test)]
mod tests;
