//! The bytes of constants that a text spells by a rule, or in hexadecimal digits.

use crate::graph::op::RandomKind;
use crate::types::{DType, Scalar};

/// Deterministic filler; see the module's text.
pub fn random(dtype: DType, elements: usize, seed: u64, scale: Scalar) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(dtype.bytes_for(elements));
    random_into(&mut bytes, dtype, elements, seed, scale);
    bytes
}

/// Appends the filler; few numbers at a time, so that it takes no more memory than its bytes.
pub(super) fn random_into(bytes: &mut Vec<u8>, dtype: DType, elements: usize, seed: u64, scale: Scalar) {
    /// Even, so that pairs of 4-bit numbers stay together.
    const AT_ONCE: usize = 1 << 12;
    let kind = RandomKind::Uniform {
        low: Scalar::Float(-scale.as_f64()),
        high: Scalar::Float(scale.as_f64()),
    };
    let draw = |i: usize| super::super::eval::random::draw(kind, seed, i as u64);
    for start in (0..elements).step_by(AT_ONCE) {
        let numbers = start..elements.min(start + AT_ONCE);
        match dtype {
            DType::Bool => bytes.extend(numbers.map(|i| u8::from(draw(i) > 0.0))),
            d if d.is_int() => {
                let values: Vec<i64> = numbers.map(|i| draw(i).round_ties_even() as i64).collect();
                bytes.extend(crate::convert::encode_i64(d, &values));
            }
            d => bytes.extend(crate::convert::encode_f64(d, &numbers.map(draw).collect::<Vec<_>>())),
        }
    }
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?)).collect()
}
