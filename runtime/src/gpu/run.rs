//! One run: inputs into staging memory, every step onto its lane, one wait, outputs back.

use std::sync::Arc;
use std::time::Duration;

use ir::Program;
use ir::entity::Entity;
use ir::plan::StepId;

use super::context::Context;
use super::handles::{Gpu, Stream};
use super::prepare::{Enqueue, OutputFrom, Prepared, StepExec};
use crate::device::{Profile, StepTime};
use crate::error::RuntimeError;

/// Runs what was prepared; all of it is done when this gives `Ok`. After an error work may still be under way.
///
/// With `synchronous`, each step is waited for, so that an error names the one that it came from.
pub(super) fn run(
    gpu: &Arc<Gpu>,
    prepared: &Prepared,
    context: &mut Context,
    inputs: &[&[u8]],
    profile: Option<&mut Profile>,
    synchronous: bool,
) -> Result<(), RuntimeError> {
    for (at, bytes) in prepared.inputs.iter().zip(inputs) {
        if let Some(at) = at {
            context.write(*at, bytes);
        }
    }
    if profile.is_some() {
        context.with_times(gpu, prepared.steps.len())?;
    }
    let (arena, staging) = context.bases();
    let mut arguments: smallvec::SmallVec<[u64; 24]> = smallvec::SmallVec::new();
    for (index, step) in prepared.steps.iter().enumerate() {
        let id = StepId::new(index);
        let at = || describe(id, step);
        let lane = &context.lanes[step.lane];
        for wait in &step.waits {
            if let Some(event) = &context.events[*wait] {
                gpu.at_with(at, lane.wait(event))?;
            }
        }
        let times = context.times.get(index).filter(|_| profile.is_some());
        if let Some((start, _)) = times {
            gpu.at_with(at, lane.record(start))?;
        }
        match &step.work {
            Enqueue::Nothing => {}
            Enqueue::Launch {
                function,
                grid,
                block,
                arguments: words,
                in_arena,
            } => {
                arguments.clear();
                arguments.extend_from_slice(words);
                for word in in_arena {
                    arguments[*word] += arena;
                }
                // SAFETY: the words are those of the kernel's signature; buffers were checked against its parameters when the
                // step was prepared, and the arena and the constants live until the run was waited for.
                let launched = unsafe { lane.launch(*function, *grid, *block, &mut arguments) };
                gpu.at_with(at, launched)?;
            }
            Enqueue::Copy {
                from,
                to,
                bytes,
                direction,
            } => {
                let (to, from) = (to.address(arena, staging), from.address(arena, staging));
                // SAFETY: both buffers have at least that many bytes, and live until the run was waited for.
                let copied = unsafe { lane.copy(to, from, *bytes, *direction) };
                gpu.at_with(at, copied)?;
            }
            Enqueue::Call { call, buffers } => {
                let addresses: smallvec::SmallVec<[u64; 8]> =
                    buffers.iter().map(|spot| spot.address(arena, staging)).collect();
                context
                    .handles
                    .enqueue(call, &addresses, context.workspace(step.lane), lane.raw(), at)?;
            }
        }
        if let Some((_, stop)) = times {
            gpu.at_with(at, lane.record(stop))?;
        }
        if let Some(event) = context.events[id].as_ref().filter(|_| step.awaited) {
            gpu.at_with(at, lane.record(event))?;
        }
        if synchronous {
            gpu.at_with(at, lane.synchronize())?;
        }
    }
    join(gpu, context, prepared.steps.len())?;
    if let Some(profile) = profile {
        for (index, (step, (start, stop))) in prepared.steps.iter().zip(&context.times).enumerate() {
            let id = StepId::new(index);
            let milliseconds = gpu.at_with(|| describe(id, step), stop.since(start))?;
            profile.steps.push(StepTime {
                step: id,
                name: step.name.clone(),
                engine: step.engine.to_owned(),
                time: Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3),
            });
        }
    }
    Ok(())
}

/// Lets the first lane wait for all others, and waits for it.
fn join(gpu: &Gpu, context: &Context, steps: usize) -> Result<(), RuntimeError> {
    const AT: &str = "the end of a run";
    let Some(first) = context.first_lane() else {
        return Ok(());
    };
    let others: Vec<&Stream> = context.lanes.values().skip(1).collect();
    for (lane, end) in others.into_iter().zip(&context.ends) {
        gpu.at(AT, lane.record(end))?;
        gpu.at(AT, first.wait(end))?;
    }
    gpu.at_with(|| format!("the end of a run of {steps} steps"), first.synchronize())
}

/// Names a step for errors.
pub(super) fn describe(id: StepId, step: &StepExec) -> String {
    match step.work {
        Enqueue::Launch { .. } => format!("step {id}, kernel {}", step.name),
        _ => format!("step {id}, {}", step.name),
    }
}

/// Copies the outputs of a run that is done to where the caller wants them.
pub(super) fn collect(
    program: &Program,
    prepared: &Prepared,
    context: &Context,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) {
    for (from, to) in prepared.outputs.iter().zip(outputs) {
        match from {
            OutputFrom::Staging(at) => context.read(*at, to),
            // Sizes were compared with the plan's, and these are the plan's own.
            OutputFrom::Input(port) => to.copy_from_slice(inputs[*port]),
            OutputFrom::Constant(id) => to.copy_from_slice(&program.constants[*id].tensor.bytes[..to.len()]),
        }
    }
}
