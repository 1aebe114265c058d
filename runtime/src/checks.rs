//! What every device checks of a program before it trusts it, and of a run before it begins.

use ir::Program;
use ir::dim::Bindings;
use ir::entity::Table;
use ir::kernel::bounds::{BoundsError, unproven};
use ir::kernel::{Access, Kernel};
use ir::library::Collective;
use ir::plan::{BufferId, Place, Plan, Work};

use crate::error::{InputError, RuntimeError};

/// Checks what running relies on: ids inside their tables, constants as large as their buffers.
pub(crate) fn check(plan: &Plan, program: &Program) -> Result<(), RuntimeError> {
    let damaged = |what: String| Err(RuntimeError::Program(what));
    let known = |b: &BufferId| plan.buffers.get(*b).is_some();
    for (id, buffer) in plan.buffers.iter() {
        if let Some(c) = buffer.place.constant() {
            let Some(constant) = program.constants.get(c) else {
                return damaged(format!("buffer {id} is constant {c}, which is not there"));
            };
            let bytes = buffer.ty.bytes().as_const().unwrap_or(i64::MAX);
            if (constant.tensor.bytes.len() as i64) < bytes || constant.tensor.dtype != buffer.ty.dtype {
                return damaged(format!(
                    "buffer {id} is {}, but constant {c} is {}{:?}",
                    buffer.ty, constant.tensor.dtype, constant.tensor.shape
                ));
            }
        }
    }
    for port in plan.inputs.iter().chain(&plan.outputs) {
        if !known(&port.buffer) {
            return damaged(format!(
                "port {:?} names buffer {}, which is not there",
                port.name, port.buffer
            ));
        }
    }
    // Memory of the caller is found through the ports.
    let named = |b: BufferId| match plan.buffers[b].place {
        Place::Input => plan.inputs.iter().any(|p| p.buffer == b),
        Place::Output => plan.outputs.iter().any(|p| p.buffer == b),
        Place::Constant(_) | Place::Streamed(_) | Place::Arena { .. } => true,
    };
    for (id, step) in plan.steps.iter() {
        if let Some(b) = step.works().flat_map(buffers_of).find(|b| known(b) && !named(*b)) {
            return damaged(format!("step {id} uses {b}, an input or output that no port names"));
        }
        for work in step.works() {
            match work {
                Work::Launch { kernel, args } => {
                    let Some(kernel) = plan.kernels.get(*kernel) else {
                        return damaged(format!("step {id} launches {kernel}, which is not there"));
                    };
                    if kernel.params.len() != args.len() || !args.iter().all(known) {
                        return damaged(format!("step {id} gives kernel {} the wrong arguments", kernel.name));
                    }
                    for (param, arg) in kernel.params.values().zip(args) {
                        let place = &plan.buffers[*arg].place;
                        if param.access != Access::Read && place.is_given() {
                            return damaged(format!("step {id} writes {arg}, an input or a constant"));
                        }
                    }
                }
                Work::Copy { from, to } => {
                    if !known(from) || !known(to) || plan.buffers[*to].place.is_given() {
                        return damaged(format!("step {id} copies {from} to {to}"));
                    }
                }
                Work::Call {
                    operands,
                    results,
                    workspace,
                    ..
                } => {
                    let mut written = results.iter().chain(workspace);
                    if !operands.iter().chain(results).chain(workspace).all(known)
                        || written.any(|b| plan.buffers[*b].place.is_given())
                    {
                        return damaged(format!("step {id} gives its call the wrong buffers"));
                    }
                }
            }
        }
    }
    Ok(())
}

fn buffers_of(work: &Work) -> impl Iterator<Item = BufferId> {
    let (a, b, c): (&[BufferId], &[BufferId], Option<BufferId>) = match work {
        Work::Launch { args, .. } => (args, &[], None),
        Work::Call {
            operands,
            results,
            workspace,
            ..
        } => (operands, results, *workspace),
        Work::Copy { from, to } => (std::slice::from_ref(from), std::slice::from_ref(to), None),
    };
    a.iter().chain(b).copied().chain(c)
}

/// Checks that every kernel's buffers can be at these sizes. Positions that cannot be proved the CPU looks at when it
/// runs.
pub(crate) fn check_bounds(plan: &Plan, bindings: &Bindings) -> Result<(), RuntimeError> {
    for kernel in plan.kernels.values() {
        unproven(kernel, bindings).map_err(of_bounds)?;
    }
    Ok(())
}

