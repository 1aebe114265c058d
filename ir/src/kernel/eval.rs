//! What a kernel means: a slow, plain interpreter of every body over host buffers.
//!
//! Arithmetic is that of [`graph::eval`](crate::graph::eval): `f64` for floats, rounded by `Cast` and by what is
//! stored; `i64` wrapping to the type's width for integers. The mapping is not looked at. Lowering is tested by this,
//! without a device.

mod recurrent;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{
    Access, AttentionBody, AxisId, Body, ContractBody, CopyBody, Expr, ExprId, GemvTiling, Kernel, Mapping, Operand,
    ParamId, RowBody, ScanBody, SortBody, Stmt, TransformBody, VarId, Weights, WindowBody, both_sides,
};
use crate::data::HostTensor;
use crate::dim::{Bindings, DimError};
use crate::entity::{Entity, Table};
use crate::graph::eval::array::wrap;
use crate::graph::eval::random::philox;
use crate::graph::eval::{Array, Data, scalar};
use crate::graph::op::ReduceOp;
use crate::types::{DType, Scalar};

/// Why a kernel could not be evaluated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelEvalError {
    #[error("kernel {kernel}: {error}")]
    Size { kernel: String, error: DimError },
    #[error("kernel {kernel} takes {expected} buffers, but {got} were given")]
    BufferCount {
        kernel: String,
        expected: usize,
        got: usize,
    },
    #[error("kernel {kernel}: buffer {param} is {got}, but must be {expected}")]
    Buffer {
        kernel: String,
        param: String,
        got: String,
        expected: String,
    },
    #[error("kernel {kernel}: {what} element {index} of {param}, which has {elements}")]
    OutOfBounds {
        kernel: String,
        what: &'static str,
        param: String,
        index: i64,
        elements: usize,
    },
}

type Evaluated<T> = Result<T, KernelEvalError>;

/// Says whether an element of a written parameter is asked for.
pub type Wanted<'a> = &'a dyn Fn(ParamId, usize) -> bool;

/// Runs a kernel once; `buffers` are in the order of its parameters, and those it writes are replaced.
///
/// # Errors
/// Buffers that are not what the parameters say, a size that is not bound, or an access out of bounds.
pub fn evaluate(kernel: &Kernel, buffers: &mut [HostTensor], bindings: &Bindings) -> Evaluated<()> {
    evaluate_some(kernel, buffers, bindings, None)
}

/// As [`evaluate`], but only elements that are wanted need to be computed; others may keep what they were.
///
/// Points that store nothing wanted are passed over, so that a few elements of a large kernel are cheap. A kernel that
/// updates what is there (scatter) must be asked for whole.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_some(
    kernel: &Kernel,
    buffers: &mut [HostTensor],
    bindings: &Bindings,
    wanted: Option<Wanted<'_>>,
) -> Evaluated<()> {
    evaluate_for(kernel, buffers, bindings, wanted, Products::Exact)
}

/// How a device multiplies on its matrix and dot instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Products {
    /// Every number counts.
    Exact,
    /// Subnormal numbers of 16-bit operands are zero, as the matrix instructions of CDNA 2 read them, and those of f16
    /// its dot instructions.
    Flushed,
}

