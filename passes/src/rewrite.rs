//! Builds a graph from another: the one way in which passes change graphs.
//!
//! A [`Builder`] walks nowhere by itself; a pass visits the old nodes in order and calls [`Builder::copy`] or emits
//! something else and [`Builder::set`]s it. What it keeps: inputs (all, even dead ones), outputs, symbols, names, and
//! the origin of the node being rewritten on everything emitted for it. Equal nodes are emitted once, equal constants
//! are one entry, and nodes that end up unused are dropped by [`Builder::finish`]. Constants' bytes are shared, never
//! copied.
//!
//! With rules, every emitted op is first offered to them, so what is built is simplified as it grows: a rule sees
//! operands that are already in their final form, and one walk reaches (almost) the fixed point in linear time.

use std::collections::HashMap;

use ir::dim::Symbols;
use ir::entity::Entity;
use ir::graph::{Check, Constant, Node, Output};
use ir::op::{Composite, Elementwise, UnaryKind, UnaryLaw};
use ir::types::Scalar;
use ir::{ConstId, DType, Graph, HostTensor, NodeId, Op, Origin, TensorType, Value};
use smallvec::SmallVec;

use crate::error::PassFault;
use crate::options::OptimizeOptions;
use crate::report::Fired;

/// A directional rule: given an op and its (new) operands, the value to use in its place.
#[derive(Clone, Copy)]
pub struct Rule {
    pub name: &'static str,
    pub apply: fn(&mut Builder<'_>, &Op, &[Value]) -> Result<Option<Value>, PassFault>,
}

/// Rules see at most this many rewrites nested in one another; beyond it ops are emitted as they are.
const MAX_DEPTH: u32 = 24;
/// So many bytes are looked at where a constant begins, in its middle and where it ends, to find what may equal it.
const SAMPLE_BYTES: usize = 64;

/// What equal constants have in common; what has it in common is compared byte by byte.
#[derive(PartialEq, Eq, Hash)]
struct ConstKey {
    dtype: DType,
    shape: Vec<usize>,
    sample: Vec<u8>,
}

impl ConstKey {
    fn of(tensor: &HostTensor) -> ConstKey {
        let bytes = &tensor.bytes;
        let parts = [0, bytes.len() / 2, bytes.len().saturating_sub(SAMPLE_BYTES)];
        let part = |from: usize| &bytes[from..bytes.len().min(from + SAMPLE_BYTES)];
        ConstKey {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            sample: parts.into_iter().flat_map(part).copied().collect(),
        }
    }
}

/// Says whether two constants of one key have the same bytes: weights are mostly told apart by the key already, and
/// those of an earlier graph are where they were.
fn same_bytes(a: &HostTensor, b: &HostTensor) -> bool {
    (a.bytes.as_ptr() == b.bytes.as_ptr() && a.bytes.len() == b.bytes.len()) || a.bytes == b.bytes
}

/// A new graph in the making; see the module's page.
pub struct Builder<'a> {
    pub old: &'a Graph,
    graph: Graph,
    map: Vec<SmallVec<[Value; 1]>>,
    memo: HashMap<(Op, SmallVec<[Value; 3]>), NodeId>,
    constants: HashMap<ConstKey, SmallVec<[ConstId; 1]>>,
    /// The origin given to emitted nodes.
    pub origin: Origin,
    rules: Vec<Rule>,
    computed_in: Option<DType>,
    /// Of each old node, whether it rounds to whole numbers or a rounding follows it.
    rounded: Vec<bool>,
    /// The old node that is being copied.
    copying: Option<NodeId>,
    depth: u32,
    pass: &'static str,
    fired: Vec<Fired>,
    outputs: HashMap<String, Value>,
    /// New conditions.
    checks: Vec<Output>,
}

