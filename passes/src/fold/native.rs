//! Fast constant arithmetic on weights: permutations, joins, f32 arithmetic and rounding to half types, on all cores.
//!
//! Everything else, and everything small, goes through the reference evaluator.

use half::{bf16, f16};
use ir::data::Storage;
use ir::op::BinaryOp;
use ir::{DType, HostTensor};
use rayon::prelude::*;

/// Work is split into pieces of about this many elements.
const PIECE: usize = 1 << 16;

/// Zeros to be filled; `None` where there is no memory for them.
fn zeros(bytes: usize) -> Option<Vec<u8>> {
    ir::memory::check(bytes as u64, String::new).ok()?;
    Some(vec![0; bytes])
}

/// Makes a tensor of bytes that are known to fit.
fn tensor(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Option<HostTensor> {
    HostTensor::new(dtype, shape, Storage::new(bytes)).ok()
}

/// The same bytes under another shape of as many elements.
pub fn reshape(t: &HostTensor, shape: Vec<usize>) -> Option<HostTensor> {
    HostTensor::new(t.dtype, shape, t.bytes.clone()).ok()
}

/// Permutes axes.
pub fn permute(t: &HostTensor, perm: &[usize]) -> Option<HostTensor> {
    let shape: Vec<usize> = perm.iter().map(|p| t.shape[*p]).collect();
    let moved: Vec<usize> = perm.iter().copied().filter(|p| t.shape[*p] != 1).collect();
    if moved.is_sorted() {
        return reshape(t, shape);
    }
    let mut strides = vec![1usize; t.shape.len()];
    for i in (1..strides.len()).rev() {
        strides[i - 1] = strides[i] * t.shape[i];
    }
    let strides: Vec<usize> = perm.iter().map(|p| strides[*p]).collect();
    let bytes = match t.dtype.bits() {
        4 => {
            let mut each = zeros(t.bytes.len() * 2)?;
            let pairs = each.par_chunks_mut(PIECE * 2).zip(t.bytes.par_chunks(PIECE));
            pairs.for_each(|(each, bytes)| {
                let (each, _) = each.as_chunks_mut::<2>();
                each.iter_mut()
                    .zip(bytes)
                    .for_each(|(to, pair)| *to = [pair & 15, pair >> 4]);
            });
            let moved = permute_elements::<1>(&each, &shape, &strides)?;
            let mut packed = zeros(t.bytes.len())?;
            let pieces = packed.par_chunks_mut(PIECE).zip(moved.par_chunks(PIECE * 2));
            pieces.for_each(|(packed, moved)| {
                let (pairs, last) = moved.as_chunks::<2>();
                let to = packed.iter_mut().zip(pairs);
                to.for_each(|(to, [low, high])| *to = low | high << 4);
                // The last byte of an odd number of elements is half used.
                if let (Some(to), [low]) = (packed.get_mut(pairs.len()), last) {
                    *to = *low;
                }
            });
            packed
        }
        8 => permute_elements::<1>(&t.bytes, &shape, &strides)?,
        16 => permute_elements::<2>(&t.bytes, &shape, &strides)?,
        32 => permute_elements::<4>(&t.bytes, &shape, &strides)?,
        64 => permute_elements::<8>(&t.bytes, &shape, &strides)?,
        _ => return None,
    };
    tensor(t.dtype, shape, bytes)
}

/// Merges each axis with its left neighbour where the two are one axis of the source too, and leaves out axes of size
/// 1.
fn merged(shape: &[usize], strides: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let mut axes: Vec<(usize, usize)> = Vec::with_capacity(shape.len());
    for (&size, &stride) in shape.iter().zip(strides).filter(|(size, _)| **size != 1) {
        match axes.last_mut() {
            Some((before, outer)) if *outer == stride * size => (*before, *outer) = (*before * size, stride),
            _ => axes.push((size, stride)),
        }
    }
    axes.into_iter().unzip()
}

/// Copies elements of `W` bytes into an order in which the axes of `shape` have these strides in the source.
fn permute_elements<const W: usize>(bytes: &[u8], shape: &[usize], strides: &[usize]) -> Option<Vec<u8>> {
    let source = bytes.as_chunks::<W>().0;
    let total: usize = shape.iter().product();
    let mut out = zeros(total * W)?;
    if total == 0 {
        return Some(out);
    }
    let (shape, strides) = merged(shape, strides);
    let Some((&inner, outer)) = shape.split_last() else {
        out.copy_from_slice(bytes);
        return Some(out);
    };
    let step = strides[outer.len()];
    if let Some((&rows, planes)) = outer.split_last()
        && strides[planes.len()] == 1
    {
        out.par_chunks_mut(rows * inner * W)
            .enumerate()
            .for_each(|(plane, out)| {
                let from = &source[position(plane, planes, &strides)..];
                transposed::<W>(from, step, out, inner);
            });
        return Some(out);
    }
    let rows_each = (PIECE / inner).max(1);
    out.par_chunks_mut(rows_each * inner * W)
        .enumerate()
        .for_each(|(piece, out)| {
            let out = out.as_chunks_mut::<W>().0;
            for (row, out) in out.chunks_exact_mut(inner).enumerate() {
                let start = position(piece * rows_each + row, outer, &strides);
                for (to, from) in out.iter_mut().zip(source[start..].iter().step_by(step)) {
                    *to = *from;
                }
            }
        });
    Some(out)
}

/// Returns where in the source an index into these axes, the last of which counts fastest, is.
fn position(index: usize, axes: &[usize], strides: &[usize]) -> usize {
    let mut rest = index;
    let mut at = 0;
    for (size, stride) in axes.iter().zip(strides).rev() {
        at += rest % size * stride;
        rest /= size;
    }
    at
}

/// Transposes a matrix with rows of `columns` elements in the result, which are `step` apart in the source, tile by
/// tile: both sides are then read and written by whole cache lines, each once.
fn transposed<const W: usize>(source: &[[u8; W]], step: usize, out: &mut [u8], columns: usize) {
    let tile = (64 / W).max(16);
    out.par_chunks_mut(tile * columns * W)
        .enumerate()
        .for_each(|(strip, out)| {
            let out = out.as_chunks_mut::<W>().0;
            let rows = out.len() / columns;
            let mut held = vec![[0u8; W]; tile * tile];
            for first in (0..columns).step_by(tile) {
                let wide = tile.min(columns - first);
                for (column, held) in held.chunks_exact_mut(tile).take(wide).enumerate() {
                    let from = &source[(first + column) * step + strip * tile..];
                    held[..rows].copy_from_slice(&from[..rows]);
                }
                for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                    for (to, held) in out[first..][..wide].iter_mut().zip(held.chunks_exact(tile)) {
                        *to = held[row];
                    }
                }
            }
        });
}

