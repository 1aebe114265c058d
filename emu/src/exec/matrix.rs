//! Matrix instructions: MFMA of the CDNA parts and WMMA of the RDNA parts.
//!
//! Shapes and register layouts follow from a few numbers. For MFMA with an M×N×K tile in B blocks on 64 lanes,
//! with E elements of A in each lane: lane l holds row l mod M, of block (l div M) mod B, and the elements
//! k = (l div (M·B))·E + e. Results of 32 bits come in quads of rows: register v of lane l belongs to quad
//! (v div 4)·(64/N) + l div N, which counts through the rows of a block and then through the blocks. Results
//! of 64 bits come row by row. Sources: AMD's CDNA manuals and its matrix instruction calculator.

use super::float::{Small, bf16_to_f32, f16_to_f32, f32_to_bf16};
use super::operand::{Build, Src, Ty};
use super::wave::{Exec, Flow, Wave};
use crate::arch::{Arch, Generation};
use crate::decode::text::{Kind, Text};

/// The type of a matrix element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F64,
    F32,
    /// f32 rounded to 19 bits on the way in.
    Xf32,
    F16,
    Bf16,
    I32,
    /// Integers of this many bits, signed or not.
    Int(u32, bool),
    Float(Small),
}

impl Element {
    fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::F32 | Element::Xf32 | Element::I32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::Int(bits, _) => bits,
            Element::Float(small) => 1 + small.exponent_bits + small.mantissa_bits,
        }
    }

    fn value(self, bits: u64, flush: bool) -> f64 {
        match self {
            Element::F64 => f64::from_bits(bits),
            Element::F32 => f64::from(f32::from_bits(bits as u32)),
            Element::Xf32 => f64::from(f32::from_bits(
                (bits as u32).wrapping_add(0x0fff + (bits as u32 >> 13 & 1)) & !0x1fff,
            )),
            Element::F16 if flush && bits & 0x7c00 == 0 => 0.0,
            Element::F16 => f64::from(f16_to_f32(bits as u32)),
            Element::Bf16 if flush && bits & 0x7f80 == 0 => 0.0,
            Element::Bf16 => f64::from(bf16_to_f32(bits as u32)),
            Element::I32 => f64::from(bits as u32 as i32),
            Element::Int(width, signed) => {
                let shift = 32 - width;
                let value = bits as u32;
                if signed {
                    f64::from((value << shift) as i32 >> shift)
                } else {
                    f64::from(value << shift >> shift)
                }
            }
            Element::Float(small) => f64::from(small.decode(bits as u32)),
        }
    }
}

/// Reads element `index` of a lane's packed registers.
fn element_bits(w: &Wave, first: u16, lane: usize, index: usize, bits: u32) -> u64 {
    let start = index * bits as usize;
    let (word, shift) = (start / 32, start % 32);
    let at = |word: usize| u64::from(w.v[first as usize + word][lane]);
    let low = at(word) >> shift;
    let value = if shift + bits as usize > 32 {
        low | at(word + 1) << (32 - shift)
    } else {
        low
    };
    if bits == 64 {
        value
    } else {
        value & ((1u64 << bits) - 1)
    }
}

/// Builds a matrix instruction; None for another instruction.
pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(rest) = name.strip_prefix("v_mfma_scale_") {
        return Some(mfma(b, rest, true));
    }
    if let Some(rest) = name.strip_prefix("v_mfma_ld_scale") {
        return Some(Err(format!("v_mfma_ld_scale{rest}")));
    }
    if let Some(rest) = name.strip_prefix("v_mfma_") {
        return Some(mfma(b, rest, false));
    }
    if let Some(rest) = name.strip_prefix("v_wmma_") {
        return Some(wmma(b, rest));
    }
    None
}

/// `f32_32x32x4_2b_f16` (or `f32_32x32x4f16`): result type, M, N, K, and the text of the operand types.
fn parse_shape(rest: &str) -> Option<(&str, usize, usize, usize, &str)> {
    let (out, rest) = rest.split_once('_')?;
    let mut sizes = [0usize; 3];
    let mut rest = rest;
    for (index, size) in sizes.iter_mut().enumerate() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        *size = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        if index < 2 {
            rest = rest.strip_prefix('x')?;
        }
    }
    let rest = rest.strip_prefix('_').unwrap_or(rest);
    let rest = ["2b_", "4b_", "16b_"]
        .iter()
        .find_map(|blocks| rest.strip_prefix(blocks))
        .unwrap_or(rest);
    Some((out, sizes[0], sizes[1], sizes[2], rest))
}

