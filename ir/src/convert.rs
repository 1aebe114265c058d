//! Element encoding: numbers to the bytes of a [`DType`] and back.
//!
//! Floats round to nearest even. Out-of-range values become infinity where the format has one (`e5m2` too); `e4m3fn`
//! saturates as `float8` defines, the FNUZ types give NaN. Integers saturate.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::types::DType;

/// Encodes numbers, rounding to `dtype`.
pub fn encode_f64(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f64(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f64(*v).to_le_bytes()).collect(),
        DType::F8E4M3FN | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => {
            values.iter().filter_map(|v| encode_f8(dtype, *v)).collect()
        }
        DType::Bool => values.iter().map(|v| u8::from(*v != 0.0)).collect(),
        _ => {
            let ints: Vec<i64> = values.iter().map(|v| *v as i64).collect();
            encode_i64(dtype, &ints)
        }
    }
}

/// Encodes integers, saturating to `dtype`.
pub fn encode_i64(dtype: DType, values: &[i64]) -> Vec<u8> {
    let clamp = |v: i64, lo: i64, hi: i64| v.clamp(lo, hi);
    match dtype {
        DType::I64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I32 => values
            .iter()
            .flat_map(|v| (clamp(*v, i32::MIN.into(), i32::MAX.into()) as i32).to_le_bytes())
            .collect(),
        DType::I16 => values
            .iter()
            .flat_map(|v| (clamp(*v, i16::MIN.into(), i16::MAX.into()) as i16).to_le_bytes())
            .collect(),
        DType::I8 => values.iter().map(|v| clamp(*v, -128, 127) as i8 as u8).collect(),
        DType::U8 => values.iter().map(|v| clamp(*v, 0, 255) as u8).collect(),
        DType::Bool => values.iter().map(|v| u8::from(*v != 0)).collect(),
        DType::I4 | DType::U4 => {
            let (lo, hi) = if dtype == DType::I4 { (-8, 7) } else { (0, 15) };
            let nibble = |v: i64| (clamp(v, lo, hi) & 0xf) as u8;
            values
                .chunks(2)
                .map(|p| nibble(p[0]) | p.get(1).map_or(0, |v| nibble(*v) << 4))
                .collect()
        }
        _ => encode_f64(dtype, &values.iter().map(|v| *v as f64).collect::<Vec<_>>()),
    }
}

/// Decodes `elements` numbers; the bytes must hold them.
pub fn decode_f64(dtype: DType, bytes: &[u8], elements: usize) -> Vec<f64> {
    fn wide<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|c| f(*c)).collect()
    }
    let mut out: Vec<f64> = match dtype {
        DType::F64 => wide(bytes, f64::from_le_bytes),
        DType::F32 => wide(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::F16 => wide(bytes, |b| f16::from_le_bytes(b).to_f64()),
        DType::BF16 => wide(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        DType::F8E4M3FN | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => {
            bytes.iter().filter_map(|b| decode_f8(dtype, *b)).collect()
        }
        _ => {
            return decode_i64(dtype, bytes, elements)
                .into_iter()
                .map(|v| v as f64)
                .collect();
        }
    };
    out.truncate(elements);
    out
}

/// Decodes `elements` integers; floats are truncated and saturate.
pub fn decode_i64(dtype: DType, bytes: &[u8], elements: usize) -> Vec<i64> {
    fn wide<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> i64) -> Vec<i64> {
        bytes.as_chunks::<N>().0.iter().map(|c| f(*c)).collect()
    }
    let mut out: Vec<i64> = match dtype {
        DType::I64 => wide(bytes, i64::from_le_bytes),
        DType::I32 => wide(bytes, |b| i32::from_le_bytes(b).into()),
        DType::I16 => wide(bytes, |b| i16::from_le_bytes(b).into()),
        DType::I8 => bytes.iter().map(|b| i64::from(*b as i8)).collect(),
        DType::U8 => bytes.iter().map(|b| i64::from(*b)).collect(),
        DType::Bool => bytes.iter().map(|b| i64::from(*b != 0)).collect(),
        DType::U4 => bytes
            .iter()
            .flat_map(|b| [i64::from(b & 15), i64::from(b >> 4)])
            .collect(),
        DType::I4 => bytes
            .iter()
            .flat_map(|b| [i64::from((b << 4) as i8 >> 4), i64::from(*b as i8 >> 4)])
            .collect(),
        _ => decode_f64(dtype, bytes, elements)
            .into_iter()
            .map(|v| v as i64)
            .collect(),
    };
    out.truncate(elements);
    out
}

