//! One compute unit (or pair) over time: traces of workgroups go in, cycles and their causes come out.
//!
//! Event by event: of all waves the one that can issue earliest does (of several the one of the highest priority, then
//! the oldest), at most one instruction a slot from a wave, and one of each class a slot from a SIMD. What holds a wave
//! is kept with it, and the time in which a SIMD issues nothing is put down to what held the wave that issues next.

use super::clock::MatrixShare;
use super::facts::{InstructionFacts, REGISTERS, Unit};
use super::fetch::{Buffer, CodeCache};
use super::machine::Machine;
use super::memory::{Load, Memory, Moved, Placement, Rates, Share};
use super::report::Stall;
use super::trace::{Recorder, Wave as Trace};
use crate::counters::{CLASSES, Class};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What is replayed.
pub(crate) struct Input<'a> {
    pub machine: &'a Machine,
    pub facts: &'a [InstructionFacts],
    pub traces: &'a [Recorder],
    /// The trace of each workgroup that the unit gets, in order.
    pub order: &'a [usize],
    /// Workgroups that it holds at once.
    pub resident: usize,
    pub rates: Rates,
    pub placements: &'a [Placement],
    /// By instruction.
    pub shares: &'a [Share],
    /// Cycles between two workgroups that the dispatcher gives to this unit.
    pub dispatch: f64,
    /// Whether caches have none of the code at first.
    pub cold_code: bool,
    /// Issues that are kept for a picture.
    pub keep: usize,
    /// Leaves out the later half of the recorded iterations of loops that were not recorded whole.
    pub shorter: bool,
}

/// One issue, for a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The wave's place: SIMD and slot.
    pub simd: u32,
    pub slot: u32,
    /// The number of the workgroup in the grid, and the wave in it.
    pub group: u64,
    pub wave: u32,
    /// The instruction's index in the kernel.
    pub inst: u32,
    /// When the wave could have issued but for what held it, and when it issued.
    pub from: u64,
    pub at: u64,
    /// Cycles that the issue takes.
    pub cycles: u32,
    pub stall: Stall,
}

/// What a replay gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub cycles: u64,
    /// SIMD cycles that issued, by class.
    pub issued: [u64; CLASSES],
    /// SIMD cycles that did not, by cause.
    pub stalls: [u64; Stall::COUNT],
    /// SIMD cycles lost, by instruction and cause.
    pub lost: Vec<[u64; Stall::COUNT]>,
    pub instructions: u64,
    /// Cycles that the units were taken, summed over SIMDs or pipes.
    pub valu_busy: u64,
    pub matrix_busy: u64,
    /// Of that, with f64.
    pub double_busy: u64,
    pub lds_busy: u64,
    pub addresser_busy: u64,
    pub moved: Moved,
    /// Cycles of one workgroup more, as it went while all places were taken; none where that was for less than a round.
    pub pace: Option<f64>,
    pub issues: Vec<Issue>,
}

impl Outcome {
    /// Matrix work without a pause, of the types that this has.
    pub fn densest(&self) -> MatrixShare {
        let double = self.double_busy as f64 / self.matrix_busy.max(1) as f64;
        MatrixShare {
            other: 1.0 - double,
            double,
        }
    }

    /// What more iterations give: `ratio` times as many as tell this replay from `shorter`.
    pub fn with_more(&self, shorter: &Outcome, ratio: f64) -> Outcome {
        let more = |long: u64, short: u64| long + ((long as f64 - short as f64) * ratio).round().max(0.0) as u64;
        let bytes = |long: f64, short: f64| long + (long - short).max(0.0) * ratio;
        Outcome {
            cycles: more(self.cycles, shorter.cycles),
            issued: std::array::from_fn(|class| more(self.issued[class], shorter.issued[class])),
            stalls: std::array::from_fn(|stall| more(self.stalls[stall], shorter.stalls[stall])),
            lost: (self.lost.iter().zip(&shorter.lost))
                .map(|(long, short)| std::array::from_fn(|stall| more(long[stall], short[stall])))
                .collect(),
            instructions: more(self.instructions, shorter.instructions),
            valu_busy: more(self.valu_busy, shorter.valu_busy),
            matrix_busy: more(self.matrix_busy, shorter.matrix_busy),
            double_busy: more(self.double_busy, shorter.double_busy),
            lds_busy: more(self.lds_busy, shorter.lds_busy),
            addresser_busy: more(self.addresser_busy, shorter.addresser_busy),
            moved: Moved {
                vector_cache: bytes(self.moved.vector_cache, shorter.moved.vector_cache),
                l2: bytes(self.moved.l2, shorter.moved.l2),
                side: bytes(self.moved.side, shorter.moved.side),
                dram: bytes(self.moved.dram, shorter.moved.dram),
                lookups: more(self.moved.lookups, shorter.moved.lookups),
                hits: more(self.moved.hits, shorter.moved.hits),
            },
            pace: (self.pace.zip(shorter.pace)).map(|(long, short)| bytes(long, short)),
            issues: self.issues.clone(),
        }
    }
}

