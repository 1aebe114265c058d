//! Integer and bool tensors as functions of position.
//!
//! Exporters spell masks and positions by tensors of indices: `Range`, `Expand`, `GatherND`, `CumSum`, comparisons.
//! Most of them are affine in the position of the element, or a comparison of two that are:
//! `mask[b, 0, s, t] = (t <= s)`. This analysis finds those, in one forward walk, so that the causal mask is seen as
//! such and index arithmetic folds away.
//!
//! A fact is a statement about integers that never wrap. Element types do, so a function is kept only where all its
//! values fit the element type of its tensor: arithmetic that stays inside its type is arithmetic of integers.

use ir::dim::Symbols;
use ir::entity::Entity;
use ir::graph::eval::scalar::int_range;
use ir::op::{BinaryOp, Elementwise, Gather, ReduceOp, UnaryOp, View};
use ir::{DType, Dim, Graph, NodeId, Op, Shape, Value};

use super::fit;

/// Sizes that the model leaves open count as up to this when 64-bit positions are checked: what is larger than 2^63 for
/// these has a number in it that makes it so, not a size.
const OPEN_SIZE: i64 = 1 << 20;

/// `constant + Σ coefficients[axis] · position[axis]`. Axes of size 1 have coefficient 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Affine {
    pub coefficients: Vec<Dim>,
    pub constant: Dim,
}

impl Affine {
    /// Returns the constant when no axis matters.
    pub fn as_uniform(&self) -> Option<&Dim> {
        self.coefficients.iter().all(|c| c.is(0)).then_some(&self.constant)
    }

    fn combine(&self, other: &Affine, sign: i64) -> Affine {
        Affine {
            coefficients: self
                .coefficients
                .iter()
                .zip(&other.coefficients)
                .map(|(a, b)| a.clone() + b.clone() * sign)
                .collect(),
            constant: self.constant.clone() + other.constant.clone() * sign,
        }
    }

    fn scale(&self, by: &Dim) -> Affine {
        Affine {
            coefficients: self.coefficients.iter().map(|c| c.clone() * by).collect(),
            constant: self.constant.clone() * by,
        }
    }

    /// Returns bounds of the values over a shape.
    pub fn bounds(&self, shape: &Shape, symbols: &Symbols) -> (Option<i64>, Option<i64>) {
        let mut low = self.constant.clone();
        let mut high = self.constant.clone();
        for (c, size) in self.coefficients.iter().zip(shape.iter()) {
            let reach = c.clone() * (size.clone() - 1);
            match c.as_const() {
                Some(v) if v >= 0 => high = high + reach,
                Some(_) => low = low + reach,
                None if c.at_least(0, symbols) => high = high + reach,
                None => return (None, None),
            }
        }
        (low.bounds(symbols).0, high.bounds(symbols).1)
    }
}

/// What is known of the elements of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// An integer.
    Affine(Affine),
    /// A bool, the same everywhere.
    Bool(bool),
    /// A bool: true where the function is at least 0.
    AtLeastZero(Affine),
}

/// What is known of the elements of all nodes' first results.
pub struct KnownElements {
    facts: Vec<Option<Fact>>,
    /// The graph's symbols, each with a largest size.
    closed: Symbols,
}

impl KnownElements {
    /// Analyses a graph.
    pub fn of(graph: &Graph) -> KnownElements {
        let mut closed = graph.symbols().clone();
        for info in closed.values_mut() {
            info.max = info.max.or(Some(OPEN_SIZE.max(info.min)));
        }
        let mut facts = KnownElements {
            facts: Vec::new(),
            closed,
        };
        for id in graph.nodes().keys() {
            let fact = facts
                .transfer(graph, id)
                .map(|f| normal(f, &graph.node(id).results[0].shape))
                .filter(|f| match f {
                    Fact::Affine(a) => {
                        let ty = &graph.node(id).results[0];
                        facts.fits(a, ty.dtype, &ty.shape, graph.symbols())
                    }
                    Fact::Bool(_) | Fact::AtLeastZero(_) => true,
                });
            facts.facts.push(fact);
        }
        facts
    }

    /// Says whether a function never leaves the element type of a tensor, so that nothing wraps.
    fn fits(&self, a: &Affine, dtype: DType, shape: &Shape, symbols: &Symbols) -> bool {
        let (least, most) = int_range(dtype);
        // Sizes saturate at the ends of 64 bits: what is there may have been beyond them.
        let exact = |v: i64| v > i64::MIN && v < i64::MAX;
        let inside = |(low, high): (Option<i64>, Option<i64>)| {
            low.is_some_and(|v| v >= least && exact(v)) && high.is_some_and(|v| v <= most && exact(v))
        };
        a.coefficients.iter().filter_map(Dim::as_const).all(exact)
            && (inside(a.bounds(shape, symbols)) || dtype == DType::I64 && inside(a.bounds(shape, &self.closed)))
    }

