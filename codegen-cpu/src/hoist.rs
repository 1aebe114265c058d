//! Numbers of columns that a run gives, computed once a run and not once an element.
//!
//! Before: an epilogue with arithmetic on values that depend on the column alone, such as the scale of an activation
//! times that of each filter. After: that arithmetic fills temporaries of one number a column, and the epilogue loads
//! them.

use std::collections::HashMap;

use ir::host::{LowerError, Piece, Setting};
use ir::kernel::{Access, AxisId, Expr, ExprId, Stmt};
use ir::types::DType;

use crate::loops;
use crate::rewrite::{Rewritten, store};
use crate::stages::epilogue_exprs;

/// Returns the epilogue with what `columns` alone decide in temporaries, which `pieces` fill; `None` where there is no
/// such thing.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn hoist(
    rewritten: &mut Rewritten,
    epilogue: &[Stmt],
    columns: &[AxisId],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<Option<Vec<Stmt>>, LowerError> {
    let mut found = Columns {
        columns,
        known: HashMap::new(),
        tops: Vec::new(),
    };
    for stmt in epilogue {
        if let Stmt::Store { value, .. } | Stmt::Let { value, .. } = stmt {
            found.look(rewritten, *value);
        }
    }
    if found.tops.is_empty() || !epilogue_exprs(epilogue).iter().all(|e| !found.tops.contains(e)) {
        return Ok(None);
    }
    let mut instead = HashMap::new();
    for top in found.tops {
        let dtype = rewritten.kernel.exprs.dtype(top);
        let (param, index) = rewritten.temporary("columns", dtype, columns, cx.bindings)?;
        let stmts = [store(param, index, top)];
        pieces.push(loops::piece(&rewritten.kernel, columns, &stmts, cx.bindings, false)?);
        let load = rewritten.load(param, index);
        instead.insert(top, load);
    }
    let mut stmts = epilogue.to_vec();
    for stmt in &mut stmts {
        if let Stmt::Store { value, .. } | Stmt::Let { value, .. } = stmt {
            *value = replaced(rewritten, *value, &mut instead);
        }
    }
    Ok(Some(stmts))
}

struct Columns<'a> {
    columns: &'a [AxisId],
    /// Whether columns alone decide an expression, and whether it loads anything.
    known: HashMap<ExprId, (bool, bool)>,
    /// The largest such expressions that are more than a load of a number a column.
    tops: Vec<ExprId>,
}

impl Columns<'_> {
    /// Looks at an expression and what is below it.
    fn look(&mut self, rewritten: &Rewritten, e: ExprId) -> (bool, bool) {
        if let Some(known) = self.known.get(&e) {
            return *known;
        }
        let kernel = &rewritten.kernel;
        let expr = &kernel.exprs[e];
        let mut below = Vec::new();
        expr.for_each_operand(|o| below.push(o));
        let results: Vec<(bool, bool)> = below.iter().map(|o| self.look(rewritten, *o)).collect();
        let own = match expr {
            Expr::Var(_) | Expr::Philox { .. } => false,
            Expr::Axis(axis) => self.columns.contains(axis),
            Expr::Load { param, .. } => kernel.params[*param].access == Access::Read,
            _ => true,
        };
        let alone = own && results.iter().all(|(alone, _)| *alone);
        let loads = matches!(expr, Expr::Load { .. }) || results.iter().any(|(_, loads)| *loads);
        if !alone && !matches!(expr, Expr::Load { .. }) {
            for (operand, (alone, loads)) in below.iter().zip(results) {
                let number = matches!(kernel.exprs.dtype(*operand), DType::F32 | DType::I32);
                if alone && loads && number && !self.is_a_column(rewritten, *operand) && !self.tops.contains(operand) {
                    self.tops.push(*operand);
                }
            }
        }
        self.known.insert(e, (alone, loads));
        (alone, loads)
    }

    /// Says whether an expression is a load whose place the columns decide: that needs no temporary.
    fn is_a_column(&self, rewritten: &Rewritten, e: ExprId) -> bool {
        let Expr::Load { index, .. } = rewritten.kernel.exprs[e] else {
            return false;
        };
        let mut below = vec![index];
        while let Some(e) = below.pop() {
            if matches!(rewritten.kernel.exprs[e], Expr::Axis(_)) {
                return true;
            }
            rewritten.kernel.exprs[e].for_each_operand(|o| below.push(o));
        }
        self.columns.is_empty()
    }
}

/// The expression with others in place of some below it.
pub(crate) fn replaced(rewritten: &mut Rewritten, e: ExprId, instead: &mut HashMap<ExprId, ExprId>) -> ExprId {
    if let Some(known) = instead.get(&e) {
        return *known;
    }
    let expr = rewritten.kernel.exprs[e].clone();
    let new = match expr {
        Expr::Unary(op, a) => Expr::Unary(op, replaced(rewritten, a, instead)),
        Expr::Cast(to, a) => Expr::Cast(to, replaced(rewritten, a, instead)),
        Expr::Binary(op, a, b) => {
            let (a, b) = (replaced(rewritten, a, instead), replaced(rewritten, b, instead));
            Expr::Binary(op, a, b)
        }
        Expr::Select(a, b, c) => {
            let (a, b) = (replaced(rewritten, a, instead), replaced(rewritten, b, instead));
            Expr::Select(a, b, replaced(rewritten, c, instead))
        }
        Expr::Load { param, index } => Expr::Load {
            param,
            index: replaced(rewritten, index, instead),
        },
        other => other,
    };
    let made = if new == rewritten.kernel.exprs[e] {
        e
    } else {
        let dtype = rewritten.kernel.exprs.dtype(e);
        rewritten.kernel.exprs.add(new, dtype)
    };
    instead.insert(e, made);
    made
}
