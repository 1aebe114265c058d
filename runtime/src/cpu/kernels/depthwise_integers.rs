//! Depthwise convolutions of integers of 8 bits: sums of products of each channel, in 32 bits, given to what follows
//! tile by tile.

use std::ops::Range;

use smallvec::SmallVec;

#[cfg(target_arch = "x86_64")]
use super::byte_ends::x86::Columns;
use super::byte_ends::{ByteEnds, BytePlaces, BytesOut};
#[cfg(target_arch = "x86_64")]
use super::depthwise_vnni::{Filter, Row};
use super::dots::Dots;
use super::integers::SumTile;
use super::isa::Isa;
use super::simd::{Simd, simd_dispatch};
use super::workspace::Workspace;

/// A convolution of one filter a channel, channels innermost.
pub struct DepthwiseIntegers<'a> {
    pub entries: usize,
    pub m: usize,
    pub channels: usize,
    /// A number for each tap and channel.
    pub weights: &'a [i8],
    /// The same as VNNI multiplies them, where it does.
    pub filters: Option<&'a Filters>,
    /// All of them are 1.
    pub ones: bool,
    /// What is read outside of the image.
    pub padding: i8,
    /// `taps(entry, row, places)` says where the channels of each of a row's taps are, null outside of the image, and
    /// for how many rows from this one on those are `step` bytes further on in each, or null in all.
    pub taps: &'a (dyn Fn(usize, usize, &mut [*const i8]) -> usize + Sync),
    pub step: isize,
    /// The same of windows of three by three neighbours.
    pub windows: Option<Windows<'a>>,
    pub finish: &'a (dyn Fn(&SumTile) + Sync),
    /// How sums become bytes in registers, if that is how they end, where there are filters of these ends.
    pub bytes: Option<BytesOut<'a>>,
}

/// Windows of three by three neighbouring pixels, on a line at most two apart and at most two outside on the left.
pub struct Windows<'a> {
    /// The first pixel of an entry's image.
    pub image: &'a (dyn Fn(usize) -> *const i8 + Sync),
    /// Lines and pixels of the image, and how many bytes apart they are.
    pub size: [usize; 2],
    pub steps: [isize; 2],
    pub stride: [usize; 2],
    pub pad: [usize; 2],
    /// Windows of a line.
    pub out_w: usize,
}

/// Three lines of an image, for a line of windows: the first pixel of each and how many bytes further on the next is.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub places: [*const i8; 3],
    pub steps: [isize; 3],
}

/// Weights of a depthwise convolution as AVX-512's VNNI multiplies them, by chunks of channels.
pub struct Filters {
    #[cfg(target_arch = "x86_64")]
    chunks: Vec<Filter>,
}

impl std::fmt::Debug for Filters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filters").finish_non_exhaustive()
    }
}

