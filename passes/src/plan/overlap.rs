//! Which launches let the next one begin before they end, which have something to do before the last one has ended, and
//! whose workgroups share units with those of the launch before.

use ir::kernel::{AxisId, Body, GemvStream, Kernel, Mapping};
use ir::plan::{BufferId, KernelId, LaneId, Overlap, Place, Step, Work};
use ir::{Dim, Entity, Plan, Table};

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

/// Gives each kernel whose workgroups stay so much LDS that a unit has room for one of them: while the launch before
/// ends, two would crowd where it has ended, and other units would have none. Or for two, where each launch finds the
/// units as it must: with one such workgroup on each, or with nothing. Its weights then come while the launch before is
/// at work.
///
/// (As measured on an H100 in chains of equal products, in microseconds: by 4096 x 4096 weights of four bits 3.3
/// instead of 4.1, by 6144 x 4096 5.1 instead of 5.5, by 8192 x 4096 6.8 both ways. Where some workgroups have no
/// columns it takes longer: by 2048 x 4096 3.5 instead of 2.9.)
pub fn share_units(plan: &mut Plan) {
    let most = plan.target.most_lds_bytes();
    for kernel in plan.kernels.values_mut() {
        set_residents(kernel, 1, most);
    }
    let mut shares: Table<KernelId, bool> = plan.kernels.values().map(|k| may_share(k, most)).collect();
    let mut before: Table<LaneId, Before> = plan.lanes.values().map(|_| Before::Nothing).collect();
    let mut of_launches: Option<LaneId> = None;
    for step in plan.steps.values() {
        // At some sizes a choice takes its place.
        let only = step.choices.is_empty();
        for kernel in step.kernels() {
            shares[kernel] &= only;
        }
        let lane = &mut before[step.lane];
        let Work::Launch { kernel, args } = &step.work else {
            *lane = if only && matches!(step.work, Work::Copy { .. }) {
                Before::Nothing
            } else {
                Before::Other
            };
            continue;
        };
        // Launches of other lanes have units at any time.
        if *of_launches.get_or_insert(step.lane) != step.lane {
            return;
        }
        let this = &plan.kernels[*kernel];
        let beside = match *lane {
            Before::Nothing => true,
            Before::Stream(other) => {
                GemvStream::fit_together(&[plan.kernels[other].gemv_lds(), room(this, most)], most)
            }
            Before::Other => false,
        };
        shares[*kernel] &= beside && weights_are_constants(plan, this, args);
        *lane = if this.streams() && only {
            Before::Stream(*kernel)
        } else {
            Before::Other
        };
    }
    for (id, _) in shares.iter().filter(|(_, shares)| **shares) {
        set_residents(&mut plan.kernels[id], 2, most);
    }
}

/// Says whether two workgroups of a kernel fit a unit, and each has something to do: all end at about the same time.
fn may_share(kernel: &Kernel, most: u32) -> bool {
    let (Mapping::Gemv(tiling), Body::Contract(body)) = (&kernel.mapping, &kernel.body) else {
        return false;
    };
    if tiling.stream.is_none() {
        return false;
    }
    let points = |axes: &[AxisId]| {
        axes.iter()
            .map(|a| kernel.axes[*a].extent.clone())
            .product::<Dim>()
            .as_const()
    };
    let (Some(1), Some(columns)) = (points(&body.m), points(&body.n)) else {
        return false;
    };
    tiling.all_have_some(columns) && GemvStream::fit_together(&[room(kernel, most); 2], most)
}

/// Returns the LDS of a workgroup that shares its unit, in bytes.
fn room(kernel: &Kernel, most: u32) -> u32 {
    let mut shared = kernel.clone();
    set_residents(&mut shared, 2, most);
    shared.gemv_lds()
}

/// Of a kernel whose workgroups stay, sets how many have room on a unit.
fn set_residents(kernel: &mut Kernel, residents: u32, most: u32) {
    if let Mapping::Gemv(tiling) = &mut kernel.mapping {
        *tiling = tiling.with_residents(residents, most);
    }
}

/// What a lane's units have on them when a launch is let in.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    /// One workgroup each, of a kernel whose workgroups stay.
    Stream(KernelId),
    Other,
}

/// Returns the kernels most of whose launches have one behind them that streams constant weights, or asks for some
/// early: its first bytes then come while they are still at work. No other launch is let in early: workgroups that are
/// more than one to a unit crowd where there happens to be room.
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

/// Says whether a launch streams weights that are constants, with all that makes numbers of them, or asks for some
/// early.
fn streams_constants(plan: &Plan, kernel: &Kernel, args: &[BufferId]) -> bool {
    let early = matches!(&kernel.mapping, Mapping::Gemv(tiling) if tiling.early > 0);
    (kernel.streams() || early) && weights_are_constants(plan, kernel, args)
}

/// Returns the products of few rows by matrix instructions, by copies to LDS, or with weights that are asked for early,
/// all of whose launches have weights that are constants: nothing writes those, so they may be read before the launch
/// before is done.
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
