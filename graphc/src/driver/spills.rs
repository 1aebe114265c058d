//! Kernels whose registers spill to memory get another mapping, as the compiler that made their code says.
//!
//! How many registers a kernel takes is known when it is compiled, and to that compiler alone; what chose its mapping estimated them. Each
//! mapping that is tried is compiled once a machine: the cache keeps its code under the compiler's version, so that the next build makes the
//! same choice from it.

use ir::kernel::Mapping;
use ir::plan::KernelId;
use ir::program::Source;
use ir::target::Platform;
use ir::{Kernel, Program};
use runtime::code_object;
use runtime::compile::{Compiler, Progress, compile_all};

use super::compile::request;
use crate::error::Result;

/// Mappings of a kernel that are tried at most.
const TRIED: usize = 10;

/// A kernel that spills, the best that is known of it, and what else may be tried.
struct Spilling {
    variant: usize,
    kernel: KernelId,
    spilled: u32,
    others: std::vec::IntoIter<Mapping>,
}

/// One that is tried.
struct Trial {
    mapping: Mapping,
    source: Source,
}

/// Gives the kernels of a program whose code spills registers the first of their other mappings whose code does not, or the one that spills
/// least. Returns how many kernels have another mapping than before. NVIDIA's code does not tell its spills, and stays.
///
/// # Errors
/// A kernel that cannot be printed by another mapping. A mapping that does not compile is passed over: what was there works.
pub fn mend(program: &mut Program, compiler: &dyn Compiler, progress: &(dyn Fn(Progress<'_>) + Sync)) -> Result<usize> {
    let mut spilling = found(program);
    let mut mended = std::collections::BTreeSet::new();
    for _ in 0..TRIED {
        let mut trials = Vec::new();
        let mut requests = Vec::new();
        spilling.retain_mut(|s| s.spilled > 0 && s.others.len() > 0);
        for s in &mut spilling {
            let plan = &program.variants[s.variant].plan;
            let Some(mapping) = s.others.next() else { continue };
            let source = codegen_hip::emit_by(plan, s.kernel, mapping.clone())?;
            requests.push(request(plan, s.kernel, &source));
            trials.push(Trial { mapping, source });
        }
        if trials.is_empty() {
            break;
        }
        let objects = compile_all(compiler, &requests, progress);
        for ((s, trial), object) in spilling.iter_mut().zip(trials).zip(objects) {
            let Ok(object) = object else { continue };
            let spilled = spills(&object.bytes).unwrap_or(u32::MAX);
            if spilled >= s.spilled {
                continue;
            }
            s.spilled = spilled;
            let variant = &mut program.variants[s.variant];
            variant.plan.kernels[s.kernel].mapping = trial.mapping;
            variant.sources[s.kernel] = trial.source;
            variant.code[s.kernel] = Some(object.bytes);
            mended.insert((s.variant, s.kernel));
        }
    }
    Ok(mended.len())
}

/// The kernels whose code spills.
fn found(program: &Program) -> Vec<Spilling> {
    let mut all = Vec::new();
    for (index, variant) in program.variants.iter().enumerate() {
        let plan = &variant.plan;
        if plan.target.platform != Platform::Hip || variant.sources.len() != plan.kernels.len() {
            continue;
        }
        for (id, kernel) in plan.kernels.iter() {
            let spilled = variant.code[id].as_deref().and_then(spills).unwrap_or(0);
            if spilled > 0 {
                all.push(Spilling {
                    variant: index,
                    kernel: id,
                    spilled,
                    others: others(kernel, plan, spilled),
                });
            }
        }
    }
    all
}

fn others(kernel: &Kernel, plan: &ir::Plan, spilled: u32) -> std::vec::IntoIter<Mapping> {
    passes::lower::mapping::others(kernel, &plan.symbols, &plan.target, spilled).into_iter()
}

/// Vector registers that the first kernel of a code object has in memory; `None` of what is no code object.
fn spills(code: &[u8]) -> Option<u32> {
    let object = code_object::read(code).ok()?;
    object.kernels.first().map(|kernel| kernel.vgpr_spills)
}
