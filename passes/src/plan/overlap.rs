//! Which launches let the next one begin before they end.

use ir::kernel::{Body, Kernel};
use ir::plan::{BufferId, KernelId, LaneId, Place, Work};
use ir::{Entity, Plan, Table};

/// Returns the kernels most of whose launches have one behind them that streams constant weights: its first bytes then
/// come while they are still at work. No other launch is let in early: workgroups that do not stay crowd where there
/// happens to be room.
pub fn before_streams(plan: &Plan) -> Vec<KernelId> {
    if !plan.target.overlaps_launches {
        return Vec::new();
    }
    // Of each kernel the launches, and those with such a one behind them.
    let mut counts: Table<KernelId, [usize; 2]> = plan.kernels.values().map(|_| [0; 2]).collect();
    let mut before: Table<LaneId, Option<KernelId>> = plan.lanes.values().map(|_| None).collect();
    for step in plan.steps.values() {
        let Work::Launch { kernel, args } = &step.work else {
            before[step.lane] = None;
            continue;
        };
        if let Some(before) = before[step.lane] {
            counts[before][1] += usize::from(streams_constants(plan, &plan.kernels[*kernel], args));
        }
        counts[*kernel][0] += 1;
        before[step.lane] = Some(*kernel);
    }
    let most = counts.iter().filter(|(_, [all, some])| some * 2 > *all);
    most.map(|(kernel, _)| kernel).collect()
}

/// Says whether a launch streams weights that are constants, with all that makes numbers of them.
fn streams_constants(plan: &Plan, kernel: &Kernel, args: &[BufferId]) -> bool {
    let Body::Contract(body) = &kernel.body else {
        return false;
    };
    let loaded = kernel.loaded_by(body.rhs.value);
    let constant = |buffer: &BufferId| matches!(plan.buffers[*buffer].place, Place::Constant(_));
    kernel.streams() && loaded.iter().all(|param| args.get(param.index()).is_some_and(constant))
}
