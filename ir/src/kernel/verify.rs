//! Checks a kernel against its invariants and collects every error.

mod copy;
pub(super) mod form;
mod mapping;
mod recurrent;
mod transform;
mod window;

use std::collections::BTreeSet;

pub(super) use mapping::threads;

use super::print::expr as text;
use super::{
    Access, AxisId, Body, ContractBody, ConvFacts, Expr, ExprId, Kernel, Operand, OperandAccess, Pair, ParamId,
    RowStatistic, Stmt, VarId,
};
use crate::dim::{Dim, Symbol};
use crate::entity::Entity;
use crate::graph::op::ReduceOp;
use crate::types::DType;

/// One way in which a kernel is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelError {
    #[error("{expr} names {what}, which the kernel does not have")]
    Unknown { expr: String, what: String },
    #[error("{expr} uses {operand}, which comes after it")]
    Order { expr: ExprId, operand: ExprId },
    #[error("{place}: axis {axis} is not bound there, in {expr}")]
    UnboundAxis {
        place: &'static str,
        axis: String,
        expr: String,
    },
    #[error("{place}: {var} is not assigned before, in {expr}")]
    Unassigned {
        place: &'static str,
        var: VarId,
        expr: String,
    },
    #[error("{place}: {var} is assigned already")]
    AssignedTwice { place: &'static str, var: VarId },
    #[error("{place}: axis {axis} is bound already")]
    BoundTwice { place: &'static str, axis: String },
    #[error("arithmetic on {dtype} in {expr}; cast to f32 after the load")]
    Narrow { dtype: DType, expr: String },
    #[error("{expr} is {got}, but must be {expected}")]
    Type { expr: String, got: DType, expected: String },
    #[error("{place} {param}, which is {access}")]
    Access {
        place: &'static str,
        param: String,
        access: Access,
    },
    #[error("{what} {name:?} occurs twice")]
    Twice { what: &'static str, name: String },
    #[error("size {symbol} is used, but is not an argument of the kernel")]
    Symbol { symbol: Symbol },
    #[error("{place} states another access than its value {expr} makes")]
    Operand { place: &'static str, expr: String },
    #[error("a fold does not take {op}")]
    Fold { op: ReduceOp },
    #[error("mapping {mapping}: {problem}")]
    Mapping { mapping: String, problem: &'static str },
    #[error("the expression table has {exprs} expressions and {types} types")]
    Table { exprs: usize, types: usize },
    #[error("{expr} is nested more than {MOST_DEPTH} expressions deep")]
    Depth { expr: ExprId },
    #[error("the facts of the convolution {problem}")]
    Conv { problem: String },
    #[error(
        "a row has a statement that does not walk it: folds and stores go over the axes of the row, updates not at all"
    )]
    Row,
    #[error("the recurrent layer {problem}")]
    Recurrent { problem: String },
    #[error("the facts of the window {problem}")]
    Window { problem: String },
    #[error("the facts of the copy {problem}")]
    Copy { problem: &'static str },
    #[error("the transform {problem}")]
    Transform { problem: &'static str },
    #[error("the pairs of columns {problem}")]
    Pair { problem: &'static str },
    #[error("the statistic of rows {problem}")]
    Statistic { problem: &'static str },
    #[error("nothing is stored")]
    NoStore,
    #[error("parameter {param} is written, but nothing is stored to it")]
    NotStored { param: String },
}

/// How deep expressions may be inside each other: whoever walks them does so on the stack.
pub const MOST_DEPTH: usize = 1000;

/// All errors of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("kernel {name} is not valid:\n{}", errors.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))]
pub struct InvalidKernel {
    pub name: String,
    /// Never empty.
    pub errors: Vec<KernelError>,
}

/// Checks a kernel.
///
/// # Errors
/// Every error found.
pub fn verify(kernel: &Kernel) -> Result<(), InvalidKernel> {
    let mut v = Verifier {
        kernel,
        errors: Vec::new(),
        axes: BTreeSet::new(),
        vars: BTreeSet::new(),
        stored: BTreeSet::new(),
    };
    // Bodies are walked only when every reference stands: walking follows them.
    if v.references() {
        v.types();
        v.body();
        v.mapping();
        v.stores();
    }
    v.names();
    if v.errors.is_empty() {
        Ok(())
    } else {
        Err(InvalidKernel {
            name: kernel.name.clone(),
            errors: v.errors,
        })
    }
}

struct Verifier<'a> {
    kernel: &'a Kernel,
    errors: Vec<KernelError>,
    axes: BTreeSet<AxisId>,
    vars: BTreeSet<VarId>,
    stored: BTreeSet<ParamId>,
}

impl Verifier<'_> {
    /// What the body writes, it stores to.
    fn stores(&mut self) {
        if self.stored.is_empty() {
            self.errors.push(KernelError::NoStore);
            return;
        }
        for (id, param) in self.kernel.params.iter() {
            let is_written = param.access != Access::Read && param.access.is_of_body();
            if is_written && !self.stored.contains(&id) {
                let param = param.name.clone();
                self.errors.push(KernelError::NotStored { param });
            }
        }
    }

    fn names(&mut self) {
        let k = self.kernel;
        let mut seen = BTreeSet::new();
        for (what, name) in k
            .params
            .values()
            .map(|p| ("buffer", &p.name))
            .chain(k.axes.values().map(|a| ("axis", &a.name)))
        {
            if !seen.insert(name.as_str()) {
                self.errors.push(KernelError::Twice {
                    what,
                    name: name.clone(),
                });
            }
        }
        let mut used: Vec<Symbol> = Vec::new();
        let sizes = k.exprs.iter().filter_map(|(_, e)| match e {
            Expr::Size(d) => Some(d),
            _ => None,
        });
        let facts = match &k.body {
            Body::Window(w) => w.sizes(),
            Body::Copy(c) => c.sizes(),
            _ => Vec::new(),
        };
        let dims: Vec<&Dim> = sizes.chain(k.axes.values().map(|a| &a.extent)).chain(facts).collect();
        dims.iter().for_each(|d| d.collect_symbols(&mut used));
        for symbol in used.into_iter().filter(|s| !k.symbols.contains(s)) {
            self.errors.push(KernelError::Symbol { symbol });
        }
    }

    /// Checks that ids exist and that operands come first.
    fn references(&mut self) -> bool {
        let k = self.kernel;
        let before = self.errors.len();
        if k.exprs.len() != k.exprs.types.len() {
            self.errors.push(KernelError::Table {
                exprs: k.exprs.len(),
                types: k.exprs.types.len(),
            });
            return false;
        }
        let mut missing = |expr: String, what: String| self.errors.push(KernelError::Unknown { expr, what });
        let mut late = Vec::new();
        for (id, e) in k.exprs.iter() {
            match e {
                Expr::Axis(a) if k.axes.get(*a).is_none() => missing(id.to_string(), a.to_string()),
                Expr::Load { param, .. } if k.params.get(*param).is_none() => {
                    missing(id.to_string(), param.to_string())
                }
                Expr::Var(v) if k.vars.get(*v).is_none() => missing(id.to_string(), v.to_string()),
                _ => {}
            }
            e.for_each_operand(|operand| {
                if operand >= id {
                    late.push(KernelError::Order { expr: id, operand });
                }
            });
        }
        let (axes, exprs, vars, params) = mentioned(k);
        let at = || "the body".to_owned();
        axes.iter()
            .filter(|a| k.axes.get(**a).is_none())
            .for_each(|a| missing(at(), a.to_string()));
        exprs
            .iter()
            .filter(|e| e.index() >= k.exprs.len())
            .for_each(|e| missing(at(), e.to_string()));
        vars.iter()
            .filter(|v| k.vars.get(**v).is_none())
            .for_each(|v| missing(at(), v.to_string()));
        params
            .iter()
            .filter(|p| k.params.get(**p).is_none())
            .for_each(|p| missing(at(), p.to_string()));
        self.errors.extend(late);
        if self.errors.len() == before {
            self.depth();
        }
        self.errors.len() == before
    }

    /// Checks that walking an expression ends before the stack does.
    fn depth(&mut self) {
        let mut depths: Vec<usize> = Vec::with_capacity(self.kernel.exprs.len());
        for (id, e) in self.kernel.exprs.iter() {
            let mut depth = 0;
            e.for_each_operand(|o| depth = depth.max(depths[o.index()] + 1));
            depths.push(depth);
            if depth > MOST_DEPTH {
                self.errors.push(KernelError::Depth { expr: id });
                return;
            }
        }
    }

    fn types(&mut self) {
        let k = self.kernel;
        let dtype = |id| k.exprs.dtype(id);
        for (id, e) in k.exprs.iter() {
            let mut expect = |of: ExprId, good: bool, expected: &str| {
                if !good {
                    self.errors.push(KernelError::Type {
                        expr: text(k, of),
                        got: dtype(of),
                        expected: expected.to_owned(),
                    });
                }
            };
            match e {
                Expr::Const(d, _) | Expr::Cast(d, _) => expect(id, *d == dtype(id), d.name()),
                Expr::Size(_) | Expr::Axis(_) => expect(id, dtype(id) == DType::I64, "i64"),
                Expr::Load { param, index } => {
                    expect(*index, dtype(*index) == DType::I64, "i64, as indices are");
                    expect(id, dtype(id) == k.params[*param].dtype, k.params[*param].dtype.name());
                }
                Expr::Var(v) => expect(id, dtype(id) == k.vars[*v], k.vars[*v].name()),
                Expr::Philox { counter, .. } => {
                    expect(*counter, dtype(*counter) == DType::I64, "i64");
                    expect(id, dtype(id) == DType::I32, "i32");
                }
                Expr::Select(c, a, b) => {
                    expect(*c, dtype(*c) == DType::Bool, "bool");
                    expect(*b, dtype(*a) == dtype(*b), "of the type of the other branch");
                    expect(id, dtype(id) == dtype(*a), "of the type of its branches");
                }
                Expr::Unary(op, a) => {
                    let result = if op.is_predicate() { DType::Bool } else { dtype(*a) };
                    expect(id, dtype(id) == result, result.name());
                }
                Expr::Binary(op, a, b) => {
                    expect(*b, dtype(*a) == dtype(*b), "of the type of the other operand");
                    let result = if op.is_comparison() { DType::Bool } else { dtype(*a) };
                    expect(id, dtype(id) == result, result.name());
                }
            }
            if let Expr::Unary(_, a) | Expr::Binary(_, a, _) = e
                && dtype(*a).is_float()
                && dtype(*a).bits() < 32
            {
                self.errors.push(KernelError::Narrow {
                    dtype: dtype(*a),
                    expr: text(k, id),
                });
            }
        }
    }

    fn body(&mut self) {
        match &self.kernel.body {
            Body::Loops(l) => {
                self.bind("the loops", &l.parallel);
                self.stmts("the loops", &l.stmts);
            }
            Body::Row(r) => {
                self.bind("the rows", &r.loops.parallel);
                self.stmts("the rows", &r.loops.stmts);
                self.bind("the row", &r.row);
                r.held.iter().for_each(|e| self.expr("what is held", *e));
                if let Some(c) = &r.composite {
                    [Some(c.x), c.scale, c.bias]
                        .into_iter()
                        .flatten()
                        .for_each(|e| self.expr("the composite", e));
                }
                self.unbind(&r.row);
                let walks = |s: &Stmt| match s {
                    Stmt::Let { .. } => true,
                    Stmt::Fold { axes, .. } => *axes == r.row,
                    Stmt::Store { axes, .. } => axes.is_empty() || *axes == r.row,
                    Stmt::Update { .. } => false,
                };
                if !r.loops.stmts.iter().all(walks) {
                    self.errors.push(KernelError::Row);
                }
            }
            Body::Window(w) => {
                self.bind("the windows", &w.loops.parallel);
                self.stmts("the windows", &w.loops.stmts);
                self.errors
                    .extend(window::problem(self.kernel, w).map(|problem| KernelError::Window { problem }));
            }
            Body::Copy(c) => {
                self.bind("the copy", &c.loops.parallel);
                self.stmts("the copy", &c.loops.stmts);
                self.errors
                    .extend(copy::problem(self.kernel, c).map(|problem| KernelError::Copy { problem }));
            }
            Body::Transform(t) => self.transform(t),
            Body::Contract(c) => {
                let all = [&c.batch, &c.m, &c.n, &c.k];
                all.iter().for_each(|axes| self.bind("the contraction", axes));
                self.operand("the lhs", &c.lhs);
                self.operand("the rhs", &c.rhs);
                self.only("the lhs", c.lhs.value, &[&c.batch, &c.m, &c.k]);
                self.only("the rhs", c.rhs.value, &[&c.batch, &c.n, &c.k]);
                if let Some(facts) = &c.conv
                    && let Some(problem) = conv_problem(self.kernel, c, facts)
                {
                    self.errors.push(KernelError::Conv { problem });
                }
                self.unbind(&c.k);
                self.vars.insert(c.acc);
                if let Some(pair) = &c.pair {
                    self.pair(c, pair);
                }
                if let Some(statistic) = &c.statistic {
                    self.statistic(c, statistic);
                }
                self.stmts("the epilogue", &c.epilogue);
            }
            Body::Attention(a) => {
                let (q, k, d, dv) = ([a.q].to_vec(), [a.k].to_vec(), [a.d].to_vec(), [a.dv].to_vec());
                for axes in [&a.batch, &q, &k, &d, &dv] {
                    self.bind("the attention", axes);
                }
                self.only("the query", a.query, &[&a.batch, &q, &d]);
                self.only("the key", a.key, &[&a.batch, &k, &d]);
                self.only("the value", a.value, &[&a.batch, &k, &dv]);
                self.vars.insert(a.acc);
                self.only("the score", a.score, &[&a.batch, &q, &k]);
                if let Some(range) = &a.range {
                    self.only("the score of a key that is seen", range.inside, &[&a.batch, &q, &k]);
                }
                self.vars.remove(&a.acc);
                for bound in a.range.iter().flat_map(|r| [r.first, r.end, r.nothing]).flatten() {
                    self.only("a bound of the keys", bound, &[&a.batch, &q]);
                }
                self.vars.insert(a.out);
                self.vars.extend(a.row_weights.iter().flat_map(|w| w.vars()));
                self.unbind(&[a.k, a.d]);
                self.stmts("the epilogue", &a.epilogue);
            }
            Body::Scan(s) => {
                self.bind("the scan", &s.parallel);
                self.bind("the scan", &[s.axis]);
                self.expr("the scanned value", s.value);
                self.vars.insert(s.var);
                self.stmts("the stores", &s.stores);
            }
            Body::Sort(s) => {
                self.bind("the sort", &s.parallel);
                self.bind("the sort", &[s.axis]);
                self.expr("the sorted value", s.value);
                self.unbind(&[s.axis]);
                self.bind("the sort", &[s.rank]);
                let value = self.kernel.exprs.dtype(s.value);
                self.assign("the sort", s.value_var, value, s.value);
                self.assign("the sort", s.index_var, DType::I64, s.value);
                self.stmts("the stores", &s.stores);
            }
            Body::Recurrent(r) => self.recurrent(r),
        }
    }

    fn bind(&mut self, place: &'static str, axes: &[AxisId]) {
        for axis in axes {
            if !self.axes.insert(*axis) {
                let axis = self.kernel.axes[*axis].name.clone();
                self.errors.push(KernelError::BoundTwice { place, axis });
            }
        }
    }

    fn unbind(&mut self, axes: &[AxisId]) {
        axes.iter().for_each(|a| {
            self.axes.remove(a);
        });
    }

    /// Binds what an epilogue has of pairs in place of the innermost axis of the columns.
    fn pair(&mut self, c: &ContractBody, pair: &Pair) {
        let extent = |axis: AxisId| &self.kernel.axes[axis].extent;
        let problem = match c.n.last() {
            None => Some("need columns"),
            Some(last) if *extent(*last) != extent(pair.axis).clone() * 2 => {
                Some("are half as many as the innermost axis of the columns has points")
            }
            _ if self.kernel.vars[pair.second] != self.kernel.vars[c.acc] => Some("have sums of one type"),
            _ if pair.second == c.acc => Some("have two sums"),
            _ if c.conv.is_some() => Some("are a product's, not a convolution's"),
            _ => None,
        };
        self.errors.extend(problem.map(|problem| KernelError::Pair { problem }));
        let last: Vec<AxisId> = c.n.last().copied().into_iter().collect();
        self.unbind(&last);
        self.bind("the contraction", &[pair.axis]);
        self.vars.insert(pair.second);
    }

    /// Checks the fold of each row, and gives the epilogue its result.
    fn statistic(&mut self, c: &ContractBody, statistic: &RowStatistic) {
        let k = self.kernel;
        let dtype = k.vars[c.acc];
        let types = [
            k.vars[statistic.element],
            k.vars[statistic.var],
            k.exprs.dtype(statistic.value),
        ];
        let folds = matches!(
            statistic.op,
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min
        );
        let second = c.pair.map(|pair| pair.second);
        let own = |var: VarId| var != c.acc && Some(var) != second;
        let problem = if !dtype.is_float() || types.iter().any(|of| *of != dtype) {
            Some("is of floats of the sums' type")
        } else if !folds {
            Some("is a sum, a product, a maximum or a minimum")
        } else if !statistic.is_of_element(&k.exprs) {
            Some("is of numbers and the row's element alone")
        } else if !own(statistic.var) || !own(statistic.element) || statistic.var == statistic.element {
            Some("has variables of its own")
        } else if c.conv.is_some() {
            Some("is a product's, not a convolution's")
        } else {
            None
        };
        self.errors
            .extend(problem.map(|problem| KernelError::Statistic { problem }));
        self.vars.insert(statistic.var);
    }

    /// What an operand says of where its elements are is what its value says.
    fn operand(&mut self, place: &'static str, operand: &Operand) {
        if operand.access != OperandAccess::of(&self.kernel.exprs, operand.value) {
            self.errors.push(KernelError::Operand {
                place,
                expr: text(self.kernel, operand.value),
            });
        }
    }

    /// Checks an expression with only these axes bound.
    fn only(&mut self, place: &'static str, id: ExprId, axes: &[&Vec<AxisId>]) {
        let inner = axes.iter().flat_map(|a| a.iter().copied()).collect();
        let outer = std::mem::replace(&mut self.axes, inner);
        self.expr(place, id);
        self.axes = outer;
    }

    fn expr(&mut self, place: &'static str, id: ExprId) {
        let k = self.kernel;
        let mut pending = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            match &k.exprs[id] {
                Expr::Axis(a) if !self.axes.contains(a) => self.errors.push(KernelError::UnboundAxis {
                    place,
                    axis: k.axes[*a].name.clone(),
                    expr: text(k, id),
                }),
                Expr::Var(v) if !self.vars.contains(v) => self.errors.push(KernelError::Unassigned {
                    place,
                    var: *v,
                    expr: text(k, id),
                }),
                Expr::Load { param, .. }
                    if k.params[*param].access == Access::Write || !k.params[*param].access.is_of_body() =>
                {
                    self.errors.push(KernelError::Access {
                        place: "a load reads",
                        param: k.params[*param].name.clone(),
                        access: k.params[*param].access,
                    });
                }
                _ => {}
            }
            k.exprs[id].for_each_operand(|operand| pending.push(operand));
        }
    }

    /// Gives a variable a value of type `got`.
    fn assign(&mut self, place: &'static str, var: VarId, got: DType, value: ExprId) {
        let k = self.kernel;
        if k.vars[var] != got {
            self.errors.push(KernelError::Type {
                expr: text(k, value),
                got,
                expected: format!("{}, as {var} is", k.vars[var]),
            });
        }
        // What is known of a variable (that it is the same for all points of a row) is known of its one value.
        if !self.vars.insert(var) {
            self.errors.push(KernelError::AssignedTwice { place, var });
        }
    }

    fn stmts(&mut self, place: &'static str, stmts: &[Stmt]) {
        let k = self.kernel;
        for stmt in stmts {
            match stmt {
                Stmt::Let { var, value } => {
                    self.expr(place, *value);
                    self.assign(place, *var, k.exprs.dtype(*value), *value);
                }
                Stmt::Fold { var, op, axes, value } => {
                    self.bind(place, axes);
                    self.expr(place, *value);
                    self.unbind(axes);
                    let position = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
                    let got = if position { DType::I64 } else { k.exprs.dtype(*value) };
                    self.assign(place, *var, got, *value);
                    if *op == ReduceOp::Mean {
                        self.errors.push(KernelError::Fold { op: *op });
                    }
                }
                Stmt::Store {
                    param,
                    index,
                    value,
                    axes,
                }
                | Stmt::Update {
                    param,
                    index,
                    value,
                    axes,
                    ..
                } => {
                    self.stored.insert(*param);
                    self.bind(place, axes);
                    self.expr(place, *index);
                    self.expr(place, *value);
                    self.unbind(axes);
                    let p = &k.params[*param];
                    let reads = matches!(stmt, Stmt::Update { op: Some(_), .. });
                    if p.access == Access::Read || (reads && p.access == Access::Write) || !p.access.is_of_body() {
                        self.errors.push(KernelError::Access {
                            place: if reads {
                                "an update combines into"
                            } else {
                                "a store writes"
                            },
                            param: p.name.clone(),
                            access: p.access,
                        });
                    }
                    for (id, want) in [(*index, DType::I64), (*value, p.dtype)] {
                        if k.exprs.dtype(id) != want {
                            self.errors.push(KernelError::Type {
                                expr: text(k, id),
                                got: k.exprs.dtype(id),
                                expected: format!("{want}, to go to {}", p.name),
                            });
                        }
                    }
                }
            }
        }
    }
}

/// Says in what a convolution's facts are not those of its operands, whatever the sizes are.
///
/// Engines with a direct form read by the facts alone. How large their parameters must be depends on sizes:
/// [`super::bounds`] compares that.
fn conv_problem(kernel: &Kernel, body: &ContractBody, facts: &ConvFacts) -> Option<String> {
    let w = &facts.window;
    let rank = facts.input_size.len();
    let lists = [
        facts.output_size.len(),
        facts.kernel_size.len(),
        w.strides.len(),
        w.dilations.len(),
        w.pad_low.len(),
        w.pad_high.len(),
    ];
    if lists.iter().any(|len| *len != rank) {
        return Some(format!(
            "have {rank} sizes of the input, but {lists:?} of what goes with them"
        ));
    }
    if facts.groups < 1
        || [&facts.kernel_size, &w.strides, &w.dilations]
            .iter()
            .any(|l| l.iter().any(|v| *v < 1))
    {
        return Some("have a group, tap, stride or dilation below 1".to_owned());
    }
    if let Some(access) = body.lhs.access.filter(|a| a.guard.is_some())
        && access.fill != facts.pad_value
    {
        return Some(format!("pad with {}, the lhs with {}", facts.pad_value, access.fill));
    }
    for (operand, id, param) in [
        ("lhs", body.lhs.value, facts.input),
        ("rhs", body.rhs.value, facts.filter),
    ] {
        let mut loads = false;
        let (mut stack, mut seen) = (vec![id], BTreeSet::new());
        while let Some(id) = stack.pop() {
            if seen.insert(id) {
                loads |= matches!(kernel.exprs[id], Expr::Load { param: p, .. } if p == param);
                kernel.exprs[id].for_each_operand(|o| stack.push(o));
            }
        }
        if !loads {
            return Some(format!(
                "name {}, which the {operand} does not load",
                kernel.params[param].name
            ));
        }
    }
    None
}

/// Everything that the body names outside expressions.
fn mentioned(kernel: &Kernel) -> (Vec<AxisId>, Vec<ExprId>, Vec<VarId>, Vec<ParamId>) {
    let (mut axes, mut exprs, mut vars, mut params) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let stmts: &[Stmt] = match &kernel.body {
        Body::Loops(l) => {
            axes.extend(&l.parallel);
            &l.stmts
        }
        Body::Row(r) => {
            axes.extend(r.loops.parallel.iter().chain(&r.row));
            exprs.extend(&r.held);
            exprs.extend(r.composite.iter().flat_map(|c| [Some(c.x), c.scale, c.bias]).flatten());
            &r.loops.stmts
        }
        Body::Window(w) => {
            axes.extend(&w.loops.parallel);
            axes.extend(w.along.iter().flat_map(|a| [a.taps, a.outputs]).flatten());
            exprs.extend(w.exprs());
            if let Some(images) = &w.images {
                params.push(images.source);
                params.extend(images.target.iter().map(|t| t.param));
                axes.extend(images.image.iter().chain(&images.channel));
            }
            &w.loops.stmts
        }
        Body::Copy(c) => {
            axes.extend(&c.loops.parallel);
            params.extend([c.source, c.target]);
            &c.loops.stmts
        }
        Body::Transform(t) => {
            axes.extend(t.parallel.iter().chain(&t.from).chain(&t.to));
            exprs.push(t.element);
            exprs.extend(t.within.iter().chain(&t.inside));
            vars.push(t.var);
            &t.stmts
        }
        Body::Contract(c) => {
            axes.extend([&c.batch, &c.m, &c.n, &c.k].into_iter().flatten());
            for operand in [&c.lhs, &c.rhs] {
                exprs.push(operand.value);
                if let Some(access) = operand.access {
                    exprs.push(access.index);
                    exprs.extend(access.guard);
                    exprs.extend(access.unpacking.iter().flat_map(|u| [Some(u.scale), u.zero]).flatten());
                    params.push(access.param);
                }
            }
            vars.push(c.acc);
            if let Some(pair) = &c.pair {
                axes.push(pair.axis);
                vars.push(pair.second);
            }
            if let Some(statistic) = &c.statistic {
                vars.extend([statistic.element, statistic.var]);
                exprs.push(statistic.value);
            }
            params.extend(c.conv.iter().flat_map(|f| [f.input, f.filter]));
            &c.epilogue
        }
        Body::Attention(a) => {
            axes.extend(&a.batch);
            axes.extend([a.q, a.k, a.d, a.dv]);
            exprs.extend([a.query, a.key, a.value, a.score]);
            let ranges = a.range.iter().flat_map(|r| [Some(r.inside), r.first, r.end, r.nothing]);
            exprs.extend(ranges.flatten());
            vars.extend([a.acc, a.out]);
            vars.extend(a.row_weights.iter().flat_map(|w| w.vars()));
            &a.epilogue
        }
        Body::Scan(s) => {
            axes.extend(&s.parallel);
            axes.push(s.axis);
            exprs.push(s.value);
            vars.push(s.var);
            &s.stores
        }
        Body::Sort(s) => {
            axes.extend(&s.parallel);
            axes.extend([s.axis, s.rank]);
            exprs.push(s.value);
            vars.extend([s.value_var, s.index_var]);
            &s.stores
        }
        Body::Recurrent(r) => {
            axes.extend(r.axes());
            exprs.extend(r.operands().into_iter().map(|(expr, _)| expr));
            vars.extend([r.hidden_var, r.cell_var]);
            &r.stores
        }
    };
    for stmt in stmts {
        match stmt {
            Stmt::Let { var, value } => {
                vars.push(*var);
                exprs.push(*value);
            }
            Stmt::Fold {
                var, axes: a, value, ..
            } => {
                vars.push(*var);
                axes.extend(a);
                exprs.push(*value);
            }
            Stmt::Store {
                param,
                index,
                value,
                axes: a,
            }
            | Stmt::Update {
                param,
                index,
                value,
                axes: a,
                ..
            } => {
                params.push(*param);
                exprs.extend([*index, *value]);
                axes.extend(a);
            }
        }
    }
    (axes, exprs, vars, params)
}

#[cfg(test)]
mod tests;
