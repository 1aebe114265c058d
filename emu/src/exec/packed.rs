//! Packed and mixed-precision operations and dot products (VOP3P), and their two-operand forms.

use super::float::*;
use super::lanes::op3;
use super::operand::{Build, In, Out, Ty, constant};
use super::round::Arith;
use super::simd::{Lanes, map3};
use super::wave::{Exec, Flow};
use crate::decode::text::{Kind, Operand};

pub(crate) fn build(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(dot) = dot(b, name) {
        return Some(dot);
    }
    let h = |bits: u32| f16_to_f32(bits & 0xffff);
    let clamp = b.text.flag("clamp");
    Some(match name {
        "v_pk_add_f16" => pair2(b, Ty::F16, move |x, y| f32_to_f16(h(x) + h(y))),
        "v_pk_mul_f16" => pair2(b, Ty::F16, move |x, y| f32_to_f16(h(x) * h(y))),
        "v_pk_min_f16" | "v_pk_min_num_f16" => pair2(b, Ty::F16, move |x, y| f32_to_f16(min32(h(x), h(y)))),
        "v_pk_max_f16" | "v_pk_max_num_f16" => pair2(b, Ty::F16, move |x, y| f32_to_f16(max32(h(x), h(y)))),
        "v_pk_minimum_f16" => pair2(b, Ty::F16, move |x, y| {
            f32_to_f16(if h(x).is_nan() || h(y).is_nan() {
                f32::NAN
            } else {
                min32(h(x), h(y))
            })
        }),
        "v_pk_maximum_f16" => pair2(b, Ty::F16, move |x, y| {
            f32_to_f16(if h(x).is_nan() || h(y).is_nan() {
                f32::NAN
            } else {
                max32(h(x), h(y))
            })
        }),
        "v_pk_minimum3_f16" | "v_pk_maximum3_f16" => {
            let least = name == "v_pk_minimum3_f16";
            pair3(b, Ty::F16, move |x, y, z| {
                let (x, y, z) = (h(x), h(y), h(z));
                f32_to_f16(if x.is_nan() || y.is_nan() || z.is_nan() {
                    f32::NAN
                } else if least {
                    min32(min32(x, y), z)
                } else {
                    max32(max32(x, y), z)
                })
            })
        }
        "v_pk_fma_f16" => pair3(b, Ty::F16, fma16),
        "v_pk_fmac_f16" => pair_accumulate(b),
        "v_pk_add_u16" if !clamp => pair2(b, Ty::B16, |x, y| x.wrapping_add(y)),
        "v_pk_add_u16" => pair2(b, Ty::B16, |x, y| (x as u16).saturating_add(y as u16).into()),
        "v_pk_sub_u16" if !clamp => pair2(b, Ty::B16, |x, y| x.wrapping_sub(y)),
        "v_pk_sub_u16" => pair2(b, Ty::B16, |x, y| (x as u16).saturating_sub(y as u16).into()),
        "v_pk_add_i16" if !clamp => pair2(b, Ty::B16, |x, y| x.wrapping_add(y)),
        "v_pk_add_i16" => pair2(b, Ty::B16, |x, y| (x as i16).saturating_add(y as i16) as u16 as u32),
        "v_pk_sub_i16" if !clamp => pair2(b, Ty::B16, |x, y| x.wrapping_sub(y)),
        "v_pk_sub_i16" => pair2(b, Ty::B16, |x, y| (x as i16).saturating_sub(y as i16) as u16 as u32),
        "v_pk_mul_lo_u16" => pair2(b, Ty::B16, |x, y| x.wrapping_mul(y)),
        "v_pk_mad_u16" | "v_pk_mad_i16" if !clamp => pair3(b, Ty::B16, |x, y, z| {
            (x & 0xffff).wrapping_mul(y & 0xffff).wrapping_add(z)
        }),
        "v_pk_lshlrev_b16" => pair2(b, Ty::B16, |x, y| (y & 0xffff) << (x & 15)),
        "v_pk_lshrrev_b16" => pair2(b, Ty::B16, |x, y| (y & 0xffff) >> (x & 15)),
        "v_pk_ashrrev_i16" => pair2(b, Ty::B16, |x, y| ((y as i16) >> (x & 15)) as u16 as u32),
        "v_pk_max_u16" => pair2(b, Ty::B16, |x, y| (x & 0xffff).max(y & 0xffff)),
        "v_pk_min_u16" => pair2(b, Ty::B16, |x, y| (x & 0xffff).min(y & 0xffff)),
        "v_pk_max_i16" => pair2(b, Ty::B16, |x, y| (x as i16).max(y as i16) as u16 as u32),
        "v_pk_min_i16" => pair2(b, Ty::B16, |x, y| (x as i16).min(y as i16) as u16 as u32),
        "v_pk_add_f32" => pair32(b, 2, |x, y, _| x + y),
        "v_pk_mul_f32" => pair32(b, 2, |x, y, _| x * y),
        "v_pk_fma_f32" => pair32(b, 3, f32::mul_add),
        "v_pk_mov_b32" => pk_mov(b),
        "v_fma_mix_f32" | "v_mad_mix_f32" => mix(b, None),
        "v_fma_mixlo_f16" | "v_mad_mixlo_f16" => mix(b, Some(false)),
        "v_fma_mixhi_f16" | "v_mad_mixhi_f16" => mix(b, Some(true)),
        _ => return None,
    })
}

