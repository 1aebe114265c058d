//! gfx950's conversions with a scale: `v_cvt_scalef32_*` between f32, f16, bf16 and the floats of 8, 6 and 4 bits.
//!
//! The scale is a power of two, the exponent of an f32: a result of few bits is the source divided by it, a result
//! of many bits the source multiplied by it. Small operands lie in a word one after another, and op_sel says where
//! they begin. The stochastic forms add the upper bits of one random word to what is cut off, the same for every
//! element. Source: AMD's CDNA4 manual and the host functions of HIP's header `amd_hip_ocp_host.hpp`.

use super::float::{Small, bf16_to_f32, exp2d, f16_to_f32, f32_to_bf16, f64_to_f16, f64_to_f32_odd};
use super::operand::{Build, Src, Ty};
use super::wave::{Exec, Flow, Wave};
use crate::decode::text::Kind;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    F32,
    F16,
    Bf16,
    Small(Small),
}

impl Number {
    fn parse(name: &str) -> Option<Number> {
        Some(match name {
            "f32" => Number::F32,
            "f16" => Number::F16,
            "bf16" => Number::Bf16,
            "fp8" => Number::Small(Small::E4M3_OCP),
            "bf8" => Number::Small(Small::E5M2_OCP),
            "fp6" => Number::Small(Small::E2M3),
            "bf6" => Number::Small(Small::E3M2),
            "fp4" => Number::Small(Small::E2M1),
            _ => return None,
        })
    }

    fn bits(self) -> usize {
        match self {
            Number::F32 => 32,
            Number::F16 | Number::Bf16 => 16,
            Number::Small(small) => 1 + (small.exponent_bits + small.mantissa_bits) as usize,
        }
    }

    fn decode(self, bits: u32) -> f64 {
        f64::from(match self {
            Number::F32 => f32::from_bits(bits),
            Number::F16 => f16_to_f32(bits),
            Number::Bf16 => bf16_to_f32(bits),
            Number::Small(small) => small.decode(bits),
        })
    }

    fn encode(self, value: f64, random: Option<u32>, saturate: bool) -> u32 {
        match self {
            Number::F32 => (value as f32).to_bits(),
            Number::F16 => f64_to_f16(value),
            Number::Bf16 => f32_to_bf16(f64_to_f32_odd(value)),
            Number::Small(small) => small.encode64(value, random, saturate),
        }
    }
}

/// The `bits` bits from bit `start` on of words that lie one after another.
fn field(words: &[u32], start: usize, bits: usize) -> u32 {
    let low = u64::from(words[start / 32]);
    let high = words.get(start / 32 + 1).map_or(0, |word| u64::from(*word) << 32);
    ((low | high) >> (start % 32) & ((1 << bits) - 1)) as u32
}

fn set_field(words: &mut [u32], start: usize, bits: usize, value: u32) {
    let mask = ((1u64 << bits) - 1) << (start % 32);
    let placed = u64::from(value) << (start % 32);
    for (index, word) in words.iter_mut().skip(start / 32).take(2).enumerate() {
        let (mask, placed) = ((mask >> (32 * index)) as u32, (placed >> (32 * index)) as u32);
        *word = *word & !mask | placed & mask;
    }
}

/// A word of a source, and whether its sign is cleared or flipped.
type Word = (Src, bool, bool);

fn read(w: &Wave, (src, abs, neg): Word, lane: usize) -> u32 {
    let bits = match src {
        Src::V(index) => w.v[index as usize][lane],
        other => other.uniform(w).unwrap_or(0),
    };
    let bits = if abs { bits & 0x7fff_ffff } else { bits };
    if neg { bits ^ 0x8000_0000 } else { bits }
}

/// Builds a scaled conversion; None for another instruction.
pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let rest = name.strip_prefix("v_cvt_scalef32_")?;
    let (random, rest) = rest.strip_prefix("sr_").map_or((false, rest), |rest| (true, rest));
    let (count, types) = [("2xpk16_", 32), ("pk32_", 32), ("pk_", 2), ("", 1)]
        .into_iter()
        .find_map(|(prefix, count)| rest.strip_prefix(prefix).map(|types| (count, types)))?;
    let (to, from) = types.split_once('_')?;
    let (to, from) = (Number::parse(to)?, Number::parse(from)?);
    Some(convert(b, random, count, to, from))
}

