//! Sums that become bytes in registers, and windows of three by three pixels, against sums and stages that are done one
//! by one.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Rng;
use super::stages::by_stages;
use crate::cpu::kernels::byte_ends::{ByteEnds, BytePlaces, BytesOut};
use crate::cpu::kernels::depthwise_integers::{DepthwiseIntegers, Filters, Windows, depthwise};
use crate::cpu::kernels::dots::Dots;
use crate::cpu::kernels::integers::{IntegerProduct, PackedIntegers, RowsOut, SumTile, multiply};
use crate::cpu::kernels::stages::{Across, Stage, StageOp, StageOut, Stored};
use crate::cpu::kernels::workspace::SyncPtr;
use crate::cpu::kernels::{Isa, Pool, Workspace};

/// Bytes of which many are the extremes.
fn bytes(rng: &mut Rng, count: usize) -> Vec<i8> {
    let byte = |_| match rng.next() {
        v if v % 7 == 0 => -128,
        v if v % 7 == 1 => 127,
        v => (v >> 20) as i8,
    };
    (0..count).map(byte).collect()
}

/// Stages that end as bytes, without the store, and the numbers of columns that they name.
struct Form {
    stages: Vec<Stage>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    stored: Stored,
}

/// A form of sums of about `size`: signed or not, by one scale or one a column, quantised once or twice, with a
/// residual at `added` or none; quotients are halves that floats miss, or few are near ties.
fn form(case: usize, cols: usize, size: f32, added: Option<(*const u8, isize)>, rng: &mut Rng) -> Form {
    let (signed, tied, twice) = (
        case.is_multiple_of(2),
        case.is_multiple_of(3),
        added.is_some() || case % 5 == 4,
    );
    let stored = if signed { Stored::I8 } else { Stored::U8 };
    let [low, high] = if signed { [-128.0, 127.0] } else { [0.0, 255.0] };
    let zero = if case % 4 < 2 { 0.0 } else { low + 7.0 };
    // Quotients from a few to some that are far outside of the range, and of 16 bits.
    let by = if tied { 0.2 } else { 0.37 };
    let spread = [30.0, 200.0, 3_000.0, 1e6][case % 4];
    let unit = if tied { 0.1 } else { spread * by / size };
    let scales = (0..cols)
        .map(|col| unit * if tied { 1.0 } else { 1.0 + col as f32 / 64.0 })
        .collect();
    let biases = (0..cols)
        .map(|_| (rng.below(64) as f32 - 20.0) * if tied { 0.1 } else { 0.31 })
        .collect();
    let mut form = Form {
        stages: Vec::new(),
        scales,
        biases,
        stored,
    };
    form.stages = vec![
        match case % 7 {
            0..4 => Stage::Columns(StageOp::Mul, form.scales.as_ptr()),
            _ => Stage::Number(StageOp::Mul, unit),
        },
        Stage::Columns(StageOp::Add, form.biases.as_ptr()),
    ];
    if case % 11 < 4 {
        form.stages.push(Stage::Number(StageOp::Max, 0.0));
    }
    form.stages.extend([
        if case % 13 == 5 {
            Stage::Round
        } else {
            Stage::RoundQuotient(by)
        },
        Stage::Number(StageOp::Add, zero),
        Stage::Number(StageOp::Max, low),
        // A range that is not the type's is cut too.
        Stage::Number(StageOp::Min, if case % 9 == 2 { 70.0 } else { high }),
    ]);
    if !twice {
        return form;
    }
    form.stages.extend([
        Stage::Number(StageOp::Sub, zero),
        Stage::Number(StageOp::Mul, if tied { 0.3 } else { 0.41 }),
    ]);
    if let Some((from, step)) = added {
        form.stages.push(Stage::Residual {
            from,
            stored,
            step,
            zero: 3.0,
            scale: if tied { 0.1 } else { 0.29 },
            positive: case % 4 == 1,
        });
    }
    if case % 3 == 1 {
        form.stages.push(Stage::Number(StageOp::Max, 0.0));
    }
    form.stages.extend([
        if case % 8 == 7 {
            Stage::Round
        } else {
            Stage::RoundQuotient(if tied { 0.2 } else { 0.53 })
        },
        Stage::Number(StageOp::Add, zero),
        Stage::Number(StageOp::Max, low),
        Stage::Number(StageOp::Min, if case % 10 == 3 { 90.0 } else { high }),
    ]);
    form
}

impl Form {
    /// How sums of so many columns end; where bytes go is told in each run.
    fn ends(&self, cols: usize, start: impl Fn(usize) -> i32) -> Option<ByteEnds> {
        let store = Stage::Store(StageOut {
            to: std::ptr::null_mut(),
            stored: self.stored,
            row: 0,
            cols: Across::Apart(1),
        });
        let stages: Vec<Stage> = self.stages.iter().copied().chain([store]).collect();
        // SAFETY: there is a number for each column.
        unsafe { ByteEnds::of(cols, &stages, start) }
    }

