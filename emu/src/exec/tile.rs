//! The arithmetic of matrix instructions: elements leave the lanes' registers for tiles of numbers, the tiles are
//! multiplied, and sums go back.
//!
//! Numbers are f64, which holds every product of two elements of at most 16 bits exactly. An operand becomes an
//! array with element e of lane l at 64·e + l. In every layout that the hardware has, the lanes of one k (of A and
//! B) or of one row of sums lie side by side, so that a table of where those runs begin, made once when the
//! instruction is built, is all that tells the instructions apart.

use super::float::{Small, bf16_to_f32, f16_to_f32, f32_to_bf16, f64_to_f16, f64_to_f32_odd, flush32};
use super::operand::Src;
use super::wave::Wave;
use std::cell::RefCell;

/// The type of a matrix element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F64,
    F32,
    /// f32 rounded to 19 bits on the way in.
    Xf32,
    F16,
    Bf16,
    I32,
    /// Integers of this many bits, signed or not.
    Int(u32, bool),
    Float(Small),
}

impl Element {
    pub fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::F32 | Element::Xf32 | Element::I32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::Int(bits, _) => bits,
            Element::Float(small) => 1 + small.exponent_bits + small.mantissa_bits,
        }
    }

    #[inline(always)]
    pub fn value(self, bits: u64, flush: bool) -> f64 {
        match self {
            Element::F64 => f64::from_bits(bits),
            Element::F32 => f64::from(f32::from_bits(bits as u32)),
            Element::Xf32 => f64::from(f32::from_bits(
                (bits as u32).wrapping_add(0x0fff + (bits as u32 >> 13 & 1)) & !0x1fff,
            )),
            Element::F16 if flush && bits & 0x7c00 == 0 => 0.0,
            Element::F16 => f64::from(f16_to_f32(bits as u32)),
            Element::Bf16 if flush && bits & 0x7f80 == 0 => 0.0,
            Element::Bf16 => f64::from(bf16_to_f32(bits as u32)),
            Element::I32 => f64::from(bits as u32 as i32),
            Element::Int(width, signed) => {
                let shift = 32 - width;
                let value = bits as u32;
                if signed {
                    f64::from((value << shift) as i32 >> shift)
                } else {
                    f64::from(value << shift >> shift)
                }
            }
            Element::Float(small) => f64::from(small.decode(bits as u32)),
        }
    }
}

/// Reads element `index` of a lane's packed registers.
fn element_bits(w: &Wave, first: u16, lane: usize, index: usize, bits: u32) -> u64 {
    let start = index * bits as usize;
    let (word, shift) = (start / 32, start % 32);
    let at = |word: usize| u64::from(w.v[first as usize + word][lane]);
    let low = at(word) >> shift;
    let value = if shift + bits as usize > 32 {
        low | at(word + 1) << (32 - shift)
    } else {
        low
    };
    if bits == 64 {
        value
    } else {
        value & ((1u64 << bits) - 1)
    }
}

/// One scale operand of the block-scaled instructions: a byte of exponent for each lane.
pub(super) struct Scale {
    pub src: Src,
    pub shift: u32,
}

impl Scale {
    fn value(&self, w: &Wave, lane: usize) -> f64 {
        let word = match self.src {
            Src::V(index) => w.v[index as usize][lane],
            other => other.uniform(w).unwrap_or(127),
        };
        match word >> self.shift & 0xff {
            255 => f64::NAN,
            exponent => super::float::exp2d(exponent as i32 - 127),
        }
    }
}

/// Operand A or B.
pub(super) struct Side {
    pub first: u16,
    pub element: Element,
    /// Elements in a lane.
    pub per_lane: usize,
    /// Whether even and odd elements are negated.
    pub negate: [bool; 2],
    /// The lane whose data each lane uses, where it is not its own.
    pub from: Option<[u8; 64]>,
    pub scale: Option<Scale>,
    /// Whether denormals of 16 bits read as zero.
    pub flush: bool,
    /// The values of all bit patterns of a format of at most eight bits.
    values: Vec<f64>,
}

impl Side {
    pub fn new(first: u16, element: Element, per_lane: usize) -> Side {
        let values = if element.bits() <= 8 {
            (0..1u64 << element.bits())
                .map(|bits| element.value(bits, false))
                .collect()
        } else {
            Vec::new()
        };
        Side {
            first,
            element,
            per_lane,
            negate: [false; 2],
            from: None,
            scale: None,
            flush: false,
            values,
        }
    }

