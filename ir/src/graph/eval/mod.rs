//! The reference evaluator: the meaning of every op, slow and plain.
//!
//! Values of every floating-point type are `f64` and are not rounded between ops; inputs and constants decode exactly;
//! `Cast` rounds to its type and outputs are rounded to theirs. (So a `Contract` or `Conv` whose `out` is narrow does
//! not round here: results of a real device are compared within the tolerance that its types ask for.) Integers of
//! every type are `i64` and wrap to their width after every op; sums of integer products wrap to their accumulator.
//!
//! Optimised, CPU, emulated and GPU results are checked against this.

pub mod array;
pub mod collective;
mod contract;
mod elementwise;
mod index;
mod norm;
pub mod random;
pub mod ranks;
pub(crate) mod recurrent;
mod reduce;
pub mod scalar;
mod view;
mod window;

#[cfg(test)]
mod tests;

use indexmap::IndexMap;

use crate::data::{HostTensor, SizeMismatch};
use crate::dim::{Bindings, Dim, DimError};
use crate::entity::{Entity, Table};
use crate::graph::op::Op;
use crate::graph::{BindError, Graph, Node, NodeId, Origin, Value};
use crate::library::{GemmScale, LibraryCall, LibraryOp};
use crate::memory::{self, NoMemory};
use crate::types::DType;

pub use array::{Array, Data};
pub use elementwise::cast;
pub use index::resolve as resolve_index;

/// Why a graph could not be evaluated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Sizes(#[from] crate::graph::assume::AssumptionError),
    #[error("input {input:?} is {got}, but the model declares {declared}")]
    InputType { input: String, got: DType, declared: DType },
    #[error("{node} {op} ({origin}): {error}")]
    Op {
        node: NodeId,
        op: &'static str,
        origin: Origin,
        error: OpError,
    },
    #[error("{node} is {got}, but its type is declared {declared}")]
    ResultType {
        node: NodeId,
        got: String,
        declared: String,
    },
    #[error("output {output:?}: {error}")]
    Output { output: String, error: SizeMismatch },
    #[error("rank {rank}: {error}")]
    Rank { rank: usize, error: Box<EvalError> },
    #[error("rank {rank} is at {got}, but rank 0 is at {first}: the ranks are not of one model")]
    Order { rank: usize, got: String, first: String },
    #[error("a collective is of {expected} ranks, but {got} are evaluated")]
    Ranks { got: usize, expected: u32 },
}

impl EvalError {
    /// Whether more memory was needed than there is.
    pub fn is_memory(&self) -> bool {
        match self {
            EvalError::Op { error, .. } => matches!(error, OpError::Memory(_)),
            EvalError::Rank { error, .. } => error.is_memory(),
            _ => false,
        }
    }
}

