//! What a long row of workgroups finds in L2 of what earlier ones brought there.
//!
//! Where workgroups are short, many more are surveyed than run at a time, in the order in which they are dispatched. A
//! piece that another workgroup of the die touched before is a hit by as much of it as L2 still holds: that depends on
//! how many other pieces the die has touched since (the distance of a least-recently-used cache). The first half of the
//! row only fills the caches.

use super::facts::{InstructionFacts, Unit};
use super::machine::Machine;
use super::memory::{Share, held};
use super::trace::{PIECE, Recorder};
use std::collections::HashMap;

/// When pieces were last touched, and how many have been since.
#[derive(Default)]
struct Die {
    /// By piece: the time of its last touch, and the workgroup.
    last: HashMap<u64, (usize, usize)>,
    /// A tree of sums over times: 1 where a piece was touched last.
    tree: Vec<u32>,
    time: usize,
}

impl Die {
    fn add(&mut self, mut at: usize, by: i32) {
        at += 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(by);
            at += at & at.wrapping_neg();
        }
    }

    /// Pieces whose last touch was before `at`.
    fn before(&self, mut at: usize) -> u32 {
        let mut sum = 0;
        while at > 0 {
            sum += self.tree[at];
            at &= at - 1;
        }
        sum
    }

    /// Touches a piece for workgroup `group`; returns which one touched it before, and how many other pieces were
    /// touched since.
    fn touch(&mut self, piece: u64, group: usize) -> Option<(usize, u64)> {
        let time = self.time;
        self.time += 1;
        let before = self.last.insert(piece, (time, group));
        let found = before.map(|(then, by)| {
            let since = self.before(time) - self.before(then + 1);
            self.add(then, -1);
            (by, u64::from(since))
        });
        self.add(time, 1);
        found
    }
}

/// By instruction: what part of the lines that it loads is fetched from behind the die's L2, and from behind all of
/// them.
///
/// `row` is workgroups in the order of their dispatch, of which `together` run at a time: what those touch together is
/// fetched once.
pub(crate) fn shares(facts: &[InstructionFacts], row: &[Recorder], together: usize, machine: &Machine) -> Vec<Share> {
    let touches: Vec<Vec<(u64, Option<u32>)>> = row.iter().map(|recorder| touched(facts, recorder)).collect();
    let dies = machine.dies as usize;
    let count: usize = touches.iter().map(Vec::len).sum();
    let mut states: Vec<Die> = (0..dies)
        .map(|_| Die {
            tree: vec![0; count + 2],
            ..Die::default()
        })
        .collect();
    let mut anywhere: HashMap<u64, usize> = HashMap::new();
    let mut sums = vec![(0u64, 0.0f64, 0.0f64); facts.len()];
    for (group, pieces) in touches.iter().enumerate() {
        let die = (row[group].group % dies as u64) as usize;
        for (piece, load) in pieces {
            let missing = match states[die].touch(*piece, group) {
                None => 1.0,
                Some((by, _)) if group - by < together => 0.0,
                Some((_, since)) => 1.0 - held(since * PIECE, machine.l2_bytes, machine.l2_edge),
            };
            let shared = anywhere.insert(*piece, group).is_some_and(|by| group - by < together);
            if let Some(inst) = load
                && 2 * group >= row.len()
            {
                let sum = &mut sums[*inst as usize];
                sum.0 += 1;
                sum.1 += missing;
                sum.2 += if shared { 0.0 } else { missing };
            }
        }
    }
    sums.into_iter()
        .map(|(count, die, all)| Share::of(count, die, all))
        .collect()
}

/// The pieces that a workgroup touches, each once, with the first instruction that loads it.
fn touched(facts: &[InstructionFacts], recorder: &Recorder) -> Vec<(u64, Option<u32>)> {
    let mut pieces = Vec::new();
    for wave in &recorder.waves {
        for event in &wave.events {
            let Unit::Vmem { store } = facts[event.inst as usize].unit else {
                continue;
            };
            for run in wave.access(event).map_or(&[][..], |(_, runs)| runs) {
                let load = (!store).then_some(event.inst);
                pieces.extend((run.piece..run.piece + u64::from(run.count)).map(|piece| (piece, load)));
            }
        }
    }
    // Loads come first where a piece is stored too.
    pieces.sort_by_key(|(piece, load)| (*piece, load.is_none()));
    pieces.dedup_by_key(|(piece, _)| *piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_other_pieces_once() {
        let mut die = Die {
            tree: vec![0; 16],
            ..Die::default()
        };
        assert_eq!(die.touch(7, 0), None);
        assert_eq!(die.touch(8, 1), None);
        assert_eq!(die.touch(8, 2), Some((1, 0)));
        assert_eq!(die.touch(9, 3), None);
        // 8 was touched twice and counts once.
        assert_eq!(die.touch(7, 4), Some((0, 2)));
        assert_eq!(die.touch(8, 5), Some((2, 2)));
        assert_eq!(die.touch(7, 6), Some((4, 1)));
    }
}
