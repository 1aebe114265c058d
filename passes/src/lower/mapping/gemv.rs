//! Contractions with few rows: the weights are read once, and how fast is all that counts.

use ir::DType;
use ir::kernel::limits::{early_depth, scales, stream_pack, unpacks_alike, widest_store};
use ir::kernel::{AxisId, ContractBody, Fetch, GemvMatrix, GemvStream, GemvTiling};
use ir::target::{MatrixFamily, Platform};

use super::Mapper;
use super::contract::{Sizes, TILE_LATENCY};

/// Clocks from the request of weights to their arrival, from a memory that is busy with the others' (as an H200 shows).
const LATENCY: f64 = 1700.0;

/// Rows of a workgroup to choose from.
const ROWS: [u32; 4] = [1, 2, 4, 8];
/// Most rows that are computed that way: with more, matrix instructions or tiles read the weights once as well.
const MOST_ROWS: i64 = 16;
/// Waves of a workgroup to choose from, in threads.
const THREADS: [u32; 3] = [128, 256, 512];
/// Lanes that go along the columns, where the weights lie so.
const ALONG: [u32; 4] = [4, 8, 16, 32];
/// Waves of a workgroup to choose from, columns of one and steps that are under way at once, where matrix instructions
/// multiply.
const MATRIX_WAVES: [u32; 3] = [4, 8, 16];
const MATRIX_COLS: [u32; 2] = [16, 32];
const MATRIX_UNROLL: [u32; 3] = [1, 2, 4];
/// Columns of a tile and chunks in LDS to choose from, where workgroups stay, and the waves that multiply: a step of a
/// chunk each.
const STREAMS: [(u32, u32); 4] = [(16, 4), (16, 5), (16, 6), (32, 3)];
/// Waves that copy weights: of a row of more than so many elements, which take the others long to make digits of, more.
/// (As measured on an H200: 4096 x 14336 weights take 9.3 us with two and 9.0 with four, 28672 x 4096 14.8 and 16.0.)
const COPIERS: u32 = 2;
const DEEP: i64 = 8192;
const COPIERS_OF_DEEP: u32 = 4;
const STREAM_WAVES: u32 = 16;
/// Registers of a lane that such a kernel takes, as compiled.
const STREAM_REGISTERS: u32 = 64;
/// What copies without a pause reach of the memory's rate.
const STREAM_REACHED: f64 = 0.9;
/// Clocks of a launch that others do not hide, less than those of a tile since its first weights come while the launch
/// before it ends, and bytes that are under way for the memory's rate (as measured on an H100).
const STREAM_LAUNCH: f64 = 1000.0;
const STREAM_UNDER_WAY: f64 = 92.5e3;
/// How much longer it takes with half of those bytes, and what a launch takes beside the one before. (As measured on an
/// H100: 28672 x 4096 weights take 21.3 us instead of 20.5 with 82 KB; beside each other, with 82 KB, 6144 x 4096 take
/// 5.1 instead of 5.5, 8192 x 4096 the same, and larger ones are left with more under way.)
const STREAM_LACKING: f64 = 0.3;
const STREAM_LAUNCH_BESIDE: f64 = 750.0;
/// Steps whose weights are asked for before the launch before is done, and threads of a workgroup that have registers
/// for them, at most. (As measured on an H200 in chains of launches: 4096 x 4096 weights in f16 take 8.9 us instead of
/// 10.6, 4096 x 6144 13.3 instead of 13.9; where a unit has several workgroups there is nothing to gain.)
const EARLY: u32 = 2;
const EARLY_THREADS: u32 = 512;
/// Registers of a lane that may hold what was read and the sums.
const MOST_REGISTERS: u32 = 128;
/// Bytes that a lane reads at once at least, of both operands: with less, the accesses are what takes the time.
const LEAST_BYTES: u32 = 8;
/// Bits that a lane reads at once at least of weights that are unpacked.
const LEAST_PACKED_BITS: u32 = 32;

