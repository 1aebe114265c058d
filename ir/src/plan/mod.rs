//! The plan: HOW and WHERE.
//!
//! Kernels and library calls as steps in order, every buffer with its lifetime, lanes with the dependencies between
//! them. Sizes may be symbolic; [`arena::place`] gives every arena buffer its offset once they are bound.
//!
//! Invariant: steps are in an order that satisfies every dependency; within a lane they run in this order, between
//! lanes only `waits` orders them.
//!
//! Invariant: two arena buffers whose lifetimes overlap, or whose users are in lanes with no wait between them, never
//! share bytes, except through `in_place_of`.

pub mod arena;
pub mod eval;
pub mod print;
pub mod requirement;
pub mod stages;
pub mod verify;
pub mod work;

use serde::{Deserialize, Serialize};

use crate::dim::{Bindings, Dim, DimError, Symbols, hints};
use crate::entity::{Table, entity};
use crate::graph::{Check, ConstId};
use crate::kernel::Kernel;
use crate::library::{Algorithm, Collective, Library, LibraryCall};
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
    /// What each of the last outputs tests, which are conditions: a run in which one does not hold fails, and the
    /// message begins with its name.
    pub checks: Vec<Check>,
    /// Floating-point operations of one run (a multiply-add is two).
    pub flops: Dim,
    /// What the sizes of a run must satisfy.
    pub requirements: Vec<Requirement>,
    pub overlap: Overlap,
    /// Set where the plan was made to fit a device's memory.
    pub streaming: Option<Streaming>,
    /// Set where the plan is one rank's part of a model on several devices.
    pub share: Option<Share>,
    /// Inputs whose next value is an output, as a session keeps them; the same for all ranks.
    pub states: Vec<Carried>,
}

/// An input that is kept from run to run, and the output that is its next value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Carried {
    pub input: String,
    pub output: String,
}

/// What kernels do about the launches beside theirs, where launches may overlap
/// ([`Architecture::overlaps_launches`](crate::target::Architecture::overlaps_launches)); elsewhere empty.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Overlap {
    /// Those that let the launch behind theirs begin as soon as all of their workgroups are at work.
    pub lets_next_begin: Vec<KernelId>,
    /// Those that read their weights before the launch before theirs is done.
    pub reads_early: Vec<KernelId>,
}

/// Which part of a model a plan is: all ranks' plans have the same ports, of which some are cut along an axis, a part
/// for each rank; or each is one of several [stages], which follow each other.
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

/// How a plan fits into less memory than its weights take: some of them stay on the host, and steps copy each to the
/// device ahead of its use.
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
    /// What it does at the sizes for which no choice is taken.
    pub work: Work,
    /// What takes the place of `work` from a size on: each computes the same, and is better there.
    pub choices: Vec<Choice>,
    /// Floating-point operations (a multiply-add is two). What several steps compute for themselves counts in each of
    /// them, so all together may be more than [`Plan::flops`].
    pub flops: Dim,
}

/// What a step does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Arguments in the order of the kernel's parameters.
    Launch { kernel: KernelId, args: Vec<BufferId> },
    /// Operands of the call, then its results. The workspace is an arena buffer of bytes, of which the library takes
    /// what it needs; it has no room at sizes at which the call is not chosen.
    Call {
        call: LibraryCall,
        operands: Vec<BufferId>,
        results: Vec<BufferId>,
        workspace: Option<BufferId>,
        /// The algorithm that was the fastest where it was measured. The library chooses where there is none, and where
        /// this one is of another library, or not for these sizes.
        algorithm: Option<Box<Algorithm>>,
    },
    /// Copies all bytes.
    Copy { from: BufferId, to: BufferId },
}

/// A launch or a call that takes the place of a step's own work from a size on: it computes the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// What is compared: the rows of a product.
    pub size: Dim,
    /// The least size for which it is taken; ascending in a step.
    pub from: i64,
    /// Writes what the step's own work writes. Never a copy.
    pub work: Work,
}

impl Step {
    /// Makes a step that does the same at every size.
    pub fn new(lane: LaneId, waits: Vec<StepId>, work: Work, flops: Dim) -> Step {
        Step {
            lane,
            waits,
            work,
            choices: Vec::new(),
            flops,
        }
    }