    /// Element `e` of all lanes.
    #[inline(always)]
    fn decode(&self, w: &Wave, e: usize, out: &mut [f64; 64]) {
        let first = self.first as usize;
        match self.element {
            Element::F16 => {
                let (words, shift) = (&w.v[first + e / 2], 16 * (e % 2));
                for (value, word) in out.iter_mut().zip(words) {
                    *value = Element::F16.value(u64::from(word >> shift & 0xffff), self.flush);
                }
            }
            Element::Bf16 => {
                let (words, shift) = (&w.v[first + e / 2], 16 * (e % 2));
                for (value, word) in out.iter_mut().zip(words) {
                    *value = Element::Bf16.value(u64::from(word >> shift & 0xffff), self.flush);
                }
            }
            Element::F32 => {
                for (value, word) in out.iter_mut().zip(&w.v[first + e]) {
                    *value = f64::from(f32::from_bits(*word));
                }
            }
            Element::F64 => {
                let (low, high) = (&w.v[first + 2 * e], &w.v[first + 2 * e + 1]);
                for (value, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
                    *value = f64::from_bits(u64::from(*low) | u64::from(*high) << 32);
                }
            }
            Element::Int(8, true) => {
                let (words, shift) = (&w.v[first + e / 4], 8 * (e % 4));
                for (value, word) in out.iter_mut().zip(words) {
                    *value = f64::from((word >> shift) as i8);
                }
            }
            element if !self.values.is_empty() => {
                for (lane, value) in out.iter_mut().enumerate() {
                    *value = self.values[element_bits(w, self.first, lane, e, element.bits()) as usize];
                }
            }
            element => {
                for (lane, value) in out.iter_mut().enumerate() {
                    *value = element.value(element_bits(w, self.first, lane, e, element.bits()), self.flush);
                }
            }
        }
    }

    #[inline(always)]
    fn load_body(&self, w: &Wave, out: &mut [f64]) {
        for (e, values) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            self.decode(w, e, values);
            if let Some(from) = &self.from {
                let own = *values;
                for (value, lane) in values.iter_mut().zip(from) {
                    *value = own[*lane as usize];
                }
            }
            if let Some(scale) = &self.scale {
                for (lane, value) in values.iter_mut().enumerate() {
                    *value *= scale.value(w, lane);
                }
            }
            if self.negate[e % 2] {
                values.iter_mut().for_each(|value| *value = -*value);
            }
        }
    }
}

/// Operands C and D.
pub(super) struct Sums {
    pub d: u16,
    /// C's first register, or the constant that all elements are.
    pub c: Result<u16, u64>,
    pub element: Element,
    pub lanes: usize,
    /// Elements in a lane.
    pub per_lane: usize,
    /// For results of 16 bits: each element's register and shift.
    pub halves: Vec<(u16, u32)>,
    pub negate: bool,
    pub absolute: bool,
    /// Whether integers saturate.
    pub clamp: bool,
    /// Whether f32 denormals become zero.
    pub flush: bool,
}

impl Sums {
    pub fn new(d: u16, c: Result<u16, u64>, element: Element, per_lane: usize, lanes: usize) -> Sums {
        Sums {
            d,
            c,
            element,
            lanes,
            per_lane,
            halves: (0..per_lane).map(|e| (e as u16 / 2, 16 * (e as u32 % 2))).collect(),
            negate: false,
            absolute: false,
            clamp: false,
            flush: false,
        }
    }

