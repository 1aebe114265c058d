//! Loops that choose between operands by position (concatenations), as one kernel for each range of the axis.
//!
//! `select(l < 64, a[..], b[..])` inside a pool or a copy hides two plain ones. Cut where the conditions change, each range
//! is a kernel without the choice, that the pooling and copying kernels recognise.
//!
//! Before: a kernel of loops and sizes. After: kernels that together store what the one did, each point once.

use std::collections::HashMap;

use ir::dim::Dim;
use ir::entity::Entity;
use ir::kernel::{AxisId, Body, Expr, ExprId, Kernel, Loops, Stmt};
use ir::op::BinaryOp;
use ir::types::{DType, Scalar};

use super::affine::{Affine, Space, reachable};
use super::exec::Prepare;
use crate::error::RuntimeError;

/// Most kernels that one becomes: beyond, launching costs more than choosing.
const MOST_RANGES: usize = 32;
/// Points that are worth a launch of their own.
const RANGE_POINTS: i64 = 1024;

/// A condition that changes once along a dim.
struct Choice {
    condition: ExprId,
    dim: usize,
    /// The first position with the other answer.
    cut: i64,
    /// The answer before the cut.
    before: bool,
}

/// Cuts a kernel along the parallel axis whose positions choose between loads; empty where there is none.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn split(kernel: &Kernel, loops: &Loops, cx: &Prepare<'_>) -> Result<Vec<Kernel>, RuntimeError> {
    let mut values = Vec::new();
    for stmt in &loops.stmts {
        match *stmt {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => values.push(value),
            Stmt::Store { index, value, .. } => values.extend([index, value]),
            // The order of updates is that of all points.
            Stmt::Update { .. } => return Ok(Vec::new()),
        }
    }
    if cx.aliased {
        return Ok(Vec::new());
    }
    let reached = reachable(kernel, &values);
    let loads = |id: ExprId| {
        reachable(kernel, &[id])
            .iter()
            .any(|e| matches!(kernel.exprs[*e], Expr::Load { .. }))
    };
    let selects: Vec<ExprId> = reached
        .iter()
        .filter_map(|id| match kernel.exprs[*id] {
            Expr::Select(c, a, b) if loads(a) && loads(b) && !loads(c) => Some(c),
            _ => None,
        })
        .collect();
    if selects.is_empty() {
        return Ok(Vec::new());
    }
    let mut space = Space::new(kernel, cx.bindings)?;
    let choices: Vec<Choice> = selects.iter().filter_map(|c| choice(&mut space, *c)).collect();
    // One axis: the one with the most choices, the last of several.
    let count = |axis: &AxisId| choices.iter().filter(|c| c.dim == axis.index()).count();
    let Some(axis) = loops.parallel.iter().copied().max_by_key(count) else {
        return Ok(Vec::new());
    };
    let extent = space.extents[axis.index()];
    let choices: Vec<&Choice> = choices
        .iter()
        .filter(|c| c.dim == axis.index() && c.cut > 0 && c.cut < extent)
        .collect();
    let mut cuts: Vec<i64> = choices.iter().map(|c| c.cut).chain([0, extent]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let points: i64 = loops.parallel.iter().map(|a| space.extents[a.index()]).product();
    let ranges = cuts.len() - 1;
    if !(2..=MOST_RANGES).contains(&ranges) || points / (ranges as i64) < RANGE_POINTS {
        return Ok(Vec::new());
    }
    Ok(cuts
        .windows(2)
        .map(|w| restricted(kernel, loops, axis, w[0], w[1], &choices))
        .collect())
}

/// Reads a comparison whose sides differ by one dim and a constant.
fn choice(space: &mut Space<'_>, condition: ExprId) -> Option<Choice> {
    let Expr::Binary(op, a, b) = space.kernel.exprs[condition] else {
        return None;
    };
    let form: Affine = space.affine(a)?.plus(&space.affine(b)?, -1);
    let mut dims = (0..form.coef.len()).filter(|d| form.get(*d) != 0);
    let (dim, None) = (dims.next()?, dims.next()) else {
        return None;
    };
    let (step, base) = (form.get(dim), form.base);
    // `step · d + base < bound`, or its opposite.
    let (bound, less) = match op {
        BinaryOp::Lt => (0, true),
        BinaryOp::Le => (1, true),
        BinaryOp::Ge => (0, false),
        BinaryOp::Gt => (1, false),
        _ => return None,
    };
    let (cut, before) = match step {
        1 => (base.checked_neg()?.checked_add(bound)?, less),
        -1 => (base.checked_sub(bound)?.checked_add(1)?, !less),
        _ => return None,
    };
    Some(Choice {
        condition,
        dim,
        cut,
        before,
    })
}

/// The kernel over `from..to` of the axis.
fn restricted(kernel: &Kernel, loops: &Loops, axis: AxisId, from: i64, to: i64, choices: &[&Choice]) -> Kernel {
    let answers: HashMap<ExprId, bool> = choices
        .iter()
        .map(|c| (c.condition, if to <= c.cut { c.before } else { !c.before }))
        .collect();
    let mut part = kernel.clone();
    part.axes[axis].extent = Dim::Const(to - from);
    part.exprs = ir::kernel::Exprs::default();
    let exprs = &mut part.exprs;
    let mut new: Vec<ExprId> = Vec::with_capacity(kernel.exprs.len());
    for (id, expr) in kernel.exprs.iter() {
        let dtype = kernel.exprs.dtype(id);
        let at = |e: ExprId| new[e.index()];
        let moved = match *expr {
            Expr::Axis(a) if a == axis && from != 0 => {
                let (a, by) = (
                    exprs.add(Expr::Axis(a), DType::I64),
                    exprs.add(Expr::Const(DType::I64, Scalar::Int(from)), DType::I64),
                );
                exprs.add(Expr::Binary(BinaryOp::Add, a, by), dtype)
            }
            Expr::Select(c, a, b) => match answers.get(&c) {
                Some(true) => at(a),
                Some(false) => at(b),
                None => exprs.add(Expr::Select(at(c), at(a), at(b)), dtype),
            },
            Expr::Load { param, index } => exprs.add(
                Expr::Load {
                    param,
                    index: at(index),
                },
                dtype,
            ),
            Expr::Unary(op, a) => exprs.add(Expr::Unary(op, at(a)), dtype),
            Expr::Binary(op, a, b) => exprs.add(Expr::Binary(op, at(a), at(b)), dtype),
            Expr::Cast(to, a) => exprs.add(Expr::Cast(to, at(a)), dtype),
            Expr::Philox { seed, counter, lane } => exprs.add(
                Expr::Philox {
                    seed,
                    counter: at(counter),
                    lane,
                },
                dtype,
            ),
            Expr::Const(..) | Expr::Size(_) | Expr::Axis(_) | Expr::Var(_) => exprs.add(expr.clone(), dtype),
        };
        new.push(moved);
    }
    let at = |e: ExprId| new[e.index()];
    let stmts = loops
        .stmts
        .iter()
        .cloned()
        .map(|mut stmt| {
            match &mut stmt {
                Stmt::Let { value, .. } | Stmt::Fold { value, .. } => *value = at(*value),
                Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => {
                    (*index, *value) = (at(*index), at(*value));
                }
            }
            stmt
        })
        .collect();
    part.body = Body::Loops(Loops {
        parallel: loops.parallel.clone(),
        stmts,
    });
    part
}
