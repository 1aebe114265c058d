//! The vector ALU: which mnemonic computes what, on one lane.
//!
//! Names that differ between generations and mean the same are first brought to one spelling.

use super::convert;
use super::float::*;
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
        .or_else(|| single(b, name))
        .or_else(|| half(b, name))
        .or_else(|| double(b, name))
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

fn single(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_add_f32" => f2(b, Arith::Add, |x, y| x + y),
        "v_sub_f32" => f2(b, Arith::Sub, |x, y| x - y),
        "v_subrev_f32" => f2(b, Arith::SubRev, |x, y| y - x),
        "v_mul_f32" => f2(b, Arith::Mul, |x, y| x * y),
        "v_mul_legacy_f32" => f2(b, Arith::Other, |x, y| if x == 0.0 || y == 0.0 { 0.0 } else { x * y }),
        "v_fma_f32" | "v_fmamk_f32" | "v_fmaak_f32" => f3(b, Arith::Fma, f32::mul_add),
        "v_fmac_f32" => accumulate(b, Ty::F32, Ty::F32, |x, y, z| {
            f32::from_bits(x)
                .mul_add(f32::from_bits(y), f32::from_bits(z))
                .to_bits()
        }),
        "v_mad_f32" | "v_madmk_f32" | "v_madak_f32" => f3(b, Arith::Other, |x, y, z| x * y + z),
        "v_mac_f32" => accumulate(b, Ty::F32, Ty::F32, |x, y, z| {
            (f32::from_bits(x) * f32::from_bits(y) + f32::from_bits(z)).to_bits()
        }),
        "v_fma_legacy_f32" | "v_mad_legacy_f32" => {
            f3(
                b,
                Arith::Other,
                |x, y, z| if x == 0.0 || y == 0.0 { z } else { x.mul_add(y, z) },
            )
        }
        "v_min_f32" => f2(b, Arith::Other, min32),
        "v_max_f32" => f2(b, Arith::Other, max32),
        "v_minimum_f32" => f2(b, Arith::Other, minimum32),
        "v_maximum_f32" => f2(b, Arith::Other, maximum32),
        "v_min3_f32" => f3(b, Arith::Other, |x, y, z| min32(min32(x, y), z)),
        "v_max3_f32" => f3(b, Arith::Other, |x, y, z| max32(max32(x, y), z)),
        "v_minimum3_f32" => f3(b, Arith::Other, |x, y, z| minimum32(minimum32(x, y), z)),
        "v_maximum3_f32" => f3(b, Arith::Other, |x, y, z| maximum32(maximum32(x, y), z)),
        "v_med3_f32" => f3(b, Arith::Other, med32),
        "v_maxmin_f32" => f3(b, Arith::Other, |x, y, z| min32(max32(x, y), z)),
        "v_minmax_f32" => f3(b, Arith::Other, |x, y, z| max32(min32(x, y), z)),
        "v_floor_f32" => f1(b, f32::floor),
        "v_ceil_f32" => f1(b, f32::ceil),
        "v_trunc_f32" => f1(b, f32::trunc),
        "v_rndne_f32" => f1(b, f32::round_ties_even),
        "v_fract_f32" => f1(b, |x| (x - x.floor()).min(f32::from_bits(0x3f7f_ffff))),
        "v_rcp_f32" => f1(b, rcp_f32),
        "v_rsq_f32" => f1(b, rsq_f32),
        "v_sqrt_f32" => f1(b, sqrt_f32),
        "v_exp_f32" | "v_exp_legacy_f32" => f1(b, exp2_f32),
        "v_log_f32" | "v_log_legacy_f32" => f1(b, log2_f32),
        "v_sin_f32" => f1(b, |x| sin_turns(f64::from(x)) as f32),
        "v_cos_f32" => f1(b, |x| cos_turns(f64::from(x)) as f32),
        "v_prng_b32" => i1(b, |x| x << 1 ^ if x >> 31 == 1 { 197 } else { 0 }),
        "v_ldexp_f32" => op2(b, [Ty::F32, Ty::B32], Ty::F32, Arith::Other, |x, y| {
            ldexp32(f32::from_bits(x), y as i32).to_bits()
        }),
        "v_frexp_mant_f32" => f1(b, |x| {
            if x == 0.0 || !x.is_finite() {
                return x;
            }
            let wide = f64::from(x).to_bits();
            f64::from_bits((wide & !(0x7ff << 52)) | 1022 << 52) as f32
        }),
        "v_frexp_exp_i32_f32" => op1(b, [Ty::F32], Ty::B32, Arith::Other, |x| {
            let x = f32::from_bits(x);
            if x == 0.0 || !x.is_finite() {
                return 0;
            }
            ((f64::from(x).to_bits() >> 52 & 0x7ff) as i32 - 1022) as u32
        }),
        "v_div_scale_f32" => div_scale(b, Ty::F32),
        "v_div_scale_f64" => div_scale(b, Ty::F64),
        "v_div_fmas_f32" => div_fmas(b, Ty::F32),
        "v_div_fmas_f64" => div_fmas(b, Ty::F64),
        "v_div_fixup_f32" => f3(b, Arith::Other, div_fixup32),
        "v_div_fixup_f64" => wide(b, [Ty::F64; 3], Ty::F64, Arith::Other, |x, y, z| {
            div_fixup64(f64::from_bits(x), f64::from_bits(y), f64::from_bits(z)).to_bits()
        }),
        "v_cvt_f32_i32" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| (x as i32 as f32).to_bits()),
        "v_cvt_f32_u32" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| (x as f32).to_bits()),
        "v_cvt_i32_f32" => op1(b, [Ty::F32], Ty::B32, Arith::Other, |x| f32::from_bits(x) as i32 as u32),
        "v_cvt_u32_f32" => op1(b, [Ty::F32], Ty::B32, Arith::Other, |x| f32::from_bits(x) as u32),
        "v_cvt_flr_i32_f32" => op1(b, [Ty::F32], Ty::B32, Arith::Other, |x| {
            f32::from_bits(x).floor() as i32 as u32
        }),
        "v_cvt_rpi_i32_f32" => op1(b, [Ty::F32], Ty::B32, Arith::Other, |x| {
            (f64::from(f32::from_bits(x)) + 0.5).floor() as i32 as u32
        }),
        "v_cvt_f32_ubyte0" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| ((x & 0xff) as f32).to_bits()),
        "v_cvt_f32_ubyte1" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| {
            ((x >> 8 & 0xff) as f32).to_bits()
        }),
        "v_cvt_f32_ubyte2" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| {
            ((x >> 16 & 0xff) as f32).to_bits()
        }),
        "v_cvt_f32_ubyte3" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| ((x >> 24) as f32).to_bits()),
        "v_cvt_off_f32_i4" => op1(b, [Ty::B32], Ty::F32, Arith::Other, |x| {
            (((x << 28) as i32 >> 28) as f32 * 0.0625).to_bits()
        }),
        _ => return convert::build(b, name),
    })
}

