//! How a contraction is cut: for matrix instructions where the target has one for its types, for fused multiply-adds
//! else.
//!
//! Every candidate is a row of [`BLOCKS`] or [`FAMILY_BLOCKS`] with an instruction of the target. What the target
//! cannot hold (LDS, registers) is left out; of the rest the one with the fewest predicted cycles is taken. The
//! prediction follows AMD's Origami model ("Origami: analytic GEMM selection", rocm-libraries): a step of the main loop
//! takes as long as the slowest of matrix units, LDS and cache; tiles go over the compute units in rounds; nothing is
//! faster than memory brings the operands.

use ir::kernel::limits::{has_direct, lds_limit, widest_fetch, widest_store};
use ir::kernel::{AxisId, ContractBody, Expr, Fetch, Mapping, Operand, Stmt, Tiling, Travel};
use ir::target::{MatrixFamily, MatrixInstruction};
use ir::{DType, Dim};

use super::direct::{self, Arrival};
use super::{ACCESS_BYTES, BLOCK, Block, Mapper, block};

/// Tiles to choose from, the larger first. They are those that win in the published tables of hipBLASLt, AITER and
/// CUTLASS.
const BLOCKS: &[Block] = &[
    block(256, 256, 64, [2, 4]),
    block(256, 128, 64, [2, 2]),
    block(128, 256, 64, [2, 2]),
    block(256, 128, 64, [4, 2]),
    block(128, 256, 64, [2, 4]),
    block(128, 128, 128, [2, 2]),
    block(128, 128, 64, [2, 2]),
    block(128, 128, 64, [4, 2]),
    block(128, 64, 128, [2, 2]),
    block(64, 128, 128, [2, 2]),
    block(128, 64, 64, [2, 2]),
    block(64, 128, 64, [2, 2]),
    block(96, 96, 64, [2, 2]),
    block(64, 64, 128, [2, 2]),
    block(64, 64, 64, [2, 2]),
    block(128, 32, 128, [4, 1]),
    block(32, 128, 128, [1, 4]),
    block(64, 32, 128, [2, 1]),
    block(32, 64, 128, [2, 2]),
    block(32, 64, 128, [1, 2]),
    block(32, 64, 64, [1, 2]),
    block(64, 32, 64, [2, 1]),
    block(32, 32, 128, [2, 2]),
    block(64, 16, 128, [4, 1]),
    block(16, 64, 128, [1, 4]),
    block(64, 64, 64, [1, 1]),
    block(32, 64, 64, [1, 1]),
    block(64, 32, 64, [1, 1]),
    block(32, 32, 128, [1, 1]),
    block(32, 32, 64, [1, 1]),
    block(16, 64, 64, [1, 2]),
    block(16, 32, 128, [1, 2]),
    block(16, 64, 64, [1, 1]),
    block(16, 32, 64, [1, 1]),
    block(32, 16, 64, [1, 1]),
    block(16, 16, 128, [1, 1]),
    block(16, 16, 64, [1, 1]),
];

/// Tiles of one family's instructions alone: for sizes whose last round of larger tiles leaves compute units idle (the
/// others' spill, as compiled; 1024 columns by 1024 rows are 104 tiles of 80 x 128, 2048 by 2048 twice as many of 160 x
/// 128), and all of `wgmma`, whose waves are warp groups.
const FAMILY_BLOCKS: &[(MatrixFamily, Block)] = &[
    (MatrixFamily::Mfma, block(192, 128, 64, [2, 2])),
    (MatrixFamily::Mfma, block(128, 192, 64, [2, 2])),
    (MatrixFamily::Mfma, block(160, 128, 64, [1, 4])),
    (MatrixFamily::Mfma, block(160, 128, 64, [2, 2])),
    (MatrixFamily::Mfma, block(96, 128, 128, [1, 4])),
    (MatrixFamily::Mfma, block(96, 128, 128, [2, 2])),
    (MatrixFamily::Mfma, block(80, 128, 128, [1, 4])),
    (MatrixFamily::MmaSync, block(192, 128, 64, [4, 2])),
    (MatrixFamily::Wgmma, block(128, 256, 128, [2, 1])),
    (MatrixFamily::Wgmma, block(256, 128, 128, [2, 1])),
    (MatrixFamily::Wgmma, block(128, 192, 128, [2, 1])),
    (MatrixFamily::Wgmma, block(192, 128, 128, [3, 1])),
    (MatrixFamily::Wgmma, block(128, 128, 128, [2, 1])),
    (MatrixFamily::Wgmma, block(128, 128, 128, [1, 1])),
    (MatrixFamily::Wgmma, block(64, 256, 128, [1, 1])),
    (MatrixFamily::Wgmma, block(64, 192, 128, [1, 1])),
    (MatrixFamily::Wgmma, block(64, 128, 128, [1, 1])),
    (MatrixFamily::Wgmma, block(64, 64, 128, [1, 1])),
];