/// As [`evaluate_some`], for a device whose matrix instructions multiply as `products` says. It changes nothing for
/// kernels that are mapped onto other instructions.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_for(
    kernel: &Kernel,
    buffers: &mut [HostTensor],
    bindings: &Bindings,
    wanted: Option<Wanted<'_>>,
    products: Products,
) -> Evaluated<()> {
    if buffers.len() != kernel.params.len() {
        return Err(KernelEvalError::BufferCount {
            kernel: kernel.name.clone(),
            expected: kernel.params.len(),
            got: buffers.len(),
        });
    }
    let size = |error| KernelEvalError::Size {
        kernel: kernel.name.clone(),
        error,
    };
    for (param, buffer) in kernel.params.values().zip(buffers.iter()) {
        let elements = param.elements.eval(bindings).map_err(size)?;
        if param.dtype != buffer.dtype || elements > buffer.elements() as i64 {
            return Err(KernelEvalError::Buffer {
                kernel: kernel.name.clone(),
                param: param.name.clone(),
                got: format!("{}{:?}", buffer.dtype, buffer.shape),
                expected: format!("{} with {elements} elements", param.dtype),
            });
        }
    }
    let extents = kernel
        .axes
        .values()
        .map(|a| Ok(a.extent.eval(bindings).map_err(size)?.max(0)))
        .collect::<Evaluated<Table<AxisId, i64>>>()?;
    // Sizes are the same at every point.
    let sizes = kernel
        .exprs
        .iter()
        .map(|(_, e)| match e {
            Expr::Size(d) => d.eval(bindings).map_err(size),
            _ => Ok(0),
        })
        .collect::<Evaluated<Table<ExprId, i64>>>()?;
    let mut run = Run {
        kernel,
        extents,
        sizes,
        buffers: buffers.iter().map(Array::from_tensor).collect(),
        axes: kernel.axes.keys().map(|_| 0).collect(),
        vars: kernel.vars.values().map(|d| Scalar::zero(*d)).collect(),
        cache: kernel.exprs.iter().map(|_| (0, Scalar::Int(0))).collect(),
        point: 1,
        wanted,
        least: least_that_counts(kernel, products),
    };
    run.body()?;
    for (i, param) in kernel.params.values().enumerate() {
        if param.access != Access::Read {
            let array = &run.buffers[ParamId::new(i)];
            buffers[i] = array.to_tensor().map_err(|e| KernelEvalError::Buffer {
                kernel: kernel.name.clone(),
                param: param.name.clone(),
                got: format!("{} bytes", e.got),
                expected: format!("{} bytes", e.expected),
            })?;
        }
    }
    Ok(())
}

struct Run<'a> {
    kernel: &'a Kernel,
    extents: Table<AxisId, i64>,
    sizes: Table<ExprId, i64>,
    buffers: Table<ParamId, Array>,
    axes: Table<AxisId, i64>,
    vars: Table<VarId, Scalar>,
    /// Each expression's value and the point it was computed at.
    cache: Table<ExprId, (u64, Scalar)>,
    /// Counts up whenever an axis, a variable or a buffer changes.
    point: u64,
    /// What is asked for; None is everything.
    wanted: Option<Wanted<'a>>,
    /// Operands of products that are smaller are zero.
    least: f64,
}

