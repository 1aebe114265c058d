//! What can be wrong with a model that was read: errors that name the node, the values and the way out.

use std::fmt;

use ir::dim::Dim;
use ir::{DType, Shape};

use super::read::ReadError;
use super::tensor::TensorError;
use crate::weights::{ElementType, ViewError};

/// A dim that a person wrote for an axis of an input, and what is unknown in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnboundDim {
    pub input: String,
    pub dim: String,
    /// The names that no input's size gives.
    pub symbol: String,
    /// What may be written instead.
    pub instead: String,
}

/// A model could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file is not a readable model.
    #[error(transparent)]
    Read(Box<ReadError>),
    /// Ops that graphc does not have: all of the model's at once.
    #[error("{}", UnknownOpList(.0))]
    UnknownOps(Vec<UnknownOp>),
    #[error(
        "the model asks for opset {found} of ONNX's default domain; graphc imports {min} to {max}; convert it with \
         onnx.version_converter, or export it for another opset"
    )]
    Opset { found: i64, min: i64, max: i64 },
    #[error("the model does not say which opset of ONNX's default domain it uses")]
    NoOpset,
    #[error("input {name:?}: {problem}")]
    Input { name: String, problem: InputProblem },
    #[error("initializer {name:?}: {problem}")]
    Initializer {
        name: String,
        problem: Box<InitializerProblem>,
    },
    #[error("output {name:?} is computed by no node; the graph defines {defined} values")]
    Output { name: String, defined: usize },
    #[error("the model has no outputs")]
    NoOutputs,
    /// A node is wrong, or uses its op in a way that graphc does not support.
    #[error(transparent)]
    Node(Box<NodeError>),
    #[error("option for the size {name:?}: the model has no such size; it has {known:?}")]
    UnknownSize { name: String, known: Vec<String> },
    #[error("option for the size {name:?}: {size} is below 0")]
    SizeOption { name: String, size: i64 },
    #[error(
        "option for the size {name:?}: it is {option}, but the given inputs have {given}; give inputs of that size, or leave --size {name} out"
    )]
    SizeGiven { name: String, option: String, given: i64 },
    /// A dim of `--shape` whose names no input's size gives.
    #[error(
        "option for the shape of {:?}: no input's size gives {}, which {} is made of: a run gives {} itself, and several sizes \
         may make one; write one name for the whole dim ({}), or have an axis of some input be the name alone, or a multiple or a sum of it \
         and of names that are given so (4*h, w + 1)",
        .0.input, .0.symbol, .0.dim, .0.dim, .0.instead
    )]
    Unbound(Box<UnboundDim>),
    #[error("option for the shape of {name:?}: the model has no such input; it has {known:?}")]
    UnknownInput { name: String, known: Vec<String> },
    #[error("the model's sizes contradict each other: more than {limit} assumptions were needed")]
    Unsettled { limit: usize },
}

impl From<ReadError> for ImportError {
    fn from(error: ReadError) -> ImportError {
        ImportError::Read(Box::new(error))
    }
}

/// An op that the importer has no row for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOp {
    /// The node's name, or its first output's.
    pub node: String,
    pub op: String,
    /// Empty for ONNX's own domain.
    pub domain: String,
    /// The version of the domain's operator set that the model imports; 0 when it imports none.
    pub opset: i64,
    /// Supported ops with similar names, or the opsets in which this one is supported.
    pub near: Vec<String>,
}

struct UnknownOpList<'a>(&'a [UnknownOp]);

impl fmt::Display for UnknownOpList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(
            f,
            "{count} node{} with an op that graphc does not have:",
            if count == 1 { "" } else { "s" }
        )?;
        for op in self.0.iter().take(20) {
            let domain = if op.domain.is_empty() { "ai.onnx" } else { &op.domain };
            write!(
                f,
                "\n  {} (domain {domain}, opset {}) at node {:?}",
                op.op, op.opset, op.node
            )?;
            if !op.near.is_empty() {
                write!(f, "; supported nearby: {}", op.near.join(", "))?;
            }
        }
        if count > 20 {
            write!(f, "\n  and {} more", count - 20)?;
        }
        Ok(())
    }
}

/// What is wrong with a declared input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputProblem {
    #[error("it is not a tensor (sequences, maps, optionals and sparse tensors are not supported)")]
    NotTensor,
    #[error("its element type (code {code}) is not one that graphc computes with")]
    ElementType { code: i32 },
    #[error("the model gives it no shape; give one with --shape '{name}=[batch, 3]'")]
    NoShape { name: String },
    #[error("dim {axis} is {size}")]
    Dim { axis: usize, size: i64 },
    #[error("it is defined more than once")]
    Duplicate,
}

