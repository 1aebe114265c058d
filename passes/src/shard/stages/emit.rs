//! The graphs of the stages, once it is known which nodes are whose.

use std::collections::{BTreeMap, BTreeSet};

use ir::dim::Symbol;
use ir::plan::{Source, Stage};
use ir::{Graph, NodeId, Op, Value};

use super::cut::Cuts;
use super::order::Order;
use super::{StageFacts, StageReport, Staged};
use crate::shard::{ShardError, ShardOptions};

/// Who computes and reads what.
struct Owners<'a> {
    graph: &'a Graph,
    order: &'a Order,
    cuts: &'a Cuts,
}

impl Owners<'_> {
    fn of_place(&self, place: usize) -> usize {
        self.cuts.before.iter().filter(|before| **before <= place).count()
    }

    /// The stage that computes a node or keeps a state; None for what is made where it is read.
    fn of(&self, id: NodeId) -> Option<usize> {
        let state = self.order.states.iter().find(|state| state.input == id);
        let place = self.order.places[id].or(state.map(|state| state.first));
        place.map(|place| self.of_place(place))
    }

    /// The stage that has an output.
    fn of_output(&self, output: &ir::graph::Output, states: &[(String, String)]) -> usize {
        let kept = || {
            let (input, _) = states.iter().find(|(_, next)| *next == output.name)?;
            let input = self.graph.inputs().iter().find(|port| port.name == *input)?;
            self.of(input.node)
        };
        self.of(output.value.node).or_else(kept).unwrap_or(0)
    }
}

/// What one stage consists of.
#[derive(Default)]
struct Part {
    nodes: BTreeSet<NodeId>,
    /// Numbers of the model's outputs, conditions among them.
    outputs: Vec<usize>,
    /// Values of earlier stages, and those that later ones read.
    received: BTreeSet<Value>,
    sent: BTreeSet<Value>,
}

pub(super) fn emit(graph: &Graph, order: &Order, cuts: &Cuts, options: &ShardOptions) -> Result<Staged, ShardError> {
    let owners = Owners { graph, order, cuts };
    let mut parts: Vec<Part> = (0..=cuts.before.len()).map(|_| Part::default()).collect();
    for id in &order.row {
        if let Some(stage) = owners.of(*id) {
            parts[stage].nodes.insert(*id);
        }
    }
    for state in &order.states {
        parts[owners.of_place(state.first)].nodes.insert(state.input);
    }
    for (number, output) in graph.outputs().iter().enumerate() {
        parts[owners.of_output(output, &options.states)].outputs.push(number);
    }
    for stage in 0..parts.len() {
        let mut needed: Vec<Value> = parts[stage]
            .nodes
            .iter()
            .flat_map(|id| graph.node(*id).operands.clone())
            .collect();
        needed.extend(parts[stage].outputs.iter().map(|number| graph.outputs()[*number].value));
        while let Some(value) = needed.pop() {
            match owners.of(value.node) {
                Some(own) if own == stage => {}
                Some(other) => {
                    parts[stage].received.insert(value);
                    parts[other].sent.insert(value);
                }
                None if parts[stage].nodes.insert(value.node) => needed.extend(graph.node(value.node).operands.clone()),
                None => {}
            }
        }
    }
    // What nothing reads is the first stage's, so that the model keeps its inputs.
    for input in graph.inputs() {
        if !parts.iter().any(|part| part.nodes.contains(&input.node)) {
            parts[0].nodes.insert(input.node);
        }
    }
    let names = names(graph, &parts);
    let mut staged = Staged {
        graphs: Vec::with_capacity(parts.len()),
        stages: Vec::with_capacity(parts.len()),
        report: StageReport {
            whole_bytes: graph.constants().values().map(|c| c.tensor.bytes.len()).sum(),
            ..StageReport::default()
        },
    };
    for stage in 0..parts.len() {
        let (part, ports) = stage_graph(graph, &owners, &parts, stage, &names)?;
        let facts = facts(graph, &owners, &parts[stage], &part, cuts.us[stage]);
        staged.report.us += facts.us;
        if stage > 0 {
            staged.report.us += options.latency_us + facts.received_bytes as f64 / (options.bus_gbps * 1e3);
        }
        staged.report.stages.push(facts);
        staged.graphs.push(part);
        staged.stages.push(ports);
    }
    Ok(staged)
}

/// The names of what crosses: no port of the model has them.
fn names(graph: &Graph, parts: &[Part]) -> BTreeMap<Value, String> {
    let ports = graph.inputs().iter().map(|port| &port.name);
    let taken: BTreeSet<&String> = ports.chain(graph.outputs().iter().map(|port| &port.name)).collect();
    let named = |(stage, value): (usize, &Value)| {
        let mut name = format!("stage{stage}.{value}");
        while taken.contains(&name) {
            name.push('_');
        }
        (*value, name)
    };
    let sent = parts.iter().enumerate();
    sent.flat_map(|(stage, part)| part.sent.iter().map(move |value| (stage, value)))
        .map(named)
        .collect()
}

/// The symbols that the types of some values have, and those of them that stand alone in one.
fn symbols<'a>(types: impl Iterator<Item = &'a ir::TensorType>) -> BTreeSet<Symbol> {
    let mut found = Vec::new();
    types.for_each(|ty| ty.shape.iter().for_each(|size| size.collect_symbols(&mut found)));
    found.into_iter().collect()
}

