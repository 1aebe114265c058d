//! Pooling of planes, as channels-first images have them: each output row is a fold of image rows, then of that row's
//! columns.
//!
//! ```text
//! line[x] = fold of the rows of the window at x          vectors along the image's row
//! y[ox]   = fold of line[ox * stride + k * dilation]     vectors along the output's row
//! ```
//!
//! So a window of `kh * kw` taps takes `kh + kw` operations. For strides above 1 the line lies by its remainders, so
//! that each tap is one run of neighbours again. What is beside the image is filled once, by what folds to nothing.
#![expect(unsafe_op_in_unsafe_fn, reason = "kernel bodies under the contract of `pool2d`")]

use super::conv::ImageStrides;
use super::pool::{PoolKind, PoolShape, span};
use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};

/// How many image rows' worth of elements the line may take: windows that are far longer than the image have another
/// kernel.
const LONGEST: usize = 4;

/// What the rows of one call share.
struct Planes<'a> {
    max: bool,
    src: *const f32,
    from: ImageStrides,
    dst: *mut f32,
    to: ImageStrides,
    s: &'a PoolShape,
    /// Image columns that windows meet, and where the first lies in the line.
    columns: usize,
    left: usize,
    /// Elements of the line with one remainder, room for a vector included.
    part: usize,
    /// Remainders that taps have.
    used: &'a [bool],
    /// What a window's columns count, and its rows.
    column_counts: &'a [f32],
    row_counts: &'a [f32],
}

/// Pools planes whose rows are dense; says no, and does nothing, where they are not or the window is too long.
///
/// # Safety
/// As for `pool2d`.
pub(super) unsafe fn planes(
    ws: &Workspace,
    kind: PoolKind,
    dst: *mut f32,
    to: ImageStrides,
    src: *const f32,
    from: ImageStrides,
    s: &PoolShape,
) -> bool {
    let (stride, dilation) = (s.stride[1], s.dilation[1]);
    let reach = (s.out_w.saturating_sub(1).checked_mul(stride))
        .zip(s.kw.saturating_sub(1).checked_mul(dilation))
        .and_then(|(last, window)| last.checked_add(window)?.checked_add(1));
    let Some(reach) = reach.filter(|reach| *reach <= LONGEST * (s.w + 256)) else {
        return false;
    };
    if kind == PoolKind::Sum || from.w != 1 || to.w != 1 || s.out_w == 0 || s.kw == 0 {
        return false;
    }
    let used: Vec<bool> = {
        let mut used = vec![false; stride];
        (0..s.kw).for_each(|k| used[k * dilation % stride] = true);
        used
    };
    let count = |axis: usize, o: usize| {
        let (k, size) = [(s.kh, s.h), (s.kw, s.w)][axis];
        let at = span(
            o,
            s.stride[axis],
            k,
            s.dilation[axis],
            size,
            s.pad[axis],
            s.pad[axis + 2],
        );
        match kind {
            PoolKind::Average { include_pad: true } => at.counted as f32,
            _ => (at.end - at.first) as f32,
        }
    };
    let (column_counts, row_counts): (Vec<f32>, Vec<f32>) = match kind {
        PoolKind::Max | PoolKind::Sum => (Vec::new(), Vec::new()),
        PoolKind::Average { .. } => (
            (0..s.out_w).map(|o| count(1, o)).collect(),
            (0..s.out_h).map(|o| count(0, o)).collect(),
        ),
    };
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    let left = s.pad[1];
    let part = reach.div_ceil(stride) + isa.lanes();
    let grain = (16384 / (s.w * s.kh + s.out_w * s.kw).max(1)).max(1);
    ws.parallel_ranges(s.n * s.c * s.out_h, grain, &|range, _, _| {
        let planes = Planes {
            max: kind == PoolKind::Max,
            src: src.get(),
            from,
            dst: dst.get(),
            to,
            s,
            columns: s.w.min(reach.saturating_sub(left)),
            left,
            part,
            used: &used,
            column_counts: &column_counts,
            row_counts: &row_counts,
        };
        let nothing = if planes.max { f32::NEG_INFINITY } else { 0.0 };
        let mut line = vec![nothing; part * stride];
        let mut row = vec![nothing; if stride > 1 { s.w + isa.lanes() } else { 0 }];
        for at in range {
            // SAFETY: the caller's contract; each output row is one task's alone.
            unsafe { output_row(isa, &planes, at, line.as_mut_ptr(), row.as_mut_ptr()) }
        }
    });
    true
}