    #[inline(always)]
    fn load_body(&self, w: &Wave, out: &mut [f64]) {
        let element = self.element;
        for (e, values) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            match (self.c, element) {
                (Err(constant), _) => values.fill(element.value(constant, false)),
                (Ok(first), Element::F32) => {
                    for (value, word) in values.iter_mut().zip(&w.v[first as usize + e]) {
                        *value = f64::from(f32::from_bits(*word));
                    }
                }
                (Ok(first), Element::I32) => {
                    for (value, word) in values.iter_mut().zip(&w.v[first as usize + e]) {
                        *value = f64::from(*word as i32);
                    }
                }
                (Ok(first), Element::F64) => {
                    for (lane, value) in values.iter_mut().enumerate() {
                        *value = f64::from_bits(element_bits(w, first, lane, e, 64));
                    }
                }
                (Ok(first), _) => {
                    let (register, shift) = self.halves[e];
                    for (value, word) in values.iter_mut().zip(&w.v[usize::from(first + register)]) {
                        *value = element.value(u64::from(word >> shift & 0xffff), false);
                    }
                }
            }
            if self.absolute {
                values.iter_mut().for_each(|value| *value = value.abs());
            }
            if self.negate {
                values.iter_mut().for_each(|value| *value = -*value);
            }
        }
    }

    #[inline(always)]
    fn store_body(&self, w: &mut Wave, sums: &[f64]) {
        let d = self.d as usize;
        for (e, values) in sums.as_chunks::<64>().0.iter().enumerate() {
            let values = &values[..self.lanes];
            match self.element {
                Element::F64 => {
                    for (lane, value) in values.iter().enumerate() {
                        let bits = value.to_bits();
                        w.v[d + 2 * e][lane] = bits as u32;
                        w.v[d + 2 * e + 1][lane] = (bits >> 32) as u32;
                    }
                }
                Element::F32 if self.flush => {
                    for (slot, value) in w.v[d + e].iter_mut().zip(values) {
                        *slot = flush32(*value as f32).to_bits();
                    }
                }
                Element::F32 => {
                    for (slot, value) in w.v[d + e].iter_mut().zip(values) {
                        *slot = (*value as f32).to_bits();
                    }
                }
                Element::F16 | Element::Bf16 => {
                    let (register, shift) = self.halves[e];
                    for (slot, value) in w.v[d + usize::from(register)].iter_mut().zip(values) {
                        let bits = if self.element == Element::F16 {
                            f64_to_f16(*value)
                        } else {
                            f32_to_bf16(f64_to_f32_odd(*value))
                        };
                        *slot = *slot & !(0xffff << shift) | bits << shift;
                    }
                }
                _ => {
                    for (slot, value) in w.v[d + e].iter_mut().zip(values) {
                        let value = *value as i64;
                        *slot = if self.clamp {
                            value.clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32
                        } else {
                            value as u32
                        };
                    }
                }
            }
        }
    }
}

/// The sizes of a product: `blocks` products of m×k by k×n.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub blocks: usize,
}

/// How the sums of a tile round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Products of narrow types are exact in f64; one rounding at the end.
    Exact,
    /// A chain of fused multiply-adds in f32.
    Single,
    /// A chain of fused multiply-adds in f64.
    Double,
}

/// Where the runs of an instruction's operands begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    /// Of A's column for each k of each block (of a sparse A: for each stored one).
    pub a: Vec<u32>,
    /// Of B's row for each k of each block.
    pub b: Vec<u32>,
    /// Of each row of sums.
    pub c: Vec<u32>,
}

/// Which elements of B's columns the elements of A's rows meet.
pub(super) enum Meet<'a> {
    /// Each with its own.
    All,
    /// Those of the k that the list has for each stored element of a row, row by row.
    Chosen(&'a [u32]),
}

/// The run of N values that begins at `start`.
#[inline(always)]
fn run<const N: usize, T>(values: &[T], start: u32) -> Option<&[T; N]> {
    values.get(start as usize..)?.first_chunk()
}

/// c[block][i][j] += Σ_k a[block][i][k]·b[block][k][j], R rows at a time, whose sums stay in registers.
#[inline(always)]
fn dense<const N: usize, const R: usize, T: Copy>(
    tile: Tile,
    runs: &Runs,
    (a, b, c): (&[T], &[T], &mut [T]),
    fma: impl Fn(T, T, T) -> T,
) -> Option<()> {
    let per_block = runs.a.chunks_exact(tile.k).zip(runs.b.chunks_exact(tile.k));
    for ((a_runs, b_runs), c_runs) in per_block.zip(runs.c.chunks_exact(tile.m)) {
        for (i, c_runs) in c_runs.as_chunks::<R>().0.iter().enumerate() {
            let mut sums: [[T; N]; R] = [*run(c, c_runs[0])?; R];
            for (sums, start) in sums.iter_mut().zip(c_runs) {
                *sums = *run(c, *start)?;
            }
            for (a_run, b_run) in a_runs.iter().zip(b_runs) {
                let (x, y): (&[T; R], &[T; N]) = (run(a, a_run + (i * R) as u32)?, run(b, *b_run)?);
                for (sums, x) in sums.iter_mut().zip(x) {
                    for (sum, y) in sums.iter_mut().zip(y) {
                        *sum = fma(*x, *y, *sum);
                    }
                }
            }
            for (sums, start) in sums.iter().zip(c_runs) {
                c[*start as usize..][..N].copy_from_slice(sums);
            }
        }
    }
    Some(())
}

