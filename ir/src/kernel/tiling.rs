//! Tilings: how a contraction or an attention is cut for the matrix units.

mod gemv;

use serde::{Deserialize, Serialize};

pub use gemv::{GemvMatrix, GemvStream, GemvTiling};

use super::Fetch;
use crate::target::{MatrixFamily, MatrixInstruction};

/// Registers of a lane for addresses, counters and what the epilogue holds at a time, as compiled kernels have them.
const ADDRESSES: u32 = 48;
/// The same where lanes multiply, beside those of what is fetched.
const LANES_ADDRESSES: u32 = 36;
/// The same where tiles are copied past the registers, at least: NVRTC keeps about three registers for each copy of a
/// lane, and two more for each that begins with the same step (as compiled for sm_90, where 16 copies beside 192
/// registers of sums and fragments spill, beside 160 where they begin together).
const COPY_ADDRESSES: u32 = 40;
/// The same where MFMA's tiles are: AMD's compiler keeps two registers of address for each load (as compiled for
/// gfx950).
const DIRECT_ADDRESSES: u32 = 52;
/// Bytes of a lane in one access to LDS, and those in which all threads of a workgroup take part where tiles go past
/// the registers.
const CHUNK_BYTES: u32 = 16;

/// Bytes of shared memory that a CUDA kernel may declare (CUDA C programming guide, compute capabilities); more comes
/// with the launch.
const CUDA_DECLARED_LDS: u32 = 48 << 10;

/// How tiles of the operands travel from memory to LDS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Travel {
    /// Through registers, where elements can be computed, converted and turned on the way. The next tile is in
    /// registers while one is multiplied.
    Registers,
    /// Past the registers, as the elements lie in memory: by `cp.async` on `sm_90`, by loads straight to LDS on CDNA.
    /// The next `stages - 1` tiles are on their way while one is multiplied. What an operand of `mma.sync` computes
    /// goes through registers still.
    Direct,
}

/// How a workgroup computes its tile of a contraction with matrix instructions.
///
/// The workgroup has `waves[0] · waves[1] · parts` waves (warp groups, where those execute the instruction); each takes
/// `block / waves` of the tile in fragments of the instruction's shape. Tiles of both operands go through LDS in their
/// own element type, `block[2]` deep, `stages` of them at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Tiling {
    pub instruction: MatrixInstruction,
    /// Rows, columns and depth of a workgroup's tile.
    pub block: [u32; 3],
    /// Waves along rows and along columns.
    pub waves: [u32; 2],
    /// Waves that share out k: each takes every so many tiles along k for itself, and their sums are added in LDS,
    /// always in the same order. With more than one, a tile is one wave's in rows and columns.
    pub parts: u32,
    /// Tiles of the operands that are in LDS at once, of each part.
    pub stages: u32,
    pub travel: Travel,
    /// Fragments are read from LDS one step before they are multiplied, which takes their registers twice. Of `wgmma`,
    /// which reads none: a tile's products begin before those of the last tile have ended.
    pub ahead: bool,
    pub lhs: Fetch,
    pub rhs: Fetch,
    /// Neighbours along the columns that the epilogue takes and stores at once; divides the extent of the innermost
    /// column axis.
    pub store: u32,
    /// Rows of tiles that are walked together, column by column, so that what they share stays in the cache.
    pub group: u32,
    /// Dies with an L2 each, to which workgroups go in turn: each takes runs of neighbours.
    pub dies: u32,
    /// Workgroups of a compute unit that NVRTC must leave registers for; `None` where the compiler decides. Unasked, it
    /// makes room for one more by spilling.
    pub resident: Option<u32>,
    /// Workgroups that share out the depth of some tiles; `None` where each tile is one workgroup's.
    pub shares: Option<Shares>,
}

/// Workgroups that share out the steps along k of some of a contraction's tiles (stream-K; Osama et al., 2023), so that
/// tiles which do not go over the compute units in whole rounds keep all of them busy to the end. Every other tile is
/// one workgroup's.
///
/// The steps of the first `tiles` tiles, one tile behind the other, are cut into `groups` runs whose lengths differ by
/// one step at most; a workgroup takes a run, which may end in the middle of a tile and begin in the middle of another.
/// Of a tile with several workgroups each writes its sums to scratch memory and draws a ticket; the one that draws the
/// last adds the sums in the order of their steps, whoever came first, and computes the epilogue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shares {
    pub groups: u32,
    pub tiles: u32,
}

