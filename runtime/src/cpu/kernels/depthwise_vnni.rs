//! Depthwise convolutions by AVX-512 with VNNI.
//!
//! Four taps of a channel side by side are what one instruction multiplies and adds. Bytes of the image are made
//! unsigned (`x + 128`), and what that is too much is taken off beforehand.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "vectors of one kind under the contract of `Filter::sum`"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::byte_ends::BytePlaces;
use super::byte_ends::x86::{Columns, exactly};
use super::depthwise_integers::{CHANNELS, Lines, MOST_TAPS, Taps};

/// Four taps of a vector's channels, of which each 128 bits have every fourth group of four channels.
type Beside<W> = [<W as Wide>::V; 4];

/// A vector of bytes.
trait Wide {
    type V: Copy;
    type F: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    /// The first `n` bytes.
    unsafe fn load(p: *const i8, n: usize) -> Self::V;
    /// Stores the first `n` bytes.
    unsafe fn store_bytes(p: *mut u8, bytes: Self::V, n: usize);
    unsafe fn splat(byte: u8) -> Self::V;
    unsafe fn splat_words(word: i16) -> Self::V;
    unsafe fn xor(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn negate(a: Self::V) -> Self::V;
    unsafe fn dot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn bytes_beside(a: Self::V, b: Self::V) -> [Self::V; 2];
    unsafe fn words_beside(a: Self::V, b: Self::V) -> [Self::V; 2];
    /// Stores sums by channel.
    unsafe fn store(p: *mut i32, sums: [Self::V; 4]);
    unsafe fn floats(p: *const f32) -> Self::F;
    /// The nearest integer to a sum's quotient.
    unsafe fn quotient(sum: Self::V, scale: Self::F, bias: Self::F) -> Self::V;
    /// Of each 32 bits of both the upper words, and the lower ones; those of the second vector are the upper of the
    /// results.
    unsafe fn words(a: Self::V, b: Self::V) -> [Self::V; 2];
    unsafe fn cut(words: Self::V, range: [Self::V; 2]) -> Self::V;
    /// Whether a word without sign is below another.
    unsafe fn any_below(words: Self::V, than: Self::V) -> bool;
    /// The lower bytes of words, by channel.
    unsafe fn bytes(words: [Self::V; 2]) -> Self::V;
}

/// 64 channels.
struct Bytes64;
/// 32 channels.
struct Bytes32;

/// Where the bytes of a channel are among those of four vectors' words, in each 128 bits.
const ORDER: [i8; 64] = {
    let mut order = [0; 64];
    let mut i = 0;
    while i < 64 {
        // Of the first four vectors' channel, of the third, of the second, of the fourth.
        let vector = [0, 2, 1, 3][i / 4 % 4];
        order[i] = (i % 4 * 4 + vector) as i8;
        i += 1;
    }
    order
};

macro_rules! wide {
    (
        $name:ty, $lanes:literal, $v:ty, $f:ty, $mask:ty, [$load:ident $maskz_load:ident $store:ident $mask_store:ident],
        [$zero:ident $set_bytes:ident $set_words:ident $xor:ident $sub:ident $dot:ident],
        [$low_bytes:ident $high_bytes:ident $low_words:ident $high_words:ident],
        [$floats:ident $to_float:ident $fma:ident $to_int:ident],
        [$right:ident $left:ident $blend:ident $left_words:ident $ternary:ident $shuffle:ident],
        [$max:ident $min:ident $below:ident], $words:literal, |$p:ident, $sums:ident| $transposed:block
    ) => {
        impl Wide for $name {
            type V = $v;
            type F = $f;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn zero() -> $v {
                $zero()
            }
            #[inline(always)]
            unsafe fn load(p: *const i8, n: usize) -> $v {
                match n == $lanes {
                    true => $load(p.cast()),
                    false => $maskz_load(((1 as $mask) << n) - 1, p),
                }
            }
            #[inline(always)]
            unsafe fn store_bytes(p: *mut u8, bytes: $v, n: usize) {
                match n == $lanes {
                    true => $store(p.cast(), bytes),
                    false => $mask_store(p.cast(), ((1 as $mask) << n) - 1, bytes),
                }
            }
            #[inline(always)]
            unsafe fn splat(byte: u8) -> $v {
                $set_bytes(byte as i8)
            }
            #[inline(always)]
            unsafe fn splat_words(word: i16) -> $v {
                $set_words(word)
            }
            #[inline(always)]
            unsafe fn xor(a: $v, b: $v) -> $v {
                $xor(a, b)
            }
            #[inline(always)]
            unsafe fn negate(a: $v) -> $v {
                $sub($zero(), a)
            }
            #[inline(always)]
            unsafe fn dot(sum: $v, a: $v, b: $v) -> $v {
                $dot(sum, a, b)
            }
            #[inline(always)]
            unsafe fn bytes_beside(a: $v, b: $v) -> [$v; 2] {
                [$low_bytes(a, b), $high_bytes(a, b)]
            }
            #[inline(always)]
            unsafe fn words_beside(a: $v, b: $v) -> [$v; 2] {
                [$low_words(a, b), $high_words(a, b)]
            }
            #[inline(always)]
            unsafe fn store($p: *mut i32, $sums: [$v; 4]) $transposed
            #[inline(always)]
            unsafe fn floats(p: *const f32) -> $f {
                $floats(p)
            }
            #[inline(always)]
            unsafe fn quotient(sum: $v, scale: $f, bias: $f) -> $v {
                $to_int($fma($to_float(sum), scale, bias))
            }
            #[inline(always)]
            unsafe fn words(a: $v, b: $v) -> [$v; 2] {
                [$blend($words, $right::<16>(a), b), $blend($words, a, $left::<16>(b))]
            }
            #[inline(always)]
            unsafe fn cut(words: $v, [low, high]: [$v; 2]) -> $v {
                $min($max(words, low), high)
            }
            #[inline(always)]
            unsafe fn any_below(words: $v, than: $v) -> bool {
                $below(words, than) != 0
            }
            #[inline(always)]
            unsafe fn bytes([first, second]: [$v; 2]) -> $v {
                // Of the mask's bits those of the first, of others those of the second.
                let bytes = $ternary::<0xca>($set_words(0xff), first, $left_words::<8>(second));
                $shuffle(bytes, $load(ORDER.as_ptr().cast()))
            }
        }
    };
}

wide!(
    Bytes64, 64, __m512i, __m512, u64,
    [_mm512_loadu_si512 _mm512_maskz_loadu_epi8 _mm512_storeu_si512 _mm512_mask_storeu_epi8],
    [_mm512_setzero_si512 _mm512_set1_epi8 _mm512_set1_epi16 _mm512_xor_si512 _mm512_sub_epi32 _mm512_dpbusd_epi32],
    [_mm512_unpacklo_epi8 _mm512_unpackhi_epi8 _mm512_unpacklo_epi16 _mm512_unpackhi_epi16],
    [_mm512_loadu_ps _mm512_cvtepi32_ps _mm512_fmadd_ps _mm512_cvtps_epi32],
    [_mm512_srli_epi32 _mm512_slli_epi32 _mm512_mask_blend_epi16 _mm512_slli_epi16 _mm512_ternarylogic_epi32 _mm512_shuffle_epi8],
    [_mm512_max_epi16 _mm512_min_epi16 _mm512_cmplt_epu16_mask], 0xaaaa_aaaa,
    |p, sums| {
        // Quarters of the four by quarters of the channels: a transpose.
        let [a, b, c, d] = sums;
        let (low, high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
        let (low2, high2) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
        _mm512_storeu_si512(p.cast(), _mm512_shuffle_i32x4::<0x88>(low, low2));
        _mm512_storeu_si512(p.add(16).cast(), _mm512_shuffle_i32x4::<0xdd>(low, low2));
        _mm512_storeu_si512(p.add(32).cast(), _mm512_shuffle_i32x4::<0x88>(high, high2));
        _mm512_storeu_si512(p.add(48).cast(), _mm512_shuffle_i32x4::<0xdd>(high, high2));
    }
);
wide!(
    Bytes32, 32, __m256i, __m256, u32,
    [_mm256_loadu_si256 _mm256_maskz_loadu_epi8 _mm256_storeu_si256 _mm256_mask_storeu_epi8],
    [_mm256_setzero_si256 _mm256_set1_epi8 _mm256_set1_epi16 _mm256_xor_si256 _mm256_sub_epi32 _mm256_dpbusd_epi32],
    [_mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi16 _mm256_unpackhi_epi16],
    [_mm256_loadu_ps _mm256_cvtepi32_ps _mm256_fmadd_ps _mm256_cvtps_epi32],
    [_mm256_srli_epi32 _mm256_slli_epi32 _mm256_mask_blend_epi16 _mm256_slli_epi16 _mm256_ternarylogic_epi32 _mm256_shuffle_epi8],
    [_mm256_max_epi16 _mm256_min_epi16 _mm256_cmplt_epu16_mask], 0xaaaa,
    |p, sums| {
        let [a, b, c, d] = sums;
        _mm256_storeu_si256(p.cast(), _mm256_permute2x128_si256::<0x20>(a, b));
        _mm256_storeu_si256(p.add(8).cast(), _mm256_permute2x128_si256::<0x20>(c, d));
        _mm256_storeu_si256(p.add(16).cast(), _mm256_permute2x128_si256::<0x31>(a, b));
        _mm256_storeu_si256(p.add(24).cast(), _mm256_permute2x128_si256::<0x31>(c, d));
    }
);

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
    unsafe fn floats<W: Wide>(&self, vector: usize) -> W::F {
        W::floats(self.0[vector].as_ptr().cast())
    }
    /// Where a channel's number is: the vector, and its byte there.
    fn place(channel: usize) -> (usize, usize) {
        let (quarter, vector, lane) = (channel / 16, channel / 4 % 4, channel % 4);
        (vector, (quarter * 4 + lane) * 4)
    }
    /// Numbers of channels.
    fn of(channels: usize, number: impl Fn(usize) -> u32) -> Group {
        let mut group = Group::ZERO;
        for channel in 0..channels {
            let (vector, at) = Group::place(channel);
            group.0[vector][at..at + 4].copy_from_slice(&number(channel).to_ne_bytes());
        }
        group
    }
    fn number(&self, channel: usize) -> u32 {
        let (vector, at) = Group::place(channel);
        u32::from_ne_bytes([0, 1, 2, 3].map(|i| self.0[vector][at + i]))
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

/// Weights of up to 64 channels, taps side by side: of windows of three by three each of three columns is a group, else
/// taps are in their order.
pub(super) struct Filter {
    groups: [Group; GROUPS],
    /// What the sums begin with.
    start: Group,
    /// The taps of each group.
    taps: [[usize; 4]; GROUPS],
    count: usize,
    numbers: Numbers,
}

/// Numbers of each channel of sums that become bytes, in the order of [`Beside`].
#[derive(Clone, Copy)]
struct Numbers {
    /// What sums begin with.
    start: Group,
    scale: Group,
    bias: Group,
}

impl Filter {
    /// Of so many taps and channels, `weights.1` from tap to tap.
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI; there are so many weights, of at most [`MOST_TAPS`] taps and [`CHANNELS`]
    /// channels.
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
            numbers: Numbers {
                start: Group::ZERO,
                scale: Group::ZERO,
                bias: Group::ZERO,
            },
        };
        match channels > Bytes32::LANES {
            true => fill_64(&mut filter, weights, channels),
            false => fill_32(&mut filter, weights, channels),
        }
        filter
    }

    /// Has sums become bytes by numbers of the columns, which are its channels.
    pub(super) fn ends(&mut self, columns: &Columns<'_>) {
        let number = |channel: usize| (channel < columns.lanes).then(|| columns.numbers(channel));
        let of = |number: &dyn Fn(usize) -> u32| Group::of(CHANNELS, number);
        self.numbers = Numbers {
            start: of(&|channel| {
                let start = number(channel).map_or(0, |(start, ..)| start);
                (self.start.number(channel) as i32).wrapping_add(start) as u32
            }),
            scale: of(&|channel| number(channel).map_or(0.0, |(_, scale, _)| scale).to_bits()),
            // The quotient of a channel that is none is 0, and half of one is added to it.
            bias: of(&|channel| number(channel).map_or(32768.0, |(.., bias)| bias).to_bits()),
        };
    }

    /// Sums of so many pixels and channels, [`CHANNELS`] from pixel to pixel, of which as many are written as a vector
    /// has.
    ///
    /// # Safety
    /// As for [`super::depthwise_integers::depthwise`]; taps and channels are the filter's.
    pub(super) unsafe fn sum_taps(&self, sums: *mut i32, taps: Taps<'_>, size: [usize; 2]) {
        match size[1] > Bytes32::LANES {
            true => taps_64(self, Sums(sums, opaque(&self.start)), taps, size),
            false => taps_32(self, Sums(sums, opaque(&self.start)), taps, size),
        }
    }

    /// Sums of lines of windows of three by three pixels.
    ///
    /// # Safety
    /// As for [`Filter::sum_taps`].
    pub(super) unsafe fn sum(&self, sums: *mut i32, lines: &[Lines], row: Row, channels: Range<usize>) {
        let sums = Sums(sums, opaque(&self.start));
        match channels.len() > Bytes32::LANES {
            true => sum_64(self, sums, lines, row, channels),
            false => sum_32(self, sums, lines, row, channels),
        }
    }

    /// Has sums of lines of windows be bytes. The columns are the filter's channels, the first of them is `first` of
    /// the image's; their ends are none of those that [go on](super::byte_ends::ByteEnds::goes_on).
    ///
    /// # Safety
    /// As for [`Filter::sum`]; the pixels have places.
    pub(super) unsafe fn bytes(&self, columns: Columns<'_>, lines: &[Lines], row: Row, first: usize) {
        let channels = first..first + columns.lanes;
        match columns.lanes > Bytes32::LANES {
            true => bytes_64(self, columns, lines, row, channels),
            false => bytes_32(self, columns, lines, row, channels),
        }
    }

    /// The same of so many pixels, by their taps.
    ///
    /// # Safety
    /// As for [`Filter::bytes`].
    pub(super) unsafe fn bytes_of_taps(&self, columns: Columns<'_>, taps: Taps<'_>, pixels: usize) {
        match columns.lanes > Bytes32::LANES {
            true => taps_bytes_64(self, columns, taps, pixels),
            false => taps_bytes_32(self, columns, taps, pixels),
        }
    }
}

/// A line of windows of three by three pixels.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// How many there are, how far apart they are, and how many pixels the first is outside.
    pub count: usize,
    pub stride: usize,
    pub pad: usize,
    /// Pixels of the image's lines, and what stands outside.
    pub width: usize,
    pub padding: i8,
}

