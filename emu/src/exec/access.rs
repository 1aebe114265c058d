//! Checked accesses to global memory, LDS and scratch, a lane at a time.

use super::wave::{Env, Touch, Trap, Wave};
use crate::decode::text::{PRIVATE_BASE, SHARED_BASE};
use crate::error::{Access, FaultKind, Space};
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

    /// Reads `out.len()` words (or `small` bytes, 1 or 2, into one word) of global memory.
    #[inline]
    pub fn global_read(
        &mut self,
        w: &mut Wave,
        lane: usize,
        address: u64,
        small: u32,
        out: &mut [u32],
    ) -> Result<(), Box<Trap>> {
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        let region = self.region(&mut w.hint, lane, address, size, Access::Read)?;
        self.aligned(
            lane,
            Space::Global,
            Access::Read,
            address,
            size,
            if small != 0 { small } else { 4 },
        )?;
        let offset = address - region.base();
        if self.options.uninitialized && !region.is_written(offset, size.into()) {
            return Err(Trap::at(
                lane,
                FaultKind::Uninitialized {
                    space: Space::Global,
                    address,
                    size,
                },
            ));
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
            self.touch_global(w.index, lane, address, size, Access::Read)?;
        }
        self.touch_ledger(lane, address, size, Access::Read)?;
        Ok(())
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
        self.aligned(
            lane,
            Space::Global,
            Access::Write,
            address,
            size,
            if small != 0 { small } else { 4 },
        )?;
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
            self.touch_global(w.index, lane, address, size, Access::Write)?;
        }
        self.touch_ledger(lane, address, size, Access::Write)?;
        Ok(())
    }

    /// Notes an access to global memory and reports a race with another workgroup.
    #[inline]
    pub fn touch_ledger(&self, lane: usize, address: u64, size: u32, access: Access) -> Result<(), Box<Trap>> {
        let Some((ledger, number)) = self.ledger else {
            return Ok(());
        };
        ledger.touch(number, address, size, access).map_err(|(address, other)| {
            let [x, y, _] = self.grid.map(u64::from);
            let other = [other % x, other / x % y, other / (x * y)].map(|part| part as u32);
            let kind = FaultKind::GroupRace { access, address, other };
            Trap::at(lane, kind)
        })
    }

    /// Notes an access to global memory and reports a race with another wave of the workgroup.
    fn touch_global(
        &mut self,
        wave: u32,
        lane: usize,
        address: u64,
        size: u32,
        access: Access,
    ) -> Result<(), Box<Trap>> {
        for byte in address..address + u64::from(size) {
            let entry = self.global_touch.entry(byte).or_default();
            if let Some(other) = meet(entry, self.phase, wave, access) {
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
        Ok(())
    }

    /// Checks `size` bytes of LDS at `address`.
    #[inline]
    pub fn lds_check(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u32,
        size: u32,
        access: Access,
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
            if access == Access::Write {
                self.lds_written[range.clone()].fill(true);
            } else if !self.lds_written[range.clone()].iter().all(|written| *written) {
                let address = address.into();
                return Err(Trap::at(
                    lane,
                    FaultKind::Uninitialized {
                        space: Space::Lds,
                        address,
                        size,
                    },
                ));
            }
        }
        if !self.lds_touch.is_empty() {
            for byte in range {
                if let Some(other) = meet(&mut self.lds_touch[byte], self.phase, w.index, access) {
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
        }
        Ok(())
    }

    /// Whether an access lies outside of LDS and nobody wants to know.
    #[inline]
    fn outside_lds(&self, address: u32, size: u32) -> bool {
        !self.options.lds_bounds && u64::from(address) + u64::from(size) > self.lds.len() as u64
    }

    /// Reads words (or `small` bytes) of LDS.
    #[inline]
    pub fn lds_read(
        &mut self,
        w: &Wave,
        lane: usize,
        address: u32,
        small: u32,
        out: &mut [u32],
    ) -> Result<(), Box<Trap>> {
        if self.nowhere(address) {
            out.fill(0);
            return Ok(());
        }
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        if self.outside_lds(address, size) {
            out.fill(0);
            return Ok(());
        }
        self.lds_check(w, lane, address, size, Access::Read)?;
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
        Ok(())
    }

    /// Whether an LDS address is one that a hand-written kernel uses to mean nowhere: past all LDS that the GPU has. The
    /// hardware then reads zero and writes nothing, and Tensile clears registers and masks lanes by that.
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
        self.lds_check(w, lane, address, size, Access::Write)?;
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

/// Enters an access into `entry`; the other wave if they race. Atomics do not race with atomics.
fn meet(entry: &mut Touch, phase: u32, wave: u32, access: Access) -> Option<u32> {
    if entry.phase != phase + 1 {
        *entry = Touch {
            phase: phase + 1,
            writer: 0,
            reader: 0,
        };
    }
    let me = wave as u16 + 1;
    match access {
        Access::Atomic => {
            // Marked as nobody's: atomics order themselves; a plain access beside one is still a race.
            (entry.writer != 0 && entry.writer != me && entry.writer != u16::MAX).then(|| u32::from(entry.writer) - 1)
        }
        Access::Read => {
            if entry.writer != 0 && entry.writer != me {
                return Some(u32::from(entry.writer) - 1);
            }
            entry.reader = if entry.reader == 0 || entry.reader == me {
                me
            } else {
                u16::MAX
            };
            None
        }
        Access::Write => {
            if entry.writer != 0 && entry.writer != me {
                return Some(u32::from(entry.writer) - 1);
            }
            if entry.reader != 0 && entry.reader != me {
                return Some(if entry.reader == u16::MAX {
                    u32::MAX
                } else {
                    u32::from(entry.reader) - 1
                });
            }
            entry.writer = me;
            None
        }
    }
}

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

    pub fn scratch_read(&self, lane: usize, offset: u64, small: u32, out: &mut [u32]) -> Result<(), Box<Trap>> {
        let size = if small != 0 { small } else { out.len() as u32 * 4 };
        self.scratch_at(lane, offset, size, Access::Read)?;
        if small == 0 && offset.is_multiple_of(4) {
            for (index, word) in out.iter_mut().enumerate() {
                *word = self.scratch[(offset as usize / 4 + index) * self.lanes + lane];
            }
            return Ok(());
        }
        let mut bytes = [0u8; 64];
        for (index, byte) in bytes.iter_mut().enumerate().take(size as usize) {
            let at = offset as usize + index;
            *byte = (self.scratch[at / 4 * self.lanes + lane] >> (8 * (at % 4))) as u8;
        }
        for (index, word) in out.iter_mut().enumerate() {
            let part = &bytes[4 * index..4 * index + 4];
            *word = u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        }
        Ok(())
    }

    pub fn scratch_write(&mut self, lane: usize, offset: u64, small: u32, words: &[u32]) -> Result<(), Box<Trap>> {
        let size = if small != 0 { small } else { words.len() as u32 * 4 };
        self.scratch_at(lane, offset, size, Access::Write)?;
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
