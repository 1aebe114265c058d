//! Products of integers by every kind of instruction, against sums of plain products.

use std::sync::Mutex;

use super::Rng;
use crate::cpu::kernels::depthwise_integers::{DepthwiseIntegers, Filters, depthwise};
use crate::cpu::kernels::dots::Dots;
use crate::cpu::kernels::integers::{IntegerProduct, PackedIntegers, RowsOut, SumTile, multiply};
use crate::cpu::kernels::stages::{Across, Outer, Stage, StageOp, StageOut, Stored, Sums, Times, finish, store_sums};
use crate::cpu::kernels::{Isa, Pool, Workspace};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are the same every run, the extremes among them.
fn bytes(count: usize, seed: u64) -> Vec<i8> {
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 7 {
            0 => -128,
            1 => 127,
            _ => (state >> 32) as i8,
        }
    };
    (0..count).map(next).collect()
}

#[test]
fn sums_are_exact_on_every_instruction() {
    for isa in Isa::all() {
        for dots in Dots::all(isa) {
            for threads in [1, 3] {
                for (entries, m, [deep, columns], blocks) in [
                    (1, 1, [1, 1], 1),
                    (2, 13, [67, 33], 1),
                    (1, 25, [1200, 17], 1),
                    (3, 7, [4, 70], 1),
                    (1, 200, [9, 8], 1),
                    (2, 40, [9, 24], 1),
                    (1, 29, [5, 40], 1),
                    (1, 130, [20, 250], 1),
                    (1, 700, [3, 1], 1),
                    // Panels of several blocks, blocks of several panels, blocks that share what one instruction takes.
                    (2, 13, [6, 3], 15),
                    (1, 9, [34, 34], 4),
                    (1, 50, [3, 70], 3),
                    (2, 5, [1, 32], 5),
                ] {
                    let (k, n) = (deep * blocks, columns * blocks);
                    let (a, b) = (bytes(entries * m * k, 3), bytes(deep * n, 5));
                    let at = |row: usize, col: usize| b[row % deep * n + col];
                    let packed = [PackedIntegers::blocks(dots, [deep, columns], blocks, at).expect("memory")];
                    let got = Mutex::new(vec![0i32; entries * m * n]);
                    let rows = |entry: usize, rows: Range<usize>, to: &mut RowsOut| {
                        for (number, row) in rows.enumerate() {
                            let from = &a[(entry * m + row) * k..][..k];
                            // The first half as it lies, then by steps.
                            let half = k / 2;
                            // SAFETY: all of the row's elements.
                            unsafe {
                                let mut to = to.row(number);
                                to.copy(0, from.as_ptr(), half, 1);
                                (half..k).for_each(|i| to.copy(i, from[i..].as_ptr(), 1, 7));
                            }
                        }
                    };
                    let finish = |tile: &SumTile| {
                        let mut got = got.lock().expect("no test thread panicked");
                        for (i, row) in tile.rows.clone().enumerate() {
                            for (j, col) in tile.cols.clone().enumerate() {
                                // SAFETY: inside the tile.
                                let (sum, excess) = unsafe {
                                    let sum = *tile.sums.add(i * tile.stride + j);
                                    (sum, if tile.excess.is_null() { 0 } else { *tile.excess.add(j) })
                                };
                                got[(tile.entry * m + row) * n + col] = sum.wrapping_sub(excess);
                            }
                        }
                    };
                    let product = IntegerProduct {
                        entries,
                        m,
                        weights: &packed.each_ref().map(PackedIntegers::panels),
                        rows: &rows,
                        finish: &finish,
                        bytes: None,
                    };
                    let mut ws = Workspace::with_isa(Arc::new(Pool::new(threads)), isa);
                    // SAFETY: `row` writes all elements; the kinds are those of this processor.
                    unsafe { multiply(&mut ws, &product) };
                    let got = got.into_inner().expect("no test thread panicked");
                    for (i, got) in got.iter().enumerate() {
                        let (row, col) = (i / n, i % n);
                        let first = col / columns * deep;
                        let product = |p: usize| i32::from(a[row * k + first + p]) * i32::from(b[p * n + col]);
                        let expected: i32 = (0..deep).map(product).sum();
                        assert_eq!(*got, expected, "{dots:?} {entries}x{m}x{k}x{n} at {i}");
                    }
                }
            }
        }
    }
}

