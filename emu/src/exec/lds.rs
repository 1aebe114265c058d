//! LDS instructions: reads, writes, their two-address forms, atomics, and the lane permutations that use its path.

use super::atomic::{self, Request, Rmw};
use super::operand::{Build, In, Ty};
use super::simd::Lanes;
use super::span::{free_of_conflicts, lanes_of};
use super::undefined::Origin;
use super::wave::{Env, Exec, Flow, Wave};
use crate::arch::Generation;
use crate::decode::text::Kind;
use crate::error::{Space, Use};
use crate::timing::banks;

/// Builds an LDS instruction; None for another instruction.
pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let rest = name.strip_prefix("ds_")?;
    // gfx11 and later spell the same operations differently.
    let rest = [
        ("load_2addr_stride64_", "read2st64_"),
        ("store_2addr_stride64_", "write2st64_"),
        ("load_2addr_", "read2_"),
        ("store_2addr_", "write2_"),
        ("load_", "read_"),
        ("store_", "write_"),
    ]
    .into_iter()
    .find_map(|(new, old)| rest.strip_prefix(new).map(|tail| format!("{old}{tail}")))
    .unwrap_or_else(|| rest.to_string());
    Some(match rest.as_str() {
        "nop" => Ok(Box::new(|_, _| Ok(Flow::Next))),
        "bpermute_b32" => permute(b, true, false),
        "bpermute_fi_b32" => permute(b, true, true),
        "permute_b32" => permute(b, false, false),
        "swizzle_b32" => swizzle(b),
        "append" | "consume" => append(b, rest == "append"),
        _ => {
            if let Some(kind) = rest.strip_prefix("read2st64_") {
                pair(b, true, kind, 64)
            } else if let Some(kind) = rest.strip_prefix("read2_") {
                pair(b, true, kind, 1)
            } else if let Some(kind) = rest.strip_prefix("write2st64_") {
                pair(b, false, kind, 64)
            } else if let Some(kind) = rest.strip_prefix("write2_") {
                pair(b, false, kind, 1)
            } else if let Some(kind) = rest
                .strip_prefix("read_b64_tr_b")
                .or(rest.strip_prefix("read_b96_tr_b"))
            {
                transposing(b, kind)
            } else if let Some(kind) = rest.strip_prefix("read_") {
                single(b, true, kind)
            } else if let Some(kind) = rest.strip_prefix("write_") {
                single(b, false, kind)
            } else {
                read_modify_write(b, &rest)?
            }
        }
    })
}

fn vector(b: &Build<'_>, index: usize) -> Result<usize, String> {
    match b.operand(index)?.kind {
        Kind::Vector { first, .. } => Ok(first.into()),
        ref kind => Err(format!("operand {kind:?} is not a vector register")),
    }
}

/// Counts an access's cycles at the banks, and leaves them in the trace where there is one.
fn count_conflicts(env: &mut Env<'_>, addresses: &Lanes, mask: u64, bytes: u32, write: bool) {
    let cost = banks::cost(env.arch, addresses, mask, bytes, write);
    env.counters.lds_accesses += 1;
    env.counters.lds_bank_conflicts += u64::from(cost.conflicts);
    if let Some(trace) = &mut env.trace {
        trace.local(cost);
    }
}

/// Words, bytes of a narrow access, sign, and the half that a d16 form uses.
fn kind_of(kind: &str) -> Option<(usize, u32, bool, Option<bool>)> {
    Some(match kind {
        "b32" => (1, 0, false, None),
        "b64" => (2, 0, false, None),
        "b96" => (3, 0, false, None),
        "b128" => (4, 0, false, None),
        "u8" | "b8" => (1, 1, false, None),
        "i8" => (1, 1, true, None),
        "u16" | "b16" => (1, 2, false, None),
        "i16" => (1, 2, true, None),
        "u8_d16" => (1, 1, false, Some(false)),
        "u8_d16_hi" | "b8_d16_hi" => (1, 1, false, Some(true)),
        "i8_d16" => (1, 1, true, Some(false)),
        "i8_d16_hi" => (1, 1, true, Some(true)),
        "u16_d16" => (1, 2, false, Some(false)),
        "u16_d16_hi" | "b16_d16_hi" => (1, 2, false, Some(true)),
        _ => return None,
    })
}

/// The 16-bit offset, from the instruction's bytes.
fn offset(b: &Build<'_>) -> u32 {
    u16::from_le_bytes([b.raw[0], b.raw[1]]).into()
}

