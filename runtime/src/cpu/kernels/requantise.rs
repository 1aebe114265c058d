//! What most quantised products begin their end with, in few operations: sums are scaled, a bias is added, the quotient
//! is rounded, moved and cut.
//!
//! `round((sum · scale + bias) / by)` is computed as `round(sum · (scale / by) + bias / by)`: one multiply-add. The two
//! differ before they are rounded by no more than [`margin`], so that they are the same whole number unless the value
//! is that near a tie. A block with such a value is computed again as it is written: results are always those of the
//! stages.

use super::requantised_bytes::{Ending, bytes_of_columns};
use super::simd::{Simd, simd_dispatch};
use super::stages::{Block, ROWS, Stage, StageOp, Sums, Values, finish_block, floats_of, for_each_vector, sums_of};

/// One number for all columns, or one a column.
#[derive(Clone, Copy, Debug)]
enum Term {
    Number(f32),
    Columns(*const f32),
}

/// Stages that are a requantisation, and those that follow it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requantise<'a> {
    scale: Option<Term>,
    bias: Option<Term>,
    pub(super) by: f32,
    pub(super) inverse: f32,
    /// Whether what is below 0 is 0 before it is divided.
    pub(super) positive: bool,
    /// What the rounded quotient is cut to, before `zero` is added.
    pub(super) range: [f32; 2],
    pub(super) zero: f32,
    pub(super) rest: &'a [Stage],
}

/// The largest number that a rounded quotient is cut to or moved by here.
const LARGEST: f32 = 512.0;

/// Says whether a number is whole and small.
pub(super) fn is_small(v: f32) -> bool {
    v.fract() == 0.0 && v.abs() <= LARGEST
}

/// The largest margin; with a larger one too many blocks are computed twice.
pub(super) const MOST_MARGIN: f32 = 0.02;

impl Requantise<'_> {
    /// Reads `[· scale] [+ bias] [max 0] round([/ by]) [± zero] max min`.
    pub(super) fn of(stages: &[Stage]) -> Option<Requantise<'_>> {
        let mut left = Left(stages);
        let scale = left.term(StageOp::Mul);
        let bias = left.term(StageOp::Add);
        let Rounded {
            positive,
            by,
            zero,
            range,
        } = left.rounded()?;
        // A scale that was divided before has no divisor.
        let by = by.unwrap_or(1.0);
        let [mut low, high] = range.map(|end| end - zero);
        if positive {
            // Of a range below 0 the upper end is left.
            low = low.max(0.0).min(high);
        }
        Some(Requantise {
            scale,
            bias,
            by,
            inverse: 1.0 / by,
            positive,
            range: [low, high],
            zero,
            rest: left.0,
        })
    }

    /// Returns what the sums of a column are multiplied by and what is added to them.
    ///
    /// # Safety
    /// It is one of the columns.
    pub(super) unsafe fn terms(&self, col: usize) -> [f32; 2] {
        let of = |term: Option<Term>, none: f32| match term {
            Some(Term::Number(v)) => v,
            // SAFETY: the caller's contract.
            Some(Term::Columns(from)) => unsafe { *from.add(col) },
            None => none,
        };
        [of(self.scale, 1.0), of(self.bias, 0.0)]
    }
}

/// What rounds a number and cuts it.
pub(super) struct Rounded {
    /// Whether what is below 0 is 0 before.
    pub positive: bool,
    /// What it is divided by before, if it is.
    pub by: Option<f32>,
    /// What is added to the whole number, and what the sum is cut to.
    pub zero: f32,
    pub range: [f32; 2],
}

/// Stages that were not read yet.
pub(super) struct Left<'a>(pub &'a [Stage]);

impl<'a> Left<'a> {
    /// Takes the next stage if it is one that `read` reads.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(&'a Stage) -> Option<T>) -> Option<T> {
        let (first, rest) = self.0.split_first()?;
        let value = read(first)?;
        self.0 = rest;
        Some(value)
    }

    pub(super) fn number(&mut self, op: StageOp) -> Option<f32> {
        self.take(|stage| match stage {
            Stage::Number(o, v) if *o == op => Some(*v),
            _ => None,
        })
    }

    /// Takes `[max 0] round([/ by]) [± zero] max min` of small whole numbers.
    pub(super) fn rounded(&mut self) -> Option<Rounded> {
        let positive = self.number(StageOp::Max);
        let by = self.take(|stage| match stage {
            Stage::RoundQuotient(by) => Some(Some(*by)),
            Stage::Round => Some(None),
            _ => None,
        })?;
        let more = self.number(StageOp::Add);
        // What -0 is added to stays as it is.
        let zero = more.or_else(|| self.number(StageOp::Sub).map(|v| -v)).unwrap_or(-0.0);
        let range = [self.number(StageOp::Max)?, self.number(StageOp::Min)?];
        let whole = [zero, range[0], range[1]].into_iter().all(is_small);
        let divides = by.is_none_or(|by| by > 0.0 && by.is_normal() && (1.0 / by).is_normal());
        let known = positive.is_none_or(|v| v == 0.0) && range[0] <= range[1];
        (whole && divides && known).then_some(Rounded {
            positive: positive.is_some(),
            by,
            zero,
            range,
        })
    }

    fn term(&mut self, op: StageOp) -> Option<Term> {
        self.take(|stage| match stage {
            Stage::Number(o, v) if *o == op => Some(Term::Number(*v)),
            Stage::Columns(o, from) if *o == op => Some(Term::Columns(*from)),
            _ => None,
        })
    }
}

