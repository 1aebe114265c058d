//! A plan at one form and one set of sizes, in two parts.
//!
//! [`Placed`] has a place for every buffer and suits all sizes of which no buffer outgrows its place: it is made for a
//! capacity. [`Prepared`] has what each step enqueues at exact sizes: cheap to make, and kept for the sizes of the last
//! runs.
//!
//! Addresses in memory that each run has of its own are offsets here.

use std::sync::Arc;

use ir::dim::{Bindings, DimError};
use ir::entity::Table;
use ir::graph::ConstId;
use ir::kernel::{LaunchError, LaunchSize};
use ir::plan::arena::{ALIGNMENT, Placement, place_except};
use ir::plan::{BufferId, KernelId, Place, Plan, StepId, Work};

use super::constants::Constants;
use super::driver::{Direction, Launch, RawFunction};
use super::facts::{Named, PlanFacts};
use super::form::{Form, InputForm, Outside, PortRef, host_port};
use super::order::{Order, Ordered};
use crate::checks::{check_arguments, check_proved};
use crate::error::RuntimeError;
use crate::library::{Call, Libraries};
use crate::tensor::Where;

/// What preparing needs of a loaded program.
pub(super) struct Loaded<'a> {
    pub plan: &'a Plan,
    pub facts: &'a PlanFacts,
    pub functions: &'a Table<KernelId, RawFunction>,
    pub constants: &'a Constants,
    pub libraries: &'a Libraries,
}

/// See the module.
pub(super) struct Placed {
    pub form: Form,
    /// The sizes that there is room for.
    pub capacity: Bindings,
    pub placement: Placement,
    /// Where the bytes of each port that is on the host are in staging memory.
    pub inputs: Vec<Option<usize>>,
    pub outputs: Vec<OutputFrom>,
    /// Bytes of staging memory.
    pub staging: usize,
    spots: Table<BufferId, Option<Spot>>,
}

/// Where an output is found after a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OutputFrom {
    Staging(usize),
    /// In memory of its own on the device.
    Device,
    /// In the memory of a donated input.
    Donated(u32),
    /// An input port's value, handed through.
    Input(usize),
    /// An earlier port's value.
    Same(usize),
    Constant(ConstId),
}

/// See the module.
pub(super) struct Prepared {
    pub placed: Arc<Placed>,
    pub bindings: Arc<Bindings>,
    pub steps: Vec<Enqueue>,
    /// What the steps wait for.
    pub order: Order,
    /// Which of its works each step does.
    chosen: Table<StepId, usize>,
    /// The arguments of all launches, one after the other, and what is added to some of them.
    pub words: Vec<u64>,
    pub bases: Vec<(u32, Base)>,
    /// Bytes of each port.
    pub input_bytes: Vec<usize>,
    pub output_bytes: Vec<usize>,
    pub output_shapes: Vec<Vec<usize>>,
}

/// What is added to an argument once a run has its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    Arena,
    Port(PortRef),
}

/// What a step enqueues.
pub(super) enum Enqueue {
    /// No points, or no bytes, or what it would copy is in its place.
    Nothing,
    Launch {
        launch: Launch,
        /// Which of the words are its arguments.
        first: u32,
        count: u32,
    },
    /// Copies an input that is on the host: through staging memory, from `at` on.
    Upload {
        input: u32,
        at: usize,
        to: Spot,
        bytes: usize,
        direction: Direction,
    },
    Copy {
        from: Spot,
        to: Spot,
        bytes: usize,
        direction: Direction,
    },
    Call {
        call: Call,
        buffers: Vec<Spot>,
        /// Where the plan has room for it; else what the call takes is the lane's.
        workspace: Option<Spot>,
    },
}

/// Where a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    Arena(usize),
    Address(u64),
    /// A weight that stays on the host.
    Pinned(u64),
    Staging(usize),
    Port(PortRef),
}

fn damaged(what: String) -> RuntimeError {
    RuntimeError::Program(what)
}