/// Sums that a lane may hold: half of the registers that hiprtc and NVRTC give a thread of such a workgroup.
const MOST_ACCUMULATORS: u32 = 128;
/// Registers that a lane may take by estimate.
const MOST_REGISTERS: u32 = 232;
/// Registers by which compiled kernels for sm_90 exceed the estimate.
const BEYOND: u32 = 16;
/// Warps of a workgroup from which on NVRTC is told how many workgroups are resident: of smaller ones it would have to
/// spill.
const LEAST_WARPS: u32 = 4;
/// The same where lanes multiply: up to where fragments are read ahead, and in all.
const LANES_REGISTERS: [u32; 2] = [160, 224];
/// Clocks before a tile's first product and after its last: latency of memory and of the stores.
pub(super) const TILE_LATENCY: f64 = 1600.0;
/// Clocks of a step of the main loop that nothing hides: barriers, waits, addresses.
const STEP_LATENCY: f64 = 90.0;
/// Clocks from the request of a tile to its arrival, from the second-level cache for most of it.
const LATENCY: f64 = 800.0;
/// The part of what tiles take to multiply that counts where memory takes longer than that.
const TIES: f64 = 0.01;
/// Clocks from the request of a fragment to its arrival from LDS.
const LDS_LATENCY: f64 = 100.0;
/// How often a line that came from memory is asked for by the tiles that are at work, where the operands exceed the
/// cache.
const REUSE: f64 = 2.0;
/// Bytes of the cache for a compute unit in a clock from which on parts of a line cost no more than the line.
const WHOLE_LINES: u32 = 64;
/// Clocks from one instruction of a wave to the next that depends on it.
const DEPENDENT: f64 = 5.0;
/// Instructions that fetch one group of an operand: its address, its guard, the access, the way to LDS.
const FETCH_INSTRUCTIONS: f64 = 10.0;
/// Instructions' time that an element takes which is turned on its way to LDS: a store of its own, with other lanes' in
/// its bank.
const TURN_INSTRUCTIONS: u32 = 8;
/// The same of several elements for MFMA, whose waves turn them in registers and store two to eight at once. (Of 1, 2,
/// 3, 4 and 8 the one with the shortest kernels of 24 shapes on gfx942, in f16 and in i8, as predicted; gfx90a's differ
/// by less than 1% from 1 to 4. WMMA's waves turn them so too, but there less than 8 picked worse tiles.)
const TURN_IN_REGISTERS: u32 = 3;
/// Waves that share out k to choose from, where a tile is one wave's.
const PARTS: [u32; 4] = [1, 2, 4, 8];
/// Stages to choose from where tiles travel through registers: with two, one barrier a tile is enough.
const STAGES: [u32; 2] = [1, 2];
/// Instructions that make a number of a quantised element on its way to LDS.
pub(super) const UNPACK_INSTRUCTIONS: f64 = 3.0;
/// Stages to choose from where copies are asynchronous, the usual one first.
const ASYNC_STAGES: [u32; 3] = [4, 3, 6];
/// Stages from which on `wgmma` begins a tile's products before those of the last have ended; with fewer, another
/// workgroup fills the gap.
const STAGES_AHEAD: u32 = 4;
/// Steps of a tile, and waves of a workgroup, up to which gfx11 reads fragments ahead.
const STEPS_AHEAD: u32 = 2;
const WAVES_AHEAD: u32 = 4;
/// Bytes a clock that copies write to LDS while `wgmma` does not read from it (as measured on an H100, where a step of
/// 128 x 256 x 64 takes 205 clocks more for each 16 KiB that it copies).
const COPY_RATE: f64 = 80.0;

/// How tiles come to LDS: waves that share out k, stages, and the way.
#[derive(Clone, Copy)]
struct Pipeline {
    parts: u32,
    stages: u32,
    travel: Travel,
}

/// The sizes of a contraction, symbols at their hints.
pub(super) struct Sizes {
    pub batch: i64,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    /// Bits of memory of an element of the right operand, its share of scales and zero points included.
    pub rhs_bits: f64,
}

/// The clocks that workgroups take together on a compute unit.
pub(super) struct Pace {
    /// Of a step along k.
    pub step: f64,
    /// Before a tile's first step and after its last.
    pub ends: f64,
}

/// The tiles of a contraction, and the steps along k of each.
pub(super) fn tiles_and_steps(t: &Tiling, sizes: &Sizes) -> (f64, f64) {
    let ceil = |a: i64, b: u32| (a + i64::from(b) - 1) / i64::from(b);
    let tiles = (ceil(sizes.m, t.block[0]) * ceil(sizes.n, t.block[1])).saturating_mul(sizes.batch);
    (tiles.max(1) as f64, ceil(sizes.k, t.block[2] * t.parts).max(1) as f64)
}