/// Joins along an axis; `None` for 4-bit types or parts that do not fit.
pub fn concat(parts: &[&HostTensor], axis: usize) -> Option<HostTensor> {
    let first = parts.first()?;
    let bits = first.dtype.bits() as usize;
    if parts
        .iter()
        .any(|p| p.dtype != first.dtype || p.shape.len() != first.shape.len())
    {
        return None;
    }
    let mut shape = first.shape.clone();
    shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * bits;
    let runs: Vec<usize> = parts.iter().map(|p| p.shape[axis] * inner).collect();
    let mut bytes = ir::memory::reserve((outer * shape[axis] * inner).div_ceil(8) as u64, String::new).ok()?;
    if runs.iter().all(|run| run.is_multiple_of(8)) {
        for row in 0..outer {
            for (part, run) in parts.iter().zip(&runs) {
                bytes.extend_from_slice(&part.bytes[row * run / 8..(row + 1) * run / 8]);
            }
        }
    } else {
        // Runs that begin within a byte; the first element is in its low bits.
        let mask = (1u8 << bits) - 1;
        let mut at = 0;
        for row in 0..outer {
            for (part, run) in parts.iter().zip(&runs) {
                for from in (row * run..(row + 1) * run).step_by(bits) {
                    let element = part.bytes[from / 8] >> (from % 8) & mask;
                    if at % 8 == 0 {
                        bytes.push(0);
                    }
                    if let Some(last) = bytes.last_mut() {
                        *last |= element << (at % 8);
                    }
                    at += bits;
                }
            }
        }
    }
    tensor(first.dtype, shape, bytes)
}

/// A run of whole rows of the first axis, sharing the bytes.
pub fn leading_rows(t: &HostTensor, start: usize, count: usize) -> Option<HostTensor> {
    let mut shape = t.shape.clone();
    let row: usize = shape[1..].iter().product::<usize>() * t.dtype.bits() as usize / 8;
    if t.dtype.bits() < 8 {
        return None;
    }
    shape[0] = count;
    HostTensor::new(t.dtype, shape, t.bytes.slice(start * row, count * row)?).ok()
}

