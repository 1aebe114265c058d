//! Mappings of a kernel that take fewer registers, or others: what is tried where its code spills.

use ir::kernel::{Body, ContractBody, Kernel, Mapping, limits, verify};
use ir::{Symbols, Target};

use super::{Mapper, attention_us, candidates, product_us};

/// Registers that a tiling should hold less than one that spills.
const LIGHTER: u32 = 8;

/// A mapping that a kernel may have in place of its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Other {
    pub mapping: Mapping,
    /// The predicted microseconds, to be compared with those of the kernel's other mappings; `None` where nothing
    /// predicts them.
    pub us: Option<f64>,
}

/// Returns every other mapping of a kernel, in the order in which one that does not spill is soonest found: of a
/// product its tilings, those first that take the least time of all that hold fewer registers than the ones before
/// them, and last its tilings for multiply-adds; of other bodies the same mapping with less under way at once.
pub fn others(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Vec<Other> {
    let all: Vec<Mapping> = match &kernel.body {
        Body::Contract(body) => {
            let mut all = lighter_first(&kernel.mapping, candidates(kernel, symbols, target));
            if may_multiply_add(kernel, body) {
                all.extend(Mapper::at_hints(kernel, symbols, target).lane_tilings(body));
            }
            all
        }
        Body::Attention(_) => candidates(kernel, symbols, target),
        Body::Recurrent(_) => Mapper::lighter_steps(kernel).into_iter().collect(),
        _ => lighter(&kernel.mapping),
    };
    let priced = all
        .into_iter()
        .filter(|mapping| *mapping != kernel.mapping)
        .filter_map(|mapping| {
            let other = Kernel {
                mapping,
                ..kernel.clone()
            };
            // Of what was chosen for one, the others may have other parameters.
            let fits = verify::verify(&other).is_ok() && limits::check(&other, symbols, target).is_empty();
            let us = predicted_us(&other, symbols, target);
            fits.then_some(Other {
                mapping: other.mapping,
                us,
            })
        });
    priced.collect()
}

/// Predicts the microseconds of a kernel with its mapping, to be compared with those of its other mappings.
pub fn predicted_us(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<f64> {
    product_us(kernel, symbols, target).or_else(|| attention_us(kernel, symbols, target))
}

/// Says whether tiles of multiply-adds compute a contraction whole: they fold nothing of their rows, and have no memory
/// of their own.
fn may_multiply_add(kernel: &Kernel, body: &ContractBody) -> bool {
    body.statistic.is_none() && kernel.params.values().all(|param| param.access.is_of_body())
}

/// First the tilings that hold less than each of those before them, in their order, then the others: the next best by
/// prediction is mostly as large as one that spills.
fn lighter_first(chosen: &Mapping, all: Vec<Mapping>) -> Vec<Mapping> {
    let Some(mut least) = held(chosen) else {
        return all;
    };
    let (mut first, others): (Vec<Mapping>, Vec<Mapping>) = all.into_iter().partition(|mapping| {
        let Some(held) = held(mapping) else { return false };
        let is_lighter = held + LIGHTER <= least;
        if is_lighter {
            least = held;
        }
        is_lighter
    });
    first.extend(others);
    first
}

/// Registers of a lane by estimate, with an address and a condition for each access of its own to the operands' tiles.
fn held(mapping: &Mapping) -> Option<u32> {
    let Mapping::Matrix(tiling) = mapping else { return None };
    let [rows, columns, depth] = tiling.block;
    let accesses = rows * depth / tiling.lhs.width.max(1) + columns * depth / tiling.rhs.width.max(1);
    Some(tiling.registers() + accesses / tiling.threads_of_part().max(1))
}

/// The same mapping with less under way at once, step by step.
fn lighter(mapping: &Mapping) -> Vec<Mapping> {
    let mut all = Vec::new();
    let mut at = mapping.clone();
    while let Some(next) = lighter_by_one(&at) {
        all.push(next.clone());
        at = next;
    }
    all
}

fn lighter_by_one(mapping: &Mapping) -> Option<Mapping> {
    let mut next = mapping.clone();
    match &mut next {
        Mapping::Stream { unroll, .. } if *unroll > 1 => *unroll /= 2,
        Mapping::Stream { block, vector, .. } => {
            next = Mapping::Threads {
                block: *block,
                vector: *vector,
            }
        }
        Mapping::Strips(strips) if strips.rows > 1 => strips.rows /= 2,
        Mapping::Strips(strips) if strips.columns > strips.read => strips.columns /= 2,
        Mapping::Strips(strips) if strips.vector > 1 => strips.vector /= 2,
        Mapping::Windows { unroll, .. } if *unroll => *unroll = false,
        Mapping::Threads { vector, .. } | Mapping::Windows { vector, .. } if *vector > 1 => *vector /= 2,
        Mapping::Transpose { unroll, .. } if *unroll > 1 => *unroll /= 2,
        Mapping::Rows { as_needed, .. } if !*as_needed => *as_needed = true,
        // Rows that are not held are read by each fold.
        Mapping::Rows { steps, .. } if *steps > 0 => *steps = 0,
        _ => return None,
    }
    Some(next)
}
