//! Pooling windows, recognised in a kernel of loops and run by the pooling kernel.
//!
//! The shape that `passes::lower` gives a pool: a fold of a guarded load over window axes, stored as it is, times a
//! constant, or over the count of elements in range. Strides, padding and dilation are read off the guard's affine forms;
//! anything that does not fit them exactly stays with the loops.

use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Loops, Stmt};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::{DType, Scalar};

use super::affine::{Affine, Roots, Space};
use super::env::RunMemory;
use super::exec::Prepare;
use super::kernels::conv::ImageStrides;
use super::kernels::pool::{PoolKind, PoolShape, max_bytes, pool2d};
use super::tile::float_constant;
use crate::error::RuntimeError;

/// A pooling at one set of sizes.
#[derive(Debug)]
pub(crate) struct PoolExec {
    /// Elements are signed bytes, else f32.
    bytes: bool,
    kind: PoolKind,
    shape: PoolShape,
    src: usize,
    src_base: i64,
    src_strides: ImageStrides,
    dst: usize,
    dst_base: i64,
    dst_strides: ImageStrides,
}

/// One spatial axis: the window over it.
#[derive(Clone, Copy, Debug)]
struct Along {
    /// The dim of output positions, if there is more than one.
    out: Option<usize>,
    count: i64,
    taps: i64,
    stride: i64,
    dilation: i64,
    pad: i64,
    size: i64,
    /// Elements of the input from one position to the next.
    step: i64,
}

impl PoolExec {
    /// Recognises a pool.
    ///
    /// # Errors
    /// A size that does not evaluate.
    pub(crate) fn match_kernel(
        kernel: &Kernel,
        loops: &Loops,
        cx: &Prepare<'_>,
    ) -> Result<Option<PoolExec>, RuntimeError> {
        let mut space = Space::new(kernel, cx.bindings)?;
        let exprs: Vec<ExprId> = loops
            .stmts
            .iter()
            .flat_map(|s| match *s {
                Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![value],
                Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![index, value],
            })
            .collect();
        let roots = space.roots(&exprs);
        let m = Match {
            kernel,
            roots: &roots,
            extents: &space.extents,
        };
        let elements = kernel
            .params
            .values()
            .map(|p| p.count(cx.bindings))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(m.run(loops, &elements))
    }

    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &RunMemory, params: &[*mut u8]) {
        if self.bytes {
            let src = params[self.src].cast::<i8>().wrapping_offset(self.src_base as isize);
            let dst = params[self.dst].cast::<i8>().wrapping_offset(self.dst_base as isize);
            // SAFETY: as below.
            unsafe {
                max_bytes(
                    &memory.workspace,
                    dst,
                    self.dst_strides,
                    src.cast_const(),
                    self.src_strides,
                    self.shape,
                );
            }
            return;
        }
        let src = params[self.src].cast::<f32>().wrapping_offset(self.src_base as isize);
        let dst = params[self.dst].cast::<f32>().wrapping_offset(self.dst_base as isize);
        // SAFETY: the sizes were derived from accesses that stay inside the buffers.
        unsafe {
            pool2d(
                &memory.workspace,
                self.kind,
                dst,
                self.dst_strides,
                src.cast_const(),
                self.src_strides,
                self.shape,
            );
        }
    }
}

/// The most that sizes and strides of a pool may be: their products fit 64 bits.
const SMALL: u64 = 1 << 30;

struct Match<'a> {
    kernel: &'a Kernel,
    roots: &'a Roots,
    extents: &'a [i64],
}