/// Why an op could not be evaluated on actual sizes.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum OpError {
    #[error(transparent)]
    Size(#[from] DimError),
    #[error("{what} would be {value}, which is negative")]
    Negative { what: String, value: i64 },
    #[error("{what}: {left:?} and {right:?}")]
    Shapes {
        what: &'static str,
        left: Vec<usize>,
        right: Vec<usize>,
    },
    #[error("{what}: {value} is outside the {size} elements of axis {axis}")]
    Range {
        what: &'static str,
        axis: usize,
        value: i64,
        size: usize,
    },
    #[error("{what} an empty tensor {shape:?}")]
    Empty { what: &'static str, shape: Vec<usize> },
    #[error("has {got} operands, which is not what it takes")]
    OperandCount { got: usize },
    #[error("has a value of its own only in a graph")]
    Leaf,
    #[error("has a value only where all {ranks} ranks are evaluated together")]
    Alone { ranks: u32 },
    #[error("rank {rank} gives {got}, but rank 0 gives {first}")]
    Parts { rank: usize, got: String, first: String },
    #[error(transparent)]
    Memory(#[from] NoMemory),
}

/// Evaluates a graph.
///
/// Inputs are looked up by name; others are ignored. Shapes bind the symbols as in [`Graph::bind`].
///
/// # Errors
/// Inputs that do not fit, or an op that actual sizes make meaningless (a slice beyond the end).
pub fn evaluate(
    graph: &Graph,
    inputs: &IndexMap<String, HostTensor>,
) -> Result<IndexMap<String, HostTensor>, EvalError> {
    let mut run = Run::new(graph, inputs)?;
    match run.advance()? {
        None => run.outputs(),
        Some((node, call)) => Err(at(
            graph,
            node,
            OpError::Alone {
                ranks: call.as_collective().map_or(0, |c| c.ranks),
            },
        )),
    }
}

/// A graph that is being evaluated, node by node.
struct Run<'a> {
    graph: &'a Graph,
    inputs: &'a IndexMap<String, HostTensor>,
    bindings: Bindings,
    readers: Table<NodeId, usize>,
    needed: Table<NodeId, bool>,
    values: Table<NodeId, Vec<Array>>,
    next: NodeId,
}

impl<'a> Run<'a> {
    fn new(graph: &'a Graph, inputs: &'a IndexMap<String, HostTensor>) -> Result<Run<'a>, EvalError> {
        // How many readers each node has left; its values are dropped after the last.
        let mut readers: Table<NodeId, usize> = graph.nodes().keys().map(|_| 0).collect();
        for node in graph.nodes().values() {
            node.operands.iter().for_each(|v| readers[v.node] += 1);
        }
        graph.outputs().iter().for_each(|o| readers[o.value.node] += 1);
        Ok(Run {
            bindings: bind(graph, inputs)?,
            readers,
            needed: needed(graph),
            values: graph.nodes().keys().map(|_| Vec::new()).collect(),
            next: NodeId::new(0),
            graph,
            inputs,
        })
    }

    /// Evaluates up to the next collective, whose result [`Run::set`] gives, or to the end.
    fn advance(&mut self) -> Result<Option<(NodeId, &'a LibraryCall)>, EvalError> {
        while self.next < self.graph.nodes().next_key() {
            let id = self.next;
            if !self.needed[id] {
                self.next = NodeId::new(id.index() + 1);
                continue;
            }
            if let Op::Call(call) = &self.graph.node(id).op
                && call.as_collective().is_some()
            {
                return Ok(Some((id, call)));
            }
            let values = eval_node(self.graph, id, &self.values, self.inputs, &self.bindings)?;
            self.set(id, values);
        }
        Ok(None)
    }

    /// Gives the node that comes next its values.
    fn set(&mut self, id: NodeId, values: Vec<Array>) {
        self.values[id] = values;
        for operand in &self.graph.node(id).operands {
            self.readers[operand.node] -= 1;
            if self.readers[operand.node] == 0 {
                self.values[operand.node] = Vec::new();
            }
        }
        self.next = NodeId::new(id.index() + 1);
    }

    fn operand(&self, id: NodeId) -> &Array {
        let value = self.graph.node(id).operands[0];
        &self.values[value.node][value.index as usize]
    }

    fn outputs(&self) -> Result<IndexMap<String, HostTensor>, EvalError> {
        let results = self.graph.outputs().iter().filter(|o| o.check.is_none());
        results
            .map(|o| {
                let array = &self.values[o.value.node][o.value.index as usize];
                let tensor = array.to_tensor().map_err(|error| EvalError::Output {
                    output: o.name.clone(),
                    error,
                })?;
                Ok((o.name.clone(), tensor))
            })
            .collect()
    }
}

/// The error of a node.
fn at(graph: &Graph, id: NodeId, error: OpError) -> EvalError {
    let node = graph.node(id);
    EvalError::Op {
        node: id,
        op: node.op.name(),
        origin: node.origin.clone(),
        error,
    }
}

/// Evaluates a graph and returns the results of every node, needed or not, not rounded.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_values(
    graph: &Graph,
    inputs: &IndexMap<String, HostTensor>,
) -> Result<Table<NodeId, Vec<Array>>, EvalError> {
    let bindings = bind(graph, inputs)?;
    let mut values: Table<NodeId, Vec<Array>> = Table::with_capacity(graph.nodes().len());
    for id in graph.nodes().keys() {
        let results = eval_node(graph, id, &values, inputs, &bindings)?;
        values.push(results);
    }
    Ok(values)
}

fn bind(graph: &Graph, inputs: &IndexMap<String, HostTensor>) -> Result<Bindings, EvalError> {
    let shapes: IndexMap<&str, &[usize]> = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
    let bindings = graph.bind(&shapes)?;
    graph.check_assumptions(&bindings)?;
    Ok(bindings)
}