fn single(b: &Build<'_>, read: bool, kind: &str) -> Result<Exec, String> {
    let (words, small, signed, half) = kind_of(kind).ok_or_else(|| format!("LDS access of {kind}"))?;
    let data_at = if read { 0 } else { 1 };
    let data = vector(b, data_at)?;
    let half = half.or(b.operand(data_at)?.half);
    let address = vector(b, if read { 1 } else { 0 })?;
    let offset = offset(b);
    let bytes = if small != 0 { small } else { words as u32 * 4 };
    let clears = b.arch.d16_loads_clear;
    let instruction = b.address;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        w.check_vectors(address as u16, 1, u32::MAX, mask, Use::Address)?;
        let addresses: Lanes = std::array::from_fn(|lane| w.v[address][lane].wrapping_add(offset));
        count(env, w, &addresses, mask, bytes, !read);
        if !read {
            env.note_stores(w, &addresses, mask, bytes, false);
        }
        let whole = small == 0
            && if read {
                env.lds_load(w, data, words, &addresses, mask)
            } else {
                env.lds_store(w, data, words, &addresses, mask)
            };
        if whole {
            return Ok(Flow::Next);
        }
        for lane in lanes_of(mask) {
            let (mut buffer, mut bits) = ([0u32; 4], [0u32; 4]);
            if read {
                let any = env.lds_read(w, lane, addresses[lane], small, &mut buffer[..words], &mut bits)?;
                if small != 0 {
                    let (old, marked) = if clears {
                        (0, 0)
                    } else {
                        (w.v[data][lane], w.undefined_bits(data as u16, lane))
                    };
                    if signed && bits[0] != 0 {
                        bits[0] = u32::MAX;
                    }
                    buffer[0] = narrow(buffer[0], small, signed, half, old);
                    bits[0] = narrow(bits[0], 0, false, half, marked);
                }
                for (index, word) in buffer.iter().enumerate().take(words) {
                    w.v[data + index][lane] = *word;
                }
                loaded(w, any, data, lane, &bits[..words], addresses[lane], instruction);
            } else {
                let shift = if half == Some(true) { 16 } else { 0 };
                for index in 0..words {
                    buffer[index] = w.v[data + index][lane] >> shift;
                    bits[index] = w.undefined_bits((data + index) as u16, lane) >> shift;
                }
                env.lds_write(w, lane, addresses[lane], small, &buffer[..words])?;
                env.lds_undefined(addresses[lane], bytes, &bits);
            }
        }
        Ok(Flow::Next)
    }))
}

/// Marks what a lane loaded of LDS that nothing wrote.
fn loaded(w: &mut Wave, any: bool, target: usize, lane: usize, bits: &[u32], address: u32, at: u64) {
    if any || w.undefined.is_some() {
        let origin = Origin {
            space: Space::Lds,
            address: address.into(),
            size: 4 * bits.len() as u32,
            at,
        };
        w.loaded(target as u16, lane, bits, origin);
    }
}

/// Counts an access and its bank conflicts.
#[inline]
fn count(env: &mut Env<'_>, w: &Wave, addresses: &Lanes, mask: u64, bytes: u32, write: bool) {
    if env.trace.is_none() && free_of_conflicts(addresses, mask, w, bytes) {
        env.counters.lds_accesses += 1;
    } else {
        count_conflicts(env, addresses, mask, bytes, write);
    }
}

/// gfx950's transposing reads. (For 16 and 8 bits as kernels tuned on the hardware use them; 6 and 4 bits continue the
/// rule.) Sixteen lanes read rows of sixteen elements, each lane a piece of one (16 and 8 bits) or
/// a whole one (6 and 4 bits), in the order of the lanes; then each lane has a column of them.
fn transposing(b: &Build<'_>, width: &str) -> Result<Exec, String> {
    let width = match width {
        "16" => 16,
        "8" => 8,
        "6" => 6,
        "4" => 4,
        _ => return Err(format!("transposing read of {width} bits")),
    };
    let words = if width == 6 { 3 } else { 2 };
    let elements = 32 * words / width;
    let (data, address) = (vector(b, 0)?, vector(b, 1)?);
    let offset = offset(b);
    let instruction = b.address;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        w.check_vectors(address as u16, 1, u32::MAX, mask, Use::Address)?;
        let addresses: Lanes = std::array::from_fn(|lane| w.v[address][lane].wrapping_add(offset));
        count(env, w, &addresses, mask, words as u32 * 4, false);
        let (mut rows, mut marked) = ([[0u32; 3]; 64], [[0u32; 3]; 64]);
        let mut any = false;
        for lane in lanes_of(mask) {
            let row = &mut rows[lane][..words];
            any |= env.lds_read(w, lane, addresses[lane], 0, row, &mut marked[lane])?;
        }
        for lane in lanes_of(mask) {
            let (mut column, mut bits) = ([0u32; 3], [0u32; 3]);
            for element in 0..elements {
                let place = 16 * element + lane % 16;
                let source = lane / 16 * 16 + place / elements;
                for bit in 0..width {
                    let (from, to) = (place % elements * width + bit, element * width + bit);
                    column[to / 32] |= (rows[source][from / 32] >> (from % 32) & 1) << (to % 32);
                    bits[to / 32] |= (marked[source][from / 32] >> (from % 32) & 1) << (to % 32);
                }
            }
            for (index, word) in column.iter().enumerate().take(words) {
                w.v[data + index][lane] = *word;
            }
            loaded(w, any, data, lane, &bits[..words], addresses[lane], instruction);
        }
        Ok(Flow::Next)
    }))
}

