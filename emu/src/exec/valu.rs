//! The vector ALU: which mnemonic computes what, on one lane.
//!
//! Names that differ between generations and mean the same are first brought to one spelling. [`floats`] has the
//! floats' part.

mod floats;

use super::lanes::*;
use super::operand::{Build, Ty};
use super::round::Arith;
use super::simd::Lanes;
use super::wave::{Exec, Flow};
use crate::decode::text::Kind;

/// The spelling under which the table below knows a mnemonic.
pub(crate) fn canonical(name: &str) -> &str {
    let name = match name.strip_prefix("v_dual_") {
        Some(rest) => DUAL
            .iter()
            .find(|(dual, _)| *dual == rest)
            .map_or(name, |(_, plain)| plain),
        None => name,
    };
    SAME.iter()
        .find(|(other, _)| *other == name)
        .map_or(name, |(_, ours)| ours)
}

const DUAL: &[(&str, &str)] = &[
    ("fmac_f32", "v_fmac_f32"),
    ("fmaak_f32", "v_fmaak_f32"),
    ("fmamk_f32", "v_fmamk_f32"),
    ("mul_f32", "v_mul_f32"),
    ("add_f32", "v_add_f32"),
    ("sub_f32", "v_sub_f32"),
    ("subrev_f32", "v_subrev_f32"),
    ("mul_dx9_zero_f32", "v_mul_legacy_f32"),
    ("mov_b32", "v_mov_b32"),
    ("cndmask_b32", "v_cndmask_b32"),
    ("max_f32", "v_max_f32"),
    ("min_f32", "v_min_f32"),
    ("max_num_f32", "v_max_f32"),
    ("min_num_f32", "v_min_f32"),
    ("dot2acc_f32_f16", "v_dot2c_f32_f16"),
    ("dot2acc_f32_bf16", "v_dot2c_f32_bf16"),
    ("add_nc_u32", "v_add_u32"),
    ("lshlrev_b32", "v_lshlrev_b32"),
    ("and_b32", "v_and_b32"),
];

const SAME: &[(&str, &str)] = &[
    ("v_add_nc_u32", "v_add_u32"),
    ("v_sub_nc_u32", "v_sub_u32"),
    ("v_subrev_nc_u32", "v_subrev_u32"),
    ("v_add_nc_i32", "v_add_i32"),
    ("v_sub_nc_i32", "v_sub_i32"),
    ("v_add_nc_u16", "v_add_u16"),
    ("v_sub_nc_u16", "v_sub_u16"),
    ("v_add_nc_i16", "v_add_i16"),
    ("v_sub_nc_i16", "v_sub_i16"),
    ("v_add_co_ci_u32", "v_addc_co_u32"),
    ("v_sub_co_ci_u32", "v_subb_co_u32"),
    ("v_subrev_co_ci_u32", "v_subbrev_co_u32"),
    ("v_min_num_f32", "v_min_f32"),
    ("v_max_num_f32", "v_max_f32"),
    ("v_min_num_f16", "v_min_f16"),
    ("v_max_num_f16", "v_max_f16"),
    ("v_min_num_f64", "v_min_f64"),
    ("v_max_num_f64", "v_max_f64"),
    ("v_min3_num_f32", "v_min3_f32"),
    ("v_max3_num_f32", "v_max3_f32"),
    ("v_med3_num_f32", "v_med3_f32"),
    ("v_min3_num_f16", "v_min3_f16"),
    ("v_max3_num_f16", "v_max3_f16"),
    ("v_med3_num_f16", "v_med3_f16"),
    ("v_minmax_num_f32", "v_minmax_f32"),
    ("v_maxmin_num_f32", "v_maxmin_f32"),
    ("v_minmax_num_f16", "v_minmax_f16"),
    ("v_maxmin_num_f16", "v_maxmin_f16"),
    ("v_mad_co_u64_u32", "v_mad_u64_u32"),
    ("v_mad_co_i64_i32", "v_mad_i64_i32"),
    ("v_cvt_floor_i32_f32", "v_cvt_flr_i32_f32"),
    ("v_cvt_nearest_i32_f32", "v_cvt_rpi_i32_f32"),
    ("v_cvt_pk_rtz_f16_f32", "v_cvt_pkrtz_f16_f32"),
    ("v_cvt_pk_norm_i16_f32", "v_cvt_pknorm_i16_f32"),
    ("v_cvt_pk_norm_u16_f32", "v_cvt_pknorm_u16_f32"),
    ("v_clz_i32_u32", "v_ffbh_u32"),
    ("v_ctz_i32_b32", "v_ffbl_b32"),
    ("v_cls_i32", "v_ffbh_i32"),
    ("v_mul_dx9_zero_f32", "v_mul_legacy_f32"),
    ("v_fma_dx9_zero_f32", "v_fma_legacy_f32"),
    ("v_xor_add_u32", "v_xad_u32"),
    ("v_mad_legacy_u16", "v_mad_u16"),
    ("v_mad_legacy_i16", "v_mad_i16"),
    ("v_fma_legacy_f16", "v_fma_f16"),
    ("v_div_fixup_legacy_f16", "v_div_fixup_f16"),
    ("v_mad_legacy_f16", "v_mad_f16"),
    ("v_lshlrev_b64_e32", "v_lshlrev_b64"),
    ("v_mul_lo_i32", "v_mul_lo_u32"),
    ("v_dot2acc_f32_f16", "v_dot2c_f32_f16"),
    ("v_rcp_iflag_f32", "v_rcp_f32"),
    ("v_dot4_i32_i8", "v_dot4_i32_i8"),
    ("v_cvt_i32_i16", "v_cvt_i32_i16"),
];

