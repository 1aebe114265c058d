//! What a plan means: its steps in order, kernels by [`kernel::eval`](crate::kernel::eval), library calls by evaluating
//! the op. Arena buffers have memory of their own here; `in_place_of` hands contents over.

use indexmap::IndexMap;

use super::{BufferId, Place, Plan, SizesError, StepId, Work};
use crate::data::{HostTensor, SizeMismatch, Storage};
use crate::dim::{Bindings, DimError};
use crate::entity::{Entity, Table};
use crate::graph::eval::collective::collective;
use crate::graph::eval::{Array, OpError, eval_op};
use crate::graph::op::Op;
use crate::graph::{BindError, ConstId, Constant, bind_shapes};
use crate::kernel::Access;
use crate::kernel::eval::{self as kernel_eval, KernelEvalError};
use crate::library::LibraryCall;
use crate::types::{DType, TensorType};

/// Why a plan could not be evaluated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PlanEvalError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Sizes(#[from] SizesError),
    #[error("input {input:?} is {got}, but the plan declares {declared}")]
    InputType { input: String, got: DType, declared: DType },
    #[error("buffer {buffer}: {error}")]
    Size { buffer: BufferId, error: DimError },
    #[error("step {step}: {error}")]
    Choice { step: StepId, error: DimError },
    #[error("buffer {buffer}: {error}")]
    Bytes { buffer: BufferId, error: SizeMismatch },
    #[error("buffer {buffer} is constant {constant}, which is not in the table")]
    UnknownConstant { buffer: BufferId, constant: ConstId },
    #[error("step {step}: {error}")]
    Kernel { step: StepId, error: KernelEvalError },
    #[error("step {step}: {call}: {error}")]
    Call {
        step: StepId,
        call: &'static str,
        error: OpError,
    },
    #[error("step {step} names {what}, which the plan does not have")]
    Unknown { step: StepId, what: String },
    #[error(
        "step {step} of rank 0 is a collective that another rank does not come to next: the plans are not of one model"
    )]
    Lockstep { step: StepId },
    #[error("step {step} reads buffer {buffer} before any step writes it")]
    Unwritten { step: StepId, buffer: BufferId },
}

/// Runs a plan on inputs by name.
///
/// # Errors
/// Inputs that do not fit, a buffer that is read before it is written, or what a kernel or call reports.
pub fn evaluate(
    plan: &Plan,
    constants: &Table<ConstId, Constant>,
    inputs: &IndexMap<String, HostTensor>,
) -> Result<IndexMap<String, HostTensor>, PlanEvalError> {
    let mut run = Run::new(plan, constants, inputs)?;
    for step in plan.steps.keys() {
        run.step(step)?;
    }
    run.outputs()
}

/// Runs the plans of all ranks in lockstep, each on inputs of its own: a collective takes place once every rank has
/// come to it.
///
/// # Errors
/// As [`evaluate`]; plans whose next collectives differ, or that are not as many as a collective is of.
pub fn evaluate_ranks(
    plans: &[&Plan],
    constants: &Table<ConstId, Constant>,
    inputs: &[IndexMap<String, HostTensor>],
) -> Result<Vec<IndexMap<String, HostTensor>>, PlanEvalError> {
    let pairs = plans.iter().zip(inputs);
    let mut runs: Vec<Run<'_>> = pairs
        .map(|(plan, inputs)| Run::new(plan, constants, inputs))
        .collect::<Result<_, _>>()?;
    let mut next: Vec<StepId> = runs.iter().map(|_| StepId::new(0)).collect();
    loop {
        let mut met: Vec<Option<(StepId, &LibraryCall)>> = Vec::with_capacity(runs.len());
        for (run, next) in runs.iter_mut().zip(&mut next) {
            met.push(run.advance(next)?);
        }
        let Some((at, call)) = met.first().copied().flatten() else {
            return match met.iter().flatten().next() {
                Some((step, _)) => Err(PlanEvalError::Lockstep { step: *step }),
                None => runs.iter().map(Run::outputs).collect(),
            };
        };
        if met.iter().any(|other| other.is_none_or(|(_, other)| other != call)) {
            return Err(PlanEvalError::Lockstep { step: at });
        }
        let fail = |error| PlanEvalError::Call {
            step: at,
            call: call.name(),
            error,
        };
        // A run stops at nothing else.
        let of = call.as_collective().ok_or(PlanEvalError::Lockstep { step: at })?;
        if of.ranks as usize != runs.len() {
            return Err(fail(OpError::Alone { ranks: of.ranks }));
        }
        let mut parts = Vec::with_capacity(runs.len());
        for (run, (step, _)) in runs.iter().zip(met.iter().flatten()) {
            parts.push(run.operands(*step)?);
        }
        let parts: Vec<&Array> = parts.iter().flatten().collect();
        let result = collective(of, &parts).map_err(fail)?;
        for ((run, next), (step, _)) in runs.iter_mut().zip(&mut next).zip(met.iter().flatten()) {
            run.results(*step, std::slice::from_ref(&result))?;
            *next = StepId::new(step.index() + 1);
        }
    }
}

