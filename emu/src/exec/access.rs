//! Checked accesses to global memory, LDS and scratch, a lane at a time.

use super::ledger::Visitor;
use super::undefined::Origin;
use super::wave::{Env, Touch, Trap, Wave};
use crate::decode::text::{PRIVATE_BASE, SHARED_BASE};
use crate::error::{Access, FaultKind, Space, Use};
use crate::gpu::host_service;
use crate::memory::Region;

/// Where scratch lies for the buffer instructions that address it by a resource descriptor.
pub(crate) const SCRATCH_WINDOW: u64 = 0x7000_0000_0000;
/// Bytes of the window.
pub(crate) const SCRATCH_WINDOW_SIZE: u64 = 1 << 32;

/// The memory that a flat address means, and the address in it.
pub(crate) fn resolve_flat(address: u64) -> (Space, u64) {
    match address >> 32 << 32 {
        SHARED_BASE => (Space::Lds, address & 0xffff_ffff),
        PRIVATE_BASE => (Space::Scratch, address & 0xffff_ffff),
        _ => (Space::Global, address),
    }
}

impl<'a> Env<'a> {
    /// The region of `size` bytes at a global address, or the fault.
    #[inline]
    pub fn region(
        &self,
        hint: &mut usize,
        lane: usize,
        address: u64,
        size: u32,
        access: Access,
    ) -> Result<&'a Region, Box<Trap>> {
        match self.view.find(address, size.into(), hint) {
            Some(region) => Ok(region),
            None => Err(self.wild(lane, address, size, access)),
        }
    }

    #[cold]
    fn wild(&self, lane: usize, address: u64, size: u32, access: Access) -> Box<Trap> {
        if self.memory.was_freed(address) {
            return Trap::at(lane, FaultKind::UseAfterFree { access, address, size });
        }
        if let Some(what) = host_service(address) {
            return Trap::at(lane, FaultKind::NotModelled(format!("{what} is not modelled")));
        }
        let note = self.memory.neighbour(address);
        Trap::at(
            lane,
            FaultKind::OutOfBounds {
                space: Space::Global,
                access,
                address,
                size,
                note,
            },
        )
    }

    fn aligned(
        &self,
        lane: usize,
        space: Space,
        access: Access,
        address: u64,
        size: u32,
        unit: u32,
    ) -> Result<(), Box<Trap>> {
        if (self.options.alignment || access == Access::Atomic) && !address.is_multiple_of(unit.into()) {
            return Err(Trap::at(
                lane,
                FaultKind::Misaligned {
                    space,
                    access,
                    address,
                    size,
                },
            ));
        }
        Ok(())
    }

    /// Reads `out.len()` words (or `small` bytes, 1 or 2, into one word) of global memory, and which of their bits
    /// nothing wrote into `undefined`; whether there are any.
    #[inline]
    pub fn global_read(
        &mut self,
        w: &mut Wave,
        lane: usize,
        address: u64,
        small: u32,
        out: &mut [u32],
        undefined: &mut [u32],
    ) -> Result<bool, Box<Trap>> {
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        let region = self.region(&mut w.hint, lane, address, size, Access::Read)?;
        let unit = if small != 0 { small } else { 4 };
        self.aligned(lane, Space::Global, Access::Read, address, size, unit)?;
        let offset = address - region.base();
        let unwritten = self.options.uninitialized && !region.is_written(offset, size.into());
        if unwritten {
            for (index, bits) in (0..).zip(undefined.iter_mut().take(out.len())) {
                *bits = region.unwritten_bits(offset + 4 * index, unit);
            }
        }
        match small {
            1 => out[0] = region.load_u8(offset).into(),
            2 => out[0] = region.load_u16(offset).into(),
            _ => {
                for (index, word) in out.iter_mut().enumerate() {
                    *word = region.load_u32(offset + 4 * index as u64);
                }
            }
        }
        if self.options.races {
            self.touch_global(w, lane, address, size, Access::Read)?;
        }
        self.touch_ledger(w, lane, address, size, Access::Read)?;
        Ok(unwritten)
    }

    /// Writes words (or the low `small` bytes of one) to global memory.
    #[inline]
    pub fn global_write(
        &mut self,
        w: &mut Wave,
        lane: usize,
        address: u64,
        small: u32,
        words: &[u32],
    ) -> Result<(), Box<Trap>> {
        let size = if small != 0 { small } else { words.len() as u32 * 4 };
        let region = self.region(&mut w.hint, lane, address, size, Access::Write)?;
        let unit = if small != 0 { small } else { 4 };
        self.aligned(lane, Space::Global, Access::Write, address, size, unit)?;
        let offset = address - region.base();
        match small {
            1 => region.store_u8(offset, words[0] as u8),
            2 => region.store_u16(offset, words[0] as u16),
            _ => {
                for (index, word) in words.iter().enumerate() {
                    region.store_u32(offset + 4 * index as u64, *word);
                }
            }
        }
        if self.options.races {
            self.touch_global(w, lane, address, size, Access::Write)?;
        }
        self.touch_ledger(w, lane, address, size, Access::Write)?;
        Ok(())
    }

    /// Notes an access to global memory and reports a race with another workgroup.
    #[inline]
    pub fn touch_ledger(
        &self,
        w: &Wave,
        lane: usize,
        address: u64,
        size: u32,
        access: Access,
    ) -> Result<(), Box<Trap>> {
        let Some((ledger, group)) = self.ledger else {
            return Ok(());
        };
        let visitor = Visitor {
            group,
            wave: w.index,
            now: w.board.ticks() + 1,
            settled: w.board.settled(),
        };
        ledger
            .touch(visitor, address, size, access)
            .map_err(|(address, other)| {
                let [x, y, _] = self.grid.map(u64::from);
                let other = [other % x, other / x % y, other / (x * y)].map(|part| part as u32);
                let kind = FaultKind::GroupRace { access, address, other };
                Trap::at(lane, kind)
            })
    }

    /// Notes an access to global memory and reports a race with another wave of the workgroup.
    fn touch_global(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u64,
        size: u32,
        access: Access,
    ) -> Result<(), Box<Trap>> {
        for byte in address..address + u64::from(size) {
            let entry = self.global_touch.entry(byte).or_default();
            if let Some(other) = meet(entry, self.phase, w.index, access, false) {
                return Err(Trap::at(
                    lane,
                    FaultKind::Race {
                        space: Space::Global,
                        access,
                        address: byte,
                        other,
                    },
                ));
            }
        }
        self.touch_late(w, lane, Space::Global, (address, size), access)
    }

    /// Checks `size` bytes of LDS at `address`; `compares` tells an atomic that compares first.
    #[inline]
    pub fn lds_check(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u32,
        size: u32,
        access: Access,
        compares: bool,
    ) -> Result<(), Box<Trap>> {
        let end = u64::from(address) + u64::from(size);
        if end > self.lds.len() as u64 {
            let note = format!("; the workgroup has {} bytes", self.lds.len());
            let address = address.into();
            return Err(Trap::at(
                lane,
                FaultKind::OutOfBounds {
                    space: Space::Lds,
                    access,
                    address,
                    size,
                    note,
                },
            ));
        }
        self.aligned(lane, Space::Lds, access, address.into(), size, size.min(4))?;
        let range = address as usize..end as usize;
        if !self.lds_written.is_empty() {
            match access {
                Access::Write => self.lds_written[range.clone()].fill(1),
                Access::Atomic if !self.lds_written[range.clone()].iter().all(|written| *written == 1) => {
                    let kind = FaultKind::Uninitialized {
                        space: Space::Lds,
                        address: address.into(),
                        size,
                        used: Use::Atomic,
                        loaded_at: None,
                    };
                    return Err(Trap::at(lane, kind));
                }
                Access::Read | Access::Atomic => {}
            }
        }
        if self.order.live() {
            match access {
                Access::Write => self.order.overwritten(address, size),
                Access::Read | Access::Atomic => {
                    let atomic = access == Access::Atomic;
                    self.order.check(w, self.phase, lane, (address, size), atomic)?;
                }
            }
        }
        if !self.lds_touch.is_empty() {
            for byte in range {
                if let Some(other) = meet(&mut self.lds_touch[byte], self.phase, w.index, access, compares) {
                    let address = byte as u64;
                    return Err(Trap::at(
                        lane,
                        FaultKind::Race {
                            space: Space::Lds,
                            access,
                            address,
                            other,
                        },
                    ));
                }
            }
            self.touch_late(w, lane, Space::Lds, (address.into(), size), access)?;
        }
        Ok(())
    }

    /// Whether an access lies outside of LDS and nobody wants to know.
    #[inline]
    fn outside_lds(&self, address: u32, size: u32) -> bool {
        !self.options.lds_bounds && u64::from(address) + u64::from(size) > self.lds.len() as u64
    }

    /// Reads words (or `small` bytes) of LDS, and which of their bits nothing wrote into `undefined`; whether there
    /// are any.
    #[inline]
    pub fn lds_read(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u32,
        small: u32,
        out: &mut [u32],
        undefined: &mut [u32],
    ) -> Result<bool, Box<Trap>> {
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        if self.nowhere(address) || self.outside_lds(address, size) {
            out.fill(0);
            return Ok(false);
        }
        self.lds_check(w, lane, address, size, Access::Read, false)?;
        let at = address as usize;
        match small {
            1 => out[0] = self.lds[at].into(),
            2 => out[0] = u16::from_le_bytes([self.lds[at], self.lds[at + 1]]).into(),
            _ => {
                for (index, word) in out.iter_mut().enumerate() {
                    *word = self.lds_word(at + 4 * index);
                }
            }
        }
        let written = match self.lds_written.get(at..at + size as usize) {
            Some(written) if written.contains(&0) => written,
            _ => return Ok(false),
        };
        for (bits, bytes) in undefined.iter_mut().zip(written.chunks(4)) {
            *bits = (0..).zip(bytes).fold(0, |bits, (index, byte)| {
                bits | if *byte == 0 { 0xffu32 << (8 * index) } else { 0 }
            });
        }
        Ok(true)
    }

    /// Forgets that bytes of LDS were written: those of `undefined`, bit by bit those of the words that a lane stored
    /// there.
    #[cold]
    pub fn lds_undefined(&mut self, address: u32, size: u32, undefined: &[u32]) {
        for index in 0..size as usize {
            let bits = undefined[index / 4] >> (8 * (index % 4)) & 0xff;
            if let Some(flag) = self.lds_written.get_mut(address as usize + index)
                && bits != 0
            {
                *flag = 0;
            }
        }
    }

    /// Whether an LDS address is one that a hand-written kernel uses to mean nowhere: past all LDS that the GPU has.
    /// The hardware then reads zero and writes nothing, and Tensile clears registers and masks lanes by that.
    #[inline]
    fn nowhere(&self, address: u32) -> bool {
        self.hand_written && address >= self.arch.lds_bytes
    }

    #[inline]
    fn lds_word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.lds[at], self.lds[at + 1], self.lds[at + 2], self.lds[at + 3]])
    }

    /// Writes words (or `small` bytes) of LDS.
    #[inline]
    pub fn lds_write(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u32,
        small: u32,
        words: &[u32],
    ) -> Result<(), Box<Trap>> {
        if self.nowhere(address) {
            return Ok(());
        }
        let size = if small != 0 { small } else { words.len() as u32 * 4 };
        if self.outside_lds(address, size) {
            return Ok(());
        }
        self.lds_check(w, lane, address, size, Access::Write, false)?;
        let at = address as usize;
        if small != 0 {
            self.lds[at..at + small as usize].copy_from_slice(&words[0].to_le_bytes()[..small as usize]);
        } else {
            for (index, word) in words.iter().enumerate() {
                self.lds[at + 4 * index..at + 4 * index + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Enters an access into `entry`; the other wave (u32::MAX: several) if they race. Atomics do not race with atomics,
/// nor a plain read with one that compares: such loops begin with a load, which compilers write as a plain one.
fn meet(entry: &mut Touch, phase: u32, wave: u32, access: Access, compares: bool) -> Option<u32> {
    if entry.phase != phase + 1 {
        *entry = Touch {
            phase: phase + 1,
            ..Touch::default()
        };
    }
    let me = wave as u16 + 1;
    let other = |mark: u16| match mark {
        0 => None,
        u16::MAX => Some(u32::MAX),
        mark if mark == me => None,
        mark => Some(u32::from(mark) - 1),
    };
    let joined = |mark: u16| if mark == 0 || mark == me { me } else { u16::MAX };
    let race = match access {
        Access::Read => other(entry.writer).or(other(entry.atomic)),
        Access::Atomic if compares => other(entry.writer),
        Access::Atomic => other(entry.writer).or(other(entry.reader)),
        Access::Write => [entry.writer, entry.atomic, entry.compared, entry.reader]
            .into_iter()
            .find_map(other),
    };
    match access {
        Access::Read => entry.reader = joined(entry.reader),
        Access::Atomic if compares => entry.compared = joined(entry.compared),
        Access::Atomic => entry.atomic = joined(entry.atomic),
        Access::Write => entry.writer = me,
    }
    race
}

/// All bytes of a word of scratch in the record of those that were written.
const ALL_BYTES: u8 = 0xf;

/// Scratch: a dword of lane 0, the same dword of lane 1, and so on.
impl Wave {
    /// The bit offset and the word index of byte `offset` of `lane`, checked for `size` bytes.
    fn scratch_at(&self, lane: usize, offset: u64, size: u32, access: Access) -> Result<usize, Box<Trap>> {
        if offset + u64::from(size) > u64::from(self.scratch_size) {
            let note = format!("; a lane has {} bytes", self.scratch_size);
            return Err(Trap::at(
                lane,
                FaultKind::OutOfBounds {
                    space: Space::Scratch,
                    access,
                    address: offset,
                    size,
                    note,
                },
            ));
        }
        Ok(offset as usize / 4 * self.lanes + lane)
    }

    /// Reads words (or `small` bytes) of scratch, and which of their bits are undefined; whether there are any.
    pub fn scratch_read(
        &self,
        lane: usize,
        offset: u64,
        small: u32,
        out: &mut [u32],
        undefined: &mut [u32],
    ) -> Result<bool, Box<Trap>> {
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        self.scratch_at(lane, offset, size, Access::Read)?;
        let place = |word: usize| word * self.lanes + lane;
        if small == 0 && offset.is_multiple_of(4) {
            for (word, slot) in (offset as usize / 4..).zip(out.iter_mut()) {
                *slot = self.scratch[place(word)];
            }
        } else {
            gather_bytes(offset, size, out, |word| self.scratch[place(word)]);
        }
        let mut words = offset as usize / 4..(offset + u64::from(size)).div_ceil(4) as usize;
        let written = |word: usize| self.scratch_written.get(place(word)).copied().unwrap_or(ALL_BYTES);
        if self.undefined.is_none() && words.all(|word| written(word) == ALL_BYTES) {
            return Ok(false);
        }
        gather_bytes(offset, size, undefined, |word| {
            let marked = self.scratch_mark(place(word)).map_or(0, |(bits, _)| bits);
            let unwritten = (0..4).filter(|byte| written(word) >> byte & 1 == 0);
            unwritten.fold(marked, |bits, byte| bits | 0xff << (8 * byte))
        });
        Ok(undefined.iter().any(|bits| *bits != 0))
    }

    /// Notes that a lane wrote bytes of scratch.
    fn scratch_touched(&mut self, lane: usize, offset: u64, size: u32) {
        if self.scratch_written.is_empty() {
            return;
        }
        for byte in offset..offset + u64::from(size) {
            self.scratch_written[byte as usize / 4 * self.lanes + lane] |= 1 << (byte % 4);
        }
    }

    /// Marks the bits that a lane just stored as defined or not; `registers` are where they came from.
    pub fn scratch_stored(&mut self, lane: usize, offset: u64, size: u32, undefined: &[u32], origin: Option<Origin>) {
        if self.undefined.is_none() {
            return;
        }
        for word in offset / 4..(offset + u64::from(size)).div_ceil(4) {
            let place = word as usize * self.lanes + lane;
            let (mut bits, old) = self.scratch_mark(place).unzip();
            let bits = bits.get_or_insert(0);
            for byte in (4 * word).max(offset)..(4 * word + 4).min(offset + u64::from(size)) {
                let (at, shift) = ((byte - offset) as usize, 8 * (byte % 4));
                let new = undefined[at / 4] >> (8 * (at % 4)) & 0xff;
                *bits = *bits & !(0xff << shift) | new << shift;
            }
            self.scratch_marked(place, *bits, origin.or(old));
        }
    }

    pub fn scratch_write(&mut self, lane: usize, offset: u64, small: u32, words: &[u32]) -> Result<(), Box<Trap>> {
        let size = if small != 0 { small } else { words.len() as u32 * 4 };
        self.scratch_at(lane, offset, size, Access::Write)?;
        self.scratch_touched(lane, offset, size);
        if small == 0 && offset.is_multiple_of(4) {
            for (index, word) in words.iter().enumerate() {
                self.scratch[(offset as usize / 4 + index) * self.lanes + lane] = *word;
            }
            return Ok(());
        }
        for index in 0..size as usize {
            let byte = words[index / 4] >> (8 * (index % 4)) & 0xff;
            let at = offset as usize + index;
            let word = &mut self.scratch[at / 4 * self.lanes + lane];
            *word = *word & !(0xff << (8 * (at % 4))) | byte << (8 * (at % 4));
        }
        Ok(())
    }
}

/// The `size` bytes from `offset` on of words that `get` gives, packed into `out`.
fn gather_bytes(offset: u64, size: u32, out: &mut [u32], get: impl Fn(usize) -> u32) {
    out.fill(0);
    for index in 0..size as usize {
        let at = offset as usize + index;
        let byte = get(at / 4) >> (8 * (at % 4)) & 0xff;
        out[index / 4] |= byte << (8 * (index % 4));
    }
}
