//! The order in which nodes are imported: each after the nodes that it reads.
//!
//! ONNX asks files to be in such an order, and most are. Some tools write nodes at the end of the list that earlier
//! ones read (onnxruntime's converter to f16 appends its casts); those are sorted. Nodes that are in order already stay
//! where they are.

use std::collections::{HashMap, HashSet};

use super::error::NodeProblem;
use super::proto::NodeProto;

/// Returns the nodes that the outputs need, each after those whose outputs it reads.
///
/// # Errors
/// The node of a circle that is reached first, with [`NodeProblem::Circle`].
pub(super) fn needed<'a>(
    nodes: &'a [NodeProto],
    outputs: impl Iterator<Item = &'a str>,
) -> Result<Vec<&'a NodeProto>, (&'a NodeProto, NodeProblem)> {
    let mut names: HashSet<&str> = outputs.collect();
    let mut found = ordered(nodes)?;
    let mut live = vec![false; found.len()];
    for (node, live) in found.iter().zip(&mut live).rev() {
        if node.output.iter().any(|o| !o.is_empty() && names.contains(o.as_str())) {
            *live = true;
            use_names(node, &mut names);
        }
    }
    let mut live = live.into_iter();
    found.retain(|_| live.next().unwrap_or(false));
    Ok(found)
}

/// Sorts nodes so that each follows those whose outputs it reads, itself or from inside its subgraphs.
///
/// # Errors
/// The node of a circle that is reached first, with [`NodeProblem::Circle`].
fn ordered(nodes: &[NodeProto]) -> Result<Vec<&NodeProto>, (&NodeProto, NodeProblem)> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            makers.entry(name).or_insert(at);
        }
    }
    let mut states = vec![State::New; nodes.len()];
    let mut sorted = Vec::with_capacity(nodes.len());
    // Nodes that wait for the one above them, each with the makers it still has to look at.
    let mut stack: Vec<(usize, Vec<usize>)> = Vec::new();
    for start in 0..nodes.len() {
        if states[start] != State::New {
            continue;
        }
        states[start] = State::Open;
        stack.push((start, before(nodes, start, &makers)));
        while let Some((at, waiting)) = stack.last_mut() {
            let at = *at;
            match waiting.pop() {
                None => {
                    states[at] = State::Done;
                    sorted.push(&nodes[at]);
                    stack.pop();
                }
                Some(next) if states[next] == State::New => {
                    states[next] = State::Open;
                    stack.push((next, before(nodes, next, &makers)));
                }
                Some(next) if states[next] == State::Open => {
                    // A name that only a subgraph reads may be the subgraph's own.
                    let reads = |name: &&String| makers.get(name.as_str()) == Some(&next);
                    if let Some((index, name)) = nodes[at].input.iter().enumerate().find(|(_, name)| reads(name)) {
                        let name = name.clone();
                        return Err((&nodes[at], NodeProblem::Circle { index, name }));
                    }
                }
                Some(_) => {}
            }
        }
    }
    Ok(sorted)
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Open,
    Done,
}

/// The makers of what a node reads, the first to look at last.
fn before(nodes: &[NodeProto], at: usize, makers: &HashMap<&str, usize>) -> Vec<usize> {
    let mut names = HashSet::new();
    use_names(&nodes[at], &mut names);
    let mut found: Vec<usize> = names.into_iter().filter_map(|name| makers.get(name).copied()).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.dedup();
    found
}

/// Adds the names that a node reads, also from inside its subgraphs. The nesting is bounded: prost refuses more than
/// 100 levels.
fn use_names<'a>(node: &'a NodeProto, names: &mut HashSet<&'a str>) {
    names.extend(node.input.iter().map(String::as_str));
    for graph in node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        names.extend(graph.output.iter().map(|o| o.name.as_str()));
        graph.node.iter().for_each(|n| use_names(n, names));
    }
}
