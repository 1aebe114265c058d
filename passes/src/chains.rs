//! Products that are computed by the product that reads them.
//!
//! ```text
//! r0 contract {p = contract x, a; h = gelu p}; r1 contract {y = contract h, b}     becomes     r1 contract {p = …, h = …, y = contract h, b}
//! ```
//!
//! A workgroup then has some rows of `x` and of `y`, and goes over the columns of `h` in tiles that never leave the
//! registers: what a block of a transformer, Swin or ConvNeXt does between its narrow and its wide width moves no
//! bytes. Each workgroup reads both matrices, so that the widths of `x` and `y` must be small, and the rows many.
//!
//! Before: a schedule. After: such pairs are one region, where one kernel is predicted to take less time than both and
//! a launch. Rows that the model leaves open stay with two products, which have a kernel for each range of them.

use ir::kernel::{Body, Kernel, Operand};
use ir::schedule::{Region, RegionId, RegionKind, Schedule};
use ir::{Graph, Op, Target, Value};

use crate::fuse::{Absorbed, Chains, Fusion, FusionReport, absorb};
use crate::lower::lower;
use crate::lower::mapping::{chain_us, product_us, second_launch_us};

/// One kernel must be predicted to take so much less time than two: its prediction is the coarser one. With this part,
/// pairs of `f16` of 64 to 192 columns on four GPUs are taken as their emulated times say, but for two that lose or
/// gain less than a sixth.
const MARGIN: f64 = 0.75;

/// Takes products into those that read them.
pub fn take_in(graph: &Graph, target: &Target, chains: Chains, schedule: &mut Schedule, report: &mut FusionReport) {
    if !target.chains_products || chains == Chains::Never {
        return;
    }
    let mut taken: Vec<Absorbed> = Vec::new();
    for id in schedule.regions.keys() {
        // A chain is of two.
        let free = |region: RegionId| {
            let mut all = taken.iter();
            !all.any(|a| a.region == region || a.readers.iter().any(|(reader, _)| *reader == region))
        };
        let pair = pair(graph, schedule, id).filter(|pair| free(id) && free(pair.reader));
        if let Some(pair) = pair.filter(|pair| is_worth(graph, target, chains, schedule, pair)) {
            taken.push(Absorbed {
                region: id,
                value: pair.value,
                readers: vec![(pair.reader, pair.both)],
                how: Fusion::Chain,
            });
        }
    }
    absorb(schedule, report, &taken);
}

/// A product and the one that reads it.
struct Pair {
    first: RegionId,
    value: Value,
    reader: RegionId,
    both: Region,
}

fn is_product(graph: &Graph, region: &Region) -> bool {
    region.kind == RegionKind::Contract && matches!(graph.node(region.anchor).op, Op::Contract(_))
}

/// Reads a region as a product that nothing but another product reads.
fn pair(graph: &Graph, schedule: &Schedule, id: RegionId) -> Option<Pair> {
    let first = &schedule.regions[id];
    let [value] = first.outputs[..] else { return None };
    if !is_product(graph, first) || !first.parts.is_empty() || graph.outputs().iter().any(|o| o.value == value) {
        return None;
    }
    let mut readers = schedule
        .regions
        .iter()
        .filter(|(_, region)| region.inputs.contains(&value));
    let (reader, second) = readers.next()?;
    if readers.next().is_some() || !is_product(graph, second) {
        return None;
    }
    // As the left operand of the product alone; a residual that adds the same value would need it whole.
    let reads = |id: &&ir::NodeId| graph.node(**id).operands.contains(&value);
    let by: Vec<_> = second.nodes.iter().filter(reads).collect();
    let operands = &graph.node(second.anchor).operands;
    if by != [&second.anchor] || operands[0] != value || operands[1..].contains(&value) {
        return None;
    }
    let mut both = second.clone();
    both.nodes.extend(&first.nodes);
    both.nodes.sort_unstable();
    both.nodes.dedup();
    both.inputs.retain(|v| *v != value);
    for input in &first.inputs {
        if !both.inputs.contains(input) {
            both.inputs.push(*input);
        }
    }
    Some(Pair {
        first: id,
        value,
        reader,
        both,
    })
}

/// Says whether a chain's operands are multiplied as they lie in memory.
fn is_stored(kernel: &Kernel) -> bool {
    let Body::Attention(body) = &kernel.body else {
        return false;
    };
    let operands = [body.query, body.key, body.value];
    operands
        .iter()
        .all(|e| Operand::new(&kernel.exprs, *e).is_as_stored(kernel))
}

