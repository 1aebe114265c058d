//! Tilings that the tests run: every matrix instruction, every way an operand can lie, one and two stages.

use super::Layout::{self, AlongK, AlongRows, Computed, Guarded};
use super::{Form, Tiling};

const CDNA: &[&str] = &["gfx908", "gfx90a", "gfx942", "gfx950"];
const CDNA2: &[&str] = &["gfx90a", "gfx942", "gfx950"];
const OLD: &[&str] = &["gfx908", "gfx90a"];
const NEW: &[&str] = &["gfx942", "gfx950"];
const RDNA: &[&str] = &["gfx1100", "gfx1201"];
const DOT: &[&str] = &["gfx906", "gfx1030", "gfx1100"];
const DOT_BF16: &[&str] = &["gfx950", "gfx1100", "gfx1201"];
const NO_DOT: &[&str] = &["gfx906", "gfx1030"];
const NO_MFMA: &[&str] = &["gfx906", "gfx1030", "gfx1100", "gfx1201"];

/// An instruction with its archs, a tile's sizes, waves and knobs, the epilogue's width, and elements of 16 bytes.
type Row = (
    &'static [&'static str],
    &'static str,
    [usize; 3],
    [usize; 2],
    &'static str,
    usize,
    usize,
);

const ROWS: &[Row] = &[
    (CDNA, "Mfma<32, 32, 8, f16, f32>", [128, 128, 32], [2, 2], "2", 4, 8),
    (CDNA, "Mfma<16, 16, 16, f16, f32>", [128, 64, 64], [2, 2], "1", 8, 8),
    // Tiles that are no whole number of pieces for each thread.
    (CDNA, "Mfma<16, 16, 16, f16, f32>", [80, 128, 64], [1, 4], "1", 8, 8),
    (CDNA, "Mfma<16, 16, 16, f16, f32>", [96, 128, 64], [2, 2], "2", 8, 8),
    (CDNA, "Mfma<32, 32, 8, f16, f32>", [160, 128, 32], [1, 4], "1", 8, 8),
    (CDNA, "Mfma<32, 32, 8, f16, f32>", [128, 96, 32], [4, 1], "2", 4, 8),
    (CDNA, "Mfma<32, 32, 2, f32, f32>", [64, 128, 16], [2, 2], "2", 4, 4),
    (CDNA, "Mfma<16, 16, 4, f32, f32>", [64, 64, 32], [2, 2], "1", 4, 4),
    (OLD, "Mfma<32, 32, 4, bf16, f32>", [64, 128, 32], [2, 2], "2", 8, 8),
    (OLD, "Mfma<16, 16, 8, bf16, f32>", [64, 64, 32], [2, 2], "2", 8, 8),
    (CDNA2, "Mfma<32, 32, 8, bf16, f32>", [128, 128, 64], [2, 2], "1", 8, 8),
    (CDNA2, "Mfma<16, 16, 16, bf16, f32>", [128, 64, 32], [2, 2], "2", 8, 8),
    (CDNA2, "Mfma<16, 16, 4, f64, f64>", [64, 64, 16], [2, 2], "2", 2, 2),
    (OLD, "Mfma<32, 32, 8, i8, i32>", [128, 128, 64], [2, 2], "2", 4, 16),
    (OLD, "Mfma<16, 16, 16, i8, i32>", [128, 128, 64], [2, 2], "2", 4, 16),
    (OLD, "Mfma<16, 16, 16, i8, i32>", [160, 128, 64], [2, 2], "1", 4, 16),
    (NEW, "Mfma<32, 32, 16, i8, i32>", [128, 128, 128], [2, 2], "1", 4, 16),
    (NEW, "Mfma<16, 16, 32, i8, i32>", [128, 128, 64], [2, 2], "2", 4, 16),
    (
        &["gfx942"],
        "Mfma<16, 16, 32, f8e4m3fnuz, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx942"],
        "Mfma<32, 32, 16, f8e5m2fnuz, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<16, 16, 32, f8e4m3fn, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<32, 32, 16, f8e5m2, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<16, 16, 128, f8e4m3fn, f32>",
        [128, 128, 128],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<32, 32, 64, f8e5m2, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<32, 32, 16, f16, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        8,
        8,
    ),
    (
        &["gfx950"],
        "Mfma<16, 16, 32, f16, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        8,
        8,
    ),
    (
        &["gfx950"],
        "Mfma<32, 32, 16, bf16, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        8,
        8,
    ),
    (
        &["gfx950"],
        "Mfma<16, 16, 32, bf16, f32>",
        [128, 128, 64],
        [2, 2],
        "2",
        8,
        8,
    ),
    (
        &["gfx950"],
        "Mfma<32, 32, 32, i8, i32>",
        [128, 128, 128],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        &["gfx950"],
        "Mfma<16, 16, 64, i8, i32>",
        [128, 128, 128],
        [2, 2],
        "2",
        4,
        16,
    ),
    (
        RDNA,
        "Wmma<16, 16, 16, f16, f32>",
        [64, 64, 32],
        [2, 2],
        "2, false",
        8,
        8,
    ),
    (
        RDNA,
        "Wmma<16, 16, 16, bf16, f32>",
        [64, 64, 64],
        [2, 2],
        "1, false",
        4,
        8,
    ),
    (
        RDNA,
        "Wmma<16, 16, 16, i8, i32>",
        [128, 128, 64],
        [2, 4],
        "2, false",
        8,
        16,
    ),
    (
        &["gfx1201"],
        "Wmma<16, 16, 16, f8e4m3fn, f32>",
        [128, 128, 64],
        [2, 4],
        "2, false",
        8,
        16,
    ),
    (
        &["gfx1201"],
        "Wmma<16, 16, 16, f8e5m2, f32>",
        [128, 128, 64],
        [2, 4],
        "2, false",
        8,
        16,
    ),
    (DOT, "Dot<2, f16, f32>", [64, 64, 32], [2, 2], "2, false", 4, 8),
    (DOT_BF16, "Dot<2, bf16, f32>", [64, 64, 32], [2, 2], "2, false", 4, 8),
    (DOT, "Dot<4, i8, i32>", [64, 64, 64], [2, 2], "2, false", 4, 16),
    (NO_MFMA, "Fma<bf16, f32>", [64, 64, 32], [2, 2], "2, false", 4, 8),
    (NO_MFMA, "Fma<f32>", [64, 128, 16], [2, 4], "2, false", 4, 4),
    (NO_MFMA, "Fma<f64>", [32, 64, 8], [2, 2], "2, false", 2, 2),
    (NO_MFMA, "Fma<i32>", [32, 32, 16], [2, 2], "1, false", 2, 4),
];

