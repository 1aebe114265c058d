//! Stages: several plans that follow each other, one on each device, each a run of the layers of one model.
//!
//! Before: one plan for each stage, each with a [`Stage`] that says where its inputs come from. After ([`whole`]): the
//! one plan that they are together. Its steps are those of all stages in order; a copy carries each value that crosses
//! from one stage to the next, on a lane of its own, and the steps that read the value wait for that copy. So the
//! meaning of stages, what their set must satisfy, and what a missing wait is are those of any plan:
//! [`evaluate`](super::eval::evaluate) and [`verify_order`](super::verify::verify_order) say. (Which bytes the buffers
//! of a stage share is its own plan's: each stage has an arena of its own.)
//!
//! ```text
//! stage 0: x -> h        s0 l0 launch (x, h)
//!                   -->  s1 l1 copy h -> h'  after s0
//! stage 1: h -> y        s2 l2 launch (h', y) after s1
//! ```

use serde::{Deserialize, Serialize};

use super::{BufferId, KernelId, Lane, LaneId, Place, Plan, Port, Requirement, Step, StepId, Work};
use crate::dim::{Dim, Symbols};
use crate::entity::{Entity, Table};
use crate::schedule::LaneKind;
use crate::types::TensorType;

/// Where a stage's ports belong.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stage {
    /// Where each input comes from, in the order of the plan's.
    pub inputs: Vec<Source>,
    /// Which of the model's results each result is; None for one that only later stages read. Conditions are not among
    /// them.
    pub results: Vec<Option<u32>>,
}

/// Where an input of a stage comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Source {
    /// The model's input of this number.
    Model(u32),
    /// A result of an earlier stage.
    Stage { stage: u32, result: u32 },
}

/// Why plans are not the stages of one model.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StagesError {
    #[error("stage {stage} of {stages} does not say where its ports belong")]
    NoStage { stage: usize, stages: usize },
    #[error(
        "stage {stage} has {inputs} inputs and {results} results, but says where {of_inputs} and {of_results} belong"
    )]
    Counts {
        stage: usize,
        inputs: usize,
        results: usize,
        of_inputs: usize,
        of_results: usize,
    },
    #[error("stage {stage}: input {input:?} comes from result {result} of stage {from}, which does not come before it")]
    Order {
        stage: usize,
        input: String,
        from: u32,
        result: u32,
    },
    #[error("stage {stage}: input {input:?} is {ty}, but comes from {from:?}, which is {made}")]
    Type {
        stage: usize,
        input: String,
        ty: TensorType,
        from: String,
        made: TensorType,
    },
    #[error("{what} {number} of the model is in no stage, though later ones are")]
    Missing { what: &'static str, number: u32 },
    #[error("{what} {number} of the model is {first:?} in one stage and {other:?} in another")]
    Differs {
        what: &'static str,
        number: u32,
        first: String,
        other: String,
    },
}

/// What crosses from one stage to a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    pub from: u32,
    pub result: u32,
    pub to: u32,
    pub input: u32,
}

/// The values that cross, in the order of the stages that read them.
///
/// # Errors
/// Plans that are not the stages of one model.
pub fn crossings(plans: &[&Plan]) -> Result<Vec<Crossing>, StagesError> {
    let mut crossings = Vec::new();
    for (to, plan) in plans.iter().enumerate() {
        let stage = stage_of(plans, to)?;
        for (input, (source, port)) in stage.inputs.iter().zip(&plan.inputs).enumerate() {
            let Source::Stage { stage: from, result } = *source else {
                continue;
            };
            let before = plans[..to].get(from as usize);
            let made = before.and_then(|plan| plan.results().get(result as usize));
            let Some(made) = made else {
                return Err(StagesError::Order {
                    stage: to,
                    input: port.name.clone(),
                    from,
                    result,
                });
            };
            if made.ty != port.ty {
                return Err(StagesError::Type {
                    stage: to,
                    input: port.name.clone(),
                    ty: port.ty.clone(),
                    from: made.name.clone(),
                    made: made.ty.clone(),
                });
            }
            let (to, input) = (to as u32, input as u32);
            crossings.push(Crossing {
                from,
                result,
                to,
                input,
            });
        }
    }
    Ok(crossings)
}

