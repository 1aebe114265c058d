//! Builders: from an instruction and a closure on one lane to an instruction on a wave.
//!
//! Each fetches its operands with their modifiers, computes all lanes, applies the output modifiers and stores
//! the lanes that are on. A float mode other than round-to-nearest with denormals takes a slower path.

use super::float::flush32;
use super::operand::{Build, In, Out, Post, Ty};
use super::round::{Arith, arith32, arith64};
use super::simd::{Lanes, Lanes64, map1, map1_64, map2, map2_64, map3, map3_64, pack, test2, test2_64};
use super::wave::{Exec, Flow, Mode, Wave};
use crate::decode::text::{EXEC, Kind};

/// What is done to the result of a vector instruction before it is stored.
#[derive(Clone, Copy)]
struct Finish {
    post: Post,
    ty: Ty,
}

impl Finish {
    fn apply(self, mode: Mode, out: &mut Lanes) {
        if self.post.none() {
            return;
        }
        let post = self.post.under(mode, self.ty);
        match self.ty {
            Ty::F32 => out.iter_mut().for_each(|x| *x = post.f32(f32::from_bits(*x)).to_bits()),
            Ty::F16 => out.iter_mut().for_each(|x| *x = post.f16(*x)),
            Ty::BF16 => out.iter_mut().for_each(|x| {
                *x = super::float::f32_to_bf16(post.f32(super::float::bf16_to_f32(*x)));
            }),
            _ => {}
        }
    }
}

/// Whether f32 values have to be flushed for the instruction under `mode`.
fn flushes(mode: Mode, ins: &[Ty], out: Ty) -> (bool, bool) {
    let input = mode.denorm32 & 1 == 0 && ins.contains(&Ty::F32);
    let output = mode.denorm32 & 2 == 0 && out == Ty::F32;
    (input, output)
}

fn flush_lanes(values: &mut Lanes) {
    values
        .iter_mut()
        .for_each(|x| *x = flush32(f32::from_bits(*x)).to_bits());
}

