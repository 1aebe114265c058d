//! The tiling of an attention that lanes compute, without matrix units.

use serde::{Deserialize, Serialize};

use super::{AttentionOrder, Fetch};

/// How workgroups compute attention by multiply-adds of the lanes, in f32 whatever the operands' types.
///
/// Neighbouring lanes share a row of queries, each with its part of the width of keys and of values; tiles of both go
/// through LDS.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FlashLanes {
    /// Waves of a workgroup.
    pub waves: u32,
    /// Lanes of a wave.
    pub lanes: u32,
    /// Neighbouring lanes that share a row of queries: a power of two, at most 16.
    pub group: u32,
    /// Rows of a lane.
    pub rows: u32,
    /// Waves that have the same queries and share out the keys: a power of two that divides them.
    pub split: u32,
    /// Keys of a wave that are in LDS at once: a power of two, at least the group.
    pub keys: u32,
    /// Neighbours of a query along its width that are read at once.
    pub query: u32,
    /// How keys are fetched; `k` is their width.
    pub key: Fetch,
    /// How values are fetched; the rows are the keys, `k` the width.
    pub value: Fetch,
    /// Neighbours along the width of values that the epilogue takes at once; divides it and a chunk of 16 bytes.
    pub store: u32,
    /// Neighbours in the batch whose blocks of queries are taken in turn; see [`AttentionOrder`].
    pub together: AttentionOrder,
}

impl FlashLanes {
    /// Lanes that share a row at most: what they exchange stays within 16.
    pub const MOST_GROUP: u32 = 16;
    /// Heads at most as wide: a lane's part of wider ones leaves it no registers.
    pub const WIDEST: i64 = 512;

    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.waves.saturating_mul(self.lanes)
    }

    /// Queries of a workgroup.
    pub fn queries(&self) -> u32 {
        let rows = (self.lanes / self.group.max(1)).saturating_mul(self.rows);
        (self.waves / self.split.max(1)).saturating_mul(rows)
    }

    /// Elements of a width that a lane has: whole chunks of 16 bytes.
    pub fn share(&self, width: i64, bits: u32) -> i64 {
        let chunk = i64::from(128 / bits.max(1));
        let chunks = (width + chunk - 1) / chunk;
        let group = i64::from(self.group.max(1));
        (chunks + group - 1) / group * chunk
    }

    /// Bytes of a row of LDS: a power of two, of two chunks at least.
    fn row_bytes(&self, width: i64, bits: u32) -> i64 {
        let elements = self.share(width, bits) * i64::from(self.group);
        ((elements * i64::from(bits) / 8).max(32) as u64).next_power_of_two() as i64
    }

    /// Bytes of LDS for keys of width `d` and values of width `dv`, with the bits of their elements.
    pub fn lds_bytes(&self, [d, dv]: [i64; 2], bits: [u32; 2]) -> i64 {
        let tiles = i64::from(self.keys * self.split) * (self.row_bytes(d, bits[0]) + self.row_bytes(dv, bits[1]));
        // What waves that share queries hand over at the end: outputs, a maximum and a sum of each row.
        let handing = i64::from(if self.split > 1 { self.waves / 2 } else { 0 }) * i64::from(self.lanes);
        let handed = handing * i64::from(self.rows) * (self.share(dv, bits[1]) + 2) * 4;
        tiles.max(handed)
    }

    /// Registers of a lane for queries, outputs, parts of scores, scores and what is on its way from memory.
    pub fn registers(&self, [d, dv]: [i64; 2], bits: [u32; 2]) -> i64 {
        let fetched =
            i64::from(self.keys * self.split) * (self.row_bytes(d, bits[0]) + self.row_bytes(dv, bits[1])) / 4;
        // Parts of sums are there twice while they are brought together.
        let scores = i64::from(2 * self.group + self.keys / self.group.max(1));
        let row = self.share(d, bits[0]) + self.share(dv, bits[1]) + scores;
        i64::from(self.rows) * row + fetched / i64::from(self.threads().max(1))
    }

    /// Says why the numbers do not fit each other, if they do not.
    pub fn misfit(&self) -> Option<&'static str> {
        let numbers = [
            self.waves,
            self.rows,
            self.keys,
            self.query,
            self.key.width,
            self.value.width,
            self.store,
        ];
        if numbers.contains(&0) {
            return Some("a tiling of nothing");
        }
        if self.together.misfit().is_some() {
            return self.together.misfit();
        }
        if ![32, 64].contains(&self.lanes) || !self.group.is_power_of_two() || self.group > Self::MOST_GROUP {
            return Some("a power of two of at most 16 of a wave's lanes share a row");
        }
        if !self.keys.is_power_of_two() || self.keys < self.group || self.keys > 256 {
            return Some("each lane of a row has as many keys of a tile, a power of two together");
        }
        if !self.split.is_power_of_two() || !self.waves.is_multiple_of(self.split) {
            return Some("the waves are whole groups that share queries");
        }
        if self.rows > 16 || self.threads() > 1024 {
            return Some("more than 16 rows a lane, or 1024 threads a workgroup");
        }
        None
    }
}
