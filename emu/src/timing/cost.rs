//! What one instruction costs: the cycles that it occupies its unit, by opcode and arch.
//!
//! Sources, as the rows name them: `calc` AMD's matrix instruction calculator, `llvm` LLVM's `SISchedule.td` (four
//! cycles a pass), `sqtt` hardware thread traces of gfx1100, gfx1200 and gfx950 published with tinygrad, `pyhip`
//! measurements on MI308X (tingqli/pyhip), `hk` HipKittens' analysis. `assumed` marks what none of them says.

use crate::arch::{Arch, Generation};

/// The cycles of a dense MFMA on gfx908, gfx90a, gfx942 and gfx950; 0 where the arch lacks it. `calc` and `llvm` agree
/// on all.
struct Mfma {
    types: &'static str,
    m: u16,
    k: u16,
    cycles: [u16; 4],
}

const fn row(types: &'static str, m: u16, k: u16, cycles: [u16; 4]) -> Mfma {
    Mfma { types, m, k, cycles }
}

/// Dense MFMA. The forms of several blocks (`_2b`, `_4b`, `_16b`) have a K of their own and so a row of their own.
const MFMA: &[Mfma] = &[
    row("f32", 32, 1, [64, 64, 64, 64]),
    row("f32", 32, 2, [64, 64, 64, 64]),
    row("f32", 16, 1, [32, 32, 32, 32]),
    row("f32", 16, 4, [32, 32, 32, 32]),
    row("f32", 4, 1, [8, 8, 8, 8]),
    row("f16", 32, 4, [64, 64, 64, 64]),
    row("f16", 32, 8, [64, 64, 32, 32]),
    row("f16", 32, 16, [0, 0, 0, 32]),
    row("f16", 16, 4, [32, 32, 32, 32]),
    row("f16", 16, 16, [32, 32, 16, 16]),
    row("f16", 16, 32, [0, 0, 0, 16]),
    row("f16", 4, 4, [8, 8, 8, 8]),
    // The first bf16 forms have half the K of f16 at the same cycles; the later ones (`_1k`, and all of gfx942) are as
    // f16.
    row("bf16", 32, 2, [64, 64, 0, 0]),
    row("bf16", 32, 4, [64, 64, 64, 64]),
    row("bf16", 32, 8, [0, 64, 32, 32]),
    row("bf16", 32, 16, [0, 0, 0, 32]),
    row("bf16", 16, 2, [32, 32, 0, 0]),
    row("bf16", 16, 4, [0, 32, 32, 32]),
    row("bf16", 16, 8, [32, 32, 0, 0]),
    row("bf16", 16, 16, [0, 32, 16, 16]),
    row("bf16", 16, 32, [0, 0, 0, 16]),
    row("bf16", 4, 2, [8, 8, 0, 0]),
    row("bf16", 4, 4, [0, 8, 8, 8]),
    row("i8", 32, 4, [64, 64, 64, 64]),
    row("i8", 32, 8, [64, 64, 0, 0]),
    row("i8", 32, 16, [0, 0, 32, 32]),
    row("i8", 32, 32, [0, 0, 0, 32]),
    row("i8", 16, 4, [32, 32, 32, 32]),
    row("i8", 16, 16, [32, 32, 0, 0]),
    row("i8", 16, 32, [0, 0, 16, 16]),
    row("i8", 16, 64, [0, 0, 0, 16]),
    row("i8", 4, 4, [8, 8, 8, 8]),
    row("fp8", 32, 16, [0, 0, 32, 32]),
    row("fp8", 16, 32, [0, 0, 16, 16]),
    row("xf32", 32, 4, [0, 0, 32, 0]),
    row("xf32", 16, 8, [0, 0, 16, 0]),
    row("f64", 16, 4, [0, 32, 32, 64]),
    row("f64", 4, 4, [0, 16, 16, 16]),
    // gfx950's f8f6f4 where both formats have at most six bits; with one of eight bits it takes twice as long.
    row("f8f6f4", 16, 128, [0, 0, 0, 16]),
    row("f8f6f4", 32, 64, [0, 0, 0, 32]),
];

/// A matrix instruction, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape<'a> {
    pub m: usize,
    /// K of the instruction's name.
    pub k: usize,
    /// The operands' types as the name has them: `f16`, `bf16_1k`, `fp8_bf8`, `iu8`, `f8f6f4`.
    pub types: &'a str,
    /// `smfmac` and `swmmac`: A holds half of its elements.
    pub sparse: bool,
    /// f8f6f4: whether a format of eight bits takes part.
    pub wide: bool,
}

