//! The walk over an ONNX graph that builds the `ir`'s.
//!
//! Before: a [`Model`] as read. After: a [`Graph`] at stage Import whose nodes compute what the model says, without
//! shape arithmetic: sizes are dims. Only nodes that an output needs are walked. Model-local functions and what control
//! flow runs (see [`control`]) are inlined. When an op implies something about sizes (see [`super::sizes`]), the walk
//! starts again with it.

mod control;
mod flex;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use ir::{Graph, HostTensor, Origin};

use super::builder::{Builder, Val};
use super::error::{Fail, ImportError, InitializerProblem, InputProblem, NodeError, NodeProblem, Step, UnknownOp};
use super::inputs::{Inputs, read_inputs};
use super::node::Node;
use super::ops::{OPSETS, Table};
use super::options::{GivenInput, ImportOptions};
use super::order::needed;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, ValueInfoProto, type_proto,
};
use super::read::{Model, canonical_domain, read_model_with};
use super::schema;
use super::tensor::tensor_view;
use super::unsigned::{self, Unsigned};
use control::{Site, is_control};

/// How deep functions and subgraphs may call each other.
const DEPTH_LIMIT: usize = 32;
/// How many facts about sizes a model may imply.
const RESTART_LIMIT: usize = 256;
/// How many nodes inlining may lead to: functions that call functions multiply.
const NODE_LIMIT: usize = 1 << 20;

/// Reads an ONNX file and imports it.
///
/// The file is memory-mapped, and the graph's constants share the mapping: it must stay unchanged while the graph
/// lives.
///
/// # Errors
/// When the file cannot be read, has an opset or ops that graphc does not support (all of them are named), or a node
/// does not fit its inputs; errors name the node and the way out.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Graph, ImportError> {
    import_model(&read_model_with(path, options.links)?, options)
}

/// Says whether a node is of ONNX's default domain, in the graphs of attributes too.
fn uses_default_domain(nodes: &[NodeProto]) -> bool {
    nodes.iter().any(|node| {
        let inner = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
        canonical_domain(&node.domain).is_empty() || inner.into_iter().any(|graph| uses_default_domain(&graph.node))
    })
}

/// Imports a model that was read.
///
/// # Errors
/// As [`import`].
pub fn import_model(model: &Model, options: &ImportOptions) -> Result<Graph, ImportError> {
    match model.opset("") {
        Some(found) if !OPSETS.contains(&found) => {
            return Err(ImportError::Opset {
                found,
                min: *OPSETS.start(),
                max: *OPSETS.end(),
            });
        }
        // Models of `ai.onnx.ml` alone need not say it.
        None if uses_default_domain(&model.graph.node) => return Err(ImportError::NoOpset),
        _ => {}
    }
    if model.graph.output.is_empty() {
        return Err(ImportError::NoOutputs);
    }
    let source = Source::new(model)?;
    source.check_ops()?;
    let Inputs { types, mut sizes } = read_inputs(&model.graph, options)?;
    let given = &options.given;
    for _ in 0..RESTART_LIMIT {
        let mut walk = Walk {
            source: &source,
            build: Builder::new(&model.graph.name, sizes, options),
            nodes: 0,
        };
        match walk.model(&types, given) {
            Ok(()) => return Ok(walk.build.graph),
            Err(Stop::Restart) => sizes = walk.build.sizes,
            Err(Stop::Error(error)) => return Err(*error),
        }
    }
    Err(ImportError::Unsettled { limit: RESTART_LIMIT })
}

/// The model with its tables.
struct Source<'a> {
    model: &'a Model,
    table: Table,
    functions: HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>,
    initializers: HashMap<&'a str, Result<(HostTensor, Option<Unsigned>), InitializerProblem>>,
}

/// Where a list of nodes stands: its opsets and the attributes of the function call around it.
#[derive(Clone)]
struct Frame<'a> {
    opsets: &'a [OperatorSetIdProto],
    function: Option<(&'a FunctionProto, HashMap<&'a str, &'a AttributeProto>)>,
    /// The function's inputs that the call leaves out.
    missing: HashSet<&'a str>,
    depth: usize,
}

type Env<'a> = HashMap<&'a str, Val>;

enum Stop {
    Restart,
    Error(Box<ImportError>),
}

impl From<ImportError> for Stop {
    fn from(error: ImportError) -> Stop {
        Stop::Error(Box::new(error))
    }
}