/// Builds the instruction; None where the table does not have it.
pub(crate) fn build(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(rest) = name.strip_prefix("v_cmpx_") {
        return Some(super::compare::comparison(b, rest, true));
    }
    if let Some(rest) = name.strip_prefix("v_cmp_") {
        return Some(super::compare::comparison(b, rest, false));
    }
    integer(b, name)
        .or_else(|| floats::single(b, name))
        .or_else(|| floats::half(b, name))
        .or_else(|| floats::double(b, name))
}

fn integer(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let clamp = b.text.flag("clamp");
    Some(match name {
        "v_nop" | "v_pipeflush" => Ok(Box::new(|_, _| Ok(Flow::Next))),
        "v_mov_b32" => i1(b, |x| x),
        "v_mov_b16" => s1(b, |x| x),
        "v_not_b32" => i1(b, |x| !x),
        "v_not_b16" => s1(b, |x| !x),
        "v_bfrev_b32" => i1(b, u32::reverse_bits),
        "v_ffbh_u32" => i1(b, |x| if x == 0 { u32::MAX } else { x.leading_zeros() }),
        "v_ffbl_b32" => i1(b, |x| if x == 0 { u32::MAX } else { x.trailing_zeros() }),
        "v_ffbh_i32" => i1(b, |x| {
            let same = (x ^ ((x as i32) >> 31) as u32).leading_zeros();
            if same == 32 { u32::MAX } else { same }
        }),
        "v_cndmask_b32" => {
            let mask = (b.text.operands.len() > 3).then_some(3);
            select(b, Ty::B32, mask)
        }
        "v_cndmask_b16" => select(b, Ty::B16, Some(3)),
        "v_and_b32" => i2(b, |x, y| x & y),
        "v_or_b32" => i2(b, |x, y| x | y),
        "v_xor_b32" => i2(b, |x, y| x ^ y),
        "v_xnor_b32" => i2(b, |x, y| !(x ^ y)),
        "v_and_b16" => s2(b, |x, y| x & y),
        "v_or_b16" => s2(b, |x, y| x | y),
        "v_xor_b16" => s2(b, |x, y| x ^ y),
        "v_lshlrev_b32" => i2(b, |x, y| y << (x & 31)),
        "v_lshrrev_b32" => i2(b, |x, y| y >> (x & 31)),
        "v_ashrrev_i32" => i2(b, |x, y| ((y as i32) >> (x & 31)) as u32),
        "v_lshlrev_b16" => s2(b, |x, y| y << (x & 15)),
        "v_lshrrev_b16" => s2(b, |x, y| y >> (x & 15)),
        "v_ashrrev_i16" => s2(b, |x, y| ((y as i16) >> (x & 15)) as u16),
        "v_lshl_add_u32" => i3(b, |x, y, z| (x << (y & 31)).wrapping_add(z)),
        "v_add_lshl_u32" => i3(b, |x, y, z| x.wrapping_add(y) << (z & 31)),
        "v_lshl_or_b32" => i3(b, |x, y, z| (x << (y & 31)) | z),
        "v_and_or_b32" => i3(b, |x, y, z| (x & y) | z),
        "v_or3_b32" => i3(b, |x, y, z| x | y | z),
        "v_xor3_b32" => i3(b, |x, y, z| x ^ y ^ z),
        "v_add3_u32" => i3(b, |x, y, z| x.wrapping_add(y).wrapping_add(z)),
        "v_xad_u32" => i3(b, |x, y, z| (x ^ y).wrapping_add(z)),
        "v_bfe_u32" => i3(b, |x, y, z| {
            let width = z & 31;
            (x >> (y & 31)) & ((1u32 << width) - 1)
        }),
        "v_bfe_i32" => i3(b, |x, y, z| {
            let width = z & 31;
            let value = (x as i32) >> (y & 31);
            if width == 0 {
                0
            } else {
                ((value << (32 - width)) >> (32 - width)) as u32
            }
        }),
        "v_bitop3_b32" => {
            let table = b.text.number("bitop3") as u32;
            i3(b, move |x, y, z| bitop3(table, x, y, z))
        }
        "v_bitop3_b16" => {
            let table = b.text.number("bitop3") as u32;
            s3(b, move |x, y, z| bitop3(table, x.into(), y.into(), z.into()) as u16)
        }
        "v_bfi_b32" => i3(b, |x, y, z| (x & y) | (!x & z)),
        "v_bfm_b32" => i2(b, |x, y| ((1u32 << (x & 31)) - 1) << (y & 31)),
        "v_alignbit_b32" => i3(b, |x, y, z| ((u64::from(x) << 32 | u64::from(y)) >> (z & 31)) as u32),
        "v_alignbyte_b32" => i3(b, |x, y, z| {
            ((u64::from(x) << 32 | u64::from(y)) >> (8 * (z & 3))) as u32
        }),
        "v_perm_b32" => i3(b, |x, y, z| {
            let bytes = u64::from(x) << 32 | u64::from(y);
            let mut out = 0;
            for index in 0..4 {
                let byte = match z >> (8 * index) & 0xff {
                    select @ 0..=7 => (bytes >> (8 * select)) as u32 & 0xff,
                    // 8 to 11 spread a sign bit.
                    select @ 8..=11 => {
                        if bytes >> (16 * (select - 8) + 15) & 1 == 1 {
                            0xff
                        } else {
                            0
                        }
                    }
                    12 => 0,
                    _ => 0xff,
                };
                out |= byte << (8 * index);
            }
            out
        }),
        "v_bcnt_u32_b32" => i2(b, |x, y| x.count_ones().wrapping_add(y)),
        "v_add_u32" if !clamp => i2(b, u32::wrapping_add),
        "v_add_u32" => i2(b, u32::saturating_add),
        "v_sub_u32" if !clamp => i2(b, u32::wrapping_sub),
        "v_sub_u32" => i2(b, u32::saturating_sub),
        "v_subrev_u32" if !clamp => i2(b, |x, y| y.wrapping_sub(x)),
        "v_subrev_u32" => i2(b, |x, y| y.saturating_sub(x)),
        "v_add_i32" if !clamp => i2(b, u32::wrapping_add),
        "v_add_i32" => i2(b, |x, y| (x as i32).saturating_add(y as i32) as u32),
        "v_sub_i32" if !clamp => i2(b, u32::wrapping_sub),
        "v_sub_i32" => i2(b, |x, y| (x as i32).saturating_sub(y as i32) as u32),
        "v_add_u16" if !clamp => s2(b, u16::wrapping_add),
        "v_add_u16" => s2(b, u16::saturating_add),
        "v_sub_u16" if !clamp => s2(b, u16::wrapping_sub),
        "v_sub_u16" => s2(b, u16::saturating_sub),
        "v_subrev_u16" => s2(b, |x, y| y.wrapping_sub(x)),
        "v_add_i16" if !clamp => s2(b, u16::wrapping_add),
        "v_add_i16" => s2(b, |x, y| (x as i16).saturating_add(y as i16) as u16),
        "v_sub_i16" if !clamp => s2(b, u16::wrapping_sub),
        "v_sub_i16" => s2(b, |x, y| (x as i16).saturating_sub(y as i16) as u16),
        "v_mul_lo_u16" => s2(b, u16::wrapping_mul),
        "v_mad_u16" | "v_mad_i16" => s3(b, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
        "v_max_u16" => s2(b, u16::max),
        "v_min_u16" => s2(b, u16::min),
        "v_max_i16" => s2(b, |x, y| (x as i16).max(y as i16) as u16),
        "v_min_i16" => s2(b, |x, y| (x as i16).min(y as i16) as u16),
        "v_max3_u16" => s3(b, |x, y, z| x.max(y).max(z)),
        "v_min3_u16" => s3(b, |x, y, z| x.min(y).min(z)),
        "v_med3_u16" => s3(b, |x, y, z| x.min(y).max(x.max(y).min(z))),
        "v_max3_i16" => s3(b, |x, y, z| (x as i16).max(y as i16).max(z as i16) as u16),
        "v_min3_i16" => s3(b, |x, y, z| (x as i16).min(y as i16).min(z as i16) as u16),
        "v_med3_i16" => s3(b, |x, y, z| {
            let (x, y, z) = (x as i16, y as i16, z as i16);
            x.min(y).max(x.max(y).min(z)) as u16
        }),
        "v_mul_lo_u32" => i2(b, u32::wrapping_mul),
        "v_mul_hi_u32" => i2(b, |x, y| ((u64::from(x) * u64::from(y)) >> 32) as u32),
        "v_mul_hi_i32" => i2(b, |x, y| ((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32),
        "v_mul_u32_u24" => i2(b, |x, y| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff)),
        "v_mul_hi_u32_u24" => i2(b, |x, y| {
            ((u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff)) >> 32) as u32
        }),
        "v_mul_i32_i24" => i2(b, |x, y| i24(x).wrapping_mul(i24(y)) as u32),
        "v_mul_hi_i32_i24" => i2(b, |x, y| ((i64::from(i24(x)) * i64::from(i24(y))) >> 32) as u32),
        "v_mad_u32_u24" => i3(b, |x, y, z| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff).wrapping_add(z)),
        "v_mad_i32_i24" => i3(b, |x, y, z| (i24(x).wrapping_mul(i24(y)) as u32).wrapping_add(z)),
        "v_mad_u32_u16" => op3(b, [Ty::B16, Ty::B16, Ty::B32], Ty::B32, Arith::Other, |x, y, z| {
            ((x & 0xffff) * (y & 0xffff)).wrapping_add(z)
        }),
        "v_mad_i32_i16" => op3(b, [Ty::B16, Ty::B16, Ty::B32], Ty::B32, Arith::Other, |x, y, z| {
            (i32::from(x as i16) * i32::from(y as i16)).wrapping_add(z as i32) as u32
        }),
        "v_min_u32" => i2(b, u32::min),
        "v_max_u32" => i2(b, u32::max),
        "v_min_i32" => i2(b, |x, y| (x as i32).min(y as i32) as u32),
        "v_max_i32" => i2(b, |x, y| (x as i32).max(y as i32) as u32),
        "v_min3_u32" => i3(b, |x, y, z| x.min(y).min(z)),
        "v_max3_u32" => i3(b, |x, y, z| x.max(y).max(z)),
        "v_med3_u32" => i3(b, |x, y, z| x.min(y).max(x.max(y).min(z))),
        "v_min3_i32" => i3(b, |x, y, z| (x as i32).min(y as i32).min(z as i32) as u32),
        "v_max3_i32" => i3(b, |x, y, z| (x as i32).max(y as i32).max(z as i32) as u32),
        "v_med3_i32" => i3(b, |x, y, z| {
            let (x, y, z) = (x as i32, y as i32, z as i32);
            x.min(y).max(x.max(y).min(z)) as u32
        }),
        "v_maxmin_u32" => i3(b, |x, y, z| x.max(y).min(z)),
        "v_minmax_u32" => i3(b, |x, y, z| x.min(y).max(z)),
        "v_maxmin_i32" => i3(b, |x, y, z| (x as i32).max(y as i32).min(z as i32) as u32),
        "v_minmax_i32" => i3(b, |x, y, z| (x as i32).min(y as i32).max(z as i32) as u32),
        "v_sad_u32" => i3(b, |x, y, z| x.abs_diff(y).wrapping_add(z)),
        "v_sad_u16" => i3(b, |x, y, z| {
            (x & 0xffff)
                .abs_diff(y & 0xffff)
                .wrapping_add((x >> 16).abs_diff(y >> 16))
                .wrapping_add(z)
        }),
        "v_sad_u8" => i3(b, |x, y, z| sad_u8(x, y).wrapping_add(z)),
        "v_sad_hi_u8" => i3(b, |x, y, z| (sad_u8(x, y) << 16).wrapping_add(z)),
        "v_lerp_u8" => i3(b, |x, y, z| {
            (0..4).fold(0, |out, i| {
                let part = |v: u32| v >> (8 * i) & 0xff;
                out | (part(x) + part(y) + (part(z) & 1)) >> 1 << (8 * i)
            })
        }),
        "v_cvt_u32_u16" => op1(b, [Ty::B16], Ty::B32, Arith::Other, |x| x & 0xffff),
        "v_cvt_i32_i16" => op1(b, [Ty::B16], Ty::B32, Arith::Other, |x| x as u16 as i16 as i32 as u32),
        "v_sat_pk_u8_i16" => op1(b, [Ty::B32], Ty::B16, Arith::Other, |x| {
            let part = |v: u32| (v as u16 as i16).clamp(0, 255) as u32;
            part(x) | part(x >> 16) << 8
        }),
        "v_pack_b32_f16" => op2(b, [Ty::F16; 2], Ty::B32, Arith::Other, |x, y| (x & 0xffff) | y << 16),
        "v_swap_b32" => swap(b),
        "v_add_co_u32" => carry(b, false, |x, y, _| x.overflowing_add(y)),
        "v_sub_co_u32" => carry(b, false, |x, y, _| x.overflowing_sub(y)),
        "v_subrev_co_u32" => carry(b, false, |x, y, _| y.overflowing_sub(x)),
        "v_addc_co_u32" => carry(b, true, |x, y, c| {
            let sum = u64::from(x) + u64::from(y) + u64::from(c);
            (sum as u32, sum >> 32 != 0)
        }),
        "v_subb_co_u32" => carry(b, true, |x, y, c| {
            (
                x.wrapping_sub(y).wrapping_sub(c),
                u64::from(y) + u64::from(c) > u64::from(x),
            )
        }),
        "v_subbrev_co_u32" => carry(b, true, |x, y, c| {
            (
                y.wrapping_sub(x).wrapping_sub(c),
                u64::from(x) + u64::from(c) > u64::from(y),
            )
        }),
        "v_mbcnt_lo_u32_b32" => mbcnt(b, false),
        "v_mbcnt_hi_u32_b32" => mbcnt(b, true),
        "v_lshlrev_b64" => wide(b, [Ty::B32, Ty::B64], Ty::B64, Arith::Other, |x, y, _| y << (x & 63)),
        "v_lshrrev_b64" => wide(b, [Ty::B32, Ty::B64], Ty::B64, Arith::Other, |x, y, _| y >> (x & 63)),
        "v_ashrrev_i64" => wide(b, [Ty::B32, Ty::I64], Ty::B64, Arith::Other, |x, y, _| {
            ((y as i64) >> (x & 63)) as u64
        }),
        "v_mov_b64" => wide(b, [Ty::B64], Ty::B64, Arith::Other, |x, _, _| x),
        "v_lshl_add_u64" => wide(b, [Ty::B64, Ty::B32, Ty::B64], Ty::B64, Arith::Other, |x, y, z| {
            (x << (y & 63)).wrapping_add(z)
        }),
        "v_mad_u64_u32" => mad64(b, |x, y, z| {
            let (sum, carry) = (u64::from(x) * u64::from(y)).overflowing_add(z);
            (sum, carry)
        }),
        "v_mad_i64_i32" => mad64(b, |x, y, z| {
            let product = i64::from(x as i32) * i64::from(y as i32);
            let (sum, carry) = product.overflowing_add(z as i64);
            (sum as u64, carry)
        }),
        _ => return None,
    })
}

