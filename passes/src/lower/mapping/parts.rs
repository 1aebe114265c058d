//! How many workgroups share the depth of a contraction, or the keys of an attention.

use ir::kernel::{AttentionBody, AxisId, ContractBody, Expr, ExprId, KeyRange, Mapping, RowBody};
use ir::op::BinaryOp;

use super::Mapper;
use super::contract::Sizes;

/// Parts to choose from.
const PARTS: [i64; 7] = [2, 3, 4, 6, 8, 12, 16];
/// The depth of a part is a multiple of it, so that parts are fetched as widely as the whole and waste no step.
const LEAST_DEPTH: i64 = 32;
/// The share of the whole's time that the two launches may take together at most: what is predicted to win by less may
/// lose.
const WORTH: f64 = 0.9;
/// The same of tiles of multiply-adds, of which less is known.
const WORTH_OF_TILES: f64 = 0.7;
/// The share of a launch's cost that a short kernel adds right behind the one that it waits for, about what the timing
/// model has for the slower of the GPUs.
pub(super) const SECOND_LAUNCH: f64 = 0.75;

/// Bytes of a part's sum.
const PART_BYTES: f64 = 4.0;
/// Bytes that one compute unit has from its first-level cache in a clock: the least of the GPUs.
const UNIT_BYTES: f64 = 64.0;

/// Keys of a cache whose length the model leaves open.
const USUAL_KEYS: i64 = 1024;
/// Parts of an attention at most: the second launch has an expression for each.
const MOST_PARTS: i64 = 24;
/// What an attention's workgroup takes before its first and after its last turn of the loop over keys, in such turns.
const START_TURNS: i64 = 1;
/// What the second launch of an attention takes, in turns of the loop over keys.
const SECOND_TURNS: i64 = 3;

/// The launch that adds up parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Second {
    /// One more than there is without parts.
    Own,
    /// One that is there anyway.
    Known,
}