/// Stages over tiles of widths that do and do not fill vectors, stored side by side and apart, as bytes and as floats.
#[test]
fn stages_are_their_arithmetic() {
    for (rows, cols, apart, with_each) in [
        (5, 19, 1, false),
        (4, 32, 1, true),
        (9, 64, 1, false),
        (9, 64, 1, true),
        (3, 40, 2, true),
        (1, 1, 3, false),
        (6, 33, 3, true),
        (12, 16, 1, false),
    ] {
        let stride = cols + 5;
        let sums: Vec<i32> = (0..rows * stride).map(|i| i as i32 * 37 - 2000).collect();
        let excess: Vec<i32> = (0..cols).map(|i| 70 - i as i32 * 3).collect();
        let addend: Vec<i32> = (0..cols).map(|i| i as i32 * 11 - 90).collect();
        let down: Vec<i32> = (0..2 * rows).map(|i| 5 - i as i32).collect();
        let factors: Vec<i32> = (0..cols).map(|i| i as i32 % 5 - 2).collect();
        let each: Vec<i32> = (0..rows * 70).map(|i| i as i32 * 3 - 400).collect();
        let factors_across: Vec<i32> = (0..cols).map(|i| i as i32 % 7 - 3).collect();
        let scales: Vec<f32> = (0..cols).map(|i| 0.01 + i as f32 / 256.0).collect();
        let heights: Vec<f32> = (0..rows).map(|i| 0.5 + i as f32 / 8.0).collect();
        let residual = bytes(rows * 80, 9);
        let from = Sums {
            from: sums.as_ptr(),
            stride,
            rows,
            cols,
            excess: excess.as_ptr(),
            factor: match (with_each, cols % 2) {
                (false, _) => None,
                (true, 0) => Some(Times::Columns(factors.as_ptr())),
                (true, _) => Some(Times::Number(-7)),
            },
            addend: addend.as_ptr(),
            each: match with_each {
                true => (each.as_ptr(), 70),
                false => (std::ptr::null(), 0),
            },
            outer: Some(Outer {
                rows: down.as_ptr(),
                step: 2,
                cols: Times::Columns(factors_across.as_ptr()),
            }),
        };
        let sum = |row: usize, col: usize| {
            let (factor, each) = match with_each {
                true if cols % 2 == 0 => (factors[col], each[row * 70 + col]),
                true => (-7, each[row * 70 + col]),
                false => (1, 0),
            };
            (sums[row * stride + col] - excess[col]) * factor + addend[col] + down[2 * row] * factors_across[col] + each
        };
        let line = 3 * 64 + 7;
        // Three apart they lie in turned order, each at a place of its own.
        let places: Vec<isize> = (0..cols as isize).map(|col| (cols as isize - 1 - col) * 3).collect();
        let across = match apart {
            3 => Across::Places(places.as_ptr()),
            _ => Across::Apart(apart as isize),
        };
        let place = |row: usize, col: usize| match apart {
            3 => row * line + places[col] as usize,
            _ => row * line + col * apart,
        };
        for isa in Isa::all() {
            for (signed, positive) in [(true, false), (false, true), (true, true)] {
                let (mut out, mut floats) = (vec![0i8; rows * line], vec![0f32; rows * line]);
                let mut whole = vec![0i32; rows * line];
                let to = |to: *mut u8, stored: Stored| StageOut {
                    to,
                    stored,
                    row: line as isize,
                    cols: across,
                };
                let all = [
                    Stage::Columns(StageOp::Mul, scales.as_ptr()),
                    Stage::Residual {
                        from: residual.as_ptr().cast(),
                        stored: if signed { Stored::I8 } else { Stored::U8 },
                        step: 80,
                        zero: 4.0,
                        scale: 0.125,
                        positive,
                    },
                    Stage::Rows(StageOp::Mul, heights.as_ptr(), 1),
                    Stage::Number(StageOp::Max, 0.0),
                    Stage::Number(StageOp::Div, 0.25),
                    Stage::Store(to(floats.as_mut_ptr().cast(), Stored::F32)),
                    Stage::Round,
                    Stage::Number(StageOp::Sub, 60.0),
                    Stage::Number(StageOp::Max, -128.0),
                    Stage::Number(StageOp::Min, 127.0),
                    Stage::Store(to(out.as_mut_ptr().cast(), Stored::I8)),
                ];
                // SAFETY: everything is as large as the sizes say.
                unsafe {
                    finish(isa, &from, &all);
                    store_sums(isa, &from, to(whole.as_mut_ptr().cast(), Stored::I32));
                }
                let mut written = 0;
                for row in 0..rows {
                    for col in 0..cols {
                        let more = residual[row * 80 + col];
                        let more = if signed { f32::from(more) } else { f32::from(more as u8) };
                        let more = (more - 4.0) * 0.125;
                        let more = if positive { more.max(0.0) } else { more };
                        let number = (sum(row, col) as f32 * scales[col] + more) * heights[row];
                        let number = number.max(0.0) / 0.25;
                        let at = place(row, col);
                        assert_eq!(floats[at], number, "{isa:?} {rows}x{cols} at {row}, {col}");
                        let expected = (number.round_ties_even() - 60.0).clamp(-128.0, 127.0);
                        assert_eq!(f32::from(out[at]), expected, "{isa:?} {rows}x{cols} at {row}, {col}");
                        assert_eq!(whole[at], sum(row, col), "{isa:?} {rows}x{cols} at {row}, {col}");
                        written += usize::from(expected != 0.0);
                    }
                }
                let kept = out.iter().filter(|v| **v != 0).count();
                assert_eq!(kept, written, "{isa:?} {rows}x{cols}: nothing else is written");
            }
        }
    }
}

