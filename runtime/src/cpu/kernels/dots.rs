//! Dot products of bytes in 32 bits, by each kind of instruction: tiles of a few rows by a panel of columns.
//!
//! A panel, of two vectors' columns or of one, is `[depth][columns][each]`, where `each` neighbours along the depth are
//! what one instruction takes: four bytes for VNNI's dot products, two words for `pmaddwd` and for plain Rust.
//! `pmaddubsw` is not used: its sums of two products saturate.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::byte_ends::x86::Columns;
use super::byte_ends::{ByteEnds, BytePlaces};
use super::isa::{Isa, Level};

/// Which instructions multiply: one that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dots(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Portable,
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

impl Dots {
    /// Returns the best for a level and this processor.
    pub fn of(isa: Isa) -> Dots {
        Dots::all(isa).last().unwrap_or(Dots(Kind::Portable))
    }

    /// Returns all for a level and this processor, slowest first.
    pub fn all(isa: Isa) -> impl Iterator<Item = Dots> {
        let mut kinds = vec![Kind::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if isa.level() >= Level::Avx2 {
                kinds.push(Kind::Avx2);
            }
            if isa.level() >= Level::Avx2 && is_x86_feature_detected!("avxvnni") {
                kinds.push(Kind::AvxVnni);
            }
            if isa.level() >= Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
                kinds.push(Kind::Avx512Vnni);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (isa, Level::Portable);
        kinds.into_iter().map(Dots)
    }

    /// Whether A and B are bytes, four at a time; else words, two at a time.
    pub(super) fn takes_bytes(self) -> bool {
        matches!(self.0, Kind::AvxVnni | Kind::Avx512Vnni)
    }

    /// Whether AVX-512's instructions multiply.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self.0, Kind::Avx512Vnni)
    }

    /// Elements along K that one instruction takes of a row.
    pub(super) fn each(self) -> usize {
        if self.takes_bytes() { 4 } else { 2 }
    }

    /// Columns of a panel: two vectors.
    pub(crate) fn columns(self) -> usize {
        match self.0 {
            Kind::Portable => 8,
            Kind::Avx2 | Kind::AvxVnni => 16,
            Kind::Avx512Vnni => 32,
        }
    }

    /// Rows of a tile.
    pub(super) fn rows(self) -> usize {
        match self.0 {
            Kind::Portable => 4,
            Kind::Avx2 | Kind::AvxVnni => 6,
            Kind::Avx512Vnni => 12,
        }
    }

    /// Bytes of a row of A of `k` elements as it is multiplied.
    pub(super) fn row_bytes(self, k: usize) -> usize {
        k.div_ceil(self.each()) * 4
    }
}

/// Rows of A as they are multiplied, `step` bytes apart: of each, `depth` times four bytes.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub from: *const u8,
    pub step: usize,
    pub depth: usize,
}

/// One kind of dot product: `LANES` sums at a time.
trait Dot {
    type V: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn load(p: *const u8) -> Self::V;
    /// Four bytes of A in every lane.
    unsafe fn splat(p: *const u8) -> Self::V;
    unsafe fn dot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn store(p: *mut i32, v: Self::V);
}

/// What the sums of a tile begin with, and where they go.
trait End<D: Dot> {
    unsafe fn start<const V: usize>(&self) -> [D::V; V];
    unsafe fn finish<const R: usize, const V: usize>(&self, sums: &[[D::V; V]; R]);
}

/// Sums are stored as they are, rows so many apart.
struct Stored(*mut i32, usize);

impl<D: Dot> End<D> for Stored {
    #[inline(always)]
    unsafe fn start<const V: usize>(&self) -> [D::V; V] {
        // SAFETY: the kind's instructions are there.
        [unsafe { D::zero() }; V]
    }
    #[inline(always)]
    unsafe fn finish<const R: usize, const V: usize>(&self, sums: &[[D::V; V]; R]) {
        // One row after another: the end of one may be written over by the next.
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: the caller's contract: `R` rows of C.
                unsafe { D::store(self.0.add(row * self.1 + v * D::LANES), *sum) }
            }
        }
    }
}

/// Sums of `R` rows by a panel of `V` vectors' columns.
#[inline(always)]
unsafe fn tile_body<D: Dot, const R: usize, const V: usize>(a: Left, b: *const u8, end: impl End<D>) {
    // SAFETY: the caller's contract: `R` rows of A, a panel as deep, places for what the end stores.
    unsafe {
        let mut sums = [end.start::<V>(); R];
        let step = 4 * V * D::LANES;
        for group in 0..a.depth {
            let from = b.add(group * step);
            let mut columns = [D::zero(); V];
            for (v, columns) in columns.iter_mut().enumerate() {
                *columns = D::load(from.add(4 * v * D::LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let element = D::splat(a.from.add(row * a.step + group * 4));
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = D::dot(*sum, element, columns);
                }
            }
        }
        end.finish(&sums);
    }
}

/// Multiplies with as many rows and vectors of columns as there are.
macro_rules! by_rows {
    ([$rows:expr, $vectors:expr], $dot:ty, $args:tt, $($count:literal)+) => {
        match ($rows, $vectors) {
            $(
                ($count, 1) => tile_body::<$dot, $count, 1>$args,
                ($count, _) => tile_body::<$dot, $count, 2>$args,
            )+
            _ => {}
        }
    };
}

/// Multiplies rows by a panel of one or two vectors' columns. Rows of sums are written in order, each as long as the
/// panel is wide.
///
/// # Safety
/// `rows` rows of A, a panel of B as deep, and `rows` rows of C, `ldc` apart; no more rows than the kind takes.
pub(super) unsafe fn dot_tile(dots: Dots, size: [usize; 2], a: Left, b: *const u8, c: *mut i32, ldc: usize) {
    let [rows, vectors] = size;
    // SAFETY: the caller's contract; a kind is only made for a processor that has its instructions.
    unsafe {
        match dots.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => x86::tile_512(size, a, b, c, ldc),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => x86::tile_vnni(size, a, b, c, ldc),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::tile_256(size, a, b, c, ldc),
            _ => by_rows!([rows, vectors], Plain, (a, b, Stored(c, ldc)), 1 2 3 4),
        }
    }
}

