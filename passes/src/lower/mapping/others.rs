//! Mappings of a kernel that take fewer registers, or others: what is tried where its code spills.

use ir::kernel::{Body, Kernel, Mapping, limits, verify};
use ir::{Symbols, Target};

use super::{candidates, product_us};

/// How much longer than the chosen mapping another one may take by prediction: where a few registers spill, and where many do.
const NEARLY_AS_FAST: f64 = 1.25;
const AT_MOST: f64 = 2.0;
/// Registers from which on many spill.
const MANY: u32 = 16;
/// Registers that a tiling should hold less than one that spills.
const LIGHTER: u32 = 8;

/// Returns other mappings of a kernel of whose registers `spilled` are in memory, the best by prediction first: of a product its other
/// tilings that take little longer, else those with less under way at once.
pub fn others(kernel: &Kernel, symbols: &Symbols, target: &Target, spilled: u32) -> Vec<Mapping> {
    let by = |mapping: Mapping| Kernel {
        mapping,
        ..kernel.clone()
    };
    let all: Vec<Mapping> = match kernel.body {
        Body::Contract(_) => {
            let most = if spilled < MANY { NEARLY_AS_FAST } else { AT_MOST };
            let chosen = product_us(kernel, symbols, target);
            let near = |mapping: &Mapping| match (chosen, product_us(&by(mapping.clone()), symbols, target)) {
                (Some(chosen), Some(us)) => us <= chosen * most,
                _ => true,
            };
            let fast: Vec<Mapping> = candidates(kernel, symbols, target).into_iter().filter(near).collect();
            lighter_first(&kernel.mapping, fast)
        }
        Body::Attention(_) => candidates(kernel, symbols, target),
        _ => lighter(&kernel.mapping),
    };
    // Of what was chosen for one, the others may have other parameters.
    let fits = |mapping: &Mapping| {
        let other = by(mapping.clone());
        *mapping != kernel.mapping
            && verify::verify(&other).is_ok()
            && limits::check(&other, symbols, target).is_empty()
    };
    all.into_iter().filter(fits).collect()
}

/// First the tilings that hold less than each of those before them, in their order, then the others: the next best by prediction is mostly
/// as large as one that spills.
fn lighter_first(chosen: &Mapping, all: Vec<Mapping>) -> Vec<Mapping> {
    let Some(mut least) = held(chosen) else {
        return all;
    };
    let (mut first, others): (Vec<Mapping>, Vec<Mapping>) = all.into_iter().partition(|mapping| {
        let Some(held) = held(mapping) else { return true };
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
