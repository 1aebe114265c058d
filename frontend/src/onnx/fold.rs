//! Values that nodes of the graph make of nothing but constants, evaluated where an import needs their numbers.
//!
//! Exporters compute shapes, axes and the like by any op there is (`TopK`, `Log`, `NonZero` of a mask).
//! [`super::known`] has the ops that are shape arithmetic; all others are evaluated by the reference evaluator, on
//! demand: what nobody asks for is folded by the passes.
//!
//! Where an import is for the inputs of one run, what data decide (how many boxes a detector keeps, which branch of an
//! `If` is taken) is computed from these inputs.

use std::collections::{BTreeMap, BTreeSet};

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
    let alone = part(graph, value, &needed(graph, value)?, &IndexMap::new())?;
    // What cannot be evaluated is said where it is compiled.
    run(&alone, &IndexMap::new())
        .ok()?
        .into_iter()
        .next()
        .map(|(_, tensor)| tensor)
}

/// The graph that computes a value from the inputs that are given; `None` where it depends on another input, an open
/// size or a random number, or where no input decides it.
pub(super) fn of_inputs(graph: &Graph, value: Value, given: &IndexMap<String, HostTensor>) -> Option<Graph> {
    let mut seen: BTreeSet<NodeId> = BTreeSet::new();
    let mut todo = vec![value.node];
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(graph.node(id).operands.iter().map(|v| v.node));
        }
    }
    let nodes: Vec<NodeId> = seen.into_iter().collect();
    let alone = part(graph, value, &nodes, given)?;
    let settled = nodes.iter().all(|id| {
        let node = graph.node(*id);
        let known = |ty: &ir::TensorType| ty.shape.as_consts().is_some();
        !matches!(node.op, Op::Random { .. } | Op::Call(_)) && node.results.iter().all(known) && is_closed(&node.op)
    });
    (settled && !alone.inputs().is_empty()).then_some(alone)
}

/// A part of a graph: nodes in order, of which the last ones compute the value. Inputs are those that are given.
fn part(graph: &Graph, value: Value, nodes: &[NodeId], given: &IndexMap<String, HostTensor>) -> Option<Graph> {
    let mut alone = Graph::new("constant");
    let mut made: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for id in nodes {
        let node = graph.node(*id);
        let copy = match &node.op {
            Op::Constant(constant) => {
                let tensor = graph.constants()[*constant].tensor.clone();
                alone.add_constant(None, tensor, Origin::Unknown).node
            }
            Op::Input { .. } => {
                let input = graph.inputs().iter().find(|input| input.node == *id)?;
                let ty = &node.results[0];
                let tensor = given.get(&input.name)?;
                let sizes = ty.shape.as_consts()?;
                let fits = sizes
                    .iter()
                    .zip(&tensor.shape)
                    .all(|(size, given)| usize::try_from(*size) == Ok(*given));
                if tensor.dtype != ty.dtype || sizes.len() != tensor.shape.len() || !fits {
                    return None;
                }
                alone.add_input(&input.name, ty.clone(), Origin::Unknown).node
            }
            op => {
                let operands: Vec<Value> = (node.operands.iter())
                    .map(|v| made.get(&v.node).map(|node| Value::new(*node, v.index)))
                    .collect::<Option<_>>()?;
                alone.push(op.clone(), &operands, node.results.iter().cloned(), node.origin.clone())
            }
        };
        made.insert(*id, copy);
    }
    alone.add_output("value", Value::new(*made.get(&value.node)?, value.index));
    Some(alone)
}

/// Says whether an op has no open size.
fn is_closed(op: &Op) -> bool {
    let mut symbols = Vec::new();
    op.for_each_dim(|d| d.collect_symbols(&mut symbols));
    symbols.is_empty()
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
        if !is_closed(&node.op) {
            return None;
        }
        todo.extend(node.operands.iter().map(|v| v.node));
    }
    Some(seen.into_keys().collect())
}
