//! Conversions between float formats, normalised integers and 8-bit floats.

use super::float::*;
use super::lanes::{op1, op2, op3, wide};
use super::operand::{Build, In, Out, Ty};
use super::round::Arith;
use super::simd::Lanes;
use super::wave::{Exec, Flow};
use crate::decode::text::Encoding;

pub(super) fn build(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_cvt_f16_f32" => cvt_f16_f32(b),
        "v_cvt_f32_f16" => op1(b, [Ty::F16], Ty::F32, Arith::Other, |x| {
            f16_to_f32(x & 0xffff).to_bits()
        }),
        "v_cvt_f32_bf16" => op1(b, [Ty::BF16], Ty::F32, Arith::Other, |x| x << 16),
        "v_cvt_f16_u16" => op1(b, [Ty::B16], Ty::F16, Arith::Other, |x| f32_to_f16((x & 0xffff) as f32)),
        "v_cvt_f16_i16" => op1(b, [Ty::B16], Ty::F16, Arith::Other, |x| {
            f32_to_f16(f32::from(x as u16 as i16))
        }),
        "v_cvt_u16_f16" => op1(b, [Ty::F16], Ty::B16, Arith::Other, |x| {
            u32::from(f16_to_f32(x & 0xffff) as u16)
        }),
        "v_cvt_i16_f16" => op1(b, [Ty::F16], Ty::B16, Arith::Other, |x| {
            u32::from(f16_to_f32(x & 0xffff) as i16 as u16)
        }),
        "v_cvt_norm_i16_f16" => op1(b, [Ty::F16], Ty::B16, Arith::Other, |x| {
            norm_i16(f16_to_f32(x & 0xffff))
        }),
        "v_cvt_norm_u16_f16" => op1(b, [Ty::F16], Ty::B16, Arith::Other, |x| {
            norm_u16(f16_to_f32(x & 0xffff))
        }),
        "v_cvt_pkrtz_f16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            f32_to_f16_rtz(f32::from_bits(x)) | f32_to_f16_rtz(f32::from_bits(y)) << 16
        }),
        "v_cvt_pk_f16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            f32_to_f16(f32::from_bits(x)) | f32_to_f16(f32::from_bits(y)) << 16
        }),
        "v_cvt_pk_bf16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            f32_to_bf16(f32::from_bits(x)) | f32_to_bf16(f32::from_bits(y)) << 16
        }),
        "v_cvt_pknorm_i16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            norm_i16(f32::from_bits(x)) | norm_i16(f32::from_bits(y)) << 16
        }),
        "v_cvt_pknorm_u16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            norm_u16(f32::from_bits(x)) | norm_u16(f32::from_bits(y)) << 16
        }),
        "v_cvt_pk_u16_u32" => op2(b, [Ty::B32; 2], Ty::B32, Arith::Other, |x, y| {
            x.min(0xffff) | y.min(0xffff) << 16
        }),
        "v_cvt_pk_i16_i32" => op2(b, [Ty::B32; 2], Ty::B32, Arith::Other, |x, y| {
            let part = |v: u32| u32::from((v as i32).clamp(-32768, 32767) as i16 as u16);
            part(x) | part(y) << 16
        }),
        "v_cvt_pk_i16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            let part = |v: u32| u32::from(f32::from_bits(v) as i16 as u16);
            part(x) | part(y) << 16
        }),
        "v_cvt_pk_u16_f32" => op2(b, [Ty::F32; 2], Ty::B32, Arith::Other, |x, y| {
            let part = |v: u32| u32::from(f32::from_bits(v) as u16);
            part(x) | part(y) << 16
        }),
        "v_cvt_pk_u8_f32" => op3(b, [Ty::F32, Ty::B32, Ty::B32], Ty::B32, Arith::Other, |x, y, z| {
            let shift = 8 * (y & 3);
            (z & !(0xff << shift)) | u32::from(f32::from_bits(x).round_ties_even() as u8) << shift
        }),
        "v_cvt_f32_fp8" => from_small(b, false),
        "v_cvt_f32_bf8" => from_small(b, true),
        "v_cvt_pk_f32_fp8" => pair_from_small(b, false),
        "v_cvt_pk_f32_bf8" => pair_from_small(b, true),
        "v_cvt_pk_fp8_f32" => to_small_pair(b, false),
        "v_cvt_pk_bf8_f32" => to_small_pair(b, true),
        "v_cvt_sr_fp8_f32" => to_small_random(b, false),
        "v_cvt_sr_bf8_f32" => to_small_random(b, true),
        _ => return None,
    })
}

