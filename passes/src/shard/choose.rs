//! Which way each op is shared in: the cheapest found, by the roofline of a rank's work and the bytes of collectives on
//! a bus.
//!
//! Every value has one layout; what reads it in another pays for the change, once for each layout that is asked for.
//! There are two beginnings: a sweep forward (the least that each way of a node can cost) and one back (what its
//! readers chose); and a single one forward (what suits a node's operands best). From either, nodes change, with what
//! follows them, as long as that makes the whole cheaper, and the cheaper end is taken.

use ir::op::Composite;
use ir::{Graph, NodeId, Op, Table, Target, TensorType, Value};
use smallvec::SmallVec;

use super::layout::{Layout, Way, ways};
use super::{ShardOptions, State};
use crate::cost::CostModel;

/// A byte of a constant that a rank keeps counts as if it were read so often in a run: several devices are asked for so
/// that weights are divided, also where a run reads few of them (a table that rows are taken of) or has other work to
/// do meanwhile.
const KEPT: f64 = 16.0;

/// Changes are tried so often for all nodes.
const SWEEPS: usize = 8;
/// So many nodes may go along with one that changes.
const FOLLOWERS: usize = 8;

/// What was chosen.
pub(super) struct Choice {
    pub ways: Table<NodeId, Vec<Way>>,
    pub chosen: Table<NodeId, usize>,
    /// Microseconds of a rank's work and all collectives.
    pub us: f64,
}

impl Choice {
    pub fn way(&self, id: NodeId) -> &Way {
        &self.ways[id][self.chosen[id]]
    }

    /// How a value is made.
    pub fn layout(&self, value: Value) -> Layout {
        self.way(value.node).result
    }
}

/// Says whether each rank makes what it needs of a value by itself, at no cost but its own reading: constants.
pub(super) fn is_given(graph: &Graph, value: Value) -> bool {
    matches!(graph.node(value.node).op, Op::Constant(_))
}

struct Chooser<'a> {
    graph: &'a Graph,
    model: CostModel<'a>,
    options: &'a ShardOptions,
    choice: Choice,
    /// Microseconds of each way of each node.
    costs: Table<NodeId, Vec<f64>>,
    /// The readers of each node's value: node and operand.
    readers: Table<NodeId, SmallVec<[(NodeId, u32); 2]>>,
    /// The input that the layout of an output has to be, of states; `None` among them is an output of the model.
    outputs: Table<NodeId, SmallVec<[Option<NodeId>; 1]>>,
    /// The values that become a state's next.
    next: Table<NodeId, Option<Value>>,
}

/// Chooses a way for each node.
pub(super) fn choose(graph: &Graph, target: &Target, states: &[State], options: &ShardOptions) -> Choice {
    let ranks = i64::from(options.ranks);
    let types = |id: NodeId| -> Vec<&TensorType> { graph.node(id).operands.iter().map(|v| graph.ty(*v)).collect() };
    let all: Table<NodeId, Vec<Way>> = graph
        .nodes()
        .iter()
        .map(|(id, node)| {
            let mut list = ways(&node.op, &types(id), &node.results, ranks);
            if states.iter().any(|state| state.input == id) {
                let shape = &node.results[0].shape;
                let axes = (0..shape.rank()).filter(|a| super::layout::divides(&shape[*a], ranks));
                list.extend(axes.map(|axis| Way {
                    operands: SmallVec::new(),
                    result: Layout::Split(axis),
                }));
            }
            list
        })
        .collect();
    let mut outputs: Table<NodeId, SmallVec<[Option<NodeId>; 1]>> =
        graph.nodes().keys().map(|_| SmallVec::new()).collect();
    let mut next: Table<NodeId, Option<Value>> = graph.nodes().keys().map(|_| None).collect();
    for output in graph.outputs() {
        let state = states.iter().find(|state| state.output == output.name);
        outputs[output.value.node].push(state.map(|state| state.input));
        if let Some(state) = state {
            next[state.input] = Some(output.value);
        }
    }
    let mut chooser = Chooser {
        graph,
        model: CostModel {
            target,
            symbols: graph.symbols(),
            computed_in: None,
        },
        options,
        choice: Choice {
            chosen: graph.nodes().keys().map(|_| 0).collect(),
            ways: all,
            us: 0.0,
        },
        costs: Table::new(),
        readers: graph.users(),
        outputs,
        next,
    };
    chooser.costs = (chooser.choice.ways.iter())
        .map(|(id, ways)| ways.iter().map(|way| chooser.node(id, way)).collect())
        .collect();
    chooser.first();
    chooser.settle();
    let (cost, chosen) = (chooser.total(), chooser.choice.chosen.clone());
    chooser.forward();
    chooser.settle();
    if chooser.total() >= cost {
        chooser.choice.chosen = chosen;
    }
    chooser.choice.us = chooser.time();
    chooser.choice
}

