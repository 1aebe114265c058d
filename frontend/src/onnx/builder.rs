//! The graph under construction, with values that come into being when they are first needed as data.
//!
//! A [`Val`] is a tensor of the ONNX graph. It is known (shape arithmetic), a constant that no node reads yet, a value
//! of the graph, or several of these; [`Builder::value`] makes the graph's value. So shapes and unused initializers
//! leave no node, and a size that is needed as data becomes `Op::DimValue`.

use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;
use ir::dim::{Dim, Shape};
use ir::op::{BinaryOp, Op, ReduceOp, UnaryOp, View};
use ir::{DType, Graph, HostTensor, Origin, TensorType, Value};

use super::error::{NodeProblem, Step};
use super::fold;
use super::known::{Element, Known};
use super::options::{GivenEvaluator, ImportOptions};
use super::sizes::{Equal, Sizes};
use super::unsigned::Unsigned;
use crate::onnx::error::Fail;

/// How the numbers of a run are like those that a graph was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Like {
    Exact,
    /// Floats are within [`NEAR`]: a device's own rounding makes no other sizes.
    Near,
}

/// A condition of the graph: a run in which it is false fails.
#[derive(Clone, Debug)]
struct Check {
    message: String,
    value: Value,
    kind: CheckKind,
}

/// What a condition is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckKind {
    /// Numbers that the graph was made for. What was made of them may be anywhere.
    Assumed,
    /// An op, which need not be computed where its branch is not taken.
    Required,
}

/// How far a float that sizes are made of may be from the one that a graph was made for, as a part of it.
const NEAR: f64 = 1e-5;

/// A tensor of the ONNX graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Val(u32);

/// The graph and the tensors that nodes have given so far.
pub(super) struct Builder {
    pub graph: Graph,
    pub sizes: Sizes,
    slots: Vec<Slot>,
    dim_values: IndexMap<Dim, Value>,
    /// Conditions on inputs and on what is made of them. A graph's conditions come after its other outputs.
    checks: Vec<Check>,
    /// The inputs of the run that the graph is for, where there is one, and what computes with them.
    given: IndexMap<String, HostTensor>,
    evaluator: GivenEvaluator,
}

#[derive(Clone)]
struct Slot {
    ty: TensorType,
    /// What the model declares, where `ty` is wider.
    declared: Option<Unsigned>,
    known: Option<Arc<Known>>,
    /// Whether it was looked for among what constants alone decide, and not found.
    depends: bool,
    constant: Option<(Option<String>, HostTensor)>,
    value: Option<Value>,
    sequence: Option<Sequence>,
}

/// What is no tensor.
#[derive(Clone)]
enum Sequence {
    Of(Arc<[Val]>),
    /// An optional without an element.
    Nothing,
}

impl Builder {
    /// Makes a builder whose graph declares the symbols that are not replaced, for the inputs that the options give.
    pub fn new(name: &str, sizes: Sizes, options: &ImportOptions) -> Builder {
        let mut graph = Graph::new(name);
        let free = sizes.symbols.iter().filter(|(s, _)| !sizes.replaced.contains_key(*s));
        for (symbol, info) in free {
            graph.declare_symbol(symbol.clone(), *info);
        }
        Builder {
            graph,
            sizes,
            slots: Vec::new(),
            dim_values: IndexMap::new(),
            checks: Vec::new(),
            given: options
                .given
                .iter()
                .filter_map(|(name, given)| Some((name.clone(), given.data.clone()?)))
                .collect(),
            evaluator: options.evaluator.clone(),
        }
    }

    fn slot(&mut self, slot: Slot) -> Val {
        self.slots.push(slot);
        Val((self.slots.len() - 1) as u32)
    }

    /// A value of the graph.
    pub fn of_value(&mut self, value: Value) -> Val {
        let ty = self.graph.ty(value).clone();
        self.slot(Slot {
            ty,
            declared: None,
            depends: false,
            known: None,
            constant: None,
            value: Some(value),
            sequence: None,
        })
    }

