//! Depthwise convolutions of integers of 8 bits: sums of products of each channel, in 32 bits, given to what follows tile by tile.

use super::dots::Dots;
use super::integers::SumTile;
use super::simd::{Simd, simd_dispatch};
use super::workspace::Workspace;

/// A convolution of one filter a channel, channels innermost.
pub struct DepthwiseIntegers<'a> {
    pub entries: usize,
    pub m: usize,
    pub channels: usize,
    /// A number for each tap and channel.
    pub weights: &'a [i8],
    /// All of them are 1.
    pub ones: bool,
    /// What is read outside of the image.
    pub padding: i8,
    /// `taps(entry, row, places)` says where the channels of each of a row's taps are, null outside of the image, and for how many rows
    /// from this one on those are `step` bytes further on in each, or null in all.
    pub taps: &'a (dyn Fn(usize, usize, &mut [*const i8]) -> usize + Sync),
    pub step: isize,
    pub finish: &'a (dyn Fn(&SumTile) + Sync),
}

/// The most taps whose places need no memory of their own.
const MOST_TAPS: usize = 28;
/// Channels of a tile of a depthwise convolution.
const CHANNELS: usize = 64;
/// Its rows.
const PIXELS: usize = 64;

/// Convolves each channel by itself.
///
/// # Safety
/// What `taps` gives is readable for all channels.
pub unsafe fn depthwise(ws: &mut Workspace, p: &DepthwiseIntegers<'_>) {
    let Some(taps) = p.weights.len().checked_div(p.channels) else {
        return;
    };
    let (blocks, chunks) = (p.m.div_ceil(PIXELS), p.channels.div_ceil(CHANNELS));
    let tile = PIXELS * CHANNELS * 4;
    ws.reserve(2 * tile, 0);
    let (isa, outside) = (ws.isa(), [p.padding; CHANNELS]);
    let quadruples = Dots::of(isa).is_wide() && taps <= MOST_TAPS;
    #[cfg(not(target_arch = "x86_64"))]
    let _ = quadruples;
    ws.parallel_for(p.entries * blocks * chunks, &|task, thread, scratch| {
        let (entry, rest) = (task / (blocks * chunks), task % (blocks * chunks));
        let (block, first) = (rest / chunks, rest % chunks * CHANNELS);
        let rows = block * PIXELS..((block + 1) * PIXELS).min(p.m);
        let cols = first..(first + CHANNELS).min(p.channels);
        let sums = scratch.cast::<i32>();
        // SAFETY: the scratch has room for two tiles; taps and weights have the chunk's channels.
        unsafe {
            let (mut places, mut steps) = ([std::ptr::null(); MOST_TAPS], [0; MOST_TAPS]);
            let (mut more_places, mut more_steps) = (Vec::new(), Vec::new());
            let (mut places, mut steps) = (&mut places[..], &mut steps[..]);
            if taps > MOST_TAPS {
                more_places.resize(taps, std::ptr::null());
                more_steps.resize(taps, 0);
                (places, steps) = (&mut more_places, &mut more_steps);
            }
            let (places, steps) = (&mut places[..taps], &mut steps[..taps]);
            let (weights, width) = (p.weights.as_ptr().add(first), cols.len());
            #[cfg(target_arch = "x86_64")]
            let filter = quadruples.then(|| x86::Filter::of((weights, p.channels), [taps, width]));
            let mut done = 0;
            while done < rows.len() {
                let run = (p.taps)(entry, rows.start + done, places).clamp(1, rows.len() - done);
                for (place, step) in places.iter_mut().zip(steps.iter_mut()) {
                    (*place, *step) = match place.is_null() {
                        true => (outside.as_ptr(), 0),
                        false => (place.add(first), p.step),
                    };
                }
                let to = sums.add(done * CHANNELS);
                let from = Taps { places, steps };
                done += run;
                if p.ones && taps <= WORD_TAPS {
                    sum_of_bytes(isa, to, from, [run, width]);
                    continue;
                }
                #[cfg(target_arch = "x86_64")]
                if let Some(filter) = &filter {
                    filter.sum(to, from, [run, width]);
                    continue;
                }
                sum_of_taps(isa, to, from, (weights, p.channels), [run, width]);
            }
            (p.finish)(&SumTile {
                entry,
                rows,
                cols,
                thread,
                sums,
                excess: std::ptr::null(),
                stride: CHANNELS,
                floats: scratch.add(tile).cast(),
            });
        }
    });
}

/// Where the taps of the first of several pixels are, and how many bytes further on those of the next.
#[derive(Clone, Copy)]
struct Taps<'a> {
    places: &'a [*const i8],
    steps: &'a [isize],
}

