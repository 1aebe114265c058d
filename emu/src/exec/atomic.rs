//! Atomic operations: names, arithmetic, and how they reach each memory.

use super::float::{f16_to_f32, f32_to_bf16, f32_to_f16, max32, max64, min32, min64};
use super::wave::{Env, Trap, Wave};
use crate::error::{Access, FaultKind, Space, Use};
use std::sync::atomic::Ordering::SeqCst;

/// What an atomic does with the old value and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rmw {
    Swap,
    CmpSwap,
    Add,
    Sub,
    RevSub,
    Smin,
    Umin,
    Smax,
    Umax,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    CondSub,
    SubClamp,
    MskOr,
    AddF32,
    MinF32,
    MaxF32,
    AddF64,
    MinF64,
    MaxF64,
    PkAddF16,
    PkAddBf16,
}

/// The operation and its width in bits, from the part of the mnemonic after `atomic_` or `ds_`.
pub(crate) fn parse(name: &str) -> Option<(Rmw, u32)> {
    use Rmw::*;
    let (base, wide) = match name.strip_suffix("_x2") {
        Some(base) => (base, true),
        None => (name, false),
    };
    Some(match base {
        "add_f32" => (AddF32, 32),
        "min_f32" | "min_num_f32" | "fmin" if !wide => (MinF32, 32),
        "max_f32" | "max_num_f32" | "fmax" if !wide => (MaxF32, 32),
        "add_f64" => (AddF64, 64),
        "min_f64" | "min_num_f64" | "fmin" => (MinF64, 64),
        "max_f64" | "max_num_f64" | "fmax" => (MaxF64, 64),
        "pk_add_f16" => (PkAddF16, 32),
        "pk_add_bf16" => (PkAddBf16, 32),
        _ => {
            let (stem, suffix) = base.rsplit_once('_').unwrap_or((base, ""));
            let (stem, bits, signed) = match suffix {
                "u32" | "b32" => (stem, 32, false),
                "i32" => (stem, 32, true),
                "u64" | "b64" => (stem, 64, false),
                "i64" => (stem, 64, true),
                _ => (base, if wide { 64 } else { 32 }, false),
            };
            let op = match stem {
                "swap" | "wrxchg" | "storexchg" => Swap,
                "cmpswap" | "cmpst" | "cmpstore" => CmpSwap,
                "add" => Add,
                "sub" => Sub,
                "rsub" => RevSub,
                "smin" => Smin,
                "umin" => Umin,
                "smax" => Smax,
                "umax" => Umax,
                "min" if signed => Smin,
                "min" => Umin,
                "max" if signed => Smax,
                "max" => Umax,
                "and" => And,
                "or" => Or,
                "xor" => Xor,
                "inc" => Inc,
                "dec" => Dec,
                "cond_sub" => CondSub,
                "sub_clamp" | "csub" => SubClamp,
                "mskor" => MskOr,
                _ => return None,
            };
            (op, bits)
        }
    })
}

/// The new value in 32 bits; `second` is the comparand of a compare-and-swap.
fn new32(op: Rmw, old: u32, data: u32, second: u32) -> u32 {
    use Rmw::*;
    let f = f32::from_bits;
    match op {
        Swap => data,
        CmpSwap => {
            if old == second {
                data
            } else {
                old
            }
        }
        Add => old.wrapping_add(data),
        Sub => old.wrapping_sub(data),
        RevSub => data.wrapping_sub(old),
        Smin => (old as i32).min(data as i32) as u32,
        Umin => old.min(data),
        Smax => (old as i32).max(data as i32) as u32,
        Umax => old.max(data),
        And => old & data,
        Or => old | data,
        Xor => old ^ data,
        Inc => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        Dec => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        CondSub => {
            if old >= data {
                old - data
            } else {
                old
            }
        }
        SubClamp => old.saturating_sub(data),
        MskOr => old & !data | second,
        AddF32 => (f(old) + f(data)).to_bits(),
        MinF32 => min32(f(old), f(data)).to_bits(),
        MaxF32 => max32(f(old), f(data)).to_bits(),
        PkAddF16 => {
            let sum = |shift: u32| f32_to_f16(f16_to_f32(old >> shift & 0xffff) + f16_to_f32(data >> shift & 0xffff));
            sum(0) | sum(16) << 16
        }
        PkAddBf16 => {
            let part = |bits: u32| f32::from_bits(bits << 16);
            f32_to_bf16(part(old) + part(data)) | f32_to_bf16(part(old >> 16) + part(data >> 16)) << 16
        }
        AddF64 | MinF64 | MaxF64 => old,
    }
}