fn stage_of<'a>(plans: &[&'a Plan], stage: usize) -> Result<&'a Stage, StagesError> {
    let plan = plans[stage];
    let stages = plans.len();
    let of = plan.share.as_ref().and_then(|share| share.stage.as_ref());
    let of = of.ok_or(StagesError::NoStage { stage, stages })?;
    let (inputs, results) = (plan.inputs.len(), plan.results().len());
    if (of.inputs.len(), of.results.len()) != (inputs, results) {
        return Err(StagesError::Counts {
            stage,
            inputs,
            results,
            of_inputs: of.inputs.len(),
            of_results: of.results.len(),
        });
    }
    Ok(of)
}

/// More ports than any model has: what a damaged file may name.
const MOST_PORTS: usize = 1 << 16;

/// The ports of the model, each with where it was first found.
fn ports<'a>(
    what: &'static str,
    found: impl Iterator<Item = (u32, &'a Port, BufferId)>,
) -> Result<Vec<Port>, StagesError> {
    let mut all: Vec<Option<Port>> = Vec::new();
    for (number, port, buffer) in found {
        let at = number as usize;
        // No model has so many: the one before is missing.
        if at > MOST_PORTS {
            let number = number - 1;
            return Err(StagesError::Missing { what, number });
        }
        all.resize(all.len().max(at + 1), None);
        match all.get_mut(at) {
            Some(Some(known)) if known.name != port.name || known.ty != port.ty => {
                return Err(StagesError::Differs {
                    what,
                    number,
                    first: known.name.clone(),
                    other: port.name.clone(),
                });
            }
            Some(slot @ None) => {
                *slot = Some(Port { buffer, ..port.clone() });
            }
            _ => {}
        }
    }
    let numbered = all.into_iter().enumerate();
    let some = |(number, port): (usize, Option<Port>)| {
        port.ok_or(StagesError::Missing {
            what,
            number: number as u32,
        })
    };
    numbered.map(some).collect()
}

/// How far the ids of a stage are moved.
#[derive(Clone, Copy)]
struct Moved {
    kernels: usize,
    buffers: usize,
    steps: usize,
    lanes: usize,
}

impl Moved {
    fn kernel(&self, id: KernelId) -> KernelId {
        KernelId::new(id.index() + self.kernels)
    }

    fn buffer(&self, id: BufferId) -> BufferId {
        BufferId::new(id.index() + self.buffers)
    }

    fn step(&self, id: StepId) -> StepId {
        StepId::new(id.index() + self.steps)
    }

    fn work(&self, work: &Work) -> Work {
        let list = |ids: &[BufferId]| ids.iter().map(|id| self.buffer(*id)).collect();
        match work {
            Work::Launch { kernel, args } => Work::launch(self.kernel(*kernel), list(args)),
            Work::Call {
                call,
                operands,
                results,
                workspace,
                algorithm,
            } => Work::Call {
                call: call.clone(),
                operands: list(operands),
                results: list(results),
                workspace: workspace.map(|id| self.buffer(id)),
                algorithm: algorithm.clone(),
            },
            Work::Copy { from, to } => Work::Copy {
                from: self.buffer(*from),
                to: self.buffer(*to),
            },
        }
    }

    fn place(&self, place: &Place) -> Place {
        match place {
            Place::Arena {
                first,
                last,
                in_place_of,
            } => Place::Arena {
                first: self.step(*first),
                last: self.step(*last),
                in_place_of: in_place_of.map(|of| self.buffer(of)),
            },
            other => other.clone(),
        }
    }
}

