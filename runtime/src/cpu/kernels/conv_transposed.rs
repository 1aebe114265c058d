//! Transposed convolution as plain convolutions: one for each phase of the stride.
//!
//! ```text
//! y[o] = Σ x[i] · w[k]  over  o + pad = i · stride + k · dilation
//! =>  outputs whose o + pad has remainder r:  a convolution of stride 1 by the taps k with k · dilation ≡ r (mod stride)
//! ```
//!
//! Each output pixel is of one phase of each axis, so that each is written once, and no tap is multiplied that meets no
//! pixel. A phase without taps is a convolution that reads nothing but padding.

use super::conv::{Conv, ConvShape, ImageStrides, PackedConv, conv2d};
use super::isa::Isa;
use super::workspace::{NoRoom, Workspace, zeros};

/// Filters of a transposed convolution, packed for each phase: `stride[0] * stride[1]` of them.
#[derive(Debug)]
pub struct PackedTransposed {
    phases: Vec<PackedConv>,
}

/// The taps of one axis that a phase has: `first + m * step` for `m < count`.
#[derive(Clone, Copy, Debug)]
struct Taps {
    first: usize,
    step: usize,
    count: usize,
}

impl Taps {
    fn of(phase: usize, taps: usize, stride: usize, dilation: usize) -> Taps {
        let step = stride / gcd(stride, dilation);
        let first = (0..step.min(taps)).find(|k| k * dilation % stride == phase);
        match first {
            Some(first) => Taps {
                first,
                step,
                count: (taps - first).div_ceil(step),
            },
            None => Taps {
                first: 0,
                step: 1,
                count: 0,
            },
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

impl PackedTransposed {
    /// Packs dense weights `[c, o / groups, kh, kw]` for [`conv_transpose2d`] by these strides and dilations.
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Panics
    /// When `weights` has another length or `groups` does not divide the channels.
    pub fn new(isa: Isa, weights: &[f32], s: &ConvShape) -> Result<PackedTransposed, NoRoom> {
        let (cg, og, taps) = (s.c / s.groups, s.o / s.groups, s.kh * s.kw);
        assert_eq!(weights.len(), s.c * og * taps, "transposed weights do not fit {s:?}");
        let mut phases = Vec::with_capacity(s.stride[0] * s.stride[1]);
        for phase in 0..s.stride[0] * s.stride[1] {
            let [y, x] = phase_taps(s, phase);
            let (kh, kw) = (y.count.max(1), x.count.max(1));
            let mut dense = zeros(s.o * cg * kh * kw)?;
            for (o, filter) in dense.chunks_exact_mut((cg * kh * kw).max(1)).enumerate() {
                let (group, at) = (o / og, o % og);
                for c in 0..cg {
                    let from = ((group * cg + c) * og + at) * taps;
                    for (u, row) in filter[c * kh * kw..][..kh * kw].chunks_exact_mut(kw).enumerate() {
                        for (v, to) in row.iter_mut().enumerate() {
                            if y.count > 0 && x.count > 0 {
                                // The last tap meets the first pixel.
                                let ky = y.first + (y.count - 1 - u) * y.step;
                                let kx = x.first + (x.count - 1 - v) * x.step;
                                *to = weights[from + ky * s.kw + kx];
                            }
                        }
                    }
                }
            }
            phases.push(PackedConv::new(isa, &dense, s.o, cg, [kh, kw], s.groups)?);
        }
        Ok(PackedTransposed { phases })
    }

    /// Filters of one phase, for what has a place for such.
    pub fn any(&self) -> &PackedConv {
        &self.phases[0]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.phases.iter().map(PackedConv::bytes).sum()
    }
}

fn phase_taps(s: &ConvShape, phase: usize) -> [Taps; 2] {
    let [sy, sx] = s.stride;
    [
        Taps::of(phase / sx % sy, s.kh, sy, s.dilation[0]),
        Taps::of(phase % sx, s.kw, sx, s.dilation[1]),
    ]
}

/// One axis of a phase's convolution.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// The first output of the phase, and how many there are.
    first: usize,
    outputs: usize,
    /// Pixels before the first that the phase meets, and those that are left.
    skipped: usize,
    size: usize,
    taps: usize,
    dilation: usize,
    pad: [usize; 2],
}

impl Axis {
    fn new(s: &ConvShape, axis: usize, phase: usize, taps: Taps) -> Axis {
        let (stride, dilation, pad) = (s.stride[axis], s.dilation[axis], s.pad[axis]);
        let (size, outputs) = if axis == 0 { (s.h, s.out_h) } else { (s.w, s.out_w) };
        let first = (phase + stride - pad % stride) % stride;
        let outputs = outputs.saturating_sub(first).div_ceil(stride);
        // Without taps, or without pixels, all that is read is padding.
        let nothing = Axis {
            first,
            outputs,
            skipped: 0,
            size,
            taps: 1,
            dilation: 1,
            pad: [outputs, 0],
        };
        if taps.count == 0 {
            return nothing;
        }
        let step = taps.step * dilation / stride;
        let reach = (taps.count - 1) * step;
        // The pixel that the first output meets by its first tap.
        let meets = (first + pad) / stride;
        let back = (taps.first * dilation) / stride + reach;
        let (low, skipped) = (back.saturating_sub(meets), meets.saturating_sub(back));
        let Some(size) = size.checked_sub(skipped).filter(|size| *size > 0) else {
            return Axis {
                taps: taps.count,
                dilation: step,
                pad: [outputs + reach, 0],
                ..nothing
            };
        };
        let high = (outputs + reach).saturating_sub(low + size);
        Axis {
            first,
            outputs,
            skipped,
            size,
            taps: taps.count,
            dilation: step,
            pad: [low, high],
        }
    }
}

/// A phase's convolution; `None` where no output is of it.
fn phase_conv<'a>(conv: &Conv<'a>, packed: &'a PackedTransposed, phase: usize) -> Option<Conv<'a>> {
    let s = &conv.shape;
    let [ty, tx] = phase_taps(s, phase);
    // A phase without taps of one axis has none at all.
    let (ty, tx) = match ty.count.min(tx.count) {
        0 => (Taps { count: 0, ..ty }, Taps { count: 0, ..tx }),
        _ => (ty, tx),
    };
    let none = ty.count == 0;
    let mut y = Axis::new(s, 0, phase / s.stride[1], ty);
    let mut x = Axis::new(s, 1, phase % s.stride[1], tx);
    if y.outputs == 0 || x.outputs == 0 {
        return None;
    }
    if none {
        // The packed window is that of the axes' own taps.
        let [own_y, own_x] = phase_taps(s, phase);
        (y.taps, x.taps) = (own_y.count.max(1), own_x.count.max(1));
        (y.pad[0], x.pad[0]) = (y.outputs + y.taps, x.outputs + x.taps);
    }
    let (from, to) = (conv.input_strides, conv.output_strides);
    let skipped = y.skipped as isize * from.h + x.skipped as isize * from.w;
    let first = y.first as isize * to.h + x.first as isize * to.w;
    Some(Conv {
        shape: ConvShape {
            h: y.size,
            w: x.size,
            kh: y.taps,
            kw: x.taps,
            stride: [1, 1],
            pad: [y.pad[0], x.pad[0], y.pad[1], x.pad[1]],
            dilation: [y.dilation, x.dilation],
            out_h: y.outputs,
            out_w: x.outputs,
            ..*s
        },
        input: conv.input.wrapping_offset(skipped * conv.input_elem.size() as isize),
        weights: &packed.phases[phase],
        output: conv.output.wrapping_offset(first * conv.output_elem.size() as isize),
        output_strides: ImageStrides {
            h: to.h * s.stride[0] as isize,
            w: to.w * s.stride[1] as isize,
            ..to
        },
        ..*conv
    })
}

/// Convolves transposed (ONNX's ConvTranspose). Output sizes are the caller's (`ConvShape::transposed`); of `builtin` a
/// residual, and an epilogue, are not for it. `conv.weights` is not looked at: the packed phases are in its place.
///
/// # Safety
/// As for [`conv2d`].
///
/// # Panics
/// As for [`conv2d`].
pub unsafe fn conv_transpose2d(ws: &mut Workspace, conv: &Conv<'_>, packed: &PackedTransposed) {
    assert!(
        conv.builtin.residual.is_none() && conv.epilogue.is_none(),
        "pixels of a phase do not follow one another"
    );
    for phase in 0..packed.phases.len() {
        if let Some(phase) = phase_conv(conv, packed, phase) {
            // SAFETY: the caller's contract: a phase reads pixels of the image and writes outputs of its own.
            unsafe { conv2d(ws, &phase) }
        }
    }
}