macro_rules! builder {
    ($name:ident, $count:literal, $map:ident, ($($arg:ident: $bits:ty),+), ($($buffer:ident),+)) => {
        /// Builds an instruction of this many 32-bit (or narrower) sources and one such result.
        pub(crate) fn $name<F>(b: &Build<'_>, tys: [Ty; $count], out_ty: Ty, arith: Arith, f: F) -> Result<Exec, String>
        where
            F: Fn($($bits),+) -> u32 + Copy + Send + Sync + 'static,
        {
            let mut index = 0;
            $(let $arg = { index += 1; b.source(index - 1, tys[index - 1])? };)+
            $name::from_inputs(b, [$($arg),+], tys, out_ty, arith, f)
        }

        pub(crate) mod $name {
            use super::*;

            /// The same, from sources that are read already.
            pub(crate) fn from_inputs<F>(
                b: &Build<'_>, ins: [In; $count], tys: [Ty; $count], out_ty: Ty, arith: Arith, f: F,
            ) -> Result<Exec, String>
            where
                F: Fn($($bits),+) -> u32 + Copy + Send + Sync + 'static,
            {
                let out = b.out(out_ty, $count)?;
                let finish = Finish { post: b.post(), ty: out_ty };
                let [$($arg),+] = ins;
                let floats = out_ty == Ty::F32 || tys.contains(&Ty::F32);
                Ok(Box::new(move |w, _| {
                    let mut mask = w.exec();
                    $(let mut $buffer = [0u32; 64];)+
                    let mut result = [0u32; 64];
                    $(let $arg = $arg.fetch(w, &mut $buffer, &mut mask);)+
                    if floats && !w.mode.plain32() {
                        slow(w.mode, [$($arg),+], tys, out_ty, arith, &mut result, &f);
                    } else {
                        $map(f, $($arg,)+ &mut result, w.lanes);
                    }
                    finish.apply(w.mode, &mut result);
                    out.store(w, &result, mask);
                    Ok(Flow::Next)
                }))
            }

            #[cold]
            fn slow<F: Fn($($bits),+) -> u32 + Copy>(
                mode: Mode, ins: [&Lanes; $count], tys: [Ty; $count], out_ty: Ty, arith: Arith, result: &mut Lanes, f: &F,
            ) {
                let (flush_in, flush_out) = flushes(mode, &tys, out_ty);
                let mut ins = ins.map(|values| *values);
                for (values, ty) in ins.iter_mut().zip(tys) {
                    if flush_in && ty == Ty::F32 {
                        flush_lanes(values);
                    }
                }
                if mode.round32 != 0 && arith != Arith::Other {
                    for lane in 0..64 {
                        let mut operands = [0f32; 3];
                        for (slot, values) in operands.iter_mut().zip(&ins) {
                            *slot = f32::from_bits(values[lane]);
                        }
                        result[lane] = arith32(arith, operands, mode.round32).to_bits();
                    }
                } else {
                    let [$($arg),+] = &ins;
                    $map(f, $($arg,)+ result, 64);
                }
                if flush_out {
                    flush_lanes(result);
                }
            }
        }
    };
}

builder!(op1, 1, map1, (a: u32), (ba));
builder!(op2, 2, map2, (a: u32, x: u32), (ba, bx));
builder!(op3, 3, map3, (a: u32, x: u32, y: u32), (ba, bx, by));

/// Builds an instruction of one to three sources of any width; the closure sees them zero-extended to 64 bits.
pub(crate) fn wide<F, const N: usize>(
    b: &Build<'_>,
    tys: [Ty; N],
    out_ty: Ty,
    arith: Arith,
    f: F,
) -> Result<Exec, String>
where
    F: Fn(u64, u64, u64) -> u64 + Copy + Send + Sync + 'static,
{
    let ins: Vec<In> = tys
        .iter()
        .enumerate()
        .map(|(index, ty)| b.source(index, *ty))
        .collect::<Result<_, _>>()?;
    let ins = <[In; N]>::try_from(ins).map_err(|ins| format!("{} sources", ins.len()))?;
    wide_inputs(b, ins, out_ty, arith, f)
}

/// [`wide`] from sources that are read already.
pub(crate) fn wide_inputs<F, const N: usize>(
    b: &Build<'_>,
    ins: [In; N],
    out_ty: Ty,
    arith: Arith,
    f: F,
) -> Result<Exec, String>
where
    F: Fn(u64, u64, u64) -> u64 + Copy + Send + Sync + 'static,
{
    let out = if out_ty.is_64() {
        Out::full(b.out(Ty::B32, ins.len())?.register)
    } else {
        b.out(out_ty, ins.len())?
    };
    let post = b.post();
    let finish = Finish { post, ty: out_ty };
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut buffers = [[0u64; 64]; N];
        for (input, buffer) in ins.iter().zip(&mut buffers) {
            input.fetch64(w, buffer, &mut mask);
        }
        let mut result: Lanes64 = [0; 64];
        let [x, y, z] = std::array::from_fn(|index| buffers.get(index).unwrap_or(&[0; 64]));
        if w.mode.round16_64 != 0 && arith != Arith::Other && out_ty == Ty::F64 {
            for (lane, slot) in result.iter_mut().enumerate() {
                let operands = [x[lane], y[lane], z[lane]].map(f64::from_bits);
                *slot = arith64(arith, operands, w.mode.round16_64).to_bits();
            }
        } else {
            match N {
                1 => map1_64(|a| f(a, 0, 0), x, &mut result, w.lanes),
                2 => map2_64(|a, b| f(a, b, 0), x, y, &mut result, w.lanes),
                _ => map3_64(f, x, y, z, &mut result, w.lanes),
            }
        }
        if out_ty == Ty::F64 && !post.none() {
            let post = post.under(w.mode, Ty::F64);
            result
                .iter_mut()
                .for_each(|v| *v = post.f64(f64::from_bits(*v)).to_bits());
        }
        if out_ty.is_64() {
            out.store64(w, &result, mask);
        } else {
            let mut narrow: Lanes = [0; 64];
            for (slot, value) in narrow.iter_mut().zip(&result) {
                *slot = *value as u32;
            }
            finish.apply(w.mode, &mut narrow);
            out.store(w, &narrow, mask);
        }
        Ok(Flow::Next)
    }))
}

/// f32 operations of one to three sources.
pub(crate) fn f1<F: Fn(f32) -> f32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op1(b, [Ty::F32], Ty::F32, Arith::Other, move |x| {
        f(f32::from_bits(x)).to_bits()
    })
}