/// Returns the plan that the stages are together; see the [module](self). Its ports are the model's, and then come all
/// conditions. The steps of stage `s` begin at the second result's entry `s`, behind the copies of what crosses into
/// it.
///
/// # Errors
/// Plans that are not the stages of one model. What is wrong inside of a plan is for its verifier.
pub fn whole(plans: &[&Plan]) -> Result<(Plan, Vec<StepId>), StagesError> {
    let crossings = crossings(plans)?;
    let mut moved: Vec<Moved> = Vec::with_capacity(plans.len());
    let mut whole = Plan {
        target: plans.first().map_or(crate::target::Target::cpu(), |plan| plan.target),
        symbols: Symbols::default(),
        kernels: Table::new(),
        buffers: Table::new(),
        steps: Table::new(),
        lanes: Table::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        checks: plans.iter().flat_map(|plan| plan.checks.clone()).collect(),
        flops: Dim::Const(0),
        requirements: Vec::<Requirement>::new(),
        overlap: crate::plan::Overlap::default(),
        streaming: None,
        share: None,
        states: plans.first().map_or(Vec::new(), |plan| plan.states.clone()),
    };
    for (number, plan) in plans.iter().enumerate() {
        let into: Vec<Crossing> = crossings.iter().filter(|c| c.to as usize == number).copied().collect();
        let at = Moved {
            kernels: whole.kernels.len(),
            buffers: whole.buffers.len(),
            steps: whole.steps.len() + into.len(),
            lanes: whole.lanes.len() + usize::from(!into.is_empty()),
        };
        moved.push(at);
        for (symbol, info) in &plan.symbols {
            whole.symbols.entry(symbol.clone()).or_insert(*info);
        }
        plan.kernels.values().for_each(|kernel| {
            whole.kernels.push(kernel.clone());
        });
        for buffer in plan.buffers.values() {
            let place = at.place(&buffer.place);
            whole.buffers.push(super::Buffer {
                place,
                ..buffer.clone()
            });
        }
        whole.flops = whole.flops + plan.flops.clone();
        for requirement in &plan.requirements {
            if !whole.requirements.contains(requirement) {
                whole.requirements.push(requirement.clone());
            }
        }
        if !into.is_empty() {
            whole.lanes.push(Lane { kind: LaneKind::Upload });
        }
        // What each buffer of an input waits for.
        let mut copied: Vec<(BufferId, StepId)> = Vec::new();
        for crossing in &into {
            let before = moved[crossing.from as usize];
            let from = before.buffer(plans[crossing.from as usize].results()[crossing.result as usize].buffer);
            let to = at.buffer(plan.inputs[crossing.input as usize].buffer);
            let writer = whole.writer(from);
            let waits = writer.into_iter().collect();
            let (lane, work) = (LaneId::new(at.lanes - 1), Work::Copy { from, to });
            let step = whole.steps.push(Step::new(lane, waits, work, Dim::Const(0)));
            copied.push((to, step));
        }
        plan.lanes.values().for_each(|lane| {
            whole.lanes.push(lane.clone());
        });
        for step in plan.steps.values() {
            let mut step = step.clone();
            step.lane = LaneId::new(step.lane.index() + at.lanes);
            step.waits.iter_mut().for_each(|wait| *wait = at.step(*wait));
            step.works_mut().for_each(|work| *work = at.work(work));
            let used = |buffer: &BufferId| step.works().any(|work| work.buffers().contains(buffer));
            let crossed: Vec<StepId> = (copied.iter())
                .filter(|(buffer, _)| used(buffer))
                .map(|(_, step)| *step)
                .collect();
            step.waits.extend(crossed);
            whole.steps.push(step);
        }
    }
    let stages = (0..plans.len()).map(|stage| stage_of(plans, stage));
    let stages: Vec<&Stage> = stages.collect::<Result<_, _>>()?;
    let inputs = plans.iter().zip(&stages).zip(&moved).flat_map(|((plan, stage), at)| {
        stage
            .inputs
            .iter()
            .zip(&plan.inputs)
            .filter_map(|(source, port)| match source {
                Source::Model(number) => Some((*number, port, at.buffer(port.buffer))),
                Source::Stage { .. } => None,
            })
    });
    whole.inputs = ports("input", inputs)?;
    let results = plans.iter().zip(&stages).zip(&moved).flat_map(|((plan, stage), at)| {
        let each = stage.results.iter().zip(plan.results());
        each.filter_map(|(number, port)| Some(((*number)?, port, at.buffer(port.buffer))))
    });
    whole.outputs = ports("result", results)?;
    for (plan, at) in plans.iter().zip(&moved) {
        whole.outputs.extend(plan.conditions().map(|(_, port)| Port {
            buffer: at.buffer(port.buffer),
            ..port.clone()
        }));
    }
    // An input that several stages read is one: copies of the first's.
    whole.join_inputs(plans, &stages, &moved);
    whole.settle(&crossings, plans, &moved);
    let starts = moved.iter().map(|at| StepId::new(at.steps)).collect();
    Ok((whole, starts))
}