impl<'a> Source<'a> {
    fn new(model: &'a Model) -> Result<Source<'a>, ImportError> {
        let mut initializers = HashMap::with_capacity(model.graph.initializer.len());
        for tensor in &model.graph.initializer {
            let name = tensor.name.as_str();
            let view = tensor_view(tensor).map_err(InitializerProblem::from);
            let host = view.and_then(|v| Ok((v.to_host()?, Unsigned::of(v.element))));
            if initializers.insert(name, host).is_some() {
                let problem = Box::new(InitializerProblem::Duplicate);
                return Err(ImportError::Initializer {
                    name: name.to_owned(),
                    problem,
                });
            }
        }
        for sparse in &model.graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |v| v.name.as_str());
            initializers.insert(name, Err(InitializerProblem::Sparse));
        }
        let functions = model.functions.iter().map(|f| {
            let key = (canonical_domain(&f.domain), f.name.as_str(), f.overload.as_str());
            (key, f)
        });
        Ok(Source {
            model,
            table: Table::new(),
            functions: functions.collect(),
            initializers,
        })
    }

    fn function(&self, node: &NodeProto) -> Option<&'a FunctionProto> {
        let domain = canonical_domain(&node.domain);
        self.functions
            .get(&(domain, node.op_type.as_str(), node.overload.as_str()))
            .copied()
    }

    /// Returns the version of a domain's operator set.
    fn opset(&self, opsets: &[OperatorSetIdProto], domain: &str) -> i64 {
        let own = opsets
            .iter()
            .find(|o| canonical_domain(&o.domain) == domain)
            .map(|o| o.version);
        own.or_else(|| self.model.opset(domain)).unwrap_or(0)
    }

    fn unknown(&self, node: &NodeProto, opset: i64) -> UnknownOp {
        let domain = canonical_domain(&node.domain);
        UnknownOp {
            node: node_name(node).to_owned(),
            op: node.op_type.clone(),
            domain: domain.to_owned(),
            opset,
            near: self.table.near(domain, &node.op_type),
        }
    }

    /// Finds all ops that have no row, in the nodes that outputs need and in the functions they call.
    fn check_ops(&self) -> Result<(), ImportError> {
        let graph = &self.model.graph;
        let mut unknown = Vec::new();
        let mut seen: HashSet<(&str, &str, &str)> = HashSet::new();
        let outputs = graph.output.iter().map(|o| o.name.as_str());
        let mut todo: Vec<(Vec<&'a NodeProto>, &'a [OperatorSetIdProto])> =
            vec![(needed(&graph.node, outputs).map_err(circle)?, &[])];
        while let Some((nodes, opsets)) = todo.pop() {
            for node in nodes {
                if let Some(function) = self.function(node) {
                    let key = (
                        function.domain.as_str(),
                        function.name.as_str(),
                        function.overload.as_str(),
                    );
                    if seen.insert(key) {
                        let outputs = function.output.iter().map(String::as_str);
                        todo.push((needed(&function.node, outputs).map_err(circle)?, &function.opset_import));
                    }
                    continue;
                }
                let domain = canonical_domain(&node.domain);
                let opset = self.opset(opsets, domain);
                if !is_control(node) && self.table.find(domain, &node.op_type, opset).is_none() {
                    unknown.push(self.unknown(node, opset));
                }
            }
        }
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(ImportError::UnknownOps(unknown))
        }
    }
}

struct Walk<'s, 'a> {
    source: &'s Source<'a>,
    build: Builder,
    nodes: usize,
}

