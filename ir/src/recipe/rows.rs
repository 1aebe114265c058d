//! Weights row by row of their last axis, on all cores: the ranges that share a scale, and numbers rounded by it.
//!
//! A position of a scale for each element would take more memory than the weight; a row needs the first one alone.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use super::Weight;
use crate::convert::F8Format;
use crate::data::HostTensor;
use crate::types::DType;

/// Work is split into pieces of about this many elements.
const PIECE: usize = 1 << 15;

/// Where the scales of a weight's rows are.
pub(super) struct Rows {
    /// Of each axis but the last: its size, how many indices share a scale, and how far apart scales are.
    outer: Vec<(usize, usize, usize)>,
    /// Elements of a row.
    length: usize,
    /// How many neighbours of a row share a scale.
    together: usize,
    count: usize,
}

impl Rows {
    pub fn new(weight: &Weight, shape: &[usize]) -> Rows {
        let scales = weight.scale_shape(shape);
        let mut stride = 1;
        let mut axes: Vec<(usize, usize, usize)> = Vec::with_capacity(shape.len());
        for (axis, size) in shape.iter().enumerate().rev() {
            let together = match weight.groups {
                _ if scales[axis] == 1 => (*size).max(1),
                Some(groups) if groups.axis == axis => groups.size.max(1) as usize,
                _ => 1,
            };
            axes.push((*size, together, stride));
            stride *= scales[axis];
        }
        axes.reverse();
        let (length, together, _) = axes.pop().unwrap_or((1, 1, 1));
        let elements: usize = shape.iter().product();
        Rows {
            outer: axes,
            length,
            together,
            count: elements.checked_div(length).unwrap_or(0),
        }
    }

    /// Rows of one piece; an even number, so that pairs of 4-bit integers stay together.
    fn in_piece(&self) -> usize {
        (PIECE / self.length.max(1)).max(1).next_multiple_of(2)
    }

