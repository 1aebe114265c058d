//! Two products as one kernel: rows to waves, tiles of both matrices through LDS.
//!
//! The tilings are those of attention. What a turn of the loop takes is predicted as that of a product is
//! ([`super::contract`]): as long as the slowest of matrix units with what lies between the products, LDS and cache,
//! and nothing is faster than memory.

use ir::kernel::{AttentionBody, AxisId, Expr, ExprId, FlashTiling};

use super::Mapper;
use super::contract::TILE_LATENCY;

/// Clocks of a turn that nothing hides: two barriers, what is waited for, addresses.
const TURN_LATENCY: f64 = 180.0;
/// Clocks from the request of a tile to its arrival.
const LATENCY: f64 = 800.0;
/// Instructions that make a weight an operand of the second product.
const NARROWING: f64 = 2.0;

impl Mapper<'_> {
    /// The tiling of chained products that is predicted to take least time, if the target has one for their types.
    pub(super) fn chain(&self, body: &AttentionBody) -> Option<FlashTiling> {
        let all = self.chain_tilings(body).into_iter();
        all.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, tiling)| tiling)
    }

    /// The tilings of chained products that fit, with their predicted clocks.
    pub(super) fn chain_tilings(&self, body: &AttentionBody) -> Vec<(f64, FlashTiling)> {
        let all = self.flash_tilings(body, true).into_iter();
        all.map(|(_, t)| (self.chain_clocks(body, &t), t)).collect()
    }

    /// Predicts the clocks of chained products.
    pub(super) fn chain_clocks(&self, body: &AttentionBody, t: &FlashTiling) -> f64 {
        let target = self.target;
        let points = |axis: AxisId| self.points(&[axis]);
        let (rows, hidden, d, dv) = (points(body.q), points(body.k), points(body.d), points(body.dv));
        let i = &t.instruction;
        let bytes = f64::from(i.input.bits()) / 8.0;
        let units = f64::from(target.compute_units);
        let tile = f64::from(t.keys * t.split);
        let turns = (hidden as f64 / tile).ceil();
        let blocks = (rows as f64 / f64::from(t.queries())).ceil();
        let waves = f64::from(t.waves);
        let by_lds = f64::from(target.most_lds_bytes()) / t.lds_bytes(d, dv).max(1) as f64;
        // What the estimate leaves out: addresses, and what the compiler needs.
        let registers = (t.registers(d, dv) + 64) as f64;
        let by_registers = (f64::from(target.vector_registers) / registers).floor() * f64::from(target.simds) / waves;
        let together = by_lds.floor().min(by_registers.floor()).clamp(1.0, 8.0);
        let shared = (blocks / units).ceil().clamp(1.0, together);

        let turn = |shared: f64| {
            let simds = f64::from(target.simds).min(shared * waves);
            let scores = f64::from(t.fragments * i.m * t.keys);
            let between = scores / f64::from(i.lanes()) * self.between(body.score) * self.issue_clocks();
            let products = scores * (d + dv) as f64 / i.rate();
            let work = shared * waves / simds * (products + between);
            // Each wave reads its keys' part of the tile whole; the workgroup writes it once.
            let tile_bytes = tile * (d + dv) as f64 * bytes;
            let read = tile_bytes * waves / f64::from(t.split);
            let lds = shared * (tile_bytes + read) / f64::from(target.lds_bytes_per_clock);
            let cache = shared * tile_bytes / f64::from(target.cache_bytes_per_clock);
            work.max(lds).max(cache).max(LATENCY) + TURN_LATENCY / shared
        };
        let round = |shared: f64| TILE_LATENCY + turns * turn(shared);
        let rounds = (blocks / (units * shared)).floor();
        let left = ((blocks - rounds * units * shared) / units).ceil();
        let compute = rounds * round(shared) + if left > 0.0 { round(left) } else { 0.0 };
        let read = (rows * d + hidden * (d + dv)) as f64 * bytes;
        compute.max(read / (target.memory_tbps * 1e3 / target.clock_ghz))
    }

    /// Predicts the clocks of what is computed between the products, where it is the first one's epilogue.
    pub(super) fn between_clocks(&self, body: &AttentionBody) -> f64 {
        let numbers = self.points(&[body.q]) as f64 * self.points(&[body.k]) as f64;
        let lanes = f64::from(self.target.compute_units * self.target.simds * self.target.wave_size);
        numbers / lanes * self.between(body.score) * self.issue_clocks()
    }

    /// Instructions for a number between the products.
    fn between(&self, score: ExprId) -> f64 {
        let exprs = &self.kernel.exprs;
        let mut instructions = NARROWING;
        self.walk(vec![score], |e| {
            instructions += match exprs[e] {
                Expr::Unary(op, _) => f64::from(op.cost()),
                Expr::Binary(op, ..) => f64::from(op.cost()),
                Expr::Select(..) | Expr::Load { .. } | Expr::Cast(..) => 1.0,
                _ => 0.0,
            };
            !matches!(exprs[e], Expr::Load { .. })
        });
        instructions
    }
}
