//! The memory of one compute unit (or pair): its caches with real tags, and everything behind them as queues.
//!
//! A line that misses the vector cache goes through a queue for each level that it has to pass, at this unit's share of
//! the level's achieved bandwidth (`queue`), and comes back after the latency that a pointer chase over as many bytes
//! was measured at. A store is acknowledged by L2; what it writes behind L2 is a debt, which holds up later stores once
//! it is large. Which part of an allocation a level holds follows from capacities (`Placement`); how many units fetch a
//! line together, from a survey of the workgroups that run at the same time (`Share`).

use super::machine::{Cache, Machine};
use super::queue::Queue;
use super::trace::{Access, PIECE, Run};
use std::collections::{HashMap, VecDeque};

/// Where an allocation's lines are found when they miss the vector cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Placement {
    pub base: u64,
    pub end: u64,
    /// The parts that L2 and the memory-side cache hold; the rest is in DRAM.
    pub l2: f64,
    pub side: f64,
    /// The parts that are not in L2, or in neither, where accesses to all of it come in any order: a cache holds as
    /// much as it has room for.
    pub beyond_l2: f64,
    pub beyond: f64,
    /// What the survey saw of its sharing, for loads that the survey did not come to.
    pub share: Share,
}

impl Share {
    /// The share where workgroups have drifted apart: what they have in common is found as far as the caches hold all
    /// of it.
    fn apart(self, place: &Placement, drift: f64) -> Share {
        let more = |share: f64, beyond: f64| share + drift * (beyond - share).max(0.0);
        Share {
            die: more(self.die, place.beyond_l2),
            all: more(self.all, place.beyond),
            pieces: self.pieces,
        }
    }

    /// The share of an instruction that loaded `count` pieces; of them it paid for `die` and `all`.
    pub fn of(count: u64, die: f64, all: f64) -> Share {
        match count {
            0 => Share {
                die: 1.0,
                all: 1.0,
                pieces: 0,
            },
            _ => Share {
                die: die / count as f64,
                all: all / count as f64,
                pieces: count,
            },
        }
    }

    /// The part of its L2's lines that a unit pays for, over all that it loads: 1 where nothing is shared.
    pub fn mean(shares: &[Share]) -> f64 {
        let (pieces, paid) = shares.iter().fold((0.0, 0.0), |(pieces, paid), share| {
            let count = share.pieces as f64;
            (pieces + count, paid + count * share.die)
        });
        if pieces > 0.0 { paid / pieces } else { 1.0 }
    }
}

/// What part of a fetched line this unit pays for: the inverse of the units that fetch it at about the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    /// Behind the die's L2.
    pub die: f64,
    /// Behind all dies.
    pub all: f64,
    /// Pieces that the survey saw the instruction load, each once a workgroup.
    pub pieces: u64,
}

/// The bandwidths that one unit has, in bytes a cycle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pub l2_read: f64,
    pub l2_write: f64,
    pub side_read: f64,
    pub side_write: f64,
    pub dram_read: f64,
    pub dram_write: f64,
    /// How far workgroups have drifted apart that began together, 0 to 1: their times in what they share are then any.
    pub drift: f64,
    /// What one unit takes at most, however little the others ask for.
    pub l2_peak: f64,
    pub side_peak: f64,
    pub dram_peak: f64,
    /// The shader clock over the one that latencies are given at: memory behind L2 has a clock of its own.
    pub clock: f64,
    /// Lines of L2 that are this unit's part.
    pub l2_lines: usize,
}

/// Bytes moved, by the level that gave or took them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moved {
    pub vector_cache: f64,
    pub l2: f64,
    pub side: f64,
    pub dram: f64,
    /// Lines looked up in the vector cache, and those that were there.
    pub lookups: u64,
    pub hits: u64,
}

/// Bytes of an L2 line.
pub(super) const LINE: u64 = 128;
/// Bytes of what one translation covers.
const PAGE: u64 = 2 << 20;
/// Streams of DRAM beyond which their loss is not known to grow: the most that were published.
const MOST_STREAMS: usize = 4;
/// Vector memory instructions that a unit takes in before it has looked up their first line.
const QUEUE: usize = 16;

/// A set-associative cache with the time at which each line is there.
pub(super) struct Tags {
    sets: Vec<VecDeque<(u64, u64)>>,
    ways: usize,
}