    fn pieces(&self) -> impl IndexedParallelIterator<Item = Range<usize>> + use<'_> {
        let each = self.in_piece();
        let pieces = self.count.div_ceil(each);
        (0..pieces)
            .into_par_iter()
            .map(move |i| i * each..((i + 1) * each).min(self.count))
    }

    /// The position of the first scale of each row.
    fn firsts(&self, rows: Range<usize>) -> impl Iterator<Item = usize> + use<'_> {
        rows.map(move |row| {
            let mut rest = row;
            let mut first = 0;
            for (size, together, stride) in self.outer.iter().rev() {
                first += rest % size / together * stride;
                rest /= size;
            }
            first
        })
    }

    /// How many scales a row has.
    fn scales_in_row(&self) -> usize {
        self.length.div_ceil(self.together)
    }

    /// The least and the largest number of each scale and 0; None where a number is not finite.
    pub fn ranges(&self, tensor: &HostTensor, scales: usize) -> Option<Vec<(f32, f32)>> {
        let ranges = Mutex::new(vec![(0f32, 0f32); scales]);
        if self.length == 0 {
            return ranges.into_inner().ok();
        }
        let in_row = self.scales_in_row();
        let finite = self.pieces().all(|rows| {
            let start = self.firsts(rows.clone()).min().unwrap_or(0);
            let end = self.firsts(rows.clone()).max().unwrap_or(0) + in_row;
            let (mut lows, mut highs) = (vec![0f32; end - start], vec![0f32; end - start]);
            let numbers = decode(tensor, rows.start * self.length..rows.end * self.length);
            for (row, first) in numbers.chunks_exact(self.length).zip(self.firsts(rows)) {
                let lows = &mut lows[first - start..][..in_row];
                let highs = &mut highs[first - start..][..in_row];
                let own = lows.iter_mut().zip(highs);
                match self.together {
                    1 => own.zip(row).for_each(|((low, high), v)| {
                        *low = lesser(*low, *v);
                        *high = larger(*high, *v);
                    }),
                    together => own.zip(row.chunks(together)).for_each(|((low, high), group)| {
                        let (least, largest) = range(group);
                        *low = lesser(*low, least);
                        *high = larger(*high, largest);
                    }),
                }
            }
            let mut all = ranges.lock().unwrap_or_else(PoisonError::into_inner);
            for (range, (low, high)) in all[start..end].iter_mut().zip(lows.into_iter().zip(highs)) {
                *range = (lesser(range.0, low), larger(range.1, high));
            }
            are_finite(&numbers)
        });
        finite.then(|| ranges.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes an element of 8 or 4 bits of each number, its scale and its zero point; None where a number is not finite.
    fn rounded(
        &self,
        tensor: &HostTensor,
        bits: usize,
        scales: &[f32],
        zeros: Option<&[i32]>,
        each: impl Fn(f32, f32, f32) -> u8 + Sync,
    ) -> Option<Vec<u8>> {
        let elements = self.count * self.length;
        if elements == 0 {
            return Some(Vec::new());
        }
        let zeros: Vec<f32> = match zeros {
            Some(zeros) => zeros.iter().map(|zero| *zero as f32).collect(),
            None => vec![0.0; scales.len()],
        };
        let mut out = vec![0u8; (elements * bits).div_ceil(8)];
        let piece_bytes = (self.in_piece() * self.length * bits).div_ceil(8).max(1);
        let pieces = out.par_chunks_mut(piece_bytes).zip(self.pieces());
        let in_row = self.scales_in_row();
        let finite = pieces.map(|(out, rows)| {
            let numbers = decode(tensor, rows.start * self.length..rows.end * self.length);
            let mut made = vec![0u8; if bits == 8 { 0 } else { numbers.len() }];
            let to: &mut [u8] = if bits == 8 { &mut *out } else { &mut made };
            let rows_of = numbers.chunks_exact(self.length).zip(to.chunks_exact_mut(self.length));
            for ((row, to), first) in rows_of.zip(self.firsts(rows)) {
                let (scales, zeros) = (&scales[first..][..in_row], &zeros[first..][..in_row]);
                let shared = scales.iter().zip(zeros);
                match self.together {
                    1 => (to.iter_mut().zip(row).zip(shared))
                        .for_each(|((to, v), (scale, zero))| *to = each(*v, *scale, *zero)),
                    together => {
                        let groups = row.chunks(together).zip(to.chunks_mut(together));
                        for ((group, to), (scale, zero)) in groups.zip(shared) {
                            to.iter_mut()
                                .zip(group)
                                .for_each(|(to, v)| *to = each(*v, *scale, *zero));
                        }
                    }
                }
            }
            if bits == 4 {
                let (pairs, last) = made.as_chunks::<2>();
                out.iter_mut()
                    .zip(pairs)
                    .for_each(|(byte, [low, high])| *byte = low & 15 | high << 4);
                if let (Some(byte), [low]) = (out.get_mut(pairs.len()), last) {
                    *byte = low & 15;
                }
            }
            are_finite(&numbers)
        });
        pieces_all(finite).then_some(out)
    }

    /// The integers that lie nearest (ties to even), packed; None where a number is not finite.
    pub fn integers(
        &self,
        tensor: &HostTensor,
        dtype: DType,
        scales: &[f32],
        zeros: Option<&[i32]>,
        (low, high): (i64, i64),
    ) -> Option<Vec<u8>> {
        // Numbers of this magnitude and more are beyond every type here; adding and taking away 1.5 · 2^23 rounds
        // smaller ones.
        const BEYOND: f32 = 1024.0;
        const ROUNDS: f32 = 12_582_912.0;
        let (low, high) = (low as f32, high as f32);
        let bits = dtype.bits() as usize;
        self.rounded(tensor, bits, scales, zeros, |v, scale, zero| {
            let whole = (larger(lesser(v / scale, BEYOND), -BEYOND) + ROUNDS) - ROUNDS;
            let stored = larger(lesser(whole + zero, high), low);
            // The lowest bits of the sum are the integer's: a vector of these is one addition and one narrowing.
            (stored + ROUNDS).to_bits() as u8
        })
    }

    /// The 8-bit floats of the quotients, which are numbers of the weight's type; None where a number is not finite.
    pub fn floats(&self, tensor: &HostTensor, dtype: DType, scales: &[f32], largest: f32) -> Option<Vec<u8>> {
        let format = F8Format::of(dtype)?;
        let stored = |quotient: f32| format.encode(quotient.clamp(-largest, largest));
        // As `quantize` divides: in the type of the weight. A quotient of f32 has bits enough to be rounded once more.
        match tensor.dtype {
            DType::F16 => self.rounded(tensor, 8, scales, None, |v, scale, _| {
                stored(f16::from_f32(v / scale).to_f32())
            }),
            DType::BF16 => self.rounded(tensor, 8, scales, None, |v, scale, _| {
                stored(bf16::from_f32(v / scale).to_f32())
            }),
            _ => self.rounded(tensor, 8, scales, None, |v, scale, _| stored(v / scale)),
        }
    }
}

/// Whether all pieces are; none is left out, since each makes bytes.
fn pieces_all(pieces: impl ParallelIterator<Item = bool>) -> bool {
    pieces.reduce(|| true, |a, b| a & b)
}

/// The lesser number; the first where one is NaN. One instruction of a vector, which `f32::min` is not.
fn lesser(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

/// The larger number; the first where one is NaN.
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The least and the largest number and 0.
fn range(numbers: &[f32]) -> (f32, f32) {
    const LANES: usize = 16;
    let (whole, rest) = numbers.as_chunks::<LANES>();
    let (mut lows, mut highs) = ([0f32; LANES], [0f32; LANES]);
    for chunk in whole {
        for (lane, v) in chunk.iter().enumerate() {
            lows[lane] = lesser(lows[lane], *v);
            highs[lane] = larger(highs[lane], *v);
        }
    }
    let low = rest.iter().chain(&lows).fold(0.0, |low, v| lesser(low, *v));
    let high = rest.iter().chain(&highs).fold(0.0, |high, v| larger(high, *v));
    (low, high)
}

/// Says whether all numbers are finite: none has an exponent of ones alone.
fn are_finite(numbers: &[f32]) -> bool {
    let largest = numbers.iter().fold(0, |largest, v| largest.max(v.to_bits() << 1));
    largest < f32::INFINITY.to_bits() << 1
}

/// Some neighbours of a tensor of f32, f16 or bf16 as f32.
fn decode(tensor: &HostTensor, range: Range<usize>) -> Vec<f32> {
    let bytes = &tensor.bytes;
    let halves = || bytes[range.start * 2..range.end * 2].as_chunks::<2>().0.iter();
    match tensor.dtype {
        DType::F16 => {
            let halves: Vec<f16> = halves().map(|b| f16::from_le_bytes(*b)).collect();
            halves.to_f32_vec()
        }
        DType::BF16 => halves().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => {
            let bytes = bytes[range.start * 4..range.end * 4].as_chunks::<4>().0;
            bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::Groups;

    /// By the formula, element for element.
    fn plainly(weight: &Weight, tensor: &HostTensor) -> Vec<i64> {
        let (low, high) = weight.dtype.int_range().unwrap();
        let positions = weight.scale_positions(&tensor.shape);
        let numbers = tensor.to_f32();
        let round = |(v, at): (&f32, &usize)| {
            let zero = weight.zeros.as_ref().map_or(0, |zeros| i64::from(zeros[*at]));
            ((v / weight.scales[*at]).round_ties_even() as i64 + zero).clamp(low, high)
        };
        numbers.iter().zip(&positions).map(round).collect()
    }

    #[test]
    fn all_layouts_are_rounded_as_the_formula_says() {
        let shapes: [&[usize]; 5] = [&[64, 4097], &[301, 64], &[7, 5, 3, 3], &[5], &[2, 1]];
        for shape in shapes {
            let axes: Vec<Option<usize>> = (0..shape.len()).map(Some).chain([None]).collect();
            for (axis, grouped, dtype) in axes.iter().flat_map(|axis| {
                let grouped = (0..shape.len()).filter(|g| Some(*g) != *axis).map(Some).chain([None]);
                grouped.flat_map(move |g| [DType::I8, DType::U4, DType::I4].map(|dtype| (*axis, g, dtype)))
            }) {
                let elements = shape.iter().product::<usize>();
                let values: Vec<f64> = (0..elements)
                    .map(|i| ((i * 7919) % 1000) as f64 / 250.0 - 2.0)
                    .collect();
                let tensor = HostTensor::from_f64(DType::F32, shape, &values).unwrap();
                let mut weight = Weight {
                    dtype,
                    axis,
                    groups: grouped.map(|axis| Groups { axis, size: 3 }),
                    scales: Vec::new(),
                    zeros: None,
                    integers: None,
                };
                let count = weight.scale_shape(shape).iter().product::<usize>();
                weight.scales = (0..count).map(|i| 0.01 + (i % 13) as f32 / 64.0).collect();
                weight.zeros = (dtype == DType::U4).then(|| (0..count).map(|i| (i % 16) as i32).collect());
                let stored = weight.store(&tensor).unwrap();
                assert_eq!(
                    stored.integers.to_i64(),
                    plainly(&weight, &tensor),
                    "{shape:?} {weight:?}"
                );
                let ranges = weight.ranges(&tensor).unwrap();
                let mut wanted = vec![(0f32, 0f32); count];
                for (v, at) in tensor.to_f32().iter().zip(weight.scale_positions(shape)) {
                    wanted[at] = (wanted[at].0.min(*v), wanted[at].1.max(*v));
                }
                assert_eq!(ranges, wanted, "{shape:?} {axis:?} {grouped:?}");
            }
        }
    }
}