fn plain_element(name: &str, arch: &Arch) -> Option<Element> {
    Some(match name {
        "f64" => Element::F64,
        "f32" => Element::F32,
        "xf32" => Element::Xf32,
        "f16" => Element::F16,
        "bf16" | "bf16_1k" => Element::Bf16,
        "i8" => Element::Int(8, true),
        "i32" => Element::I32,
        "fp8" => Element::Float(Small::of(arch.fp8_fnuz, false)),
        "bf8" => Element::Float(Small::of(arch.fp8_fnuz, true)),
        _ => return None,
    })
}

/// The formats that cbsz and blgp name for the f8f6f4 instructions.
fn f8f6f4(code: i64) -> Option<Element> {
    Some(Element::Float(match code {
        0 => Small::E4M3_OCP,
        1 => Small::E5M2_OCP,
        2 => Small::E2M3,
        3 => Small::E3M2,
        4 => Small::E2M1,
        _ => return None,
    }))
}

fn operand_elements(types: &str, arch: &Arch, text: &Text) -> Option<(Element, Element)> {
    if types == "f8f6f4" {
        return Some((f8f6f4(text.number("cbsz"))?, f8f6f4(text.number("blgp"))?));
    }
    if let Some(one) = plain_element(types, arch) {
        return Some((one, one));
    }
    let (a, b) = types.split_once('_')?;
    Some((plain_element(a, arch)?, plain_element(b, arch)?))
}

fn register(b: &Build<'_>, index: usize) -> Result<(u16, u16), String> {
    match b.operand(index)?.kind {
        Kind::Vector { first, count } => Ok((first, count)),
        ref kind => Err(format!("matrix operand {kind:?} is not a vector register")),
    }
}

/// A tile of sums.
struct Tile {
    m: usize,
    n: usize,
    k: usize,
    blocks: usize,
}

/// How the sums of a tile round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    /// Products and sums of narrow types fit f64; one rounding at the end.
    Exact,
    /// A chain of fused multiply-adds in f32.
    Single,
    /// A chain of fused multiply-adds in f64.
    Double,
}

