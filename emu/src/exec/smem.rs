//! Scalar memory: loads through the constant cache.

use super::operand::{Build, Src, Ty};
use super::wave::{Exec, Flow};
use crate::decode::text::Kind;

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
    let (buffer, rest) = match (name.strip_prefix("s_load_"), name.strip_prefix("s_buffer_load_")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return None,
    };
    let (words, small, signed) = size_of(rest)?;
    Some(load(b, buffer, words, small, signed))
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
    Ok(Box::new(move |w, env| {
        let register = offset.uniform(w).unwrap_or(0);
        let moved = match offset {
            // An immediate is signed, a register is not.
            Src::C(value) => i64::from(value as i32),
            _ => i64::from(register),
        } + extra;
        let mut out = [0u32; 16];
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
                let at = moved as u64 + 4 * index as u64;
                let bytes = if small != 0 { u64::from(size) } else { 4 };
                if at + bytes <= limit {
                    env.global_read(w, 0, address + at, small, &mut out[index..=index])?;
                }
            }
        } else {
            let mut address = w.read_s64(base).wrapping_add_signed(moved);
            if small == 0 {
                address &= !3;
            }
            env.global_read(w, 0, address, small, &mut out[..words])?;
        }
        if signed {
            out[0] = if small == 1 {
                out[0] as u8 as i8 as i32 as u32
            } else {
                out[0] as u16 as i16 as i32 as u32
            };
        }
        for (index, word) in out.iter().enumerate().take(words) {
            w.write_s(target + index as u16, *word);
        }
        Ok(Flow::Next)
    }))
}