/// Any function of three bits, by its table: the sources stand for 0xf0, 0xcc and 0xaa.
fn bitop3(table: u32, x: u32, y: u32, z: u32) -> u32 {
    (0..8).fold(0, |out, row| {
        let pick = |value: u32, bit: u32| if row & bit != 0 { value } else { !value };
        if table >> row & 1 == 1 {
            out | (pick(x, 4) & pick(y, 2) & pick(z, 1))
        } else {
            out
        }
    })
}

fn i24(x: u32) -> i32 {
    (x << 8) as i32 >> 8
}

fn sad_u8(x: u32, y: u32) -> u32 {
    (0..4)
        .map(|i| (x >> (8 * i) & 0xff).abs_diff(y >> (8 * i) & 0xff))
        .sum()
}

fn swap(b: &mut Build<'_>) -> Result<Exec, String> {
    let (Kind::Vector { first: x, .. }, Kind::Vector { first: y, .. }) = (&b.operand(0)?.kind, &b.operand(1)?.kind)
    else {
        return Err("v_swap_b32 takes vector registers".into());
    };
    let (x, y) = (*x as usize, *y as usize);
    Ok(Box::new(move |w, _| {
        let mask = w.exec();
        for lane in 0..w.lanes {
            if mask >> lane & 1 == 1 {
                let kept = w.v[x][lane];
                w.v[x][lane] = w.v[y][lane];
                w.v[y][lane] = kept;
            }
        }
        Ok(Flow::Next)
    }))
}

