//! Recognition and choice by e-graph.
//!
//! Each region (a bounded run of the graph, see [`region`]) becomes an e-graph ([`load`]); [`rules`] add what is equal:
//! activations in any spelling, softmax, norms and attention from their parts, projections of one input as one product,
//! the other bracketing of products; [`extract`] picks the cheapest by the roofline of [`crate::cost`]; [`emit`] writes
//! it down. egg keeps why each equality holds, and [`proof`] puts it into the report.

mod emit;
mod extract;
mod language;
mod load;
mod price;
mod proof;
mod region;
pub mod rules;
mod term;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use egg::{Id, Language};
use ir::entity::Entity;
use ir::{Graph, NodeId, Op, TensorType};
use smallvec::SmallVec;

use crate::analysis::{index, use_counts};
use crate::cost::CostModel;
use crate::error::PassFault;
use crate::report::Fired;
use crate::rewrite::Builder;
use crate::runner::{Context, Pass};
use emit::Emitter;
use extract::{Choices, Cost};
use language::{Enode, Group, Payload};
use load::{Loaded, Whole};
use region::Span;

/// How far saturation goes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    region: usize,
    /// Nodes before a region that its patterns may begin with.
    context: usize,
    iterations: usize,
    nodes: usize,
}

/// Matches of one rule in one round.
const MATCHES: usize = 10_000;

const SHORT: Limits = Limits {
    region: 256,
    context: 96,
    iterations: 8,
    nodes: 6_000,
};
const LONG: Limits = Limits {
    region: 512,
    context: 192,
    iterations: 16,
    nodes: 20_000,
};

/// The pass that recognises and chooses.
pub const PASS: Pass = Pass {
    name: "egraph",
    run: |graph, context| run(graph, context, &CHOICE, SHORT),
    required: false,
};

/// The pass with longer saturation.
pub const PASS_LONG: Pass = Pass {
    name: "egraph",
    run: |graph, context| run(graph, context, &CHOICE, LONG),
    required: false,
};

/// The pass that chooses between one kernel with its epilogue and a library's call.
pub const ROUTE: Pass = Pass {
    name: "route",
    run: |graph, context| run(graph, context, &ROUTES, SHORT),
    required: false,
};

/// One use of the e-graph.
struct Stage {
    name: &'static str,
    /// Wholes, spellings and brackets, with simplification of what they leave; or products and their epilogues.
    recognizes: bool,
}

const CHOICE: Stage = Stage {
    name: "egraph",
    recognizes: true,
};

const ROUTES: Stage = Stage {
    name: "route",
    recognizes: false,
};

fn run(graph: &Graph, context: &mut Context<'_>, stage: &Stage, limits: Limits) -> Result<Graph, PassFault> {
    let options = context.options;
    let ships = |name: &str| name != rules::HIPBLASLT || context.target.hipblaslt;
    let enabled = |name: &str| options.enabled(name) && ships(name);
    let signs = match stage.recognizes {
        true => rules::signs(),
        false => rules::route_signs(options.prefer_calls),
    };
    let nodes = graph.nodes().values();
    let worth: Vec<bool> = nodes.map(|node| signs.iter().any(|sign| sign(&node.op))).collect();
    let masked = stage.recognizes && graph.nodes().values().any(|n| matches!(n.op, Op::Contract(_)));
    let positions = masked.then(|| index::KnownElements::of(graph));
    let uses = use_counts(graph);
    let libraries = options.libraries && context.target.libraries;
    let mut builder = Builder::new(graph, stage.name);
    if stage.recognizes {
        builder = builder.with_rules(crate::simplify::enabled(options), options);
    }
    let chooser = Chooser {
        prefer_calls: options.prefer_calls && !stage.recognizes,
        rules: match stage.recognizes {
            true => rules::compile(enabled),
            false => rules::compile_routes(enabled, libraries, options.prefer_calls),
        },
        limits,
        pass: stage.name,
        model: CostModel {
            target: context.target,
            symbols: graph.symbols(),
            // Routes are chosen when everything has its type.
            computed_in: options.dtype.filter(|_| stage.recognizes),
        },
        reads: outside_reads(graph),
        whole: Whole {
            graph,
            target: context.target,
            positions: positions.as_ref(),
            computed_in: options.dtype.filter(|_| stage.recognizes),
            uses: &uses,
        },
    };
    for span in region::cut(graph, limits.region, limits.context) {
        if span.nodes.clone().any(|i| worth[i]) {
            chooser.choose(&mut builder, &span)?;
        }
        for i in span.nodes {
            builder.copy(NodeId::new(i))?;
        }
    }
    Ok(builder.finish(&mut context.fired))
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

struct Chooser<'a> {
    rules: Vec<rules::Rule<'a>>,
    limits: Limits,
    pass: &'static str,
    /// Whether calls are taken whatever they cost.
    prefer_calls: bool,
    model: CostModel<'a>,
    reads: Vec<usize>,
    whole: Whole<'a>,
}

