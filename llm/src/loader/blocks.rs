//! Blocks of a file as a graph can keep them: integers of 4 or 8 bits, with a scale for each group of neighbours.
//!
//! ```text
//! Q8_0  d, q[32]                       becomes   i8[32], f16 scale d
//! Q4_K  d, dmin, (sc, min)[8], q[256]  becomes   u4[256], f32 scales d · sc, f32 zero points (dmin · min) / (d · sc)
//! ```
//!
//! Before: whole blocks of one type. After: [`Parts`], for which `(integer − zero) · scale` is the number of the
//! format. Types without a minimum have it to the last bit: the product of a block's scale and a sub-block's is exact
//! in `f32`. A minimum becomes a zero point, whose quotient is rounded once: the number differs by a few units in the
//! last place of `f32`.

use graphc::ir::DType;
use graphc_gguf::TensorType;
use half::f16;

/// Blocks that are worth a thread (about 50 µs).
const LEAST_BLOCKS: usize = 1 << 10;

/// How blocks of a type are kept.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The type of the integers.
    pub numbers: DType,
    /// Elements that share a scale.
    pub group: usize,
    /// The type of the scales.
    pub scales: DType,
    /// Whether groups have zero points, in `f32`.
    pub zeros: bool,
    unpack: fn(&[u8], &mut Unpacked),
}

/// What is kept of some blocks: bytes of each part, in the order of the elements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    pub numbers: Vec<u8>,
    pub scales: Vec<u8>,
    pub zeros: Vec<u8>,
}

/// The elements of one block, and what its groups have.
struct Unpacked {
    numbers: [i16; 256],
    scales: [f32; 16],
    /// What is taken off `scale · number`.
    minima: [f32; 16],
}

impl Form {
    /// The form of a type; None for types that are kept as numbers.
    pub fn of(ty: TensorType) -> Option<Form> {
        let form = |numbers, group, scales, zeros, unpack| Form {
            numbers,
            group,
            scales,
            zeros,
            unpack,
        };
        Some(match ty {
            TensorType::Q4_0 => form(DType::I4, 32, DType::F16, false, q4_0),
            TensorType::Q4_1 => form(DType::U4, 32, DType::F16, true, q4_1),
            TensorType::Q5_0 => form(DType::I8, 32, DType::F16, false, q5_0),
            TensorType::Q5_1 => form(DType::I8, 32, DType::F16, true, q5_1),
            TensorType::Q8_0 => form(DType::I8, 32, DType::F16, false, q8_0),
            TensorType::Q2_K => form(DType::U4, 16, DType::F32, true, q2_k),
            TensorType::Q3_K => form(DType::I4, 16, DType::F32, false, q3_k),
            TensorType::Q4_K => form(DType::U4, 32, DType::F32, true, q4_k),
            TensorType::Q5_K => form(DType::I8, 32, DType::F32, true, q5_k),
            TensorType::Q6_K => form(DType::I8, 16, DType::F32, false, q6_k),
            TensorType::IQ4_NL => form(DType::I8, 32, DType::F16, false, iq4_nl),
            TensorType::IQ4_XS => form(DType::I8, 32, DType::F32, false, iq4_xs),
            TensorType::MXFP4 => form(DType::I8, 32, DType::F32, false, mxfp4),
            _ => return None,
        })
    }

    /// Says in words how blocks are kept.
    pub fn describe(&self) -> String {
        let zeros = if self.zeros { " and a zero point" } else { "" };
        let numbers = self.numbers.to_string();
        let scales = self.scales.to_string();
        format!("{numbers} with a scale of {scales}{zeros} for each {}", self.group)
    }

