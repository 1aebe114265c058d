//! What an op's row of the table works with: the node's inputs and attributes, and steps that add to the graph.
//!
//! The steps (`unary`, `binary`, `reshape`, …) keep shape arithmetic out of the graph: over known operands they give a
//! known result. So a row written with them folds by itself.

use std::sync::Arc;

use ir::convert::round_to;
use ir::dim::{Dim, Shape};
use ir::graph::infer::check_indices;
use ir::op::{BinaryOp, Composite, Contract, Elementwise, Gather, Op, ReduceOp, UnaryOp, View};
use ir::{DType, HostTensor, Origin, Scalar, TensorType};

use super::builder::{Builder, Like, Val};
use super::error::{NodeProblem, Step};
use super::known::{FOLD_LIMIT, Known};
use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, NodeProto, TensorProto};
use super::tensor::{element_type, tensor_view};

/// A node while it is imported.
pub(super) struct Node<'a> {
    pub build: &'a mut Builder,
    pub proto: &'a NodeProto,
    /// The node's attributes by name, with a function's references resolved.
    pub attributes: Vec<(&'a str, &'a AttributeProto)>,
    pub opset: i64,
    pub inputs: Vec<Option<Val>>,
    pub origin: Origin,
}

impl<'a> Node<'a> {
    // Inputs.

    /// Returns a required input.
    pub fn input(&self, index: usize) -> Step<Val> {
        self.optional(index)
            .ok_or_else(|| NodeProblem::MissingInput { index }.into())
    }

    /// Returns an input that may be left out.
    pub fn optional(&self, index: usize) -> Option<Val> {
        self.inputs.get(index).copied().flatten()
    }