struct Run<'a> {
    plan: &'a Plan,
    bindings: Bindings,
    buffers: Table<BufferId, Option<HostTensor>>,
}

impl<'a> Run<'a> {
    fn new(
        plan: &'a Plan,
        constants: &Table<ConstId, Constant>,
        inputs: &IndexMap<String, HostTensor>,
    ) -> Result<Run<'a>, PlanEvalError> {
        let shapes: IndexMap<&str, &[usize]> = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
        let declared: Vec<(&str, &TensorType)> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
        let bindings = bind_shapes(&plan.symbols, &declared, &shapes)?;
        plan.check_sizes(&bindings)?;
        let mut run = Run {
            plan,
            bindings,
            buffers: plan.buffers.keys().map(|_| None).collect(),
        };
        for port in &plan.inputs {
            let tensor = &inputs[&port.name];
            if tensor.dtype != port.ty.dtype {
                return Err(PlanEvalError::InputType {
                    input: port.name.clone(),
                    got: tensor.dtype,
                    declared: port.ty.dtype,
                });
            }
            run.buffers[port.buffer] = Some(tensor.clone());
        }
        for (id, buffer) in plan.buffers.iter() {
            if let Some(c) = buffer.place.constant() {
                let constant = constants.get(c).ok_or(PlanEvalError::UnknownConstant {
                    buffer: id,
                    constant: c,
                })?;
                run.buffers[id] = Some(constant.tensor.clone());
            }
        }
        Ok(run)
    }

    /// Runs the steps up to the next collective or the end.
    fn advance(&mut self, next: &mut StepId) -> Result<Option<(StepId, &'a LibraryCall)>, PlanEvalError> {
        while *next < self.plan.steps.next_key() {
            if let Work::Call { call, .. } = self.work(*next)?
                && call.as_collective().is_some()
            {
                return Ok(Some((*next, call)));
            }
            self.step(*next)?;
            *next = StepId::new(next.index() + 1);
        }
        Ok(None)
    }

    /// What a step does at the run's sizes.
    fn work(&self, id: StepId) -> Result<&'a Work, PlanEvalError> {
        let step = &self.plan.steps[id];
        step.at(&self.bindings)
            .map_err(|error| PlanEvalError::Choice { step: id, error })
    }

    fn outputs(&self) -> Result<IndexMap<String, HostTensor>, PlanEvalError> {
        let steps = &self.plan.steps;
        let last = steps.keys().next_back().unwrap_or(steps.next_key());
        let ports = self.plan.results().iter();
        ports
            .map(|port| {
                let tensor = self.read(last, port.buffer)?;
                let tensor = self.shaped(port.buffer, &port.ty, tensor.bytes)?;
                Ok((port.name.clone(), tensor))
            })
            .collect()
    }

    /// The operands of a call.
    fn operands(&self, id: StepId) -> Result<Vec<Array>, PlanEvalError> {
        let Work::Call { operands, .. } = self.work(id)? else {
            return Ok(Vec::new());
        };
        let read = |b: &BufferId| Ok(Array::from_tensor(&self.read(id, *b)?));
        operands.iter().map(read).collect()
    }

    /// Sets the results of a call.
    fn results(&mut self, id: StepId, arrays: &[Array]) -> Result<(), PlanEvalError> {
        let Work::Call { results, .. } = self.work(id)? else {
            return Ok(());
        };
        for (array, buffer) in arrays.iter().zip(results) {
            let tensor = array
                .to_tensor()
                .map_err(|error| PlanEvalError::Bytes { buffer: *buffer, error })?;
            let ty = &self.plan.buffers[*buffer].ty;
            self.buffers[*buffer] = Some(self.shaped(*buffer, ty, tensor.bytes)?);
        }
        Ok(())
    }

    fn shaped(&self, buffer: BufferId, ty: &TensorType, bytes: Storage) -> Result<HostTensor, PlanEvalError> {
        let shape = ty
            .shape
            .eval(&self.bindings)
            .map_err(|error| PlanEvalError::Size { buffer, error })?;
        let shape: Vec<usize> = shape.into_iter().map(|d| usize::try_from(d).unwrap_or(0)).collect();
        HostTensor::new(ty.dtype, shape, bytes).map_err(|error| PlanEvalError::Bytes { buffer, error })
    }

    /// Memory that nothing has written: all bits set, which is NaN for floats and −1 for integers.
    fn fresh(&self, buffer: BufferId) -> Result<HostTensor, PlanEvalError> {
        let ty = &self.plan.buffers[buffer].ty;
        let bytes = ty
            .bytes()
            .eval(&self.bindings)
            .map_err(|error| PlanEvalError::Size { buffer, error })?;
        self.shaped(
            buffer,
            ty,
            Storage::new(vec![0xff; usize::try_from(bytes).unwrap_or(0)]),
        )
    }

    /// The contents of a buffer; those it is in place of until it has its own.
    fn contents(&self, buffer: BufferId) -> Result<Option<HostTensor>, PlanEvalError> {
        let b = &self.plan.buffers[buffer];
        if let Some(tensor) = &self.buffers[buffer] {
            return Ok(Some(tensor.clone()));
        }
        match b.place {
            Place::Arena {
                in_place_of: Some(of), ..
            } if of < buffer => match self.contents(of)? {
                Some(t) if b.ty.dtype == t.dtype => self.shaped(buffer, &b.ty, t.bytes).map(Some),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    fn read(&self, step: StepId, buffer: BufferId) -> Result<HostTensor, PlanEvalError> {
        if self.plan.buffers.get(buffer).is_none() {
            return Err(PlanEvalError::Unknown {
                step,
                what: buffer.to_string(),
            });
        }
        self.contents(buffer)?.ok_or(PlanEvalError::Unwritten { step, buffer })
    }

    fn step(&mut self, id: StepId) -> Result<(), PlanEvalError> {
        match self.work(id)? {
            Work::Launch { kernel, args } => {
                let unknown = || PlanEvalError::Unknown {
                    step: id,
                    what: kernel.to_string(),
                };
                let kernel = self.plan.kernels.get(*kernel).ok_or_else(unknown)?;
                let mut tensors = Vec::with_capacity(args.len());
                for (position, arg) in args.iter().enumerate() {
                    let access = kernel.params.values().nth(position).map(|p| p.access);
                    // A write-only buffer may have contents from before (several kernels fill it); else it is fresh.
                    tensors.push(match self.read(id, *arg) {
                        Ok(tensor) => tensor,
                        Err(PlanEvalError::Unwritten { .. }) if access.is_some_and(|a| !a.reads()) => {
                            self.fresh(*arg)?
                        }
                        Err(error) => return Err(error),
                    });
                }
                kernel_eval::evaluate(kernel, &mut tensors, &self.bindings)
                    .map_err(|error| PlanEvalError::Kernel { step: id, error })?;
                for ((param, arg), tensor) in kernel.params.values().zip(args).zip(tensors) {
                    if param.access != Access::Read {
                        self.buffers[*arg] = Some(tensor);
                    }
                }
            }
            Work::Call { call, .. } => {
                let operands = self.operands(id)?;
                let fail = |error| PlanEvalError::Call {
                    step: id,
                    call: call.name(),
                    error,
                };
                let op = Op::Call(call.clone());
                let arrays = eval_op(&op, &operands.iter().collect::<Vec<_>>(), &self.bindings).map_err(fail)?;
                self.results(id, &arrays)?;
            }
            Work::Copy { from, to } => {
                let from = self.read(id, *from)?;
                let ty = self
                    .plan
                    .buffers
                    .get(*to)
                    .map(|b| &b.ty)
                    .ok_or_else(|| PlanEvalError::Unknown {
                        step: id,
                        what: to.to_string(),
                    })?;
                self.buffers[*to] = Some(self.shaped(*to, ty, from.bytes)?);
            }
        }
        Ok(())
    }
}
