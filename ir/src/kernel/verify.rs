//! Checks a kernel against its invariants and collects every error.

use std::collections::BTreeSet;

use super::print::expr as text;
use super::{Access, AxisId, Body, Expr, ExprId, Fetch, Kernel, Mapping, ParamId, Stmt, VarId};
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
    #[error("a fold does not take {op}")]
    Fold { op: ReduceOp },
    #[error("mapping {mapping}: {problem}")]
    Mapping { mapping: String, problem: &'static str },
    #[error("the expression table has {exprs} expressions and {types} types")]
    Table { exprs: usize, types: usize },
    #[error("nothing is stored")]
    NoStore,
}

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
        stores: 0,
    };
    // Bodies are walked only when every reference stands: walking follows them.
    if v.references() {
        v.types();
        v.body();
        v.mapping();
        if v.stores == 0 {
            v.errors.push(KernelError::NoStore);
        }
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
    stores: usize,
}

impl Verifier<'_> {
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
        let dims: Vec<&Dim> = sizes.chain(k.axes.values().map(|a| &a.extent)).collect();
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
        self.errors.len() == before
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
            Body::Contract(c) => {
                let all = [&c.batch, &c.m, &c.n, &c.k];
                all.iter().for_each(|axes| self.bind("the contraction", axes));
                self.only("the lhs", c.lhs, &[&c.batch, &c.m, &c.k]);
                self.only("the rhs", c.rhs, &[&c.batch, &c.n, &c.k]);
                self.unbind(&c.k);
                self.vars.insert(c.acc);
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
                self.vars.remove(&a.acc);
                self.vars.insert(a.out);
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
                self.vars.insert(s.value_var);
                self.vars.insert(s.index_var);
                self.stmts("the stores", &s.stores);
            }
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
                Expr::Load { param, .. } if k.params[*param].access == Access::Write => {
                    self.errors.push(KernelError::Access {
                        place: "a load reads",
                        param: k.params[*param].name.clone(),
                        access: Access::Write,
                    });
                }
                _ => {}
            }
            k.exprs[id].for_each_operand(|operand| pending.push(operand));
        }
    }

    fn stmts(&mut self, place: &'static str, stmts: &[Stmt]) {
        let k = self.kernel;
        let assigned = |v: &mut Self, var: VarId, got: DType, value: ExprId| {
            if k.vars[var] != got {
                v.errors.push(KernelError::Type {
                    expr: text(k, value),
                    got,
                    expected: format!("{}, as {var} is", k.vars[var]),
                });
            }
            v.vars.insert(var);
        };
        for stmt in stmts {
            match stmt {
                Stmt::Let { var, value } => {
                    self.expr(place, *value);
                    assigned(self, *var, k.exprs.dtype(*value), *value);
                }
                Stmt::Fold { var, op, axes, value } => {
                    self.bind(place, axes);
                    self.expr(place, *value);
                    self.unbind(axes);
                    let position = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
                    let got = if position { DType::I64 } else { k.exprs.dtype(*value) };
                    assigned(self, *var, got, *value);
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
                    self.stores += 1;
                    self.bind(place, axes);
                    self.expr(place, *index);
                    self.expr(place, *value);
                    self.unbind(axes);
                    let p = &k.params[*param];
                    let reads = matches!(stmt, Stmt::Update { op: Some(_), .. });
                    if p.access == Access::Read || (reads && p.access == Access::Write) {
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

    /// Says whether an operand can be fetched that way: no group is cut short.
    fn comes_whole(&self, fetch: Fetch, rows: &[AxisId], k: &[AxisId]) -> bool {
        let width = i64::from(fetch.width);
        let inner = if fetch.along_k { k.last() } else { rows.last() };
        let divides = |a: &AxisId| self.kernel.axes[*a].extent.known_divisor() % width.max(1) == 0;
        width == 1 || (fetch.width.is_power_of_two() && inner.is_some_and(divides))
    }

    fn mapping(&mut self) {
        let problem = match (&self.kernel.mapping, &self.kernel.body) {
            (Mapping::Tile { .. }, b) if !matches!(b, Body::Contract(_)) => Some("tiles are for contractions"),
            (Mapping::Flash { .. }, b) if !matches!(b, Body::Attention(_)) => Some("it is for attention"),
            (
                Mapping::Tile {
                    block_m,
                    block_n,
                    block_k,
                    thread_m,
                    thread_n,
                    ..
                },
                _,
            ) if [block_m, block_n, block_k, thread_m, thread_n].iter().any(|v| **v == 0)
                || block_m % thread_m != 0
                || block_n % thread_n != 0 =>
            {
                Some("threads' tiles must divide the workgroup's")
            }
            (Mapping::Tile { lhs, rhs, .. }, Body::Contract(c))
                if !self.comes_whole(*lhs, &c.m, &c.k) || !self.comes_whole(*rhs, &c.n, &c.k) =>
            {
                Some("the width of a fetch must be a power of two that divides the axis it goes along")
            }
            (Mapping::Threads { block, vector } | Mapping::Block { block, vector }, _)
                if *block == 0 || *vector == 0 =>
            {
                Some("a size is 0")
            }
            (Mapping::Lanes { lanes, block, vector }, _)
                if *vector == 0 || !lanes.is_power_of_two() || *block == 0 || block % lanes != 0 =>
            {
                Some("lanes must be a power of two that divides the block")
            }
            (
                Mapping::Flash {
                    block_q,
                    block_k,
                    block,
                },
                _,
            ) if *block_q == 0 || *block_k == 0 || *block == 0 => Some("a size is 0"),
            _ => None,
        };
        if let Some(problem) = problem {
            self.errors.push(KernelError::Mapping {
                mapping: self.kernel.mapping.to_string(),
                problem,
            });
        }
    }
}

/// Everything that the body names outside expressions.
fn mentioned(kernel: &Kernel) -> (Vec<AxisId>, Vec<ExprId>, Vec<VarId>, Vec<ParamId>) {
    let (mut axes, mut exprs, mut vars, mut params) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let stmts: &[Stmt] = match &kernel.body {
        Body::Loops(l) => {
            axes.extend(&l.parallel);
            &l.stmts
        }
        Body::Contract(c) => {
            axes.extend([&c.batch, &c.m, &c.n, &c.k].into_iter().flatten());
            exprs.extend([c.lhs, c.rhs]);
            vars.push(c.acc);
            params.extend(c.conv.iter().flat_map(|f| [f.input, f.filter]));
            &c.epilogue
        }
        Body::Attention(a) => {
            axes.extend(&a.batch);
            axes.extend([a.q, a.k, a.d, a.dv]);
            exprs.extend([a.query, a.key, a.value, a.score]);
            vars.extend([a.acc, a.out]);
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
mod tests {
    use super::*;
    use crate::kernel::eval::tests::row_kernel;
    use crate::kernel::print::print;
    use crate::types::Scalar;

    #[test]
    fn a_good_kernel_verifies_and_reads_well() {
        let kernel = row_kernel();
        verify(&kernel).unwrap();
        assert_eq!(
            print(&kernel),
            "kernel k(x: f32[2*n] read, y: f32[2*n] write) sizes(n) host {\n  for row in 0..2 {\n    v0 = sum over col in \
             0..n of x[row * n + col]\n    store y[row * n + col] = x[row * n + col] - v0  for col in 0..n\n  }\n}\n"
        );
    }

    #[test]
    fn errors_are_collected() {
        let mut kernel = row_kernel();
        kernel.symbols.clear();
        kernel.params[ParamId::new(1)].access = Access::Read;
        let Body::Loops(l) = &mut kernel.body else {
            unreachable!("rows are loops")
        };
        // The fold goes: its variable is unassigned, and the store's own axis stays fine.
        l.stmts.remove(0);
        let errors = verify(&kernel).unwrap_err().errors;
        assert!(
            errors.iter().any(|e| matches!(e, KernelError::Symbol { .. })),
            "{errors:?}"
        );
        assert!(
            errors.iter().any(|e| matches!(e, KernelError::Access { .. })),
            "{errors:?}"
        );
        assert!(
            errors.iter().any(|e| matches!(e, KernelError::Unassigned { .. })),
            "{errors:?}"
        );
    }

    #[test]
    fn narrow_arithmetic_and_dangling_ids_are_refused() {
        let mut kernel = row_kernel();
        let half = kernel
            .exprs
            .add(Expr::Const(DType::F16, Scalar::Float(1.0)), DType::F16);
        let op = crate::graph::op::BinaryOp::Add;
        kernel.exprs.add(Expr::Binary(op, half, half), DType::F16);
        let errors = verify(&kernel).unwrap_err().errors;
        assert!(
            matches!(errors.as_slice(), [KernelError::Narrow { dtype: DType::F16, .. }]),
            "{errors:?}"
        );
        kernel.exprs.add(Expr::Var(VarId::new(77)), DType::F32);
        let errors = verify(&kernel).unwrap_err().errors;
        assert!(matches!(errors.as_slice(), [KernelError::Unknown { .. }]), "{errors:?}");
    }
}
