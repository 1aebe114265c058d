//! Sums of the ranks' parts, element by element in the order of the ranks; numbers of 16 bits in f32.

use std::ffi::c_uint;

use half::{bf16, f16};

/// The bytes of a number of a type, as `ncclDataType_t` counts them; None for what is not summed here.
pub fn width(dtype: c_uint) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

/// Fills `to` with the sum of `ranks` parts of as many bytes, which lie one after the other in `parts`.
pub fn sum(dtype: c_uint, parts: &[u8], ranks: usize, to: &mut [u8]) {
    let size = to.len();
    macro_rules! each {
        ($bytes:literal, $zero:expr, $read:expr, $add:expr, $write:expr) => {
            for (i, to) in to.chunks_exact_mut($bytes).enumerate() {
                let mut sum = $zero;
                for rank in 0..ranks {
                    let at = rank * size + i * $bytes;
                    let mut word = [0u8; $bytes];
                    word.copy_from_slice(&parts[at..at + $bytes]);
                    sum = $add(sum, $read(word));
                }
                to.copy_from_slice(&$write(sum));
            }
        };
    }
    let plus = |a: f32, b: f32| a + b;
    match dtype {
        6 => each!(2, 0f32, |w| f16::from_le_bytes(w).to_f32(), plus, |s| f16::from_f32(s)
            .to_le_bytes()),
        9 => each!(2, 0f32, |w| bf16::from_le_bytes(w).to_f32(), plus, |s| bf16::from_f32(
            s
        )
        .to_le_bytes()),
        7 => each!(4, 0f32, f32::from_le_bytes, plus, f32::to_le_bytes),
        8 => each!(8, 0f64, f64::from_le_bytes, |a: f64, b| a + b, f64::to_le_bytes),
        2 | 3 => each!(4, 0u32, u32::from_le_bytes, u32::wrapping_add, u32::to_le_bytes),
        4 | 5 => each!(8, 0u64, u64::from_le_bytes, u64::wrapping_add, u64::to_le_bytes),
        _ => each!(1, 0u8, u8::from_le_bytes, u8::wrapping_add, u8::to_le_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_summed_by_their_type() {
        let mut to = [0; 4];
        let parts: Vec<u8> = [1.5f32, 2.25, -0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        sum(7, &parts, 3, &mut to);
        assert_eq!(f32::from_le_bytes(to), 3.25);
        let halves: Vec<u8> = [2048.0, 1.0, 1.0]
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect();
        let mut to = [0; 2];
        sum(6, &halves, 3, &mut to);
        assert_eq!(f16::from_le_bytes(to).to_f32(), 2050.0, "not rounded in between");
        let mut to = [0; 2];
        sum(0, &[100, 1, 100, 2], 2, &mut to);
        assert_eq!(to, [200, 3]);
        assert_eq!((width(6), width(5), width(12)), (Some(2), Some(8), None));
    }
}
