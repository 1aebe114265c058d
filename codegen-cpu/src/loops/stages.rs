//! Statements as stages: each a block program and what becomes of its results.

use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Stmt, VarId};
use ir::op::ReduceOp;

use super::nest::shape;
use super::together::Rows;
use super::{Accesses, Analysis};
use crate::affine::reachable;
use crate::block::compile::{Source, Spec, SpecStep, compile};
use ir::host::LowerError;
use ir::host::block::{Class, Program};
use ir::host::loops::{Action, Nest, Stage, Strip};

/// Where a stage runs, and what it keeps.
#[derive(Default)]
struct Block {
    inner: Nest,
    own_blocks: bool,
    along: Option<(usize, usize)>,
    held: Vec<VarId>,
}

/// Builds the stages of a kernel.
pub(super) struct Stages<'a, 'k> {
    pub kernel: &'k Kernel,
    pub source: &'a Source<'a>,
    pub a: &'a Analysis<'k>,
    pub accesses: &'a Accesses,
    pub by_rows: bool,
    /// Blocks have the rows of some points.
    pub together: bool,
    pub ordered: bool,
    pub lanes: usize,
    pub nest: &'a Nest,
    /// Variables that have values, and whether they are uniform.
    pub known: Vec<(VarId, bool)>,
    /// Variables whose numbers of points are lanes along rows too, and the variables of those.
    pub spread: Vec<(VarId, VarId)>,
    /// Expressions that stages after the first use of them need not compute: their variables, and whether they are
    /// uniform.
    pub given: Vec<(ExprId, VarId, bool)>,
    /// Variables there are.
    pub vars: usize,
    pub at: usize,
    pub stages: Vec<Stage>,
}