/// Quotients that are rounded are those of a division: also at and beside ties, and where an inverse is no number.
#[test]
fn rounded_quotients_are_those_of_division() {
    let by = [
        0.25f32,
        0.016_206_977,
        3.0,
        1.0 / 3.0,
        7.5e-39,
        1.0e38,
        f32::MAX,
        f32::MIN_POSITIVE,
        -0.7,
    ];
    for by in by {
        // Multiples of halves of the divisor are ties, or beside them.
        let ties = (-300..300).map(|i| by * (i as f32 * 0.5));
        let beside = ties.clone().flat_map(|x| [x.next_up(), x.next_down()]);
        let odd = [
            0.0,
            -0.0,
            f32::NAN,
            f32::INFINITY,
            f32::MAX,
            f32::MIN_POSITIVE,
            1.0e-40,
            8_388_607.5 * by,
        ];
        let values: Vec<f32> = ties.clone().chain(beside).chain(odd).collect();
        let rows = values.len().div_ceil(32);
        let sums = vec![0i32; rows * 32];
        let mut given = values.clone();
        given.resize(rows * 32, 1.0);
        for isa in Isa::all() {
            let mut out = vec![0f32; rows * 32];
            let from = Sums {
                from: sums.as_ptr(),
                stride: 32,
                rows,
                cols: 32,
                excess: std::ptr::null(),
                factor: None,
                addend: std::ptr::null(),
                each: (std::ptr::null(), 0),
                outer: None,
            };
            let stages = [
                Stage::Residual {
                    from: given.as_ptr().cast(),
                    stored: Stored::F32,
                    step: 32,
                    zero: 0.0,
                    scale: 1.0,
                    positive: false,
                },
                Stage::RoundQuotient(by),
                Stage::Store(StageOut {
                    to: out.as_mut_ptr().cast(),
                    stored: Stored::F32,
                    row: 32,
                    cols: Across::Apart(1),
                }),
            ];
            // SAFETY: everything is as large as the sizes say.
            unsafe { finish(isa, &from, &stages) };
            for (x, got) in values.iter().zip(&out) {
                let want = (x / by).round_ties_even();
                let same = (want.is_nan() && got.is_nan()) || want == *got;
                assert!(same, "{isa:?}: {x:e} / {by:e} is {got}, should be {want}");
            }
        }
    }
}