/// Checks that a kernel reads and writes nothing but its buffers at these sizes, for devices that look at no position.
pub(crate) fn check_proved(kernel: &Kernel, bindings: &Bindings) -> Result<(), RuntimeError> {
    match unproven(kernel, bindings).map_err(of_bounds)?.first() {
        None => Ok(()),
        Some(access) => Err(RuntimeError::Program(format!(
            "kernel {}: {access}; a GPU runs only what is shown to stay inside its buffers",
            kernel.name
        ))),
    }
}

fn of_bounds(error: BoundsError) -> RuntimeError {
    match error {
        BoundsError::Size { error, .. } => RuntimeError::Size(error),
        error => RuntimeError::Program(error.to_string()),
    }
}

/// Checks that a launch's buffers are as large as its kernel takes them to be, and of its types.
pub(crate) fn check_arguments(
    plan: &Plan,
    kernel: &Kernel,
    args: &[BufferId],
    sizes: &Table<BufferId, usize>,
    bindings: &Bindings,
) -> Result<(), RuntimeError> {
    for (param, arg) in kernel.params.values().zip(args) {
        let need = param.count(bindings)?;
        let need = param.dtype.checked_bytes_for(usize::try_from(need).unwrap_or(0));
        let need = need.unwrap_or(usize::MAX);
        if sizes[*arg] < need || plan.buffers[*arg].ty.dtype != param.dtype {
            return Err(RuntimeError::Program(format!(
                "kernel {}: parameter {} takes {need} bytes of {}, but buffer {arg} has {} of {}",
                kernel.name, param.name, param.dtype, sizes[*arg], plan.buffers[*arg].ty.dtype
            )));
        }
    }
    Ok(())
}

/// Checks that a run was given the bytes of every port; `sizes` are those of the plan's ports.
pub(crate) fn check_ports(
    plan: &Plan,
    sizes: (&[usize], &[usize]),
    inputs: impl ExactSizeIterator<Item = usize>,
    outputs: impl ExactSizeIterator<Item = usize>,
) -> Result<(), RuntimeError> {
    if inputs.len() != plan.inputs.len() || outputs.len() != plan.outputs.len() {
        return Err(RuntimeError::Program(format!(
            "{} inputs and {} outputs were given to a plan of {} and {}",
            inputs.len(),
            outputs.len(),
            plan.inputs.len(),
            plan.outputs.len()
        )));
    }
    let wrong = |error| RuntimeError::input(error, &plan.inputs);
    for ((port, got), &expected) in plan.inputs.iter().zip(inputs).zip(sizes.0) {
        if got != expected {
            let name = port.name.clone();
            return Err(wrong(InputError::Bytes { name, got, expected }));
        }
    }
    for ((port, got), &expected) in plan.outputs.iter().zip(outputs).zip(sizes.1) {
        if got != expected {
            let name = port.name.clone();
            return Err(wrong(InputError::Output { name, got, expected }));
        }
    }
    Ok(())
}

/// Refuses a collective where there are not as many ranks.
pub(crate) fn check_ranks(of: Collective, ranks: usize, at: &str) -> Result<(), RuntimeError> {
    if of.ranks as usize == ranks {
        return Ok(());
    }
    Err(RuntimeError::Unsupported {
        what: format!("{} of {} ranks on {ranks} device(s)", of.kind.name(), of.ranks),
        at: format!("{at}; load the program on {} devices, as hip:0,1", of.ranks),
    })
}

/// Checks that a code object lies in its bytes, and has the kernel with the arguments that it is launched with.
pub(crate) fn check_code(code: &[u8], entry: &str, kernel: &Kernel) -> Result<(), RuntimeError> {
    let arguments = kernel.params.len() + kernel.symbols.len();
    crate::code_object::check(code, entry, arguments)
        .map_err(|error| RuntimeError::Program(format!("the code of kernel {}: {error}", kernel.name)))
}

/// Checks that the machine has so many bytes for a run.
pub(crate) fn check_memory(asked: usize) -> Result<(), RuntimeError> {
    ir::memory::check(asked as u64, String::new).map_err(|error| RuntimeError::NoMemory {
        asked,
        available: error.available,
    })
}

/// Checks that the files of weights, and of inputs, were whole while they were read.
pub(crate) fn check_files(program: &Program, inputs: &[&[u8]]) -> Result<(), RuntimeError> {
    let weights = program.constants.values().map(|c| &c.tensor.bytes[..]);
    Ok(ir::mapped::check(weights.chain(inputs.iter().copied()))?)
}
