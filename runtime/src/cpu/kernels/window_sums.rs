//! Sums of the bytes under each window of an image, or of each row of a matrix: products by ones, without products.

use super::simd::{Simd, simd_dispatch};
use super::workspace::{SyncPtr, Workspace};
use ir::host::product::{ConvShape, ImageStrides};

/// Where an entry's sums go: the first, and how many sums further on the next is.
pub(crate) type Out = (SyncPtr<i32>, isize);

/// An image of which the bytes under each window are summed, over the channels of each group.
pub(crate) struct WindowSums<'a> {
    pub shape: &'a ConvShape,
    /// Channels are neighbours.
    pub strides: &'a ImageStrides,
    pub padding: i8,
    pub input: SyncPtr<i8>,
    /// By image and group.
    pub out: &'a (dyn Fn(usize) -> Out + Sync),
}

/// Bytes that are worth a task.
const TASK_BYTES: usize = 1 << 14;

/// Sums an image's windows: each pixel's channels first, then pixels.
///
/// # Safety
/// The image is as large as its shape says, with an `out` of as many sums as it has windows for each entry.
pub(crate) unsafe fn window_sums(ws: &mut Workspace, p: &WindowSums<'_>) {
    let s = p.shape;
    let (cg, entries) = (s.c / s.groups, s.n * s.groups);
    if s.out_h * s.out_w * entries == 0 {
        return;
    }
    let wanted = (s.w * cg * s.h * s.n * s.groups)
        .div_ceil(TASK_BYTES)
        .min(ws.threads() * 4);
    let blocks = wanted.div_ceil(entries).clamp(1, s.out_h);
    let lines = s.out_h.div_ceil(blocks);
    let reach = (lines - 1) * s.stride[0] + (s.kh - 1) * s.dilation[0] + 1;
    let first_line = s.out_w.next_multiple_of(16);
    if !ws.reserve((first_line + reach.min(s.h) * s.w) * 4, 0) {
        return;
    }
    let (isa, blocks) = (ws.isa(), s.out_h.div_ceil(lines));
    ws.parallel_for(entries * blocks, &|task, _, scratch| {
        let (entry, from) = (task / blocks, task % blocks * lines);
        let (image, group) = (entry / s.groups, entry % s.groups);
        let below = (from + lines).min(s.out_h);
        // SAFETY: lines are clipped to the image; the scratch has room for one line of results and all that are read.
        unsafe {
            let start = image as isize * p.strides.n + (group * cg) as isize * p.strides.c;
            let base = p.input.get().cast_const().offset(start);
            let inside = |y: usize| y.saturating_sub(s.pad[0]).min(s.h);
            let top = inside(from * s.stride[0]);
            let bottom = inside((below - 1) * s.stride[0] + (s.kh - 1) * s.dilation[0] + 1).max(top);
            let sums = scratch.cast::<i32>();
            let pixels = sums.add(first_line);
            for y in top..bottom {
                let line = base.offset(y as isize * p.strides.h);
                sums_of_pixels(isa, pixels.add((y - top) * s.w), line, [s.w, cg], p.strides.w);
            }
            let outside = i32::from(p.padding).wrapping_mul(cg as i32);
            let (out, step) = (p.out)(entry);
            for oy in from..below {
                let sums = std::slice::from_raw_parts_mut(sums, s.out_w);
                sums.fill(0);
                for ky in 0..s.kh {
                    let y = (oy * s.stride[0] + ky * s.dilation[0]).wrapping_sub(s.pad[0]);
                    if y >= s.h {
                        let all = outside.wrapping_mul(s.kw as i32);
                        sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(all));
                        continue;
                    }
                    let line = std::slice::from_raw_parts(pixels.add((y - top) * s.w), s.w);
                    for kx in 0..s.kw {
                        add_line(sums, line, [s.stride[1], kx * s.dilation[1], s.pad[1]], outside);
                    }
                }
                for (ox, sum) in sums.iter().enumerate() {
                    out.get().offset((oy * s.out_w + ox) as isize * step).write(*sum);
                }
            }
        }
    });
}

/// Adds to each sum the pixel at `i · stride + offset − pad` of a line, or what stands outside.
fn add_line(sums: &mut [i32], line: &[i32], [stride, offset, pad]: [usize; 3], outside: i32) {
    // Sums before the line, and the first behind it.
    let before = pad.saturating_sub(offset).div_ceil(stride).min(sums.len());
    let end = (line.len() + pad)
        .saturating_sub(offset)
        .div_ceil(stride)
        .clamp(before, sums.len());
    let first = (before * stride + offset).saturating_sub(pad);
    let add = |sum: &mut i32, more: i32| *sum = sum.wrapping_add(more);
    sums[..before].iter_mut().for_each(|sum| add(sum, outside));
    sums[end..].iter_mut().for_each(|sum| add(sum, outside));
    let inner = &mut sums[before..end];
    match stride {
        1 => inner
            .iter_mut()
            .zip(line.iter().skip(first))
            .for_each(|(sum, more)| add(sum, *more)),
        _ => {
            let pixels = line.iter().skip(first).step_by(stride);
            inner.iter_mut().zip(pixels).for_each(|(sum, more)| add(sum, *more));
        }
    }
}

/// A matrix of which rows are summed.
pub(crate) struct RowSums<'a> {
    pub entries: usize,
    pub m: usize,
    pub k: usize,
    /// Where an entry's first row begins, and how many bytes further on the next does.
    pub from: &'a (dyn Fn(usize) -> (SyncPtr<i8>, isize) + Sync),
    pub out: &'a (dyn Fn(usize) -> Out + Sync),
}

/// Sums rows.
///
/// # Safety
/// Rows of `k` bytes are readable, and each has a sum.
pub(crate) unsafe fn row_sums(ws: &mut Workspace, p: &RowSums<'_>) {
    if p.m * p.entries == 0 {
        return;
    }
    let rows = (TASK_BYTES / p.k.max(1)).max(1);
    let blocks = p.m.div_ceil(rows);
    let isa = ws.isa();
    ws.parallel_for(p.entries * blocks, &|task, _, _| {
        let (entry, first) = (task / blocks, task % blocks * rows);
        let ((from, down), (out, step)) = ((p.from)(entry), (p.out)(entry));
        // SAFETY: the caller's contract.
        unsafe {
            for row in first..(first + rows).min(p.m) {
                let mut sum = 0;
                let bytes = from.get().cast_const().offset(row as isize * down);
                sums_of_pixels(isa, &mut sum, bytes, [1, p.k], 0);
                out.get().offset(row as isize * step).write(sum);
            }
        }
    });
}

simd_dispatch! {
    /// Sums the bytes of pixels that are `step` apart.
    unsafe fn sums_of_pixels(sums: *mut i32, line: *const i8, size: [usize; 2], step: isize) = sums_of_pixels_body
}

#[inline(always)]
unsafe fn sums_of_pixels_body<S: Simd>(sums: *mut i32, line: *const i8, [pixels, bytes]: [usize; 2], step: isize) {
    for x in 0..pixels {
        // SAFETY: the caller's contract: so many pixels of so many bytes, and a sum of each.
        unsafe {
            let pixel = std::slice::from_raw_parts(line.offset(x as isize * step), bytes);
            sums.add(x)
                .write(pixel.iter().fold(0i32, |sum, v| sum.wrapping_add(i32::from(*v))));
        }
    }
}