    /// Returns all inputs of a variadic op; there is at least one.
    pub fn variadic(&self) -> Step<Vec<Val>> {
        self.input(0)?;
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    pub fn ty(&self, val: Val) -> &TensorType {
        self.build.ty(val)
    }

    pub fn dtype(&self, val: Val) -> DType {
        self.ty(val).dtype
    }

    pub fn shape(&self, val: Val) -> Shape {
        self.ty(val).shape.clone()
    }

    pub fn rank(&self, val: Val) -> usize {
        self.ty(val).rank()
    }

    /// Returns the numbers of a tensor that must be known; see [`Builder::numbers`].
    pub fn numbers(&mut self, val: Val, what: &str) -> Option<Arc<Known>> {
        self.build.numbers(val, what, Like::Near, &self.origin)
    }

    /// As [`Node::numbers`], where a float that another device rounds in another way decides something else.
    pub fn numbers_exactly(&mut self, val: Val, what: &str) -> Option<Arc<Known>> {
        self.build.numbers(val, what, Like::Exact, &self.origin)
    }

    /// Adds a condition: a run in which one of the bools is false fails with the message.
    pub fn require(&mut self, condition: Val, message: String) -> Step<()> {
        let condition = self.build.value(condition, &self.origin)?;
        self.build.require(condition, message, &self.origin)
    }

    /// Returns an input that must be known, as dims.
    pub fn known_dims(&mut self, index: usize, what: &'static str) -> Step<Vec<Dim>> {
        let val = self.input(index)?;
        let known = self.numbers(val, what).ok_or(NodeProblem::NotKnown { what, index })?;
        Ok(known.dims().ok_or(NodeProblem::ElementType {
            index,
            found: known.dtype,
            expected: "an integer type",
        })?)
    }

    /// Returns an input that must be a constant, as integers.
    pub fn known_ints(&mut self, index: usize, what: &'static str) -> Step<Vec<i64>> {
        let dims = self.known_dims(index, what)?;
        let ints: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
        Ok(ints.ok_or(NodeProblem::NotKnown { what, index })?)
    }

    /// Returns an input that must be a constant, as numbers.
    pub fn known_floats(&mut self, index: usize, what: &'static str) -> Step<Vec<f64>> {
        let val = self.input(index)?;
        let known = self.numbers(val, what).and_then(|k| k.floats());
        Ok(known.ok_or(NodeProblem::NotKnown { what, index })?)
    }

    /// Returns axes from an input or, in older opsets, from an attribute; `None` where there are none.
    pub fn axes(&mut self, index: usize) -> Step<Option<Vec<i64>>> {
        match self.optional(index) {
            Some(_) => self.known_ints(index, "list of axes").map(Some),
            None => self.ints("axes"),
        }
    }

    // Attributes.

    fn attribute(&self, name: &str, kind: AttributeType, expected: &'static str) -> Step<Option<&'a AttributeProto>> {
        let Some((_, found)) = self.attributes.iter().copied().find(|(n, _)| *n == name) else {
            return Ok(None);
        };
        // Before IR version 3 writers left the type out.
        if found.r#type != kind as i32 && found.r#type != AttributeType::Undefined as i32 {
            return Err(NodeProblem::AttributeType {
                name: name.to_owned(),
                expected,
            }
            .into());
        }
        Ok(Some(found))
    }

    pub fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|(n, _)| *n == name)
    }

    pub fn int(&self, name: &str) -> Step<Option<i64>> {
        Ok(self.attribute(name, AttributeType::Int, "an integer")?.map(|a| a.i))
    }

    pub fn int_or(&self, name: &str, default: i64) -> Step<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    pub fn flag(&self, name: &str) -> Step<bool> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub fn ints(&self, name: &str) -> Step<Option<Vec<i64>>> {
        Ok(self
            .attribute(name, AttributeType::Ints, "a list of integers")?
            .map(|a| a.ints.clone()))
    }

    pub fn float(&self, name: &str) -> Step<Option<f64>> {
        Ok(self
            .attribute(name, AttributeType::Float, "a float")?
            .map(|a| f64::from(a.f)))
    }

    pub fn float_or(&self, name: &str, default: f64) -> Step<f64> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    pub fn floats(&self, name: &str) -> Step<Option<Vec<f64>>> {
        let found = self.attribute(name, AttributeType::Floats, "a list of floats")?;
        Ok(found.map(|a| a.floats.iter().map(|v| f64::from(*v)).collect()))
    }

    pub fn text(&self, name: &str, default: &str) -> Step<String> {
        let found = self.attribute(name, AttributeType::String, "a string")?;
        Ok(found.map_or_else(|| default.to_owned(), |a| String::from_utf8_lossy(&a.s).into_owned()))
    }

    pub fn texts(&self, name: &str) -> Step<Option<Vec<String>>> {
        let found = self.attribute(name, AttributeType::Strings, "a list of strings")?;
        let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(found.map(|a| a.strings.iter().map(text).collect()))
    }

    pub fn tensor(&self, name: &str) -> Step<Option<HostTensor>> {
        match self
            .attribute(name, AttributeType::Tensor, "a tensor")?
            .and_then(|a| a.t.as_ref())
        {
            Some(tensor) => host_tensor(tensor).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the element type code of a tensor attribute.
    pub fn tensor_type(&self, name: &str) -> Step<Option<i64>> {
        let found = self.attribute(name, AttributeType::Tensor, "a tensor")?;
        Ok(found.and_then(|a| a.t.as_ref()).map(|t| i64::from(t.data_type)))
    }

    pub fn required<T>(&self, name: &str, found: Option<T>) -> Step<T> {
        found.ok_or_else(|| NodeProblem::MissingAttribute { name: name.to_owned() }.into())
    }

    /// An attribute's value that the op does not allow.
    pub fn bad<T>(&self, name: &str, value: impl std::fmt::Debug, expected: impl Into<String>) -> Step<T> {
        let (name, value) = (name.to_owned(), format!("{value:?}"));
        Err(NodeProblem::AttributeValue {
            name,
            value,
            expected: expected.into(),
        }
        .into())
    }

    /// A use of the op that graphc does not have.
    pub fn unsupported<T>(&self, what: impl Into<String>) -> Step<T> {
        Err(NodeProblem::Unsupported { what: what.into() }.into())
    }

    /// Refuses a rank.
    pub fn rank_error<T>(&self, index: usize, expected: impl Into<String>) -> Step<T> {
        let found = self.shape(self.input(index)?);
        Err(NodeProblem::Rank {
            index,
            found,
            expected: expected.into(),
        }
        .into())
    }

    /// Says whether a later node may use the output.
    pub fn wants(&self, output: usize) -> bool {
        self.proto.output.get(output).is_some_and(|name| !name.is_empty())
    }

    /// Refuses outputs beyond the first `count`.
    pub fn only_outputs(&self, count: usize, what: &str) -> Step<()> {
        if (count..self.proto.output.len()).any(|i| self.wants(i)) {
            return self.unsupported(what);
        }
        Ok(())
    }

    // Steps.

    /// Adds an op with one result.
    pub fn add(&mut self, op: Op, operands: &[Val]) -> Step<Val> {
        Ok(self.add_all(op, operands)?[0])
    }

    /// Adds an op, and returns all its results.
    pub fn add_all(&mut self, op: Op, operands: &[Val]) -> Step<Vec<Val>> {
        if matches!(op, Op::Gather(_) | Op::Scatter(_))
            && let Some(indices) = operands.get(1).and_then(|v| self.build.constant(*v))
        {
            let types: Vec<&TensorType> = operands.iter().map(|v| self.ty(*v)).collect();
            check_indices(&op, &types, &indices)?;
        }
        let operands = operands
            .iter()
            .map(|v| self.build.value(*v, &self.origin))
            .collect::<Step<Vec<_>>>()?;
        match &op {
            Op::View(View::Reshape(shape) | View::Broadcast(shape))
            | Op::Iota { shape, .. }
            | Op::Random { shape, .. } => small(shape)?,
            Op::View(View::Slice { sizes, .. }) => small(sizes)?,
            _ => {}
        }
        let node = self.build.graph.add_assuming(op, &operands, self.origin.clone())?;
        let results = &self.build.graph.node(node).results;
        results.iter().try_for_each(|ty| small(&ty.shape))?;
        let count = results.len();
        Ok((0..count)
            .map(|i| self.build.of_value(ir::Value::new(node, i as u32)))
            .collect())
    }

    pub fn composite(&mut self, composite: Composite, operands: &[Val]) -> Step<Val> {
        self.add(Op::Composite(composite), operands)
    }

    pub fn known(&mut self, known: Known) -> Val {
        self.build.of_known(known)
    }

    /// A scalar constant, rounded to the type.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Val {
        let tensor = if dtype.is_float() {
            HostTensor::scalar(dtype, Scalar::Float(value))
        } else {
            HostTensor::scalar(dtype, Scalar::Int(value as i64))
        };
        self.build.of_constant(None, tensor)
    }

    /// An integer scalar constant.
    pub fn int_scalar(&mut self, dtype: DType, value: i64) -> Val {
        self.build
            .of_constant(None, HostTensor::scalar(dtype, Scalar::Int(value)))
    }

    pub fn unary(&mut self, op: UnaryOp, x: Val) -> Step<Val> {
        if let Some(known) = self.build.known(x).and_then(|k| k.unary(op, &self.build.sizes)) {
            return Ok(self.known(known));
        }
        self.add(Op::unary(op), &[x])
    }

    /// Applies a binary op with broadcasting; the types must be the same.
    pub fn binary(&mut self, op: BinaryOp, a: Val, b: Val) -> Step<Val> {
        let (left, right) = (self.dtype(a), self.dtype(b));
        if left != right {
            return Err(NodeProblem::TypesDiffer { left, right }.into());
        }
        if let Some((x, y)) = self.both_known(a, b)
            && let Some(known) = Known::binary(op, &x, &y, &self.build.sizes)
        {
            return Ok(self.known(known));
        }
        let (left, right) = (self.shape(a), self.shape(b));
        self.build.broadcast(&left, &right)?;
        self.add(Op::binary(op), &[a, b])
    }

    /// Both tensors' elements: where those of one are known, the other is evaluated if constants alone decide it.
    fn both_known(&mut self, a: Val, b: Val) -> Option<(Arc<Known>, Arc<Known>)> {
        match (self.build.known(a), self.build.known(b)) {
            (Some(x), Some(y)) => Some((x, y)),
            (Some(x), None) if x.is_open() => Some((x, self.build.folded(b)?)),
            (None, Some(y)) if y.is_open() => Some((self.build.folded(a)?, y)),
            _ => None,
        }
    }

    /// Applies a binary op to a tensor and a number of its type.
    /// Applies a binary op to a tensor and a number. A number that the tensor's integers do not have, such as 0.5, is
    /// not cut to one: the op is computed in `f64`, and the fraction of its result is cut off.
    pub fn with_scalar(&mut self, op: BinaryOp, a: Val, b: f64) -> Step<Val> {
        let dtype = self.dtype(a);
        if self.holds(dtype, b) {
            let b = self.scalar(dtype, b);
            return self.binary(op, a, b);
        }
        let (a, b) = (self.cast(a, DType::F64)?, self.scalar(DType::F64, b));
        let result = self.binary(op, a, b)?;
        if op.is_comparison() {
            Ok(result)
        } else {
            self.cast(result, dtype)
        }
    }

    /// Says whether a type has the number: floats have all (rounded), integers the whole ones of their range.
    pub fn holds(&self, dtype: DType, value: f64) -> bool {
        dtype.is_float() || round_to(dtype, value) == value
    }

    pub fn select(&mut self, condition: Val, yes: Val, no: Val) -> Step<Val> {
        let (left, right) = (self.dtype(yes), self.dtype(no));
        if left != right {
            return Err(NodeProblem::TypesDiffer { left, right }.into());
        }
        if let (Some(c), Some(y), Some(n)) = (self.build.known(condition), self.build.known(yes), self.build.known(no))
            && let Some(known) = Known::choose(&c, &y, &n)
        {
            return Ok(self.known(known));
        }
        let (c, y, n) = (self.shape(condition), self.shape(yes), self.shape(no));
        let shape = self.build.broadcast(&c, &y)?;
        self.build.broadcast(&shape, &n)?;
        self.add(Op::Elementwise(Elementwise::Select), &[condition, yes, no])
    }

    pub fn cast(&mut self, x: Val, to: DType) -> Step<Val> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        if let Some(known) = self.build.known(x).and_then(|k| k.cast(to, &self.build.sizes)) {
            return Ok(self.known(known));
        }
        self.add(Op::cast(to), &[x])
    }

    pub fn reshape(&mut self, x: Val, shape: impl Into<Shape>) -> Step<Val> {
        let (to, from) = (shape.into(), self.shape(x));
        if to == from {
            return Ok(x);
        }
        if let (Some(known), Some(sizes)) = (self.build.known(x), const_sizes(&to))
            && let Some(known) = known.select(sizes, 0..known.elements.len())
        {
            return Ok(self.known(known));
        }
        small(&to)?;
        self.build.require_equal(&from.elements(), &to.elements())?;
        self.add(Op::View(View::Reshape(to)), &[x])
    }

    pub fn transpose(&mut self, x: Val, perm: Vec<usize>) -> Step<Val> {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(x);
        }
        if let Some(known) = self.build.known(x).and_then(|k| k.transpose(&perm)) {
            return Ok(self.known(known));
        }
        self.add(Op::View(View::Transpose(perm)), &[x])
    }

    /// Broadcasts to a shape, which is at least as large as the operand's.
    pub fn broadcast(&mut self, x: Val, shape: Shape) -> Step<Val> {
        let from = self.shape(x);
        if from == shape {
            return Ok(x);
        }
        if let (Some(known), Some(sizes)) = (self.build.known(x), const_sizes(&shape))
            && let Some(known) = known.broadcast(&sizes)
        {
            return Ok(self.known(known));
        }
        self.add(Op::View(View::Broadcast(shape)), &[x])
    }

    /// Takes `start + i·step`, `i < size`, along each axis.
    pub fn slice(&mut self, x: Val, starts: Vec<Dim>, sizes: Vec<Dim>, steps: Vec<i64>) -> Step<Val> {
        let shape = self.shape(x);
        if steps.iter().all(|s| *s == 1) && starts.iter().all(|s| s.is(0)) && sizes == shape.0 {
            return Ok(x);
        }
        let from: Option<Vec<i64>> = starts.iter().map(Dim::as_const).collect();
        if let (Some(known), Some(from), Some(sizes)) = (self.build.known(x), from, const_sizes(&sizes))
            && let Some(known) = known.slice(&from, &sizes, &steps)
        {
            return Ok(self.known(known));
        }
        self.add(Op::View(View::Slice { starts, sizes, steps }), &[x])
    }

    /// Takes `size` elements from `start` on along one axis.
    pub fn slice_axis(&mut self, x: Val, axis: usize, start: impl Into<Dim>, size: impl Into<Dim>) -> Step<Val> {
        let mut sizes = self.shape(x).0;
        let mut starts = vec![Dim::Const(0); sizes.len()];
        let steps = vec![1; sizes.len()];
        starts[axis] = start.into();
        sizes[axis] = size.into();
        self.slice(x, starts, sizes, steps)
    }

    pub fn concat(&mut self, parts: &[Val], axis: usize) -> Step<Val> {
        if let [one] = parts {
            return Ok(*one);
        }
        let first = self.ty(parts[0]).clone();
        for part in &parts[1..] {
            let ty = self.ty(*part).clone();
            if ty.dtype != first.dtype {
                return Err(NodeProblem::TypesDiffer {
                    left: first.dtype,
                    right: ty.dtype,
                }
                .into());
            }
            if ty.rank() != first.rank() {
                let reason = "joined tensors have one rank".to_owned();
                return Err(NodeProblem::Shapes {
                    left: first.shape,
                    right: ty.shape,
                    reason,
                }
                .into());
            }
            for i in (0..first.rank()).filter(|i| *i != axis) {
                self.build.require_equal(&first.shape[i], &ty.shape[i])?;
            }
        }
        let open = parts
            .iter()
            .any(|p| self.build.known(*p).is_some_and(|known| known.is_open()));
        let of = |part: &Val| {
            if open {
                self.build.folded(*part)
            } else {
                self.build.known(*part)
            }
        };
        let known: Option<Vec<_>> = parts.iter().map(of).collect();
        if let Some(known) = known
            && let Some(known) = Known::concat(&known.iter().map(|k| &**k).collect::<Vec<_>>(), axis)
        {
            return Ok(self.known(known));
        }
        let operands: Vec<ir::Value> = parts
            .iter()
            .map(|v| self.build.value(*v, &self.origin))
            .collect::<Step<_>>()?;
        let joined = self.build.join(&operands, axis, &self.origin)?;
        small(&self.build.graph.ty(joined).shape)?;
        Ok(self.build.of_value(joined))
    }

    pub fn take(&mut self, x: Val, axis: usize, indices: Val) -> Step<Val> {
        if let Some((known, picks)) = self.both_known(x, indices)
            && let Some(known) = known.take(axis, &picks)
        {
            return Ok(self.known(known));
        }
        self.add(Op::Gather(Gather::Take { axis }), &[x, indices])
    }

    /// Folds axes, which are sorted; without any, every element is its own fold.
    pub fn reduce(&mut self, op: ReduceOp, x: Val, axes: Vec<usize>, keep_dims: bool) -> Step<Val> {
        if axes.is_empty() {
            return Ok(x);
        }
        if !matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
            && let Some(known) = self
                .build
                .known(x)
                .and_then(|k| k.reduce(op, &axes, keep_dims, &self.build.sizes))
        {
            return Ok(self.known(known));
        }
        self.add(Op::Reduce { op, axes, keep_dims }, &[x])
    }

    /// `[…, m, k] × […, k, n]` in the operands' type.
    /// Sums along an axis up to each element; `exclusive`: without it.
    pub fn running_sum(&mut self, x: Val, axis: usize, exclusive: bool) -> Step<Val> {
        let op = Op::Scan {
            op: ReduceOp::Sum,
            axis,
            exclusive,
            reverse: false,
        };
        self.add(op, &[x])
    }

    pub fn contract(&mut self, a: Val, b: Val, transpose_lhs: bool, transpose_rhs: bool, out: DType) -> Step<Val> {
        let (left, right) = (self.shape(a), self.shape(b));
        if let ([lb @ .., l0, l1], [rb @ .., r0, r1]) = (&*left, &*right) {
            self.build
                .require_equal(if transpose_lhs { l0 } else { l1 }, if transpose_rhs { r1 } else { r0 })?;
            self.build.broadcast(&lb.into(), &rb.into())?;
        }
        self.add(
            Op::Contract(Contract {
                transpose_lhs,
                transpose_rhs,
                out,
            }),
            &[a, b],
        )
    }

    /// The position along `axis` of a shape.
    pub fn iota(&mut self, shape: Shape, axis: usize, dtype: DType) -> Step<Val> {
        if let [dim] = &*shape
            && let Some(n) = dim.as_const().filter(|n| *n <= FOLD_LIMIT as i64)
            && !dtype.is_float()
        {
            let dims = (0..n.max(0)).map(Dim::Const).collect();
            return Ok(self.known(Known {
                dtype,
                ..Known::vector(dims)
            }));
        }
        self.add(Op::Iota { shape, axis, dtype }, &[])
    }

    // Helpers.

    /// Resolves an axis that may count from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Step<usize> {
        let at = if axis < 0 {
            axis.saturating_add(rank as i64)
        } else {
            axis
        };
        match usize::try_from(at) {
            Ok(at) if at < rank => Ok(at),
            _ => Err(NodeProblem::Axis { axis, rank }.into()),
        }
    }

    /// Resolves, sorts and checks a list of axes.
    pub fn axis_list(&self, axes: &[i64], rank: usize) -> Step<Vec<usize>> {
        let mut list = axes.iter().map(|a| self.axis(*a, rank)).collect::<Step<Vec<_>>>()?;
        list.sort_unstable();
        list.dedup();
        if list.len() != axes.len() {
            return Err(NodeProblem::Value {
                what: "list of axes",
                found: format!("{axes:?}"),
                expected: "each axis once".to_owned(),
            }
            .into());
        }
        Ok(list)
    }

    /// Demands a floating-point input.
    pub fn require_float(&self, index: usize) -> Step<DType> {
        let found = self.dtype(self.input(index)?);
        if found.is_float() {
            Ok(found)
        } else {
            Err(NodeProblem::ElementType {
                index,
                found,
                expected: "a floating-point type",
            }
            .into())
        }
    }
}

