//! The order of regions: topological, and among those ready the one whose anchor was recorded first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ir::NodeId;
use petgraph::graph::{DiGraph, NodeIndex};

/// Orders drafts so that each comes after those it reads from; `reads(d)` lists them. Drafts that wait for each other are left
/// out, which the schedule's verifier reports.
pub fn order(anchors: &[NodeId], reads: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut graph: DiGraph<NodeId, ()> = DiGraph::with_capacity(anchors.len(), anchors.len() * 2);
    let nodes: Vec<NodeIndex> = anchors.iter().map(|a| graph.add_node(*a)).collect();
    let mut missing = vec![0usize; anchors.len()];
    for d in 0..anchors.len() {
        let mut from = reads(d);
        from.sort_unstable();
        from.dedup();
        for producer in from {
            graph.add_edge(nodes[producer], nodes[d], ());
            missing[d] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<(NodeId, usize)>> = (0..anchors.len())
        .filter(|d| missing[*d] == 0)
        .map(|d| Reverse((anchors[d], d)))
        .collect();
    let mut out = Vec::with_capacity(anchors.len());
    while let Some(Reverse((_, d))) = ready.pop() {
        out.push(d);
        for next in graph.neighbors(nodes[d]) {
            let next = next.index();
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(Reverse((anchors[next], next)));
            }
        }
    }
    out
}