    /// Returns what is known of a value.
    pub fn get(&self, value: Value) -> Option<&Fact> {
        (value.index == 0).then(|| self.facts[value.node.index()].as_ref())?
    }

    /// Returns the affine function of a value.
    pub fn affine(&self, value: Value) -> Option<&Affine> {
        match self.get(value)? {
            Fact::Affine(a) => Some(a),
            _ => None,
        }
    }

    fn transfer(&self, graph: &Graph, id: NodeId) -> Option<Fact> {
        let node = graph.node(id);
        let ty = node.results.first()?;
        if !(ty.dtype.is_int() || ty.dtype == DType::Bool) {
            return None;
        }
        let rank = ty.rank();
        let zeros = || vec![Dim::from(0); rank];
        let operand = |i: usize| self.get(node.operands[i]);
        // An operand's fact with leading axes added, as broadcasting does.
        let aligned = |i: usize| operand(i).map(|f| pad(f, rank));
        match &node.op {
            Op::Iota { axis, .. } => {
                let mut coefficients = zeros();
                coefficients[*axis] = Dim::from(1);
                Some(affine(coefficients, Dim::from(0)))
            }
            Op::DimValue(d) => Some(affine(zeros(), d.clone())),
            Op::Constant(_) => fact_of(graph, id.into()),
            Op::Elementwise(Elementwise::Cast(to)) => match (operand(0)?, *to) {
                (Fact::Bool(b), DType::Bool) => Some(Fact::Bool(*b)),
                (Fact::Bool(b), _) => Some(affine(zeros(), Dim::from(i64::from(*b)))),
                (Fact::Affine(a), DType::Bool) => a.as_uniform()?.as_const().map(|v| Fact::Bool(v != 0)),
                (f @ Fact::Affine(_), to) if to.is_int() => Some(f.clone()),
                (f @ Fact::AtLeastZero(_), DType::Bool) => Some(f.clone()),
                _ => None,
            },
            Op::Elementwise(Elementwise::Unary(op)) => match (op, operand(0)?) {
                (UnaryOp::Neg, Fact::Affine(a)) => Some(Fact::Affine(a.scale(&Dim::from(-1)))),
                (UnaryOp::Not, Fact::Bool(b)) => Some(Fact::Bool(!b)),
                (UnaryOp::Not, Fact::AtLeastZero(a)) => Some(Fact::AtLeastZero(minus_one(a.scale(&Dim::from(-1))))),
                _ => None,
            },
            Op::Elementwise(Elementwise::Binary(op)) => {
                let symbols = graph.symbols();
                let shape = &ty.shape;
                // Comparing does not wrap, whatever the operands' type, but here their difference is looked at.
                let boolean = |a: Affine| match a.bounds(shape, symbols) {
                    _ if !self.fits(&a, DType::I64, shape, symbols) => None,
                    (Some(low), _) if low >= 0 => Some(Fact::Bool(true)),
                    (_, Some(high)) if high < 0 => Some(Fact::Bool(false)),
                    _ => Some(Fact::AtLeastZero(a)),
                };
                match (op, aligned(0), aligned(1)) {
                    (BinaryOp::And, Some(Fact::Bool(true)), other) | (BinaryOp::And, other, Some(Fact::Bool(true))) => {
                        other
                    }
                    (BinaryOp::And, Some(Fact::Bool(false)), _) | (BinaryOp::And, _, Some(Fact::Bool(false))) => {
                        (ty.dtype == DType::Bool).then_some(Fact::Bool(false))
                    }
                    (BinaryOp::Or, Some(Fact::Bool(false)), other) | (BinaryOp::Or, other, Some(Fact::Bool(false))) => {
                        other
                    }
                    (BinaryOp::Or, Some(Fact::Bool(true)), _) | (BinaryOp::Or, _, Some(Fact::Bool(true))) => {
                        (ty.dtype == DType::Bool).then_some(Fact::Bool(true))
                    }
                    (_, Some(Fact::Affine(a)), Some(Fact::Affine(b))) => match op {
                        BinaryOp::Add => Some(Fact::Affine(a.combine(&b, 1))),
                        BinaryOp::Sub => Some(Fact::Affine(a.combine(&b, -1))),
                        BinaryOp::Mul => match (a.as_uniform(), b.as_uniform()) {
                            (Some(k), _) => Some(Fact::Affine(b.scale(k))),
                            (_, Some(k)) => Some(Fact::Affine(a.scale(k))),
                            _ => None,
                        },
                        BinaryOp::Ge => boolean(a.combine(&b, -1)),
                        BinaryOp::Le => boolean(b.combine(&a, -1)),
                        BinaryOp::Gt => boolean(minus_one(a.combine(&b, -1))),
                        BinaryOp::Lt => boolean(minus_one(b.combine(&a, -1))),
                        BinaryOp::Eq | BinaryOp::Ne => {
                            let difference = a.combine(&b, -1).as_uniform()?.as_const()?;
                            Some(Fact::Bool((difference == 0) == (*op == BinaryOp::Eq)))
                        }
                        _ => None,
                    },
                    _ => None,
                }
            }
            Op::Elementwise(Elementwise::Select) => match operand(0)? {
                Fact::Bool(true) => aligned(1),
                Fact::Bool(false) => aligned(2),
                _ => None,
            },
            Op::View(view) => self.view(graph, id, view),
            Op::Scan { op: ReduceOp::Sum, .. } => match operand(0)? {
                Fact::Affine(a) if a.as_uniform()?.is(0) => Some(affine(zeros(), Dim::from(0))),
                _ => None,
            },
            Op::Gather(gather) => {
                let data = operand(0)?;
                match uniform(data) {
                    Some(fact) => Some(pad_to(fact, rank)),
                    None => self.gather(graph, id, gather),
                }
            }
            _ => None,
        }
    }

