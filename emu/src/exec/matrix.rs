//! Matrix instructions: MFMA of the CDNA parts and WMMA of the RDNA parts, dense; `sparse` has the others.
//!
//! Shapes and register layouts follow from a few numbers. For MFMA with an M×N×K tile in B blocks on 64 lanes,
//! with E elements of A in each lane: lane l holds row l mod M, of block (l div M) mod B, and the elements
//! k = (l div (M·B))·E + e. Results of 32 bits come in quads of rows: register v of lane l belongs to quad
//! (v div 4)·(64/N) + l div N, which counts through the rows of a block and then through the blocks. Results
//! of 64 bits come row by row. Sources: AMD's CDNA manuals and its matrix instruction calculator.

use super::float::Small;
use super::operand::{Build, Ty};
use super::tile::{Element, Meet, Product, Rounding, Runs, Scale, Side, Sums, Tile};
use super::wave::{Exec, Flow, Trap};
use crate::arch::{Arch, Generation};
use crate::decode::text::{Kind, Text};
use crate::timing::cost::{Shape, matrix_cycles};

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
    super::sparse::build(b, name)
}

/// `f32_32x32x4_2b_f16` (or `f32_32x32x4f16`): result type, M, N, K, and the text of the operand types.
pub(crate) fn parse_shape(rest: &str) -> Option<(&str, usize, usize, usize, &str)> {
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

pub(super) fn plain_element(name: &str, arch: &Arch) -> Option<Element> {
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

pub(super) fn operand_elements(types: &str, arch: &Arch, text: &Text) -> Option<(Element, Element)> {
    if types == "f8f6f4" {
        return Some((f8f6f4(text.number("cbsz"))?, f8f6f4(text.number("blgp"))?));
    }
    if let Some(one) = plain_element(types, arch) {
        return Some((one, one));
    }
    let (a, b) = types.split_once('_')?;
    Some((plain_element(a, arch)?, plain_element(b, arch)?))
}

pub(super) fn register(b: &Build<'_>, index: usize) -> Result<(u16, u16), String> {
    match b.operand(index)?.kind {
        Kind::Vector { first, count } => Ok((first, count)),
        ref kind => Err(format!("matrix operand {kind:?} is not a vector register")),
    }
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

/// What a matrix instruction's cost depends on.
pub(crate) fn cost_shape<'a>(text: &Text, m: usize, k: usize, types: &'a str, sparse: bool) -> Shape<'a> {
    // Formats 0 and 1 of f8f6f4 have eight bits.
    let wide = text.number("cbsz") < 2 || text.number("blgp") < 2;
    Shape {
        m,
        k,
        types,
        sparse,
        wide,
    }
}

/// No layout gets here: every run lies inside its operand.
pub(super) fn outside() -> Box<Trap> {
    Trap::not_modelled("a matrix operand's layout")
}

/// Operand C: its first register, or the constant.
pub(super) fn addend(b: &Build<'_>, index: usize, result: Element) -> Result<Result<u16, u64>, String> {
    let ty = match result {
        Element::F64 => Ty::F64,
        Element::F32 => Ty::F32,
        Element::F16 => Ty::F16,
        Element::Bf16 => Ty::BF16,
        _ => Ty::B32,
    };
    match b.operand(index)?.kind {
        Kind::Vector { first, .. } => Ok(Ok(first)),
        ref kind => super::operand::constant(kind, ty)
            .map(Err)
            .ok_or_else(|| "the addend is not understood".to_string()),
    }
}

/// The sums of an MFMA, and where their rows begin.
pub(super) fn mfma_sums(d: u16, c: Result<u16, u64>, result: Element, tile: Tile) -> (Sums, Vec<u32>) {
    let Tile { m, n, blocks, .. } = tile;
    let sums = Sums::new(d, c, result, m * n * blocks / 64, 64);
    let rows = (0..blocks * m).map(|row| {
        let (block, row) = (row / m, row % m);
        let (v, group) = if result == Element::F64 {
            let groups = 64 / (n * blocks);
            (row / groups, block + blocks * (row % groups))
        } else {
            let (quad, groups) = (block * (m / 4) + row / 4, 64 / n);
            (quad / groups * 4 + row % 4, quad % groups)
        };
        (64 * v + n * group) as u32
    });
    (sums, rows.collect())
}

fn mfma(b: &Build<'_>, rest: &str, scaled: bool) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    let (ea, eb) = operand_elements(types, b.arch, b.text).ok_or("the element types are not understood")?;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    let ((d, _), (first_a, a_count), (first_b, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let is_f8f6f4 = types == "f8f6f4";
    let per_lane = if is_f8f6f4 {
        32
    } else {
        a_count as usize * 32 / ea.bits() as usize
    };
    let blocks = 64 * per_lane / (m * k);
    if blocks == 0 || 64 * per_lane != m * k * blocks || m != n || !matches!(n, 4 | 16 | 32) {
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
    let tile = Tile { m, n, k, blocks };
    let flush = b.arch.mfma_flushes_denormals;
    let mut side_a = Side::new(first_a, ea, per_lane);
    let mut side_b = Side::new(first_b, eb, per_lane);
    for (side, negate) in [(&mut side_a, neg[0]), (&mut side_b, neg[1])] {
        side.negate = [negate; 2];
        side.flush = flush;
    }
    if blgp != 0 {
        side_b.from = Some(std::array::from_fn(|lane| blgp_lane(blgp, lane) as u8));
    }
    if scaled {
        let [a, b] = scale_operands(b)?;
        (side_a.scale, side_b.scale) = (Some(a), Some(b));
    }
    let (mut sums, c_runs) = mfma_sums(d, addend(b, 3, result)?, result, tile);
    sums.negate = neg[2];
    sums.flush = flush && ea.bits() == 16;
    let rounding = match ea {
        Element::F32 => Rounding::Single,
        Element::F64 => Rounding::Double,
        _ => Rounding::Exact,
    };
    let begin = |block: usize, kk: usize| (64 * (kk % per_lane) + m * (block + blocks * (kk / per_lane))) as u32;
    let each = || (0..blocks).flat_map(|block| (0..k).map(move |kk| (block, kk)));
    // With cbsz, groups of 2^cbsz blocks use one block of A.
    let shared = |block: usize| {
        if cbsz > 0 {
            (block >> cbsz << cbsz) + abid
        } else {
            block
        }
    };
    if shared(blocks - 1) >= blocks {
        return Err(format!("abid {abid} names no block"));
    }
    let product = Product {
        tile,
        a: side_a,
        b: side_b,
        sums,
        runs: Runs {
            a: each().map(|(block, kk)| begin(shared(block), kk)).collect(),
            b: each().map(|(block, kk)| begin(block, kk)).collect(),
            c: c_runs,
        },
        rounding,
    };
    let macs = (m * n * k * blocks) as u64;
    let cycles: u64 = matrix_cycles(b.arch, cost_shape(b.text, m, k, types, false)).into();
    Ok(Box::new(move |w, env| {
        product.run(w, &Meet::All).ok_or_else(outside)?;
        env.counters.matrix_macs += macs;
        env.counters.matrix_cycles += cycles;
        Ok(Flow::Next)
    }))
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

/// The element types of a WMMA; for the integer forms neg_lo says which operand is signed.
pub(super) fn wmma_elements(b: &Build<'_>, types: &str) -> Option<(Element, Element)> {
    let signed = |index: usize| b.text.element("neg_lo", index, false);
    match types {
        "iu8" => Some((Element::Int(8, signed(0)), Element::Int(8, signed(1)))),
        "iu4" => Some((Element::Int(4, signed(0)), Element::Int(4, signed(1)))),
        _ => operand_elements(types, b.arch, b.text),
    }
}

/// Whether even and odd elements of WMMA's operand `index` are negated.
pub(super) fn wmma_negate(b: &Build<'_>, element: Element, index: usize) -> [bool; 2] {
    let float = !matches!(element, Element::Int(..));
    ["neg_lo", "neg_hi"].map(|name| float && b.text.element(name, index, false))
}

/// The sums of a WMMA of 16×16.
///
/// gfx11 deals the rows out over the groups of 16 lanes one by one, gfx12 in runs: of eight rows in a wave of 32
/// lanes; in one of 64, rows 0, 8, 4 and 12 begin the groups' runs of four.
pub(super) fn wmma_sums(b: &Build<'_>, d: u16, c: Result<u16, u64>, result: Element) -> (Sums, Vec<u32>) {
    let lanes = b.lanes;
    let gfx12 = b.arch.at_least(Generation::Gfx12);
    let per_lane = 256 / lanes;
    let mut sums = Sums::new(d, c, result, per_lane, lanes);
    let rows = (0..16).map(|row| {
        let (group, e) = match (gfx12, lanes) {
            (false, _) => (row % (lanes / 16), row / (lanes / 16)),
            (true, 32) => (row / 8, row % 8),
            (true, _) => (row / 8 + 2 * (row / 4 % 2), row % 4),
        };
        (64 * e + 16 * group) as u32
    });
    if !gfx12 {
        // One half of a register each.
        let shift = if b.text.element("op_sel", 2, false) { 16 } else { 0 };
        sums.halves = (0..per_lane as u16).map(|e| (e, shift)).collect();
    }
    sums.clamp = b.text.flag("clamp");
    (sums, rows.collect())
}

/// WMMA: 16×16 tiles on 32 or 64 lanes.
fn wmma(b: &Build<'_>, rest: &str) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    if m != 16 || n != 16 {
        return Err(format!("{m}x{n}x{k} is not modelled"));
    }
    let (ea, eb) = wmma_elements(b, types).ok_or("the element types are not understood")?;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    let ((d, _), (first_a, a_count), (first_b, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let per_lane = a_count as usize * 32 / ea.bits() as usize;
    // gfx11 repeats the operands in each group of 16 lanes. gfx12 deals k out, and a wave of 64 lanes holds the
    // smallest four-bit operands in its lower half.
    let lanes = 16 * k / per_lane;
    let fits = if b.arch.at_least(Generation::Gfx12) {
        matches!(lanes, 32 | 64) && lanes <= b.lanes
    } else {
        lanes == 16
    };
    if !fits {
        return Err(format!("{per_lane} elements a lane do not make 16x{k}"));
    }
    let mut side_a = Side::new(first_a, ea, per_lane);
    let mut side_b = Side::new(first_b, eb, per_lane);
    side_a.negate = wmma_negate(b, ea, 0);
    side_b.negate = wmma_negate(b, eb, 1);
    let (mut sums, c_runs) = wmma_sums(b, d, addend(b, 3, result)?, result);
    [sums.negate, sums.absolute] = wmma_negate(b, ea, 2);
    let runs: Vec<u32> = (0..k)
        .map(|kk| (64 * (kk % per_lane) + 16 * (kk / per_lane)) as u32)
        .collect();
    let product = Product {
        tile: Tile { m, n, k, blocks: 1 },
        a: side_a,
        b: side_b,
        sums,
        runs: Runs {
            a: runs.clone(),
            b: runs,
            c: c_runs,
        },
        rounding: Rounding::Exact,
    };
    let macs = (m * n * k) as u64;
    let cycles: u64 = matrix_cycles(b.arch, cost_shape(b.text, m, k, types, false)).into();
    Ok(Box::new(move |w, env| {
        product.run(w, &Meet::All).ok_or_else(outside)?;
        env.counters.matrix_macs += macs;
        env.counters.matrix_cycles += cycles;
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