/// The cycles that a matrix instruction occupies the matrix unit of its SIMD.
pub(crate) fn matrix_cycles(arch: &Arch, shape: Shape<'_>) -> u32 {
    if arch.at_least(Generation::Gfx11) {
        return wmma_cycles(arch, shape);
    }
    let column = match arch.name {
        "gfx950" => 3,
        "gfx942" => 2,
        "gfx90a" => 1,
        _ => 0,
    };
    // A sparse product of depth k makes as many multiplications as a dense one of half of it.
    let k = if shape.sparse { shape.k / 2 } else { shape.k };
    let types = match shape.types {
        "bf16_1k" => "bf16",
        "bf8" | "fp8_fp8" | "fp8_bf8" | "bf8_fp8" | "bf8_bf8" => "fp8",
        other => other,
    };
    let found = MFMA
        .iter()
        .find(|row| (row.types, usize::from(row.m), usize::from(row.k)) == (types, shape.m, k));
    let cycles = found.map_or(0, |row| u32::from(row.cycles[column]));
    match (cycles, types) {
        (0, "fp8") if shape.sparse => 16 * (shape.m as u32 / 16),
        // No row (assumed): as the oldest instruction of the tile.
        (0, _) => [(4, 8), (16, 32)]
            .iter()
            .find(|(m, _)| *m == shape.m)
            .map_or(64, |(_, c)| *c),
        (cycles, "f8f6f4") if shape.wide => 2 * cycles,
        (cycles, _) => cycles,
    }
}

/// WMMA of 16x16 on one SIMD. gfx11: `sqtt`, 4-bit integers twice as fast; gfx12: `sqtt`, 8 and 4 bits twice as fast as
/// 16, the sparse forms do twice the depth in the same time. A wave of 64 lanes does one product of the same size, in
/// the same time.
fn wmma_cycles(arch: &Arch, shape: Shape<'_>) -> u32 {
    let bits16 = matches!(shape.types, "f16" | "bf16");
    if !arch.at_least(Generation::Gfx12) {
        return if shape.types == "iu4" { 16 } else { 32 };
    }
    if bits16 { 16 } else { 8 }
}

/// How a vector instruction occupies its SIMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vector {
    /// Cycles of the vector ALU, or of the unit for transcendental functions where it is apart.
    pub cycles: u32,
    /// Whether it runs in a unit of its own beside the vector ALU (RDNA's transcendental functions).
    pub apart: bool,
}