impl Mapper<'_> {
    /// The best tiling row by row with its clocks, where there is one.
    pub(super) fn gemv(&self, body: &ContractBody, sizes: &Sizes) -> Option<(GemvTiling, f64)> {
        let tilings = self.gemv_tilings(body, sizes).into_iter();
        tilings.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The tilings row by row with their clocks, where there are few rows and both operands come in wide accesses.
    pub(super) fn gemv_tilings(&self, body: &ContractBody, sizes: &Sizes) -> Vec<(GemvTiling, f64)> {
        let exprs = &self.kernel.exprs;
        let element = body.rhs.element(exprs);
        let bytes = element.bits() / 8;
        let left = body.lhs.element(exprs);
        let multiplies = left == element || left.is_f8() && element.is_f8();
        if sizes.m > MOST_ROWS || !multiplies || bytes == 0 || bytes > 4 {
            return Vec::new();
        }
        // Of rows that the model leaves open a hint says too little: those who ask for a range of them say so.
        if self.rows.is_none() && self.most_rows(body) > MOST_ROWS {
            return Vec::new();
        }
        let mut lhs = self.wide_fetch(&body.lhs, &body.m, &body.k);
        let mut rhs = self.wide_fetch(&body.rhs, &body.n, &body.k);
        let unpacked = body.rhs.unpacking().is_some();
        let stored = body.rhs.stored_bits(self.kernel);
        let least = if unpacked { LEAST_PACKED_BITS } else { LEAST_BYTES * 8 };
        if !lhs.along_k || lhs.width * bytes < LEAST_BYTES || rhs.width * stored < least {
            return Vec::new();
        }
        if unpacked && !rhs.along_k {
            return Vec::new();
        }
        // Rows before their norm may be of small numbers, which the dot products of unpacked weights would lose.
        if unpacked && body.statistic.is_some() && self.target.flushes_subnormals && element == DType::F16 {
            return Vec::new();
        }
        if rhs.along_k && unpacked {
            lhs.width = lhs.width.min(rhs.width);
        } else if rhs.along_k {
            // Both come in the same groups.
            lhs.width = lhs.width.min(rhs.width);
            rhs.width = lhs.width;
        }
        let store = widest_store(self.kernel, self.symbols, body).min(8);
        let mut candidates = Vec::new();
        for rows in ROWS {
            for threads in THREADS {
                let waves = threads / self.target.wave_size;
                let shapes: Vec<(u32, u32)> = match rhs.along_k {
                    true => [1, 2, 4].iter().flat_map(|c| [1, 2, 4].map(|u| (*c, u))).collect(),
                    false => ALONG.iter().map(|along| (along * rhs.width, 1)).collect(),
                };
                for (cols, unroll) in shapes {
                    let mut tiling = GemvTiling {
                        rows,
                        cols,
                        unroll,
                        waves,
                        lanes: self.target.wave_size,
                        early: 0,
                        matrix: None,
                        stream: None,
                        lhs,
                        rhs,
                        store,
                    };
                    tiling.early = self.early(body, &tiling, sizes);
                    while !cols.is_multiple_of(tiling.store) {
                        tiling.store /= 2;
                    }
                    candidates.push(tiling);
                }
            }
        }
        candidates.extend(self.gemv_matrix(body, lhs, rhs, store));
        candidates.extend(self.gemv_stream(body, lhs, rhs));
        let acc = self.kernel.vars[body.acc];
        candidates
            .into_iter()
            .filter(|t| t.store.is_multiple_of(body.sums()))
            .filter(|t| t.misfit().is_none() && t.lds_bytes(acc, body.statistic.is_some()) <= self.target.lds_bytes)
            .filter(|t| held(t, bytes, stored) <= MOST_REGISTERS)
            .map(|t| {
                let clocks = self.gemv_cycles(body, &t, sizes);
                (t, clocks)
            })
            .collect()
    }

    /// Steps of one row's weights along the columns that a workgroup asks for before the launch before is done: some
    /// where each has a compute unit to itself and registers to hold them, and launches overlap.
    fn early(&self, body: &ContractBody, t: &GemvTiling, sizes: &Sizes) -> u32 {
        let has_unit = (sizes.n + i64::from(t.cols) - 1) / i64::from(t.cols) <= self.target.compute_units.into();
        let fits = self.target.overlaps_launches
            && !t.rhs.along_k
            && t.rows == 1
            && sizes.m == 1
            && has_unit
            && t.threads() <= EARLY_THREADS
            && t.lhs.width * EARLY <= 16;
        let has_steps = |depth| t.step() * i64::from(EARLY) <= depth;
        match early_depth(self.kernel, body, t.rhs.width).is_some_and(has_steps) {
            true if fits => EARLY,
            _ => 0,
        }
    }

    /// The tilings whose products matrix instructions compute: of weights of four bits, where the target has the
    /// instruction.
    fn gemv_matrix(&self, body: &ContractBody, lhs: Fetch, rhs: Fetch, store: u32) -> Vec<GemvTiling> {
        let (exprs, acc) = (&self.kernel.exprs, self.kernel.vars[body.acc]);
        let stored = body.rhs.access.map(|access| self.kernel.params[access.param].dtype);
        let (Some(unpacking), Some(stored)) = (body.rhs.unpacking(), stored) else {
            return Vec::new();
        };
        if !stored.is_int() || stored.bits() != 4 || !unpacking.has_nibble_zero(exprs) {
            return Vec::new();
        }
        let types = (body.lhs.element(exprs), body.rhs.element(exprs));
        let mut all = self.target.matrix.iter();
        let instruction = all.find(|i| i.family == MatrixFamily::MmaSync && i.takes(types.0, types.1) && i.acc == acc);
        let scaled_sums = unpacks_alike(self.kernel, self.symbols, &body.rhs, &body.k, GemvMatrix::step(rhs));
        let Some(instruction) = instruction else {
            return Vec::new();
        };
        if !scaled_sums && !unpacking.has_scale_of(exprs, types.1) {
            return Vec::new();
        }
        let mut tilings = Vec::new();
        for cols in MATRIX_COLS {
            for unroll in MATRIX_UNROLL {
                tilings.extend(MATRIX_WAVES.map(|waves| GemvTiling {
                    rows: instruction.n,
                    cols,
                    unroll,
                    waves,
                    lanes: instruction.lanes(),
                    early: 0,
                    matrix: Some(GemvMatrix {
                        instruction: *instruction,
                        scaled_sums,
                        resident: (body.statistic.is_some() && waves >= MANY_WAVES).then_some(1),
                    }),
                    stream: None,
                    lhs,
                    rhs,
                    store,
                }));
            }
        }
        tilings
    }

    /// The tilings whose workgroups stay and stream one row's weights of four bits, where the target has asynchronous
    /// copies, lets launches overlap, and the weights lie so.
    fn gemv_stream(&self, body: &ContractBody, lhs: Fetch, rhs: Fetch) -> Vec<GemvTiling> {
        let exprs = &self.kernel.exprs;
        let narrow = matches!(body.lhs.element(exprs), DType::F16 | DType::BF16);
        if !self.target.overlaps_launches
            || !narrow
            || self.kernel.vars[body.acc] != DType::F32
            || !body.batch.is_empty()
        {
            return Vec::new();
        }
        let mut all = self.target.matrix.iter();
        let instruction = all.find(|i| i.family == MatrixFamily::MmaSync && i.takes(DType::I8, DType::I8));
        let depth = match body.k[..] {
            [axis] => self.kernel.axes[axis].extent.as_const(),
            _ => None,
        };
        let (Some(&instruction), Some(pack), Some(depth), Some(scales)) = (
            instruction,
            stream_pack(self.kernel, self.symbols, body),
            depth,
            scales(self.kernel, &body.rhs),
        ) else {
            return Vec::new();
        };
        let copiers = if depth > DEEP { COPIERS_OF_DEEP } else { COPIERS };
        let limit = self.target.most_lds_bytes();
        let tilings = STREAMS.iter().map(|&(cols, stages)| GemvTiling {
            rows: 1,
            cols,
            unroll: 1,
            waves: STREAM_WAVES,
            lanes: instruction.lanes(),
            early: 0,
            matrix: None,
            stream: Some(GemvStream {
                instruction,
                workgroups: self.target.compute_units,
                stages,
                pack,
                copiers,
                residents: 1,
                least_lds: GemvStream::least_for(1, limit),
            }),
            lhs,
            rhs,
            // As many lanes as can be finish a tile, which its wave then does soonest.
            store: body.sums(),
        });
        // The sums and the barriers are the kernel's own.
        let fits = |t: &GemvTiling| {
            let own = t.lds_bytes(DType::F32, body.statistic.is_some());
            t.launch_lds(depth, scales.bits).saturating_add(own) <= limit
        };
        tilings.filter(fits).collect()
    }

    /// Predicts the clocks of a tiling whose workgroups stay, for weights of `bytes` each: how long the busiest takes
    /// to bring its tiles, behind what each launch takes. (On an H100, in chains of launches, it was faster than the
    /// fastest of the others at each of six sizes from 1024 x 4096 to 28672 x 4096.)
    fn gemv_stream_cycles(&self, t: &GemvTiling, stream: &GemvStream, sizes: &Sizes, bytes: f64) -> f64 {
        // It serves more rows, but reads the weights for each.
        if sizes.m > 1 {
            return f64::INFINITY;
        }
        let tiles = (sizes.n + i64::from(t.cols) - 1) / i64::from(t.cols);
        let rounds = (tiles as f64 / f64::from(stream.workgroups)).ceil();
        let share =
            STREAM_REACHED * self.target.memory_tbps * 1e3 / self.target.clock_ghz / f64::from(stream.workgroups);
        let all = rounds * f64::from(t.cols) * sizes.k as f64 * bytes;
        let under_way = f64::from(stream.stages * t.waves * GemvStream::STEP * t.cols) * bytes;
        // No more is under way than there is.
        let lacks = (STREAM_UNDER_WAY.min(all) / under_way - 1.0).max(0.0);
        // As it is beside the launch before, where the plan has such a one.
        let most = self.target.most_lds_bytes();
        let beside = t.with_residents(2, most);
        let lds = beside
            .launch_lds(sizes.k, 16)
            .saturating_add(beside.lds_bytes(DType::F32, false));
        let launch = if GemvStream::fit_together(&[lds; 2], most) && t.all_have_some(sizes.n) {
            STREAM_LAUNCH_BESIDE
        } else {
            STREAM_LAUNCH
        };
        launch + all / share * (1.0 + STREAM_LACKING * lacks)
    }

    /// Predicts the clocks of such a tiling, for weights of `bytes` each: the latency of each step, or what its
    /// instructions or its share of the memory's bytes take, whichever is longest (constants as measured on an H100 and
    /// an H200, where of sizes from 1024 x 4096 to 28672 x 4096 what this puts first takes 1.03 times as long as the
    /// fastest in the mean). Where rows are folded, each workgroup reads its own once more.
    fn gemv_matrix_cycles(&self, t: &GemvTiling, sizes: &Sizes, bytes: f64, folds: bool) -> f64 {
        let target = self.target;
        let ceil = |a: i64, b: u32| (a + i64::from(b) - 1) / i64::from(b);
        let workgroups = (ceil(sizes.n, t.cols) * ceil(sizes.m, t.rows))
            .saturating_mul(sizes.batch)
            .max(1) as f64;
        let units = f64::from(target.compute_units);
        let threads = f64::from(t.threads());
        let registers = f64::from((held_by_matrix(t) + MATRIX_ADDRESSES).next_multiple_of(8));
        let lanes = f64::from(t.lanes * target.simds) * (f64::from(target.vector_registers) / registers).floor();
        let resident = (lanes.min(MOST_LANES) / threads).floor().max(1.0);
        let shared = (workgroups / units).ceil().min(resident);
        let steps = ceil(sizes.k, t.waves * t.unroll * GemvMatrix::step(t.rhs)) as f64;
        let weights = shared * threads * f64::from(t.cols / 8 * t.unroll * t.rhs.width);
        let share = MEMORY_REACHED * target.memory_tbps * 1e3 / target.clock_ghz / units;
        let step = (weights * bytes / share)
            .max(weights * MATRIX_UNPACKING / f64::from(t.lanes * target.simds))
            .max(LATENCY);
        // Later rounds begin as soon as a workgroup ends.
        let rounds = workgroups / (units * shared);
        let rounds = if rounds < 2.0 { rounds.ceil() } else { rounds + 0.5 };
        let folded = if folds {
            let elements = shared * (sizes.m.min(i64::from(t.rows)) * sizes.k) as f64;
            elements * FOLDING / f64::from(t.lanes * target.simds)
        } else {
            0.0
        };
        rounds * (TILE_LATENCY + steps * step + folded)
    }

    /// Predicts the clocks of a contraction row by row: how fast a compute unit's requests bring the weights.
    pub(super) fn gemv_cycles(&self, body: &ContractBody, t: &GemvTiling, sizes: &Sizes) -> f64 {
        // It serves more rows, but nobody should ask it to.
        if sizes.m > MOST_ROWS {
            return f64::INFINITY;
        }
        let target = self.target;
        let element = body.rhs.element(&self.kernel.exprs).bits();
        let stored = body.rhs.stored_bits(self.kernel);
        let bytes = sizes.rhs_bits / 8.0;
        if let Some(stream) = &t.stream {
            return self.gemv_stream_cycles(t, stream, sizes, bytes);
        }
        if t.matrix.is_some() {
            return self.gemv_matrix_cycles(t, sizes, bytes, body.statistic.is_some());
        }
        let ceil = |a: i64, b: u32| (a + i64::from(b) - 1) / i64::from(b);
        let groups = ceil(sizes.m, t.rows);
        let workgroups = (ceil(sizes.n, t.columns()) * groups).saturating_mul(sizes.batch).max(1) as f64;
        let units = f64::from(target.compute_units);
        let threads = f64::from(t.threads());
        let registers = f64::from(held(t, element / 8, stored) + ADDRESSES);
        let lanes =
            f64::from(t.lanes) * f64::from(target.simds) * (f64::from(self.waiting_registers()) / registers).floor();
        let shared = (workgroups / units)
            .ceil()
            .min((lanes / threads).floor())
            .clamp(1.0, 8.0);

        // Groups of the weights that a lane has on their way.
        let in_flight = f64::from(if t.rhs.along_k { t.cols * t.unroll } else { t.lhs.width });
        let step_bytes = threads * in_flight * f64::from(t.rhs.width) * bytes;
        let work = f64::from(t.columns()) * sizes.k as f64;
        let steps = (work * bytes / step_bytes).ceil().max(1.0);
        // What is asked for early is there when the launch begins.
        let late = 1.0 - f64::from(t.early) / steps;
        // Neighbours of less than a line waste the rest of it.
        let line = f64::from(t.cols) * bytes;
        let wasted = if t.rhs.along_k {
            1.0
        } else {
            (f64::from(target.line_bytes) / line).max(1.0)
        };
        // Each weight is widened first, for all rows. Quantised ones are made numbers and multiplied in pairs; NVIDIA's
        // lanes do so one by one, and widen and add up a row's elements for the columns of a wave.
        let rows = f64::from(t.rows);
        let operations = match (body.rhs.unpacking(), target.platform) {
            (Some(_), Platform::Cuda) => (rows * (1.0 + 2.0 / f64::from(t.cols)) + UNPACKING_APART) / 2.0,
            (Some(_), _) => (rows + UNPACKING) / 2.0,
            (None, _) => rows + 1.0,
        };
        // What is folded of a row's element is folded beside the products of it with a lane's columns.
        let columns = if t.rhs.along_k { t.cols } else { t.rhs.width };
        let operations = match body.statistic {
            Some(_) => operations + FOLDING * rows / f64::from(columns),
            None => operations,
        };
        let multiplied = shared * step_bytes / bytes * operations / self.multiply_adds();
        // Beside weights of a few bits the rows' elements count, which each wave reads for itself.
        let rows = match body.rhs.unpacking() {
            Some(_) => threads * f64::from(t.unroll * t.rows * t.rhs.width * element / 8),
            None => 0.0,
        };
        let step = (shared * (step_bytes * wasted + rows) / FILL)
            .max(multiplied)
            .max(LATENCY);
        let memory = sizes.batch.saturating_mul(sizes.n).saturating_mul(sizes.k) as f64 * bytes * wasted;
        let memory = memory / (target.memory_tbps * 1e3 / target.clock_ghz);
        if t.rhs.along_k || sizes.m > 1 || target.platform != Platform::Cuda {
            let rounds = (workgroups / (units * shared)).ceil();
            // A unit of CDNA has its share of the memory's rate (as predicted), and the busiest one has more workgroups
            // than the mean.
            let busiest = match (target.platform, target.wave_size) {
                (Platform::Hip, 64) => (workgroups / units).ceil() * units / workgroups,
                _ => 1.0,
            };
            return (rounds * (TILE_LATENCY + steps * step)).max(memory * busiest);
        }
        // Each round waits for memory or for its steps; the last one has few workgroups, and still all of their steps
        // (as measured on an H100 for one row, where of 20 tilings each for four sizes what this puts first takes 1.00
        // to 1.02 times as long as the fastest).
        let memory = if line < WHOLE_LINE { memory * HALF_LINES } else { memory };
        let round = |of_it: f64| TILE_LATENCY + late * (steps * step).max(memory * of_it / workgroups);
        let full = (workgroups / (units * shared)).floor();
        let left = workgroups - full * units * shared;
        full * round(units * shared) + if left > 0.0 { round(left) } else { 0.0 }
    }

    /// Registers of a lane's share of a SIMD that count for waves which wait for memory: more of them on RDNA ask the
    /// second-level cache for the same weights at once, which takes longer (as predicted).
    fn waiting_registers(&self) -> u32 {
        match self.target.wave_size {
            32 if self.target.platform == Platform::Hip => self.target.vector_registers.min(256),
            _ => self.target.vector_registers,
        }
    }

    /// The most rows that a contraction can have.
    fn most_rows(&self, body: &ContractBody) -> i64 {
        let most = |axis: &AxisId| {
            self.kernel.axes[*axis]
                .extent
                .bounds(self.symbols)
                .1
                .unwrap_or(i64::MAX)
        };
        body.m.iter().map(most).fold(1, i64::saturating_mul)
    }

    /// Multiply-adds of a compute unit in a clock, of values that are converted first.
    fn multiply_adds(&self) -> f64 {
        let lanes = if self.target.wave_size == 64 { 16 } else { 32 };
        f64::from(self.target.simds * lanes) / 2.0
    }
}

