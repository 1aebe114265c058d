//! The computation graph: WHAT is computed.
//!
//! Invariant: nodes are in topological order: an operand's node id is smaller than its user's. Nodes are never changed
//! or removed; a pass builds a new graph from an old one (see `passes::rewrite`). Node ids therefore differ between
//! stages; what stays is the [`Origin`].
//!
//! Invariant: at [`Stage::Core`] there are no composites but those that kernels take whole (`passes::Keep` says which),
//! and `Call` appears only there.

pub mod assume;
pub mod bind;
pub mod build;
pub mod check;
pub mod dot;
pub mod elementwise;
pub mod eval;
pub mod infer;
pub mod op;
pub mod parse;
pub mod print;
pub mod recurrent;
pub mod verify;

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::data::HostTensor;
use crate::dim::{Symbol, SymbolInfo, Symbols};
use crate::entity::{Entity, Table, entity};
use crate::types::{Scalar, TensorType};
use assume::Assumption;
pub use bind::{BindError, bind_shapes, bindable};
pub use check::{Check, Indexed};
use op::Op;

entity! {
    /// A node of a graph.
    pub NodeId = "n",
    /// A constant of a graph (and of the program made from it).
    pub ConstId = "c",
}

/// The `index`-th result of a node. Prints `n12`, or `n12.1` for a result other than the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Value {
    pub node: NodeId,
    pub index: u32,
}

impl Value {
    /// The `index`-th result of `node`.
    pub const fn new(node: NodeId, index: u32) -> Value {
        Value { node, index }
    }
}

impl From<NodeId> for Value {
    /// The first result.
    fn from(node: NodeId) -> Value {
        Value { node, index: 0 }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "{}", self.node),
            i => write!(f, "{}.{i}", self.node),
        }
    }
}
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a node came from, for messages.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Origin {
    #[default]
    Unknown,
    /// A node of an ONNX file: its name (or its first output's) and op type.
    Onnx { name: Arc<str>, op: Arc<str> },
    /// A line of Rust, by `#[track_caller]`, or of a `.gir` file.
    Source { file: Arc<str>, line: u32 },
    /// A name given by the user or by a module path (`encoder.0.attention`).
    Named(Arc<str>),
}

impl Origin {
    /// The caller's file and line.
    #[track_caller]
    pub fn caller() -> Origin {
        let at = std::panic::Location::caller();
        Origin::Source {
            file: at.file().into(),
            line: at.line(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Unknown => f.write_str("unknown origin"),
            Origin::Onnx { name, op } => write!(f, "{op} node {name:?}"),
            Origin::Source { file, line } => write!(f, "{file}:{line}"),
            Origin::Named(name) => write!(f, "{name:?}"),
        }
    }
}

/// An operation with its operands and the types of its results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub operands: SmallVec<[Value; 3]>,
    pub results: SmallVec<[TensorType; 1]>,
    pub origin: Origin,
}

/// How far a graph has come; each stage has its own vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Stage {
    /// As recorded or imported; may hold any op but `Call`.
    #[default]
    Import,
    /// After `passes::optimize`: primitive families, library calls, and the composites that kernels take whole.
    Core,
}

/// A named input.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub node: NodeId,
}

/// A named output.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub value: Value,
    /// Set where the value is a condition, no result: a run in which it does not hold fails, and the message begins
    /// with the name.
    pub check: Option<Check>,
}

/// A constant with the name it had in the model, if any.
#[derive(Clone, PartialEq, Debug)]
pub struct Constant {
    pub name: Option<String>,
    pub tensor: HostTensor,
}

/// A computation graph.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    pub name: String,
    pub stage: Stage,
    symbols: Symbols,
    assumptions: Vec<Assumption>,
    nodes: Table<NodeId, Node>,
    constants: Table<ConstId, Constant>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
}

impl Graph {
    /// Makes an empty graph at [`Stage::Import`].
    pub fn new(name: impl Into<String>) -> Graph {
        Graph {
            name: name.into(),
            ..Graph::default()
        }
    }

    /// Declares a symbol; a second declaration narrows the bounds of the first.
    pub fn declare_symbol(&mut self, symbol: Symbol, info: SymbolInfo) {
        self.symbols
            .entry(symbol)
            .and_modify(|have| {
                have.min = have.min.max(info.min);
                have.max = have.max.into_iter().chain(info.max).min();
                have.hint = info.hint;
            })
            .or_insert(info);
    }