impl Match<'_> {
    fn run(&self, loops: &Loops, elements: &[i64]) -> Option<PoolExec> {
        let exprs = &self.kernel.exprs;
        let (
            Stmt::Fold {
                var, op, axes, value, ..
            },
            rest,
        ) = loops.stmts.split_first()?
        else {
            return None;
        };
        let dtype = exprs.dtype(*value);
        if !matches!(
            (op, dtype),
            (ReduceOp::Max | ReduceOp::Sum, DType::F32) | (ReduceOp::Max, DType::I8)
        ) {
            return None;
        }
        let constant = |e: ExprId| match exprs[e] {
            // The least of the type is what no element is below.
            Expr::Const(DType::I8, Scalar::Int(-128)) => Some(f64::NEG_INFINITY),
            _ => float_constant(self.kernel, e),
        };
        let (guard, load, fill) = match exprs[*value] {
            Expr::Select(c, t, e) => (Some(c), t, Some(constant(e)?)),
            _ => (None, *value, None),
        };
        let Expr::Load { param: src, index } = exprs[load] else {
            return None;
        };
        let from = self.roots.get(&index)?;
        if self.kernel.params[src].dtype != dtype {
            return None;
        }
        let (
            counted,
            [
                Stmt::Store {
                    param: dst,
                    index: to,
                    value: stored,
                    axes: none,
                },
            ],
        ) = (match rest {
            [
                Stmt::Fold {
                    var,
                    op: ReduceOp::Sum,
                    axes: same,
                    value,
                },
                last @ Stmt::Store { .. },
            ] if same == axes => (Some((*var, *value)), std::slice::from_ref(last)),
            [last @ Stmt::Store { .. }] => (None, std::slice::from_ref(last)),
            _ => return None,
        })
        else {
            return None;
        };
        let to = self.roots.get(to)?;
        if !none.is_empty() || self.kernel.params[*dst].dtype != dtype {
            return None;
        }
        let conditions = match guard {
            Some(c) => self.conditions(c)?,
            None => Vec::new(),
        };
        let taps: i64 = axes.iter().map(|a| self.extents[a.index()]).product();
        let sum = exprs[*stored] == Expr::Var(*var);
        // What the result is: the maximum, a sum over a constant count, a sum over the count in range.
        let (kind, all_counted) = match (op, exprs[*stored].clone()) {
            (ReduceOp::Max, _) if sum && fill.is_none_or(|f| f == f64::NEG_INFINITY) => (PoolKind::Max, false),
            (ReduceOp::Sum, Expr::Binary(BinaryOp::Mul, a, b))
                if counted.is_none() && fill.is_none_or(|f| f == 0.0) =>
            {
                let factor = if exprs[a] == Expr::Var(*var) { b } else { a };
                let other = if factor == b { a } else { b };
                let scale = float_constant(self.kernel, factor)?;
                let exact = (scale * taps as f64 - 1.0).abs() < 1e-6;
                if exprs[other] != Expr::Var(*var) || !exact {
                    return None;
                }
                (PoolKind::Average { include_pad: true }, true)
            }
            (ReduceOp::Sum, Expr::Binary(BinaryOp::Div, a, b)) if fill == Some(0.0) => {
                let (count, hit) = counted?;
                let Expr::Select(c, one, zero) = exprs[hit] else {
                    return None;
                };
                let plain = Some(c) == guard
                    && float_constant(self.kernel, one) == Some(1.0)
                    && float_constant(self.kernel, zero) == Some(0.0);
                if exprs[a] != Expr::Var(*var) || exprs[b] != Expr::Var(count) || !plain {
                    return None;
                }
                (PoolKind::Average { include_pad: false }, false)
            }
            _ => return None,
        };
        let parallel: Vec<usize> = Space::dims(&loops.parallel)
            .into_iter()
            .filter(|d| self.extents[*d] != 1)
            .collect();
        let window: Vec<usize> = Space::dims(axes)
            .into_iter()
            .filter(|d| self.extents[*d] != 1)
            .collect();
        if window.is_empty() || window.len() > 2 {
            return None;
        }
        // What follows multiplies strides, sizes and counts by each other.
        let small = |v: &i64| v.unsigned_abs() <= SMALL;
        let forms = conditions.iter().chain([from, to]);
        if !self.extents.iter().all(small) || !forms.clone().all(|f| small(&f.base) && f.coef.iter().all(small)) {
            return None;
        }
        let mut spatial = Vec::new();
        let mut used = 0;
        for w in &window {
            let along = self.along(*w, &parallel, from, &conditions, &mut used)?;
            spatial.push(along);
        }
        if used != conditions.len() {
            return None;
        }
        let others: Vec<usize> = parallel
            .iter()
            .copied()
            .filter(|d| spatial.iter().all(|s| s.out != Some(*d)))
            .collect();
        // Images and channels: channels are the ones that lie side by side, if any do.
        let (n, ch) = match *others.as_slice() {
            [] => (None, None),
            [d] => (None, Some(d)),
            [a, b] if from.get(a).unsigned_abs() == 1 => (Some(b), Some(a)),
            [a, b] => (Some(a), Some(b)),
            _ => return None,
        };
        let one = Along {
            out: None,
            count: 1,
            taps: 1,
            stride: 1,
            dilation: 1,
            pad: 0,
            size: 1,
            step: 0,
        };
        let (y, x) = match *spatial.as_slice() {
            [x] => (one, x),
            [y, x] => (y, x),
            _ => return None,
        };
        let size = |d: Option<usize>| d.map_or(1, |d| self.extents[d]);
        let at = |f: &Affine, d: Option<usize>| d.map_or(0, |d| f.get(d)) as isize;
        let src_base = from.base + y.pad * y.step + x.pad * x.step;
        let high = |s: &Along| ((s.count - 1) * s.stride + (s.taps - 1) * s.dilation + 1 - s.size - s.pad).max(0);
        if !all_counted && matches!(kind, PoolKind::Average { include_pad: true }) {
            return None;
        }
        // Everything that the window may touch must be in the buffer.
        let wide = |count: i64, step: i64| i128::from(count - 1) * i128::from(step);
        let last = i128::from(src_base)
            + wide(size(n), at(from, n) as i64)
            + wide(size(ch), at(from, ch) as i64)
            + wide(y.size, y.step)
            + wide(x.size, x.step);
        let (lo, hi) = to.range(self.extents);
        let steps = [at(from, n), at(from, ch), y.step as isize, x.step as isize];
        let inside = src_base >= 0 && steps.iter().all(|s| *s >= 0) && last < i128::from(elements[src.index()]);
        let whole = !self.extents.contains(&0) && y.size > 0 && x.size > 0;
        if !inside || !whole || lo < 0 || hi >= elements[dst.index()] || src == *dst {
            return None;
        }
        let to_usize = |v: i64| usize::try_from(v).ok();
        Some(PoolExec {
            bytes: dtype == DType::I8,
            kind,
            shape: PoolShape {
                n: to_usize(size(n))?,
                h: to_usize(y.size)?,
                w: to_usize(x.size)?,
                c: to_usize(size(ch))?,
                kh: to_usize(y.taps)?,
                kw: to_usize(x.taps)?,
                stride: [to_usize(y.stride)?, to_usize(x.stride)?],
                pad: [
                    to_usize(y.pad)?,
                    to_usize(x.pad)?,
                    to_usize(high(&y))?,
                    to_usize(high(&x))?,
                ],
                dilation: [to_usize(y.dilation)?, to_usize(x.dilation)?],
                out_h: to_usize(y.count)?,
                out_w: to_usize(x.count)?,
            },
            src: src.index(),
            src_base,
            src_strides: ImageStrides {
                n: at(from, n),
                h: y.step as isize,
                w: x.step as isize,
                c: at(from, ch),
            },
            dst: dst.index(),
            dst_base: to.base,
            dst_strides: ImageStrides {
                n: at(to, n),
                h: at(to, y.out),
                w: at(to, x.out),
                c: at(to, ch),
            },
        })
    }

    /// The forms that are at least 0 where the guard holds.
    fn conditions(&self, guard: ExprId) -> Option<Vec<Affine>> {
        match self.kernel.exprs[guard] {
            Expr::Binary(BinaryOp::And, a, b) => {
                let mut all = self.conditions(a)?;
                all.extend(self.conditions(b)?);
                Some(all)
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.roots.get(&a)?, self.roots.get(&b)?);
                let (mut form, strict) = match op {
                    BinaryOp::Ge => (a.plus(b, -1), false),
                    BinaryOp::Gt => (a.plus(b, -1), true),
                    BinaryOp::Le => (b.plus(a, -1), false),
                    BinaryOp::Lt => (b.plus(a, -1), true),
                    _ => return None,
                };
                form.base = form.base.checked_sub(i64::from(strict))?;
                Some(vec![form])
            }
            _ => None,
        }
    }

    /// The window along the axis whose taps are dim `w`.
    fn along(
        &self,
        w: usize,
        parallel: &[usize],
        from: &Affine,
        conditions: &[Affine],
        used: &mut usize,
    ) -> Option<Along> {
        let about: Vec<&Affine> = conditions.iter().filter(|c| c.get(w) != 0).collect();
        let taps = self.extents[w];
        // Dims that a form has besides the window's.
        let others = |f: &Affine| -> Vec<usize> { (0..f.coef.len()).filter(|d| *d != w && f.get(*d) != 0).collect() };
        if about.is_empty() {
            // Nothing is padded: the load alone says how positions step, in units of one tap.
            let step = from.get(w);
            let out = parallel
                .iter()
                .copied()
                .filter(|d| {
                    step > 0 && from.get(*d) > 0 && from.get(*d) % step == 0 && from.get(*d) / step <= taps.max(8)
                })
                .min_by_key(|d| from.get(*d));
            let out = out.filter(|_| step != 1);
            let (count, stride) = out.map_or((1, 1), |d| (self.extents[d], from.get(d) / step));
            return Some(Along {
                out,
                count,
                taps,
                stride,
                dilation: 1,
                pad: 0,
                size: (count - 1) * stride + taps,
                step,
            });
        }
        let lower = about.iter().find(|c| c.get(w) > 0);
        let upper = about.iter().find(|c| c.get(w) < 0);
        *used += about.len();
        if about.len() != usize::from(lower.is_some()) + usize::from(upper.is_some()) {
            return None;
        }
        let first = lower.or(upper)?;
        let sign = first.get(w).signum();
        let dilation = first.get(w).abs();
        let out = match *others(first).as_slice() {
            [] => None,
            [d] if parallel.contains(&d) => Some(d),
            _ => return None,
        };
        let stride = out.map_or(1, |d| first.get(d) * sign);
        let count = out.map_or(1, |d| self.extents[d]);
        let pad = lower.map_or(0, |f| -f.base);
        let size = match upper {
            Some(f) => f.base + 1 - pad,
            None => (count - 1) * stride + (taps - 1) * dilation + 1 - pad,
        };
        if let (Some(l), Some(u)) = (lower, upper) {
            // Both bound the same position.
            let sum = l.plus(u, 1);
            if !sum.is_constant() {
                return None;
            }
        }
        let step = from.get(w) / dilation;
        let fits =
            stride > 0 && pad >= 0 && from.get(w) % dilation == 0 && out.is_none_or(|d| from.get(d) == stride * step);
        fits.then_some(Along {
            out,
            count,
            taps,
            stride,
            dilation,
            pad,
            size,
            step,
        })
    }
}
