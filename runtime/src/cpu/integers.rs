//! Products and convolutions of 8-bit integers: rows of the left operand copied as they are multiplied, packed weights.

use std::ops::Range;
use std::sync::Arc;

use ir::graph::ConstId;
use ir::host::product::{Finish, Image, IntegerRows, IntegerWeights, Integers, Place, SUM_LANES};
use ir::op::Layout;
use smallvec::SmallVec;

use super::column_ends::ColumnEnds;
use super::env::RunMemory;
use super::exec::Prepare;
use super::finisher::{Finisher, Scattered, lies_side_by_side, side_by_side_scratch};
use super::kernels::byte_ends::BytesOut;
use super::kernels::depthwise_integers::{DepthwiseIntegers, Filters, Windows, depthwise};
use super::kernels::dots::Dots;
use super::kernels::integers::{
    IntegerProduct, PackedIntegers, Panels, RowsOut, SumTile, given_bytes, given_panels, multiply, pack_given,
};
use super::kernels::window_sums::{RowSums, WindowSums, row_sums, window_sums};
use super::kernels::workspace::{SyncPtr, Workspace};
use crate::error::RuntimeError;

/// What weights are packed by: a constant may be those of several shapes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IntegersKey {
    pub id: ConstId,
    /// What says where the elements of a row and column are.
    pub order: [i64; 9],
}

/// A product of integers with its weights.
#[derive(Debug)]
pub(crate) struct IntegerExec {
    pub(super) form: Integers,
    right: Weights,
    /// How sums become bytes, if that is how they end.
    ends: Option<ColumnEnds>,
    scattered: Scattered,
    side_by_side: bool,
}

#[derive(Debug)]
enum Weights {
    /// Entry `i` has that of number `i % len`.
    Packed(Arc<Vec<PackedIntegers>>),
    /// A number for each tap and channel, as they are multiplied; whether all of them are 1.
    Taps(Vec<i8>, Option<Filters>, bool),
    /// One column of ones, whose sums are stored as they are.
    Ones,
    /// Packed in each run for these instructions.
    Given(Dots),
}

impl IntegerExec {
    /// Packs a product's constants.
    ///
    /// # Errors
    /// Weights that are said to be constant and are not, or are fewer than that.
    pub(crate) fn new(form: Integers, cx: &Prepare<'_>) -> Result<IntegerExec, RuntimeError> {
        let mut right = weights(&form, cx)?;
        let ends = match &right {
            Weights::Packed(packed) => {
                let of = |col: usize| &packed[col / form.columns % packed.len()];
                ColumnEnds::new(&form, cx, |col| of(col).excess(col % form.columns))
            }
            Weights::Taps(..) => ColumnEnds::new(&form, cx, |_| 0),
            Weights::Ones | Weights::Given(_) => None,
        };
        if let (Weights::Taps(taps, filters, _), IntegerRows::Depthwise(image)) = (&mut right, &form.left) {
            *filters = Filters::of(cx.isa, taps, image.shape.c, ends.as_ref().map(|ends| &ends.ends));
        }
        let scattered = Scattered::new(&form);
        let side_by_side = lies_side_by_side(&form);
        Ok(IntegerExec {
            form,
            right,
            ends,
            scattered,
            side_by_side,
        })
    }

    pub(crate) fn scratch(&self) -> usize {
        // Also where there are no dims, whose positions are at an address all the same.
        let positions = (self.form.tiles.space * 8).next_multiple_of(64).max(64);
        match &self.form.finish {
            Finish::Program(program) => positions + program.scratch + SUM_LANES * 4,
            Finish::Sums(_) | Finish::Stages(_) => positions + side_by_side_scratch(&self.form),
        }
    }