    /// An input whose numbers are taken as known; the graph checks that they are.
    pub fn of_given(&mut self, name: &str, value: Value, integers: &[i64]) -> Step<Val> {
        let ty = self.graph.ty(value).clone();
        let val = self.of_value(value);
        let Some(shape) = ty.shape.as_consts() else {
            return Ok(val);
        };
        let shape: Vec<usize> = shape.into_iter().map(|n| n.max(0) as usize).collect();
        let Ok(tensor) = HostTensor::from_i64(ty.dtype, shape, integers) else {
            return Ok(val);
        };
        self.slots[val.0 as usize].known = Known::from_tensor(&tensor).map(Arc::new);
        let message =
            format!("the model was compiled for the numbers {integers:?} of input {name:?}, and this run has others");
        self.require_equal_numbers(value, tensor, Like::Exact, message, &Origin::Named(name.into()))?;
        Ok(val)
    }

    /// Adds a condition: a run in which a value has other numbers than the tensor fails with the message.
    fn require_equal_numbers(
        &mut self,
        value: Value,
        tensor: HostTensor,
        like: Like,
        message: String,
        origin: &Origin,
    ) -> Step<()> {
        let equal = if tensor.dtype.is_float() && like == Like::Near {
            let numbers = tensor.to_f64();
            let near = numbers.iter().map(|number| number.abs() * NEAR).collect::<Vec<_>>();
            let near = HostTensor::from_f64(DType::F32, tensor.shape.clone(), &near);
            let wanted = HostTensor::from_f64(DType::F32, tensor.shape.clone(), &numbers);
            let [Ok(near), Ok(wanted)] = [near, wanted] else {
                let what = format!("numbers of shape {:?} that a run is held against", tensor.shape);
                return Err(NodeProblem::Unsupported { what }.into());
            };
            let near = self.graph.add_constant(None, near, origin.clone());
            let wanted = self.graph.add_constant(None, wanted, origin.clone());
            let value = self.graph.cast(value, DType::F32, origin.clone())?;
            let distance = self.add(Op::binary(BinaryOp::Sub), &[value, wanted], origin)?;
            let distance = self.add(Op::unary(UnaryOp::Abs), &[distance], origin)?;
            self.add(Op::binary(BinaryOp::Le), &[distance, near], origin)?
        } else {
            let wanted = self.graph.add_constant(None, tensor, origin.clone());
            self.add(Op::binary(BinaryOp::Eq), &[value, wanted], origin)?
        };
        self.check(equal, message, CheckKind::Assumed, origin)
    }

    /// Adds a condition: a run in which one of the bools is false fails with the message, if what it is a condition of
    /// is computed.
    pub fn require(&mut self, condition: Value, message: String, origin: &Origin) -> Step<()> {
        self.check(condition, message, CheckKind::Required, origin)
    }

    fn check(&mut self, condition: Value, message: String, kind: CheckKind, origin: &Origin) -> Step<()> {
        let axes = (0..self.graph.ty(condition).rank()).collect::<Vec<_>>();
        let all = match axes.is_empty() {
            true => condition,
            false => {
                let op = Op::Reduce {
                    op: ReduceOp::All,
                    axes,
                    keep_dims: false,
                };
                self.add(op, &[condition], origin)?
            }
        };
        self.checks.push(Check {
            message,
            value: all,
            kind,
        });
        Ok(())
    }

    /// How many conditions there are so far.
    pub fn checks(&self) -> usize {
        self.checks.len()
    }

    /// Has the conditions of ops in a range of all hold only where a bool scalar is as it says: elsewhere the ops'
    /// results are not taken.
    pub fn require_only(&mut self, range: Range<usize>, where_true: Value, origin: &Origin) -> Step<()> {
        let elsewhere = self.add(Op::unary(UnaryOp::Not), &[where_true], origin)?;
        for at in range {
            if self.checks[at].kind == CheckKind::Required {
                self.checks[at].value =
                    self.add(Op::binary(BinaryOp::Or), &[self.checks[at].value, elsewhere], origin)?;
            }
        }
        Ok(())
    }

    /// Forgets the conditions of ops from one on, whose results are not used.
    pub fn forget_required(&mut self, from: usize) {
        let mut at = 0;
        self.checks.retain(|check| {
            at += 1;
            at <= from || check.kind == CheckKind::Assumed
        });
    }

    /// Adds the conditions to the graph, which has its outputs. Those of one message, as the layers of a model have
    /// them, become one, which every run takes to the host.
    ///
    /// # Errors
    /// Conditions that are no bools.
    pub fn finish(&mut self) -> Step<()> {
        let mut merged: IndexMap<String, Value> = IndexMap::new();
        for Check { message, value, .. } in std::mem::take(&mut self.checks) {
            let both = match merged.get(&message) {
                Some(other) if *other != value => {
                    self.add(Op::binary(BinaryOp::And), &[*other, value], &Origin::Unknown)?
                }
                _ => value,
            };
            merged.insert(message, both);
        }
        for (message, value) in merged {
            self.graph.add_check(message, value);
        }
        Ok(())
    }

