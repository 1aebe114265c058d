//! Matrix instructions: one row for each shape and pair of types that a target multiplies in hardware, by a matrix unit
//! or by the lanes of a wave.
//!
//! Shapes, types and cycles are those of AMD's matrix instruction calculator and of LLVM's scheduling models; `sm_90`'s
//! are those of the PTX manual (`mma.sync`, `wgmma`), with cycles from the peak rate. The device library
//! (`graphc_mma.hip.h`) has the lane maps and the built-in of each row; a row that is not here is never asked for,
//! because hiprtc aborts on some built-ins that a target lacks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::DType;

/// Which kind of instruction multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum MatrixFamily {
    /// AMD CDNA's `v_mfma_*`, by a wave of 64.
    Mfma,
    /// AMD RDNA's `v_wmma_*`, by a wave of 32.
    Wmma,
    /// NVIDIA's `mma.sync`, by a warp of 32.
    MmaSync,
    /// NVIDIA's `wgmma`, by a group of four warps: both operands are read from LDS by descriptors.
    Wgmma,
    /// No matrix unit: a multiply-add or a dot product of each lane of a wave, whose lanes are a grid of 8 rows
    /// (`v_fma_f32`, `v_dot2_f32_f16`, `v_dot4_i32_i8`).
    Lanes,
}

impl MatrixFamily {
    /// The name of the family's template in the device library.
    pub fn name(self) -> &'static str {
        match self {
            MatrixFamily::Mfma => "Mfma",
            MatrixFamily::Wmma => "Wmma",
            MatrixFamily::MmaSync => "MmaSync",
            MatrixFamily::Wgmma => "Wgmma",
            MatrixFamily::Lanes => "Lanes",
        }
    }
}

/// One matrix instruction: `acc[m, n] += Σ_k a[m, k] · b[n, k]` by one wave, or by a group of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MatrixInstruction {
    pub family: MatrixFamily,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// The element type of the left operand, and of the right one where that is no other 8-bit float.
    pub input: DType,
    pub rhs: DType,
    /// The type of the sums.
    pub acc: DType,
    /// Clock cycles for which one instruction occupies its SIMD's matrix unit, or those of the group's SIMDs.
    pub cycles: u32,
}

impl MatrixInstruction {
    /// Lanes that execute one instruction together.
    pub fn lanes(&self) -> u32 {
        match self.family {
            MatrixFamily::Mfma => 64,
            MatrixFamily::Wmma | MatrixFamily::MmaSync => 32,
            MatrixFamily::Wgmma => 128,
            // Each lane has one sum.
            MatrixFamily::Lanes => self.m.saturating_mul(self.n),
        }
    }

    /// Waves that execute one instruction together, each on a SIMD of its own.
    pub fn waves(&self) -> u32 {
        match self.family {
            MatrixFamily::Wgmma => 4,
            _ => 1,
        }
    }

    /// Says whether tiles are copied to LDS past the registers, by copies that nobody waits for.
    pub fn is_asynchronous(&self) -> bool {
        matches!(self.family, MatrixFamily::MmaSync | MatrixFamily::Wgmma)
    }

    /// Says whether it multiplies elements of these types, in this order.
    pub fn takes(&self, lhs: DType, rhs: DType) -> bool {
        (self.input, self.rhs) == (lhs, rhs)
    }

    /// Says whether a matrix unit multiplies, and not the lanes.
    pub fn has_unit(&self) -> bool {
        self.family != MatrixFamily::Lanes
    }

    /// Elements along k that a lane reads from LDS at once and the instructions then share, where lanes multiply; else
    /// those of one instruction.
    pub fn step(&self) -> u32 {
        match self.family {
            MatrixFamily::Lanes => (128 / self.input.bits().max(1)).max(self.k),
            _ => self.k,
        }
    }
    /// Neighbouring columns of a row whose sums one lane has, as the device library lays them out.
    pub fn sum_cols(&self) -> u32 {
        match self.family {
            MatrixFamily::Mfma | MatrixFamily::Wmma => self.m * self.n / self.lanes(),
            MatrixFamily::MmaSync | MatrixFamily::Wgmma => 2,
            MatrixFamily::Lanes => 1,
        }
    }

    /// Multiply-adds a clock of one SIMD.
    pub fn rate(&self) -> f64 {
        f64::from(self.m * self.n * self.k) / f64::from(self.cycles * self.waves())
    }
}

impl fmt::Display for MatrixInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.family.name().to_lowercase();
        write!(f, "{name} {}x{}x{} {}", self.m, self.n, self.k, self.input)?;
        if self.rhs != self.input {
            write!(f, " by {}", self.rhs)?;
        }
        write!(f, " to {}", self.acc)
    }
}

const fn row(family: MatrixFamily, [m, n, k]: [u32; 3], input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    MatrixInstruction {
        family,
        m,
        n,
        k,
        input,
        rhs: input,
        acc,
        cycles,
    }
}

/// The row with another type on the right.
const fn by(rhs: DType, row: MatrixInstruction) -> MatrixInstruction {
    MatrixInstruction { rhs, ..row }
}

