//! Every kernel against a plain f64 reference, at every instruction level of this processor, with 1 and 2 threads.

mod attention;
mod byte_ends;
mod chosen;
mod conv;
mod gemm;
mod halves;
mod in_place;
mod integers;
mod math;
mod pool;
mod quantised;
mod room;
mod rows;
mod stages;
mod window_sums;

use std::sync::Arc;

use super::{Isa, Pool, Workspace};

/// A small seeded generator (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// One of `choices`.
    pub fn pick(&mut self, choices: &[usize]) -> usize {
        choices[self.below(choices.len())]
    }
}

/// Workspaces of every level with one and with two threads.
pub fn workspaces() -> Vec<Workspace> {
    let pools = [Arc::new(Pool::new(1)), Arc::new(Pool::new(2))];
    let each = |isa: Isa| {
        pools
            .iter()
            .map(move |pool| Workspace::with_isa(pool.clone(), isa))
            .collect::<Vec<_>>()
    };
    Isa::all().flat_map(each).collect()
}

/// Fails unless `got` is within `rtol * |want| + atol` of `want`, or both are NaN, or equal.
#[track_caller]
pub fn assert_close(got: f32, want: f64, rtol: f64, atol: f64, what: &dyn std::fmt::Debug) {
    let same = f64::from(got) == want || (got.is_nan() && want.is_nan());
    assert!(
        same || (f64::from(got) - want).abs() <= rtol * want.abs() + atol,
        "{what:?}: got {got}, want {want}"
    );
}