    /// Returns which of [`Step::works`] is done at the given sizes.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn chosen(&self, bindings: &Bindings) -> Result<usize, DimError> {
        let mut chosen = 0;
        for (index, choice) in self.choices.iter().enumerate() {
            if choice.size.eval(bindings)? >= choice.from {
                chosen = index + 1;
            }
        }
        Ok(chosen)
    }

    /// Returns what is done at the given sizes.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn at(&self, bindings: &Bindings) -> Result<&Work, DimError> {
        let chosen = self.chosen(bindings)?;
        Ok(match chosen.checked_sub(1).and_then(|index| self.choices.get(index)) {
            Some(choice) => &choice.work,
            None => &self.work,
        })
    }

    /// Returns what is done where the size that the choices compare is `size`.
    pub fn in_range(&self, size: i64) -> &Work {
        let choice = self.choices.iter().rfind(|choice| choice.from <= size);
        choice.map_or(&self.work, |choice| &choice.work)
    }

    /// Returns all that the step may do: its own work, then the choices.
    pub fn works(&self) -> impl Iterator<Item = &Work> {
        std::iter::once(&self.work).chain(self.choices.iter().map(|choice| &choice.work))
    }

    /// As [`Step::works`].
    pub fn works_mut(&mut self) -> impl Iterator<Item = &mut Work> {
        std::iter::once(&mut self.work).chain(self.choices.iter_mut().map(|choice| &mut choice.work))
    }

    /// Leaves out a library's calls where kernels do the same at other sizes: those then do at all. Says whether that
    /// is so of every call of the library. A workspace that nothing uses any more has no room.
    pub fn without_calls(&mut self, library: Library, buffers: &mut Table<BufferId, Buffer>) -> bool {
        let is_of = |work: &Work| work.library_call().is_some_and(|call| call.library == library);
        if self.works().all(is_of) {
            return false;
        }
        for work in self.works().filter(|work| is_of(work)) {
            if let Work::Call {
                workspace: Some(room), ..
            } = work
            {
                buffers[*room].ty.shape = vec![Dim::Const(0)].into();
            }
        }
        self.choices.retain(|choice| !is_of(&choice.work));
        if is_of(&self.work) {
            // There is one: not all works are the library's.
            self.work = self.choices.remove(0).work;
        }
        true
    }

    /// Returns every kernel that the step may launch.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> {
        self.works().filter_map(Work::kernel)
    }

    /// Returns every library's call that the step may make.
    pub fn calls(&self) -> impl Iterator<Item = &LibraryCall> {
        self.works().filter_map(Work::library_call)
    }
}

impl Work {
    /// Makes a launch.
    pub const fn launch(kernel: KernelId, args: Vec<BufferId>) -> Work {
        Work::Launch { kernel, args }
    }

    /// Returns the kernel of a launch.
    pub const fn kernel(&self) -> Option<KernelId> {
        match self {
            Work::Launch { kernel, .. } => Some(*kernel),
            Work::Call { .. } | Work::Copy { .. } => None,
        }
    }

    /// Returns the call that is made.
    pub const fn library_call(&self) -> Option<&LibraryCall> {
        match self {
            Work::Call { call, .. } => Some(call),
            Work::Launch { .. } | Work::Copy { .. } => None,
        }
    }
}

impl Plan {
    /// The outputs that are results of the model: all but the conditions.
    pub fn results(&self) -> &[Port] {
        &self.outputs[..self.outputs.len().saturating_sub(self.checks.len())]
    }

    /// The conditions of a run: a run in which one does not hold fails, and the message begins with its name.
    pub fn conditions(&self) -> impl ExactSizeIterator<Item = (&Check, &Port)> {
        self.checks.iter().zip(&self.outputs[self.results().len()..])
    }

    /// The first condition of a run of these sizes that does not hold, and what is said of it; None where all hold. The
    /// values are in the order of [`conditions`](Self::conditions); one that is not there is not asked for.
    pub fn failed_condition<'a>(
        &self,
        values: impl IntoIterator<Item = Option<&'a [u8]>>,
        sizes: &Bindings,
    ) -> Option<(&Check, String)> {
        let mut given = self.conditions().zip(values);
        given.find_map(|((check, port), value)| Some((check, check.failure(&port.name, value?, sizes)?)))
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

    /// The plan with the ports that the whole model has: those that are cut have all ranks' parts. For checking what a
    /// run is given; its buffers are still the rank's.
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

    /// Returns the workspaces of calls that are not made at the given sizes, which have no room there.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn idle_workspaces(&self, bindings: &Bindings) -> Result<Vec<BufferId>, DimError> {
        let workspace = |work: &Work| match work {
            Work::Call { workspace, .. } => *workspace,
            Work::Launch { .. } | Work::Copy { .. } => None,
        };
        let mut idle = Vec::new();
        for step in self.steps.values().filter(|step| !step.choices.is_empty()) {
            let used = workspace(step.at(bindings)?);
            idle.extend(step.works().filter_map(workspace).filter(|b| Some(*b) != used));
        }
        Ok(idle)
    }

    /// Returns the number of kernel launches and library calls of one run at the symbols' hints.
    pub fn launches(&self) -> (usize, usize) {
        let hints = hints(&self.symbols);
        self.steps.values().fold((0, 0), |(launches, calls), step| {
            match step.at(&hints).unwrap_or(&step.work) {
                Work::Launch { .. } => (launches + 1, calls),
                Work::Call { .. } => (launches, calls + 1),
                Work::Copy { .. } => (launches, calls),
            }
        })
    }
}
