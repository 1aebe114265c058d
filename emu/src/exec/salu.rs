//! The scalar ALU: arithmetic, logic, comparisons, and gfx12's scalar floats.

use super::operand::{Build, Src, Ty, constant, read_flag};
use super::wave::{Exec, Flow, Wave};
use crate::decode::text::{Flag, Kind};

/// A 64-bit scalar source.
#[derive(Clone, Copy)]
pub(super) enum Wide {
    S(u16),
    C(u64),
    Flag(Flag),
}

impl Wide {
    pub(super) fn get(self, w: &Wave) -> u64 {
        match self {
            Wide::S(index) => w.read_s64(index),
            Wide::C(value) => value,
            Wide::Flag(flag) => read_flag(w, flag).into(),
        }
    }
}

pub(super) fn get(w: &Wave, src: Src) -> u32 {
    src.uniform(w).unwrap_or(0)
}

pub(super) fn src(b: &Build<'_>, index: usize) -> Result<Src, String> {
    src_ty(b, index, Ty::B32)
}

fn src_ty(b: &Build<'_>, index: usize, ty: Ty) -> Result<Src, String> {
    let operand = b.operand(index)?;
    match b.plain(operand, ty)? {
        Src::V(_) => Err("a scalar instruction reads a vector register".into()),
        Src::C(_) if operand.neg => Err("a negated scalar constant".into()),
        other => Ok(other),
    }
}

pub(super) fn wide(b: &Build<'_>, index: usize, ty: Ty) -> Result<Wide, String> {
    match &b.operand(index)?.kind {
        Kind::Scalar { first, .. } => Ok(Wide::S(*first)),
        Kind::Flag(flag) => Ok(Wide::Flag(*flag)),
        kind => constant(kind, ty)
            .map(Wide::C)
            .ok_or_else(|| format!("operand {kind:?} is not a scalar")),
    }
}

pub(super) fn dst(b: &Build<'_>) -> Result<u16, String> {
    b.mask_out(0)
}

/// A 16-bit immediate, sign-extended.
pub(super) fn imm16(b: &Build<'_>, index: usize) -> Result<i32, String> {
    match b.operand(index)?.kind {
        Kind::Int(value) => Ok(i32::from(value as i16)),
        Kind::Bits(value) => Ok(i32::from(value as u16 as i16)),
        ref kind => Err(format!("{kind:?} is not an immediate")),
    }
}