    /// # Safety
    /// `params` are the kernel's buffers, temporaries included, at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        let isa = memory.workspace.isa();
        let RunMemory { workspace, threads, .. } = memory;
        let input = SyncPtr(params[self.form.input]);
        let finisher = Finisher {
            form: &self.form,
            side_by_side: self.side_by_side,
            scattered: &self.scattered,
            isa,
            params: params.iter().map(|p| SyncPtr(*p)).collect(),
            scratch: threads.iter().map(|t| SyncPtr(t.as_ptr())).collect(),
        };
        // SAFETY: the caller's contract.
        let finish = |tile: &SumTile| unsafe { finisher.finish(tile) };
        let places = self.ends.as_ref().map(|ends| {
            let (form, params) = (&self.form, &finisher.params);
            // SAFETY: as above.
            move |entry: usize| unsafe { ends.places(form, params, entry) }
        });
        let bytes = self.ends.as_ref().zip(places.as_ref()).map(|(ends, entry)| BytesOut {
            ends: &ends.ends,
            entry,
        });
        if let (Weights::Ones, Finish::Sums(place)) = (&self.right, &self.form.finish) {
            // SAFETY: the caller's contract; the place was shown to be inside its parameter.
            unsafe { self.sum(workspace, input, SyncPtr(params[place.param].cast()), place) };
            return;
        }
        if let (IntegerRows::Depthwise(image), Weights::Taps(taps, filters, ones)) = (&self.form.left, &self.right) {
            let Image {
                shape: s,
                strides,
                padding,
            } = image;
            let tell = |entry: usize, row: usize, places: &mut [*const i8]| {
                let from = input.get().cast::<i8>().cast_const();
                let image = from.wrapping_offset(entry as isize * strides.n);
                let (top, left) = (row / s.out_w * s.stride[0], row % s.out_w * s.stride[1]);
                for (ky, line) in places.chunks_exact_mut(s.kw).enumerate() {
                    let y = (top + ky * s.dilation[0]).wrapping_sub(s.pad[0]);
                    for (kx, place) in line.iter_mut().enumerate() {
                        let x = (left + kx * s.dilation[1]).wrapping_sub(s.pad[1]);
                        *place = match y < s.h && x < s.w {
                            true => image.wrapping_offset(y as isize * strides.h + x as isize * strides.w),
                            false => std::ptr::null(),
                        };
                    }
                }
                // Windows that are inside of all columns of the image, as far as the end of the row.
                let (first, reach) = (left.wrapping_sub(s.pad[1]), (s.kw - 1) * s.dilation[1] + 1);
                match first.checked_add(reach) {
                    Some(end) if first < s.w && end <= s.w => {
                        ((s.w - end) / s.stride[1] + 1).min(s.out_w - row % s.out_w)
                    }
                    _ => 1,
                }
            };
            let first = |entry: usize| {
                input
                    .get()
                    .cast::<i8>()
                    .wrapping_offset(entry as isize * strides.n)
                    .cast_const()
            };
            let neighbours = [s.kh, s.kw] == [3, 3] && s.dilation == [1, 1] && s.stride[1] <= 2 && s.pad[1] <= 2;
            let windows = neighbours.then_some(Windows {
                image: &first,
                size: [s.h, s.w],
                steps: [strides.h, strides.w],
                stride: s.stride,
                pad: [s.pad[0], s.pad[1]],
                out_w: s.out_w,
            });
            let convolution = DepthwiseIntegers {
                entries: self.form.entries,
                m: self.form.m,
                channels: s.c,
                weights: taps,
                filters: filters.as_ref(),
                ones: *ones,
                padding: *padding,
                taps: &tell,
                step: s.stride[1] as isize * strides.w,
                windows,
                finish: &finish,
                bytes,
            };
            // SAFETY: taps are inside the image, which is as large as the shape says.
            unsafe { depthwise(workspace, &convolution) };
            return;
        }
        let rows = |entry: usize, rows: Range<usize>, to: &mut RowsOut| {
            let from = input.get().cast::<i8>().cast_const();
            // SAFETY: rows were shown to be inside the operand.
            unsafe { self.rows(from, entry, rows, to) }
        };
        let weights: SmallVec<[Panels<'_>; 16]> = match (&self.right, &self.form.right) {
            (Weights::Packed(packed), _) => packed.iter().map(PackedIntegers::panels).collect(),
            (Weights::Given(dots), IntegerWeights::Given { matrix, starts, of, to }) => {
                let from = SyncPtr(params[self.form.filter].cast::<i8>());
                let from: Vec<_> = starts
                    .iter()
                    .map(|start| SyncPtr(from.get().wrapping_offset(*start as isize)))
                    .collect();
                let (to, bytes) = (SyncPtr(params[*to]), given_bytes(matrix, *dots)[1]);
                // SAFETY: every element was shown to be inside the parameter; the temporary has room for all matrices.
                unsafe { pack_given(workspace, *dots, matrix, &from, to) };
                let panels = |number: &usize| given_panels(matrix, *dots, to.get().wrapping_add(number * bytes));
                of.iter().map(panels).collect()
            }
            _ => SmallVec::new(),
        };
        let product = IntegerProduct {
            entries: self.form.entries,
            m: self.form.m,
            weights: &weights,
            rows: &rows,
            finish: &finish,
            bytes,
        };
        // SAFETY: `rows` writes `k` elements of each; the weights were packed for this processor.
        unsafe { multiply(workspace, &product) }
    }

    /// Sums what is under each window, or each row.
    ///
    /// # Safety
    /// `input` and `to` are the parameters that the form names.
    unsafe fn sum(&self, workspace: &mut Workspace, input: SyncPtr<u8>, to: SyncPtr<i32>, place: &Place) {
        let (form, input) = (&self.form, SyncPtr(input.get().cast::<i8>()));
        let (space, row) = (form.tiles.space, form.tiles.dims.row);
        let out = |entry: usize| {
            let mut idx: SmallVec<[i64; 8]> = form.tiles.positions[entry * space..(entry + 1) * space].into();
            if let [(d, _)] = form.across[..] {
                idx[d] = (entry % form.groups) as i64;
            }
            let step = row.map_or(0, |d| place.form.get(d) as isize);
            (SyncPtr(to.get().wrapping_offset(place.form.at(&idx) as isize)), step)
        };
        // SAFETY: the caller's contract: the operand was shown to be as large as it is read.
        unsafe {
            match &form.left {
                IntegerRows::Image(image) | IntegerRows::Depthwise(image) => {
                    let sums = WindowSums {
                        shape: &image.shape,
                        strides: &image.strides,
                        padding: image.padding,
                        input,
                        out: &out,
                    };
                    window_sums(workspace, &sums);
                }
                IntegerRows::Matrix { base, row, table, .. } => {
                    let from = |entry: usize| {
                        let first = (base + table[entry]) as isize;
                        (SyncPtr(input.get().wrapping_offset(first)), *row as isize)
                    };
                    let sums = RowSums {
                        entries: form.entries,
                        m: form.m,
                        k: form.k,
                        from: &from,
                        out: &out,
                    };
                    row_sums(workspace, &sums);
                }
            }
        }
    }

    /// # Safety
    /// `from` is the operand.
    unsafe fn rows(&self, from: *const i8, entry: usize, rows: Range<usize>, to: &mut RowsOut) {
        // SAFETY: the caller's contract: every place was shown to be inside.
        unsafe {
            match &self.form.left {
                // It has no rows.
                IntegerRows::Depthwise(_) => {}
                IntegerRows::Matrix {
                    base,
                    row: down,
                    step,
                    table,
                } => {
                    let first = from.offset((base + table[entry] + rows.start as i64 * down) as isize);
                    let (down, step, k) = (*down as isize, *step as isize, self.form.k);
                    if step == 1 {
                        return to.copy_rows(rows.len(), first, k, down);
                    }
                    for number in 0..rows.len() {
                        to.row(number).copy(0, first.offset(number as isize * down), k, step);
                    }
                }
                IntegerRows::Image(image) => {
                    let s = &image.shape;
                    let (number, group) = (entry / self.form.groups, entry % self.form.groups);
                    let channels = s.c / self.form.groups;
                    let first = number as isize * image.strides.n + (group * channels) as isize * image.strides.c;
                    windows(image, channels, from.offset(first), rows, to);
                }
            }
        }
    }
}