/// Refuses a shape whose number of elements is an expression that only an absurd model has.
pub(super) fn small(dims: &[Dim]) -> Step<()> {
    let product = dims
        .iter()
        .try_fold(Dim::Const(1), |product, dim| product.checked_mul(dim));
    match product {
        Some(_) => Ok(()),
        None => Err(NodeProblem::LargeSizes { rank: dims.len() }.into()),
    }
}

/// Returns the sizes if all are constants and small enough to fold.
fn const_sizes(dims: &[Dim]) -> Option<Vec<usize>> {
    let sizes: Option<Vec<usize>> = dims.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    sizes.filter(|s| {
        s.iter()
            .try_fold(1usize, |n, d| n.checked_mul(*d))
            .is_some_and(|n| n <= FOLD_LIMIT)
    })
}

/// Reads a tensor message into the `ir`'s tensor.
pub(super) fn host_tensor(tensor: &TensorProto) -> Step<HostTensor> {
    Ok(tensor_view(tensor)?.to_host()?)
}

/// Maps an ONNX element type code.
pub(super) fn dtype_of(code: i64) -> Step<DType> {
    let element = i32::try_from(code).ok().and_then(element_type);
    Ok(element
        .and_then(|e| e.dtype())
        .ok_or(NodeProblem::UnknownElementType { code })?)
}