fn stage_graph(
    graph: &Graph,
    owners: &Owners<'_>,
    parts: &[Part],
    stage: usize,
    names: &BTreeMap<Value, String>,
) -> Result<(Graph, Stage), ShardError> {
    let part = &parts[stage];
    let mut nodes = part.nodes.clone();
    let of_nodes = nodes.iter().flat_map(|id| &graph.node(*id).results);
    let mut used = symbols(of_nodes.chain(part.received.iter().map(|value| graph.ty(*value))));
    for id in &nodes {
        if let Op::DimValue(size) = &graph.node(*id).op {
            let mut found = Vec::new();
            size.collect_symbols(&mut found);
            used.extend(found);
        }
    }
    // A size that no input of the stage says is said by one of the model.
    let alone = |ty: &ir::TensorType, symbol: &Symbol| {
        let is = |size: &ir::Dim| *size == ir::Dim::from(symbol.clone());
        ty.shape.iter().any(is)
    };
    for symbol in &used {
        let has = |id: &NodeId| matches!(graph.node(*id).op, Op::Input { .. }) && alone(graph.ty((*id).into()), symbol);
        if nodes.iter().any(has) || part.received.iter().any(|value| alone(graph.ty(*value), symbol)) {
            continue;
        }
        let mut inputs = graph.inputs().iter().map(|input| input.node).filter(has);
        // One that stays on another device is the last choice.
        let is_state = |id: &NodeId| owners.order.states.iter().any(|state| state.input == *id);
        let found = inputs.clone().find(|id| !is_state(id)).or_else(|| inputs.next());
        nodes.extend(found);
    }
    let mut made = Graph::new(graph.name.clone());
    made.stage = graph.stage;
    let kept = nodes.iter().flat_map(|id| &graph.node(*id).results);
    used.extend(symbols(kept));
    made.set_sizes_of(graph);
    made.retain_assumptions(|symbol| used.contains(symbol));
    let declared = graph.symbols().iter().filter(|(symbol, _)| used.contains(*symbol));
    made.set_symbols(declared.map(|(symbol, info)| (symbol.clone(), *info)).collect());
    let mut ports = Stage::default();
    let mut values: BTreeMap<Value, Value> = BTreeMap::new();
    for (number, input) in graph
        .inputs()
        .iter()
        .enumerate()
        .filter(|(_, i)| nodes.contains(&i.node))
    {
        let node = graph.node(input.node);
        let value = made.add_input(input.name.clone(), node.results[0].clone(), node.origin.clone());
        values.insert(input.node.into(), value);
        ports.inputs.push(Source::Model(number as u32));
    }
    for value in &part.received {
        let origin = graph.node(value.node).origin.clone();
        let from = owners.of(value.node).unwrap_or(0);
        let own = parts[from]
            .outputs
            .iter()
            .filter(|number| graph.outputs()[**number].check.is_none());
        let before = own.count() + parts[from].sent.range(..*value).count();
        let name = names.get(value).cloned().unwrap_or_default();
        values.insert(*value, made.add_input(name, graph.ty(*value).clone(), origin));
        ports.inputs.push(Source::Stage {
            stage: from as u32,
            result: before as u32,
        });
    }
    let missing = |value: Value| ShardError::Stage {
        stage,
        value: value.to_string(),
    };
    for id in &nodes {
        let node = graph.node(*id);
        let new: Value = match node.op {
            Op::Input { .. } => continue,
            Op::Constant(constant) => {
                let constant = &graph.constants()[constant];
                made.add_constant(constant.name.clone(), constant.tensor.clone(), node.origin.clone())
            }
            _ => {
                let operands = node
                    .operands
                    .iter()
                    .map(|value| values.get(value).copied().ok_or(missing(*value)));
                let operands: Vec<Value> = operands.collect::<Result<_, _>>()?;
                let added = made.add(node.op.clone(), &operands, node.origin.clone());
                added.map_err(|error| ShardError::Infer(Box::new(error)))?.into()
            }
        };
        for index in 0..node.results.len() as u32 {
            values.insert(Value::new(*id, index), Value::new(new.node, index));
        }
    }
    let get = |value: Value| values.get(&value).copied().ok_or(missing(value));
    let results = graph
        .outputs()
        .iter()
        .enumerate()
        .filter(|(_, output)| output.check.is_none());
    for (result, (number, output)) in results.enumerate() {
        if part.outputs.contains(&number) {
            made.add_output(output.name.clone(), get(output.value)?);
            ports.results.push(Some(result as u32));
        }
    }
    for value in &part.sent {
        made.add_output(names.get(value).cloned().unwrap_or_default(), get(*value)?);
        ports.results.push(None);
    }
    for number in &part.outputs {
        let output = &graph.outputs()[*number];
        if output.check.is_some() {
            made.add_output_like(output, get(output.value)?);
        }
    }
    Ok((made, ports))
}

fn facts(graph: &Graph, owners: &Owners<'_>, part: &Part, made: &Graph, us: f64) -> StageFacts {
    let order = owners.order;
    let computed = part.nodes.iter().filter(|id| order.places[**id].is_some());
    let places: Vec<usize> = computed.filter_map(|id| order.places[*id]).collect();
    let origin = |place: Option<&usize>| {
        place.map_or(ir::Origin::Unknown, |place| {
            graph.node(order.row[*place]).origin.clone()
        })
    };
    let bytes = |value: Value| graph.ty(value).bytes().hint(graph.symbols());
    let states = order.states.iter().filter(|state| part.nodes.contains(&state.input));
    StageFacts {
        first: origin(places.iter().min()),
        last: origin(places.iter().max()),
        nodes: places.len(),
        weight_bytes: made.constants().values().map(|c| c.tensor.bytes.len()).sum(),
        state_bytes: states.map(|state| bytes(state.input.into())).sum(),
        us,
        received: part.received.len(),
        received_bytes: part.received.iter().map(|value| bytes(*value)).sum(),
    }
}