/// Packs a product's constants.
fn weights(form: &Integers, cx: &Prepare<'_>) -> Result<Weights, RuntimeError> {
    let dots = Dots::of(cx.isa);
    Ok(match (&form.right, &form.left) {
        (IntegerWeights::Given { .. }, _) => Weights::Given(dots),
        (IntegerWeights::Filters(layout), IntegerRows::Image(image) | IntegerRows::Depthwise(image)) => {
            let (id, tensor) = cx.given(form.filter)?;
            let (bytes, shape): (&[u8], _) = (&tensor.bytes, &image.shape);
            let ones = bytes.iter().all(|b| *b == 1);
            let (cg, og, taps) = (shape.c / shape.groups, shape.o / shape.groups, shape.kh * shape.kw);
            if bytes.len() < shape.o * cg * taps {
                return Err(fewer(cx, form.filter));
            }
            if matches!(form.left, IntegerRows::Depthwise(_)) {
                // Of filters with one channel both layouts are one.
                let tap = |i| bytes[i % shape.o * taps + i / shape.o] as i8;
                let taps: Vec<i8> = (0..taps * shape.o).map(tap).collect();
                return Ok(Weights::Taps(taps, None, ones));
            }
            if ones && og == 1 && image.strides.c == 1 && stores_one_column(form) {
                return Ok(Weights::Ones);
            }
            let sizes = [shape.o, cg, shape.kh, shape.kw, shape.groups].map(|s| s as i64);
            let [o, c, kh, kw, groups] = sizes;
            let kind = i64::from(*layout == Layout::ChannelsLast) + 1;
            let key = IntegersKey {
                id,
                order: [kind, o, c, kh, kw, groups, form.groups as i64, 0, 0],
            };
            // Groups of one product have pixels of one tap: rows of the group before are channels.
            let together = shape.groups / form.groups.max(1);
            let group = |g: usize| {
                PackedIntegers::blocks(dots, [taps * cg, og], together, |row, col| {
                    let (row, filter) = (row % (taps * cg), g * og + col);
                    let (tap, channel) = (row / cg, row % cg);
                    let at = match layout {
                        Layout::ChannelsLast => (filter * taps + tap) * cg + channel,
                        Layout::ChannelsFirst => (filter * cg + channel) * taps + tap,
                    };
                    bytes[at] as i8
                })
            };
            Weights::Packed(cx.pack_integers(key, || (0..form.groups).map(group).collect())?)
        }
        (IntegerWeights::Matrix { n, base, down, across }, _) => {
            let (id, tensor) = cx.given(form.filter)?;
            let bytes: &[u8] = &tensor.bytes;
            let key = IntegersKey {
                id,
                order: [0, *base, *down, *across, form.k as i64, *n as i64, 0, 0, 0],
            };
            let ones = bytes.iter().all(|b| *b == 1);
            if let IntegerRows::Matrix { step: 1, .. } = form.left
                && ones
                && *n == 1
                && stores_one_column(form)
            {
                return Ok(Weights::Ones);
            }
            let at = |row: usize, col: usize| bytes[(base + row as i64 * down + col as i64 * across) as usize] as i8;
            Weights::Packed(cx.pack_integers(key, || Ok(vec![PackedIntegers::new(dots, form.k, *n, at)?]))?)
        }
        (IntegerWeights::Filters(_), IntegerRows::Matrix { .. }) => return Err(fewer(cx, form.filter)),
    })
}

