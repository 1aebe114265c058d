//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
//! 2011).
//!
//! Element `i` (row-major) of [`Op::Random`](crate::graph::Op::Random) uses one block: counter words
//! `(i mod 2^32, i / 2^32, 0, 0)`, key words `(seed mod 2^32, seed / 2^32)`. With words `w0`, `w1` of the block and
//! `u(w) = (w >> 8) · 2^-24`:
//!
//! - uniform: `low + u(w0) · (high − low)`;
//! - normal: `mean + deviation · √(−2 ln(u(w0) + 2^-24)) · cos(2π u(w1))`.

use super::Array;
use crate::graph::op::RandomKind;
use crate::types::DType;

/// Returns the four words of the block at `counter` for `seed`.
pub fn philox(seed: u64, counter: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    for round in 0..10 {
        if round > 0 {
            key[0] = key[0].wrapping_add(0x9E37_79B9);
            key[1] = key[1].wrapping_add(0xBB67_AE85);
        }
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
    }
    c
}

/// Returns the number in `[0, 1)` that the upper 24 bits of a word make.
pub fn unit(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1u32 << 24)
}

/// Returns element `index` of a distribution, in `f64`.
pub fn draw(kind: RandomKind, seed: u64, index: u64) -> f64 {
    let words = philox(seed, index);
    match kind {
        RandomKind::Uniform { low, high } => low.as_f64() + unit(words[0]) * (high.as_f64() - low.as_f64()),
        RandomKind::Normal { mean, deviation } => {
            let radius = (-2.0 * (unit(words[0]) + 2f64.powi(-24)).ln()).sqrt();
            mean.as_f64() + deviation.as_f64() * radius * (2.0 * std::f64::consts::PI * unit(words[1])).cos()
        }
    }
}

pub(super) fn random(kind: RandomKind, shape: Vec<usize>, seed: u64, dtype: DType) -> Array {
    let n: usize = shape.iter().product();
    Array::float(dtype, shape, (0..n as u64).map(|i| draw(kind, seed, i)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        // Random123's known answers for philox4x32-10: all-zero counter and key.
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }

    #[test]
    fn normal_numbers_have_the_moments_asked_for() {
        let kind = RandomKind::Normal {
            mean: crate::types::Scalar::Float(2.0),
            deviation: crate::types::Scalar::Float(3.0),
        };
        let v: Vec<f64> = (0..20_000).map(|i| draw(kind, 7, i)).collect();
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let variance = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64;
        assert!(
            (mean - 2.0).abs() < 0.1 && (variance - 9.0).abs() < 0.4,
            "{mean} {variance}"
        );
    }
}
