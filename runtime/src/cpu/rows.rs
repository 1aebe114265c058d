//! Softmax, log-softmax, layer norm and RMS norm over contiguous f32 rows, recognised in a kernel of loops.
//!
//! The shapes that `passes::lower` gives them, with nothing fused in; all others stay with the loops, which make the same
//! passes over a row in cache but one operation at a time.

use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Loops, Stmt, VarId};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::types::DType;

use super::env::RunMemory;
use super::exec::Prepare;
use super::kernels::rows::{Rows, layer_norm, log_softmax, rms_norm, softmax};
use super::loops::analyse;
use super::tile::float_constant;
use crate::error::RuntimeError;

/// A row composite at one set of sizes.
#[derive(Debug)]
pub(crate) struct RowsExec {
    kind: Kind,
    shape: Rows,
    src: (usize, i64),
    dst: (usize, i64),
    gamma: Option<(usize, i64)>,
    beta: Option<(usize, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Softmax,
    LogSoftmax,
    LayerNorm(f32),
    RmsNorm(f32),
}

/// The composite as expressions: the row's element, the factor and the addend.
struct Found {
    kind: Kind,
    x: ExprId,
    gamma: Option<ExprId>,
    beta: Option<ExprId>,
}

impl RowsExec {
    /// Recognises a row composite.
    ///
    /// # Errors
    /// A size that does not evaluate.
    pub(crate) fn match_kernel(
        kernel: &Kernel,
        loops: &Loops,
        cx: &Prepare<'_>,
    ) -> Result<Option<RowsExec>, RuntimeError> {
        let Some(Stmt::Store { param, index, axes, .. }) = loops.stmts.last() else {
            return Ok(None);
        };
        if axes.is_empty() {
            return Ok(None);
        }
        let length: ir::Dim = axes.iter().map(|a| kernel.axes[*a].extent.clone()).product();
        let length = length.eval(cx.bindings)?;
        let Some(found) = find(kernel, &loops.stmts, length) else {
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
        let elements = |p: usize| kernel.params[ir::kernel::ParamId::new(p)].elements.eval(cx.bindings);
        let inside = |p: usize, f: &super::affine::Affine| -> Result<bool, RuntimeError> {
            let (lo, hi) = f.range(&a.extents);
            Ok(lo >= 0 && hi < elements(p)?)
        };
        let stride = |f: &super::affine::Affine| row.map_or(0, |d| f.get(d));
        let dense = to.get(r) == 1
            && kernel.params[*param].dtype == DType::F32
            && stride(&from) >= 0
            && stride(to) >= 0
            && !a.extents.contains(&0);
        if !same || !dense || !inside(src, &from)? || !inside(param.index(), to)? {
            return Ok(None);
        }
        let column = |e: Option<ExprId>| -> Result<Option<Option<(usize, i64)>>, RuntimeError> {
            let Some(e) = e else { return Ok(Some(None)) };
            let Some((p, f)) = load(e) else { return Ok(None) };
            Ok((stride(&f) == 0 && inside(p, &f)?).then_some(Some((p, f.base))))
        };
        let (Some(gamma), Some(beta)) = (column(found.gamma)?, column(found.beta)?) else {
            return Ok(None);
        };
        Ok(Some(RowsExec {
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

    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &RunMemory, params: &[*mut u8]) {
        let ws = &memory.workspace;
        let at = |(param, base): (usize, i64)| params[param].cast::<f32>().wrapping_offset(base as isize);
        // SAFETY: all rows and columns were proven to be inside their buffers; in place, rows are the same.
        unsafe {
            let column = |c: Option<(usize, i64)>| c.map(|c| std::slice::from_raw_parts(at(c), self.shape.cols));
            let (dst, src) = (at(self.dst), at(self.src).cast_const());
            match self.kind {
                Kind::Softmax => softmax(ws, dst, src, self.shape),
                Kind::LogSoftmax => log_softmax(ws, dst, src, self.shape),
                Kind::LayerNorm(epsilon) => {
                    layer_norm(ws, dst, src, self.shape, column(self.gamma), column(self.beta), epsilon);
                }
                Kind::RmsNorm(epsilon) => rms_norm(ws, dst, src, self.shape, column(self.gamma), epsilon),
            }
        }
    }
}

fn find(kernel: &Kernel, stmts: &[Stmt], length: i64) -> Option<Found> {
    let exprs = &kernel.exprs;
    let is_var = |e: ExprId, v: VarId| exprs[e] == Expr::Var(v);
    let binary = |e: ExprId, op: BinaryOp| match exprs[e] {
        Expr::Binary(o, a, b) if o == op => Some((a, b)),
        _ => None,
    };
    let unary = |e: ExprId, op: UnaryOp| match exprs[e] {
        Expr::Unary(o, a) if o == op => Some(a),
        _ => None,
    };
    // `sum · (1 / length)`, the reciprocal a constant or of the size.
    let mean_of = |e: ExprId, v: VarId| {
        let Some((a, b)) = binary(e, BinaryOp::Mul) else {
            return false;
        };
        let scale = match float_constant(kernel, b) {
            Some(s) => Some(s),
            None => unary(b, UnaryOp::Recip).and_then(|n| match exprs[n] {
                Expr::Cast(DType::F32, size) if matches!(exprs[size], Expr::Size(_)) => Some(1.0 / length as f64),
                _ => None,
            }),
        };
        is_var(a, v) && scale.is_some_and(|s| (s * length as f64 - 1.0).abs() < 1e-6)
    };
    // `rsqrt(sum · (1 / length) + ε)`
    let deviation = |e: ExprId, v: VarId| {
        let inner = unary(e, UnaryOp::Rsqrt)?;
        let (mean, epsilon) = binary(inner, BinaryOp::Add)?;
        mean_of(mean, v).then_some(float_constant(kernel, epsilon)? as f32)
    };
    // `normal · gamma + beta`, each optional.
    let affine = |e: ExprId, normal: &dyn Fn(ExprId) -> bool| -> Option<(Option<ExprId>, Option<ExprId>)> {
        if normal(e) {
            return Some((None, None));
        }
        let scaled = |e: ExprId| binary(e, BinaryOp::Mul).filter(|(a, _)| normal(*a)).map(|(_, g)| g);
        if let Some(g) = scaled(e) {
            return Some((Some(g), None));
        }
        let (product, beta) = binary(e, BinaryOp::Add)?;
        Some((Some(scaled(product)?), Some(beta)))
    };
    match *stmts {
        [
            Stmt::Fold {
                var: max,
                op: ReduceOp::Max,
                value: x,
                ..
            },
            Stmt::Fold {
                var: sum,
                op: ReduceOp::Sum,
                value: exp,
                ..
            },
            ref rest @ ..,
        ] => {
            let (a, b) = binary(unary(exp, UnaryOp::Exp)?, BinaryOp::Sub)?;
            if a != x || !is_var(b, max) {
                return None;
            }
            let shifted = unary(exp, UnaryOp::Exp)?;
            let kind = match *rest {
                [Stmt::Store { value, .. }] => {
                    let (a, b) = binary(value, BinaryOp::Div)?;
                    (a == exp && is_var(b, sum)).then_some(Kind::Softmax)?
                }
                [Stmt::Let { var: log, value: l }, Stmt::Store { value, .. }] => {
                    let (a, b) = binary(value, BinaryOp::Sub)?;
                    let fits = a == shifted && is_var(b, log) && is_var(unary(l, UnaryOp::Log)?, sum);
                    fits.then_some(Kind::LogSoftmax)?
                }
                _ => return None,
            };
            Some(Found {
                kind,
                x,
                gamma: None,
                beta: None,
            })
        }
        [
            Stmt::Fold {
                var: sum,
                op: ReduceOp::Sum,
                value: x,
                ..
            },
            Stmt::Let { var: mean, value: m },
            Stmt::Fold {
                var: squares,
                op: ReduceOp::Sum,
                value: square,
                ..
            },
            Stmt::Let { var: rstd, value: d },
            Stmt::Store { value, .. },
        ] => {
            let epsilon = deviation(d, squares)?;
            let (centred, other) = binary(square, BinaryOp::Mul)?;
            let (a, b) = binary(centred, BinaryOp::Sub)?;
            if !mean_of(m, sum) || centred != other || a != x || !is_var(b, mean) {
                return None;
            }
            let normal = |e: ExprId| binary(e, BinaryOp::Mul).is_some_and(|(a, b)| a == centred && is_var(b, rstd));
            let (gamma, beta) = affine(value, &normal)?;
            Some(Found {
                kind: Kind::LayerNorm(epsilon),
                x,
                gamma,
                beta,
            })
        }
        [
            Stmt::Fold {
                var: squares,
                op: ReduceOp::Sum,
                value: square,
                ..
            },
            Stmt::Let { var: rstd, value: d },
            Stmt::Store { value, .. },
        ] => {
            let epsilon = deviation(d, squares)?;
            let (x, other) = binary(square, BinaryOp::Mul)?;
            let normal = |e: ExprId| binary(e, BinaryOp::Mul).is_some_and(|(a, b)| a == x && is_var(b, rstd));
            let (gamma, beta) = affine(value, &normal)?;
            (x == other && beta.is_none()).then_some(Found {
                kind: Kind::RmsNorm(epsilon),
                x,
                gamma,
                beta,
            })
        }
        _ => None,
    }
}