fn narrow(value: u32, small: u32, signed: bool, half: Option<bool>, old: u32) -> u32 {
    let value = match (small, signed) {
        (1, true) => value as u8 as i8 as i32 as u32,
        (2, true) => value as u16 as i16 as i32 as u32,
        _ => value,
    };
    match half {
        None => value,
        Some(false) => old & 0xffff_0000 | value & 0xffff,
        Some(true) => old & 0xffff | value << 16,
    }
}

/// Two accesses at two offsets, counted in elements.
fn pair(b: &Build<'_>, read: bool, kind: &str, stride: u32) -> Result<Exec, String> {
    let words = match kind {
        "b32" => 1usize,
        "b64" => 2,
        _ => return Err(format!("two-address LDS access of {kind}")),
    };
    let unit = words as u32 * 4 * stride;
    let offsets = [u32::from(b.raw[0]) * unit, u32::from(b.raw[1]) * unit];
    let (address, data) = if read {
        let first = vector(b, 0)?;
        (vector(b, 1)?, [first, first + words])
    } else {
        (vector(b, 0)?, [vector(b, 1)?, vector(b, 2)?])
    };
    let instruction = b.address;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        w.check_vectors(address as u16, 1, u32::MAX, mask, Use::Address)?;
        let base = w.v[address];
        let bytes = words as u32 * 4;
        for (offset, first) in offsets.into_iter().zip(data) {
            let addresses: Lanes = std::array::from_fn(|lane| base[lane].wrapping_add(offset));
            count(env, w, &addresses, mask, bytes, !read);
            if read {
                if env.lds_load(w, first, words, &addresses, mask) {
                    continue;
                }
                for lane in lanes_of(mask) {
                    let (mut buffer, mut bits) = ([0u32; 2], [0u32; 2]);
                    let any = env.lds_read(w, lane, addresses[lane], 0, &mut buffer[..words], &mut bits)?;
                    for (index, word) in buffer.iter().enumerate().take(words) {
                        w.v[first + index][lane] = *word;
                    }
                    loaded(w, any, first, lane, &bits[..words], addresses[lane], instruction);
                }
                continue;
            }
            env.note_stores(w, &addresses, mask, bytes, false);
            if env.lds_store(w, first, words, &addresses, mask) {
                continue;
            }
            for lane in lanes_of(mask) {
                let (mut buffer, mut bits) = ([0u32; 2], [0u32; 2]);
                for index in 0..words {
                    buffer[index] = w.v[first + index][lane];
                    bits[index] = w.undefined_bits((first + index) as u16, lane);
                }
                env.lds_write(w, lane, addresses[lane], 0, &buffer[..words])?;
                env.lds_undefined(addresses[lane], bytes, &bits);
            }
        }
        Ok(Flow::Next)
    }))
}

fn read_modify_write(b: &Build<'_>, rest: &str) -> Option<Result<Exec, String>> {
    let returns = rest.contains("_rtn");
    let base = rest.replace("_rtn", "");
    let (op, bits) = atomic::parse(&base)?;
    Some(build_rmw(b, op, bits, returns, base.starts_with("cmpst_")))
}

fn build_rmw(b: &Build<'_>, op: Rmw, bits: u32, returns: bool, compare_first: bool) -> Result<Exec, String> {
    let base = usize::from(returns);
    let target = if returns { Some(vector(b, 0)?) } else { None };
    let address = vector(b, base)?;
    let data = vector(b, base + 1)?;
    let second = if matches!(op, Rmw::CmpSwap | Rmw::MskOr) {
        Some(vector(b, base + 2)?)
    } else {
        None
    };
    // The older form gives the comparand first, the newer the new value.
    let (data, second) = match (second, compare_first) {
        (Some(second), true) => (second, Some(data)),
        (second, _) => (data, second),
    };
    let offset = offset(b);
    let words = bits as usize / 32;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        w.check_vectors(address as u16, 1, u32::MAX, mask, Use::Address)?;
        for first in [Some(data), second].into_iter().flatten() {
            w.check_vectors(first as u16, words as u16, u32::MAX, mask, Use::Value)?;
        }
        let addresses: Lanes = std::array::from_fn(|lane| w.v[address][lane].wrapping_add(offset));
        count(env, w, &addresses, mask, bits / 8, true);
        env.note_stores(w, &addresses, mask, bits / 8, true);
        for lane in lanes_of(mask) {
            let read = |w: &Wave, first: usize| {
                let low = u64::from(w.v[first][lane]);
                if words == 2 {
                    low | u64::from(w.v[first + 1][lane]) << 32
                } else {
                    low
                }
            };
            let request = Request {
                op,
                bits,
                data: read(w, data),
                second: second.map_or(0, |second| read(w, second)),
            };
            let old = env.atomic(w, lane, Space::Lds, addresses[lane].into(), &request)?;
            if let Some(target) = target {
                w.v[target][lane] = old as u32;
                if words == 2 {
                    w.v[target + 1][lane] = (old >> 32) as u32;
                }
                w.defined(target as u16, words as u16, lane);
            }
        }
        Ok(Flow::Next)
    }))
}

