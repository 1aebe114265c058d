//! Choice by e-graph: activations in any spelling, and the order of matrix products.
//!
//! Each region (a bounded run of the graph, see [`region`]) becomes an e-graph; [`rules`] add what is equal; [`extract`]
//! picks the cheapest by the roofline of [`crate::cost`]. Whole normalisations and attention are seen before, by matchers
//! (see [`crate::recognize`]), and merged projections after ([`crate::merge`]): both need views of many nodes at once that
//! would only be found here by luck of bracketing.

pub mod extract;
pub mod language;
pub mod region;
pub mod rules;

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use egg::{BackoffScheduler, EGraph, Id, Language, Rewrite, Runner};
use indexmap::IndexMap;
use ir::entity::Entity;
use ir::op::{Elementwise, UnaryOp};
use ir::{Graph, NodeId, Op, TensorType, Value};
use smallvec::SmallVec;

use crate::analysis::known_scalar;
use crate::cost::CostModel;
use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::{Context, Pass};
use extract::Choice;
use language::{Enode, Facts, Payload, Region};

/// How far saturation goes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    region: usize,
    iterations: usize,
    nodes: usize,
}

const SHORT: Limits = Limits {
    region: 256,
    iterations: 4,
    nodes: 4_000,
};
const LONG: Limits = Limits {
    region: 512,
    iterations: 12,
    nodes: 20_000,
};

/// The pass.
pub const PASS: Pass = Pass {
    name: "egraph",
    run: |graph, context| run(graph, context, SHORT),
    required: false,
};

/// The pass with longer saturation.
pub const PASS_LONG: Pass = Pass {
    name: "egraph",
    run: |graph, context| run(graph, context, LONG),
    required: false,
};

fn run(graph: &Graph, context: &mut Context<'_>, limits: Limits) -> Result<Graph, PassFault> {
    let options = context.options;
    let rules = rules::compile(|name| options.enabled(name));
    let model = CostModel {
        target: context.target,
        symbols: graph.symbols(),
    };
    let mut builder = Builder::new(graph, "egraph");
    let reads = outside_reads(graph);
    for range in region::cut(graph, limits.region) {
        if range.clone().any(|i| is_trigger(graph, NodeId::new(i))) {
            choose(&mut builder, range.clone(), &rules, &model, limits, &reads)?;
        }
        for i in range {
            builder.copy(NodeId::new(i))?;
        }
    }
    Ok(builder.finish(&mut context.fired))
}

/// Says whether some rule starts from this op; regions without any are copied as they are.
fn is_trigger(g: &Graph, id: NodeId) -> bool {
    let node = g.node(id);
    match &node.op {
        Op::Elementwise(Elementwise::Unary(op)) => matches!(
            op,
            UnaryOp::Erf | UnaryOp::Tanh | UnaryOp::Sigmoid | UnaryOp::Exp | UnaryOp::Relu | UnaryOp::Softplus
        ),
        Op::Contract(_) => node
            .operands
            .iter()
            .any(|v| matches!(g.node(v.node).op, Op::Contract(_))),
        _ => false,
    }
}

/// The last node that reads each node; `usize::MAX` for outputs.
fn outside_reads(g: &Graph) -> Vec<usize> {
    let mut last = vec![0; g.nodes().len()];
    for (id, node) in g.nodes().iter() {
        for v in &node.operands {
            last[v.node.index()] = id.index();
        }
    }
    for output in g.outputs() {
        last[output.value.node.index()] = usize::MAX;
    }
    last
}

/// A region as an e-graph.
struct Loaded<'a> {
    egraph: language::Graph<'a>,
    /// The class of each value that the region reads or computes.
    classes: HashMap<Value, Id>,
    leaves: Vec<Value>,
    /// Nodes that are e-nodes, in order.
    embedded: Vec<NodeId>,
}

fn load<'a>(g: &'a Graph, range: Range<usize>) -> Loaded<'a> {
    let region = Region {
        symbols: g.symbols(),
        ops: Vec::new(),
        leaves: Vec::new(),
        next: None,
        applied: IndexMap::new(),
    };
    let mut loaded = Loaded {
        egraph: EGraph::new(region),
        classes: HashMap::new(),
        leaves: Vec::new(),
        embedded: Vec::new(),
    };
    let mut interned: HashMap<Op, u32> = HashMap::new();
    for i in range {
        let id = NodeId::new(i);
        let node = g.node(id);
        // Leaves and ops of several results stay outside; what reads them reads a leaf.
        if node.op.is_leaf() || node.results.len() != 1 {
            continue;
        }
        let children: SmallVec<[Id; 3]> = node.operands.iter().map(|v| loaded.class(g, *v)).collect();
        let payload = match &node.op {
            Op::Elementwise(e) => Payload::Elementwise(*e),
            Op::Contract(c) => Payload::Matmul(c.transpose_lhs, c.transpose_rhs, c.out),
            other => {
                let ops = &mut loaded.egraph.analysis.ops;
                Payload::Other(*interned.entry(other.clone()).or_insert_with(|| {
                    ops.push(other.clone());
                    (ops.len() - 1) as u32
                }))
            }
        };
        loaded.egraph.analysis.next = Some(node.results[0].clone());
        let class = loaded.egraph.add(Enode { payload, children });
        // An equal e-node was there already, and its class has its type.
        loaded.egraph.analysis.next = None;
        loaded.classes.insert(id.into(), class);
        loaded.embedded.push(id);
    }
    loaded
}

