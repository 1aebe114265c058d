//! What was shared, how, and why not.

use std::fmt;

use ir::op::{Composite, Gather};
use ir::{Graph, NodeId, Op, Origin};

use super::choose::{Choice, is_given};
use super::layout::{Layout, divides};
use super::{ShardOptions, State};

/// How a model lies on its devices.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ShardReport {
    pub ranks: u32,
    /// Products and lookups by constants, attention and states, in the graph's order.
    pub shared: Vec<Shared>,
    /// Sums over all ranks in one run, halves counted apart.
    pub all_reduces: usize,
    /// Sums that are made in halves, one on its way while the other is computed.
    pub in_halves: usize,
    /// Joins of the ranks' parts in one run.
    pub all_gathers: usize,
    /// Bytes that each rank gives to collectives in one run, at the sizes' hints.
    pub collective_bytes: i64,
    /// Bytes of the constants of the whole model, and of each rank.
    pub whole_bytes: usize,
    pub rank_bytes: Vec<usize>,
    /// Microseconds of one run by the roofline: a rank's work and all collectives.
    pub us: f64,
}

/// One node.
#[derive(Clone, PartialEq, Debug)]
pub struct Shared {
    pub origin: Origin,
    pub op: &'static str,
    /// How it is shared, or why it is not.
    pub how: String,
    pub is_split: bool,
}

impl fmt::Display for ShardReport {
    /// A line for each node, then the sums.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shared in &self.shared {
            writeln!(f, "{} {}: {}", shared.op, shared.origin, shared.how)?;
        }
        if self.in_halves > 0 {
            writeln!(
                f,
                "{} sums are made in halves of their rows: one is on its way while the other is computed",
                self.in_halves
            )?;
        }
        let each: Vec<String> = self.rank_bytes.iter().map(ToString::to_string).collect();
        writeln!(
            f,
            "{} all-reduces and {} all-gathers a run, of {} bytes from each rank; constants: {} bytes, on the ranks {}",
            self.all_reduces,
            self.all_gathers,
            self.collective_bytes,
            self.whole_bytes,
            each.join(", ")
        )
    }
}

pub(super) fn report(
    graph: &Graph,
    ranks: &[Graph],
    choice: &Choice,
    states: &[State],
    options: &ShardOptions,
) -> ShardReport {
    let mut report = ShardReport {
        ranks: options.ranks,
        whole_bytes: bytes(graph),
        rank_bytes: ranks.iter().map(bytes).collect(),
        ..ShardReport::default()
    };
    for (id, node) in graph.nodes().iter() {
        let is_state = states.iter().any(|state| state.input == id);
        let how = match &node.op {
            Op::Input { .. } if is_state => Some(state(graph, choice, id)),
            Op::Contract(_) if from_constants(graph, node.operands[1].node) => {
                Some(product(graph, choice, id, options))
            }
            Op::Gather(Gather::Take { axis }) if is_given(graph, node.operands[0]) => Some(lookup(choice, id, *axis)),
            Op::Composite(Composite::Attention { .. }) => Some(attention(graph, choice, id, options)),
            _ => None,
        };
        if let Some((is_split, how)) = how {
            report.shared.push(Shared {
                origin: node.origin.clone(),
                op: if is_state { "state" } else { node.op.name() },
                how,
                is_split,
            });
        }
    }
    let Some(first) = ranks.first() else { return report };
    for node in first.nodes().values() {
        let Op::Call(call) = &node.op else { continue };
        match call.as_collective().map(|c| c.kind) {
            Some(ir::library::CollectiveKind::AllReduce) => report.all_reduces += 1,
            Some(ir::library::CollectiveKind::AllGather) => report.all_gathers += 1,
            None => continue,
        }
        report.collective_bytes += first.ty(node.operands[0]).bytes().hint(first.symbols());
    }
    report
}

fn bytes(graph: &Graph) -> usize {
    graph.constants().values().map(|c| c.tensor.bytes.len()).sum()
}

