//! The blocks of 32 elements with one scale, and the two of fewer bits (`Q1_0`, `Q2_0`).
//!
//! In the types of four and five bits, byte `j` holds elements `j` and `j + 16`: halves of the block, not neighbours.

use super::{half_at, high, low};

/// `d, nibbles[16]`: `(q - 8) * d`.
pub(super) fn q4_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, &byte) in bytes[2..18].iter().enumerate() {
        numbers[j] = (f32::from(low(byte)) - 8.0) * d;
        numbers[j + 16] = (f32::from(high(byte)) - 8.0) * d;
    }
}

/// `d, m, nibbles[16]`: `q * d + m`.
pub(super) fn q4_1(bytes: &[u8], numbers: &mut [f32]) {
    let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
    for (j, &byte) in bytes[4..20].iter().enumerate() {
        numbers[j] = f32::from(low(byte)) * d + m;
        numbers[j + 16] = f32::from(high(byte)) * d + m;
    }
}

/// `d, fifth bits[4], nibbles[16]`: `(q - 16) * d`.
pub(super) fn q5_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (number, q) in numbers.iter_mut().zip(five_bits(&bytes[2..6], &bytes[6..22])) {
        *number = (f32::from(q) - 16.0) * d;
    }
}

/// `d, m, fifth bits[4], nibbles[16]`: `q * d + m`.
pub(super) fn q5_1(bytes: &[u8], numbers: &mut [f32]) {
    let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
    for (number, q) in numbers.iter_mut().zip(five_bits(&bytes[4..8], &bytes[8..24])) {
        *number = f32::from(q) * d + m;
    }
}

/// The 32 integers of five bits: bit `j` of the first four bytes is the fifth bit of element `j`.
fn five_bits<'a>(fifth: &'a [u8], nibbles: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    (0..32).map(move |j| {
        let nibble = if j < 16 { low(nibbles[j]) } else { high(nibbles[j - 16]) };
        nibble | (fifth[j / 8] >> (j % 8) & 1) << 4
    })
}

/// `d, i8[32]`: `q * d`.
pub(super) fn q8_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (number, &byte) in numbers.iter_mut().zip(&bytes[2..34]) {
        *number = f32::from(byte as i8) * d;
    }
}

/// `d, bits[16]`, the lowest bit first: `d` where the bit is set, else `-d`.
pub(super) fn q1_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, number) in numbers.iter_mut().enumerate() {
        *number = if bytes[2 + j / 8] >> (j % 8) & 1 == 1 { d } else { -d };
    }
}

/// `d, pairs of bits[16]`, the lowest first: `(q - 1) * d`.
pub(super) fn q2_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, number) in numbers.iter_mut().enumerate() {
        *number = (f32::from(bytes[2 + j / 4] >> (2 * (j % 4)) & 3) - 1.0) * d;
    }
}