fn permute(b: &Build<'_>, backward: bool, inactive: bool) -> Result<Exec, String> {
    let (target, address) = (vector(b, 0)?, vector(b, 1)?);
    let data: In = b.input(b.operand(2)?, 9, Ty::B32)?;
    let offset = offset(b);
    // gfx10 and gfx11 reach only the lane's own half of a wave of 64.
    let by_half = matches!(b.arch.generation, Generation::Gfx10 | Generation::Gfx11);
    Ok(Box::new(move |w, _| {
        let exec = w.exec();
        let mut mask = exec;
        let mut buffer = [0; 64];
        let data = *data.fetch(w, &mut buffer, &mut mask);
        let group = if by_half { 32 } else { w.lanes };
        let other = |lane: usize| {
            let index = (w.v[address][lane].wrapping_add(offset) / 4) as usize % group;
            lane / group * group + index
        };
        let mut result: Lanes = [0; 64];
        for lane in 0..w.lanes {
            if backward {
                let from = other(lane);
                result[lane] = if inactive || exec >> from & 1 == 1 {
                    data[from]
                } else {
                    0
                };
            } else if exec >> lane & 1 == 1 {
                result[other(lane)] = data[lane];
            }
        }
        super::operand::Out::full(target as u16).store(w, &result, exec);
        Ok(Flow::Next)
    }))
}

fn swizzle(b: &Build<'_>) -> Result<Exec, String> {
    let (target, source) = (vector(b, 0)?, vector(b, 1)?);
    let pattern = offset(b);
    let from = move |lane: usize| -> usize {
        if pattern >> 14 == 3 {
            // Rotation within a group of 32.
            let mask = (pattern & 31) as usize;
            let amount = (pattern >> 5 & 31) as usize;
            let moved = if pattern >> 10 & 1 == 1 {
                lane + 32 - amount
            } else {
                lane + amount
            } & 31;
            lane & !31 | (lane & mask | moved & !mask) & 31
        } else if pattern >> 15 == 1 {
            lane & !3 | (pattern >> (2 * (lane & 3)) & 3) as usize
        } else {
            let (and, or, xor) = (pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31);
            lane & !31 | (((lane as u32 & 31) & and | or) ^ xor) as usize
        }
    };
    Ok(Box::new(move |w, _| {
        let exec = w.exec();
        let values = w.v[source];
        let result: Lanes = std::array::from_fn(|lane| {
            let other = from(lane) % 64;
            if exec >> other & 1 == 1 { values[other] } else { 0 }
        });
        super::operand::Out::full(target as u16).store(w, &result, exec);
        Ok(Flow::Next)
    }))
}

/// Adds (or subtracts) the number of lanes that are on to a counter; all get the old value.
fn append(b: &Build<'_>, add: bool) -> Result<Exec, String> {
    let target = vector(b, 0)?;
    let offset = offset(b);
    Ok(Box::new(move |w, env| {
        let exec = w.exec();
        if exec == 0 {
            return Ok(Flow::Next);
        }
        w.check_scalars(crate::decode::text::M0, 1, Use::Address)?;
        let lane = exec.trailing_zeros() as usize;
        let address = (w.s[crate::decode::text::M0 as usize] & 0xffff) + offset;
        env.note_stores(w, &[address; 64], 1 << lane, 4, true);
        let op = if add { Rmw::Add } else { Rmw::Sub };
        let request = Request {
            op,
            bits: 32,
            data: exec.count_ones().into(),
            second: 0,
        };
        let old = env.atomic(w, lane, Space::Lds, address.into(), &request)?;
        super::operand::Out::full(target as u16).store(w, &[old as u32; 64], exec);
        lanes_of(exec).for_each(|lane| w.defined(target as u16, 1, lane));
        Ok(Flow::Next)
    }))
}
