//! Which workgroups share out the depth of tiles that do not go over the compute units in whole rounds.
//!
//! Candidates are the tilings of the contraction, each with the workgroups that the GPU holds of it, whole rounds of
//! which compute a tile each. What is left, with one whole round more or without, is shared. A workgroup that has more
//! than a tile leaves pieces of two tiles, which two add up; one that has less leaves small pieces, of which there are
//! many to a tile.
//!
//! Predicted clocks order the candidates and do not choose them over plain tiles: a row of measurements does
//! ([`crate::tuning`]). The emulator's timing model has shared tiles slower for most of what these clocks rate them
//! faster for.

use ir::Target;
use ir::kernel::{ContractBody, Mapping, Shares, Tiling};

use super::Mapper;
use super::contract::{Pace, Sizes, tiles_and_steps};
use super::parts::SECOND_LAUNCH;

/// Steps along k that a workgroup has of shared tiles at least: fewer do not fill the pipeline.
const LEAST_STEPS: f64 = 6.0;
/// Clocks from a workgroup's last sum to what it knows of the others: its stores and its ticket are on their way, one
/// behind the other.
const HAND_OVER: f64 = 2500.0;
/// Registers of a lane, by estimate, up to which a tiling's tiles are shared on RDNA: what the epilogue computes of the
/// lanes' places stays in registers from tile to tile, and a lane has no more than 256 (as compiled for gfx1100: of 20
/// tilings four spill, from 144 on).
const RDNA_REGISTERS: u32 = 140;
/// Bytes of scratch memory that sums of pieces may take.
const MOST_SCRATCH: i64 = 128 << 20;

/// Says whether workgroups may share the tiles of a tiling without spilling registers.
pub fn may_share(tiling: &Tiling, target: &Target) -> bool {
    target.wave_size == 64 || tiling.registers() <= RDNA_REGISTERS
}

impl Mapper<'_> {
    /// Every mapping of a contraction whose tiles are shared, with its predicted clocks.
    pub(super) fn sharings(&self, body: &ContractBody) -> Vec<(Mapping, f64)> {
        // Shares are right for the sizes that they were found for, and a convolution's addresses take the registers
        // already.
        if !self.kernel.symbols.is_empty() || !body.batch.is_empty() || body.conv.is_some() {
            return Vec::new();
        }
        let sizes = self.sizes(body);
        let mut found = Vec::new();
        for tiling in self.tilings(body).into_iter().filter(|t| may_share(t, self.target)) {
            let (tiles, steps) = tiles_and_steps(&tiling, &sizes);
            let together = self.together(&tiling).clamp(1.0, 8.0);
            let mut of_unit = 1.0;
            while of_unit <= together {
                let groups = of_unit * f64::from(self.target.compute_units);
                let left = tiles % groups;
                for shared in [left, left + groups] {
                    let shares = Shares {
                        groups: groups as u32,
                        tiles: shared as u32,
                    };
                    let fits = left > 0.0 && shared <= tiles && shared * steps / groups >= LEAST_STEPS;
                    let shared = Tiling {
                        shares: Some(shares),
                        ..tiling.clone()
                    };
                    let acc = i64::from(tiling.instruction.acc.bits()) / 8;
                    if fits && shared.misfit().is_none() && shares.scratch(tiling.block) * acc <= MOST_SCRATCH {
                        let clocks = self.shared_cycles(&shared, shares, &sizes);
                        found.push((Mapping::Matrix(shared), clocks));
                    }
                }
                of_unit += 1.0;
            }
        }
        found
    }

    /// The clocks of the launch that puts zeros into the tickets.
    fn tickets_clocks(&self) -> f64 {
        SECOND_LAUNCH * self.target.launch_us * self.target.clock_ghz * 1e3
    }

    /// Predicts the clocks of a contraction whose tiles are shared.
    fn shared_cycles(&self, t: &Tiling, shares: Shares, sizes: &Sizes) -> f64 {
        let target = self.target;
        let (tiles, steps) = tiles_and_steps(t, sizes);
        let (groups, shared) = (f64::from(shares.groups), f64::from(shares.tiles));
        let of_unit = groups / f64::from(target.compute_units);
        let Pace { step, ends } = self.pace(t, sizes, of_unit);
        let rounds = ((tiles - shared) / groups).ceil();
        // A workgroup's run, and the tiles that it has some of.
        let run = (shared * steps / groups).ceil();
        let begun = 1.0 + (run / steps).ceil();
        // Sums of pieces are written by all and read by those that end a tile.
        let block = f64::from(t.block[0]) * f64::from(t.block[1]) * f64::from(t.instruction.acc.bits()) / 8.0;
        let pieces = (groups / shared).ceil() + 1.0;
        let cache_rate = f64::from(target.cache_bytes_per_clock);
        let moved = (2.0 * of_unit + pieces) * block / cache_rate;
        let memory = 2.0 * (groups + shared) * block / (target.memory_tbps * 1e3 / target.clock_ghz);
        let compute = rounds * (ends + steps * step) + run * step + begun * ends + HAND_OVER + moved.max(memory);
        self.bounded_by_memory(t, compute, sizes) + self.tickets_clocks()
    }
}