/// A source of a packed operation: 32 bits whose halves are chosen and negated separately.
#[derive(Clone)]
struct Pair {
    input: In,
    low: u32,
    high: u32,
    flip: u32,
}

impl Pair {
    fn new(b: &Build<'_>, index: usize, ty: Ty) -> Result<Pair, String> {
        let operand = b.operand(b.base + index)?;
        let input = raw(b, operand, ty)?;
        let high = b.text.element("op_sel_hi", index, true);
        let low = b.text.element("op_sel", index, false);
        let flip = u32::from(b.text.element("neg_lo", index, false)) << 15
            | u32::from(b.text.element("neg_hi", index, false)) << 31;
        Ok(Pair {
            input,
            low: if low { 16 } else { 0 },
            high: if high { 16 } else { 0 },
            flip,
        })
    }

    /// The source with its chosen low half below and its chosen high half above.
    #[inline]
    fn arrange(&self, value: u32) -> u32 {
        (value >> self.low & 0xffff | (value >> self.high) << 16) ^ self.flip
    }
}

/// Reads an operand as plain 32 bits; an inline float constant is in the low half, as f16 where `ty` is.
fn raw(b: &Build<'_>, operand: &Operand, ty: Ty) -> Result<In, String> {
    let mut plain = operand.clone();
    (plain.neg, plain.abs, plain.half) = (false, false, None);
    if matches!(operand.kind, Kind::Float(_)) {
        let bits = constant(&operand.kind, ty).ok_or("not a constant")?;
        plain.kind = Kind::Bits(bits);
    }
    b.input(&plain, 9, Ty::B32)
}

fn each_half<F: Fn(u32, u32, u32) -> u32>(f: &F, x: u32, y: u32, z: u32) -> u32 {
    f(x, y, z) & 0xffff | f(x >> 16, y >> 16, z >> 16) << 16
}

fn pair3<F>(b: &Build<'_>, ty: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    let pairs = [Pair::new(b, 0, ty)?, Pair::new(b, 1, ty)?, Pair::new(b, 2, ty)?];
    pairs_exec(b, pairs, ty, f)
}

