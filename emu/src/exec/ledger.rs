//! Races between the workgroups of one launch, in global memory.
//!
//! Nothing orders two workgroups but atomics, so every byte has the last access of each kind and every workgroup a
//! clock for each other one, which tells how much of it came before. An atomic publishes its workgroup's clock at its
//! address and takes what others published there; that it may be relaxed is not looked at, so that such an order
//! can hide a race and never invents one. Compilers write atomic loads as plain ones: a read that meets an atomic
//! is no race.

use crate::error::Access;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// For each workgroup how far its accesses are known to have come before.
type Clock = BTreeMap<u64, u64>;

/// An access: the workgroup, and its own time then.
type Mark = (u64, u64);

/// The last accesses to a byte.
#[derive(Default)]
struct Byte {
    write: Option<Mark>,
    atomic: Option<Mark>,
    /// Reads since the last write, one of each workgroup.
    reads: Vec<Mark>,
}

#[derive(Default)]
struct Inner {
    bytes: HashMap<u64, Byte>,
    published: HashMap<u64, Clock>,
    clocks: HashMap<u64, Clock>,
}

/// What the workgroups of a launch did to global memory.
#[derive(Default)]
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
}

impl Ledger {
    /// Notes an access of workgroup `group`; the first byte that races, with the other workgroup.
    pub fn touch(&self, group: u64, address: u64, size: u32, access: Access) -> Result<(), (u64, u64)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner {
            bytes,
            published,
            clocks,
        } = &mut *inner;
        let clock = clocks.entry(group).or_default();
        let now = *clock.entry(group).or_insert(1);
        let unordered =
            |clock: &Clock, mark: &Mark| mark.0 != group && clock.get(&mark.0).is_none_or(|known| *known < mark.1);
        if access == Access::Atomic {
            // What others published here came before; then this workgroup's past is published.
            let place = published.entry(address).or_default();
            for (other, time) in place.iter() {
                let known = clock.entry(*other).or_insert(0);
                *known = (*known).max(*time);
            }
            place.clone_from(clock);
        }
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
            if let Some((other, _)) = others.iter().find(|mark| unordered(clock, mark)) {
                return Err((at, *other));
            }
            match access {
                Access::Read => match byte.reads.iter_mut().find(|mark| mark.0 == group) {
                    Some(mark) => mark.1 = now,
                    None => byte.reads.push((group, now)),
                },
                Access::Atomic => byte.atomic = Some((group, now)),
                Access::Write => {
                    byte.write = Some((group, now));
                    byte.atomic = None;
                    byte.reads.clear();
                }
            }
        }
        if access == Access::Atomic {
            clock.insert(group, now + 1);
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
        assert_eq!(ledger.touch(0, 100, 4, Access::Write), Ok(()));
        // Another's bytes, a shared read, and the racing ones.
        assert_eq!(ledger.touch(1, 104, 4, Access::Write), Ok(()));
        assert_eq!(ledger.touch(1, 102, 1, Access::Read), Err((102, 0)));
        assert_eq!(ledger.touch(1, 101, 4, Access::Write), Err((101, 0)));
        // The last of several to count reads what the others wrote before they counted.
        assert_eq!(ledger.touch(0, 8, 4, Access::Atomic), Ok(()));
        assert_eq!(ledger.touch(0, 108, 4, Access::Write), Ok(()));
        assert_eq!(ledger.touch(2, 8, 4, Access::Atomic), Ok(()));
        assert_eq!(ledger.touch(2, 100, 4, Access::Read), Ok(()));
        assert_eq!(ledger.touch(2, 100, 4, Access::Write), Ok(()));
        // What came after the count is not covered by it.
        assert_eq!(ledger.touch(2, 108, 4, Access::Read), Err((108, 0)));
        // A plain write among others' atomics.
        assert_eq!(ledger.touch(3, 8, 4, Access::Write), Err((8, 2)));
    }
}