/// The ways that the operands of one tiling lie; the others have one lying along k and one along the rows.
const LAYOUTS: &[(Layout, Layout)] = &[
    (AlongK(8), AlongK(8)),
    (AlongRows(8), AlongRows(8)),
    (AlongK(4), AlongRows(4)),
    (AlongK(1), AlongRows(1)),
    (AlongRows(2), AlongK(2)),
    (Guarded(8), Computed { along_k: false }),
    (Computed { along_k: true }, AlongK(2)),
];

/// Waves that split k: an instruction with its archs, one wave's tile, its knobs, the waves and the epilogue's width.
type WaveK = (
    &'static [&'static str],
    &'static str,
    [usize; 3],
    &'static str,
    usize,
    usize,
);

const WAVE_K: &[WaveK] = &[
    (CDNA2, "Mfma<16, 16, 16, f16, f32>", [16, 16, 32], "1", 8, 4),
    (CDNA2, "Mfma<16, 16, 16, bf16, f32>", [32, 32, 64], "2", 4, 8),
    (OLD, "Mfma<16, 16, 16, i8, i32>", [16, 32, 64], "1", 4, 4),
    (RDNA, "Wmma<16, 16, 16, f16, f32>", [16, 32, 32], "2, false", 8, 8),
    (NO_DOT, "Dot<2, f16, f32>", [16, 32, 32], "1, false", 4, 4),
];

