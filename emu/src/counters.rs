//! What a launch counted.

use std::ops::AddAssign;

/// A class of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Scalar ALU.
    Salu,
    /// Vector ALU.
    Valu,
    /// MFMA and WMMA.
    Matrix,
    /// Scalar memory.
    Smem,
    /// Vector memory: global, flat, buffer, scratch.
    Vmem,
    /// LDS.
    Lds,
    /// Branches and calls.
    Branch,
    /// Waits, barriers, no-operations, messages.
    Control,
}

/// How many classes there are.
pub const CLASSES: usize = 8;

/// Counters of a launch, summed over its waves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Workgroups.
    pub workgroups: u64,
    /// Waves.
    pub waves: u64,
    /// Wave instructions.
    pub instructions: u64,
    /// Wave instructions times the lanes that were on (vector classes).
    pub lane_instructions: u64,
    /// Wave instructions by [`Class`].
    pub by_class: [u64; CLASSES],
    /// Bytes that global loads asked for.
    pub global_load_bytes: u64,
    /// Bytes that global stores asked for.
    pub global_store_bytes: u64,
    /// 64-byte pieces of memory that global accesses touched; asked bytes over these is the coalescing.
    pub global_transactions: u64,
    /// LDS accesses of a wave.
    pub lds_accesses: u64,
    /// Extra LDS cycles because lanes met in a bank.
    pub lds_bank_conflicts: u64,
    /// Multiply-accumulates of matrix instructions.
    pub matrix_macs: u64,
    /// Cycles of the matrix unit, by the documented passes (four cycles each).
    pub matrix_cycles: u64,
    /// Barriers that opened.
    pub barriers: u64,
    /// Waves a SIMD can hold by the kernel's registers and LDS (not summed).
    pub occupancy: u32,
}

impl Counters {
    /// Wave instructions of a class.
    pub fn class(&self, class: Class) -> u64 {
        self.by_class[class as usize]
    }

    /// Bytes asked for by global accesses over bytes moved in 64-byte pieces: 1 where every piece is used whole.
    pub fn coalescing(&self) -> f64 {
        let moved = self.global_transactions * 64;
        if moved == 0 {
            1.0
        } else {
            (self.global_load_bytes + self.global_store_bytes) as f64 / moved as f64
        }
    }
}

impl AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, other: &Counters) {
        self.workgroups += other.workgroups;
        self.waves += other.waves;
        self.instructions += other.instructions;
        self.lane_instructions += other.lane_instructions;
        for (mine, theirs) in self.by_class.iter_mut().zip(other.by_class) {
            *mine += theirs;
        }
        self.global_load_bytes += other.global_load_bytes;
        self.global_store_bytes += other.global_store_bytes;
        self.global_transactions += other.global_transactions;
        self.lds_accesses += other.lds_accesses;
        self.lds_bank_conflicts += other.lds_bank_conflicts;
        self.matrix_macs += other.matrix_macs;
        self.matrix_cycles += other.matrix_cycles;
        self.barriers += other.barriers;
        self.occupancy = self.occupancy.max(other.occupancy);
    }
}
