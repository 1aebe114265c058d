//! Undefined bits: what a wave's registers hold of memory that nothing wrote, and where that comes to matter.
//!
//! A load of unwritten memory is no mistake as such: compilers load early what a later select may not take, and lanes
//! past the end of the data compute what nobody stores. So a load marks the bits of its registers, and a mark is an
//! error where it decides a value that is stored to global memory, an address, or a branch.
//!
//! How marks go through an instruction is asked of the instruction itself: it runs again with the marked bits filled
//! in several ways, and the bits of its results that differ are marked. So a select, a mask, a shift or a shuffle
//! passes on exactly what it takes, with no rule of its own. Nothing of this runs in a wave that has no marks.

use super::scoreboard::Set;
use super::simd::Lanes;
use super::wave::{Env, Step, Trap, Wave};
use crate::decode::text::{EXEC, SGPRS, VCC};
use crate::decode::{Inst, Source};
use crate::error::{FaultKind, Space, Use};
use std::collections::BTreeMap;

/// The load that first gave a register undefined bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub space: Space,
    pub address: u64,
    pub size: u32,
    /// The load's offset in the image.
    pub at: u64,
}

impl Origin {
    /// The fault of a use.
    pub fn used(self, used: Use, lane: Option<usize>) -> Box<Trap> {
        Box::new(Trap {
            lane: lane.map(|lane| lane as u32),
            kind: FaultKind::Uninitialized {
                space: self.space,
                address: self.address,
                size: self.size,
                used,
                loaded_at: Some(self.at),
            },
        })
    }
}

/// A wave's marked bits.
#[derive(Default)]
pub(crate) struct Undefined {
    vectors: BTreeMap<u16, (Box<Lanes>, Origin)>,
    scalars: BTreeMap<u16, (u32, Origin)>,
    scc: Option<Origin>,
    /// By the index of the word in the wave's scratch.
    scratch: BTreeMap<usize, (u32, Origin)>,
    /// The registers of `vectors` and `scalars`.
    marked: Set,
}

impl Undefined {
    /// Whether an instruction reads or writes something marked.
    pub fn concerns(&self, inst: &Inst) -> bool {
        const MASK: u64 = 3 << (VCC % 64);
        self.scc.is_some()
            || self.marked.s[VCC as usize / 64] & MASK != 0
            || self.marked.meets(&inst.uses)
            || self.marked.meets(&inst.loads)
            || inst.indexed
    }

    /// The first marked register that an instruction reads.
    fn source(&self, inst: &Inst) -> Option<Origin> {
        let vector = self.vectors.iter().find(|(index, _)| inst.uses.has_vector(**index));
        let scalar = self.scalars.iter().find(|(index, _)| inst.uses.has_scalar(**index));
        vector
            .map(|(_, (_, origin))| *origin)
            .or(scalar.map(|(_, (_, origin))| *origin))
    }

    fn any(&self) -> Option<Origin> {
        let vector = self.vectors.values().next().map(|(_, origin)| *origin);
        vector
            .or(self.scalars.values().next().map(|(_, origin)| *origin))
            .or(self.scc)
    }

    fn is_empty(&self) -> bool {
        self.vectors.is_empty() && self.scalars.is_empty() && self.scc.is_none() && self.scratch.is_empty()
    }

    fn set_vector(&mut self, index: u16, bits: &Lanes, origin: Origin) {
        if bits.iter().all(|bits| *bits == 0) {
            self.vectors.remove(&index);
            self.marked.remove_vector(index);
        } else {
            self.vectors.insert(index, (Box::new(*bits), origin));
            self.marked.add_vector(index, 1);
        }
    }

    fn set_scalar(&mut self, index: u16, bits: u32, origin: Origin) {
        if bits == 0 {
            self.scalars.remove(&index);
            self.marked.remove_scalar(index);
        } else {
            self.scalars.insert(index, (bits, origin));
            self.marked.add_scalar(index, 1);
        }
    }

    /// Fills the marked bits of a wave.
    fn fill(&self, w: &mut Wave, fill: &Fill<'_>) {
        for (index, (bits, _)) in &self.vectors {
            let Some(register) = w.v.get_mut(*index as usize) else {
                continue;
            };
            for (lane, (slot, bits)) in register.iter_mut().zip(bits.iter()).enumerate() {
                *slot = *slot & !bits | fill.value(*index, lane) & bits;
            }
        }
        for (index, (bits, _)) in &self.scalars {
            let slot = &mut w.s[*index as usize];
            *slot = *slot & !bits | fill.value(*index, 64) & bits;
        }
        if self.scc.is_some() {
            w.scc = fill.value(u16::MAX, 0) & 1 == 1;
        }
        if let Fill::Equal(into, from) = fill {
            for word in 0..2 {
                self.equalize(w, into, from, word);
            }
        }
    }

