//! Waits that order memory: what a wave put into LDS without waiting for it before the barrier that lets others read
//! it.
//!
//! The emulator finishes every access at once. On the hardware a store to LDS, or a load straight into LDS, is under
//! way until its counter says otherwise, and a barrier does not wait for it. So bytes that were under way when their
//! wave came to a barrier stay marked until that wave has waited and come to another one, and a read of them by
//! another wave is an error; so is a wave's own read of what its load into LDS has yet to bring.

use super::scoreboard::{Counter, Scoreboard};
use super::simd::Lanes;
use super::wave::{Env, Trap, Wave};
use crate::error::FaultKind;
use std::collections::BTreeMap;

/// Stores to LDS of one instruction.
pub(crate) struct LdsStore {
    /// Its number among the operations of its counter.
    number: u64,
    addresses: Lanes,
    mask: u64,
    /// Bytes of each lane.
    bytes: u32,
    atomic: bool,
}

struct Record {
    wave: u32,
    counter: Counter,
    number: u64,
    /// The barrier phase in which the bytes were stored.
    phase: u32,
    /// Whether it is a load into LDS: its own wave has to wait as well.
    load: bool,
    /// Whether it is an atomic: others come before or behind it whole.
    atomic: bool,
}

/// The bytes of a workgroup's LDS that are under way.
#[derive(Default)]
pub(crate) struct Order {
    records: BTreeMap<u32, Record>,
    /// For each byte of LDS the record of its last store, 0 for none. Empty until something is under way.
    bytes: Vec<u32>,
    next: u32,
}

/// Records of loads into LDS that are kept at most, where no barrier tells that they are done with.
const MOST_RECORDS: usize = 1024;

impl Order {
    /// Whether anything is under way.
    #[inline]
    pub fn live(&self) -> bool {
        !self.records.is_empty()
    }

    fn mark(&mut self, lds: usize, record: Record, addresses: &Lanes, mask: u64, bytes: u32) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; lds];
        }
        self.next += 1;
        for lane in (0..64).filter(|lane| mask >> lane & 1 == 1) {
            let at = addresses[lane] as usize;
            if let Some(marks) = self.bytes.get_mut(at..at + bytes as usize) {
                marks.fill(self.next);
            }
        }
        self.records.insert(self.next, record);
    }

    /// Bytes that were stored again are no longer what was under way.
    pub fn overwritten(&mut self, address: u32, bytes: u32) {
        if let Some(marks) = self.bytes.get_mut(address as usize..address as usize + bytes as usize) {
            marks.fill(0);
        }
    }

    /// Checks a read, or an atomic.
    ///
    /// # Errors
    /// A byte whose store nothing orders before the read.
    #[cold]
    pub fn check(
        &self,
        w: &Wave,
        phase: u32,
        lane: usize,
        (address, bytes): (u32, u32),
        atomic: bool,
    ) -> Result<(), Box<Trap>> {
        let Some(marks) = self.bytes.get(address as usize..address as usize + bytes as usize) else {
            return Ok(());
        };
        for (at, mark) in (u64::from(address)..).zip(marks) {
            let Some(record) = self.records.get(mark) else { continue };
            let kind = if record.wave != w.index {
                // With no barrier between, it is a race or ordered by other means.
                if record.phase == phase || (record.atomic && atomic) {
                    continue;
                }
                FaultKind::UnorderedStore {
                    address: at,
                    writer: record.wave,
                    counter: record.counter.name(),
                }
            } else if record.load && w.board.done(record.counter) < record.number {
                FaultKind::MissingWait {
                    register: format!("LDS at {at:#x}"),
                    counter: record.counter.name(),
                }
            } else {
                continue;
            };
            return Err(Trap::at(lane, kind));
        }
        Ok(())
    }

    /// Forgets what a wave has waited for.
    fn settle(&mut self, wave: u32, board: &Scoreboard) {
        self.records
            .retain(|_, record| record.wave != wave || board.done(record.counter) < record.number);
    }
}

impl Env<'_> {
    /// Notes the LDS stores (or atomics) of an instruction that is about to be issued.
    #[inline]
    pub fn note_stores(&mut self, w: &mut Wave, addresses: &Lanes, mask: u64, bytes: u32, atomic: bool) {
        if !self.watches_order {
            return;
        }
        let done = w.board.done(Counter::Local);
        if w.stores.last().is_some_and(|last| last.number <= done) {
            w.stores.clear();
        }
        w.stores.push(LdsStore {
            number: w.board.issued(Counter::Local) + 1,
            addresses: *addresses,
            mask,
            bytes,
            atomic,
        });
    }

    /// Notes a load into LDS that is about to be issued.
    pub fn note_load(&mut self, w: &Wave, addresses: &Lanes, mask: u64, bytes: u32) {
        if !self.options.waits {
            return;
        }
        if self.order.records.len() > MOST_RECORDS {
            self.order.settle(w.index, &w.board);
        }
        let record = Record {
            wave: w.index,
            counter: Counter::Vector,
            number: w.board.issued(Counter::Vector) + 1,
            phase: self.phase,
            load: true,
            atomic: false,
        };
        self.order.mark(self.lds.len(), record, addresses, mask, bytes);
    }

    /// A wave comes to a barrier: what it waited for may be read by all behind it, and nothing else.
    pub fn arrive(&mut self, w: &mut Wave) {
        if self.order.live() {
            self.order.settle(w.index, &w.board);
        }
        if let Some(late) = &mut self.late {
            late.arrive(self.phase, w);
        }
        let done = w.board.done(Counter::Local);
        for store in w.stores.drain(..).filter(|store| store.number > done) {
            let record = Record {
                wave: w.index,
                counter: Counter::Local,
                number: store.number,
                phase: self.phase,
                load: false,
                atomic: store.atomic,
            };
            self.order
                .mark(self.lds.len(), record, &store.addresses, store.mask, store.bytes);
        }
    }
}
