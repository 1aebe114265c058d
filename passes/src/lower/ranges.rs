//! A pointwise region over a concat, as one kernel for each of its parts, where choosing between them costs more than
//! launching.
//!
//! Before: `for l in 0..64 { store out[l] = select(l < 24, a[l], b[l - 24]) }`. After: a kernel over `0..24` that reads
//! `a`, and one over `24..64` that reads `b`: copies of neighbours. For the CPU alone: a GPU's threads choose at once,
//! and its launches cost more.

use std::collections::HashSet;

use ir::kernel::Kernel;
use ir::op::View;
use ir::schedule::{Region, RegionKind};
use ir::{Dim, Graph, Op, Target, Value};

use super::builder::{Range, Share};
use super::{LowerError, restricted};

/// Most kernels that one becomes: beyond, launching costs more than choosing.
const MOST_RANGES: usize = 32;
/// Points that are worth a launch of their own.
const RANGE_POINTS: i64 = 1024;

/// Lowers a region to a kernel for each range of positions that read other operands, each with the share of the points
/// that it has; nothing where one kernel serves.
///
/// # Errors
/// As [`super::lower`].
pub fn in_ranges(graph: &Graph, region: &Region, target: &Target) -> Result<Vec<(Kernel, Range)>, LowerError> {
    if target.is_gpu() || region.kind != RegionKind::Pointwise {
        return Ok(Vec::new());
    }
    let mut found: Option<(usize, Vec<Dim>)> = None;
    for (axis, ends) in cuts(graph, region) {
        if found.as_ref().is_none_or(|(_, most)| ends.len() > most.len()) {
            found = Some((axis, ends));
        }
    }
    let Some((axis, ends)) = found else {
        return Ok(Vec::new());
    };
    let symbols = graph.symbols();
    let points = graph.ty(Value::from(region.anchor)).elements().hint(symbols);
    let ranges = ends.len();
    if !(2..=MOST_RANGES).contains(&ranges) || points / (ranges as i64) < RANGE_POINTS {
        return Ok(Vec::new());
    }
    let mut from = Dim::Const(0);
    let mut kernels = Vec::with_capacity(ranges);
    for to in ends {
        let range = Range {
            axis,
            from: std::mem::replace(&mut from, to.clone()),
            to,
        };
        let kernel = restricted(graph, region, target, Share::Whole, Some(&range))?;
        kernels.push((kernel, range));
    }
    Ok(kernels)
}

/// Returns each concat of a region whose axis is one of the anchor's: the anchor's axis, and where the parts end. A
/// value that is read many times is looked at once.
fn cuts(graph: &Graph, region: &Region) -> Vec<(usize, Vec<Dim>)> {
    let anchor = Value::from(region.anchor);
    let mut found = Vec::new();
    let mut seen = HashSet::from([anchor]);
    // Values, and which of the anchor's axes theirs are.
    let mut open = vec![(anchor, (0..graph.ty(anchor).shape.len()).collect::<Vec<usize>>())];
    while let Some((value, axes)) = open.pop() {
        if !region.nodes.contains(&value.node) {
            continue;
        }
        let node = graph.node(value.node);
        let shape = &graph.ty(value).shape;
        let mut below = Vec::new();
        match &node.op {
            Op::Elementwise(_) => {
                let same = node.operands.iter().filter(|v| graph.ty(**v).shape == *shape);
                below.extend(same.map(|v| (*v, axes.clone())));
            }
            Op::View(View::Transpose(order)) => {
                let mut from = axes.clone();
                order.iter().zip(&axes).for_each(|(of, axis)| from[*of] = *axis);
                below.push((node.operands[0], from));
            }
            Op::View(View::Concat { axis }) => {
                let mut end = Dim::Const(0);
                let sizes = node.operands.iter().map(|v| &graph.ty(*v).shape[*axis]);
                let ends = sizes.filter(|size| !size.is(0)).map(|size| {
                    end = end.clone() + size;
                    end.clone()
                });
                found.push((axes[*axis], ends.collect()));
            }
            _ => {}
        }
        // The first operand is looked at first.
        open.extend(below.into_iter().rev().filter(|(value, _)| seen.insert(*value)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{ScheduleOptions, schedule};
    use crate::testing;

    /// What each kernel stores, for each region of a graph.
    fn stored(text: &str, target: &str) -> Vec<Vec<String>> {
        let target: Target = target.parse().expect("known");
        let (graph, _) = testing::optimized(&testing::graph(text), &target.to_string(), Default::default());
        let (schedule, _) = schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let regions = schedule.regions.values();
        let kernels = regions.map(|region| {
            let kernels = in_ranges(&graph, region, &target).expect("lowers");
            kernels
                .iter()
                .for_each(|(k, _)| assert_eq!(ir::kernel::verify::verify(k), Ok(())));
            let line = |k: &Kernel| {
                let text = k.to_string();
                text.lines()
                    .filter(|l| l.contains("store"))
                    .map(|l| l.trim().to_owned())
                    .collect::<String>()
            };
            kernels.iter().map(|(k, _)| line(k)).collect()
        });
        kernels.collect()
    }

    const CONCAT: &str = r#"
        symbol n: 1.. hint 64
        x = input "x" : f32[40, n, 24]
        z = input "z" : f32[40, n, 40]
        y = concat x, z {axis=2}
        return y as "y""#;

    #[test]
    fn each_part_is_a_copy() {
        assert_eq!(
            stored(CONCAT, "cpu"),
            [[
                "store out[i * 64 + k] = in0[i * 24 + k]",
                "store out[i * 64 + k + 24] = in1[i * 40 + k]"
            ]]
        );
        assert_eq!(stored(CONCAT, "gfx90a"), [[""; 0]]);
    }

    #[test]
    fn open_sizes_end_where_they_end() {
        let text = r#"
            symbol n: 1.. hint 64
            x = input "x" : f32[40, n]
            z = input "z" : f32[40, 90]
            y = concat x, z {axis=1}
            a = neg y
            return a as "y""#;
        assert_eq!(
            stored(text, "cpu"),
            [[
                "store out[i * (n + 90) + j] = neg(in0[i * n + j])",
                "store out[i * (n + 90) + j + n] = neg(in1[i * 90 + j])"
            ]]
        );
    }

    #[test]
    fn a_transposed_concat_is_cut_along_the_axis_that_its_own_became() {
        let text = r#"
            x = input "x" : f32[40, 30, 24]
            z = input "z" : f32[40, 30, 40]
            y = concat x, z {axis=2}
            t = transpose y {perm=[1, 2, 0]}
            a = add t, t
            return a as "y""#;
        assert_eq!(
            stored(text, "cpu"),
            [[
                "store out[i * 2560 + j * 40 + k] = in0[i * 24 + j + k * 720] + in0[i * 24 + j + k * 720]",
                "store out[i * 2560 + j * 40 + k + 960] = in1[i * 40 + j + k * 1200] + in1[i * 40 + j + k * 1200]"
            ]]
        );
    }

    #[test]
    fn few_points_choose() {
        let text = CONCAT.replace("[40, n,", "[1, n,").replace("hint 64", "hint 16");
        assert_eq!(stored(&text, "cpu"), [[""; 0]]);
    }
}