    /// Gives the marked bits of a word of `into` the values of `from`.
    fn equalize(&self, w: &mut Wave, into: &Source, from: &Source, word: u16) {
        let value = |w: &Wave, lane: usize| match *from {
            Source::Vector(first) => w.v.get((first + word) as usize).map_or(0, |register| register[lane]),
            Source::Scalar(first) => w.s.get((first + word) as usize).copied().unwrap_or(0),
            Source::Constant(value) => (value >> (32 * word)) as u32,
        };
        match *into {
            Source::Vector(first) => {
                if let Some((bits, _)) = self.vectors.get(&(first + word)) {
                    for (lane, bits) in bits.iter().enumerate() {
                        let new = value(w, lane);
                        let slot = &mut w.v[(first + word) as usize][lane];
                        *slot = *slot & !bits | new & bits;
                    }
                }
            }
            Source::Scalar(first) => {
                if let Some((bits, _)) = self.scalars.get(&(first + word)) {
                    let new = value(w, 0);
                    let slot = &mut w.s[(first + word) as usize];
                    *slot = *slot & !bits | new & bits;
                }
            }
            Source::Constant(_) => {}
        }
    }
}

/// What marked bits are taken to be.
enum Fill<'a> {
    Zeros,
    Ones,
    /// Other bits in every register and lane.
    Noise(u64),
    /// One source of a comparison as equal to the other as its defined bits allow.
    Equal(&'a Source, &'a Source),
}

impl Fill<'_> {
    fn value(&self, register: u16, lane: usize) -> u32 {
        match self {
            Fill::Zeros | Fill::Equal(..) => 0,
            Fill::Ones => u32::MAX,
            Fill::Noise(seed) => {
                let mut x = seed ^ (u64::from(register) << 8 | lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                (x ^ x >> 31) as u32
            }
        }
    }
}

fn fills(inst: &Inst) -> Vec<Fill<'_>> {
    let mut fills = vec![
        Fill::Zeros,
        Fill::Ones,
        Fill::Noise(0x51_7cc1_b727_220a),
        Fill::Noise(0x3243_f6a8_885a_308d),
    ];
    for (index, into) in inst.compared.iter().enumerate() {
        for (other, from) in inst.compared.iter().enumerate() {
            if index != other {
                fills.push(Fill::Equal(into, from));
            }
        }
    }
    fills
}

/// The registers that an instruction may read or write.
struct Snapshot {
    vectors: Vec<(usize, Lanes)>,
    scalars: [u32; SGPRS],
    scc: bool,
}

impl Snapshot {
    fn take(inst: &Inst, w: &Wave) -> Snapshot {
        let named = |index: usize| inst.uses.has_vector(index as u16) || inst.loads.has_vector(index as u16);
        let all = inst.indexed || w.gpr_index.is_some();
        Snapshot {
            vectors: (0..w.v.len())
                .filter(|index| all || named(*index))
                .map(|index| (index, w.v[index]))
                .collect(),
            scalars: w.s,
            scc: w.scc,
        }
    }

    fn restore(&self, w: &mut Wave) {
        for (index, lanes) in &self.vectors {
            w.v[*index] = *lanes;
        }
        w.s = self.scalars;
        w.scc = self.scc;
    }
}

/// Runs an instruction that works on registers alone and meets marked bits, and marks what its results have of them.
///
/// # Errors
/// What the instruction gives, or a use of undefined bits: EXEC, a branch, or a register's index depends on them.
#[cold]
pub(crate) fn step(inst: &Inst, w: &mut Wave, env: &mut Env<'_>) -> Step {
    let before = Snapshot::take(inst, w);
    let flow = (inst.exec)(w, env)?;
    let after = Snapshot::take(inst, w);
    let Some(mut marks) = w.undefined.take() else {
        return Ok(flow);
    };
    let counters = env.counters.clone();
    let origin = marks.source(inst).or(marks.scc).or(marks.any());
    let mut vectors = vec![[0u32; 64]; after.vectors.len()];
    let (mut scalars, mut scc, mut steady) = ([0u32; SGPRS], false, true);
    for fill in fills(inst) {
        before.restore(w);
        marks.fill(w, &fill);
        steady &= (inst.exec)(w, env).is_ok_and(|other| other == flow);
        for ((index, lanes), differ) in after.vectors.iter().zip(&mut vectors) {
            for lane in 0..w.lanes {
                differ[lane] |= lanes[lane] ^ w.v[*index][lane];
            }
        }
        for index in 0..SGPRS {
            scalars[index] |= after.scalars[index] ^ w.s[index];
        }
        scc |= after.scc != w.scc;
    }
    after.restore(w);
    *env.counters = counters;
    let Some(origin) = origin else {
        return Ok(flow);
    };
    if !steady || scalars[EXEC as usize] != 0 || scalars[EXEC as usize + 1] != 0 {
        return Err(origin.used(Use::Branch, None));
    }
    for ((index, _), bits) in after.vectors.iter().zip(&vectors) {
        let index = *index as u16;
        let kept = marks.vectors.get(&index).filter(|(old, _)| **old == *bits);
        let origin = kept.map_or(origin, |(_, origin)| *origin);
        marks.set_vector(index, bits, origin);
    }
    for (index, bits) in scalars.iter().enumerate() {
        let index = index as u16;
        let kept = marks.scalars.get(&index).filter(|(old, _)| *old == *bits);
        let origin = kept.map_or(origin, |(_, origin)| *origin);
        marks.set_scalar(index, *bits, origin);
    }
    marks.scc = scc.then(|| marks.scc.unwrap_or(origin));
    if !marks.is_empty() {
        w.undefined = Some(marks);
    }
    Ok(flow)
}

