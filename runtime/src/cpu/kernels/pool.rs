//! Max, average and sum pooling over images of any layout.
//!
//! Channels innermost (NHWC) is vectorised over channels, planes (NCHW) along their rows ([`super::pool_planes`]);
//! other layouts go element by element. Output sizes are the caller's, so both rounding modes are served. NaN in a
//! window gives NaN.
#![expect(unsafe_op_in_unsafe_fn, reason = "kernel bodies under the contract of `pool2d`")]

use super::conv::ImageStrides;
use super::pool_planes::planes;
use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};
pub use ir::host::shapes::{PoolKind, PoolShape};

/// The taps of one axis that meet the image, and how many are inside image and padding.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub first: usize,
    pub end: usize,
    pub counted: usize,
}

pub(super) fn span(
    o: usize,
    stride: usize,
    k: usize,
    dilation: usize,
    size: usize,
    before: usize,
    after: usize,
) -> Span {
    let start = o * stride;
    let first = before.saturating_sub(start).div_ceil(dilation).min(k);
    let end = (size + before).saturating_sub(start).div_ceil(dilation).clamp(first, k);
    let counted = (size + before + after).saturating_sub(start).div_ceil(dilation).min(k);
    Span { first, end, counted }
}

/// Pools f32 images.
///
/// # Safety
/// Every element that the shape and strides reach must be readable in `src`, writable in `dst`, exclusively and
/// disjoint from `src`, for the call. Strides of the shape and dilations are at least 1.
pub unsafe fn pool2d(
    ws: &Workspace,
    kind: PoolKind,
    dst: *mut f32,
    dst_strides: ImageStrides,
    src: *const f32,
    src_strides: ImageStrides,
    s: PoolShape,
) {
    // SAFETY: the caller's contract.
    if src_strides.c != 1 && unsafe { planes(ws, kind, dst, dst_strides, src, src_strides, &s) } {
        return;
    }
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    let window = (s.kh * s.kw).max(1);
    let rows = |range: std::ops::Range<usize>, first: usize, count: usize, vector: bool| {
        for row in range {
            let (n, oy) = (row / s.out_h, row % s.out_h);
            let y = span(oy, s.stride[0], s.kh, s.dilation[0], s.h, s.pad[0], s.pad[2]);
            for ox in 0..s.out_w {
                let x = span(ox, s.stride[1], s.kw, s.dilation[1], s.w, s.pad[1], s.pad[3]);
                let count_of = match kind {
                    PoolKind::Average { include_pad: true } => y.counted * x.counted,
                    _ => (y.end - y.first) * (x.end - x.first),
                };
                let top = (oy * s.stride[0] + y.first * s.dilation[0]) as isize - s.pad[0] as isize;
                let left = (ox * s.stride[1] + x.first * s.dilation[1]) as isize - s.pad[1] as isize;
                let win = Window {
                    rows: y.end - y.first,
                    cols: x.end - x.first,
                    row_stride: src_strides.h * s.dilation[0] as isize,
                    col_stride: src_strides.w * s.dilation[1] as isize,
                    // A window in padding alone has the average 0.
                    count: if kind == PoolKind::Sum {
                        1.0
                    } else {
                        count_of.max(1) as f32
                    },
                };
                // SAFETY: only taps inside the image are read (an empty window reads nothing), one output pixel
                // written.
                unsafe {
                    let image = n as isize * src_strides.n + first as isize * src_strides.c;
                    let from = src
                        .get()
                        .wrapping_offset(image + top * src_strides.h + left * src_strides.w);
                    let at = n as isize * dst_strides.n + oy as isize * dst_strides.h + ox as isize * dst_strides.w;
                    let to = dst.get().offset(at + first as isize * dst_strides.c);
                    if vector {
                        channels(isa, kind, to, from, win, count);
                    } else {
                        for c in 0..count as isize {
                            let value = scalar(kind, from.wrapping_offset(c * src_strides.c), win);
                            to.offset(c * dst_strides.c).write(value);
                        }
                    }
                }
            }
        }
    };
    if src_strides.c == 1 && dst_strides.c == 1 {
        let grain = (16384 / (s.out_w * s.c * window).max(1)).max(1);
        if s.n * s.out_h >= 2 * ws.threads() || ws.threads() == 1 {
            ws.parallel_ranges(s.n * s.out_h, grain, &|range, _, _| rows(range, 0, s.c, true));
        } else {
            // A global pool has one output row: split channels instead, in whole cache lines.
            ws.parallel_ranges(
                s.c.div_ceil(16),
                (16384 / (s.n * s.out_h * s.out_w * window * 16).max(1)).max(1),
                &|range, _, _| {
                    let (first, end) = (range.start * 16, (range.end * 16).min(s.c));
                    rows(0..s.n * s.out_h, first, end - first, true)
                },
            );
        }
    } else {
        let grain = (8192 / (s.out_h * s.out_w * window).max(1)).max(1);
        ws.parallel_ranges(s.n * s.c, grain, &|range, _, _| {
            for plane in range {
                let (n, c) = (plane / s.c, plane % s.c);
                rows(n * s.out_h..(n + 1) * s.out_h, c, 1, false);
            }
        });
    }
}