simd_dispatch! {
    /// Computes output row `at` of all planes' rows.
    unsafe fn output_row(planes: &Planes<'_>, at: usize, line: *mut f32, row: *mut f32) = output_row_body
}

#[inline(always)]
unsafe fn output_row_body<S: Simd>(p: &Planes<'_>, at: usize, line: *mut f32, row: *mut f32) {
    let s = p.s;
    let (plane, oy) = (at / s.out_h, at % s.out_h);
    let (n, c) = (plane / s.c, plane % s.c);
    let y = span(oy, s.stride[0], s.kh, s.dilation[0], s.h, s.pad[0], s.pad[2]);
    let stride = s.stride[1];
    let top = (oy * s.stride[0] + y.first * s.dilation[0]) as isize - s.pad[0] as isize;
    let image = n as isize * p.from.n + c as isize * p.from.c;
    let first = p.src.wrapping_offset(image + top * p.from.h);
    let step = s.dilation[0] as isize * p.from.h;
    let to = if stride == 1 { line.add(p.left) } else { row };
    fold_rows::<S>(p.max, to, first, step, y.end - y.first, p.columns);
    match stride {
        1 => {}
        2 => apart(p, line, row, 2),
        3 => apart(p, line, row, 3),
        _ => apart(p, line, row, stride),
    }
    let out = p
        .dst
        .offset(n as isize * p.to.n + c as isize * p.to.c + oy as isize * p.to.h);
    let rows = p.row_counts.get(oy).copied().unwrap_or(1.0);
    let mut o = 0;
    while o + 4 * S::LANES <= s.out_w {
        fold_columns::<S, 4, true>(p, line, out, o, S::LANES, rows);
        o += 4 * S::LANES;
    }
    while o + S::LANES <= s.out_w {
        fold_columns::<S, 1, true>(p, line, out, o, S::LANES, rows);
        o += S::LANES;
    }
    if o < s.out_w {
        fold_columns::<S, 1, false>(p, line, out, o, s.out_w - o, rows);
    }
}

#[inline(always)]
unsafe fn folded<S: Simd>(max: bool, acc: S::V, value: S::V) -> S::V {
    if max {
        // The maximum of the two has NaN where the value has it.
        S::select(S::is_nan(acc), acc, S::max(acc, value))
    } else {
        S::add(acc, value)
    }
}

/// Folds `rows` image rows, `step` apart, of `n` columns.
#[inline(always)]
unsafe fn fold_rows<S: Simd>(max: bool, to: *mut f32, first: *const f32, step: isize, rows: usize, n: usize) {
    let mut x = 0;
    while x < n {
        let part = (n - x).min(S::LANES);
        let mut acc = S::splat(if max { f32::NEG_INFINITY } else { 0.0 });
        for row in 0..rows {
            let p = first.wrapping_offset(row as isize * step).wrapping_add(x);
            let value = if part == S::LANES {
                S::load(p)
            } else {
                S::load_part(p, part)
            };
            acc = if row == 0 { value } else { folded::<S>(max, acc, value) };
        }
        if part == S::LANES {
            S::store(to.add(x), acc);
        } else {
            S::store_part(to.add(x), acc, part);
        }
        x += part;
    }
}

/// Lays a row out by the remainders of its columns.
#[inline(always)]
unsafe fn apart(p: &Planes<'_>, line: *mut f32, row: *const f32, stride: usize) {
    for (remainder, used) in p.used.iter().enumerate() {
        if !used {
            continue;
        }
        // The first column of the image with this remainder.
        let first = (remainder + stride - p.left % stride) % stride;
        let count = p.columns.saturating_sub(first).div_ceil(stride);
        let to = line.add(remainder * p.part + (p.left + first) / stride);
        for i in 0..count {
            to.add(i).write(*row.add(first + i * stride));
        }
    }
}

/// Folds the columns of `V` vectors of outputs from `o` on.
#[inline(always)]
unsafe fn fold_columns<S: Simd, const V: usize, const FULL: bool>(
    p: &Planes<'_>,
    line: *const f32,
    out: *mut f32,
    o: usize,
    n: usize,
    rows: f32,
) {
    let (stride, dilation) = (p.s.stride[1], p.s.dilation[1]);
    let mut acc = [S::zero(); V];
    for k in 0..p.s.kw {
        let at = k * dilation;
        // The line has room for a vector behind its last element.
        let from = line.add(at % stride * p.part + at / stride + o);
        for (v, acc) in acc.iter_mut().enumerate() {
            let value = S::load(from.add(v * S::LANES));
            *acc = if k == 0 { value } else { folded::<S>(p.max, *acc, value) };
        }
    }
    for (v, acc) in acc.iter().enumerate() {
        let at = o + v * S::LANES;
        let value = if p.max {
            *acc
        } else {
            let counts = p.column_counts.as_ptr().add(at);
            let counts = if FULL { S::load(counts) } else { S::load_part(counts, n) };
            // A window in padding alone has the average 0.
            S::div(*acc, S::max(S::splat(1.0), S::mul(counts, S::splat(rows))))
        };
        if FULL {
            S::store(out.add(at), value);
        } else {
            S::store_part(out.add(at), value, n);
        }
    }
}