impl Taps<'_> {
    /// Says whether they are three by three, and each column is, at the next pixel, where the column to its right is.
    fn are_columns(&self) -> bool {
        self.places.len() == 9
            && (0..9).filter(|tap| tap % 3 < 2).all(|tap| {
                let moved = self.places[tap].wrapping_offset(self.steps[tap]);
                self.steps[tap] == self.steps[tap + 1] && moved == self.places[tap + 1]
            })
    }
}

simd_dispatch! {
    /// Sums the products of bytes of several taps, channel by channel; weights of a tap are so many bytes behind those of the one before.
    /// Sums of a pixel are [`CHANNELS`] behind those of the one before.
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
    /// Sums bytes of at most [`WORD_TAPS`] taps, channel by channel; sums of a pixel are [`CHANNELS`] behind those of the one before.
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

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_op_in_unsafe_fn,
    reason = "vectors of one kind under the contract of `Filter::sum`"
)]
mod x86 {
    //! Four taps of a channel side by side are what one of VNNI's instructions multiplies and adds. Bytes of the image are made
    //! unsigned (`x + 128`), and what that is too much is taken off beforehand.

    use std::arch::x86_64::*;

    use super::{CHANNELS, MOST_TAPS, Taps};

    /// Four taps of a vector's channels, of which each 128 bits have every fourth group of four channels.
    type Beside<W> = [<W as Wide>::V; 4];

    /// A vector of bytes.
    pub(super) trait Wide {
        type V: Copy;
        const LANES: usize;
        unsafe fn zero() -> Self::V;
        /// The first `n` bytes.
        unsafe fn load(p: *const i8, n: usize) -> Self::V;
        unsafe fn splat(byte: u8) -> Self::V;
        unsafe fn xor(a: Self::V, b: Self::V) -> Self::V;
        unsafe fn negate(a: Self::V) -> Self::V;
        unsafe fn dot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
        unsafe fn bytes_beside(a: Self::V, b: Self::V) -> [Self::V; 2];
        unsafe fn words_beside(a: Self::V, b: Self::V) -> [Self::V; 2];
        /// Stores sums by channel.
        unsafe fn store(p: *mut i32, sums: [Self::V; 4]);
    }

    /// 64 channels.
    pub(super) struct Bytes64;
    /// 32 channels.
    pub(super) struct Bytes32;

