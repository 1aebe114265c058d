//! Checks a graph against its invariants and collects every error.

use std::collections::BTreeSet;

use super::infer::{InferError, infer};
use super::op::{Composite, Op};
use super::{Graph, Node, NodeId, Origin, Stage, Value};
use crate::dim::Symbol;
use crate::types::TensorType;

/// One way in which a graph is wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GraphError {
    #[error("{node} {op} ({origin}): operand {value} is not computed before it")]
    Order {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        value: Value,
    },
    #[error("{node}: {error}")]
    Infer { node: NodeId, error: Box<InferError> },
    #[error("{node} {op} ({origin}): result {index} is declared {declared}, but is {inferred}")]
    Type {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        index: usize,
        declared: String,
        inferred: String,
    },
    #[error("{node} {op} ({origin}): declares {got} results, but has {expected}")]
    ResultCount {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        got: usize,
        expected: usize,
    },
    #[error("{node} {op} ({origin}) does not belong to stage {stage:?}")]
    Stage {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        stage: Stage,
    },
    #[error("{node} reads constant {constant}, which is not in the table")]
    UnknownConstant { node: NodeId, constant: String },
    #[error("constant {constant} has {got} bytes, but {ty} takes {expected}")]
    ConstantSize {
        constant: String,
        ty: String,
        expected: usize,
        got: usize,
    },
    #[error("symbol {symbol} ({at}) is not declared")]
    UndeclaredSymbol { symbol: Symbol, at: String },
    #[error("symbol {symbol}: {problem}")]
    Symbol { symbol: Symbol, problem: String },
    #[error("symbol {symbol} has no size that follows from an input's shape, so that a run could not bind it")]
    UnboundSymbol { symbol: Symbol },
    #[error("{what} {name:?} occurs twice")]
    Twice { what: &'static str, name: String },
    #[error("input {index} {name:?} and node {node} do not name each other")]
    Input { index: usize, name: String, node: NodeId },
    #[error("output {name:?} names {value}, which does not exist")]
    Output { name: String, value: Value },
    #[error("{node} {op} ({origin}) is of {got} ranks, but another collective of the graph is of {before}")]
    Ranks {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        got: u32,
        before: u32,
    },
    #[error("the condition {message:?} is {ty}, but must be {expected}")]
    Check {
        message: String,
        ty: TensorType,
        expected: TensorType,
    },
}

/// All errors of a graph, in the order of its nodes.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("graph {name:?} is not valid:\n{}", lines(errors))]
pub struct InvalidGraph {
    pub name: String,
    /// Never empty.
    pub errors: Vec<GraphError>,
}

fn lines(errors: &[GraphError]) -> String {
    errors.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n")
}

/// Says whether an op belongs to a stage's vocabulary.
pub fn in_vocabulary(op: &Op, stage: Stage) -> bool {
    match (op, stage) {
        // Nothing but a library carries out a collective, so it is one from the beginning.
        (Op::Call(call), Stage::Import) => call.as_collective().is_some(),
        (Op::Composite(c), Stage::Core) => matches!(
            c,
            Composite::Softmax { .. }
                | Composite::LogSoftmax { .. }
                | Composite::LayerNorm { .. }
                | Composite::RmsNorm { .. }
                | Composite::Attention { .. }
                | Composite::Dequantize { .. }
                | Composite::Recurrent(_)
        ),
        _ => true,
    }
}

impl Graph {
    /// Checks the graph; see [`verify`].
    ///
    /// # Errors
    /// Every error found.
    pub fn verify(&self) -> Result<(), InvalidGraph> {
        verify(self)
    }
}