const fn mfma(shape: [u32; 3], input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    row(MatrixFamily::Mfma, shape, input, acc, cycles)
}

const fn wmma(k: u32, input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    row(MatrixFamily::Wmma, [16, 16, k], input, acc, cycles)
}

const fn mma_sync(k: u32, input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    row(MatrixFamily::MmaSync, [16, 8, k], input, acc, cycles)
}

/// Cycles are those of the peak rate.
const fn wgmma([n, k]: [u32; 2], input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    row(MatrixFamily::Wgmma, [64, n, k], input, acc, cycles)
}

const fn lanes(n: u32, k: u32, input: DType, acc: DType, cycles: u32) -> MatrixInstruction {
    row(MatrixFamily::Lanes, [8, n, k], input, acc, cycles)
}

use DType::{BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F16, F32, F64, I8, I32};

/// gfx906, whose SIMDs of 16 lanes take four clocks for a wave of 64.
pub const DOT64: &[MatrixInstruction] = &[
    lanes(8, 1, F32, F32, 4),
    lanes(8, 2, F16, F32, 4),
    lanes(8, 4, I8, I32, 4),
];

/// gfx1030.
pub const DOT32: &[MatrixInstruction] = &[
    lanes(4, 1, F32, F32, 1),
    lanes(4, 2, F16, F32, 1),
    lanes(4, 4, I8, I32, 1),
];

/// gfx9-generic: no dot products.
pub const FMA64: &[MatrixInstruction] = &[lanes(8, 1, F32, F32, 4)];

/// gfx1010: no dot products either.
pub const FMA32: &[MatrixInstruction] = &[lanes(4, 1, F32, F32, 1)];

/// gfx908.
pub const MFMA1: &[MatrixInstruction] = &[
    mfma([32, 32, 8], F16, F32, 64),
    mfma([16, 16, 16], F16, F32, 32),
    mfma([32, 32, 4], BF16, F32, 64),
    mfma([16, 16, 8], BF16, F32, 32),
    mfma([32, 32, 2], F32, F32, 64),
    mfma([16, 16, 4], F32, F32, 32),
    mfma([32, 32, 8], I8, I32, 64),
    mfma([16, 16, 16], I8, I32, 32),
];

/// gfx90a.
pub const MFMA2: &[MatrixInstruction] = &[
    mfma([32, 32, 8], F16, F32, 64),
    mfma([16, 16, 16], F16, F32, 32),
    mfma([32, 32, 8], BF16, F32, 64),
    mfma([16, 16, 16], BF16, F32, 32),
    mfma([32, 32, 2], F32, F32, 64),
    mfma([16, 16, 4], F32, F32, 32),
    mfma([16, 16, 4], F64, F64, 32),
    mfma([32, 32, 8], I8, I32, 64),
    mfma([16, 16, 16], I8, I32, 32),
];

/// The instructions that gfx942 and gfx950 have in common.
pub const MFMA_COMMON: &[MatrixInstruction] = &[
    mfma([32, 32, 8], F16, F32, 32),
    mfma([16, 16, 16], F16, F32, 16),
    mfma([32, 32, 8], BF16, F32, 32),
    mfma([16, 16, 16], BF16, F32, 16),
    mfma([32, 32, 2], F32, F32, 64),
    mfma([16, 16, 4], F32, F32, 32),
    mfma([16, 16, 4], F64, F64, 32),
    mfma([32, 32, 16], I8, I32, 32),
    mfma([16, 16, 32], I8, I32, 16),
];

/// gfx942.
pub const MFMA3: &[MatrixInstruction] = &[
    mfma([32, 32, 8], F16, F32, 32),
    mfma([16, 16, 16], F16, F32, 16),
    mfma([32, 32, 8], BF16, F32, 32),
    mfma([16, 16, 16], BF16, F32, 16),
    mfma([32, 32, 2], F32, F32, 64),
    mfma([16, 16, 4], F32, F32, 32),
    mfma([16, 16, 4], F64, F64, 32),
    mfma([32, 32, 16], I8, I32, 32),
    mfma([16, 16, 32], I8, I32, 16),
    mfma([32, 32, 16], F8E4M3FNUZ, F32, 32),
    mfma([16, 16, 32], F8E4M3FNUZ, F32, 16),
    mfma([32, 32, 16], F8E5M2FNUZ, F32, 32),
    mfma([16, 16, 32], F8E5M2FNUZ, F32, 16),
    by(F8E5M2FNUZ, mfma([32, 32, 16], F8E4M3FNUZ, F32, 32)),
    by(F8E5M2FNUZ, mfma([16, 16, 32], F8E4M3FNUZ, F32, 16)),
    by(F8E4M3FNUZ, mfma([32, 32, 16], F8E5M2FNUZ, F32, 32)),
    by(F8E4M3FNUZ, mfma([16, 16, 32], F8E5M2FNUZ, F32, 16)),
];