/// Says whether a value is made of constants alone.
fn from_constants(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match node.op {
        Op::Constant(_) => true,
        Op::View(_) | Op::Elementwise(_) | Op::Composite(Composite::Dequantize { .. }) => {
            node.operands.iter().all(|v| from_constants(graph, v.node))
        }
        _ => false,
    }
}

fn product(graph: &Graph, choice: &Choice, id: NodeId, options: &ShardOptions) -> (bool, String) {
    let node = graph.node(id);
    let way = choice.way(id);
    let (lhs, rhs) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
    let Op::Contract(c) = &node.op else {
        return (false, String::new());
    };
    let rank = rhs.shape.rank();
    let (k, n) = match c.transpose_rhs {
        true => (rank - 1, rank - 2),
        false => (rank - 2, rank - 1),
    };
    let (k_size, n_size) = (&rhs.shape[k], &rhs.shape[n]);
    let text = match (way.operands[1], way.result) {
        (Layout::Split(axis), _) if axis == n => format!("columns: each rank has its part of {n_size}"),
        (Layout::Split(axis), Layout::Partial) if axis == k => {
            format!("rows: each rank sums its part of {k_size}, and the sums are added")
        }
        (_, Layout::Split(axis)) => format!("axis {axis} of the result, each by the whole weight"),
        (_, Layout::Partial) => "each rank's summand, by the whole weight".to_owned(),
        (Layout::Whole, Layout::Whole) => {
            let ranks = options.ranks;
            let why = match (divides(n_size, i64::from(ranks)), divides(k_size, i64::from(ranks))) {
                (false, false) => format!("neither {n_size} columns nor {k_size} rows divide by {ranks}"),
                (false, true) => format!("{n_size} columns do not divide by {ranks}, and rows would cost more to add"),
                _ => format!(
                    "sharing {lhs} by {rhs} saves less than collectives take (at {} GB/s, {} us each)",
                    options.bus_gbps, options.latency_us
                ),
            };
            return (false, format!("whole on every rank: {why}"));
        }
        (other, result) => format!("{other:?} to {result:?}"),
    };
    (true, text)
}

fn lookup(choice: &Choice, id: NodeId, taken: usize) -> (bool, String) {
    match choice.way(id).operands[0] {
        Layout::Split(axis) => (
            true,
            format!("axis {axis} of the table: each rank has its part of each row"),
        ),
        _ => (
            false,
            format!("whole on every rank: no axis of the table but {taken} divides, or sharing saves nothing"),
        ),
    }
}

fn attention(graph: &Graph, choice: &Choice, id: NodeId, options: &ShardOptions) -> (bool, String) {
    let node = graph.node(id);
    let way = choice.way(id);
    let (heads, shared) = (
        &graph.ty(node.operands[0]).shape[1],
        &graph.ty(node.operands[1]).shape[1],
    );
    let ranks = options.ranks;
    match (way.operands[0], way.operands[1]) {
        (Layout::Split(1), Layout::Split(1)) => (
            true,
            format!("heads: each rank has its part of {heads} and of {shared} keys"),
        ),
        (Layout::Split(1), _) => (
            true,
            format!("heads: each rank has its part of {heads}; {shared} keys do not divide by {ranks} and are whole"),
        ),
        (Layout::Split(axis), _) => (true, format!("axis {axis}")),
        _ if !divides(heads, i64::from(ranks)) => (
            false,
            format!("whole on every rank: {heads} heads do not divide by {ranks}"),
        ),
        _ => (
            false,
            "whole on every rank: sharing saves less than it moves".to_owned(),
        ),
    }
}

fn state(graph: &Graph, choice: &Choice, id: NodeId) -> (bool, String) {
    let ty = &graph.node(id).results[0];
    match choice.way(id).result {
        Layout::Split(axis) => (true, format!("axis {axis}: each rank keeps its part of {ty}")),
        _ => (false, format!("whole on every rank: what reads {ty} has it whole")),
    }
}
