//! Outstanding memory operations: which registers wait for which counter.
//!
//! The emulator finishes every operation at once; this table keeps the hardware's promise instead. A load's
//! destination counts as unwritten until a wait has covered the load, and a use before that is an error.

use crate::arch::{Arch, Generation};
use std::collections::VecDeque;

/// A hardware counter. Before gfx12 LDS and scalar loads share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Vector memory loads (and stores before gfx10).
    Vector,
    /// Vector memory stores.
    Store,
    /// LDS and scalar memory before gfx12; LDS alone from then on.
    Local,
    /// Scalar memory from gfx12 on.
    Scalar,
}

const COUNTERS: usize = 4;

/// A set of registers: vector registers and scalar registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    pub v: [u64; 8],
    pub s: [u64; 3],
}

const NAMES: [&str; COUNTERS] = ["vmcnt (loadcnt)", "vscnt (storecnt)", "lgkmcnt (dscnt)", "kmcnt"];

impl Counter {
    /// Its names, older and newer.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

impl Set {
    pub fn add_vector(&mut self, first: u16, count: u16) {
        for index in first..(first + count).min(512) {
            self.v[index as usize / 64] |= 1 << (index % 64);
        }
    }

    pub fn add_scalar(&mut self, first: u16, count: u16) {
        for index in first..(first + count).min(crate::decode::text::NULL) {
            self.s[index as usize / 64] |= 1 << (index % 64);
        }
    }

