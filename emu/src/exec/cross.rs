//! Operations between lanes, accumulation registers, and indexed register moves.

use super::float::{exp2_f32, log2_f32, rcp_f32, rsq_f32, sqrt_f32};
use super::lanes::i1;
use super::operand::{Build, Out, Src, Ty};
use super::simd::Lanes;
use super::wave::{Exec, Flow, Trap};
use crate::decode::text::{Kind, M0};

pub(crate) fn build(b: &mut Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_readfirstlane_b32" => readlane(b, true),
        "v_readlane_b32" => readlane(b, false),
        "v_writelane_b32" => writelane(b),
        "v_s_rcp_f32" => scalar(b, rcp_f32),
        "v_s_rsq_f32" => scalar(b, rsq_f32),
        "v_s_sqrt_f32" => scalar(b, sqrt_f32),
        "v_s_exp_f32" => scalar(b, exp2_f32),
        "v_s_log_f32" => scalar(b, log2_f32),
        "v_s_rcp_f16" => scalar_half(b, |x| 1.0 / x),
        "v_s_rsq_f16" => scalar_half(b, |x| (1.0 / f64::from(x).sqrt()) as f32),
        "v_s_sqrt_f16" => scalar_half(b, f32::sqrt),
        "v_s_exp_f16" => scalar_half(b, |x| f64::from(x).exp2() as f32),
        "v_s_log_f16" => scalar_half(b, |x| f64::from(x).log2() as f32),
        "v_accvgpr_read_b32" | "v_accvgpr_write_b32" | "v_accvgpr_mov_b32" | "v_accvgpr_read" | "v_accvgpr_write" => {
            i1(b, |x| x)
        }
        "v_permlane16_b32" => permlane16(b, false),
        "v_permlanex16_b32" => permlane16(b, true),
        "v_permlane16_var_b32" => permlane16_var(b, false),
        "v_permlanex16_var_b32" => permlane16_var(b, true),
        "v_permlane64_b32" => permlane64(b),
        "v_permlane16_swap_b32" => permlane_swap(b, 16),
        "v_permlane32_swap_b32" => permlane_swap(b, 32),
        "v_movrels_b32" => movrel(b, true, false),
        "v_movreld_b32" => movrel(b, false, true),
        "v_movrelsd_b32" => movrel(b, true, true),
        "v_mov_b32" if b.arch.generation == crate::arch::Generation::Gfx9 => return indexed_mov(b).transpose(),
        _ => return None,
    })
}

fn readlane(b: &Build<'_>, first: bool) -> Result<Exec, String> {
    let target = b.mask_out(0)?;
    let source = b.plain(b.operand(1)?, Ty::B32)?;
    let select = if first {
        None
    } else {
        Some(b.plain(b.operand(2)?, Ty::B32)?)
    };
    Ok(Box::new(move |w, _| {
        let lane = match select {
            Some(select) => select.uniform(w).unwrap_or(0) as usize % w.lanes,
            None => {
                let mask = w.exec();
                if mask == 0 { 0 } else { mask.trailing_zeros() as usize }
            }
        };
        let value = match source {
            Src::V(index) => w.v[index as usize][lane],
            other => other.uniform(w).unwrap_or(0),
        };
        w.write_s(target, value);
        Ok(Flow::Next)
    }))
}

/// A transcendental of a scalar register (gfx12): computed once, whatever lanes are on.
fn scalar<F: Fn(f32) -> f32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (target, post) = (b.mask_out(0)?, b.post());
    let source = b.input(b.operand(1)?, 0, Ty::F32)?;
    Ok(Box::new(move |w, _| {
        let (mut buffer, mut mask) = ([0; 64], u64::MAX);
        let value = f32::from_bits(source.fetch(w, &mut buffer, &mut mask)[0]);
        let post = post.under(w.mode, Ty::F32);
        w.write_s(target, post.f32(f(value)).to_bits());
        Ok(Flow::Next)
    }))
}