/// Takes the largest of each window of signed bytes; a window in padding alone gives -128.
///
/// # Safety
/// As for [`pool2d`].
pub unsafe fn max_bytes(
    ws: &Workspace,
    dst: *mut i8,
    dst_strides: ImageStrides,
    src: *const i8,
    src_strides: ImageStrides,
    s: PoolShape,
) {
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    let grain = (65536 / (s.out_w * s.c * (s.kh * s.kw)).max(1)).max(1);
    ws.parallel_ranges(s.n * s.out_h, grain, &|range, _, _| {
        for row in range {
            let (n, oy) = (row / s.out_h, row % s.out_h);
            let y = span(oy, s.stride[0], s.kh, s.dilation[0], s.h, s.pad[0], s.pad[2]);
            for ox in 0..s.out_w {
                let x = span(ox, s.stride[1], s.kw, s.dilation[1], s.w, s.pad[1], s.pad[3]);
                let top = (oy * s.stride[0] + y.first * s.dilation[0]) as isize - s.pad[0] as isize;
                let left = (ox * s.stride[1] + x.first * s.dilation[1]) as isize - s.pad[1] as isize;
                let window = Window {
                    rows: y.end - y.first,
                    cols: x.end - x.first,
                    row_stride: src_strides.h * s.dilation[0] as isize,
                    col_stride: src_strides.w * s.dilation[1] as isize,
                    count: 0.0,
                };
                let at = n as isize * dst_strides.n + oy as isize * dst_strides.h + ox as isize * dst_strides.w;
                let from = n as isize * src_strides.n + top * src_strides.h + left * src_strides.w;
                // SAFETY: only taps inside the image are read, one output pixel is written.
                unsafe {
                    let (to, from) = (dst.get().offset(at), src.get().wrapping_offset(from).cast_const());
                    max_of_bytes(isa, to, dst_strides.c, from, src_strides.c, window, s.c);
                }
            }
        }
    });
}

simd_dispatch! {
    /// One output pixel.
    unsafe fn max_of_bytes(
        to: *mut i8, to_step: isize, from: *const i8, from_step: isize, window: Window, channels: usize,
    ) = max_of_bytes_body
}

#[inline(always)]
unsafe fn max_of_bytes_body<S: Simd>(
    to: *mut i8,
    to_step: isize,
    from: *const i8,
    from_step: isize,
    window: Window,
    channels: usize,
) {
    if (to_step, from_step) == (1, 1) {
        /// Channels that are folded at once, in registers.
        macro_rules! at_once {
            ($count:literal, $at:expr) => {{
                let mut most = [i8::MIN; $count];
                for row in 0..window.rows as isize {
                    for col in 0..window.cols as isize {
                        let tap = from.offset(row * window.row_stride + col * window.col_stride);
                        let bytes = tap.add($at).cast::<[i8; $count]>().read_unaligned();
                        for i in 0..$count {
                            most[i] = most[i].max(bytes[i]);
                        }
                    }
                }
                to.add($at).cast::<[i8; $count]>().write_unaligned(most);
                $at += $count;
            }};
        }
        let mut at = 0;
        while at + 64 <= channels {
            at_once!(64, at);
        }
        while at + 16 <= channels {
            at_once!(16, at);
        }
        while at < channels {
            at_once!(1, at);
        }
        return;
    }
    for c in 0..channels as isize {
        let mut most = i8::MIN;
        for row in 0..window.rows as isize {
            for col in 0..window.cols as isize {
                most = most.max(*from.offset(row * window.row_stride + col * window.col_stride + c * from_step));
            }
        }
        to.offset(c * to_step).write(most);
    }
}