fn minimum32(x: f32, y: f32) -> f32 {
    if x.is_nan() || y.is_nan() {
        f32::NAN
    } else {
        min32(x, y)
    }
}

fn maximum32(x: f32, y: f32) -> f32 {
    if x.is_nan() || y.is_nan() {
        f32::NAN
    } else {
        max32(x, y)
    }
}

/// Builds an operation whose third source is the destination.
pub(crate) fn accumulate<F>(b: &Build<'_>, ty: Ty, out: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    let mut target = b.operand(0)?.clone();
    target.neg = false;
    let ins = [b.source(0, ty)?, b.source(1, ty)?, b.input(&target, 2, out)?];
    op3::from_inputs(
        b,
        ins,
        [ty, ty, out],
        out,
        if ty == Ty::F32 { Arith::Fma } else { Arith::Other },
        f,
    )
}

fn div_scale(b: &mut Build<'_>, ty: Ty) -> Result<Exec, String> {
    b.base = 2;
    let flag = b.mask_out(1)?;
    let ins = [b.source(0, ty)?, b.source(1, ty)?, b.source(2, ty)?];
    let out = b.out(Ty::B32, 3)?;
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut buffers = [[0u64; 64]; 3];
        for (input, buffer) in ins.iter().zip(&mut buffers) {
            input.fetch64(w, buffer, &mut mask);
        }
        let mut result = [0u64; 64];
        let mut flags = 0u64;
        for lane in 0..w.lanes {
            let [x, y, z] = [buffers[0][lane], buffers[1][lane], buffers[2][lane]];
            let scaled;
            (result[lane], scaled) = if ty == Ty::F32 {
                let (value, scaled) = div_scale32(
                    f32::from_bits(x as u32),
                    f32::from_bits(y as u32),
                    f32::from_bits(z as u32),
                );
                (u64::from(value.to_bits()), scaled)
            } else {
                let (value, scaled) = div_scale64(f64::from_bits(x), f64::from_bits(y), f64::from_bits(z));
                (value.to_bits(), scaled)
            };
            flags |= u64::from(scaled) << lane;
        }
        w.set_mask_at(flag, flags & mask);
        if ty == Ty::F32 {
            let narrow: Lanes = std::array::from_fn(|lane| result[lane] as u32);
            out.store(w, &narrow, mask);
        } else {
            out.store64(w, &result, mask);
        }
        Ok(Flow::Next)
    }))
}

