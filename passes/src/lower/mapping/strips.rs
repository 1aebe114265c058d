//! Convolutions of few channels a group onto threads: how many outputs each has.
//!
//! More outputs a thread share more of what they read, and leave fewer threads to hide how long it takes. Candidates
//! are judged by the clocks of a compute unit: what its lanes compute, what they read from its first-level cache, and
//! how long waves wait for it.

use ir::kernel::{Expr, Mapping, Stmt, StripAccess, Strips, WindowBody, WindowFold, narrowed};

use super::{ACCESS_BYTES, BLOCK, Mapper};

/// Outputs of a thread down and across the image that are looked at, and its neighbours.
const ROWS: [u32; 5] = [1, 2, 3, 4, 7];
const COLUMNS: [u32; 6] = [1, 2, 3, 4, 7, 8];
const VECTORS: [u32; 4] = [8, 4, 2, 1];
/// Elements of a row that are read at once.
const READS: [u32; 4] = [8, 4, 2, 1];

/// Bytes that a compute unit reads from its first-level cache in a clock (CDNA; RDNA's units read as many each).
const CACHE_BYTES: f64 = 64.0;
/// Clocks of a unit's address computation for an access of a wave, at least: 16 lanes a clock.
const LANES_ADDRESSED: f64 = 16.0;
/// Clocks from a read of memory to its element, where others are under way too.
const LATENCY: f64 = 1200.0;
/// Instructions of a thread beside those of its sums: where its strip is, and addresses.
const BESIDE: f64 = 60.0;
/// Registers of a thread beside sums, weights and elements.
const BESIDE_REGISTERS: i64 = 28;
/// Registers of a thread, at most: a lane can name 256 (255 on sm_90), and compilers need a few for what they move
/// about.
const MOST_REGISTERS: i64 = 220;
/// Sums of a thread, at most: of the shapes of EfficientNet-B0, ConvNeXt-T and ConvMixer none was faster with more
/// (H200).
const MOST_SUMS: u32 = 32;
/// Bytes that a thread's neighbours are at least, where so many allow it: lanes read words.
const LEAST_BYTES: i64 = 4;

/// What a candidate takes of a compute unit.
struct Cost {
    clocks: f64,
    registers: i64,
}

