//! What sampled workgroups leave behind: each wave's instructions in order, with what their cost depends on.
//!
//! Off, it costs a launch nothing but a test where memory is accessed. Addresses are kept as the pieces of 64 bytes
//! that an access touches, in runs, so that a coalesced access is one entry.

use super::banks;
use super::facts::InstructionFacts;
use super::loops::{Loops, Skip, alike};
use crate::arch::{Arch, Generation};
use std::sync::Arc;

/// Bytes of the pieces that addresses are kept in.
pub(crate) const PIECE: u64 = 64;

/// Where scratch lies in the trace's addresses. No allocation is there.
pub(crate) const SCRATCH: u64 = 0x7000_0000_0000;

/// One executed instruction of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its index in the kernel's code.
    pub inst: u32,
    /// Vector and scalar memory: 1 + the index of its access. LDS: cycles of the banks. Otherwise 0.
    pub extra: u32,
    /// Lanes that were on.
    pub lanes: u8,
}

/// What a memory instruction touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Its runs of pieces, as a range of [`Wave::runs`].
    pub first: u32,
    pub count: u32,
    /// Cycles of the addresser and the cache's tags.
    pub cycles: u32,
    /// Bytes that the lanes asked for.
    pub bytes: u32,
}

/// Neighbouring pieces of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Address over [`PIECE`].
    pub piece: u64,
    pub count: u32,
}

/// One wave's trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wave {
    pub events: Vec<Event>,
    pub accesses: Vec<Access>,
    pub runs: Vec<Run>,
    /// Iterations that were not recorded, in order of the events.
    pub skips: Vec<Skip>,
}

impl Wave {
    /// What the event's memory instruction touched.
    pub fn access(&self, event: &Event) -> Option<(&Access, &[Run])> {
        let access = self.accesses.get((event.extra as usize).checked_sub(1)?)?;
        let runs = self
            .runs
            .get(access.first as usize..(access.first + access.count) as usize)?;
        Some((access, runs))
    }
}

/// The trace of one workgroup.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    arch: &'static Arch,
    /// The workgroup's number in the grid.
    pub group: u64,
    pub waves: Vec<Wave>,
    current: usize,
    /// Instructions of a wave after which it is left; the rest is not executed.
    pub limit: u64,
    /// Instructions of all waves that were executed, those of light iterations as a quarter.
    work: u64,
    loops: Option<Loops>,
}

impl Recorder {
    pub fn new(arch: &'static Arch, group: u64, limit: u64) -> Recorder {
        Recorder {
            arch,
            group,
            waves: Vec::new(),
            current: 0,
            limit,
            work: 0,
            loops: None,
        }
    }

    /// Records only some iterations of long loops: so many that they have `enough` instructions.
    pub fn sampling(mut self, facts: Arc<[InstructionFacts]>, enough: usize) -> Recorder {
        self.loops = Some(Loops::new(facts, enough));
        self
    }

    /// Instructions that were executed, about.
    pub fn executed(&self) -> u64 {
        self.work / 4
    }

    /// Whether all waves left out the same iterations.
    pub fn even(&self) -> bool {
        alike(self.waves.iter().map(|wave| wave.skips.as_slice()))
    }

    /// Notes that a wave executes an instruction; returns whether the iteration is gone through lightly, without memory
    /// and LDS.
    #[inline]
    pub fn step(&mut self, wave: u32, inst: usize, lanes: u32) -> bool {
        self.current = wave as usize;
        if self.waves.len() <= self.current {
            self.waves.resize_with(self.current + 1, Wave::default);
        }
        let Wave { events, skips, .. } = &mut self.waves[self.current];
        if let Some(loops) = &mut self.loops
            && loops.step(self.current, inst as u32, events.len(), skips)
        {
            self.work += 1;
            return true;
        }
        self.work += 4;
        events.push(Event {
            inst: inst as u32,
            extra: 0,
            lanes: lanes as u8,
        });
        false
    }