/// What is wrong with an initializer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitializerProblem {
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error("sparse initializers are not supported")]
    Sparse,
    #[error("it is defined more than once")]
    Duplicate,
}

/// A node could not be imported.
#[derive(Debug, thiserror::Error)]
#[error("{op} node {node:?} (opset {opset}): {problem}")]
pub struct NodeError {
    /// The node's name, or its first output's.
    pub node: String,
    pub op: String,
    pub opset: i64,
    #[source]
    pub problem: NodeProblem,
}

/// Why a node could not be imported.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NodeProblem {
    #[error("input {index} is required, but it is missing")]
    MissingInput { index: usize },
    #[error("input {index}, {name:?}, is defined by no node, input or initializer")]
    UndefinedInput { index: usize, name: String },
    #[error("input {index}, {name:?}, depends on the node itself: the nodes go round in a circle")]
    Circle { index: usize, name: String },
    #[error("output {name:?} is defined a second time")]
    Redefined { name: String },
    #[error("it has {found} outputs, but the op gives {expected}")]
    OutputCount { expected: usize, found: usize },
    #[error("attribute {name:?} is required, but it is missing")]
    MissingAttribute { name: String },
    #[error("attribute {name:?} has another type than {expected}")]
    AttributeType { name: String, expected: &'static str },
    #[error("attribute {name:?} is {value}, but it must be {expected}")]
    AttributeValue {
        name: String,
        value: String,
        expected: String,
    },
    #[error("the operator has no attribute {name:?} in this operator set; it has: {known}")]
    UnknownAttribute { name: String, known: String },
    #[error("it has {given} inputs, but the operator takes at most {most} in this operator set")]
    InputCount { most: usize, given: usize },
    #[error("attribute {name:?} refers to {reference:?}, which the function does not declare")]
    AttributeReference { name: String, reference: String },
    #[error(
        "the {what} must be a constant or follow from shapes, but input {index} depends on data; make it a constant \
         before export, or give inputs (--inputs): `graphc run` and `bench` compile for what their data decide"
    )]
    NotKnown { what: &'static str, index: usize },
    #[error("the {what} {found} cannot be used; expected {expected}")]
    Value {
        what: &'static str,
        found: String,
        expected: String,
    },
    #[error("operand types differ: {left} and {right}")]
    TypesDiffer { left: DType, right: DType },
    #[error("input {index} is {found}, but must be {expected}")]
    ElementType {
        index: usize,
        found: DType,
        expected: &'static str,
    },
    #[error("element type {code} is not one that graphc computes with")]
    UnknownElementType { code: i64 },
    #[error("element type {0} cannot be the target of a cast")]
    CastTarget(ElementType),
    #[error("input {index} is {found}, but its rank must be {expected}")]
    Rank {
        index: usize,
        found: Shape,
        expected: String,
    },
    #[error("axis {axis} is outside rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("the shapes {left} and {right} do not fit: {reason}")]
    Shapes { left: Shape, right: Shape, reason: String },
    #[error("the sizes {left} and {right} must be equal, and never are{}", changed(left, right))]
    Sizes { left: Dim, right: Dim },
    #[error("{what}: the sign of {dim} is not known; bound its sizes, for instance with --size seq=8..512")]
    Sign { what: &'static str, dim: Dim },
    #[error("{what} is not supported")]
    Unsupported { what: String },
    #[error(
        "a shape of rank {rank} has sizes of more than {} terms, {} factors in a term or {} nested operations, or that many \
         elements; fix some of the model's sizes with --size NAME=SIZE or --shape INPUT=[DIMS]",
        ir::dim::MOST_TERMS,
        ir::dim::MOST_FACTORS,
        ir::dim::MOST_DEPTH
    )]
    LargeSizes { rank: usize },
    #[error("functions or subgraphs call each other more than {limit} deep")]
    TooDeep { limit: usize },
    #[error("the function has {expected} {what}, but {found} are given")]
    FunctionArity {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error(transparent)]
    Infer(#[from] ir::graph::infer::InferError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error("a constant of {bytes} bytes would be made")]
    TooLarge { bytes: String },
}

/// How open sizes are given, where one of the two is open.
fn changed(left: &Dim, right: &Dim) -> &'static str {
    match left.as_const().is_some() && right.as_const().is_some() {
        true => "",
        false => "; --size NAME=SIZE and --shape INPUT=[DIMS] give open sizes",
    }
}

/// Why a step of the walk ended early.
#[derive(Debug)]
pub(super) enum Fail {
    Problem(Box<NodeProblem>),
    /// Something new is known about sizes: the walk starts again with it.
    Restart,
}

impl<P: Into<NodeProblem>> From<P> for Fail {
    fn from(problem: P) -> Fail {
        Fail::Problem(Box::new(problem.into()))
    }
}

pub(super) type Step<T> = Result<T, Fail>;
