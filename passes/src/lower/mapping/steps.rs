//! Recurrent layers onto workgroups: how many rows each takes, and how threads share the sums of gates.
//!
//! A workgroup goes through all steps alone, since each needs the whole state of the one before. The weights of a lane
//! stay in its registers where they fit beside what a step needs; else every step reads them from the second-level
//! cache.

use ir::kernel::{Body, Kernel, Mapping, RecurrentBody, Steps, limits};
use ir::op::Recurrent;
use ir::{DType, Target};

use super::{ACCESS_BYTES, Mapper, Platform};

/// Threads of a workgroup, at most.
const MOST_THREADS: i64 = 1024;
/// Registers that a lane has at least, which cuts workgroups: with fewer compilers spill what a step needs.
const LEAST_REGISTERS: u32 = 96;
/// Lanes that share a gate's sum: with accesses of 16 bytes they read a line of the cache.
const LANES: i64 = 8;
/// Rows of the batch that a workgroup takes, at most: they share what is read of the weights.
const MOST_ROWS: i64 = 4;
/// Registers of a lane beside the weights that it keeps, and those of ptxas, which asks for more of them at once.
const BESIDE_REGISTERS: i64 = 60;
const BESIDE_ON_CUDA: i64 = 96;
/// Clocks of a step beside its sums: barriers, activations, and what LDS waits for.
const STEP_CLOCKS: f64 = 1200.0;

impl Mapper<'_> {
    /// The mapping of a layer; `Host` where its hidden size is open or too large for a workgroup, which lowering is not
    /// given ([`step_clocks`]).
    pub(super) fn steps(&self, body: &RecurrentBody) -> Mapping {
        let widest = limits::widest_gate(self.kernel, self.symbols, body);
        let Some(hidden) = self.kernel.axes[body.hidden].extent.as_const() else {
            return Mapping::Host;
        };
        let batch = self.points(&[body.batch]);
        let found = steps(&body.layer, [hidden, batch], widest, self.target);
        found.map_or(Mapping::Host, Mapping::Steps)
    }

    /// The same mapping with weights that are read anew by each step.
    pub(super) fn lighter_steps(kernel: &Kernel) -> Option<Mapping> {
        match (&kernel.mapping, &kernel.body) {
            (Mapping::Steps(steps), Body::Recurrent(_)) if steps.held => {
                Some(Mapping::Steps(Steps { held: false, ..*steps }))
            }
            _ => None,
        }
    }
}

/// How a target's workgroups go through a layer of `hidden` units, whose weights are read `widest` at once; `None`
/// where its states do not fit one.
fn steps(layer: &Recurrent, [hidden, batch]: [i64; 2], widest: u32, target: &Target) -> Option<Steps> {
    let wave = i64::from(target.wave_size);
    let mut most = MOST_THREADS.min(target.workgroup_threads.into());
    while most > wave && target.lane_registers(most as u64) < LEAST_REGISTERS {
        most /= 2;
    }
    let gates = layer.cell.gates().saturating_mul(hidden);
    let width = widest.max(1);
    let along = (hidden / i64::from(width)).max(1);
    let lanes = LANES.min(1 << (63 - along.leading_zeros()));
    // As many threads as the sums keep busy, and waves are whole.
    let wanted = gates.saturating_mul(lanes).min(most);
    let block = (wanted + wave - 1) / wave * wave;
    // Rows share a workgroup where the device has no units left for them.
    let mut rows = match layer.rounded {
        true => 1,
        false => (batch / i64::from(target.compute_units).max(1)).clamp(1, MOST_ROWS),
    };
    let limit = i64::from(target.lds_bytes);
    loop {
        let steps = Steps {
            block: u32::try_from(block.min(most)).ok()?,
            rows: u32::try_from(rows).ok()?,
            lanes: lanes as u32,
            width,
            held: false,
        };
        let fits = steps.lds_bytes(layer, hidden) <= limit && steps.units(hidden) <= Steps::MOST_UNITS;
        if fits {
            let registers = i64::from(target.lane_registers(block as u64));
            let beside = match target.platform {
                Platform::Cuda => BESIDE_ON_CUDA,
                Platform::Hip | Platform::Cpu => BESIDE_REGISTERS,
            };
            let held = steps.weights(layer, hidden) + beside + rows <= registers;
            return Some(Steps { held, ..steps });
        }
        if rows == 1 {
            return None;
        }
        rows -= 1;
    }
}

/// Predicts the clocks that the device takes for a step of a layer of `hidden` units and `batch` rows in f32, with
/// weights of a type; `None` where no workgroup holds its states.
pub fn step_clocks(layer: &Recurrent, [hidden, batch]: [i64; 2], stored: DType, target: &Target) -> Option<f64> {
    let most = i64::from(ACCESS_BYTES as u32 * 8 / stored.bits().max(1));
    let widest = (0..4)
        .map(|power| 8 >> power)
        .find(|width| *width <= most && hidden % width == 0)?;
    let steps = steps(layer, [hidden, batch], widest as u32, target).filter(|_| hidden > 0)?;
    let weights = (layer.cell.gates() * hidden * hidden) as f64;
    let lanes = f64::from(target.simds) * if target.platform == Platform::Cuda { 32.0 } else { 16.0 };
    let sums = weights * f64::from(steps.rows) / lanes;
    let read = match steps.held {
        true => 0.0,
        false => weights * f64::from(stored.bits()) / 8.0 / f64::from(target.cache_bytes_per_clock.max(1)),
    };
    let turns = (batch as f64 / f64::from(steps.rows) / f64::from(target.compute_units.max(1)))
        .ceil()
        .max(1.0);
    Some((STEP_CLOCKS + sums.max(read)) * turns)
}