/// The cycles of a vector ALU instruction for waves of `lanes`; `name` is the mnemonic without its encoding.
///
/// CDNA runs 64 lanes in four cycles at full rate, also f64 from gfx90a on and packed f32 (`pyhip` 4.01; `sqtt` gfx950
/// 4). Transcendental functions, f64 conversions and 32-bit multiplications run at a quarter (`llvm`; `pyhip` 16). RDNA
/// runs 32 lanes in one cycle, transcendental functions in four in a unit of their own, f64 in 16, 32-bit
/// multiplications in four and 64-bit shifts in two (`sqtt`).
pub(crate) fn vector(arch: &Arch, name: &str, lanes: usize) -> Vector {
    let rest = name.strip_prefix("v_").unwrap_or(name);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| rest.starts_with(prefix));
    let transcendental = starts(&[
        "exp_", "log_", "rcp_", "rsq_", "sqrt_", "sin_", "cos_", "s_exp_", "s_log_", "s_rcp_",
    ]) || starts(&["s_rsq_", "s_sqrt_"]);
    let multiply = starts(&[
        "mul_lo_u32",
        "mul_hi_u32",
        "mul_hi_i32",
        "mul_lo_i32",
        "mad_u64_u32",
        "mad_i64_i32",
        "mad_co_",
    ]);
    let double = rest.contains("f64");
    let conversion = double && rest.starts_with("cvt_");
    if !arch.at_least(Generation::Gfx10) {
        let slow_double = double && !arch.unified_acc;
        let cycles = match () {
            () if transcendental || multiply || conversion => 16,
            () if slow_double => 8,
            () => 4,
        };
        return Vector { cycles, apart: false };
    }
    let passes = (lanes as u32).div_ceil(32);
    let cycles = match () {
        () if double => 16,
        () if transcendental || multiply => 4,
        () if starts(&["lshlrev_b64", "lshrrev_b64", "ashrrev_i64"]) => 2,
        () => 1,
    };
    Vector {
        cycles: cycles * passes,
        apart: transcendental,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(arch: &str, m: usize, k: usize, types: &str) -> u32 {
        let arch = Arch::by_name(arch).expect("a known arch");
        let shape = Shape {
            m,
            k,
            types,
            sparse: false,
            wide: true,
        };
        matrix_cycles(arch, shape)
    }

    /// The published peak of a compute unit, in multiply-accumulates a cycle of its four SIMDs.
    #[test]
    fn the_fastest_shape_of_each_type_makes_the_published_peak() {
        for (arch, types, m, k, flops) in [
            ("gfx90a", "f64", 16, 4, 256),
            ("gfx90a", "f32", 32, 2, 256),
            ("gfx90a", "f16", 32, 8, 1024),
            ("gfx90a", "bf16_1k", 16, 16, 1024),
            ("gfx90a", "i8", 32, 8, 1024),
            ("gfx942", "f64", 16, 4, 256),
            ("gfx942", "f32", 16, 4, 256),
            ("gfx942", "xf32", 16, 8, 1024),
            ("gfx942", "f16", 32, 8, 2048),
            ("gfx942", "bf16", 16, 16, 2048),
            ("gfx942", "fp8_bf8", 16, 32, 4096),
            ("gfx942", "i8", 32, 16, 4096),
            ("gfx950", "f64", 16, 4, 128),
            ("gfx950", "f32", 32, 2, 256),
            ("gfx950", "f16", 16, 32, 4096),
            ("gfx950", "bf16", 32, 16, 4096),
            ("gfx950", "i8", 16, 64, 8192),
            ("gfx950", "f8f6f4", 16, 128, 8192),
            ("gfx1100", "f16", 16, 16, 1024),
            ("gfx1201", "f16", 16, 16, 2048),
            ("gfx1201", "iu8", 16, 16, 4096),
        ] {
            let products = 4 * 2 * m * m * k;
            assert_eq!(products as u32 / cycles(arch, m, k, types), flops, "{arch} {types}");
        }
    }

    #[test]
    fn older_shapes_keep_their_rate() {
        // Two, four and sixteen blocks.
        assert_eq!(cycles("gfx942", 32, 4, "f16"), 64);
        assert_eq!(cycles("gfx942", 16, 4, "bf16"), 32);
        assert_eq!(cycles("gfx950", 4, 4, "f16"), 8);
        // The shapes of gfx942 at half of gfx950's rate.
        assert_eq!(cycles("gfx950", 16, 16, "f16"), 16);
        assert_eq!(cycles("gfx950", 32, 16, "fp8_fp8"), 32);
        // bf16 of half the depth.
        assert_eq!(cycles("gfx90a", 32, 4, "bf16"), cycles("gfx90a", 32, 8, "bf16_1k"));
        assert_eq!(cycles("gfx908", 16, 8, "bf16"), 32);
        assert_eq!(cycles("gfx90a", 4, 4, "f64"), 16);
    }

    #[test]
    fn narrow_formats_and_sparse_shapes() {
        let gfx950 = Arch::by_name("gfx950").expect("known");
        let mut shape = Shape {
            m: 32,
            k: 64,
            types: "f8f6f4",
            sparse: false,
            wide: false,
        };
        assert_eq!(matrix_cycles(gfx950, shape), 32);
        shape.wide = true;
        assert_eq!(matrix_cycles(gfx950, shape), 64);
        let sparse = |arch: &str, m, k, types| {
            let arch = Arch::by_name(arch).expect("known");
            matrix_cycles(
                arch,
                Shape {
                    m,
                    k,
                    types,
                    sparse: true,
                    wide: true,
                },
            )
        };
        assert_eq!(sparse("gfx942", 16, 32, "f16"), 16);
        assert_eq!(sparse("gfx942", 32, 16, "bf16"), 32);
        assert_eq!(sparse("gfx942", 16, 64, "i8"), 16);
        assert_eq!(sparse("gfx950", 16, 64, "f16"), 16);
        assert_eq!(sparse("gfx950", 32, 64, "fp8_fp8"), 32);
        assert_eq!(sparse("gfx1201", 16, 32, "f16"), 16);
        assert_eq!(sparse("gfx1201", 16, 64, "iu4"), 8);
    }

    #[test]
    fn vector_rates() {
        let at = |arch: &str, name: &str, lanes| vector(Arch::by_name(arch).expect("known"), name, lanes).cycles;
        assert_eq!(at("gfx90a", "v_fma_f32", 64), 4);
        assert_eq!(at("gfx90a", "v_pk_fma_f32", 64), 4);
        assert_eq!(at("gfx942", "v_fma_f64", 64), 4);
        assert_eq!(at("gfx942", "v_exp_f32", 64), 16);
        assert_eq!(at("gfx90a", "v_cvt_f32_f64", 64), 16);
        assert_eq!(at("gfx90a", "v_mul_lo_u32", 64), 16);
        assert_eq!(at("gfx1100", "v_fma_f32", 32), 1);
        assert_eq!(at("gfx1100", "v_fma_f32", 64), 2);
        assert_eq!(at("gfx1201", "v_fma_f64", 32), 16);
        assert_eq!(at("gfx1100", "v_lshlrev_b64", 32), 2);
        let exp = vector(Arch::by_name("gfx1100").expect("known"), "v_exp_f32", 32);
        assert_eq!(exp, Vector { cycles: 4, apart: true });
    }
}
