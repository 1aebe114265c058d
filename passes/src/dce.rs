//! Drops nodes that no output needs, and constants that no node reads. Inputs stay: they are the model's signature.

use std::collections::HashMap;

use ir::entity::Entity;
use ir::{ConstId, Graph, NodeId, Op, Value};
use smallvec::SmallVec;

use crate::error::PassFault;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "dce",
    run: |graph, _| Ok::<Graph, PassFault>(sweep(graph.clone())),
    required: false,
};

/// Returns the graph without dead nodes and constants; the order of what stays is kept.
pub fn sweep(graph: Graph) -> Graph {
    let mut live = vec![false; graph.nodes().len()];
    for output in graph.outputs() {
        live[output.value.node.index()] = true;
    }
    for input in graph.inputs() {
        live[input.node.index()] = true;
    }
    for id in graph.nodes().keys().rev() {
        if live[id.index()] {
            for operand in &graph.node(id).operands {
                live[operand.node.index()] = true;
            }
        }
    }
    let used: std::collections::HashSet<ConstId> = graph
        .nodes()
        .iter()
        .filter(|(id, _)| live[id.index()])
        .filter_map(|(_, n)| match n.op {
            Op::Constant(c) => Some(c),
            _ => None,
        })
        .collect();
    if live.iter().all(|l| *l) && used.len() == graph.constants().len() {
        return graph;
    }
    let mut out = Graph::new(graph.name.clone());
    out.stage = graph.stage;
    out.set_sizes_of(&graph);
    let names: HashMap<NodeId, &str> = graph.inputs().iter().map(|i| (i.node, i.name.as_str())).collect();
    let mut map = vec![NodeId::new(0); graph.nodes().len()];
    // Inputs keep their order; it is the order of their nodes in every graph that was built by adding them.
    let in_order = graph.inputs().windows(2).all(|w| w[0].node < w[1].node);
    if !in_order {
        for input in graph.inputs() {
            let node = graph.node(input.node);
            map[input.node.index()] = out
                .add_input(input.name.clone(), node.results[0].clone(), node.origin.clone())
                .node;
        }
    }
    let mut constants: HashMap<ConstId, ConstId> = HashMap::new();
    for (id, node) in graph.nodes().iter().filter(|(id, _)| live[id.index()]) {
        map[id.index()] = match &node.op {
            Op::Input { .. } if names.contains_key(&id) => {
                if !in_order {
                    continue;
                }
                out.add_input(names[&id], node.results[0].clone(), node.origin.clone())
                    .node
            }
            Op::Constant(c) => {
                let new = *constants
                    .entry(*c)
                    .or_insert_with(|| out.push_constant(graph.constants()[*c].clone()));
                out.push(
                    Op::Constant(new),
                    &[],
                    node.results.iter().cloned(),
                    node.origin.clone(),
                )
            }
            op => {
                let operands: SmallVec<[Value; 3]> = node
                    .operands
                    .iter()
                    .map(|v| Value::new(map[v.node.index()], v.index))
                    .collect();
                out.push(op.clone(), &operands, node.results.iter().cloned(), node.origin.clone())
            }
        };
    }
    for output in graph.outputs() {
        let value = Value::new(map[output.value.node.index()], output.value.index);
        out.add_output_like(output, value);
    }
    out
}
