//! Sums that end as bytes, in registers from the load to the store: requantised once, as most products are, or read
//! again as what they mean, with a residual or without, and requantised to another scale.

use super::requantise::{
    Left, MOST_MARGIN, Quotients, ROUNDINGS, Requantise, Requantised, Rounded, exact, is_small, margin,
};
use super::simd::Simd;
use super::stages::{
    Across, Block, ROWS, Stage, StageOp, StageOut, Stored, Sums, bytes_of, finish_block, for_each_vector, integers_of,
    store_bytes, sums_of,
};

/// How requantised sums end.
pub(super) struct Ending<'a> {
    again: Option<Again>,
    out: &'a StageOut,
    /// Whether numbers are cut to the type's range.
    whole: bool,
}

/// A quantised number `x` is `(x + moved) · scale`; more is added, and the sum is quantised.
pub(super) struct Again {
    pub(super) moved: f32,
    pub(super) scale: f32,
    pub(super) added: Option<Added>,
    pub(super) rounded: Rounded,
}

/// Bytes that are added as `(x − zero) · scale`, or what is positive of it.
pub(super) struct Added {
    from: *const u8,
    pub(super) signed: bool,
    step: isize,
    pub(super) zero: f32,
    pub(super) scale: f32,
    pub(super) positive: bool,
}

impl Ending<'_> {
    /// Returns how numbers that were requantised once go on, if they do.
    pub(super) fn again(&self) -> Option<&Again> {
        self.again.as_ref()
    }

    /// Reads `store`, or `[− zero] · scale [+ residual] [max 0] round(/ by) [± zero] max min store`, of neighbouring
    /// bytes.
    pub(super) fn of<'a>(form: &Requantise<'a>) -> Option<Ending<'a>> {
        let mut left = Left(form.rest);
        let mut range = form.range.map(|end| end + form.zero);
        let mut again = None;
        if form.rest.len() > 1 {
            let read = Again::of(&mut left, form)?;
            range = read.rounded.range;
            again = Some(read);
        }
        let out = left.take(|stage| match stage {
            Stage::Store(out) => Some(out),
            _ => None,
        })?;
        let bytes = match out.stored {
            Stored::I8 => [-128.0, 127.0],
            Stored::U8 => [0.0, 255.0],
            Stored::I32 | Stored::F32 => return None,
        };
        let ends = left.0.is_empty() && out.cols == Across::NEIGHBOURS;
        ends.then_some(Ending {
            again,
            out,
            whole: range == bytes,
        })
    }
}

impl Again {
    fn of(left: &mut Left<'_>, form: &Requantise<'_>) -> Option<Again> {
        let less = left.number(StageOp::Sub).unwrap_or(0.0);
        let scale = left.number(StageOp::Mul)?;
        let added = left.take(|stage| match *stage {
            Stage::Residual {
                from,
                stored: stored @ (Stored::I8 | Stored::U8),
                step,
                zero,
                scale,
                positive,
            } => Some(Added {
                from,
                signed: stored == Stored::I8,
                step,
                zero,
                scale,
                positive,
            }),
            _ => None,
        });
        let rounded = left.rounded()?;
        let moved = form.zero - less;
        let factors = added.as_ref().map_or([0.0; 2], |added| [added.scale, added.zero]);
        let finite = scale.abs() < 1e18 && factors.iter().all(|v| v.abs() < 1e18);
        (is_small(moved) && finite).then_some(Again {
            moved,
            scale,
            added,
            rounded,
        })
    }

    /// What quotients are below.
    fn most(&self, range: [f32; 2]) -> f32 {
        let most = |ends: [f32; 2]| ends[0].abs().max(ends[1].abs());
        let added = self
            .added
            .as_ref()
            .map_or(0.0, |added| (256.0 + added.zero.abs()) * added.scale.abs());
        (most(range) * self.scale.abs() + added) / self.rounded.by.unwrap_or(1.0) + self.rounded.zero.abs()
    }
}

/// Where a number is below this it becomes an integer of 32 bits.
const MOST: f32 = 1e9;

/// What a block needs.
struct Factors<S: Simd> {
    /// What is added to the sums.
    more: [S::I; 2],
    scale: [S::V; 2],
    bias: [S::V; 2],
    range: [S::V; 2],
    /// Quotients are sure that are less far from whole numbers.
    limit: S::V,
}