fn pairs_exec<F>(b: &Build<'_>, pairs: [Pair; 3], ty: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    let out = Out::full(b.out(Ty::B32, 3)?.register);
    let clamp = b.text.flag("clamp") && ty == Ty::F16;
    let b_post = b.post();
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut buffers = [[0; 64]; 3];
        let [bx, by, bz] = &mut buffers;
        let mut result: Lanes = [0; 64];
        let [px, py, pz] = &pairs;
        let x = px.input.fetch(w, bx, &mut mask);
        let y = py.input.fetch(w, by, &mut mask);
        let z = pz.input.fetch(w, bz, &mut mask);
        map3(
            |x, y, z| each_half(&f, px.arrange(x), py.arrange(y), pz.arrange(z)),
            x,
            y,
            z,
            &mut result,
            w.lanes,
        );
        if clamp {
            let post = b_post;
            let one = |bits: u32| f32_to_f16(post.f32(f16_to_f32(bits & 0xffff)));
            result.iter_mut().for_each(|x| *x = one(*x) | one(*x >> 16) << 16);
        }
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

fn pair2<F>(b: &Build<'_>, ty: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    let (x, y) = (Pair::new(b, 0, ty)?, Pair::new(b, 1, ty)?);
    pairs_exec(b, [x.clone(), y, x], ty, move |x, y, _| f(x, y))
}

fn pair_accumulate(b: &Build<'_>) -> Result<Exec, String> {
    let target = Pair {
        input: raw(b, b.operand(0)?, Ty::F16)?,
        low: 0,
        high: 16,
        flip: 0,
    };
    pairs_exec(
        b,
        [Pair::new(b, 0, Ty::F16)?, Pair::new(b, 1, Ty::F16)?, target],
        Ty::F16,
        fma16,
    )
}

/// Packed f32: each source is two registers, and each result chooses a word of each.
fn pair32<F>(b: &Build<'_>, count: usize, f: F) -> Result<Exec, String>
where
    F: Fn(f32, f32, f32) -> f32 + Copy + Send + Sync + 'static,
{
    let word = |index: usize, select: &str, absent: bool, negate: &str| -> Result<In, String> {
        let mut operand = b.operand(b.base + index)?.clone();
        let high = u16::from(b.text.element(select, index, absent));
        // A constant is the same in both words.
        match &mut operand.kind {
            Kind::Vector { first, count } | Kind::Scalar { first, count } => {
                *first += high;
                *count = 1;
            }
            _ => {}
        }
        (operand.neg, operand.abs) = (b.text.element(negate, index, false), false);
        b.input(&operand, 9, Ty::F32)
    };
    // A product of two ignores the third source.
    let third = if count == 3 { 2 } else { 0 };
    let low = [0, 1, third].map(|index| word(index, "op_sel", false, "neg_lo"));
    let high = [0, 1, third].map(|index| word(index, "op_sel_hi", true, "neg_hi"));
    let [Ok(xl), Ok(yl), Ok(zl)] = low else {
        return Err("a source is not understood".into());
    };
    let [Ok(xh), Ok(yh), Ok(zh)] = high else {
        return Err("a source is not understood".into());
    };
    let out = Out::full(b.out(Ty::B32, count)?.register);
    let post = b.post();
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let g = |x: u32, y: u32, z: u32| f(f32::from_bits(x), f32::from_bits(y), f32::from_bits(z)).to_bits();
        let mut results = [[0; 64]; 2];
        for (result, [x, y, z]) in results.iter_mut().zip([[&xl, &yl, &zl], [&xh, &yh, &zh]]) {
            let (mut bx, mut by, mut bz) = ([0; 64], [0; 64], [0; 64]);
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            let z = z.fetch(w, &mut bz, &mut mask);
            map3(g, x, y, z, result, w.lanes);
            if !post.none() {
                result
                    .iter_mut()
                    .for_each(|bits| *bits = post.f32(f32::from_bits(*bits)).to_bits());
            }
        }
        out.store(w, &results[0], mask);
        Out::full(out.register + 1).store(w, &results[1], mask);
        Ok(Flow::Next)
    }))
}