impl Mapper<'_> {
    /// As many outputs a thread as are predicted to take the least time; a thread a point where elements are not read
    /// as they lie.
    pub(super) fn strips(&self, body: &WindowBody) -> Mapping {
        let points = self.points(&body.loops.parallel);
        let not_empty = body.along.iter().all(|a| a.size.at_least(1, self.symbols));
        let Some(access) = body.strip_access(self.kernel).filter(|_| not_empty) else {
            return self.threads(points, 1);
        };
        let mut best: Option<(f64, Strips)> = None;
        for strips in self.candidates_of(body, &access) {
            if body.misfit(self.kernel, &strips).is_some() {
                continue;
            }
            let Some(cost) = self.strip_cost(body, &access, &strips) else {
                continue;
            };
            if best.is_none_or(|(clocks, _)| cost.clocks < clocks) {
                let per_unit =
                    i64::from(self.target.vector_registers) * i64::from(self.target.simds * self.target.wave_size);
                let room = per_unit / (i64::from(strips.block) * (cost.registers + 16));
                let resident = self.target.told_residents.then_some(room.clamp(1, 8) as u32);
                best = Some((cost.clocks, Strips { resident, ..strips }));
            }
        }
        best.map_or_else(|| self.threads(points, 1), |(_, strips)| Mapping::Strips(strips))
    }

    fn candidates_of(&self, body: &WindowBody, access: &StripAccess) -> Vec<Strips> {
        let mut all = Vec::new();
        // Neighbours share what they read, or read what lies side by side.
        let reads = |vector: u32| {
            let last = body.loops.parallel.last();
            last.is_some_and(|a| body.strip_serves(access, *a, vector))
        };
        let wide = |vector: &u32| self.strip_accesses_are_wide(body, *vector) && reads(*vector);
        let mut vectors: Vec<u32> = VECTORS.into_iter().filter(|v| *v == 1 || wide(v)).collect();
        let is_word = |v: &u32| self.store_bytes(&body.loops.stmts) * i64::from(*v) >= LEAST_BYTES;
        if vectors.iter().any(is_word) {
            vectors.retain(is_word);
        }
        for rows in ROWS {
            for columns in COLUMNS {
                for &vector in vectors.iter().filter(|v| rows * columns * **v <= MOST_SUMS) {
                    for read in READS {
                        all.push(Strips {
                            block: BLOCK,
                            rows,
                            columns,
                            vector,
                            read,
                            resident: None,
                        });
                    }
                }
            }
        }
        all
    }

    /// Says whether windows do not move along the last axis, and groups of neighbours there are stored whole, in one
    /// access each.
    fn strip_accesses_are_wide(&self, body: &WindowBody, vector: u32) -> bool {
        let (Some(&last), width) = (body.loops.parallel.last(), i64::from(vector)) else {
            return false;
        };
        let moves = body.along.iter().any(|a| a.outputs == Some(last));
        let stores = body.loops.stmts.iter().any(|s| matches!(s, Stmt::Store { .. }));
        stores
            && !moves
            && self.stores_allow(&body.loops.stmts, last, width)
            && self.store_bytes(&body.loops.stmts) * width <= ACCESS_BYTES
    }

    /// Predicts the clocks of a compute unit; `None` where a thread needs too many registers.
    fn strip_cost(&self, body: &WindowBody, access: &StripAccess, strips: &Strips) -> Option<Cost> {
        let (down, across) = body.plane()?;
        let extent = |axis: Option<ir::kernel::AxisId>| axis.map_or(1, |a| self.points(&[a]));
        let reach = |at: Option<usize>, outputs: u32| match at.map(|at| &body.along[at]) {
            Some(a) => (i64::from(outputs) - 1) * a.stride + (extent(a.taps) - 1) * a.dilation + 1,
            None => 1,
        };
        let taps = down.map_or(1, |at| extent(body.along[at].taps)) * extent(body.along[across].taps);
        let planes: i64 = (0..body.along.len())
            .filter(|at| Some(*at) != down && *at != across)
            .map(|at| extent(body.along[at].taps))
            .product();
        let (rows_read, columns_read) = (reach(down, strips.rows), reach(Some(across), strips.columns));
        let [rows, columns, vector, read] = [strips.rows, strips.columns, strips.vector, strips.read].map(i64::from);
        let sums = rows * columns * vector;
        let bytes = i64::from(self.kernel.params[access.param].dtype.bits()) / 8;
        let last = body.loops.parallel.last().copied()?;
        let wide = vector > 1 && body.strip_is_wide(access, last, strips.vector);
        let lanes = if wide { vector } else { 1 };
        let (accesses, access_bytes) = match read {
            1 => (rows_read * columns_read, bytes * lanes),
            // Of groups some are read for one element.
            _ => (rows_read * ((columns_read + read - 1) / read + 1), bytes * read),
        };
        let weights = self.weight_accesses(body, taps, strips)?;
        let element_words = (bytes * lanes + 3) / 4;
        // A row of elements is converted, and one or two more are on their way.
        let elements = (lanes + element_words * rows_read.min(2)) * columns_read;
        let registers = sums + taps * vector + elements + BESIDE_REGISTERS;
        if registers > MOST_REGISTERS {
            return None;
        }
        let threads: f64 = body
            .loops
            .parallel
            .iter()
            .map(|a| {
                let each = i64::from(strips.along(body, *a));
                ((self.points(&[*a]) + each - 1) / each) as f64
            })
            .product();
        let planes = planes as f64;
        let is_narrow = bytes < 4;
        let multiplies = (sums * taps) as f64;
        let converts = match is_narrow {
            true => (rows_read * columns_read * lanes + taps * vector) as f64,
            false => 0.0,
        };
        let reads = (accesses + weights.accesses) as f64;
        let computed = (multiplies + converts + 2.0 * reads) * planes + BESIDE + 10.0 * sums as f64;
        let read_bytes = ((accesses * access_bytes) as f64 + weights.bytes as f64) * planes;
        let units = f64::from(self.target.compute_units);
        let wave = f64::from(self.target.wave_size);
        let waves = (threads / wave).ceil();
        // Lanes of a unit that multiply and add in a clock.
        let lanes_a_clock = self.target.vector_f32_tflops * 1e3 / (2.0 * units * self.target.clock_ghz);
        let simds = units * f64::from(self.target.simds);
        let by_lanes = waves * wave * computed / (units * lanes_a_clock);
        let addressed = waves * (reads * planes) * wave / LANES_ADDRESSED / units;
        let cached = (threads * read_bytes / CACHE_BYTES / units).max(addressed);
        let resident = (f64::from(self.target.vector_registers) / (registers + 8) as f64)
            .floor()
            .clamp(1.0, 8.0);
        let rounds = (waves / simds / resident).ceil();
        // While few waves share a SIMD, each waits for its own elements, and computes alone.
        let alone = computed * wave * f64::from(self.target.simds) / lanes_a_clock;
        let waiting = rounds * (LATENCY * planes.min(4.0) + alone);
        let memory = self.least_clocks(body);
        Some(Cost {
            clocks: by_lanes.max(cached).max(memory) + waiting / resident.min((waves / simds).max(1.0)),
            registers,
        })
    }

    /// Clocks that memory takes for what is stored and read at least.
    fn least_clocks(&self, body: &WindowBody) -> f64 {
        let points = self.points(&body.loops.parallel) as f64;
        let stored = self.store_bytes(&body.loops.stmts) as f64;
        self.target.memory_us(points * stored * 2.0) * self.target.clock_ghz * 1e3
    }

    fn weight_accesses(&self, body: &WindowBody, taps: i64, strips: &Strips) -> Option<Weights> {
        let WindowFold::Weighted { weight, .. } = body.fold else {
            return Some(Weights::default());
        };
        let weight = narrowed(self.kernel, weight);
        let bytes = i64::from(self.kernel.exprs.dtype(weight).bits().max(8)) / 8;
        let vector = i64::from(strips.vector);
        let last = body.loops.parallel.last().copied()?;
        let wide = match self.kernel.exprs[weight] {
            Expr::Load { index, .. } => {
                let mut motions = self.motions(last, vector);
                motions.of(index).is_some_and(|m| m.is_wide(vector))
            }
            _ => false,
        };
        let accesses = taps * if wide { 1 } else { vector };
        Some(Weights {
            accesses,
            bytes: taps * vector * bytes,
        })
    }
}

/// What a thread reads of its weights.
#[derive(Default)]
struct Weights {
    accesses: i64,
    bytes: i64,
}