#[derive(Clone, Copy)]
struct Register {
    ready: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Other,
    Vector,
    Matrix,
}

struct Wave<'a> {
    trace: &'a Trace,
    at: usize,
    /// The next of the trace's skips.
    skip: usize,
    group: usize,
    number: u32,
    simd: usize,
    slot: u32,
    ready: u64,
    cause: Stall,
    code: Buffer,
    registers: Vec<Register>,
    /// When the operations of each counter are done, oldest first.
    pending: [VecDeque<(u64, Stall)>; 4],
    last_done: [u64; 4],
    /// When its LDS instructions that are not served yet will be.
    lds_waiting: VecDeque<u64>,
    age: u32,
    /// 3 less the level that the wave has set.
    rank: u8,
}

#[derive(Clone, Copy, Default)]
struct Simd {
    /// When the last issue's slot ended.
    last: u64,
    free: [u64; CLASSES],
    transcendental_free: u64,
    valu_free: u64,
    matrix_free: u64,
    /// The wave of the last matrix instruction.
    matrix_wave: usize,
    waves: u32,
}

struct Group {
    alive: u32,
    arrived: u32,
    /// Waves at the barrier, with the time they came.
    waiting: Vec<usize>,
    /// Split barriers: how many phases have completed and when.
    opened: VecDeque<u64>,
    signalled: Vec<u32>,
    waited: Vec<u32>,
    salt: u64,
    number: u64,
}

/// Replays the workgroups that one unit gets.
pub(crate) fn replay(input: &Input<'_>) -> Outcome {
    let mut model = Model::new(input);
    model.run();
    model.finish()
}

struct Model<'a> {
    input: &'a Input<'a>,
    memory: Memory<'a>,
    code: CodeCache,
    simds: Vec<Simd>,
    /// The LDS: its banks, and the paths of its pipes.
    banks_free: Vec<u64>,
    pipes_free: Vec<u64>,
    /// LDS instructions of a wave that are taken in ahead.
    lds_share: usize,
    /// What memory sends straight to each set of banks: when it comes and the cycles that it takes, in order.
    lds_coming: Vec<VecDeque<(u64, u64)>>,
    waves: Vec<Wave<'a>>,
    groups: Vec<Group>,
    /// Waves by the time at which they can issue, their rank and age.
    heap: BinaryHeap<Reverse<(u64, u8, u32)>>,
    next_group: usize,
    next_dispatch: f64,
    /// When each workgroup came to a place that another had left, and the instructions that were issued before.
    followed: Vec<(u64, u64)>,
    out: Outcome,
    end: u64,
}

const SIMDS: usize = 4;
/// The rank of a wave that has set no priority.
const LOWEST: u8 = 3;
/// LDS instructions that a compute unit takes in ahead.
const LDS_QUEUE: usize = 16;
/// Bytes a cycle that LDS takes of what memory sends to it: 32 banks of four.
const LDS_WRITE: u32 = 128;

/// LDS instructions that one wave may have waiting: the unit's queue is shared alike among the waves that it holds, so
/// that an old wave does not keep young ones from LDS.
fn lds_share(input: &Input<'_>) -> usize {
    let waves = |trace: &usize| input.traces[*trace].waves.len();
    let held = input.order.iter().map(waves).max().unwrap_or(1) * input.resident;
    (LDS_QUEUE * input.machine.units_per_group as usize / held.max(1)).max(1)
}

