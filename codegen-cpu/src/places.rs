//! Places that few axes decide, computed once a run and not once an element.
//!
//! ```text
//! out[j, k, l] = x[j * n + abs(k - 3) * 112 + abs(l - 3)]
//! =>  rows[k] = abs(k - 3) * 112;  columns[l] = abs(l - 3);  out[j, k, l] = x[j * n + rows[k] + columns[l]]
//! ```
//!
//! Before: loops that load from indices with terms that are no sums of axes (gathers, reflected pads, resized images,
//! rolled axes). After: those of them that some axes decide alone, and few points of these, are temporaries of
//! integers. A program reads such a term right from the temporary ([`ir::host::block::Table`]), and sees where its
//! lanes are neighbours.

use std::collections::HashMap;

use ir::host::{LowerError, Piece, Setting};
use ir::kernel::{Access, AxisId, Expr, ExprId, Kernel, Stmt};
use ir::op::BinaryOp;
use ir::types::DType;

use crate::affine::{Roots, reachable};
use crate::hoist::replaced;
use crate::loops;
use crate::rewrite::{Rewritten, store};

/// Kernels of fewer points are not worth a piece before them.
const FEWEST_POINTS: i64 = 2048;

/// A term is computed once for so many points at least.
const SHARED_BY: i64 = 8;

/// The most temporaries of one kernel.
const MOST: usize = 32;

/// Adds the pieces of loops whose terms of that kind are computed before them.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    parallel: &[AxisId],
    stmts: &[Stmt],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    let hoisted = hoist(rewritten, parallel, stmts, cx, pieces)?;
    let stmts = hoisted.as_deref().unwrap_or(stmts);
    let kernel = &rewritten.kernel;
    pieces.extend(loops::pieces(kernel, parallel, stmts, cx.bindings, cx.aliased)?);
    Ok(())
}

/// Fills temporaries with such terms, by `pieces`, and returns the statements that load from there; `None` where there
/// is none.
///
/// # Errors
/// As for kernels of loops.
fn hoist(
    rewritten: &mut Rewritten,
    parallel: &[AxisId],
    stmts: &[Stmt],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<Option<Vec<Stmt>>, LowerError> {
    let kernel = &rewritten.kernel;
    let a = loops::analyse(kernel, parallel, stmts, cx.bindings)?;
    let points: i64 = a.extents.iter().fold(1, |n, e| n.saturating_mul(*e));
    if points < FEWEST_POINTS {
        return Ok(None);
    }
    let by_rows = loops::along_rows(kernel, &a, stmts);
    let mut found: Vec<(ExprId, Vec<AxisId>)> = Vec::new();
    for e in reachable(kernel, &loops::stmt_exprs(stmts)) {
        let Expr::Load { index, .. } = kernel.exprs[e] else {
            continue;
        };
        let mut terms = Vec::new();
        unknown_terms(kernel, &a.roots, index, &mut terms);
        for term in terms {
            let Some(axes) = decided_by(kernel, term).filter(|axes| !axes.is_empty()) else {
                continue;
            };
            let mut own = 1i64;
            for axis in &axes {
                own = own.saturating_mul(kernel.axes[*axis].extent.eval(cx.bindings)?.max(1));
            }
            // A row's own numbers are computed once for the row as it is.
            let once = by_rows && axes.iter().all(|axis| parallel.contains(axis));
            let worth = !once && own.saturating_mul(SHARED_BY) <= points;
            if worth && !is_table(kernel, &a.roots, term) && found.iter().all(|(e, _)| *e != term) {
                found.push((term, axes));
            }
        }
    }
    if found.is_empty() || found.len() > MOST {
        return Ok(None);
    }
    let mut instead = HashMap::new();
    for (term, axes) in found {
        let (param, index) = rewritten.temporary("places", DType::I64, &axes, cx.bindings)?;
        let stmts = [store(param, index, term)];
        pieces.push(loops::piece(&rewritten.kernel, &axes, &stmts, cx.bindings, false)?);
        // Nothing writes it from now on.
        rewritten.kernel.params[param].access = Access::Read;
        let load = rewritten.load(param, index);
        instead.insert(term, load);
    }
    let mut stmts = stmts.to_vec();
    for stmt in &mut stmts {
        match stmt {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => *value = replaced(rewritten, *value, &mut instead),
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => {
                *index = replaced(rewritten, *index, &mut instead);
                *value = replaced(rewritten, *value, &mut instead);
            }
        }
    }
    Ok(Some(stmts))
}

/// The terms of a sum that are no sums of axes; a sum that one axis decides is one.
fn unknown_terms(kernel: &Kernel, roots: &Roots, index: ExprId, terms: &mut Vec<ExprId>) {
    let mut stack = vec![index];
    while let Some(e) = stack.pop() {
        if roots.contains_key(&e) {
            continue;
        }
        let by_one = || decided_by(kernel, e).is_some_and(|axes| axes.len() == 1);
        match kernel.exprs[e] {
            Expr::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) if stack.len() < MOST && !by_one() => {
                stack.extend([b, a]);
            }
            _ => terms.push(e),
        }
    }
}

/// The axes that decide an expression; `None` where variables, random numbers or what the kernel writes do too.
pub(crate) fn decided_by(kernel: &Kernel, e: ExprId) -> Option<Vec<AxisId>> {
    if kernel.exprs.dtype(e) != DType::I64 {
        return None;
    }
    let mut axes = Vec::new();
    for id in reachable(kernel, &[e]) {
        match kernel.exprs[id] {
            Expr::Var(_) | Expr::Philox { .. } => return None,
            Expr::Load { param, .. } if kernel.params[param].access != Access::Read => return None,
            Expr::Axis(axis) if !axes.contains(&axis) => axes.push(axis),
            _ => {}
        }
    }
    axes.sort_unstable();
    Some(axes)
}

/// Says whether a term is a load of an integer from where the axes say: a table already.
fn is_table(kernel: &Kernel, roots: &Roots, e: ExprId) -> bool {
    match kernel.exprs[e] {
        Expr::Load { param, index } => kernel.params[param].dtype == DType::I64 && roots.contains_key(&index),
        _ => false,
    }
}
