//! Vector memory: global, flat, scratch and buffer loads, stores and atomics.

use super::access::{SCRATCH_WINDOW, SCRATCH_WINDOW_SIZE, resolve_flat};
use super::atomic::{self, Request, Rmw};
use super::operand::{Build, Src, Ty};
use super::simd::{Lanes, Lanes64};
use super::span::{lanes_of, piece_list, pieces};
use super::undefined::Origin;
use super::wave::{Env, Exec, Flow, Trap, Wave};
use crate::decode::text::{Kind, M0};
use crate::error::{Space, Use};
use crate::timing::trace::Recorder;

/// Which addressing an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Global,
    Flat,
    Scratch,
    Buffer,
}

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Data {
    words: usize,
    /// Bytes of a narrow access, 0 for whole words.
    small: u32,
    signed: bool,
    /// The half of the register that a 16-bit access uses; the other half is kept, or cleared where `clears`.
    half: Option<bool>,
    clears: bool,
}

fn data_of(suffix: &str) -> Option<Data> {
    let words = |words| Data {
        words,
        small: 0,
        signed: false,
        half: None,
        clears: false,
    };
    let small = |small, signed, half| Data {
        words: 1,
        small,
        signed,
        half,
        clears: false,
    };
    Some(match suffix {
        "dword" | "b32" => words(1),
        "dwordx2" | "b64" => words(2),
        "dwordx3" | "b96" => words(3),
        "dwordx4" | "b128" => words(4),
        "ubyte" | "u8" | "byte" | "b8" => small(1, false, None),
        "sbyte" | "i8" => small(1, true, None),
        "ushort" | "u16" | "short" | "b16" => small(2, false, None),
        "sshort" | "i16" => small(2, true, None),
        "ubyte_d16" | "d16_u8" => small(1, false, Some(false)),
        "ubyte_d16_hi" | "d16_hi_u8" | "byte_d16_hi" | "d16_hi_b8" => small(1, false, Some(true)),
        "sbyte_d16" | "d16_i8" => small(1, true, Some(false)),
        "sbyte_d16_hi" | "d16_hi_i8" => small(1, true, Some(true)),
        "short_d16" | "d16_b16" => small(2, false, Some(false)),
        "short_d16_hi" | "d16_hi_b16" => small(2, false, Some(true)),
        _ => return None,
    })
}

/// How the lanes' addresses are made.
#[derive(Clone)]
struct Address {
    form: Form,
    /// The vector part, None for `off`.
    vector: Option<u16>,
    /// Whether the vector part is 64 bits wide.
    wide: bool,
    /// The scalar part, None for `off`.
    scalar: Option<Src>,
    offset: i64,
    /// Buffers: the descriptor, and what the vector part holds.
    resource: u16,
    offen: bool,
    idxen: bool,
}

/// A lane's address: the memory, the place, and how many bytes from there a buffer's bounds let through.
type Place = Option<(Space, u64, u32)>;

impl Address {
    fn place(&self, w: &Wave, lane: usize, size: u32) -> Result<Place, Box<Trap>> {
        let scalar = self.scalar.and_then(|src| src.uniform(w)).unwrap_or(0);
        match self.form {
            Form::Buffer => return self.buffer(w, lane, size, scalar),
            Form::Scratch => {
                let vector = self.vector.map_or(0, |v| w.v[v as usize][lane]);
                let offset = vector.wrapping_add(scalar).wrapping_add(self.offset as u32);
                return Ok(Some((Space::Scratch, offset.into(), u32::MAX)));
            }
            Form::Global | Form::Flat => {}
        }
        let vector = match self.vector {
            None => 0,
            Some(v) if self.wide => u64::from(w.v[v as usize][lane]) | u64::from(w.v[v as usize + 1][lane]) << 32,
            Some(v) => u64::from(w.v[v as usize][lane]),
        };
        let base = match self.scalar {
            Some(Src::S(first)) => w.read_s64(first),
            _ => 0,
        };
        let address = vector.wrapping_add(base).wrapping_add_signed(self.offset);
        let (space, address) = if self.form == Form::Flat {
            resolve_flat(address)
        } else {
            (Space::Global, address)
        };
        Ok(Some((space, address, u32::MAX)))
    }