/// Writes the windows of pixels `rows` of a result: so many channels of each tap, from the first channel of the first
/// pixel on.
///
/// # Safety
/// The image is as large as its shape says, and so are rows.
unsafe fn windows(image: &Image, channels: usize, from: *const i8, rows: Range<usize>, to: &mut RowsOut) {
    let Image {
        shape: s,
        strides,
        padding,
    } = image;
    let plain = s.stride == [1, 1] && s.pad == [0; 4] && strides.h == s.w as isize * strides.w;
    // SAFETY: the caller's contract; every tap is inside, or is looked at here.
    unsafe {
        if s.kh * s.kw == 1 && plain && strides.c == 1 {
            let first = from.wrapping_offset(rows.start as isize * strides.w);
            return to.copy_rows(rows.len(), first, channels, strides.w);
        }
        // Taps of a line are neighbours.
        let dense = strides.c == 1 && strides.w == channels as isize && s.dilation[1] == 1;
        let (line, reach) = (s.kw * channels, s.kh.saturating_sub(1) * s.dilation[0]);
        let (mut oy, mut ox) = (rows.start / s.out_w, rows.start % s.out_w);
        for number in 0..rows.len() {
            let mut to = to.row(number);
            let (y0, x0) = (
                (oy * s.stride[0]) as isize - s.pad[0] as isize,
                (ox * s.stride[1]) as isize - s.pad[1] as isize,
            );
            ox += 1;
            if ox == s.out_w {
                (oy, ox) = (oy + 1, 0);
            }
            let inside = x0 >= 0 && x0 as usize + s.kw <= s.w && y0 >= 0 && y0 as usize + reach < s.h;
            if dense && inside {
                let (first, down) = (
                    from.offset(y0 * strides.h + x0 * strides.w),
                    s.dilation[0] as isize * strides.h,
                );
                for ky in 0..s.kh {
                    to.copy(ky * line, first.offset(ky as isize * down), line, 1);
                }
                continue;
            }
            for ky in 0..s.kh {
                let (y, first) = (y0 + (ky * s.dilation[0]) as isize, ky * line);
                if y < 0 || y >= s.h as isize {
                    to.fill(first, *padding, line);
                    continue;
                }
                let from = from.offset(y * strides.h);
                if dense {
                    // Those before the line, on it, after it.
                    let before = (-x0).clamp(0, s.kw as isize) as usize;
                    let end = (s.w as isize - x0).clamp(before as isize, s.kw as isize) as usize;
                    to.fill(first, *padding, before * channels);
                    to.copy(
                        first + before * channels,
                        from.wrapping_offset((x0 + before as isize) * strides.w),
                        (end - before) * channels,
                        1,
                    );
                    to.fill(first + end * channels, *padding, (s.kw - end) * channels);
                    continue;
                }
                for kx in 0..s.kw {
                    let x = x0 + (kx * s.dilation[1]) as isize;
                    let at = first + kx * channels;
                    if x < 0 || x >= s.w as isize {
                        to.fill(at, *padding, channels);
                    } else {
                        to.copy(at, from.offset(x * strides.w), channels, strides.c);
                    }
                }
            }
        }
    }
}

/// Says whether a product of one column a group stores its sums as they are.
fn stores_one_column(form: &Integers) -> bool {
    let added = &form.added;
    let alone = added.factor.is_none() && added.each.is_none() && added.columns.is_none() && added.outer.is_none();
    let sizes = form.across.iter().all(|(_, extent)| *extent == form.groups);
    alone && matches!(form.finish, Finish::Sums(_)) && form.columns == 1 && form.across.len() <= 1 && sizes
}

fn fewer(cx: &Prepare<'_>, param: usize) -> RuntimeError {
    RuntimeError::Program(format!(
        "kernel {}: parameter {param} has fewer weights than its product",
        cx.name
    ))
}