impl Placed {
    /// Finds a place for every buffer at a capacity.
    pub fn new(loaded: &Loaded<'_>, form: &Form, capacity: Bindings) -> Result<Placed, RuntimeError> {
        let Loaded { plan, facts, .. } = *loaded;
        let outside = Outside::new(plan, facts, form);
        let placement = place_except(plan, &capacity, |b| outside.of(facts, b).is_some())?;
        let mut staging = 0;
        let mut stage = |buffer: BufferId| {
            let at = staging;
            staging += placement.sizes[buffer].next_multiple_of(ALIGNMENT).max(ALIGNMENT);
            at
        };
        let mut copied: Table<BufferId, bool> = plan.buffers.keys().map(|_| false).collect();
        for step in plan.steps.values() {
            if let Work::Copy { from, to } = step.work {
                (copied[from], copied[to]) = (true, true);
            }
        }
        let mut spots: Table<BufferId, Option<Spot>> = plan.buffers.keys().map(|_| None).collect();
        let mut inputs = Vec::with_capacity(plan.inputs.len());
        for (index, port) in plan.inputs.iter().enumerate() {
            let host = form.inputs[index] == InputForm::Host;
            let at = (host && copied[port.buffer]).then(|| stage(port.buffer));
            spots[port.buffer] = match at {
                Some(at) => Some(Spot::Staging(at)),
                None => Some(Spot::Port(PortRef::Input(index as u32))),
            };
            inputs.push(at);
        }
        let mut outputs = Vec::with_capacity(plan.outputs.len());
        for (index, port) in plan.outputs.iter().enumerate() {
            let output = PortRef::Output(index as u32);
            outputs.push(match plan.buffers[port.buffer].place {
                Place::Constant(id) | Place::Streamed(id) => OutputFrom::Constant(id),
                Place::Input => match host_port(plan, port.buffer) {
                    Some(input) => OutputFrom::Input(input.index()),
                    None => return Err(damaged(format!("output {:?} is no input", port.name))),
                },
                Place::Output if !copied[port.buffer] => {
                    let what = format!("no step copies output {:?} to the host", port.name);
                    return Err(damaged(what));
                }
                Place::Output => match (form.outputs[index], outside.taken[index], host_port(plan, port.buffer)) {
                    (_, _, Some(first)) if first.index() < index => OutputFrom::Same(first.index()),
                    (Where::Host, ..) => {
                        let at = stage(port.buffer);
                        spots[port.buffer] = Some(Spot::Staging(at));
                        OutputFrom::Staging(at)
                    }
                    (Where::Device, Some(input), _) => {
                        spots[port.buffer] = Some(Spot::Port(PortRef::Input(input)));
                        OutputFrom::Donated(input)
                    }
                    (Where::Device, None, _) => {
                        spots[port.buffer] = Some(Spot::Port(output));
                        OutputFrom::Device
                    }
                },
                Place::Arena { .. } => {
                    return Err(damaged(format!("output {:?} stays on the device", port.name)));
                }
            });
        }
        for (id, buffer) in plan.buffers.iter() {
            match buffer.place {
                Place::Arena { .. } => {
                    let arena = || placement.offsets[id].map(Spot::Arena);
                    spots[id] = outside.of(facts, id).map(Spot::Port).or_else(arena);
                }
                Place::Constant(constant) => spots[id] = loaded.constants.address(constant).map(Spot::Address),
                Place::Streamed(constant) => spots[id] = loaded.constants.pinned_address(constant).map(Spot::Pinned),
                Place::Input | Place::Output => {}
            }
        }
        Ok(Placed {
            form: form.clone(),
            capacity,
            placement,
            inputs,
            outputs,
            staging,
            spots,
        })
    }

    /// Whether every buffer has room for these sizes.
    pub fn fits(&self, sizes: &Table<BufferId, usize>) -> bool {
        sizes
            .values()
            .zip(self.placement.sizes.values())
            .all(|(size, room)| size <= room)
    }

    fn spot(&self, loaded: &Loaded<'_>, buffer: BufferId, step: StepId) -> Result<Spot, RuntimeError> {
        self.spots[buffer].ok_or_else(|| match loaded.plan.buffers[buffer].place {
            Place::Constant(id) | Place::Streamed(id) => {
                damaged(format!("step {step} uses constant {id}, which is not there"))
            }
            _ => damaged(format!("step {step} uses {buffer}, which has no place")),
        })
    }