    /// Checks that nothing undefined decides where the lanes of `mask` go.
    #[inline]
    fn check(&self, w: &Wave, mask: u64) -> Result<(), Box<Trap>> {
        if w.undefined.is_none() {
            return Ok(());
        }
        if let Some(first) = self.vector {
            let count = match self.form {
                Form::Buffer => u16::from(self.idxen) + u16::from(self.offen),
                _ => 1 + u16::from(self.wide),
            };
            w.check_vectors(first, count, u32::MAX, mask, Use::Address)?;
        }
        if let Some(Src::S(first)) = self.scalar {
            let count = if matches!(self.form, Form::Global | Form::Flat) {
                2
            } else {
                1
            };
            w.check_scalars(first, count, Use::Address)?;
        }
        if self.form == Form::Buffer {
            w.check_scalars(self.resource, 4, Use::Address)?;
        }
        Ok(())
    }

    /// The addresses of all lanes, where those of `mask` are in global memory and a buffer's bounds let them through.
    #[inline]
    fn global(&self, w: &Wave, mask: u64, size: u32) -> Option<Lanes64> {
        let vector = self.vector.map_or(&[0; 64], |first| &w.v[first as usize]);
        match self.form {
            Form::Scratch => None,
            Form::Global | Form::Flat => {
                let base = match self.scalar {
                    Some(Src::S(first)) => w.read_s64(first),
                    _ => 0,
                }
                .wrapping_add_signed(self.offset);
                let mut out = [0; 64];
                if let (Some(first), true) = (self.vector, self.wide) {
                    for ((slot, low), high) in out.iter_mut().zip(vector).zip(&w.v[first as usize + 1]) {
                        *slot = (u64::from(*low) | u64::from(*high) << 32).wrapping_add(base);
                    }
                } else {
                    for (slot, low) in out.iter_mut().zip(vector) {
                        *slot = u64::from(*low).wrapping_add(base);
                    }
                }
                Some(out)
            }
            Form::Buffer => {
                let word = |index: u16| w.s[(self.resource + index) as usize];
                let base = u64::from(word(0)) | u64::from(word(1) & 0xffff) << 32;
                let (swizzle, records, add_tid) = (word(1) >> 31 == 1, word(2), word(3) >> 23 & 1 == 1);
                let scratch = (SCRATCH_WINDOW..SCRATCH_WINDOW + SCRATCH_WINDOW_SIZE).contains(&base);
                if self.idxen || add_tid || swizzle || scratch {
                    return None;
                }
                let scalar = u64::from(self.scalar.and_then(|src| src.uniform(w)).unwrap_or(0));
                let mut out = [0; 64];
                let mut inside = true;
                for (lane, slot) in out.iter_mut().enumerate() {
                    let vector = if self.offen { vector[lane] } else { 0 };
                    let offset = u64::from(vector.wrapping_add(self.offset as u32)) + scalar;
                    inside &= offset + u64::from(size) <= records.into() || mask >> lane & 1 == 0;
                    *slot = base + offset;
                }
                inside.then_some(out)
            }
        }
    }