fn norm_i16(x: f32) -> u32 {
    u32::from((x.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16 as u16)
}

fn norm_u16(x: f32) -> u32 {
    u32::from((x.clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16)
}

/// f32 to f16 obeys MODE's rounding for 16 bits.
fn cvt_f16_f32(b: &mut Build<'_>) -> Result<Exec, String> {
    let nearest = op1(b, [Ty::F32], Ty::F16, Arith::Other, |x| f32_to_f16(f32::from_bits(x)))?;
    let zero = op1(b, [Ty::F32], Ty::F16, Arith::Other, |x| {
        f32_to_f16_rtz(f32::from_bits(x))
    })?;
    let up = op1(b, [Ty::F32], Ty::F16, Arith::Other, |x| {
        directed(f32::from_bits(x), true)
    })?;
    let down = op1(b, [Ty::F32], Ty::F16, Arith::Other, |x| {
        directed(f32::from_bits(x), false)
    })?;
    Ok(Box::new(move |w, env| match w.mode.round16_64 {
        0 => nearest(w, env),
        1 => up(w, env),
        2 => down(w, env),
        _ => zero(w, env),
    }))
}

fn directed(x: f32, up: bool) -> u32 {
    let near = f32_to_f16_rtz(x);
    let back = f16_to_f32(near);
    if x.is_finite() && back != x && x.is_sign_negative() != up {
        near + 1
    } else {
        near
    }
}

/// The byte of the source that an 8-bit float conversion reads where SDWA does not say.
fn byte_of(b: &Build<'_>) -> u32 {
    if b.text.value("byte_sel").is_some() {
        return b.text.number("byte_sel") as u32;
    }
    if b.text.encoding == Encoding::Sdwa {
        return 0;
    }
    u32::from(b.text.element("op_sel", 0, false)) * 2 + u32::from(b.text.element("op_sel", 1, false))
}

fn from_small(b: &mut Build<'_>, bf8: bool) -> Result<Exec, String> {
    let format = Small::of(b.arch.fp8_fnuz, bf8);
    let shift = 8 * byte_of(b);
    op1(b, [Ty::B32], Ty::F32, Arith::Other, move |x| {
        format.decode(x >> shift & 0xff).to_bits()
    })
}

fn pair_from_small(b: &mut Build<'_>, bf8: bool) -> Result<Exec, String> {
    let format = Small::of(b.arch.fp8_fnuz, bf8);
    let shift = if b.text.element("op_sel", 0, false) { 16 } else { 0 };
    let half = b.operand(b.base)?.half == Some(true);
    let shift = if half { 0 } else { shift };
    wide(b, [Ty::B32], Ty::B64, Arith::Other, move |x, _, _| {
        let part = |byte: u64| u64::from(format.decode(byte as u32 & 0xff).to_bits());
        part(x >> shift) | part(x >> (shift + 8)) << 32
    })
}

fn to_small_pair(b: &mut Build<'_>, bf8: bool) -> Result<Exec, String> {
    let format = Small::of(b.arch.fp8_fnuz, bf8);
    let high = b.text.element("op_sel", 2, false) || b.operand(0)?.half == Some(true);
    let (x, y) = (b.source(0, Ty::F32)?, b.source(1, Ty::F32)?);
    let shift = if high { 16 } else { 0 };
    into_bits(b, x, y, shift, 0xffff, move |x, y, saturate| {
        format.encode(f32::from_bits(x), None, saturate) | format.encode(f32::from_bits(y), None, saturate) << 8
    })
}

fn to_small_random(b: &mut Build<'_>, bf8: bool) -> Result<Exec, String> {
    let format = Small::of(b.arch.fp8_fnuz, bf8);
    let byte = if b.text.value("byte_sel").is_some() {
        b.text.number("byte_sel") as u32
    } else {
        u32::from(b.text.element("op_sel", 2, false)) + 2 * u32::from(b.text.element("op_sel", 3, false))
    };
    let (x, y) = (b.source(0, Ty::F32)?, b.source(1, Ty::B32)?);
    into_bits(b, x, y, 8 * byte, 0xff, move |x, y, saturate| {
        format.encode(f32::from_bits(x), Some(y), saturate)
    })
}

/// Builds an instruction that replaces the bits `field << shift` of its destination.
fn into_bits<F>(b: &Build<'_>, x: In, y: In, shift: u32, field: u32, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, bool) -> u32 + Copy + Send + Sync + 'static,
{
    let out = Out::full(b.out(Ty::B32, 4)?.register);
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let mut result: Lanes = w.v[out.register as usize];
        {
            let saturate = w.mode.fp16_overflow;
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            for lane in 0..w.lanes {
                let bits = f(x[lane], y[lane], saturate) & field;
                result[lane] = (result[lane] & !(field << shift)) | bits << shift;
            }
        }
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}
