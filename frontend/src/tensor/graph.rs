//! From recorded tensors to a graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use ir::{Graph, Symbol, Symbols, Value};

use super::node::{Kind, Node, narrowed};
use super::remote::Argument;
use super::{InputSpec, Tensor, TensorError};

/// Makes a graph of what the outputs need; inputs are in the order in which they were declared.
///
/// # Errors
/// The first error of a poisoned output; two inputs or outputs of one name; a size that no input gives; no output.
pub fn build_graph(name: &str, outputs: &[(&str, &Tensor)]) -> Result<Graph, TensorError> {
    build(name, &[], outputs, &IndexMap::new())
}

/// Makes a graph with the given inputs, in this order and also where unused; inputs that are not listed follow.
///
/// # Errors
/// As [`build_graph`], and something listed as an input that is none.
pub fn build_graph_with(name: &str, inputs: &[&Tensor], outputs: &[(&str, &Tensor)]) -> Result<Graph, TensorError> {
    build(name, inputs, outputs, &IndexMap::new())
}

/// Records a function of declared inputs and makes a graph of it.
///
/// ```
/// use graphc_frontend::tensor::{InputSpec, trace};
/// use graphc_frontend::{DType, shape};
///
/// let graph = trace("double", [InputSpec::new("x", DType::F32, shape!["n"])], |[x]| [("y", x * 2.0)])?;
/// assert_eq!(graph.outputs()[0].name, "y");
/// # Ok::<(), graphc_frontend::tensor::TensorError>(())
/// ```
///
/// # Errors
/// As [`build_graph`].
#[track_caller]
pub fn trace<const N: usize, S: Into<String>, O: IntoIterator<Item = (S, Tensor)>>(
    name: &str,
    inputs: [InputSpec; N],
    f: impl FnOnce([Tensor; N]) -> O,
) -> Result<Graph, TensorError> {
    let inputs = inputs.map(|spec| Tensor::from_spec(&spec));
    let outputs: Vec<(String, Tensor)> = f(inputs.clone()).into_iter().map(|(n, t)| (n.into(), t)).collect();
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    build(name, &inputs.each_ref(), &named, &IndexMap::new())
}

/// A graph whose data has become inputs, so that graphs that differ in their data alone are equal.
#[derive(Clone, Debug)]
pub struct Lifted {
    pub graph: Graph,
    /// The data, by input name.
    pub arguments: IndexMap<String, Argument>,
}

/// Makes a graph of tensors that depend on data alone. Unnamed data ([`Tensor::from_slice`], [`Tensor::from_host`])
/// becomes inputs `data0, data1, …`; named parameters and numbers of the program stay constants. Outputs are
/// `value0, value1, …`.
///
/// # Errors
/// As [`build_graph`], and a tensor that depends on inputs.
pub fn lift(name: &str, outputs: &[&Tensor]) -> Result<Lifted, TensorError> {
    for output in outputs {
        output.check()?;
    }
    let (mut lifted, mut arguments, mut inputs) = (IndexMap::new(), IndexMap::new(), IndexSet::new());
    for node in reachable(outputs.iter().map(|t| &t.node)).values() {
        match &node.kind {
            Kind::Constant(data) if data.name.is_none() && !data.literal => {
                let name = format!("data{}", lifted.len());
                arguments.insert(name.clone(), data.tensor.clone());
                lifted.insert(node.id, name);
            }
            Kind::Input(name) => {
                inputs.insert(name.to_string());
            }
            _ => {}
        }
    }
    if !inputs.is_empty() {
        return Err(TensorError::DependsOnInputs {
            inputs: inputs.into_iter().collect(),
        });
    }
    let names: Vec<String> = (0..outputs.len()).map(|i| format!("value{i}")).collect();
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(outputs.iter().copied()).collect();
    let graph = build(name, &[], &named, &lifted)?;
    Ok(Lifted { graph, arguments })
}

impl Tensor {
    /// Makes a graph with this tensor as its output `output`.
    ///
    /// # Errors
    /// As [`build_graph`].
    pub fn graph(&self) -> Result<Graph, TensorError> {
        build_graph("graph", &[("output", self)])
    }
}

/// All nodes that some need, by id, which is the order they were recorded in.
fn reachable<'a>(roots: impl IntoIterator<Item = &'a Arc<Node>>) -> BTreeMap<u64, &'a Arc<Node>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<&Arc<Node>> = roots.into_iter().collect();
    while let Some(node) = open.pop() {
        if found.insert(node.id, node).is_none() {
            open.extend(node.operands.iter().map(|t| &t.node));
        }
    }
    found
}

