//! Counts of compilations and runs in this process, for tests and for users who look whether anything is compiled
//! again.

use std::sync::atomic::{AtomicU64, Ordering};

/// See [`GraphcProviderCounters`].
pub struct Counters {
    counts: [AtomicU64; 4],
}

/// A count, by its place.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Regions compiled with their sizes left open.
    Compiled,
    /// Regions compiled once more for the inputs of a run.
    Specialised,
    /// Regions loaded from an EPContext node, for which nothing was compiled.
    Loaded,
    /// Runs of regions.
    Runs,
}

pub static COUNTERS: Counters = Counters {
    counts: [const { AtomicU64::new(0) }; 4],
};

impl Counters {
    pub fn add(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes the counts of this process: regions compiled, regions compiled again for given inputs, regions loaded
/// without a compiler, and runs of regions. Returns how many there are; no more than `length` are written.
///
/// # Safety
/// `counts` has room for `length` numbers, or `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GraphcProviderCounters(counts: *mut u64, length: usize) -> usize {
    for (index, count) in COUNTERS.counts.iter().take(length).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { counts.add(index).write(count.load(Ordering::Relaxed)) };
    }
    COUNTERS.counts.len()
}