/// c[block][i][j] += Σ_k a[block][i][k]·b[block][k][j].
#[inline(always)]
fn multiply_body(tile: &Tile, a: &[f64], b: &[f64], c: &mut [f64], rounding: Rounding) {
    let Tile { m, n, k, blocks } = *tile;
    for block in 0..blocks {
        for i in 0..m {
            let row = &mut c[(block * m + i) * n..][..n];
            for kk in 0..k {
                let x = a[(block * m + i) * k + kk];
                let other = &b[(block * k + kk) * n..][..n];
                match rounding {
                    Rounding::Exact => row.iter_mut().zip(other).for_each(|(sum, y)| *sum += x * y),
                    Rounding::Double => row
                        .iter_mut()
                        .zip(other)
                        .for_each(|(sum, y)| *sum = x.mul_add(*y, *sum)),
                    Rounding::Single => row
                        .iter_mut()
                        .zip(other)
                        .for_each(|(sum, y)| *sum = f64::from((x as f32).mul_add(*y as f32, *sum as f32))),
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_wide(tile: &Tile, a: &[f64], b: &[f64], c: &mut [f64], rounding: Rounding) {
    multiply_body(tile, a, b, c, rounding);
}

fn multiply(tile: &Tile, a: &[f64], b: &[f64], c: &mut [f64], rounding: Rounding) {
    #[cfg(target_arch = "x86_64")]
    if super::simd::wide() {
        // SAFETY: the features were found on this processor.
        unsafe { multiply_wide(tile, a, b, c, rounding) };
        return;
    }
    multiply_body(tile, a, b, c, rounding);
}

/// The lane-group pattern of blgp for B, as the lane whose data each lane uses.
fn blgp_lane(blgp: i64, lane: usize) -> usize {
    match blgp {
        1 => lane % 32,
        2 => lane % 32 + 32,
        3 => (lane + 16) % 64,
        4..=7 => lane % 16 + 16 * (blgp as usize - 4),
        _ => lane,
    }
}

/// Multiply-accumulates a cycle on one SIMD.
fn mac_rate(arch: &Arch, element: Element) -> u64 {
    let factor = match arch.name {
        "gfx950" => 4,
        "gfx942" => 2,
        _ => 1,
    };
    match element {
        Element::F64 => 32,
        Element::F32 => 32 * factor.min(2),
        Element::Xf32 => 128,
        Element::F16 | Element::Bf16 | Element::I32 => 128 * factor,
        Element::Int(..) | Element::Float(_) => 128 * factor * if factor > 1 { 2 } else { 1 },
    }
}

fn mfma(b: &Build<'_>, rest: &str, scaled: bool) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    let (ea, eb) = operand_elements(types, b.arch, b.text).ok_or("the element types are not understood")?;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    let ((d, _), (a, a_count), (bb, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let (ty, wide) = match result {
        Element::F64 => (Ty::F64, true),
        Element::F32 => (Ty::F32, false),
        _ => (Ty::B32, false),
    };
    let c_operand = b.operand(3)?;
    let c_const = match c_operand.kind {
        Kind::Vector { .. } => None,
        ref kind => Some(super::operand::constant(kind, ty).ok_or("the addend is not understood")?),
    };
    let c_first = if let Kind::Vector { first, .. } = c_operand.kind {
        first
    } else {
        0
    };
    let is_f8f6f4 = types == "f8f6f4";
    let per_lane = if is_f8f6f4 {
        32
    } else {
        a_count as usize * 32 / ea.bits() as usize
    };
    let blocks = 64 * per_lane / (m * k);
    if blocks == 0 || 64 * per_lane != m * k * blocks || m != n {
        return Err(format!(
            "{m}x{n}x{k} with {per_lane} elements a lane does not fill 64 lanes"
        ));
    }
    let (cbsz, abid, blgp) = (
        b.text.number("cbsz"),
        b.text.number("abid") as usize,
        b.text.number("blgp"),
    );
    let (cbsz, blgp) = if is_f8f6f4 || result == Element::F64 {
        (0, 0)
    } else {
        (cbsz, blgp)
    };
    // For f64 the field negates: printed as neg:[a,b,c] or as the bits of blgp.
    let neg: [bool; 3] = std::array::from_fn(|index| {
        result == Element::F64 && (b.text.element("neg", index, false) || b.text.number("blgp") >> index & 1 == 1)
    });
    let scales = if scaled { Some(scale_operands(b)?) } else { None };
    let flush = b.arch.mfma_flushes_denormals;
    let tile = Tile { m, n, k, blocks };
    let macs = (m * n * k * blocks) as u64;
    let cycles = macs / mac_rate(b.arch, ea);
    let integer = result == Element::I32;
    let rows_of = move |lane: usize, v: usize| -> (usize, usize) {
        // (block, row) of result element v of a lane.
        if wide {
            ((lane / n) % blocks, v * (64 / (n * blocks)) + lane / (n * blocks))
        } else {
            let quad = v / 4 * (64 / n) + lane / n;
            (quad / (m / 4), 4 * (quad % (m / 4)) + v % 4)
        }
    };
    let elements = m * n * blocks / 64;
    let rounding = match ea {
        Element::F32 => Rounding::Single,
        Element::F64 => Rounding::Double,
        _ => Rounding::Exact,
    };
    // Where each lane's elements go in the tiles, by lane and then by element.
    let mut a_slots = Vec::with_capacity(64 * per_lane);
    let mut b_slots = Vec::with_capacity(64 * per_lane);
    let mut c_slots = Vec::with_capacity(64 * elements);
    for lane in 0..64 {
        let (row, block, group) = (lane % m, lane / m % blocks, lane / (m * blocks));
        for kk in group * per_lane..(group + 1) * per_lane {
            a_slots.push((block * m + row) * k + kk);
            b_slots.push((block * k + kk) * n + row);
        }
        for v in 0..elements {
            let (block, row) = rows_of(lane, v);
            c_slots.push((block * m + row) * n + lane % n);
        }
    }
    Ok(Box::new(move |w, env| {
        let mut am = vec![0f64; blocks * m * k];
        let mut bm = vec![0f64; blocks * k * n];
        for lane in 0..64 {
            let b_lane = blgp_lane(blgp, lane);
            let (a_scale, b_scale) = match &scales {
                None => (1.0, 1.0),
                Some([a, b]) => (a.value(w, lane), b.value(w, lane)),
            };
            for e in 0..per_lane {
                let value = ea.value(element_bits(w, a, lane, e, ea.bits()), flush) * a_scale;
                am[a_slots[lane * per_lane + e]] = if neg[0] { -value } else { value };
                let value = eb.value(element_bits(w, bb, b_lane, e, eb.bits()), flush) * b_scale;
                bm[b_slots[lane * per_lane + e]] = if neg[1] { -value } else { value };
            }
        }
        if cbsz > 0 {
            let size = 1usize << cbsz;
            let all = am.clone();
            for block in 0..blocks {
                let from = block / size * size + abid;
                am[block * m * k..][..m * k].copy_from_slice(&all[from * m * k..][..m * k]);
            }
        }
        let mut cm = vec![0f64; blocks * m * n];
        let read_c = |w: &Wave, lane: usize, v: usize| -> u64 {
            match c_const {
                Some(bits) => bits,
                None => element_bits(w, c_first, lane, v, if wide { 64 } else { 32 }),
            }
        };
        for lane in 0..64 {
            for v in 0..elements {
                let value = result.value(read_c(w, lane, v), false);
                cm[c_slots[lane * elements + v]] = if neg[2] { -value } else { value };
            }
        }
        multiply(&tile, &am, &bm, &mut cm, rounding);
        for lane in 0..64 {
            for v in 0..elements {
                let value = cm[c_slots[lane * elements + v]];
                if wide {
                    let bits = value.to_bits();
                    w.v[d as usize + 2 * v][lane] = bits as u32;
                    w.v[d as usize + 2 * v + 1][lane] = (bits >> 32) as u32;
                } else if integer {
                    w.v[d as usize + v][lane] = value as i64 as u32;
                } else {
                    let mut value = value as f32;
                    if flush && ea.bits() == 16 {
                        value = super::float::flush32(value);
                    }
                    w.v[d as usize + v][lane] = value.to_bits();
                }
            }
        }
        env.counters.matrix_macs += macs;
        env.counters.matrix_cycles += cycles;
        Ok(Flow::Next)
    }))
}

/// One scale operand of the block-scaled instructions: a byte of exponent for each lane.
struct Scale {
    src: Src,
    shift: u32,
}

impl Scale {
    fn value(&self, w: &Wave, lane: usize) -> f64 {
        let word = match self.src {
            Src::V(index) => w.v[index as usize][lane],
            other => other.uniform(w).unwrap_or(127),
        };
        match word >> self.shift & 0xff {
            255 => f64::NAN,
            exponent => super::float::exp2d(exponent as i32 - 127),
        }
    }
}

fn scale_operands(b: &Build<'_>) -> Result<[Scale; 2], String> {
    let one = |index: usize, operand: usize| -> Result<Scale, String> {
        let byte = u32::from(b.text.element("op_sel", index, false))
            + 2 * u32::from(b.text.element("op_sel_hi", index, false));
        Ok(Scale {
            src: b.plain(b.operand(operand)?, Ty::B32)?,
            shift: 8 * byte,
        })
    };
    Ok([one(0, 4)?, one(1, 5)?])
}

/// WMMA: 16×16 tiles on 32 or 64 lanes.
fn wmma(b: &Build<'_>, rest: &str) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    let gfx12 = b.arch.at_least(Generation::Gfx12);
    if m != 16 || n != 16 || (gfx12 && b.lanes == 64) {
        return Err(format!("{m}x{n}x{k} on {} lanes is not modelled", b.lanes));
    }
    // For the integer forms neg_lo says which operand is signed.
    let signed = |index: usize| b.text.element("neg_lo", index, false);
    let pair = match types {
        "iu8" => (Element::Int(8, signed(0)), Element::Int(8, signed(1))),
        "iu4" => (Element::Int(4, signed(0)), Element::Int(4, signed(1))),
        _ => operand_elements(types, b.arch, b.text).ok_or("the element types are not understood")?,
    };
    let (ea, eb) = pair;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    let ((d, _), (a, a_count), (bb, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let integer = matches!(ea, Element::Int(..));
    let neg = |name: &str, index: usize| !integer && b.text.element(name, index, false);
    let flips = [
        [neg("neg_lo", 0), neg("neg_hi", 0)],
        [neg("neg_lo", 1), neg("neg_hi", 1)],
    ];
    let (c_neg, c_abs) = (neg("neg_lo", 2), neg("neg_hi", 2));
    let clamp = b.text.flag("clamp");
    let high_half = b.text.element("op_sel", 2, false);
    let c_operand = b.operand(3)?;
    let c_ty = match result {
        Element::F32 => Ty::F32,
        Element::F16 => Ty::F16,
        Element::Bf16 => Ty::BF16,
        _ => Ty::B32,
    };
    let c_const = match c_operand.kind {
        Kind::Vector { .. } => None,
        ref kind => Some(super::operand::constant(kind, c_ty).ok_or("the addend is not understood")?),
    };
    let c_first = if let Kind::Vector { first, .. } = c_operand.kind {
        first
    } else {
        0
    };
    let lanes = b.lanes;
    let per_lane = a_count as usize * 32 / ea.bits() as usize;
    let groups = if gfx12 { lanes / 16 } else { 1 };
    if per_lane * groups != k {
        return Err(format!(
            "{per_lane} elements a lane in {groups} groups do not make K = {k}"
        ));
    }
    // (lane, register, half) of element (row, column) of the result.
    let narrow = matches!(result, Element::F16 | Element::Bf16);
    let place = move |row: usize, column: usize| -> (usize, usize, usize) {
        if gfx12 {
            let lane = column + 16 * (row / 8);
            if narrow {
                (lane, row % 8 / 2, row % 2)
            } else {
                (lane, row % 8, 0)
            }
        } else {
            let per_register = lanes / 16;
            let lane = column + 16 * (row % per_register);
            (lane, row / per_register, usize::from(narrow && high_half))
        }
    };
    let tile = Tile { m, n, k, blocks: 1 };
    let macs = (m * n * k) as u64;
    Ok(Box::new(move |w, env| {
        let mut am = vec![0f64; m * k];
        let mut bm = vec![0f64; k * n];
        for lane in 0..16 * groups {
            for e in 0..per_lane {
                let kk = lane / 16 * per_lane + e;
                let value = |element: Element, first: u16, flip: [bool; 2]| {
                    let value = element.value(element_bits(w, first, lane, e, element.bits()), false);
                    if flip[e % 2] { -value } else { value }
                };
                am[lane % 16 * k + kk] = value(ea, a, flips[0]);
                bm[kk * n + lane % 16] = value(eb, bb, flips[1]);
            }
        }
        let mut cm = vec![0f64; m * n];
        for row in 0..16 {
            for column in 0..16 {
                let (lane, v, half) = place(row, column);
                let bits = match c_const {
                    Some(bits) => bits,
                    None if narrow => u64::from(w.v[c_first as usize + v][lane] >> (16 * half) & 0xffff),
                    None => w.v[c_first as usize + v][lane].into(),
                };
                let mut value = result.value(bits, false);
                if c_abs {
                    value = value.abs();
                }
                cm[row * n + column] = if c_neg { -value } else { value };
            }
        }
        multiply(&tile, &am, &bm, &mut cm, Rounding::Exact);
        for row in 0..16 {
            for column in 0..16 {
                let (lane, v, half) = place(row, column);
                let value = cm[row * n + column];
                let slot = &mut w.v[d as usize + v][lane];
                match result {
                    Element::F32 => *slot = (value as f32).to_bits(),
                    Element::F16 | Element::Bf16 => {
                        let bits = if result == Element::F16 {
                            super::float::f64_to_f16(value)
                        } else {
                            f32_to_bf16(super::float::f64_to_f32_odd(value))
                        };
                        *slot = *slot & !(0xffff << (16 * half)) | bits << (16 * half);
                    }
                    _ if clamp => *slot = (value as i64).clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32,
                    _ => *slot = value as i64 as u32,
                }
            }
        }
        env.counters.matrix_macs += macs;
        env.counters.matrix_cycles += macs / 128;
        Ok(Flow::Next)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(parse_shape("f32_32x32x4_2b_f16"), Some(("f32", 32, 32, 4, "f16")));
        assert_eq!(parse_shape("f32_16x16x16f16"), Some(("f32", 16, 16, 16, "f16")));
        assert_eq!(
            parse_shape("f32_16x16x32_fp8_bf8"),
            Some(("f32", 16, 16, 32, "fp8_bf8"))
        );
    }
}
