//! Kernels whose registers spill to memory get another mapping, or are compiled with their loops kept, as the compiler
//! that made their code says.
//!
//! How many registers a kernel takes is known when it is compiled, and to that compiler alone; what chose its mapping
//! estimated them. Of all that does not spill, a kernel gets what is predicted to take the least time. Each trial is
//! compiled once a machine: the cache keeps its code under the compiler's version, so that the next build makes the
//! same choice from it.

use std::collections::{BTreeSet, VecDeque};

use ir::kernel::Mapping;
use ir::plan::KernelId;
use ir::program::Source;
use ir::target::Platform;
use ir::{Kernel, Plan, Program};
use passes::lower::mapping::{others, predicted_us};
use runtime::code_object;
use runtime::compile::{Compiler, Progress, compile_all};

use super::compile::request;
use crate::error::Result;

/// Trials of a kernel that are compiled at once.
const AT_ONCE: usize = 4;
/// Trials that are predicted to be faster than one that does not spill, and are compiled for that, at most.
const FASTER: usize = 16;
/// The part of the predicted time from which on another trial is worth compiling.
const WORTH: f64 = 0.95;

/// A kernel that spills, or did; the best that is known of it, and what else may be tried.
struct Spilling {
    variant: usize,
    kernel: KernelId,
    spilled: u32,
    us: f64,
    waiting: VecDeque<Trial>,
}

/// A mapping, and whether the compiler keeps loops.
#[derive(Clone)]
struct Trial {
    mapping: Mapping,
    keeps_loops: bool,
    /// The predicted microseconds, infinite where nothing predicts them.
    us: f64,
}

impl Trial {
    fn source(&self, plan: &Plan, kernel: KernelId) -> Result<Source> {
        let source = codegen_hip::emit_by(plan, kernel, self.mapping.clone())?;
        Ok(match self.keeps_loops {
            true => codegen_hip::keep_loops(source),
            false => source,
        })
    }
}

/// Gives each kernel of a program whose code spills registers, or has arrays in memory, what is predicted to take the
/// least time among its mappings whose code does not, with loops unrolled as the compiler likes or kept; where there is
/// none, what spills least. Returns how many kernels have other code than before. NVIDIA's code does not tell its
/// spills, and stays.
///
/// # Errors
/// A kernel that cannot be printed by another mapping. A mapping that does not compile is passed over: what was there
/// works.
pub fn mend(program: &mut Program, compiler: &dyn Compiler, progress: &(dyn Fn(Progress<'_>) + Sync)) -> Result<usize> {
    let mut spilling = found(program);
    let mut mended = BTreeSet::new();
    loop {
        let mut trials = Vec::new();
        let mut requests = Vec::new();
        for (index, s) in spilling.iter_mut().enumerate() {
            let plan = &program.variants[s.variant].plan;
            let count = s.waiting.len().min(AT_ONCE);
            for trial in s.waiting.drain(..count) {
                let source = trial.source(plan, s.kernel)?;
                requests.push(request(plan, s.kernel, &source));
                trials.push((index, trial, source));
            }
        }
        if trials.is_empty() {
            break;
        }
        let objects = compile_all(compiler, &requests, progress);
        for ((index, trial, source), object) in trials.into_iter().zip(objects) {
            let Ok(object) = object else { continue };
            let s = &mut spilling[index];
            let spilled = spills(&object.bytes).unwrap_or(u32::MAX);
            let is_faster = spilled == 0 && s.spilled == 0 && trial.us < s.us;
            if spilled >= s.spilled && !is_faster {
                continue;
            }
            (s.spilled, s.us) = (spilled, trial.us);
            if spilled == 0 {
                s.keep_faster();
            }
            let variant = &mut program.variants[s.variant];
            variant.plan.kernels[s.kernel].mapping = trial.mapping;
            variant.sources[s.kernel] = source;
            variant.code[s.kernel] = Some(object.bytes);
            mended.insert((s.variant, s.kernel));
        }
    }
    Ok(mended.len())
}

impl Spilling {
    /// Leaves the trials that are predicted to take less time than what was found, the fastest first.
    fn keep_faster(&mut self) {
        let worth = self.us * WORTH;
        self.waiting.retain(|trial| worth.is_finite() && trial.us < worth);
        self.waiting.make_contiguous().sort_by(|a, b| a.us.total_cmp(&b.us));
        self.waiting.truncate(FASTER);
    }
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
                    us: f64::INFINITY,
                    waiting: trials(kernel, plan),
                });
            }
        }
    }
    all
}

/// What is tried of a kernel, in this order.
fn trials(kernel: &Kernel, plan: &Plan) -> VecDeque<Trial> {
    let of = |mapping: Mapping, us: Option<f64>, keeps_loops: bool| Trial {
        mapping,
        keeps_loops,
        us: us.unwrap_or(f64::INFINITY),
    };
    let us = predicted_us(kernel, &plan.symbols, &plan.target);
    let same = of(kernel.mapping.clone(), us, true);
    let others = others(kernel, &plan.symbols, &plan.target).into_iter();
    let both = others.map(|other| [false, true].map(|keeps| of(other.mapping.clone(), other.us, keeps)));
    match us {
        Some(_) => std::iter::once(same).chain(both.flatten()).collect(),
        // Nothing says how much time kept loops take: they come behind every mapping.
        None => {
            let (plain, kept): (Vec<Trial>, Vec<Trial>) = both.map(|[plain, kept]| (plain, kept)).unzip();
            plain.into_iter().chain(std::iter::once(same)).chain(kept).collect()
        }
    }
}

/// Words of memory that a lane of a code object's first kernel takes for registers and arrays; `None` of what is no
/// code object.
fn spills(code: &[u8]) -> Option<u32> {
    let object = code_object::read(code).ok()?;
    let words = |kernel: &code_object::KernelResources| kernel.vgpr_spills.max(kernel.scratch_bytes.div_ceil(4));
    object.kernels.first().map(words)
}

#[cfg(test)]
mod tests {
    use ir::Entity;

    use super::*;

    fn trial(us: f64) -> Trial {
        Trial {
            mapping: Mapping::Threads { block: 64, vector: 1 },
            keeps_loops: false,
            us,
        }
    }

    #[test]
    fn what_may_be_faster_is_tried_after_something_that_does_not_spill() {
        let mut spilling = Spilling {
            variant: 0,
            kernel: KernelId::new(0),
            spilled: 0,
            us: 10.0,
            waiting: [12.0, 9.0, 9.9, 5.0, f64::INFINITY].map(trial).into(),
        };
        spilling.keep_faster();
        let left = |s: &Spilling| s.waiting.iter().map(|t| t.us).collect::<Vec<f64>>();
        assert_eq!(left(&spilling), [5.0, 9.0]);
        // What nothing predicts is as good as any other.
        spilling.us = f64::INFINITY;
        spilling.keep_faster();
        assert_eq!(left(&spilling), [0.0; 0]);
    }
}
