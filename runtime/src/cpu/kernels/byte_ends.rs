//! Sums that become bytes in the registers in which they were summed, by AVX-512.
//!
//! A quotient is computed in fixed point, 16 bits before the point and 16 behind it, with a half added: the bits before
//! the point are the rounded number, those behind it say how near to a tie it is. Rows with a number that is too near
//! one, or too large for 16 bits, are computed again as their stages are written. The order of operations is that of
//! [`super::requantise`].

use super::requantise::{ROUNDINGS, Requantise, is_small, margin};
use super::requantised_bytes::{Again, Ending};
use super::stages::Stage;

/// A number in fixed point.
const ONE: f32 = 65536.0;

/// The largest margin beside ties: with a larger one too many rows are computed twice.
const MOST_MARGIN: f32 = 1e-3;

/// Columns behind the last that may be read.
const BEHIND: usize = 64;

/// How sums become bytes: each by numbers of its column.
#[derive(Debug)]
pub struct ByteEnds {
    /// What sums begin with.
    start: Vec<i32>,
    /// What they are multiplied by and what is then added for the first quotient: in fixed point if it is the last.
    scale: Vec<f32>,
    bias: Vec<f32>,
    /// The same as the stages do it.
    terms: Vec<[f32; 2]>,
    first: Quotient,
    again: Option<Second>,
    /// What whole numbers are cut to.
    cut: [i16; 2],
    /// Numbers are sure whose bits behind the point are no less.
    near: u16,
}

/// How quotients are rounded and cut.
#[derive(Clone, Copy, Debug)]
struct Quotient {
    /// Whether what is below 0 is 0 before it is divided.
    positive: bool,
    by: f32,
    /// What is added to the rounded quotient, and what the sum is cut to.
    zero: f32,
    range: [f32; 2],
    /// How far from a tie a quotient is that is surely rounded as the stages round it.
    margin: f32,
}

/// What a number that was rounded is then.
#[derive(Clone, Copy, Debug)]
struct Second {
    /// What is subtracted from it, and what the difference is multiplied by.
    less: f32,
    scale: f32,
    added: Option<Added>,
    quotient: Quotient,
}

/// Bytes of the sums' shape that are added as `(x − zero) · scale`, or what is positive of it.
#[derive(Clone, Copy, Debug)]
struct Added {
    signed: bool,
    zero: i32,
    scale: f32,
    positive: bool,
}

/// Where bytes go, and where those are that are added to them: the first of some rows and columns, and how far apart
/// rows are.
#[derive(Clone, Copy, Debug)]
pub struct BytePlaces {
    pub to: *mut u8,
    pub row: isize,
    pub added: *const u8,
    pub added_row: isize,
}

/// How a product's sums become bytes.
pub struct BytesOut<'a> {
    pub ends: &'a ByteEnds,
    /// Where an entry's bytes go, and the number of its first column.
    pub entry: &'a (dyn Fn(usize) -> (BytePlaces, usize) + Sync),
}

impl BytePlaces {
    /// None.
    pub(super) const NONE: BytePlaces = BytePlaces {
        to: std::ptr::null_mut(),
        row: 0,
        added: std::ptr::null(),
        added_row: 0,
    };

    /// Those of another first row and column.
    #[inline(always)]
    pub(super) fn at(self, row: usize, col: usize) -> BytePlaces {
        let place = |step: isize| row as isize * step + col as isize;
        BytePlaces {
            to: self.to.wrapping_offset(place(self.row)),
            added: self.added.wrapping_offset(place(self.added_row)),
            ..self
        }
    }
}

impl Quotient {
    /// That of sums; `bias` is the largest of what is added to them over the divisor, `less` what is subtracted from
    /// the quotient.
    fn first(form: &Requantise<'_>, bias: f32, less: f32) -> Option<Quotient> {
        let range = form.range.map(|end| end + form.zero);
        // One rounding more than `margin` counts: a half is added to what the bias is.
        let bias = bias + 2.0 * (form.zero.abs() + less.abs()) + 1.0;
        let margin = margin(range, bias) + ROUNDINGS * bias;
        (margin < MOST_MARGIN).then_some(Quotient {
            positive: form.positive,
            by: form.by,
            zero: form.zero,
            range,
            margin,
        })
    }