/// Averages each channel of each image: `dst` is dense `[n, c]`.
///
/// # Safety
/// As for [`pool2d`].
pub unsafe fn global_average(
    ws: &Workspace,
    dst: *mut f32,
    src: *const f32,
    src_strides: ImageStrides,
    [n, h, w, c]: [usize; 4],
) {
    let shape = PoolShape::whole([n, h, w, c]);
    let dst_strides = ImageStrides {
        n: c as isize,
        h: c as isize,
        w: c as isize,
        c: 1,
    };
    if src_strides.c != 1 && src_strides.w == 1 && src_strides.h == w as isize && src_strides.c == (h * w) as isize {
        let (src, dst, isa) = (SyncPtr(src.cast_mut()), SyncPtr(dst), ws.isa());
        ws.parallel_ranges(n * c, (8192 / (h * w).max(1)).max(1), &|range, _, _| {
            for plane in range {
                let (n, c_at) = (plane / c, plane % c);
                // SAFETY: a dense plane of the source; one value of the destination.
                unsafe {
                    let from = src
                        .get()
                        .offset(n as isize * src_strides.n + c_at as isize * src_strides.c);
                    dst.get()
                        .add(plane)
                        .write(super::rows::reduce_row(isa, super::rows::Reduce::Mean, from, h * w));
                }
            }
        });
        return;
    }
    pool2d(
        ws,
        PoolKind::Average { include_pad: false },
        dst,
        dst_strides,
        src,
        src_strides,
        shape,
    )
}

#[derive(Clone, Copy)]
struct Window {
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
    count: f32,
}

unsafe fn scalar(kind: PoolKind, src: *const f32, w: Window) -> f32 {
    let mut acc = if kind == PoolKind::Max { f32::NEG_INFINITY } else { 0.0 };
    for y in 0..w.rows as isize {
        for x in 0..w.cols as isize {
            let value = *src.offset(y * w.row_stride + x * w.col_stride);
            if kind != PoolKind::Max {
                acc += value;
            } else if value > acc || value.is_nan() {
                acc = value;
            }
        }
    }
    if kind == PoolKind::Max { acc } else { acc / w.count }
}

simd_dispatch! {
    unsafe fn channels(kind: PoolKind, dst: *mut f32, src: *const f32, w: Window, n: usize) = channels_body
}

#[inline(always)]
unsafe fn channels_body<S: Simd>(kind: PoolKind, dst: *mut f32, src: *const f32, w: Window, n: usize) {
    let mut c = 0;
    // Four vectors at a time hide the latency of the running maximum or sum.
    while c + 4 * S::LANES <= n {
        vectors::<S, 4, true>(kind, dst.add(c), src.wrapping_add(c), w, S::LANES);
        c += 4 * S::LANES;
    }
    while c + S::LANES <= n {
        vectors::<S, 1, true>(kind, dst.add(c), src.wrapping_add(c), w, S::LANES);
        c += S::LANES;
    }
    if c < n {
        vectors::<S, 1, false>(kind, dst.add(c), src.wrapping_add(c), w, n - c);
    }
}

#[inline(always)]
unsafe fn vectors<S: Simd, const V: usize, const FULL: bool>(
    kind: PoolKind,
    dst: *mut f32,
    src: *const f32,
    w: Window,
    n: usize,
) {
    let max = kind == PoolKind::Max;
    let mut acc = [S::splat(if max { f32::NEG_INFINITY } else { 0.0 }); V];
    for y in 0..w.rows as isize {
        for x in 0..w.cols as isize {
            let p = src.offset(y * w.row_stride + x * w.col_stride);
            for (v, acc) in acc.iter_mut().enumerate() {
                let value = if FULL {
                    S::load(p.add(v * S::LANES))
                } else {
                    S::load_part(p, n)
                };
                *acc = if max {
                    S::select(S::is_nan(*acc), *acc, S::max(*acc, value))
                } else {
                    S::add(*acc, value)
                };
            }
        }
    }
    for (v, acc) in acc.iter().enumerate() {
        let y = if max { *acc } else { S::div(*acc, S::splat(w.count)) };
        if FULL {
            S::store(dst.add(v * S::LANES), y);
        } else {
            S::store_part(dst, y, n);
        }
    }
}
