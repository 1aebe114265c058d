//! A plan at one set of sizes: what each step enqueues, where every buffer lies.
//!
//! Addresses in the arena and in staging memory are offsets here, since each run context has its own.

use ir::dim::{Bindings, DimError};
use ir::entity::Table;
use ir::graph::ConstId;
use ir::kernel::LaunchError;
use ir::plan::arena::{self, ALIGNMENT, Placement};
use ir::plan::{BufferId, KernelId, LaneId, Place, Plan, StepId, Work};

use super::constants::Constants;
use super::driver::{Direction, RawFunction};
use crate::checks::check_arguments;
use crate::error::RuntimeError;
use crate::library::{Call, Libraries};

/// See the module.
pub(super) struct Prepared {
    pub placement: Placement,
    pub steps: Vec<StepExec>,
    /// Where each input port's bytes are put in staging memory; None where no step copies them.
    pub inputs: Vec<Option<usize>>,
    pub outputs: Vec<OutputFrom>,
    /// Bytes of staging memory.
    pub staging: usize,
}

/// Where an output port's bytes are found after a run.
#[derive(Clone, Copy)]
pub(super) enum OutputFrom {
    Staging(usize),
    /// An input port's bytes, handed through.
    Input(usize),
    Constant(ConstId),
}

/// A step.
pub(super) struct StepExec {
    pub lane: LaneId,
    /// Steps of other lanes that it waits for.
    pub waits: Vec<StepId>,
    /// Whether a step of another lane waits for it.
    pub awaited: bool,
    /// The kernel's or call's name.
    pub name: String,
    /// What runs it, for profiles.
    pub engine: &'static str,
    pub work: Enqueue,
}

/// What a step enqueues.
pub(super) enum Enqueue {
    /// No points, or no bytes.
    Nothing,
    Launch {
        function: RawFunction,
        grid: [u32; 3],
        block: u32,
        /// Buffers in the arena are offsets.
        arguments: Vec<u64>,
        /// Which arguments the arena's address is added to.
        in_arena: Vec<usize>,
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
    },
}

/// Where a buffer is.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    Arena(usize),
    Address(u64),
    Staging(usize),
}

impl Spot {
    /// The address in a context whose arena and staging memory begin there.
    pub fn address(self, arena: u64, staging: u64) -> u64 {
        match self {
            Spot::Arena(offset) => arena + offset as u64,
            Spot::Address(address) => address,
            Spot::Staging(offset) => staging + offset as u64,
        }
    }
}