impl<'a> Builder<'a> {
    /// Starts a graph with the name, stage, symbols and inputs of `old`.
    pub fn new(old: &'a Graph, pass: &'static str) -> Builder<'a> {
        let mut graph = Graph::new(old.name.clone());
        graph.stage = old.stage;
        graph.set_sizes_of(old);
        let mut map = vec![SmallVec::new(); old.nodes().len()];
        for input in old.inputs() {
            let node = old.node(input.node);
            let value = graph.add_input(input.name.clone(), node.results[0].clone(), node.origin.clone());
            map[input.node.index()] = SmallVec::from_slice(&[value]);
        }
        Builder {
            old,
            graph,
            map,
            memo: HashMap::new(),
            constants: HashMap::new(),
            origin: Origin::Unknown,
            rules: Vec::new(),
            computed_in: None,
            rounded: Vec::new(),
            copying: None,
            depth: 0,
            pass,
            fired: Vec::new(),
            outputs: HashMap::new(),
            checks: Vec::new(),
        }
    }

    /// Offers every emitted op to `rules`, in order; they can ask for the type that the options have f32 computed in.
    pub fn with_rules(mut self, rules: impl IntoIterator<Item = Rule>, options: &OptimizeOptions) -> Self {
        self.rules = rules.into_iter().collect();
        self.computed_in = options.dtype;
        self.rounded = rounded(self.old);
        self
    }

    /// Returns the type that f32 numbers will be rounded to, where it is another one.
    pub fn computed_in(&self) -> Option<DType> {
        self.computed_in
    }

    /// Says whether what is being emitted may reach a rounding to whole numbers by arithmetic and views alone, so that
    /// its last bit may decide a tie. What is emitted outside a copy of an old node may.
    pub fn feeds_rounding(&self) -> bool {
        match self.copying {
            Some(id) => self.rounded.get(id.index()).is_none_or(|rounded| *rounded),
            None => true,
        }
    }

    /// Returns the graph as built so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the symbols.
    pub fn symbols(&self) -> &Symbols {
        self.graph.symbols()
    }

    /// Returns the type of a new value.
    pub fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value)
    }

    /// Returns the new node that makes a value.
    pub fn node(&self, value: Value) -> &Node {
        self.graph.node(value.node)
    }

    /// Returns the op and operands of a new value that is its node's only result.
    pub fn def(&self, value: Value) -> (&Op, &[Value]) {
        let node = self.graph.node(value.node);
        (&node.op, &node.operands)
    }

    /// Returns the new value of an old one; its node must have been copied or set.
    pub fn value(&self, old: Value) -> Value {
        self.map[old.node.index()][old.index as usize]
    }

    /// Says whether an old node has been copied or set.
    pub fn has(&self, old: NodeId) -> bool {
        !self.map[old.index()].is_empty()
    }

    /// Gives an old node of one result its new value.
    pub fn set(&mut self, old: NodeId, value: Value) {
        self.map[old.index()] = SmallVec::from_slice(&[value]);
    }

    /// Gives an old node its new values.
    pub fn set_all(&mut self, old: NodeId, values: &[Value]) {
        self.map[old.index()] = SmallVec::from_slice(values);
    }

    /// Gives the output of this name a value of its own, other than the new value of what it was.
    pub fn set_output(&mut self, name: &str, value: Value) {
        self.outputs.insert(name.to_owned(), value);
    }

    /// Adds a condition of runs, after those of the old graph.
    pub fn add_check(&mut self, message: String, value: Value, check: Check) {
        self.checks.push(Output {
            name: message,
            value,
            check: Some(check),
        });
    }

    /// Copies an old node over its new operands (rules apply).
    ///
    /// # Errors
    /// When the new operands do not type.
    pub fn copy(&mut self, id: NodeId) -> Result<(), PassFault> {
        if self.has(id) {
            return Ok(());
        }
        let old = self.old;
        let node = old.node(id);
        self.origin = node.origin.clone();
        let operands: SmallVec<[Value; 3]> = node.operands.iter().map(|v| self.value(*v)).collect();
        let same_types = node
            .operands
            .iter()
            .zip(&operands)
            .all(|(a, b)| old.ty(*a) == self.graph.ty(*b));
        match &node.op {
            Op::Constant(c) => {
                let value = self.constant_named(old.constants()[*c].clone());
                self.set(id, value);
                return Ok(());
            }
            Op::Input { .. } => return Ok(()),
            _ => {}
        }
        if node.results.len() == 1 && !self.rules.is_empty() {
            let want = same_types.then_some(&node.results[0]);
            self.copying = Some(id);
            let found = self.try_rules(&node.op, &operands, want);
            self.copying = None;
            if let Some(value) = found? {
                self.set(id, value);
                return Ok(());
            }
        }
        let made = if same_types {
            self.intern(&node.op, &operands, |graph, origin| {
                Ok(graph.push(node.op.clone(), &operands, node.results.iter().cloned(), origin))
            })?
        } else {
            self.plain(&node.op, &operands)?
        };
        let values: SmallVec<[Value; 1]> = (0..node.results.len()).map(|i| Value::new(made, i as u32)).collect();
        self.map[id.index()] = values;
        Ok(())
    }

    /// Copies a node and whatever it needs that is not there yet.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn copy_deep(&mut self, id: NodeId) -> Result<(), PassFault> {
        let mut stack = vec![id];
        while let Some(top) = stack.last().copied() {
            let old = self.old;
            let missing = old.node(top).operands.iter().map(|v| v.node).filter(|n| !self.has(*n));
            let before = stack.len();
            stack.extend(missing.collect::<Vec<_>>());
            if stack.len() == before {
                self.copy(top)?;
                stack.pop();
            }
        }
        Ok(())
    }

    /// Copies every node that is not there yet.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn copy_rest(&mut self) -> Result<(), PassFault> {
        for id in self.old.nodes().keys() {
            self.copy(id)?;
        }
        Ok(())
    }

    fn try_rules(
        &mut self,
        op: &Op,
        operands: &[Value],
        want: Option<&TensorType>,
    ) -> Result<Option<Value>, PassFault> {
        if self.depth >= MAX_DEPTH {
            return Ok(None);
        }
        self.depth += 1;
        let mut found = None;
        for i in 0..self.rules.len() {
            let rule = self.rules[i];
            let value = match (rule.apply)(self, op, operands) {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                // Sizes that the algebra of dims cannot prove equal: the graph stays as it was.
                Err(PassFault::Infer { origin, error }) => {
                    tracing::debug!(rule = rule.name, %origin, %error, "rule does not type here");
                    continue;
                }
                Err(other) => return Err(other),
            };
            // A rewrite that spells a size differently would change the type users see.
            if want.is_some_and(|want| self.graph.ty(value) != want) {
                continue;
            }
            let origins = vec![self.origin.clone()];
            self.note(rule.name, origins, None, None);
            found = Some(value);
            break;
        }
        self.depth -= 1;
        Ok(found)
    }

    /// Reports an application of a rule.
    pub fn note(&mut self, rule: &'static str, origins: Vec<Origin>, cost: Option<(f64, f64)>, note: Option<String>) {
        self.fired.push(Fired {
            pass: self.pass,
            rule,
            origins,
            cost,
            note,
            proof: Vec::new(),
        });
    }

    /// Reports a choice with its proof.
    pub fn report(&mut self, fired: Fired) {
        self.fired.push(fired);
    }

    /// Emits an op with one result and returns it (rules apply).
    ///
    /// # Errors
    /// When the operands do not type.
    pub fn emit(&mut self, op: Op, operands: &[Value]) -> Result<Value, PassFault> {
        if !self.rules.is_empty()
            && let Some(value) = self.try_rules(&op, operands, None)?
        {
            return Ok(value);
        }
        Ok(self.plain(&op, operands)?.into())
    }

    /// Emits an op without offering it to the rules.
    ///
    /// # Errors
    /// When the operands do not type.
    pub fn plain(&mut self, op: &Op, operands: &[Value]) -> Result<NodeId, PassFault> {
        self.intern(op, operands, |graph, origin| {
            graph
                .add(op.clone(), operands, origin.clone())
                .map_err(|error| PassFault::Infer {
                    origin,
                    error: Box::new(error),
                })
        })
    }

    fn intern(
        &mut self,
        op: &Op,
        operands: &[Value],
        make: impl FnOnce(&mut Graph, Origin) -> Result<NodeId, PassFault>,
    ) -> Result<NodeId, PassFault> {
        let key = (op.clone(), SmallVec::from_slice(operands));
        if let Some(id) = self.memo.get(&key) {
            return Ok(*id);
        }
        let id = make(&mut self.graph, self.origin.clone())?;
        self.memo.insert(key, id);
        Ok(id)
    }

    /// Emits a constant; equal ones are one.
    pub fn constant(&mut self, tensor: HostTensor) -> Value {
        self.constant_named(Constant { name: None, tensor })
    }

    /// Emits a constant with a name.
    pub fn constant_named(&mut self, constant: Constant) -> Value {
        let tensor = &constant.tensor;
        let ty = TensorType::new(tensor.dtype, tensor.shape.clone());
        let graph = &mut self.graph;
        let alike = self.constants.entry(ConstKey::of(tensor)).or_default();
        let found = (alike.iter().copied()).find(|id| same_bytes(&graph.constants()[*id].tensor, tensor));
        let id = found.unwrap_or_else(|| {
            let id = graph.push_constant(constant);
            alike.push(id);
            id
        });
        let op = Op::Constant(id);
        let key = (op.clone(), SmallVec::new());
        if let Some(node) = self.memo.get(&key) {
            return (*node).into();
        }
        let node = self.graph.push(op, &[], [ty], self.origin.clone());
        self.memo.insert(key, node);
        node.into()
    }

    /// Emits a scalar constant.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Value {
        let scalar = match dtype {
            DType::Bool => Scalar::Bool(value != 0.0),
            d if d.is_int() => Scalar::Int(value as i64),
            _ => Scalar::Float(value),
        };
        self.constant(HostTensor::scalar(dtype, scalar))
    }

    /// Returns the constant a new value reads, if it reads one.
    pub fn as_constant(&self, value: Value) -> Option<&HostTensor> {
        self.graph.as_constant(value)
    }

    /// Returns the number that every element of the value is, looking through broadcasts, reshapes and exact casts.
    pub fn as_scalar(&self, value: Value) -> Option<Scalar> {
        crate::analysis::known_scalar(&self.graph, value)
    }

    /// Sets the outputs and drops what they do not need.
    pub fn finish(self, fired: &mut Vec<Fired>) -> Graph {
        self.finish_with(Vec::new(), fired)
    }

    /// As [`finish`](Self::finish), with more outputs behind those of the old graph.
    pub fn finish_with(mut self, more: Vec<(String, Value)>, fired: &mut Vec<Fired>) -> Graph {
        for output in self.old.outputs() {
            let value = match self.outputs.get(&output.name) {
                Some(value) => *value,
                None => self.value(output.value),
            };
            self.graph.add_output_like(output, value);
        }
        for (name, value) in more {
            self.graph.add_output(name, value);
        }
        for check in &self.checks {
            self.graph.add_output_like(check, check.value);
        }
        fired.append(&mut self.fired);
        crate::dce::sweep(self.graph)
    }
}

/// Says of each node whether it rounds to whole numbers, or its result reaches a node that does by arithmetic and views
/// alone.
fn rounded(graph: &Graph) -> Vec<bool> {
    let mut rounded = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().rev() {
        let rounds = match node.op {
            Op::Elementwise(Elementwise::Unary(op)) => op.kind() == UnaryKind::Rounding,
            Op::Elementwise(Elementwise::Cast(to)) => {
                graph.ty(node.operands[0]).dtype.is_float() && (to.is_int() || to.is_float() && to.bits() == 8)
            }
            Op::Composite(Composite::Quantize { .. }) => true,
            _ => false,
        };
        let passes_on = match node.op {
            Op::View(_) | Op::Elementwise(Elementwise::Select | Elementwise::Cast(_)) => true,
            Op::Elementwise(Elementwise::Unary(op)) => op.is(UnaryLaw::PiecewiseLinear),
            Op::Elementwise(Elementwise::Binary(op)) => !op.is_comparison(),
            _ => false,
        };
        rounded[id.index()] |= rounds;
        if rounds || passes_on && rounded[id.index()] {
            node.operands.iter().for_each(|v| rounded[v.node.index()] = true);
        }
    }
    rounded
}
