//! The K-quants: 256 elements, whose sub-blocks have scales (and minima) of few bits, scaled once more by the block's
//! own.

use super::{half_at, high, low};

/// `scales[16], pairs of bits[64], d, dmin`: `d * scale * q - dmin * min`, a sub-block of 16.
pub(super) fn q2_k(bytes: &[u8], numbers: &mut [f32]) {
    let (scales, quants) = (&bytes[..16], &bytes[16..80]);
    let (d, dmin) = (half_at(bytes, 80), half_at(bytes, 82));
    for (sub, numbers) in numbers.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(low(scales[sub])), dmin * f32::from(high(scales[sub])));
        for (number, q) in numbers.iter_mut().zip(two_bits(quants, sub)) {
            *number = scale * f32::from(q) - min;
        }
    }
}

/// `high bits[32], pairs of bits[64], scales[12], d`: `d * (scale - 32) * (q - 4)`, a sub-block of 16, where `q` has
/// its third bit in `high bits`.
pub(super) fn q3_k(bytes: &[u8], numbers: &mut [f32]) {
    let (highs, quants, packed) = (&bytes[..32], &bytes[32..96], &bytes[96..108]);
    let d = half_at(bytes, 108);
    for (sub, numbers) in numbers.chunks_exact_mut(16).enumerate() {
        let nibble = if sub < 8 {
            low(packed[sub])
        } else {
            high(packed[sub - 8])
        };
        let scale = nibble | ((packed[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4);
        let scale = d * (f32::from(scale) - 32.0);
        for (l, (number, q)) in numbers.iter_mut().zip(two_bits(quants, sub)).enumerate() {
            let third = highs[16 * (sub % 2) + l] >> (sub / 2) & 1;
            *number = scale * (f32::from(q | third << 2) - 4.0);
        }
    }
}

/// The 16 pairs of bits of a sub-block: halves of 128 elements have 32 bytes each, whose pairs are 32 elements apart.
fn two_bits(quants: &[u8], sub: usize) -> impl Iterator<Item = u8> + '_ {
    let (start, shift) = (32 * (sub / 8) + 16 * (sub % 2), 2 * (sub % 8 / 2));
    quants[start..start + 16].iter().map(move |byte| byte >> shift & 3)
}

/// `d, dmin, scales[12], nibbles[128]`: `d * scale * q - dmin * min`, a sub-block of 32.
pub(super) fn q4_k(bytes: &[u8], numbers: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    let (packed, quants) = (&bytes[4..16], &bytes[16..144]);
    for (sub, numbers) in numbers.chunks_exact_mut(32).enumerate() {
        let (scale, min) = six_bits(packed, sub);
        let (scale, min) = (d * scale, dmin * min);
        for (number, &byte) in numbers.iter_mut().zip(&quants[32 * (sub / 2)..]) {
            let q = if sub % 2 == 0 { low(byte) } else { high(byte) };
            *number = scale * f32::from(q) - min;
        }
    }
}

/// `d, dmin, scales[12], fifth bits[32], nibbles[128]`: as `Q4_K` with a fifth bit.
pub(super) fn q5_k(bytes: &[u8], numbers: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    let (packed, fifth, quants) = (&bytes[4..16], &bytes[16..48], &bytes[48..176]);
    for (sub, numbers) in numbers.chunks_exact_mut(32).enumerate() {
        let (scale, min) = six_bits(packed, sub);
        let (scale, min) = (d * scale, dmin * min);
        for (l, (number, &byte)) in numbers.iter_mut().zip(&quants[32 * (sub / 2)..]).enumerate() {
            let q = if sub % 2 == 0 { low(byte) } else { high(byte) } | (fifth[l] >> sub & 1) << 4;
            *number = scale * f32::from(q) - min;
        }
    }
}

/// The scale and the minimum of a sub-block, 6 bits each, of the 12 bytes that hold 8 pairs.
fn six_bits(packed: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            low(packed[sub + 4]) | packed[sub - 4] >> 6 << 4,
            high(packed[sub + 4]) | packed[sub] >> 6 << 4,
        )
    };
    (scale.into(), min.into())
}

/// `nibbles[128], pairs of bits[64], i8 scales[16], d`: `d * scale * (q - 32)`, a sub-block of 16.
pub(super) fn q6_k(bytes: &[u8], numbers: &mut [f32]) {
    let (lows, highs, scales) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let d = half_at(bytes, 208);
    for (quarter, numbers) in numbers.chunks_exact_mut(32).enumerate() {
        // A half of 128 elements has four quarters: two by low nibbles, two by high ones.
        let (half, which) = (quarter / 4, quarter % 4);
        let lows = &lows[64 * half + 32 * (which % 2)..];
        for (l, number) in numbers.iter_mut().enumerate() {
            let nibble = if which < 2 { low(lows[l]) } else { high(lows[l]) };
            let q = nibble | (highs[32 * half + l] >> (2 * which) & 3) << 4;
            let scale = d * f32::from(scales[8 * half + 2 * which + l / 16] as i8);
            *number = scale * (f32::from(q) - 32.0);
        }
    }
}