    /// Takes whole blocks of a type of this form apart, many of them on all cores.
    pub fn parts(&self, ty: TensorType, bytes: &[u8]) -> Parts {
        let (block, size) = (ty.block() as usize, ty.block_bytes() as usize);
        let (count, groups) = (bytes.len() / size, block / self.group);
        // Bytes of each part that one block has.
        let one = [
            block * self.numbers.bits() as usize / 8,
            groups * self.scales.bits() as usize / 8,
            if self.zeros { groups * size_of::<f32>() } else { 0 },
        ];
        let [mut numbers, mut scales, mut zeros] = one.map(|one| vec![0; count * one]);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let share = count.div_ceil(cores).max(LEAST_BLOCKS);
        std::thread::scope(|scope| {
            let mut rest = [&mut numbers[..], &mut scales[..], &mut zeros[..]];
            for bytes in bytes.chunks(share * size) {
                let blocks = bytes.len() / size;
                let mut at = 0;
                let part = rest.each_mut().map(|rest| {
                    let (part, behind) = std::mem::take(rest).split_at_mut(blocks * one[at]);
                    at += 1;
                    *rest = behind;
                    part
                });
                let fill = move || self.fill(bytes, [size, block], one, part);
                if blocks == count {
                    fill();
                } else {
                    scope.spawn(fill);
                }
            }
        });
        Parts { numbers, scales, zeros }
    }

    /// Takes some blocks apart, into places of `one` bytes a block.
    fn fill(&self, bytes: &[u8], [size, block]: [usize; 2], one: [usize; 3], [numbers, scales, zeros]: [&mut [u8]; 3]) {
        let mut unpacked = Unpacked {
            numbers: [0; 256],
            scales: [0.0; 16],
            minima: [0.0; 16],
        };
        for (at, bytes) in bytes.chunks_exact(size).enumerate() {
            (self.unpack)(bytes, &mut unpacked);
            let (scales, zeros) = (
                &mut scales[at * one[1]..][..one[1]],
                &mut zeros[at * one[2]..][..one[2]],
            );
            for group in 0..block / self.group {
                self.zero(scales, zeros, &mut unpacked, group);
            }
            let (from, to) = (&unpacked.numbers[..block], &mut numbers[at * one[0]..][..one[0]]);
            if self.numbers.bits() == 4 {
                for (byte, two) in to.iter_mut().zip(from.chunks_exact(2)) {
                    *byte = (two[0] & 15) as u8 | ((two[1] & 15) as u8) << 4;
                }
            } else {
                for (byte, number) in to.iter_mut().zip(from) {
                    *byte = *number as u8;
                }
            }
        }
    }