/// f32 arithmetic with broadcasting; `None` for other types or ops, or where the result is larger than both operands.
pub fn binary(op: BinaryOp, a: &HostTensor, b: &HostTensor) -> Option<HostTensor> {
    if a.dtype != DType::F32 || b.dtype != DType::F32 {
        return None;
    }
    let f: fn(f32, f32) -> f32 = match op {
        BinaryOp::Add => |x, y| x + y,
        BinaryOp::Sub => |x, y| x - y,
        BinaryOp::Mul => |x, y| x * y,
        BinaryOp::Div => |x, y| x / y,
        _ => return None,
    };
    let (x, y) = (a.bytes.as_chunks::<4>().0, b.bytes.as_chunks::<4>().0);
    let (shape, swapped) = if a.elements() >= b.elements() {
        (&a.shape, false)
    } else {
        (&b.shape, true)
    };
    let small = if swapped { &a.shape } else { &b.shape };
    let (large, little) = if swapped { (y, x) } else { (x, y) };
    let apply = move |l: f32, s: f32| if swapped { f(s, l) } else { f(l, s) };
    // The small operand must not have an axis that the large one lacks.
    if small.len() > shape.len() {
        return None;
    }
    let offset = shape.len() - small.len();
    if small
        .iter()
        .enumerate()
        .any(|(i, n)| *n != 1 && *n != shape[offset + i])
    {
        return None;
    }
    let mut strides = vec![0usize; shape.len()];
    let mut stride = 1;
    for (i, n) in small.iter().enumerate().rev() {
        strides[offset + i] = if *n == 1 { 0 } else { stride };
        stride *= n;
    }
    let total: usize = shape.iter().product();
    let mut out = zeros(total * 4)?;
    // Trailing axes that the small operand does not follow make runs of one number.
    let run_axis = (0..shape.len()).rev().find(|i| strides[*i] != 0).map_or(0, |i| i + 1);
    let run: usize = shape[run_axis..].iter().product::<usize>().max(1);
    let outer = &shape[..run_axis];
    let runs_each = (PIECE / run).max(1);
    out.par_chunks_mut(runs_each * run * 4)
        .enumerate()
        .for_each(|(piece, out)| {
            let out = out.as_chunks_mut::<4>().0;
            let base = piece * runs_each;
            for (r, row) in out.chunks_mut(run).enumerate() {
                let mut rest = base + r;
                let mut at = 0;
                for (i, n) in outer.iter().enumerate().rev() {
                    at += rest % n * strides[i];
                    rest /= n;
                }
                let s = f32::from_le_bytes(little[at]);
                let from = &large[(base + r) * run..];
                for (to, l) in row.iter_mut().zip(from) {
                    *to = apply(f32::from_le_bytes(*l), s).to_le_bytes();
                }
            }
        });
    tensor(DType::F32, shape.clone(), out)
}