fn new64(op: Rmw, old: u64, data: u64, second: u64) -> u64 {
    use Rmw::*;
    let f = f64::from_bits;
    match op {
        Swap => data,
        CmpSwap => {
            if old == second {
                data
            } else {
                old
            }
        }
        Add => old.wrapping_add(data),
        Sub => old.wrapping_sub(data),
        RevSub => data.wrapping_sub(old),
        Smin => (old as i64).min(data as i64) as u64,
        Umin => old.min(data),
        Smax => (old as i64).max(data as i64) as u64,
        Umax => old.max(data),
        And => old & data,
        Or => old | data,
        Xor => old ^ data,
        Inc => {
            if old >= data {
                0
            } else {
                old + 1
            }
        }
        Dec => {
            if old == 0 || old > data {
                data
            } else {
                old - 1
            }
        }
        SubClamp => old.saturating_sub(data),
        MskOr => old & !data | second,
        AddF64 => (f(old) + f(data)).to_bits(),
        MinF64 => min64(f(old), f(data)).to_bits(),
        MaxF64 => max64(f(old), f(data)).to_bits(),
        CondSub | AddF32 | MinF32 | MaxF32 | PkAddF16 | PkAddBf16 => old,
    }
}

/// One lane's atomic: returns the old value.
pub(crate) struct Request {
    pub op: Rmw,
    pub bits: u32,
    pub data: u64,
    pub second: u64,
}

impl Request {
    fn next(&self, old: u64) -> u64 {
        if self.bits == 32 {
            new32(self.op, old as u32, self.data as u32, self.second as u32).into()
        } else {
            new64(self.op, old, self.data, self.second)
        }
    }
}

impl Env<'_> {
    pub fn atomic(
        &mut self,
        w: &mut Wave,
        lane: usize,
        space: Space,
        address: u64,
        request: &Request,
    ) -> Result<u64, Box<Trap>> {
        let size = request.bits / 8;
        match space {
            Space::Global => {
                let region = self.region(&mut w.hint, lane, address, size, Access::Atomic)?;
                let offset = address - region.base();
                let misaligned = || {
                    Trap::at(
                        lane,
                        FaultKind::Misaligned {
                            space,
                            access: Access::Atomic,
                            address,
                            size,
                        },
                    )
                };
                if self.options.uninitialized && request.op != Rmw::Swap && !region.is_written(offset, size.into()) {
                    let kind = FaultKind::Uninitialized {
                        space,
                        address,
                        size,
                        used: Use::Atomic,
                        loaded_at: None,
                    };
                    return Err(Trap::at(lane, kind));
                }
                self.touch_ledger(w, lane, address, size, Access::Atomic)?;
                region.mark(offset, size.into());
                if request.bits == 32 {
                    let cell = region.atomic_u32(offset).ok_or_else(misaligned)?;
                    let old = cell.fetch_update(SeqCst, SeqCst, |old| Some(request.next(old.into()) as u32));
                    Ok(old.unwrap_or_else(|old| old).into())
                } else {
                    let cell = region.atomic_u64(offset).ok_or_else(misaligned)?;
                    let old = cell.fetch_update(SeqCst, SeqCst, |old| Some(request.next(old)));
                    Ok(old.unwrap_or_else(|old| old))
                }
            }
            Space::Lds => {
                let at = address as usize;
                if address.is_multiple_of(size.into()) {
                    let compares = request.op == Rmw::CmpSwap;
                    self.lds_check(w, lane, address as u32, size, Access::Atomic, compares)?;
                } else {
                    return Err(Trap::at(
                        lane,
                        FaultKind::Misaligned {
                            space,
                            access: Access::Atomic,
                            address,
                            size,
                        },
                    ));
                }
                let mut bytes = [0u8; 8];
                bytes[..size as usize].copy_from_slice(&self.lds[at..at + size as usize]);
                let old = u64::from_le_bytes(bytes);
                let new = request.next(old).to_le_bytes();
                self.lds[at..at + size as usize].copy_from_slice(&new[..size as usize]);
                Ok(old)
            }
            Space::Scratch => {
                let mut words = [0u32; 2];
                let count = size as usize / 4;
                let undefined = w.scratch_read(lane, address, 0, &mut words[..count], &mut [0; 2][..count])?;
                if undefined && request.op != Rmw::Swap {
                    let kind = FaultKind::Uninitialized {
                        space: Space::Scratch,
                        address,
                        size,
                        used: Use::Atomic,
                        loaded_at: None,
                    };
                    return Err(Trap::at(lane, kind));
                }
                let old = u64::from(words[0]) | u64::from(words[1]) << 32;
                let new = request.next(old);
                w.scratch_write(lane, address, 0, &[new as u32, (new >> 32) as u32][..count])?;
                w.scratch_stored(lane, address, size, &[0; 2], None);
                Ok(old)
            }
        }
    }
}
