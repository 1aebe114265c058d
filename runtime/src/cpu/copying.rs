//! Strided copies: concatenations, slices and transposes that are one load and one store, moved without registers between.
//!
//! Recognised in a kernel of loops whose indices are both affine. Runs of neighbours go as memory moves; where source and
//! destination are dense along different dims, tiles of both keep cache lines whole.

use ir::entity::Entity;
use ir::kernel::{Expr, Kernel, Loops, Stmt};

use super::env::Env;
use super::exec::Prepare;
use super::loops::analyse;
use crate::error::RuntimeError;

/// Bytes that are worth a task of their own (a few microseconds).
const TASK_BYTES: usize = 64 << 10;
/// Elements of a tile along the two dense dims.
const TILE: usize = 16;

/// A copy at one set of sizes.
#[derive(Debug)]
pub(crate) struct CopyExec {
    src: (usize, i64),
    dst: (usize, i64),
    /// Bytes of an element.
    unit: usize,
    /// Loops around the runs: extent, source and destination strides; outermost first.
    outer: Vec<Step>,
    inner: Inner,
    tasks: usize,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    extent: usize,
    src: isize,
    dst: isize,
}

#[derive(Clone, Copy, Debug)]
enum Inner {
    /// Elements side by side in both.
    Run(usize),
    /// Rows are dense in the destination, columns in the source: `(along destination, along source)`.
    Tile(Step, Step),
}

impl CopyExec {
    /// Recognises a copy.
    ///
    /// # Errors
    /// A size that does not evaluate.
    pub(crate) fn match_kernel(
        kernel: &Kernel,
        loops: &Loops,
        cx: &Prepare<'_>,
    ) -> Result<Option<CopyExec>, RuntimeError> {
        let [
            Stmt::Store {
                param: to,
                index: to_index,
                value,
                ref axes,
            },
        ] = loops.stmts[..]
        else {
            return Ok(None);
        };
        let Expr::Load { param: from, index } = kernel.exprs[value] else {
            return Ok(None);
        };
        let bits = kernel.params[to].dtype.bits();
        if !axes.is_empty() || cx.aliased || from == to || bits < 8 || kernel.params[from].dtype.bits() != bits {
            return Ok(None);
        }
        let a = analyse(kernel, &loops.parallel, &loops.stmts, cx.bindings)?;
        let (Some(read), Some(write)) = (a.roots.get(&index), a.roots.get(&to_index)) else {
            return Ok(None);
        };
        let inside = |form: &super::affine::Affine, param| -> Result<bool, RuntimeError> {
            let (lo, hi) = form.range(&a.extents);
            let elements = kernel.params[param].count(cx.bindings)?;
            Ok(lo >= 0 && hi < elements)
        };
        let dims: Vec<usize> = a.parallel.iter().copied().filter(|d| a.extents[*d] != 1).collect();
        // Every point has an element of its own, so that tasks may take any of them: strides cover all below them.
        let mut by_stride = dims.clone();
        by_stride.sort_by_key(|d| write.get(*d));
        let mut covered = 0i64;
        let apart = by_stride.iter().all(|d| {
            let stride = write.get(*d);
            let fits = stride > covered;
            covered = covered.saturating_add(stride.saturating_mul(a.extents[*d] - 1));
            fits
        });
        if a.extents.contains(&0) || !apart || !inside(read, from)? || !inside(write, to)? {
            return Ok(None);
        }
        let step = |d: usize| Step {
            extent: a.extents[d] as usize,
            src: read.get(d) as isize,
            dst: write.get(d) as isize,
        };
        let Some(row) = by_stride.first().copied().filter(|d| write.get(*d) == 1) else {
            return Ok(None);
        };
        let column = dims.iter().copied().find(|d| *d != row && read.get(*d) == 1);
        let (inner, taken) = match (read.get(row), column) {
            (1, _) => (Inner::Run(a.extents[row] as usize), vec![row]),
            // Blocks of lanes are faster over short rows (an image's three channels).
            (_, Some(column)) if a.extents[row] >= 8 => (Inner::Tile(step(row), step(column)), vec![row, column]),
            _ => return Ok(None),
        };
        by_stride.retain(|d| !taken.contains(d));
        let outer: Vec<Step> = by_stride.iter().rev().map(|d| step(*d)).collect();
        // Short runs cost more a byte than blocks of lanes do.
        let unit = bits as usize / 8;
        if matches!(inner, Inner::Run(n) if n * unit < 32) {
            return Ok(None);
        }
        let points: usize = dims.iter().map(|d| a.extents[*d] as usize).product();
        let tasks = (points * unit / TASK_BYTES).clamp(1, cx.threads * 4);
        Ok(Some(CopyExec {
            src: (from.index(), read.base),
            dst: (to.index(), write.base),
            unit,
            outer,
            inner,
            tasks: if cx.threads == 1 { 1 } else { tasks },
        }))
    }