    impl Wide for Bytes64 {
        type V = __m512i;
        const LANES: usize = 64;
        #[inline(always)]
        unsafe fn zero() -> __m512i {
            _mm512_setzero_si512()
        }
        #[inline(always)]
        unsafe fn load(p: *const i8, n: usize) -> __m512i {
            if n == 64 {
                return _mm512_loadu_si512(p.cast());
            }
            _mm512_maskz_loadu_epi8((1u64 << n) - 1, p)
        }
        #[inline(always)]
        unsafe fn splat(byte: u8) -> __m512i {
            _mm512_set1_epi8(byte as i8)
        }
        #[inline(always)]
        unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
            _mm512_xor_si512(a, b)
        }
        #[inline(always)]
        unsafe fn negate(a: __m512i) -> __m512i {
            _mm512_sub_epi32(_mm512_setzero_si512(), a)
        }
        #[inline(always)]
        unsafe fn dot(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sum, a, b)
        }
        #[inline(always)]
        unsafe fn bytes_beside(a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)]
        }
        #[inline(always)]
        unsafe fn words_beside(a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)]
        }
        #[inline(always)]
        unsafe fn store(p: *mut i32, [a, b, c, d]: [__m512i; 4]) {
            // Quarters of the four by quarters of the channels: a transpose.
            let (low, high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
            let (low2, high2) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
            _mm512_storeu_si512(p.cast(), _mm512_shuffle_i32x4::<0x88>(low, low2));
            _mm512_storeu_si512(p.add(16).cast(), _mm512_shuffle_i32x4::<0xdd>(low, low2));
            _mm512_storeu_si512(p.add(32).cast(), _mm512_shuffle_i32x4::<0x88>(high, high2));
            _mm512_storeu_si512(p.add(48).cast(), _mm512_shuffle_i32x4::<0xdd>(high, high2));
        }
    }

    impl Wide for Bytes32 {
        type V = __m256i;
        const LANES: usize = 32;
        #[inline(always)]
        unsafe fn zero() -> __m256i {
            _mm256_setzero_si256()
        }
        #[inline(always)]
        unsafe fn load(p: *const i8, n: usize) -> __m256i {
            if n == 32 {
                return _mm256_loadu_si256(p.cast());
            }
            _mm256_maskz_loadu_epi8((1u32 << n) - 1, p)
        }
        #[inline(always)]
        unsafe fn splat(byte: u8) -> __m256i {
            _mm256_set1_epi8(byte as i8)
        }
        #[inline(always)]
        unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
            _mm256_xor_si256(a, b)
        }
        #[inline(always)]
        unsafe fn negate(a: __m256i) -> __m256i {
            _mm256_sub_epi32(_mm256_setzero_si256(), a)
        }
        #[inline(always)]
        unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
            _mm256_dpbusd_epi32(sum, a, b)
        }
        #[inline(always)]
        unsafe fn bytes_beside(a: __m256i, b: __m256i) -> [__m256i; 2] {
            [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)]
        }
        #[inline(always)]
        unsafe fn words_beside(a: __m256i, b: __m256i) -> [__m256i; 2] {
            [_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)]
        }
        #[inline(always)]
        unsafe fn store(p: *mut i32, [a, b, c, d]: [__m256i; 4]) {
            _mm256_storeu_si256(p.cast(), _mm256_permute2x128_si256::<0x20>(a, b));
            _mm256_storeu_si256(p.add(8).cast(), _mm256_permute2x128_si256::<0x20>(c, d));
            _mm256_storeu_si256(p.add(16).cast(), _mm256_permute2x128_si256::<0x31>(a, b));
            _mm256_storeu_si256(p.add(24).cast(), _mm256_permute2x128_si256::<0x31>(c, d));
        }
    }

    /// Four taps of each channel side by side.
    #[inline(always)]
    unsafe fn beside<W: Wide>([a, b, c, d]: [W::V; 4]) -> Beside<W> {
        let ([low, high], [low2, high2]) = (W::bytes_beside(a, b), W::bytes_beside(c, d));
        let ([first, second], [third, fourth]) = (W::words_beside(low, low2), W::words_beside(high, high2));
        [first, second, third, fourth]
    }

    /// Four vectors' bytes.
    #[repr(C, align(64))]
    #[derive(Clone, Copy)]
    struct Group([[u8; 64]; 4]);

    impl Group {
        const ZERO: Group = Group([[0; 64]; 4]);

        #[inline(always)]
        unsafe fn get<W: Wide>(&self) -> Beside<W> {
            let from = &self.0;
            [
                from[0].as_ptr().cast::<W::V>().read_unaligned(),
                from[1].as_ptr().cast::<W::V>().read_unaligned(),
                from[2].as_ptr().cast::<W::V>().read_unaligned(),
                from[3].as_ptr().cast::<W::V>().read_unaligned(),
            ]
        }
        #[inline(always)]
        unsafe fn set<W: Wide>(&mut self, from: Beside<W>) {
            for (to, from) in self.0.iter_mut().zip(from) {
                to.as_mut_ptr().cast::<W::V>().write_unaligned(from);
            }
        }
    }

    const GROUPS: usize = MOST_TAPS / 4;
    /// The tap of a group that has less than four; its weights are 0.
    const NONE: usize = usize::MAX;

    /// Weights of up to 64 channels, taps side by side: of windows of three by three each of three columns is a group, else taps are in
    /// their order.
    pub(super) struct Filter {
        groups: [Group; GROUPS],
        /// What the sums begin with.
        start: Group,
        /// The taps of each group.
        taps: [[usize; 4]; GROUPS],
        count: usize,
    }

    impl Filter {
        /// Of so many taps and channels, `weights.1` from tap to tap.
        ///
        /// # Safety
        /// The processor has AVX-512 with VNNI; there are so many weights, of at most [`MOST_TAPS`] taps and [`CHANNELS`] channels.
        pub(super) unsafe fn of(weights: (*const i8, usize), [taps, channels]: [usize; 2]) -> Filter {
            let mut order = [[NONE; 4]; GROUPS];
            for tap in 0..taps {
                match taps {
                    9 => order[tap % 3][tap / 3] = tap,
                    _ => order[tap / 4][tap % 4] = tap,
                }
            }
            let mut filter = Filter {
                groups: [Group::ZERO; GROUPS],
                start: Group::ZERO,
                taps: order,
                count: if taps == 9 { 3 } else { taps.div_ceil(4) },
            };
            match channels > Bytes32::LANES {
                true => fill_64(&mut filter, weights, channels),
                false => fill_32(&mut filter, weights, channels),
            }
            filter
        }

        /// Sums of so many pixels and channels, [`CHANNELS`] from pixel to pixel, of which as many are written as a vector has.
        ///
        /// # Safety
        /// As for [`super::depthwise`]; taps and channels are the filter's.
        pub(super) unsafe fn sum(&self, sums: *mut i32, taps: Taps<'_>, size: [usize; 2]) {
            match size[1] > Bytes32::LANES {
                true => sum_64(self, sums, taps, size),
                false => sum_32(self, sums, taps, size),
            }
        }
    }

    macro_rules! at_width {
        ($fill:ident, $sum:ident, $width:ty) => {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn $fill(filter: &mut Filter, weights: (*const i8, usize), channels: usize) {
                fill_body::<$width>(filter, weights, channels)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn $sum(filter: &Filter, sums: *mut i32, taps: Taps<'_>, size: [usize; 2]) {
                // A loop without masks for whole vectors.
                match size[1] == <$width>::LANES {
                    true => sum_body::<$width>(filter, sums, taps, [size[0], <$width>::LANES]),
                    false => sum_body::<$width>(filter, sums, taps, size),
                }
            }
        };
    }
    at_width!(fill_64, sum_64, Bytes64);
    at_width!(fill_32, sum_32, Bytes32);

    #[inline(always)]
    unsafe fn fill_body<W: Wide>(filter: &mut Filter, (weights, stride): (*const i8, usize), channels: usize) {
        let mut start = [W::zero(); 4];
        for (group, taps) in filter.groups[..filter.count].iter_mut().zip(&filter.taps) {
            let mut four = [W::zero(); 4];
            for (four, &tap) in four.iter_mut().zip(taps) {
                if tap != NONE {
                    *four = W::load(weights.add(tap * stride), channels);
                }
            }
            let four = beside::<W>(four);
            group.set::<W>(four);
            for (start, weights) in start.iter_mut().zip(four) {
                *start = W::dot(*start, W::splat(0x80), weights);
            }
        }
        for start in &mut start {
            *start = W::negate(*start);
        }
        filter.start.set::<W>(start);
    }

    /// Where the taps of a group are for the first pixel, and how many bytes further on for the next.
    #[derive(Clone, Copy)]
    struct Four {
        places: [*const i8; 4],
        steps: [isize; 4],
    }

    impl Four {
        /// The bytes of a pixel without signs.
        #[inline(always)]
        unsafe fn of<W: Wide>(&self, pixel: usize, channels: usize) -> Beside<W> {
            let signs = W::splat(0x80);
            let mut four = [W::zero(); 4];
            for (four, (place, step)) in four.iter_mut().zip(self.places.iter().zip(&self.steps)) {
                *four = W::xor(W::load(place.offset(pixel as isize * step), channels), signs);
            }
            beside::<W>(four)
        }
    }

    #[inline(always)]
    unsafe fn add<W: Wide>(all: Beside<W>, bytes: Beside<W>, weights: &Group) -> Beside<W> {
        let weights = weights.get::<W>();
        [
            W::dot(all[0], bytes[0], weights[0]),
            W::dot(all[1], bytes[1], weights[1]),
            W::dot(all[2], bytes[2], weights[2]),
            W::dot(all[3], bytes[3], weights[3]),
        ]
    }

    #[inline(always)]
    unsafe fn sum_body<W: Wide>(filter: &Filter, sums: *mut i32, taps: Taps<'_>, [pixels, channels]: [usize; 2]) {
        let nothing = [0i8; CHANNELS];
        let mut fours = [Four {
            places: [nothing.as_ptr(); 4],
            steps: [0; 4],
        }; GROUPS];
        for (four, order) in fours[..filter.count].iter_mut().zip(&filter.taps) {
            for (i, &tap) in order.iter().enumerate() {
                if tap != NONE {
                    (four.places[i], four.steps[i]) = (taps.places[tap], taps.steps[tap]);
                }
            }
        }
        let start = filter.start.get::<W>();
        if pixels > 2 && taps.are_columns() {
            // Two of three columns are those of the pixel before.
            let mut left = fours[0].of::<W>(0, channels);
            let mut middle = fours[1].of::<W>(0, channels);
            for pixel in 0..pixels {
                let right = fours[2].of::<W>(pixel, channels);
                let mut all = add::<W>(start, left, &filter.groups[0]);
                all = add::<W>(all, middle, &filter.groups[1]);
                all = add::<W>(all, right, &filter.groups[2]);
                W::store(sums.add(pixel * CHANNELS), all);
                (left, middle) = (middle, right);
            }
            return;
        }
        for pixel in 0..pixels {
            let mut all = start;
            for (four, weights) in fours[..filter.count].iter().zip(&filter.groups) {
                all = add::<W>(all, four.of::<W>(pixel, channels), weights);
            }
            W::store(sums.add(pixel * CHANNELS), all);
        }
    }
}
