//! Depthwise convolution, vectorised over channels: blocks of output pixels share each weight vector.
#![expect(
    clippy::needless_range_loop,
    reason = "index loops of constant length unroll into registers"
)]
#![expect(unsafe_op_in_unsafe_fn, reason = "a kernel body under the contract of `depthwise`")]

use super::conv::Conv;
use super::convert;
use super::gemm::{Activation, Dest, Elem, RowMap, Tile, TileAt};
use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};

/// Output pixels that share one load of the weights.
const PIXELS: usize = 6;

/// Scratch of one thread: the pointer table and one block of output.
pub(crate) fn scratch_bytes(taps: usize, channels: usize) -> usize {
    taps * PIXELS * 8 + PIXELS * channels * 4 + 64
}

/// Writes the tap pointers of a pixel of an image, and says of how many pixels from this one on they are a step further
/// on each.
pub(crate) type Fill<'a> = dyn Fn(usize, usize, *mut *const f32) -> usize + Sync + 'a;

/// Runs `conv`, whose weights are `[taps, channels]`; `fill` tells where taps are, with its step in elements.
///
/// # Safety
/// As for `conv2d`, with [`scratch_bytes`] reserved per thread.
pub(crate) unsafe fn depthwise(
    ws: &Workspace,
    conv: &Conv<'_>,
    weights: &[f32],
    (fill, step): (&Fill<'_>, isize),
    dest: Dest,
) {
    let s = conv.shape;
    let (channels, taps, pixels) = (s.o, s.kh * s.kw, s.out_h * s.out_w);
    let isa = ws.isa();
    let direct = match dest.rows {
        RowMap::Linear(stride) if dest.elem == Elem::F32 && dest.col_stride == 1 && stride >= 0 => {
            Some(stride as usize)
        }
        _ => None,
    };
    let output = SyncPtr(conv.output);
    let builtin = conv.builtin;
    let size = dest.elem.size() as isize;
    let (n_stride, epilogue) = (conv.output_strides.n, conv.epilogue);
    let grain = (20_000 / (channels * taps).max(1)).max(PIXELS);
    ws.parallel_ranges(s.n * pixels, grain, &|range, thread, scratch| {
        let mut at = range.start;
        // Of how many pixels the taps are known by those of the pixel before, and which that is of its block.
        let (mut known, mut before) = (0, 0);
        while at < range.end {
            let (n, p0) = (at / pixels, at % pixels);
            let count = PIXELS.min(range.end - at).min(pixels - p0);
            // SAFETY: the caller's contract; pixels of this range are this task's alone.
            unsafe {
                let table = scratch.cast::<*const f32>();
                let buffer = scratch.add(taps * PIXELS * 8).cast::<f32>();
                for i in 0..count {
                    let to = table.add(i * taps);
                    if known == 0 {
                        known = fill(n, p0 + i, to);
                    } else {
                        let from = table.add(before * taps);
                        (0..taps).for_each(|tap| to.add(tap).write((*from.add(tap)).wrapping_offset(step)));
                    }
                    (known, before) = (known - 1, i);
                }
                let image = output.get().offset(n as isize * n_stride * size);
                let (out, ld) = match direct {
                    Some(ld) => (image.cast::<f32>().add(p0 * ld), ld),
                    None => (buffer, channels),
                };
                let args = Block {
                    table,
                    taps,
                    weights: weights.as_ptr(),
                    channels,
                    out,
                    ld,
                    scale: builtin.scale,
                    bias: builtin.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                    residual: builtin
                        .residual
                        .map_or(std::ptr::null(), |r| r.ptr.offset(r.batch.at(n)).add(p0 * r.row_stride)),
                    ld_residual: builtin.residual.map_or(0, |r| r.row_stride),
                    activation: builtin.activation,
                };
                if count == PIXELS {
                    block(isa, &args);
                } else {
                    for i in 0..count {
                        let one = Block {
                            table: args.table.add(i * taps),
                            out: args.out.add(i * ld),
                            residual: args.residual.wrapping_add(i * args.ld_residual),
                            ..args
                        };
                        single(isa, &one);
                    }
                }
                if let Some(epilogue) = epilogue {
                    let place = TileAt {
                        batch: n,
                        rows: p0..p0 + count,
                        cols: 0..channels,
                        thread,
                    };
                    epilogue.apply(&place, &mut Tile::new(out, count, channels, ld));
                }
                if direct.is_none() {
                    for i in 0..count {
                        let to = image.offset(dest.rows.at(p0 + i) * size);
                        convert::scatter(isa, to, buffer.add(i * channels), dest.elem, dest.col_stride, channels);
                    }
                }
            }
            at += count;
        }
    });
}

#[derive(Clone, Copy)]
struct Block {
    /// `[pixel][tap]`.
    table: *const *const f32,
    taps: usize,
    weights: *const f32,
    channels: usize,
    out: *mut f32,
    ld: usize,
    scale: f32,
    bias: *const f32,
    residual: *const f32,
    ld_residual: usize,
    activation: Activation,
}

simd_dispatch! { unsafe fn block(args: &Block) = block_body }
simd_dispatch! { unsafe fn single(args: &Block) = single_body }

#[inline(always)]
unsafe fn block_body<S: Simd>(args: &Block) {
    pixels::<S, PIXELS>(args)
}

#[inline(always)]
unsafe fn single_body<S: Simd>(args: &Block) {
    pixels::<S, 1>(args)
}

#[inline(always)]
unsafe fn pixels<S: Simd, const P: usize>(args: &Block) {
    let mut c = 0;
    while c + S::LANES <= args.channels {
        vector::<S, P, true>(args, c, S::LANES);
        c += S::LANES;
    }
    if c < args.channels {
        vector::<S, P, false>(args, c, args.channels - c);
    }
}

#[inline(always)]
unsafe fn vector<S: Simd, const P: usize, const FULL: bool>(args: &Block, c: usize, n: usize) {
    let mut acc = [S::zero(); P];
    for tap in 0..args.taps {
        let w = get::<S, FULL>(args.weights.add(tap * args.channels + c), n);
        for i in 0..P {
            let x = get::<S, FULL>((*args.table.add(i * args.taps + tap)).add(c), n);
            acc[i] = S::fma(x, w, acc[i]);
        }
    }
    for i in 0..P {
        let mut x = S::mul(acc[i], S::splat(args.scale));
        if !args.bias.is_null() {
            x = S::add(x, get::<S, FULL>(args.bias.add(c), n));
        }
        if !args.residual.is_null() {
            x = S::add(x, get::<S, FULL>(args.residual.add(i * args.ld_residual + c), n));
        }
        x = match args.activation {
            Activation::None => x,
            Activation::Relu => S::max(S::zero(), x),
            Activation::Clip(lo, hi) => S::min(S::splat(hi), S::max(S::splat(lo), x)),
        };
        let p = args.out.add(i * args.ld + c);
        if FULL {
            S::store(p, x);
        } else {
            S::store_part(p, x, n);
        }
    }
}

#[inline(always)]
unsafe fn get<S: Simd, const FULL: bool>(p: *const f32, n: usize) -> S::V {
    if FULL { S::load(p) } else { S::load_part(p, n) }
}
