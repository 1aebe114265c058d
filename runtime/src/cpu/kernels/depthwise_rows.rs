//! Depthwise convolution along rows: a block of neighbouring outputs shares what its filters read.
//!
//! ```text
//! for each row of taps:
//!     load its weights
//!     for each column of the input: load it once, add it to all outputs that it is a tap of
//! ```
//!
//! Filters of 3, 5 or 7 columns, strides of 1 or 2: seven outputs read 9 columns for each row of a 3x3 filter, where
//! each by itself would read 21. Sums have the order of [`super::depthwise`]'s.
#![expect(unsafe_op_in_unsafe_fn, reason = "a kernel body under the contract of `run`")]

use super::conv::{Conv, ConvShape, ImageStrides};
use super::depthwise::{Results, finish, get, scatter};
use super::gemm::{Dest, Tile, TileAt};
use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};

/// The most outputs of a block: it divides the rows of most networks' images (7, 14, 28, 56, 112).
pub(super) const PIXELS: usize = 7;
/// Smaller blocks, for what is left of a row.
const REST: [usize; 2] = [3, 1];
/// The widest filter, and its columns in a block with a stride of 2.
const MOST_TAPS: usize = 7;
const MOST_COLUMNS: usize = (PIXELS - 1) * 2 + MOST_TAPS;

/// An image with channels innermost.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    pub at: SyncPtr<f32>,
    pub strides: ImageStrides,
    pub height: usize,
    pub width: usize,
    /// As many zeros as there are channels.
    pub zero: SyncPtr<f32>,
}

/// Where results go.
pub(super) struct Target {
    pub dest: Dest,
    /// The stride of pixels whose channels are computed in place.
    pub direct: Option<usize>,
    pub next_group: isize,
    pub width: usize,
}

/// Says whether the kernel has filters and steps of this kind.
pub(super) fn serves(s: &ConvShape) -> bool {
    matches!(s.kw, 3 | 5 | MOST_TAPS) && matches!(s.stride[1], 1 | 2) && s.dilation[1] == 1
}

/// Runs a depthwise convolution by `weights`, `[taps, channels]`.
///
/// # Safety
/// As for `conv2d`; the scratch of [`super::depthwise::scratch_bytes`] is reserved.
pub(super) unsafe fn run(ws: &Workspace, conv: &Conv<'_>, weights: &[f32], image: Image, to: &Target) {
    let s = conv.shape;
    let (isa, channels, taps) = (ws.isa(), s.o, s.kh * s.kw);
    let rows = s.n * s.out_h;
    // Few rows are cut into runs of channels, whole vectors each.
    let vectors = channels.div_ceil(isa.lanes());
    let wanted = match to.direct {
        Some(_) if ws.threads() > 1 && rows < 8 * ws.threads() => (8 * ws.threads()).div_ceil(rows),
        _ => 1,
    };
    let runs = wanted.min(vectors.div_ceil(4)).max(1);
    let work = s.out_w * taps * channels / runs;
    let grain = (20_000 / work.max(1)).max(1);
    let (output, size) = (SyncPtr(conv.output), to.dest.elem.size() as isize);
    let (builtin, epilogue, n_stride) = (conv.builtin, conv.epilogue, conv.output_strides.n);
    ws.parallel_ranges(rows * runs, grain, &|range, thread, scratch| {
        let columns = scratch.cast::<*const f32>();
        // SAFETY: behind the columns' pointers, of which there are fewer than the taps of all pixels.
        let buffer = unsafe { scratch.add(taps * 6 * 8).cast::<f32>() };
        for unit in range {
            let (row, part) = (unit / runs, unit % runs);
            let (n, oy) = (row / s.out_h, row % s.out_h);
            let first = vectors * part / runs * isa.lanes();
            let end = (vectors * (part + 1) / runs * isa.lanes()).min(channels);
            let mut ox = 0;
            while ox < s.out_w {
                let left = s.out_w - ox;
                let count = [PIXELS, REST[0]].into_iter().find(|n| *n <= left).unwrap_or(REST[1]);
                let p0 = oy * s.out_w + ox;
                // SAFETY: the caller's contract; these pixels and channels are this task's alone.
                unsafe {
                    let out_image = output.get().offset(n as isize * n_stride * size);
                    let (out, ld) = match to.direct {
                        Some(ld) => (out_image.cast::<f32>().add(p0 * ld), ld),
                        None => (buffer, channels),
                    };
                    let taps = image.taps(&s, n, [oy, ox], count, columns);
                    let block = Block {
                        taps,
                        kw: s.kw,
                        stride: s.stride[1],
                        pixels: count,
                        weights: weights.as_ptr(),
                        channels,
                        first,
                        end,
                        to: Results::new(&builtin, n, p0, out, ld),
                    };
                    convolve(isa, &block);
                    if let Some(epilogue) = epilogue {
                        let place = TileAt {
                            batch: n,
                            rows: p0..p0 + count,
                            cols: first..end,
                            thread,
                        };
                        epilogue.apply(&place, &mut Tile::new(out.add(first), count, end - first, ld));
                    }
                    if to.direct.is_none() {
                        for i in 0..count {
                            let at = out_image.offset(to.dest.rows.at(p0 + i) * size);
                            let run = (channels, to.width, to.next_group);
                            scatter(isa, &to.dest, at, buffer.add(i * channels), run);
                        }
                    }
                }
                ox += count;
            }
        }
    });
}