/// The same of the half in a scalar register's lower 16 bits; the upper ones become zero.
fn scalar_half<F: Fn(f32) -> f32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let (target, post) = (b.mask_out(0)?, b.post());
    let source = b.input(b.operand(1)?, 0, Ty::F16)?;
    Ok(Box::new(move |w, _| {
        let (mut buffer, mut mask) = ([0; 64], u64::MAX);
        let bits = source.fetch(w, &mut buffer, &mut mask)[0] as u16;
        let value = half::f16::from_f32(f(half::f16::from_bits(bits).to_f32())).to_bits();
        let post = post.under(w.mode, Ty::F16);
        w.write_s(
            target,
            if post.none() {
                value.into()
            } else {
                post.f16(value.into())
            },
        );
        Ok(Flow::Next)
    }))
}

fn writelane(b: &Build<'_>) -> Result<Exec, String> {
    let out = b.out(Ty::B32, 2)?;
    let source = b.plain(b.operand(1)?, Ty::B32)?;
    let select = b.plain(b.operand(2)?, Ty::B32)?;
    Ok(Box::new(move |w, _| {
        let lane = select.uniform(w).unwrap_or(0) as usize % w.lanes;
        w.v[out.register as usize][lane] = source.uniform(w).unwrap_or(0);
        Ok(Flow::Next)
    }))
}

/// Stores `value_of(lane)`; None keeps the lane.
fn scatter(
    w: &mut super::wave::Wave,
    out: Out,
    inactive: bool,
    bound_ctrl: bool,
    source: &Lanes,
    from: impl Fn(usize) -> usize,
) {
    let exec = w.exec();
    let mut mask = exec;
    let mut result: Lanes = [0; 64];
    for lane in 0..w.lanes {
        let other = from(lane);
        if inactive || exec >> other & 1 == 1 {
            result[lane] = source[other];
        } else if !bound_ctrl {
            mask &= !(1 << lane);
        }
    }
    out.store(w, &result, mask);
}

fn permlane16(b: &Build<'_>, other_row: bool) -> Result<Exec, String> {
    let out = b.out(Ty::B32, 9)?;
    let source = b.plain(b.operand(1)?, Ty::B32)?;
    let (low, high) = (b.plain(b.operand(2)?, Ty::B32)?, b.plain(b.operand(3)?, Ty::B32)?);
    let inactive = b.text.element("op_sel", 0, false);
    let bound = b.text.element("op_sel", 1, false);
    let Src::V(source) = source else {
        return Err("v_permlane16 reads a vector register".into());
    };
    Ok(Box::new(move |w, _| {
        let select = u64::from(low.uniform(w).unwrap_or(0)) | u64::from(high.uniform(w).unwrap_or(0)) << 32;
        let values = w.v[source as usize];
        scatter(w, out, inactive, bound, &values, |lane| {
            let row = if other_row { (lane & !15) ^ 16 } else { lane & !15 };
            row + (select >> (4 * (lane & 15)) & 15) as usize
        });
        Ok(Flow::Next)
    }))
}

fn permlane16_var(b: &Build<'_>, other_row: bool) -> Result<Exec, String> {
    let out = b.out(Ty::B32, 9)?;
    let (Src::V(source), Src::V(select)) = (b.plain(b.operand(1)?, Ty::B32)?, b.plain(b.operand(2)?, Ty::B32)?) else {
        return Err("v_permlane16_var reads vector registers".into());
    };
    let inactive = b.text.element("op_sel", 0, false);
    let bound = b.text.element("op_sel", 1, false);
    Ok(Box::new(move |w, _| {
        let (values, select) = (w.v[source as usize], w.v[select as usize]);
        scatter(w, out, inactive, bound, &values, |lane| {
            let row = if other_row { (lane & !15) ^ 16 } else { lane & !15 };
            row + (select[lane] & 15) as usize
        });
        Ok(Flow::Next)
    }))
}