    /// What is added to a quotient in fixed point so that the bits before the point are the rounded number.
    fn more(&self) -> f32 {
        self.zero + (0.5 + self.units() / ONE)
    }

    /// The margin in units of fixed-point numbers, which are rounded by half of one.
    fn units(&self) -> f32 {
        (self.margin * ONE + 0.5).floor() + 1.0
    }

    /// What whole numbers are cut to in the end.
    fn cut(&self) -> [i16; 2] {
        let low = match self.positive {
            true => self.range[0].max(self.zero).min(self.range[1]),
            false => self.range[0],
        };
        [low as i16, self.range[1] as i16]
    }
}

impl Second {
    fn of(again: &Again, form: &Requantise<'_>) -> Option<Second> {
        let added = match &again.added {
            Some(added) if !is_small(added.zero) => return None,
            Some(added) => Some(Added {
                signed: added.signed,
                zero: added.zero as i32,
                scale: added.scale,
                positive: added.positive,
            }),
            None => None,
        };
        let rounded = &again.rounded;
        Some(Second {
            less: form.zero - again.moved,
            scale: again.scale,
            added,
            quotient: Quotient {
                positive: rounded.positive,
                by: rounded.by.unwrap_or(1.0),
                zero: rounded.zero,
                range: rounded.range,
                margin: margin(rounded.range, 2.0 * rounded.zero.abs() + 1.0),
            },
        })
    }
}

impl ByteEnds {
    /// Reads how the sums of so many columns end: `None` where it is not as bytes, by numbers of columns. `start` says
    /// what is added to a column's sums.
    ///
    /// # Safety
    /// Stages' numbers of columns are there. Other places are not looked at.
    pub unsafe fn of(columns: usize, stages: &[Stage], start: impl Fn(usize) -> i32) -> Option<ByteEnds> {
        let form = Requantise::of(stages)?;
        let ending = Ending::of(&form)?;
        // SAFETY: the caller's contract.
        let terms: Vec<[f32; 2]> = (0..columns).map(|col| unsafe { form.terms(col) }).collect();
        // Comparisons with NaN are false; the largest number ignores it.
        if !terms
            .iter()
            .flatten()
            .all(|term| term.is_finite() && (term / form.by).abs() < 1e18)
        {
            return None;
        }
        let again = match ending.again() {
            Some(again) => Some(Second::of(again, &form)?),
            None => None,
        };
        let less = again.as_ref().map_or(0.0, |again| again.less);
        let most = terms
            .iter()
            .fold(0.0, |most: f32, [_, bias]| most.max((bias * form.inverse).abs()));
        let first = Quotient::first(&form, most, less)?;
        let [one, more] = match again {
            Some(_) => [1.0, form.zero - less],
            None => [ONE, first.more()],
        };
        let last = again.map_or(first, |again| again.quotient);
        let mut ends = ByteEnds {
            start: (0..columns).map(start).collect(),
            scale: terms.iter().map(|[scale, _]| scale * form.inverse * one).collect(),
            bias: terms
                .iter()
                .map(|[_, bias]| (bias * form.inverse + more) * one)
                .collect(),
            terms,
            first,
            again,
            cut: last.cut(),
            near: (2.0 * last.units()) as u16,
        };
        let wide = columns + BEHIND;
        ends.start.resize(wide, 0);
        ends.scale.resize(wide, 0.0);
        ends.bias.resize(wide, 0.0);
        ends.terms.resize(wide, [0.0; 2]);
        Some(ends)
    }

    /// Says whether rounded numbers go on, to be rounded again.
    pub fn goes_on(&self) -> bool {
        self.again.is_some()
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_op_in_unsafe_fn,
    reason = "vectors of one kind under the contract of `Columns::finish`"
)]
pub(super) mod x86 {
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    use super::super::simd::{Avx512, Simd};
    use super::{Added, ByteEnds, BytePlaces, ONE, Quotient};

