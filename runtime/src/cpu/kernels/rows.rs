//! Softmax, norms and reductions over one axis of `[outer, len, inner]` memory.
//!
//! `inner == 1` is the contiguous case (rows); else the axis is strided and the vectors run along `inner`. Each row or
//! column is one task's work, in an order that does not depend on the number of threads.
#![expect(
    clippy::needless_range_loop,
    reason = "index loops of constant length unroll into registers"
)]
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "kernel bodies under the contract of the public functions"
)]

use super::isa::Isa;
use super::math::funcs;
use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};
pub use ir::host::shapes::Rows;

/// Values that are worth a task of their own.
const GRAIN: usize = 8192;

/// Softmax over each row. A row of -inf alone gives NaN, as `exp(x - max)` does; large negative values alone are
/// weighed as any others.
///
/// # Safety
/// `src` and `dst` are valid for the rows; they are the same or do not overlap.
pub unsafe fn softmax(ws: &Workspace, dst: *mut f32, src: *const f32, shape: Rows) {
    each_row(ws, dst, src, shape, &|isa, dst, src, n| softmax_row(isa, dst, src, n))
}

/// The logarithm of softmax over each row.
///
/// # Safety
/// As for [`softmax`].
pub unsafe fn log_softmax(ws: &Workspace, dst: *mut f32, src: *const f32, shape: Rows) {
    each_row(ws, dst, src, shape, &|isa, dst, src, n| {
        log_softmax_row(isa, dst, src, n)
    })
}

/// `(x - mean) / sqrt(variance + eps) * gamma + beta` over each row; the variance is that of the population.
///
/// # Safety
/// As for [`softmax`].
///
/// # Panics
/// When `gamma` or `beta` is shorter than a row.
pub unsafe fn layer_norm(
    ws: &Workspace,
    dst: *mut f32,
    src: *const f32,
    shape: Rows,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    eps: f32,
) {
    let (gamma, beta) = (affine(gamma, shape.cols), affine(beta, shape.cols));
    each_row(ws, dst, src, shape, &|isa, dst, src, n| {
        layer_norm_row(isa, dst, src, n, gamma.get(), beta.get(), eps)
    })
}

/// `x / sqrt(mean(x²) + eps) * gamma` over each row.
///
/// # Safety
/// As for [`softmax`].
///
/// # Panics
/// When `gamma` is shorter than a row.
pub unsafe fn rms_norm(ws: &Workspace, dst: *mut f32, src: *const f32, shape: Rows, gamma: Option<&[f32]>, eps: f32) {
    let gamma = affine(gamma, shape.cols);
    each_row(ws, dst, src, shape, &|isa, dst, src, n| {
        rms_norm_row(isa, dst, src, n, gamma.get(), eps)
    })
}

fn affine(values: Option<&[f32]>, cols: usize) -> SyncPtr<f32> {
    assert!(
        values.is_none_or(|v| v.len() >= cols),
        "scale and shift have one value per column"
    );
    SyncPtr(values.map_or(std::ptr::null_mut(), |v| v.as_ptr().cast_mut()))
}

unsafe fn each_row(
    ws: &Workspace,
    dst: *mut f32,
    src: *const f32,
    shape: Rows,
    run: &(dyn Fn(Isa, *mut f32, *const f32, usize) + Sync),
) {
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    if shape.cols == 0 {
        return;
    }
    ws.parallel_ranges(shape.rows, (GRAIN / shape.cols).max(1), &|rows, _, _| {
        for row in rows {
            // SAFETY: row `row` of both operands.
            let (d, s) = unsafe {
                (
                    dst.get().add(row * shape.dst_stride),
                    src.get().add(row * shape.src_stride),
                )
            };
            run(isa, d, s, shape.cols);
        }
    });
}

/// What a reduction keeps of an axis. An empty axis gives 0, NaN, -inf, inf, 1 and 0 in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    Sum,
    Mean,
    /// NaN when any value is.
    Max,
    /// NaN when any value is.
    Min,
    Prod,
    SumSquare,
}