    /// The buffer rules: base, stride, swizzle and range check of the descriptor.
    fn buffer(&self, w: &Wave, lane: usize, size: u32, soffset: u32) -> Result<Place, Box<Trap>> {
        let word = |index: u16| w.s[(self.resource + index) as usize];
        let base = u64::from(word(0)) | u64::from(word(1) & 0xffff) << 32;
        let stride = word(1) >> 16 & 0x3fff;
        let swizzle = word(1) >> 31 == 1;
        let records = word(2);
        let flags = word(3);
        let add_tid = flags >> 23 & 1 == 1;
        let mut vector = self.vector.into_iter().flat_map(|v| [v, v + 1]);
        let mut next = |wanted: bool| -> u32 {
            if wanted {
                vector.next().map_or(0, |v| w.v[v as usize][lane])
            } else {
                0
            }
        };
        let index = next(self.idxen);
        let offset = next(self.offen).wrapping_add(self.offset as u32);
        if (SCRATCH_WINDOW..SCRATCH_WINDOW + SCRATCH_WINDOW_SIZE).contains(&base) {
            // The scalar offset counts the bytes of the whole wave, the vector offset those of a lane.
            let start = (base - SCRATCH_WINDOW) + u64::from(soffset);
            let lanes = w.lanes as u64;
            return Ok(Some((Space::Scratch, start / lanes + u64::from(offset), u32::MAX)));
        }
        if swizzle || add_tid && index == 0 && self.idxen {
            return Err(Trap::at(
                lane,
                crate::error::FaultKind::NotModelled("swizzled buffers other than scratch are not modelled".into()),
            ));
        }
        let index = if add_tid {
            index.wrapping_add(lane as u32)
        } else {
            index
        };
        let structured = stride != 0 && (self.idxen || add_tid);
        let address = base + u64::from(soffset) + u64::from(index) * u64::from(stride) + u64::from(offset);
        let allowed = if structured {
            if index < records && offset < stride { size } else { 0 }
        } else {
            // Raw buffers count bytes, and each dword is checked by itself.
            let left = u64::from(records).saturating_sub(u64::from(offset) + u64::from(soffset));
            if size >= 4 {
                (left.min(size.into()) as u32) & !3
            } else {
                u32::from(left >= u64::from(size)) * size
            }
        };
        Ok((allowed > 0).then_some((Space::Global, address, allowed)))
    }
}

/// Builds a vector memory instruction; None for another instruction.
pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    let (form, rest) = [
        ("global_", Form::Global),
        ("flat_", Form::Flat),
        ("scratch_", Form::Scratch),
        ("buffer_", Form::Buffer),
    ]
    .into_iter()
    .find_map(|(prefix, form)| name.strip_prefix(prefix).map(|rest| (form, rest)))?;
    if let Some(rest) = rest.strip_prefix("load_lds_") {
        return Some(
            data_of(rest)
                .ok_or_else(|| format!("load of {rest}"))
                .and_then(|data| load_lds(b, form, data, 0)),
        );
    }
    if let Some(rest) = rest.strip_prefix("load_") {
        let data = data_of(rest)?;
        if b.text.flag("lds") {
            return Some(load_lds(b, form, data, 0));
        }
        return Some(load(b, form, data));
    }
    if let Some(rest) = rest.strip_prefix("store_") {
        return Some(store(b, form, data_of(rest)?));
    }
    if let Some(rest) = rest.strip_prefix("atomic_") {
        let (op, bits) = atomic::parse(rest)?;
        return Some(read_modify_write(b, form, op, bits));
    }
    None
}

/// Whether an atomic's old value is wanted.
pub(crate) fn returns(b: &Build<'_>) -> bool {
    let text = b.text;
    let by_hint = text.value("th").is_some_and(|hint| hint.contains("RETURN"));
    // On gfx942 sc0 asks for the value; gfx12's stores and loads never carry either flag on atomics.
    text.flag("glc") || text.flag("sc0") || by_hint
}

fn vector(b: &Build<'_>, index: usize) -> Result<Option<u16>, String> {
    match b.operand(index)?.kind {
        Kind::Vector { first, .. } => Ok(Some(first)),
        Kind::Off => Ok(None),
        ref kind => Err(format!("operand {kind:?} is not a vector register")),
    }
}