/// How far apart both ways of computing a quotient are at most, where it is inside the range and biases over the
/// divisor are at most `bias`: a rounding is 2⁻²⁴ of its result. There are four of the product, three of the bias (one
/// where the zero point is added to it) and three of the quotient; a product is the quotient less the bias.
pub(super) fn margin(range: [f32; 2], bias: f32) -> f32 {
    let quotient = range[0].abs().max(range[1].abs()) + 1.0;
    (quotient + bias) * ROUNDINGS
}

/// Seven roundings, and a little.
pub(super) const ROUNDINGS: f32 = 7.0 * 1.05 * (f32::EPSILON / 2.0);

simd_dispatch! {
    /// Does stages to sums, of which `form` is read.
    ///
    /// # Safety
    /// As for [`super::stages::finish`].
    pub(super) unsafe fn requantise(sums: &Sums, form: &Requantise<'_>) = requantise_body
}

#[inline(always)]
unsafe fn requantise_body<S: Simd>(sums: &Sums, form: &Requantise<'_>) {
    let ending = Ending::of(form);
    // SAFETY: the caller's contract: blocks are inside the tile.
    unsafe {
        for col in (0..sums.cols).step_by(2 * S::LANES) {
            let left = sums.cols - col;
            let lanes = [left.min(S::LANES), left.saturating_sub(S::LANES).min(S::LANES)];
            match lanes[1] == S::LANES {
                true => columns::<S, true>(sums, form, ending.as_ref(), (col, lanes)),
                false => columns::<S, false>(sums, form, ending.as_ref(), (col, lanes)),
            }
        }
    }
}

/// A term of two vectors' columns.
///
/// # Safety
/// As for [`requantise`].
#[inline(always)]
unsafe fn term<S: Simd, const WHOLE: bool>(term: Term, col: usize, lanes: [usize; 2]) -> [S::V; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        // Past the last column nothing is read: the first one stands in.
        let second = if lanes[1] > 0 { S::LANES } else { 0 };
        match term {
            Term::Number(v) => [S::splat(v); 2],
            Term::Columns(from) => [
                floats_of::<S, WHOLE>(from.add(col), lanes[0]),
                floats_of::<S, WHOLE>(from.add(col + second), lanes[1]),
            ],
        }
    }
}

/// Says whether all are numbers whose magnitudes are below `most`.
///
/// # Safety
/// The level's instructions are there.
#[inline(always)]
unsafe fn is_below<S: Simd>(values: [S::V; 2], most: f32) -> bool {
    // SAFETY: the caller's contract. Comparisons with NaN are false.
    unsafe {
        let most = S::splat(most);
        S::all(S::lt(S::abs(values[0]), most)) && S::all(S::lt(S::abs(values[1]), most))
    }
}

/// What two vectors' columns are multiplied by, and what is added: scales and biases over the divisor.
pub(super) struct Quotients<S: Simd> {
    pub scale: [S::V; 2],
    pub bias: [S::V; 2],
}

/// Sums of two vectors' columns, and the factors of these.
pub(super) struct Requantised<'a> {
    pub sums: &'a Sums,
    pub form: &'a Requantise<'a>,
    /// Scales and biases over the divisor.
    pub scale: [[f32; 16]; 2],
    pub bias: [[f32; 16]; 2],
    /// Quotients are sure that are less far from whole numbers; none if it is 0.
    pub limit: f32,
}