impl Plan {
    /// The last step that writes a buffer.
    fn writer(&self, buffer: BufferId) -> Option<StepId> {
        let writes = |work: &Work| match work {
            Work::Launch { kernel, args } => {
                let params = self.kernels.get(*kernel).into_iter().flat_map(|k| k.params.values());
                args.iter()
                    .zip(params)
                    .any(|(arg, param)| *arg == buffer && param.access != crate::kernel::Access::Read)
            }
            Work::Call { results, .. } => results.contains(&buffer),
            Work::Copy { to, .. } => *to == buffer,
        };
        let mut last_first = self.steps.iter().rev();
        last_first.find(|(_, step)| step.works().any(writes)).map(|(id, _)| id)
    }

    /// Lets all stages read one buffer for each input of the model.
    fn join_inputs(&mut self, plans: &[&Plan], stages: &[&Stage], moved: &[Moved]) {
        let mut other: Vec<(BufferId, BufferId)> = Vec::new();
        for ((plan, stage), at) in plans.iter().zip(stages).zip(moved) {
            for (source, port) in stage.inputs.iter().zip(&plan.inputs) {
                let Source::Model(number) = source else { continue };
                let (own, first) = (at.buffer(port.buffer), self.inputs[*number as usize].buffer);
                if own != first {
                    other.push((own, first));
                }
            }
        }
        if other.is_empty() {
            return;
        }
        let one = |id: &mut BufferId| {
            if let Some((_, first)) = other.iter().find(|(own, _)| own == id) {
                *id = *first;
            }
        };
        for step in self.steps.values_mut() {
            step.works_mut().flat_map(Work::buffers_mut).for_each(one);
        }
        self.outputs.iter_mut().for_each(|port| one(&mut port.buffer));
    }

    /// Gives what crosses, and is no port of the model, its lifetime in the one plan.
    fn settle(&mut self, crossings: &[Crossing], plans: &[&Plan], moved: &[Moved]) {
        let mut crossing: Vec<BufferId> = Vec::new();
        for c in crossings {
            let (from, to) = (moved[c.from as usize], moved[c.to as usize]);
            crossing.push(from.buffer(plans[c.from as usize].results()[c.result as usize].buffer));
            crossing.push(to.buffer(plans[c.to as usize].inputs[c.input as usize].buffer));
        }
        // A result that no stage reads any more, or that was an input's buffer, ends where it begins.
        let given: Vec<BufferId> = (self.buffers.iter())
            .filter(|(_, buffer)| matches!(buffer.place, Place::Input | Place::Output))
            .map(|(id, _)| id)
            .collect();
        crossing.extend(given);
        crossing.sort_unstable();
        crossing.dedup();
        for id in crossing {
            let is_port = self.inputs.iter().chain(&self.outputs).any(|port| port.buffer == id);
            if is_port || !matches!(self.buffers[id].place, Place::Input | Place::Output) {
                continue;
            }
            let uses = |step: &Step| step.works().any(|work| work.buffers().contains(&id));
            let mut users = self.steps.iter().filter(|(_, step)| uses(step));
            let Some((first, _)) = users.next() else { continue };
            let last = users.next_back().map_or(first, |(last, _)| last);
            self.buffers[id].place = Place::Arena {
                first,
                last,
                in_place_of: None,
            };
        }
        // What a crossing value became, and a port of the model, was copied to: an output is an output.
        for port in &self.outputs {
            if self.buffers[port.buffer].place == Place::Input && !self.inputs.iter().any(|i| i.buffer == port.buffer) {
                self.buffers[port.buffer].place = Place::Output;
            }
        }
    }
}

impl Work {
    /// Every buffer that the work names.
    pub fn buffers(&self) -> Vec<BufferId> {
        match self {
            Work::Launch { args, .. } => args.clone(),
            Work::Call {
                operands,
                results,
                workspace,
                ..
            } => operands.iter().chain(results).chain(workspace).copied().collect(),
            Work::Copy { from, to } => vec![*from, *to],
        }
    }

    fn buffers_mut(&mut self) -> Vec<&mut BufferId> {
        match self {
            Work::Launch { args, .. } => args.iter_mut().collect(),
            Work::Call {
                operands,
                results,
                workspace,
                ..
            } => operands.iter_mut().chain(results).chain(workspace).collect(),
            Work::Copy { from, to } => vec![from, to],
        }
    }
}