fn address(b: &Build<'_>, form: Form, at: usize, scalar_at: usize) -> Result<Address, String> {
    let vector_operand = b.operand(at)?;
    let wide = matches!(vector_operand.kind, Kind::Vector { count: 2.., .. });
    let mut out = Address {
        form,
        vector: vector(b, at)?,
        wide,
        scalar: None,
        offset: b.text.number("offset"),
        resource: 0,
        offen: b.text.flag("offen"),
        idxen: b.text.flag("idxen"),
    };
    if form == Form::Buffer {
        out.resource = b.mask_out(at + 1)?;
        out.scalar = Some(b.plain(b.operand(at + 2)?, Ty::B32)?);
        return Ok(out);
    }
    match b.text.operands.get(scalar_at).map(|operand| &operand.kind) {
        None | Some(Kind::Off) => {}
        Some(Kind::Scalar { first, .. }) => out.scalar = Some(Src::S(*first)),
        Some(kind) => return Err(format!("scalar address {kind:?}")),
    }
    Ok(out)
}

fn count_transactions(env: &mut Env<'_>, addresses: &Lanes64, mask: u64, size: u32, store: bool) {
    env.counters.global_transactions += pieces(addresses, mask, size);
    let bytes = u64::from(mask.count_ones()) * u64::from(size);
    if store {
        env.counters.global_store_bytes += bytes;
    } else {
        env.counters.global_load_bytes += bytes;
    }
}

/// The same of lanes of which some may lie elsewhere than in global memory.
fn count_places(env: &mut Env<'_>, places: &[Place; 64], size: u32, store: bool) {
    let (mut addresses, mut mask) = ([0; 64], 0);
    for (lane, place) in places.iter().enumerate() {
        if let Some((Space::Global, address, _)) = place {
            addresses[lane] = *address;
            mask |= 1 << lane;
        }
    }
    count_transactions(env, &addresses, mask, size, store);
    if let Some(trace) = &mut env.trace {
        record(trace, places, &addresses, mask, size);
    }
}

/// Leaves an access in the trace.
#[cold]
fn record(trace: &mut Recorder, places: &[Place; 64], addresses: &Lanes64, mask: u64, size: u32) {
    let mut scratch = places.iter().flatten().filter(|place| place.0 == Space::Scratch);
    if let Some((_, offset, _)) = scratch.next() {
        trace.scratch(*offset, 1 + scratch.count() as u32, size);
        return;
    }
    let on = std::array::from_fn(|lane| (mask >> lane & 1 == 1).then_some(addresses[lane]));
    trace.vector(&on, &piece_list(addresses, mask, size), size);
}

fn places(address: &Address, w: &Wave, mask: u64, size: u32) -> Result<[Place; 64], Box<Trap>> {
    address.check(w, mask)?;
    let mut places = [None; 64];
    for (lane, place) in places.iter_mut().enumerate().take(w.lanes) {
        if mask >> lane & 1 == 1 {
            *place = address.place(w, lane, size)?;
        }
    }
    Ok(places)
}

fn load(b: &Build<'_>, form: Form, data: Data) -> Result<Exec, String> {
    let target = vector(b, 0)?.ok_or("a load without a destination")?;
    let mut data = data;
    if let (Some(half), None) = (b.operand(0)?.half, data.half) {
        data.half = Some(half);
    }
    data.clears = b.arch.d16_loads_clear;
    let address = address(b, form, 1, 2)?;
    let size = if data.small != 0 {
        data.small
    } else {
        data.words as u32 * 4
    };
    let instruction = b.address;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        if let Some(addresses) = address.global(w, mask, size)
            && let Some(span) = env.span(w, &addresses, mask, size)
            && (!env.options.uninitialized || span.written(mask))
        {
            count_transactions(env, &addresses, mask, size, false);
            if data.small == 0 {
                span.load(w, target, mask);
            } else {
                for lane in lanes_of(mask) {
                    put(
                        w,
                        target,
                        lane,
                        data,
                        &mut [span.load_small(lane), 0, 0, 0],
                        &mut [0; 4],
                    );
                }
            }
            return Ok(Flow::Next);
        }
        let places = places(&address, w, mask, size)?;
        count_places(env, &places, size, false);
        for lane in lanes_of(mask) {
            let (mut words, mut bits) = ([0u32; 4], [0u32; 4]);
            let (mut any, mut origin) = (false, None);
            if let Some((space, at, allowed)) = places[lane] {
                let out = &mut words[..data.words];
                any = match space {
                    Space::Global => {
                        let count = data.words.min(allowed.div_ceil(4) as usize);
                        env.global_read(w, lane, at, data.small, &mut out[..count], &mut bits)?
                    }
                    Space::Lds => env.lds_read(w, lane, at as u32, data.small, out, &mut bits)?,
                    Space::Scratch => w.scratch_read(lane, at, data.small, out, &mut bits[..data.words])?,
                };
                origin = Some((space, at));
            }
            put(w, target, lane, data, &mut words, &mut bits);
            if any || w.undefined.is_some() {
                let (space, address) = origin.unwrap_or((Space::Global, 0));
                let origin = Origin {
                    space,
                    address,
                    size,
                    at: instruction,
                };
                w.loaded(target, lane, &bits[..data.words], origin);
            }
        }
        Ok(Flow::Next)
    }))
}