/// A requantisation is what its stages say one by one: of sums at and beside ties, of scales, biases and divisors of
/// every size.
#[test]
fn requantised_sums_are_those_of_stages() {
    let mut rng = Rng(77);
    for (rows, cols) in [(1, 1), (3, 7), (5, 16), (4, 32), (9, 33), (12, 64), (40, 70)] {
        for case in 0..12 {
            let by = [0.25f32, 0.016_206_977, 3.0, 1.0e-3, 1.0e38, 7.5e-39][case % 6];
            let zero = [0.0f32, -128.0, 3.0][case % 3];
            let (low, high) = if case % 2 == 0 {
                (-128.0f32, 127.0f32)
            } else {
                (0.0, 255.0)
            };
            let relu = case % 4 == 1;
            let scales: Vec<f32> = (0..cols)
                .map(|i| match i % 11 {
                    7 => by * 0.5,
                    8 if case == 5 => f32::INFINITY,
                    _ => by * rng.float() * 0.1,
                })
                .collect();
            let biases: Vec<f32> = (0..cols)
                .map(|i| match i % 13 {
                    9 if case == 7 => f32::NAN,
                    10 if case == 8 => 1.0e30,
                    11 => by * 0.5,
                    _ => by * rng.float() * 20.0,
                })
                .collect();
            let sums: Vec<i32> = (0..rows * cols)
                .map(|i| match i % 17 {
                    0 => i32::MAX,
                    1 => i32::MIN,
                    _ => (rng.float() * 3000.0) as i32,
                })
                .collect();
            let from = Sums {
                from: sums.as_ptr(),
                stride: cols,
                rows,
                cols,
                excess: std::ptr::null(),
                factor: None,
                addend: std::ptr::null(),
                each: (std::ptr::null(), 0),
                outer: None,
            };
            for isa in Isa::all() {
                let (mut bytes, mut floats) = (vec![0i8; rows * cols], vec![0f32; rows * cols]);
                let to = |to: *mut u8, stored: Stored| StageOut {
                    to,
                    stored,
                    row: cols as isize,
                    cols: Across::Apart(1),
                };
                let mut stages = vec![
                    Stage::Columns(StageOp::Mul, scales.as_ptr()),
                    Stage::Columns(StageOp::Add, biases.as_ptr()),
                ];
                if relu {
                    stages.push(Stage::Number(StageOp::Max, 0.0));
                }
                stages.extend([
                    Stage::RoundQuotient(by),
                    Stage::Number(StageOp::Add, zero),
                    Stage::Number(StageOp::Max, low),
                    Stage::Number(StageOp::Min, high),
                    Stage::Store(to(bytes.as_mut_ptr().cast(), Stored::I8)),
                    Stage::Number(StageOp::Sub, zero),
                    Stage::Number(StageOp::Mul, 0.3),
                    Stage::Store(to(floats.as_mut_ptr().cast(), Stored::F32)),
                ]);
                // SAFETY: everything is as large as the sizes say.
                unsafe { finish(isa, &from, &stages) };
                for i in 0..rows * cols {
                    let mut x = sums[i] as f32 * scales[i % cols] + biases[i % cols];
                    if relu && x < 0.0 {
                        x = 0.0;
                    }
                    let whole = (x / by).round_ties_even() + zero;
                    let whole = if whole.is_nan() { whole } else { whole.clamp(low, high) };
                    let want = (whole - zero) * 0.3;
                    let what = || format!("{isa:?} {rows}x{cols} case {case} at {i}: {x:e} / {by:e}");
                    assert!(floats[i] == want || floats[i].is_nan() && want.is_nan(), "{}", what());
                    if !whole.is_nan() {
                        assert_eq!(bytes[i], whole as i32 as i8, "{}", what());
                    }
                }
            }
        }
    }
}