fn pk_mov(b: &Build<'_>) -> Result<Exec, String> {
    let read = |index: usize| -> Result<(In, u32), String> {
        let mut operand = b.operand(b.base + index)?.clone();
        if let Some(bits) = constant(&operand.kind, Ty::B32) {
            operand.kind = Kind::Bits(bits & 0xffff_ffff | bits << 32);
        }
        let shift = if b.text.element("op_sel", index, false) { 32 } else { 0 };
        Ok((b.input(&operand, 9, Ty::B64)?, shift))
    };
    let (x, y) = (read(0)?, read(1)?);
    let out = Out::full(b.out(Ty::B32, 2)?.register);
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0u64; 64], [0u64; 64]);
        x.0.fetch64(w, &mut bx, &mut mask);
        y.0.fetch64(w, &mut by, &mut mask);
        let result =
            std::array::from_fn(|lane| (bx[lane] >> x.1) & 0xffff_ffff | (by[lane] >> y.1 & 0xffff_ffff) << 32);
        out.store64(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// v_fma_mix: each source is f32, or the half of it that op_sel names as f16 where op_sel_hi is set.
fn mix(b: &Build<'_>, half: Option<bool>) -> Result<Exec, String> {
    let mut sources = Vec::new();
    for index in 0..3 {
        let operand = b.operand(b.base + index)?;
        let narrow = b.text.element("op_sel_hi", index, false);
        let shift = if b.text.element("op_sel", index, false) { 16 } else { 0 };
        let input = raw(b, operand, if narrow { Ty::F16 } else { Ty::F32 })?;
        sources.push((input, narrow, shift, operand.abs, operand.neg));
    }
    let mut out = Out::full(b.out(Ty::B32, 3)?.register);
    let post = b.post();
    if let Some(high) = half {
        out = Out::half(out.register, high);
    }
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut values = [[0u32; 64]; 3];
        for ((input, narrow, shift, abs, neg), target) in sources.iter().zip(&mut values) {
            let mut buffer = [0; 64];
            let bits = input.fetch(w, &mut buffer, &mut mask);
            for lane in 0..64 {
                let mut value = if *narrow {
                    f16_to_f32(bits[lane] >> shift & 0xffff)
                } else {
                    f32::from_bits(bits[lane])
                };
                if *abs {
                    value = value.abs();
                }
                target[lane] = if *neg { -value } else { value }.to_bits();
            }
        }
        let mut result = [0; 64];
        let [x, y, z] = &values;
        let narrow = half.is_some();
        map3(
            |x, y, z| {
                let (x, y, z) = (f32::from_bits(x), f32::from_bits(y), f32::from_bits(z));
                if narrow {
                    // One rounding: the product is exact in f64.
                    f64_to_f16(f64::from(x).mul_add(f64::from(y), f64::from(z)))
                } else {
                    x.mul_add(y, z).to_bits()
                }
            },
            x,
            y,
            z,
            &mut result,
            w.lanes,
        );
        if post.clamp {
            for value in &mut result {
                *value = if narrow {
                    f32_to_f16(post.f32(f16_to_f32(*value)))
                } else {
                    post.f32(f32::from_bits(*value)).to_bits()
                };
            }
        }
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

fn int_field(value: u32, bits: u32, index: u32, signed: bool) -> i32 {
    let raw = value >> (bits * index);
    let shift = 32 - bits;
    if signed {
        (raw << shift) as i32 >> shift
    } else {
        (raw << shift >> shift) as i32
    }
}

fn dot(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let rest = name.strip_prefix("v_dot")?;
    let clamp = b.text.flag("clamp");
    let compact = rest.starts_with("2c_") || rest.starts_with("4c_") || rest.starts_with("8c_");
    let flush = b.arch.mfma_flushes_denormals;
    let mixed_sign = name.ends_with("iu8") || name.ends_with("iu4");
    let signs = if mixed_sign {
        [b.text.element("neg_lo", 0, false), b.text.element("neg_lo", 1, false)]
    } else {
        [true; 2]
    };
    let unsigned = name.contains("_u32_");
    let signs = if unsigned { [false; 2] } else { signs };
    let integer = |bits: u32| {
        move |x: u32, y: u32, z: u32| {
            let mut sum = if unsigned { i64::from(z) } else { i64::from(z as i32) };
            for index in 0..32 / bits {
                sum += i64::from(int_field(x, bits, index, signs[0])) * i64::from(int_field(y, bits, index, signs[1]));
            }
            if !clamp {
                sum as u32
            } else if unsigned {
                sum.clamp(0, i64::from(u32::MAX)) as u32
            } else {
                sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32
            }
        }
    };
    let fp8 = |x_bf8: bool, y_bf8: bool, fnuz: bool| {
        move |x: u32, y: u32, z: u32| {
            let mut sum = f64::from(f32::from_bits(z));
            for index in 0..4 {
                sum += f64::from(Small::of(fnuz, x_bf8).decode(x >> (8 * index) & 0xff))
                    * f64::from(Small::of(fnuz, y_bf8).decode(y >> (8 * index) & 0xff));
            }
            (sum as f32).to_bits()
        }
    };
    let fnuz = b.arch.fp8_fnuz;
    let kind = rest.get(1..)?.trim_start_matches('c');
    let lanes = rest.as_bytes()[0];
    Some(match (lanes, kind) {
        (b'2', "_f32_f16") => dot3(b, compact, Ty::F16, Ty::F32, move |x, y, z| dot2_f16(x, y, z, flush)),
        (b'2', "_f32_bf16") => dot3(b, compact, Ty::BF16, Ty::F32, move |x, y, z| dot2_bf16(x, y, z, flush)),
        (b'2', "_f16_f16") => dot3(b, false, Ty::F16, Ty::F16, move |x, y, z| {
            let sum = dot2_f16(x, y, f16_to_f32(z & 0xffff).to_bits(), flush);
            f32_to_f16(f32::from_bits(sum))
        }),
        (b'2', "_bf16_bf16") => dot3(b, false, Ty::BF16, Ty::BF16, move |x, y, z| {
            f32_to_bf16(f32::from_bits(dot2_bf16(x, y, z << 16, flush)))
        }),
        (b'2', "_i32_i16" | "_u32_u16") => dot3(b, compact, Ty::B32, Ty::B32, integer(16)),
        (b'4', "_i32_i8" | "_u32_u8" | "_i32_iu8") => dot3(b, compact, Ty::B32, Ty::B32, integer(8)),
        (b'8', "_i32_i4" | "_u32_u4" | "_i32_iu4") => dot3(b, compact, Ty::B32, Ty::B32, integer(4)),
        (b'4', "_f32_fp8_fp8") => dot3(b, false, Ty::B32, Ty::F32, fp8(false, false, fnuz)),
        (b'4', "_f32_fp8_bf8") => dot3(b, false, Ty::B32, Ty::F32, fp8(false, true, fnuz)),
        (b'4', "_f32_bf8_fp8") => dot3(b, false, Ty::B32, Ty::F32, fp8(true, false, fnuz)),
        (b'4', "_f32_bf8_bf8") => dot3(b, false, Ty::B32, Ty::F32, fp8(true, true, fnuz)),
        _ => return None,
    })
}

fn dot2_f16(x: u32, y: u32, z: u32, flush: bool) -> u32 {
    let part = |bits: u32| {
        let bits = bits & 0xffff;
        if flush && bits & 0x7c00 == 0 {
            0.0
        } else {
            f64::from(f16_to_f32(bits))
        }
    };
    let sum = part(x) * part(y) + part(x >> 16) * part(y >> 16);
    ((sum + f64::from(f32::from_bits(z))) as f32).to_bits()
}

fn dot2_bf16(x: u32, y: u32, z: u32, flush: bool) -> u32 {
    let part = |bits: u32| {
        let value = f32::from_bits(bits << 16);
        f64::from(if flush { flush32(value) } else { value })
    };
    let sum = part(x) * part(y) + part(x >> 16) * part(y >> 16);
    ((sum + f64::from(f32::from_bits(z))) as f32).to_bits()
}

fn dot3<F>(b: &Build<'_>, compact: bool, ty: Ty, out_ty: Ty, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    let packed = ty.is_16();
    let pair = |index: usize| -> Result<Pair, String> {
        if packed {
            Pair::new(b, index, ty)
        } else {
            Ok(Pair {
                input: raw(b, b.operand(b.base + index)?, ty)?,
                low: 0,
                high: 16,
                flip: 0,
            })
        }
    };
    let (x, y) = (pair(0)?, pair(1)?);
    let dpp = b.source(0, Ty::B32)?;
    let x = Pair {
        input: if compact { dpp } else { x.input.clone() },
        ..x
    };
    let target = b.operand(if compact { 0 } else { b.base + 2 })?;
    let z = b.input(target, 2, out_ty)?;
    let third_flip = b.text.element("neg_lo", 2, false) && packed;
    op3::from_inputs(
        b,
        [x.input.clone(), y.input.clone(), z],
        [Ty::B32, Ty::B32, out_ty],
        out_ty,
        Arith::Other,
        {
            let (xl, xh, xf) = (x.low, x.high, x.flip);
            let (yl, yh, yf) = (y.low, y.high, y.flip);
            move |x, y, z| {
                let x = (x >> xl & 0xffff | (x >> xh) << 16) ^ xf;
                let y = (y >> yl & 0xffff | (y >> yh) << 16) ^ yf;
                f(x, y, if third_flip { z ^ 0x8000_0000 } else { z })
            }
        },
    )
}