/// Has two vectors' columns of sums be bytes.
///
/// # Safety
/// As for [`super::requantise::requantise`], of sums to which nothing but a number a column is added.
#[inline(always)]
pub(super) unsafe fn bytes_of_columns<S: Simd, const WHOLE: bool>(
    sums: &Sums,
    form: &Requantise<'_>,
    ending: &Ending<'_>,
    by: &Quotients<S>,
    (col, lanes): (usize, [usize; 2]),
) {
    // SAFETY: the caller's contract: blocks are inside the tile.
    unsafe {
        // A whole number that is added to whole numbers may be added to the quotient.
        let moved = ending.again.as_ref().map_or(form.zero, |again| again.moved);
        let range = form.range.map(|end| end + moved);
        let least = margin(range, 2.0 * moved.abs());
        let [scales, biases] = [by.scale, by.bias].map(|of| [S::abs(of[0]), S::abs(of[1])]);
        let margin = S::fma(S::max(biases[0], biases[1]), S::splat(ROUNDINGS), S::splat(least));
        // Sums are below 2³¹: their products are finite. Comparisons with NaN are false.
        let mut limit = S::select(
            S::lt(margin, S::splat(MOST_MARGIN)),
            S::sub(S::splat(0.5), margin),
            S::zero(),
        );
        let mut small = true;
        for v in 0..2 {
            limit = S::select(S::lt(scales[v], S::splat(1e18)), limit, S::zero());
            limit = S::select(S::lt(biases[v], S::splat(1e18)), limit, S::zero());
            small &= S::all(S::lt(scales[v], S::splat(0.25))) && S::all(S::lt(biases[v], S::splat(MOST / 2.0)));
        }
        let moved = S::splat(moved);
        let factors = Factors::<S> {
            more: sums.more_of::<S, WHOLE>(col, lanes),
            scale: by.scale,
            bias: [S::add(by.bias[0], moved), S::add(by.bias[1], moved)],
            range: range.map(|end| S::splat(end)),
            limit,
        };
        macro_rules! by_rows {
            ($body:ident, $cut:literal, $args:tt) => {{
                let mut row = 0;
                while row + ROWS <= sums.rows {
                    by_rows!(@one $body, ROWS, $cut, Block { row, col, lanes }, $args);
                    row += ROWS;
                }
                while row < sums.rows {
                    by_rows!(@one $body, 1, $cut, Block { row, col, lanes }, $args);
                    row += 1;
                }
            }};
            (@one $body:ident, $rows:expr, $cut:literal, $at:expr, ($($arg:expr),*)) => {
                $body::<S, { $rows }, WHOLE, $cut>($at, $($arg),*)
            };
        }
        match &ending.again {
            None => match S::CUTS && WHOLE && ending.whole && small {
                true => by_rows!(once, true, (sums, form, &factors, ending.out)),
                false => by_rows!(once, false, (sums, form, &factors, ending.out)),
            },
            Some(again) => match S::CUTS && WHOLE && ending.whole && again.most(range) < MOST {
                true => by_rows!(twice, true, (sums, form, &factors, (again, ending.out))),
                false => by_rows!(twice, false, (sums, form, &factors, (again, ending.out))),
            },
        }
    }
}

/// Stores a block of numbers, which the store cuts to bytes if so.
#[inline(always)]
unsafe fn store<S: Simd, const R: usize, const WHOLE: bool, const CUT: bool>(
    at: Block,
    out: &StageOut,
    values: &[[S::I; 2]; R],
) {
    // SAFETY: the caller's contract: the block's place is inside.
    unsafe {
        if !CUT {
            return store_bytes::<S, R, WHOLE>(at, out, values);
        }
        let to = out.to.wrapping_offset(at.row as isize * out.row).add(at.col);
        for (r, row) in values.iter().enumerate() {
            S::store_cut_bytes_of_two(to.offset(r as isize * out.row), *row, out.stored == Stored::I8);
        }
    }
}

/// The quotient of one vector's sums.
#[inline(always)]
unsafe fn quotient<S: Simd, const WHOLE: bool>(from: *const i32, by: &Factors<S>, v: usize, n: usize) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let sum = S::iadd(integers_of::<S, WHOLE>(from, n), by.more[v]);
        S::fma(S::to_float(sum), by.scale[v], by.bias[v])
    }
}