    /// Adds an input. Symbols of its shape that are not declared yet are declared with default bounds.
    pub fn add_input(&mut self, name: impl Into<String>, ty: TensorType, origin: Origin) -> Value {
        let mut found = Vec::new();
        ty.shape.iter().for_each(|d| d.collect_symbols(&mut found));
        for symbol in found {
            self.symbols.entry(symbol).or_default();
        }
        let index = self.inputs.len() as u32;
        let node = self.push(Op::Input { index }, &[], [ty], origin);
        self.inputs.push(Input {
            name: name.into(),
            node,
        });
        node.into()
    }

    /// Adds a constant and the node that reads it.
    pub fn add_constant(&mut self, name: Option<String>, tensor: HostTensor, origin: Origin) -> Value {
        let id = self.constants.push(Constant { name, tensor });
        self.constant_node(id, origin)
    }

    /// Adds another node that reads a constant of the table.
    pub fn constant_node(&mut self, id: ConstId, origin: Origin) -> Value {
        let tensor = &self.constants[id].tensor;
        let ty = TensorType::new(tensor.dtype, tensor.shape.clone());
        self.push(Op::Constant(id), &[], [ty], origin).into()
    }

    /// Adds a scalar constant of the given type.
    pub fn add_scalar(&mut self, dtype: crate::types::DType, value: Scalar, origin: Origin) -> Value {
        self.add_constant(None, HostTensor::scalar(dtype, value), origin)
    }

    /// Adds a node whose result types the caller vouches for; [`Graph::add`] infers them.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[Value],
        results: impl IntoIterator<Item = TensorType>,
        origin: Origin,
    ) -> NodeId {
        debug_assert!(
            operands.iter().all(|v| v.node.index() < self.nodes.len()),
            "operands precede their users"
        );
        self.nodes.push(Node {
            op,
            operands: SmallVec::from_slice(operands),
            results: results.into_iter().collect(),
            origin,
        })
    }

    /// Names an output.
    pub fn add_output(&mut self, name: impl Into<String>, value: Value) {
        self.outputs.push(Output {
            name: name.into(),
            value,
            check: None,
        });
    }

    /// Adds a condition: a run in which the bool scalar is false fails with the message.
    pub fn add_check(&mut self, message: impl Into<String>, value: Value) {
        self.outputs.push(Output {
            name: message.into(),
            value,
            check: Some(Check::Holds),
        });
    }

    /// Adds an output, or a condition, as another graph has it, of a value of this one.
    pub fn add_output_like(&mut self, output: &Output, value: Value) {
        self.outputs.push(Output {
            value,
            ..output.clone()
        });
    }

    /// Returns the symbols, in the order they were declared.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Replaces the symbol table (for passes that build a graph from another).
    pub fn set_symbols(&mut self, symbols: Symbols) {
        self.symbols = symbols;
    }

    /// Returns the nodes in topological order.
    pub fn nodes(&self) -> &Table<NodeId, Node> {
        &self.nodes
    }

    /// Returns a node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// Returns the constants.
    pub fn constants(&self) -> &Table<ConstId, Constant> {
        &self.constants
    }

    /// Adds a constant without a node (for passes that carry the table over whole).
    pub fn push_constant(&mut self, constant: Constant) -> ConstId {
        self.constants.push(constant)
    }

    /// Returns the inputs in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the outputs in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Returns the type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.nodes[value.node].results[value.index as usize]
    }

    /// Returns the constant a value reads, if it reads one.
    pub fn as_constant(&self, value: Value) -> Option<&HostTensor> {
        match self.nodes[value.node].op {
            Op::Constant(id) => Some(&self.constants[id].tensor),
            _ => None,
        }
    }

    /// Returns the number that every element of the value is, if it is a constant with one number.
    pub fn as_scalar(&self, value: Value) -> Option<Scalar> {
        self.as_constant(value)?.splat()
    }

    /// Returns the users of each node: `(user, operand position)`, in order. Outputs are not users.
    pub fn users(&self) -> Table<NodeId, SmallVec<[(NodeId, u32); 2]>> {
        let mut users: Table<NodeId, SmallVec<[(NodeId, u32); 2]>> =
            self.nodes.keys().map(|_| SmallVec::new()).collect();
        for (id, node) in self.nodes.iter() {
            for (position, operand) in node.operands.iter().enumerate() {
                users[operand.node].push((id, position as u32));
            }
        }
        users
    }

    /// Returns the sizes of symbols that inputs of these shapes imply.
    ///
    /// # Errors
    /// A rank, a constant dim or a bound that does not fit, or a symbol that two inputs give different sizes.
    pub fn bind(&self, shapes: &IndexMap<&str, &[usize]>) -> Result<crate::dim::Bindings, BindError> {
        let declared: Vec<(&str, &TensorType)> = self
            .inputs
            .iter()
            .map(|i| (i.name.as_str(), &self.nodes[i.node].results[0]))
            .collect();
        bind_shapes(&self.symbols, &declared, shapes)
    }
}
