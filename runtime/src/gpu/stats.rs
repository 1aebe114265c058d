//! What the runs of a loaded program took besides running.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::RunStatistics;

/// Counts, by any thread.
#[derive(Default)]
pub(super) struct Counters {
    pub runs: AtomicU64,
    pub placed: AtomicU64,
    pub sized: AtomicU64,
    pub captured: AtomicU64,
    pub replayed: AtomicU64,
    pub refused: AtomicU64,
    pub contexts: AtomicU64,
    pub streamed_bytes: AtomicU64,
}

impl Counters {
    pub fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> RunStatistics {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RunStatistics {
            runs: of(&self.runs),
            placed: of(&self.placed),
            sized: of(&self.sized),
            captured: of(&self.captured),
            replayed: of(&self.replayed),
            refused: of(&self.refused),
            contexts: of(&self.contexts),
            streamed_bytes: of(&self.streamed_bytes),
        }
    }
}