    /// A known tensor.
    pub fn of_known(&mut self, known: Known) -> Val {
        let ty = TensorType::new(known.dtype, known.shape.as_slice());
        self.slot(Slot {
            ty,
            declared: None,
            depends: false,
            known: Some(Arc::new(known)),
            constant: None,
            value: None,
            sequence: None,
        })
    }

    /// A constant; no node reads it until its value is needed.
    pub fn of_constant(&mut self, name: Option<String>, tensor: HostTensor) -> Val {
        let known = Known::from_tensor(&tensor).map(Arc::new);
        let ty = TensorType::new(tensor.dtype, tensor.shape.as_slice());
        self.slot(Slot {
            ty,
            declared: None,
            depends: false,
            known,
            constant: Some((name, tensor)),
            value: None,
            sequence: None,
        })
    }

    /// A sequence of tensors, or of sequences.
    pub fn of_sequence(&mut self, elements: Vec<Val>) -> Val {
        self.of_sequence_like(Sequence::Of(elements.into()))
    }

    /// An optional without an element.
    pub fn of_nothing(&mut self) -> Val {
        self.of_sequence_like(Sequence::Nothing)
    }

    fn of_sequence_like(&mut self, sequence: Sequence) -> Val {
        self.slot(Slot {
            // No tensor has this type.
            ty: TensorType::new(DType::Bool, Shape::SCALAR),
            declared: None,
            depends: false,
            known: None,
            constant: None,
            value: None,
            sequence: Some(sequence),
        })
    }

    /// Returns the elements of a sequence; `None` for tensors.
    pub fn sequence(&self, val: Val) -> Option<Vec<Val>> {
        match &self.slots[val.0 as usize].sequence {
            Some(Sequence::Of(elements)) => Some(elements.to_vec()),
            _ => None,
        }
    }

    pub fn is_nothing(&self, val: Val) -> bool {
        matches!(self.slots[val.0 as usize].sequence, Some(Sequence::Nothing))
    }

    /// Returns the type that the model declares, where the tensor is computed in a wider one.
    pub fn declared(&self, val: Val) -> Option<Unsigned> {
        self.slots[val.0 as usize].declared
    }

    /// Returns the tensor with another declared type; the same one stays as it is for others.
    pub fn declare(&mut self, val: Val, declared: Option<Unsigned>) -> Val {
        let slot = &self.slots[val.0 as usize];
        if slot.declared == declared {
            return val;
        }
        let slot = Slot {
            declared,
            ..slot.clone()
        };
        self.slot(slot)
    }

    pub fn ty(&self, val: Val) -> &TensorType {
        &self.slots[val.0 as usize].ty
    }

    /// Returns the tensor's elements, where constants and sizes decide them.
    pub fn known(&self, val: Val) -> Option<Arc<Known>> {
        self.slots[val.0 as usize].known.clone()
    }

    /// As [`Builder::known`]; a tensor that nodes of the graph make of nothing but constants is evaluated.
    pub fn folded(&mut self, val: Val) -> Option<Arc<Known>> {
        let slot = &self.slots[val.0 as usize];
        if slot.known.is_some() || slot.depends {
            return slot.known.clone();
        }
        let tensor = match (&slot.constant, slot.value) {
            (Some((_, tensor)), _) => Some(tensor.clone()),
            (None, Some(value)) => fold::evaluate(&self.graph, value),
            (None, None) => None,
        };
        let known = tensor
            .and_then(|t| Known::of_most(&t, fold::MOST_ELEMENTS))
            .map(Arc::new);
        let slot = &mut self.slots[val.0 as usize];
        slot.depends = known.is_none();
        slot.known.clone_from(&known);
        known
    }

