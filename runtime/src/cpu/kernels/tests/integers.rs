//! Products of integers by every kind of instruction, against sums of plain products.

use std::sync::Mutex;

use crate::cpu::kernels::integers::{
    Dots, IntegerProduct, PackedIntegers, RowOut, Stage, StageOp, StageOut, Stored, SumTile, Sums, floats, multiply,
    stage, store,
};
use crate::cpu::kernels::{Isa, Pool, Workspace};
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
                for (entries, m, k, n) in [
                    (1, 1, 1, 1),
                    (2, 13, 67, 33),
                    (1, 25, 1200, 17),
                    (3, 7, 4, 70),
                    (1, 200, 9, 8),
                ] {
                    let (a, b) = (bytes(entries * m * k, 3), bytes(k * n, 5));
                    let packed = [PackedIntegers::new(dots, k, n, |row, col| b[row * n + col])];
                    let got = Mutex::new(vec![0i32; entries * m * n]);
                    let row = |entry: usize, row: usize, to: &mut RowOut| {
                        let from = &a[(entry * m + row) * k..][..k];
                        // The first half as it lies, then by steps.
                        let half = k / 2;
                        // SAFETY: all of the row's elements.
                        unsafe {
                            to.copy(0, from.as_ptr(), half, 1);
                            (half..k).for_each(|i| to.copy(i, from[i..].as_ptr(), 1, 7));
                        }
                    };
                    let finish = |tile: &SumTile| {
                        let mut got = got.lock().expect("no test thread panicked");
                        for (i, row) in tile.rows.clone().enumerate() {
                            for (j, col) in tile.cols.clone().enumerate() {
                                // SAFETY: inside the tile.
                                got[(tile.entry * m + row) * n + col] = unsafe { *tile.sums.add(i * tile.stride + j) };
                            }
                        }
                    };
                    let product = IntegerProduct {
                        entries,
                        m,
                        weights: &packed,
                        row: &row,
                        finish: &finish,
                    };
                    let mut ws = Workspace::with_isa(Arc::new(Pool::new(threads)), isa);
                    // SAFETY: `row` writes all elements; the kinds are those of this processor.
                    unsafe { multiply(&mut ws, &product) };
                    let got = got.into_inner().expect("no test thread panicked");
                    for (i, got) in got.iter().enumerate() {
                        let (row, col) = (i / n, i % n);
                        let product = |p: usize| i32::from(a[row * k + p]) * i32::from(b[p * n + col]);
                        let expected: i32 = (0..k).map(product).sum();
                        assert_eq!(*got, expected, "{dots:?} {entries}x{m}x{k}x{n} at {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn stages_are_their_arithmetic() {
    let (rows, cols, stride) = (5, 19, 24);
    let sums: Vec<i32> = (0..rows * stride).map(|i| i as i32 * 37 - 2000).collect();
    let addend: Vec<i32> = (0..cols).map(|i| i as i32 * 11 - 90).collect();
    let scales: Vec<f32> = (0..cols).map(|i| 0.01 + i as f32 / 256.0).collect();
    let residual = bytes(rows * 30, 9);
    for isa in Isa::all() {
        let mut values = vec![0f32; rows * stride];
        let mut out = vec![0i8; rows * 40];
        let all = [
            Stage::Columns(StageOp::Mul, scales.as_ptr()),
            Stage::Residual {
                from: residual.as_ptr().cast(),
                stored: Stored::I8,
                step: 30,
                zero: 4.0,
                scale: 0.125,
            },
            Stage::Number(StageOp::Max, 0.0),
            Stage::Number(StageOp::Div, 0.25),
            Stage::Round,
            Stage::Number(StageOp::Sub, 60.0),
            Stage::Number(StageOp::Max, -128.0),
            Stage::Number(StageOp::Min, 127.0),
        ];
        let from = Sums {
            from: sums.as_ptr(),
            stride,
            rows,
            cols,
            addend: addend.as_ptr(),
        };
        let to = StageOut {
            to: out.as_mut_ptr().cast(),
            stored: Stored::I8,
            row: 40,
            col: 2,
        };
        // SAFETY: everything is as large as the sizes say.
        unsafe {
            floats(isa, from, values.as_mut_ptr());
            for s in all {
                stage(isa, s, values.as_mut_ptr(), rows, cols, stride);
            }
            store(isa, values.as_ptr(), rows, cols, stride, to);
        }
        for row in 0..rows {
            for col in 0..cols {
                let sum = (sums[row * stride + col] + addend[col]) as f32;
                let number = sum * scales[col] + (f32::from(residual[row * 30 + col]) - 4.0) * 0.125;
                let expected = ((number.max(0.0) / 0.25).round_ties_even() - 60.0).clamp(-128.0, 127.0);
                assert_eq!(f32::from(out[row * 40 + col * 2]), expected, "{isa:?} at {row}, {col}");
            }
        }
    }
}