#[cfg(test)]
mod tests {
    use ir::Plan;
    use ir::kernel::{Access, Mapping, Shares};

    use crate::{OptimizeOptions, PlanOptions, ScheduleOptions, Tuning, testing, tuning};

    fn planned([m, n, k]: [i64; 3], target: &str, tuning: Tuning) -> Plan {
        let body = format!(
            "x = input \"x\" : f16[{m}, {k}]\n w = input \"w\" : f16[{k}, {n}]\n y = contract x, w\n z = relu y\n return z as \"z\""
        );
        let target = target.parse().expect("known");
        let options = OptimizeOptions {
            libraries: false,
            ..OptimizeOptions::default()
        };
        let (graph, _) = crate::optimize(testing::graph(&body), &target, &options).expect("optimises");
        let (schedule, _) = crate::schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let options = PlanOptions {
            tuning,
            ..PlanOptions::default()
        };
        crate::plan(&graph, &schedule, &target, &options).expect("plans")
    }

    fn shares(plan: &Plan) -> Option<Shares> {
        plan.kernels.values().find_map(|k| match &k.mapping {
            Mapping::Matrix(t) => t.shares,
            _ => None,
        })
    }

    #[test]
    fn a_row_has_tiles_shared_that_rounds_leave_over() {
        for (sizes, target) in [
            ([2048, 2048, 4096], "gfx90a"),
            ([4608, 4608, 4096], "gfx942"),
            ([3072, 3072, 4096], "gfx950"),
        ] {
            let plain = planned(sizes, target, Tuning::default());
            assert_eq!((shares(&plain), plain.launches().0), (None, 1), "{plain}");
            let kernel = plain.kernels.values().next().expect("a product");
            let line = tuning::product(kernel, &plain.symbols, &plain.target).expect("a product");
            let all = tuning::sharings(kernel, &plain.symbols, &plain.target);
            let wanted = all.last().unwrap_or_else(|| panic!("{target}: nothing to share"));
            let plan = planned(sizes, target, [(line, wanted.to_string())].into_iter().collect());
            let shares = shares(&plan).unwrap_or_else(|| panic!("{target}: {plan}"));
            assert_eq!(shares.groups % plan.target.compute_units, 0, "{target}: {shares:?}");
            // The launch of zeros, once, and the product.
            assert_eq!(plan.launches().0, 2, "{plan}");
            let own = |access| {
                plan.kernels
                    .values()
                    .flat_map(|k| k.params.values())
                    .any(|p| p.access == access)
            };
            assert!(own(Access::Scratch) && own(Access::Tickets), "{plan}");
        }
    }

    #[test]
    fn no_tile_is_shared_of_whole_rounds_and_of_copied_operands() {
        for (sizes, target) in [([64, 64, 64], "gfx942"), ([2048, 2048, 4096], "sm_90")] {
            let plan = planned(sizes, target, Tuning::default());
            let kernel = plan.kernels.values().next().expect("a product");
            let all = tuning::sharings(kernel, &plan.symbols, &plan.target);
            assert!(all.is_empty(), "{target}: {all:?}");
        }
    }
}