    /// As [`Builder::folded`], for numbers that an op cannot do without: where the graph is for the inputs of one run,
    /// those that data make are computed from these inputs, and the graph checks that a run has the same. `what` says
    /// what they are.
    pub fn numbers(&mut self, val: Val, what: &str, like: Like, origin: &Origin) -> Option<Arc<Known>> {
        if let Some(known) = self.folded(val) {
            return Some(known);
        }
        let value = self.slots[val.0 as usize].value.filter(|_| !self.given.is_empty())?;
        let alone = fold::of_inputs(&self.graph, value, &self.given)?;
        let inputs = alone.inputs().iter().filter_map(|input| {
            let tensor = self.given.get(&input.name)?.clone();
            Some((input.name.clone(), tensor))
        });
        let inputs = inputs.collect::<IndexMap<_, _>>();
        let tensor = self.evaluator.run(alone, &inputs).ok()?.into_iter().next()?;
        if tensor.dtype.is_float() && tensor.to_f64().iter().any(|number| !number.is_finite()) {
            return None;
        }
        let known = Arc::new(Known::of_most(&tensor, fold::MOST_ELEMENTS)?);
        let message = format!("the model was compiled for the {what} that the data of other inputs make at {origin}");
        self.require_equal_numbers(value, tensor, like, message, origin).ok()?;
        self.slots[val.0 as usize].known = Some(known.clone());
        Some(known)
    }

    /// Returns the tensor if it is a constant, whatever its size.
    pub fn constant(&self, val: Val) -> Option<HostTensor> {
        let slot = &self.slots[val.0 as usize];
        if let Some((_, tensor)) = &slot.constant {
            return Some(tensor.clone());
        }
        slot.known.as_ref().and_then(|k| k.to_tensor())
    }

    /// Returns the value in the graph, and makes it if there is none yet.
    pub fn value(&mut self, val: Val, origin: &Origin) -> Step<Value> {
        let slot = &mut self.slots[val.0 as usize];
        if let Some(value) = slot.value {
            return Ok(value);
        }
        let value = if let Some((name, tensor)) = &slot.constant {
            let origin = name
                .as_ref()
                .map_or_else(|| origin.clone(), |n| Origin::Named(n.as_str().into()));
            self.graph.add_constant(name.clone(), tensor.clone(), origin)
        } else if let Some(known) = slot.known.clone() {
            match known.to_tensor() {
                Some(tensor) => self.graph.add_constant(None, tensor, origin.clone()),
                None => self.symbolic(&known, origin)?,
            }
        } else {
            return Err(NodeProblem::Unsupported {
                what: "a sequence or an empty optional where a tensor must be".to_owned(),
            }
            .into());
        };
        self.slots[val.0 as usize].value = Some(value);
        Ok(value)
    }

    /// Makes a tensor of sizes.
    fn symbolic(&mut self, known: &Known, origin: &Origin) -> Step<Value> {
        let shape: Shape = known.shape.as_slice().into();
        let mut scalars = Vec::with_capacity(known.elements.len());
        for element in &known.elements {
            // Like elements are one value.
            let before = known.elements.iter().take(scalars.len()).position(|e| e == element);
            let scalar = match before {
                Some(at) => scalars[at],
                None => self.element(element, known.dtype, origin)?,
            };
            scalars.push(scalar);
        }
        if scalars.windows(2).all(|w| w[0] == w[1]) {
            return match shape.rank() {
                0 => Ok(scalars[0]),
                _ => self.add(Op::View(View::Broadcast(shape)), &[scalars[0]], origin),
            };
        }
        let mut parts = Vec::with_capacity(scalars.len());
        for scalar in scalars {
            parts.push(self.add(Op::View(View::Reshape([1i64].into())), &[scalar], origin)?);
        }
        let row = self.join(&parts, 0, origin)?;
        match shape.rank() {
            1 => Ok(row),
            _ => self.add(Op::View(View::Reshape(shape)), &[row], origin),
        }
    }

    /// A scalar of an element.
    fn element(&mut self, element: &Element, dtype: DType, origin: &Origin) -> Step<Value> {
        let number = |this: &mut Builder, dim: &Dim| -> Step<Value> {
            let value = this.dim_value(dim, origin)?;
            Ok(this.graph.cast(value, dtype, origin.clone())?)
        };
        match element {
            Element::Dim(dim) => number(self, dim),
            Element::Float(v) => Ok(self.graph.add_scalar(dtype, ir::Scalar::Float(*v), origin.clone())),
            Element::Ratio(ratio) => {
                let (above, below) = ratio.clone().parts();
                let mut value = number(self, &above)?;
                if !below.is(1) {
                    let below = number(self, &below)?;
                    value = self.add(Op::binary(BinaryOp::Div), &[value, below], origin)?;
                }
                if ratio.is_root() {
                    value = self.add(Op::unary(UnaryOp::Sqrt), &[value], origin)?;
                }
                Ok(value)
            }
        }
    }