/// `dst = f(x, y)`; the closure gets SCC and returns the new one, or None to keep it.
fn two<F>(b: &Build<'_>, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, bool) -> (u32, Option<bool>) + Send + Sync + 'static,
{
    let (d, x, y) = (dst(b)?, src(b, 1)?, src(b, 2)?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(get(w, x), get(w, y), w.scc);
        w.write_s(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

fn two64<F>(b: &Build<'_>, ty: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u64, u64, bool) -> (u64, Option<bool>) + Send + Sync + 'static,
{
    let (d, x, y) = (dst(b)?, wide(b, 1, ty)?, wide(b, 2, ty)?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(x.get(w), y.get(w), w.scc);
        w.write_s64(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

fn one<F: Fn(u32) -> (u32, Option<bool>) + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (d, x) = (dst(b)?, src(b, 1)?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(get(w, x));
        w.write_s(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

fn one64<F: Fn(u64) -> (u64, Option<bool>) + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (d, x) = (dst(b)?, wide(b, 1, Ty::B64)?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(x.get(w));
        w.write_s64(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

/// A 64-bit source, a 32-bit result.
fn narrow<F: Fn(u64) -> (u32, Option<bool>) + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (d, x) = (dst(b)?, wide(b, 1, Ty::B64)?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(x.get(w));
        w.write_s(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

fn compare<F: Fn(u32, u32) -> bool + Send + Sync + 'static>(b: &Build<'_>, ty: Ty, f: F) -> Result<Exec, String> {
    let (x, y) = (src_ty(b, 0, ty)?, src_ty(b, 1, ty)?);
    Ok(Box::new(move |w, _| {
        w.scc = f(get(w, x), get(w, y));
        Ok(Flow::Next)
    }))
}

/// `s_cmpk_*`: against a 16-bit immediate.
fn compare_k<F: Fn(u32, i32) -> bool + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (x, k) = (src(b, 0)?, imm16(b, 1)?);
    Ok(Box::new(move |w, _| {
        w.scc = f(get(w, x), k);
        Ok(Flow::Next)
    }))
}

fn float2<F: Fn(f32, f32) -> f32 + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (d, x, y) = (dst(b)?, src_ty(b, 1, Ty::F32)?, src_ty(b, 2, Ty::F32)?);
    Ok(Box::new(move |w, _| {
        let value = f(f32::from_bits(get(w, x)), f32::from_bits(get(w, y)));
        w.write_s(d, value.to_bits());
        Ok(Flow::Next)
    }))
}

fn float1<F: Fn(u32) -> u32 + Send + Sync + 'static>(b: &Build<'_>, ty: Ty, f: F) -> Result<Exec, String> {
    let (d, x) = (dst(b)?, src_ty(b, 1, ty)?);
    Ok(Box::new(move |w, _| {
        w.write_s(d, f(get(w, x)));
        Ok(Flow::Next)
    }))
}

fn nz(value: u32) -> (u32, Option<bool>) {
    (value, Some(value != 0))
}

fn nz64(value: u64) -> (u64, Option<bool>) {
    (value, Some(value != 0))
}

/// The spelling under which the tables below know a mnemonic.
fn canonical(name: &str) -> String {
    let name = name.replace("_not1_", "n2_").replace("_not0_", "n1_");
    match name.as_str() {
        "s_add_co_u32" => "s_add_u32".into(),
        "s_add_co_ci_u32" => "s_addc_u32".into(),
        "s_sub_co_u32" => "s_sub_u32".into(),
        "s_sub_co_ci_u32" => "s_subb_u32".into(),
        "s_add_co_i32" => "s_add_i32".into(),
        "s_sub_co_i32" => "s_sub_i32".into(),
        "s_addk_co_i32" => "s_addk_i32".into(),
        "s_ctz_i32_b32" => "s_ff1_i32_b32".into(),
        "s_ctz_i32_b64" => "s_ff1_i32_b64".into(),
        "s_clz_i32_u32" => "s_flbit_i32_b32".into(),
        "s_clz_i32_u64" => "s_flbit_i32_b64".into(),
        "s_cls_i32" => "s_flbit_i32".into(),
        _ => name,
    }
}

/// Builds a scalar instruction; None where this file does not have it.
pub(crate) fn build(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let name = canonical(name);
    let name = name.as_str();
    arithmetic(b, name)
        .or_else(|| logic(b, name))
        .or_else(|| single(b, name))
        .or_else(|| comparison(b, name))
        .or_else(|| float(b, name))
        .or_else(|| super::control::control(b, name))
}

fn arithmetic(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "s_add_u32" => two(b, |x, y, _| {
            let (value, carry) = x.overflowing_add(y);
            (value, Some(carry))
        }),
        "s_sub_u32" => two(b, |x, y, _| {
            let (value, borrow) = x.overflowing_sub(y);
            (value, Some(borrow))
        }),
        "s_addc_u32" => two(b, |x, y, c| {
            let sum = u64::from(x) + u64::from(y) + u64::from(c);
            (sum as u32, Some(sum >> 32 != 0))
        }),
        "s_subb_u32" => two(b, |x, y, c| {
            let borrow = u64::from(y) + u64::from(c) > u64::from(x);
            (x.wrapping_sub(y).wrapping_sub(u32::from(c)), Some(borrow))
        }),
        "s_add_i32" => two(b, |x, y, _| {
            let (value, over) = (x as i32).overflowing_add(y as i32);
            (value as u32, Some(over))
        }),
        "s_sub_i32" => two(b, |x, y, _| {
            let (value, over) = (x as i32).overflowing_sub(y as i32);
            (value as u32, Some(over))
        }),
        "s_min_i32" => two(b, |x, y, _| {
            ((x as i32).min(y as i32) as u32, Some((x as i32) < y as i32))
        }),
        "s_max_i32" => two(b, |x, y, _| {
            ((x as i32).max(y as i32) as u32, Some(x as i32 > y as i32))
        }),
        "s_min_u32" => two(b, |x, y, _| (x.min(y), Some(x < y))),
        "s_max_u32" => two(b, |x, y, _| (x.max(y), Some(x > y))),
        "s_mul_i32" => two(b, |x, y, _| (x.wrapping_mul(y), None)),
        "s_mul_hi_u32" => two(b, |x, y, _| (((u64::from(x) * u64::from(y)) >> 32) as u32, None)),
        "s_mul_hi_i32" => two(b, |x, y, _| {
            (((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32, None)
        }),
        "s_absdiff_i32" => two(b, |x, y, _| nz((x as i32).abs_diff(y as i32))),
        "s_lshl1_add_u32" => shift_add(b, 1),
        "s_lshl2_add_u32" => shift_add(b, 2),
        "s_lshl3_add_u32" => shift_add(b, 3),
        "s_lshl4_add_u32" => shift_add(b, 4),
        "s_add_nc_u64" | "s_add_u64" => two64(b, Ty::B64, |x, y, _| (x.wrapping_add(y), None)),
        "s_sub_nc_u64" | "s_sub_u64" => two64(b, Ty::B64, |x, y, _| (x.wrapping_sub(y), None)),
        "s_mul_u64" => two64(b, Ty::B64, |x, y, _| (x.wrapping_mul(y), None)),
        "s_addk_i32" => {
            let (d, k) = (dst(b), imm16(b, 1));
            immediate(d, k, |x, k| {
                let (value, over) = (x as i32).overflowing_add(k);
                (value as u32, Some(over))
            })
        }
        "s_mulk_i32" => immediate(dst(b), imm16(b, 1), |x, k| ((x as i32).wrapping_mul(k) as u32, None)),
        "s_movk_i32" => immediate(dst(b), imm16(b, 1), |_, k| (k as u32, None)),
        _ => return None,
    })
}

fn shift_add(b: &Build<'_>, by: u32) -> Result<Exec, String> {
    two(b, move |x, y, _| {
        let sum = (u64::from(x) << by) + u64::from(y);
        (sum as u32, Some(sum >> 32 != 0))
    })
}

fn immediate<F>(d: Result<u16, String>, k: Result<i32, String>, f: F) -> Result<Exec, String>
where
    F: Fn(u32, i32) -> (u32, Option<bool>) + Send + Sync + 'static,
{
    let (d, k) = (d?, k?);
    Ok(Box::new(move |w, _| {
        let (value, scc) = f(w.s[d as usize], k);
        w.write_s(d, value);
        if let Some(scc) = scc {
            w.scc = scc;
        }
        Ok(Flow::Next)
    }))
}

fn logic(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(rest) = name
        .strip_prefix("s_")
        .and_then(|rest| rest.strip_suffix("_saveexec_b64"))
    {
        return Some(save_exec(b, rest, true, false));
    }
    if let Some(rest) = name
        .strip_prefix("s_")
        .and_then(|rest| rest.strip_suffix("_saveexec_b32"))
    {
        return Some(save_exec(b, rest, true, true));
    }
    if let Some(rest) = name
        .strip_prefix("s_")
        .and_then(|rest| rest.strip_suffix("_wrexec_b64"))
    {
        return Some(save_exec(b, rest, false, false));
    }
    if let Some(rest) = name
        .strip_prefix("s_")
        .and_then(|rest| rest.strip_suffix("_wrexec_b32"))
    {
        return Some(save_exec(b, rest, false, true));
    }
    Some(match name {
        "s_and_b32" => two(b, |x, y, _| nz(x & y)),
        "s_or_b32" => two(b, |x, y, _| nz(x | y)),
        "s_xor_b32" => two(b, |x, y, _| nz(x ^ y)),
        "s_andn2_b32" => two(b, |x, y, _| nz(x & !y)),
        "s_orn2_b32" => two(b, |x, y, _| nz(x | !y)),
        "s_nand_b32" => two(b, |x, y, _| nz(!(x & y))),
        "s_nor_b32" => two(b, |x, y, _| nz(!(x | y))),
        "s_xnor_b32" => two(b, |x, y, _| nz(!(x ^ y))),
        "s_and_b64" => two64(b, Ty::B64, |x, y, _| nz64(x & y)),
        "s_or_b64" => two64(b, Ty::B64, |x, y, _| nz64(x | y)),
        "s_xor_b64" => two64(b, Ty::B64, |x, y, _| nz64(x ^ y)),
        "s_andn2_b64" => two64(b, Ty::B64, |x, y, _| nz64(x & !y)),
        "s_orn2_b64" => two64(b, Ty::B64, |x, y, _| nz64(x | !y)),
        "s_nand_b64" => two64(b, Ty::B64, |x, y, _| nz64(!(x & y))),
        "s_nor_b64" => two64(b, Ty::B64, |x, y, _| nz64(!(x | y))),
        "s_xnor_b64" => two64(b, Ty::B64, |x, y, _| nz64(!(x ^ y))),
        "s_lshl_b32" => two(b, |x, y, _| nz(x << (y & 31))),
        "s_lshr_b32" => two(b, |x, y, _| nz(x >> (y & 31))),
        "s_ashr_i32" => two(b, |x, y, _| nz(((x as i32) >> (y & 31)) as u32)),
        "s_lshl_b64" => two64(b, Ty::B64, |x, y, _| nz64(x << (y & 63))),
        "s_lshr_b64" => two64(b, Ty::B64, |x, y, _| nz64(x >> (y & 63))),
        "s_ashr_i64" => two64(b, Ty::I64, |x, y, _| nz64(((x as i64) >> (y & 63)) as u64)),
        "s_bfm_b32" => two(b, |x, y, _| (((1u32 << (x & 31)) - 1) << (y & 31), None)),
        "s_bfm_b64" => two64(b, Ty::B64, |x, y, _| (((1u64 << (x & 63)) - 1) << (y & 63), None)),
        "s_bfe_u32" => two(b, |x, y, _| {
            let width = y >> 16 & 0x7f;
            let value = x >> (y & 31);
            nz(if width >= 32 { value } else { value & ((1 << width) - 1) })
        }),
        "s_bfe_i32" => two(b, |x, y, _| {
            let width = (y >> 16 & 0x7f).min(32);
            let value = (x as i32) >> (y & 31);
            nz(if width == 0 {
                0
            } else {
                (value << (32 - width) >> (32 - width)) as u32
            })
        }),
        "s_bfe_u64" => two64(b, Ty::B64, |x, y, _| {
            let width = y >> 16 & 0x7f;
            let value = x >> (y & 63);
            nz64(if width >= 64 { value } else { value & ((1 << width) - 1) })
        }),
        "s_bfe_i64" => two64(b, Ty::B64, |x, y, _| {
            let width = (y >> 16 & 0x7f).min(64);
            let value = (x as i64) >> (y & 63);
            nz64(if width == 0 {
                0
            } else {
                (value << (64 - width) >> (64 - width)) as u64
            })
        }),
        "s_pack_ll_b32_b16" => two(b, |x, y, _| (x & 0xffff | y << 16, None)),
        "s_pack_lh_b32_b16" => two(b, |x, y, _| (x & 0xffff | y & 0xffff_0000, None)),
        "s_pack_hh_b32_b16" => two(b, |x, y, _| (x >> 16 | y & 0xffff_0000, None)),
        "s_pack_hl_b32_b16" => two(b, |x, y, _| (x >> 16 | y << 16, None)),
        "s_cselect_b32" => two(b, |x, y, scc| (if scc { x } else { y }, None)),
        "s_cselect_b64" => two64(b, Ty::B64, |x, y, scc| (if scc { x } else { y }, None)),
        _ => return None,
    })
}

fn save_exec(b: &Build<'_>, op: &str, save_old: bool, half: bool) -> Result<Exec, String> {
    let f: fn(u64, u64) -> u64 = match op {
        "and" => |s, e| s & e,
        "or" => |s, e| s | e,
        "xor" => |s, e| s ^ e,
        "andn1" => |s, e| !s & e,
        "andn2" => |s, e| s & !e,
        "orn1" => |s, e| !s | e,
        "orn2" => |s, e| s | !e,
        "nand" => |s, e| !(s & e),
        "nor" => |s, e| !(s | e),
        "xnor" => |s, e| !(s ^ e),
        _ => return Err(format!("operation {op} on EXEC")),
    };
    let (d, narrow_src, wide_src) = (dst(b)?, src(b, 1)?, wide(b, 1, Ty::B64)?);
    Ok(Box::new(move |w, _| {
        let old = w.exec();
        let source = if half {
            u64::from(get(w, narrow_src))
        } else {
            wide_src.get(w)
        };
        let new = f(source, old) & w.lane_mask;
        w.set_exec(new);
        let result = if save_old { old } else { new };
        if half {
            w.write_s(d, result as u32);
        } else {
            w.write_s64(d, result);
        }
        w.scc = new != 0;
        Ok(Flow::Next)
    }))
}

fn single(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "s_mov_b32" => one(b, |x| (x, None)),
        "s_mov_b64" => one64(b, |x| (x, None)),
        "s_cmov_b32" => {
            let parts = dst(b).and_then(|d| Ok((d, src(b, 1)?)));
            parts.map(|(d, x)| -> Exec {
                Box::new(move |w, _| {
                    if w.scc {
                        let value = get(w, x);
                        w.write_s(d, value);
                    }
                    Ok(Flow::Next)
                })
            })
        }
        "s_not_b32" => one(b, |x| nz(!x)),
        "s_not_b64" => one64(b, |x| nz64(!x)),
        "s_brev_b32" => one(b, |x| (x.reverse_bits(), None)),
        "s_brev_b64" => one64(b, |x| (x.reverse_bits(), None)),
        "s_bcnt0_i32_b32" => one(b, |x| nz(x.count_zeros())),
        "s_bcnt1_i32_b32" => one(b, |x| nz(x.count_ones())),
        "s_bcnt0_i32_b64" => narrow(b, |x| nz(x.count_zeros())),
        "s_bcnt1_i32_b64" => narrow(b, |x| nz(x.count_ones())),
        "s_ff0_i32_b32" => one(b, |x| (if x == u32::MAX { u32::MAX } else { x.trailing_ones() }, None)),
        "s_ff1_i32_b32" => one(b, |x| (if x == 0 { u32::MAX } else { x.trailing_zeros() }, None)),
        "s_ff1_i32_b64" => narrow(b, |x| (if x == 0 { u32::MAX } else { x.trailing_zeros() }, None)),
        "s_flbit_i32_b32" => one(b, |x| (if x == 0 { u32::MAX } else { x.leading_zeros() }, None)),
        "s_flbit_i32_b64" => narrow(b, |x| (if x == 0 { u32::MAX } else { x.leading_zeros() }, None)),
        "s_flbit_i32" => one(b, |x| {
            let same = (x ^ ((x as i32) >> 31) as u32).leading_zeros();
            (if same == 32 { u32::MAX } else { same }, None)
        }),
        "s_sext_i32_i8" => one(b, |x| (x as u8 as i8 as i32 as u32, None)),
        "s_sext_i32_i16" => one(b, |x| (x as u16 as i16 as i32 as u32, None)),
        "s_abs_i32" => one(b, |x| nz((x as i32).unsigned_abs())),
        "s_bitset0_b64" | "s_bitset1_b64" => {
            let set = name == "s_bitset1_b64";
            let parts = dst(b).and_then(|d| Ok((d, src(b, 1)?)));
            parts.map(|(d, x)| -> Exec {
                Box::new(move |w, _| {
                    let bit = 1u64 << (get(w, x) & 63);
                    let old = w.read_s64(d);
                    w.write_s64(d, if set { old | bit } else { old & !bit });
                    Ok(Flow::Next)
                })
            })
        }
        "s_bitset0_b32" | "s_bitset1_b32" => {
            let set = name == "s_bitset1_b32";
            let parts = dst(b).and_then(|d| Ok((d, src(b, 1)?)));
            parts.map(|(d, x)| -> Exec {
                Box::new(move |w, _| {
                    let bit = 1 << (get(w, x) & 31);
                    let old = w.s[d as usize];
                    w.write_s(d, if set { old | bit } else { old & !bit });
                    Ok(Flow::Next)
                })
            })
        }
        "s_wqm_b32" => one(b, |x| nz(whole_quads(x.into()) as u32)),
        "s_wqm_b64" => one64(b, |x| nz64(whole_quads(x))),
        "s_bitreplicate_b64_b32" => {
            let parts = dst(b).and_then(|d| Ok((d, src(b, 1)?)));
            parts.map(|(d, x)| -> Exec {
                Box::new(move |w, _| {
                    let bits = get(w, x);
                    let value = (0..32).fold(0u64, |out, bit| out | (u64::from(bits >> bit & 1) * 3) << (2 * bit));
                    w.write_s64(d, value);
                    Ok(Flow::Next)
                })
            })
        }
        _ => return None,
    })
}

fn whole_quads(mask: u64) -> u64 {
    (0..16).fold(0, |out, quad| {
        if mask >> (4 * quad) & 15 != 0 {
            out | 15 << (4 * quad)
        } else {
            out
        }
    })
}

fn comparison(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let b32 = Ty::B32;
    Some(match name {
        "s_cmp_eq_i32" | "s_cmp_eq_u32" => compare(b, b32, |x, y| x == y),
        "s_cmp_lg_i32" | "s_cmp_lg_u32" => compare(b, b32, |x, y| x != y),
        "s_cmp_gt_i32" => compare(b, b32, |x, y| x as i32 > y as i32),
        "s_cmp_ge_i32" => compare(b, b32, |x, y| x as i32 >= y as i32),
        "s_cmp_lt_i32" => compare(b, b32, |x, y| (x as i32) < y as i32),
        "s_cmp_le_i32" => compare(b, b32, |x, y| x as i32 <= y as i32),
        "s_cmp_gt_u32" => compare(b, b32, |x, y| x > y),
        "s_cmp_ge_u32" => compare(b, b32, |x, y| x >= y),
        "s_cmp_lt_u32" => compare(b, b32, |x, y| x < y),
        "s_cmp_le_u32" => compare(b, b32, |x, y| x <= y),
        "s_bitcmp0_b32" => compare(b, b32, |x, y| x >> (y & 31) & 1 == 0),
        "s_bitcmp1_b32" => compare(b, b32, |x, y| x >> (y & 31) & 1 == 1),
        "s_bitcmp0_b64" | "s_bitcmp1_b64" => {
            let want = u64::from(name == "s_bitcmp1_b64");
            let parts = wide(b, 0, Ty::B64).and_then(|x| Ok((x, src(b, 1)?)));
            parts.map(|(x, y)| -> Exec {
                Box::new(move |w, _| {
                    w.scc = x.get(w) >> (get(w, y) & 63) & 1 == want;
                    Ok(Flow::Next)
                })
            })
        }
        "s_cmp_eq_u64" | "s_cmp_lg_u64" => {
            let equal = name == "s_cmp_eq_u64";
            let parts = wide(b, 0, Ty::B64).and_then(|x| Ok((x, wide(b, 1, Ty::B64)?)));
            parts.map(|(x, y)| -> Exec {
                Box::new(move |w, _| {
                    w.scc = (x.get(w) == y.get(w)) == equal;
                    Ok(Flow::Next)
                })
            })
        }
        "s_cmpk_eq_i32" => compare_k(b, |x, k| x as i32 == k),
        "s_cmpk_lg_i32" => compare_k(b, |x, k| x as i32 != k),
        "s_cmpk_gt_i32" => compare_k(b, |x, k| x as i32 > k),
        "s_cmpk_ge_i32" => compare_k(b, |x, k| x as i32 >= k),
        "s_cmpk_lt_i32" => compare_k(b, |x, k| (x as i32) < k),
        "s_cmpk_le_i32" => compare_k(b, |x, k| x as i32 <= k),
        "s_cmpk_eq_u32" => compare_k(b, |x, k| x == k as u32 & 0xffff),
        "s_cmpk_lg_u32" => compare_k(b, |x, k| x != k as u32 & 0xffff),
        "s_cmpk_gt_u32" => compare_k(b, |x, k| x > k as u32 & 0xffff),
        "s_cmpk_ge_u32" => compare_k(b, |x, k| x >= k as u32 & 0xffff),
        "s_cmpk_lt_u32" => compare_k(b, |x, k| x < k as u32 & 0xffff),
        "s_cmpk_le_u32" => compare_k(b, |x, k| x <= k as u32 & 0xffff),
        _ => return None,
    })
}

fn float(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    use super::float::{f16_to_f32, f32_to_f16, f32_to_f16_rtz, max32, min32};
    let (f, h) = (f32::from_bits, |x: u32| f16_to_f32(x & 0xffff));
    if let Some(rest) = name.strip_prefix("s_cmp_") {
        let (op, ty) = rest.rsplit_once('_')?;
        let (ty, read): (Ty, fn(u32) -> f32) = match ty {
            "f32" => (Ty::F32, f32::from_bits),
            "f16" => (Ty::F16, |x| f16_to_f32(x & 0xffff)),
            _ => return None,
        };
        return Some(match op {
            "lt" => compare(b, ty, move |x, y| read(x) < read(y)),
            "eq" => compare(b, ty, move |x, y| read(x) == read(y)),
            "le" => compare(b, ty, move |x, y| read(x) <= read(y)),
            "gt" => compare(b, ty, move |x, y| read(x) > read(y)),
            "ge" => compare(b, ty, move |x, y| read(x) >= read(y)),
            "lg" => compare(b, ty, move |x, y| read(x) < read(y) || read(x) > read(y)),
            "o" => compare(b, ty, move |x, y| !read(x).is_nan() && !read(y).is_nan()),
            "u" => compare(b, ty, move |x, y| read(x).is_nan() || read(y).is_nan()),
            "nge" => compare(b, ty, move |x, y| {
                read(x).partial_cmp(&read(y)).is_none_or(|o| o.is_lt())
            }),
            "ngt" => compare(b, ty, move |x, y| {
                read(x).partial_cmp(&read(y)).is_none_or(|o| o.is_le())
            }),
            "nle" => compare(b, ty, move |x, y| {
                read(x).partial_cmp(&read(y)).is_none_or(|o| o.is_gt())
            }),
            "nlt" => compare(b, ty, move |x, y| {
                read(x).partial_cmp(&read(y)).is_none_or(|o| o.is_ge())
            }),
            "neq" => compare(b, ty, move |x, y| read(x) != read(y)),
            "nlg" => compare(b, ty, move |x, y| {
                read(x).partial_cmp(&read(y)).is_none_or(|o| o.is_eq())
            }),
            _ => return None,
        });
    }
    let half2 = |g: fn(f32, f32) -> f32| {
        let parts = dst(b).and_then(|d| Ok((d, src_ty(b, 1, Ty::F16)?, src_ty(b, 2, Ty::F16)?)));
        parts.map(|(d, x, y)| -> Exec {
            Box::new(move |w, _| {
                let value = g(f16_to_f32(get(w, x) & 0xffff), f16_to_f32(get(w, y) & 0xffff));
                w.write_s(d, f32_to_f16(value));
                Ok(Flow::Next)
            })
        })
    };
    Some(match name {
        "s_add_f32" => float2(b, |x, y| x + y),
        "s_sub_f32" => float2(b, |x, y| x - y),
        "s_mul_f32" => float2(b, |x, y| x * y),
        "s_min_f32" | "s_min_num_f32" => float2(b, min32),
        "s_max_f32" | "s_max_num_f32" => float2(b, max32),
        "s_minimum_f32" => float2(b, |x, y| {
            if x.is_nan() || y.is_nan() {
                f32::NAN
            } else {
                min32(x, y)
            }
        }),
        "s_maximum_f32" => float2(b, |x, y| {
            if x.is_nan() || y.is_nan() {
                f32::NAN
            } else {
                max32(x, y)
            }
        }),
        "s_fmac_f32" => {
            let parts = dst(b).and_then(|d| Ok((d, src_ty(b, 1, Ty::F32)?, src_ty(b, 2, Ty::F32)?)));
            parts.map(|(d, x, y)| -> Exec {
                Box::new(move |w, _| {
                    let value = f(get(w, x)).mul_add(f(get(w, y)), f(w.s[d as usize]));
                    w.write_s(d, value.to_bits());
                    Ok(Flow::Next)
                })
            })
        }
        "s_fmamk_f32" | "s_fmaak_f32" => {
            let parts = dst(b).and_then(|d| {
                Ok((
                    d,
                    src_ty(b, 1, Ty::F32)?,
                    src_ty(b, 2, Ty::F32)?,
                    src_ty(b, 3, Ty::F32)?,
                ))
            });
            parts.map(|(d, x, y, z)| -> Exec {
                Box::new(move |w, _| {
                    let value = f(get(w, x)).mul_add(f(get(w, y)), f(get(w, z)));
                    w.write_s(d, value.to_bits());
                    Ok(Flow::Next)
                })
            })
        }
        "s_ceil_f32" => float1(b, Ty::F32, move |x| f(x).ceil().to_bits()),
        "s_floor_f32" => float1(b, Ty::F32, move |x| f(x).floor().to_bits()),
        "s_trunc_f32" => float1(b, Ty::F32, move |x| f(x).trunc().to_bits()),
        "s_rndne_f32" => float1(b, Ty::F32, move |x| f(x).round_ties_even().to_bits()),
        "s_cvt_f32_i32" => float1(b, Ty::B32, |x| (x as i32 as f32).to_bits()),
        "s_cvt_f32_u32" => float1(b, Ty::B32, |x| (x as f32).to_bits()),
        "s_cvt_i32_f32" => float1(b, Ty::F32, move |x| f(x) as i32 as u32),
        "s_cvt_u32_f32" => float1(b, Ty::F32, move |x| f(x) as u32),
        "s_cvt_f16_f32" => float1(b, Ty::F32, move |x| f32_to_f16(f(x))),
        "s_cvt_f32_f16" => float1(b, Ty::F16, move |x| h(x).to_bits()),
        "s_cvt_hi_f32_f16" => float1(b, Ty::B32, move |x| h(x >> 16).to_bits()),
        "s_cvt_pk_rtz_f16_f32" => two(b, move |x, y, _| {
            (f32_to_f16_rtz(f(x)) | f32_to_f16_rtz(f(y)) << 16, None)
        }),
        "s_add_f16" => half2(|x, y| x + y),
        "s_sub_f16" => half2(|x, y| x - y),
        "s_mul_f16" => half2(|x, y| x * y),
        "s_min_f16" | "s_min_num_f16" => half2(min32),
        "s_max_f16" | "s_max_num_f16" => half2(max32),
        "s_ceil_f16" => float1(b, Ty::F16, move |x| f32_to_f16(h(x).ceil())),
        "s_floor_f16" => float1(b, Ty::F16, move |x| f32_to_f16(h(x).floor())),
        "s_trunc_f16" => float1(b, Ty::F16, move |x| f32_to_f16(h(x).trunc())),
        "s_rndne_f16" => float1(b, Ty::F16, move |x| f32_to_f16(h(x).round_ties_even())),
        _ => return None,
    })
}