    pub fn remove_vector(&mut self, index: u16) {
        if let Some(word) = self.v.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    pub fn remove_scalar(&mut self, index: u16) {
        if let Some(word) = self.s.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    pub fn has_vector(&self, index: u16) -> bool {
        self.v
            .get(index as usize / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    pub fn has_scalar(&self, index: u16) -> bool {
        self.s
            .get(index as usize / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Whether the sets have a register in common.
    #[inline]
    pub fn meets(&self, other: &Set) -> bool {
        let vectors = self.v.iter().zip(other.v).fold(0, |both, (a, b)| both | a & b);
        let scalars = self.s.iter().zip(other.s).fold(0, |both, (a, b)| both | a & b);
        vectors | scalars != 0
    }

    pub fn merge(&mut self, other: &Set) {
        for (mine, theirs) in self.v.iter_mut().zip(other.v) {
            *mine |= theirs;
        }
        for (mine, theirs) in self.s.iter_mut().zip(other.s) {
            *mine |= theirs;
        }
    }

    /// One register that both sets hold, by name.
    pub fn common(&self, other: &Set) -> Option<String> {
        for (index, (mine, theirs)) in self.v.iter().zip(other.v).enumerate() {
            let both = mine & theirs;
            if both != 0 {
                let register = index as u32 * 64 + both.trailing_zeros();
                return Some(if register >= 256 {
                    format!("a{}", register - 256)
                } else {
                    format!("v{register}")
                });
            }
        }
        for (index, (mine, theirs)) in self.s.iter().zip(other.s).enumerate() {
            let both = mine & theirs;
            if both != 0 {
                return Some(scalar_name(index as u32 * 64 + both.trailing_zeros()));
            }
        }
        None
    }
}

fn scalar_name(index: u32) -> String {
    match index {
        106 => "vcc_lo".into(),
        107 => "vcc_hi".into(),
        108..=123 => format!("ttmp{}", index - 108),
        124 => "m0".into(),
        126 => "exec_lo".into(),
        127 => "exec_hi".into(),
        _ => format!("s{index}"),
    }
}

#[derive(Clone, Debug)]
struct Event {
    writes: Set,
    /// Scalar loads return in any order.
    unordered: bool,
    /// Its number among the operations of all counters.
    tick: u64,
}

/// The outstanding operations of one wave.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    /// How far each counter counts.
    most: [usize; COUNTERS],
    queues: [VecDeque<Event>; COUNTERS],
    pending: [Set; COUNTERS],
    issued: [u64; COUNTERS],
    ticks: u64,
    /// Whether any register waits.
    pub any: bool,
}

impl Scoreboard {
    /// Makes a board of nothing. LLVM's bit widths of the counters decide how far they count.
    pub fn new(arch: &Arch) -> Scoreboard {
        let (local, scalar) = match arch.generation {
            Generation::Gfx9 => (15, 15),
            Generation::Gfx10 | Generation::Gfx11 => (63, 63),
            Generation::Gfx12 => (63, 31),
        };
        Scoreboard {
            most: [63, 63, local, scalar],
            queues: Default::default(),
            pending: Default::default(),
            issued: Default::default(),
            ticks: 0,
            any: false,
        }
    }

    /// Notes an operation that will write `writes` when it returns.
    pub fn issue(&mut self, counter: Counter, writes: &Set, unordered: bool) {
        let index = counter as usize;
        self.issued[index] += 1;
        self.ticks += 1;
        self.queues[index].push_back(Event {
            writes: *writes,
            unordered,
            tick: self.ticks,
        });
        self.pending[index].merge(writes);
        if *writes != Set::default() {
            self.any = true;
        }
        // The hardware issues no more than the counter counts: it waits for the oldest operation first, and compilers
        // leave out a wait that this makes needless.
        let queue = &mut self.queues[index];
        if queue.len() > self.most[index] && queue.iter().all(|event| !event.unordered) {
            queue.pop_front();
            self.rebuild(index);
        }
    }

    /// How many operations were issued.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// The number of the last operation up to which every store to global memory is known to be done.
    pub fn settled(&self) -> u64 {
        let queues = [Counter::Vector, Counter::Store].map(|counter| &self.queues[counter as usize]);
        let stores = queues
            .into_iter()
            .flatten()
            .filter(|event| event.writes == Set::default());
        stores.map(|event| event.tick - 1).min().unwrap_or(self.ticks)
    }

    /// The number of the last operation up to which every load from global memory is known to be done.
    pub fn loaded(&self) -> u64 {
        let loads = self.queues[Counter::Vector as usize].iter();
        let loads = loads.filter(|event| event.writes != Set::default());
        loads.map(|event| event.tick - 1).min().unwrap_or(self.ticks)
    }

    /// The number of the last operation up to which every one of a counter is known to be done.
    pub fn finished(&self, counter: Counter) -> u64 {
        let queue = self.queues[counter as usize].iter();
        queue.map(|event| event.tick - 1).min().unwrap_or(self.ticks)
    }

    /// How many operations of a counter were issued.
    #[inline]
    pub fn issued(&self, counter: Counter) -> u64 {
        self.issued[counter as usize]
    }

    /// How many of them, in their order, are known to be done.
    #[inline]
    pub fn done(&self, counter: Counter) -> u64 {
        self.issued[counter as usize] - self.queues[counter as usize].len() as u64
    }

    /// Waits until at most `left` operations of `counter` are outstanding.
    pub fn wait(&mut self, counter: Counter, left: usize) {
        let index = counter as usize;
        let queue = &mut self.queues[index];
        if queue.len() <= left {
            return;
        }
        if left == 0 {
            queue.clear();
        } else if queue.iter().any(|event| event.unordered) && queue.iter().any(|event| !event.unordered)
            || queue.iter().all(|event| event.unordered)
        {
            // Which operation has returned is not known until all have.
            return;
        } else {
            let done = queue.len() - left;
            queue.drain(..done);
        }
        self.rebuild(index);
    }

    fn rebuild(&mut self, index: usize) {
        let mut set = Set::default();
        for event in &self.queues[index] {
            set.merge(&event.writes);
        }
        self.pending[index] = set;
        self.any = self.pending.iter().any(|set| *set != Set::default());
    }

    /// The first register of `uses` that waits, and the counter, leaving out `except`.
    pub fn conflict(&self, uses: &Set, except: Option<Counter>) -> Option<(String, &'static str)> {
        for (index, pending) in self.pending.iter().enumerate() {
            if except.is_some_and(|counter| counter as usize == index) {
                continue;
            }
            if let Some(register) = pending.common(uses) {
                return Some((register, NAMES[index]));
            }
        }
        None
    }
}