/// The same with AVX's registers, which the compiler does not find by itself in a loop of this shape.
#[cfg(target_arch = "x86_64")]
macro_rules! dense_wide {
    ($name:ident, $number:ty, $vector:ty, $lanes:literal, $load:ident, $store:ident, $splat:ident, $fma:ident) => {
        #[target_feature(enable = "avx2,fma")]
        #[inline]
        fn $name<const N: usize, const V: usize, const R: usize>(
            tile: Tile,
            runs: &Runs,
            (a, b, c): (&[$number], &[$number], &mut [$number]),
        ) -> Option<()> {
            use std::arch::x86_64::{$fma, $load, $splat, $store};
            const { assert!(N == V * $lanes) };
            let per_block = runs.a.chunks_exact(tile.k).zip(runs.b.chunks_exact(tile.k));
            for ((a_runs, b_runs), c_runs) in per_block.zip(runs.c.chunks_exact(tile.m)) {
                for (i, c_runs) in c_runs.as_chunks::<R>().0.iter().enumerate() {
                    let mut sums: [[$vector; V]; R] = [[$splat(0.0); V]; R];
                    for (sums, start) in sums.iter_mut().zip(c_runs) {
                        let row: &[$number; N] = run(c, *start)?;
                        for (v, sum) in sums.iter_mut().enumerate() {
                            // SAFETY: v counts the vectors of a row of N numbers.
                            *sum = unsafe { $load(row.as_ptr().add(v * $lanes)) };
                        }
                    }
                    for (a_run, b_run) in a_runs.iter().zip(b_runs) {
                        let (x, row): (&[$number; R], &[$number; N]) =
                            (run(a, a_run + (i * R) as u32)?, run(b, *b_run)?);
                        for v in 0..V {
                            // SAFETY: v counts the vectors of a row of N numbers.
                            let y = unsafe { $load(row.as_ptr().add(v * $lanes)) };
                            for r in 0..R {
                                sums[r][v] = $fma($splat(x[r]), y, sums[r][v]);
                            }
                        }
                    }
                    for (sums, start) in sums.iter().zip(c_runs) {
                        let row = c.get_mut(*start as usize..)?.first_chunk_mut::<N>()?;
                        for (v, sum) in sums.iter().enumerate() {
                            // SAFETY: v counts the vectors of a row of N numbers.
                            unsafe { $store(row.as_mut_ptr().add(v * $lanes), *sum) };
                        }
                    }
                }
            }
            Some(())
        }
    };
}

#[cfg(target_arch = "x86_64")]
dense_wide!(
    dense_double,
    f64,
    std::arch::x86_64::__m256d,
    4,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd
);
#[cfg(target_arch = "x86_64")]
dense_wide!(
    dense_single,
    f32,
    std::arch::x86_64::__m256,
    8,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps
);

#[inline(always)]
fn chosen<const N: usize>(
    runs: &Runs,
    list: &[u32],
    (a, b, c): (&[f64], &[f64], &mut [f64]),
    fma: impl Fn(f64, f64, f64) -> f64,
) -> Option<()> {
    for (i, (start, list)) in runs.c.iter().zip(list.chunks_exact(runs.a.len())).enumerate() {
        let sums = c.get_mut(*start as usize..)?.first_chunk_mut::<N>()?;
        for (a_run, kk) in runs.a.iter().zip(list) {
            let x = a.get(*a_run as usize + i)?;
            let row: &[f64; N] = run(b, *runs.b.get(*kk as usize)?)?;
            for (sum, y) in sums.iter_mut().zip(row) {
                *sum = fma(*x, *y, *sum);
            }
        }
    }
    Some(())
}

/// A matrix instruction, built.
pub(super) struct Product {
    pub tile: Tile,
    pub a: Side,
    pub b: Side,
    pub sums: Sums,
    pub runs: Runs,
    pub rounding: Rounding,
}