/// Checks a graph.
///
/// # Errors
/// Every error found: operands that come later, types that inference does not give, ops of another stage, names that
/// occur twice, constants whose bytes do not fill their type, and symbols that nothing declares or binds.
pub fn verify(graph: &Graph) -> Result<(), InvalidGraph> {
    let mut errors = Vec::new();
    symbols(graph, &mut errors);
    for (id, constant) in graph.constants().iter() {
        let t = &constant.tensor;
        let elements = t.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let expected = elements.map_or(usize::MAX, |n| t.dtype.bytes_for(n));
        if expected != t.bytes.len() {
            errors.push(GraphError::ConstantSize {
                constant: id.to_string(),
                ty: format!("{}{:?}", t.dtype, t.shape),
                expected,
                got: t.bytes.len(),
            });
        }
    }
    for (id, node) in graph.nodes().iter() {
        check_node(graph, id, node, &mut errors);
    }
    ranks(graph, &mut errors);
    ports(graph, &mut errors);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(InvalidGraph {
            name: graph.name.clone(),
            errors,
        })
    }
}

fn check_node(graph: &Graph, id: NodeId, node: &Node, errors: &mut Vec<GraphError>) {
    let (op, origin) = (node.op.name(), &node.origin);
    if !in_vocabulary(&node.op, graph.stage) {
        errors.push(GraphError::Stage {
            node: id,
            op,
            origin: origin.clone(),
            stage: graph.stage,
        });
    }
    let before = errors.len();
    let mut types: Vec<&TensorType> = Vec::with_capacity(node.operands.len());
    for value in &node.operands {
        let earlier = (value.node < id).then(|| graph.nodes().get(value.node)).flatten();
        match earlier.and_then(|n| n.results.get(value.index as usize)) {
            Some(ty) => types.push(ty),
            None => errors.push(GraphError::Order {
                node: id,
                op,
                origin: origin.clone(),
                value: *value,
            }),
        }
    }
    for ty in &node.results {
        let mut used = Vec::new();
        ty.shape.iter().for_each(|d| d.collect_symbols(&mut used));
        for symbol in used.into_iter().filter(|s| !graph.symbols().contains_key(s)) {
            errors.push(GraphError::UndeclaredSymbol {
                symbol,
                at: format!("{id} {op}"),
            });
        }
    }
    if errors.len() > before {
        return;
    }
    let inferred = match &node.op {
        Op::Input { .. } => None,
        Op::Constant(c) => match graph.constants().get(*c) {
            Some(c) => Some(
                [TensorType::new(c.tensor.dtype, c.tensor.shape.clone())]
                    .into_iter()
                    .collect(),
            ),
            None => {
                errors.push(GraphError::UnknownConstant {
                    node: id,
                    constant: c.to_string(),
                });
                return;
            }
        },
        op => match infer(op, &types, graph.symbols()) {
            Ok(types) => Some(types),
            Err(error) => {
                errors.push(GraphError::Infer {
                    node: id,
                    error: Box::new(error.at(origin.clone())),
                });
                return;
            }
        },
    };
    let expected = inferred.as_ref().map_or(1, super::infer::Types::len);
    if node.results.len() != expected {
        errors.push(GraphError::ResultCount {
            node: id,
            op,
            origin: origin.clone(),
            got: node.results.len(),
            expected,
        });
        return;
    }
    for (index, (declared, inferred)) in node.results.iter().zip(inferred.iter().flatten()).enumerate() {
        if declared != inferred {
            errors.push(GraphError::Type {
                node: id,
                op,
                origin: origin.clone(),
                index,
                declared: declared.to_string(),
                inferred: inferred.to_string(),
            });
        }
    }
}