impl Shares {
    /// Groups and tiles at most.
    pub const MOST: u32 = 4096;

    /// The workgroups that have steps of a shared tile, and where their runs begin in it: pieces of the tile, in the
    /// order of its steps. Tiles have `steps` steps each.
    pub fn pieces_of(self, tile: u32, steps: i64) -> std::ops::RangeInclusive<i64> {
        let (groups, all) = (i64::from(self.groups), i64::from(self.tiles) * steps);
        // The last group that begins at a step or before it.
        let group_of = |step: i64| ((step + 1) * groups - 1) / all.max(1);
        let first = i64::from(tile) * steps;
        group_of(first)..=group_of(first + steps - 1)
    }

    /// Sums of scratch memory, for blocks of so many: at most one block more for each tile than there are groups.
    pub fn scratch(self, block: [u32; 3]) -> i64 {
        let blocks = i64::from(self.groups) + i64::from(self.tiles);
        blocks * i64::from(block[0]) * i64::from(block[1])
    }
}

impl Tiling {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.parts * self.threads_of_part()
    }

    /// Threads that multiply one tile.
    pub fn threads_of_part(&self) -> u32 {
        self.waves[0] * self.waves[1] * self.instruction.lanes()
    }

    /// Bytes of LDS that the operands' tiles take, or the parts' sums afterwards.
    pub fn lds_bytes(&self) -> u32 {
        let tiles = self.tile_bytes().saturating_mul(self.stages);
        if self.parts == 1 {
            return tiles;
        }
        let sums = self.block[0] * self.block[1] * self.instruction.acc.bits().div_ceil(8);
        self.parts.saturating_mul(tiles.max(sums))
    }

    /// Bytes of a tile of both operands.
    fn tile_bytes(&self) -> u32 {
        (self.block[0] + self.block[1]) * self.block[2] * self.instruction.input.bits().div_ceil(8)
    }

    /// Bytes of LDS that a launch must give a workgroup: all of the tiles' where they are more than a CUDA kernel may
    /// declare.
    pub fn launch_lds(&self) -> u32 {
        let bytes = self.lds_bytes();
        if self.instruction.is_asynchronous() && bytes > CUDA_DECLARED_LDS {
            bytes
        } else {
            0
        }
    }

    /// Says whether tiles go past the registers by loads straight to LDS. By `mma.sync` and `wgmma` they are copied, as
    /// they always are.
    pub fn loads_to_lds(&self) -> bool {
        self.travel == Travel::Direct && !self.instruction.is_asynchronous()
    }

    /// Loads of a lane for a tile of both operands, each of so many bytes, where they go straight to LDS.
    pub fn direct_loads(&self, bytes: u32) -> u32 {
        self.tile_bytes() / self.threads_of_part().saturating_mul(bytes).max(1)
    }

    /// Says why the operands cannot go straight to LDS that way.
    fn direct_misfit(&self) -> Option<&'static str> {
        let i = &self.instruction;
        if i.family != MatrixFamily::Mfma {
            return Some("tiles of WMMA and of lanes travel through registers");
        }
        if self.stages < 2 || self.parts > 1 || self.shares.is_some() {
            return Some(
                "tiles that go straight to LDS are a workgroup's own, of which one is loaded while another is multiplied",
            );
        }
        let round = self.threads_of_part().saturating_mul(CHUNK_BYTES);
        for (rows, fetch) in [(self.block[0], self.lhs), (self.block[1], self.rhs)] {
            let line = rows * i.input.bits() / 8;
            if !(line * self.block[2]).is_multiple_of(round) {
                return Some("all threads load as much of a tile that goes straight to LDS");
            }
            if fetch.along_k {
                continue;
            }
            if ![8, 16].contains(&i.input.bits()) {
                return Some(
                    "elements that lie along the rows are turned on their way out of LDS where they have one byte or two",
                );
            }
            if line != 64 && !line.is_multiple_of(128) {
                return Some("elements that lie along the rows are in LDS in lines of 64 bytes, or of whole 128");
            }
        }
        // Those of one byte are turned in groups of eight, of which a lane then has four.
        if !self.rhs.along_k && i.input.bits() == 8 && self.store > 4 {
            return Some("a lane has four neighbours of the columns that are turned by bytes");
        }
        None
    }

    /// Registers of a lane that hold sums.
    pub fn accumulators(&self) -> u32 {
        let words = self.instruction.acc.bits().div_ceil(32);
        self.block[0] * self.block[1] * words / self.threads_of_part()
    }

    /// Registers of a lane, by estimate: sums, fragments, what is on its way from memory, and addresses.
    pub fn registers(&self) -> u32 {
        let i = &self.instruction;
        // A fragment is 16 bytes of a lane, or what one instruction takes; gfx11 repeats its operands in both halves of
        // a wave, which takes twice as much.
        let fragment = match i.family {
            MatrixFamily::Wmma if i.input.bits() >= 16 => 8,
            MatrixFamily::Mfma => (i.m * i.k * i.input.bits() / 32 / i.lanes()).max(4),
            _ => 4,
        };
        let (lhs, rhs) = (
            self.block[0] / (self.waves[0] * i.m),
            self.block[1] / (self.waves[1] * i.n),
        );
        let steps = if self.ahead { 2 } else { 1 };
        if i.family == MatrixFamily::Wgmma {
            return self.accumulators() + COPY_ADDRESSES;
        }
        if i.family == MatrixFamily::MmaSync {
            // Fragments of 16x16 and 16x8 elements of two bytes; copies pass the registers by, but for their addresses.
            let copies = self.direct_loads(CHUNK_BYTES);
            let at_once = copies / (self.block[2] / i.k).saturating_sub(1).max(1);
            let addresses = COPY_ADDRESSES.max(3 * copies + 2 * at_once);
            return self.accumulators() + steps * (4 * lhs + 2 * rhs) + addresses;
        }
        let held = self.accumulators() + steps * fragment * (lhs + rhs);
        if self.travel == Travel::Direct {
            return held + DIRECT_ADDRESSES;
        }
        let fetched = self.tile_bytes() / 4 / self.threads_of_part();
        match i.family {
            // The compilers keep addresses of what lanes fetch beside it (as compiled for gfx906, gfx1030 and gfx1100).
            MatrixFamily::Lanes => held + fetched * 5 / 2 + LANES_ADDRESSES,
            _ => held + fetched + ADDRESSES,
        }
    }

    /// Says why the numbers do not fit each other, if they do not.
    pub fn misfit(&self) -> Option<&'static str> {
        let i = &self.instruction;
        let zero = [
            self.dies,
            self.parts,
            self.stages,
            self.store,
            self.group,
            i.m,
            i.n,
            i.k,
            i.cycles,
        ]
        .contains(&0)
            || self.block.contains(&0)
            || self.waves.contains(&0)
            || [self.lhs.width, self.rhs.width].contains(&0);
        if zero {
            return Some("a tiling of nothing");
        }
        let most = self.block.iter().chain(&self.waves).chain([
            &i.m,
            &i.n,
            &i.k,
            &self.stages,
            &self.parts,
            &self.dies,
            &self.group,
        ]);
        if most.copied().max().unwrap_or(0) > 4096 {
            return Some("a tiling too large for any workgroup");
        }
        if !self.block[0].is_multiple_of(self.waves[0] * i.m) || !self.block[1].is_multiple_of(self.waves[1] * i.n) {
            return Some("waves and instructions do not divide the tile");
        }
        if self.parts > 1 && (self.waves != [1, 1] || i.is_asynchronous()) {
            return Some("waves share out k where a tile is one wave's, which mma.sync and wgmma do not do");
        }
        if !self.block[2].is_multiple_of(i.step()) {
            return Some("the instruction's depth does not divide the tile's");
        }
        match (i.is_asynchronous(), self.travel) {
            (true, Travel::Registers) => return Some("tiles of mma.sync and wgmma are copied past the registers"),
            (false, Travel::Direct) if self.direct_misfit().is_some() => return self.direct_misfit(),
            _ => {}
        }
        if self
            .resident
            .is_some_and(|n| i.family != MatrixFamily::MmaSync || !(1..=32).contains(&n))
        {
            return Some("from 1 to 32 workgroups are resident, and their number is asked for by mma.sync alone");
        }
        if let Some(shares) = self.shares {
            if ![shares.groups, shares.tiles]
                .iter()
                .all(|n| (1..=Shares::MOST).contains(n))
            {
                return Some("from 1 to 4096 workgroups share as many tiles");
            }
            if self.parts > 1 || !matches!(i.family, MatrixFamily::Mfma | MatrixFamily::Wmma) {
                return Some(
                    "tiles are shared by workgroups that multiply with MFMA or WMMA and have a tile's whole depth otherwise",
                );
            }
        }
        // What copies fill is read by pairs of fragments and of steps, and while one buffer is read another one is
        // filled.
        let pairs = fragments_of(self).is_multiple_of(2) && (self.block[2] / i.k).is_multiple_of(2);
        if i.family == MatrixFamily::MmaSync && !(pairs && self.stages >= 2) {
            return Some("mma.sync takes pairs of fragments and two stages or more");
        }
        if i.family == MatrixFamily::Wgmma {
            if self.waves[1] != 1 || self.block[1] != i.n {
                return Some("a warp group has all columns of the tile");
            }
            if !(self.block[2] * i.input.bits()).is_multiple_of(1024) {
                return Some("descriptors take whole lines of 128 bytes along k");
            }
            if [self.lhs, self.rhs].iter().any(|f| f.width * i.input.bits() < 32) {
                return Some("tiles are copied to LDS by four bytes at least");
            }
            if i.input.bits() < 16 && !(self.lhs.along_k && self.rhs.along_k) {
                return Some("wgmma turns elements of 2 bytes alone: others lie along k");
            }
            // One stage is filled while one is read; products that go on read another.
            if self.stages < if self.ahead { 3 } else { 2 } {
                return Some("wgmma takes two stages, or three with the next tile's products begun ahead");
            }
        }
        // A wider group of columns than a lane has is made of several fragments.
        let fragments = fragments_of(self);
        if !self.store.is_power_of_two() || !fragments.is_multiple_of((self.store / i.sum_cols()).max(1)) {
            return Some("the width of the stores needs more columns a wave");
        }
        if self.threads() > 1024 {
            return Some("more than 1024 threads a workgroup");
        }
        None
    }
}