/// Says which nodes an output depends on.
fn needed(graph: &Graph) -> Table<NodeId, bool> {
    let mut needed: Table<NodeId, bool> = graph.nodes().keys().map(|_| false).collect();
    graph.outputs().iter().for_each(|o| needed[o.value.node] = true);
    for (id, node) in graph.nodes().iter().rev() {
        if needed[id] {
            node.operands.iter().for_each(|v: &Value| needed[v.node] = true);
        }
    }
    needed
}

fn eval_node(
    graph: &Graph,
    id: NodeId,
    values: &Table<NodeId, Vec<Array>>,
    inputs: &IndexMap<String, HostTensor>,
    bindings: &Bindings,
) -> Result<Vec<Array>, EvalError> {
    let node = graph.node(id);
    check_memory(node, values, bindings).map_err(|error| at(graph, id, error))?;
    let results = match &node.op {
        Op::Input { .. } => {
            let name = graph.inputs().iter().find(|i| i.node == id).map(|i| i.name.as_str());
            let missing = || BindError::Missing {
                input: name.unwrap_or_default().to_owned(),
                known: graph.inputs().iter().map(|i| i.name.clone()).collect(),
            };
            let tensor = name.and_then(|n| inputs.get(n)).ok_or_else(missing)?;
            let declared = node.results[0].dtype;
            if tensor.dtype != declared {
                return Err(EvalError::InputType {
                    input: name.unwrap_or_default().to_owned(),
                    got: tensor.dtype,
                    declared,
                });
            }
            vec![Array::from_tensor(tensor)]
        }
        Op::Constant(c) => vec![Array::from_tensor(&graph.constants()[*c].tensor)],
        op => {
            let operands: Vec<&Array> = node
                .operands
                .iter()
                .map(|v| &values[v.node][v.index as usize])
                .collect();
            eval_op(op, &operands, bindings).map_err(|error| at(graph, id, error))?
        }
    };
    // A wrong rule would show here at its node instead of far below.
    for (array, declared) in results.iter().zip(&node.results) {
        let shape = declared.shape.eval(bindings).ok();
        let same = shape.is_some_and(|s| s.iter().map(|d| *d as usize).eq(array.shape.iter().copied()));
        if array.dtype != declared.dtype || !same {
            return Err(EvalError::ResultType {
                node: id,
                got: format!("{}{:?}", array.dtype, array.shape),
                declared: declared.to_string(),
            });
        }
    }
    Ok(results)
}

/// Checks that there is memory for a node's results, of eight bytes a number, and for copies of its operands that are
/// turned or broadcast to them.
fn check_memory(node: &Node, values: &Table<NodeId, Vec<Array>>, bindings: &Bindings) -> Result<(), OpError> {
    let operands = node.operands.iter().map(|v| &values[v.node][v.index as usize]);
    let mut bytes: u64 = operands.map(|array| array.len() as u64 * 8).sum();
    for ty in &node.results {
        // Another error says which size is not known.
        let Ok(sizes) = ty.shape.eval(bindings) else { continue };
        let elements = sizes
            .iter()
            .try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).unwrap_or(0)));
        bytes = bytes.saturating_add(elements.unwrap_or(u64::MAX).saturating_mul(16));
    }
    Ok(memory::check(bytes, || format!("evaluating {}", node.op.name()))?)
}

