//! Depthwise convolution, and convolution in groups of few channels, vectorised over channels: blocks of output pixels
//! share each weight vector.
//!
//! ```text
//! out[c] = sum over taps, u of x[tap][c ^ u] * w[tap][u][c],   u below the channels of a group
//! ```
//!
//! Where a group has 1, 2, 4 or 8 channels and as many filters, all it reads is in one vector: lanes that are exchanged
//! bring each of its channels beside each of its filters. Where it has more filters than channels, as a depthwise
//! convolution with a multiplier has, lanes are picked: each filter's from the vector that its group's channels are in.
#![expect(
    clippy::needless_range_loop,
    reason = "index loops of constant length unroll into registers"
)]
#![expect(unsafe_op_in_unsafe_fn, reason = "a kernel body under the contract of `depthwise`")]

use super::conv::Conv;
use super::convert;
use super::depthwise_rows as rows;
use super::gemm::{Activation, Builtin, Dest, Tile, TileAt};
use super::isa::Isa;
use super::simd::{Simd, simd_dispatch};
use super::workspace::{NoRoom, SyncPtr, Workspace, zeros};

/// Output pixels that share one load of the weights.
const PIXELS: usize = 6;

/// Scratch of one thread: the pointer table and one block of output.
pub(crate) fn scratch_bytes(taps: usize, channels: usize) -> usize {
    taps * PIXELS * 8 + PIXELS.max(rows::PIXELS) * channels * 4 + 64
}

/// Writes the tap pointers of a pixel of an image, and says of how many pixels from this one on they are a step further
/// on each.
pub(crate) type Fill<'a> = dyn Fn(usize, usize, *mut *const f32) -> usize + Sync + 'a;

/// Says whether groups of so many channels and filters are served.
pub(crate) fn serves(isa: Isa, channels: usize, filters: usize) -> bool {
    exchanges(isa, channels, filters) || picks(isa, channels, filters)
}

fn exchanges(isa: Isa, channels: usize, filters: usize) -> bool {
    channels == filters && matches!(channels, 1 | 2 | 4 | 8) && channels <= isa.lanes()
}

/// Says whether the channels of the groups that a vector of filters belongs to are in one vector, wherever it begins.
fn picks(isa: Isa, channels: usize, filters: usize) -> bool {
    let lanes = isa.lanes();
    let in_one = |first: usize| ((first + lanes - 1) / filters + 1) * channels <= lanes;
    channels < filters && filters <= lanes && (0..filters).all(|vector| in_one(vector * lanes % filters))
}

/// The filters of groups of few channels.
#[derive(Debug)]
pub(crate) struct Filters {
    /// `[taps, channels of a group, o]`
    weights: Vec<f32>,
    /// The lanes of each vector of filters' channels, `[o / lanes, channels of a group, lanes]`; empty where lanes are
    /// exchanged.
    picks: Vec<i32>,
}

impl Filters {
    /// Packs filters `[o, channels, taps]` of groups of so many channels and filters.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn pack(
        isa: Isa,
        weights: &[f32],
        [o, channels, filters]: [usize; 3],
        taps: usize,
    ) -> Result<Filters, NoRoom> {
        let exchanged = exchanges(isa, channels, filters);
        let mut packed = zeros(weights.len())?;
        for c in 0..o {
            for u in 0..channels {
                let channel = if exchanged { (c % channels) ^ u } else { u };
                for tap in 0..taps {
                    packed[(tap * channels + u) * o + c] = weights[(c * channels + channel) * taps + tap];
                }
            }
        }
        let mut picks = Vec::new();
        if !exchanged {
            let lanes = isa.lanes();
            for first in (0..o).step_by(lanes) {
                for u in 0..channels {
                    picks.extend((0..lanes).map(|lane| ((first % filters + lane) / filters * channels + u) as i32));
                }
            }
        }
        Ok(Filters { weights: packed, picks })
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        (self.weights.len() + self.picks.len()) * 4
    }
}