/// Fragments of a wave along the columns; the sums of a warp group are in fragments of eight.
fn fragments_of(tiling: &Tiling) -> u32 {
    if tiling.instruction.family == MatrixFamily::Wgmma {
        return tiling.block[1] / 8;
    }
    tiling.block[1] / (tiling.waves[1] * tiling.instruction.n)
}

/// The order in which workgroups take an attention's blocks of queries: so many neighbours in the batch (heads) take
/// the same block in turn, then their next one, and after their last the next neighbours follow. With a causal mask,
/// blocks come last first.
///
/// What takes longest then begins first, and short blocks fill what is left at the end; neighbours that are as many as
/// a GPU has dies keep the keys of a head on one die.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttentionOrder(pub u32);

impl AttentionOrder {
    /// Neighbours at most.
    pub const MOST: u32 = 64;

    /// Says why the number does not fit, if it does not.
    pub fn misfit(self) -> Option<&'static str> {
        (self.0 == 0 || self.0 > Self::MOST).then_some("from 1 to 64 neighbours in the batch take blocks in turn")
    }
}

/// Where a wave's queries are while keys pass by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum QueryPlace {
    /// In registers, as the instruction takes them: gfx11's WMMA has them in both halves of a wave.
    Registers,
    /// In registers, of each half of a wave its own half, which gets the other from its partner for each product. By
    /// WMMA alone; on gfx12, which has them once, the same as [`QueryPlace::Registers`].
    Halved,
    /// In LDS, from which they are read for every tile. By `mma.sync` alone, which brings them there.
    Lds,
}

