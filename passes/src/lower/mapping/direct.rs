//! Tilings whose tiles go straight from memory to LDS: which there are, and what waits for memory in them.

use ir::Target;
use ir::kernel::{Fetch, Tiling};
use ir::target::{MatrixFamily, MatrixInstruction};

use super::{Block, Mapper, block};

/// Tiles of MFMA whose operands go straight to LDS: all waves load as much, and a step along k is deep enough for
/// what a barrier costs.
const BLOCKS: &[Block] = &[
    block(256, 256, 128, [2, 4]),
    block(256, 256, 64, [2, 4]),
    block(256, 128, 128, [4, 2]),
    block(128, 256, 128, [2, 4]),
    block(256, 128, 128, [2, 2]),
    block(128, 256, 128, [2, 2]),
    block(128, 128, 128, [4, 2]),
    block(128, 128, 128, [2, 2]),
    block(128, 64, 128, [2, 2]),
    block(64, 128, 128, [2, 2]),
    block(64, 64, 128, [2, 2]),
];

/// Stages to choose from.
pub(super) const STAGES: [u32; 3] = [2, 3, 4];
/// Instructions that load one group of an operand: its address, the place in LDS, the access.
pub(super) const FETCH_INSTRUCTIONS: f64 = 5.0;
/// Of loads straight to LDS, as the emulator's timing model has them for gfx950 in products of 4096^3 and 8192^3:
/// clocks from the request of a tile to its arrival while all compute units read, and the part of the cache's rate
/// that they reach.
const LATENCY: f64 = 1350.0;
const CACHE_SHARE: f64 = 0.7;
/// Bytes that neighbouring lanes store whole. What is stored in pieces of half as many takes four times as long.
const PIECE_BYTES: f64 = 64.0;
/// The part of the cache's rate at which whole pieces are stored.
const STORE_RATE: f64 = 0.5;

/// The tiles to choose from for an instruction; none where the target has no such loads, or multiplies slower than
/// registers bring tiles.
pub(super) fn blocks(instruction: &MatrixInstruction, target: &Target) -> &'static [Block] {
    let loads = target.direct_bytes > 0 && instruction.family == MatrixFamily::Mfma;
    if loads && instruction.input.bits() <= 16 {
        BLOCKS
    } else {
        &[]
    }
}

/// The clocks of a step that memory decides, and those of a tile's stores.
pub(super) struct Arrival {
    /// In which the cache brings a step's tiles.
    pub cache: f64,
    /// From the request of a tile to its arrival, as far as no other tile hides it.
    pub latency: f64,
    /// In which products wait for fragments.
    pub exposed: f64,
    pub stores: f64,
}

impl Mapper<'_> {
    /// Predicts what waits for memory where tiles go straight to LDS, `reads` clocks after which the fragments of a
    /// step are in registers.
    pub(super) fn arrival_in_lds(&self, t: &Tiling, shared: f64, reads: f64) -> Arrival {
        let target = self.target;
        let [block_m, block_n, block_k] = t.block.map(f64::from);
        let depth = block_k * f64::from(t.instruction.input.bits()) / 8.0;
        let cache_rate = f64::from(target.cache_bytes_per_clock);
        // Tiles less deep than a line ask for lines that they use a part of.
        let lines = |f: Fetch| match f.along_k {
            true => (f64::from(target.line_bytes) / depth).max(1.0),
            false => 1.0,
        };
        let fetched = shared * (block_m * lines(t.lhs) + block_n * lines(t.rhs)) * depth / cache_rate;
        let i = &t.instruction;
        // A lane stores 16 bytes, or a word of each column.
        let stored = f64::from(16 / t.store.max(1)).min(4.0);
        let together = f64::from(i.n / i.sum_cols().max(1)) * f64::from(t.store) * stored;
        let pieces = (PIECE_BYTES / together).max(1.0);
        Arrival {
            cache: fetched / CACHE_SHARE,
            latency: (LATENCY + fetched) / f64::from(t.stages.saturating_sub(1).max(1)),
            exposed: if t.ahead { 0.0 } else { shared * reads },
            stores: shared * block_m * block_n * stored * pieces * pieces / (cache_rate * STORE_RATE),
        }
    }
}
