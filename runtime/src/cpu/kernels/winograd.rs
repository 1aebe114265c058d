//! 3x3 convolution of stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications (Lavin and Gray, 2015).
//!
//! Every 6x6 patch of the image becomes 36 numbers per channel, the 36 products over channels are GEMMs, and 6x6
//! results become 4x4 outputs. First all patches are transformed (shared scratch), then each task multiplies and
//! transforms back some rows of patches for one panel of output channels, with bias, residual, activation and epilogue
//! on finished output rows. In f32 the error is about ten times that of direct summation: below 2e-5 of the sum of
//! magnitudes, as the tests hold it to.
#![expect(unsafe_op_in_unsafe_fn, reason = "kernel bodies under the contract of `winograd`")]
#![expect(
    clippy::needless_range_loop,
    reason = "index loops of constant length unroll into registers"
)]

use super::conv::{Conv, ImageStrides};
use super::gemm::{
    Activation, Batch, Dest, LINE, MatRef, PackedB, Tile, TileArgs, TileAt, packed_len, panel_offset, panel_width,
    store, tile_fns,
};
use super::isa::Isa;
use super::simd::{Simd, simd_dispatch};
use super::workspace::{NoRoom, SyncPtr, Workspace, zeros};

/// Outputs of one patch along each axis, and values of one patch.
const OUT: usize = 4;
const POINTS: usize = 36;