impl Tags {
    pub fn new(cache: &Cache) -> Tags {
        let sets = (cache.bytes / cache.line / cache.ways as u64).max(1);
        Tags {
            sets: vec![VecDeque::with_capacity(cache.ways); sets as usize],
            ways: cache.ways,
        }
    }

    /// When the line is there, if it is or is on its way; it counts as used now.
    pub fn find(&mut self, line: u64) -> Option<u64> {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        let at = set.iter().position(|(tag, _)| *tag == line)?;
        let entry = set.remove(at)?;
        set.push_back(entry);
        Some(entry.1)
    }

    pub fn insert(&mut self, line: u64, there: u64) {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        if set.len() >= self.ways {
            set.pop_front();
        }
        set.push_back((line, there));
    }
}

/// Neighbouring bytes that one channel has (rocprof-compute's page of L2).
const CHANNEL: f64 = 256.0;

/// What is loaded: by which instruction, of which workgroup of the replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub access: &'a Access,
    pub runs: &'a [Run],
    pub share: Share,
    pub inst: usize,
    pub group: usize,
    /// Tells workgroups apart that replay one trace.
    pub salt: u64,
}

/// One compute unit's addresser and vector cache.
struct Unit {
    tags: Tags,
    addresser_free: u64,
    /// The path by which data comes back, in order.
    return_free: f64,
    waiting: VecDeque<u64>,
}

/// Lines that this unit has already brought into L2, oldest first.
#[derive(Default)]
struct Known {
    there: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

/// What a level has read and written so far.
struct Mix {
    read: f64,
    written: f64,
    /// What is left of both rates where they come one among the other.
    mixed: f64,
    /// How many streams do: two are a copy's.
    streams: f64,
}

impl Mix {
    fn new(mixed: f64) -> Mix {
        Mix {
            read: 0.0,
            written: 0.0,
            mixed,
            streams: 2.0,
        }
    }

    /// What reads and writes take longer for coming one among the other: fully where a quarter of the bytes goes the
    /// other way.
    fn turns(&self) -> f64 {
        let less = self.read.min(self.written);
        let part = (4.0 * less / (self.read + self.written).max(1.0)).min(1.0);
        1.0 + (1.0 / self.mixed - 1.0) * part * (self.streams / 2.0)
    }
}

/// The memory side of one simulated compute unit or pair.
pub(crate) struct Memory<'a> {
    machine: &'a Machine,
    rates: Rates,
    placements: &'a [Placement],
    units: Vec<Unit>,
    scalar: Tags,
    known: Known,
    /// Pages whose translation is at hand, the latest last.
    pages: VecDeque<u64>,
    /// By instruction: the last workgroup of the replay that loaded by it.
    last_group: HashMap<usize, usize>,
    l2: Queue,
    side: Queue,
    dram: Queue,
    /// Bytes that the levels have read and written so far.
    l2_mix: Mix,
    side_mix: Mix,
    dram_mix: Mix,
    /// The allocations that DRAM reads or writes: each is a stream of its own rows.
    streams: Vec<u64>,
    pub moved: Moved,
    /// Cycles that the addressers were taken.
    pub addresser_busy: u64,
    /// When the last store is acknowledged.
    acknowledged: u64,
}