    fn view(&self, graph: &Graph, id: NodeId, view: &View) -> Option<Fact> {
        let node = graph.node(id);
        let out = &node.results[0].shape;
        let rank = out.rank();
        if let View::Concat { axis } = view {
            return self.concat(graph, id, *axis);
        }
        let fact = self.get(node.operands[0])?;
        if let Some(f) = uniform(fact)
            && !matches!(view, View::Pad { .. })
        {
            return Some(pad_to(f, rank));
        }
        let input = &graph.ty(node.operands[0]).shape;
        match view {
            View::Reshape(_) => {
                let map = moved_axes(input, out)?;
                remap(fact, |a| {
                    let mut coefficients = vec![Dim::from(0); rank];
                    for (from, to) in map.iter().enumerate() {
                        if let Some(to) = to {
                            coefficients[*to] = a.coefficients[from].clone();
                        }
                    }
                    Some(Affine {
                        coefficients,
                        constant: a.constant.clone(),
                    })
                })
            }
            View::Transpose(perm) => remap(fact, |a| {
                Some(Affine {
                    coefficients: perm.iter().map(|p| a.coefficients[*p].clone()).collect(),
                    constant: a.constant.clone(),
                })
            }),
            View::Broadcast(_) => Some(pad(fact, rank)),
            View::Slice { starts, steps, .. } => remap(fact, |a| {
                let mut constant = a.constant.clone();
                for (c, start) in a.coefficients.iter().zip(starts) {
                    constant = constant + c.clone() * start;
                }
                Some(Affine {
                    coefficients: a.coefficients.iter().zip(steps).map(|(c, s)| c.clone() * *s).collect(),
                    constant,
                })
            }),
            View::Pad { .. } | View::Concat { .. } => None,
        }
    }

    /// Parts that continue one another: `[-1] ++ [0, 1, 2, …]` is `i - 1`.
    fn concat(&self, graph: &Graph, id: NodeId, axis: usize) -> Option<Fact> {
        let node = graph.node(id);
        let facts: Option<Vec<&Fact>> = node.operands.iter().map(|v| self.get(*v)).collect();
        let facts = facts?;
        if let Fact::Bool(b) = facts[0] {
            return facts.iter().all(|f| **f == Fact::Bool(*b)).then_some(Fact::Bool(*b));
        }
        let mut offset = Dim::from(0);
        let mut parts = Vec::new();
        for (fact, operand) in facts.iter().zip(&node.operands) {
            let Fact::Affine(a) = fact else { return None };
            let size = graph.ty(*operand).shape[axis].clone();
            parts.push((offset.clone(), size.clone(), a));
            offset = offset + size;
        }
        let step = match parts.iter().find(|(_, size, _)| !size.is(1)) {
            Some((_, _, a)) => a.coefficients[axis].clone(),
            None if parts.len() > 1 => parts[1].2.constant.clone() - &parts[0].2.constant,
            None => Dim::from(0),
        };
        let mut whole: Option<Affine> = None;
        for (offset, size, a) in &parts {
            let mut shifted = (*a).clone();
            if !size.is(1) && shifted.coefficients[axis] != step {
                return None;
            }
            shifted.coefficients[axis] = step.clone();
            shifted.constant = shifted.constant - step.clone() * offset;
            match &whole {
                Some(w) if *w != shifted => return None,
                Some(_) => {}
                None => whole = Some(shifted),
            }
        }
        whole.map(Fact::Affine)
    }

