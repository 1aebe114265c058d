//! Accesses that were under way when their wave came to a barrier, where races are looked for.
//!
//! A barrier orders waves and not what they have under way: a load or store that its wave did not wait for may happen
//! behind the barrier. So each byte keeps its last write and the last read of each wave since with their numbers, and
//! each wave how far it had waited when it came to each barrier. Who meets a byte in a later phase is ordered behind
//! the earlier access only if that wave had waited for it at a barrier between. (Stores to LDS and the reads behind
//! them are looked at by `order` in any case, since that is cheap.)
//!
//! In global memory that holds where the waves of a workgroup may be on two compute units (RDNA's WGP mode). On one,
//! their accesses go through one cache in order, and compilers leave such waits out.

use super::scoreboard::{Counter, Scoreboard};
use super::wave::{Env, Trap, Wave};
use crate::error::{Access, FaultKind, Space};
use std::collections::HashMap;

/// An access: which wave's, in which phase, its number among the wave's memory operations.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// 1 + the wave; 0 for none.
    wave: u16,
    phase: u32,
    tick: u64,
}

/// The last accesses to a byte.
#[derive(Clone, Default)]
struct Byte {
    write: Mark,
    /// Since that, one of each wave: a wave's own read says nothing of what another still has under way.
    reads: Vec<Mark>,
}

/// The operations up to which a wave had waited: of LDS, of loads and of stores of global memory.
#[derive(Clone, Copy)]
struct Done {
    local: u64,
    loads: u64,
    stores: u64,
}

impl Done {
    fn of(board: &Scoreboard) -> Done {
        Done {
            local: board.finished(Counter::Local),
            loads: board.loaded(),
            stores: board.settled(),
        }
    }

    /// How far, for one kind of access, and the counter that tells.
    fn up_to(self, space: Space, access: Access) -> (u64, &'static str) {
        match (space, access) {
            (Space::Global, Access::Read) => (self.loads, Counter::Vector.name()),
            (Space::Global, _) => (self.stores, Counter::Store.name()),
            _ => (self.local, Counter::Local.name()),
        }
    }
}

/// What the waves of a workgroup left under way.
#[derive(Default)]
pub(crate) struct Late {
    lds: HashMap<u64, Byte>,
    global: HashMap<u64, Byte>,
    /// For each wave the phases in which it came to a barrier, and how far it had waited then.
    arrivals: Vec<Vec<(u32, Done)>>,
}

impl Late {
    /// A wave comes to a barrier.
    pub fn arrive(&mut self, phase: u32, w: &Wave) {
        let index = w.index as usize;
        if self.arrivals.len() <= index {
            self.arrivals.resize_with(index + 1, Vec::new);
        }
        self.arrivals[index].push((phase, Done::of(&w.board)));
    }

    /// Whether nothing orders an earlier access before what another wave does in `phase`; the counter that would.
    fn under_way(&self, mark: Mark, wave: u32, phase: u32, space: Space, access: Access) -> Option<&'static str> {
        let other = usize::from(mark.wave.checked_sub(1)?);
        // Within a phase it is a race, which is reported as one.
        if other == wave as usize || mark.phase == phase {
            return None;
        }
        let arrivals = self.arrivals.get(other)?;
        // How far it had waited only grows.
        let last = arrivals[..arrivals.partition_point(|(at, _)| *at < phase)].last()?;
        let (done, counter) = last.1.up_to(space, access);
        (done < mark.tick).then_some(counter)
    }

    /// Notes an access of bytes; the fault where another wave's earlier one may still be under way.
    pub fn touch(
        &mut self,
        w: &Wave,
        phase: u32,
        space: Space,
        (address, size): (u64, u32),
        access: Access,
    ) -> Result<(), FaultKind> {
        let mark = Mark {
            wave: w.index as u16 + 1,
            phase,
            tick: w.board.ticks() + 1,
        };
        for at in address..address + u64::from(size) {
            let bytes = if space == Space::Lds { &self.lds } else { &self.global };
            let none = Byte::default();
            let byte = bytes.get(&at).unwrap_or(&none);
            let late = |mark: Mark, earlier: Access| {
                let counter = self.under_way(mark, w.index, phase, space, earlier)?;
                Some(FaultKind::UnorderedAccess {
                    space,
                    access,
                    address: at,
                    other: u32::from(mark.wave) - 1,
                    earlier,
                    counter,
                })
            };
            let reads = byte.reads.iter().filter(|_| access != Access::Read);
            let read = || reads.clone().find_map(|read| late(*read, Access::Read));
            if let Some(fault) = late(byte.write, Access::Write).or_else(read) {
                return Err(fault);
            }
            let bytes = if space == Space::Lds {
                &mut self.lds
            } else {
                &mut self.global
            };
            let byte = bytes.entry(at).or_default();
            match access {
                Access::Read => match byte.reads.iter_mut().find(|read| read.wave == mark.wave) {
                    Some(read) => *read = mark,
                    None => byte.reads.push(mark),
                },
                Access::Write => {
                    byte.write = mark;
                    byte.reads.clear();
                }
                // It comes before or behind others whole, and is known to be done by what it gives.
                Access::Atomic => *byte = Byte::default(),
            }
        }
        Ok(())
    }
}

impl Env<'_> {
    /// Notes an access where races are looked for.
    ///
    /// # Errors
    /// Another wave's access that nothing orders before it.
    pub fn touch_late(
        &mut self,
        w: &Wave,
        lane: usize,
        space: Space,
        bytes: (u64, u32),
        access: Access,
    ) -> Result<(), Box<Trap>> {
        if space == Space::Global && !self.waits_for_global {
            return Ok(());
        }
        let phase = self.phase;
        let Some(late) = &mut self.late else { return Ok(()) };
        late.touch(w, phase, space, bytes, access)
            .map_err(|kind| Trap::at(lane, kind))
    }
}