fn div_fmas(b: &mut Build<'_>, ty: Ty) -> Result<Exec, String> {
    let ins = [b.source(0, ty)?, b.source(1, ty)?, b.source(2, ty)?];
    let out = b.out(Ty::B32, 3)?;
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut buffers = [[0u64; 64]; 3];
        for (input, buffer) in ins.iter().zip(&mut buffers) {
            input.fetch64(w, buffer, &mut mask);
        }
        let flags = w.vcc();
        let mut result = [0u64; 64];
        for lane in 0..w.lanes {
            let [x, y, z] = [buffers[0][lane], buffers[1][lane], buffers[2][lane]];
            let scaled = flags >> lane & 1 == 1;
            result[lane] = if ty == Ty::F32 {
                let [x, y, z] = [x, y, z].map(|bits| f32::from_bits(bits as u32));
                u64::from(div_fmas32(x, y, z, scaled).to_bits())
            } else {
                div_fmas64(f64::from_bits(x), f64::from_bits(y), f64::from_bits(z), scaled).to_bits()
            };
        }
        if ty == Ty::F32 {
            let narrow: Lanes = std::array::from_fn(|lane| result[lane] as u32);
            out.store(w, &narrow, mask);
        } else {
            out.store64(w, &result, mask);
        }
        Ok(Flow::Next)
    }))
}

/// f16 fused multiply-add on bits, rounded once.
pub(crate) fn fma16(x: u32, y: u32, z: u32) -> u32 {
    let wide = |bits: u32| f64::from(f16_to_f32(bits & 0xffff));
    f64_to_f16(wide(x).mul_add(wide(y), wide(z)))
}

fn half(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_add_f16" => h2(b, |x, y| x + y),
        "v_sub_f16" => h2(b, |x, y| x - y),
        "v_subrev_f16" => h2(b, |x, y| y - x),
        "v_mul_f16" => h2(b, |x, y| x * y),
        "v_fma_f16" | "v_fmamk_f16" | "v_fmaak_f16" => op3(b, [Ty::F16; 3], Ty::F16, Arith::Other, fma16),
        "v_fmac_f16" => accumulate(b, Ty::F16, Ty::F16, fma16),
        "v_mad_f16" | "v_madmk_f16" | "v_madak_f16" => h3(b, |x, y, z| f16_to_f32(f32_to_f16(x * y)) + z),
        "v_mac_f16" => accumulate(b, Ty::F16, Ty::F16, |x, y, z| {
            let product = f16_to_f32(x & 0xffff) * f16_to_f32(y & 0xffff);
            f32_to_f16(f16_to_f32(f32_to_f16(product)) + f16_to_f32(z & 0xffff))
        }),
        "v_min_f16" => h2(b, min32),
        "v_max_f16" => h2(b, max32),
        "v_minimum_f16" => h2(b, minimum32),
        "v_maximum_f16" => h2(b, maximum32),
        "v_min3_f16" => h3(b, |x, y, z| min32(min32(x, y), z)),
        "v_max3_f16" => h3(b, |x, y, z| max32(max32(x, y), z)),
        "v_med3_f16" => h3(b, med32),
        "v_maxmin_f16" => h3(b, |x, y, z| min32(max32(x, y), z)),
        "v_minmax_f16" => h3(b, |x, y, z| max32(min32(x, y), z)),
        "v_floor_f16" => h1(b, f32::floor),
        "v_ceil_f16" => h1(b, f32::ceil),
        "v_trunc_f16" => h1(b, f32::trunc),
        "v_rndne_f16" => h1(b, f32::round_ties_even),
        "v_fract_f16" => h1(b, |x| (x - x.floor()).min(0.999_511_7)),
        "v_rcp_f16" => h1(b, |x| 1.0 / x),
        "v_rsq_f16" => h1(b, |x| (1.0 / f64::from(x).sqrt()) as f32),
        "v_sqrt_f16" => h1(b, f32::sqrt),
        "v_exp_f16" => h1(b, |x| f64::from(x).exp2() as f32),
        "v_log_f16" => h1(b, |x| f64::from(x).log2() as f32),
        "v_sin_f16" => h1(b, |x| sin_turns(f64::from(x)) as f32),
        "v_cos_f16" => h1(b, |x| cos_turns(f64::from(x)) as f32),
        "v_ldexp_f16" => op2(b, [Ty::F16, Ty::B16], Ty::F16, Arith::Other, |x, y| {
            f32_to_f16(ldexp32(f16_to_f32(x & 0xffff), i32::from(y as i16)))
        }),
        "v_frexp_mant_f16" => h1(b, |x| {
            if x == 0.0 || !x.is_finite() {
                return x;
            }
            f32::from_bits((x.to_bits() & 0x807f_ffff) | 126 << 23)
        }),
        "v_frexp_exp_i16_f16" => op1(b, [Ty::F16], Ty::B16, Arith::Other, |x| {
            let x = f16_to_f32(x & 0xffff);
            if x == 0.0 || !x.is_finite() {
                return 0;
            }
            ((x.to_bits() >> 23 & 0xff) as i32 - 126) as u32
        }),
        "v_div_fixup_f16" => h3(b, div_fixup32),
        _ => return None,
    })
}