fn convert(b: &Build<'_>, random: bool, count: usize, to: Number, from: Number) -> Result<Exec, String> {
    let sources = b.text.operands.len() - 1;
    let seed = if random {
        Some(b.plain(b.operand(sources - 1)?, Ty::B32)?)
    } else {
        None
    };
    let scale = b.plain(b.operand(sources)?, Ty::F32)?;
    let mut words: Vec<Word> = Vec::new();
    for index in 1..sources - usize::from(random) {
        let operand = b.operand(index)?;
        let ty = if from == Number::F32 { Ty::F32 } else { Ty::B32 };
        let float = from == Number::F32;
        if (operand.abs || operand.neg) && !float {
            return Err("modifiers of a packed source".into());
        }
        match operand.kind {
            Kind::Vector { first, count } => {
                words.extend((first..first + count).map(|index| (Src::V(index), operand.abs, operand.neg)));
            }
            _ => words.push((b.plain(operand, ty)?, operand.abs, operand.neg)),
        }
    }
    let select = |index: usize| usize::from(b.text.element("op_sel", index, false));
    // Where small elements begin in the word that holds them.
    let from_start = match (from, count) {
        (Number::Small(_), 1) => 8 * (select(0) + 2 * select(1)),
        (Number::Small(_), 2) if from.bits() == 8 => 16 * select(0),
        (Number::Small(_), 2) => 8 * (select(0) + 2 * select(1)),
        // One half of a word.
        (Number::F16 | Number::Bf16, 1) => 16 * select(0),
        _ => 0,
    };
    let to_start = match (to, count) {
        (Number::Small(_), 1) => 8 * (select(2) + 2 * select(3)),
        (Number::Small(_), 2) if to.bits() == 8 => 16 * select(sources),
        (Number::Small(_), 2) => 8 * (select(2) + 2 * select(3)),
        (Number::F16 | Number::Bf16, 1) => 16 * select(2),
        _ => 0,
    };
    let (from_bits, to_bits) = (from.bits(), to.bits());
    if words.len() * 32 < from_start + count * from_bits {
        return Err(format!(
            "{} words do not hold {count} elements of {from_bits} bits",
            words.len()
        ));
    }
    let (target, target_count) = match b.operand(0)?.kind {
        Kind::Vector { first, count } => (first as usize, count as usize),
        ref kind => return Err(format!("destination {kind:?}")),
    };
    if target_count * 32 < to_start + count * to_bits {
        return Err(format!(
            "{target_count} words do not hold {count} elements of {to_bits} bits"
        ));
    }
    let shrink = matches!(to, Number::Small(_));
    Ok(Box::new(move |w, _| {
        let exec = w.exec();
        let saturate = w.mode.fp16_overflow;
        let mut source = vec![0u32; words.len()];
        let mut result = vec![0u32; target_count];
        for lane in (0..w.lanes).filter(|lane| exec >> lane & 1 == 1) {
            for (slot, word) in source.iter_mut().zip(&words) {
                *slot = read(w, *word, lane);
            }
            for (index, slot) in result.iter_mut().enumerate() {
                *slot = w.v[target + index][lane];
            }
            let factor = match read(w, (scale, false, false), lane) >> 23 & 0xff {
                255 => f64::NAN,
                exponent if shrink => exp2d(127 - exponent as i32),
                exponent => exp2d(exponent as i32 - 127),
            };
            let random = seed.map(|seed| read(w, (seed, false, false), lane));
            for element in 0..count {
                let value = from.decode(field(&source, from_start + element * from_bits, from_bits)) * factor;
                let bits = to.encode(value, random, saturate);
                set_field(&mut result, to_start + element * to_bits, to_bits, bits);
            }
            for (index, word) in result.iter().enumerate() {
                w.v[target + index][lane] = *word;
            }
        }
        Ok(Flow::Next)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cross_words() {
        let mut words = [0u32; 6];
        for index in 0..32 {
            set_field(&mut words, 6 * index, 6, (index as u32 * 7) & 63);
        }
        for index in 0..32 {
            assert_eq!(field(&words, 6 * index, 6), (index as u32 * 7) & 63);
        }
    }
}