impl<'a> Chooser<'a> {
    /// Applies the rules until nothing changes or a limit is met. Only counts may end it: the same graph must give the
    /// same answer on a slow day.
    ///
    /// This is egg's `Runner` without its check, in debug builds, of every proof as a tree of text: such a tree is
    /// exponential in the depth of a graph that shares values, and applications are run in debug builds too.
    fn saturate(&self, egraph: &mut language::Graph<'a>) {
        for _ in 0..self.limits.iterations {
            let rules = &self.rules;
            let found: Vec<_> = rules
                .iter()
                .map(|rule| rule.search_with_limit(egraph, MATCHES))
                .collect();
            let mut changed = false;
            for (rule, matches) in rules.iter().zip(&found) {
                changed |= !rule.apply(egraph, matches).is_empty();
                if egraph.total_number_of_nodes() > self.limits.nodes {
                    break;
                }
            }
            egraph.rebuild();
            if !changed || egraph.total_number_of_nodes() > self.limits.nodes {
                break;
            }
        }
    }

    /// Chooses for a region and sets its roots in the builder.
    fn choose(&self, b: &mut Builder<'a>, span: &Span) -> Result<(), PassFault> {
        let g = self.whole.graph;
        let mut loaded = load::load(&self.whole, span);
        self.saturate(&mut loaded.egraph);
        if !loaded.egraph.analysis.joined {
            return Ok(());
        }
        let roots: Vec<NodeId> = loaded
            .embedded
            .iter()
            .copied()
            .filter(|id| span.nodes.contains(&id.index()))
            .filter(|id| self.reads[id.index()] >= span.nodes.end || reads_leaf(g, *id, span))
            .collect();
        let classes: Vec<Id> = roots.iter().filter_map(|r| loaded.class((*r).into())).collect();
        let mut cost = Roofline::new(&loaded.egraph, &self.model);
        cost.prefer_calls = self.prefer_calls;
        let (best, groups) = extract::extract(&loaded.egraph, &classes, &cost);
        let mut emitter = Emitter::new(&loaded, &best);
        for (root, class) in roots.iter().zip(&classes) {
            if !emitter.differs(*class) {
                continue;
            }
            let Some(value) = emitter.emit(b, *class, 0)? else {
                continue;
            };
            // A size spelled another way would be another type to those who read it.
            if *b.ty(value) == g.node(*root).results[0] {
                b.set(*root, value);
            }
        }
        let reports = self.reports(&emitter, &groups);
        self.prove(b, &mut loaded, &best, reports);
        Ok(())
    }

    /// What was chosen otherwise than it stood: each class that a rule decided, and each group.
    fn reports(&self, emitter: &Emitter<'_, 'a>, groups: &[&Group]) -> Vec<Report> {
        let find = |id: Id| emitter.loaded.egraph.find(id);
        let mut reports = Vec::new();
        let mut grouped: HashSet<Id> = HashSet::new();
        let emitted: HashSet<Id> = emitter.emitted.iter().copied().collect();
        for group in groups {
            let members: Vec<Id> = group.members.iter().map(|m| find(m.0)).collect();
            if members.iter().all(|m| emitted.contains(m)) {
                let note = format!("{} contractions share an operand", members.len());
                reports.extend(self.report(emitter, &members, Some(note)));
            }
            grouped.extend(members);
        }
        for class in &emitter.emitted {
            let (Some(enode), Some(id)) = (emitter.best.get(class), emitter.origins.get(class)) else {
                continue;
            };
            if !grouped.contains(class) && !emitter.is_original(enode, *id) {
                reports.extend(self.report(emitter, &[*class], None));
            }
        }
        reports.sort_by_key(|r| r.root);
        reports
    }

