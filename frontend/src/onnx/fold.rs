//! Values that nodes of the graph make of nothing but constants, evaluated where an import needs their numbers.
//!
//! Exporters compute shapes, axes and the like by any op there is (`TopK`, `Log`, `NonZero` of a mask). [`super::known`] has the ops that are
//! shape arithmetic; all others are evaluated by the reference evaluator, on demand: what nobody asks for is folded by the passes.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use ir::graph::eval::evaluate as run;
use ir::op::Op;
use ir::{Graph, HostTensor, NodeId, Origin, Value};

/// The most elements that a folded tensor has, and each that it is made of.
pub(super) const MOST_ELEMENTS: usize = 1 << 16;
/// The most nodes that are evaluated for one value.
const MOST_NODES: usize = 4096;

/// Evaluates a value; `None` where it depends on an input, an open size or a random number, or where it is large.
pub(super) fn evaluate(graph: &Graph, value: Value) -> Option<HostTensor> {
    let nodes = needed(graph, value)?;
    let mut alone = Graph::new("constant");
    let mut made: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for id in nodes {
        let node = graph.node(id);
        let copy = match &node.op {
            Op::Constant(constant) => {
                let tensor = graph.constants()[*constant].tensor.clone();
                alone.add_constant(None, tensor, Origin::Unknown).node
            }
            op => {
                let operands: Vec<Value> = (node.operands.iter())
                    .map(|v| made.get(&v.node).map(|node| Value::new(*node, v.index)))
                    .collect::<Option<_>>()?;
                alone.push(op.clone(), &operands, node.results.iter().cloned(), node.origin.clone())
            }
        };
        made.insert(id, copy);
    }
    alone.add_output("value", Value::new(*made.get(&value.node)?, value.index));
    // What cannot be evaluated is said where it is compiled.
    run(&alone, &IndexMap::new())
        .ok()?
        .into_iter()
        .next()
        .map(|(_, tensor)| tensor)
}

/// The nodes that a value is computed by, in order, if all may be evaluated.
fn needed(graph: &Graph, value: Value) -> Option<Vec<NodeId>> {
    let mut seen: BTreeMap<NodeId, ()> = BTreeMap::new();
    let mut todo = vec![value.node];
    while let Some(id) = todo.pop() {
        if seen.insert(id, ()).is_some() {
            continue;
        }
        let node = graph.node(id);
        let small = |ty: &ir::TensorType| {
            let elements = ty.shape.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
            elements.is_some_and(|n| n <= MOST_ELEMENTS as i64)
        };
        if seen.len() > MOST_NODES
            || matches!(node.op, Op::Input { .. } | Op::Random { .. } | Op::Call(_))
            || !node.results.iter().all(small)
        {
            return None;
        }
        let mut symbols = Vec::new();
        node.op.for_each_dim(|d| d.collect_symbols(&mut symbols));
        if !symbols.is_empty() {
            return None;
        }
        todo.extend(node.operands.iter().map(|v| v.node));
    }
    Some(seen.into_keys().collect())
}