/// Multiplies as [`dot_tile`] does where the kind [is wide](Dots::is_wide); sums become bytes. `places` are those of
/// the tile, whose columns are `cols` of the ends'.
///
/// # Safety
/// As for [`dot_tile`]; rows and columns have places.
pub(super) unsafe fn dot_bytes(
    size: [usize; 2],
    a: Left,
    b: *const u8,
    ends: &ByteEnds,
    places: BytePlaces,
    cols: Range<usize>,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract.
    unsafe {
        let columns = Columns {
            ends,
            places,
            first: cols.start,
            lanes: cols.len(),
        };
        x86::bytes_512(size, a, b, columns)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (size, a.from, b, ends, places, cols);
}

/// Pairs of words in plain Rust.
struct Plain;

impl Dot for Plain {
    type V = [i32; 4];
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> [i32; 4] {
        // SAFETY: the caller's contract: 16 bytes.
        unsafe { p.cast::<[i32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const u8) -> [i32; 4] {
        // SAFETY: the caller's contract: 4 bytes.
        [unsafe { p.cast::<i32>().read_unaligned() }; 4]
    }
    #[inline(always)]
    unsafe fn dot(sum: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let low = |v: i32| i32::from(v as i16);
        let high = |v: i32| v >> 16;
        std::array::from_fn(|i| {
            sum[i]
                .wrapping_add(low(a[i]).wrapping_mul(low(b[i])))
                .wrapping_add(high(a[i]).wrapping_mul(high(b[i])))
        })
    }
    #[inline(always)]
    unsafe fn store(p: *mut i32, v: [i32; 4]) {
        // SAFETY: the caller's contract: four sums.
        unsafe { p.cast::<[i32; 4]>().write_unaligned(v) }
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is one intrinsic under the contract of the trait"
)]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Columns, Dot, End, Left, Stored, tile_body};

    /// Pairs of words, 8 sums.
    struct Words;
    /// Quadruples of bytes, 8 sums.
    struct Bytes;
    /// Quadruples of bytes, 16 sums.
    struct WideBytes;

    macro_rules! in_256 {
        ($name:ty, $sum:ident, $a:ident, $b:ident => $dot:expr) => {
            impl Dot for $name {
                type V = __m256i;
                const LANES: usize = 8;
                #[inline(always)]
                unsafe fn zero() -> __m256i {
                    _mm256_setzero_si256()
                }
                #[inline(always)]
                unsafe fn load(p: *const u8) -> __m256i {
                    _mm256_loadu_si256(p.cast())
                }
                #[inline(always)]
                unsafe fn splat(p: *const u8) -> __m256i {
                    _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
                }
                #[inline(always)]
                unsafe fn dot($sum: __m256i, $a: __m256i, $b: __m256i) -> __m256i {
                    $dot
                }
                #[inline(always)]
                unsafe fn store(p: *mut i32, v: __m256i) {
                    _mm256_storeu_si256(p.cast(), v)
                }
            }
        };
    }
    in_256!(Words, sum, a, b => _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)));
    in_256!(Bytes, sum, a, b => _mm256_dpbusd_avx_epi32(sum, a, b));

    impl Dot for WideBytes {
        type V = __m512i;
        const LANES: usize = 16;
        #[inline(always)]
        unsafe fn zero() -> __m512i {
            _mm512_setzero_si512()
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m512i {
            _mm512_loadu_si512(p.cast())
        }
        #[inline(always)]
        unsafe fn splat(p: *const u8) -> __m512i {
            _mm512_set1_epi32(p.cast::<i32>().read_unaligned())
        }
        #[inline(always)]
        unsafe fn dot(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sum, a, b)
        }
        #[inline(always)]
        unsafe fn store(p: *mut i32, v: __m512i) {
            _mm512_storeu_si512(p.cast(), v)
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_256([rows, vectors]: [usize; 2], a: Left, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!([rows, vectors], Words, (a, b, Stored(c, ldc)), 1 2 3 4 5 6)
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn tile_vnni([rows, vectors]: [usize; 2], a: Left, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!([rows, vectors], Bytes, (a, b, Stored(c, ldc)), 1 2 3 4 5 6)
    }

    impl End<WideBytes> for Columns<'_> {
        #[inline(always)]
        unsafe fn start<const V: usize>(&self) -> [__m512i; V] {
            let mut start = [_mm512_setzero_si512(); V];
            for (v, start) in start.iter_mut().enumerate() {
                *start = Columns::start(self, v);
            }
            start
        }
        #[inline(always)]
        unsafe fn finish<const R: usize, const V: usize>(&self, sums: &[[__m512i; V]; R]) {
            Columns::finish(self, sums)
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    pub(super) unsafe fn bytes_512([rows, vectors]: [usize; 2], a: Left, b: *const u8, end: Columns<'_>) {
        by_rows!([rows, vectors], WideBytes, (a, b, end), 1 2 3 4 5 6 7 8 9 10 11 12)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn tile_512([rows, vectors]: [usize; 2], a: Left, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!([rows, vectors], WideBytes, (a, b, Stored(c, ldc)), 1 2 3 4 5 6 7 8 9 10 11 12)
    }
}