    fn byte(&self, sum: i32, row: usize, col: usize) -> u8 {
        by_stages(sum as f32, &self.stages, row, col) as i32 as u8
    }
}

/// Levels at which bytes are made in registers, of this processor's.
fn wide_levels() -> impl Iterator<Item = Isa> {
    Isa::all().filter(|isa| Dots::of(*isa).is_wide())
}

#[test]
fn products_become_bytes_as_stages_say() {
    let mut rng = Rng(51);
    for isa in wide_levels() {
        let sizes = [1, 8, 16, 17, 24, 32, 33, 48, 64, 95, 200];
        for (case, cols) in sizes.into_iter().flat_map(|cols| [cols; 40]).enumerate() {
            let (entries, m, k) = (1 + case % 2, 1 + rng.below(40), 1 + rng.below(70));
            let (mut a, b) = (bytes(&mut rng, entries * m * k), bytes(&mut rng, k * cols));
            if case.is_multiple_of(3) {
                // Most quotients are inside the range where many are near ties.
                a.iter_mut().for_each(|a| *a %= 3);
            }
            let packed = [PackedIntegers::new(Dots::of(isa), k, cols, |row, col| b[row * cols + col]).expect("memory")];
            // Bytes lie where those do that are added, with a margin behind each row.
            let step = cols + 3;
            let mut out: Vec<u8> = (0..entries * m * step).map(|_| rng.next() as u8).collect();
            let before = out.clone();
            let added = (case % 3 != 1).then_some((before.as_ptr(), step as isize));
            let form = form(case, cols, 9_000.0 * (k as f32).sqrt(), added, &mut rng);
            let addend: Vec<i32> = (0..cols).map(|_| rng.below(2_000) as i32 - 1_000).collect();
            let start = |col: usize| addend[col].wrapping_sub(packed[0].excess(col));
            let ends = form.ends(cols, start).expect("such sums become bytes");
            let rows = |entry: usize, rows: Range<usize>, to: &mut RowsOut| {
                let from = a[(entry * m + rows.start) * k..].as_ptr();
                // SAFETY: all of the rows' elements.
                unsafe { to.copy_rows(rows.len(), from, k, k as isize) };
            };
            let stored = AtomicUsize::new(0);
            let finish = |_: &SumTile| {
                stored.fetch_add(1, Ordering::Relaxed);
            };
            let to = SyncPtr(out.as_mut_ptr());
            let entry = |entry: usize| {
                let at = to.get().wrapping_add(entry * m * step);
                let places = BytePlaces {
                    to: at,
                    row: step as isize,
                    added: at.cast_const(),
                    added_row: step as isize,
                };
                (places, 0)
            };
            let product = IntegerProduct {
                entries,
                m,
                weights: &packed.each_ref().map(PackedIntegers::panels),
                rows: &rows,
                finish: &finish,
                bytes: Some(BytesOut {
                    ends: &ends,
                    entry: &entry,
                }),
            };
            let mut ws = Workspace::with_isa(Arc::new(Pool::new(1 + case % 3)), isa);
            // SAFETY: rows are written; places have room for all rows and columns.
            unsafe { multiply(&mut ws, &product) };
            assert_eq!(stored.into_inner(), 0, "no tile of sums is stored");
            for (i, got) in out.iter().enumerate() {
                let (row, col) = (i / step, i % step);
                if col >= cols {
                    assert_eq!(*got, before[i], "nothing is written behind column {cols}");
                    continue;
                }
                let product = |p: usize| i32::from(a[row * k + p]) * i32::from(b[p * cols + col]);
                let sum = (0..k).map(product).sum::<i32>() + addend[col];
                let want = form.byte(sum, row, col);
                assert_eq!(
                    *got, want,
                    "case {case}: {entries}x{m}x{k}x{cols}, sum {sum} at {row}, {col}"
                );
            }
        }
    }
}

#[test]
fn ends_that_are_not_sure_are_not_read() {
    let mut rng = Rng(52);
    for bias in [f32::NAN, f32::INFINITY, 1e30, 1e5] {
        let mut form = form(1, 40, 1e4, None, &mut rng);
        form.biases[11] = bias;
        assert!(form.ends(40, |_| 0).is_none(), "{bias:e}");
        // What is read is where it was.
        form.biases[11] = 2.0;
        assert!(form.ends(40, |_| 0).is_some());
    }
    let mut form = form(0, 40, 1e4, None, &mut rng);
    form.scales[3] = f32::NAN;
    assert!(form.ends(40, |_| 0).is_none(), "a scale that is no number");
    form.scales[3] = 1.0;
    form.stages.push(Stage::Function(Isa::detect(), ir::op::UnaryOp::Exp));
    assert!(form.ends(40, |_| 0).is_none(), "a function");
}