impl<'a> Memory<'a> {
    /// `placements` are in order of address.
    pub fn new(machine: &'a Machine, rates: Rates, placements: &'a [Placement]) -> Memory<'a> {
        let unit = || Unit {
            tags: Tags::new(&machine.vector_cache),
            addresser_free: 0,
            return_free: 0.0,
            waiting: VecDeque::with_capacity(QUEUE),
        };
        // A queue holds what is under way: as much as a level serves in the time that a request takes.
        let behind = |latency: f64| latency * rates.clock;
        let of_channel = |tbps: f64| match machine.channels {
            0 => 0.0,
            channels => CHANNEL * f64::from(channels) / Machine::bytes_a_cycle(tbps, rates.clock * machine.boost_ghz),
        };
        // What is behind a memory-side cache is reached by its channels.
        let (side, dram) = match machine.side_bytes {
            0 => (0.0, of_channel(machine.dram_read)),
            _ => (of_channel(machine.side_write), 0.0),
        };
        Memory {
            l2: Queue::new(machine.l2_latency, rates.l2_peak, 0.0, 0.0),
            side: Queue::new(behind(machine.side_latency), rates.side_peak, 0.0, side),
            dram: Queue::new(
                behind(machine.dram_latency),
                rates.dram_peak,
                behind(machine.write_batch),
                dram,
            ),
            l2_mix: Mix::new(machine.l2_mixed),
            side_mix: Mix::new(machine.side_mixed),
            dram_mix: Mix::new(machine.dram_mixed),
            streams: Vec::new(),
            machine,
            rates,
            placements,
            units: (0..machine.units_per_group).map(|_| unit()).collect(),
            scalar: Tags::new(&machine.scalar_cache),
            known: Known::default(),
            pages: VecDeque::new(),
            last_group: HashMap::new(),
            moved: Moved::default(),
            addresser_busy: 0,
            acknowledged: 0,
        }
    }

    /// When all stores are acknowledged and have left L2 for where they belong.
    pub fn drained(&self) -> u64 {
        let behind = self.side.owed().max(self.dram.owed()) as u64;
        self.acknowledged.max(if self.acknowledged > 0 { behind } else { 0 })
    }

    /// When unit `unit` can take in another vector memory instruction.
    pub fn ready(&self, unit: usize) -> u64 {
        let waiting = &self.units[unit].waiting;
        if waiting.len() < QUEUE {
            0
        } else {
            waiting.front().copied().unwrap_or(0)
        }
    }

    fn placement(&self, piece: u64) -> Placement {
        let address = piece * PIECE;
        let at = self.placements.partition_point(|placement| placement.base <= address);
        match at.checked_sub(1).map(|at| self.placements[at]) {
            Some(placement) if address < placement.end => placement,
            // Arguments, scratch, code's constants: small and warm.
            _ => Placement {
                base: 0,
                end: 0,
                l2: 1.0,
                side: 0.0,
                beyond_l2: 0.0,
                beyond: 0.0,
                share: Share::of(0, 1.0, 1.0),
            },
        }
    }

    /// The end of the addresser's work on an access that is issued at `now`.
    fn address(&mut self, unit: usize, now: u64, cycles: u32) -> u64 {
        let unit = &mut self.units[unit];
        let start = unit.addresser_free.max(now);
        unit.addresser_free = start + u64::from(cycles.max(1));
        self.addresser_busy += u64::from(cycles.max(1));
        if unit.waiting.len() == QUEUE {
            unit.waiting.pop_front();
        }
        unit.waiting.push_back(start);
        unit.addresser_free
    }

    /// A vector load issued at `now`: when its data is in registers.
    pub fn load(&mut self, unit: usize, now: u64, load: &Load<'_>) -> u64 {
        let Load {
            access,
            runs,
            share,
            salt,
            ..
        } = *load;
        self.neighbours(load);
        let addressed = self.address(unit, now, access.cycles);
        let pieces = self.machine.vector_cache.line / PIECE;
        // A chase's figure holds the issue and the wake of the wave that waits.
        let around = u64::from(2 * self.machine.slot + self.machine.wake + 1);
        let mut done = addressed + u64::from(self.machine.vector_cache.latency);
        let mut last = u64::MAX;
        for run in runs {
            for line in run.piece / pieces..=(run.piece + u64::from(run.count) - 1) / pieces {
                if line == last {
                    continue;
                }
                last = line;
                self.moved.lookups += 1;
                let there = match self.units[unit].tags.find(line ^ salt) {
                    Some(there) if there > addressed && self.machine.asks_again => {
                        let served = self.ask_l2(addressed as f64, self.machine.vector_cache.line as f64);
                        there.max((served + self.machine.l2_latency) as u64)
                    }
                    Some(there) => {
                        self.moved.hits += 1;
                        there
                    }
                    None => {
                        let there = self.fetch(addressed, line * pieces, self.machine.vector_cache.line, share, salt);
                        self.units[unit].tags.insert(line ^ salt, there);
                        there
                    }
                };
                done = done.max(there);
            }
        }
        let bytes = f64::from(access.bytes);
        self.moved.vector_cache += bytes;
        // What came in order goes back in order, at the width of the path.
        let width = bytes / self.machine.vector_cache_bytes;
        let free = &mut self.units[unit].return_free;
        *free = (*free + width).max((done - around.min(done)) as f64);
        free.ceil() as u64
    }

    /// A line from L2 or behind it: when it is there.
    fn fetch(&mut self, now: u64, piece: u64, bytes: u64, share: Share, salt: u64) -> u64 {
        let arrival = now as f64;
        let here = self.ask_l2(arrival, bytes as f64);
        let queued = here - arrival;
        let key = (piece * PIECE / LINE) ^ salt;
        if let Some(there) = self.known.there.get(&key) {
            return ((arrival + queued + self.machine.l2_latency) as u64).max(*there);
        }
        let place = self.placement(piece);
        let share = if share.pieces == 0 { place.share } else { share };
        let share = share.apart(&place, self.rates.drift);
        let missing = 1.0 - place.l2;
        let mut at = here;
        if missing > 0.0 {
            let line = LINE as f64 * missing;
            self.fill_l2(here, line * share.die);
            if self.machine.side_bytes > 0 {
                let rate = self.rates.side_read / self.side_mix.turns();
                at = self.side.read(at, line * share.die, rate);
                self.side_mix.read += line * share.die;
                self.moved.side += line * share.die;
            }
            let rest = LINE as f64 * (missing - place.side).max(0.0);
            if rest > 0.0 {
                self.note_stream(place.base);
                let rate = self.rates.dram_read / self.dram_mix.turns();
                at = self.dram.read(at, rest * share.all, rate);
                self.dram_mix.read += rest * share.all;
                self.moved.dram += rest * share.all;
            }
        }
        let there = (at + self.latency(&place) + self.translate(piece)) as u64;
        self.remember(key, there);
        there
    }

    /// Counts the allocation at `base` among the streams of DRAM.
    ///
    /// After each turn between reads and writes every stream opens its rows again, so the loss of a copy, which has
    /// two, grows with their number. A memory-side cache orders what it reads and writes itself.
    fn note_stream(&mut self, base: u64) {
        if self.machine.side_bytes > 0 || self.streams.len() >= MOST_STREAMS || self.streams.contains(&base) {
            return;
        }
        self.streams.push(base);
        self.dram_mix.streams = self.streams.len().max(2) as f64;
    }

    /// When L2 has served `bytes` that are asked for at `now`.
    fn ask_l2(&mut self, now: f64, bytes: f64) -> f64 {
        let rate = self.rates.l2_read / self.l2_mix.turns();
        self.l2_mix.read += bytes;
        self.moved.l2 += bytes;
        self.l2.read(now, bytes, rate)
    }

    /// L2 takes in `bytes` that it lacked: they occupy its array as a read of them does, while it has no read to serve.
    fn fill_l2(&mut self, now: f64, bytes: f64) {
        self.moved.l2 += bytes;
        self.l2.write(now, bytes, self.rates.l2_read);
    }

    /// Cycles of a load from where an allocation's lines are, without waiting.
    fn latency(&self, place: &Placement) -> f64 {
        let dram = (1.0 - place.l2 - place.side).max(0.0);
        let behind = self.machine.side_latency * place.side + self.machine.dram_latency * dram;
        self.machine.l2_latency * place.l2 + behind * self.rates.clock
    }

    /// The workgroups of a replay are a sample: the one before this in the launch lies beside it, so that what a
    /// workgroup streams begins in pages that its unit knows already.
    fn neighbours(&mut self, load: &Load<'_>) {
        let before = self.last_group.insert(load.inst, load.group);
        if before.is_none_or(|before| before == load.group) {
            return;
        }
        let page = |piece: u64| piece * PIECE / PAGE;
        let mut pages = load
            .runs
            .iter()
            .flat_map(|run| [page(run.piece), page(run.piece + u64::from(run.count) - 1)]);
        let Some(first) = pages.next() else { return };
        if pages.all(|page| page.abs_diff(first) <= 1) {
            for run in load.runs {
                self.translate(run.piece);
            }
        }
    }

    /// Cycles of finding a page's translation; none where it is at hand.
    fn translate(&mut self, piece: u64) -> f64 {
        let page = piece * PIECE / PAGE;
        if self.pages.back() == Some(&page) {
            return 0.0;
        }
        let at = self.pages.iter().position(|known| *known == page);
        if let Some(at) = at {
            self.pages.remove(at);
        } else if self.pages.len() as u64 >= self.machine.tlb_bytes / PAGE {
            self.pages.pop_front();
        }
        self.pages.push_back(page);
        if at.is_some() { 0.0 } else { self.machine.tlb_latency }
    }

    fn remember(&mut self, key: u64, there: u64) {
        if self.known.order.len() >= self.rates.l2_lines.max(64)
            && let Some(old) = self.known.order.pop_front()
        {
            self.known.there.remove(&old);
        }
        if self.known.there.insert(key, there).is_none() {
            self.known.order.push_back(key);
        }
    }

    /// A store or an atomic issued at `now`: when memory has acknowledged it.
    pub fn store(&mut self, unit: usize, now: u64, access: &Access, runs: &[Run], salt: u64) -> u64 {
        let width = (f64::from(access.bytes) / self.machine.vector_cache_bytes).ceil() as u32;
        let addressed = self.address(unit, now, access.cycles.max(width));
        let from = addressed as f64;
        let mut accepted = from;
        for run in runs {
            for piece in run.piece..run.piece + u64::from(run.count) {
                let bytes = PIECE as f64;
                let rate = self.rates.l2_write / self.l2_mix.turns();
                let mut at = self.l2.read(from, bytes, rate);
                self.l2_mix.written += bytes;
                self.moved.l2 += bytes;
                let key = piece ^ salt ^ 1 << 62;
                if !self.known.there.contains_key(&key) {
                    let place = self.placement(piece);
                    let missing = 1.0 - place.l2;
                    if missing > 0.0 && self.machine.side_bytes > 0 {
                        let rate = self.rates.side_write / self.side_mix.turns();
                        at = at.max(self.side.write(at, bytes * missing, rate));
                        self.side_mix.written += bytes * missing;
                        self.moved.side += bytes * missing;
                    }
                    let rest = (missing - place.side).max(0.0);
                    if rest > 0.0 {
                        self.note_stream(place.base);
                        let rate = self.rates.dram_write / self.dram_mix.turns();
                        at = at.max(self.dram.write(at, bytes * rest, rate));
                        self.dram_mix.written += bytes * rest;
                        self.moved.dram += bytes * rest;
                    }
                    self.remember(key, at as u64);
                }
                accepted = accepted.max(at);
            }
        }
        let done = (accepted + self.machine.store_latency) as u64;
        self.acknowledged = self.acknowledged.max(done);
        done
    }

    /// A scalar load issued at `now`: when its data is there.
    pub fn scalar(&mut self, now: u64, runs: &[Run]) -> u64 {
        let cache = &self.machine.scalar_cache;
        let mut done = now + u64::from(cache.latency);
        for run in runs {
            for piece in run.piece..run.piece + u64::from(run.count) {
                let there = match self.scalar.find(piece) {
                    Some(there) => there,
                    None => {
                        let placement = self.placement(piece);
                        // A miss costs what L2 costs a vector load behind its own cache.
                        let behind = self.latency(&placement) - f64::from(self.machine.vector_cache.latency);
                        let there = now + u64::from(cache.latency) + behind as u64;
                        self.scalar.insert(piece, there);
                        there
                    }
                };
                done = done.max(there);
            }
        }
        done
    }
}

