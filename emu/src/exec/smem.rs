//! Scalar memory: loads through the constant cache, and the stores and atomics of gfx9.

use super::atomic::{self, Request, Rmw};
use super::operand::{Build, Src, Ty};
use super::undefined::Origin;
use super::wave::{Exec, Flow, Trap, Wave};
use crate::decode::text::Kind;
use crate::error::{Space, Use};

/// Words and, for the narrow loads, bytes and signedness, by the mnemonic's end.
fn size_of(suffix: &str) -> Option<(usize, u32, bool)> {
    Some(match suffix {
        "dword" | "b32" => (1, 0, false),
        "dwordx2" | "b64" => (2, 0, false),
        "dwordx3" | "b96" => (3, 0, false),
        "dwordx4" | "b128" => (4, 0, false),
        "dwordx8" | "b256" => (8, 0, false),
        "dwordx16" | "b512" => (16, 0, false),
        "u8" => (1, 1, false),
        "i8" => (1, 1, true),
        "u16" => (1, 2, false),
        "i16" => (1, 2, true),
        _ => return None,
    })
}

/// Builds a scalar load; None for another instruction.
pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(rest) = name.strip_prefix("s_store_") {
        let (words, small, _) = size_of(rest)?;
        return (small == 0).then(|| store(b, words));
    }
    if let Some(rest) = name.strip_prefix("s_atomic_") {
        let (op, bits) = atomic::parse(rest)?;
        return Some(read_modify_write(b, op, bits));
    }
    let (buffer, rest) = match (name.strip_prefix("s_load_"), name.strip_prefix("s_buffer_load_")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return None,
    };
    let (words, small, signed) = size_of(rest)?;
    Some(load(b, buffer, words, small, signed))
}

/// The address of a scalar store or atomic: base, offset register or immediate.
fn plain_address(b: &Build<'_>) -> Result<impl Fn(&Wave) -> Result<u64, Box<Trap>> + Send + Sync + 'static, String> {
    let base = b.mask_out(1)?;
    let offset = b.plain(b.operand(2)?, Ty::B32)?;
    let extra = b.text.number("offset");
    Ok(move |w: &Wave| {
        check_address(w, base, 2, offset)?;
        let moved = match offset {
            Src::C(value) => i64::from(value as i32),
            other => i64::from(other.uniform(w).unwrap_or(0)),
        };
        Ok(w.read_s64(base).wrapping_add_signed(moved + extra) & !3)
    })
}

/// Checks that the registers of an address hold no undefined bits.
fn check_address(w: &Wave, base: u16, words: u16, offset: Src) -> Result<(), Box<Trap>> {
    w.check_scalars(base, words, Use::Address)?;
    match offset {
        Src::S(register) => w.check_scalars(register, 1, Use::Address),
        _ => Ok(()),
    }
}

/// A scalar store (gfx9 and gfx10).
fn store(b: &Build<'_>, words: usize) -> Result<Exec, String> {
    let source = b.mask_out(0)?;
    let address = plain_address(b)?;
    Ok(Box::new(move |w, env| {
        let at = address(w)?;
        w.check_scalars(source, words as u16, Use::Value)?;
        let data: Vec<u32> = (0..words).map(|index| w.s[source as usize + index]).collect();
        env.global_write(w, 0, at, 0, &data)?;
        Ok(Flow::Next)
    }))
}

/// A scalar atomic: the data register gets the old value where `glc` asks for it.
fn read_modify_write(b: &Build<'_>, op: Rmw, bits: u32) -> Result<Exec, String> {
    let data = b.mask_out(0)?;
    let address = plain_address(b)?;
    let returns = b.text.flag("glc");
    let words = bits as u16 / 32;
    Ok(Box::new(move |w, env| {
        let at = address(w)?;
        w.check_scalars(data, if op == Rmw::CmpSwap { 2 * words } else { words }, Use::Value)?;
        let read = |w: &Wave, first: u16| {
            if words == 2 {
                w.read_s64(first)
            } else {
                w.s[first as usize].into()
            }
        };
        let second = if op == Rmw::CmpSwap { read(w, data + words) } else { 0 };
        let request = Request {
            op,
            bits,
            data: read(w, data),
            second,
        };
        let old = env.atomic(w, 0, Space::Global, at, &request)?;
        if returns {
            w.write_s(data, old as u32);
            if words == 2 {
                w.write_s(data + 1, (old >> 32) as u32);
            }
        }
        Ok(Flow::Next)
    }))
}

fn load(b: &Build<'_>, buffer: bool, words: usize, small: u32, signed: bool) -> Result<Exec, String> {
    let target = b.mask_out(0)?;
    let base = match b.operand(1)?.kind {
        Kind::Scalar { first, .. } => first,
        ref kind => return Err(format!("base {kind:?}")),
    };
    // The third operand is an immediate or a register; `offset:` adds to a register.
    let offset = match b.operand(2)?.kind {
        Kind::Int(value) => Src::C(value as u32),
        Kind::Bits(value) => Src::C(value as u32),
        _ => b.plain(b.operand(2)?, Ty::B32)?,
    };
    let extra = b.text.number("offset");
    let at = b.address;
    Ok(Box::new(move |w, env| {
        check_address(w, base, if buffer { 4 } else { 2 }, offset)?;
        let register = offset.uniform(w).unwrap_or(0);
        let moved = match offset {
            // An immediate is signed, a register is not.
            Src::C(value) => i64::from(value as i32),
            _ => i64::from(register),
        } + extra;
        let (mut out, mut bits) = ([0u32; 16], [0u32; 16]);
        let (mut any, mut first) = (false, w.read_s64(base));
        if buffer {
            let size = if small != 0 { small } else { words as u32 * 4 };
            let (low, high) = (w.s[base as usize], w.s[base as usize + 1]);
            let address = (u64::from(low) | u64::from(high & 0xffff) << 32) & !3;
            let stride = high >> 16 & 0x3fff;
            let records = w.s[base as usize + 2];
            let limit = if stride == 0 {
                u64::from(records)
            } else {
                u64::from(records) * u64::from(stride)
            };
            // Words beyond the buffer read as zero.
            for index in 0..words {
                let at = (moved as u64).saturating_add(4 * index as u64);
                let bytes = if small != 0 { u64::from(size) } else { 4 };
                if at.saturating_add(bytes) <= limit {
                    let place = address.wrapping_add(at);
                    if let Some(trace) = &mut env.trace {
                        trace.scalar(place, size.min(4));
                    }
                    any |= env.global_read(w, 0, place, small, &mut out[index..=index], &mut bits[index..=index])?;
                }
            }
        } else {
            let mut address = w.read_s64(base).wrapping_add_signed(moved);
            if small == 0 {
                address &= !3;
            }
            first = address;
            if let Some(trace) = &mut env.trace {
                trace.scalar(address, words as u32 * 4);
            }
            any = env.global_read(w, 0, address, small, &mut out[..words], &mut bits)?;
        }
        if signed {
            out[0] = if small == 1 {
                out[0] as u8 as i8 as i32 as u32
            } else {
                out[0] as u16 as i16 as i32 as u32
            };
            bits[0] = if bits[0] == 0 { 0 } else { u32::MAX };
        }
        for (index, word) in out.iter().enumerate().take(words) {
            w.write_s(target + index as u16, *word);
        }
        if any || w.undefined.is_some() {
            let origin = Origin {
                space: Space::Global,
                address: first,
                size: if small != 0 { small } else { words as u32 * 4 },
                at,
            };
            w.loaded_scalars(target, &bits[..words], origin);
        }
        Ok(Flow::Next)
    }))
}