    /// A buffer that kernels work on.
    fn on_device(&self, loaded: &Loaded<'_>, buffer: BufferId, step: StepId) -> Result<Spot, RuntimeError> {
        let place = &loaded.plan.buffers[buffer].place;
        if matches!(place, Place::Input | Place::Output | Place::Streamed(_)) {
            return Err(damaged(format!(
                "step {step} works on {buffer} ({}), which is in the host's memory; compile for a GPU",
                loaded.plan.buffers[buffer].name
            )));
        }
        self.spot(loaded, buffer, step)
    }
}

impl Prepared {
    /// Works out what each step enqueues at sizes that fit.
    pub fn new(
        loaded: &Loaded<'_>,
        placed: Arc<Placed>,
        bindings: Arc<Bindings>,
        sizes: &Table<BufferId, usize>,
    ) -> Result<Prepared, RuntimeError> {
        let Loaded { plan, facts, .. } = *loaded;
        plan.check_sizes(&bindings)?;
        for (id, index) in &facts.uncertain {
            if let Some(Work::Launch { kernel, args }) = plan.steps[*id].works().nth(*index) {
                check_arguments(plan, &plan.kernels[*kernel], args, sizes, &bindings)?;
            }
        }
        for kernel in &facts.sized {
            check_proved(&plan.kernels[*kernel], &bindings)?;
        }
        let mut launches: Table<KernelId, Option<LaunchSize>> = plan.kernels.keys().map(|_| None).collect();
        let (mut words, mut bases) = (Vec::new(), Vec::new());
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut chosen = Table::new();
        for (id, step) in plan.steps.iter() {
            chosen.push(step.chosen(&bindings)?);
            steps.push(match step.at(&bindings)? {
                Work::Launch { kernel: k, args } => {
                    let k = *k;
                    let kernel = &plan.kernels[k];
                    let size = match launches[k] {
                        Some(size) => size,
                        None => *launches[k].insert(kernel.launch_size(&bindings).map_err(of_launch)?),
                    };
                    if size.grid.contains(&0) || size.block == 0 {
                        Enqueue::Nothing
                    } else {
                        let first = words.len();
                        for (index, arg) in args.iter().enumerate() {
                            let at = (first + index) as u32;
                            words.push(match placed.on_device(loaded, *arg, id)? {
                                Spot::Arena(offset) => {
                                    bases.push((at, Base::Arena));
                                    offset as u64
                                }
                                Spot::Port(port) => {
                                    bases.push((at, Base::Port(port)));
                                    0
                                }
                                Spot::Address(address) => address,
                                Spot::Staging(_) | Spot::Pinned(_) => {
                                    return Err(damaged(format!("step {id} works on the host's memory")));
                                }
                            });
                        }
                        for word in kernel.launch_arguments([], &bindings) {
                            words.push(word?);
                        }
                        Enqueue::Launch {
                            launch: Launch {
                                function: loaded.functions[k],
                                grid: size.grid,
                                block: size.block,
                                lds: size.lds,
                                overlaps: plan.target.overlaps_launches,
                            },
                            first: first as u32,
                            count: (words.len() - first) as u32,
                        }
                    }
                }
                Work::Copy { from, to } => {
                    let bytes = sizes[*from].min(sizes[*to]);
                    let input = plan.inputs.iter().position(|port| port.buffer == *from);
                    let (from, to) = (placed.spot(loaded, *from, id)?, placed.spot(loaded, *to, id)?);
                    let direction = match (from, to) {
                        (Spot::Staging(_) | Spot::Pinned(_), Spot::Staging(_)) => Direction::OnHost,
                        (Spot::Staging(_) | Spot::Pinned(_), _) => Direction::ToDevice,
                        (_, Spot::Staging(_)) => Direction::ToHost,
                        _ => Direction::OnDevice,
                    };
                    match (from, input) {
                        _ if bytes == 0 || from == to => Enqueue::Nothing,
                        (Spot::Staging(at), Some(input)) => Enqueue::Upload {
                            input: input as u32,
                            at,
                            to,
                            bytes,
                            direction,
                        },
                        _ => Enqueue::Copy {
                            from,
                            to,
                            bytes,
                            direction,
                        },
                    }
                }
                Work::Call {
                    call,
                    operands,
                    results,
                    workspace,
                    algorithm,
                } => {
                    let buffers: Vec<Spot> = operands
                        .iter()
                        .chain(results)
                        .map(|b| placed.on_device(loaded, *b, id))
                        .collect::<Result<_, _>>()?;
                    let types = |list: &[BufferId]| -> Vec<&ir::TensorType> {
                        list.iter().map(|b| &plan.buffers[*b].ty).collect()
                    };
                    let at = format!("step {id}");
                    let planned =
                        workspace.map(|b| Ok::<_, RuntimeError>((placed.on_device(loaded, b, id)?, sizes[b])));
                    let workspace = planned.transpose()?;
                    let room = workspace.map_or(0, |(_, bytes)| bytes);
                    let types = (&types(operands)[..], &types(results)[..]);
                    let call = (call, algorithm.as_deref());
                    let call = loaded.libraries.prepare(call, types, room, &bindings, &at)?;
                    call.map_or(Enqueue::Nothing, |call| Enqueue::Call {
                        call,
                        buffers,
                        workspace: workspace.map(|(spot, _)| spot),
                    })
                }
            });
        }
        let ordered = facts.steps.values().zip(&steps).map(|(facts, step)| Ordered {
            lane: facts.lane,
            waits: &facts.waits,
            idle: matches!(step, Enqueue::Nothing),
        });
        let order = Order::new(ordered, plan.lanes.len());
        let bytes = |ports: &[ir::plan::Port]| ports.iter().map(|port| sizes[port.buffer]).collect();
        let shape = |port: &ir::plan::Port| -> Result<Vec<usize>, DimError> {
            let dims = port.ty.shape.eval(&bindings)?;
            Ok(dims.into_iter().map(|d| usize::try_from(d).unwrap_or(0)).collect())
        };
        Ok(Prepared {
            input_bytes: bytes(&plan.inputs),
            output_bytes: bytes(&plan.outputs),
            output_shapes: plan.outputs.iter().map(shape).collect::<Result<_, _>>()?,
            placed,
            bindings,
            steps,
            order,
            chosen,
            words,
            bases,
        })
    }

