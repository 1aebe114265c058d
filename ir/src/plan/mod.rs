//! The plan: HOW and WHERE.
//!
//! Kernels and library calls as steps in order, every buffer with its lifetime, lanes with the dependencies between them.
//! Sizes may be symbolic; [`arena::place`] gives every arena buffer its offset once they are bound.
//!
//! Invariant: steps are in an order that satisfies every dependency; within a lane they run in this order, between lanes
//! only `waits` orders them.
//!
//! Invariant: two arena buffers whose lifetimes overlap, or whose users are in lanes with no wait between them, never share
//! bytes, except through `in_place_of`.

pub mod arena;
pub mod eval;
pub mod print;
pub mod requirement;
pub mod stages;
pub mod verify;
pub mod work;

use serde::{Deserialize, Serialize};

use crate::dim::{Bindings, Dim, DimError, Symbols};
use crate::entity::{Table, entity};
use crate::graph::ConstId;
use crate::kernel::Kernel;
use crate::library::{Collective, LibraryCall};
use crate::schedule::LaneKind;
use crate::target::Target;
use crate::types::TensorType;

pub use requirement::{Requirement, SizesError};
pub use stages::{Source, Stage};

entity! {
    /// A kernel of a plan.
    pub KernelId = "k",
    /// A buffer of a plan.
    pub BufferId = "b",
    /// A step of a plan.
    pub StepId = "s",
    /// A lane of a plan.
    pub LaneId = "l",
}

/// How a graph runs on one target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub target: Target,
    pub symbols: Symbols,
    pub kernels: Table<KernelId, Kernel>,
    pub buffers: Table<BufferId, Buffer>,
    pub steps: Table<StepId, Step>,
    pub lanes: Table<LaneId, Lane>,
    /// In the order of the model's inputs.
    pub inputs: Vec<Port>,
    /// In the order of the model's outputs; then the conditions.
    pub outputs: Vec<Port>,
    /// How many of the last outputs are conditions, which are bool scalars: a run in which one is false fails with its name
    /// as the message.
    pub checks: usize,
    /// Floating-point operations of one run (a multiply-add is two).
    pub flops: Dim,
    /// What the sizes of a run must satisfy.
    pub requirements: Vec<Requirement>,
    /// Set where the plan was made to fit a device's memory.
    pub streaming: Option<Streaming>,
    /// Set where the plan is one rank's part of a model on several devices.
    pub share: Option<Share>,
}

/// Which part of a model a plan is: all ranks' plans have the same ports, of which some are cut along an axis, a part for each rank; or
/// each is one of several [stages], which follow each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// The axis along which each input is cut; None for one that every rank is given whole.
    pub inputs: Vec<Option<u32>>,
    /// As of inputs; what is not cut is the same on all ranks.
    pub outputs: Vec<Option<u32>>,
    /// Set where the ranks are stages, which follow each other: each has ports of its own, and none of them is cut.
    pub stage: Option<Stage>,
}

/// How a plan fits into less memory than its weights take: some of them stay on the host, and steps copy each to the device ahead of
/// its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Streaming {
    /// Bytes of the device that weights and arenas may take together.
    pub limit: usize,
    /// How many uses of streamed weights a copy is ahead of its own.
    pub distance: usize,
    /// The least limit, in bytes, for which there would be a plan, at the sizes' hints.
    pub least: usize,
}

/// A named input or output. Two outputs, or an output and an input, may name one buffer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    pub ty: TensorType,
    pub buffer: BufferId,
}

/// Memory that steps read and write.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Buffer {
    /// An identifier for messages.
    pub name: String,
    pub ty: TensorType,
    pub place: Place,
}

/// Where a buffer is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// Given by the caller of each run.
    Input,
    /// Owned by the executable, handed to the caller after each run.
    Output,
    /// A weight or a folded constant, resident since load.
    Constant(ConstId),
    /// A weight that stays in the host's memory: copies alone read it.
    Streamed(ConstId),
    /// In the arena from step `first` (which writes it) to step `last` (its last reader), both included.
    Arena {
        first: StepId,
        last: StepId,
        in_place_of: Option<BufferId>,
    },
}

impl Place {
    /// The weight or folded constant that a buffer is, on the device or on the host.
    pub fn constant(&self) -> Option<ConstId> {
        match self {
            Place::Constant(id) | Place::Streamed(id) => Some(*id),
            Place::Input | Place::Output | Place::Arena { .. } => None,
        }
    }

    /// Whether no step may write the buffer.
    pub fn is_given(&self) -> bool {
        matches!(self, Place::Input | Place::Constant(_) | Place::Streamed(_))
    }
}