    /// Adds the banks' cycles of an LDS access to the present instruction.
    pub fn local(&mut self, cost: banks::Cost) {
        if let Some(event) = self.waves.get_mut(self.current).and_then(|wave| wave.events.last_mut()) {
            event.extra += cost.cycles;
        }
    }

    /// Notes the pieces that the present vector memory instruction touched; `addresses` holds those of the lanes that
    /// are on.
    pub fn vector(&mut self, addresses: &[Option<u64>; 64], pieces: &[u64], size: u32) {
        let cycles = addresser_cycles(self.arch, addresses, size);
        let lanes = addresses.iter().flatten().count() as u32;
        self.access(pieces.iter().copied(), cycles, lanes * size);
    }

    /// Notes scratch: lanes' dwords lie side by side in a window of the wave.
    pub fn scratch(&mut self, offset: u64, lanes: u32, size: u32) {
        let window = SCRATCH + ((self.group << 5 | self.current as u64) << 24);
        let width = if self.arch.at_least(Generation::Gfx10) { 32 } else { 64 };
        let first = (window + offset / 4 * 4 * width) / PIECE;
        let count = u64::from(size.div_ceil(4)) * 4 * width / PIECE;
        let cycles = size.div_ceil(4) * if width == 64 { 4 } else { 1 };
        self.access(first..first + count, cycles, lanes * size);
    }

    /// Notes a scalar load.
    pub fn scalar(&mut self, address: u64, bytes: u32) {
        let last = address.saturating_add(u64::from(bytes.max(1)) - 1) / PIECE;
        self.access(address / PIECE..=last, 1, bytes);
    }

    fn access(&mut self, pieces: impl Iterator<Item = u64>, cycles: u32, bytes: u32) {
        let Some(wave) = self.waves.get_mut(self.current) else {
            return;
        };
        let Some(event) = wave.events.last_mut() else { return };
        let first = wave.runs.len();
        for piece in pieces {
            match wave.runs[first..].last_mut() {
                Some(run) if run.piece + u64::from(run.count) == piece => run.count += 1,
                _ => wave.runs.push(Run { piece, count: 1 }),
            }
        }
        if event.extra != 0 {
            // A load of several parts (a scalar buffer load, word by word): the runs lie behind those of the last part.
            if let Some(access) = wave.accesses.last_mut() {
                access.count = (wave.runs.len() - access.first as usize) as u32;
                access.bytes += bytes;
            }
            return;
        }
        wave.accesses.push(Access {
            first: first as u32,
            count: (wave.runs.len() - first) as u32,
            cycles,
            bytes,
        });
        event.extra = wave.accesses.len() as u32;
    }
}

/// Cycles that the addresser and the tags of the vector cache need for an access of `size` bytes a lane.
///
/// CDNA takes sixteen neighbouring words a cycle, also where they lie in two lines of 64 bytes; other accesses go by
/// four lanes. Of single words, four lanes take a cycle for two lines, or for each meeting in four banks of a word. Of
/// wider elements they take a cycle for each meeting in eight banks of eight bytes, or of lines in four banks of tags.
/// This gives the rates measured on MI210 (bytes a cycle at f32 strides 1 to 4: 59, 7.9, 15.9, 4.0; f64 at most of its
/// strides up to 30; four words 59); f32 at odd strides from 5 on is within a factor of 1.75. RDNA looks up lines of
/// 128 bytes.
fn addresser_cycles(arch: &Arch, addresses: &[Option<u64>; 64], size: u32) -> u32 {
    let size = u64::from(size.max(1));
    if arch.at_least(Generation::Gfx10) {
        let group = (128 / size.max(4)) as usize;
        return addresses.chunks(group).map(|lanes| lines(lanes, size, 128)).sum();
    }
    let mut cycles = 0;
    for sixteen in addresses.chunks(16) {
        let step = |pair: &[Option<u64>]| matches!((pair[0], pair[1]), (Some(a), Some(b)) if b == a + size || a == b);
        if size <= 4 && sixteen.windows(2).all(step) {
            cycles += lines(sixteen, size, 64).div_ceil(2);
            continue;
        }
        for four in sixteen.chunks(4) {
            cycles += if size <= 4 {
                meetings(four, size, 4, 4).max(lines(four, size, 64).div_ceil(2))
            } else {
                meetings(four, size, 8, 8).max(meetings(four, size, 64, 4))
            };
        }
    }
    cycles
}