impl QueryPlace {
    /// Its name in the device library's `QueryPlace`.
    pub fn name(self) -> &'static str {
        match self {
            QueryPlace::Registers => "REGISTERS",
            QueryPlace::Halved => "HALVED",
            QueryPlace::Lds => "LDS",
        }
    }
}

/// How workgroups compute attention, or two chained products, with matrix instructions.
///
/// Each wave has `fragments` times as many queries as the instruction has rows; tiles of keys and values go through LDS
/// in their own type: with `mma.sync` past the registers, into two buffers in turns, and so do the queries.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FlashTiling {
    pub instruction: MatrixInstruction,
    /// Waves of a workgroup.
    pub waves: u32,
    /// Waves that have the same queries and share out the keys: a power of two that divides them.
    pub split: u32,
    /// Fragments of queries of a wave, which read keys and values from LDS together.
    pub fragments: u32,
    /// Where a wave's queries are while keys pass by.
    pub queries_in: QueryPlace,
    /// Keys of a wave that are in LDS at once.
    pub keys: u32,
    /// Neighbours of a query along its width that are read at once.
    pub query: u32,
    /// How keys are fetched; `k` is their width.
    pub key: Fetch,
    /// How values are fetched; the rows are their width, `k` the keys.
    pub value: Fetch,
    /// Neighbours along the width of values that the epilogue takes at once; divides it.
    pub store: u32,
    /// Neighbours in the batch whose blocks of queries are taken in turn; see [`AttentionOrder`].
    pub together: AttentionOrder,
}