impl Stages<'_, '_> {
    /// Returns the stages, the end of their scratch and how many variables they have.
    pub(super) fn build(mut self, stmts: &[Stmt]) -> Result<(Vec<Stage>, usize, usize), LowerError> {
        let mut group: Vec<&Stmt> = Vec::new();
        for (i, (stmt, own)) in stmts.iter().zip(&self.a.own).enumerate() {
            match stmt {
                Stmt::Let { .. } => group.push(stmt),
                Stmt::Store { .. } if own.is_empty() => group.push(stmt),
                _ => {
                    self.flush(&mut group)?;
                    self.single(stmt, own, &stmts[i + 1..])?;
                }
            }
        }
        self.flush(&mut group)?;
        Ok((self.stages, self.at, self.vars))
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

    /// Says whether computing `exprs` may read `wanted`.
    fn reads(&self, exprs: &[ExprId], wanted: ExprId) -> bool {
        reachable(self.kernel, exprs).contains(&wanted)
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
        let externals = vars.into_iter().map(|(v, _)| v).collect();
        self.push(program, externals, Block::default(), Action::Lets(lets));
        Ok(())
    }

    /// A variable of the stages' own.
    fn variable(&mut self) -> VarId {
        self.vars += 1;
        VarId::new(self.vars - 1)
    }

    /// Computes what a statement along rows has once a point, at the points.
    fn points(&mut self, stmt: &Stmt, rows: Rows<'_, '_>) -> Result<(), LowerError> {
        let known = |e: &ExprId| self.given.iter().any(|(k, ..)| k == e);
        let exprs: Vec<ExprId> = rows.of_points(stmt).into_iter().filter(|e| !known(e)).collect();
        if exprs.is_empty() {
            return Ok(());
        }
        let vars = self.used(&exprs);
        let spec = Spec {
            vars: vars.clone(),
            results: exprs.clone(),
            ..Spec::default()
        };
        let (row, col) = self.block_dims();
        let program = compile(self.source, row, col, &spec, self.block_lanes())?;
        let mut lets = Vec::new();
        for (i, e) in exprs.into_iter().enumerate() {
            let (var, uniform) = (self.variable(), program.is_uniform(i));
            lets.push((e, var, uniform, program.class(i)));
        }
        let externals = vars.into_iter().map(|(v, _)| v).collect();
        let results = lets.iter().map(|(_, var, ..)| *var).collect();
        self.push(program, externals, Block::default(), Action::Lets(results));
        for (e, var, uniform, class) in lets {
            let var = match uniform {
                true => var,
                false => self.lanes_of(var, class, rows),
            };
            self.given.push((e, var, uniform));
        }
        Ok(())
    }

    /// The variable of a variable's lanes along rows.
    fn lanes_of(&mut self, var: VarId, class: Class, rows: Rows<'_, '_>) -> VarId {
        if let Some((_, lanes)) = self.spread.iter().find(|(v, _)| *v == var) {
            return *lanes;
        }
        let to = self.variable();
        let extent = self.a.extents[rows.dim].max(0) as usize;
        let lanes = self.at;
        self.at = (lanes + self.block_lanes() * extent * class.bytes()).next_multiple_of(64);
        let action = Action::Spread {
            from: var,
            to,
            class,
            lanes,
        };
        let block = Block {
            along: Some((rows.dim, extent)),
            ..Block::default()
        };
        self.push(Program::default(), Vec::new(), block, action);
        self.spread.push((var, to));
        to
    }

    fn push(&mut self, program: Program, externals: Vec<VarId>, block: Block, action: Action) {
        let at = self.at;
        let Block {
            inner,
            own_blocks,
            along,
            held,
        } = block;
        self.at = (at + program.scratch).next_multiple_of(64);
        self.stages.push(Stage {
            program,
            at,
            externals,
            inner,
            own_blocks,
            along,
            held,
            action,
        });
    }

    /// A fold, an update, or a store with axes of its own.
    fn single(&mut self, stmt: &Stmt, own: &[usize], after: &[Stmt]) -> Result<(), LowerError> {
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
        let rows = match own {
            &[dim] if self.by_rows => Some(Rows {
                kernel: self.kernel,
                a: self.a,
                dim,
            }),
            _ => None,
        };
        if let Some(rows) = rows.filter(|_| self.together) {
            self.points(stmt, rows)?;
        }
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
        let inner = if rows.is_some() && self.together {
            Nest::default()
        } else if !own_blocks {
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
        let along = rows
            .filter(|_| self.together)
            .map(|r| (r.dim, extents[r.dim].max(0) as usize));
        let (row, col) = if let Some((dim, _)) = along {
            (self.block_dims().1, Some(dim))
        } else if own_blocks {
            (inner.row.map(|s| s.dim), inner.col.map(|s| s.dim))
        } else {
            self.block_dims()
        };
        let lanes = if let Some((_, extent)) = along {
            self.block_lanes() * extent
        } else if own_blocks {
            let strip = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1) as usize);
            strip(inner.row) * strip(inner.col)
        } else {
            self.block_lanes()
        };
        let mut vars = self.used(&exprs);
        let given: Vec<_> = match rows {
            Some(_) => self
                .given
                .iter()
                .filter(|(e, ..)| self.reads(&exprs, *e))
                .copied()
                .collect(),
            None => Vec::new(),
        };
        let kept = match rows.filter(|_| along.is_some() || inner.blocks() == 1) {
            Some(rows) => {
                let own = |i: &usize| self.a.own[self.a.own.len() - after.len() + i] == own;
                let after: Vec<&Stmt> = (0..after.len()).filter(own).map(|i| &after[i]).collect();
                let is_new = |e: &ExprId| self.given.iter().all(|(k, ..)| k != e);
                rows.kept(stmt, &after).into_iter().filter(is_new).collect()
            }
            None => Vec::new(),
        };
        let mut spec = Spec {
            vars: vars.clone(),
            exprs: given.iter().map(|(e, _, uniform)| (*e, *uniform)).collect(),
            ..spec
        };
        let plain_results = spec.results.len();
        spec.results.extend(&kept);
        if let Some(rows) = rows.filter(|_| self.together) {
            for (var, uniform) in &mut vars {
                if !*uniform {
                    *var = self.lanes_of(*var, Class::of(self.kernel.vars[*var]), rows);
                }
            }
        }
        let program = compile(self.source, row, col, &spec, lanes)?;
        let mut held = Vec::new();
        for (i, e) in kept.into_iter().enumerate() {
            let var = self.variable();
            held.push(var);
            self.given.push((e, var, program.is_uniform(plain_results + i)));
        }
        let externals = vars
            .into_iter()
            .map(|(v, _)| v)
            .chain(given.iter().map(|(_, var, _)| *var));
        let externals = externals.collect();
        let action = match *stmt {
            Stmt::Fold { var, op, value, .. } => {
                let dtype = self.kernel.vars[var];
                let n = match along {
                    Some(_) => self.block_lanes(),
                    None if own_blocks => 1,
                    None => lanes,
                };
                let acc = self.at;
                let best = acc + (n * Class::of(dtype).bytes()).next_multiple_of(64);
                self.at = best + if arg { (n * 8).next_multiple_of(64) } else { 0 };
                self.known.push((var, own_blocks && along.is_none()));
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
        let block = Block {
            inner,
            own_blocks,
            along,
            held,
        };
        self.push(program, externals, block, action);
        Ok(())
    }
}
