//! Races between the workgroups of one launch, in global memory.
//!
//! Nothing orders two workgroups but atomics, so every byte has the last access of each kind and every workgroup a
//! clock for the waves of others, which tells how much of them came before. An atomic publishes its workgroup's clock
//! at its address and takes what others published there; that it may be relaxed is not looked at, so that such an
//! order can hide a race and never invents one. What it does not publish is what its own wave stored and did not wait
//! for: a release without its wait orders nothing. Compilers write atomic loads as plain ones: a read that meets an
//! atomic is no race.

use crate::error::Access;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// A workgroup, one of its waves, and what that did.
type Actor = (u64, u32, Kind);

/// What a wave did; each kind is published by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Write,
    Atomic,
}

/// For each wave how far its accesses are known to have come before.
type Clock = BTreeMap<Actor, u64>;

/// An access: who, and its own time then.
type Mark = (Actor, u64);

/// Who comes to a byte: a wave of a workgroup, the number of its access, and that of the last one all stores up to
/// which it has waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visitor {
    pub group: u64,
    pub wave: u32,
    pub now: u64,
    pub settled: u64,
}

/// The last accesses to a byte.
#[derive(Default)]
struct Byte {
    write: Option<Mark>,
    atomic: Option<Mark>,
    /// Reads since the last write, one of each wave.
    reads: Vec<Mark>,
}

#[derive(Default)]
struct Inner {
    bytes: HashMap<u64, Byte>,
    published: HashMap<u64, Clock>,
    /// What each workgroup knows of others.
    clocks: HashMap<u64, Clock>,
    /// The last access of each wave of a workgroup.
    latest: HashMap<u64, BTreeMap<u32, u64>>,
}

/// What the workgroups of a launch did to global memory.
#[derive(Default)]
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
}

impl Ledger {
    /// Notes an access; the first byte that races, with the other workgroup.
    pub fn touch(&self, visitor: Visitor, address: u64, size: u32, access: Access) -> Result<(), (u64, u64)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner {
            bytes,
            published,
            clocks,
            latest,
        } = &mut *inner;
        let Visitor {
            group,
            wave,
            now,
            settled,
        } = visitor;
        let clock = clocks.entry(group).or_default();
        let waves = latest.entry(group).or_default();
        waves.insert(wave, now);
        let unordered =
            |clock: &Clock, mark: &Mark| mark.0.0 != group && clock.get(&mark.0).is_none_or(|known| *known < mark.1);
        if access == Access::Atomic {
            // What others published here came before; then this workgroup's past is published.
            let place = published.entry(address).or_default();
            for (other, time) in place.iter() {
                let known = clock.entry(*other).or_insert(0);
                *known = (*known).max(*time);
            }
            for (other, time) in waves.iter() {
                let stores = if *other == wave { settled } else { *time };
                for (kind, time) in [(Kind::Read, *time), (Kind::Write, stores), (Kind::Atomic, *time)] {
                    let known = clock.entry((group, *other, kind)).or_insert(0);
                    *known = (*known).max(time);
                }
            }
            place.clone_from(clock);
        }
        let mark = |kind: Kind| ((group, wave, kind), now);
        for at in address..address + u64::from(size) {
            let byte = bytes.entry(at).or_default();
            let mut others = Vec::new();
            match access {
                Access::Read => others.extend(byte.write),
                Access::Atomic => others.extend(byte.write),
                Access::Write => {
                    others.extend(byte.write);
                    others.extend(byte.atomic);
                    others.extend(&byte.reads);
                }
            }
            if let Some(((other, ..), _)) = others.iter().find(|mark| unordered(clock, mark)) {
                return Err((at, *other));
            }
            match access {
                Access::Read => match byte.reads.iter_mut().find(|read| read.0 == mark(Kind::Read).0) {
                    Some(read) => read.1 = now,
                    None => byte.reads.push(mark(Kind::Read)),
                },
                Access::Atomic => byte.atomic = Some(mark(Kind::Atomic)),
                Access::Write => {
                    byte.write = Some(mark(Kind::Write));
                    byte.atomic = None;
                    byte.reads.clear();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_order_and_nothing_else_does() {
        let ledger = Ledger::default();
        let time = std::cell::Cell::new(0);
        let visit = |group: u64, unsettled: u64, address: u64, size: u32, access: Access| {
            time.set(time.get() + 1);
            let now = time.get();
            let visitor = Visitor {
                group,
                wave: 0,
                now,
                settled: now - 1 - unsettled,
            };
            ledger.touch(visitor, address, size, access)
        };
        let touch = |group: u64, address: u64, size: u32, access: Access| visit(group, 0, address, size, access);
        assert_eq!(touch(0, 100, 4, Access::Write), Ok(()));
        // Another's bytes, a shared read, and the racing ones.
        assert_eq!(touch(1, 104, 4, Access::Write), Ok(()));
        assert_eq!(touch(1, 102, 1, Access::Read), Err((102, 0)));
        assert_eq!(touch(1, 101, 4, Access::Write), Err((101, 0)));
        // The last of several to count reads what the others wrote before they counted.
        assert_eq!(touch(0, 8, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(0, 108, 4, Access::Write), Ok(()));
        assert_eq!(touch(2, 8, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(2, 100, 4, Access::Read), Ok(()));
        assert_eq!(touch(2, 100, 4, Access::Write), Ok(()));
        // What came after the count is not covered by it.
        assert_eq!(touch(2, 108, 4, Access::Read), Err((108, 0)));
        // A plain write among others' atomics.
        assert_eq!(touch(3, 8, 4, Access::Write), Err((8, 2)));
        // A store that its wave did not wait for is not published, and is by the next atomic after the wait.
        assert_eq!(touch(4, 200, 4, Access::Write), Ok(()));
        assert_eq!(visit(4, 1, 300, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(5, 300, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(5, 200, 4, Access::Read), Err((200, 4)));
        assert_eq!(touch(4, 300, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(6, 300, 4, Access::Atomic), Ok(()));
        assert_eq!(touch(6, 200, 4, Access::Read), Ok(()));
    }
}