fn build(
    name: &str,
    inputs: &[&Tensor],
    outputs: &[(&str, &Tensor)],
    lifted: &IndexMap<u64, String>,
) -> Result<Graph, TensorError> {
    if outputs.is_empty() {
        return Err(TensorError::NoOutputs);
    }
    for tensor in outputs.iter().map(|(_, t)| *t).chain(inputs.iter().copied()) {
        tensor.check()?;
    }
    let mut seen = IndexSet::new();
    if let Some((twice, _)) = outputs.iter().find(|(n, _)| !seen.insert(*n)) {
        return Err(TensorError::DuplicateOutput {
            name: (*twice).to_owned(),
        });
    }
    let nodes = reachable(
        outputs
            .iter()
            .map(|(_, t)| &t.node)
            .chain(inputs.iter().map(|t| &t.node)),
    );
    let mut graph = Graph::new(name);
    declare_symbols(&mut graph, &nodes)?;
    let mut values: BTreeMap<u64, Value> = BTreeMap::new();
    let mut names: IndexMap<String, ir::TensorType> = IndexMap::new();
    // Listed inputs come first, in their order; then all nodes as they were recorded.
    for tensor in inputs {
        let Kind::Input(_) = &tensor.node.kind else {
            return Err(TensorError::NotAnInput {
                what: tensor.node.kind.name(),
                origin: tensor.node.origin.clone(),
            });
        };
    }
    let listed = inputs.iter().map(|t| &t.node);
    for node in listed.chain(nodes.values().copied()) {
        if values.contains_key(&node.id) {
            continue;
        }
        let origin = node.origin.clone();
        let mut input = |graph: &mut Graph, name: &str| {
            let ty = node.types[0].clone();
            match names.insert(name.to_owned(), ty.clone()) {
                None => Ok(graph.add_input(name, ty, node.origin.clone())),
                Some(first) => Err(TensorError::DuplicateInput {
                    name: name.to_owned(),
                    first,
                    second: ty,
                }),
            }
        };
        let value = match &node.kind {
            Kind::Input(name) => input(&mut graph, name)?,
            Kind::Constant(data) => match lifted.get(&node.id) {
                Some(name) => input(&mut graph, name)?,
                None => {
                    let tensor = match &data.tensor {
                        Argument::Host(tensor) => tensor.clone(),
                        Argument::Remote(remote) => remote.to_host().map_err(|message| TensorError::Remote {
                            origin: node.origin.clone(),
                            message,
                        })?,
                    };
                    graph.add_constant(data.name.as_ref().map(ToString::to_string), tensor, origin)
                }
            },
            Kind::Op(op) => {
                let operands: Vec<Value> = node
                    .operands
                    .iter()
                    .map(|t| Value::new(values[&t.node.id].node, t.index))
                    .collect();
                if is_wider(graph.symbols(), &node.symbols) {
                    // Another input allows sizes that were not thought of when the op was recorded.
                    graph.add(op.clone(), &operands, origin)?.into()
                } else {
                    graph
                        .push(op.clone(), &operands, node.types.iter().cloned(), origin)
                        .into()
                }
            }
            Kind::Poison(error) => return Err((**error).clone()),
        };
        values.insert(node.id, value);
    }
    for (name, tensor) in outputs {
        graph.add_output(*name, Value::new(values[&tensor.node.id].node, tensor.index));
    }
    Ok(graph)
}

/// Says whether sizes are allowed that `known`, what an op's types were inferred with, does not allow.
fn is_wider(all: &Symbols, known: &Symbols) -> bool {
    known.iter().any(|(symbol, known)| {
        all.get(symbol).is_some_and(|info| {
            info.min < known.min || known.max.is_some_and(|most| info.max.is_none_or(|max| max > most))
        })
    })
}

/// Declares every symbol with all that is known of it, inputs' symbols first, and refuses those that no input binds.
fn declare_symbols(graph: &mut Graph, nodes: &BTreeMap<u64, &Arc<Node>>) -> Result<(), TensorError> {
    let mut all = Symbols::new();
    let mut dims = Vec::new();
    for node in nodes.values() {
        for (symbol, info) in node.symbols.iter() {
            let known = all.entry(symbol.clone()).or_insert(*info);
            *known = narrowed(*known, *info);
        }
        if let Kind::Input(_) = node.kind {
            dims.extend(node.types[0].shape.iter().cloned());
        }
    }
    let bound: IndexSet<Symbol> = ir::graph::bind::bindable(dims.iter()).into_iter().collect();
    for node in nodes.values() {
        let mut used = Vec::new();
        node.types
            .iter()
            .flat_map(|t| t.shape.iter())
            .for_each(|d| d.collect_symbols(&mut used));
        if let Kind::Op(op) = &node.kind {
            op.for_each_dim(|d| d.collect_symbols(&mut used));
        }
        if let Some(symbol) = used.into_iter().find(|s| !bound.contains(s)) {
            return Err(TensorError::UnboundSymbol {
                symbol,
                op: node.kind.name(),
                origin: node.origin.clone(),
            });
        }
    }
    all.retain(|s, _| bound.contains(s));
    graph.set_symbols(all);
    Ok(())
}
