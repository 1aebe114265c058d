//! Types of -1, 0 and 1, as BitNet's weights are.

use super::half_at;

/// `bytes of five trits[48], bytes of four[4], d`: trit `k` of a byte is the top of `byte * 3^k mod 256`.
pub(super) fn tq1_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 52);
    let mut numbers = numbers.iter_mut();
    for (bytes, trits) in [(&bytes[..32], 5), (&bytes[32..48], 5), (&bytes[48..52], 4)] {
        for trit in 0..trits {
            for (&byte, number) in bytes.iter().zip(&mut numbers) {
                let top = byte.wrapping_mul(3u8.pow(trit));
                *number = (f32::from(((u16::from(top) * 3) >> 8) as u8) - 1.0) * d;
            }
        }
    }
}

/// `pairs of bits[64], d`: `(q - 1) * d`; pairs of a byte are 32 elements apart.
pub(super) fn tq2_0(bytes: &[u8], numbers: &mut [f32]) {
    let d = half_at(bytes, 64);
    for (j, number) in numbers.iter_mut().enumerate() {
        let byte = bytes[32 * (j / 128) + j % 32];
        *number = (f32::from(byte >> (2 * (j % 128 / 32)) & 3) - 1.0) * d;
    }
}