#[inline(always)]
unsafe fn columns<S: Simd, const WHOLE: bool>(
    sums: &Sums,
    form: &Requantise<'_>,
    ending: Option<&Ending<'_>>,
    (col, lanes): (usize, [usize; 2]),
) {
    // SAFETY: the caller's contract; a vector has no more lanes than the arrays.
    unsafe {
        let inverse = S::splat(form.inverse);
        let scale = term::<S, WHOLE>(form.scale.unwrap_or(Term::Number(1.0)), col, lanes);
        let bias = term::<S, WHOLE>(form.bias.unwrap_or(Term::Number(0.0)), col, lanes);
        let scale = [S::mul(scale[0], inverse), S::mul(scale[1], inverse)];
        let bias = [S::mul(bias[0], inverse), S::mul(bias[1], inverse)];
        if let (Some(ending), true) = (ending, sums.is_plain()) {
            return bytes_of_columns::<S, WHOLE>(sums, form, ending, &Quotients::<S> { scale, bias }, (col, lanes));
        }
        let largest = S::fold(S::largest(bias[0], bias[1]), f32::max);
        let margin = margin(form.range, largest);
        // Sums are below 2³¹: their products are finite.
        let close = is_below::<S>(scale, 1e18) && is_below::<S>(bias, 1e18) && margin <= MOST_MARGIN;
        let mut from = Requantised {
            sums,
            form,
            scale: [[0.0; 16]; 2],
            bias: [[0.0; 16]; 2],
            limit: if close { 0.5 - margin } else { 0.0 },
        };
        S::store(from.scale[0].as_mut_ptr(), scale[0]);
        S::store(from.scale[1].as_mut_ptr(), scale[1]);
        S::store(from.bias[0].as_mut_ptr(), bias[0]);
        S::store(from.bias[1].as_mut_ptr(), bias[1]);
        let mut row = 0;
        while row + ROWS <= sums.rows {
            finish_block::<S, ROWS, WHOLE, _>(Block { row, col, lanes }, &from, form.rest);
            row += ROWS;
        }
        while row < sums.rows {
            finish_block::<S, 1, WHOLE, _>(Block { row, col, lanes }, &from, form.rest);
            row += 1;
        }
    }
}

impl Values for Requantised<'_> {
    #[inline(always)]
    unsafe fn of<S: Simd, const R: usize, const WHOLE: bool>(&self, at: Block) -> [[S::V; 2]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            let form = self.form;
            let sums = sums_of::<S, R, WHOLE>(at, self.sums);
            let (low, high, zero) = (S::splat(form.range[0]), S::splat(form.range[1]), S::splat(form.zero));
            let scale = [S::load(self.scale[0].as_ptr()), S::load(self.scale[1].as_ptr())];
            let bias = [S::load(self.bias[0].as_ptr()), S::load(self.bias[1].as_ptr())];
            let mut worst = S::zero();
            let mut values = [[S::zero(); 2]; R];
            for_each_vector!(R, |r, v| {
                let quotient = S::fma(S::to_float(sums[r][v]), scale[v], bias[v]);
                let cut = S::min(S::max(quotient, low), high);
                let near = S::round(cut);
                worst = S::max(worst, S::abs(S::sub(cut, near)));
                values[r][v] = S::add(near, zero);
            });
            if !S::all(S::lt(worst, S::splat(self.limit))) {
                values = exact::<S, R, WHOLE>(at, form, &sums);
            }
            values
        }
    }
}

/// The same by each operation as it is written.
///
/// # Safety
/// As for [`requantise`].
#[inline(always)]
pub(super) unsafe fn exact<S: Simd, const R: usize, const WHOLE: bool>(
    at: Block,
    form: &Requantise<'_>,
    sums: &[[S::I; 2]; R],
) -> [[S::V; 2]; R] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut values = [[S::zero(); 2]; R];
        for_each_vector!(R, |r, v| values[r][v] = S::to_float(sums[r][v]));
        if let Some(scale) = form.scale {
            let scale = term::<S, WHOLE>(scale, at.col, at.lanes);
            for_each_vector!(R, |r, v| values[r][v] = S::mul(values[r][v], scale[v]));
        }
        if let Some(bias) = form.bias {
            let bias = term::<S, WHOLE>(bias, at.col, at.lanes);
            for_each_vector!(R, |r, v| values[r][v] = S::add(values[r][v], bias[v]));
        }
        if form.positive {
            for_each_vector!(R, |r, v| values[r][v] = S::max(S::zero(), values[r][v]));
        }
        let (by, zero) = (S::splat(form.by), S::splat(form.zero));
        let (low, high) = (S::splat(form.range[0]), S::splat(form.range[1]));
        for_each_vector!(R, |r, v| {
            let near = S::round(S::div(values[r][v], by));
            values[r][v] = S::add(S::min(high, S::max(low, near)), zero);
        });
        values
    }
}
