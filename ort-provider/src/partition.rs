//! Cuts a graph into regions: sets of supported nodes that can each become one node.
//!
//! A region is convex: no path leaves it and comes back, so that it can run as a whole once its inputs are there.
//! Each node has a level, the most changes from a supported node to an unsupported one on any path to it. A path
//! never goes to a lower level, and between two supported nodes of one level it has supported nodes alone. So the
//! supported nodes of a level are convex, and so are their connected parts, which are the regions.

/// Returns the regions, each sorted, in the order of their first nodes.
///
/// Nodes are in topological order; `predecessors` has those that each node reads results of.
pub fn regions(predecessors: &[Vec<usize>], supported: &[bool]) -> Vec<Vec<usize>> {
    let mut levels = vec![0usize; predecessors.len()];
    let mut group: Vec<usize> = (0..predecessors.len()).collect();
    for (node, before) in predecessors.iter().enumerate() {
        let level = |p: &usize| levels[*p] + usize::from(supported[*p] && !supported[node]);
        levels[node] = before.iter().map(level).max().unwrap_or(0);
        for other in before {
            if supported[node] && supported[*other] && levels[node] == levels[*other] {
                let (a, b) = (root(&mut group, node), root(&mut group, *other));
                group[a.max(b)] = a.min(b);
            }
        }
    }
    let mut regions: Vec<Vec<usize>> = Vec::new();
    let mut region_of = vec![None; predecessors.len()];
    for node in (0..predecessors.len()).filter(|n| supported[*n]) {
        let root = root(&mut group, node);
        let region = *region_of[root].get_or_insert_with(|| {
            regions.push(Vec::new());
            regions.len() - 1
        });
        regions[region].push(node);
    }
    regions
}

/// The first node of a node's group.
fn root(group: &mut [usize], mut node: usize) -> usize {
    while group[node] != node {
        group[node] = group[group[node]];
        node = group[node];
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(predecessors: &[&[usize]], unsupported: &[usize]) -> Vec<Vec<usize>> {
        let predecessors: Vec<Vec<usize>> = predecessors.iter().map(|p| p.to_vec()).collect();
        let supported: Vec<bool> = (0..predecessors.len()).map(|n| !unsupported.contains(&n)).collect();
        let regions = regions(&predecessors, &supported);
        check(&predecessors, &supported, &regions);
        regions
    }

    /// Every supported node is in one region, and the graph of regions and other nodes has no circle.
    fn check(predecessors: &[Vec<usize>], supported: &[bool], regions: &[Vec<usize>]) {
        let count = predecessors.len();
        let mut owner: Vec<usize> = (0..count).map(|n| regions.len() + n).collect();
        for (index, region) in regions.iter().enumerate() {
            for node in region {
                assert!(supported[*node] && owner[*node] >= regions.len(), "node {node}");
                owner[*node] = index;
            }
        }
        let owned = owner.iter().filter(|o| **o < regions.len()).count();
        assert_eq!(owned, supported.iter().filter(|s| **s).count());
        // Whatever has no open predecessor is done, until nothing changes.
        let mut done = vec![false; regions.len() + count];
        for _ in 0..done.len() {
            for unit in 0..done.len() {
                let mut nodes = (0..count).filter(|n| owner[*n] == unit);
                done[unit] = nodes.all(|n| predecessors[n].iter().all(|p| owner[*p] == unit || done[owner[*p]]));
            }
        }
        assert!(done.iter().all(|d| *d), "a circle: {regions:?}");
    }

    #[test]
    fn a_chain_is_cut_at_an_unsupported_node() {
        assert_eq!(cut(&[&[], &[0], &[1]], &[]), [vec![0, 1, 2]]);
        assert_eq!(cut(&[&[], &[0], &[1], &[2]], &[1]), [vec![0], vec![2, 3]]);
        assert_eq!(cut(&[&[], &[0]], &[0, 1]), Vec::<Vec<usize>>::new());
    }

    /// 0 feeds 1 and 2, and 3 reads both: with 1 unsupported, 3 cannot be in one region with 0.
    #[test]
    fn a_branch_around_an_unsupported_node_is_convex() {
        assert_eq!(cut(&[&[], &[0], &[0], &[1, 2]], &[1]), [vec![0, 2], vec![3]]);
    }

    /// Two chains that never meet are two regions.
    #[test]
    fn parts_that_are_not_connected_are_apart() {
        assert_eq!(cut(&[&[], &[], &[0], &[1]], &[]), [vec![0, 2], vec![1, 3]]);
    }

    /// Graphs of all shapes: edges and support drawn by a generator.
    #[test]
    fn regions_of_random_graphs_have_no_circle() {
        let mut state = 1u64;
        let mut draw = move |below: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for _ in 0..500 {
            let count = 1 + draw(24);
            let predecessors: Vec<Vec<usize>> = (0..count)
                .map(|node| (0..node).filter(|_| draw(5) == 0).collect())
                .collect();
            let supported: Vec<bool> = (0..count).map(|_| draw(3) > 0).collect();
            check(&predecessors, &supported, &regions(&predecessors, &supported));
        }
    }
}