/// Rounds a number to what `dtype` can hold.
pub fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 => value,
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F8E4M3FN | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => encode_f8(dtype, value)
            .and_then(|byte| decode_f8(dtype, byte))
            .unwrap_or(value),
        _ => decode_f64(dtype, &encode_f64(dtype, &[value]), 1)[0],
    }
}

/// Encodes one number to an 8-bit float, rounding to nearest even: `f8e4m3fn` saturates, `f8e5m2` gives infinity, the
/// FNUZ types NaN. `None` for other types.
pub fn encode_f8(dtype: DType, value: f64) -> Option<u8> {
    Some(match dtype {
        DType::F8E4M3FN => F8E4M3::from_f64(value).to_bits(),
        DType::F8E5M2 => encode_e5m2(value),
        DType::F8E4M3FNUZ => encode_fnuz(value, 4, 3),
        DType::F8E5M2FNUZ => encode_fnuz(value, 5, 2),
        _ => return None,
    })
}

/// Decodes one 8-bit float; `None` for other types.
pub fn decode_f8(dtype: DType, byte: u8) -> Option<f64> {
    Some(match dtype {
        DType::F8E4M3FN => F8E4M3::from_bits(byte).to_f64(),
        DType::F8E5M2 => F8E5M2::from_bits(byte).to_f64(),
        DType::F8E4M3FNUZ => decode_fnuz(byte, 4, 3),
        DType::F8E5M2FNUZ => decode_fnuz(byte, 5, 2),
        _ => return None,
    })
}

/// The bits of an 8-bit float type, to encode many f32 numbers: without branches, so that a loop of it becomes vectors.
#[derive(Clone, Copy, Debug)]
pub struct F8Format {
    mantissa_bits: u32,
    bias: u32,
    /// What one number is in steps of the subnormal numbers.
    steps: f32,
    nan: u8,
    /// The type has no negative zero: its NaN has that place.
    fnuz: bool,
}

impl F8Format {
    /// The format of an 8-bit float type; `None` for other types.
    pub fn of(dtype: DType) -> Option<F8Format> {
        let (mantissa_bits, bias, fnuz) = match dtype {
            DType::F8E4M3FN => (3, 7, false),
            DType::F8E5M2 => (2, 15, false),
            DType::F8E4M3FNUZ => (3, 8, true),
            DType::F8E5M2FNUZ => (2, 16, true),
            _ => return None,
        };
        Some(F8Format {
            mantissa_bits,
            bias,
            steps: 2f32.powi((bias - 1 + mantissa_bits) as i32),
            nan: encode_f8(dtype, f64::NAN)? & if fnuz { 0xff } else { 0x7f },
            fnuz,
        })
    }

    /// Encodes a number that is NaN or no larger than the type's largest, as [`encode_f8`] does: to nearest even.
    #[inline]
    pub fn encode(self, value: f32) -> u8 {
        // Adding 1.5 · 2^23 leaves a small number's nearest integer in the lowest bits.
        const WHOLE: f32 = 12_582_912.0;
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
        let shift = 23 - self.mantissa_bits;
        let half = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1);
        let normal = ((magnitude + half) >> shift).wrapping_sub((127 - self.bias) << self.mantissa_bits);
        let subnormal = (f32::from_bits(magnitude) * self.steps + WHOLE).to_bits();
        let is_subnormal = magnitude < (128 - self.bias) << 23;
        let code = if is_subnormal { subnormal } else { normal } as u8;
        let code = if magnitude > f32::INFINITY.to_bits() {
            self.nan
        } else {
            code
        };
        if self.fnuz && code & 0x7f == 0 {
            code
        } else {
            sign | code
        }
    }
}

/// Encodes to OCP e5m2, which is the upper byte of an `f16`: rounds once, to nearest even; overflow gives infinity.
///
/// `float8` saturates here, which is OCP's other mode; hardware conversions and ONNX casts without `saturate` do not.
fn encode_e5m2(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80u8 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7e;
    }
    // Half the step above the largest finite value, 57344: a tie that rounds to the even neighbour, infinity.
    if magnitude >= 61440.0 {
        return sign | 0x7c;
    }
    let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(-14);
    let steps = (magnitude / 2f64.powi(exponent - 2)).round_ties_even() as u8;
    // `steps` has the hidden bit at 4 for normal numbers; a carry into the next exponent adds up by itself.
    sign | ((((exponent + 14) as u8) << 2) + steps)
}

