//! What holds of a plan at all sizes: its steps, which buffers are one block of memory, which steps carry ports, which
//! sizes there are. Worked out once, when the program is loaded.

use indexmap::IndexSet;
use ir::dim::{Bindings, Dim, DimError};
use ir::entity::Table;
use ir::kernel::Access;
use ir::plan::{BufferId, KernelId, LaneId, Place, Plan, StepId, Work};

use crate::checks::check_proved;
use crate::error::RuntimeError;

/// See the module.
pub(super) struct PlanFacts {
    pub steps: Table<StepId, Step>,
    /// The first of the buffers that a buffer is in place of: they are one block of memory.
    pub root: Table<BufferId, BufferId>,
    /// Of each root, whether a step writes the block besides the upload.
    pub written: Table<BufferId, bool>,
    /// The upload of each input port: the step, and the buffer on the device. None where there is not just one.
    pub uploads: Vec<Option<(StepId, BufferId)>>,
    /// The download of each output port.
    pub downloads: Vec<Option<(StepId, BufferId)>>,
    /// Launches whose buffers are not certain to be as large as the kernel takes them to be: which work of which step.
    pub uncertain: Vec<(StepId, usize)>,
    /// Kernels whose accesses depend on the sizes of a run.
    pub sized: Vec<KernelId>,
    /// Launches and calls.
    pub launches: usize,
    /// Every different size in bytes, and that of each buffer.
    dims: IndexSet<Dim>,
    dim_of: Table<BufferId, usize>,
}

/// A step, whatever the sizes.
pub(super) struct Step {
    pub lane: LaneId,
    /// Steps of other lanes that it waits for.
    pub waits: Vec<StepId>,
    /// Of each work that it may do.
    pub works: Vec<Named>,
}

/// What is said of a step's work.
pub(super) struct Named {
    /// The kernel's or call's name.
    pub name: String,
    /// What runs it, for profiles.
    pub engine: &'static str,
}

impl Named {
    /// Names it for errors.
    pub fn describe(&self, id: StepId) -> String {
        match self.engine {
            "kernel" => format!("step {id}, kernel {}", self.name),
            _ => format!("step {id}, {}", self.name),
        }
    }
}

fn damaged(what: String) -> RuntimeError {
    RuntimeError::Program(what)
}

impl PlanFacts {
    /// Reads a plan that was [checked](crate::checks::check).
    pub fn new(plan: &Plan) -> Result<PlanFacts, RuntimeError> {
        for (id, step) in plan.steps.iter() {
            if plan.lanes.get(step.lane).is_none() || step.waits.iter().any(|wait| *wait >= id) {
                return Err(damaged(format!(
                    "step {id} is in lane {} and waits for later steps",
                    step.lane
                )));
            }
        }
        let steps = plan.steps.values().map(|step| {
            let named = |work: &Work| {
                let (name, engine) = match work {
                    Work::Launch { kernel, .. } => (plan.kernels[*kernel].name.clone(), "kernel"),
                    Work::Copy { from, to } => (copy_name(plan, *from, *to).to_owned(), "copy"),
                    Work::Call { call, .. } => (call.name().to_owned(), call.library.name()),
                };
                Named { name, engine }
            };
            let other = |wait: &StepId| plan.steps[*wait].lane != step.lane;
            Step {
                lane: step.lane,
                waits: step.waits.iter().copied().filter(other).collect(),
                works: step.works().map(named).collect(),
            }
        });
        let steps = steps.collect();
        let mut root: Table<BufferId, BufferId> = plan.buffers.keys().collect();
        for (id, buffer) in plan.buffers.iter() {
            if let Place::Arena {
                in_place_of: Some(of), ..
            } = buffer.place
                && of < id
            {
                root[id] = root[of];
            }
        }
        let mut dims = IndexSet::new();
        let dim_of = plan
            .buffers
            .values()
            .map(|b| dims.insert_full(b.ty.bytes()).0)
            .collect();
        let mut facts = PlanFacts {
            steps,
            written: plan.buffers.keys().map(|_| false).collect(),
            root,
            uploads: plan
                .inputs
                .iter()
                .map(|port| carried(plan, |from, _| from == port.buffer))
                .collect(),
            downloads: Vec::new(),
            uncertain: Vec::new(),
            sized: Vec::new(),
            launches: 0,
            dims,
            dim_of,
        };
        facts.downloads = plan
            .outputs
            .iter()
            .map(|port| carried(plan, |_, to| to == port.buffer).map(|(step, ..)| step))
            .map(|step| {
                let step = step?;
                match plan.steps[step].work {
                    Work::Copy { from, .. } => Some((step, from)),
                    _ => None,
                }
            })
            .collect();
        facts.uses(plan);
        for (id, kernel) in plan.kernels.iter() {
            if kernel.symbols.is_empty() {
                check_proved(kernel, &Bindings::default())?;
            } else {
                facts.sized.push(id);
            }
        }
        Ok(facts)
    }