    /// Parts that tasks take: outer positions, or pieces of the innermost where there are none.
    fn parts(&self) -> (usize, usize) {
        let outer: usize = self.outer.iter().map(|s| s.extent).product();
        let pieces = match self.inner {
            Inner::Tile(_, column) => column.extent.div_ceil(TILE),
            Inner::Run(n) if outer == 1 => n.div_ceil(4096),
            Inner::Run(_) => 1,
        };
        (outer, pieces)
    }

    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let at = |(param, base): (usize, i64)| params[param].wrapping_offset(base as isize * self.unit as isize);
        let ends = Ends {
            src: at(self.src).cast_const(),
            dst: at(self.dst),
        };
        let (outer, pieces) = self.parts();
        let total = outer * pieces;
        let tasks = self.tasks.min(total);
        env.parallel_for(tasks, &|task, _| {
            let range = total * task / tasks..total * (task + 1) / tasks;
            // SAFETY: every index was proven to be inside its buffer; parts store to elements of their own.
            unsafe {
                match self.unit {
                    1 => self.parts_of::<u8>(&ends, range, pieces),
                    2 => self.parts_of::<u16>(&ends, range, pieces),
                    4 => self.parts_of::<u32>(&ends, range, pieces),
                    _ => self.parts_of::<u64>(&ends, range, pieces),
                }
            }
        });
    }

    unsafe fn parts_of<T: Copy>(&self, ends: &Ends, range: std::ops::Range<usize>, pieces: usize) {
        for part in range {
            let (mut rest, piece) = (part / pieces, part % pieces);
            let (mut from, mut to) = (0isize, 0isize);
            for s in self.outer.iter().rev() {
                let i = (rest % s.extent) as isize;
                rest /= s.extent;
                from += i * s.src;
                to += i * s.dst;
            }
            // SAFETY: the caller's contract.
            unsafe {
                let (src, dst) = (ends.src.cast::<T>().offset(from), ends.dst.cast::<T>().offset(to));
                match self.inner {
                    Inner::Run(n) => {
                        let (first, end) = (n * piece / pieces, n * (piece + 1) / pieces);
                        std::ptr::copy_nonoverlapping(src.add(first), dst.add(first), end - first);
                    }
                    Inner::Tile(row, column) => {
                        let (c0, c1) = (piece * TILE, ((piece + 1) * TILE).min(column.extent));
                        let mut r0 = 0;
                        while r0 < row.extent {
                            let r1 = (r0 + TILE).min(row.extent);
                            for c in c0..c1 {
                                let from = src.add(c);
                                let to = dst.offset(c as isize * column.dst);
                                for r in r0..r1 {
                                    to.add(r).write(from.offset(r as isize * row.src).read());
                                }
                            }
                            r0 = r1;
                        }
                    }
                }
            }
        }
    }
}

struct Ends {
    src: *const u8,
    dst: *mut u8,
}
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Ends {}