/// Puts loaded words into a lane's registers; `bits`, those of them that are undefined, become those of the registers.
fn put(w: &mut Wave, target: u16, lane: usize, data: Data, words: &mut [u32; 4], bits: &mut [u32; 4]) {
    if data.small != 0 {
        words[0] = match (data.small, data.signed) {
            (1, true) => words[0] as u8 as i8 as i32 as u32,
            (2, true) => words[0] as u16 as i16 as i32 as u32,
            _ => words[0],
        };
        if data.signed && bits[0] != 0 {
            bits[0] = u32::MAX;
        }
        let (old, marked) = if data.clears {
            (0, 0)
        } else {
            (w.v[target as usize][lane], w.undefined_bits(target, lane))
        };
        let merge = |value: u32, old: u32| match data.half {
            None => value,
            Some(false) => old & 0xffff_0000 | value & 0xffff,
            Some(true) => old & 0xffff | value << 16,
        };
        (words[0], bits[0]) = (merge(words[0], old), merge(bits[0], marked));
    }
    for (index, word) in words.iter().enumerate().take(data.words) {
        w.v[target as usize + index][lane] = *word;
    }
}

fn store(b: &Build<'_>, form: Form, data: Data) -> Result<Exec, String> {
    let (data_at, address_at) = if form == Form::Buffer { (0, 1) } else { (1, 0) };
    let source = vector(b, data_at)?.ok_or("a store without data")?;
    let shift = if data.half == Some(true) || b.operand(data_at)?.half == Some(true) {
        16
    } else {
        0
    };
    let address = address(b, form, address_at, 2)?;
    let size = if data.small != 0 {
        data.small
    } else {
        data.words as u32 * 4
    };
    // The bits of a register that are stored.
    let care = match data.small {
        1 => 0xff << shift,
        2 => 0xffff << shift,
        _ => u32::MAX,
    };
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        if let Some(addresses) = address.global(w, mask, size)
            && let Some(span) = env.span(w, &addresses, mask, size)
        {
            count_transactions(env, &addresses, mask, size, true);
            span.store(w, source, shift, mask);
            return Ok(Flow::Next);
        }
        let places = places(&address, w, mask, size)?;
        count_places(env, &places, size, true);
        for lane in lanes_of(mask) {
            let Some((space, at, allowed)) = places[lane] else {
                continue;
            };
            let mut words = [0u32; 4];
            let mut bits = [0u32; 4];
            for index in 0..data.words {
                words[index] = w.v[source as usize + index][lane] >> shift;
                bits[index] = w.undefined_bits(source + index as u16, lane) >> shift;
            }
            let words = &words[..data.words];
            match space {
                Space::Global => {
                    let count = data.words.min(allowed.div_ceil(4) as usize);
                    w.check_vectors(source, count as u16, care, 1 << lane, Use::Value)?;
                    env.global_write(w, lane, at, data.small, &words[..count])?;
                }
                Space::Lds => {
                    env.lds_write(w, lane, at as u32, data.small, words)?;
                    env.lds_undefined(at as u32, size, &bits);
                }
                Space::Scratch => {
                    w.scratch_write(lane, at, data.small, words)?;
                    let origin = (source..source + data.words as u16).find_map(|register| w.origin(register));
                    w.scratch_stored(lane, at, size, &bits, origin);
                }
            }
        }
        Ok(Flow::Next)
    }))
}