fn double(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_add_f64" => d2(b, Arith::Add, |x, y| x + y),
        "v_mul_f64" => d2(b, Arith::Mul, |x, y| x * y),
        "v_fma_f64" => wide(b, [Ty::F64; 3], Ty::F64, Arith::Fma, |x, y, z| {
            f64::from_bits(x)
                .mul_add(f64::from_bits(y), f64::from_bits(z))
                .to_bits()
        }),
        "v_fmac_f64" => {
            let target = match b.operand(0) {
                Ok(operand) => operand.clone(),
                Err(error) => return Some(Err(error)),
            };
            let ins = (|| {
                Ok(vec![
                    b.source(0, Ty::F64)?,
                    b.source(1, Ty::F64)?,
                    b.input(&target, 2, Ty::F64)?,
                ])
            })();
            match ins {
                Ok(ins) => wide_inputs(b, ins, Ty::F64, Arith::Fma, |x, y, z| {
                    f64::from_bits(x)
                        .mul_add(f64::from_bits(y), f64::from_bits(z))
                        .to_bits()
                }),
                Err(error) => Err(error),
            }
        }
        "v_min_f64" => d2(b, Arith::Other, min64),
        "v_max_f64" => d2(b, Arith::Other, max64),
        "v_minimum_f64" => d2(b, Arith::Other, |x, y| {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                min64(x, y)
            }
        }),
        "v_maximum_f64" => d2(b, Arith::Other, |x, y| {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                max64(x, y)
            }
        }),
        "v_floor_f64" => d1(b, f64::floor),
        "v_ceil_f64" => d1(b, f64::ceil),
        "v_trunc_f64" => d1(b, f64::trunc),
        "v_rndne_f64" => d1(b, f64::round_ties_even),
        "v_fract_f64" => d1(b, |x| (x - x.floor()).min(1.0f64.next_down())),
        "v_rcp_f64" => d1(b, |x| 1.0 / x),
        "v_rsq_f64" => d1(b, |x| 1.0 / x.sqrt()),
        "v_sqrt_f64" => d1(b, f64::sqrt),
        "v_ldexp_f64" => wide(b, [Ty::F64, Ty::B32], Ty::F64, Arith::Other, |x, y, _| {
            ldexp64(f64::from_bits(x), y as u32 as i32).to_bits()
        }),
        "v_frexp_mant_f64" => d1(b, |x| {
            if x == 0.0 || !x.is_finite() {
                return x;
            }
            let x = if x.is_subnormal() { x * exp2d(60) } else { x };
            f64::from_bits((x.to_bits() & !(0x7ff << 52)) | 1022 << 52)
        }),
        "v_frexp_exp_i32_f64" => wide(b, [Ty::F64], Ty::B32, Arith::Other, |x, _, _| {
            let x = f64::from_bits(x);
            if x == 0.0 || !x.is_finite() {
                return 0;
            }
            let (x, shift) = if x.is_subnormal() { (x * exp2d(60), 60) } else { (x, 0) };
            u64::from(((x.to_bits() >> 52 & 0x7ff) as i32 - 1022 - shift) as u32)
        }),
        "v_cvt_f64_f32" => wide(b, [Ty::F32], Ty::F64, Arith::Other, |x, _, _| {
            f64::from(f32::from_bits(x as u32)).to_bits()
        }),
        "v_cvt_f32_f64" => wide(b, [Ty::F64], Ty::F32, Arith::Other, |x, _, _| {
            u64::from((f64::from_bits(x) as f32).to_bits())
        }),
        "v_cvt_f64_i32" => wide(b, [Ty::B32], Ty::F64, Arith::Other, |x, _, _| {
            f64::from(x as u32 as i32).to_bits()
        }),
        "v_cvt_f64_u32" => wide(b, [Ty::B32], Ty::F64, Arith::Other, |x, _, _| {
            f64::from(x as u32).to_bits()
        }),
        "v_cvt_i32_f64" => wide(b, [Ty::F64], Ty::B32, Arith::Other, |x, _, _| {
            u64::from(f64::from_bits(x) as i32 as u32)
        }),
        "v_cvt_u32_f64" => wide(b, [Ty::F64], Ty::B32, Arith::Other, |x, _, _| {
            u64::from(f64::from_bits(x) as u32)
        }),
        _ => return None,
    })
}