/// Runs of pixels of a depthwise convolution, with rows above and below the image, and channels of every count.
#[test]
fn runs_of_depthwise_pixels_are_exact() {
    let mut rng = Rng(5);
    let sizes = [
        (9, 1),
        (9, 16),
        (9, 24),
        (9, 64),
        (9, 70),
        (9, 130),
        (6, 33),
        (1, 8),
        (25, 17),
        (49, 20),
    ];
    // Neighbouring pixels share taps, or every other one.
    let cases = sizes.into_iter().flat_map(|size| [(size, 1), (size, 2)]);
    for ((taps, channels), apart) in cases {
        for ones in [false, true] {
            let (pixels, entries, step) = (45, 2, apart * channels);
            let image = bytes(entries * (pixels * step + taps * channels), 3);
            let weights = match ones {
                true => vec![1i8; taps * channels],
                false => bytes(taps * channels, 9),
            };
            let whole = pixels * step + taps * channels;
            // Runs of several lengths, in which every third has taps that are outside.
            let runs = [1, 7, 2, 20, 15];
            let run_of = |row: usize| {
                let (mut number, mut end) = (0, runs[0]);
                while row >= end {
                    number += 1;
                    end += runs[number];
                }
                (number, end - row)
            };
            let is_outside = |row: usize, tap: usize| run_of(row).0 % 3 == 1 && tap.is_multiple_of(3);
            let tell = |entry: usize, row: usize, places: &mut [*const i8]| {
                for (tap, place) in places.iter_mut().enumerate() {
                    *place = match is_outside(row, tap) {
                        true => std::ptr::null(),
                        false => image[entry * whole + row * step + tap * channels..].as_ptr(),
                    };
                }
                run_of(row).1
            };
            let got = Mutex::new(vec![0i32; entries * pixels * channels]);
            let finish = |tile: &SumTile| {
                let mut got = got.lock().expect("no test thread panicked");
                for (i, row) in tile.rows.clone().enumerate() {
                    for (j, col) in tile.cols.clone().enumerate() {
                        // SAFETY: inside the tile.
                        let sum = unsafe { *tile.sums.add(i * tile.stride + j) };
                        got[(tile.entry * pixels + row) * channels + col] = sum;
                    }
                }
            };
            let padding = rng.next() as i8;
            for isa in Isa::all() {
                let filters = Filters::of(isa, &weights, channels, None);
                let convolution = DepthwiseIntegers {
                    entries,
                    m: pixels,
                    channels,
                    weights: &weights,
                    filters: filters.as_ref(),
                    ones,
                    padding,
                    taps: &tell,
                    step: step as isize,
                    windows: None,
                    finish: &finish,
                    bytes: None,
                };
                let mut ws = Workspace::with_isa(Arc::new(Pool::new(2)), isa);
                // SAFETY: places have all channels.
                unsafe { depthwise(&mut ws, &convolution) };
                let got = got.lock().expect("no test thread panicked");
                for (i, got) in got.iter().enumerate() {
                    let (entry, row, channel) = (i / channels / pixels, i / channels % pixels, i % channels);
                    let product = |tap: usize| {
                        let value = match is_outside(row, tap) {
                            true => padding,
                            false => image[entry * whole + row * step + tap * channels + channel],
                        };
                        i32::from(value) * i32::from(weights[tap * channels + channel])
                    };
                    let want: i32 = (0..taps).map(product).sum();
                    assert_eq!(
                        *got, want,
                        "{isa:?} {taps} taps, {channels} channels, {apart} apart, at {i}"
                    );
                }
            }
        }
    }
}