macro_rules! at_width {
    ($fill:ident, $taps:ident, $sum:ident, $bytes:ident, $taps_bytes:ident, $width:ty) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn $fill(filter: &mut Filter, weights: (*const i8, usize), channels: usize) {
            fill_body::<$width>(filter, weights, channels)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn $taps(filter: &Filter, sums: Sums, taps: Taps<'_>, size: [usize; 2]) {
            taps_body::<$width>(filter, &sums, taps, size)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn $sum(filter: &Filter, sums: Sums, lines: &[Lines], row: Row, channels: Range<usize>) {
            lines_body::<$width>(filter, &sums, lines, row, channels)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn $bytes(filter: &Filter, columns: Columns<'_>, lines: &[Lines], row: Row, channels: Range<usize>) {
            lines_body::<$width>(
                filter,
                &Bytes::<$width>::new(filter, columns),
                lines,
                row,
                channels,
            )
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
        unsafe fn $taps_bytes(filter: &Filter, columns: Columns<'_>, taps: Taps<'_>, pixels: usize) {
            let size = [pixels, columns.lanes];
            taps_body::<$width>(filter, &Bytes::<$width>::new(filter, columns), taps, size)
        }
    };
}
at_width!(fill_64, taps_64, sum_64, bytes_64, taps_bytes_64, Bytes64);
at_width!(fill_32, taps_32, sum_32, bytes_32, taps_bytes_32, Bytes32);

/// What sums begin with, and where they go.
trait End<W: Wide> {
    unsafe fn start(&self) -> Beside<W>;
    unsafe fn put(&self, pixel: usize, channels: usize, sums: Beside<W>);
}

/// Sums as they are.
struct Sums(*mut i32, *const Group);

impl<W: Wide> End<W> for Sums {
    #[inline(always)]
    unsafe fn start(&self) -> Beside<W> {
        (*self.1).get::<W>()
    }
    #[inline(always)]
    unsafe fn put(&self, pixel: usize, _: usize, sums: Beside<W>) {
        W::store(self.0.add(pixel * CHANNELS), sums);
    }
}

/// Bytes, each by numbers of its channel, which are where they are: registers have no room for them.
struct Bytes<'a, W: Wide> {
    columns: Columns<'a>,
    numbers: *const Numbers,
    cut: [W::V; 2],
    near: W::V,
}

impl<'a, W: Wide> Bytes<'a, W> {
    #[inline(always)]
    unsafe fn new(filter: &Filter, columns: Columns<'a>) -> Bytes<'a, W> {
        let (cut, near) = columns.limits();
        Bytes {
            columns,
            numbers: opaque(&filter.numbers),
            cut: [W::splat_words(cut[0]), W::splat_words(cut[1])],
            near: W::splat_words(near as i16),
        }
    }
}

impl<W: Wide> End<W> for Bytes<'_, W> {
    #[inline(always)]
    unsafe fn start(&self) -> Beside<W> {
        (*self.numbers).start.get::<W>()
    }
    #[inline(always)]
    unsafe fn put(&self, pixel: usize, channels: usize, sums: Beside<W>) {
        let (scale, bias) = (&(*self.numbers).scale, &(*self.numbers).bias);
        let [first, first_rest] = W::words(
            W::quotient(sums[0], scale.floats::<W>(0), bias.floats::<W>(0)),
            W::quotient(sums[1], scale.floats::<W>(1), bias.floats::<W>(1)),
        );
        let [second, second_rest] = W::words(
            W::quotient(sums[2], scale.floats::<W>(2), bias.floats::<W>(2)),
            W::quotient(sums[3], scale.floats::<W>(3), bias.floats::<W>(3)),
        );
        let to = self
            .columns
            .places
            .to
            .wrapping_offset(pixel as isize * self.columns.places.row);
        if W::any_below(first_rest, self.near) | W::any_below(second_rest, self.near) {
            let mut kept = [0i32; CHANNELS];
            W::store(kept.as_mut_ptr(), sums);
            let places = BytePlaces {
                to,
                ..self.columns.places
            };
            return exactly(&Columns { places, ..self.columns }, 1, kept.as_ptr(), W::LANES / 16);
        }
        let bytes = W::bytes([W::cut(first, self.cut), W::cut(second, self.cut)]);
        W::store_bytes(to, bytes, channels);
    }
}

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

/// The same address, of which it is not known what lies there: else the compiler reads all of it before a loop, and has
/// registers for a part alone.
#[inline(always)]
fn opaque<T>(p: *const T) -> *const T {
    let mut address = p.expose_provenance();
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    std::ptr::with_exposed_provenance(address)
}

/// Weights are read where they are: registers have no room for all.
#[inline(always)]
unsafe fn add<W: Wide>(all: Beside<W>, bytes: Beside<W>, weights: *const Group) -> Beside<W> {
    let weights = (*weights).get::<W>();
    [
        W::dot(all[0], bytes[0], weights[0]),
        W::dot(all[1], bytes[1], weights[1]),
        W::dot(all[2], bytes[2], weights[2]),
        W::dot(all[3], bytes[3], weights[3]),
    ]
}

#[inline(always)]
unsafe fn taps_body<W: Wide>(filter: &Filter, end: &impl End<W>, taps: Taps<'_>, [pixels, channels]: [usize; 2]) {
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
    for pixel in 0..pixels {
        let mut all = end.start();
        for (four, weights) in fours[..filter.count].iter().zip(&filter.groups) {
            all = add::<W>(all, four.of::<W>(pixel, channels), weights);
        }
        end.put(pixel, channels, all);
    }
}

#[inline(always)]
unsafe fn lines_body<W: Wide>(filter: &Filter, end: &impl End<W>, lines: &[Lines], row: Row, channels: Range<usize>) {
    let (first, count) = (channels.start, channels.len());
    // A loop without masks for whole vectors.
    match (row.stride == 1, count == W::LANES) {
        (true, true) => lines_of::<W, 1>(filter, end, lines, row, [first, W::LANES]),
        (true, false) => lines_of::<W, 1>(filter, end, lines, row, [first, count]),
        (false, true) => lines_of::<W, 2>(filter, end, lines, row, [first, W::LANES]),
        (false, false) => lines_of::<W, 2>(filter, end, lines, row, [first, count]),
    }
}

/// A column of a window: three pixels, of which the fourth has weights of 0.
#[inline(always)]
unsafe fn column<W: Wide>(lines: &Lines, x: usize, channels: usize) -> Beside<W> {
    let signs = W::splat(0x80);
    let x = x as isize;
    let top = W::xor(W::load(lines.places[0].offset(x * lines.steps[0]), channels), signs);
    let middle = W::xor(W::load(lines.places[1].offset(x * lines.steps[1]), channels), signs);
    let bottom = W::xor(W::load(lines.places[2].offset(x * lines.steps[2]), channels), signs);
    beside::<W>([top, middle, bottom, W::zero()])
}

#[inline(always)]
unsafe fn lines_of<W: Wide, const STRIDE: usize>(
    filter: &Filter,
    end: &impl End<W>,
    lines: &[Lines],
    row: Row,
    [first, channels]: [usize; 2],
) {
    let weights = opaque(filter.groups.as_ptr());
    let (left, middle, right) = (weights, weights.add(1), weights.add(2));
    let outside = [W::splat(row.padding as u8 ^ 0x80); 4];
    // Columns that may be outside.
    macro_rules! at {
        ($lines:expr, $x:expr) => {
            match $x < row.width {
                true => column::<W>($lines, $x, channels),
                false => outside,
            }
        };
    }
    let mut pixel = 0;
    for lines in lines {
        let lines = &Lines {
            places: [
                lines.places[0].wrapping_add(first),
                lines.places[1].wrapping_add(first),
                lines.places[2].wrapping_add(first),
            ],
            steps: lines.steps,
        };
        let x = 0usize.wrapping_sub(row.pad);
        // Windows whose right column is inside: those behind them are the last.
        let inside = (row.width.wrapping_sub(x.wrapping_add(2)) as isize).max(0) as usize;
        let inside = inside.div_ceil(STRIDE).min(row.count);
        let mut this = add::<W>(end.start(), at!(lines, x), left);
        if STRIDE == 1 {
            // A column is the right one of a pixel, the middle one of the next, and the left one of the one behind
            // that.
            let second = at!(lines, x.wrapping_add(1));
            this = add::<W>(this, second, middle);
            let mut next = add::<W>(end.start(), second, left);
            for number in 0..row.count {
                let column = match number < inside {
                    true => column::<W>(lines, x.wrapping_add(2 + number), channels),
                    false => outside,
                };
                let all = add::<W>(this, column, right);
                this = add::<W>(next, column, middle);
                next = add::<W>(end.start(), column, left);
                end.put(pixel, channels, all);
                pixel += 1;
            }
        } else {
            // The right column of a pixel is the left one of the next.
            for number in 0..row.count {
                let x = x.wrapping_add(2 * number + 1);
                let all = add::<W>(this, at!(lines, x), middle);
                let column = at!(lines, x.wrapping_add(1));
                let all = add::<W>(all, column, right);
                this = add::<W>(end.start(), column, left);
                end.put(pixel, channels, all);
                pixel += 1;
            }
        }
    }
}