impl Mapper<'_> {
    /// Returns the parts that are predicted to take least time, where that is less than the whole takes, and the
    /// microseconds between.
    pub(super) fn parts_of_depth(&self, body: &ContractBody, second: Second) -> Option<(i64, f64)> {
        let kernel = self.kernel;
        // A number of parts is right for the sizes that it was found for; of a part of a row nothing is known of the
        // row.
        if !kernel.symbols.is_empty() || body.statistic.is_some() {
            return None;
        }
        let last = kernel.axes[*body.k.last()?].extent.as_const()?;
        let sizes = self.sizes(body);
        let tiles = matches!(kernel.mapping, Mapping::Tile { .. });
        // The addresses of a convolution's taps and the parts' together are more than the tiles have registers for.
        if tiles && body.conv.is_some() {
            return None;
        }
        let (whole, worth) = match tiles {
            true => (self.multiply_add_us(body, &sizes), WORTH_OF_TILES),
            false => (
                self.clocks(body, &kernel.mapping) / (self.target.clock_ghz * 1e3),
                WORTH,
            ),
        };
        let second = match second {
            Second::Own => SECOND_LAUNCH * self.target.launch_us,
            Second::Known => 0.0,
        };
        if whole * worth <= second {
            return None;
        }
        // What a thread multiplies by itself is fetched as widely at any depth.
        let divides = |parts: &i64| match tiles {
            true => last % parts == 0 && last / parts >= LEAST_DEPTH,
            false => last % (parts * LEAST_DEPTH) == 0,
        };
        let possible = PARTS.into_iter().filter(divides);
        let (time, parts) = possible
            .filter_map(|parts| Some((self.parts_us(body, &sizes, parts, tiles)? + second, parts)))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        (time < whole * worth).then_some((parts, whole - time))
    }

    /// Predicts the microseconds of both launches, without what a second launch costs by itself.
    fn parts_us(&self, body: &ContractBody, sizes: &Sizes, parts: i64, tiles: bool) -> Option<f64> {
        let part = Sizes {
            batch: sizes.batch * parts,
            m: sizes.m,
            n: sizes.n,
            k: sizes.k / parts,
            rhs_bits: sizes.rhs_bits,
        };
        let partials = match tiles {
            true => self.multiply_add_us(body, &part),
            false => {
                let clocks = self.tilings(body).into_iter().map(|t| self.cycles(&t, &part));
                clocks.min_by(f64::total_cmp)? / (self.target.clock_ghz * 1e3)
            }
        };
        // The partial sums go to memory and come back; caches hold what is written last, which is not what is read
        // first.
        let bytes = f64::from(self.kernel.vars[body.acc].bits()) / 8.0 * (part.batch * part.m * part.n) as f64;
        Some(partials + 2.0 * self.target.memory_us(bytes))
    }

    /// Says whether rows that read each element in so many parts are done in what a launch would take that stores their
    /// sum first. Each row's reads are a compute unit's own, where a kernel of sums shares them among all.
    pub(super) fn rows_of_parts_pay(&self, body: &RowBody, parts: i64) -> bool {
        // A row that should be held and is not is read by each fold.
        let is_held = body.held.is_empty() || matches!(self.kernel.mapping, Mapping::Rows { steps: 1.., .. });
        let (rows, length) = (self.points(&body.loops.parallel), self.points(&body.row));
        let units = i64::from(self.target.compute_units);
        let rounds = (rows + units - 1) / units;
        let clocks = (rounds * length * parts) as f64 * PART_BYTES / UNIT_BYTES;
        is_held && clocks / (self.target.clock_ghz * 1e3) <= SECOND_LAUNCH * self.target.launch_us / 2.0
    }

    /// Returns the parts of an attention's keys: as many as keep the GPU busy where a few queries see many keys.
    /// Workgroups have `block` queries, and `tile` keys at once.
    pub(super) fn parts_of_keys(&self, body: &AttentionBody, block: u32, tile: u32) -> Option<i64> {
        let extent = |axis: AxisId| &self.kernel.axes[axis].extent;
        // Scratch memory grows with the queries: one block of them, at all sizes. No key at all is the whole kernel's.
        let queries = extent(body.q).bounds(self.symbols).1?;
        if queries > i64::from(block) || !extent(body.k).at_least(1, self.symbols) {
            return None;
        }
        let keys = match extent(body.k).as_const() {
            Some(keys) => keys,
            // A cache is rarely as short as a hint.
            None => self.points(&[body.k]).max(USUAL_KEYS),
        };
        let tile = i64::from(tile);
        let batch = self.points(&body.batch);
        let units = i64::from(self.target.compute_units);
        let turns = |keys: i64| (keys + tile - 1) / tile;
        let seen = body.range.as_ref().map(|range| self.keys_seen(body, range, keys));
        // In turns of the loop over keys: workgroups that go over the compute units in rounds, each with its start and
        // end. Where few keys are seen, they are of different lengths: all units work until all is done, or until the
        // longest is.
        let cost = |parts: i64| {
            let each = turns((keys + parts - 1) / parts);
            match seen {
                Some((seen, longest)) if longest < keys || seen < keys => {
                    let all = batch * (turns(seen) + parts * START_TURNS);
                    ((all + units - 1) / units).max(each.min(turns(longest) + 1) + START_TURNS)
                }
                _ => (batch * parts + units - 1) / units * (each + START_TURNS),
            }
        };
        let parts = (2..=MOST_PARTS).min_by_key(|parts| cost(*parts))?;
        (cost(parts) + SECOND_TURNS < cost(1)).then_some(parts)
    }

    /// Estimates how many of an attention's keys its last query sees: usually, and at most. What the run gives is taken
    /// for half of the keys, and may be all of them.
    fn keys_seen(&self, body: &AttentionBody, range: &KeyRange, keys: i64) -> (i64, i64) {
        let at = |given: i64| {
            let bound = |e: Option<ExprId>, otherwise: i64| {
                let estimate = e.and_then(|e| self.estimate(e, body.q, given));
                estimate.unwrap_or(otherwise).clamp(0, keys)
            };
            (bound(range.end, keys) - bound(range.first, 0)).max(0)
        };
        (at(keys / 2), at(keys))
    }

    /// Works a bound out for the last query, where loads give a number.
    fn estimate(&self, e: ExprId, q: AxisId, given: i64) -> Option<i64> {
        let again = |e: ExprId| self.estimate(e, q, given);
        Some(match &self.kernel.exprs[e] {
            Expr::Const(_, v) => v.as_i64(),
            Expr::Size(dim) => dim.hint(self.symbols),
            Expr::Axis(axis) if *axis == q => self.points(&[q]) - 1,
            Expr::Load { .. } => given,
            Expr::Cast(_, x) => again(*x)?,
            Expr::Binary(op, x, y) => {
                let (x, y) = (again(*x)?, again(*y)?);
                match op {
                    BinaryOp::Add => x.checked_add(y)?,
                    BinaryOp::Sub => x.checked_sub(y)?,
                    BinaryOp::Mul => x.checked_mul(y)?,
                    BinaryOp::Min => x.min(y),
                    BinaryOp::Max => x.max(y),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}
