//! In-place results: a result takes over the buffer of an operand that dies in the same step.

use ir::kernel::{Access, ParamId};
use ir::plan::{BufferId, KernelId, Place, StepId, Work};
use ir::{Entity, Plan, Table};

use super::dedupe::{Kernels, rename};
use crate::lower::reads_only_where_it_stores;

/// Bytes of an input, symbols at their hints, up to which a GPU's copy of it is not written. A caller may have the
/// input on the device, where it is read without a copy if nothing writes it. A launch that copies few bytes takes as
/// long as many of them are worth.
const SMALL_INPUT: i64 = 1 << 20;

/// Returns the buffers a piece of work reads and writes.
pub fn accesses(plan: &Plan, work: &Work) -> (Vec<BufferId>, Vec<BufferId>) {
    match work {
        Work::Launch { kernel, args } => {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (param, buffer) in plan.kernels[*kernel].params.values().zip(args) {
                if param.access.reads() {
                    reads.push(*buffer);
                }
                if param.access.writes() {
                    writes.push(*buffer);
                }
            }
            (reads, writes)
        }
        Work::Call {
            operands,
            results,
            workspace,
            ..
        } => (operands.clone(), results.iter().chain(workspace).copied().collect()),
        Work::Copy { from, to } => (vec![*from], vec![*to]),
    }
}

/// Merges parameters where the result may go where an operand is.
///
/// The kernel then has one parameter, read and written, for both; that is what tells codegen that nothing else aliases.
/// Steps that may launch another kernel besides stay as they are.
pub fn reuse(plan: &mut Plan, has_other: impl Fn(StepId) -> bool) {
    let mut kernels = Kernels::default();
    let mut table = Table::new();
    let kept = kept_inputs(plan);
    // Launches of one kernel that reuse alike become one kernel again.
    let mut made: std::collections::HashMap<(KernelId, Option<(ParamId, ParamId)>), KernelId> = Default::default();
    let steps: Vec<StepId> = plan.steps.keys().collect();
    for id in steps {
        if let Work::Copy { from, to } = plan.steps[id].work {
            stay(plan, id, from, to);
        }
        let Work::Launch { kernel, args } = plan.steps[id].work.clone() else {
            continue;
        };
        let mut args = args;
        let reused = match has_other(id) {
            true => None,
            false => candidate(plan, id, &plan.kernels[kernel], &args, &kept),
        };
        if let Some((operand, result)) = reused {
            let (from, to) = (args[operand.index()], args[result.index()]);
            if let Place::Arena { in_place_of, .. } = &mut plan.buffers[to].place {
                *in_place_of = Some(from);
            }
            args.remove(operand.index());
        }
        if let Some(kernel) = made.get(&(kernel, reused)) {
            plan.steps[id].work = Work::launch(*kernel, args);
            continue;
        }
        let mut k = plan.kernels[kernel].clone();
        if let Some((operand, result)) = reused {
            k.params[result].access = Access::ReadWrite;
            rename(&mut k, |p| if p == operand { result } else { p });
            let used: Vec<bool> = k.params.keys().map(|p| p != operand).collect();
            super::dedupe::keep_params(&mut k, &used);
        }
        let new = kernels.add(&mut table, k);
        made.insert((kernel, reused), new);
        plan.steps[id].work = Work::launch(new, args);
    }
    plan.kernels = table;
}

/// A copy of a buffer that nothing needs afterwards stays where it is: what a scatter updates is not copied then.
fn stay(plan: &mut Plan, step: StepId, from: BufferId, to: BufferId) {
    let dies = matches!(plan.buffers[from].place, Place::Arena { last, .. } if last == step);
    let same_size = plan.buffers[from].ty.bytes() == plan.buffers[to].ty.bytes();
    if let Place::Arena {
        first,
        in_place_of: in_place_of @ None,
        ..
    } = &mut plan.buffers[to].place
        && *first == step
        && dies
        && same_size
        && from < to
    {
        *in_place_of = Some(from);
    }
}

/// Finds an operand that dies in the step and a result that may take its place.
fn candidate(
    plan: &Plan,
    step: StepId,
    kernel: &ir::Kernel,
    args: &[BufferId],
    kept: &Table<BufferId, bool>,
) -> Option<(ParamId, ParamId)> {
    let dies = |b: BufferId| matches!(plan.buffers[b].place, Place::Arena { last, .. } if last == step);
    let is_fresh =
        |b: BufferId| matches!(plan.buffers[b].place, Place::Arena { first, in_place_of: None, .. } if first == step);
    let results: Vec<ParamId> = kernel
        .params
        .iter()
        .filter(|(_, p)| p.access == Access::Write)
        .map(|(id, _)| id)
        .collect();
    let [result] = results.as_slice() else { return None };
    let result = *result;
    let out = args[result.index()];
    if !is_fresh(out) {
        return None;
    }
    kernel
        .params
        .iter()
        .map(|(id, _)| id)
        .find(|operand| {
            let buffer = args[operand.index()];
            *operand != result
                && buffer != out
                && dies(buffer)
                && !kept[buffer]
                && args.iter().filter(|b| **b == buffer).count() == 1
                && plan.buffers[buffer].ty.bytes() == plan.buffers[out].ty.bytes()
                && reads_only_where_it_stores(kernel, *operand)
        })
        .map(|operand| (operand, result))
}

/// Says of each buffer whether it is the copy of an input that is never written.
fn kept_inputs(plan: &Plan) -> Table<BufferId, bool> {
    let mut kept: Table<BufferId, bool> = plan.buffers.keys().map(|_| false).collect();
    for step in plan.steps.values().filter(|_| plan.target.is_gpu()) {
        if let Work::Copy { from, to } = step.work {
            let is_small = || plan.buffers[to].ty.bytes().hint(&plan.symbols) <= SMALL_INPUT;
            kept[to] = plan.buffers[from].place == Place::Input && is_small();
        }
    }
    kept
}