/// Loads straight into LDS: lane `i` writes at M0's base plus the instruction's offset plus `i` elements.
fn load_lds(b: &Build<'_>, form: Form, data: Data, at: usize) -> Result<Exec, String> {
    let address = address(b, form, at, at + 1)?;
    let size = if data.small != 0 {
        data.small
    } else {
        data.words as u32 * 4
    };
    let offset = b.text.number("offset") as u32;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        w.check_scalars(M0, 1, Use::Address)?;
        let places = places(&address, w, mask, size)?;
        count_places(env, &places, size, false);
        let base = (w.s[M0 as usize] & 0x3_ffff).wrapping_add(offset);
        // Narrow elements take a whole word each.
        let step = size.max(4);
        let targets: Lanes = std::array::from_fn(|lane| base.wrapping_add(lane as u32 * step));
        for lane in lanes_of(mask) {
            let (mut words, mut bits) = ([0u32; 4], [0u32; 4]);
            match places[lane] {
                None => {}
                Some((Space::Global, at, allowed)) => {
                    let count = data.words.min(allowed.div_ceil(4) as usize);
                    env.global_read(w, lane, at, data.small, &mut words[..count], &mut bits)?;
                }
                Some(_) => return Err(Trap::not_modelled("a load to LDS from scratch or LDS")),
            }
            env.lds_write(w, lane, targets[lane], 0, &words[..data.words])?;
            env.lds_undefined(targets[lane], step, &bits);
        }
        env.note_load(w, &targets, mask, step);
        Ok(Flow::Next)
    }))
}

fn read_modify_write(b: &Build<'_>, form: Form, op: Rmw, bits: u32) -> Result<Exec, String> {
    let returns = returns(b);
    let (target, data_at, address) = if form == Form::Buffer {
        // The data register is also the destination.
        (if returns { vector(b, 0)? } else { None }, 0, address(b, form, 1, 2)?)
    } else if returns {
        (vector(b, 0)?, 2, address(b, form, 1, 3)?)
    } else {
        (None, 1, address(b, form, 0, 2)?)
    };
    let source = vector(b, data_at)?.ok_or("an atomic without data")?;
    let words = bits as usize / 32;
    Ok(Box::new(move |w, env| {
        let mask = w.exec();
        let places = places(&address, w, mask, bits / 8)?;
        count_places(env, &places, bits / 8, true);
        let registers = if op == Rmw::CmpSwap { 2 * words } else { words };
        w.check_vectors(source, registers as u16, u32::MAX, mask, Use::Value)?;
        for lane in 0..w.lanes {
            if mask >> lane & 1 == 0 {
                continue;
            }
            let Some((space, at, allowed)) = places[lane] else {
                continue;
            };
            if allowed < bits / 8 {
                continue;
            }
            let read = |w: &Wave, first: usize| {
                let low = u64::from(w.v[first][lane]);
                if words == 2 {
                    low | u64::from(w.v[first + 1][lane]) << 32
                } else {
                    low
                }
            };
            let data = read(w, source as usize);
            let second = if op == Rmw::CmpSwap {
                read(w, source as usize + words)
            } else {
                0
            };
            let old = env.atomic(w, lane, space, at, &Request { op, bits, data, second })?;
            if let Some(target) = target {
                w.v[target as usize][lane] = old as u32;
                if words == 2 {
                    w.v[target as usize + 1][lane] = (old >> 32) as u32;
                }
                w.defined(target, words as u16, lane);
            }
        }
        Ok(Flow::Next)
    }))
}