/// Rounds f32 to a half type; `None` for other types.
pub fn round_f32(t: &HostTensor, to: DType) -> Option<HostTensor> {
    match to {
        DType::F16 => narrow(t, to, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => narrow(t, to, |v| bf16::from_f32(v).to_le_bytes()),
        _ => None,
    }
}

/// Rounds f32 to a half type, finite numbers beyond its range to its largest; `None` for other types.
pub fn saturate_f32(t: &HostTensor, to: DType) -> Option<HostTensor> {
    fn clamp(v: f32, largest: f32) -> f32 {
        if v.is_finite() { v.clamp(-largest, largest) } else { v }
    }
    match to {
        DType::F16 => narrow(t, to, |v| f16::from_f32(clamp(v, f16::MAX.to_f32())).to_le_bytes()),
        DType::BF16 => narrow(t, to, |v| bf16::from_f32(clamp(v, bf16::MAX.to_f32())).to_le_bytes()),
        _ => None,
    }
}

/// Multiplies a matrix of floats by a factor for each position of an axis, in f32; `None` for other tensors.
pub fn scaled(t: &HostTensor, axis: usize, factors: &[f32]) -> Option<HostTensor> {
    let [_, columns] = t.shape[..] else { return None };
    if t.shape.get(axis) != Some(&factors.len()) {
        return None;
    }
    let factor = |i: usize| match axis {
        0 => factors[i / columns],
        _ => factors[i % columns],
    };
    let (size, times) = element_times(t.dtype)?;
    let mut out = t.bytes.to_vec();
    let lines = out.par_chunks_mut(PIECE * size).enumerate();
    lines.for_each(|(piece, out)| {
        for (i, element) in out.chunks_exact_mut(size).enumerate() {
            times(element, factor(piece * PIECE + i));
        }
    });
    tensor(t.dtype, t.shape.clone(), out)
}

/// Bytes of a float, and its product with a factor, in place.
fn element_times(dtype: DType) -> Option<(usize, fn(&mut [u8], f32))> {
    match dtype {
        DType::F16 => Some((2, |to, by| {
            let product = f16::from_le_bytes([to[0], to[1]]).to_f32() * by;
            to.copy_from_slice(&f16::from_f32(product).to_le_bytes());
        })),
        DType::BF16 => Some((2, |to, by| {
            let product = bf16::from_le_bytes([to[0], to[1]]).to_f32() * by;
            to.copy_from_slice(&bf16::from_f32(product).to_le_bytes());
        })),
        DType::F32 => Some((4, |to, by| {
            let product = f32::from_le_bytes([to[0], to[1], to[2], to[3]]) * by;
            to.copy_from_slice(&product.to_le_bytes());
        })),
        _ => None,
    }
}

/// Returns the largest magnitude along an axis of a matrix whose elements are multiplied by a factor for each position
/// of that axis, for each position of the other, before any rounding; NaN where there is one.
pub fn largest_scaled(t: &HostTensor, axis: usize, factors: &[f32]) -> Option<Vec<f32>> {
    let [_, columns] = t.shape[..] else { return None };
    if t.shape.get(axis) != Some(&factors.len()) {
        return None;
    }
    let larger = |a: f32, b: f32| if a.is_nan() || a > b.abs() { a } else { b.abs() };
    let numbers = t.to_f32();
    let lines = numbers.par_chunks(columns.max(1));
    Some(match axis {
        0 => {
            let join = |mut most: Vec<f32>, line: Vec<f32>| {
                most.iter_mut().zip(line).for_each(|(most, v)| *most = larger(*most, v));
                most
            };
            let none = || vec![0.0; columns];
            let times = |(line, by): (&[f32], &f32)| line.iter().map(|v| v * by).collect::<Vec<f32>>();
            lines.zip(factors).map(times).fold(none, join).reduce(none, join)
        }
        _ => lines
            .map(|line| line.iter().zip(factors).fold(0.0, |most, (v, by)| larger(most, v * by)))
            .collect(),
    })
}

fn narrow(t: &HostTensor, to: DType, round: fn(f32) -> [u8; 2]) -> Option<HostTensor> {
    if t.dtype != DType::F32 {
        return None;
    }
    let source = t.bytes.as_chunks::<4>().0;
    let mut out = zeros(source.len() * 2)?;
    out.par_chunks_mut(PIECE * 2)
        .zip(source.par_chunks(PIECE))
        .for_each(|(out, source)| {
            for (to, from) in out.as_chunks_mut::<2>().0.iter_mut().zip(source) {
                *to = round(f32::from_le_bytes(*from));
            }
        });
    tensor(to, t.shape.clone(), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(shape: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(shape, values).unwrap()
    }

    #[test]
    fn joins_elements_of_four_bits_within_bytes() {
        let u4 = |shape: [usize; 2], values: &[f64]| HostTensor::from_f64(DType::U4, shape, values).unwrap();
        // Rows of three and of two: the second part of the first row begins in the middle of a byte.
        let a = u4([2, 3], &[1., 2., 3., 4., 5., 6.]);
        let b = u4([2, 2], &[7., 8., 9., 10.]);
        let along_columns = concat(&[&a, &b], 1).unwrap();
        assert_eq!(along_columns.shape, [2, 5]);
        assert_eq!(along_columns.to_f64(), [1., 2., 3., 7., 8., 4., 5., 6., 9., 10.]);
        let c = u4([1, 3], &[11., 12., 13.]);
        let along_rows = concat(&[&c, &a, &c], 0).unwrap();
        assert_eq!(along_rows.shape, [4, 3]);
        let values = [11., 12., 13., 1., 2., 3., 4., 5., 6., 11., 12., 13.];
        assert_eq!(along_rows.to_f64(), values);
        assert_eq!(concat(&[&u4([0, 3], &[]), &a], 0).unwrap().to_f64(), a.to_f64());
    }

    #[test]
    fn permutes_as_numpy_does() {
        let x = t(&[2, 3, 2], &(0..12).map(|v| v as f32).collect::<Vec<_>>());
        let y = permute(&x, &[2, 0, 1]).unwrap();
        assert_eq!(y.shape, [2, 2, 3]);
        assert_eq!(y.to_f32(), [0., 2., 4., 6., 8., 10., 1., 3., 5., 7., 9., 11.]);
    }

    #[test]
    fn permutes_any_axes_of_any_width() {
        let orders: [&[usize]; 8] = [
            &[1, 0, 2, 3],
            &[0, 2, 3, 1],
            &[3, 2, 1, 0],
            &[2, 3, 0, 1],
            &[0, 1, 3, 2],
            &[3, 0, 1, 2],
            &[1, 2, 3, 0],
            &[0, 3, 2, 1],
        ];
        for shape in [
            [2usize, 67, 5, 70],
            [65, 1, 130, 3],
            [1, 64, 64, 1],
            [3, 0, 2, 5],
            [130, 17, 1, 1],
        ] {
            let elements = shape.iter().product::<usize>();
            let mut strides = [1usize; 4];
            for axis in (1..4).rev() {
                strides[axis - 1] = strides[axis] * shape[axis];
            }
            for (dtype, modulus) in [
                (DType::I8, 127),
                (DType::I16, 30011),
                (DType::I32, 1 << 30),
                (DType::I64, 1 << 40),
            ] {
                let values: Vec<i64> = (0..elements as i64).map(|i| i * 7919 % modulus).collect();
                let x = HostTensor::from_i64(dtype, shape, &values).unwrap();
                for order in orders {
                    let moved: Vec<usize> = order.iter().map(|axis| shape[*axis]).collect();
                    let from: Vec<usize> = order.iter().map(|axis| strides[*axis]).collect();
                    let expected: Vec<i64> = (0..elements).map(|i| values[position(i, &moved, &from)]).collect();
                    let expected = HostTensor::from_i64(dtype, moved, &expected).unwrap();
                    assert_eq!(permute(&x, order).unwrap(), expected, "{dtype} {shape:?} {order:?}");
                }
            }
        }
    }

    #[test]
    fn permutes_elements_of_four_bits() {
        let values: Vec<i64> = (0..15).map(|v| v - 8).collect();
        let x = HostTensor::from_i64(DType::I4, [3, 5], &values).unwrap();
        let y = permute(&x, &[1, 0]).unwrap();
        let expected: Vec<i64> = (0..15).map(|i| values[i % 3 * 5 + i / 3]).collect();
        assert_eq!(y, HostTensor::from_i64(DType::I4, [5, 3], &expected).unwrap());
    }

    #[test]
    fn moving_axes_of_size_one_shares_the_bytes() {
        let x = t(&[4, 3, 1, 1], &[1.0; 12]);
        let y = permute(&x, &[0, 2, 3, 1]).unwrap();
        assert_eq!(y.bytes.as_ptr(), x.bytes.as_ptr());
    }

    #[test]
    fn broadcasts_either_operand() {
        let x = t(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let column = t(&[2, 1], &[10., 20.]);
        assert_eq!(
            binary(BinaryOp::Sub, &x, &column).unwrap().to_f32(),
            [-9., -8., -7., -16., -15., -14.]
        );
        assert_eq!(
            binary(BinaryOp::Sub, &column, &x).unwrap().to_f32(),
            [9., 8., 7., 16., 15., 14.]
        );
        let row = t(&[3], &[1., 0., 2.]);
        assert_eq!(
            binary(BinaryOp::Mul, &x, &row).unwrap().to_f32(),
            [1., 0., 6., 4., 0., 12.]
        );
        assert!(binary(BinaryOp::Mul, &column, &row).is_none(), "an outer product grows");
    }

    #[test]
    fn joins_along_an_inner_axis() {
        let y = concat(&[&t(&[2, 1], &[1., 2.]), &t(&[2, 2], &[3., 4., 5., 6.])], 1).unwrap();
        assert_eq!(y.to_f32(), [1., 3., 4., 2., 5., 6.]);
    }
}
