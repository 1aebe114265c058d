//! The order of regions: topological, and among those ready the one whose anchor was recorded first.
//!
//! Collectives go on by themselves once they have begun, one after the other: they are begun as soon as they can be,
//! and what waits for one comes behind everything that does not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ir::NodeId;
use petgraph::graph::{DiGraph, NodeIndex};

/// Orders drafts so that each comes after those it reads from; `reads(d)` lists them, `travels(d)` says whether one is
/// a collective. Drafts that wait for each other are left out, which the schedule's verifier reports.
pub fn order(anchors: &[NodeId], reads: impl Fn(usize) -> Vec<usize>, travels: impl Fn(usize) -> bool) -> Vec<usize> {
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
    // Collectives are counted as they begin. Of each draft the last one that it reads, and how many have been waited
    // for.
    let mut last = vec![0usize; anchors.len()];
    let (mut begun, mut ended) = (0, 0);
    // What may begin at once, collectives first; and what would wait for a collective.
    let mut ready = BinaryHeap::new();
    let mut waiting: BinaryHeap<Reverse<(usize, NodeId, usize)>> = BinaryHeap::new();
    let row = |d: usize| Reverse((!travels(d), anchors[d], d));
    ready.extend((0..anchors.len()).filter(|d| missing[*d] == 0).map(row));
    let mut out = Vec::with_capacity(anchors.len());
    loop {
        let d = match ready.pop() {
            Some(Reverse((_, _, d))) => d,
            None => match waiting.pop() {
                Some(Reverse((until, _, d))) => {
                    ended = until;
                    while let Some(Reverse((until, _, d))) = waiting.peek()
                        && *until <= ended
                    {
                        ready.push(row(*d));
                        waiting.pop();
                    }
                    d
                }
                None => break,
            },
        };
        out.push(d);
        let travels = travels(d);
        begun += usize::from(travels);
        for next in graph.neighbors(nodes[d]) {
            let next = next.index();
            if travels {
                last[next] = begun;
            }
            missing[next] -= 1;
            if missing[next] == 0 {
                match last[next] > ended {
                    true => waiting.push(Reverse((last[next], anchors[next], next))),
                    false => ready.push(row(next)),
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ir::Entity;

    use super::*;

    #[test]
    fn what_waits_for_a_collective_comes_behind_what_does_not() {
        // Two chains: a product, its collective, what reads that, a product and its collective again.
        let chain = |first: usize| [vec![], vec![first], vec![first + 2], vec![first + 4], vec![first + 6]];
        let (a, b) = (chain(0), chain(1));
        let reads: Vec<Vec<usize>> = a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect();
        let anchors: Vec<NodeId> = (0..reads.len()).map(NodeId::new).collect();
        let travels = |d: usize| d / 2 == 1 || d / 2 == 4;
        let got = order(&anchors, |d| reads[d].clone(), travels);
        assert_eq!(got, [0, 2, 1, 3, 4, 6, 8, 5, 7, 9]);
        // Without collectives it is the order in which they were recorded.
        let got = order(&anchors, |d| reads[d].clone(), |_| false);
        assert_eq!(got, (0..reads.len()).collect::<Vec<_>>());
    }
}
