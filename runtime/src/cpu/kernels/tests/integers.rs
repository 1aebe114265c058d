//! Products of integers by every kind of instruction, against sums of plain products.

use std::sync::Mutex;

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
                    // Panels of several blocks, blocks of several panels, blocks that share what one instruction takes.
                    (2, 13, [6, 3], 15),
                    (1, 9, [34, 34], 4),
                    (1, 50, [3, 70], 3),
                    (2, 5, [1, 32], 5),
                ] {
                    let (k, n) = (deep * blocks, columns * blocks);
                    let (a, b) = (bytes(entries * m * k, 3), bytes(deep * n, 5));
                    let at = |row: usize, col: usize| b[row % deep * n + col];
                    let packed = [PackedIntegers::blocks(dots, [deep, columns], blocks, at)];
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
            for signed in [true, false] {
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
                        let number = (sum(row, col) as f32 * scales[col] + (more - 4.0) * 0.125) * heights[row];
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