impl FlashTiling {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.waves.saturating_mul(self.instruction.lanes())
    }

    /// Queries of a workgroup.
    pub fn queries(&self) -> u32 {
        let waves = self.waves / self.split.max(1);
        waves.saturating_mul(self.instruction.m).saturating_mul(self.fragments)
    }

    /// Keys that lanes give to the instructions of a step: 16 bytes a lane, or what one `mma.sync` takes.
    fn step(&self) -> u32 {
        let i = &self.instruction;
        let chunk = 128 / i.input.bits().max(1);
        match i.family {
            // Both halves of the wave give all of k.
            MatrixFamily::Wmma => i.k,
            MatrixFamily::Mfma => i.k * chunk / (i.m * i.k / i.lanes()).clamp(1, chunk),
            MatrixFamily::MmaSync | MatrixFamily::Wgmma => i.k,
            // Not asked for: lanes have a tiling of their own.
            MatrixFamily::Lanes => chunk,
        }
    }

    /// Bytes of LDS for keys of width `d` and values of width `dv`: rows of keys are powers of two.
    pub fn lds_bytes(&self, d: i64, dv: i64) -> i64 {
        let depth = (d.max(i64::from(self.step())) as u64).next_power_of_two() as i64;
        let padded = self.columns(dv);
        let size = i64::from(self.instruction.input.bits() / 8);
        let keys = i64::from(self.keys * self.split);
        let tiles = match self.instruction.family {
            MatrixFamily::MmaSync => {
                let tile = keys * size * (depth + (padded.max(64) as u64).next_power_of_two() as i64);
                // Queries lie behind both tiles, or first where the second will be.
                let queries = i64::from(self.queries()) * depth * size;
                if self.queries_in == QueryPlace::Lds {
                    2 * tile + queries
                } else {
                    tile + tile.max(queries)
                }
            }
            _ => keys * size * (depth + padded),
        };
        // What waves that share queries hand over at the end: outputs, and of each lane's rows a maximum and a sum.
        let i = &self.instruction;
        let rows = i64::from(i.m * i.n / i.sum_cols().max(1));
        let handing = i64::from(if self.split > 1 { self.waves / 2 } else { 0 });
        let handed = handing * i64::from(self.fragments) * (i64::from(i.m) * padded + 2 * rows) * 4;
        tiles.max(handed)
    }

    /// Bytes of LDS that every launch must give a workgroup: all, where they are more than a CUDA kernel may declare.
    pub fn launch_lds(&self, d: i64, dv: i64) -> u32 {
        let bytes = self.lds_bytes(d, dv);
        if self.instruction.family == MatrixFamily::MmaSync && bytes > i64::from(CUDA_DECLARED_LDS) {
            u32::try_from(bytes).unwrap_or(u32::MAX)
        } else {
            0
        }
    }

    /// Registers of a lane for queries, scores, outputs and what is on its way from memory.
    pub fn registers(&self, d: i64, dv: i64) -> i64 {
        let i = &self.instruction;
        let rows = i64::from(i.m) * i64::from(self.fragments);
        let (lanes, keys) = (i64::from(i.lanes()), i64::from(self.keys));
        let bits = i64::from(i.input.bits());
        let copies = match (self.queries_in, i.family) {
            (QueryPlace::Lds, _) => 0,
            (QueryPlace::Registers, MatrixFamily::Wmma) => 2,
            (QueryPlace::Registers | QueryPlace::Halved, _) => 1,
        };
        let queries = rows * d * bits * copies / 32 / lanes;
        if i.family == MatrixFamily::MmaSync {
            // Nothing is on its way in registers, and scores are there once as products or as weights.
            return queries + rows * (dv + keys) / lanes;
        }
        let fetched = keys * i64::from(self.split) * (d + dv) * bits / 32 / i64::from(self.threads());
        // Scores are there as products, as weights and as the next product's operand.
        queries + rows * (dv + 3 * keys) / lanes + fetched
    }

    /// Says why the numbers do not fit each other, if they do not.
    pub fn misfit(&self) -> Option<&'static str> {
        let i = &self.instruction;
        if !i.has_unit() {
            return Some("attention by the lanes has a tiling of its own");
        }
        if i.family == MatrixFamily::Wgmma {
            return Some("warp groups do not compute attention");
        }
        if [
            self.waves,
            self.fragments,
            self.keys,
            self.query,
            self.key.width,
            self.value.width,
            self.store,
        ]
        .contains(&0)
        {
            return Some("a tiling of nothing");
        }
        if !self.split.is_power_of_two() || !self.waves.is_multiple_of(self.split) {
            return Some("the waves are whole groups that share queries");
        }
        if self.fragments > 4 {
            return Some("more than a lane's registers hold");
        }
        let sync = i.family == MatrixFamily::MmaSync;
        if self.queries_in == QueryPlace::Lds && !sync {
            return Some("queries stay in LDS where they are copied to it, for mma.sync");
        }
        if self.queries_in == QueryPlace::Halved && i.family != MatrixFamily::Wmma {
            return Some("halves of a wave have halves of the queries by WMMA");
        }
        if sync && !self.keys.is_power_of_two() {
            return Some("a tile's keys are a power of two for mma.sync");
        }
        if self.together.misfit().is_some() {
            return self.together.misfit();
        }
        if ![16, 32].contains(&i.input.bits()) {
            return Some("the weights have two bytes or four");
        }
        if !self.keys.is_multiple_of(i.n) || !self.keys.is_multiple_of(self.step()) || self.keys > 256 {
            return Some("a tile is whole fragments of keys");
        }
        if self.threads() > 1024 {
            return Some("more than 1024 threads a workgroup");
        }
        None
    }

    /// Says whether a lane's columns of values of width `dv` come in groups of the stores' width.
    pub fn stores_fit(&self, dv: i64) -> bool {
        let run = i64::from(self.instruction.n * (self.store / self.instruction.sum_cols()).max(1));
        dv % i64::from(self.store) == 0 && self.columns(dv) % run == 0
    }

    /// Columns of values of width `dv` in whole fragments, which `ldmatrix` reads in pairs.
    fn columns(&self, dv: i64) -> i64 {
        let pair = if self.instruction.family == MatrixFamily::MmaSync {
            2
        } else {
            1
        };
        let cols = i64::from(self.instruction.n * pair);
        (dv + cols - 1) / cols * cols
    }
}

#[cfg(test)]
mod tests {
    use super::CUDA_DECLARED_LDS;
    use crate::target::{Platform, TARGETS};

    #[test]
    fn what_a_launch_gives_begins_where_declarations_end() {
        let launched: Vec<_> = TARGETS.iter().filter(|t| t.launch_lds_bytes > 0).collect();
        assert!(!launched.is_empty());
        for target in launched {
            assert_eq!(target.platform, Platform::Cuda, "{}", target.name);
            assert_eq!(target.lds_bytes, CUDA_DECLARED_LDS, "{}", target.name);
        }
    }
}