    /// Joins values along an axis: many are joined in groups, since what computes an element looks at each part in
    /// turn.
    pub fn join(&mut self, parts: &[Value], axis: usize, origin: &Origin) -> Step<Value> {
        const MOST: usize = 64;
        let mut parts = parts.to_vec();
        while parts.len() > MOST {
            let groups = parts.chunks(MOST);
            let joined: Step<Vec<Value>> = groups
                .map(|group| match group {
                    [one] => Ok(*one),
                    group => self.add(Op::View(View::Concat { axis }), group, origin),
                })
                .collect();
            parts = joined?;
        }
        self.add(Op::View(View::Concat { axis }), &parts, origin)
    }

    fn dim_value(&mut self, dim: &Dim, origin: &Origin) -> Step<Value> {
        if let Some(value) = self.dim_values.get(dim) {
            return Ok(*value);
        }
        let value = match dim.as_const() {
            Some(v) => self.graph.add_scalar(DType::I64, ir::Scalar::Int(v), origin.clone()),
            None => self.add(Op::DimValue(dim.clone()), &[], origin)?,
        };
        self.dim_values.insert(dim.clone(), value);
        Ok(value)
    }

    fn add(&mut self, op: Op, operands: &[Value], origin: &Origin) -> Step<Value> {
        Ok(self.graph.add_assuming(op, operands, origin.clone())?.into())
    }

    /// Demands that two sizes are equal that the op that is added next needs to be equal: where it depends on the run,
    /// adding that op makes it an assumption of the graph. Asks for a restart where something is learnt of symbols.
    pub fn require_equal(&mut self, left: &Dim, right: &Dim) -> Step<()> {
        match self.sizes.require_equal(left, right) {
            Ok(Equal::Already | Equal::Open) => Ok(()),
            Ok(Equal::Assumed) => Err(Fail::Restart),
            Err(_) => Err(NodeProblem::Sizes {
                left: left.clone(),
                right: right.clone(),
            }
            .into()),
        }
    }

    /// As [`Builder::require_equal`], where no op that is added would see both sizes: `what` is said of them where a
    /// run has others.
    pub fn assume_equal(&mut self, left: &Dim, right: &Dim, what: &str, origin: &Origin) -> Step<()> {
        self.require_equal(left, right)?;
        self.assume(left, right, what, origin);
        Ok(())
    }

    /// Takes two sizes as equal without learning anything of symbols: a run that has others is refused, by `what`.
    pub fn assume(&mut self, left: &Dim, right: &Dim, what: &str, origin: &Origin) {
        self.graph.assume_equal(left, right, || format!("{what}, of {origin}"));
    }

    /// Lets a size be 0 that nothing is known of; asks for a restart where that is new.
    pub fn allow_empty(&mut self, dim: &Dim) -> Step<()> {
        match self.sizes.allow_empty(dim) {
            Equal::Already | Equal::Open => Ok(()),
            Equal::Assumed => Err(Fail::Restart),
        }
    }

    /// Broadcasts two shapes as NumPy does. Two sizes of which neither is 1 are required to be equal, also where one
    /// might be 1 in a run: that run is refused.
    pub fn broadcast(&mut self, left: &Shape, right: &Shape) -> Step<Shape> {
        let rank = left.rank().max(right.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(Dim::Const(1), |i| s[i].clone());
        let mut dims = Vec::with_capacity(rank);
        for i in 0..rank {
            let (l, r) = (at(left, i), at(right, i));
            if l == r || r.is(1) {
                dims.push(l);
                continue;
            }
            if l.is(1) {
                dims.push(r);
                continue;
            }
            match self.sizes.require_equal(&l, &r) {
                Ok(Equal::Already | Equal::Open) => dims.push(l),
                Ok(Equal::Assumed) => return Err(Fail::Restart),
                Err(_) => {
                    let reason = format!("{l} and {r} are never equal, and neither is 1");
                    return Err(NodeProblem::Shapes {
                        left: left.clone(),
                        right: right.clone(),
                        reason,
                    }
                    .into());
                }
            }
        }
        Ok(Shape(dims))
    }
}