/// Checks an instruction that steers the wave and takes its operands from marked registers.
pub(crate) fn check_control(inst: &Inst, w: &Wave) -> Result<(), Box<Trap>> {
    let marks = w.undefined.as_ref().filter(|marks| marks.marked.meets(&inst.uses));
    match marks.and_then(|marks| marks.source(inst)) {
        Some(origin) => Err(origin.used(Use::Branch, None)),
        None => Ok(()),
    }
}

impl Wave {
    /// Marks or unmarks the words that a lane loaded: `bits` of each are undefined.
    #[cold]
    pub fn loaded(&mut self, first: u16, lane: usize, bits: &[u32], origin: Origin) {
        if self.undefined.is_none() && bits.iter().all(|bits| *bits == 0) {
            return;
        }
        let marks = self.undefined.get_or_insert_default();
        for (index, new) in (first..).zip(bits) {
            let mut lanes = marks.vectors.get(&index).map_or([0; 64], |(lanes, _)| **lanes);
            if lanes[lane] == *new {
                continue;
            }
            lanes[lane] = *new;
            let origin = marks.vectors.get(&index).map_or(origin, |(_, origin)| *origin);
            marks.set_vector(index, &lanes, origin);
        }
        if marks.is_empty() {
            self.undefined = None;
        }
    }

    /// Marks or unmarks the scalar registers that a load wrote.
    #[cold]
    pub fn loaded_scalars(&mut self, first: u16, bits: &[u32], origin: Origin) {
        if self.undefined.is_none() && bits.iter().all(|bits| *bits == 0) {
            return;
        }
        let marks = self.undefined.get_or_insert_default();
        for (index, bits) in (first..).zip(bits) {
            if index < crate::decode::text::NULL {
                marks.set_scalar(index, *bits, origin);
            }
        }
        if marks.is_empty() {
            self.undefined = None;
        }
    }

    /// Unmarks a lane's registers, which an atomic wrote.
    #[inline]
    pub fn defined(&mut self, first: u16, count: u16, lane: usize) {
        let marked = |marks: &Undefined| (first..first + count).any(|index| marks.vectors.contains_key(&index));
        if self.undefined.as_ref().is_some_and(|marks| marked(marks)) {
            let origin = self.origin(first).or(self.origin(first + count - 1));
            if let Some(origin) = origin {
                self.loaded(first, lane, &[0; 2][..count as usize], origin);
            }
        }
    }

    /// The undefined bits of a lane's register.
    #[inline]
    pub fn undefined_bits(&self, register: u16, lane: usize) -> u32 {
        match &self.undefined {
            None => 0,
            Some(marks) => marks.vectors.get(&register).map_or(0, |(bits, _)| bits[lane]),
        }
    }

    /// Where a register's undefined bits come from.
    pub fn origin(&self, register: u16) -> Option<Origin> {
        let marks = self.undefined.as_ref()?;
        marks.vectors.get(&register).map(|(_, origin)| *origin)
    }

    /// Checks that the lanes of `mask` have no undefined bits of `care` in `count` vector registers.
    #[inline]
    pub fn check_vectors(&self, first: u16, count: u16, care: u32, mask: u64, used: Use) -> Result<(), Box<Trap>> {
        match &self.undefined {
            None => Ok(()),
            Some(marks) => (first..first + count)
                .filter_map(|index| marks.vectors.get(&index))
                .find_map(|(bits, origin)| {
                    let lane = (0..64).find(|lane| mask >> lane & 1 == 1 && bits[*lane] & care != 0)?;
                    Some(Err(origin.used(used, Some(lane))))
                })
                .unwrap_or(Ok(())),
        }
    }

    /// Checks that scalar registers have no undefined bits.
    #[inline]
    pub fn check_scalars(&self, first: u16, count: u16, used: Use) -> Result<(), Box<Trap>> {
        match &self.undefined {
            None => Ok(()),
            Some(marks) => match (first..first + count).find_map(|index| marks.scalars.get(&index)) {
                Some((_, origin)) => Err(origin.used(used, None)),
                None => Ok(()),
            },
        }
    }

    /// Marks or unmarks words of scratch that a lane stored.
    pub fn scratch_marked(&mut self, word: usize, bits: u32, origin: Option<Origin>) {
        match (&mut self.undefined, origin) {
            (Some(marks), Some(origin)) if bits != 0 => {
                marks.scratch.insert(word, (bits, origin));
            }
            (Some(marks), _) => {
                marks.scratch.remove(&word);
            }
            (None, _) => {}
        }
    }

    /// The marks of a word of scratch.
    pub fn scratch_mark(&self, word: usize) -> Option<(u32, Origin)> {
        self.undefined.as_ref()?.scratch.get(&word).copied()
    }
}