fn raise(at: &mut u64, cause: &mut Stall, to: u64, because: Stall) {
    if to > *at {
        *at = to;
        *cause = because;
    }
}

impl<'a> Model<'a> {
    fn new(input: &'a Input<'a>) -> Model<'a> {
        let pipes = input.machine.lds_pipes as usize;
        Model {
            input,
            memory: Memory::new(input.machine, input.rates, input.placements),
            code: CodeCache::new(
                input.machine,
                input.facts,
                input.traces,
                input.cold_code,
                input.rates.clock,
            ),
            simds: vec![Simd::default(); SIMDS],
            banks_free: vec![0; input.machine.lds_arrays as usize],
            pipes_free: vec![0; pipes],
            lds_share: lds_share(input),
            lds_coming: vec![VecDeque::new(); input.machine.lds_arrays as usize],
            waves: Vec::new(),
            groups: Vec::new(),
            heap: BinaryHeap::new(),
            next_group: 0,
            next_dispatch: 0.0,
            followed: Vec::new(),
            out: Outcome {
                lost: vec![[0; Stall::COUNT]; input.facts.len()],
                ..Outcome::default()
            },
            end: 0,
        }
    }

    fn run(&mut self) {
        for _ in 0..self.input.resident {
            self.start_group(0);
        }
        while let Some(Reverse((key, rank, index))) = self.heap.pop() {
            let wave = index as usize;
            let Some(event) = self.waves[wave].trace.events.get(self.waves[wave].at) else {
                // A trace that was cut: the wave ends here.
                self.end_wave(wave, key);
                continue;
            };
            let facts = &self.input.facts[event.inst as usize];
            let (at, cause) = self.earliest(wave, facts);
            if at > key {
                self.heap.push(Reverse((at, rank, index)));
                continue;
            }
            self.issue(wave, facts, at, cause);
        }
    }

    /// Starts the next workgroup that the unit gets, if there is one, when a place is free at `now`.
    fn start_group(&mut self, now: u64) {
        let Some(trace) = self.input.order.get(self.next_group) else {
            return;
        };
        let recorder = &self.input.traces[*trace];
        if self.next_group >= self.input.resident {
            self.followed.push((now, self.out.instructions));
        }
        // The dispatcher serves the units in turn; a place that is free gets its workgroup at once where it has kept
        // up.
        let own = recorder.waves.len() as f64 * self.input.machine.dispatch;
        self.next_dispatch = (self.next_dispatch + self.input.dispatch).max(now as f64 + own);
        let start = self.next_dispatch as u64 + u64::from(self.input.machine.start);
        let repeat = self.input.order[..self.next_group]
            .iter()
            .filter(|t| *t == trace)
            .count() as u64;
        let group = self.groups.len();
        let count = recorder.waves.len();
        self.groups.push(Group {
            alive: count as u32,
            arrived: 0,
            waiting: Vec::new(),
            opened: VecDeque::new(),
            signalled: vec![0; count],
            waited: vec![0; count],
            // A workgroup that replays a trace again has data of its own.
            salt: repeat << 44,
            number: recorder.group,
        });
        self.next_group += 1;
        for (number, trace) in recorder.waves.iter().enumerate() {
            let simd = (0..SIMDS)
                .min_by_key(|simd| (self.simds[*simd].waves, *simd))
                .unwrap_or(0);
            let used = self.simds[simd].waves;
            self.simds[simd].waves += 1;
            let index = self.waves.len();
            let first = trace
                .events
                .first()
                .map_or(0, |event| self.input.facts[event.inst as usize].address);
            self.waves.push(Wave {
                trace,
                at: 0,
                skip: 0,
                group,
                number: number as u32,
                simd,
                slot: used,
                ready: start,
                cause: Stall::NoWave,
                code: Buffer::at(&mut self.code, first, start, start),
                registers: vec![
                    Register {
                        ready: 0,
                        kind: Kind::Other
                    };
                    REGISTERS
                ],
                pending: Default::default(),
                last_done: [0; 4],
                lds_waiting: VecDeque::new(),
                age: index as u32,
                rank: LOWEST,
            });
            self.heap.push(Reverse((start, LOWEST, index as u32)));
        }
        if count == 0 {
            self.start_group(start);
        }
    }

    /// The unit's part that a SIMD's memory instructions go to.
    fn memory_unit(&self, simd: usize) -> usize {
        simd * self.input.machine.units_per_group as usize / SIMDS
    }

    /// When a wave's next instruction can issue, and what holds it last.
    fn earliest(&self, index: usize, facts: &InstructionFacts) -> (u64, Stall) {
        let machine = self.input.machine;
        let wave = &self.waves[index];
        let simd = &self.simds[wave.simd];
        let (mut at, mut cause) = (wave.ready, wave.cause);
        let fetched = wave.code.ready(&self.code, facts.address, facts.size);
        raise(&mut at, &mut cause, fetched, Stall::Fetch);
        let chained = facts
            .chain
            .map(|(addend, _)| (addend, addend + facts.writes.len() as u16));
        let memory = matches!(facts.unit, Unit::Vmem { .. } | Unit::Lds { .. });
        let scalar = matches!(facts.unit, Unit::Salu | Unit::Branch | Unit::Smem);
        for register in facts.reads.iter() {
            let Register { ready, kind } = wave.registers[*register as usize];
            let (ready, because) = match kind {
                Kind::Vector if memory => {
                    let usual = machine.valu_latency;
                    (ready + u64::from(machine.valu_to_memory - usual), Stall::Dependency)
                }
                Kind::Vector if scalar => (ready + u64::from(machine.valu_to_scalar), Stall::Dependency),
                Kind::Matrix => {
                    let forwarded = facts.unit == Unit::Matrix
                        && chained.is_some_and(|(first, end)| (first..end).contains(register));
                    (ready - if forwarded { MATRIX_RESULT } else { 0 }, Stall::MatrixResult)
                }
                _ => (ready, Stall::Dependency),
            };
            raise(&mut at, &mut cause, ready, because);
        }
        for (counter, left) in facts.waits.iter() {
            let pending = &wave.pending[*counter as usize];
            if let Some(last) = pending.len().checked_sub(left + 1) {
                let (done, because) = pending[last];
                raise(&mut at, &mut cause, done + u64::from(machine.wake), because);
            }
        }
        match facts.unit {
            Unit::Valu => {
                raise(&mut at, &mut cause, simd.valu_free, Stall::VectorBusy);
                if facts.shuts_out {
                    // Behind its own wave's matrix instruction the pipe has to drain as well.
                    let drain = if simd.matrix_wave == index { PACKED_DRAIN } else { 0 };
                    raise(&mut at, &mut cause, simd.matrix_free + drain, Stall::MatrixBusy);
                }
            }
            Unit::Transcendental => raise(&mut at, &mut cause, simd.transcendental_free, Stall::VectorBusy),
            Unit::Matrix => {
                raise(&mut at, &mut cause, simd.valu_free, Stall::VectorBusy);
                raise(&mut at, &mut cause, simd.matrix_free, Stall::MatrixBusy);
            }
            Unit::Vmem { .. } => {
                let ready = self.memory.ready(self.memory_unit(wave.simd));
                raise(&mut at, &mut cause, ready, Stall::AddresserBusy);
            }
            Unit::Lds { .. } if wave.lds_waiting.len() >= self.lds_share => {
                let first = wave.lds_waiting.front().copied().unwrap_or(0);
                raise(&mut at, &mut cause, first, Stall::LdsBusy);
            }
            // A wave's place is given back when its stores are acknowledged.
            Unit::End => {
                for pending in &wave.pending {
                    if let Some((done, Stall::VectorMemory)) = pending.back() {
                        raise(&mut at, &mut cause, *done, Stall::Drain);
                    }
                }
            }
            _ => {}
        }
        raise(&mut at, &mut cause, simd.free[facts.class as usize], Stall::Slot);
        // A SIMD's turn comes once in a round.
        let slot = u64::from(machine.slot);
        let phase = if slot > 1 { wave.simd as u64 % slot } else { 0 };
        let late = (at + slot - phase) % slot;
        if late != 0 {
            at += slot - late;
        }
        (at, cause)
    }

    fn issue(&mut self, index: usize, facts: &'a InstructionFacts, at: u64, cause: Stall) {
        let input = self.input;
        let machine = input.machine;
        let slot = u64::from(machine.slot);
        let wave = &mut self.waves[index];
        let simd = &mut self.simds[wave.simd];
        let event = wave.trace.events[wave.at];
        let inst = event.inst as usize;
        if at > simd.last {
            let gap = at - simd.last;
            self.out.stalls[cause as usize] += gap;
            self.out.lost[inst][cause as usize] += gap;
        }
        if at >= simd.last {
            self.out.issued[facts.class as usize] += slot;
            simd.last = at + slot;
        }
        simd.free[facts.class as usize] = at + slot;
        if self.out.issues.len() < input.keep {
            self.out.issues.push(Issue {
                simd: wave.simd as u32,
                slot: wave.slot,
                group: self.groups[wave.group].number,
                wave: wave.number,
                inst: event.inst,
                from: wave.ready.min(at),
                at,
                cycles: match facts.unit {
                    Unit::Valu | Unit::Transcendental | Unit::Matrix => facts.cycles.max(machine.slot),
                    _ => machine.slot,
                },
                stall: cause,
            });
        }
        self.out.instructions += 1;
        wave.at += 1;
        if input.shorter
            && let Some(skip) = wave.trace.skips.get(wave.skip)
            && skip.first == wave.at
        {
            wave.at = skip.last;
            wave.skip += 1;
        }
        let next_inst = wave.trace.events.get(wave.at).map(|event| event.inst);
        let jumped = next_inst.is_some_and(|next| next != event.inst + 1);
        wave.ready = at + slot;
        wave.cause = Stall::Slot;
        for (counter, left) in facts.waits.iter() {
            let pending = &mut wave.pending[*counter as usize];
            while pending.len() > *left {
                pending.pop_front();
            }
        }
        let cycles = u64::from(facts.cycles);
        let mut result = (at + slot, Kind::Other);
        let mut done: Option<(u64, Stall)> = None;
        let salt = self.groups[wave.group].salt;
        match facts.unit {
            Unit::Valu => {
                simd.valu_free = at + cycles;
                self.out.valu_busy += cycles;
                result = (at + cycles + u64::from(machine.valu_latency), Kind::Vector);
            }
            Unit::Transcendental => {
                simd.transcendental_free = at + cycles;
                result = (at + cycles + u64::from(machine.transcendental_latency), Kind::Vector);
            }
            Unit::Matrix => {
                simd.matrix_free = at + cycles;
                simd.matrix_wave = index;
                simd.valu_free = at + if facts.exclusive { cycles } else { slot };
                self.out.matrix_busy += cycles;
                if facts.double {
                    self.out.double_busy += cycles;
                }
                result = (at + cycles + MATRIX_RESULT, Kind::Matrix);
            }
            Unit::Salu => result = (at + slot + u64::from(machine.salu_latency), Kind::Other),
            Unit::Smem => {
                let there = match wave.trace.access(&event) {
                    Some((_, runs)) => self.memory.scalar(at, runs),
                    None => at + u64::from(machine.scalar_cache.latency),
                };
                done = Some((there, Stall::ScalarMemory));
            }
            Unit::Vmem { store } => {
                let unit = wave.simd * machine.units_per_group as usize / SIMDS;
                if let Some((access, runs)) = wave.trace.access(&event)
                    && event.lanes > 0
                {
                    let there = if store {
                        self.memory.store(unit, at, access, runs, salt)
                    } else {
                        {
                            let load = Load {
                                access,
                                runs,
                                share: input.shares[inst],
                                inst,
                                group: wave.group,
                                salt,
                            };
                            self.memory.load(unit, at, &load)
                        }
                    };
                    // It is written at the rate of the banks' whole width.
                    let written = match facts.to_lds {
                        true => u64::from(access.bytes.div_ceil(LDS_WRITE)),
                        false => 0,
                    };
                    if written > 0 {
                        let array = wave.simd * self.banks_free.len() / SIMDS;
                        self.lds_coming[array].push_back((there, written));
                        self.out.lds_busy += written;
                    }
                    done = Some((there + written, Stall::VectorMemory));
                } else {
                    done = Some((at + slot, Stall::VectorMemory));
                }
            }
            Unit::Lds { write } => {
                let pipe = wave.simd * self.pipes_free.len() / SIMDS;
                let bytes = u64::from(facts.bytes) * u64::from(event.lanes);
                // Permutes have no banks.
                let banks = u64::from(event.extra).max(1);
                // A write brings its addresses by the path on which its data comes.
                let path = bytes.div_ceil(u64::from(machine.lds_pipe_bytes)).max(1) + if write { slot } else { 0 };
                let array = wave.simd * self.banks_free.len() / SIMDS;
                let coming = &mut self.lds_coming[array];
                while let Some((there, cycles)) = coming.pop_front_if(|(there, _)| *there <= at) {
                    self.banks_free[array] = self.banks_free[array].max(there) + cycles;
                }
                let start = self.banks_free[array].max(at);
                self.banks_free[array] = start + banks;
                let ends = self.pipes_free[pipe].max(at) + path;
                self.pipes_free[pipe] = ends;
                if wave.lds_waiting.len() >= self.lds_share {
                    wave.lds_waiting.pop_front();
                }
                let served = (start + banks).max(ends);
                wave.lds_waiting.push_back(served);
                self.out.lds_busy += banks.max(path * u64::from(machine.lds_arrays) / u64::from(machine.lds_pipes));
                let words = u64::from(facts.bytes.div_ceil(4)).max(1);
                let latency = u64::from(machine.lds_latency) + (words - 1) * u64::from(machine.lds_word_latency);
                // The unloaded latency holds a conflict-free access.
                let unloaded = path.max(2);
                done = Some(((served + latency).saturating_sub(unloaded), Stall::Lds));
            }
            Unit::Branch => {
                let cost = if jumped {
                    machine.branch_taken
                } else {
                    machine.branch_not_taken
                };
                wave.ready = at + u64::from(cost.max(machine.slot));
                wave.cause = Stall::Branch;
            }
            Unit::Priority(level) => wave.rank = LOWEST - level.min(LOWEST),
            Unit::Nop(cycles) => {
                wave.ready = at + u64::from(cycles).max(slot);
                wave.cause = Stall::Nop;
            }
            Unit::Free | Unit::Barrier | Unit::Signal | Unit::BarrierWait | Unit::End => {}
        }
        if done.is_none() {
            for register in facts.writes.iter() {
                wave.registers[*register as usize] = Register {
                    ready: result.0,
                    kind: result.1,
                };
            }
        }
        if let Some((there, because)) = done {
            for counter in facts.counters.iter() {
                let last = &mut wave.last_done[*counter as usize];
                *last = (*last).max(there);
                wave.pending[*counter as usize].push_back((*last, because));
            }
        }
        if let Some(next) = next_inst {
            let address = input.facts[next as usize].address;
            if address == facts.address + u64::from(facts.size) {
                wave.code.pass(&mut self.code, address, at);
            } else {
                wave.code = Buffer::at(&mut self.code, address, at, wave.ready);
            }
        }
        self.end = self.end.max(at + slot);
        match facts.unit {
            Unit::End => {
                self.end_wave(index, at + slot);
                return;
            }
            Unit::Barrier if self.arrive(index, at) => {
                return;
            }
            Unit::Signal => self.signal(index, at),
            Unit::BarrierWait if self.wait(index, at) => {
                return;
            }
            _ => {}
        }
        let wave = &self.waves[index];
        self.heap.push(Reverse((wave.ready, wave.rank, wave.age)));
    }

    /// A wave comes to the barrier; returns whether it has been taken from those that run (and put back, if it opened).
    fn arrive(&mut self, index: usize, at: u64) -> bool {
        let group = self.waves[index].group;
        self.groups[group].waiting.push(index);
        self.groups[group].arrived += 1;
        self.open(group, at);
        true
    }

    /// Opens a barrier that all living waves have come to.
    fn open(&mut self, group: usize, at: u64) {
        let state = &mut self.groups[group];
        if state.arrived < state.alive || state.waiting.is_empty() {
            return;
        }
        state.arrived = 0;
        for index in std::mem::take(&mut state.waiting) {
            let wave = &mut self.waves[index];
            wave.ready = at + u64::from(self.input.machine.barrier);
            wave.cause = Stall::Barrier;
            self.heap.push(Reverse((wave.ready, wave.rank, wave.age)));
        }
    }

    /// gfx12: a wave says that it has come.
    fn signal(&mut self, index: usize, at: u64) {
        let (group, number) = (self.waves[index].group, self.waves[index].number as usize);
        self.groups[group].signalled[number] += 1;
        self.phases(group, at);
    }

    /// Notes the phases that all waves have signalled, and wakes those that wait for them.
    fn phases(&mut self, group: usize, at: u64) {
        let opens = at + u64::from(self.input.machine.barrier);
        let state = &mut self.groups[group];
        let complete = state.signalled.iter().copied().min().unwrap_or(0) as usize;
        while state.opened.len() < complete.min(1 << 20) {
            state.opened.push_back(opens);
        }
        let opened = state.opened.len() as u32;
        let (waiting, waited) = (std::mem::take(&mut state.waiting), &state.waited);
        let mut left = Vec::new();
        for index in waiting {
            let wave = &mut self.waves[index];
            if waited[wave.number as usize] <= opened {
                wave.ready = wave.ready.max(opens);
                wave.cause = Stall::Barrier;
                self.heap.push(Reverse((wave.ready, wave.rank, wave.age)));
            } else {
                left.push(index);
            }
        }
        self.groups[group].waiting = left;
    }

    /// gfx12: a wave waits for the phase that it has signalled; returns whether it was taken from those that run.
    fn wait(&mut self, index: usize, at: u64) -> bool {
        let (group, number) = (self.waves[index].group, self.waves[index].number as usize);
        let state = &mut self.groups[group];
        state.waited[number] += 1;
        let phase = state.waited[number] as usize;
        match state.opened.get(phase - 1) {
            Some(opened) => {
                let wave = &mut self.waves[index];
                raise(&mut wave.ready, &mut wave.cause, (*opened).max(at), Stall::Barrier);
                false
            }
            None => {
                state.waiting.push(index);
                true
            }
        }
    }

    fn end_wave(&mut self, index: usize, at: u64) {
        let wave = &mut self.waves[index];
        wave.registers = Vec::new();
        let (group, number, simd) = (wave.group, wave.number as usize, wave.simd);
        self.simds[simd].waves -= 1;
        self.end = self.end.max(at);
        let state = &mut self.groups[group];
        state.alive -= 1;
        state.signalled[number] = u32::MAX;
        if state.alive == 0 {
            self.start_group(at);
        } else {
            self.open(group, at);
            self.phases_after_end(group, at);
        }
    }

    /// A wave that ended counts as one that has signalled everything.
    fn phases_after_end(&mut self, group: usize, at: u64) {
        let split = self.groups[group].waited.iter().any(|waited| *waited > 0);
        if split {
            self.phases(group, at);
        }
    }

    /// Between the first and the last workgroup that followed another all places are taken: the launch's steady state,
    /// in which the instructions of one workgroup take a workgroup's part of the time, whatever the phases of those
    /// that run together.
    fn pace(&self) -> Option<f64> {
        let (first, last) = (self.followed.first()?, self.followed.last()?);
        let (cycles, instructions) = (last.0.checked_sub(first.0)?, last.1.checked_sub(first.1)?);
        let enough = self.followed.len() > self.input.resident && instructions > 0;
        let each = self.out.instructions as f64 / self.next_group as f64;
        enough.then(|| cycles as f64 * each / instructions as f64)
    }

    fn finish(mut self) -> Outcome {
        let end = self.end.max(self.memory.drained());
        for simd in &self.simds {
            let cause = if end > self.end { Stall::Drain } else { Stall::NoWave };
            let gap = end.saturating_sub(simd.last);
            let idle = self.end.saturating_sub(simd.last);
            self.out.stalls[Stall::NoWave as usize] += idle;
            self.out.stalls[cause as usize] += gap - idle;
        }
        self.out.cycles = end;
        self.out.pace = self.pace();
        self.out.addresser_busy = self.memory.addresser_busy;
        self.out.moved = self.memory.moved;
        self.out
    }
}

/// Cycles from the last pass of a matrix instruction until its result can be read elsewhere.
const MATRIX_RESULT: u64 = 12;

/// Cycles more until packed f32 follows a matrix instruction of its wave (measured on MI308X: 12 in all with its own
/// issue).
const PACKED_DRAIN: u64 = 8;

/// The classes whose instructions issue from a SIMD one a slot each.
const _: () = assert!(CLASSES == 8 && Class::Control as usize == 7);