/// A queue of the device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lane {
    pub kind: LaneKind,
}

/// A piece of work that is enqueued.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub lane: LaneId,
    /// Steps of other lanes that must have finished.
    pub waits: Vec<StepId>,
    pub work: Work,
    /// Floating-point operations (a multiply-add is two). What several steps compute for themselves counts in each of them, so all
    /// together may be more than [`Plan::flops`].
    pub flops: Dim,
}

/// What a step does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Arguments in the order of the kernel's parameters. `choices` compute the same, each better from a size on.
    Launch {
        kernel: KernelId,
        args: Vec<BufferId>,
        choices: Vec<Choice>,
    },
    /// Operands of the call, then its results. The workspace is an arena buffer of bytes.
    Call {
        call: LibraryCall,
        operands: Vec<BufferId>,
        results: Vec<BufferId>,
        workspace: Option<BufferId>,
    },
    /// Copies all bytes.
    Copy { from: BufferId, to: BufferId },
}

/// A kernel that takes the place of a launch's own from a size on: it computes the same, mapped for larger sizes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// What is compared: the rows of a product.
    pub size: Dim,
    /// The least size for which it is taken; ascending in a launch.
    pub from: i64,
    pub kernel: KernelId,
}

impl Work {
    /// Makes a launch of one kernel at every size.
    pub fn launch(kernel: KernelId, args: Vec<BufferId>) -> Work {
        Work::Launch {
            kernel,
            args,
            choices: Vec::new(),
        }
    }

    /// Returns the kernel that a launch runs at the given sizes; `None` for other work.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn kernel(&self, bindings: &Bindings) -> Result<Option<KernelId>, DimError> {
        let Work::Launch { kernel, choices, .. } = self else {
            return Ok(None);
        };
        let mut chosen = *kernel;
        for choice in choices {
            if choice.size.eval(bindings)? >= choice.from {
                chosen = choice.kernel;
            }
        }
        Ok(Some(chosen))
    }

    /// Returns every kernel that a launch may run.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> {
        let (own, choices) = match self {
            Work::Launch { kernel, choices, .. } => (Some(*kernel), choices.as_slice()),
            _ => (None, [].as_slice()),
        };
        own.into_iter().chain(choices.iter().map(|c| c.kernel))
    }
}

impl Plan {
    /// The outputs that are results of the model: all but the conditions.
    pub fn results(&self) -> &[Port] {
        &self.outputs[..self.outputs.len().saturating_sub(self.checks)]
    }

    /// The conditions of a run: a run in which one is false fails with its name as the message.
    pub fn conditions(&self) -> &[Port] {
        &self.outputs[self.results().len()..]
    }

    /// Checks what the plan requires of sizes. Nothing else does: kernels take it as given.
    ///
    /// # Errors
    /// The first requirement that does not hold, with its node and both sides.
    pub fn check_sizes(&self, bindings: &Bindings) -> Result<(), SizesError> {
        self.requirements.iter().try_for_each(|r| r.check(bindings))
    }

    /// The collectives of one run in order, each with the buffers of its part and its result.
    pub fn collectives(&self) -> impl Iterator<Item = (Collective, BufferId, BufferId)> {
        self.steps.values().filter_map(|step| match &step.work {
            Work::Call {
                call,
                operands,
                results,
                ..
            } => Some((call.as_collective()?, *operands.first()?, *results.first()?)),
            Work::Launch { .. } | Work::Copy { .. } => None,
        })
    }

    /// The plan with the ports that the whole model has: those that are cut have all ranks' parts. For checking what a run is given;
    /// its buffers are still the rank's.
    #[must_use]
    pub fn with_whole_ports(&self) -> Plan {
        let mut plan = self.clone();
        let Some(share) = &self.share else { return plan };
        let cut = share.inputs.iter().zip(&mut plan.inputs);
        for (axis, port) in cut.chain(share.outputs.iter().zip(&mut plan.outputs)) {
            if let Some(size) = axis.and_then(|axis| port.ty.shape.0.get_mut(axis as usize)) {
                *size = size.clone() * i64::from(share.ranks);
            }
        }
        plan
    }

    /// Returns the number of kernel launches and library calls of one run.
    pub fn launches(&self) -> (usize, usize) {
        self.steps
            .values()
            .fold((0, 0), |(launches, calls), step| match step.work {
                Work::Launch { .. } => (launches + 1, calls),
                Work::Call { .. } => (launches, calls + 1),
                Work::Copy { .. } => (launches, calls),
            })
    }
}
