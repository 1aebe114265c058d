//! Strided copies: concatenations, slices and transposes that are one load and one store, moved without registers between.
//!
//! A copy's body says where its elements are; here its sizes are bound. Runs of neighbours go as memory moves; where source and
//! destination are dense along different dims, tiles of both keep cache lines whole.

use ir::dim::Dim;
use ir::entity::Entity;
use ir::kernel::{CopyBody, Kernel};

use super::env::Env;
use super::exec::Prepare;
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

/// The most that sizes and strides of a copy may be: their products fit 64 bits.
const SMALL: u64 = 1 << 40;

impl CopyExec {
    /// Takes a copy's body whose elements lie in runs or tiles at these sizes; `None` where blocks of lanes are faster.
    ///
    /// # Errors
    /// A size that does not evaluate.
    pub(crate) fn new(kernel: &Kernel, body: &CopyBody, cx: &Prepare<'_>) -> Result<Option<CopyExec>, RuntimeError> {
        let (source, target) = (&kernel.params[body.source], &kernel.params[body.target]);
        let bits = target.dtype.bits();
        if cx.aliased || body.source == body.target || bits < 8 || source.dtype.bits() != bits {
            return Ok(None);
        }
        let size = |size: &Dim| size.eval(cx.bindings);
        // Extent, source and destination strides; outermost first.
        let mut dims: Vec<[i64; 3]> = Vec::new();
        for (axis, step) in body.loops.parallel.iter().zip(&body.steps) {
            let inner = [
                size(&kernel.axes[*axis].extent)?,
                size(&step.source)?,
                size(&step.target)?,
            ];
            if inner[0] < 1 || inner.iter().any(|v| v.unsigned_abs() > SMALL) {
                return Ok(None);
            }
            match dims.last_mut() {
                _ if inner[0] == 1 => {}
                // Neighbours that step through both as one.
                Some(outer)
                    if [1, 2]
                        .iter()
                        .all(|i| i128::from(outer[*i]) == i128::from(inner[*i]) * i128::from(inner[0])) =>
                {
                    *outer = [outer[0].saturating_mul(inner[0]), inner[1], inner[2]];
                }
                _ => dims.push(inner),
            }
        }
        // Everything that is read and written must be in its buffer.
        let inside = |base: i64, of: usize, elements: i64| {
            let (mut low, mut high) = (i128::from(base), i128::from(base));
            for dim in &dims {
                let span = i128::from(dim[of]) * i128::from(dim[0] - 1);
                if span < 0 { low += span } else { high += span }
            }
            low >= 0 && high < i128::from(elements)
        };
        let (from, to) = (size(&body.from)?, size(&body.to)?);
        let fits = inside(from, 1, source.count(cx.bindings)?) && inside(to, 2, target.count(cx.bindings)?);
        // Every point has an element of its own, so that tasks may take any of them: strides cover all below them.
        dims.sort_by_key(|dim| dim[2]);
        let mut covered = 0i128;
        let apart = dims.iter().all(|dim| {
            let stride = i128::from(dim[2]);
            let is_apart = stride > covered;
            covered += stride * i128::from(dim[0] - 1);
            is_apart
        });
        if !fits || !apart || dims.first().is_none_or(|row| row[2] != 1) {
            return Ok(None);
        }
        // None is negative, or beyond its buffer, as was just seen.
        let step = |dim: [i64; 3]| Step {
            extent: dim[0] as usize,
            src: dim[1] as isize,
            dst: dim[2] as isize,
        };
        let row = dims.remove(0);
        let column = dims.iter().position(|dim| dim[1] == 1);
        let inner = match (row[1], column) {
            (1, _) => Inner::Run(row[0] as usize),
            // Blocks of lanes are faster over short rows (an image's three channels).
            (_, Some(column)) if row[0] >= 8 => Inner::Tile(step(row), step(dims.remove(column))),
            _ => return Ok(None),
        };
        // Short runs cost more a byte than blocks of lanes do.
        let unit = bits as usize / 8;
        if matches!(inner, Inner::Run(n) if n * unit < 32) {
            return Ok(None);
        }
        let outer: Vec<Step> = dims.into_iter().rev().map(step).collect();
        let points = outer.iter().map(|s| s.extent).product::<usize>()
            * match inner {
                Inner::Run(n) => n,
                Inner::Tile(row, column) => row.extent * column.extent,
            };
        let tasks = (points * unit / TASK_BYTES).clamp(1, cx.threads * 4);
        Ok(Some(CopyExec {
            src: (body.source.index(), from),
            dst: (body.target.index(), to),
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
