//! Stages of floats that lie one after another, lookups, and sums that become bytes.

use ir::op::UnaryOp;

use super::Rng;
use crate::cpu::kernels::Isa;
use crate::cpu::kernels::math::unary;
use crate::cpu::kernels::stages::{Across, Stage, StageOp, StageOut, Stored, Sums, finish, stages_of_floats};

/// Stores floats one after another.
fn stored(isa: Isa, to: &mut [f32]) -> Stage {
    Stage::Store(StageOut {
        to: to.as_mut_ptr().cast(),
        stored: Stored::F32,
        row: 2 * isa.lanes() as isize,
        cols: Across::Apart(1),
    })
}

#[test]
fn floats_of_every_count_go_through_stages() {
    let mut rng = Rng(21);
    let table: Vec<f32> = (0..256).map(|i| i as f32 * 0.75 - 31.0).collect();
    let stages = [
        Stage::Number(StageOp::Mul, 300.0),
        Stage::RoundQuotient(1.7),
        Stage::Number(StageOp::Add, 3.0),
        Stage::Number(StageOp::Max, -128.0),
        Stage::Number(StageOp::Min, 127.0),
        Stage::Table(table.as_ptr()),
        Stage::Number(StageOp::Sub, 0.5),
        Stage::Round,
    ];
    for isa in Isa::all() {
        for n in (0..70).chain([127, 128, 129, 300, 1024]) {
            let from = rng.floats(n);
            let mut to = vec![f32::MAX; n + 1];
            let out = stored(isa, &mut to);
            let stages: Vec<Stage> = stages.iter().copied().chain([out]).collect();
            // SAFETY: both have so many floats, the table as many as a byte has values.
            unsafe { stages_of_floats(isa, from.as_ptr(), n, &stages) };
            assert_eq!(to[n], f32::MAX, "{isa:?}: nothing is written behind {n}");
            for (x, got) in from.iter().zip(&to) {
                let whole = ((x * 300.0) / 1.7).round_ties_even() + 3.0;
                let byte = whole.clamp(-128.0, 127.0) as i8 as u8;
                let want = (table[usize::from(byte)] - 0.5).round_ties_even();
                assert_eq!(*got, want, "{isa:?}: {x} of {n}");
            }
        }
    }
}

#[test]
fn functions_of_stages_are_those_of_blocks() {
    let mut rng = Rng(22);
    for isa in Isa::all() {
        for function in [UnaryOp::Gelu, UnaryOp::Tanh, UnaryOp::Exp] {
            for n in (0..70).chain([129, 300]) {
                let mut from = rng.floats(n);
                for (x, special) in from
                    .iter_mut()
                    .zip([f32::NAN, f32::INFINITY, -f32::INFINITY, 1e-40, -0.0])
                {
                    *x = special;
                }
                let mut to = vec![f32::MAX; n + 1];
                let out = stored(isa, &mut to);
                // SAFETY: both have so many floats.
                unsafe { stages_of_floats(isa, from.as_ptr(), n, &[Stage::Function(isa, function), out]) };
                let mut want = vec![0.0; n];
                unary(isa, function, &mut want, &from);
                assert_eq!(to[n], f32::MAX, "{isa:?}: nothing is written behind {n}");
                let bits = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                assert!(
                    to.iter().zip(&want).all(|(a, b)| bits(a) == bits(b)),
                    "{isa:?}: {function:?} of {n}"
                );
            }
        }
    }
}

/// One number as a list of stages says, of which none reads others than columns and bytes.
pub fn by_stages(mut x: f32, stages: &[Stage], row: usize, col: usize) -> f32 {
    let apply = |op: StageOp, x: f32, y: f32| match op {
        StageOp::Add => x + y,
        StageOp::Sub => x - y,
        StageOp::Mul => x * y,
        StageOp::Div => x / y,
        // Of NaN the left one stays.
        StageOp::Max if x.is_nan() => x,
        StageOp::Max => x.max(y),
        StageOp::Min if x.is_nan() => x,
        StageOp::Min => x.min(y),
    };
    for stage in stages {
        x = match *stage {
            Stage::Number(op, y) => apply(op, x, y),
            // SAFETY: there are as many numbers as columns.
            Stage::Columns(op, from) => apply(op, x, unsafe { *from.add(col) }),
            Stage::Residual {
                from,
                step,
                zero,
                scale,
                positive,
                stored,
            } => {
                let at = row as isize * step + col as isize;
                // SAFETY: there are as many bytes as sums.
                let byte = unsafe { *from.offset(at) };
                let byte = match stored {
                    Stored::I8 => f32::from(byte as i8),
                    _ => f32::from(byte),
                };
                let more = (byte - zero) * scale;
                x + if positive { more.max(0.0) } else { more }
            }
            Stage::Round => x.round_ties_even(),
            Stage::RoundQuotient(by) => (x / by).round_ties_even(),
            _ => x,
        };
    }
    x
}