/// Transforms weights `[o, c, 3, 3]` to 36 packed `[c, o]` matrices.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn pack(isa: Isa, weights: &[f32], o: usize, c: usize) -> Result<PackedB, NoRoom> {
    const G: [[f64; 3]; 6] = [
        [1.0 / 4.0, 0.0, 0.0],
        [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
        [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
        [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
        [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
        [0.0, 0.0, 1.0],
    ];
    let mut u = zeros(POINTS * c * o)?;
    for (at, w) in weights.chunks_exact(9).enumerate() {
        let (i, j) = (at / c, at % c);
        for y in 0..6 {
            for x in 0..6 {
                let mut sum = 0.0;
                for ky in 0..3 {
                    for kx in 0..3 {
                        sum += G[y][ky] * G[x][kx] * f64::from(w[ky * 3 + kx]);
                    }
                }
                u[((y * 6 + x) * c + j) * o + i] = sum as f32;
            }
        }
    }
    let src = MatRef {
        batch: Batch::Stride((c * o) as isize),
        ..MatRef::dense(&u, o)
    };
    // SAFETY: `u` holds 36 dense matrices.
    unsafe { PackedB::new(isa, POINTS, c, o, &src) }
}

/// Rows of patches one task takes: about one GEMM tile of patches.
fn rows_per_task(isa: Isa, patches_x: usize) -> usize {
    tile_fns(isa).len().div_ceil(patches_x.max(1))
}

/// Scratch in floats: per thread, and shared for the transformed image.
pub(crate) fn scratch_floats(isa: Isa, n: usize, c: usize, out_h: usize, out_w: usize) -> (usize, usize) {
    let (py, px) = (out_h.div_ceil(OUT), out_w.div_ceil(OUT));
    let rows = rows_per_task(isa, px);
    let width = 2 * isa.lanes();
    let patches = rows * px;
    let table = patches * 2;
    (
        POINTS * patches * width + rows * OUT * out_w * width + table + 64,
        POINTS * n * py * px * c,
    )
}

/// Runs `conv` on the image at `image` (f32, channels innermost); `zero` is a row of `c` zeros, `v` the shared scratch.
///
/// # Safety
/// As for `conv2d`, with [`scratch_floats`] reserved.
pub(crate) unsafe fn winograd(
    ws: &Workspace,
    conv: &Conv<'_>,
    u: &PackedB,
    image: SyncPtr<f32>,
    strides: ImageStrides,
    zero: SyncPtr<f32>,
    v: SyncPtr<f32>,
    dest: Dest,
) {
    let s = conv.shape;
    let isa = ws.isa();
    let (py, px) = (s.out_h.div_ceil(OUT), s.out_w.div_ceil(OUT));
    let all = s.n * py * px;
    ws.parallel_ranges(all, (4096 / s.c).max(1), &|range, _, _| {
        for patch in range {
            let (n, y, x) = (patch / (py * px), patch / px % py * OUT, patch % px * OUT);
            let mut rows = [zero.get().cast_const(); POINTS];
            for i in 0..6 {
                let iy = (y + i).checked_sub(s.pad[0]).filter(|iy| *iy < s.h);
                for j in 0..6 {
                    let ix = (x + j).checked_sub(s.pad[1]).filter(|ix| *ix < s.w);
                    if let (Some(iy), Some(ix)) = (iy, ix) {
                        let at = n as isize * strides.n + iy as isize * strides.h + ix as isize * strides.w;
                        // SAFETY: inside the image.
                        rows[i * 6 + j] = unsafe { image.get().offset(at) };
                    }
                }
            }
            // SAFETY: 36 rows of `c` values; each patch has its own part of the scratch.
            unsafe { input_transform(isa, v.get().add(patch * s.c), all * s.c, &rows, s.c) }
        }
    });
    let per_task = rows_per_task(isa, px);
    let groups = py.div_ceil(per_task);
    let panels = s.o.div_ceil(2 * isa.lanes());
    let (output, builtin, epilogue) = (SyncPtr(conv.output), conv.builtin, conv.epilogue);
    let size = dest.elem.size() as isize;
    let n_stride = conv.output_strides.n;
    let weights_fit = u.bytes() <= 1 << 20;
    ws.parallel_for(s.n * panels * groups, &|task, thread, scratch| {
        // What is smaller stays in L2: all weights while patches stream, or one panel of them.
        let (n, rest) = (task / (panels * groups), task % (panels * groups));
        let (panel, group) = if weights_fit {
            (rest % panels, rest / panels)
        } else {
            (rest / groups, rest % groups)
        };
        let (y0, y1) = (group * per_task, ((group + 1) * per_task).min(py));
        let count = (y1 - y0) * px;
        let first = (n * py + y0) * px;
        let width = panel_width(isa, s.o, panel);
        let col = panel * 2 * isa.lanes();
        let cols = width.min(s.o - col);
        let (r0, r1) = (y0 * OUT * s.out_w, (y1 * OUT).min(s.out_h) * s.out_w);
        // SAFETY: the caller's contract; a task has its own rows and columns of the output and its thread's scratch.
        unsafe {
            let table = scratch.cast::<*const f32>();
            let m = scratch.cast::<f32>().add(per_task * px * 2);
            let buffer = m.add(POINTS * per_task * px * 2 * isa.lanes());
            for i in 0..count {
                table.add(i).write(v.get().add((first + i) * s.c));
            }
            products(isa, table, count, all * s.c, u, (s.c, s.o, panel), m, width);
            let c = output.get().offset(n as isize * n_stride * size);
            let (out, ld) = match dest.direct() {
                Some(ld) => (c.cast::<f32>().add(r0 * ld + col), ld),
                None => (buffer, width),
            };
            let args = Back {
                m,
                step: count * width,
                width,
                patches: count,
                px,
                rows: (r1 - r0) / s.out_w,
                out_w: s.out_w,
                out,
                ld,
                cols,
                scale: builtin.scale,
                bias: builtin.bias.map_or(std::ptr::null(), |b| b.as_ptr().add(col)),
                residual: builtin.residual.map_or(std::ptr::null(), |r| {
                    r.ptr.cast::<f32>().offset(r.batch.at(n)).add(r0 * r.row_stride + col)
                }),
                ld_residual: builtin.residual.map_or(0, |r| r.row_stride),
                activation: builtin.activation,
            };
            output_transform(isa, &args);
            if let Some(epilogue) = epilogue {
                let at = TileAt {
                    batch: n,
                    rows: r0..r1,
                    cols: col..col + cols,
                    thread,
                };
                epilogue.apply(&at, &mut Tile::new(out, r1 - r0, cols, ld));
            }
            if dest.direct().is_none() {
                store(isa, &dest, c, r0..r1, col, cols, out, ld);
            }
        }
    });
}

/// The 36 products of some patches with one panel: `m[point][patch][width]`.
unsafe fn products(
    isa: Isa,
    table: *const *const f32,
    count: usize,
    point_step: usize,
    u: &PackedB,
    (c, o, panel): (usize, usize, usize),
    m: *mut f32,
    width: usize,
) {
    let fns = tile_fns(isa);
    let tiles = count.div_ceil(fns.len());
    let one = packed_len(isa, c, o);
    let panel_at = |point: usize| u.as_ptr().wrapping_add(point * one + panel_offset(isa, c, panel));
    for point in 0..POINTS {
        // The next point's panel comes from the third-level cache or memory while this one's is multiplied.
        let next = panel_at((point + 1).min(POINTS - 1));
        for t in 0..tiles {
            let (t0, t1) = (count * t / tiles, count * (t + 1) / tiles);
            let args = TileArgs {
                rows: table.add(t0),
                table_stride: t1 - t0,
                a_offset: point * point_step,
                segs: 1,
                seg_len: c,
                b: panel_at(point),
                b_stride: width,
                c: m.add((point * count + t0) * width),
                ldc: width,
                n: width,
                accumulate: false,
                finish: false,
                scale: 1.0,
                bias: std::ptr::null(),
                residual: std::ptr::null(),
                ld_residual: 0,
                activation: Activation::None,
                ahead: next.wrapping_add(t * c * LINE),
                ahead_step: if t * LINE < width { LINE } else { 0 },
            };
            fns[t1 - t0 - 1][width / isa.lanes() - 1](&args);
        }
    }
}

struct Back {
    m: *const f32,
    /// Floats from one point's results to the next's.
    step: usize,
    width: usize,
    patches: usize,
    px: usize,
    /// Output rows that exist, and their length.
    rows: usize,
    out_w: usize,
    out: *mut f32,
    ld: usize,
    cols: usize,
    scale: f32,
    bias: *const f32,
    residual: *const f32,
    ld_residual: usize,
    activation: Activation,
}

simd_dispatch! {
    unsafe fn input_transform(
        dst: *mut f32, step: usize, rows: &[*const f32; 36], c: usize,
    ) = input_body
}
simd_dispatch! { unsafe fn output_transform(args: &Back) = output_body }

/// One row of Bᵀ d.
#[inline(always)]
unsafe fn bt<S: Simd>(d: [S::V; 6]) -> [S::V; 6] {
    let (two, four, five) = (S::splat(2.0), S::splat(4.0), S::splat(-5.0));
    let neg_four = S::splat(-4.0);
    let a = S::fma(neg_four, d[2], d[4]);
    let b = S::fma(neg_four, d[1], d[3]);
    let e = S::sub(d[4], d[2]);
    let f = S::mul(two, S::sub(d[3], d[1]));
    [
        S::fma(four, d[0], S::fma(five, d[2], d[4])),
        S::add(a, b),
        S::sub(a, b),
        S::add(e, f),
        S::sub(e, f),
        S::fma(four, d[1], S::fma(five, d[3], d[5])),
    ]
}

/// One row of Aᵀ m.
#[inline(always)]
unsafe fn at<S: Simd>(m: [S::V; 6]) -> [S::V; 4] {
    let (two, four, eight) = (S::splat(2.0), S::splat(4.0), S::splat(8.0));
    let (a, b) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
    let (e, f) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
    [
        S::add(S::add(m[0], a), e),
        S::fma(two, f, b),
        S::fma(four, e, a),
        S::add(S::fma(eight, f, b), m[5]),
    ]
}

#[inline(always)]
unsafe fn input_body<S: Simd>(dst: *mut f32, step: usize, rows: &[*const f32; 36], c: usize) {
    let mut at = 0;
    while at < c {
        let n = (c - at).min(S::LANES);
        let mut t = [[S::zero(); 6]; 6];
        for i in 0..6 {
            let mut d = [S::zero(); 6];
            for j in 0..6 {
                let p = rows[i * 6 + j].add(at);
                d[j] = if n == S::LANES { S::load(p) } else { S::load_part(p, n) };
            }
            t[i] = bt::<S>(d);
        }
        for j in 0..6 {
            let column = bt::<S>([t[0][j], t[1][j], t[2][j], t[3][j], t[4][j], t[5][j]]);
            for i in 0..6 {
                let p = dst.add((i * 6 + j) * step + at);
                if n == S::LANES {
                    S::store(p, column[i]);
                } else {
                    S::store_part(p, column[i], n);
                }
            }
        }
        at += S::LANES;
    }
}

#[inline(always)]
unsafe fn output_body<S: Simd>(args: &Back) {
    for patch in 0..args.patches {
        let (y, x) = (patch / args.px * OUT, patch % args.px * OUT);
        let mut col = 0;
        while col < args.cols {
            let n = (args.cols - col).min(S::LANES);
            let full = n == S::LANES;
            let from = args.m.add(patch * args.width + col);
            let mut t = [[S::zero(); 4]; 6];
            for i in 0..6 {
                let mut m = [S::zero(); 6];
                for j in 0..6 {
                    m[j] = S::load(from.add((i * 6 + j) * args.step));
                }
                t[i] = at::<S>(m);
            }
            let bias = match args.bias.is_null() {
                true => S::zero(),
                false if full => S::load(args.bias.add(col)),
                false => S::load_part(args.bias.add(col), n),
            };
            for j in 0..OUT {
                let column = at::<S>([t[0][j], t[1][j], t[2][j], t[3][j], t[4][j], t[5][j]]);
                if x + j >= args.out_w {
                    break;
                }
                for i in 0..OUT.min(args.rows.saturating_sub(y)) {
                    let row = (y + i) * args.out_w + x + j;
                    let mut value = S::fma(column[i], S::splat(args.scale), bias);
                    if !args.residual.is_null() {
                        let p = args.residual.add(row * args.ld_residual + col);
                        value = S::add(value, if full { S::load(p) } else { S::load_part(p, n) });
                    }
                    value = match args.activation {
                        Activation::None => value,
                        Activation::Relu => S::max(S::zero(), value),
                        Activation::Clip(lo, hi) => S::min(S::splat(hi), S::max(S::splat(lo), value)),
                    };
                    let p = args.out.add(row * args.ld + col);
                    if full {
                        S::store(p, value);
                    } else {
                        S::store_part(p, value, n);
                    }
                }
            }
            col += S::LANES;
        }
    }
}