impl Filters {
    /// Packs a number for each tap and channel, and those of the channels' ends: `None` where the processor lacks the
    /// instructions, or there are too many taps.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub fn of(isa: Isa, weights: &[i8], channels: usize, ends: Option<&ByteEnds>) -> Option<Filters> {
        #[cfg(target_arch = "x86_64")]
        {
            let taps = weights.len().checked_div(channels)?;
            (Dots::of(isa).is_wide() && taps <= MOST_TAPS).then_some(())?;
            let chunk = |first: usize| {
                let width = CHANNELS.min(channels - first);
                // SAFETY: the processor has the instructions; the channels are among the weights'.
                let mut filter = unsafe { Filter::of((weights[first..].as_ptr(), channels), [taps, width]) };
                if let Some(ends) = ends {
                    filter.ends(&Columns {
                        ends,
                        places: BytePlaces::NONE,
                        first,
                        lanes: width,
                    });
                }
                filter
            };
            let chunks = (0..channels).step_by(CHANNELS).map(chunk).collect();
            Some(Filters { chunks })
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

/// The most taps whose places need no memory of their own.
pub(super) const MOST_TAPS: usize = 28;
/// Channels of a tile of a depthwise convolution.
pub(super) const CHANNELS: usize = 64;
/// Its rows.
const PIXELS: usize = 64;

/// Convolves each channel by itself.
///
/// # Safety
/// What `taps` gives is readable for all channels; the filters are those of the weights.
pub unsafe fn depthwise(ws: &mut Workspace, p: &DepthwiseIntegers<'_>) {
    if p.channels == 0 {
        return;
    }
    // Of windows that are taken line by line a tile has whole lines.
    let windows = p
        .windows
        .as_ref()
        .filter(|windows| p.filters.is_some() && windows.out_w > 0);
    let pixels = windows.map_or(PIXELS, |windows| (PIXELS / windows.out_w).max(1) * windows.out_w);
    let bytes = p
        .bytes
        .as_ref()
        .filter(|bytes| p.filters.is_some() && !bytes.ends.goes_on());
    let (blocks, chunks) = (p.m.div_ceil(pixels), p.channels.div_ceil(CHANNELS));
    let tasks = p.entries * blocks;
    let (tile, splits) = match bytes {
        // As many as leave a task for every thread.
        Some(_) => (0, (ws.threads() * 2).div_ceil(tasks.max(1)).clamp(1, chunks.max(1))),
        None => (pixels * CHANNELS * 4, chunks),
    };
    if !ws.reserve(2 * tile, 0) {
        return;
    }
    let (isa, outside) = (ws.isa(), vec![p.padding; p.channels]);
    ws.parallel_for(tasks * splits, &|task, thread, scratch| {
        let (entry, rest) = (task / (blocks * splits), task % (blocks * splits));
        let (block, split) = (rest / splits, rest % splits);
        let rows = block * pixels..((block + 1) * pixels).min(p.m);
        let chunks = chunks * split / splits..chunks * (split + 1) / splits;
        let channels = |chunk: usize| chunk * CHANNELS..((chunk + 1) * CHANNELS).min(p.channels);
        let sums = scratch.cast::<i32>();
        // SAFETY: the scratch has room for two tiles if sums are stored, which are then of one chunk; taps and weights
        // have its channels.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            let lines = windows.map(|windows| (windows.lines(entry, rows.clone(), &outside), windows.row(p.padding)));
            #[cfg(target_arch = "x86_64")]
            let bytes = bytes.map(|bytes| (bytes.ends, (bytes.entry)(entry)));
            for chunk in chunks.clone() {
                let channels = channels(chunk);
                let first = channels.start;
                #[cfg(target_arch = "x86_64")]
                if let (Some(filters), Some((ends, (places, number)))) = (p.filters, bytes) {
                    let columns = |row: usize| Columns {
                        ends,
                        places: places.at(row, first),
                        first: number + first,
                        lanes: channels.len(),
                    };
                    let filter = &filters.chunks[chunk];
                    match &lines {
                        Some((lines, row)) => filter.bytes(columns(rows.start), lines, *row, first),
                        None => for_each_run(p, (entry, rows.clone()), first, &outside, &mut |done, taps, run| {
                            filter.bytes_of_taps(columns(rows.start + done), taps, run);
                        }),
                    }
                    continue;
                }
                #[cfg(target_arch = "x86_64")]
                if let (Some(filters), Some((lines, row))) = (p.filters, &lines) {
                    filters.chunks[chunk].sum(sums, lines, *row, channels);
                    continue;
                }
                for_each_run(p, (entry, rows.clone()), first, &outside, &mut |done, taps, run| {
                    sum_run(isa, p, channels.clone(), sums.add(done * CHANNELS), taps, run);
                });
            }
            if bytes.is_none() {
                (p.finish)(&SumTile {
                    entry,
                    rows,
                    cols: channels(chunks.start),
                    thread,
                    sums,
                    excess: std::ptr::null(),
                    stride: CHANNELS,
                    floats: scratch.add(tile).cast(),
                });
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
impl Windows<'_> {
    /// Lines of the windows of whole lines of pixels; what is outside is `outside`.
    fn lines(&self, entry: usize, rows: Range<usize>, outside: &[i8]) -> SmallVec<[Lines; 16]> {
        let image = (self.image)(entry);
        let of = |line: usize| {
            let mut lines = Lines {
                places: [outside.as_ptr(); 3],
                steps: [0; 3],
            };
            for ky in 0..3 {
                let y = (line * self.stride[0] + ky).wrapping_sub(self.pad[0]);
                if y < self.size[0] {
                    lines.places[ky] = image.wrapping_offset(y as isize * self.steps[0]);
                    lines.steps[ky] = self.steps[1];
                }
            }
            lines
        };
        (rows.start / self.out_w..rows.end.div_ceil(self.out_w))
            .map(of)
            .collect()
    }

    fn row(&self, padding: i8) -> Row {
        Row {
            count: self.out_w,
            stride: self.stride[1],
            pad: self.pad[1],
            width: self.size[1],
            padding,
        }
    }
}

/// Calls `each(done, taps, run)` for runs of pixels that have the same taps, from the channel `first` on: `run` of
/// them, `done` before.
fn for_each_run(
    p: &DepthwiseIntegers<'_>,
    (entry, rows): (usize, Range<usize>),
    first: usize,
    outside: &[i8],
    each: &mut dyn FnMut(usize, Taps<'_>, usize),
) {
    let taps = p.weights.len() / p.channels;
    let (mut places, mut steps) = ([std::ptr::null(); MOST_TAPS], [0; MOST_TAPS]);
    let (mut more_places, mut more_steps) = (Vec::new(), Vec::new());
    let (mut places, mut steps) = (&mut places[..], &mut steps[..]);
    if taps > MOST_TAPS {
        more_places.resize(taps, std::ptr::null());
        more_steps.resize(taps, 0);
        (places, steps) = (&mut more_places, &mut more_steps);
    }
    let (places, steps) = (&mut places[..taps], &mut steps[..taps]);
    let mut done = 0;
    while done < rows.len() {
        let run = (p.taps)(entry, rows.start + done, places).clamp(1, rows.len() - done);
        for (place, step) in places.iter_mut().zip(steps.iter_mut()) {
            (*place, *step) = match place.is_null() {
                true => (outside.as_ptr(), 0),
                false => (place.wrapping_add(first), p.step),
            };
        }
        each(done, Taps { places, steps }, run);
        done += run;
    }
}

/// Sums products of each tap of a run of pixels.
///
/// # Safety
/// As for [`depthwise`]; there is room for sums of the pixels, [`CHANNELS`] apart.
unsafe fn sum_run(
    isa: Isa,
    p: &DepthwiseIntegers<'_>,
    channels: Range<usize>,
    to: *mut i32,
    taps: Taps<'_>,
    run: usize,
) {
    let size = [run, channels.len()];
    // SAFETY: the caller's contract.
    unsafe {
        if p.ones && taps.places.len() <= WORD_TAPS {
            return sum_of_bytes(isa, to, taps, size);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(filters) = p.filters {
            return filters.chunks[channels.start / CHANNELS].sum_taps(to, taps, size);
        }
        let weights = p.weights.as_ptr().add(channels.start);
        sum_of_taps(isa, to, taps, (weights, p.channels), size);
    }
}

/// Where the taps of the first of several pixels are, and how many bytes further on those of the next.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a> {
    pub(super) places: &'a [*const i8],
    pub(super) steps: &'a [isize],
}

simd_dispatch! {
    /// Sums the products of bytes of several taps, channel by channel; weights of a tap are so many bytes behind those
    /// of the one before. Sums of a pixel are [`CHANNELS`] behind those of the one before.
    unsafe fn sum_of_taps(
        sums: *mut i32, taps: Taps<'_>, weights: (*const i8, usize), size: [usize; 2],
    ) = sum_of_taps_body
}

#[inline(always)]
unsafe fn sum_of_taps_body<S: Simd>(
    sums: *mut i32,
    taps: Taps<'_>,
    (weights, stride): (*const i8, usize),
    [pixels, channels]: [usize; 2],
) {
    /// Channels of all pixels that are summed at once, in registers.
    macro_rules! at_once {
        ($count:literal, $at:expr) => {{
            for pixel in 0..pixels {
                let mut all = [0i32; $count];
                for (tap, (from, step)) in taps.places.iter().zip(taps.steps).enumerate() {
                    let from = from.offset(pixel as isize * step).add($at);
                    let a = from.cast::<[i8; $count]>().read_unaligned();
                    let b = weights.add(tap * stride + $at).cast::<[i8; $count]>().read_unaligned();
                    for i in 0..$count {
                        all[i] = all[i].wrapping_add(i32::from(a[i]) * i32::from(b[i]));
                    }
                }
                let to = sums.add(pixel * CHANNELS + $at);
                to.cast::<[i32; $count]>().write_unaligned(all);
            }
            $at += $count;
        }};
    }
    let mut at = 0;
    // SAFETY: the caller's contract: taps, weights and sums have so many channels.
    unsafe {
        while at + 16 <= channels {
            if taps.places.len() == KEPT && pixels > 1 {
                kept_taps::<S>(sums.add(at), taps, at, weights.add(at), stride, pixels);
                at += 16;
            } else {
                at_once!(16, at);
            }
        }
        while at + 8 <= channels {
            at_once!(8, at);
        }
        while at + 4 <= channels {
            at_once!(4, at);
        }
        while at < channels {
            at_once!(1, at);
        }
    }
}

/// How many taps' weights are kept in registers: those of windows of three by three.
const KEPT: usize = 9;

/// Sums of 16 channels of several pixels, by weights that are widened once.
///
/// # Safety
/// There are [`KEPT`] taps, and all have 16 channels from `at` on, as weights and sums have.
#[inline(always)]
unsafe fn kept_taps<S: Simd>(
    sums: *mut i32,
    taps: Taps<'_>,
    at: usize,
    weights: *const i8,
    stride: usize,
    pixels: usize,
) {
    // SAFETY: the caller's contract; a vector has at most 16 lanes.
    unsafe {
        for part in (0..16).step_by(S::LANES) {
            let mut kept = [S::isplat(0); KEPT];
            for (tap, kept) in kept.iter_mut().enumerate() {
                *kept = S::load_i8(weights.add(tap * stride + part));
            }
            let mut from = [std::ptr::null::<i8>(); KEPT];
            let mut steps = [0isize; KEPT];
            for tap in 0..KEPT {
                from[tap] = taps.places[tap].add(at + part);
                steps[tap] = taps.steps[tap];
            }
            for pixel in 0..pixels {
                let mut all = S::isplat(0);
                for tap in 0..KEPT {
                    let bytes = S::load_i8(from[tap].offset(pixel as isize * steps[tap]));
                    all = S::iadd(all, S::imul(bytes, kept[tap]));
                }
                S::store(sums.add(pixel * CHANNELS + part).cast(), S::from_bits(all));
            }
        }
    }
}

/// So many bytes have a sum of 16 bits.
const WORD_TAPS: usize = 256;

simd_dispatch! {
    /// Sums bytes of at most [`WORD_TAPS`] taps, channel by channel; sums of a pixel are [`CHANNELS`] behind those of
    /// the one before.
    unsafe fn sum_of_bytes(sums: *mut i32, taps: Taps<'_>, size: [usize; 2]) = sum_of_bytes_body
}

#[inline(always)]
unsafe fn sum_of_bytes_body<S: Simd>(sums: *mut i32, taps: Taps<'_>, [pixels, channels]: [usize; 2]) {
    /// Channels of all pixels that are summed at once, in registers.
    macro_rules! at_once {
        ($count:literal, $at:expr) => {{
            for pixel in 0..pixels {
                let mut all = [0i16; $count];
                for (from, step) in taps.places.iter().zip(taps.steps) {
                    let from = from.offset(pixel as isize * step).add($at);
                    let bytes = from.cast::<[i8; $count]>().read_unaligned();
                    for i in 0..$count {
                        all[i] = all[i].wrapping_add(i16::from(bytes[i]));
                    }
                }
                let to = sums.add(pixel * CHANNELS + $at);
                to.cast::<[i32; $count]>().write_unaligned(all.map(i32::from));
            }
            $at += $count;
        }};
    }
    let mut at = 0;
    // SAFETY: the caller's contract: taps and sums have so many channels.
    unsafe {
        while at + 32 <= channels {
            at_once!(32, at);
        }
        while at + 8 <= channels {
            at_once!(8, at);
        }
        while at < channels {
            at_once!(1, at);
        }
    }
}