/// Bytes that a compute unit takes from the caches in a clock. What a die's cache has for each of its units binds
/// tiles, which share what they read; weights come from memory, which is slower.
const FILL: f64 = 64.0;

/// Registers of a lane for addresses and counters.
const ADDRESSES: u32 = 32;

/// The same where matrix instructions multiply.
const MATRIX_ADDRESSES: u32 = 16;

/// Instructions of a lane that a weight takes then, with its share of what is beside it.
const MATRIX_UNPACKING: f64 = 3.0;

/// Lanes that a compute unit has at most.
const MOST_LANES: f64 = 2048.0;

/// What a stream reaches of the memory's rate.
const MEMORY_REACHED: f64 = 0.8;

/// Bytes of a line of NVIDIA's second-level cache, and how much longer weights take of which workgroups read parts of
/// lines (as measured on an H100: 1.5% to 3% at 4096 columns).
const WHOLE_LINE: f64 = 128.0;
const HALF_LINES: f64 = 1.03;

/// Waves of a workgroup from which on NVRTC spills where rows are folded too, unless it is told that one workgroup is
/// enough.
const MANY_WAVES: u32 = 16;

/// Multiply-adds' time that it takes to make a number of a quantised weight.
const UNPACKING: f64 = 1.0;

/// The same of an element that is widened, made what is folded, and folded.
const FOLDING: f64 = 2.0;

