//! Which ports of a run are on the device, and whose memory the plan's blocks are in then.
//!
//! A plan copies each input from the host to a buffer in the arena and each output from one. Where a port's tensor is
//! on the device already, that buffer is the tensor's memory, and nothing is copied:
//!
//! | port | its block | then |
//! |---|---|---|
//! | output on the device | no other output has it | the block is in the output's memory |
//! | input on the device | only the upload writes it | the block is in the input's memory |
//! | donated input | an output's | the output is in the input's memory |
//! | donated input | written, no output's | the block is in the input's memory |
//!
//! In all other cases the copy stays, from device to device.

use ir::Table;
use ir::plan::{BufferId, Place, Plan};
use smallvec::SmallVec;

use super::facts::PlanFacts;
use crate::tensor::Where;

/// How an input is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputForm {
    Host,
    /// On the device, and stays as it is.
    Device,
    /// As `Device`, but where the plan's kernels cannot read it: its address is not a multiple of what they take it to
    /// be.
    Copied,
    /// The run may write it.
    Donated,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Form {
    pub inputs: SmallVec<[InputForm; 8]>,
    pub outputs: SmallVec<[Where; 8]>,
}

/// A port of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PortRef {
    Input(u32),
    Output(u32),
}

/// Whose memory blocks are in.
pub(super) struct Outside {
    /// Of each root: the port that has the block; None for the arena.
    pub port: Table<BufferId, Option<PortRef>>,
    /// Output ports that are in the memory of a donated input.
    pub taken: Vec<Option<u32>>,
}

impl Form {
    /// Everything on the host.
    pub fn host(plan: &Plan) -> Form {
        Form {
            inputs: plan.inputs.iter().map(|_| InputForm::Host).collect(),
            outputs: plan.outputs.iter().map(|_| Where::Host).collect(),
        }
    }
}

impl Outside {
    pub fn new(plan: &Plan, facts: &PlanFacts, form: &Form) -> Outside {
        let mut port: Table<BufferId, Option<PortRef>> = plan.buffers.keys().map(|_| None).collect();
        let mut taken = vec![None; plan.outputs.len()];
        // Of each root, whether all of its buffers have the size of `like`.
        let uniform = |root: BufferId, like: BufferId| {
            plan.buffers
                .keys()
                .all(|b| facts.root[b] != root || facts.same_size(b, like))
        };
        let in_arena = |b: BufferId| matches!(plan.buffers[b].place, Place::Arena { .. });
        for (index, download) in facts.downloads.iter().enumerate() {
            let Some((_, from)) = download.filter(|_| form.outputs[index] == Where::Device) else {
                continue;
            };
            let root = facts.root[from];
            if in_arena(from) && port[root].is_none() && uniform(root, plan.outputs[index].buffer) {
                port[root] = Some(PortRef::Output(index as u32));
            }
        }
        for (index, upload) in facts.uploads.iter().enumerate() {
            let Some((_, to)) = *upload else { continue };
            let root = facts.root[to];
            let donated = form.inputs[index] == InputForm::Donated;
            if !in_arena(to) || !matches!(form.inputs[index], InputForm::Device | InputForm::Donated) {
                continue;
            }
            let input = PortRef::Input(index as u32);
            match port[root] {
                Some(PortRef::Output(output)) => {
                    if donated && uniform(root, plan.inputs[index].buffer) {
                        port[root] = Some(input);
                        taken[output as usize] = Some(index as u32);
                    }
                }
                Some(PortRef::Input(_)) => {}
                None => {
                    if uniform(root, plan.inputs[index].buffer) && (donated || !facts.written[root]) {
                        port[root] = Some(input);
                    }
                }
            }
        }
        Outside { port, taken }
    }

    /// Whose memory a buffer of the arena is in.
    pub fn of(&self, facts: &PlanFacts, buffer: BufferId) -> Option<PortRef> {
        self.port[facts.root[buffer]]
    }
}

impl PortRef {
    pub fn index(self) -> usize {
        match self {
            PortRef::Input(index) | PortRef::Output(index) => index as usize,
        }
    }
}

/// Says whether a buffer is a port's host side, and which.
pub(super) fn host_port(plan: &Plan, buffer: BufferId) -> Option<PortRef> {
    let at = |ports: &[ir::plan::Port]| ports.iter().position(|port| port.buffer == buffer).map(|at| at as u32);
    match plan.buffers.get(buffer)?.place {
        Place::Input => at(&plan.inputs).map(PortRef::Input),
        Place::Output => at(&plan.outputs).map(PortRef::Output),
        Place::Arena { .. } | Place::Constant(_) | Place::Streamed(_) => None,
    }
}