    /// A gather from an affine tensor by positions that stay inside.
    fn gather(&self, graph: &Graph, id: NodeId, gather: &Gather) -> Option<Fact> {
        let node = graph.node(id);
        let (data, out) = (graph.ty(node.operands[0]), &node.results[0].shape);
        let Fact::Affine(source) = self.get(node.operands[0])? else {
            return None;
        };
        let indices = self.gather_positions(graph, id, gather)?;
        let mut result = Affine {
            coefficients: vec![Dim::from(0); out.rank()],
            constant: source.constant.clone(),
        };
        for (axis, index) in indices.iter().enumerate() {
            let c = &source.coefficients[axis];
            if c.is(0) {
                continue;
            }
            if !stays_inside(index, out, &data.shape[axis], graph.symbols()) {
                return None;
            }
            result = result.combine(&index.scale(c), 1);
        }
        Some(Fact::Affine(result))
    }

    /// Returns, for each axis of a gather's data, the index as a function of the result's position.
    pub fn gather_positions(&self, graph: &Graph, id: NodeId, gather: &Gather) -> Option<Vec<Affine>> {
        let node = graph.node(id);
        let data = graph.ty(node.operands[0]);
        let out = node.results[0].rank();
        let unit = |axis: usize| {
            let mut coefficients = vec![Dim::from(0); out];
            coefficients[axis] = Dim::from(1);
            Affine {
                coefficients,
                constant: Dim::from(0),
            }
        };
        match gather {
            Gather::Take { axis } => {
                let index = self.affine(node.operands[1])?;
                let inner = index.coefficients.len();
                Some(
                    (0..data.rank())
                        .map(|a| match a.cmp(axis) {
                            std::cmp::Ordering::Less => unit(a),
                            std::cmp::Ordering::Equal => {
                                let mut coefficients = vec![Dim::from(0); out];
                                for (i, c) in index.coefficients.iter().enumerate() {
                                    coefficients[axis + i] = c.clone();
                                }
                                Affine {
                                    coefficients,
                                    constant: index.constant.clone(),
                                }
                            }
                            std::cmp::Ordering::Greater => unit(a + inner - 1),
                        })
                        .collect(),
                )
            }
            Gather::Nd { batch_dims: 0 } => {
                let parts = self.index_parts(graph, node.operands[1])?;
                let outer = graph.ty(node.operands[1]).rank() - 1;
                let mut result: Vec<Affine> = parts
                    .into_iter()
                    .map(|mut a| {
                        a.coefficients.truncate(outer);
                        a.coefficients.resize(out, Dim::from(0));
                        a
                    })
                    .collect();
                let taken = result.len();
                result.extend((taken..data.rank()).map(|a| unit(outer + a - taken)));
                Some(result)
            }
            _ => None,
        }
    }

    /// Splits the last axis of an index tensor into its components.
    pub fn index_parts(&self, graph: &Graph, indices: Value) -> Option<Vec<Affine>> {
        let node = graph.node(indices.node);
        let last = graph.ty(indices).rank().checked_sub(1)?;
        if let Op::View(View::Concat { axis }) = node.op
            && axis == last
        {
            let mut parts = Vec::new();
            for operand in &node.operands {
                parts.extend(self.index_parts(graph, *operand)?);
            }
            return Some(parts);
        }
        let width = graph.ty(indices).shape[last].as_const()?;
        let Some(a) = self.affine(indices) else {
            let lines = fit::components(graph.as_constant(indices)?)?;
            return Some(lines.into_iter().map(of_line).collect());
        };
        if width > fit::MOST_COMPONENTS as i64 {
            return None;
        }
        (0..width)
            .map(|i| {
                let mut part = a.clone();
                part.constant = part.constant + part.coefficients[last].clone() * i;
                part.coefficients[last] = Dim::from(0);
                Some(part)
            })
            .collect()
    }
}