/// gfx950.
pub const MFMA4: &[MatrixInstruction] = &[
    mfma([32, 32, 16], F16, F32, 32),
    mfma([16, 16, 32], F16, F32, 16),
    mfma([32, 32, 16], BF16, F32, 32),
    mfma([16, 16, 32], BF16, F32, 16),
    mfma([32, 32, 2], F32, F32, 64),
    mfma([16, 16, 4], F32, F32, 32),
    mfma([16, 16, 4], F64, F64, 64),
    mfma([32, 32, 32], I8, I32, 32),
    mfma([16, 16, 64], I8, I32, 16),
    mfma([32, 32, 16], F8E4M3FN, F32, 32),
    mfma([16, 16, 32], F8E4M3FN, F32, 16),
    mfma([32, 32, 16], F8E5M2, F32, 32),
    mfma([16, 16, 32], F8E5M2, F32, 16),
    by(F8E5M2, mfma([32, 32, 16], F8E4M3FN, F32, 32)),
    by(F8E5M2, mfma([16, 16, 32], F8E4M3FN, F32, 16)),
    by(F8E4M3FN, mfma([32, 32, 16], F8E5M2, F32, 32)),
    by(F8E4M3FN, mfma([16, 16, 32], F8E5M2, F32, 16)),
    // Twice the rate where the depth is large enough.
    mfma([32, 32, 64], F8E4M3FN, F32, 64),
    mfma([16, 16, 128], F8E4M3FN, F32, 32),
    mfma([32, 32, 64], F8E5M2, F32, 64),
    mfma([16, 16, 128], F8E5M2, F32, 32),
    by(F8E5M2, mfma([32, 32, 64], F8E4M3FN, F32, 64)),
    by(F8E5M2, mfma([16, 16, 128], F8E4M3FN, F32, 32)),
    by(F8E4M3FN, mfma([32, 32, 64], F8E5M2, F32, 64)),
    by(F8E4M3FN, mfma([16, 16, 128], F8E5M2, F32, 32)),
];

/// gfx11.
pub const WMMA1: &[MatrixInstruction] = &[
    wmma(16, F16, F32, 32),
    wmma(16, BF16, F32, 32),
    wmma(16, I8, I32, 32),
    // Two multiply-adds at once.
    lanes(4, 2, F32, F32, 1),
];

/// gfx12.
pub const WMMA2: &[MatrixInstruction] = &[
    wmma(16, F16, F32, 16),
    wmma(16, BF16, F32, 16),
    wmma(16, I8, I32, 8),
    wmma(16, F8E4M3FN, F32, 8),
    wmma(16, F8E5M2, F32, 8),
    by(F8E5M2, wmma(16, F8E4M3FN, F32, 8)),
    by(F8E4M3FN, wmma(16, F8E5M2, F32, 8)),
    // Two multiply-adds at once.
    lanes(4, 2, F32, F32, 1),
];

/// `sm_90`: `mma.sync` reaches about six tenths of what its warp-group instructions do.
pub const HOPPER: &[MatrixInstruction] = &[
    // As measured on an H100, where a product of 4096 takes 1.6 times as long as by warp groups.
    mma_sync(16, F16, F32, 11),
    mma_sync(16, BF16, F32, 11),
    mma_sync(32, I8, I32, 11),
    // The same product takes 1.76 times as long as in f16.
    mma_sync(32, F8E4M3FN, F32, 39),
    mma_sync(32, F8E5M2, F32, 39),
    by(F8E5M2, mma_sync(32, F8E4M3FN, F32, 39)),
    by(F8E4M3FN, mma_sync(32, F8E5M2, F32, 39)),
    wgmma([256, 16], F16, F32, 136),
    wgmma([192, 16], F16, F32, 102),
    wgmma([128, 16], F16, F32, 68),
    wgmma([64, 16], F16, F32, 34),
    wgmma([256, 16], BF16, F32, 136),
    wgmma([192, 16], BF16, F32, 102),
    wgmma([128, 16], BF16, F32, 68),
    wgmma([64, 16], BF16, F32, 34),
    wgmma([256, 32], I8, I32, 136),
    wgmma([192, 32], I8, I32, 102),
    wgmma([128, 32], I8, I32, 68),
    wgmma([64, 32], I8, I32, 34),
];

#[cfg(test)]
mod tests {
    use crate::target::TARGETS;

    #[test]
    fn rows_are_of_the_targets_wave_and_reach_its_peak() {
        for target in TARGETS {
            for (i, row) in target.matrix.iter().enumerate() {
                assert_eq!(row.lanes(), target.wave_size * row.waves(), "{}: {row:?}", target.name);
                assert!(!target.matrix[..i].contains(row), "{}: {row:?} twice", target.name);
                let simds = f64::from(target.simds);
                let tops = row.rate() * 2.0 * simds * f64::from(target.compute_units) * target.clock_ghz / 1e3;
                let peak = target.contract_tops(row.input);
                let matrix_only = row.input.bits() <= 16;
                assert!(
                    tops <= peak * 1.03 || !matrix_only,
                    "{}: {row:?} {tops} > {peak}",
                    target.name
                );
            }
        }
    }
}