fn mbcnt(b: &mut Build<'_>, high: bool) -> Result<Exec, String> {
    let (x, y) = (b.source(0, Ty::B32)?, b.source(1, Ty::B32)?);
    let out = b.out(Ty::B32, 2)?;
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let mut result: Lanes = [0; 64];
        {
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            for lane in 0..64u32 {
                let below = match (high, lane) {
                    (false, 0..32) => (1u32 << lane) - 1,
                    (false, _) => u32::MAX,
                    (true, 0..32) => 0,
                    (true, _) => (1u32 << (lane - 32)) - 1,
                };
                result[lane as usize] = (x[lane as usize] & below).count_ones().wrapping_add(y[lane as usize]);
            }
        }
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// `v_mad_u64_u32 vdst[2], carry_out, x, y, z[2]`.
fn mad64<F>(b: &mut Build<'_>, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u64) -> (u64, bool) + Copy + Send + Sync + 'static,
{
    b.base = 2;
    let carry_out = b.mask_out(1)?;
    let (x, y, z) = (b.source(0, Ty::B32)?, b.source(1, Ty::B32)?, b.source(2, Ty::I64)?);
    let out = b.out(Ty::B32, 3)?;
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let (mut bz, mut result) = ([0u64; 64], [0u64; 64]);
        let mut carried = 0u64;
        z.fetch64(w, &mut bz, &mut mask);
        {
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            for lane in 0..w.lanes {
                let (value, carry) = f(x[lane], y[lane], bz[lane]);
                result[lane] = value;
                carried |= u64::from(carry) << lane;
            }
        }
        w.set_mask_at(carry_out, carried & mask);
        out.store64(w, &result, mask);
        Ok(Flow::Next)
    }))
}