/// Says whether an index is a valid one everywhere, and never negative.
pub fn stays_inside(index: &Affine, shape: &Shape, size: &Dim, symbols: &Symbols) -> bool {
    // `i` over an axis of the data's own size, whatever the symbols are.
    let mut axes = index.coefficients.iter().enumerate().filter(|(_, c)| !c.is(0));
    if let (Some((axis, c)), None) = (axes.next(), axes.next())
        && c.is(1)
        && index.constant.is(0)
        && shape[axis] == *size
    {
        return true;
    }
    let mut low = index.constant.clone();
    let mut high = index.constant.clone();
    for (c, size) in index.coefficients.iter().zip(shape.iter()) {
        let reach = c.clone() * (size.clone() - 1);
        match c.as_const() {
            Some(v) if v < 0 => low = low + reach,
            Some(_) => high = high + reach,
            None if c.at_least(0, symbols) => high = high + reach,
            None => return false,
        }
    }
    low.at_least(0, symbols) && (size.clone() - 1 - high).at_least(0, symbols)
}

fn affine(coefficients: Vec<Dim>, constant: Dim) -> Fact {
    Fact::Affine(Affine { coefficients, constant })
}

fn minus_one(mut a: Affine) -> Affine {
    a.constant = a.constant - 1;
    a
}

fn remap(fact: &Fact, f: impl Fn(&Affine) -> Option<Affine>) -> Option<Fact> {
    Some(match fact {
        Fact::Bool(b) => Fact::Bool(*b),
        Fact::Affine(a) => Fact::Affine(f(a)?),
        Fact::AtLeastZero(a) => Fact::AtLeastZero(f(a)?),
    })
}

/// Adds leading axes.
fn pad(fact: &Fact, rank: usize) -> Fact {
    let widen = |a: &Affine| {
        let mut coefficients = vec![Dim::from(0); rank - a.coefficients.len()];
        coefficients.extend(a.coefficients.iter().cloned());
        Affine {
            coefficients,
            constant: a.constant.clone(),
        }
    };
    match fact {
        Fact::Bool(b) => Fact::Bool(*b),
        Fact::Affine(a) => Fact::Affine(widen(a)),
        Fact::AtLeastZero(a) => Fact::AtLeastZero(widen(a)),
    }
}

/// Returns the fact if it is the same everywhere.
fn uniform(fact: &Fact) -> Option<Fact> {
    match fact {
        Fact::Bool(b) => Some(Fact::Bool(*b)),
        Fact::Affine(a) => a.as_uniform().map(|c| affine(Vec::new(), c.clone())),
        Fact::AtLeastZero(_) => None,
    }
}

fn pad_to(fact: Fact, rank: usize) -> Fact {
    match fact {
        Fact::Affine(a) => affine(vec![Dim::from(0); rank], a.constant),
        other => other,
    }
}

/// Clears coefficients of axes of size 1, so that equal functions are equal.
fn normal(fact: Fact, shape: &Shape) -> Fact {
    let clear = |mut a: Affine| {
        for (c, size) in a.coefficients.iter_mut().zip(shape.iter()) {
            if size.is(1) {
                *c = Dim::from(0);
            }
        }
        a
    };
    match fact {
        Fact::Affine(a) => Fact::Affine(clear(a)),
        Fact::AtLeastZero(a) => Fact::AtLeastZero(clear(a)),
        other => other,
    }
}

/// Where each axis of `from` is in `to`, if the reshape only adds and drops axes of size 1.
pub fn moved_axes(from: &Shape, to: &Shape) -> Option<Vec<Option<usize>>> {
    let mut targets = to.iter().enumerate().filter(|(_, d)| !d.is(1));
    let mut map = Vec::new();
    for d in from.iter() {
        if d.is(1) {
            map.push(None);
            continue;
        }
        let (axis, size) = targets.next()?;
        if size != d {
            return None;
        }
        map.push(Some(axis));
    }
    targets.next().is_none().then_some(map)
}

/// A small constant of integers; uniform bools.
fn fact_of(graph: &Graph, value: Value) -> Option<Fact> {
    let tensor = graph.as_constant(value).filter(|tensor| fit::is_small(tensor))?;
    if tensor.dtype == DType::Bool {
        let first = tensor.bytes[0];
        let uniform = tensor.bytes.iter().all(|b| *b == first);
        return uniform.then_some(Fact::Bool(first != 0));
    }
    fit::whole(tensor).map(|line| Fact::Affine(of_line(line)))
}

fn of_line((steps, first): (Vec<i64>, i64)) -> Affine {
    Affine {
        coefficients: steps.into_iter().map(Dim::from).collect(),
        constant: Dim::from(first),
    }
}