/// Distinct lines of `line` bytes.
fn lines(lanes: &[Option<u64>], size: u64, line: u64) -> u32 {
    let mut seen = [u64::MAX; 64];
    let mut count = 0;
    for address in lanes.iter().flatten() {
        for at in address / line..=address.saturating_add(size - 1) / line {
            if !seen[..count].contains(&at) && count < seen.len() {
                seen[count] = at;
                count += 1;
            }
        }
    }
    count as u32
}

/// The most distinct pieces of `width` bytes that four lanes want of one of `banks`.
fn meetings(lanes: &[Option<u64>], size: u64, width: u64, banks: u64) -> u32 {
    (0..banks)
        .map(|bank| {
            let mut seen = [u64::MAX; 16];
            let mut count = 0;
            for address in lanes.iter().flatten() {
                for piece in address / width..=address.saturating_add(size - 1) / width {
                    if piece % banks == bank && count < seen.len() && !seen[..count].contains(&piece) {
                        seen[count] = piece;
                        count += 1;
                    }
                }
            }
            count as u32
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(arch: &str, size: u32, stride: u64) -> u32 {
        let arch = Arch::by_name(arch).expect("known");
        let addresses = std::array::from_fn(|lane| Some(4096 + lane as u64 * stride));
        addresser_cycles(arch, &addresses, size)
    }

    /// Bytes a cycle that MI210 was measured at, by bytes of an element and stride in elements.
    #[test]
    fn strides_cost_what_was_measured() {
        let words = [
            (1, 59.0),
            (2, 7.9),
            (3, 15.9),
            (4, 4.0),
            (6, 7.9),
            (8, 4.0),
            (16, 4.0),
            (32, 4.0),
        ];
        let doubles = [
            (1, 31.8),
            (2, 31.8),
            (3, 31.8),
            (4, 15.9),
            (5, 31.8),
            (8, 7.9),
            (9, 31.8),
            (11, 15.9),
            (13, 21.2),
            (15, 15.9),
            (17, 15.9),
            (19, 21.2),
            (25, 31.8),
            (28, 15.9),
        ];
        let words = words.map(|(stride, rate)| (4, stride, rate)).into_iter();
        let doubles = doubles.map(|(stride, rate)| (8, stride, rate)).into_iter();
        for (size, stride, measured) in words.chain(doubles).chain([(16, 1, 59.0)]) {
            let modelled = f64::from(64 * size) / f64::from(cycles("gfx90a", size, stride * u64::from(size)));
            assert!((modelled / measured - 1.0).abs() < 0.1, "{size} {stride}: {modelled}");
        }
    }

    #[test]
    fn scattered_lanes_take_a_lookup_each() {
        assert_eq!(cycles("gfx942", 4, 128), 64);
        assert_eq!(cycles("gfx942", 16, 256), 64);
        assert_eq!(cycles("gfx90a", 4, 0), 4, "one word for all");
        assert_eq!(cycles("gfx1100", 4, 4), 2);
    }

    #[test]
    fn runs_join_neighbouring_pieces() {
        let mut recorder = Recorder::new(Arch::by_name("gfx90a").expect("known"), 0, u64::MAX);
        recorder.step(1, 7, 64);
        let addresses = std::array::from_fn(|lane| Some(4096 + 4 * lane as u64));
        recorder.vector(&addresses, &[64, 65, 66, 67, 90], 4);
        let wave = &recorder.waves[1];
        let (access, runs) = wave.access(&wave.events[0]).expect("recorded");
        assert_eq!((access.bytes, runs.len()), (256, 2));
        assert_eq!(runs[0], Run { piece: 64, count: 4 });
    }
}