impl Loaded<'_> {
    fn class(&mut self, g: &Graph, v: Value) -> Id {
        if let Some(class) = self.classes.get(&v) {
            return *class;
        }
        let index = self.leaves.len() as u32;
        self.leaves.push(v);
        self.egraph.analysis.leaves.push(Facts {
            ty: Some(g.ty(v).clone()),
            number: known_scalar(g, v).map(|s| s.as_f64()),
        });
        let class = self.egraph.add(Enode {
            payload: Payload::Leaf(index),
            children: SmallVec::new(),
        });
        self.classes.insert(v, class);
        class
    }
}

fn choose<'a>(
    b: &mut Builder<'a>,
    range: Range<usize>,
    rules: &[Rewrite<Enode, Region<'a>>],
    model: &CostModel<'_>,
    limits: Limits,
    reads: &[usize],
) -> Result<(), PassFault> {
    let g: &'a Graph = b.old;
    let mut loaded = load(g, range.clone());
    loaded.egraph.rebuild();
    let runner: Runner<Enode, Region<'a>> = Runner::new(Region {
        symbols: g.symbols(),
        ops: Vec::new(),
        leaves: Vec::new(),
        next: None,
        applied: IndexMap::new(),
    })
    .with_egraph(loaded.egraph)
    .with_iter_limit(limits.iterations)
    .with_node_limit(limits.nodes)
    // Only the counts may end it: the same graph must give the same answer on a slow day.
    .with_time_limit(Duration::from_secs(3600))
    .with_scheduler(BackoffScheduler::default().with_initial_match_limit(10_000))
    .run(rules);
    let egraph = runner.egraph;
    if egraph.analysis.applied.values().all(|rule| *rule == "commute") {
        return Ok(());
    }
    let cost = |enode: &Enode| enode_cost(&egraph, model, enode);
    let best = extract::extract(&egraph, cost);
    // A node is computed some other way when its class chose another e-node.
    let mut emitter = Emitter {
        egraph: &egraph,
        best: &best,
        leaves: &loaded.leaves,
        origins: HashMap::new(),
        values: HashMap::new(),
    };
    for id in &loaded.embedded {
        let class = egraph.find(loaded.classes[&Value::from(*id)]);
        emitter.origins.entry(class).or_insert(*id);
    }
    let roots = loaded
        .embedded
        .iter()
        .filter(|id| reads[id.index()] >= range.end || reads_leaf(g, **id, &range));
    for root in roots {
        let class = egraph.find(loaded.classes[&Value::from(*root)]);
        if !emitter.differs(g, class, &loaded.classes) {
            continue;
        }
        let Some(value) = emitter.emit(b, class, 0)? else {
            continue;
        };
        if *b.ty(value) != g.node(*root).results[0] {
            continue;
        }
        b.set(*root, value);
    }
    for (class, rule) in fired(&egraph, &best, &emitter) {
        let before = original_cost(g, model, &loaded.classes, emitter.origins[&class], &range);
        let after = best[&class].total;
        let origin = g.node(emitter.origins[&class]).origin.clone();
        b.note(rule, vec![origin], Some((before, after)), None);
    }
    Ok(())
}

/// Says whether a node of several results within the region reads this one.
fn reads_leaf(g: &Graph, id: NodeId, range: &Range<usize>) -> bool {
    range.clone().skip(id.index() + 1 - range.start).any(|i| {
        let node = g.node(NodeId::new(i));
        node.results.len() != 1 && node.operands.iter().any(|v| v.node == id)
    })
}

fn enode_cost(egraph: &language::Graph<'_>, model: &CostModel<'_>, enode: &Enode) -> f64 {
    let Some(op) = egraph.analysis.op(enode.payload) else {
        return 0.0;
    };
    let types: Option<Vec<&TensorType>> = enode.children().iter().map(|c| egraph[*c].data.ty.as_ref()).collect();
    let Some(types) = types else { return f64::INFINITY };
    let Some(class) = egraph.lookup(enode.clone()) else {
        return f64::INFINITY;
    };
    match &egraph[class].data.ty {
        Some(ty) => model.op(&op, &types, std::slice::from_ref(ty)),
        None => f64::INFINITY,
    }
}

