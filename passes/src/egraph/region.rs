//! Cuts a graph into regions of bounded size, where few values cross.
//!
//! Nodes are in topological order, so a region is a run of them. Between the smallest and the largest size allowed, the
//! cut is where the fewest values are alive across it: between two layers, not in the middle of an activation.

use std::ops::Range;

use ir::Graph;
use ir::entity::Entity;

/// A region, and where the nodes before it begin that its patterns may reach back to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    pub nodes: Range<usize>,
    pub context: usize,
}

/// Cuts into runs of `largest / 2` to `largest` nodes (the last may be shorter), each seen with the `context` nodes
/// before it: a pattern that spans no more than those is found wherever the cuts fall.
pub fn cut(graph: &Graph, largest: usize, context: usize) -> Vec<Span> {
    let n = graph.nodes().len();
    // Values alive across each position: defined before, last read at or after.
    let mut change = vec![0i32; n + 1];
    let mut last_read: Vec<usize> = (0..n).collect();
    for (id, node) in graph.nodes().iter() {
        for operand in &node.operands {
            last_read[operand.node.index()] = last_read[operand.node.index()].max(id.index());
        }
    }
    for (i, node) in graph.nodes().values().enumerate() {
        // What is free to read anywhere does not count.
        if !node.op.is_leaf() && last_read[i] > i {
            change[i + 1] += 1;
            change[last_read[i]] -= 1;
        }
    }
    let mut alive = vec![0i32; n + 1];
    let mut running = 0;
    for i in 0..=n {
        running += change[i];
        alive[i] = running;
    }
    let mut regions = Vec::new();
    let mut start = 0;
    while start < n {
        let end = if n - start <= largest {
            n
        } else {
            let window = start + largest / 2..=start + largest;
            window
                .min_by_key(|i| (alive[*i], usize::MAX - i))
                .unwrap_or(start + largest)
        };
        regions.push(Span {
            nodes: start..end,
            context: start.saturating_sub(context),
        });
        start = end;
    }
    regions
}