/// Says whether one kernel takes less time than two, as predicted.
fn is_worth(graph: &Graph, target: &Target, chains: Chains, schedule: &Schedule, pair: &Pair) -> bool {
    let symbols = graph.symbols();
    // What is stored counts too: it is what one kernel saves.
    let least = |kernel: &Kernel| {
        let traffic = kernel.traffic(&ir::dim::hints(symbols)).ok()?;
        let bytes: u64 = traffic.values().map(|t| t.read + t.written).sum();
        Some(bytes as f64 / (target.memory_tbps * 1e6))
    };
    let us = |region: RegionId| {
        let kernel = lower(graph, &schedule.regions[region], target).ok()?;
        Some(product_us(&kernel, symbols, target)?.max(least(&kernel)?))
    };
    let chained = || {
        // What does not fit is no chain.
        let kernel = lower(graph, &pair.both, target).ok()?;
        // Each workgroup would unpack both matrices again.
        if chains == Chains::Fastest && !is_stored(&kernel) {
            return None;
        }
        let [whole, between] = chain_us(&kernel, symbols, target)?;
        Some([whole.max(least(&kernel)?), between])
    };
    let Some([chain, between]) = chained() else {
        return false;
    };
    if chains == Chains::Always {
        return true;
    }
    let rows = &graph.ty(pair.value).shape;
    if rows.iter().any(|dim| dim.as_const().is_none()) {
        return false;
    }
    let (Some(first), Some(second)) = (us(pair.first), us(pair.reader)) else {
        return false;
    };
    chain < MARGIN * (first + between + second + second_launch_us(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OptLevel, OptimizeOptions, ScheduleOptions, testing};

    /// The regions of a graph that are products, and those of them that are chains.
    fn products(target: &str, chains: Chains, body: &str) -> (usize, usize) {
        let target: Target = target.parse().expect("known");
        let options = OptimizeOptions {
            libraries: false,
            ..OptimizeOptions::at(OptLevel::O2)
        };
        let (graph, _) = crate::optimize(testing::graph(body), &target, &options).expect("optimises");
        let options = ScheduleOptions {
            chains,
            ..ScheduleOptions::default()
        };
        let (schedule, report) = crate::schedule(&graph, &target, &options).expect("schedules");
        let chained = report.fused.iter().filter(|edge| edge.how == Fusion::Chain);
        let all = schedule.regions.values().filter(|r| is_product(&graph, r));
        (all.count(), chained.count())
    }

    fn block(rows: usize, width: usize, hidden: usize, between: &str, after: &str) -> String {
        format!(
            "x = input \"x\" : f16[{rows}, {width}]\n a = input \"a\" : f16[{width}, {hidden}]\n b = input \"b\" : f16[{hidden}, {width}]\n \
             p = contract x, a\n {between}\n s = contract h, b\n {after}\n return y as \"y\""
        )
    }

    #[test]
    fn narrow_products_of_many_rows_are_one() {
        let body = block(65_536, 64, 256, "h = relu p", "y = add s, x");
        for target in ["gfx90a", "gfx942", "gfx950", "gfx1201"] {
            assert_eq!(products(target, Chains::Fastest, &body), (1, 1), "{target}");
        }
        assert_eq!(products("gfx90a", Chains::Never, &body), (2, 0));
        // Where registers have no room, and where nothing says that it pays.
        for target in ["gfx1100", "gfx906", "sm_90", "cpu"] {
            assert_eq!(products(target, Chains::Always, &body), (2, 0), "{target}");
        }
    }

    #[test]
    fn wide_products_and_few_rows_stay_two() {
        let wide = block(8192, 1024, 4096, "h = relu p", "y = add s, x");
        assert_eq!(products("gfx90a", Chains::Always, &wide), (2, 0));
        let few = block(128, 64, 4096, "h = relu p", "y = add s, x");
        assert_eq!(products("gfx90a", Chains::Fastest, &few), (2, 0));
        assert_eq!(products("gfx90a", Chains::Always, &few), (1, 1));
    }

    #[test]
    fn a_result_that_something_else_reads_is_stored() {
        let read_again = block(65_536, 64, 64, "h = relu p", "y = add s, h");
        assert_eq!(products("gfx90a", Chains::Always, &read_again), (2, 0));
        let given = block(65_536, 64, 256, "h = relu p", "y = add s, x\n return h as \"h\"");
        assert_eq!(products("gfx90a", Chains::Always, &given), (2, 0));
    }

    /// As many rows as make one kernel pay, but open: each product has kernels for ranges of rows.
    #[test]
    fn open_rows_stay_two() {
        let body = block(65_536, 64, 256, "h = relu p", "y = add s, x").replace("65536", "n");
        let body = format!("symbol n: 1.. hint 65536\n {body}");
        assert_eq!(products("gfx90a", Chains::Fastest, &body), (2, 0));
        assert_eq!(products("gfx90a", Chains::Always, &body), (1, 1));
    }

    /// Of three products in a row two are one.
    #[test]
    fn a_chain_is_of_two() {
        let body = "x = input \"x\" : f16[65536, 64]\n a = input \"a\" : f16[64, 64]\n b = input \"b\" : f16[64, 64]\n \
                    c = input \"c\" : f16[64, 64]\n p = contract x, a\n h = relu p\n q = contract h, b\n i = relu q\n \
                    y = contract i, c\n return y as \"y\"";
        assert_eq!(products("gfx90a", Chains::Always, body), (2, 1));
    }
}