impl<'a> Walk<'_, 'a> {
    fn model(
        &mut self,
        inputs: &IndexMap<String, ir::TensorType>,
        given: &IndexMap<String, GivenInput>,
    ) -> Result<(), Stop> {
        let graph: &'a GraphProto = &self.source.model.graph;
        let mut env = Env::new();
        for input in &graph.input {
            let Some(ty) = inputs.get(&input.name) else { continue };
            let shape = ty
                .shape
                .iter()
                .map(|d| self.build.sizes.resolve(d))
                .collect::<ir::Shape>();
            let ty = ir::TensorType::new(ty.dtype, shape);
            let value = self
                .build
                .graph
                .add_input(&input.name, ty, Origin::Named(input.name.as_str().into()));
            let val = match given.get(&input.name).and_then(|given| given.integers.as_deref()) {
                Some(integers) => {
                    let given = self.build.of_given(&input.name, value, integers);
                    given.map_err(|fail| output_error(fail, &input.name))?
                }
                None => self.build.of_value(value),
            };
            let val = self.build.declare(val, declared_type(input));
            if env.insert(&input.name, val).is_some() {
                let name = input.name.clone();
                return Err(ImportError::Input {
                    name,
                    problem: InputProblem::Duplicate,
                }
                .into());
            }
        }
        let frame = Frame {
            opsets: &[],
            function: None,
            missing: HashSet::new(),
            depth: 0,
        };
        // One value has one name: an output that is listed again is the same output, and is given once.
        let outputs: IndexSet<&'a str> = graph.output.iter().map(|o| o.name.as_str()).collect();
        let outputs: Vec<&'a str> = outputs.into_iter().collect();
        self.nodes(&graph.node, &outputs, &mut env, &frame)?;
        for name in outputs {
            let defined = env.len();
            let val = self.lookup(name, &mut env)?;
            let val = val.ok_or_else(|| ImportError::Output {
                name: name.to_owned(),
                defined,
            })?;
            let origin = Origin::Named(name.into());
            let value = self
                .build
                .value(val, &origin)
                .map_err(|fail| output_error(fail, name))?;
            self.build.graph.add_output(name, value);
        }
        self.build.finish().map_err(|fail| output_error(fail, "a condition"))?;
        Ok(())
    }

    /// Finds a name, bringing in an initializer at its first use.
    fn lookup(&mut self, name: &'a str, env: &mut Env<'a>) -> Result<Option<Val>, Stop> {
        if let Some(val) = env.get(name) {
            return Ok(Some(*val));
        }
        match self.source.initializers.get(name) {
            None => Ok(None),
            Some(Ok((tensor, declared))) => {
                let val = self.build.of_constant(Some(name.to_owned()), tensor.clone());
                let val = self.build.declare(val, *declared);
                env.insert(name, val);
                Ok(Some(val))
            }
            Some(Err(problem)) => {
                let problem = Box::new(problem.clone());
                Err(ImportError::Initializer {
                    name: name.to_owned(),
                    problem,
                }
                .into())
            }
        }
    }

    fn nodes(
        &mut self,
        nodes: &'a [NodeProto],
        outputs: &[&'a str],
        env: &mut Env<'a>,
        frame: &Frame<'a>,
    ) -> Result<(), Stop> {
        for node in needed(nodes, outputs.iter().copied()).map_err(circle)? {
            self.node(node, env, frame)?;
        }
        Ok(())
    }

    fn node(&mut self, node: &'a NodeProto, env: &mut Env<'a>, frame: &Frame<'a>) -> Result<(), Stop> {
        let domain = canonical_domain(&node.domain);
        let opset = self.source.opset(frame.opsets, domain);
        let error = |problem: NodeProblem| {
            let (name, op) = (node_name(node).to_owned(), node.op_type.clone());
            Stop::from(ImportError::Node(Box::new(NodeError {
                node: name,
                op,
                opset,
                problem,
            })))
        };
        let stop = |fail: Fail| match fail {
            Fail::Restart => Stop::Restart,
            Fail::Problem(problem) => error(*problem),
        };
        self.nodes += 1;
        if self.nodes > NODE_LIMIT {
            return Err(error(NodeProblem::Unsupported {
                what: format!("a model of more than {NODE_LIMIT} nodes"),
            }));
        }
        let mut inputs = Vec::with_capacity(node.input.len());
        for (index, name) in node.input.iter().enumerate() {
            if name.is_empty() || frame.missing.contains(name.as_str()) {
                inputs.push(None);
                continue;
            }
            match self.lookup(name, env)? {
                Some(val) => inputs.push(Some(val)),
                None => {
                    return Err(error(NodeProblem::UndefinedInput {
                        index,
                        name: name.clone(),
                    }));
                }
            }
        }
        let attributes = attributes(node, frame).map_err(stop)?;
        let function = self.source.function(node);
        if function.is_none() {
            schema::check(node, domain, opset, &attributes).map_err(error)?;
        }
        let results = if let Some(function) = function {
            self.call(function, node, &inputs, &attributes, frame)?
        } else if is_control(node) {
            self.control(&Site {
                node,
                inputs: &inputs,
                attributes: &attributes,
                env,
                frame,
                opset,
            })?
        } else {
            let Some(row) = self.source.table.find(domain, &node.op_type, opset) else {
                return Err(ImportError::UnknownOps(vec![self.source.unknown(node, opset)]).into());
            };
            let origin = Origin::Onnx {
                name: node_name(node).into(),
                op: Arc::from(node.op_type.as_str()),
            };
            let is_sequence = |val: &Val| self.build.sequence(*val).is_some() || self.build.is_nothing(*val);
            if inputs.iter().flatten().any(is_sequence) && !takes_sequences(&node.op_type) {
                let what = format!("a sequence or an empty optional as an input of {}", node.op_type);
                return Err(error(NodeProblem::Unsupported { what }));
            }
            let mut at = Node {
                build: &mut self.build,
                proto: node,
                attributes,
                opset,
                inputs,
                origin,
            };
            unsigned::import(&mut at, row.import).map_err(stop)?
        };
        let named = node.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        if named > results.len() {
            return Err(error(NodeProblem::OutputCount {
                expected: results.len(),
                found: named,
            }));
        }
        for (name, val) in node.output.iter().zip(results).filter(|(name, _)| !name.is_empty()) {
            if env.insert(name, val).is_some() {
                return Err(error(NodeProblem::Redefined { name: name.clone() }));
            }
        }
        Ok(())
    }

    /// Inlines a model-local function.
    fn call(
        &mut self,
        function: &'a FunctionProto,
        node: &'a NodeProto,
        inputs: &[Option<Val>],
        given: &[(&'a str, &'a AttributeProto)],
        frame: &Frame<'a>,
    ) -> Result<Vec<Val>, Stop> {
        let error = |problem| node_error(node, 0, problem);
        if frame.depth >= DEPTH_LIMIT {
            return Err(error(NodeProblem::TooDeep { limit: DEPTH_LIMIT }));
        }
        for (what, expected, found) in [
            ("inputs", function.input.len(), inputs.len()),
            ("outputs", function.output.len(), node.output.len()),
        ] {
            if found > expected {
                return Err(error(NodeProblem::FunctionArity { what, expected, found }));
            }
        }
        let mut env = Env::new();
        for (name, val) in function.input.iter().zip(inputs) {
            if let Some(val) = val {
                env.insert(name, *val);
            }
        }
        let mut attributes: HashMap<&'a str, &'a AttributeProto> =
            function.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
        attributes.extend(given.iter().copied());
        let missing = function
            .input
            .iter()
            .map(String::as_str)
            .filter(|name| !env.contains_key(name))
            .collect();
        let function_frame = Some((function, attributes));
        let depth = frame.depth + 1;
        let inner = Frame {
            opsets: &function.opset_import,
            function: function_frame,
            missing,
            depth,
        };
        let outputs: Vec<&'a str> = function.output.iter().map(String::as_str).collect();
        self.nodes(&function.node, &outputs, &mut env, &inner)?;
        let mut results = Vec::with_capacity(outputs.len());
        for name in outputs {
            match env.get(name) {
                Some(val) => results.push(*val),
                None => {
                    return Err(error(NodeProblem::UndefinedInput {
                        index: 0,
                        name: name.to_owned(),
                    }));
                }
            }
        }
        Ok(results)
    }
}