fn symbols(graph: &Graph, errors: &mut Vec<GraphError>) {
    let inputs = graph.inputs().iter();
    let types = inputs.filter_map(|i| graph.nodes().get(i.node)?.results.first());
    let bound = super::bind::bindable(types.flat_map(|t| t.shape.iter()));
    let mut used: Vec<Symbol> = Vec::new();
    for node in graph.nodes().values() {
        node.op.for_each_dim(|d| d.collect_symbols(&mut used));
        node.results
            .iter()
            .flat_map(|t| t.shape.iter())
            .for_each(|d| d.collect_symbols(&mut used));
    }
    for assumption in graph.assumptions() {
        let mut sizes = Vec::new();
        assumption.left.collect_symbols(&mut sizes);
        assumption.right.collect_symbols(&mut sizes);
        for symbol in sizes.iter().filter(|s| !graph.symbols().contains_key(*s)) {
            errors.push(GraphError::UndeclaredSymbol {
                symbol: symbol.clone(),
                at: format!("assume {} = {}", assumption.left, assumption.right),
            });
        }
        used.extend(sizes);
    }
    for (symbol, info) in graph.symbols() {
        let problem = if !super::print::is_identifier(symbol.name()) {
            Some("its name is not an identifier".to_owned())
        } else if info.max.is_some_and(|m| m < info.min) {
            Some(format!("its bounds {} hold no size", super::print::bounds(info)))
        } else if info.hint < info.min || info.max.is_some_and(|m| info.hint > m) {
            Some(format!(
                "its hint is outside its bounds: {}",
                super::print::bounds(info)
            ))
        } else if info.min < 0 {
            Some(format!("its smallest size {} is negative", info.min))
        } else {
            None
        };
        if let Some(problem) = problem {
            errors.push(GraphError::Symbol {
                symbol: symbol.clone(),
                problem,
            });
        }
        if used.contains(symbol) && !bound.contains(symbol) {
            errors.push(GraphError::UnboundSymbol { symbol: symbol.clone() });
        }
    }
}

/// A graph is of one set of ranks.
fn ranks(graph: &Graph, errors: &mut Vec<GraphError>) {
    let mut before = None;
    for (id, node) in graph.nodes().iter() {
        let Op::Call(call) = &node.op else { continue };
        let Some(collective) = call.as_collective() else {
            continue;
        };
        let before = *before.get_or_insert(collective.ranks);
        if collective.ranks != before {
            errors.push(GraphError::Ranks {
                node: id,
                op: node.op.name(),
                origin: node.origin.clone(),
                got: collective.ranks,
                before,
            });
        }
    }
}

fn ports(graph: &Graph, errors: &mut Vec<GraphError>) {
    let mut names = BTreeSet::new();
    for (index, input) in graph.inputs().iter().enumerate() {
        if !names.insert(input.name.as_str()) {
            errors.push(GraphError::Twice {
                what: "input",
                name: input.name.clone(),
            });
        }
        let node = graph.nodes().get(input.node);
        if !node.is_some_and(|n| matches!(n.op, Op::Input { index: i } if i as usize == index)) {
            errors.push(GraphError::Input {
                index,
                name: input.name.clone(),
                node: input.node,
            });
        }
    }
    for (id, node) in graph.nodes().iter() {
        if let Op::Input { index } = node.op
            && graph.inputs().get(index as usize).is_none_or(|i| i.node != id)
        {
            errors.push(GraphError::Input {
                index: index as usize,
                name: graph
                    .inputs()
                    .get(index as usize)
                    .map_or_else(String::new, |i| i.name.clone()),
                node: id,
            });
        }
    }
    let mut names = BTreeSet::new();
    for output in graph.outputs() {
        if !names.insert(output.name.as_str()) {
            errors.push(GraphError::Twice {
                what: "output",
                name: output.name.clone(),
            });
        }
        let node = graph.nodes().get(output.value.node);
        if node.is_none_or(|n| output.value.index as usize >= n.results.len()) {
            errors.push(GraphError::Output {
                name: output.name.clone(),
                value: output.value,
            });
        } else if let Some(check) = &output.check
            && *graph.ty(output.value) != check.ty()
        {
            errors.push(GraphError::Check {
                message: output.name.clone(),
                ty: graph.ty(output.value).clone(),
                expected: check.ty(),
            });
        }
    }
}