/// Decodes an FNUZ byte: bias one above IEEE's, no infinity, one NaN (0x80), no negative zero.
fn decode_fnuz(byte: u8, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    if byte == 0x80 {
        return f64::NAN;
    }
    let bias = 1 << (exponent_bits - 1);
    let mantissa = f64::from(u32::from(byte) & ((1 << mantissa_bits) - 1));
    let exponent = (u32::from(byte) >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let scale = f64::from(1u32 << mantissa_bits);
    let magnitude = if exponent == 0 {
        mantissa / scale * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa / scale) * 2f64.powi(exponent as i32 - bias)
    };
    if byte & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Encodes to FNUZ, rounding to nearest even; NaN, infinities and overflow become NaN.
fn encode_fnuz(value: f64, exponent_bits: u32, mantissa_bits: u32) -> u8 {
    let bias = 1i32 << (exponent_bits - 1);
    if !value.is_finite() {
        return 0x80;
    }
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return 0;
    }
    let exponent = (magnitude.log2().floor() as i32).max(1 - bias);
    // `log2` may be off by one next to a power of two; the rounding below carries either way.
    let quantum = 2f64.powi(exponent - mantissa_bits as i32);
    let steps = (magnitude / quantum).round_ties_even();
    let (mut exponent, mut steps) = (exponent, steps as u32);
    if steps >= 2 << mantissa_bits {
        exponent += 1;
        steps >>= 1;
    }
    let hidden = 1 << mantissa_bits;
    let code = if steps < hidden {
        steps
    } else {
        (((exponent + bias) as u32) << mantissa_bits) | (steps - hidden)
    };
    if code > 0x7f {
        return 0x80;
    }
    let sign = if value < 0.0 && code != 0 { 0x80 } else { 0 };
    sign | code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_f32_become_eight_bits_as_numbers_of_f64_do() {
        let types = [
            (DType::F8E4M3FN, 448.0),
            (DType::F8E4M3FNUZ, 240.0),
            (DType::F8E5M2, 57344.0),
            (DType::F8E5M2FNUZ, 57344.0),
        ];
        for (dtype, largest) in types {
            let format = F8Format::of(dtype).unwrap();
            // Each upper half of an f32, with lower halves at ties, beside them and within.
            for high in 0..=u16::MAX {
                for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let value = f32::from_bits(u32::from(high) << 16 | low);
                    if value.abs() > largest {
                        continue;
                    }
                    let wanted = encode_f8(dtype, f64::from(value)).unwrap();
                    assert_eq!(format.encode(value), wanted, "{dtype:?} {value:e}");
                }
            }
        }
        assert!(F8Format::of(DType::I8).is_none());
    }

    #[test]
    fn every_byte_of_every_eight_bit_type_round_trips() {
        for dtype in [
            DType::F8E4M3FN,
            DType::F8E4M3FNUZ,
            DType::F8E5M2,
            DType::F8E5M2FNUZ,
            DType::I8,
            DType::U8,
        ] {
            for byte in 0..=255u8 {
                let value = decode_f64(dtype, &[byte], 1)[0];
                if value.is_nan() {
                    assert!(
                        decode_f64(dtype, &encode_f64(dtype, &[value]), 1)[0].is_nan(),
                        "{dtype} {byte:#x}"
                    );
                } else {
                    assert_eq!(encode_f64(dtype, &[value]), [byte], "{dtype} {byte:#x} = {value}");
                }
            }
        }
    }

    #[test]
    fn fnuz_rounds_to_nearest_even() {
        // Between 1.0 and 1.125 in e4m3: the tie goes to the even mantissa.
        assert_eq!(round_to(DType::F8E4M3FNUZ, 1.0625), 1.0);
        assert_eq!(round_to(DType::F8E4M3FNUZ, 1.1875), 1.25);
        assert_eq!(round_to(DType::F8E4M3FNUZ, 240.0), 240.0);
        assert!(round_to(DType::F8E4M3FNUZ, 250.0).is_nan());
    }

    #[test]
    fn e5m2_rounds_once_and_overflows_to_infinity() {
        for (value, byte) in [
            (57344.0, 0x7b),
            (61439.0, 0x7b),
            (61440.0, 0x7c),
            (f64::NEG_INFINITY, 0xfc),
            (1.125, 0x3c),
            (1.375, 0x3e),
            (2f64.powi(-17), 0x00),
            (1.5 * 2f64.powi(-16), 0x02),
            (1.99999, 0x40),
        ] {
            assert_eq!(encode_f64(DType::F8E5M2, &[value]), [byte], "{value}");
        }
    }

    #[test]
    fn nibbles_pack_low_first() {
        assert_eq!(encode_i64(DType::I4, &[-8, 7, 3]), [0x78, 0x03]);
        assert_eq!(decode_i64(DType::I4, &[0x78, 0x03], 3), [-8, 7, 3]);
        assert_eq!(decode_i64(DType::U4, &[0xf1], 2), [1, 15]);
    }
}
