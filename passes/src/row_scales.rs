//! Norms whose scale moves behind the products that read them.
//!
//! ```text
//! r0 reduction {n = rms_norm x}; r1 contract {y = contract n, w}     becomes     r1 contract {n = rms_norm x, y = contract n, w}
//! ```
//!
//! `rms_norm(x) · W` is `x · W`, each row times its `1 / √(mean(x²) + ε)`: a kernel that reads whole rows has the sum
//! of their squares for a multiply-add an element, and the norm's launch is none. Several products then each have the
//! sum for themselves.
//!
//! Before: a schedule. After: such a norm is in the regions of all its readers and in none of its own. That is done
//! where all readers are products that are computed row by row, and where the launch takes longer than what it is
//! exchanged for, as predicted: the sums of squares, mappings that cannot fold rows, and parts of products, of which
//! the norm's kernel may add up those of the product before it.

use ir::kernel::{Body, Kernel, Mapping};
use ir::op::Composite;
use ir::schedule::{Region, RegionId, RegionKind, Schedule};
use ir::{Graph, Op, Target, Value};

use crate::fuse::{Absorbed, Fusion, FusionReport, absorb};
use crate::lower::mapping::{Second, product_us, saved_by_parts, second_launch_us};
use crate::lower::{Total, in_parts, lower};

/// Takes norms into the products that read them, where that saves time.
pub fn take_in(graph: &Graph, target: &Target, schedule: &mut Schedule, report: &mut FusionReport) {
    if !target.is_gpu() {
        return;
    }
    let mut taken = Vec::new();
    for id in schedule.regions.keys() {
        let norm = norm(graph, schedule, id).and_then(|norm| worth(graph, target, schedule, norm));
        taken.extend(norm.map(|norm| Absorbed {
            region: norm.region,
            value: norm.value,
            readers: norm.readers,
            how: Fusion::RowScale,
        }));
    }
    absorb(schedule, report, &taken);
}

/// A norm and its readers.
struct Norm {
    region: RegionId,
    value: Value,
    x: Value,
    /// The products' regions with the norm in them.
    readers: Vec<(RegionId, Region)>,
}

/// Reads a region as a norm that nothing but products reads, each once, as their left operand.
fn norm(graph: &Graph, schedule: &Schedule, id: RegionId) -> Option<Norm> {
    let region = &schedule.regions[id];
    let node = graph.node(region.anchor);
    let is_norm = matches!(node.op, Op::Composite(Composite::RmsNorm { .. }));
    let (&[value], &[x], true) = (&region.outputs[..], &region.inputs[..], is_norm) else {
        return None;
    };
    let alone = region.nodes == [region.anchor] && node.operands[..] == [x] && region.parts.is_empty();
    if !alone || graph.outputs().iter().any(|o| o.value == value) {
        return None;
    }
    let mut readers = Vec::new();
    for (reader, region) in schedule.regions.iter() {
        if !region.inputs.contains(&value) {
            continue;
        }
        let reads = |id: &&ir::NodeId| graph.node(**id).operands.contains(&value);
        let by: Vec<_> = region.nodes.iter().filter(reads).collect();
        let product = graph.node(region.anchor);
        let as_left = product.operands.iter().filter(|v| **v == value).count() == 1 && product.operands[0] == value;
        let is_product = region.kind == RegionKind::Contract && matches!(product.op, Op::Contract(_));
        if by != [&region.anchor] || !as_left || !is_product {
            return None;
        }
        readers.push((reader, with(region, value, x)));
    }
    (!readers.is_empty()).then_some(Norm {
        region: id,
        value,
        x,
        readers,
    })
}

/// A product's region with the norm in it, which then reads what the norm reads.
fn with(region: &Region, value: Value, x: Value) -> Region {
    let mut region = region.clone();
    region.nodes.push(value.node);
    region.nodes.sort_unstable();
    let at = region.inputs.iter().position(|v| *v == value);
    match (at, region.inputs.contains(&x)) {
        (Some(at), false) => region.inputs[at] = x,
        (Some(at), true) => {
            region.inputs.remove(at);
        }
        (None, _) => {}
    }
    region
}

/// Returns the norm if it takes less time in its readers, as predicted.
fn worth(graph: &Graph, target: &Target, schedule: &Schedule, norm: Norm) -> Option<Norm> {
    let symbols = graph.symbols();
    let us = |kernel: &Kernel| product_us(kernel, symbols, target);
    let saved = |kernel: &Kernel, second: Second| saved_by_parts(kernel, symbols, target, second);
    let mut cost = 0.0;
    for (reader, with) in &norm.readers {
        let (apart, within) = (
            lower(graph, &schedule.regions[*reader], target).ok()?,
            lower(graph, with, target).ok()?,
        );
        let folds = matches!(&within.body, Body::Contract(c) if c.statistic.is_some());
        if !folds || !matches!(within.mapping, Mapping::Gemv(_)) {
            return None;
        }
        cost += us(&within)? - us(&apart)? + saved(&apart, Second::Own);
    }
    // The product before the norm may be in parts that the norm's kernel adds up, where nothing else reads their sum.
    let given = schedule.regions.values().find(|r| r.outputs == [norm.x]);
    let read_by = schedule.regions.values().filter(|r| r.inputs.contains(&norm.x)).count();
    let is_stored = graph.outputs().iter().any(|o| o.value == norm.x);
    if let (Some(before), 1, false) = (given, read_by, is_stored) {
        let whole = lower(graph, before, target).ok()?;
        let rows = &schedule.regions[norm.region];
        let parts = in_parts(graph, before, Some(rows), target, &whole).ok()?;
        if parts.is_some_and(|parts| matches!(parts.total, Total::OfRows { .. })) {
            cost += saved(&whole, Second::Known) - saved(&whole, Second::Own);
        }
    }
    (cost < second_launch_us(target)).then_some(norm)
}
