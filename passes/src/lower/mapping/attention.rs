//! Attention: queries to waves, tiles of keys through LDS.

use ir::DType;
use ir::kernel::limits::{widest_fetch, widest_group};
use ir::kernel::needs::flash_lds;
use ir::kernel::{
    AttentionBody, AttentionOrder, AxisId, Expr, ExprId, Fetch, FlashLanes, FlashTiling, Mapping, Operand, QueryPlace,
    Stmt, Weights,
};
use ir::target::{MatrixFamily, MatrixInstruction, Platform};

use super::{BLOCK, Mapper};

/// Registers of a lane that an attention's tiles may take: what is left of 256 is for addresses, scores and the
/// compiler.
const FLASH_REGISTERS: i64 = 160;
/// The same where waves share queries, and bring what they have together; by `mma.sync` where queries stay in LDS, too.
const SPLIT_FLASH_REGISTERS: i64 = 128;
/// The same by `mma.sync` where a wave has queries of its own in registers: more spill with wide heads and a causal
/// mask (as compiled).
const SYNC_FLASH_REGISTERS: i64 = 144;
/// The same where a lane has 512, sums in the other half.
const WIDE_FLASH_REGISTERS: i64 = 280;

/// Workgroups of 128 queries that a compute unit should have by `mma.sync` before waves take two fragments.
const SYNC_ROUNDS: i64 = 4;

/// Widest queries that lanes hold as WMMA takes them: both halves of a wave have no room for all of wider ones.
const WIDEST_WHOLE_QUERY: i64 = 128;

/// Widest heads of which WMMA shares out the keys among workgroups.
const WIDE: i64 = 96;

/// Registers of a lane that an attention by the lanes may take by [`FlashLanes::registers`], and keys of its tiles
/// where the lanes that share a row are no more: what is larger spills (as compiled).
const LANES_REGISTERS: i64 = 72;
const LANES_KEYS: u32 = 8;
/// What a read of a chunk of LDS costs a wave, in instructions.
const LDS_CLOCKS: f64 = 4.0;
/// Instructions that bring a sum over lanes together, for each lane's part.
const SUM_INSTRUCTIONS: f64 = 3.0;
/// Instructions from a dot product to a weight.
const SCORE_INSTRUCTIONS: f64 = 12.0;
/// What a tile costs beside its keys: barriers, and what is waited for.
const TURN_CLOCKS: f64 = 200.0;
/// Waves of a SIMD that hide what each of them waits for.
const LATENCY: f64 = 2.0;

