//! Which launches let the next one begin before they end, and which have something to do before the last one has ended.

use ir::kernel::{Body, Kernel, Mapping};
use ir::plan::{BufferId, KernelId, LaneId, Overlap, Place, Step, Work};
use ir::{Entity, Plan, Table};

/// Returns what the plan's kernels do about the launches beside theirs.
pub fn overlap(plan: &Plan) -> Overlap {
    if !plan.target.overlaps_launches {
        return Overlap::default();
    }
    Overlap {
        lets_next_begin: before_streams(plan),
        reads_early: with_constant_weights(plan),
    }
}

/// Returns the kernels most of whose launches have one behind them that streams constant weights, or asks for some early: its
/// first bytes then come while they are still at work. No other launch is let in early: workgroups that are more than one
/// to a unit crowd where there happens to be room.
fn before_streams(plan: &Plan) -> Vec<KernelId> {
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

/// Says whether a launch streams weights that are constants, with all that makes numbers of them, or asks for some early.
fn streams_constants(plan: &Plan, kernel: &Kernel, args: &[BufferId]) -> bool {
    let early = matches!(&kernel.mapping, Mapping::Gemv(tiling) if tiling.early > 0);
    (kernel.streams() || early) && weights_are_constants(plan, kernel, args)
}

/// Returns the products of few rows by matrix instructions, by copies to LDS, or with weights that are asked for early, all of
/// whose launches have weights that are constants: nothing writes those, so they may be read before the launch before is
/// done.
fn with_constant_weights(plan: &Plan) -> Vec<KernelId> {
    let may = |kernel: &Kernel| match &kernel.mapping {
        Mapping::Gemv(tiling) => tiling.matrix.is_some() || tiling.stream.is_some() || tiling.early > 0,
        _ => false,
    };
    let mut early: Table<KernelId, bool> = plan.kernels.values().map(may).collect();
    for work in plan.steps.values().flat_map(Step::works) {
        if let Work::Launch { kernel, args } = work {
            early[*kernel] &= weights_are_constants(plan, &plan.kernels[*kernel], args);
        }
    }
    let all = early.iter().filter(|(_, early)| **early);
    all.map(|(kernel, _)| kernel).collect()
}

/// Says whether all that a product reads for its right operand is constants, where it is launched with `args`.
fn weights_are_constants(plan: &Plan, kernel: &Kernel, args: &[BufferId]) -> bool {
    let Body::Contract(body) = &kernel.body else {
        return false;
    };
    let constant = |buffer: &BufferId| matches!(plan.buffers[*buffer].place, Place::Constant(_));
    let loaded = kernel.loaded_by(body.rhs.value);
    loaded.iter().all(|param| args.get(param.index()).is_some_and(constant))
}