pub(crate) fn f2<F>(b: &Build<'_>, arith: Arith, f: F) -> Result<Exec, String>
where
    F: Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
{
    op2(b, [Ty::F32; 2], Ty::F32, arith, move |x, y| {
        f(f32::from_bits(x), f32::from_bits(y)).to_bits()
    })
}

pub(crate) fn f3<F>(b: &Build<'_>, arith: Arith, f: F) -> Result<Exec, String>
where
    F: Fn(f32, f32, f32) -> f32 + Copy + Send + Sync + 'static,
{
    op3(b, [Ty::F32; 3], Ty::F32, arith, move |x, y, z| {
        f(f32::from_bits(x), f32::from_bits(y), f32::from_bits(z)).to_bits()
    })
}

/// Integer operations on 32 bits.
pub(crate) fn i1<F: Fn(u32) -> u32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op1(b, [Ty::B32], Ty::B32, Arith::Other, f)
}

pub(crate) fn i2<F: Fn(u32, u32) -> u32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op2(b, [Ty::B32; 2], Ty::B32, Arith::Other, f)
}

pub(crate) fn i3<F>(b: &Build<'_>, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> u32 + Copy + Send + Sync + 'static,
{
    op3(b, [Ty::B32; 3], Ty::B32, Arith::Other, f)
}

/// Integer operations on 16 bits; the closure's result is cut to 16 bits.
pub(crate) fn s1<F: Fn(u16) -> u16 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op1(b, [Ty::B16], Ty::B16, Arith::Other, move |x| f(x as u16).into())
}

pub(crate) fn s2<F: Fn(u16, u16) -> u16 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op2(b, [Ty::B16; 2], Ty::B16, Arith::Other, move |x, y| {
        f(x as u16, y as u16).into()
    })
}

pub(crate) fn s3<F>(b: &Build<'_>, f: F) -> Result<Exec, String>
where
    F: Fn(u16, u16, u16) -> u16 + Copy + Send + Sync + 'static,
{
    op3(b, [Ty::B16; 3], Ty::B16, Arith::Other, move |x, y, z| {
        f(x as u16, y as u16, z as u16).into()
    })
}

/// f16 operations, computed in f32 and rounded once more (exact for one operation of at most two operands).
pub(crate) fn h1<F: Fn(f32) -> f32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    op1(b, [Ty::F16], Ty::F16, Arith::Other, move |x| {
        super::float::f32_to_f16(f(super::float::f16_to_f32(x & 0xffff)))
    })
}

pub(crate) fn h2<F: Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    use super::float::{f16_to_f32, f32_to_f16};
    op2(b, [Ty::F16; 2], Ty::F16, Arith::Other, move |x, y| {
        f32_to_f16(f(f16_to_f32(x & 0xffff), f16_to_f32(y & 0xffff)))
    })
}

pub(crate) fn h3<F>(b: &Build<'_>, f: F) -> Result<Exec, String>
where
    F: Fn(f32, f32, f32) -> f32 + Copy + Send + Sync + 'static,
{
    use super::float::{f16_to_f32, f32_to_f16};
    op3(b, [Ty::F16; 3], Ty::F16, Arith::Other, move |x, y, z| {
        f32_to_f16(f(
            f16_to_f32(x & 0xffff),
            f16_to_f32(y & 0xffff),
            f16_to_f32(z & 0xffff),
        ))
    })
}

/// f64 operations.
pub(crate) fn d1<F: Fn(f64) -> f64 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    wide(b, [Ty::F64], Ty::F64, Arith::Other, move |x, _, _| {
        f(f64::from_bits(x)).to_bits()
    })
}

