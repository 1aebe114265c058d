//! Strided copies, as memory moves or in tiles that keep the cache lines of both sides whole.

use ir::host::shapes::{Copy, Inner};

use super::env::Env;
use super::kernels::Isa;
use super::kernels::convert::transpose_tile;

/// Bytes that are worth a task of their own (a few microseconds).
const TASK_BYTES: usize = 64 << 10;
/// Elements of a tile along the two dense dims.
const TILE: usize = 16;

/// Parts that tasks take: outer positions, or pieces of the innermost where there are none.
fn parts(form: &Copy) -> (usize, usize) {
    let outer: usize = form.outer.iter().map(|s| s.extent).product();
    let pieces = match form.inner {
        Inner::Tile(_, column) => column.extent.div_ceil(TILE),
        Inner::Run(n) if outer == 1 => n.div_ceil(4096),
        Inner::Run(_) => 1,
    };
    (outer, pieces)
}

/// # Safety
/// `params` are the kernel's buffers at the sizes it was prepared for.
pub(crate) unsafe fn run(form: &Copy, env: &Env<'_>, params: &[*mut u8]) {
    let at = |(param, base): (usize, i64)| params[param].wrapping_offset(base as isize * form.unit as isize);
    let ends = Ends {
        src: at(form.src).cast_const(),
        dst: at(form.dst),
    };
    let (outer, pieces) = parts(form);
    let total = outer * pieces;
    let points = form.outer.iter().map(|s| s.extent).product::<usize>()
        * match form.inner {
            Inner::Run(n) => n,
            Inner::Tile(row, column) => row.extent * column.extent,
        };
    let tasks = match env.threads() {
        1 => 1,
        threads => (points * form.unit / TASK_BYTES).clamp(1, threads * 4),
    };
    let tasks = tasks.min(total);
    env.parallel_for(tasks, &|task, _| {
        let range = total * task / tasks..total * (task + 1) / tasks;
        // SAFETY: every index was proven to be inside its buffer; parts store to elements of their own.
        unsafe {
            match form.unit {
                1 => parts_of::<u8>(form, env.isa, &ends, range, pieces),
                2 => parts_of::<u16>(form, env.isa, &ends, range, pieces),
                4 => parts_of::<u32>(form, env.isa, &ends, range, pieces),
                _ => parts_of::<u64>(form, env.isa, &ends, range, pieces),
            }
        }
    });
}

unsafe fn parts_of<T: std::marker::Copy>(
    form: &Copy,
    isa: Isa,
    ends: &Ends,
    range: std::ops::Range<usize>,
    pieces: usize,
) {
    for part in range {
        let (mut rest, piece) = (part / pieces, part % pieces);
        let (mut from, mut to) = (0isize, 0isize);
        for s in form.outer.iter().rev() {
            let i = (rest % s.extent) as isize;
            rest /= s.extent;
            from += i * s.src;
            to += i * s.dst;
        }
        // SAFETY: the caller's contract.
        unsafe {
            let (src, dst) = (ends.src.cast::<T>().offset(from), ends.dst.cast::<T>().offset(to));
            match form.inner {
                Inner::Run(n) => {
                    let (first, end) = (n * piece / pieces, n * (piece + 1) / pieces);
                    std::ptr::copy_nonoverlapping(src.add(first), dst.add(first), end - first);
                }
                Inner::Tile(row, column) => {
                    let (c0, c1) = (piece * TILE, ((piece + 1) * TILE).min(column.extent));
                    let mut r0 = 0;
                    while r0 < row.extent {
                        let r1 = (r0 + TILE).min(row.extent);
                        if size_of::<T>() == 4 {
                            // A tile of words is transposed in registers.
                            let to = dst.offset(c0 as isize * column.dst).add(r0).cast::<f32>();
                            let from = src.offset(r0 as isize * row.src).add(c0).cast::<f32>();
                            transpose_tile(isa, to, column.dst as usize, from, row.src, c1 - c0, r1 - r0);
                            r0 = r1;
                            continue;
                        }
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

struct Ends {
    src: *const u8,
    dst: *mut u8,
}
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Ends {}