    /// What classes cost as they stood and as chosen, down to what both have.
    fn report(&self, emitter: &Emitter<'_, 'a>, classes: &[Id], note: Option<String>) -> Option<Report> {
        let (loaded, best) = (emitter.loaded, emitter.best);
        let find = |id: Id| loaded.egraph.find(id);
        let cost = Roofline::new(&loaded.egraph, &self.model);
        let chosen = |id: Id| best.get(&find(id)).cloned();
        let (mut kept, mut after) = (HashSet::new(), 0.0);
        let mut seen = HashSet::new();
        let mut stack: Vec<Id> = classes.to_vec();
        while let Some(class) = stack.pop() {
            let top = classes.contains(&class);
            if !top && emitter.origins.contains_key(&class) {
                kept.insert(class);
            } else if seen.insert(class)
                && let Some(enode) = best.get(&class)
            {
                after += cost.of(enode, &chosen);
                stack.extend(enode.children().iter().map(|c| find(*c)));
            }
        }
        let g = self.whole.graph;
        let root = classes.iter().filter_map(|c| emitter.origins.get(c)).min().copied()?;
        let (mut before, mut replaced, mut seen) = (0.0, Vec::new(), HashSet::new());
        let mut stack: Vec<NodeId> = classes.iter().filter_map(|c| emitter.origins.get(c)).copied().collect();
        stack.sort_unstable_by(|a, b| b.cmp(a));
        while let Some(id) = stack.pop() {
            let Some(class) = loaded
                .class(id.into())
                .filter(|_| loaded.embedded.binary_search(&id).is_ok())
            else {
                continue;
            };
            if !kept.contains(&class) && seen.insert(id) {
                before += self.node(g, id);
                replaced.push(id);
                stack.extend(g.node(id).operands.iter().map(|v| v.node));
            }
        }
        let no_faster = self.prefer_calls && after >= before;
        let note = note.or_else(|| {
            no_faster.then(|| "a library's call was asked for; by the roofline it is no faster".to_owned())
        });
        Some(Report {
            root,
            class: *classes.iter().find(|c| emitter.origins.get(c) == Some(&root))?,
            replaced,
            cost: (before, after),
            note,
        })
    }

    /// The microseconds of a node as it stands.
    fn node(&self, g: &Graph, id: NodeId) -> f64 {
        let node = g.node(id);
        let operands: Vec<&TensorType> = node.operands.iter().map(|v| g.ty(*v)).collect();
        let whole = node
            .results
            .first()
            .and_then(|result| price::attention(&self.model, &node.op, &operands, result));
        whole.unwrap_or_else(|| self.model.node(g, id))
    }

    /// Asks egg why, and writes the reports.
    fn prove(&self, b: &mut Builder<'a>, loaded: &mut Loaded<'a>, best: &Choices, reports: Vec<Report>) {
        let g = self.whole.graph;
        let mut spelled: HashMap<Id, Id> = HashMap::new();
        for id in loaded.embedded.iter().rev() {
            if let Some(class) = loaded.class((*id).into()) {
                spelled.insert(class, loaded.ids[&(*id).into()]);
            }
        }
        for report in reports {
            let Some(enode) = best.get(&report.class) else { continue };
            let children: Option<SmallVec<[Id; 3]>> = enode
                .children()
                .iter()
                .map(|c| spell(&mut loaded.egraph, best, &mut spelled, *c, 0))
                .collect();
            let Some(children) = children else { continue };
            let chosen = loaded.egraph.add_uncanonical(Enode {
                payload: enode.payload,
                children,
            });
            let explanation = loaded
                .egraph
                .explain_id_equivalence(loaded.ids[&report.root.into()], chosen);
            let proof = proof::steps(&loaded.egraph.analysis, &explanation);
            let Some(rule) = proof.last().map(|step| step.rule) else {
                continue;
            };
            b.report(Fired {
                pass: self.pass,
                rule,
                origins: report.replaced.iter().map(|id| g.node(*id).origin.clone()).collect(),
                cost: Some(report.cost),
                note: report.note,
                proof,
            });
        }
    }
}

/// One choice to be explained.
struct Report {
    root: NodeId,
    class: Id,
    /// Nodes that the choice makes needless, the root first.
    replaced: Vec<NodeId>,
    /// Microseconds before and after.
    cost: (f64, f64),
    note: Option<String>,
}

/// The id of a class's term: as the old graph has it, else as chosen.
fn spell(
    egraph: &mut language::Graph<'_>,
    best: &Choices,
    spelled: &mut HashMap<Id, Id>,
    class: Id,
    depth: usize,
) -> Option<Id> {
    let class = egraph.find(class);
    if let Some(id) = spelled.get(&class) {
        return Some(*id);
    }
    let enode = best.get(&class).filter(|_| depth < 64)?;
    let children: Option<SmallVec<[Id; 3]>> = enode
        .children()
        .iter()
        .map(|c| spell(egraph, best, spelled, *c, depth + 1))
        .collect();
    let id = egraph.add_uncanonical(Enode {
        payload: enode.payload,
        children: children?,
    });
    spelled.insert(class, id);
    Some(id)
}