/// A block that is requantised once.
#[inline(always)]
unsafe fn once<S: Simd, const R: usize, const WHOLE: bool, const CUT: bool>(
    at: Block,
    sums: &Sums,
    form: &Requantise<'_>,
    by: &Factors<S>,
    out: &StageOut,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let second = if at.lanes[1] > 0 { S::LANES } else { 0 };
        let from = sums.from.add(at.row * sums.stride + at.col);
        let mut worst = [S::zero(); R];
        let mut values = [[S::isplat(0); 2]; R];
        for_each_vector!(R, |r, v| {
            let from = from.add(r * sums.stride + v * second);
            let mut value = quotient::<S, WHOLE>(from, by, v, at.lanes[v]);
            if !CUT {
                value = S::min(S::max(value, by.range[0]), by.range[1]);
            }
            worst[r] = S::largest(worst[r], S::residue(value));
            values[r][v] = S::to_nearest(value);
        });
        store::<S, R, WHOLE, CUT>(at, out, &values);
        let mut all = worst[0];
        for &worst in &worst[1..] {
            all = S::max(all, worst);
        }
        if !S::all(S::lt(all, by.limit)) {
            for (r, worst) in worst.into_iter().enumerate() {
                if S::all(S::lt(worst, by.limit)) {
                    continue;
                }
                let at = Block { row: at.row + r, ..at };
                let exact = exact::<S, 1, WHOLE>(at, form, &sums_of::<S, 1, WHOLE>(at, sums));
                let values = [[S::to_int(exact[0][0]), S::to_int(exact[0][1])]];
                store_bytes::<S, 1, WHOLE>(at, out, &values);
            }
        }
    }
}

/// A block that is requantised, read again and requantised once more. The bytes may lie where those that are added do.
#[inline(always)]
unsafe fn twice<S: Simd, const R: usize, const WHOLE: bool, const CUT: bool>(
    at: Block,
    sums: &Sums,
    form: &Requantise<'_>,
    by: &Factors<S>,
    (again, out): (&Again, &StageOut),
) {
    // SAFETY: the caller's contract.
    unsafe {
        let second = if at.lanes[1] > 0 { S::LANES } else { 0 };
        let from = sums.from.add(at.row * sums.stride + at.col);
        let mut worst = S::zero();
        let mut values = [[S::zero(); 2]; R];
        let scale = S::splat(again.scale);
        for_each_vector!(R, |r, v| {
            let from = from.add(r * sums.stride + v * second);
            let value = quotient::<S, WHOLE>(from, by, v, at.lanes[v]);
            let cut = S::min(S::max(value, by.range[0]), by.range[1]);
            let near = S::round(cut);
            worst = S::largest(worst, S::sub(cut, near));
            values[r][v] = S::mul(near, scale);
        });
        let mut sure = S::all(S::lt(worst, by.limit));
        if let Some(added) = &again.added {
            let (zero, scale) = (S::splat(added.zero), S::splat(added.scale));
            let from = added.from.offset(at.row as isize * added.step + at.col as isize);
            for_each_vector!(R, |r, v| {
                let from = from.offset(r as isize * added.step).add(v * second);
                let bytes = bytes_of::<S, WHOLE>(from, added.signed, at.lanes[v]);
                let mut more = S::mul(S::sub(S::to_float(bytes), zero), scale);
                if added.positive {
                    more = S::max(S::zero(), more);
                }
                values[r][v] = S::add(values[r][v], more);
            });
        }
        let (low, high) = (S::splat(again.rounded.range[0]), S::splat(again.rounded.range[1]));
        let zero = S::splat(again.rounded.zero);
        if again.rounded.positive {
            for_each_vector!(R, |r, v| values[r][v] = S::max(S::zero(), values[r][v]));
        }
        if let Some(by) = again.rounded.by {
            let inverse = S::splat(1.0 / by);
            let margin = margin(again.rounded.range, again.rounded.zero.abs());
            let mut worst = S::zero();
            for_each_vector!(R, |r, v| {
                let mut value = S::fma(values[r][v], inverse, zero);
                if !CUT {
                    value = S::min(S::max(value, low), high);
                }
                worst = S::largest(worst, S::residue(value));
                values[r][v] = value;
            });
            sure &= S::all(S::lt(worst, S::splat(0.5 - margin)));
        } else {
            for_each_vector!(R, |r, v| {
                let mut value = S::add(S::round(values[r][v]), zero);
                if !CUT {
                    value = S::min(S::max(value, low), high);
                }
                values[r][v] = value;
            });
        }
        if sure {
            let mut integers = [[S::isplat(0); 2]; R];
            for_each_vector!(R, |r, v| integers[r][v] = S::to_nearest(values[r][v]));
            return store::<S, R, WHOLE, CUT>(at, out, &integers);
        }
        let from = Requantised {
            sums,
            form,
            scale: [[0.0; 16]; 2],
            bias: [[0.0; 16]; 2],
            limit: 0.0,
        };
        finish_block::<S, R, WHOLE, _>(at, &from, form.rest);
    }
}
