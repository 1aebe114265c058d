//! Softmax, log-softmax, layer norm and RMS norm over contiguous f32 rows: a row's body that says it is one.
//!
//! Rows with something fused in, narrow or apart in memory stay with the loops, which make the same passes over a row
//! in cache but one operation at a time.

use ir::entity::Entity;
use ir::host::shapes::{RowComposite, Rows};
use ir::host::{Affine, LowerError, Setting};
use ir::kernel::{Expr, ExprId, Kernel, ParamId, RowBody, Stmt};
use ir::types::DType;

use crate::loops::analyse;

/// Takes a composite whose rows lie as the kernels want them; `None` if they do not.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn lower(kernel: &Kernel, body: &RowBody, cx: &Setting<'_>) -> Result<Option<RowComposite>, LowerError> {
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