/// The part of a region that a cache still holds after `sum` bytes, itself among them, have come since.
pub(crate) fn held(sum: u64, capacity: u64, (full, none): (f64, f64)) -> f64 {
    let fill = sum as f64 / capacity.max(1) as f64;
    ((none - fill) / (none - full)).clamp(0.0, 1.0)
}

/// Says where each touched allocation's lines are found, given all of them: the smaller ones are held before the
/// larger, those of one size alike.
///
/// A level that has room for all bytes up to an allocation holds it; one that they exceed holds the less of it the more
/// they do (`Machine::l2_edge`, from the chase). Buffers are taken to have been used before: a benchmark's second run,
/// or a model's next step.
pub(crate) fn place(machine: &Machine, mut regions: Vec<(u64, u64)>) -> Vec<Placement> {
    regions.sort_unstable_by_key(|(base, size)| (*size, *base));
    let mut sum = 0u64;
    let mut placements = Vec::with_capacity(regions.len());
    for alike in regions.chunk_by(|a, b| a.1 == b.1) {
        sum = alike.iter().fold(sum, |sum, (_, size)| sum.saturating_add(*size));
        let l2 = held(sum, machine.l2_bytes, machine.l2_edge);
        let side = match machine.side_bytes {
            0 => 0.0,
            bytes => held(sum, bytes, (1.0, 1.08)),
        };
        let beyond = |bytes: u64| (1.0 - bytes as f64 / sum.max(1) as f64).max(0.0);
        placements.extend(alike.iter().map(|(base, size)| Placement {
            base: *base,
            end: base + size,
            l2,
            side: side.max(l2) - l2,
            beyond_l2: beyond(machine.l2_bytes),
            beyond: beyond(machine.l2_bytes.max(machine.side_bytes)),
            share: Share::of(0, 1.0, 1.0),
        }));
    }
    placements.sort_unstable_by_key(|placement| placement.base);
    placements
}