impl Mapper<'_> {
    pub(super) fn attention(&self, body: &AttentionBody) -> Mapping {
        let (d, dv) = (self.points(&[body.d]), self.points(&[body.dv]));
        let queries = self.points(&[body.q]);
        if body.weights == Weights::Scores
            && let Some(tiling) = self.chain(body)
        {
            return Mapping::FlashMatrix(tiling);
        }
        match (self.flash(body), self.flash_by_lanes(body)) {
            // A part whose matrix tiles would spill is the lanes'.
            (Some((_, t)), Some((_, by_lanes))) if body.row_weights.is_some() && !self.shares_keys(body, &t) => {
                return Mapping::FlashLanes(by_lanes);
            }
            // Twice the rate of the lanes' multiply-adds pays where its rows are not empty.
            (Some((clocks, t)), Some((by_lanes, _))) if t.instruction.input.bits() <= 16 || clocks <= by_lanes => {
                return Mapping::FlashMatrix(t);
            }
            (_, Some((_, tiling))) => return Mapping::FlashLanes(tiling),
            (Some((_, tiling)), None) => return Mapping::FlashMatrix(tiling),
            (None, None) => {}
        }
        // Two workgroups should fit a compute unit's LDS.
        let budget = i64::from(self.target.lds_bytes.min(64 << 10)) / 2;
        let bytes = |q: i64, k: i64| flash_lds([q, k], [d, dv]);
        let (mut block_q, mut block_k) = (32i64, 32i64);
        while block_q > 4 && block_q / 2 >= queries {
            block_q /= 2;
        }
        // Heads too wide for half of LDS may have all of it.
        let limit = if bytes(8, 8) <= budget {
            budget
        } else {
            i64::from(self.target.lds_bytes.min(64 << 10))
        };
        while bytes(block_q, block_k) > limit && (block_q > 1 || block_k > 1) {
            if block_k >= block_q {
                block_k = (block_k / 2).max(1);
            } else {
                block_q /= 2;
            }
        }
        Mapping::Flash {
            block_q: block_q as u32,
            block_k: block_k as u32,
            block: if block_q >= 16 { BLOCK } else { 128 },
            together: self.order(body),
        }
    }

    /// Every mapping of an attention whose sums stay in registers, the one that [`Mapper::attention`] takes first, the
    /// others by their predicted clocks. None where its tiles are in LDS.
    pub(super) fn attention_candidates(&self, body: &AttentionBody) -> Vec<Mapping> {
        let matrix = match body.weights {
            Weights::Softmax => self.flash_tilings(body, true),
            Weights::Scores => self.chain_tilings(body),
        };
        let (matrix, lanes) = (matrix.into_iter(), self.lanes_tilings(body).into_iter());
        let mut others: Vec<(f64, Mapping)> = matrix
            .map(|(clocks, t)| (clocks, Mapping::FlashMatrix(t)))
            .chain(lanes.map(|(clocks, t)| (clocks, Mapping::FlashLanes(t))))
            .collect();
        if others.is_empty() {
            return Vec::new();
        }
        others.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut all = vec![self.attention(body)];
        for (_, mapping) in others {
            if !all.contains(&mapping) {
                all.push(mapping);
            }
        }
        all
    }

    /// What the choice among an attention's mappings depends on, as [`Mapper::product`] has it of a product.
    pub(super) fn attention_line(&self, body: &AttentionBody) -> String {
        let exprs = &self.kernel.exprs;
        let element = |e: ExprId| Operand::new(exprs, e).element(exprs);
        // What is open is mapped for usual sizes.
        let size = |axis: AxisId| match self.kernel.axes[axis].extent.as_const() {
            Some(size) => size.to_string(),
            None => format!("~{}", self.points(&[axis])),
        };
        let sizes = [body.q, body.k, body.d, body.dv].map(size);
        let query = widest_fetch(self.kernel, self.symbols, &Operand::new(exprs, body.query), body.d);
        let (key, value) = (
            self.fetch_of(body.key, body.d, body.k),
            self.fetch_of(body.value, body.dv, body.k),
        );
        let store = widest_group(self.kernel, self.symbols, &body.epilogue, body.dv).min(8);
        let mut text = format!(
            "{} {} {} x {} x {} -> {} [{}, {}] query {query} key {key} value {value} store {store}",
            self.target,
            match body.weights {
                Weights::Softmax => "attention",
                Weights::Scores => "chain",
            },
            exprs.dtype(body.query),
            element(body.key),
            element(body.value),
            self.kernel.vars[body.out],
            self.points(&body.batch),
            sizes.join(", "),
        );
        if body.sees_more(exprs) {
            text += " causal";
        }
        if let Some(range) = &body.range {
            // What the run gives counts for all that it may be.
            let given = |e: ExprId| exprs.occurs(e, |e| matches!(e, Expr::Load { .. }));
            let bounds = [("from", range.first), ("to", range.end)];
            for (name, bound) in bounds.into_iter().filter_map(|(name, e)| Some((name, e?))) {
                if name == "from" || given(bound) {
                    text += &format!(" {name} {}", if given(bound) { "given" } else { "window" });
                }
            }
        }
        let scored = self.ops(vec![body.score]);
        if !scored.is_empty() {
            text += &format!(" by {}", scored.join(" "));
        }
        let values = body.epilogue.iter().filter_map(|stmt| match stmt {
            Stmt::Store { value, .. } | Stmt::Let { value, .. } => Some(*value),
            _ => None,
        });
        let then = self.ops(values.collect());
        if !then.is_empty() {
            text += &format!(" then {}", then.join(" "));
        }
        text
    }

    /// The order of an attention's blocks of queries.
    ///
    /// With a causal mask as many heads go together as have their keys and values in half of the last-level cache, at
    /// usual sizes: the longest blocks of all of them come first. Else as many as there are dies, each of which then
    /// has the keys of its own heads.
    fn order(&self, body: &AttentionBody) -> AttentionOrder {
        let dies = u64::from(self.target.dies.max(1));
        // Parts have one block of queries each.
        let together = if body.sees_more(&self.kernel.exprs) && body.row_weights.is_none() {
            let bits = [(body.key, body.d), (body.value, body.dv)]
                .map(|(e, width)| self.points(&[width]) as u64 * u64::from(self.kernel.exprs.dtype(e).bits()));
            let head = self.usual(body.k, 1024) as u64 * (bits[0] + bits[1]).div_ceil(8);
            let fitting = self.target.cache_bytes / 2 / head.max(1);
            (fitting / dies * dies).max(dies)
        } else {
            dies
        };
        let heads = self.points(&body.batch).max(1) as u64;
        AttentionOrder(together.min(heads).min(AttentionOrder::MOST.into()) as u32)
    }

    /// Returns the queries of a workgroup that has a part of an attention's keys, and the keys of its tiles, where the
    /// whole's mapping is this.
    pub(super) fn part(&self, body: &AttentionBody, whole: &Mapping) -> Option<(u32, u32)> {
        match whole {
            Mapping::FlashMatrix(t) if self.shares_keys(body, t) => Some((t.queries(), t.keys * t.split)),
            Mapping::FlashMatrix(_) => self.flash_by_lanes(body).map(|(_, t)| (t.queries(), t.keys * t.split)),
            Mapping::FlashLanes(t) => Some((t.queries(), t.keys * t.split)),
            _ => None,
        }
    }

    /// Says whether the keys of an attention by matrix instructions can be shared out among workgroups: what parts add
    /// to the registers of wide heads makes them spill on gfx11 (as compiled).
    fn shares_keys(&self, body: &AttentionBody, t: &FlashTiling) -> bool {
        t.instruction.family != MatrixFamily::Wmma || self.points(&[body.d]).max(self.points(&[body.dv])) <= WIDE
    }

    /// The tiling for multiply-adds of the lanes that is predicted to take least time, if the tiles fit.
    fn flash_by_lanes(&self, body: &AttentionBody) -> Option<(f64, FlashLanes)> {
        let all = self.lanes_tilings(body).into_iter();
        all.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The tilings for multiply-adds of the lanes whose tiles fit, with their predicted clocks.
    fn lanes_tilings(&self, body: &AttentionBody) -> Vec<(f64, FlashLanes)> {
        let k = self.kernel;
        let width = |axis: AxisId| {
            k.axes[axis]
                .extent
                .as_const()
                .filter(|n| (1..=FlashLanes::WIDEST).contains(n))
        };
        let (Some(d), Some(dv), Weights::Softmax) = (width(body.d), width(body.dv), body.weights) else {
            return Vec::new();
        };
        let widths = [d, dv];
        let bits = [body.key, body.value].map(|e| k.exprs.dtype(e).bits());
        if bits.iter().any(|b| *b < 8) {
            return Vec::new();
        }
        let query = widest_fetch(k, self.symbols, &Operand::new(&k.exprs, body.query), body.d);
        let store = widest_group(k, self.symbols, &body.epilogue, body.dv);
        let lanes = self.target.wave_size;
        let base = FlashLanes {
            waves: BLOCK / lanes,
            lanes,
            group: 1,
            rows: 1,
            split: 1,
            keys: 1,
            query: query.min(128 / bits[0]),
            key: self.fetch_of(body.key, body.d, body.k),
            value: self.fetch_of(body.value, body.dv, body.k),
            store: store.min(128 / bits[1]),
            together: self.order(body),
        };
        let lds = i64::from(self.declared_lds());
        let fits = |t: &FlashLanes| {
            t.misfit().is_none() && t.lds_bytes(widths, bits) <= lds && t.registers(widths, bits) <= LANES_REGISTERS
        };
        // NVIDIA's compiler reads ahead until registers spill.
        let rows: &[u32] = match self.target.platform {
            Platform::Cuda => &[1],
            Platform::Hip | Platform::Cpu => &[4, 2, 1],
        };
        let mut all = Vec::new();
        for group in [16, 8, 4, 2] {
            for (rows, split) in rows.iter().flat_map(|rows| [8, 4, 2, 1].map(|split| (*rows, split))) {
                let t = FlashLanes {
                    group,
                    rows,
                    keys: group.max(LANES_KEYS),
                    split,
                    ..base.clone()
                };
                if fits(&t) {
                    all.push((self.clocks_by_lanes(body, &t, widths, bits), t));
                }
            }
        }
        all
    }

    /// Predicts the microseconds of an attention with its mapping, without the launch: those in which all SIMDs
    /// together issue what its waves do, which is what may be compared with the rooflines of other ops. `None` where
    /// its tiles are in LDS.
    pub(super) fn attention_us(&self, body: &AttentionBody, mapping: &Mapping) -> Option<f64> {
        let widths = [body.d, body.dv].map(|axis| self.points(&[axis]));
        let (tile, shape) = match mapping {
            Mapping::FlashMatrix(t) => (self.tile_by_matrix(t, widths), [t.waves, t.split, t.keys, t.queries()]),
            Mapping::FlashLanes(t) => {
                let bits = [body.key, body.value].map(|e| self.kernel.exprs.dtype(e).bits());
                (
                    self.tile_by_lanes(t, widths, bits),
                    [t.waves, t.split, t.keys, t.queries()],
                )
            }
            _ => return None,
        };
        let (turns, each) = self.turns_of_waves(body, shape);
        // Other waves of a SIMD have a part of what a turn waits for.
        let clocks = turns * (tile + TURN_CLOCKS / LATENCY) * each;
        let (queries, keys) = (self.points(&[body.q]) as f64, self.points(&[body.k]) as f64);
        let seen = match body.sees_more(&self.kernel.exprs) {
            true => 1.0 - (queries - 1.0).min(keys) / (2.0 * keys),
            false => 1.0,
        };
        Some(clocks * seen / (self.target.clock_ghz * 1e3))
    }

    /// Predicted clocks of an attention by the lanes, at usual sizes.
    fn clocks_by_lanes(&self, body: &AttentionBody, t: &FlashLanes, widths: [i64; 2], bits: [u32; 2]) -> f64 {
        let tile = self.tile_by_lanes(t, widths, bits);
        self.clocks_of_waves(body, tile, [t.waves, t.split, t.keys, t.queries()])
    }

    /// Clocks of a wave for the keys of its tile by the lanes.
    fn tile_by_lanes(&self, t: &FlashLanes, widths: [i64; 2], bits: [u32; 2]) -> f64 {
        let shares: i64 = (0..2).map(|i| t.share(widths[i], bits[i])).sum();
        let (rows, group) = (f64::from(t.rows), f64::from(t.group));
        // Instructions of a wave for a key: multiply-adds, reads of LDS and their widening, a share of the sums over
        // the lanes, of the exponentials, and of what has the weight brought back.
        let chunk = f64::from(128 / bits[0]);
        let widening = if bits[0] < 32 { 1.0 } else { 0.0 };
        let read = shares as f64 * (LDS_CLOCKS / chunk + widening);
        let exchange = if t.group > 4 { LDS_CLOCKS } else { 1.0 };
        let key = rows
            * (shares as f64 + SUM_INSTRUCTIONS * (group - 1.0) / group + SCORE_INSTRUCTIONS / group + exchange)
            + read;
        f64::from(t.keys) * key * self.issue_clocks()
    }

    /// Predicted clocks of an attention by matrix instructions, at usual sizes.
    fn clocks_by_matrix(&self, body: &AttentionBody, t: &FlashTiling, widths: [i64; 2]) -> f64 {
        let tile = self.tile_by_matrix(t, widths);
        self.clocks_of_waves(body, tile, [t.waves, t.split, t.keys, t.queries()])
    }

    /// Clocks of a wave for the keys of its tile by matrix instructions.
    fn tile_by_matrix(&self, t: &FlashTiling, [d, dv]: [i64; 2]) -> f64 {
        let i = &t.instruction;
        let scores = f64::from(i.m * t.keys);
        let weights = scores / f64::from(i.lanes()) * SCORE_INSTRUCTIONS * self.issue_clocks();
        scores * (d + dv) as f64 / i.rate() + weights
    }

    /// Clocks of all waves, of which each takes so many for the keys of its tile.
    fn clocks_of_waves(&self, body: &AttentionBody, tile: f64, shape: [u32; 4]) -> f64 {
        let (turns, each) = self.turns_of_waves(body, shape);
        // A wave alone waits for what it issues.
        turns * (tile + TURN_CLOCKS) * each.ceil().max(LATENCY)
    }

    /// Tiles of keys that a wave has, and waves that a SIMD has, at usual sizes.
    fn turns_of_waves(&self, body: &AttentionBody, [waves, split, keys, block]: [u32; 4]) -> (f64, f64) {
        let (queries, length) = (self.usual(body.q, 128) as f64, self.usual(body.k, 1024) as f64);
        let turns = (length / f64::from(keys * split)).ceil();
        let blocks = self.points(&body.batch) as f64 * (queries / f64::from(block)).ceil();
        // Four SIMDs a compute unit, two where waves have 32 lanes on AMD.
        let simds = match (self.target.platform, self.target.wave_size) {
            (Platform::Hip, 32) => 2.0,
            _ => 4.0,
        };
        (
            turns,
            blocks * f64::from(waves) / (simds * f64::from(self.target.compute_units)),
        )
    }

    /// Clocks for which an instruction of a wave holds its SIMD: those of 16 lanes take four for a wave of 64.
    pub(super) fn issue_clocks(&self) -> f64 {
        if self.target.wave_size == 64 { 4.0 } else { 1.0 }
    }

    /// The LDS that a kernel may declare: NVIDIA's take less than the hardware has.
    fn declared_lds(&self) -> u32 {
        let declared = match self.target.platform {
            Platform::Cuda => 48 << 10,
            Platform::Hip | Platform::Cpu => 64 << 10,
        };
        self.target.lds_bytes.min(declared)
    }

    /// An axis's extent; what the model leaves open is rarely as short as a hint: sequences of queries, caches of keys.
    fn usual(&self, axis: AxisId, usual: i64) -> i64 {
        match self.kernel.axes[axis].extent.as_const() {
            Some(length) => length,
            None => self.points(&[axis]).max(usual),
        }
    }

    /// How an operand's tiles are read: wide along the axis where its elements are neighbours.
    fn fetch_of(&self, value: ExprId, along_k: AxisId, rows: AxisId) -> Fetch {
        let operand = Operand::new(&self.kernel.exprs, value);
        let [k_wide, rows_wide] = [along_k, rows].map(|axis| widest_fetch(self.kernel, self.symbols, &operand, axis));
        // What is multiplied on its way is one access at most once it is.
        let element = operand.element(&self.kernel.exprs).bits().max(1);
        let most = operand.unpacking().map_or(u32::MAX, |_| 128 / element);
        Fetch {
            along_k: k_wide >= rows_wide,
            width: k_wide.max(rows_wide).min(most),
        }
    }

    /// The tiling for matrix instructions, if the target has one for these types and the tiles fit.
    fn flash(&self, body: &AttentionBody) -> Option<(f64, FlashTiling)> {
        let mut fitting = self.flash_tilings(body, false).into_iter();
        // The order of the candidates is good for the short turns of 16 bits.
        match self.kernel.exprs.dtype(body.query).bits() {
            32 => fitting.min_by(|a, b| a.0.total_cmp(&b.0)),
            _ => fitting.next(),
        }
    }

    /// The tilings for matrix instructions that fit, the better first for usual sizes, with their predicted clocks;
    /// `all` includes those that only many queries should have.
    pub(super) fn flash_tilings(&self, body: &AttentionBody, all: bool) -> Vec<(f64, FlashTiling)> {
        let k = self.kernel;
        let width = |axis: AxisId| k.axes[axis].extent.as_const().filter(|n| *n > 0);
        let (Some(d), Some(dv)) = (width(body.d), width(body.dv)) else {
            return Vec::new();
        };
        let input = k.exprs.dtype(body.query);
        if [body.key, body.value].iter().any(|e| k.exprs.dtype(*e) != input) {
            return Vec::new();
        }
        let (key, value) = (
            self.fetch_of(body.key, body.d, body.k),
            self.fetch_of(body.value, body.k, body.dv),
        );
        let query = widest_fetch(k, self.symbols, &Operand::new(&k.exprs, body.query), body.d);
        let store = widest_group(k, self.symbols, &body.epilogue, body.dv).min(8);
        let tiling = |instruction: &MatrixInstruction, shape: FlashShape| {
            let mut tiling = FlashTiling {
                instruction: *instruction,
                waves: shape.waves,
                split: shape.split,
                fragments: shape.fragments,
                queries_in: shape.queries_in,
                keys: shape.keys,
                query,
                key,
                value,
                store,
                together: self.order(body),
            };
            while tiling.store > 1 && !tiling.stores_fit(dv) {
                tiling.store /= 2;
            }
            tiling
        };
        let (queries, length) = (self.usual(body.q, 128), self.usual(body.k, 1024));
        let is_read = Operand::new(&k.exprs, body.query).access.is_some();
        // What is copied past the registers may have what a launch gives.
        let lds = |t: &FlashTiling| match t.instruction.family {
            MatrixFamily::MmaSync => self.target.most_lds_bytes(),
            _ => self.declared_lds(),
        };
        let fits = |t: &FlashTiling| {
            let most = match t.instruction.family {
                MatrixFamily::Mfma => WIDE_FLASH_REGISTERS,
                MatrixFamily::Wmma | MatrixFamily::MmaSync if t.split > 1 || t.queries_in == QueryPlace::Lds => {
                    SPLIT_FLASH_REGISTERS
                }
                MatrixFamily::MmaSync => SYNC_FLASH_REGISTERS,
                MatrixFamily::Wmma | MatrixFamily::Wgmma | MatrixFamily::Lanes => FLASH_REGISTERS,
            };
            t.misfit().is_none()
                && t.stores_fit(dv)
                && t.lds_bytes(d, dv) <= i64::from(lds(t))
                // Waves share queries where there are too few for all, and keys for each.
                && (t.split == 1
                    || (i64::from(t.queries()) >= queries && i64::from((t.split - 1) * t.keys) < length))
                && t.registers(d, dv) <= most
                // gfx11 holds wide queries twice, which leaves room for few scores (as compiled).
                && (t.instruction.family != MatrixFamily::Wmma || d <= 96 || t.keys <= 16)
                // Where widths are no whole fragments, some forms spill (as compiled).
                && (t.queries_in != QueryPlace::Halved || (d % 16 == 0 && dv % 16 == 0))
                // Its lanes have whole rows of queries, which leaves none to compute them with (as compiled).
                && (t.instruction.family != MatrixFamily::Wmma || is_read)
        };
        // Long tiles of wide heads leave too few registers but where an instruction has few rows.
        let keys = |i: &MatrixInstruction| -> &[u32] {
            match d.max(dv) <= 64 || (i.family == MatrixFamily::Mfma && i.m <= 16) {
                true => &[64, 32, 16],
                false => &[32, 16],
            }
        };
        let rows = self.target.matrix.iter();
        let mut instructions: Vec<&MatrixInstruction> = rows
            .filter(|i| i.has_unit() && i.waves() == 1 && i.takes(input, input) && i.acc == DType::F32)
            .collect();
        // Few queries leave rows of a large instruction empty, and few workgroups leave compute units idle.
        let blocks = |i: &MatrixInstruction| {
            let block = i64::from(BLOCK / i.lanes() * i.m);
            self.points(&body.batch) * ((queries + block - 1) / block)
        };
        let units = i64::from(self.target.compute_units);
        let is_large = |i: &MatrixInstruction| i64::from(i.m) * 4 > queries.max(64) || blocks(i) < units;
        instructions.sort_by_key(|i| (is_large(i), if is_large(i) { i.m } else { u32::MAX - i.m }));
        let candidates = instructions.iter().flat_map(|i| {
            let shapes = match i.family {
                MatrixFamily::MmaSync => sync_shapes(d.max(dv), all || blocks(i) >= SYNC_ROUNDS * units),
                _ => {
                    // 256 threads bring the tiles.
                    let waves = BLOCK / i.lanes();
                    let splits = [8, 4, 2, 1].into_iter();
                    let queries_in = match i.family == MatrixFamily::Wmma && d > WIDEST_WHOLE_QUERY {
                        true => QueryPlace::Halved,
                        false => QueryPlace::Registers,
                    };
                    let shape = move |s, k| FlashShape {
                        queries_in,
                        ..FlashShape::of(waves, s, k)
                    };
                    splits.flat_map(|s| keys(i).iter().map(move |k| shape(s, *k))).collect()
                }
            };
            shapes.into_iter().map(move |shape| tiling(i, shape))
        });
        let fitting = candidates.into_iter().filter(fits);
        fitting.map(|t| (self.clocks_by_matrix(body, &t, [d, dv]), t)).collect()
    }
}