/// Few rows: the sizes but for the waves, elements of both operands at once, the epilogue's width. Weights lie along k
/// where a wave takes more than one column.
const GEMV: &[(&str, usize, usize, Layout, Layout)] = &[
    ("f16, f32, 4, 2, 2", 4, 2, AlongK(8), AlongK(8)),
    ("f16, f32, 1, 4, 2", 1, 4, AlongK(8), AlongK(8)),
    ("bf16, f32, 8, 2, 1", 8, 1, AlongK(8), Guarded(8)),
    ("i8, i32, 2, 2, 2", 2, 2, AlongK(16), AlongK(16)),
    ("f16, f32, 4, 128, 1", 4, 4, AlongK(8), AlongRows(8)),
    ("f16, f32, 1, 32, 1", 1, 8, AlongK(8), AlongRows(8)),
    ("f32, f32, 1, 32, 1", 1, 4, AlongK(4), AlongRows(4)),
    ("bf16, f32, 2, 32, 1", 2, 1, Computed { along_k: true }, AlongRows(2)),
    ("i8, i32, 8, 256, 1", 8, 8, AlongK(4), AlongRows(16)),
];

/// Every case that an arch has.
pub fn of(arch: &str) -> Vec<Tiling> {
    let mut cases = tiles(arch);
    for (archs, instruction, block, knobs, waves, width) in WAVE_K {
        if archs.contains(&arch) {
            for (lhs, rhs) in [(AlongK(8), AlongRows(8)), (AlongRows(4), AlongK(4))] {
                cases.push(Tiling {
                    form: Form::WaveK(*waves),
                    instruction: (*instruction).to_owned(),
                    block: *block,
                    waves: [1, 1],
                    knobs,
                    lhs,
                    rhs,
                    width: *width,
                });
            }
        }
    }
    let waves = if arch.starts_with("gfx9") { 4 } else { 8 };
    for (sizes, rows, width, lhs, rhs) in GEMV {
        // The fourth of the sizes is the columns of a workgroup, or of a wave where the weights lie along k.
        let cols: usize = sizes.split(", ").nth(3).map_or(1, |n| n.parse().expect("a number"));
        let cols = if matches!(rhs, AlongRows(_)) {
            cols
        } else {
            waves * cols
        };
        cases.push(Tiling {
            form: Form::Gemv,
            instruction: format!("Gemv<{sizes}, {waves}>"),
            block: [*rows, cols, 1],
            waves: [1, waves],
            knobs: "",
            lhs: *lhs,
            rhs: *rhs,
            width: *width,
        });
    }
    cases
}

fn tiles(arch: &str) -> Vec<Tiling> {
    let mut cases = Vec::new();
    for (row, (archs, instruction, block, waves, knobs, width, chunk)) in ROWS.iter().enumerate() {
        if !archs.contains(&arch) {
            continue;
        }
        let mut add = |lhs, rhs| {
            cases.push(Tiling {
                form: Form::Tile,
                instruction: (*instruction).to_owned(),
                block: *block,
                waves: *waves,
                knobs,
                lhs,
                rhs,
                width: *width,
            });
        };
        if row % 2 == 0 {
            add(AlongK(*chunk), AlongRows(*chunk));
        } else {
            add(AlongRows(*chunk), AlongK(*chunk));
        }
        if row == 0 || instruction.starts_with("Wmma<16, 16, 16, f16") {
            LAYOUTS.iter().for_each(|(lhs, rhs)| add(*lhs, *rhs));
        }
        if instruction.contains("i8") {
            add(AlongRows(4), AlongRows(8));
            add(AlongK(2), AlongRows(1));
        }
    }
    cases
}

/// Sizes that reach every edge of a tiling: one element, tiles that are cut on each side, less and more than a tile
/// deep.
pub fn sizes(tiling: &Tiling) -> Vec<[usize; 3]> {
    let step = |layout: Layout| match layout {
        AlongRows(width) => width,
        _ => 1,
    };
    let [m, n, k] = tiling.block;
    // Products whose waves split k, or with few rows, are deep.
    let k = match tiling.form {
        Form::Tile => k,
        Form::WaveK(waves) => k * waves,
        Form::Gemv => 512,
    };
    let (step_m, step_n) = (step(tiling.lhs), step(tiling.rhs).max(tiling.width));
    [
        [1, 1, 1],
        [m + 3, n + 5, 2 * k + 3],
        [(m - 1).max(1), 2 * n, k],
        [17, 33, k - 1],
        [m, n, 5 * k + k / 2 + 1],
    ]
    .map(|[m, n, k]| [m.next_multiple_of(step_m), n.next_multiple_of(step_n), k])
    .to_vec()
}