    /// What is said of a step's work at these sizes.
    pub fn named<'f>(&self, facts: &'f PlanFacts, step: StepId) -> &'f Named {
        &facts.steps[step].works[self.chosen[step]]
    }

    /// Bytes of weights that a run copies to the device.
    pub fn streamed_bytes(&self) -> usize {
        let bytes = |step: &Enqueue| match step {
            Enqueue::Copy {
                from: Spot::Pinned(_),
                bytes,
                ..
            } => *bytes,
            _ => 0,
        };
        self.steps.iter().map(bytes).sum()
    }

    /// Bytes that pass through staging memory, both ways.
    pub fn staged_bytes(&self) -> usize {
        let bytes = |step: &Enqueue| match step {
            Enqueue::Upload { bytes, .. } => *bytes,
            Enqueue::Copy { bytes, direction, .. } if *direction == Direction::ToHost => *bytes,
            _ => 0,
        };
        self.steps.iter().map(bytes).sum()
    }
}

/// Grids follow from the inputs' sizes; only a size that nothing binds is the program's fault.
fn of_launch(error: LaunchError) -> RuntimeError {
    match error {
        LaunchError::Size {
            error: DimError::Unbound(_),
            ..
        } => damaged(error.to_string()),
        LaunchError::Size { .. } | LaunchError::Grid { .. } => RuntimeError::TooLarge(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_that_is_too_large_is_no_damage() {
        let kernel = || "matmul".to_owned();
        let grid = LaunchError::Grid {
            kernel: kernel(),
            blocks: 1 << 40,
        };
        assert!(matches!(of_launch(grid), RuntimeError::TooLarge(_)));
        let size = |error| LaunchError::Size {
            kernel: kernel(),
            error,
        };
        let overflow = of_launch(size(DimError::Overflow("12*n".to_owned())));
        assert!(matches!(overflow, RuntimeError::TooLarge(_)), "{overflow}");
        let unbound = of_launch(size(DimError::Unbound(ir::dim::Symbol::new("n"))));
        assert!(matches!(unbound, RuntimeError::Program(_)), "{unbound}");
    }
}