/// Says whether an op that is no control flow may have sequences or optionals as inputs.
fn takes_sequences(op: &str) -> bool {
    op.starts_with("Sequence") || op.starts_with("Optional") || matches!(op, "ConcatFromSequence" | "Identity")
}

/// The type of an input, where it is computed in a wider one.
fn declared_type(input: &ValueInfoProto) -> Option<Unsigned> {
    match input.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => Unsigned::of_code(tensor.elem_type.into()),
        _ => None,
    }
}

/// Returns the node's name, or its first output's.
fn node_name(node: &NodeProto) -> &str {
    if node.name.is_empty() {
        node.output.first().map_or("", String::as_str)
    } else {
        &node.name
    }
}

fn node_error(node: &NodeProto, opset: i64, problem: NodeProblem) -> Stop {
    at_node(node, opset, problem).into()
}

fn at_node(node: &NodeProto, opset: i64, problem: NodeProblem) -> ImportError {
    let (name, op) = (node_name(node).to_owned(), node.op_type.clone());
    ImportError::Node(Box::new(NodeError {
        node: name,
        op,
        opset,
        problem,
    }))
}

/// Nodes that no order can serve.
fn circle((node, problem): (&NodeProto, NodeProblem)) -> ImportError {
    at_node(node, 0, problem)
}

fn output_error(fail: Fail, name: &str) -> Stop {
    match fail {
        Fail::Restart => Stop::Restart,
        Fail::Problem(problem) => {
            let (node, op) = (name.to_owned(), "output".to_owned());
            ImportError::Node(Box::new(NodeError {
                node,
                op,
                opset: 0,
                problem: *problem,
            }))
            .into()
        }
    }
}

/// Collects a node's attributes; those of a function's body may refer to the call's.
fn attributes<'a>(node: &'a NodeProto, frame: &Frame<'a>) -> Step<Vec<(&'a str, &'a AttributeProto)>> {
    let mut found = Vec::with_capacity(node.attribute.len());
    for attribute in &node.attribute {
        let (name, reference) = (attribute.name.as_str(), attribute.ref_attr_name.as_str());
        if reference.is_empty() {
            found.push((name, attribute));
            continue;
        }
        let declared = frame
            .function
            .as_ref()
            .and_then(|(function, given)| match given.get(reference) {
                Some(given) => Some(Some(*given)),
                // Declared and neither given nor with a default: the attribute is left out.
                None => function.attribute.iter().any(|a| a == reference).then_some(None),
            });
        match declared {
            Some(Some(given)) => found.push((name, given)),
            Some(None) => {}
            None => {
                let (name, reference) = (name.to_owned(), reference.to_owned());
                return Err(NodeProblem::AttributeReference { name, reference }.into());
            }
        }
    }
    Ok(found)
}