/// Prepares a plan that was checked.
pub(super) fn prepare(
    plan: &Plan,
    bindings: &Bindings,
    functions: &Table<KernelId, RawFunction>,
    constants: &Constants,
    libraries: &Libraries,
) -> Result<Prepared, RuntimeError> {
    plan.check_sizes(bindings)?;
    let placement = arena::place(plan, bindings)?;
    let mut spots = Spots::new(plan, &placement, constants);
    let mut awaited: Table<StepId, bool> = plan.steps.keys().map(|_| false).collect();
    for step in plan.steps.values() {
        for wait in &step.waits {
            let other = plan
                .steps
                .get(*wait)
                .ok_or_else(|| damaged(format!("a step waits for {wait}")))?;
            awaited[*wait] |= other.lane != step.lane;
        }
    }
    let mut steps = Vec::with_capacity(plan.steps.len());
    for (id, step) in plan.steps.iter() {
        if plan.lanes.get(step.lane).is_none() || step.waits.iter().any(|wait| *wait >= id) {
            return Err(damaged(format!(
                "step {id} is in lane {} and waits for later steps",
                step.lane
            )));
        }
        let (name, engine, work) = match &step.work {
            Work::Launch { kernel: k, args } => {
                let kernel = &plan.kernels[*k];
                check_arguments(plan, kernel, args, &placement, bindings)?;
                let size = kernel.launch_size(bindings).map_err(of_launch)?;
                let work = if size.grid.contains(&0) || size.block == 0 {
                    Enqueue::Nothing
                } else {
                    let mut addresses = Vec::with_capacity(args.len());
                    let mut in_arena = Vec::new();
                    for (index, arg) in args.iter().enumerate() {
                        match spots.device(*arg, id)? {
                            Spot::Arena(_) => in_arena.push(index),
                            Spot::Address(_) | Spot::Staging(_) => {}
                        }
                        addresses.push(spots.device(*arg, id)?.address(0, 0));
                    }
                    Enqueue::Launch {
                        function: functions[*k],
                        grid: size.grid,
                        block: size.block,
                        arguments: kernel.launch_arguments(addresses, bindings).collect::<Result<_, _>>()?,
                        in_arena,
                    }
                };
                (kernel.name.clone(), "kernel", work)
            }
            Work::Copy { from, to } => {
                let bytes = placement.sizes[*from].min(placement.sizes[*to]);
                let (from, to) = (spots.any(*from, id)?, spots.any(*to, id)?);
                let direction = match (from, to) {
                    (Spot::Staging(_), Spot::Staging(_)) => Direction::OnHost,
                    (Spot::Staging(_), _) => Direction::ToDevice,
                    (_, Spot::Staging(_)) => Direction::ToHost,
                    _ => Direction::OnDevice,
                };
                let name = match direction {
                    Direction::ToDevice => "copy to device",
                    Direction::ToHost => "copy to host",
                    Direction::OnDevice | Direction::OnHost => "copy",
                };
                let work = if bytes == 0 {
                    Enqueue::Nothing
                } else {
                    Enqueue::Copy {
                        from,
                        to,
                        bytes,
                        direction,
                    }
                };
                (name.to_owned(), "copy", work)
            }
            Work::Call {
                call,
                operands,
                results,
                workspace,
            } => {
                let buffers: Vec<Spot> = operands
                    .iter()
                    .chain(results)
                    .chain(workspace)
                    .map(|b| spots.device(*b, id))
                    .collect::<Result<_, _>>()?;
                let types =
                    |list: &[BufferId]| -> Vec<&ir::TensorType> { list.iter().map(|b| &plan.buffers[*b].ty).collect() };
                let at = format!("step {id}");
                let work = match libraries.prepare(call, &types(operands), &types(results), bindings, &at)? {
                    Some(call) => Enqueue::Call { call, buffers },
                    None => Enqueue::Nothing,
                };
                (call.name().to_owned(), call.library.name(), work)
            }
        };
        let of_other_lanes = |wait: &StepId| plan.steps[*wait].lane != step.lane;
        steps.push(StepExec {
            lane: step.lane,
            waits: step.waits.iter().copied().filter(of_other_lanes).collect(),
            awaited: awaited[id],
            name,
            engine,
            work,
        });
    }
    let inputs = plan.inputs.iter().map(|port| spots.staged[port.buffer]).collect();
    let outputs = plan
        .outputs
        .iter()
        .map(|port| match plan.buffers[port.buffer].place {
            Place::Constant(id) => Ok(OutputFrom::Constant(id)),
            Place::Input => {
                let input = plan.inputs.iter().position(|input| input.buffer == port.buffer);
                input
                    .map(OutputFrom::Input)
                    .ok_or_else(|| damaged(format!("output {:?} is no input", port.name)))
            }
            Place::Output => spots.staged[port.buffer]
                .map(OutputFrom::Staging)
                .ok_or_else(|| damaged(format!("no step copies output {:?} to the host", port.name))),
            Place::Arena { .. } => Err(damaged(format!("output {:?} stays on the device", port.name))),
        })
        .collect::<Result<_, _>>()?;
    let staging = spots.staging;
    Ok(Prepared {
        placement,
        steps,
        inputs,
        outputs,
        staging,
    })
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

fn damaged(what: String) -> RuntimeError {
    RuntimeError::Program(what)
}

/// Where buffers are; host buffers get staging memory when a step first copies them.
struct Spots<'a> {
    plan: &'a Plan,
    placement: &'a Placement,
    constants: &'a Constants,
    staged: Table<BufferId, Option<usize>>,
    staging: usize,
}

impl<'a> Spots<'a> {
    fn new(plan: &'a Plan, placement: &'a Placement, constants: &'a Constants) -> Spots<'a> {
        Spots {
            plan,
            placement,
            constants,
            staged: plan.buffers.keys().map(|_| None).collect(),
            staging: 0,
        }
    }

    fn any(&mut self, buffer: BufferId, step: StepId) -> Result<Spot, RuntimeError> {
        match self.plan.buffers[buffer].place {
            Place::Arena { .. } => self.placement.offsets[buffer]
                .map(Spot::Arena)
                .ok_or_else(|| damaged(format!("step {step} uses {buffer}, which has no place"))),
            Place::Constant(id) => self
                .constants
                .address(id)
                .map(Spot::Address)
                .ok_or_else(|| damaged(format!("step {step} uses constant {id}, which is not there"))),
            Place::Input | Place::Output => {
                let at = *self.staged[buffer].get_or_insert(self.staging);
                if at == self.staging {
                    self.staging += self.placement.sizes[buffer].next_multiple_of(ALIGNMENT).max(ALIGNMENT);
                }
                Ok(Spot::Staging(at))
            }
        }
    }

    fn device(&mut self, buffer: BufferId, step: StepId) -> Result<Spot, RuntimeError> {
        match self.plan.buffers[buffer].place {
            Place::Input | Place::Output => Err(damaged(format!(
                "step {step} works on {buffer} ({}), which is in the host's memory; compile for a GPU",
                self.plan.buffers[buffer].name
            ))),
            _ => self.any(buffer, step),
        }
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
