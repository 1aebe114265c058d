//! Memory pools: what an allocation belongs to, how much of it there is, and the most there was.
//!
//! Nothing is kept for reuse, so what a pool has reserved is what is in use.

use crate::state::{Handle, Runtime};

/// A pool of stream-ordered memory.
pub struct Pool {
    pub device: usize,
    /// Bytes in use, and the most that were since somebody reset it.
    pub used: u64,
    pub used_high: u64,
    /// The most bytes that may be in use; 0 for as many as the device has.
    pub limit: u64,
    /// What was set and changes nothing here: the reuse switches and the threshold of release, by attribute's number.
    pub settings: [u64; 4],
}

impl Runtime {
    /// A pool of a device, as `hipMemPoolCreate` and a new device have it.
    pub fn new_pool(&mut self, device: usize) -> u64 {
        let id = self.handle(Handle::Pool);
        // Reuse is allowed in every way until it is switched off.
        let settings = [1, 1, 1, 0];
        let pool = Pool {
            device,
            used: 0,
            used_high: 0,
            limit: 0,
            settings,
        };
        self.pools.insert(id, pool);
        id
    }

    /// Counts bytes that were allocated from a pool.
    pub fn pool_takes(&mut self, pool: u64, size: u64) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.used += size;
            pool.used_high = pool.used_high.max(pool.used);
        }
    }

    /// Counts the bytes of a freed allocation back, if a pool gave it.
    pub fn pool_gets_back(&mut self, address: u64, size: u64) {
        if let Some(pool) = self.pooled.remove(&address)
            && let Some(pool) = self.pools.get_mut(&pool)
        {
            pool.used = pool.used.saturating_sub(size);
        }
    }
}
