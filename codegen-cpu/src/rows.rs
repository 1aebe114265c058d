//! Softmax, log-softmax, layer norm and RMS norm over f32 rows: a row's body that says it is one.
//!
//! Rows that lie apart in memory, are permuted, or are computed of other things are made dense in a temporary first, as
//! are results that lie so. Narrow ones, and few, stay with the loops, which make the same passes over a row in cache
//! but one operation at a time.

use ir::entity::Entity;
use ir::host::shapes::{RowComposite, Rows};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{Access, AxisId, Expr, ExprId, Kernel, Loops, ParamId, RowBody, Stmt};
use ir::op::BinaryOp;
use ir::types::DType;

use crate::loops::{self, analyse};
use crate::rewrite::{Rewritten, store};

/// Rows of fewer elements stay with the loops, where they do not lie as the kernels want them.
const SHORTEST: i64 = 16;
/// So do kernels of fewer elements.
const FEWEST: i64 = 4096;

/// Takes a composite whose rows do not lie as the kernels want them, and adds the pieces; says no where loops are to
/// have it.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn made_dense(
    rewritten: &mut Rewritten,
    body: &RowBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    let kernel = &rewritten.kernel;
    let (Some(Stmt::Store { param, index, .. }), Some(found)) = (body.loops.stmts.last(), &body.composite) else {
        return Ok(false);
    };
    let count = |axes: &[AxisId]| -> Result<i64, LowerError> {
        axes.iter().try_fold(1i64, |n, axis| {
            Ok(n.saturating_mul(kernel.axes[*axis].extent.eval(cx.bindings)?))
        })
    };
    let (points, columns) = (count(&body.loops.parallel)?, count(&body.row)?);
    if columns < SHORTEST || points.saturating_mul(columns) < FEWEST {
        return Ok(false);
    }
    let (result, place) = (*param, *index);
    let all: Vec<AxisId> = body.loops.parallel.iter().chain(&body.row).copied().collect();
    // Columns alone, either of rows and results, then both.
    for (source, target) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut trial, mut before) = (rewritten.clone(), Vec::new());
        let mut dense = |trial: &mut Rewritten, value: ExprId, axes: &[AxisId]| -> Result<ExprId, LowerError> {
            let (param, index) = trial.temporary("row", DType::F32, axes, cx.bindings)?;
            let value = trial.cast(DType::F32, value);
            let stmts = [store(param, index, value)];
            before.extend(loops::pieces(&trial.kernel, axes, &stmts, cx.bindings, false)?);
            trial.kernel.params[param].access = Access::Read;
            Ok(trial.load(param, index))
        };
        let mut composite = found.clone();
        if source {
            composite.x = dense(&mut trial, found.x, &all)?;
        }
        for column in [&mut composite.scale, &mut composite.bias].into_iter().flatten() {
            if !matches!(trial.kernel.exprs[*column], Expr::Load { .. }) {
                *column = dense(&mut trial, *column, &body.row)?;
            }
        }
        let (to, at) = match target {
            true => trial.temporary("result", DType::F32, &all, cx.bindings)?,
            false => (result, place),
        };
        // What the kernel reads and writes, whatever it makes of it.
        let mut value = composite.x;
        for column in [composite.scale, composite.bias].into_iter().flatten() {
            value = trial.binary(BinaryOp::Add, value, column);
        }
        let written = Stmt::Store {
            param: to,
            index: at,
            value,
            axes: body.row.clone(),
        };
        let dense = RowBody {
            loops: Loops {
                parallel: body.loops.parallel.clone(),
                stmts: vec![written],
            },
            row: body.row.clone(),
            held: Vec::new(),
            composite: Some(composite),
        };
        let Some(rows) = direct(&trial.kernel, &dense, cx)? else {
            continue;
        };
        pieces.extend(before);
        pieces.push(Piece::Rows(Box::new(rows)));
        if target {
            let load = trial.load(to, at);
            let stmts = [store(result, place, load)];
            pieces.extend(loops::pieces(&trial.kernel, &all, &stmts, cx.bindings, false)?);
        }
        *rewritten = trial;
        return Ok(true);
    }
    Ok(false)
}

/// Takes a composite whose rows lie as the kernels want them; `None` if they do not.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn direct(kernel: &Kernel, body: &RowBody, cx: &Setting<'_>) -> Result<Option<RowComposite>, LowerError> {
    let loops = &body.loops;
    let (Some(Stmt::Store { param, index, .. }), Some(found)) = (loops.stmts.last(), &body.composite) else {
        return Ok(None);
    };
    let a = analyse(kernel, &loops.parallel, &loops.stmts, cx.bindings)?;
    let Some(own) = a.own.last() else { return Ok(None) };
    let (Some(&[r]), true) = (own.first_chunk::<1>(), own.len() == 1 && a.parallel.len() <= 1) else {
        return Ok(None);
    };
    let same = a.own.iter().all(|o| o.is_empty() || o == own);
    let row = a.parallel.first().copied();
    let load = |e: ExprId| {
        let Expr::Load { param, index } = kernel.exprs[e] else {
            return None;
        };
        let form = a.roots.get(&index)?;
        (kernel.params[param].dtype == DType::F32 && form.get(r) == 1).then(|| (param.index(), form.clone()))
    };
    let (Some((src, from)), Some(to)) = (load(found.x), a.roots.get(index)) else {
        return Ok(None);
    };
    let elements = |p: usize| kernel.params[ParamId::new(p)].count(cx.bindings);
    let inside = |p: usize, f: &Affine| -> Result<bool, LowerError> {
        let (lo, hi) = f.range(&a.extents);
        Ok(lo >= 0 && hi < elements(p)?)
    };
    let stride = |f: &Affine| row.map_or(0, |d| f.get(d));
    let dense = to.get(r) == 1
        && kernel.params[*param].dtype == DType::F32
        && stride(&from) >= 0
        && stride(to) >= 0
        && !a.extents.contains(&0);
    if !same || !dense || !inside(src, &from)? || !inside(param.index(), to)? {
        return Ok(None);
    }
    let column = |e: Option<ExprId>| -> Result<Option<Option<(usize, i64)>>, LowerError> {
        let Some(e) = e else { return Ok(Some(None)) };
        let Some((p, f)) = load(e) else { return Ok(None) };
        Ok((stride(&f) == 0 && inside(p, &f)?).then_some(Some((p, f.base))))
    };
    let (Some(gamma), Some(beta)) = (column(found.scale)?, column(found.bias)?) else {
        return Ok(None);
    };
    Ok(Some(RowComposite {
        kind: found.kind,
        shape: Rows {
            rows: row.map_or(1, |d| a.extents[d]) as usize,
            cols: a.extents[r] as usize,
            src_stride: stride(&from) as usize,
            dst_stride: stride(to) as usize,
        },
        src: (src, from.base),
        dst: (param.index(), to.base),
        gamma,
        beta,
    }))
}