/// The operands of one execution, kept by the thread.
#[derive(Default)]
struct Scratch {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    /// The same in f32.
    single: [Vec<f32>; 3],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Product {
    #[inline(always)]
    fn body<const WIDE: bool>(
        &self,
        w: &mut Wave,
        meet: &Meet<'_>,
        scratch: &mut Scratch,
        exact: impl Fn(f64, f64, f64) -> f64,
    ) -> Option<()> {
        let Scratch { a, b, c, single } = scratch;
        a.resize(64 * self.a.per_lane, 0.0);
        b.resize(64 * self.b.per_lane, 0.0);
        c.resize(64 * self.sums.per_lane, 0.0);
        self.a.load_body(w, a);
        self.b.load_body(w, b);
        self.sums.load_body(w, c);
        let (tile, runs) = (self.tile, &self.runs);
        match (meet, self.rounding) {
            (Meet::Chosen(list), _) if tile.n == 16 => chosen::<16>(runs, list, (a, b, c), exact)?,
            (Meet::Chosen(list), _) => chosen::<32>(runs, list, (a, b, c), exact)?,
            (Meet::All, Rounding::Single) => {
                for (narrow, values) in single.iter_mut().zip([&*a, b, c]) {
                    narrow.clear();
                    narrow.extend(values.iter().map(|value| *value as f32));
                }
                let [x, y, sums] = single;
                let operands = (x.as_slice(), y.as_slice(), sums.as_mut_slice());
                match tile.n {
                    4 => dense::<4, 4, f32>(tile, runs, operands, f32::mul_add)?,
                    // SAFETY: the features were found on this processor where WIDE.
                    #[cfg(target_arch = "x86_64")]
                    16 if WIDE => unsafe { dense_single::<16, 2, 4>(tile, runs, operands)? },
                    // SAFETY: the same.
                    #[cfg(target_arch = "x86_64")]
                    32 if WIDE => unsafe { dense_single::<32, 4, 2>(tile, runs, operands)? },
                    16 => dense::<16, 4, f32>(tile, runs, operands, f32::mul_add)?,
                    _ => dense::<32, 2, f32>(tile, runs, operands, f32::mul_add)?,
                }
                for (sum, value) in c.iter_mut().zip(sums) {
                    *sum = f64::from(*value);
                }
            }
            (Meet::All, rounding) => {
                let operands = (a.as_slice(), b.as_slice(), c.as_mut_slice());
                match (tile.n, rounding) {
                    // Products of narrow elements are exact, so that fusing changes nothing.
                    // SAFETY: the features were found on this processor where WIDE.
                    #[cfg(target_arch = "x86_64")]
                    (4, _) if WIDE => unsafe { dense_double::<4, 1, 4>(tile, runs, operands)? },
                    // SAFETY: the same.
                    #[cfg(target_arch = "x86_64")]
                    (16, _) if WIDE => unsafe { dense_double::<16, 4, 2>(tile, runs, operands)? },
                    // SAFETY: the same.
                    #[cfg(target_arch = "x86_64")]
                    (32, _) if WIDE => unsafe { dense_double::<32, 8, 1>(tile, runs, operands)? },
                    (4, Rounding::Double) => dense::<4, 4, f64>(tile, runs, operands, f64::mul_add)?,
                    (_, Rounding::Double) => dense::<16, 2, f64>(tile, runs, operands, f64::mul_add)?,
                    (4, _) => dense::<4, 4, f64>(tile, runs, operands, exact)?,
                    (16, _) => dense::<16, 2, f64>(tile, runs, operands, exact)?,
                    _ => dense::<32, 1, f64>(tile, runs, operands, exact)?,
                }
            }
        }
        self.sums.store_body(w, c);
        Some(())
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn wide(&self, w: &mut Wave, meet: &Meet<'_>, scratch: &mut Scratch) -> Option<()> {
        self.body::<true>(w, meet, scratch, f64::mul_add)
    }

    /// Executes the instruction on a wave; None where a run lies outside its operand, which no layout has.
    pub fn run(&self, w: &mut Wave, meet: &Meet<'_>) -> Option<()> {
        SCRATCH.with_borrow_mut(|scratch| {
            #[cfg(target_arch = "x86_64")]
            if super::simd::wide() {
                // SAFETY: the features were found on this processor.
                return unsafe { self.wide(w, meet, scratch) };
            }
            self.body::<false>(w, meet, scratch, |x, y, sum| sum + x * y)
        })
    }
}
