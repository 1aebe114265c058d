//! The scalar ALU, branches, and the instructions that steer a wave.

use super::operand::{Build, Src, Ty, constant, read_flag};
use super::scoreboard::Counter;
use super::wave::{Exec, Flow, Trap, Wave};
use crate::arch::Generation;
use crate::decode::text::{FLAT_SCRATCH, Flag, Kind, M0, number};
use crate::error::FaultKind;

/// A 64-bit scalar source.
#[derive(Clone, Copy)]
enum Wide {
    S(u16),
    C(u64),
    Flag(Flag),
}

impl Wide {
    fn get(self, w: &Wave) -> u64 {
        match self {
            Wide::S(index) => w.read_s64(index),
            Wide::C(value) => value,
            Wide::Flag(flag) => read_flag(w, flag).into(),
        }
    }
}

fn get(w: &Wave, src: Src) -> u32 {
    src.uniform(w).unwrap_or(0)
}

fn src(b: &Build<'_>, index: usize) -> Result<Src, String> {
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

fn wide(b: &Build<'_>, index: usize, ty: Ty) -> Result<Wide, String> {
    match &b.operand(index)?.kind {
        Kind::Scalar { first, .. } => Ok(Wide::S(*first)),
        Kind::Flag(flag) => Ok(Wide::Flag(*flag)),
        kind => constant(kind, ty)
            .map(Wide::C)
            .ok_or_else(|| format!("operand {kind:?} is not a scalar")),
    }
}

fn dst(b: &Build<'_>) -> Result<u16, String> {
    b.mask_out(0)
}

/// A 16-bit immediate, sign-extended.
fn imm16(b: &Build<'_>, index: usize) -> Result<i32, String> {
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
        .or_else(|| control(b, name))
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
        "s_add_nc_u64" | "s_add_u64" => two64(b, Ty::I64, |x, y, _| (x.wrapping_add(y), None)),
        "s_sub_nc_u64" | "s_sub_u64" => two64(b, Ty::I64, |x, y, _| (x.wrapping_sub(y), None)),
        "s_mul_u64" => two64(b, Ty::I64, |x, y, _| (x.wrapping_mul(y), None)),
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
    let (d, narrow_src, wide_src) = (dst(b)?, src(b, 1)?, wide(b, 1, Ty::I64)?);
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
            let parts = wide(b, 0, Ty::I64).and_then(|x| Ok((x, wide(b, 1, Ty::I64)?)));
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

/// The device address that a branch goes to: its 16-bit word offset counts from the next instruction.
fn branch_target(b: &Build<'_>) -> u64 {
    let offset = i64::from(i16::from_le_bytes([b.raw[0], b.raw[1]])) * 4;
    (b.image_base + b.address + u64::from(b.size)).wrapping_add_signed(offset)
}

fn branch(b: &Build<'_>, taken: fn(&Wave) -> bool) -> Result<Exec, String> {
    let target = branch_target(b);
    Ok(Box::new(move |w, _| {
        Ok(if taken(w) { Flow::Jump(target) } else { Flow::Next })
    }))
}

fn nothing() -> Result<Exec, String> {
    Ok(Box::new(|_, _| Ok(Flow::Next)))
}

fn flow(flow: Flow) -> Result<Exec, String> {
    Ok(Box::new(move |_, _| Ok(flow)))
}

fn control(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(waits) = wait(b, name) {
        return Some(waits);
    }
    Some(match name {
        "s_nop"
        | "s_delay_alu"
        | "s_clause"
        | "s_setprio"
        | "s_sethalt"
        | "s_icache_inv"
        | "s_dcache_inv"
        | "s_dcache_wb"
        | "s_dcache_inv_vol"
        | "s_dcache_wb_vol"
        | "s_gl1_inv"
        | "s_inst_prefetch"
        | "s_set_inst_prefetch_distance"
        | "s_sendmsg"
        | "s_wait_alu"
        | "s_waitcnt_depctr"
        | "s_incperflevel"
        | "s_decperflevel"
        | "s_ttracedata"
        | "s_ttracedata_imm"
        | "s_wakeup"
        | "s_set_vskip"
        | "s_prefetch_inst"
        | "s_prefetch_data"
        | "s_prefetch_inst_pc_rel"
        | "s_prefetch_data_pc_rel"
        | "s_wait_event"
        | "s_version"
        | "s_buffer_prefetch_data"
        | "s_setkill"
        | "s_singleuse_vdst"
        | "buffer_gl0_inv"
        | "buffer_gl1_inv"
        | "buffer_wbinvl1"
        | "buffer_wbinvl1_vol"
        | "buffer_wbl2"
        | "buffer_invl2"
        | "buffer_inv"
        | "global_inv"
        | "global_wb"
        | "global_wbinv" => nothing(),
        "s_endpgm" | "s_endpgm_saved" => flow(Flow::End),
        "s_code_end" => Ok(Box::new(|_, _| Err(Trap::new(FaultKind::Unknown("s_code_end".into()))))),
        "s_sleep" | "s_sleep_var" | "s_barrier_leave" => flow(Flow::Yield),
        "s_barrier" => flow(Flow::Barrier),
        "s_barrier_signal" | "s_barrier_signal_isfirst" => signal(b),
        "s_barrier_wait" => barrier_wait(b),
        "s_trap" => {
            let id = imm16(b, 0).unwrap_or(0) as u32;
            Ok(Box::new(move |_, _| Err(Trap::new(FaultKind::Trap(id)))))
        }
        "s_branch" => branch(b, |_| true),
        "s_cbranch_scc0" => branch(b, |w| !w.scc),
        "s_cbranch_scc1" => branch(b, |w| w.scc),
        "s_cbranch_vccz" => branch(b, |w| w.vcc() & w.lane_mask == 0),
        "s_cbranch_vccnz" => branch(b, |w| w.vcc() & w.lane_mask != 0),
        "s_cbranch_execz" => branch(b, |w| w.exec() == 0),
        "s_cbranch_execnz" => branch(b, |w| w.exec() != 0),
        "s_cbranch_cdbgsys" | "s_cbranch_cdbguser" => branch(b, |_| false),
        "s_getpc_b64" => dst(b).map(|d| -> Exec {
            Box::new(move |w, _| {
                let pc = w.next_address;
                w.write_s64(d, pc);
                Ok(Flow::Next)
            })
        }),
        "s_setpc_b64" => {
            wide(b, 0, Ty::B64).map(|target| -> Exec { Box::new(move |w, _| Ok(Flow::Jump(target.get(w)))) })
        }
        "s_swappc_b64" => dst(b)
            .and_then(|d| Ok((d, wide(b, 1, Ty::B64)?)))
            .map(|(d, target)| -> Exec {
                Box::new(move |w, _| {
                    let to = target.get(w);
                    let pc = w.next_address;
                    w.write_s64(d, pc);
                    Ok(Flow::Jump(to))
                })
            }),
        "s_call_b64" => {
            let target = branch_target(b);
            dst(b).map(|d| -> Exec {
                Box::new(move |w, _| {
                    let pc = w.next_address;
                    w.write_s64(d, pc);
                    Ok(Flow::Jump(target))
                })
            })
        }
        "s_getreg_b32" => get_register(b),
        "s_setreg_b32" | "s_setreg_imm32_b32" => set_register(b),
        "s_round_mode" => imm16(b, 0).map(|bits| -> Exec {
            Box::new(move |w, _| {
                let mode = w.mode.bits() & !15 | bits as u32 & 15;
                w.mode.set_bits(mode);
                Ok(Flow::Next)
            })
        }),
        "s_denorm_mode" => imm16(b, 0).map(|bits| -> Exec {
            Box::new(move |w, _| {
                let mode = w.mode.bits() & !0xf0 | (bits as u32 & 15) << 4;
                w.mode.set_bits(mode);
                Ok(Flow::Next)
            })
        }),
        "s_memtime" | "s_memrealtime" => dst(b).map(|d| -> Exec {
            Box::new(move |w, env| {
                w.write_s64(d, env.clock);
                Ok(Flow::Next)
            })
        }),
        "s_sendmsg_rtn_b32" | "s_sendmsg_rtn_b64" => {
            let double = name.ends_with("64");
            dst(b).map(|d| -> Exec {
                Box::new(move |w, env| {
                    w.write_s(d, env.clock as u32);
                    if double {
                        w.write_s(d + 1, (env.clock >> 32) as u32);
                    }
                    Ok(Flow::Next)
                })
            })
        }
        "s_movrels_b32" => dst(b).and_then(|d| Ok((d, b.mask_out(1)?))).map(|(d, first)| -> Exec {
            Box::new(move |w, _| {
                let index = first as usize + w.s[M0 as usize] as usize;
                let value =
                    *w.s.get(index)
                        .ok_or_else(|| Trap::not_modelled(format!("s{index} is not there")))?;
                w.write_s(d, value);
                Ok(Flow::Next)
            })
        }),
        "s_movreld_b32" => dst(b).and_then(|d| Ok((d, src(b, 1)?))).map(|(first, x)| -> Exec {
            Box::new(move |w, _| {
                let index = u32::from(first).wrapping_add(w.s[M0 as usize]);
                if index >= 106 {
                    return Err(Trap::not_modelled(format!("s{index} is not there")));
                }
                let value = get(w, x);
                w.write_s(index as u16, value);
                Ok(Flow::Next)
            })
        }),
        "s_set_gpr_idx_on" => {
            let enable = match b.operand(1).map(|operand| &operand.kind) {
                Ok(Kind::Text(text)) => {
                    u8::from(text.contains("SRC0"))
                        | u8::from(text.contains("SRC1")) << 1
                        | u8::from(text.contains("SRC2")) << 2
                        | u8::from(text.contains("DST")) << 3
                }
                Ok(Kind::Int(bits)) => *bits as u8,
                other => return Some(Err(format!("mode {other:?}"))),
            };
            src(b, 0).map(|x| -> Exec {
                Box::new(move |w, _| {
                    w.gpr_index = Some((enable, get(w, x) & 0xff));
                    Ok(Flow::Next)
                })
            })
        }
        "s_set_gpr_idx_idx" => src(b, 0).map(|x| -> Exec {
            Box::new(move |w, _| {
                let offset = get(w, x) & 0xff;
                if let Some((_, old)) = &mut w.gpr_index {
                    *old = offset;
                }
                Ok(Flow::Next)
            })
        }),
        "s_set_gpr_idx_off" => Ok(Box::new(|w, _| {
            w.gpr_index = None;
            Ok(Flow::Next)
        })),
        _ => return None,
    })
}

/// `s_barrier_signal id`; only the workgroup's own barrier (-1) exists here.
fn signal(b: &Build<'_>) -> Result<Exec, String> {
    match b.operand(0)?.kind {
        Kind::Int(-1) => Ok(Box::new(|w, _| {
            w.signalled = true;
            Ok(Flow::Next)
        })),
        ref other => Err(format!("named barrier {other:?}")),
    }
}

fn barrier_wait(b: &Build<'_>) -> Result<Exec, String> {
    match b.operand(0)?.kind {
        Kind::Int(-1) | Kind::Bits(0xffff) | Kind::Bits(0xffff_ffff) => Ok(Box::new(|w, _| {
            if !w.signalled {
                return Err(Trap::not_modelled("s_barrier_wait without s_barrier_signal before it"));
            }
            Ok(Flow::Barrier)
        })),
        ref other => Err(format!("named barrier {other:?}")),
    }
}

/// The waits: each names how many operations of a counter may be left.
fn wait(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let split = b.arch.at_least(Generation::Gfx12);
    let immediate = || -> Result<usize, String> {
        match b.text.operands.last().map(|operand| &operand.kind) {
            Some(Kind::Int(value)) => Ok(*value as usize & 0xffff),
            Some(Kind::Bits(value)) => Ok(*value as usize & 0xffff),
            other => Err(format!("{other:?} is not a count")),
        }
    };
    let mut waits: Vec<(Counter, usize)> = Vec::new();
    let counter = match name {
        "s_waitcnt" => {
            // The disassembler leaves out counters that are at their maximum.
            let mut words = Vec::new();
            for operand in &b.text.operands {
                match &operand.kind {
                    Kind::Text(text) => words.push(text.clone()),
                    // A bare number: all counters' fields; only "everything" is decoded from it.
                    Kind::Int(0) | Kind::Bits(0) => {
                        words.extend(["vmcnt(0)".to_string(), "lgkmcnt(0)".to_string()]);
                    }
                    other => return Some(Err(format!("wait {other:?}"))),
                }
            }
            words.extend(
                b.text
                    .modifiers
                    .iter()
                    .map(|(key, _)| key.clone())
                    .filter(|key| key != "&"),
            );
            for word in words {
                let count = word
                    .split_once('(')
                    .and_then(|(name, rest)| Some((name.to_string(), number(rest.strip_suffix(')')?)? as usize)));
                match count {
                    Some((name, left)) if name == "vmcnt" => waits.push((Counter::Vector, left)),
                    Some((name, left)) if name == "lgkmcnt" => waits.push((Counter::Local, left)),
                    Some((name, _)) if name == "expcnt" => {}
                    _ => return Some(Err(format!("wait {word}"))),
                }
            }
            None
        }
        "s_waitcnt_vscnt" | "s_wait_storecnt" => Some(Counter::Store),
        "s_waitcnt_vmcnt" | "s_wait_loadcnt" => Some(Counter::Vector),
        "s_waitcnt_lgkmcnt" | "s_wait_dscnt" => Some(Counter::Local),
        "s_wait_kmcnt" => Some(Counter::Scalar),
        "s_waitcnt_expcnt" | "s_wait_expcnt" | "s_wait_samplecnt" | "s_wait_bvhcnt" | "s_wait_xcnt" => {
            return Some(nothing());
        }
        "s_wait_idle" => {
            for counter in [Counter::Vector, Counter::Store, Counter::Local, Counter::Scalar] {
                waits.push((counter, 0));
            }
            None
        }
        "s_wait_loadcnt_dscnt" | "s_wait_storecnt_dscnt" => {
            let bits = match immediate() {
                Ok(bits) => bits,
                Err(error) => return Some(Err(error)),
            };
            let first = if name.contains("load") {
                Counter::Vector
            } else {
                Counter::Store
            };
            waits.push((first, bits >> 8 & 0x3f));
            waits.push((Counter::Local, bits & 0x3f));
            None
        }
        _ => return None,
    };
    if let Some(counter) = counter {
        match immediate() {
            Ok(left) => waits.push((counter, left)),
            Err(error) => return Some(Err(error)),
        }
    }
    let _ = split;
    Some(Ok(Box::new(move |w, _| {
        for (counter, left) in &waits {
            w.board.wait(*counter, *left);
        }
        Ok(Flow::Next)
    })))
}

/// `hwreg(NAME, offset, size)`: the name and the bit field.
fn hardware_register(b: &Build<'_>, index: usize) -> Result<(String, u32, u32), String> {
    let Kind::Text(text) = &b.operand(index)?.kind else {
        return Err("not a hardware register".into());
    };
    let inner = text
        .strip_prefix("hwreg(")
        .and_then(|rest| rest.strip_suffix(')'))
        .ok_or_else(|| format!("hardware register {text}"))?;
    let mut parts = inner.split(',').map(str::trim);
    let name = parts.next().unwrap_or("").to_string();
    let mut field = |absent: u32| parts.next().and_then(number).map_or(absent, |value| value as u32);
    let (offset, size) = (field(0), field(32));
    Ok((name, offset, size))
}

fn get_register(b: &Build<'_>) -> Result<Exec, String> {
    let d = dst(b)?;
    let (name, offset, size) = hardware_register(b, 1)?;
    let read: fn(&Wave, u64) -> u32 = match name.as_str() {
        "HW_REG_MODE" | "HW_REG_WAVE_MODE" => |w, _| w.mode.bits(),
        // Bits 31..16 are the LDS aperture's upper half word, 15..0 the scratch aperture's.
        "HW_REG_SH_MEM_BASES" => |_, _| {
            ((crate::decode::text::SHARED_BASE >> 48) as u32 * 0x1_0000)
                | (crate::decode::text::PRIVATE_BASE >> 48) as u32
        },
        "HW_REG_SHADER_CYCLES" | "HW_REG_SHADER_CYCLES_LO" => |_, clock| clock as u32,
        "HW_REG_SHADER_CYCLES_HI" => |_, clock| (clock >> 32) as u32,
        "HW_REG_XCC_ID" | "HW_REG_HW_ID" | "HW_REG_HW_ID1" | "HW_REG_HW_ID2" | "HW_REG_TRAPSTS" | "HW_REG_IB_STS"
        | "HW_REG_IB_STS2" | "HW_REG_LDS_ALLOC" | "HW_REG_GPR_ALLOC" => |_, _| 0,
        "HW_REG_STATUS" | "HW_REG_WAVE_STATUS" => |w, _| u32::from(w.scc),
        "HW_REG_FLAT_SCR_LO" => |w, _| w.s[FLAT_SCRATCH as usize],
        "HW_REG_FLAT_SCR_HI" => |w, _| w.s[FLAT_SCRATCH as usize + 1],
        other => return Err(format!("hardware register {other} is not modelled")),
    };
    Ok(Box::new(move |w, env| {
        let bits = u64::from(read(w, env.clock)) >> offset & ((1u64 << size) - 1);
        w.write_s(d, bits as u32);
        Ok(Flow::Next)
    }))
}

fn set_register(b: &Build<'_>) -> Result<Exec, String> {
    let (name, offset, size) = hardware_register(b, 0)?;
    let value = src(b, 1)?;
    let mask = (((1u64 << size) - 1) << offset) as u32;
    match name.as_str() {
        "HW_REG_MODE" | "HW_REG_WAVE_MODE" => Ok(Box::new(move |w, _| {
            let bits = w.mode.bits() & !mask | get(w, value) << offset & mask;
            w.mode.set_bits(bits);
            Ok(Flow::Next)
        })),
        "HW_REG_FLAT_SCR_LO" | "HW_REG_FLAT_SCR_HI" => {
            let index = FLAT_SCRATCH + u16::from(name.ends_with("HI"));
            Ok(Box::new(move |w, _| {
                let bits = get(w, value);
                w.write_s(index, bits);
                Ok(Flow::Next)
            }))
        }
        other => Err(format!("writing hardware register {other} is not modelled")),
    }
}
