//! A region of a graph as an e-graph.

use std::collections::HashMap;

use egg::{EGraph, Id};
use ir::entity::Entity;
use ir::{DType, Graph, NodeId, Target, Value};
use smallvec::SmallVec;

use super::language::{self, ClassFacts, Enode, Payload, Region};
use super::region::Span;
use crate::analysis::{index, known_scalar};

/// A loaded region.
pub struct Loaded<'a> {
    pub egraph: language::Graph<'a>,
    /// The e-node of each value that the region reads or computes, as it stands in the graph (not a canonical id).
    pub ids: HashMap<Value, Id>,
    /// Nodes that are e-nodes, in order.
    pub embedded: Vec<NodeId>,
}

/// What the regions of a graph have in common.
pub struct Whole<'a> {
    pub graph: &'a Graph,
    pub target: &'a Target,
    pub positions: Option<&'a index::KnownElements>,
    /// What f32 becomes later, where less precision was asked for.
    pub computed_in: Option<DType>,
    pub uses: &'a [u32],
}

/// Loads a region, and before it the nodes that patterns may begin with.
pub fn load<'a>(whole: &Whole<'a>, span: &Span) -> Loaded<'a> {
    let g = whole.graph;
    let mut region = Region::of(g, whole.target, whole.uses);
    region.positions = whole.positions;
    region.computed_in = whole.computed_in;
    region.start = span.nodes.start;
    let mut loaded = Loaded {
        egraph: EGraph::new(region)
            .with_explanations_enabled()
            .without_explanation_length_optimization(),
        ids: HashMap::new(),
        embedded: Vec::new(),
    };
    for i in span.context..span.nodes.end {
        let id = NodeId::new(i);
        let node = g.node(id);
        // Leaves and ops of several results stay outside; what reads them reads a leaf.
        if node.op.is_leaf() || node.results.len() != 1 {
            continue;
        }
        let children: SmallVec<[Id; 3]> = node.operands.iter().map(|v| loaded.id(g, *v)).collect();
        let payload = loaded.egraph.analysis.payload(&node.op);
        loaded.egraph.analysis.next = Some(facts(g, id.into()));
        let made = loaded.egraph.add_uncanonical(Enode { payload, children });
        // An equal e-node was there already, and its class has its facts.
        loaded.egraph.analysis.next = None;
        loaded.ids.insert(id.into(), made);
        loaded.embedded.push(id);
    }
    loaded.egraph.rebuild();
    loaded
}

fn facts(g: &Graph, value: Value) -> ClassFacts {
    ClassFacts {
        ty: Some(g.ty(value).clone()),
        number: known_scalar(g, value).map(|s| s.as_f64()),
        value: Some(value),
    }
}

impl Loaded<'_> {
    /// Returns the canonical class of a value of the graph, if the region has it.
    pub fn class(&self, value: Value) -> Option<Id> {
        self.ids.get(&value).map(|id| self.egraph.find(*id))
    }

    fn id(&mut self, g: &Graph, v: Value) -> Id {
        if let Some(id) = self.ids.get(&v) {
            return *id;
        }
        let region = &mut self.egraph.analysis;
        let index = region.leaves.len() as u32;
        region.leaves.push(v);
        region.next = Some(facts(g, v));
        let id = self.egraph.add_uncanonical(Enode {
            payload: Payload::Leaf(index),
            children: SmallVec::new(),
        });
        self.ids.insert(v, id);
        id
    }
}