impl Reduce {
    fn start(self) -> f32 {
        match self {
            Reduce::Sum | Reduce::Mean | Reduce::SumSquare => 0.0,
            Reduce::Max => f32::NEG_INFINITY,
            Reduce::Min => f32::INFINITY,
            Reduce::Prod => 1.0,
        }
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(self, acc: S::V, x: S::V) -> S::V {
        match self {
            Reduce::Sum | Reduce::Mean => S::add(acc, x),
            // The vector minimum drops a NaN that comes first.
            Reduce::Max => S::select(S::is_nan(acc), acc, S::max(acc, x)),
            Reduce::Min => S::select(S::is_nan(acc), acc, S::min(acc, x)),
            Reduce::Prod => S::mul(acc, x),
            Reduce::SumSquare => S::fma(x, x, acc),
        }
    }

    /// Joins two partial results.
    #[inline(always)]
    fn join(self, a: f32, b: f32) -> f32 {
        match self {
            Reduce::Sum | Reduce::Mean | Reduce::SumSquare => a + b,
            Reduce::Max if a.is_nan() || a > b => a,
            Reduce::Min if a.is_nan() || a < b => a,
            Reduce::Max | Reduce::Min => b,
            Reduce::Prod => a * b,
        }
    }
}

/// Reduces the middle axis of dense `[outer, len, inner]` to dense `[outer, inner]`.
///
/// # Safety
/// `src` is valid for `outer * len * inner` floats, `dst` for `outer * inner`, and they do not overlap.
pub unsafe fn reduce(ws: &Workspace, op: Reduce, dst: *mut f32, src: *const f32, [outer, len, inner]: [usize; 3]) {
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    if inner == 1 {
        ws.parallel_ranges(outer, (GRAIN / len.max(1)).max(1), &|rows, _, _| {
            for row in rows {
                // SAFETY: one row, one result.
                unsafe {
                    dst.get()
                        .add(row)
                        .write(reduce_row(isa, op, src.get().add(row * len), len))
                }
            }
        });
        return;
    }
    let blocks = inner.div_ceil(COLUMNS);
    ws.parallel_ranges(
        outer * blocks,
        (GRAIN / (len.max(1) * COLUMNS.min(inner.max(1)))).max(1),
        &|tasks, _, _| {
            for task in tasks {
                let (row, first) = (task / blocks, task % blocks * COLUMNS);
                let count = COLUMNS.min(inner - first);
                // SAFETY: a block of columns of one outer entry.
                unsafe {
                    let from = src.get().add(row * len * inner + first);
                    reduce_columns(isa, op, dst.get().add(row * inner + first), from, len, inner, count);
                }
            }
        },
    );
}

/// Columns that one task reduces at a time: a few cache lines of each row.
const COLUMNS: usize = 64;

/// Reduces one contiguous row.
///
/// # Safety
/// `src` is valid for `n` floats.
pub unsafe fn reduce_row(isa: Isa, op: Reduce, src: *const f32, n: usize) -> f32 {
    match op {
        Reduce::Mean => reduce_row_any(isa, op, src, n) / n as f32,
        _ => reduce_row_any(isa, op, src, n),
    }
}

/// The position of the greatest (or least) value along the middle axis of dense `[outer, len, inner]`.
///
/// NaN counts as greater (less) than all, as in numpy; of equal values the first one wins, or the last with `last`.
/// An empty axis gives 0.
///
/// # Safety
/// `src` is valid for `outer * len * inner` floats, `dst` for `outer * inner` values.
pub unsafe fn arg_reduce(
    ws: &Workspace,
    greatest: bool,
    last: bool,
    dst: *mut i64,
    src: *const f32,
    [outer, len, inner]: [usize; 3],
) {
    let (dst, src) = (SyncPtr(dst), SyncPtr(src.cast_mut()));
    ws.parallel_ranges(outer * inner, (GRAIN / len.max(1)).max(1), &|range, _, _| {
        for at in range {
            let (o, i) = (at / inner, at % inner);
            let mut best = (0usize, f32::NAN);
            for k in 0..len {
                // SAFETY: inside the source.
                let x = unsafe { *src.get().add((o * len + k) * inner + i) };
                let beats = if greatest { x > best.1 } else { x < best.1 };
                let ties = last && (x == best.1 || (x.is_nan() && best.1.is_nan()));
                if k == 0 || (x.is_nan() && !best.1.is_nan()) || (beats && !best.1.is_nan()) || ties {
                    best = (k, x);
                }
            }
            // SAFETY: one result per column.
            unsafe { dst.get().add(at).write(best.0 as i64) }
        }
    });
}

/// Softmax (or its logarithm) along the middle axis of dense `[outer, len, inner]`.
///
/// # Safety
/// As for [`softmax`], for `outer * len * inner` floats.
pub unsafe fn softmax_axis(ws: &Workspace, log: bool, dst: *mut f32, src: *const f32, [outer, len, inner]: [usize; 3]) {
    if inner == 1 {
        let shape = Rows::dense(outer, len);
        return if log {
            log_softmax(ws, dst, src, shape)
        } else {
            softmax(ws, dst, src, shape)
        };
    }
    if len == 0 {
        return;
    }
    let (dst, src, isa) = (SyncPtr(dst), SyncPtr(src.cast_mut()), ws.isa());
    let lanes = isa.lanes();
    let blocks = inner.div_ceil(lanes);
    ws.parallel_ranges(outer * blocks, (GRAIN / (len * lanes)).max(1), &|tasks, _, _| {
        for task in tasks {
            let (row, first) = (task / blocks, task % blocks * lanes);
            let at = row * len * inner + first;
            // SAFETY: one vector of columns of one outer entry.
            unsafe {
                let (d, s) = (dst.get().add(at), src.get().add(at).cast_const());
                softmax_columns(isa, log, d, s, len, inner, lanes.min(inner - first));
            }
        }
    });
}

simd_dispatch! {
    /// Softmax of one row; `dst` may be `src`.
    pub(crate) unsafe fn softmax_row(dst: *mut f32, src: *const f32, n: usize) = softmax_body
}
simd_dispatch! { unsafe fn log_softmax_row(dst: *mut f32, src: *const f32, n: usize) = log_softmax_body }
simd_dispatch! {
    unsafe fn layer_norm_row(
        dst: *mut f32, src: *const f32, n: usize, gamma: *const f32, beta: *const f32, eps: f32,
    ) = layer_norm_body
}
simd_dispatch! {
    unsafe fn rms_norm_row(dst: *mut f32, src: *const f32, n: usize, gamma: *const f32, eps: f32) = rms_norm_body
}
simd_dispatch! { unsafe fn reduce_row_any(op: Reduce, src: *const f32, n: usize) -> f32 = reduce_row_body }
simd_dispatch! {
    unsafe fn reduce_columns(
        op: Reduce, dst: *mut f32, src: *const f32, len: usize, stride: usize, count: usize,
    ) = reduce_columns_body
}
simd_dispatch! {
    unsafe fn softmax_columns(
        log: bool, dst: *mut f32, src: *const f32, len: usize, stride: usize, count: usize,
    ) = softmax_columns_body
}
simd_dispatch! {
    /// Replaces a row by `exp(x - max)` and returns the sum: attention's half of softmax.
    pub(crate) unsafe fn exp_row(row: *mut f32, n: usize) -> f32 = exp_row_body
}
simd_dispatch! {
    /// `row[i] *= by`.
    pub(crate) unsafe fn scale_row(row: *mut f32, n: usize, by: f32) = scale_body
}

/// Runs the body for whole vectors and once for the rest: `at` is the offset, `m` the count, `full` a constant.
///
/// A macro: a closure would be compiled without the level's features, and its intrinsics become calls.
macro_rules! vectors {
    ($s:ident, $n:expr, |$at:ident, $m:ident, $full:ident| $body:expr) => {{
        let n = $n;
        let mut i = 0;
        while i + $s::LANES <= n {
            let ($at, $m) = (i, $s::LANES);
            let $full = true;
            $body;
            i += $s::LANES;
        }
        if i < n {
            let ($at, $m) = (i, n - i);
            let $full = false;
            $body;
        }
    }};
}

#[inline(always)]
unsafe fn get<S: Simd>(p: *const f32, n: usize, full: bool) -> S::V {
    if full { S::load(p) } else { S::load_part(p, n) }
}

#[inline(always)]
unsafe fn put<S: Simd>(p: *mut f32, v: S::V, n: usize, full: bool) {
    if full { S::store(p, v) } else { S::store_part(p, v, n) }
}

#[inline(always)]
unsafe fn row_fold<S: Simd>(op: Reduce, src: *const f32, n: usize) -> f32 {
    let start = S::splat(op.start());
    let mut acc = [start; 4];
    let mut i = 0;
    while i + 4 * S::LANES <= n {
        for u in 0..4 {
            acc[u] = op.step::<S>(acc[u], S::load(src.add(i + u * S::LANES)));
        }
        i += 4 * S::LANES;
    }
    while i + S::LANES <= n {
        acc[0] = op.step::<S>(acc[0], S::load(src.add(i)));
        i += S::LANES;
    }
    let mut result = op.start();
    for part in acc {
        result = op.join(result, S::fold(part, |a, b| op.join(a, b)));
    }
    for k in i..n {
        let x = *src.add(k);
        result = op.join(result, if op == Reduce::SumSquare { x * x } else { x });
    }
    result
}

#[inline(always)]
unsafe fn reduce_row_body<S: Simd>(op: Reduce, src: *const f32, n: usize) -> f32 {
    // One loop per operation: the match is outside.
    match op {
        Reduce::Sum | Reduce::Mean => row_fold::<S>(Reduce::Sum, src, n),
        Reduce::Max => row_fold::<S>(Reduce::Max, src, n),
        Reduce::Min => row_fold::<S>(Reduce::Min, src, n),
        Reduce::Prod => row_fold::<S>(Reduce::Prod, src, n),
        Reduce::SumSquare => row_fold::<S>(Reduce::SumSquare, src, n),
    }
}

#[inline(always)]
unsafe fn reduce_columns_body<S: Simd>(
    op: Reduce,
    dst: *mut f32,
    src: *const f32,
    len: usize,
    stride: usize,
    count: usize,
) {
    vectors!(S, count, |at, n, full| {
        let mut acc = S::splat(op.start());
        for k in 0..len {
            acc = op.step::<S>(acc, get::<S>(src.add(k * stride + at), n, full));
        }
        if op == Reduce::Mean {
            acc = S::div(acc, S::splat(len as f32));
        }
        put::<S>(dst.add(at), acc, n, full);
    });
}

#[inline(always)]
unsafe fn exp_sum<S: Simd>(dst: *mut f32, src: *const f32, n: usize, max: f32) -> f32 {
    let shift = S::splat(max);
    let mut sum = S::zero();
    let mut rest = 0.0;
    vectors!(S, n, |at, m, full| {
        let e = funcs::exp::<S>(S::sub(get::<S>(src.add(at), m, full), shift));
        put::<S>(dst.add(at), e, m, full);
        if full {
            sum = S::add(sum, e);
        } else {
            for i in 0..m {
                rest += *dst.add(at + i);
            }
        }
    });
    S::reduce_add(sum) + rest
}

#[inline(always)]
unsafe fn exp_row_body<S: Simd>(row: *mut f32, n: usize) -> f32 {
    let max = row_fold::<S>(Reduce::Max, row, n);
    exp_sum::<S>(row, row, n, max)
}

#[inline(always)]
unsafe fn scale_body<S: Simd>(row: *mut f32, n: usize, by: f32) {
    let by = S::splat(by);
    vectors!(S, n, |at, m, full| {
        put::<S>(row.add(at), S::mul(get::<S>(row.add(at), m, full), by), m, full)
    });
}

#[inline(always)]
unsafe fn softmax_body<S: Simd>(dst: *mut f32, src: *const f32, n: usize) {
    let max = row_fold::<S>(Reduce::Max, src, n);
    let sum = exp_sum::<S>(dst, src, n, max);
    scale_body::<S>(dst, n, 1.0 / sum);
}

#[inline(always)]
unsafe fn log_softmax_body<S: Simd>(dst: *mut f32, src: *const f32, n: usize) {
    let max = row_fold::<S>(Reduce::Max, src, n);
    let shift = S::splat(max);
    let mut sum = S::zero();
    let mut rest = 0.0;
    vectors!(S, n, |at, m, full| {
        let e = funcs::exp::<S>(S::sub(get::<S>(src.add(at), m, full), shift));
        if full {
            sum = S::add(sum, e);
        } else {
            let mut lanes = [0.0f32; 16];
            S::store(lanes.as_mut_ptr(), e);
            rest += lanes[..m].iter().sum::<f32>();
        }
    });
    let log = S::splat((S::reduce_add(sum) + rest).ln());
    vectors!(S, n, |at, m, full| {
        let x = S::sub(S::sub(get::<S>(src.add(at), m, full), shift), log);
        put::<S>(dst.add(at), x, m, full);
    });
}

#[inline(always)]
unsafe fn layer_norm_body<S: Simd>(
    dst: *mut f32,
    src: *const f32,
    n: usize,
    gamma: *const f32,
    beta: *const f32,
    eps: f32,
) {
    let mean = row_fold::<S>(Reduce::Sum, src, n) / n as f32;
    let shift = S::splat(mean);
    let mut squares = [S::zero(); 2];
    let mut rest = 0.0;
    vectors!(S, n, |at, m, full| {
        if full {
            let d = S::sub(S::load(src.add(at)), shift);
            squares = [squares[1], S::fma(d, d, squares[0])];
        } else {
            for i in 0..m {
                let d = *src.add(at + i) - mean;
                rest += d * d;
            }
        }
    });
    let variance = (S::reduce_add(S::add(squares[0], squares[1])) + rest) / n as f32;
    let scale = S::splat(1.0 / (variance + eps).sqrt());
    vectors!(S, n, |at, m, full| {
        let mut x = S::mul(S::sub(get::<S>(src.add(at), m, full), shift), scale);
        if !gamma.is_null() {
            x = S::mul(x, get::<S>(gamma.add(at), m, full));
        }
        if !beta.is_null() {
            x = S::add(x, get::<S>(beta.add(at), m, full));
        }
        put::<S>(dst.add(at), x, m, full);
    });
}

#[inline(always)]
unsafe fn rms_norm_body<S: Simd>(dst: *mut f32, src: *const f32, n: usize, gamma: *const f32, eps: f32) {
    let mean = row_fold::<S>(Reduce::SumSquare, src, n) / n as f32;
    let scale = S::splat(1.0 / (mean + eps).sqrt());
    vectors!(S, n, |at, m, full| {
        let mut x = S::mul(get::<S>(src.add(at), m, full), scale);
        if !gamma.is_null() {
            x = S::mul(x, get::<S>(gamma.add(at), m, full));
        }
        put::<S>(dst.add(at), x, m, full);
    });
}

#[inline(always)]
unsafe fn softmax_columns_body<S: Simd>(
    log: bool,
    dst: *mut f32,
    src: *const f32,
    len: usize,
    stride: usize,
    count: usize,
) {
    let full = count == S::LANES;
    let mut max = S::splat(f32::NEG_INFINITY);
    for k in 0..len {
        max = Reduce::Max.step::<S>(max, get::<S>(src.add(k * stride), count, full));
    }
    let mut sum = S::zero();
    for k in 0..len {
        let e = funcs::exp::<S>(S::sub(get::<S>(src.add(k * stride), count, full), max));
        if !log {
            put::<S>(dst.add(k * stride), e, count, full);
        }
        sum = S::add(sum, e);
    }
    let inverse = S::div(S::splat(1.0), sum);
    let shift = funcs::log::<S>(sum);
    for k in 0..len {
        let y = if log {
            S::sub(S::sub(get::<S>(src.add(k * stride), count, full), max), shift)
        } else {
            S::mul(get::<S>(dst.add(k * stride), count, full), inverse)
        };
        put::<S>(dst.add(k * stride), y, count, full);
    }
}
