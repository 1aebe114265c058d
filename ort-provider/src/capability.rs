//! Says which nodes of a graph graphc takes, in regions as long as can be.
//!
//! The first try is the whole graph. The importer names the nodes at fault where it refuses; those stay with other
//! providers, the rest is cut into regions ([`crate::partition`]), and each region is tried in its turn until all
//! that are left import as they are.

use std::collections::{HashMap, HashSet};

use graphc::frontend::onnx::ImportOptions;

use crate::compute::is_convertible;
use crate::context::is_context_node;
use crate::graph::{Graph, Reader};
use crate::options::NAME;
use crate::partition;
use crate::region::{Initializers, Region};

/// Most imports of a graph's regions: whatever is not settled by then stays with other providers.
const MOST_IMPORTS: usize = 1000;

/// The decision for a graph.
pub struct Capability {
    /// Sets of nodes that each become one, sorted.
    pub regions: Vec<Vec<usize>>,
    /// Why each of the other nodes was refused; empty where it was nobody's fault.
    pub refused: Vec<Option<String>>,
}

/// Finds the regions of a graph.
pub fn regions(graph: &Graph, reader: &Reader, options: &ImportOptions, min_nodes: usize) -> Capability {
    let mut initializers = Initializers::new(reader, false);
    let mut refused: Vec<Option<String>> = graph.nodes.iter().map(refusal).collect();
    let predecessors = predecessors(graph);
    let mut accepted: HashSet<Vec<usize>> = HashSet::new();
    let mut imports = 0;
    let regions = loop {
        let supported: Vec<bool> = refused.iter().map(Option::is_none).collect();
        let regions = match supported.iter().all(|supported| *supported) {
            true if supported.is_empty() => Vec::new(),
            true => vec![(0..supported.len()).collect()],
            false => partition::regions(&predecessors, &supported),
        };
        let mut changed = false;
        for region in &regions {
            if accepted.contains(region) {
                continue;
            }
            imports += 1;
            let faults = match region.len() < min_nodes {
                true => all(region, &format!("its region has fewer than {min_nodes} nodes")),
                false if imports > MOST_IMPORTS => all(region, "too many tries to import what is left"),
                false => faults(graph, region, &mut initializers, options),
            };
            if faults.is_empty() {
                accepted.insert(region.clone());
            }
            for (node, why) in faults {
                refused[node] = Some(why);
                changed = true;
            }
        }
        if !changed {
            break regions;
        }
    };
    Capability { regions, refused }
}

fn all(region: &[usize], why: &str) -> Vec<(usize, String)> {
    region.iter().map(|node| (*node, why.to_owned())).collect()
}

/// Why a node is no candidate.
fn refusal(node: &crate::graph::Node) -> Option<String> {
    if is_context_node(&node.proto) {
        return Some("it holds a compiled region".to_owned());
    }
    if !node.provider.is_empty() && node.provider != NAME {
        return Some(format!("provider {} has it", node.provider));
    }
    node.problem.clone()
}

/// The nodes at fault for a region that does not import.
fn faults(
    graph: &Graph,
    nodes: &[usize],
    initializers: &mut Initializers<'_>,
    options: &ImportOptions,
) -> Vec<(usize, String)> {
    let outputs = outputs(graph, nodes);
    let region = match Region::new(graph, nodes, &outputs, initializers) {
        Ok(region) => region,
        Err(fault) => return vec![fault],
    };
    let imported = match region.import(options) {
        Ok(imported) => imported,
        Err(error) => {
            let faults = region.at_fault(graph, nodes, &error);
            return match faults.is_empty() {
                true => all(nodes, &error.to_string()),
                false => faults,
            };
        }
    };
    let made: HashMap<&str, &usize> = nodes
        .iter()
        .flat_map(|n| graph.nodes[*n].writes().map(move |name| (name, n)))
        .collect();
    let types = imported.outputs().iter().filter_map(|output| {
        let declared = graph.values.get(output.name.as_str())?.element()?;
        let computed = imported.ty(output.value).dtype;
        let node = **made.get(output.name.as_str())?;
        let why = || format!("its output {:?} would be {computed}", output.name);
        (!is_convertible(declared, computed)).then(|| (node, why()))
    });
    types.collect()
}

/// The values that nodes compute and others read, or the graph gives.
fn outputs(graph: &Graph, nodes: &[usize]) -> Vec<String> {
    let inside: HashSet<usize> = nodes.iter().copied().collect();
    let others = graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| !inside.contains(index));
    let read: HashSet<&str> = others
        .flat_map(|(_, node)| node.reads())
        .chain(graph.outputs.iter().map(String::as_str))
        .collect();
    let made = nodes.iter().flat_map(|n| graph.nodes[*n].writes());
    made.filter(|name| read.contains(name)).map(str::to_owned).collect()
}

/// The nodes whose results each node reads.
fn predecessors(graph: &Graph) -> Vec<Vec<usize>> {
    let mut makers = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        makers.extend(node.writes().map(|name| (name, index)));
    }
    let before = graph.nodes.iter().map(|node| {
        let mut before: Vec<usize> = node.reads().filter_map(|name| makers.get(name).copied()).collect();
        before.sort_unstable();
        before.dedup();
        before
    });
    before.collect()
}