pub(crate) fn d2<F>(b: &Build<'_>, arith: Arith, f: F) -> Result<Exec, String>
where
    F: Fn(f64, f64) -> f64 + Copy + Send + Sync + 'static,
{
    wide(b, [Ty::F64; 2], Ty::F64, arith, move |x, y, _| {
        f(f64::from_bits(x), f64::from_bits(y)).to_bits()
    })
}

/// Where a comparison's mask goes.
struct Verdict {
    mask: Option<u16>,
    exec: bool,
}

fn verdict(b: &mut Build<'_>, to_exec: bool) -> Result<Verdict, String> {
    let has_mask = b.text.operands.len() > 2;
    b.base = usize::from(has_mask);
    let mask = if has_mask { Some(b.mask_out(0)?) } else { None };
    Ok(Verdict { mask, exec: to_exec })
}

impl Verdict {
    fn put(&self, w: &mut Wave, bits: &[bool; 64], enabled: u64, active: u64) {
        let result = pack(bits) & enabled;
        // A lane that DPP disabled keeps its bit; one that EXEC disabled gets zero.
        if let Some(first) = self.mask {
            let kept = if enabled == active {
                0
            } else {
                w.mask_at(first) & active & !enabled
            };
            w.set_mask_at(first, result | kept);
        }
        if self.exec {
            w.set_exec(result);
        }
    }
}

/// Builds a comparison of two 32-bit (or narrower) sources.
pub(crate) fn compare<F>(b: &mut Build<'_>, to_exec: bool, tys: [Ty; 2], f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32) -> bool + Copy + Send + Sync + 'static,
{
    let verdict = verdict(b, to_exec)?;
    let (x, y) = (b.source(0, tys[0])?, b.source(1, tys[1])?);
    let float = tys[0] == Ty::F32;
    Ok(Box::new(move |w, _| {
        let active = w.exec();
        let mut mask = active;
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let mut bits = [false; 64];
        let x = x.fetch(w, &mut bx, &mut mask);
        let y = y.fetch(w, &mut by, &mut mask);
        if float && w.mode.denorm32 & 1 == 0 {
            let (mut x, mut y) = (*x, *y);
            flush_lanes(&mut x);
            flush_lanes(&mut y);
            test2(f, &x, &y, &mut bits, w.lanes);
        } else {
            test2(f, x, y, &mut bits, w.lanes);
        }
        verdict.put(w, &bits, mask, active);
        Ok(Flow::Next)
    }))
}

/// Builds a comparison of sources of which the first is 64 bits wide.
pub(crate) fn compare64<F>(b: &mut Build<'_>, to_exec: bool, tys: [Ty; 2], f: F) -> Result<Exec, String>
where
    F: Fn(u64, u64) -> bool + Copy + Send + Sync + 'static,
{
    let verdict = verdict(b, to_exec)?;
    let (x, y) = (b.source(0, tys[0])?, b.source(1, tys[1])?);
    Ok(Box::new(move |w, _| {
        let active = w.exec();
        let mut mask = active;
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let mut bits = [false; 64];
        x.fetch64(w, &mut bx, &mut mask);
        y.fetch64(w, &mut by, &mut mask);
        test2_64(f, &bx, &by, &mut bits, w.lanes);
        verdict.put(w, &bits, mask, active);
        Ok(Flow::Next)
    }))
}

/// Builds an addition or subtraction with a carry mask: `vdst, carry_out, x, y[, carry_in]`.
pub(crate) fn carry<F>(b: &mut Build<'_>, with_carry: bool, f: F) -> Result<Exec, String>
where
    F: Fn(u32, u32, u32) -> (u32, bool) + Copy + Send + Sync + 'static,
{
    b.base = 2;
    let carry_out = b.mask_out(1)?;
    let (x, y) = (b.source(0, Ty::B32)?, b.source(1, Ty::B32)?);
    let carry_in = if with_carry { Some(b.mask_out(4)?) } else { None };
    let out = b.out(Ty::B32, 2)?;
    let clamp = b.text.flag("clamp");
    if clamp {
        return Err("clamp on a carry operation".into());
    }
    Ok(Box::new(move |w, _| {
        let active = w.exec();
        let mut mask = active;
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let carries = carry_in.map_or(0, |first| w.mask_at(first));
        let mut result = [0; 64];
        let mut carried = 0u64;
        {
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            for lane in 0..w.lanes {
                let (value, carry) = f(x[lane], y[lane], (carries >> lane & 1) as u32);
                result[lane] = value;
                carried |= u64::from(carry) << lane;
            }
        }
        let kept = if mask == active {
            0
        } else {
            w.mask_at(carry_out) & active & !mask
        };
        w.set_mask_at(carry_out, carried & mask | kept);
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// Builds `v_cndmask`: the second source where the mask has a lane's bit, else the first.
pub(crate) fn select(b: &Build<'_>, ty: Ty, mask_operand: Option<usize>) -> Result<Exec, String> {
    let chooser = match mask_operand {
        Some(index) => match b.operand(index)?.kind {
            Kind::Scalar { first, .. } => first,
            ref kind => return Err(format!("mask {kind:?}")),
        },
        None => crate::decode::text::VCC,
    };
    let (x, y) = (b.source(0, ty)?, b.source(1, ty)?);
    let out = b.out(ty, 3)?;
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let chosen = if chooser == EXEC { w.exec() } else { w.mask_at(chooser) };
        let mut result = [0; 64];
        {
            let x = x.fetch(w, &mut bx, &mut mask);
            let y = y.fetch(w, &mut by, &mut mask);
            for lane in 0..64 {
                result[lane] = if chosen >> lane & 1 == 1 { y[lane] } else { x[lane] };
            }
        }
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}
