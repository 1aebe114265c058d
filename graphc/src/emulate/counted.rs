//! What the launches of a run counted, kernel by kernel.

use emu::counters::Class;
use emu::{Arch, Counters};
use ir::plan::{KernelId, Plan};
use serde::Serialize;

use super::run::Launched;

/// The counters of one kernel, or of a whole run, summed over the launches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counted {
    /// Launches; those with an empty grid are none.
    pub launches: u64,
    pub workgroups: u64,
    pub waves: u64,
    /// Wave instructions of all classes.
    pub instructions: u64,
    /// Wave instructions by class.
    pub by_class: ByClass,
    /// Wave instructions of the vector classes times the lanes that were on.
    pub lane_instructions: u64,
    /// Bytes that global loads asked for.
    pub global_load_bytes: u64,
    /// Bytes that global stores asked for.
    pub global_store_bytes: u64,
    /// 64-byte pieces of memory that global accesses touched.
    pub global_transactions: u64,
    /// Asked bytes over the bytes of the touched pieces; more than 1 where lanes read the same bytes, `null` where no
    /// global memory is accessed.
    pub coalescing: Option<f64>,
    /// LDS accesses of a wave.
    pub lds_accesses: u64,
    /// Extra LDS cycles because lanes met in a bank.
    pub lds_bank_conflicts: u64,
    /// Multiply-accumulates of MFMA and WMMA instructions.
    pub matrix_macs: u64,
    /// Cycles of the matrix unit by the documented passes.
    pub matrix_cycles: u64,
    /// Barriers that opened.
    pub barriers: u64,
    /// Waves that a SIMD holds, limited by the kernel's registers and its LDS; `null` for a run of several kernels.
    pub occupancy: Option<u32>,
    /// The same, limited by registers alone.
    pub occupancy_by_registers: Option<u32>,
}

/// Wave instructions by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByClass {
    /// Scalar arithmetic.
    pub salu: u64,
    /// Vector arithmetic.
    pub valu: u64,
    /// MFMA and WMMA.
    pub matrix: u64,
    /// Scalar memory.
    pub smem: u64,
    /// Vector memory: global, flat, buffer, scratch.
    pub vmem: u64,
    /// LDS.
    pub lds: u64,
    /// Branches and calls.
    pub branch: u64,
    /// Waits, barriers, no-operations, messages.
    pub control: u64,
}

impl Counted {
    fn of(launches: u64, c: &Counters) -> Counted {
        Counted {
            launches,
            workgroups: c.workgroups,
            waves: c.waves,
            instructions: c.instructions,
            by_class: ByClass {
                salu: c.class(Class::Salu),
                valu: c.class(Class::Valu),
                matrix: c.class(Class::Matrix),
                smem: c.class(Class::Smem),
                vmem: c.class(Class::Vmem),
                lds: c.class(Class::Lds),
                branch: c.class(Class::Branch),
                control: c.class(Class::Control),
            },
            lane_instructions: c.lane_instructions,
            global_load_bytes: c.global_load_bytes,
            global_store_bytes: c.global_store_bytes,
            global_transactions: c.global_transactions,
            coalescing: (c.global_transactions > 0).then(|| c.coalescing()),
            lds_accesses: c.lds_accesses,
            lds_bank_conflicts: c.lds_bank_conflicts,
            matrix_macs: c.matrix_macs,
            matrix_cycles: c.matrix_cycles,
            barriers: c.barriers,
            occupancy: None,
            occupancy_by_registers: None,
        }
    }
}

/// Sums the launches of each kernel of a plan, in the order of its kernels.
pub(super) fn by_kernel(
    plan: &Plan,
    arch: &Arch,
    launches: &[Launched],
    kernel: impl Fn(KernelId) -> emu::Kernel,
) -> Vec<Counted> {
    let mut all = Vec::new();
    for id in plan.kernels.keys() {
        let mut sum = Counters::default();
        let of_this = || launches.iter().filter(|l| l.kernel == id);
        for launch in of_this() {
            sum += &launch.counters;
        }
        let mut counted = Counted::of(of_this().count() as u64, &sum);
        if let Some(launch) = of_this().next() {
            counted.occupancy = Some(launch.counters.occupancy);
            counted.occupancy_by_registers = Some(kernel(id).occupancy(arch, launch.block, 0));
        }
        all.push(counted);
    }
    all
}

/// The sum over a run.
pub fn total(launches: &[Launched]) -> Counted {
    let mut sum = Counters::default();
    for launch in launches {
        sum += &launch.counters;
    }
    Counted::of(launches.len() as u64, &sum)
}
