//! Instruction fetch: the cache that compute units share, and the buffer of each wave.
//!
//! A wave's buffer holds two windows of code, the one that it issues from and the next. When the last instruction that
//! begins in a window issues, the window after the next is asked for.
//!
//! ```text
//! window     | a a a a | b b b b | c          instructions of eight bytes, one a slot of four cycles
//! asked for            c         d            c comes 20 cycles later, when b has issued: no wait
//!
//! window     |   a a a a|a b b b b|b c        the same four bytes later: the last of a needs b as well,
//! asked for              c         d          and c, which the last of b needs, comes a slot too late
//! ```
//!
//! On CDNA a window has 32 bytes. Eight-byte instructions were measured at 4 cycles where none crosses a window's end,
//! and at 5 where each fourth does (pyhip on MI308X; AMD's pull request 203934 of LLVM says a slot for each crossing,
//! on MI210 and MI300X). A latency of 17 to 20 cycles gives both. RDNA's traces show no such wait (pull request
//! 183064); there a window is a line of the cache, and it costs nothing where the cache has it.
//!
//! A window whose line is not in the cache comes from L2, as what the scalar cache lacks does.

use super::facts::InstructionFacts;
use super::machine::Machine;
use super::memory::{LINE, Tags};
use super::trace::Recorder;
use std::collections::HashSet;

/// The instruction cache of one compute unit or pair. What shares it beside those runs the same code.
pub(super) struct CodeCache {
    /// None where the cache holds all of the kernel from the start.
    tags: Option<Tags>,
    /// Lines of L2 that have come from memory so far, where L2 does not have the code from the start either.
    fresh: Option<HashSet<u64>>,
    window: u64,
    line: u64,
    latency: u64,
    slot: u64,
    /// Cycles until a line comes from L2, and from behind it.
    from_l2: u64,
    from_memory: u64,
}

impl CodeCache {
    /// The cache at the begin of a launch: as an earlier launch of the same kernel left it, or empty where that is
    /// `cold`, and L2 too. `clock` is the shader clock over the one that latencies are given at.
    pub fn new(
        machine: &Machine,
        facts: &[InstructionFacts],
        traces: &[Recorder],
        cold: bool,
        clock: f64,
    ) -> CodeCache {
        let cache = &machine.code_cache;
        let of = |inst: &InstructionFacts| {
            inst.address / cache.line..=(inst.address + u64::from(inst.size) - 1) / cache.line
        };
        let lines = match (facts.first(), facts.last()) {
            (Some(first), Some(last)) => of(last).end() - of(first).start() + 1,
            _ => 0,
        };
        let fits = lines <= cache.bytes / cache.line;
        let mut tags = (cold || !fits).then(|| Tags::new(cache));
        if let Some(tags) = tags.as_mut().filter(|_| !cold) {
            let mut last = u64::MAX;
            for event in traces
                .iter()
                .flat_map(|trace| &trace.waves)
                .flat_map(|wave| &wave.events)
            {
                for line in of(&facts[event.inst as usize]) {
                    if line != last && tags.find(line).is_none() {
                        tags.insert(line, 0);
                    }
                    last = line;
                }
            }
        }
        let behind = if machine.side_bytes > 0 {
            machine.side_latency
        } else {
            machine.dram_latency
        };
        let own = f64::from(machine.vector_cache.latency);
        CodeCache {
            tags,
            fresh: cold.then(HashSet::new),
            window: machine.fetch_bytes,
            line: cache.line,
            latency: u64::from(cache.latency),
            slot: u64::from(machine.slot),
            from_l2: (machine.l2_latency - own).max(0.0) as u64,
            from_memory: (behind * clock - own).max(0.0) as u64,
        }
    }

    /// When the window that is asked for at `now` would be there if the cache has it at `hit`.
    fn fetch(&mut self, window: u64, now: u64, hit: u64) -> u64 {
        let Some(tags) = &mut self.tags else { return hit };
        let line = window * self.window / self.line;
        let there = tags.find(line).unwrap_or_else(|| {
            let first = self
                .fresh
                .as_mut()
                .is_some_and(|fresh| fresh.insert(line * self.line / LINE));
            let there = now + if first { self.from_memory } else { self.from_l2 };
            tags.insert(line, there);
            there
        });
        // The cache's own latency comes on top where the line had to come first.
        if there <= now {
            hit
        } else {
            hit.max(there + (hit - now))
        }
    }
}

/// The code that a wave has ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffer {
    /// The window that the next instruction begins in.
    first: u64,
    /// When that and the one behind it are there.
    there: [u64; 2],
}

impl Buffer {
    /// The buffer of a wave that begins, or goes on after a jump, at `address`, and could issue at `ready` if the cache
    /// has the code. It asked at `now`.
    pub fn at(cache: &mut CodeCache, address: u64, now: u64, ready: u64) -> Buffer {
        let first = address / cache.window;
        let here = cache.fetch(first, now, ready);
        let next = cache.fetch(first + 1, now, ready + cache.slot);
        Buffer {
            first,
            there: [here, next.max(here)],
        }
    }

    /// Goes on to the instruction at `address`, which lies behind the one that was issued at `now`.
    pub fn pass(&mut self, cache: &mut CodeCache, address: u64, now: u64) {
        let window = address / cache.window;
        while self.first < window {
            self.first += 1;
            let last = cache.fetch(self.first + 1, now, now + cache.latency);
            self.there = [self.there[1], last.max(self.there[1])];
        }
    }

    /// When the instruction at `address` is there.
    pub fn ready(&self, cache: &CodeCache, address: u64, size: u32) -> u64 {
        let last = (address + u64::from(size.max(1)) - 1) / cache.window;
        self.there[usize::from(last > self.first)]
    }
}