/// Runs `conv` with its packed weights; `fill` tells where taps are, with its step in elements, and `image` where the
/// image is, if it lies without padding of its own.
///
/// # Safety
/// As for `conv2d`, with [`scratch_bytes`] reserved per thread.
pub(crate) unsafe fn depthwise(
    ws: &Workspace,
    conv: &Conv<'_>,
    weights: &Filters,
    (fill, step): (&Fill<'_>, isize),
    image: Option<rows::Image>,
    dest: Dest,
) {
    let s = conv.shape;
    let (channels, taps, pixels) = (s.o, s.kh * s.kw, s.out_h * s.out_w);
    let (group, filters) = (s.c / s.groups, s.o / s.groups);
    let isa = ws.isa();
    let fits = weights.picks.is_empty() || weights.picks.len() == channels.next_multiple_of(isa.lanes()) * group;
    assert!(fits, "filters that were packed for another level than {isa:?}");
    let next_group = conv.output_group.unwrap_or(filters as isize * dest.col_stride);
    let in_order = next_group == filters as isize * dest.col_stride;
    let width = if in_order { channels } else { filters };
    let direct = dest.direct().filter(|_| in_order);
    let output = SyncPtr(conv.output);
    let builtin = conv.builtin;
    let size = dest.elem.size() as isize;
    let (n_stride, epilogue) = (conv.output_strides.n, conv.epilogue);
    if let (Some(image), true) = (image, group == 1 && filters == 1 && rows::serves(&s)) {
        let to = rows::Target {
            dest,
            direct,
            next_group,
            width,
        };
        return rows::run(ws, conv, &weights.weights, image, &to);
    }
    let grain = (20_000 / (channels * taps * group).max(1)).max(PIXELS);
    ws.parallel_ranges(s.n * pixels, grain, &|range, thread, scratch| {
        let mut at = range.start;
        let mut known = Known { pixels: 0, before: 0 };
        while at < range.end {
            let (n, p0) = (at / pixels, at % pixels);
            let count = PIXELS.min(range.end - at).min(pixels - p0);
            // SAFETY: the caller's contract; pixels of this range are this task's alone.
            unsafe {
                let table = scratch.cast::<*const f32>();
                let buffer = scratch.add(taps * PIXELS * 8).cast::<f32>();
                for i in 0..count {
                    known.fill(table, taps, i, step, &|to| fill(n, p0 + i, to));
                }
                let image = output.get().offset(n as isize * n_stride * size);
                let (out, ld) = match direct {
                    Some(ld) => (image.cast::<f32>().add(p0 * ld), ld),
                    None => (buffer, channels),
                };
                let args = Block {
                    table,
                    taps,
                    weights: weights.weights.as_ptr(),
                    picks: match weights.picks.is_empty() {
                        true => std::ptr::null(),
                        false => weights.picks.as_ptr(),
                    },
                    channels,
                    read: s.c,
                    group,
                    filters,
                    to: Results::new(&builtin, n, p0, out, ld),
                };
                if count == PIXELS {
                    block(isa, &args);
                } else {
                    for i in 0..count {
                        let to = Results {
                            out: out.add(i * ld),
                            residual: args.to.residual.wrapping_add(i * args.to.ld_residual),
                            ..args.to
                        };
                        let table = args.table.add(i * taps);
                        single(isa, &Block { table, to, ..args });
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
                        scatter(isa, &dest, to, buffer.add(i * channels), (channels, width, next_group));
                    }
                }
            }
            at += count;
        }
    });
}

/// Of how many pixels the taps are known by those of the pixel before, and which that is of its block.
struct Known {
    pixels: usize,
    before: usize,
}

impl Known {
    /// Writes the taps of pixel `i` of a block: those of the pixel before a step further on, or as `fill` says.
    unsafe fn fill(
        &mut self,
        table: *mut *const f32,
        taps: usize,
        i: usize,
        step: isize,
        fill: &dyn Fn(*mut *const f32) -> usize,
    ) {
        let to = table.add(i * taps);
        if self.pixels == 0 {
            self.pixels = fill(to);
        } else {
            let from = table.add(self.before * taps);
            (0..taps).for_each(|tap| to.add(tap).write((*from.add(tap)).wrapping_offset(step)));
        }
        (self.pixels, self.before) = (self.pixels - 1, i);
    }
}

/// Stores the channels of a pixel: runs of `width`, the first of each `next` elements behind that of the one before.
pub(super) unsafe fn scatter(
    isa: Isa,
    dest: &Dest,
    to: *mut u8,
    from: *const f32,
    (channels, width, next): (usize, usize, isize),
) {
    let size = dest.elem.size() as isize;
    for at in (0..channels).step_by(width) {
        let to = to.offset((at / width) as isize * next * size);
        convert::scatter(isa, to, from.add(at), dest.elem, dest.col_stride, width);
    }
}

#[derive(Clone, Copy)]
struct Block {
    /// `[pixel][tap]`.
    table: *const *const f32,
    taps: usize,
    weights: *const f32,
    /// Null where lanes are exchanged.
    picks: *const i32,
    channels: usize,
    /// Channels of the image that is read.
    read: usize,
    /// Channels of a group, and its filters.
    group: usize,
    filters: usize,
    to: Results,
}

/// Where the results of some pixels go, and what follows their sums.
#[derive(Clone, Copy)]
pub(super) struct Results {
    pub out: *mut f32,
    pub ld: usize,
    pub scale: f32,
    pub bias: *const f32,
    pub residual: *const f32,
    pub ld_residual: usize,
    pub activation: Activation,
}

impl Results {
    /// Those of the pixels of image `n` from pixel `p0` on, which go to `out`.
    ///
    /// # Safety
    /// The residual has these pixels.
    pub(super) unsafe fn new(builtin: &Builtin<'_>, n: usize, p0: usize, out: *mut f32, ld: usize) -> Results {
        Results {
            out,
            ld,
            scale: builtin.scale,
            bias: builtin.bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            residual: builtin.residual.map_or(std::ptr::null(), |r| {
                r.ptr.cast::<f32>().offset(r.batch.at(n)).add(p0 * r.row_stride)
            }),
            ld_residual: builtin.residual.map_or(0, |r| r.row_stride),
            activation: builtin.activation,
        }
    }
}

simd_dispatch! { unsafe fn block(args: &Block) = block_body }
simd_dispatch! { unsafe fn single(args: &Block) = single_body }

#[inline(always)]
unsafe fn block_body<S: Simd>(args: &Block) {
    of_groups::<S, PIXELS>(args)
}

#[inline(always)]
unsafe fn single_body<S: Simd>(args: &Block) {
    of_groups::<S, 1>(args)
}

#[inline(always)]
unsafe fn of_groups<S: Simd, const P: usize>(args: &Block) {
    if !args.picks.is_null() {
        return picked::<S, P>(args);
    }
    match args.group {
        1 => pixels::<S, P, 1>(args),
        2 => pixels::<S, P, 2>(args),
        4 => pixels::<S, P, 4>(args),
        _ => pixels::<S, P, 8>(args),
    }
}

#[inline(always)]
unsafe fn pixels<S: Simd, const P: usize, const G: usize>(args: &Block) {
    let mut c = 0;
    while c + S::LANES <= args.channels {
        vector::<S, P, G, true>(args, c, S::LANES);
        c += S::LANES;
    }
    if c < args.channels {
        vector::<S, P, G, false>(args, c, args.channels - c);
    }
}

#[inline(always)]
unsafe fn vector<S: Simd, const P: usize, const G: usize, const FULL: bool>(args: &Block, c: usize, n: usize) {
    let mut acc = [S::zero(); P];
    for tap in 0..args.taps {
        let mut w = [S::zero(); G];
        for u in 0..G {
            w[u] = get::<S, FULL>(args.weights.add((tap * G + u) * args.channels + c), n);
        }
        for i in 0..P {
            let mut x = [S::zero(); G];
            x[0] = get::<S, FULL>((*args.table.add(i * args.taps + tap)).add(c), n);
            if G >= 2 {
                x[1] = S::exchange::<1>(x[0]);
            }
            if G >= 4 {
                x[2] = S::exchange::<2>(x[0]);
                x[3] = S::exchange::<2>(x[1]);
            }
            if G >= 8 {
                for u in 4..G {
                    x[u] = S::exchange::<4>(x[u - 4]);
                }
            }
            for u in 0..G {
                acc[i] = S::fma(x[u], w[u], acc[i]);
            }
        }
    }
    finish::<S, P, FULL>(&args.to, c, n, &acc);
}

/// Filters whose channels are picked from a vector.
#[inline(always)]
unsafe fn picked<S: Simd, const P: usize>(args: &Block) {
    let mut c = 0;
    while c + S::LANES <= args.channels {
        picked_vector::<S, P, true>(args, c, S::LANES);
        c += S::LANES;
    }
    if c < args.channels {
        picked_vector::<S, P, false>(args, c, args.channels - c);
    }
}

#[inline(always)]
unsafe fn picked_vector<S: Simd, const P: usize, const FULL: bool>(args: &Block, c: usize, n: usize) {
    let first = c / args.filters * args.group;
    let there = S::LANES.min(args.read - first);
    let picks = args.picks.add(c * args.group);
    let mut acc = [S::zero(); P];
    for tap in 0..args.taps {
        let mut x = [S::zero(); P];
        for i in 0..P {
            let from = (*args.table.add(i * args.taps + tap)).add(first);
            x[i] = if there == S::LANES {
                S::load(from)
            } else {
                S::load_part(from, there)
            };
        }
        for u in 0..args.group {
            let w = get::<S, FULL>(args.weights.add((tap * args.group + u) * args.channels + c), n);
            let lanes = S::load_picks(picks.add(u * S::LANES));
            for i in 0..P {
                acc[i] = S::fma(S::pick(x[i], lanes), w, acc[i]);
            }
        }
    }
    finish::<S, P, FULL>(&args.to, c, n, &acc);
}

/// Applies what follows to the sums of `P` pixels for the `n` channels from `c` on, and stores them.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const P: usize, const FULL: bool>(
    args: &Results,
    c: usize,
    n: usize,
    acc: &[S::V; P],
) {
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

/// A vector, or `n` lanes of one.
#[inline(always)]
pub(super) unsafe fn get<S: Simd, const FULL: bool>(p: *const f32, n: usize) -> S::V {
    if FULL { S::load(p) } else { S::load_part(p, n) }
}