/// How waves share out queries and keys.
#[derive(Clone, Copy)]
struct FlashShape {
    waves: u32,
    split: u32,
    fragments: u32,
    queries_in: QueryPlace,
    keys: u32,
}

impl FlashShape {
    /// A fragment of queries a wave, kept in registers.
    fn of(waves: u32, split: u32, keys: u32) -> FlashShape {
        FlashShape {
            waves,
            split,
            fragments: 1,
            queries_in: QueryPlace::Registers,
            keys,
        }
    }
}

/// The shapes for `mma.sync`, the better first, for heads of a width; `many` says that workgroups of 128 queries fill
/// the GPU several times. The order is that of measurements (`benches/h200/attention.py`).
fn sync_shapes(width: i64, many: bool) -> Vec<FlashShape> {
    let keys: &[u32] = if width <= 64 { &[32, 16] } else { &[64, 32, 16] };
    let mut shapes = Vec::new();
    for split in [8, 4, 2] {
        shapes.extend(keys.iter().map(|k| FlashShape::of(8, split, *k)));
    }
    // Two fragments halve what is read from LDS, and leave fewer workgroups; those of wider heads spill (as compiled).
    if many && width <= 64 {
        shapes.push(FlashShape {
            fragments: 2,
            queries_in: QueryPlace::Lds,
            ..FlashShape::of(4, 1, 64)
        });
    }
    shapes.extend(keys.iter().map(|k| FlashShape::of(4, 1, *k)));
    // Wider heads leave queries no registers.
    shapes.extend([32, 16].map(|k| FlashShape {
        queries_in: QueryPlace::Lds,
        ..FlashShape::of(4, 1, k)
    }));
    shapes
}