    /// Writes a group's scale and zero point.
    fn zero(&self, scales: &mut [u8], zeros: &mut [u8], unpacked: &mut Unpacked, group: usize) {
        let (mut scale, minimum) = (unpacked.scales[group], unpacked.minima[group]);
        if self.zeros {
            let mut zero = minimum / scale;
            if scale == 0.0 {
                // All elements are the minimum: a scale of its own, by -1 each.
                unpacked.numbers[group * self.group..][..self.group].fill(0);
                (scale, zero) = (minimum, 1.0);
            }
            zeros[4 * group..][..4].copy_from_slice(&zero.to_le_bytes());
        }
        match self.scales {
            DType::F16 => scales[2 * group..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
            _ => scales[4 * group..][..4].copy_from_slice(&scale.to_le_bytes()),
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Low nibbles are the first half of the elements, high ones the second.
fn nibbles(bytes: &[u8], numbers: &mut [i16], value: impl Fn(u8) -> i16) {
    let (first, second) = numbers.split_at_mut(bytes.len());
    for ((byte, one), other) in bytes.iter().zip(first).zip(second) {
        (*one, *other) = (value(byte & 15), value(byte >> 4));
    }
}

/// Adds `fifth[at] · 16 + less` to 32 elements.
fn fifth_bits(bytes: &[u8], numbers: &mut [i16], less: i16) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (at, number) in numbers[..32].iter_mut().enumerate() {
        *number += ((bits >> at & 1) as i16) * 16 - less;
    }
}

fn q4_0(bytes: &[u8], to: &mut Unpacked) {
    to.scales[0] = half_at(bytes, 0);
    nibbles(&bytes[2..18], &mut to.numbers[..32], |q| i16::from(q) - 8);
}

fn q4_1(bytes: &[u8], to: &mut Unpacked) {
    (to.scales[0], to.minima[0]) = (half_at(bytes, 0), -half_at(bytes, 2));
    nibbles(&bytes[4..20], &mut to.numbers[..32], i16::from);
}

fn q5_0(bytes: &[u8], to: &mut Unpacked) {
    to.scales[0] = half_at(bytes, 0);
    nibbles(&bytes[6..22], &mut to.numbers[..32], i16::from);
    fifth_bits(&bytes[2..6], &mut to.numbers, 16);
}

fn q5_1(bytes: &[u8], to: &mut Unpacked) {
    (to.scales[0], to.minima[0]) = (half_at(bytes, 0), -half_at(bytes, 2));
    nibbles(&bytes[8..24], &mut to.numbers[..32], i16::from);
    fifth_bits(&bytes[4..8], &mut to.numbers, 0);
}

fn q8_0(bytes: &[u8], to: &mut Unpacked) {
    to.scales[0] = half_at(bytes, 0);
    for (number, byte) in to.numbers.iter_mut().zip(&bytes[2..34]) {
        *number = i16::from(*byte as i8);
    }
}

/// Pairs of bits: halves of 128 elements have 32 bytes each, whose pairs are 32 elements apart.
fn two_bits(bytes: &[u8], at: usize) -> u8 {
    bytes[32 * (at / 128) + at % 32] >> (2 * (at % 128 / 32)) & 3
}

fn q2_k(bytes: &[u8], to: &mut Unpacked) {
    let (d, dmin) = (half_at(bytes, 80), half_at(bytes, 82));
    for (sub, packed) in bytes[..16].iter().enumerate() {
        to.scales[sub] = d * f32::from(packed & 15);
        to.minima[sub] = dmin * f32::from(packed >> 4);
    }
    for (at, number) in to.numbers.iter_mut().enumerate() {
        *number = two_bits(&bytes[16..80], at).into();
    }
}

fn q3_k(bytes: &[u8], to: &mut Unpacked) {
    let (packed, d) = (&bytes[96..108], half_at(bytes, 108));
    for sub in 0..16 {
        let nibble = packed[sub % 8] >> (4 * (sub / 8)) & 15;
        let scale = nibble | (packed[8 + sub % 4] >> (2 * (sub / 4)) & 3) << 4;
        to.scales[sub] = d * (f32::from(scale) - 32.0);
    }
    for (at, number) in to.numbers.iter_mut().enumerate() {
        let third = bytes[at % 32] >> (at / 32) & 1;
        *number = i16::from(two_bits(&bytes[32..96], at) | third << 2) - 4;
    }
}

/// The scale and the minimum of a sub-block, 6 bits each, of the 12 bytes that hold 8 pairs.
fn six_bits(packed: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = match sub < 4 {
        true => (packed[sub] & 63, packed[sub + 4] & 63),
        false => (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        ),
    };
    (scale.into(), min.into())
}

/// Scales, minima and nibbles of `Q4_K` and `Q5_K`.
fn with_minima(bytes: &[u8], quants: &[u8], to: &mut Unpacked) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    for sub in 0..8 {
        let (scale, min) = six_bits(&bytes[4..16], sub);
        (to.scales[sub], to.minima[sub]) = (d * scale, dmin * min);
    }
    for (quants, numbers) in quants.chunks_exact(32).zip(to.numbers.chunks_exact_mut(64)) {
        nibbles(quants, numbers, i16::from);
    }
}

fn q4_k(bytes: &[u8], to: &mut Unpacked) {
    with_minima(bytes, &bytes[16..144], to);
}

fn q5_k(bytes: &[u8], to: &mut Unpacked) {
    with_minima(bytes, &bytes[48..176], to);
    for (at, number) in to.numbers.iter_mut().enumerate() {
        *number |= i16::from(bytes[16 + at % 32] >> (at / 32) & 1) << 4;
    }
}

fn q6_k(bytes: &[u8], to: &mut Unpacked) {
    let d = half_at(bytes, 208);
    for (sub, scale) in to.scales.iter_mut().enumerate() {
        *scale = d * f32::from(bytes[192 + sub] as i8);
    }
    for (at, number) in to.numbers.iter_mut().enumerate() {
        // A half of 128 elements has four quarters: two by low nibbles, two by high ones.
        let (half, quarter, place) = (at / 128, at % 128 / 32, at % 32);
        let nibble = bytes[64 * half + 32 * (quarter % 2) + place] >> (4 * (quarter / 2)) & 15;
        let high = bytes[128 + 32 * half + place] >> (2 * quarter) & 3;
        *number = i16::from(nibble | high << 4) - 32;
    }
}

/// `kvalues_iq4nl` of ggml.
const NON_LINEAR: [i16; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the numbers of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3).
const TWICE_E2M1: [i16; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn iq4_nl(bytes: &[u8], to: &mut Unpacked) {
    to.scales[0] = half_at(bytes, 0);
    let number = |q: u8| NON_LINEAR[usize::from(q)];
    nibbles(&bytes[2..18], &mut to.numbers[..32], number);
}

fn iq4_xs(bytes: &[u8], to: &mut Unpacked) {
    let (d, highs) = (half_at(bytes, 0), u16::from_le_bytes([bytes[2], bytes[3]]));
    for sub in 0..8 {
        let nibble = bytes[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let scale = u16::from(nibble) | (highs >> (2 * sub) & 3) << 4;
        to.scales[sub] = d * (f32::from(scale) - 32.0);
        let number = |q: u8| NON_LINEAR[usize::from(q)];
        nibbles(&bytes[8 + 16 * sub..][..16], &mut to.numbers[32 * sub..][..32], number);
    }
}

fn mxfp4(bytes: &[u8], to: &mut Unpacked) {
    // Half of 2^(e - 127), since the table is doubled; the two least are denormal.
    let exponent = u32::from(bytes[0]);
    to.scales[0] = f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    });
    let number = |q: u8| TWICE_E2M1[usize::from(q)];
    nibbles(&bytes[1..17], &mut to.numbers[..32], number);
}

#[cfg(test)]
mod tests {
    use graphc::ir::{HostTensor, Storage};
    use graphc_gguf::dequantize;

    use super::*;

    /// Offsets of the `f16` numbers in a block: random bits there would be NaN.
    fn halves_of(ty: TensorType) -> &'static [usize] {
        match ty {
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
            TensorType::Q2_K => &[80, 82],
            TensorType::Q3_K => &[108],
            TensorType::Q6_K => &[208],
            TensorType::MXFP4 => &[],
            _ => &[0],
        }
    }

    /// Random blocks, the last of which has zeros for scales.
    fn blocks(ty: TensorType, scales: &[f32]) -> Vec<u8> {
        let mut state = 7u32;
        let mut bytes = Vec::new();
        for scale in scales {
            let mut block: Vec<u8> = (0..ty.block_bytes())
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            for (at, half) in halves_of(ty).iter().enumerate() {
                // The second is the minimum's.
                let number = if at == 0 { *scale } else { 1.5 * scale + 0.75 };
                block[*half..half + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
            }
            if ty == TensorType::MXFP4 {
                block[0] = 120 + (state >> 29) as u8;
            }
            bytes.extend(block);
        }
        bytes
    }

    #[test]
    fn kept_blocks_have_the_numbers_of_the_format() {
        let mut kept = 0;
        for ty in TensorType::ALL {
            let Some(form) = Form::of(*ty) else { continue };
            kept += 1;
            let bytes = blocks(*ty, &[0.5, -0.013, 1.75, 3e-4, 0.0]);
            let count = 5 * ty.block() as usize;
            let mut wanted = vec![0.0; count];
            dequantize(*ty, &bytes, &mut wanted).expect("whole blocks");
            let parts = form.parts(*ty, &bytes);
            let read = |dtype, count, bytes: Vec<u8>| {
                let host = HostTensor::new(dtype, [count], Storage::new(bytes));
                host.expect("as many as there are").to_f32()
            };
            let numbers = read(form.numbers, count, parts.numbers);
            let scales = read(form.scales, count / form.group, parts.scales);
            let zeros = match form.zeros {
                true => read(DType::F32, count / form.group, parts.zeros),
                false => vec![0.0; count / form.group],
            };
            for (at, number) in numbers.iter().enumerate() {
                let (scale, zero) = (scales[at / form.group], zeros[at / form.group]);
                let found = (number - zero) * scale;
                let room = if form.zeros {
                    (zero * scale).abs().max(wanted[at].abs()) * 4e-7
                } else {
                    0.0
                };
                assert!(
                    (found - wanted[at]).abs() <= room,
                    "{ty} at {at}: {found} {}",
                    wanted[at]
                );
            }
        }
        assert_eq!(kept, 13);
    }
}