impl Run<'_> {
    fn body(&mut self) -> Evaluated<()> {
        match &self.kernel.body {
            Body::Loops(l)
            | Body::Row(RowBody { loops: l, .. })
            | Body::Window(WindowBody { loops: l, .. })
            | Body::Copy(CopyBody { loops: l, .. }) => self.each(&l.parallel, &mut |run| match run.asked(&l.stmts)? {
                true => run.stmts(&l.stmts),
                false => Ok(()),
            }),
            Body::Transform(t) => self.each(&t.parallel, &mut |run| run.transform(t)),
            Body::Contract(c) => self.contract(c),
            Body::Attention(a) => self.attention(a),
            Body::Scan(s) => self.scan(s),
            Body::Sort(s) => self.sort(s),
            Body::Recurrent(r) => self.recurrent(r),
        }
    }

    /// One square, and what is stored of its transform.
    fn transform(&mut self, body: &TransformBody) -> Evaluated<()> {
        let inside = |run: &mut Self| match body.inside {
            Some(condition) => Ok(run.eval(condition)?.as_bool()),
            None => Ok(true),
        };
        let mut asked = false;
        self.each(&body.to, &mut |run| {
            asked = asked || (inside(run)? && run.asked(&body.stmts)?);
            Ok(())
        })?;
        if !asked {
            return Ok(());
        }
        let mut square = Vec::new();
        self.each(&body.from, &mut |run| {
            let within = match body.within {
                Some(condition) => run.eval(condition)?.as_bool(),
                None => true,
            };
            square.push(if within { run.eval(body.element)?.as_f64() } else { 0.0 });
            Ok(())
        })?;
        let made = both_sides(body.matrix.rows(), body.matrix.inputs() as usize, &square);
        let mut made = made.into_iter();
        self.each(&body.to, &mut |run| {
            let element = made.next().unwrap_or_default();
            if !inside(run)? {
                return Ok(());
            }
            run.set_var(body.var, Scalar::Float(element));
            run.stmts(&body.stmts)
        })
    }

    fn set_axis(&mut self, axis: AxisId, at: i64) {
        self.axes[axis] = at;
        self.point += 1;
    }

    fn set_var(&mut self, var: VarId, value: Scalar) {
        self.vars[var] = value;
        self.point += 1;
    }

    /// Runs `f` at each point of some axes, row-major.
    fn each(&mut self, axes: &[AxisId], f: &mut dyn FnMut(&mut Self) -> Evaluated<()>) -> Evaluated<()> {
        let Some((first, rest)) = axes.split_first() else {
            return f(self);
        };
        for at in 0..self.extents[*first] {
            self.set_axis(*first, at);
            self.each(rest, f)?;
        }
        self.set_axis(*first, 0);
        Ok(())
    }

    /// The value of an expression at each point of some axes, row-major.
    fn values(&mut self, axes: &[AxisId], expr: ExprId) -> Evaluated<Vec<Scalar>> {
        let mut out = Vec::new();
        self.each(axes, &mut |run| {
            out.push(run.eval(expr)?);
            Ok(())
        })?;
        Ok(out)
    }

    /// Says whether the statements, at this point, store something that is wanted.
    fn asked(&mut self, stmts: &[Stmt]) -> Evaluated<bool> {
        let Some(wanted) = self.wanted else { return Ok(true) };
        let mut found = false;
        for stmt in stmts {
            let (Stmt::Store { param, index, axes, .. } | Stmt::Update { param, index, axes, .. }) = stmt else {
                continue;
            };
            // Where something is stored may depend on what was computed; then it has to be computed.
            if self.reads_var(*index) {
                return Ok(true);
            }
            self.each(axes, &mut |run| {
                if !found {
                    let at = run.position("stores to", *param, *index)?;
                    found = wanted(*param, at);
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn reads_var(&self, id: ExprId) -> bool {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            let expr = &self.kernel.exprs[id];
            if matches!(expr, Expr::Var(_)) {
                return true;
            }
            expr.for_each_operand(|operand| stack.push(operand));
        }
        false
    }

    fn stmts(&mut self, stmts: &[Stmt]) -> Evaluated<()> {
        stmts.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Evaluated<()> {
        match stmt {
            Stmt::Let { var, value } => {
                let value = self.eval(*value)?;
                self.set_var(*var, value);
                Ok(())
            }
            Stmt::Fold { var, op, axes, value } => {
                let result = self.fold(*op, axes, *value)?;
                self.set_var(*var, result);
                Ok(())
            }
            Stmt::Store {
                param,
                index,
                value,
                axes,
            } => self.each(axes, &mut |run| run.store(*param, *index, *value, None)),
            Stmt::Update {
                param,
                index,
                value,
                op,
                axes,
            } => self.each(axes, &mut |run| run.store(*param, *index, *value, *op)),
        }
    }

    fn fold(&mut self, op: ReduceOp, axes: &[AxisId], value: ExprId) -> Evaluated<Scalar> {
        let dtype = self.kernel.exprs.dtype(value);
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            let mut best: Option<Scalar> = None;
            let (mut at, mut position) = (0, 0);
            self.each(axes, &mut |run| {
                let v = run.eval(value)?;
                if best.is_none_or(|b| scalar::before(op == ReduceOp::ArgMax, v, b)) {
                    (best, at) = (Some(v), position);
                }
                position += 1;
                Ok(())
            })?;
            return Ok(Scalar::Int(at));
        }
        let mut sum = scalar::identity(op, dtype);
        let mut count = 0i64;
        self.each(axes, &mut |run| {
            sum = scalar::combine(op, dtype, sum, run.eval(value)?);
            count += 1;
            Ok(())
        })?;
        Ok(match (op, sum) {
            (ReduceOp::Mean, Scalar::Float(v)) => Scalar::Float(v / count as f64),
            (ReduceOp::Mean, Scalar::Int(v)) => Scalar::Int(v.checked_div(count).unwrap_or(0)),
            (_, v) => v,
        })
    }

    fn position(&mut self, what: &'static str, param: ParamId, index: ExprId) -> Evaluated<usize> {
        let at = self.eval(index)?.as_i64();
        let elements = self.buffers[param].len();
        match usize::try_from(at) {
            Ok(i) if i < elements => Ok(i),
            _ => Err(KernelEvalError::OutOfBounds {
                kernel: self.kernel.name.clone(),
                what,
                param: self.kernel.params[param].name.clone(),
                index: at,
                elements,
            }),
        }
    }

    fn store(&mut self, param: ParamId, index: ExprId, value: ExprId, op: Option<ReduceOp>) -> Evaluated<()> {
        let at = self.position("stores to", param, index)?;
        let mut value = self.eval(value)?;
        let dtype = self.buffers[param].dtype;
        if let Some(op) = op {
            let old = self.buffers[param].data.get(at).unwrap_or(Scalar::zero(dtype));
            value = scalar::combine(op, dtype, old, value);
        }
        match &mut self.buffers[param].data {
            Data::Float(v) => v[at] = crate::convert::round_to(dtype, value.as_f64()),
            Data::Int(v) => v[at] = wrap(dtype, value.as_i64()),
            Data::Bool(v) => v[at] = value.as_bool(),
        }
        self.point += 1;
        Ok(())
    }

    fn eval(&mut self, id: ExprId) -> Evaluated<Scalar> {
        if self.cache[id].0 == self.point {
            return Ok(self.cache[id].1);
        }
        let kernel = self.kernel;
        let value = match &kernel.exprs[id] {
            Expr::Const(_, v) => *v,
            Expr::Size(_) => Scalar::Int(self.sizes[id]),
            Expr::Axis(a) => Scalar::Int(self.axes[*a]),
            Expr::Var(v) => self.vars[*v],
            Expr::Load { param, index } => {
                let at = self.position("loads", *param, *index)?;
                let array = &self.buffers[*param];
                array.data.get(at).unwrap_or(Scalar::zero(array.dtype))
            }
            Expr::Unary(op, a) => scalar::unary(*op, kernel.exprs.dtype(*a), self.eval(*a)?),
            Expr::Binary(op, a, b) => {
                let dtype = kernel.exprs.dtype(*a);
                scalar::binary(*op, dtype, self.eval(*a)?, self.eval(*b)?)
            }
            Expr::Select(c, a, b) => {
                if self.eval(*c)?.as_bool() {
                    self.eval(*a)?
                } else {
                    self.eval(*b)?
                }
            }
            Expr::Cast(to, a) => scalar::cast(*to, self.eval(*a)?),
            Expr::Philox { seed, counter, lane } => {
                let words = philox(*seed, self.eval(*counter)?.as_i64() as u64);
                Scalar::Int(i64::from(words[usize::from(*lane & 3)] as i32))
            }
        };
        self.cache[id] = (self.point, value);
        Ok(value)
    }

    fn contract(&mut self, c: &ContractBody) -> Evaluated<()> {
        let acc = self.kernel.vars[c.acc];
        if self.wanted.is_some() {
            return self.contract_some(c);
        }
        self.each(&c.batch, &mut |run| {
            // Operands are computed once for each of their own points, not once for each product.
            let axes: Vec<AxisId> = c.n.iter().chain(&c.k).copied().collect();
            let rhs = run.factors(&axes, c.rhs.value)?;
            run.each(&c.m, &mut |run| {
                let mut lhs = run.values(&c.k, c.lhs.value)?;
                run.statistic(c, &lhs)?;
                run.flush(&mut lhs);
                let mut column = 0;
                let mut next = || {
                    let sum = dot(acc, &lhs, &rhs[column..column + lhs.len()]);
                    column += lhs.len();
                    sum
                };
                run.each(&c.columns(), &mut |run| {
                    run.set_var(c.acc, next());
                    if let Some(pair) = c.pair {
                        run.set_var(pair.second, next());
                    }
                    run.stmts(&c.epilogue)
                })
            })
        })
    }

    /// The products that are wanted; each row and column of the operands is computed when it is first needed.
    fn contract_some(&mut self, c: &ContractBody) -> Evaluated<()> {
        let acc = self.kernel.vars[c.acc];
        self.each(&c.batch, &mut |run| {
            let mut columns: HashMap<usize, Vec<Scalar>> = HashMap::new();
            run.each(&c.m, &mut |run| {
                let mut lhs: Option<Vec<Scalar>> = None;
                let mut column = 0;
                run.each(&c.columns(), &mut |run| {
                    let at = column;
                    column += 1;
                    if !run.asked(&c.epilogue)? {
                        return Ok(());
                    }
                    if lhs.is_none() {
                        let mut row = run.values(&c.k, c.lhs.value)?;
                        run.statistic(c, &row)?;
                        run.flush(&mut row);
                        lhs = Some(row);
                    }
                    let lhs = lhs.as_deref().unwrap_or_default();
                    let rhs = match columns.entry(at) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => new.insert(run.columns(c)?),
                    };
                    run.set_var(c.acc, dot(acc, lhs, &rhs[..lhs.len()]));
                    if let Some(pair) = c.pair {
                        run.set_var(pair.second, dot(acc, lhs, &rhs[lhs.len()..]));
                    }
                    run.stmts(&c.epilogue)
                })
            })
        })
    }

    /// The values of an operand of products.
    fn factors(&mut self, axes: &[AxisId], e: ExprId) -> Evaluated<Vec<Scalar>> {
        let mut values = self.values(axes, e)?;
        self.flush(&mut values);
        Ok(values)
    }

    /// Makes zeros of what the products' instruction reads as zeros.
    fn flush(&self, factors: &mut [Scalar]) {
        if self.least == 0.0 {
            return;
        }
        for factor in factors {
            if let Scalar::Float(v) = factor
                && v.abs() < self.least
            {
                *v = 0.0;
            }
        }
    }

    /// Folds what the epilogue has of a row of the left operand.
    fn statistic(&mut self, c: &ContractBody, row: &[Scalar]) -> Evaluated<()> {
        let Some(statistic) = &c.statistic else { return Ok(()) };
        let dtype = self.kernel.vars[statistic.var];
        let mut folded = scalar::identity(statistic.op, dtype);
        for element in row {
            self.set_var(statistic.element, *element);
            folded = scalar::combine(statistic.op, dtype, folded, self.eval(statistic.value)?);
        }
        self.set_var(statistic.var, folded);
        Ok(())
    }

    /// The right operand's column at hand, or those of the pair at hand one after the other.
    fn columns(&mut self, c: &ContractBody) -> Evaluated<Vec<Scalar>> {
        let (Some(pair), Some(last)) = (c.pair, c.n.last()) else {
            return self.factors(&c.k, c.rhs.value);
        };
        let mut both = Vec::new();
        for second in 0..2 {
            let column = self.axes[pair.axis] * 2 + second;
            self.set_axis(*last, column);
            both.extend(self.factors(&c.k, c.rhs.value)?);
        }
        Ok(both)
    }

    fn attention(&mut self, a: &AttentionBody) -> Evaluated<()> {
        let keys = self.extents[a.k];
        let (depth, width) = (self.extents[a.d] as usize, self.extents[a.dv] as usize);
        let acc = self.kernel.vars[a.acc];
        self.each(&a.batch, &mut |run| {
            let key = run.factors(&[a.k, a.d], a.key)?;
            let value: Vec<f64> = run.factors(&[a.k, a.dv], a.value)?.iter().map(|v| v.as_f64()).collect();
            run.each(&[a.q], &mut |run| {
                let mut asked = false;
                run.each(&[a.dv], &mut |run| {
                    asked = asked || run.asked(&a.epilogue)?;
                    Ok(())
                })?;
                if !asked {
                    return Ok(());
                }
                let query = run.factors(&[a.d], a.query)?;
                let seen = run.seen(a, keys)?;
                let mut scores = Vec::with_capacity(keys as usize);
                for k in 0..keys {
                    if !seen.contains(&k) {
                        scores.push(f64::NEG_INFINITY);
                        continue;
                    }
                    run.set_axis(a.k, k);
                    let sum = dot(acc, &query, &key[k as usize * depth..][..depth]);
                    run.set_var(a.acc, sum);
                    // A very negative number that a mask adds leaves no digits of the product to a score in f32.
                    let score = run.eval(a.score)?.as_f64();
                    let dtype = run.kernel.exprs.dtype(a.score);
                    scores.push(crate::convert::round_to(dtype, score));
                }
                run.set_axis(a.k, 0);
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = match a.weights {
                    Weights::Softmax => {
                        scores.iter_mut().for_each(|s| *s = (*s - top).exp());
                        scores.iter().sum()
                    }
                    Weights::Scores => 1.0,
                };
                if let Some(weights) = a.row_weights {
                    // Where all are masked, nothing is left to compare with.
                    let total = if top == f64::NEG_INFINITY { 0.0 } else { total };
                    run.set_var(weights.largest, Scalar::Float(top));
                    run.set_var(weights.total, Scalar::Float(total));
                }
                run.each(&[a.dv], &mut |run| {
                    let at = run.axes[a.dv] as usize;
                    let sum: f64 = scores
                        .iter()
                        .enumerate()
                        .map(|(k, w)| w / total * value[k * width + at])
                        .sum();
                    run.set_var(a.out, Scalar::Float(sum));
                    run.stmts(&a.epilogue)
                })
            })
        })
    }

    /// The keys that are looked at for the query at hand.
    fn seen(&mut self, a: &AttentionBody, keys: i64) -> Evaluated<std::ops::Range<i64>> {
        let Some(range) = &a.range else { return Ok(0..keys) };
        if let Some(nothing) = range.nothing
            && self.eval(nothing)?.as_bool()
        {
            return Ok(0..keys);
        }
        let mut bound = |e: Option<ExprId>, otherwise: i64| match e {
            Some(e) => Ok(self.eval(e)?.as_i64().clamp(0, keys)),
            None => Ok(otherwise),
        };
        Ok(bound(range.first, 0)?..bound(range.end, keys)?)
    }

    fn scan(&mut self, s: &ScanBody) -> Evaluated<()> {
        let dtype = self.kernel.exprs.dtype(s.value);
        let extent = self.extents[s.axis];
        self.each(&s.parallel, &mut |run| {
            let mut sum = scalar::identity(s.op, dtype);
            for i in 0..extent {
                run.set_axis(s.axis, if s.reverse { extent - 1 - i } else { i });
                let next = scalar::combine(s.op, dtype, sum, run.eval(s.value)?);
                run.set_var(s.var, if s.exclusive { sum } else { next });
                sum = next;
                run.stmts(&s.stores)?;
            }
            run.set_axis(s.axis, 0);
            Ok(())
        })
    }

    fn sort(&mut self, s: &SortBody) -> Evaluated<()> {
        let rank = self.extents[s.rank];
        self.each(&s.parallel, &mut |run| {
            let values = run.values(&[s.axis], s.value)?;
            let mut order: Vec<usize> = (0..values.len()).collect();
            // A stable sort keeps the lower position first among equals.
            order.sort_by(|a, b| {
                let (a, b) = (values[*a], values[*b]);
                scalar::sorts_before(s.largest, b, a).cmp(&scalar::sorts_before(s.largest, a, b))
            });
            for (i, at) in order.iter().enumerate().take(rank as usize) {
                run.set_axis(s.rank, i as i64);
                run.set_var(s.value_var, values[*at]);
                run.set_var(s.index_var, Scalar::Int(*at as i64));
                run.stmts(&s.stores)?;
            }
            run.set_axis(s.rank, 0);
            Ok(())
        })
    }
}

/// The least magnitude of an operand of a product that is not zero to the instruction of a kernel's mapping.
fn least_that_counts(kernel: &Kernel, products: Products) -> f64 {
    let input = match (&kernel.mapping, &kernel.body) {
        (Mapping::Matrix(tiling), _) => tiling.instruction.input,
        (Mapping::FlashMatrix(tiling), _) => tiling.instruction.input,
        (Mapping::Gemv(tiling), Body::Contract(body)) if by_dots(kernel, tiling, body) => DType::F16,
        _ => return 0.0,
    };
    match (products, input) {
        (Products::Flushed, DType::F16) => 2f64.powi(-14),
        (Products::Flushed, DType::BF16) => 2f64.powi(-126),
        _ => 0.0,
    }
}

/// Says whether lanes multiply pairs of f16 by dot instructions. Those of quantised weights and of rows that are folded
/// beside are widened.
fn by_dots(kernel: &Kernel, tiling: &GemvTiling, body: &ContractBody) -> bool {
    let is_half = |operand: &Operand| operand.element(&kernel.exprs) == DType::F16;
    let is_unpacked = body.rhs.access.is_some_and(|access| access.unpacking.is_some());
    is_half(&body.lhs)
        && is_half(&body.rhs)
        && !is_unpacked
        && body.statistic.is_none()
        && tiling.rhs.width.is_multiple_of(2)
}

fn dot(acc: DType, a: &[Scalar], b: &[Scalar]) -> Scalar {
    if acc.is_int() {
        let sum = a.iter().zip(b).fold(0i64, |sum, (a, b)| {
            sum.wrapping_add(a.as_i64().wrapping_mul(b.as_i64()))
        });
        return Scalar::Int(wrap(acc, sum));
    }
    Scalar::Float(a.iter().zip(b).map(|(a, b)| a.as_f64() * b.as_f64()).sum())
}

#[cfg(test)]
pub(crate) mod tests;