/// Instructions that it takes where numbers are made one by one, its share of the accesses among them (as compiled for
/// sm_90).
const UNPACKING_APART: f64 = 4.0;

/// Registers of a lane that hold operands and sums: elements of `bytes`, weights that are stored in `stored` bits each.
fn held(t: &GemvTiling, bytes: u32, stored: u32) -> u32 {
    if t.stream.is_some() {
        return STREAM_REGISTERS;
    }
    if t.matrix.is_some() {
        return held_by_matrix(t);
    }
    let words = |width: u32| (width * bytes).div_ceil(4);
    if t.rhs.along_k {
        // A group of fewer bits has its scale and its zero point with it.
        let weights = (t.rhs.width * stored).div_ceil(32) + if stored < bytes * 8 { 2 } else { 0 };
        let groups = t.unroll * (t.rows * words(t.rhs.width) + t.cols * weights);
        groups + t.rows * t.cols
    } else {
        t.lhs.width * words(t.rhs.width) + t.rows * (words(t.lhs.width) + t.rhs.width)
    }
}

/// The same where matrix instructions multiply elements of two bytes by weights of four bits: groups of each eighth
/// column, a scale and a zero point of each, a row's elements, the sums of a step and of all.
fn held_by_matrix(t: &GemvTiling) -> u32 {
    let groups = t.cols / 8;
    t.unroll * (groups * t.rhs.width / 8 + t.rhs.width / 2) + 2 * groups + t.cols / 2
}