#[test]
fn windows_of_three_by_three_are_their_sums_and_bytes() {
    let mut rng = Rng(53);
    for isa in Isa::all() {
        let channels = [1, 8, 16, 24, 32, 40, 64, 70, 130];
        for (case, channels) in channels.into_iter().flat_map(|channels| [channels; 12]).enumerate() {
            let stride = [1 + case % 2, 1 + case / 2 % 2];
            let pad = [rng.below(3), rng.below(3)];
            let (h, w, entries) = (3 + rng.below(9), 3 + rng.below(20), 1 + case % 2);
            let end = [rng.below(3), rng.below(3)];
            let out = [0, 1].map(|d| ([h, w][d] + pad[d] + end[d] - 3) / stride[d] + 1);
            let (m, padding) = (out[0] * out[1], rng.next() as i8);
            let image = bytes(&mut rng, entries * h * w * channels);
            let weights = bytes(&mut rng, 9 * channels);
            let pixel = |entry: usize, row: usize, tap: usize| {
                let y = (row / out[1] * stride[0] + tap / 3).wrapping_sub(pad[0]);
                let x = (row % out[1] * stride[1] + tap % 3).wrapping_sub(pad[1]);
                (y < h && x < w).then(|| &image[((entry * h + y) * w + x) * channels..][..channels])
            };
            let tell = |entry: usize, row: usize, places: &mut [*const i8]| {
                for (tap, place) in places.iter_mut().enumerate() {
                    *place = pixel(entry, row, tap).map_or(std::ptr::null(), <[i8]>::as_ptr);
                }
                1
            };
            let first = |entry: usize| image[entry * h * w * channels..].as_ptr();
            let form = form(case * 2 + 1, channels, 9_000.0 * 3.0, None, &mut rng);
            let addend: Vec<i32> = (0..channels).map(|_| rng.below(2_000) as i32 - 1_000).collect();
            let ends = form.ends(channels, |col| addend[col]).expect("such sums become bytes");
            let filters = Filters::of(isa, &weights, channels, Some(&ends));
            for (in_registers, by_lines) in [(false, true), (true, true), (true, false)] {
                let mut stored = vec![0xa5u8; entries * m * channels + 64];
                let sums = Mutex::new(vec![None; entries * m * channels]);
                let finish = |tile: &SumTile| {
                    let mut sums = sums.lock().expect("no test thread panicked");
                    for (i, row) in tile.rows.clone().enumerate() {
                        for (j, col) in tile.cols.clone().enumerate() {
                            // SAFETY: inside the tile.
                            let sum = unsafe { *tile.sums.add(i * tile.stride + j) };
                            sums[(tile.entry * m + row) * channels + col] = Some(sum);
                        }
                    }
                };
                let to = SyncPtr(stored.as_mut_ptr());
                let entry = |entry: usize| {
                    let places = BytePlaces {
                        to: to.get().wrapping_add(entry * m * channels),
                        row: channels as isize,
                        added: std::ptr::null(),
                        added_row: 0,
                    };
                    (places, 0)
                };
                let convolution = DepthwiseIntegers {
                    entries,
                    m,
                    channels,
                    weights: &weights,
                    filters: filters.as_ref(),
                    ones: false,
                    padding,
                    taps: &tell,
                    step: 0,
                    windows: by_lines.then_some(Windows {
                        image: &first,
                        size: [h, w],
                        steps: [(w * channels) as isize, channels as isize],
                        stride,
                        pad,
                        out_w: out[1],
                    }),
                    finish: &finish,
                    bytes: in_registers.then_some(BytesOut {
                        ends: &ends,
                        entry: &entry,
                    }),
                };
                let mut ws = Workspace::with_isa(Arc::new(Pool::new(1 + case % 3)), isa);
                // SAFETY: the image and places are as large as is said.
                unsafe { depthwise(&mut ws, &convolution) };
                let sums = sums.into_inner().expect("no test thread panicked");
                let registers = in_registers && filters.is_some() && !ends.goes_on();
                for (i, got) in sums.iter().enumerate() {
                    let (row, col) = (i / channels, i % channels);
                    let product = |tap: usize| {
                        let value = pixel(row / m, row % m, tap).map_or(padding, |pixel| pixel[col]);
                        i32::from(value) * i32::from(weights[tap * channels + col])
                    };
                    let sum = (0..9).map(product).sum::<i32>();
                    let what = || format!("{isa:?}: case {case} of {h}x{w}x{channels} at {row}, {col}");
                    match registers {
                        true => assert_eq!(stored[i], form.byte(sum + addend[col], row, col), "{}", what()),
                        false => assert_eq!(*got, Some(sum), "{}", what()),
                    }
                }
                let whole = stored[entries * m * channels..].iter().all(|byte| *byte == 0xa5);
                assert!(whole, "nothing is written behind the last channel");
            }
        }
    }
}
