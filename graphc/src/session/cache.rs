//! Sessions of graphs that were compiled before.

use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use ir::Graph;

use super::{GraphKey, Session, SessionOptions};
use crate::error::Result;

/// A session once it is compiled; the lock is held while one thread compiles, so that others wait for it and no other
/// graph.
type Slot = Arc<Mutex<Option<Session>>>;

/// Compiles each graph once. Shared by threads; the graph that was not used for longest goes when there are too many.
#[derive(Debug)]
pub struct SessionCache {
    options: SessionOptions,
    capacity: usize,
    /// In order of last use.
    slots: Mutex<IndexMap<GraphKey, Slot>>,
    stats: Mutex<CacheStats>,
}

/// What a cache has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Graphs that had to be compiled.
    pub compiles: u64,
    /// Graphs that had been compiled before.
    pub hits: u64,
}

impl SessionCache {
    /// Makes an empty cache for at most `capacity` graphs, at least one.
    pub fn new(options: SessionOptions, capacity: usize) -> SessionCache {
        let capacity = capacity.max(1);
        SessionCache {
            options,
            capacity,
            slots: Mutex::default(),
            stats: Mutex::default(),
        }
    }

    /// Returns the session of a graph, compiling it if it is new. A failure is not kept: the next call tries again.
    ///
    /// # Errors
    /// As [`Session::compile`].
    pub fn session(&self, graph: Graph) -> Result<Session> {
        let slot = self.slot(GraphKey::of(&graph));
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = &*slot {
            self.count(|s| s.hits += 1);
            return Ok(session.clone());
        }
        self.count(|s| s.compiles += 1);
        let session = Session::compile(graph, &self.options)?;
        *slot = Some(session.clone());
        Ok(session)
    }

    /// Returns what was done so far.
    pub fn stats(&self) -> CacheStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all sessions; those in use live on.
    pub fn clear(&self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn count(&self, f: impl FnOnce(&mut CacheStats)) {
        f(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn slot(&self, key: GraphKey) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        recent(&mut slots, key, self.capacity)
    }
}

/// Returns what a key has in a map in order of last use, or puts a new value there: the one not used for longest goes.
pub(super) fn recent<K: Hash + Eq, V: Clone + Default>(slots: &mut IndexMap<K, V>, key: K, capacity: usize) -> V {
    if let Some((at, _, slot)) = slots.get_full(&key) {
        let slot = slot.clone();
        let last = slots.len() - 1;
        slots.move_index(at, last);
        return slot;
    }
    while slots.len() >= capacity.max(1) {
        slots.shift_remove_index(0);
    }
    slots.entry(key).or_default().clone()
}
