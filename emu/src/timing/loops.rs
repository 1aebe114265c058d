//! Long loops in a trace: some iterations are recorded, the rest are only gone through.
//!
//! After enough iterations that are all of one length, a wave's loop is gone through lightly until it ends: scalar and
//! vector arithmetic and branches are executed, so that addresses and counters behind the loop are right; memory, LDS
//! and matrix instructions are not, and nothing is recorded. A loop whose branches depend on what it loads is recorded
//! whole. Of the iterations that were recorded a replay can leave out the later half: two replays then say what an
//! iteration takes, and the launch's time is linear in their number (`Outcome::with_more`).

use super::facts::{InstructionFacts, REGISTERS, Unit};
use std::collections::HashMap;
use std::sync::Arc;

/// Iterations of a loop that are recorded at least.
const ITERATIONS: usize = 24;

/// Iterations that a wave went through without recording them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The loop: its first and last instruction.
    pub top: u32,
    pub bottom: u32,
    /// The recorded iterations that a shorter replay leaves out, as a range of the wave's events.
    pub first: usize,
    pub last: usize,
    /// Instructions that were not recorded.
    pub instructions: u64,
}

/// Where one wave is.
#[derive(Clone, Debug, Default)]
struct Walk {
    previous: u32,
    top: u32,
    bottom: u32,
    /// The event at which each recorded iteration of the present loop begins, but for the first.
    starts: Vec<usize>,
    /// Instructions gone through lightly, where the wave does that.
    light: Option<u64>,
}

/// What one workgroup's recorder knows of loops.
#[derive(Clone, Debug)]
pub(crate) struct Loops {
    facts: Arc<[InstructionFacts]>,
    /// Instructions of a loop that are recorded at least.
    enough: usize,
    /// By first and last instruction: whether a loop's branches do not depend on what it loads.
    steady: HashMap<(u32, u32), bool>,
    walks: Vec<Walk>,
}

impl Loops {
    pub fn new(facts: Arc<[InstructionFacts]>, enough: usize) -> Loops {
        Loops {
            facts,
            enough,
            steady: HashMap::new(),
            walks: Vec::new(),
        }
    }

    /// A wave with so many `events` comes to an instruction: whether it is gone through lightly. Iterations that end
    /// here are added to `skips`.
    pub fn step(&mut self, wave: usize, inst: u32, events: usize, skips: &mut Vec<Skip>) -> bool {
        if self.walks.len() <= wave {
            self.walks.resize_with(wave + 1, Walk::default);
        }
        let walk = &mut self.walks[wave];
        let previous = std::mem::replace(&mut walk.previous, inst);
        let inside = (walk.top..=walk.bottom).contains(&inst);
        if let Some(count) = &mut walk.light {
            let again = inst > previous || (inst, previous) == (walk.top, walk.bottom);
            if inside && again {
                *count += 1;
                return true;
            }
            let last = walk.starts.len() - 1;
            skips.push(Skip {
                top: walk.top,
                bottom: walk.bottom,
                first: walk.starts[last - last / 2],
                last: walk.starts[last],
                instructions: *count,
            });
            walk.light = None;
            walk.starts.clear();
        }
        if inst > previous || events == 0 {
            return false;
        }
        if (inst, previous) != (walk.top, walk.bottom) {
            (walk.top, walk.bottom) = (inst, previous);
            walk.starts.clear();
        }
        walk.starts.push(events);
        let last = walk.starts.len() - 1;
        let length = events - walk.starts[last.saturating_sub(1)];
        if last < ITERATIONS || last * length < self.enough {
            return false;
        }
        let later = &walk.starts[last - last / 2..];
        if later.windows(2).any(|pair| pair[1] - pair[0] != length) {
            return false;
        }
        let facts = &self.facts;
        let of = (inst, previous);
        let steady = *self.steady.entry(of).or_insert_with(|| steady(facts, inst, previous));
        if steady {
            walk.light = Some(1);
        }
        steady
    }
}

/// Whether no branch from `top` to `bottom` depends on what is loaded there, or on a result of a matrix instruction.
fn steady(facts: &[InstructionFacts], top: u32, bottom: u32) -> bool {
    let body = &facts[top as usize..=bottom as usize];
    let mut loaded = vec![false; REGISTERS];
    loop {
        let before = loaded.iter().filter(|loaded| **loaded).count();
        for facts in body {
            let unknown = matches!(
                facts.unit,
                Unit::Smem | Unit::Vmem { .. } | Unit::Lds { .. } | Unit::Matrix
            ) || facts.reads.iter().any(|register| loaded[*register as usize]);
            if unknown {
                for register in &facts.writes {
                    loaded[*register as usize] = true;
                }
            }
        }
        if loaded.iter().filter(|loaded| **loaded).count() == before {
            break;
        }
    }
    let depends = |facts: &InstructionFacts| facts.reads.iter().any(|register| loaded[*register as usize]);
    !body.iter().any(|facts| facts.unit == Unit::Branch && depends(facts))
}

/// Whether the waves of a workgroup went through the same loops as often, so that they meet at barriers as before.
pub(crate) fn alike<'a>(mut waves: impl Iterator<Item = &'a [Skip]>) -> bool {
    let of = |skip: &Skip| (skip.top, skip.bottom, skip.instructions, skip.last - skip.first);
    let Some(first) = waves.next() else { return true };
    waves.all(|wave| wave.len() == first.len() && wave.iter().map(of).eq(first.iter().map(of)))
}
