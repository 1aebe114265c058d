//! Runs what was accepted, on memory that ends where buffers end.

use std::sync::Arc;

use graphc::ir::dim::hints;
use graphc::ir::plan::{Plan, Port, Step};
use graphc::ir::{Bindings, DType, Program, Storage};
use graphc::runtime::LoadOptions;
use graphc::runtime::device::Device;

use crate::Outcome;
use crate::guarded::Guarded;
use crate::random::Random;

/// Kernels of more points are not run: what is looked for is found in small ones.
const MOST_POINTS: i64 = 1 << 18;
/// Buffers of more bytes are not made.
const MOST_BYTES: i64 = 1 << 24;

/// Loads the program's first variant on the CPU and runs it once at random sizes.
pub(super) fn run(mut program: Program, random: &mut Random) -> Outcome {
    let Some(variant) = program.variants.first() else {
        return Outcome::Accepted;
    };
    let plan = variant.plan.clone();
    let sizes = sizes(&plan, random);
    // Loading prepares the plan at its hints.
    if !is_small(&plan, &hints(&plan.symbols)) || !is_small(&plan, &sizes) {
        return Outcome::Accepted;
    }
    for constant in program.constants.values_mut() {
        let tensor = &mut constant.tensor;
        tensor.bytes = Storage::new(Guarded::of(&tensor.bytes, align(tensor.dtype)));
    }
    let options = LoadOptions {
        threads: 1,
        memory_limit: Some(1 << 28),
        ..LoadOptions::default()
    };
    let Ok(loaded) = graphc::cpu_device().load(Arc::new(program), 0, &options) else {
        return Outcome::Refused;
    };
    let buffer = |port: &Port| -> Option<Guarded> {
        let bytes = port.ty.bytes().eval(&sizes).ok()?.max(0);
        (bytes <= MOST_BYTES).then(|| Guarded::new(bytes as usize, align(port.ty.dtype)))
    };
    let inputs: Option<Vec<Guarded>> = plan.inputs.iter().map(buffer).collect();
    let outputs: Option<Vec<Guarded>> = plan.outputs.iter().map(buffer).collect();
    let (Some(mut inputs), Some(mut outputs)) = (inputs, outputs) else {
        return Outcome::Accepted;
    };
    for (port, input) in plan.inputs.iter().zip(&mut inputs) {
        fill(port.ty.dtype, input.as_mut(), random);
    }
    let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).collect();
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(AsMut::as_mut).collect();
    // An error is an answer, too: a plan may be valid and its sizes not.
    let _ = loaded.run(&sizes, &inputs, &mut outputs, None);
    Outcome::Ran
}

fn align(dtype: DType) -> usize {
    (dtype.bits() as usize / 8).max(1)
}

/// Small sizes inside the symbols' bounds, mostly.
fn sizes(plan: &Plan, random: &mut Random) -> Bindings {
    plan.symbols
        .iter()
        .map(|(symbol, info)| {
            let most = info.max.unwrap_or(i64::MAX).min(info.min.saturating_add(9));
            let room = most.saturating_sub(info.min).clamp(0, 9) as usize;
            (symbol.clone(), info.min.saturating_add(random.below(room + 1) as i64))
        })
        .collect()
}

fn is_small(plan: &Plan, sizes: &Bindings) -> bool {
    let mut points = 0i64;
    for kernel in plan.steps.values().flat_map(Step::kernels) {
        let Some(kernel) = plan.kernels.get(kernel) else {
            continue;
        };
        let all = kernel.axes.values().try_fold(1i64, |n, axis| {
            let extent = axis.extent.eval(sizes).ok()?.max(1);
            n.checked_mul(extent)
        });
        points = points.saturating_add(all.unwrap_or(i64::MAX));
    }
    let bytes = plan.buffers.values().try_fold(0i64, |sum, b| {
        let size = b.ty.bytes().eval(sizes).ok()?.max(0);
        sum.checked_add(size)
    });
    // What does not evaluate is refused by whoever binds it.
    points <= MOST_POINTS && bytes.is_none_or(|bytes| bytes <= MOST_BYTES)
}

/// Numbers that a model may be given: positions are small or anything, floats mostly finite.
fn fill(dtype: DType, bytes: &mut [u8], random: &mut Random) {
    match dtype {
        DType::I64 => {
            for chunk in bytes.chunks_exact_mut(8) {
                let value = match random.below(8) {
                    0 => random.odd(),
                    n => n as i64 - 2,
                };
                chunk.copy_from_slice(&value.to_le_bytes());
            }
        }
        DType::F32 => {
            for chunk in bytes.chunks_exact_mut(4) {
                let value = (random.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
                chunk.copy_from_slice(&value.to_le_bytes());
            }
        }
        _ => bytes.iter_mut().for_each(|byte| *byte = random.bits() as u8),
    }
}
