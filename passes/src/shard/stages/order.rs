//! The nodes of a graph in a row in which layers are together, and what keeps parts of the row on one device.
//!
//! Ids are in some topological order, which may go through all layers at once. The row is the order in which a walk
//! from the output that needs most comes past its operands, so that a node stands behind all that it needs and nothing
//! else; what only other outputs need (the next values of states) stands behind the last of its operands.

use ir::entity::Entity;
use ir::op::Composite;
use ir::{Graph, NodeId, Op, Table, Value};

use crate::shard::State;

/// See the module.
pub(super) struct Order {
    /// The nodes that are computed once, in the row's order.
    pub row: Vec<NodeId>,
    /// The place in the row of each of them.
    pub places: Table<NodeId, Option<usize>>,
    /// Whether a node is made wherever it is read: of constants, or point by point of inputs.
    pub copied: Table<NodeId, bool>,
    pub states: Vec<Kept>,
}

/// A state, with the places between which no stage ends.
pub(super) struct Kept {
    pub input: NodeId,
    pub first: usize,
    pub last: usize,
}

impl Order {
    pub fn new(graph: &Graph, states: &[State]) -> Order {
        let copied = copied(graph, states);
        let row = row(graph, &copied);
        let mut places: Table<NodeId, Option<usize>> = graph.nodes().keys().map(|_| None).collect();
        for (place, id) in row.iter().enumerate() {
            places[*id] = Some(place);
        }
        let users = graph.users();
        let states = states.iter().map(|state| {
            let readers = users[state.input].iter().filter_map(|(reader, _)| places[*reader]);
            let next = graph.outputs().iter().find(|output| output.name == state.output);
            let next = next.and_then(|output| places[output.value.node]);
            let all: Vec<usize> = readers.chain(next).collect();
            Kept {
                input: state.input,
                first: all.iter().copied().min().unwrap_or(0),
                last: all.iter().copied().max().unwrap_or(0),
            }
        });
        Order {
            states: states.collect(),
            row,
            places,
            copied,
        }
    }

    /// What a node reads that is not made where it is read, and is no state.
    pub fn read<'a>(&'a self, graph: &'a Graph, id: NodeId) -> impl Iterator<Item = Value> + 'a {
        let operands = graph.node(id).operands.iter().copied();
        operands.filter(|value| self.places[value.node].is_some())
    }
}

fn copied(graph: &Graph, states: &[State]) -> Table<NodeId, bool> {
    let mut copied: Table<NodeId, bool> = Table::with_capacity(graph.nodes().len());
    for (id, node) in graph.nodes().iter() {
        let is = match node.op {
            Op::Constant(_) | Op::Iota { .. } | Op::DimValue(_) => true,
            Op::Input { .. } => !states.iter().any(|state| state.input == id),
            Op::View(_) | Op::Elementwise(_) | Op::Composite(Composite::Dequantize { .. }) => {
                node.operands.iter().all(|value| copied[value.node])
            }
            _ => false,
        };
        copied.push(is);
    }
    copied
}

fn row(graph: &Graph, copied: &Table<NodeId, bool>) -> Vec<NodeId> {
    let is_placed = |id: NodeId| !copied[id] && !matches!(graph.node(id).op, Op::Input { .. });
    // What each output needs, behind its operands.
    let walk = |from: NodeId| {
        let mut seen = vec![false; graph.nodes().len()];
        let mut list = Vec::new();
        let mut stack = vec![(from, 0)];
        if !is_placed(from) {
            return list;
        }
        seen[from.index()] = true;
        while let Some((id, next)) = stack.pop() {
            match graph.node(id).operands.get(next) {
                None => list.push(id),
                Some(operand) => {
                    stack.push((id, next + 1));
                    let operand = operand.node;
                    if is_placed(operand) && !seen[operand.index()] {
                        seen[operand.index()] = true;
                        stack.push((operand, 0));
                    }
                }
            }
        }
        list
    };
    let mut most: Vec<NodeId> = Vec::new();
    let mut live = vec![false; graph.nodes().len()];
    for output in graph.outputs() {
        let list = walk(output.value.node);
        list.iter().for_each(|id| live[id.index()] = true);
        if list.len() > most.len() {
            most = list;
        }
    }
    let mut keys: Table<NodeId, Option<(usize, bool, usize)>> = graph.nodes().keys().map(|_| None).collect();
    for (place, id) in most.iter().enumerate() {
        keys[*id] = Some((place + 1, false, id.index()));
    }
    for (id, node) in graph.nodes().iter() {
        if live[id.index()] && keys[id].is_none() {
            let behind = node
                .operands
                .iter()
                .filter_map(|value| keys[value.node])
                .map(|key| key.0);
            keys[id] = Some((behind.max().unwrap_or(0), true, id.index()));
        }
    }
    let mut row: Vec<_> = keys.iter().filter_map(|(id, key)| Some(((*key)?, id))).collect();
    row.sort_unstable();
    row.into_iter().map(|(_, id)| id).collect()
}