/// Says whether a node of several results within the region reads this one.
fn reads_leaf(g: &Graph, id: NodeId, span: &Span) -> bool {
    span.nodes.clone().skip(id.index() + 1 - span.nodes.start).any(|i| {
        let node = g.node(NodeId::new(i));
        node.results.len() != 1 && node.operands.iter().any(|v| v.node == id)
    })
}

/// The microseconds that a call is worth where calls go before all else: more than any kernel takes.
const PREFERRED: f64 = 1e7;

/// The roofline of an e-node's op.
struct Roofline<'e, 'a> {
    egraph: &'e language::Graph<'a>,
    model: &'e CostModel<'a>,
    /// Whether a call goes before whatever else there is.
    prefer_calls: bool,
    /// Costs found so far; extraction asks for each many times. The flag says that nothing before the op takes it in.
    known: RefCell<HashMap<(Enode, bool), f64>>,
}

impl<'e, 'a> Roofline<'e, 'a> {
    fn new(egraph: &'e language::Graph<'a>, model: &'e CostModel<'a>) -> Roofline<'e, 'a> {
        Roofline {
            egraph,
            model,
            prefer_calls: false,
            known: RefCell::default(),
        }
    }
}

impl Roofline<'_, '_> {
    /// Says whether a class is a library's result, perhaps seen through views.
    fn is_call(&self, class: Id, chosen: &dyn Fn(Id) -> Option<Enode>) -> bool {
        let mut at = class;
        for _ in 0..4 {
            let Some(enode) = chosen(at) else { return false };
            let Payload::Other(i) = enode.payload else { return false };
            match self.egraph.analysis.ops.get_index(i as usize) {
                Some(Op::Call(_)) => return true,
                Some(Op::View(_)) => at = enode.children[0],
                _ => return false,
            }
        }
        false
    }

    fn fused(&self, index: u32, types: &[&TensorType]) -> Option<f64> {
        let region = &self.egraph.analysis;
        let fused = region.fused.get_index(index as usize)?;
        let (first, mut rest) = types.split_at_checked(fused.operands)?;
        let mut running = region.infer(&fused.product, first)?;
        let mut cost = self.model.op(&fused.product, first, std::slice::from_ref(&running));
        for step in &fused.steps {
            let (others, after) = rest.split_at_checked(step.operands - 1)?;
            rest = after;
            let mut operands: SmallVec<[&TensorType; 3]> = others.iter().copied().collect();
            operands.insert(step.running, &running);
            let result = region.infer(&step.op, &operands)?;
            cost += self.model.as_epilogue(&step.op, others, &result);
            drop(operands);
            running = result;
        }
        Some(cost)
    }
}

impl Roofline<'_, '_> {
    fn compute(&self, enode: &Enode, alone: bool) -> Option<f64> {
        let data = |id: Id| self.egraph[id].data.ty.as_ref();
        let types: Option<SmallVec<[&TensorType; 3]>> = enode.children().iter().map(|c| data(*c)).collect();
        let (types, class) = (types?, self.egraph.lookup(enode.clone())?);
        if let Payload::Fused(i) = enode.payload {
            return self.fused(i, &types);
        }
        let op = self.egraph.analysis.op(enode.payload)?;
        let results = std::slice::from_ref(data(class)?);
        if let (true, Op::Call(_)) = (self.prefer_calls, &op) {
            // Of several calls the cheapest is taken still.
            return Some(self.model.op(&op, &types, results) - PREFERRED);
        }
        if let Some(whole) = price::attention(self.model, &op, &types, &results[0]) {
            return Some(whole);
        }
        Some(match alone {
            true => self.model.alone(&op, &types, results),
            false => self.model.op(&op, &types, results),
        })
    }
}

impl Cost for Roofline<'_, '_> {
    fn of(&self, enode: &Enode, chosen: &dyn Fn(Id) -> Option<Enode>) -> f64 {
        if matches!(enode.payload, Payload::Leaf(_) | Payload::Made(_)) {
            return 0.0;
        }
        // Nothing takes in what follows a library's call.
        let alone = matches!(enode.payload, Payload::Elementwise(_))
            && enode.children().iter().any(|c| self.is_call(*c, chosen));
        let key = (enode.clone(), alone);
        if let Some(cost) = self.known.borrow().get(&key) {
            return *cost;
        }
        let cost = self.compute(enode, alone).unwrap_or(f64::INFINITY);
        self.known.borrow_mut().insert(key, cost);
        cost
    }
}