    /// Rows of two vectors' columns, or of one's.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Columns<'a> {
        pub ends: &'a ByteEnds,
        /// Of the first row and column.
        pub places: BytePlaces,
        /// The first column's number, and how many there are.
        pub first: usize,
        pub lanes: usize,
    }

    /// What the numbers of two vectors go through, in registers.
    #[derive(Clone, Copy)]
    struct Factors {
        scale: [__m512; 2],
        bias: [__m512; 2],
        again: Again,
        cut: [__m512i; 2],
        near: __m512i,
        /// Columns of each.
        lanes: [__mmask16; 2],
    }

    /// What numbers that were rounded once go through.
    #[derive(Clone, Copy)]
    struct Again {
        range: [__m512; 2],
        /// Quotients are sure that are less far from whole numbers.
        limit: __m512,
        scale: __m512,
        /// To fixed point, and what is then added.
        by: __m512,
        more: __m512,
    }

    /// Rounds to the nearest whole number.
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

    /// Does the body for each row, spelled out: sums that are named by it stay in registers.
    macro_rules! for_each_row {
        ($rows:expr, |$row:ident| $body:expr) => {
            for_each_row!(@each $rows, $row, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
        };
        (@each $rows:expr, $row:ident, $body:expr, $($number:literal)+) => {
            $(
                if $number < $rows {
                    const $row: usize = $number;
                    $body;
                }
            )+
        };
    }

    impl Columns<'_> {
        /// What the sums of a vector's columns begin with.
        ///
        /// # Safety
        /// The processor has AVX-512; the vector's first column is one of the ends.
        #[inline(always)]
        pub(in super::super) unsafe fn start(&self, vector: usize) -> __m512i {
            _mm512_loadu_si512(self.ends.start.as_ptr().add(self.first + vector * 16).cast())
        }

        /// What the sums of a column begin with, what they are multiplied by and what is then added.
        pub(in super::super) fn numbers(&self, col: usize) -> (i32, f32, f32) {
            let (ends, col) = (self.ends, self.first + col);
            (ends.start[col], ends.scale[col], ends.bias[col])
        }

        /// What whole numbers are cut to, and what the bits behind the point of those that are sure are no less than.
        pub(in super::super) fn limits(&self) -> ([i16; 2], u16) {
            (self.ends.cut, self.ends.near)
        }

        /// The factors of both vectors; of one, its numbers twice.
        #[inline(always)]
        unsafe fn factors<const V: usize>(&self) -> Factors {
            let ends = self.ends;
            let (scale, bias) = (ends.scale.as_ptr().add(self.first), ends.bias.as_ptr().add(self.first));
            let last = (V - 1) * 16;
            let again = match &ends.again {
                None => {
                    let none = _mm512_setzero_ps();
                    Again {
                        range: [none; 2],
                        limit: none,
                        scale: none,
                        by: none,
                        more: none,
                    }
                }
                Some(second) => Again {
                    range: [
                        _mm512_set1_ps(ends.first.range[0] - second.less),
                        _mm512_set1_ps(ends.first.range[1] - second.less),
                    ],
                    limit: _mm512_set1_ps(0.5 - ends.first.margin),
                    scale: _mm512_set1_ps(second.scale),
                    by: _mm512_set1_ps(ONE / second.quotient.by),
                    more: _mm512_set1_ps(second.quotient.more() * ONE),
                },
            };
            let lanes = |v: usize| ((1u32 << self.lanes.saturating_sub(v * 16).min(16)) - 1) as u16;
            Factors {
                scale: [_mm512_loadu_ps(scale), _mm512_loadu_ps(scale.add(last))],
                bias: [_mm512_loadu_ps(bias), _mm512_loadu_ps(bias.add(last))],
                again,
                cut: [_mm512_set1_epi16(ends.cut[0]), _mm512_set1_epi16(ends.cut[1])],
                near: _mm512_set1_epi16(ends.near as i16),
                lanes: [lanes(0), lanes(V - 1)],
            }
        }

        /// Has rows of sums be bytes.
        ///
        /// # Safety
        /// As for [`Columns::start`]; the rows have places.
        #[inline(always)]
        pub(in super::super) unsafe fn finish<const R: usize, const V: usize>(&self, sums: &[[__m512i; V]; R]) {
            match &self.ends.again {
                None => self.finish_as::<R, V, false>(sums, None),
                Some(second) => self.finish_as::<R, V, true>(sums, second.added),
            }
        }

        #[inline(always)]
        unsafe fn finish_as<const R: usize, const V: usize, const AGAIN: bool>(
            &self,
            sums: &[[__m512i; V]; R],
            added: Option<Added>,
        ) {
            let by = self.factors::<V>();
            let mut kept = [[MaybeUninit::<__m512i>::uninit(); V]; R];
            let mut unsure = 0u32;
            for_each_row!(R, |ROW| if V == 2 || ROW.is_multiple_of(2) {
                // Two vectors: of one row, or of two.
                let last = if V == 2 || ROW + 1 == R { ROW } else { ROW + 1 };
                let pair = [sums[ROW][0], sums[last][V - 1]];
                let places = [self.places.at(ROW, 0), self.places.at(last, 16 * (V - 1))];
                let (bytes, near) = match AGAIN {
                    false => bytes_of(pair, &by),
                    true => bytes_of_again(pair, &by, added, [places[0].added, places[1].added]),
                };
                if near {
                    // What is added may lie where bytes go.
                    unsure |= 1 << ROW | 1 << last;
                    for v in 0..V {
                        kept[ROW][v].write(sums[ROW][v]);
                        kept[last][v].write(sums[last][v]);
                    }
                } else if V == 2 {
                    _mm256_mask_storeu_epi8(places[0].to.cast(), both(by.lanes), bytes);
                } else {
                    _mm_mask_storeu_epi8(places[0].to.cast(), by.lanes[0], _mm256_castsi256_si128(bytes));
                    if last > ROW {
                        let second = _mm256_extracti128_si256::<1>(bytes);
                        _mm_mask_storeu_epi8(places[1].to.cast(), by.lanes[1], second);
                    }
                }
            });
            if unsure != 0 {
                exactly(self, unsure, kept.as_ptr().cast(), V);
            }
        }
    }

    /// The lanes of two vectors.
    #[inline(always)]
    fn both(lanes: [__mmask16; 2]) -> __mmask32 {
        u32::from(lanes[1]) << 16 | u32::from(lanes[0])
    }

    /// Words of two vectors: the first, or the second, of each 32 bits.
    const fn words(first: i16) -> [i16; 32] {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = 2 * i as i16 + first;
            i += 1;
        }
        order
    }
    const BEHIND_THE_POINT: [i16; 32] = words(0);
    const BEFORE_THE_POINT: [i16; 32] = words(1);

    /// Bytes of two vectors in fixed point, and whether one is not sure.
    #[inline(always)]
    unsafe fn cut(fixed: [__m512i; 2], by: &Factors) -> (__m256i, bool) {
        let [before, behind] = [
            _mm512_loadu_si512(BEFORE_THE_POINT.as_ptr().cast()),
            _mm512_loadu_si512(BEHIND_THE_POINT.as_ptr().cast()),
        ];
        let number = _mm512_permutex2var_epi16(fixed[0], before, fixed[1]);
        let rest = _mm512_permutex2var_epi16(fixed[0], behind, fixed[1]);
        let number = _mm512_min_epi16(_mm512_max_epi16(number, by.cut[0]), by.cut[1]);
        let near = _mm512_mask_cmplt_epu16_mask(both(by.lanes), rest, by.near);
        (_mm512_cvtepi16_epi8(number), near != 0)
    }

    #[inline(always)]
    unsafe fn bytes_of(sums: [__m512i; 2], by: &Factors) -> (__m256i, bool) {
        let mut fixed = sums;
        for v in 0..2 {
            let quotient = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), by.scale[v], by.bias[v]);
            fixed[v] = _mm512_cvtps_epi32(quotient);
        }
        cut(fixed, by)
    }

    /// Bytes at `from` as integers, with no sign where they have none.
    #[inline(always)]
    unsafe fn integers(from: *const u8, lanes: __mmask16, signed: bool) -> __m512i {
        let bytes = _mm_maskz_loadu_epi8(lanes, from.cast());
        match signed {
            true => _mm512_cvtepi8_epi32(bytes),
            false => _mm512_cvtepu8_epi32(bytes),
        }
    }

    /// What bytes add to a number.
    #[inline(always)]
    unsafe fn term(bytes: __m512i, added: Added) -> __m512 {
        let moved = _mm512_sub_epi32(bytes, _mm512_set1_epi32(added.zero));
        let term = _mm512_mul_ps(_mm512_cvtepi32_ps(moved), _mm512_set1_ps(added.scale));
        match added.positive {
            true => _mm512_max_ps(_mm512_setzero_ps(), term),
            false => term,
        }
    }

    #[inline(always)]
    unsafe fn bytes_of_again(
        sums: [__m512i; 2],
        by: &Factors,
        added: Option<Added>,
        from: [*const u8; 2],
    ) -> (__m256i, bool) {
        let again = &by.again;
        let mut worst = [_mm512_setzero_ps(); 2];
        let mut fixed = [_mm512_setzero_si512(); 2];
        for v in 0..2 {
            let quotient = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), by.scale[v], by.bias[v]);
            let cut = _mm512_min_ps(_mm512_max_ps(quotient, again.range[0]), again.range[1]);
            let near = _mm512_roundscale_ps::<NEAREST>(cut);
            worst[v] = _mm512_sub_ps(cut, near);
            let mut value = _mm512_mul_ps(near, again.scale);
            if let Some(added) = added {
                value = _mm512_add_ps(value, term(integers(from[v], by.lanes[v], added.signed), added));
            }
            fixed[v] = _mm512_cvtps_epi32(_mm512_fmadd_ps(value, again.by, again.more));
        }
        let worst = _mm512_range_ps::<0b1011>(worst[0], worst[1]);
        let sure = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(worst, again.limit);
        let (bytes, near) = cut(fixed, by);
        (bytes, near | (sure != 0xffff))
    }

    /// A quotient as the stages round it.
    #[inline(always)]
    unsafe fn round(mut value: __m512, by: &Quotient) -> __m512 {
        if by.positive {
            value = _mm512_max_ps(_mm512_setzero_ps(), value);
        }
        let near = _mm512_roundscale_ps::<NEAREST>(_mm512_div_ps(value, _mm512_set1_ps(by.by)));
        let moved = _mm512_add_ps(near, _mm512_set1_ps(by.zero));
        _mm512_min_ps(
            _mm512_max_ps(moved, _mm512_set1_ps(by.range[0])),
            _mm512_set1_ps(by.range[1]),
        )
    }

    /// Computes bytes of the rows that have a bit in `rows` again as the stages are written; `sums` are those with what
    /// they begin with.
    ///
    /// # Safety
    /// As for [`Columns::finish`].
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(in super::super) unsafe fn exactly(columns: &Columns<'_>, mut rows: u32, sums: *const i32, vectors: usize) {
        let ends = columns.ends;
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            for v in 0..vectors {
                let lanes = columns.lanes.saturating_sub(v * 16).min(16);
                let mask = ((1u32 << lanes) - 1) as u16;
                let places = columns.places.at(row, v * 16);
                let sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums.add((row * vectors + v) * 16).cast()));
                let (mut scale, mut bias) = ([0.0; 16], [0.0; 16]);
                for (i, term) in ends.terms[columns.first + v * 16..][..16].iter().enumerate() {
                    [scale[i], bias[i]] = *term;
                }
                let value = _mm512_mul_ps(sum, _mm512_loadu_ps(scale.as_ptr()));
                let value = _mm512_add_ps(value, _mm512_loadu_ps(bias.as_ptr()));
                let mut value = round(value, &ends.first);
                if let Some(second) = &ends.again {
                    value = _mm512_sub_ps(value, _mm512_set1_ps(second.less));
                    value = _mm512_mul_ps(value, _mm512_set1_ps(second.scale));
                    if let Some(added) = second.added {
                        let bytes = integers(places.added, mask, added.signed);
                        value = _mm512_add_ps(value, term(bytes, added));
                    }
                    value = round(value, &second.quotient);
                }
                Avx512::store_bytes(places.to, Avx512::to_int(value), lanes);
            }
        }
    }
}