struct Emitter<'e, 'a> {
    egraph: &'e language::Graph<'a>,
    best: &'e HashMap<Id, Choice>,
    leaves: &'e [Value],
    /// The first old node of each class.
    origins: HashMap<Id, NodeId>,
    values: HashMap<Id, Value>,
}

impl Emitter<'_, '_> {
    /// Says whether anything below a class was chosen otherwise than it stands in the graph.
    fn differs(&self, g: &Graph, class: Id, classes: &HashMap<Value, Id>) -> bool {
        let mut stack = vec![class];
        let mut seen = std::collections::HashSet::new();
        while let Some(class) = stack.pop() {
            if !seen.insert(class) {
                continue;
            }
            let (Some(choice), Some(id)) = (self.best.get(&class), self.origins.get(&class)) else {
                continue;
            };
            if !self.is_original(g, &choice.enode, *id, classes) {
                return true;
            }
            stack.extend(choice.enode.children().iter().map(|c| self.egraph.find(*c)));
        }
        false
    }

    fn is_original(&self, g: &Graph, enode: &Enode, id: NodeId, classes: &HashMap<Value, Id>) -> bool {
        let node = g.node(id);
        let same_op = self.egraph.analysis.op(enode.payload).as_ref() == Some(&node.op);
        let mut have: Vec<Id> = enode.children().iter().map(|c| self.egraph.find(*c)).collect();
        let mut want: Vec<Id> = node
            .operands
            .iter()
            .filter_map(|v| classes.get(v))
            .map(|c| self.egraph.find(*c))
            .collect();
        // Operands in the other order are no change.
        if let Op::Elementwise(Elementwise::Binary(op)) = node.op
            && op.is_commutative()
        {
            have.sort_unstable();
            want.sort_unstable();
        }
        same_op && have == want
    }

    fn emit(&mut self, b: &mut Builder<'_>, class: Id, depth: usize) -> Result<Option<Value>, PassFault> {
        let class = self.egraph.find(class);
        if let Some(value) = self.values.get(&class) {
            return Ok(Some(*value));
        }
        let Some(choice) = self.best.get(&class) else {
            return Ok(None);
        };
        if depth > 2048 {
            return Ok(None);
        }
        let value = if let Payload::Leaf(i) = choice.enode.payload {
            let old = self.leaves[i as usize];
            b.copy_deep(old.node)?;
            b.value(old)
        } else {
            let mut operands = Vec::new();
            for child in choice.enode.children() {
                let Some(value) = self.emit(b, *child, depth + 1)? else {
                    return Ok(None);
                };
                operands.push(value);
            }
            let Some(op) = self.egraph.analysis.op(choice.enode.payload) else {
                return Ok(None);
            };
            if let Some(id) = self.origins.get(&class) {
                b.origin = b.old.node(*id).origin.clone();
            }
            b.emit(op, &operands)?
        };
        self.values.insert(class, value);
        Ok(Some(value))
    }
}

/// The classes whose choice a rule made, with the rule, in the order of the old nodes.
fn fired<'r>(
    egraph: &language::Graph<'_>,
    best: &HashMap<Id, Choice>,
    emitter: &Emitter<'r, '_>,
) -> Vec<(Id, &'static str)> {
    let mut by_class: HashMap<Id, &'static str> = HashMap::new();
    for (id, rule) in &egraph.analysis.applied {
        if *rule != "commute" {
            by_class.insert(egraph.find(*id), rule);
        }
    }
    let mut out: Vec<(Id, &'static str)> = emitter
        .values
        .keys()
        .filter(|class| best.contains_key(class) && emitter.origins.contains_key(class))
        .filter_map(|class| Some((*class, *by_class.get(class)?)))
        .collect();
    out.sort_by_key(|(class, _)| emitter.origins[class]);
    out
}

/// The cost of a node and all that it needs within the region, as they stand.
fn original_cost(
    g: &Graph,
    model: &CostModel<'_>,
    classes: &HashMap<Value, Id>,
    id: NodeId,
    range: &Range<usize>,
) -> f64 {
    let mut seen = std::collections::HashSet::new();
    let mut stack = vec![id];
    let mut total = 0.0;
    while let Some(id) = stack.pop() {
        if !range.contains(&id.index()) || !classes.contains_key(&Value::from(id)) || !seen.insert(id) {
            continue;
        }
        total += model.node(g, id);
        stack.extend(g.node(id).operands.iter().map(|v| v.node));
    }
    total
}