impl Mapper<'_> {
    pub(super) fn contract(&self, body: &ContractBody) -> Mapping {
        let sizes = self.sizes(body);
        let matrix = self.matrix(body, &sizes);
        let Some((gemv, clocks)) = self.gemv(body, &sizes) else {
            return matrix.unwrap_or_else(|| self.multiply_add(body, &sizes));
        };
        match &matrix {
            Some(Mapping::Matrix(tiling)) if self.tiles_may_win(&sizes) && self.cycles(tiling, &sizes) <= clocks => {
                matrix.unwrap_or(Mapping::Gemv(gemv))
            }
            _ => Mapping::Gemv(gemv),
        }
    }

    /// Says whether a tile may be predicted to take less time than a row at a time. Tiles of sixteen rows and more wait
    /// longer than predicted for the weights of one row, but for CDNA's (as measured on an H100: the best of them took
    /// 1.2 to 1.3 times as long, and the one that was predicted to win 1.7 times).
    fn tiles_may_win(&self, sizes: &Sizes) -> bool {
        sizes.m > 1 || self.target.wave_size == 64
    }

    /// Predicts the clocks that a mapping of a contraction takes, to be compared with those of others of its kind.
    pub(super) fn clocks(&self, body: &ContractBody, mapping: &Mapping) -> f64 {
        let sizes = self.sizes(body);
        match mapping {
            Mapping::Matrix(tiling) => self.cycles(tiling, &sizes),
            Mapping::Gemv(tiling) => self.gemv_cycles(body, tiling, &sizes),
            Mapping::Tile {
                block_m,
                block_n,
                block_k,
                thread_m,
                thread_n,
                ..
            } => self.tile_cost(&[*block_m, *block_n, *block_k, *thread_m, *thread_n], &sizes),
            _ => f64::INFINITY,
        }
    }

    pub(super) fn sizes(&self, body: &ContractBody) -> Sizes {
        Sizes {
            batch: self.points(&body.batch),
            m: self.rows.unwrap_or_else(|| self.points(&body.m)),
            n: self.points(&body.n),
            k: self.points(&body.k),
            rhs_bits: self.stored_bits(body),
        }
    }

    /// Bits of memory that a product reads for an element of its right operand.
    fn stored_bits(&self, body: &ContractBody) -> f64 {
        let exprs = &self.kernel.exprs;
        let Some(access) = body.rhs.access else {
            return f64::from(body.rhs.element(exprs).bits());
        };
        let Some(unpacking) = access.unpacking else {
            return f64::from(body.rhs.stored_bits(self.kernel));
        };
        let count = |elements: &Dim| elements.hint(self.symbols).max(1) as f64;
        let elements = count(&self.kernel.params[access.param].elements);
        let mut bits = f64::from(body.rhs.stored_bits(self.kernel));
        self.walk(
            [Some(unpacking.scale), unpacking.zero].into_iter().flatten().collect(),
            |e| {
                if let Expr::Load { param, .. } = exprs[e] {
                    let param = &self.kernel.params[param];
                    bits += f64::from(param.dtype.bits()) * count(&param.elements) / elements;
                }
                true
            },
        );
        bits
    }

    /// Every mapping of a contraction to its target's matrix units, or to a row at a time, with its predicted clocks.
    pub(super) fn candidates(&self, body: &ContractBody) -> Vec<(Mapping, f64)> {
        let sizes = self.sizes(body);
        let tilings = self.tilings(body).into_iter().map(|t| {
            let clocks = self.cycles(&t, &sizes);
            (Mapping::Matrix(t), clocks)
        });
        let rows = self.gemv_tilings(body, &sizes).into_iter();
        let rows = rows.map(|(t, clocks)| (Mapping::Gemv(t), clocks));
        tilings.chain(rows).collect()
    }

    /// The mappings of a contraction in the order of their predicted clocks, those that are not to win last.
    pub(super) fn by_clocks(&self, body: &ContractBody) -> Vec<Mapping> {
        let may_win = self.tiles_may_win(&self.sizes(body));
        let is_last = |mapping: &Mapping| !may_win && matches!(mapping, Mapping::Matrix(_));
        let mut all = self.candidates(body);
        all.sort_by(|a, b| is_last(&a.0).cmp(&is_last(&b.0)).then(a.1.total_cmp(&b.1)));
        all.into_iter().map(|(mapping, _)| mapping).collect()
    }

    /// The best tiling for matrix instructions, if the target has one for these types.
    fn matrix(&self, body: &ContractBody, sizes: &Sizes) -> Option<Mapping> {
        self.tilings(body)
            .into_iter()
            .min_by(|a, b| self.cycles(a, sizes).total_cmp(&self.cycles(b, sizes)))
            .map(Mapping::Matrix)
    }

    /// The tilings for matrix instructions that fit the target, none where it has no instruction for these types.
    pub(super) fn tilings(&self, body: &ContractBody) -> Vec<Tiling> {
        // Tiles fold nothing of their rows.
        if body.statistic.is_some() {
            return Vec::new();
        }
        let exprs = &self.kernel.exprs;
        let (input, acc) = (body.lhs.element(exprs), self.kernel.vars[body.acc]);
        let lhs = self.wide_fetch(&body.lhs, &body.m, &body.k);
        let rhs = self.wide_fetch(&body.rhs, &body.n, &body.k);
        let store = widest_store(self.kernel, self.symbols, body).min(8);
        let most = if self.is_heavy(body) {
            MOST_ACCUMULATORS / 2
        } else {
            MOST_ACCUMULATORS
        };
        let other = body.rhs.element(exprs);
        let rows = self
            .target
            .matrix
            .iter()
            .filter(|i| i.takes(input, other) && i.acc == acc);
        let stored = body.lhs.is_as_stored(self.kernel) && body.rhs.is_as_stored(self.kernel);
        rows.filter(|i| stored || i.family != MatrixFamily::Wgmma)
            .flat_map(|instruction| {
                let (travel, stages) = match instruction.family {
                    MatrixFamily::MmaSync | MatrixFamily::Wgmma => (Travel::Direct, &ASYNC_STAGES[..]),
                    // A second buffer's addresses take registers that lanes need.
                    MatrixFamily::Lanes => (Travel::Registers, &STAGES[..1]),
                    MatrixFamily::Mfma | MatrixFamily::Wmma => (Travel::Registers, &STAGES[..]),
                };
                let own = FAMILY_BLOCKS.iter().filter(|(family, _)| *family == instruction.family);
                let common = match instruction.family {
                    MatrixFamily::Wgmma => &[],
                    _ => BLOCKS,
                };
                let straight = if stored {
                    direct::blocks(instruction, self.target)
                } else {
                    &[]
                };
                let blocks = common.iter().chain(own.map(|(_, block)| block));
                let ways = blocks.map(move |block| (block, travel, stages));
                let straight = straight
                    .iter()
                    .map(|block| (block, Travel::Direct, &direct::STAGES[..]));
                ways.chain(straight).flat_map(move |(block, travel, stages)| {
                    let parts = match block.waves == [1, 1] && travel == Travel::Registers {
                        true => &PARTS[..],
                        false => &PARTS[..1],
                    };
                    let numbers = parts.iter().flat_map(move |p| stages.iter().map(move |s| (*p, *s)));
                    numbers.filter_map(move |(parts, stages)| {
                        let pipeline = Pipeline { parts, stages, travel };
                        self.tiling(block, *instruction, pipeline, [lhs, rhs], store)
                    })
                })
            })
            .filter(|t| t.accumulators() <= most && t.store.is_multiple_of(body.sums()))
            .collect()
    }

    /// Says whether the epilogue computes with positions, which are 64 bits wide: the compilers then do so for many of
    /// its groups at once, and need the registers.
    fn is_heavy(&self, body: &ContractBody) -> bool {
        let exprs = &self.kernel.exprs;
        let values = body.epilogue.iter().filter_map(|stmt| match stmt {
            Stmt::Store { value, .. } | Stmt::Let { value, .. } => Some(*value),
            _ => None,
        });
        let mut heavy = false;
        self.walk(values.collect(), |e| {
            // Addresses are the printer's to make small.
            let address = matches!(exprs[e], Expr::Load { .. });
            heavy |= !address && exprs.dtype(e).bits() == 64;
            !address
        });
        heavy
    }

    /// The tiling of a block and an instruction, where they fit each other and the target.
    fn tiling(
        &self,
        block: &Block,
        instruction: MatrixInstruction,
        Pipeline { parts, stages, travel }: Pipeline,
        [lhs, rhs]: [Fetch; 2],
        store: u32,
    ) -> Option<Tiling> {
        let bytes = instruction.input.bits() / 8;
        let depth = block.depth_bytes / bytes;
        let mut tiling = Tiling {
            instruction,
            block: [block.rows, block.cols, depth],
            waves: block.waves,
            parts,
            stages,
            travel,
            ahead: true,
            lhs,
            rhs,
            store,
            group: GROUP,
            dies: self.target.dies,
            resident: None,
            shares: None,
        };
        let fits = |t: &Tiling| t.misfit().is_none() && t.lds_bytes() <= lds_limit(t, self.target);
        // Narrower reads of what is unpacked, so that every thread has some to unpack.
        let chunk = 128 / instruction.input.bits().max(1);
        let share = (block.cols * depth / tiling.threads_of_part().max(1)).max(1);
        while tiling.rhs.width > chunk && (tiling.rhs.width > share || !depth.is_multiple_of(tiling.rhs.width)) {
            tiling.rhs.width /= 2;
        }
        while !tiling.loads_to_lds() && tiling.stages > 1 && tiling.lds_bytes() > lds_limit(&tiling, self.target) {
            tiling.stages -= 1;
        }
        if instruction.family == MatrixFamily::Wgmma {
            tiling.ahead = tiling.stages >= STAGES_AHEAD;
        }
        while tiling.store > 1 && tiling.misfit().is_some() {
            tiling.store /= 2;
        }
        if !fits(&tiling) || tiling.accumulators() > MOST_ACCUMULATORS {
            return None;
        }
        if tiling.loads_to_lds() && !has_direct(&tiling, self.target) {
            return None;
        }
        // The compilers spill beyond 256 registers a lane, however many the hardware has.
        let [ahead, most] = match instruction.has_unit() {
            true => [MOST_REGISTERS; 2],
            false => LANES_REGISTERS,
        };
        // A workgroup's waves share out the registers of its SIMDs.
        let waves = tiling.threads() / self.target.wave_size.max(1);
        let most = most.min(self.target.vector_registers / waves.div_ceil(self.target.simds).max(1));
        if instruction.family != MatrixFamily::Wgmma {
            tiling.ahead = tiling.registers() <= ahead.min(most);
        }
        // Of a tile of more steps, and in a workgroup of many waves, the compiler reads ahead more than one step, and
        // spills (as compiled).
        let is_wide = instruction.family == MatrixFamily::Wmma && instruction.input.bits() >= 16;
        let is_deep = depth / instruction.k > STEPS_AHEAD;
        if self.target.repeats_operands && is_wide && (is_deep || waves > WAVES_AHEAD) {
            tiling.ahead = false;
            // Two waves along k spill all the same (as compiled: 32 x 32 x 64 on gfx1100, 12 registers).
            if is_deep && parts > 1 {
                return None;
            }
        }
        if tiling.registers() > most {
            return None;
        }
        if instruction.family == MatrixFamily::MmaSync && waves >= LEAST_WARPS {
            let by_registers = self.target.vector_registers * self.target.simds / waves / (tiling.registers() + BEYOND);
            let by_lds = self.target.most_lds_bytes() / tiling.lds_bytes().max(1);
            tiling.resident = Some(by_registers.min(by_lds).clamp(1, 32));
        }
        Some(tiling)
    }

    /// Predicts the clocks of a contraction.
    pub(super) fn cycles(&self, t: &Tiling, sizes: &Sizes) -> f64 {
        let (tiles, steps) = tiles_and_steps(t, sizes);
        let units = f64::from(self.target.compute_units);
        let shared = (tiles / units).ceil().min(self.together(t)).clamp(1.0, 8.0);
        let round = |shared: f64| {
            let Pace { step, ends } = self.pace(t, sizes, shared);
            ends + steps * step
        };
        let rounds = (tiles / (units * shared)).floor();
        let left = ((tiles - rounds * units * shared) / units).ceil();
        let compute = rounds * round(shared) + if left > 0.0 { round(left) } else { 0.0 };
        self.bounded_by_memory(t, compute, sizes)
    }

    /// The clocks of tiles that multiply for `compute` clocks, and no less than memory takes. Of MFMA's tiles for which
    /// it takes as long those come first that multiply less.
    pub(super) fn bounded_by_memory(&self, t: &Tiling, compute: f64, sizes: &Sizes) -> f64 {
        let ties = match t.instruction.family {
            MatrixFamily::Mfma => TIES * compute,
            _ => 0.0,
        };
        compute.max(self.memory_clocks(t, sizes)) + ties
    }

    /// Workgroups that a compute unit holds, as LDS and registers allow; less than one where they are estimated to take
    /// too much.
    pub(super) fn together(&self, t: &Tiling) -> f64 {
        let target = self.target;
        let waves = f64::from(t.waves[0] * t.waves[1] * t.parts) * f64::from(t.instruction.waves());
        let by_lds = f64::from(target.most_lds_bytes() / t.lds_bytes().max(1));
        let registers = f64::from(t.registers());
        let by_registers = (f64::from(target.vector_registers) / registers).floor() * f64::from(target.simds) / waves;
        by_lds.min(by_registers.floor())
    }

    /// Predicts what `shared` workgroups of a compute unit take together.
    pub(super) fn pace(&self, t: &Tiling, sizes: &Sizes, shared: f64) -> Pace {
        let target = self.target;
        let [block_m, block_n, block_k] = t.block.map(f64::from);
        // Parts take steps at once, each its own.
        let parts = f64::from(t.parts);
        let groups = f64::from(t.waves[0] * t.waves[1]) * parts;
        let waves = groups * f64::from(t.instruction.waves());
        let bytes = f64::from(t.instruction.input.bits()) / 8.0;
        let tile_bytes = parts * (block_m + block_n) * block_k * bytes;
        // Lanes that multiply read what they need each for itself, and each of a warp group's instructions all of its
        // columns.
        let i = &t.instruction;
        let [per_m, per_n] = [block_m / f64::from(t.waves[0]), block_n / f64::from(t.waves[1])];
        let [by_rows, by_cols] = match i.family {
            MatrixFamily::Lanes => [i.n, i.m].map(f64::from),
            MatrixFamily::Wgmma => [1.0, per_m / f64::from(i.m)],
            _ => [1.0, 1.0],
        };
        let fragments = groups * (per_m * by_rows + per_n * by_cols) * block_k * bytes;
        // Narrow fetches take as many accesses as elements.
        let narrow = |f: Fetch| (4.0 / (f64::from(f.width) * bytes)).max(1.0);
        // What is unpacked on its way to LDS has more elements in an access.
        let rhs_bytes = sizes.rhs_bits / 8.0;
        let narrow_rhs = (4.0 / (f64::from(t.rhs.width) * rhs_bytes)).max(1.0);
        // Where a compute unit has less of the cache than half a line a clock, tiles less deep than a line ask for it
        // twice (as predicted: 64 x 64 x 32 at 4096^3 in f16 takes 1.7 times as long as 128 x 128 x 64 on gfx942, and
        // 32 x 64 x 32 at 2048 x 4096 x 4096 on gfx1100 1.3 times as long as 32 x 32 x 64).
        let whole = target.cache_bytes_per_clock < WHOLE_LINES;
        let lines = |f: Fetch, bytes: f64| match f.along_k && whole {
            true => (f64::from(target.line_bytes) / (block_k * bytes)).max(1.0),
            false => 1.0,
        };
        let lhs_bytes = block_m * narrow(t.lhs) * lines(t.lhs, bytes) * bytes;
        let fetched = parts * (lhs_bytes + block_n * narrow_rhs * lines(t.rhs, rhs_bytes) * rhs_bytes) * block_k;
        let lds_rate = f64::from(target.lds_bytes_per_clock);
        let cache_rate = f64::from(target.cache_bytes_per_clock);
        // Tiles that are on their way while one is multiplied, or two.
        let read = match i.family == MatrixFamily::Wgmma && t.ahead {
            true => 2,
            false => 1,
        };
        let ahead = f64::from(t.stages.saturating_sub(read).max(1));

        let simds = f64::from(target.simds).min(shared * waves);
        let copied = match i.family {
            MatrixFamily::Wgmma => shared * tile_bytes / COPY_RATE,
            _ => 0.0,
        };
        let matrix = copied + shared * parts * block_m * block_n * block_k / (i.rate() * simds);
        let lds = shared * (tile_bytes + fragments) / lds_rate;
        let cache = shared * fetched / cache_rate;
        let issue = self.issue_cycles(t, shared * waves / simds, sizes);
        let stores = shared * block_m * block_n * bytes / cache_rate;
        let Arrival {
            cache,
            latency,
            exposed,
            stores,
        } = match t.loads_to_lds() {
            true => self.arrival_in_lds(t, shared, fragments / lds_rate),
            false => Arrival {
                cache,
                latency: LATENCY / ahead,
                exposed: 0.0,
                stores,
            },
        };
        // A step's last products are waited for, unless the next step's have begun; MFMA's fragments, each step of
        // them, unless they are read ahead.
        let last = match (i.family, t.ahead) {
            (MatrixFamily::Wgmma | MatrixFamily::Mfma, true) => 0.0,
            (MatrixFamily::Mfma, false) => f64::from(i.cycles) + LDS_LATENCY * block_k / f64::from(i.step()),
            _ => f64::from(i.cycles),
        };
        let waits = STEP_LATENCY + last + exposed;
        // A warp that makes numbers multiplies nothing meanwhile, and its fellows wait for them (as measured on an
        // H100: 1,024 rows by four weights of a Llama-8B block in four bits take 1.34 to 1.37 times as long as what is
        // above says).
        let unpacked = match i.family {
            MatrixFamily::MmaSync => self.unpacking_cycles(t, shared * waves / simds, sizes),
            _ => 0.0,
        };
        let step = matrix.max(lds).max(cache).max(issue).max(latency) + unpacked + waits / shared;
        // Parts write their sums to LDS and read those of all.
        let added = match t.parts {
            1 => 0.0,
            _ => STEP_LATENCY + shared * parts * 2.0 * block_m * block_n * 4.0 / lds_rate,
        };
        Pace {
            step,
            ends: TILE_LATENCY + added + stores,
        }
    }

    /// Predicts the clocks in which memory brings the operands.
    pub(super) fn memory_clocks(&self, t: &Tiling, sizes: &Sizes) -> f64 {
        let target = self.target;
        let [block_m, block_n, _] = t.block.map(f64::from);
        let (tiles, _) = tiles_and_steps(t, sizes);
        let bytes = f64::from(t.instruction.input.bits()) / 8.0;
        let rhs_bytes = sizes.rhs_bits / 8.0;
        // Tiles narrower than a line waste the rest of it.
        let wasted = |f: Fetch, block: f64, bytes: f64| match f.along_k {
            true => bytes,
            false => bytes * (f64::from(target.line_bytes) / (block * bytes)).max(1.0),
        };
        let lhs = sizes.m as f64 * wasted(t.lhs, block_m, bytes);
        let rhs = sizes.n as f64 * wasted(t.rhs, block_n, rhs_bytes);
        let operands = sizes.batch as f64 * (lhs + rhs) * sizes.k as f64;
        let read = match operands > target.cache_bytes as f64 {
            true => operands.max(tiles * (block_m * bytes + block_n * rhs_bytes) * sizes.k as f64 / REUSE),
            false => operands,
        };
        read / (target.memory_tbps * 1e3 / target.clock_ghz)
    }

    /// Predicts the clocks in which `waves` waves of a SIMD issue a step's instructions.
    fn issue_cycles(&self, t: &Tiling, waves: f64, sizes: &Sizes) -> f64 {
        let i = &t.instruction;
        let groups =
            |rows: u32, fetch: Fetch| f64::from(rows * t.block[2]) / f64::from(fetch.width * t.threads_of_part());
        let fetched = |rows: u32, fetch: Fetch| {
            // What lies along the rows goes to LDS an element at a time, unless it is copied as it lies.
            let copied = t.travel == Travel::Direct
                && fetch.width * i.input.bits() >= 32
                && (fetch.along_k
                    || i.family != MatrixFamily::MmaSync
                    || (i.input.bits() == 16 && rows.is_power_of_two() && rows >= 64));
            let turned = match fetch.along_k || copied {
                true => 0,
                false if i.family == MatrixFamily::Mfma && fetch.width > 1 => TURN_IN_REGISTERS * fetch.width,
                false => TURN_INSTRUCTIONS * fetch.width,
            };
            let way = if t.loads_to_lds() {
                direct::FETCH_INSTRUCTIONS
            } else {
                FETCH_INSTRUCTIONS
            };
            groups(rows, fetch) * (way + f64::from(turned))
        };
        let fragments = [t.block[0] / (t.waves[0] * i.m), t.block[1] / (t.waves[1] * i.n)];
        // Lanes' products do not wait for each other: the rate of the instruction says what they take.
        let products = match i.has_unit() {
            true => f64::from(fragments[0] * fragments[1] * (t.block[2] / i.k)),
            false => 0.0,
        };
        // A read of LDS brings 16 bytes a lane, which is two instructions' worth of most operands.
        let reads = f64::from((fragments[0] + fragments[1]) * (t.block[2] / i.step()));
        let instructions = fetched(t.block[0], t.lhs) + fetched(t.block[1], t.rhs) + products + reads;
        instructions * self.clocks_of_each(waves) + self.unpacking_cycles(t, waves, sizes)
    }

    /// Predicts the clocks in which `waves` waves of a SIMD make numbers of a step's quantised elements.
    fn unpacking_cycles(&self, t: &Tiling, waves: f64, sizes: &Sizes) -> f64 {
        if sizes.rhs_bits >= f64::from(t.instruction.input.bits()) {
            return 0.0;
        }
        let elements = f64::from(t.block[1] * t.block[2]) / f64::from(t.threads_of_part());
        UNPACK_INSTRUCTIONS * elements * self.clocks_of_each(waves)
    }

    /// Clocks for an instruction of each of `waves` waves of a SIMD. One of 16 lanes takes four for a wave of 64.
    fn clocks_of_each(&self, waves: f64) -> f64 {
        DEPENDENT.max(self.issue_clocks() * waves)
    }

    /// How a tile of an operand is fetched for matrix instructions: wide along the axis on which its elements are
    /// neighbours.
    pub(super) fn wide_fetch(&self, operand: &Operand, rows: &[AxisId], k: &[AxisId]) -> Fetch {
        let width = |axes: &[AxisId]| {
            axes.last()
                .map_or(1, |a| widest_fetch(self.kernel, self.symbols, operand, *a))
        };
        let (along_k, along_rows) = (width(k), width(rows));
        Fetch {
            along_k: along_k >= along_rows,
            width: along_k.max(along_rows),
        }
    }

    /// What a tile of fused multiply-adds costs, in a unit of its own.
    fn tile_cost(&self, tile: &[u32; 5], sizes: &Sizes) -> f64 {
        let Sizes { batch, m, n, k, .. } = *sizes;
        let ceil = |a: i64, b: i64| (a + b - 1) / b;
        let [bm, bn, bk, tm, tn] = tile.map(i64::from);
        let tiles = ceil(m, bm).saturating_mul(ceil(n, bn)).saturating_mul(batch);
        // Two workgroups share a compute unit; while there are fewer, each gets more of it.
        let rounds = (tiles as f64 / (2.0 * f64::from(self.target.compute_units)))
            .max(0.5)
            .ceil();
        // Per multiply-add: one unit, and what its two operands cost to fetch from LDS.
        let multiply_add = 1.0 + 0.75 * (1.0 / tm as f64 + 1.0 / tn as f64);
        let fetch = 4.0 * (1.0 / bm as f64 + 1.0 / bn as f64);
        let work = (bm * bn) as f64 * (multiply_add + fetch) * (ceil(k, bk) * bk) as f64;
        // Workgroups of few waves do not fill the compute unit's SIMDs.
        let threads = (bm / tm * (bn / tn)) as f64;
        rounds * work * (f64::from(BLOCK) / threads).max(1.0).sqrt()
    }

    /// The tile of fused multiply-adds that costs least.
    fn tile(&self, body: &ContractBody, sizes: &Sizes) -> &'static [u32; 5] {
        let cost = |t: &[u32; 5]| self.tile_cost(t, sizes);
        self.tiles(body)
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))
            .unwrap_or(&TILES[TILES.len() - 1])
    }

    /// The tiles of fused multiply-adds that a contraction may have.
    fn tiles(&self, body: &ContractBody) -> impl Iterator<Item = &'static [u32; 5]> {
        let wide = matches!(self.kernel.vars[body.acc], DType::F64 | DType::I64);
        let sums = body.sums();
        TILES
            .iter()
            .filter(move |t| (!wide || t[3] * t[4] <= 16) && t[4].is_multiple_of(sums))
    }

    /// Every tiling of a contraction for fused multiply-adds, those that cost least first.
    pub(super) fn lane_tilings(&self, body: &ContractBody) -> Vec<Mapping> {
        let sizes = self.sizes(body);
        let mut all: Vec<(f64, &[u32; 5])> = self.tiles(body).map(|t| (self.tile_cost(t, &sizes), t)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, tile)| self.tile_mapping(body, tile)).collect()
    }

    /// Predicts the microseconds of a contraction by fused multiply-adds. Its tiles do not travel ahead: each step
    /// waits for its own.
    pub(super) fn multiply_add_us(&self, body: &ContractBody, sizes: &Sizes) -> f64 {
        let [bm, bn, bk, tm, tn] = self.tile(body, sizes).map(f64::from);
        let units = f64::from(self.target.compute_units);
        let tiles = (sizes.m as f64 / bm).ceil() * (sizes.n as f64 / bn).ceil() * sizes.batch as f64;
        // A unit's multiply-adds a clock, and those of a step, with what fetching their operands from LDS takes.
        let rate = self.target.contract_tops(self.kernel.vars[body.acc]) * 1e3 / (2.0 * units * self.target.clock_ghz);
        let work = bm * bn * bk * (1.0 + 0.75 * (1.0 / tm + 1.0 / tn));
        let shared = (tiles / units).clamp(1.0, 2.0);
        let step = TILE_LATENCY + shared * work / rate.max(1.0);
        let rounds = (tiles / (2.0 * units)).ceil();
        rounds * (sizes.k as f64 / bk).ceil() * step / (self.target.clock_ghz * 1e3)
    }

    /// The best tiling for fused multiply-adds.
    fn multiply_add(&self, body: &ContractBody, sizes: &Sizes) -> Mapping {
        self.tile_mapping(body, self.tile(body, sizes))
    }

    fn tile_mapping(&self, body: &ContractBody, tile: &[u32; 5]) -> Mapping {
        let [block_m, block_n, block_k, thread_m, thread_n] = *tile;
        let threads = i64::from((block_m / thread_m) * (block_n / thread_n));
        let held = |block: u32| i64::from(block) * i64::from(block_k) / threads;
        Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
            lhs: self.fetch(&body.lhs, &body.m, &body.k, held(block_m)),
            rhs: self.fetch(&body.rhs, &body.n, &body.k, held(block_n)),
        }
    }

    /// How an operand is fetched: along the axis on which its elements are neighbours in memory (`k` where both are),
    /// as many at once as always come whole, fill an access and keep every thread busy, which holds `held` elements of
    /// the tile.
    fn fetch(&self, operand: &Operand, rows: &[AxisId], k: &[AxisId], held: i64) -> Fetch {
        let width = |axes: &[AxisId]| {
            let inner = *axes.last()?;
            let mut motions = self.motions(inner, 1);
            let mut widest: Option<i64> = None;
            self.for_each_load(vec![operand.value], |dtype, index| {
                if motions.of(index).is_some_and(|m| m.stride.is(1)) {
                    let fills = ACCESS_BYTES / i64::from(dtype.bits().div_ceil(8));
                    widest = Some(widest.map_or(fills, |w| w.min(fills)));
                }
            });
            let most = widest?.min(held).min(8);
            let divides = self.kernel.axes[inner].extent.known_divisor();
            let mut width = 1;
            while width * 2 <= most && divides % (width * 2) == 0 {
                width *= 2;
            }
            Some(width as u32)
        };
        match (width(k), width(rows)) {
            (Some(width), _) => Fetch { along_k: true, width },
            (None, Some(width)) => Fetch { along_k: false, width },
            (None, None) => Fetch {
                along_k: true,
                width: 1,
            },
        }
    }
}

/// Rows of tiles that are walked together.
const GROUP: u32 = 6;

/// Tiles to choose from: `block_m, block_n, block_k, thread_m, thread_n`.
const TILES: [[u32; 5]; 12] = [
    [128, 128, 8, 8, 8],
    [128, 64, 16, 8, 4],
    [64, 128, 16, 4, 8],
    [64, 64, 16, 4, 4],
    [128, 32, 16, 4, 4],
    [32, 128, 16, 4, 4],
    [64, 32, 32, 4, 2],
    [32, 64, 32, 2, 4],
    [32, 32, 32, 2, 2],
    [16, 64, 32, 1, 4],
    [64, 16, 32, 4, 1],
    [4, 64, 64, 1, 1],
];
