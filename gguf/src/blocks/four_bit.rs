//! Types whose four bits choose a number of a table: ggml's `IQ4` and the 4-bit floats of the OCP and of NVIDIA.

use super::{half_at, high, low};

/// `kvalues_iq4nl` of ggml: numbers that are denser near zero.
const NON_LINEAR: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the numbers of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3).
const TWICE_E2M1: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

/// Numbers of a table by the low nibbles of bytes, then by their high ones.
fn halves(table: &[f32; 16], scale: f32, bytes: &[u8], numbers: &mut [f32]) {
    let (first, second) = numbers.split_at_mut(bytes.len());
    for ((&byte, one), other) in bytes.iter().zip(first).zip(second) {
        *one = scale * table[usize::from(low(byte))];
        *other = scale * table[usize::from(high(byte))];
    }
}

/// `d, nibbles[16]`.
pub(super) fn iq4_nl(bytes: &[u8], numbers: &mut [f32]) {
    halves(&NON_LINEAR, half_at(bytes, 0), &bytes[2..18], numbers);
}

/// `d, u16 high bits of scales, low bits of scales[4], nibbles[128]`: sub-blocks of 32 with scales of 6 bits less 32.
pub(super) fn iq4_xs(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 0);
    let highs = u16::from_le_bytes([bytes[2], bytes[3]]);
    for (sub, (quants, numbers)) in bytes[8..136]
        .chunks_exact(16)
        .zip(numbers.chunks_exact_mut(32))
        .enumerate()
    {
        let packed = bytes[4 + sub / 2];
        let nibble = if sub % 2 == 0 { low(packed) } else { high(packed) };
        let scale = u16::from(nibble) | (highs >> (2 * sub) & 3) << 4;
        halves(&NON_LINEAR, d * (f32::from(scale) - 32.0), quants, numbers);
    }
}

/// `E8M0 exponent, nibbles[16]`: `2^(e - 127)` times E2M1.
pub(super) fn mxfp4(bytes: &[u8], numbers: &mut [f32]) {
    // Half of 2^(e - 127), since the table is doubled; the two least are denormal.
    let exponent = u32::from(bytes[0]);
    let scale = f32::from_bits(if exponent < 2 {
        0x0020_0000 << exponent
    } else {
        (exponent - 1) << 23
    });
    halves(&TWICE_E2M1, scale, &bytes[1..17], numbers);
}

/// `UE4M3 scales[4], nibbles[32]`: four sub-blocks of 16, each with a scale.
pub(super) fn nvfp4(bytes: &[u8], numbers: &mut [f32]) {
    for (sub, (quants, numbers)) in bytes[4..36]
        .chunks_exact(8)
        .zip(numbers.chunks_exact_mut(16))
        .enumerate()
    {
        halves(&TWICE_E2M1, 0.5 * unsigned_e4m3(bytes[sub]), quants, numbers);
    }
}

/// A float of 4 bits of exponent and 3 of mantissa without a sign; the number that is NaN elsewhere is 0.
fn unsigned_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    match (byte & 0x7f, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}