/// Sums of every size end as bytes as each stage says: near ties, past either end of the range, with a residual in
/// whose place they are stored, and quantised once more.
#[test]
fn sums_become_bytes_as_stages_say() {
    let mut rng = Rng(23);
    for isa in Isa::all() {
        for (case, (rows, cols)) in [(1, 1usize), (3, 16), (4, 32), (5, 33), (9, 48), (12, 64), (7, 95)]
            .into_iter()
            .flat_map(|size| [size; 12])
            .enumerate()
        {
            let form = case % 12;
            let (signed, residual, once, rounded) = (form % 2 == 0, form / 2 % 3 == 1, form < 6, form / 2 % 3 == 2);
            // Quotients are near ties where they are all but whole halves; else they rarely are.
            let tied = case % 5 == 0;
            let scale = if tied { 0.1 } else { 0.0173 };
            let (by, again, second) = if tied { (0.2, 0.3, 0.2) } else { (0.37, 0.41, 0.53) };
            let most = [200, 3_000, 40_000, i32::MAX / 2][case % 4];
            let stride = cols.next_multiple_of(32);
            let sums: Vec<i32> = (0..rows * stride).map(|_| (rng.next() as i32) % most).collect();
            let excess: Vec<i32> = (0..stride).map(|_| (rng.next() as i32) % 100).collect();
            let mut biases: Vec<f32> = (0..stride)
                .map(|_| (rng.next() as i32 % 64) as f32 * if tied { 0.1 } else { 0.11 })
                .collect();
            if case % 7 == 3 {
                biases[0] = [f32::INFINITY, f32::NEG_INFINITY, 1e30][case % 3];
            }
            let [low, high] = if signed { [-128.0, 127.0] } else { [0.0, 255.0] };
            let zero = if case % 3 == 0 { 0.0 } else { low + 5.0 };
            let mut bytes: Vec<u8> = (0..rows * stride).map(|_| rng.next() as u8).collect();
            let before = bytes.clone();
            let stored = if signed { Stored::I8 } else { Stored::U8 };
            let mut stages = vec![
                Stage::Number(StageOp::Mul, scale),
                Stage::Columns(StageOp::Add, biases.as_ptr()),
                if case % 13 < 4 {
                    Stage::Round
                } else {
                    Stage::RoundQuotient(by)
                },
                Stage::Number(StageOp::Add, zero),
                Stage::Number(StageOp::Max, low),
                Stage::Number(StageOp::Min, high),
            ];
            if !once {
                stages.extend([Stage::Number(StageOp::Sub, zero), Stage::Number(StageOp::Mul, again)]);
                if residual {
                    stages.push(Stage::Residual {
                        from: bytes.as_ptr(),
                        stored,
                        step: stride as isize,
                        zero: 3.0,
                        scale: if tied { 0.1 } else { 0.29 },
                        positive: case % 4 == 1,
                    });
                }
                if case % 3 == 1 {
                    stages.push(Stage::Number(StageOp::Max, 0.0));
                }
                stages.extend([
                    if rounded {
                        Stage::Round
                    } else {
                        Stage::RoundQuotient(second)
                    },
                    Stage::Number(StageOp::Add, zero),
                    Stage::Number(StageOp::Max, low),
                    // A range that is not the type's is cut too.
                    Stage::Number(StageOp::Min, if case % 11 == 2 { 90.0 } else { high }),
                ]);
            }
            let read = stages.clone();
            stages.push(Stage::Store(StageOut {
                to: bytes.as_mut_ptr(),
                stored,
                row: stride as isize,
                cols: Across::Apart(1),
            }));
            let tile = Sums {
                from: sums.as_ptr(),
                stride,
                rows,
                cols,
                excess: excess.as_ptr(),
                factor: None,
                addend: std::ptr::null(),
                each: (std::ptr::null(), 0),
                outer: None,
            };
            // SAFETY: all that is named has so many rows and columns.
            unsafe { finish(isa, &tile, &stages) };
            let got = bytes.clone();
            // What is wanted reads the residual as it was.
            bytes.copy_from_slice(&before);
            for (i, got) in got.iter().enumerate() {
                let (row, col) = (i / stride, i % stride);
                if col >= cols {
                    assert_eq!(*got, before[i], "{isa:?}: nothing is written behind column {cols}");
                    continue;
                }
                let sum = sums[i].wrapping_sub(excess[col]);
                let want = by_stages(sum as f32, &read, row, col) as i32 as u8;
                assert_eq!(
                    *got, want,
                    "{isa:?}: form {form} of {rows} by {cols}, case {case}, sum {sum} at {row}, {col}"
                );
            }
        }
    }
}
