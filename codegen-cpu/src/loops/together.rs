//! Short rows, several at a time.
//!
//! ```text
//! for i { s = Σ_r x(i, r); y[i, r] = x(i, r) / s }
//! =>  for blocks of i { x over i, r; s of each i; s over i, r; x / s }
//! ```
//!
//! Before: statements along rows, each row in one block. After: which points a block has, what each stage computes once
//! a point ([`Rows::of_points`]), and what it keeps for the stages after it ([`Rows::kept`]), whether rows are taken
//! together or not.

use ir::entity::Entity;
use ir::host::block::Class;
use ir::host::loops::{Nest, Strip};
use ir::kernel::{Expr, ExprId, Kernel, Stmt};
use ir::op::ReduceOp;
use ir::types::DType;

use super::nest::balanced;
use super::{Analysis, stmt_exprs};

/// Fewer rows at a time are worth less than numbers that need not be spread.
const FEWEST_ROWS: i64 = 4;

/// Chooses how many points a block has; `None` where rows are taken one at a time.
pub(super) fn nest(kernel: &Kernel, a: &Analysis<'_>, stmts: &[Stmt], lanes: usize) -> Option<Nest> {
    let (last, others) = a.parallel.split_last()?;
    let mut row = None;
    for (stmt, own) in stmts.iter().zip(&a.own) {
        match (stmt, &own[..]) {
            (Stmt::Update { .. }, _) => return None,
            (_, []) => {}
            (_, &[dim]) => {
                if *row.get_or_insert(dim) != dim {
                    return None;
                }
                if let Stmt::Fold { op, value, .. } = *stmt {
                    // The order of a sum of equal numbers is that of the lanes.
                    let along = Rows { kernel, a, dim }.varies(value);
                    if !along || matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                        return None;
                    }
                }
            }
            _ => return None,
        }
    }
    let rows = lanes as i64 / a.extents[row?].max(1);
    if rows < FEWEST_ROWS || a.extents[*last] < 2 || a.extents.contains(&0) {
        return None;
    }
    Some(Nest {
        outer: others.iter().map(|d| (*d, a.extents[*d])).collect(),
        row: None,
        col: Some(Strip {
            dim: *last,
            extent: a.extents[*last],
            block: balanced(a.extents[*last], rows),
        }),
    })
}

/// Expressions along the rows of one dim.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, 'k> {
    pub kernel: &'k Kernel,
    pub a: &'a Analysis<'k>,
    pub dim: usize,
}

impl Rows<'_, '_> {
    /// Says whether an expression has values of its own along the row.
    fn varies(&self, e: ExprId) -> bool {
        let (mut stack, mut seen) = (vec![e], vec![false; self.kernel.exprs.len()]);
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            match self.a.roots.get(&e) {
                Some(form) if form.get(self.dim) != 0 => return true,
                Some(_) => {}
                None => self.kernel.exprs[e].for_each_operand(|o| stack.push(o)),
            }
        }
        false
    }

    /// Walks what is computed whatever the data, users first, without what is below an expression for which `stop` says
    /// so.
    fn walk(&self, stmt: &Stmt, mut stop: impl FnMut(ExprId) -> bool) {
        let mut stack = stmt_exprs(std::slice::from_ref(stmt));
        let mut seen = vec![false; self.kernel.exprs.len()];
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) || self.a.roots.contains_key(&e) || stop(e) {
                continue;
            }
            match self.kernel.exprs[e] {
                Expr::Select(c, ..) => stack.push(c),
                ref expr => expr.for_each_operand(|o| stack.push(o)),
            }
        }
    }

    /// What a statement computes that is one number a row: the largest such expressions.
    pub(super) fn of_points(&self, stmt: &Stmt) -> Vec<ExprId> {
        let mut found = Vec::new();
        self.walk(stmt, |e| {
            let is_number = !matches!(self.kernel.exprs[e], Expr::Const(..) | Expr::Size(_) | Expr::Var(_));
            let one = is_number && !self.varies(e);
            if one {
                found.push(e);
            }
            one
        });
        found
    }

    /// What a statement computes along the row that statements after it read too: the largest such expressions that
    /// they have.
    pub(super) fn kept(&self, stmt: &Stmt, after: &[&Stmt]) -> Vec<ExprId> {
        let mut computed = vec![false; self.kernel.exprs.len()];
        self.walk(stmt, |e| {
            computed[e.index()] = self.has_lanes(e);
            false
        });
        let mut kept = Vec::new();
        for later in after {
            self.walk(later, |e| {
                let found = computed[e.index()] && self.varies(e);
                if found && !kept.contains(&e) {
                    kept.push(e);
                }
                found
            });
        }
        kept
    }

    /// Says whether an expression is computed to lanes of its own, not read where it lies.
    fn has_lanes(&self, e: ExprId) -> bool {
        let exprs = &self.kernel.exprs;
        match exprs[e] {
            Expr::Unary(..) | Expr::Binary(..) => true,
            Expr::Cast(to, a) => exprs.dtype(a) != to && (to != DType::F32 || Class::of(exprs.dtype(a)) != Class::F32),
            _ => false,
        }
    }
}