/// Evaluates one op that is not an input or a constant on actual operands.
///
/// The op must fit the operands' types (as `infer` says); symbols of its attributes must be bound.
///
/// # Errors
/// [`OpError`] when actual sizes make the op meaningless, a symbol is not bound, or the op is an input or a constant.
pub fn eval_op(op: &Op, operands: &[&Array], bindings: &Bindings) -> Result<Vec<Array>, OpError> {
    if operands.len() < least_operands(op) {
        return Err(OpError::OperandCount { got: operands.len() });
    }
    Ok(match op {
        Op::Input { .. } | Op::Constant(_) => return Err(OpError::Leaf),
        Op::Iota { shape, axis, dtype } => vec![iota(sizes(shape, bindings)?, *axis, *dtype)],
        Op::DimValue(d) => vec![Array::int(DType::I64, vec![], vec![d.eval(bindings)?])],
        Op::Elementwise(e) => vec![elementwise::elementwise(*e, operands)?],
        Op::Reduce { op, axes, keep_dims } => vec![reduce::reduce(*op, axes, *keep_dims, operands[0])],
        Op::View(v) => vec![view::view(v, operands, bindings)?],
        Op::Contract(c) => vec![contract::contract(c, operands[0], operands[1])?],
        Op::Conv(c) => vec![window::conv(c, operands)?],
        Op::Pool(p) => vec![window::pool(p, operands[0])?],
        Op::Gather(g) => vec![index::gather(*g, operands[0], operands[1])?],
        Op::Scatter(s) => vec![index::scatter(*s, operands[0], operands[1], operands[2])?],
        Op::Scan {
            op,
            axis,
            exclusive,
            reverse,
        } => vec![reduce::scan(*op, *axis, *exclusive, *reverse, operands[0])],
        Op::TopK { axis, k, largest } => {
            let k = size("k", k, bindings)?;
            reduce::top_k(*axis, k, *largest, operands[0])?
        }
        Op::Random {
            kind,
            shape,
            seed,
            dtype,
        } => vec![random::random(*kind, sizes(shape, bindings)?, *seed, *dtype)],
        Op::Composite(c) => vec![norm::composite(c, operands)?],
        Op::Call(LibraryCall { op, .. }) => vec![match op {
            LibraryOp::Gemm {
                contract: c,
                scale,
                epilogue,
            } => {
                let sums = contract::contract(c, operands[0], operands[1])?;
                let scale = operands.get(2).filter(|_| *scale != GemmScale::None);
                let bias = operands.last().filter(|_| epilogue.has_bias());
                contract::epilogue(*epilogue, sums, scale.copied(), bias.copied())?
            }
            LibraryOp::Conv(c) => window::conv(c, operands)?,
            LibraryOp::Pool(p) => window::pool(p, operands[0])?,
            LibraryOp::Softmax { axis } => norm::composite(&crate::op::Composite::Softmax { axis: *axis }, operands)?,
            LibraryOp::Collective(c) => return Err(OpError::Alone { ranks: c.ranks }),
        }],
    })
}

fn least_operands(op: &Op) -> usize {
    use crate::graph::op::{Composite, Elementwise};
    match op {
        op if op.is_leaf() => 0,
        Op::Elementwise(Elementwise::Binary(_)) | Op::Contract(_) | Op::Conv(_) | Op::Gather(_) => 2,
        Op::Elementwise(Elementwise::Select) | Op::Scatter(_) => 3,
        Op::Composite(Composite::Dequantize { .. } | Composite::Quantize { .. }) => 2,
        Op::Composite(Composite::BatchNorm { .. }) => 5,
        Op::Composite(Composite::GroupNorm { .. }) => 3,
        Op::Composite(Composite::Recurrent(layer)) => layer.places().count,
        Op::Composite(Composite::Attention { mask, scales, .. }) => 3 + usize::from(*mask) + usize::from(*scales),
        Op::Call(call) => match call.op {
            LibraryOp::Gemm { .. } | LibraryOp::Conv(_) => 2,
            LibraryOp::Pool(_) | LibraryOp::Softmax { .. } | LibraryOp::Collective(_) => 1,
        },
        _ => 1,
    }
}

fn size(what: &str, dim: &Dim, bindings: &Bindings) -> Result<usize, OpError> {
    let value = dim.eval(bindings)?;
    usize::try_from(value).map_err(|_| OpError::Negative {
        what: format!("{what} ({dim})"),
        value,
    })
}

fn sizes(dims: &[Dim], bindings: &Bindings) -> Result<Vec<usize>, OpError> {
    dims.iter().map(|d| size("a size", d, bindings)).collect()
}

fn iota(shape: Vec<usize>, axis: usize, dtype: DType) -> Array {
    let inner: usize = shape[axis + 1..].iter().product();
    let n: usize = shape.iter().product();
    let at = |i: usize| (i / inner.max(1) % shape[axis].max(1)) as i64;
    if dtype.is_int() {
        let values = (0..n).map(at).collect();
        Array::int(dtype, shape.clone(), values)
    } else {
        let values = (0..n).map(|i| at(i) as f64).collect();
        Array::float(dtype, shape.clone(), values)
    }
}