fn permlane64(b: &Build<'_>) -> Result<Exec, String> {
    let out = b.out(Ty::B32, 9)?;
    let Src::V(source) = b.plain(b.operand(1)?, Ty::B32)? else {
        return Err("v_permlane64 reads a vector register".into());
    };
    Ok(Box::new(move |w, _| {
        // In wave32 it does nothing but copy.
        let flip = if w.lanes == 64 { 32 } else { 0 };
        let values = w.v[source as usize];
        let mask = w.exec();
        let result = std::array::from_fn(|lane| values[lane ^ flip]);
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// gfx950: swaps odd rows (of `width` lanes) of the first register with even rows of the second.
fn permlane_swap(b: &Build<'_>, width: usize) -> Result<Exec, String> {
    let (Src::V(x), Src::V(y)) = (b.plain(b.operand(0)?, Ty::B32)?, b.plain(b.operand(1)?, Ty::B32)?) else {
        return Err("v_permlane_swap takes vector registers".into());
    };
    let (x, y) = (x as usize, y as usize);
    Ok(Box::new(move |w, _| {
        let exec = w.exec();
        for lane in (0..w.lanes).filter(|lane| lane / width % 2 == 1) {
            let other = lane - width;
            let (mine, theirs) = (w.v[x][lane], w.v[y][other]);
            if exec >> lane & 1 == 1 {
                w.v[x][lane] = theirs;
            }
            if exec >> other & 1 == 1 {
                w.v[y][other] = mine;
            }
        }
        Ok(Flow::Next)
    }))
}

fn vector(b: &Build<'_>, index: usize) -> Result<u16, String> {
    match b.operand(index)?.kind {
        Kind::Vector { first, .. } => Ok(first),
        ref kind => Err(format!("{kind:?} is not a vector register")),
    }
}

fn movrel(b: &Build<'_>, source_relative: bool, target_relative: bool) -> Result<Exec, String> {
    let out = vector(b, 0)?;
    let source = b.plain(b.operand(1)?, Ty::B32)?;
    Ok(Box::new(move |w, _| {
        let offset = w.s[M0 as usize] as usize;
        move_indexed(
            w,
            source,
            out,
            if source_relative { offset } else { 0 },
            if target_relative { offset } else { 0 },
        )
    }))
}

fn move_indexed(
    w: &mut super::wave::Wave,
    source: Src,
    out: u16,
    source_offset: usize,
    target_offset: usize,
) -> super::wave::Step {
    let mask = w.exec();
    let values: Lanes = match source {
        Src::V(index) => {
            let index = index as usize + source_offset;
            *w.v.get(index)
                .ok_or_else(|| Trap::not_modelled(format!("register v{index} is not there")))?
        }
        other => [other.uniform(w).unwrap_or(0); 64],
    };
    let target = out as usize + target_offset;
    if target >= w.v.len() {
        return Err(Trap::not_modelled(format!("register v{target} is not there")));
    }
    Out::full(target as u16).store(w, &values, mask);
    Ok(Flow::Next)
}

/// v_mov_b32 on gfx9 obeys s_set_gpr_idx; None where it has modifiers and is an ordinary instruction.
fn indexed_mov(b: &mut Build<'_>) -> Result<Option<Exec>, String> {
    if b.text.encoding != crate::decode::text::Encoding::E32 {
        return Ok(None);
    }
    let plain = i1(b, |x| x)?;
    let out = vector(b, 0)?;
    let source = b.plain(b.operand(1)?, Ty::B32)?;
    Ok(Some(Box::new(move |w, env| match w.gpr_index {
        None => plain(w, env),
        Some((enable, offset)) => {
            let by = |bit: u8| if enable & bit != 0 { offset as usize } else { 0 };
            move_indexed(w, source, out, by(1), by(8))
        }
    })))
}
