//! Stages of floats that lie one after another, and lookups.

use super::Rng;
use crate::cpu::kernels::Isa;
use crate::cpu::kernels::math::{Unary, unary};
use crate::cpu::kernels::stages::{Across, Stage, StageOp, StageOut, Stored, stages_of_floats};

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
        for function in [Unary::Gelu {}, Unary::Tanh {}, Unary::Exp {}] {
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