/// The rows of taps of a block that lie in the image, and where their columns are.
#[derive(Clone, Copy)]
struct Taps {
    /// The first row of taps and the one behind the last.
    rows: [usize; 2],
    /// The first column of the first row, where all columns lie in the image.
    inside: Option<*const f32>,
    /// The step of a row of taps and of a column.
    steps: [isize; 2],
    /// Each row's columns, [`MOST_COLUMNS`] apart, where some lie outside.
    columns: *const *const f32,
}

impl Image {
    /// The taps of `count` outputs from one on.
    unsafe fn taps(
        &self,
        s: &ConvShape,
        n: usize,
        [oy, ox]: [usize; 2],
        count: usize,
        columns: *mut *const f32,
    ) -> Taps {
        let image = self.at.get().offset(n as isize * self.strides.n).cast_const();
        let (top, left) = (
            (oy * s.stride[0]) as isize - s.pad[0] as isize,
            (ox * s.stride[1]) as isize - s.pad[1] as isize,
        );
        let inside_row = |ky: usize| (0..self.height as isize).contains(&(top + (ky * s.dilation[0]) as isize));
        let first = (0..s.kh).find(|ky| inside_row(*ky)).unwrap_or(s.kh);
        let end = (first..s.kh).find(|ky| !inside_row(*ky)).unwrap_or(s.kh);
        let width = (count - 1) * s.stride[1] + s.kw;
        let steps = [s.dilation[0] as isize * self.strides.h, self.strides.w];
        let start =
            image.wrapping_offset((top + (first * s.dilation[0]) as isize) * self.strides.h + left * self.strides.w);
        let inside = (left >= 0 && left as usize + width <= self.width).then_some(start);
        if inside.is_none() {
            for ky in first..end {
                let row = start.wrapping_offset((ky - first) as isize * steps[0]);
                for column in 0..width {
                    let is_inside = (0..self.width as isize).contains(&(left + column as isize));
                    let at = match is_inside {
                        true => row.wrapping_offset(column as isize * steps[1]),
                        false => self.zero.get().cast_const(),
                    };
                    columns.add((ky - first) * MOST_COLUMNS + column).write(at);
                }
            }
        }
        Taps {
            rows: [first, end],
            inside,
            steps,
            columns,
        }
    }
}

#[derive(Clone, Copy)]
struct Block {
    taps: Taps,
    kw: usize,
    stride: usize,
    pixels: usize,
    weights: *const f32,
    channels: usize,
    /// The channels of this block: the first, and the one behind the last.
    first: usize,
    end: usize,
    to: Results,
}

simd_dispatch! { unsafe fn convolve(block: &Block) = convolve_body }

#[inline(always)]
unsafe fn convolve_body<S: Simd>(block: &Block) {
    match (block.kw, block.stride) {
        (3, 1) => outputs::<S, 3, 1>(block),
        (3, _) => outputs::<S, 3, 2>(block),
        (5, 1) => outputs::<S, 5, 1>(block),
        (5, _) => outputs::<S, 5, 2>(block),
        (_, 1) => outputs::<S, MOST_TAPS, 1>(block),
        _ => outputs::<S, MOST_TAPS, 2>(block),
    }
}

#[inline(always)]
unsafe fn outputs<S: Simd, const KW: usize, const ST: usize>(block: &Block) {
    match (block.pixels, block.taps.inside.is_some()) {
        (PIXELS, true) => channels::<S, KW, ST, PIXELS, true>(block),
        (PIXELS, _) => channels::<S, KW, ST, PIXELS, false>(block),
        (3, true) => channels::<S, KW, ST, 3, true>(block),
        (3, _) => channels::<S, KW, ST, 3, false>(block),
        (_, true) => channels::<S, KW, ST, 1, true>(block),
        _ => channels::<S, KW, ST, 1, false>(block),
    }
}

#[inline(always)]
unsafe fn channels<S: Simd, const KW: usize, const ST: usize, const P: usize, const INSIDE: bool>(block: &Block) {
    let mut c = block.first;
    while c + S::LANES <= block.end {
        vector::<S, KW, ST, P, INSIDE, true>(block, c, S::LANES);
        c += S::LANES;
    }
    if c < block.end {
        vector::<S, KW, ST, P, INSIDE, false>(block, c, block.end - c);
    }
}

#[inline(always)]
unsafe fn vector<S: Simd, const KW: usize, const ST: usize, const P: usize, const INSIDE: bool, const FULL: bool>(
    block: &Block,
    c: usize,
    n: usize,
) {
    let Taps {
        rows: [first, end],
        inside,
        steps,
        columns,
    } = block.taps;
    let mut acc = [S::zero(); P];
    for ky in first..end {
        let mut w = [S::zero(); KW];
        for (kx, w) in w.iter_mut().enumerate() {
            *w = get::<S, FULL>(block.weights.add((ky * KW + kx) * block.channels + c), n);
        }
        let row = match inside {
            Some(start) if INSIDE => start.offset((ky - first) as isize * steps[0]).add(c),
            _ => std::ptr::null(),
        };
        let table = columns.wrapping_add((ky - first) * MOST_COLUMNS);
        /// Adds columns to the outputs that they are taps of. The columns are written out: each is a constant then, so
        /// are its taps, and sums and weights stay in registers.
        macro_rules! add {
            ($($column:literal)*) => { $(
                if $column < (P - 1) * ST + KW {
                    let from = if INSIDE { row.offset($column * steps[1]) } else { (*table.add($column)).add(c) };
                    let x = get::<S, FULL>(from, n);
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let kx = ($column as usize).wrapping_sub(i * ST);
                        if kx < KW {
                            *acc = S::fma(x, w[kx], *acc);
                        }
                    }
                }
            )* };
        }
        add!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18);
    }
    finish::<S, P, FULL>(&block.to, c, n, &acc);
}
