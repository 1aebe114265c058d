//! Statements as stages: each a block program and what becomes of its results.

use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Stmt, VarId};
use ir::op::ReduceOp;

use super::nest::shape;
use super::{Accesses, Analysis};
use crate::affine::reachable;
use crate::block::compile::{Source, Spec, SpecStep, compile};
use ir::host::LowerError;
use ir::host::block::{Class, Program};
use ir::host::loops::{Action, Nest, Stage, Strip};

/// Builds the stages of a kernel.
pub(super) struct Stages<'a, 'k> {
    pub kernel: &'k Kernel,
    pub source: &'a Source<'a>,
    pub a: &'a Analysis<'k>,
    pub accesses: &'a Accesses,
    pub by_rows: bool,
    pub ordered: bool,
    pub lanes: usize,
    pub nest: &'a Nest,
    /// Variables that have values, and whether they are uniform.
    pub known: Vec<(VarId, bool)>,
    pub at: usize,
    pub stages: Vec<Stage>,
}

impl Stages<'_, '_> {
    pub(super) fn build(mut self, stmts: &[Stmt]) -> Result<(Vec<Stage>, usize), LowerError> {
        let mut group: Vec<&Stmt> = Vec::new();
        for (stmt, own) in stmts.iter().zip(&self.a.own) {
            match stmt {
                Stmt::Let { .. } => group.push(stmt),
                Stmt::Store { .. } if own.is_empty() => group.push(stmt),
                _ => {
                    self.flush(&mut group)?;
                    self.single(stmt, own)?;
                }
            }
        }
        self.flush(&mut group)?;
        Ok((self.stages, self.at))
    }

    fn used(&self, exprs: &[ExprId]) -> Vec<(VarId, bool)> {
        let mut used = Vec::new();
        for id in reachable(self.kernel, exprs) {
            if let Expr::Var(v) = self.kernel.exprs[id]
                && let Some(known) = self.known.iter().find(|(k, _)| *k == v)
                && !used.contains(known)
            {
                used.push(*known);
            }
        }
        used
    }

    fn block_dims(&self) -> (Option<usize>, Option<usize>) {
        (self.nest.row.map(|s| s.dim), self.nest.col.map(|s| s.dim))
    }

    fn block_lanes(&self) -> usize {
        let strip = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1) as usize);
        strip(self.nest.row) * strip(self.nest.col)
    }

    /// Lets and plain stores in one program.
    fn flush(&mut self, group: &mut Vec<&Stmt>) -> Result<(), LowerError> {
        if group.is_empty() {
            return Ok(());
        }
        let mut steps = Vec::new();
        let mut lets = Vec::new();
        let mut exprs = Vec::new();
        for stmt in group.drain(..) {
            match *stmt {
                Stmt::Let { var, value } => {
                    steps.push(SpecStep::Let(var, value));
                    lets.push(var);
                    exprs.push(value);
                }
                Stmt::Store {
                    param, index, value, ..
                } => {
                    steps.push(SpecStep::Store(param, index, value));
                    exprs.extend([index, value]);
                }
                _ => {}
            }
        }
        let vars = self.used(&exprs);
        let spec = Spec {
            vars: vars.clone(),
            steps,
            results: Vec::new(),
            exprs: Vec::new(),
        };
        let (row, col) = self.block_dims();
        let program = compile(self.source, row, col, &spec, self.block_lanes())?;
        for (i, var) in lets.iter().enumerate() {
            self.known.push((*var, program.is_uniform(i)));
        }
        self.push(program, vars, Nest::default(), false, Action::Lets(lets));
        Ok(())
    }

    fn push(&mut self, program: Program, vars: Vec<(VarId, bool)>, inner: Nest, own_blocks: bool, action: Action) {
        let at = self.at;
        self.at = (at + program.scratch).next_multiple_of(64);
        self.stages.push(Stage {
            program,
            at,
            externals: vars.into_iter().map(|(v, _)| v).collect(),
            inner,
            own_blocks,
            action,
        });
    }

    /// A fold, an update, or a store with axes of its own.
    fn single(&mut self, stmt: &Stmt, own: &[usize]) -> Result<(), LowerError> {
        let (exprs, spec): (Vec<ExprId>, Spec) = match *stmt {
            Stmt::Fold { value, .. } => (
                vec![value],
                Spec {
                    results: vec![value],
                    ..Spec::default()
                },
            ),
            Stmt::Update { index, value, .. } => (
                vec![index, value],
                Spec {
                    results: vec![index, value],
                    ..Spec::default()
                },
            ),
            Stmt::Store {
                param, index, value, ..
            } => (
                vec![index, value],
                Spec {
                    steps: vec![SpecStep::Store(param, index, value)],
                    ..Spec::default()
                },
            ),
            Stmt::Let { .. } => return Ok(()),
        };
        let vars = self.used(&exprs);
        let spec = Spec {
            vars: vars.clone(),
            ..spec
        };
        let extents = &self.a.extents;
        let arg = matches!(
            stmt,
            Stmt::Fold {
                op: ReduceOp::ArgMax | ReduceOp::ArgMin,
                ..
            }
        );
        // Positions count along one dim; the order of updates is that of the axes.
        let plain = arg || self.ordered;
        let own_blocks = self.by_rows;
        let inner = if !own_blocks {
            Nest {
                outer: own.iter().map(|d| (*d, extents[*d])).collect(),
                row: None,
                col: None,
            }
        } else if own.is_empty() {
            Nest::default()
        } else {
            let stores = Accesses {
                loads: self.accesses.loads.clone(),
                stores: match stmt {
                    Stmt::Store { .. } => self.accesses.stores.clone(),
                    _ => Vec::new(),
                },
            };
            shape(own, extents, &stores, self.lanes, plain)
        };
        let (row, col) = if own_blocks {
            (inner.row.map(|s| s.dim), inner.col.map(|s| s.dim))
        } else {
            self.block_dims()
        };
        let lanes = if own_blocks {
            let strip = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1) as usize);
            strip(inner.row) * strip(inner.col)
        } else {
            self.block_lanes()
        };
        let program = compile(self.source, row, col, &spec, lanes)?;
        let action = match *stmt {
            Stmt::Fold { var, op, value, .. } => {
                let dtype = self.kernel.vars[var];
                let n = if own_blocks { 1 } else { lanes };
                let acc = self.at;
                let best = acc + (n * Class::of(dtype).bytes()).next_multiple_of(64);
                self.at = best + if arg { (n * 8).next_multiple_of(64) } else { 0 };
                self.known.push((var, own_blocks));
                Action::Fold {
                    var,
                    op,
                    value: self.kernel.exprs.dtype(value),
                    dtype,
                    acc,
                    best,
                    steps: own.iter().map(|d| (*d, extents[*d])).collect(),
                }
            }
            Stmt::Update { param, op, .. } => Action::Update {
                param: param.index(),
                dtype: self.kernel.params[param].dtype,
                elements: self.source.elements[param.index()],
                op,
            },
            _ => Action::Lets(Vec::new()),
        };
        self.push(program, vars, inner, own_blocks, action);
        Ok(())
    }
}
