//! The table of f32, f16 and f64.

use super::super::convert;
use super::super::float::*;
use super::super::lanes::*;
use super::super::operand::{Build, Ty};
use super::super::round::Arith;
use super::super::simd::Lanes;
use super::super::wave::{Exec, Flow};

pub(super) fn single(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
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
        "v_maximumminimum_f32" => f3(b, Arith::Other, |x, y, z| minimum32(maximum32(x, y), z)),
        "v_minimummaximum_f32" => f3(b, Arith::Other, |x, y, z| maximum32(minimum32(x, y), z)),
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
fn accumulate<F>(b: &Build<'_>, ty: Ty, out: Ty, f: F) -> Result<Exec, String>
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

pub(super) fn half(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
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
        "v_minimum3_f16" => h3(b, |x, y, z| minimum32(minimum32(x, y), z)),
        "v_maximum3_f16" => h3(b, |x, y, z| maximum32(maximum32(x, y), z)),
        "v_maximumminimum_f16" => h3(b, |x, y, z| minimum32(maximum32(x, y), z)),
        "v_minimummaximum_f16" => h3(b, |x, y, z| maximum32(minimum32(x, y), z)),
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

pub(super) fn double(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
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
                Ok([
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