    fn uses(&mut self, plan: &Plan) {
        for (id, step) in plan.steps.iter() {
            let mut writes = |buffer: BufferId| self.written[self.root[buffer]] = true;
            self.launches += usize::from(!matches!(step.work, Work::Copy { .. }));
            for (index, work) in step.works().enumerate() {
                match work {
                    Work::Launch { kernel, args } => {
                        let mut certain = true;
                        for (param, arg) in plan.kernels[*kernel].params.values().zip(args) {
                            if param.access != Access::Read {
                                writes(*arg);
                            }
                            let ty = &plan.buffers[*arg].ty;
                            certain &= ty.dtype == param.dtype && ty.elements() == param.elements;
                        }
                        if !certain {
                            self.uncertain.push((id, index));
                        }
                    }
                    Work::Call { results, workspace, .. } => {
                        results.iter().chain(workspace).copied().for_each(&mut writes);
                    }
                    Work::Copy { .. } if self.uploads.iter().flatten().any(|(upload, _)| *upload == id) => {}
                    Work::Copy { to, .. } => writes(*to),
                }
            }
        }
    }

    /// The size of every buffer in bytes; nothing of a workspace that is not used at these sizes.
    pub fn sizes(&self, plan: &Plan, bindings: &Bindings) -> Result<Table<BufferId, usize>, DimError> {
        let values: Vec<usize> = self
            .dims
            .iter()
            .map(|dim| Ok(usize::try_from(dim.eval(bindings)?).unwrap_or(0)))
            .collect::<Result<_, DimError>>()?;
        let mut sizes: Table<BufferId, usize> = self.dim_of.values().map(|dim| values[*dim]).collect();
        for workspace in plan.idle_workspaces(bindings)? {
            sizes[workspace] = 0;
        }
        Ok(sizes)
    }

    /// Whether two buffers have one size whatever the symbols are.
    pub fn same_size(&self, a: BufferId, b: BufferId) -> bool {
        self.dim_of[a] == self.dim_of[b]
    }
}

/// The one copy whose ends fit.
fn carried(plan: &Plan, fits: impl Fn(BufferId, BufferId) -> bool) -> Option<(StepId, BufferId)> {
    let mut found = plan.steps.iter().filter_map(|(id, step)| match step.work {
        Work::Copy { from, to } if fits(from, to) => Some((id, to)),
        _ => None,
    });
    let one = found.next()?;
    found.next().is_none().then_some(one)
}

fn copy_name(plan: &Plan, from: BufferId, to: BufferId) -> &'static str {
    match (&plan.buffers[from].place, &plan.buffers[to].place) {
        (Place::Streamed(_), _) => "weight to device",
        (Place::Input | Place::Output, Place::Input | Place::Output) => "copy",
        (Place::Input | Place::Output, _) => "copy to device",
        (_, Place::Input | Place::Output) => "copy to host",
        _ => "copy",
    }
}