impl Chooser<'_> {
    /// Microseconds of a rank's part of a node.
    fn node(&self, id: NodeId, way: &Way) -> f64 {
        let node = self.graph.node(id);
        let ranks = i64::from(self.options.ranks);
        let operands: Vec<TensorType> = (node.operands.iter().zip(&way.operands))
            .map(|(v, layout)| layout.part(self.graph.ty(*v), ranks))
            .collect();
        let results: Vec<TensorType> = node.results.iter().map(|ty| way.result.part(ty, ranks)).collect();
        let mut types: Vec<&TensorType> = operands.iter().collect();
        let mut op = &node.op;
        let product;
        if let Op::Composite(Composite::Attention { scale, causal, .. }) = op
            && types.len() > 3
        {
            // Its operations do not depend on a mask or scales.
            product = Op::Composite(Composite::Attention {
                mask: false,
                scales: false,
                scale: *scale,
                causal: *causal,
            });
            (op, types) = (&product, types.into_iter().take(3).collect());
        }
        self.model.op(op, &types, &results)
    }

    /// Microseconds until a value that is made in one layout is there in another; infinite where there is no way.
    fn change(&self, value: Value, from: Layout, to: Layout) -> f64 {
        let ty = self.graph.ty(value);
        let bytes = self.model.bytes(ty);
        let part = |layout: Layout| self.model.bytes(&layout.part(ty, i64::from(self.options.ranks)));
        if is_given(self.graph, value) {
            return match super::emit::can_cut(ty, to, self.options.ranks) {
                true => KEPT * self.model.transfer(part(to)),
                false => f64::INFINITY,
            };
        }
        let copied = |layout: Layout| self.model.transfer(2.0 * part(layout));
        match (from, to) {
            (from, to) if from == to => 0.0,
            (_, Layout::Partial) | (Layout::Cover { .. }, _) => f64::INFINITY,
            (Layout::Whole, to) => copied(to),
            (Layout::Partial | Layout::Split(_), Layout::Whole) => self.collective(from, bytes),
            (Layout::Partial | Layout::Split(_), to) => self.collective(from, bytes) + copied(to),
        }
    }

    /// Microseconds of the collective that makes a value of so many bytes whole.
    fn collective(&self, from: Layout, bytes: f64) -> f64 {
        let ranks = f64::from(self.options.ranks);
        let sent = bytes * (ranks - 1.0) / ranks;
        let sent = if from == Layout::Partial { 2.0 * sent } else { sent };
        self.options.latency_us + sent / (self.options.bus_gbps * 1e3) + self.model.transfer(2.0 * bytes)
    }

    /// The layouts that a value's readers ask for, each once; with what becomes a state, if that is chosen already.
    fn asked(&self, id: NodeId, states: bool) -> SmallVec<[(u32, Layout); 4]> {
        let mut asked: SmallVec<[(u32, Layout); 4]> = SmallVec::new();
        for (reader, operand) in &self.readers[id] {
            let index = self.graph.node(*reader).operands[*operand as usize].index;
            let wanted = (index, self.choice.way(*reader).operands[*operand as usize]);
            if !asked.contains(&wanted) {
                asked.push(wanted);
            }
        }
        for state in self.outputs[id].iter().filter(|state| states || state.is_none()) {
            let wanted = state.map_or(Layout::Whole, |input| self.choice.way(input).result);
            if !asked.contains(&(0, wanted)) {
                asked.push((0, wanted));
            }
        }
        asked
    }

    /// What it costs to give a node's values to all that read them.
    fn given(&self, id: NodeId) -> f64 {
        let from = self.choice.way(id).result;
        let asked = self.asked(id, true);
        let costs = asked
            .iter()
            .map(|(index, to)| self.change(Value::new(id, *index), from, *to));
        costs.sum()
    }

    /// The least that each way can cost with all before it, and then, from the outputs on, the way that suits the
    /// readers.
    fn first(&mut self) {
        let graph = self.graph;
        let mut least: Table<NodeId, Vec<f64>> = Table::with_capacity(graph.nodes().len());
        for (id, node) in graph.nodes().iter() {
            let costs = self.choice.ways[id].iter().zip(&self.costs[id]).map(|(way, own)| {
                let operands = node.operands.iter().zip(&way.operands).map(|(value, asked)| {
                    if is_given(graph, *value) {
                        return self.change(*value, Layout::Whole, *asked);
                    }
                    let readers = self.readers[value.node].len().max(1) as f64;
                    let ways = self.choice.ways[value.node].iter().zip(&least[value.node]);
                    ways.map(|(way, cost)| cost / readers + self.change(*value, way.result, *asked))
                        .fold(f64::INFINITY, f64::min)
                });
                operands.sum::<f64>() + own
            });
            let costs = costs.collect();
            least.push(costs);
        }
        for id in graph.nodes().keys().rev() {
            // A state is made as its readers would have it, and what follows it as the state is.
            let asked = self.asked(id, false);
            let cost = |index: usize| {
                let from = self.choice.ways[id][index].result;
                let changes = asked
                    .iter()
                    .map(|(result, to)| self.change(Value::new(id, *result), from, *to));
                least[id][index] + changes.sum::<f64>()
            };
            self.choice.chosen[id] = best(self.choice.ways[id].len(), cost);
        }
    }

    /// From the inputs on, the way of each node that is cheapest for what it is given as it is. States stay as they
    /// were chosen.
    fn forward(&mut self) {
        let graph = self.graph;
        for (id, node) in graph.nodes().iter() {
            if node.op.is_leaf() {
                continue;
            }
            let cost = |index: usize| {
                let way = &self.choice.ways[id][index];
                let operands = node.operands.iter().zip(&way.operands);
                let changes = operands.map(|(value, asked)| self.change(*value, self.choice.layout(*value), *asked));
                changes.sum::<f64>() + self.costs[id][index]
            };
            self.choice.chosen[id] = best(self.choice.ways[id].len(), cost);
        }
    }

    /// Improves what is chosen until nothing helps.
    fn settle(&mut self) {
        for _ in 0..SWEEPS {
            if !self.improve() {
                break;
            }
        }
    }

    /// Microseconds of everything.
    fn total(&self) -> f64 {
        let nodes = self.graph.nodes().keys();
        nodes
            .map(|id| self.costs[id][self.choice.chosen[id]] + self.given(id))
            .sum()
    }

    /// Microseconds of everything that takes time: what weights that are kept count for does not.
    fn time(&self) -> f64 {
        let nodes = self.graph.nodes().keys();
        let time = |id: NodeId| {
            let kept = matches!(self.graph.node(id).op, Op::Constant(_));
            self.costs[id][self.choice.chosen[id]] + if kept { 0.0 } else { self.given(id) }
        };
        nodes.map(time).sum()
    }

    /// Changes nodes where that makes the whole cheaper; says whether it did. What follows a changed node goes along: a
    /// chain of views between two products is cut as a whole or not at all.
    fn improve(&mut self) -> bool {
        let graph = self.graph;
        let mut changed = false;
        for id in graph.nodes().keys() {
            for index in 0..self.choice.ways[id].len() {
                if index != self.choice.chosen[id] {
                    changed |= self.change_to(id, index);
                }
            }
        }
        changed
    }

    /// Tries a way of a node, with the ways of what follows that suit it best; says whether that is cheaper, and stays.
    fn change_to(&mut self, id: NodeId, index: usize) -> bool {
        let followers = self.followers(id);
        let moved: SmallVec<[NodeId; 16]> = std::iter::once(id).chain(followers.iter().copied()).collect();
        let before: SmallVec<[usize; 16]> = moved.iter().map(|node| self.choice.chosen[*node]).collect();
        let old = self.around(&moved);
        self.choice.chosen[id] = index;
        for node in followers {
            let count = self.choice.ways[node].len();
            let mut least = (self.choice.chosen[node], f64::INFINITY);
            for way in 0..count {
                self.choice.chosen[node] = way;
                let cost = self.around(&[node]);
                // Of equals what is shared: what comes later may make use of it.
                if cost < least.1 * (1.0 - 1e-9) || (cost <= least.1 && way > 0) {
                    least = (way, cost);
                }
            }
            self.choice.chosen[node] = least.0;
        }
        // Rounding must not have it go on for ever.
        if self.around(&moved) < old * (1.0 - 1e-9) {
            return true;
        }
        for (node, way) in moved.iter().zip(before) {
            self.choice.chosen[*node] = way;
        }
        false
    }

    /// The nodes that read a node's value, directly or by way of others, in order: the nearest few.
    fn followers(&self, id: NodeId) -> SmallVec<[NodeId; 16]> {
        let mut found: SmallVec<[NodeId; 16]> = SmallVec::new();
        let mut at = 0;
        let mut from = id;
        loop {
            for (reader, _) in &self.readers[from] {
                if found.len() < FOLLOWERS && !found.contains(reader) && self.choice.ways[*reader].len() > 1 {
                    found.push(*reader);
                }
            }
            if at == found.len() {
                break;
            }
            from = found[at];
            at += 1;
        }
        found.sort();
        found
    }

    /// What depends on the ways of some nodes: their own work, and the changes of their values and of what they read.
    fn around(&self, nodes: &[NodeId]) -> f64 {
        let mut near: SmallVec<[NodeId; 32]> = SmallVec::from_slice(nodes);
        for id in nodes {
            let operands = self.graph.node(*id).operands.iter().map(|value| value.node);
            for node in operands.chain(self.next[*id].map(|value| value.node)) {
                if !near.contains(&node) {
                    near.push(node);
                }
            }
        }
        let own = nodes.iter().map(|id| self.costs[*id][self.choice.chosen[*id]]);
        own.sum::<f64>() + near.iter().map(|id| self.given(*id)).sum::<f64>()
    }
}

/// The cheapest; of equals the first.
fn best(count: usize, cost: impl Fn(usize) -> f64) -> usize {
    let mut best = (0, cost(0));
    for index in 1..count {
        let cost = cost(index);
        if cost < best.1 {
            best = (index, cost);
        }
    }
    best.0
}
