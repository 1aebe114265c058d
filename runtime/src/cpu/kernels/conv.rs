//! 2-D convolution as implicit GEMM ([`super::conv_transposed`] has its transpose): rows of A are output pixels, read
//! through pointers into the image.
//!
//! The image must lie with channels innermost (NHWC) for that; any other layout, f16 and bf16 are first copied so into
//! scratch. Few channels (the first layer) get a zero-padded copy, where a whole row of taps is one contiguous run of
//! `kw * C` values. Depthwise convolutions, and groups of few channels, have a kernel of their own
//! ([`super::depthwise`]).

use super::depthwise::{self, Filters, depthwise};
use super::depthwise_rows;
use super::gemm::{Batch, Builtin, Dest, Elem, Epilogue, MatRef, PackedB, Place, Problem, RowMap, packed_len, run};
use super::isa::Isa;
use super::workspace::{NoRoom, SyncPtr, Workspace, zeros};
use super::{convert, gemm};
pub use ir::host::product::{ConvShape, ImageStrides};

/// Whether [`PackedConv::winograd`] can serve this shape, and is expected to be faster than [`PackedConv::new`]:
/// measured on AVX-512. Not where few patches share transformed weights that the second-level cache does not hold.
pub fn winograd_pays(shape: &ConvShape) -> bool {
    let patches = shape.n * shape.out_h.div_ceil(4) * shape.out_w.div_ceil(4);
    let weights = 36 * 4 * shape.c * shape.o;
    winograd_serves(shape)
        && shape.c >= 16
        && shape.o >= 32
        && shape.n * shape.out_h * shape.out_w >= 169
        && (patches >= 48 || weights <= 5 << 19)
}

fn winograd_serves(shape: &ConvShape) -> bool {
    [shape.kh, shape.kw] == [3, 3] && shape.stride == [1, 1] && shape.dilation == [1, 1] && shape.groups == 1
}

fn taps(shape: &ConvShape) -> usize {
    shape.kh * shape.kw
}

/// Weights packed for [`conv2d`].
#[derive(Debug)]
pub struct PackedConv {
    o: usize,
    cg: usize,
    taps: usize,
    groups: usize,
    /// Per group `[kh * kw * cg, o / groups]`; for groups of few channels `[taps, cg, o]`, not in panels.
    weights: Weights,
}

#[derive(Debug)]
enum Weights {
    Panels(PackedB),
    /// Of groups of few channels.
    Apart(Filters),
    /// 36 `[c, o]` matrices.
    Winograd(PackedB),
}

impl PackedConv {
    /// Packs dense weights `[o, c / groups, kh, kw]` for [`conv2d`].
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Panics
    /// When `weights` has another length or `groups` does not divide `o`.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        o: usize,
        cg: usize,
        [kh, kw]: [usize; 2],
        groups: usize,
    ) -> Result<PackedConv, NoRoom> {
        let taps = kh * kw;
        assert_eq!(
            weights.len(),
            o * cg * taps,
            "convolution weights are [{o}, {cg}, {kh}, {kw}]"
        );
        assert!(
            groups > 0 && o.is_multiple_of(groups),
            "{groups} groups of {o} output channels"
        );
        if groups > 1 && depthwise::serves(isa, cg, o / groups) {
            return Ok(PackedConv {
                o,
                cg,
                taps,
                groups,
                weights: Weights::Apart(Filters::pack(isa, weights, [o, cg, o / groups], taps)?),
            });
        }
        let og = o / groups;
        // [g][tap][c][o]
        let mut rows = zeros(weights.len())?;
        for g in 0..groups {
            for tap in 0..taps {
                for c in 0..cg {
                    for i in 0..og {
                        rows[((g * taps + tap) * cg + c) * og + i] = weights[((g * og + i) * cg + c) * taps + tap];
                    }
                }
            }
        }
        Ok(PackedConv {
            o,
            cg,
            taps,
            groups,
            weights: Weights::Panels(Self::panels(isa, &rows, groups, taps * cg, og)?),
        })
    }

    /// Packs dense weights `[o, c, 3, 3]` for [`conv2d`] by Winograd's F(4x4, 3x3): strides and dilations of 1, one
    /// group.
    ///
    /// About twice as fast where [`winograd_pays`]; the error in f32 is about ten times that of direct summation
    /// (2e-5 of the sum of the products' magnitudes), and one NaN or infinity spreads over its 4x4 block of outputs.
    ///
    /// # Errors
    /// As [`PackedConv::new`].
    ///
    /// # Panics
    /// When `weights` has another length; `conv2d` panics when such weights meet another stride, dilation or grouping.
    pub fn winograd(isa: Isa, weights: &[f32], o: usize, c: usize) -> Result<PackedConv, NoRoom> {
        assert_eq!(weights.len(), o * c * 9, "Winograd weights are [{o}, {c}, 3, 3]");
        Ok(PackedConv {
            o,
            cg: c,
            taps: 9,
            groups: 1,
            weights: Weights::Winograd(super::winograd::pack(isa, weights, o, c)?),
        })
    }

    fn panels(isa: Isa, rows: &[f32], groups: usize, k: usize, n: usize) -> Result<PackedB, NoRoom> {
        let src = MatRef {
            batch: Batch::Stride((k * n) as isize),
            ..MatRef::dense(rows, n)
        };
        // SAFETY: `rows` holds `groups` dense matrices of `k * n`.
        unsafe { PackedB::new(isa, groups, k, n, &src) }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Panels(packed) | Weights::Winograd(packed) => packed.bytes(),
            Weights::Apart(filters) => filters.bytes(),
        }
    }
}

/// One convolution.
#[derive(Clone, Copy)]
pub struct Conv<'a> {
    pub shape: ConvShape,
    pub input: *const u8,
    pub input_elem: Elem,
    pub input_strides: ImageStrides,
    pub weights: &'a PackedConv,
    pub output: *mut u8,
    pub output_elem: Elem,
    pub output_strides: ImageStrides,
    /// Elements from a group's first channel to the next group's; `None` where they follow one another.
    pub output_group: Option<isize>,
    /// Bias by output channel; a residual's rows are output pixels of one image, its batch the image.
    pub builtin: Builtin<'a>,
    pub epilogue: Option<&'a dyn Epilogue>,
}

/// Convolves (cross-correlates, as ONNX's Conv).
///
/// # Safety
/// Every element that the shape and strides reach in the input and the residual must be readable, in the output
/// writable, exclusively and disjoint from the input, for the call.
///
/// # Panics
/// When the weights were packed for other sizes, groups or instruction level than those of `conv` and `ws`.
pub unsafe fn conv2d(ws: &mut Workspace, conv: &Conv<'_>) {
    // SAFETY: the caller's contract.
    unsafe { convolve(ws, conv) }
}

/// Scratch that [`conv2d`] will ask of a workspace with `threads` threads, as (bytes per thread,
/// shared bytes): for plans that reserve it beforehand. Pointers in `conv` are not looked at.
pub fn conv_scratch(isa: Isa, threads: usize, conv: &Conv<'_>) -> (usize, usize) {
    let s = &conv.shape;
    let plan = plan(conv);
    let (segs, seg_len) = segments(s, &plan);
    let (pixels, og, entries) = (s.out_h * s.out_w, s.o / s.groups, s.n * s.groups);
    let (per_thread, transformed) = match &conv.weights.weights {
        Weights::Panels(_) => {
            let work = gemm::Work {
                isa,
                batch: entries.max(1),
                m: pixels,
                n: og,
                segs,
                seg_len,
                a_row_bytes: a_row_bytes(s),
                threads,
                all_entries: all_groups(s),
            };
            (work.scratch_bytes(), 0)
        }
        Weights::Apart(_) => (depthwise::scratch_bytes(taps(s), s.o), 0),
        Weights::Winograd(_) => {
            let (own, shared) = super::winograd::scratch_floats(isa, s.n, s.c, s.out_h, s.out_w);
            (4 * own, shared)
        }
    };
    (
        per_thread,
        (zero_floats(s) + plan.copy_floats.next_multiple_of(16) + transformed) * 4,
    )
}

/// A row of zeros that stands for padding.
fn zero_floats(s: &ConvShape) -> usize {
    s.c.next_multiple_of(16) + 16
}

/// Contiguous runs of one row of A, and their length.
fn segments(s: &ConvShape, plan: &Plan) -> (usize, usize) {
    let cg = s.c / s.groups;
    if plan.padded { (s.kh, s.kw * cg) } else { (taps(s), cg) }
}

/// Says whether a task has its pixels of all groups, as those of the one image there is lie side by side.
fn all_groups(s: &ConvShape) -> bool {
    s.n == 1 && s.groups > 1
}

/// About what one more output pixel touches of the image.
fn a_row_bytes(s: &ConvShape) -> usize {
    s.c * 4 * s.stride[0].max(1) * s.stride[1].max(1)
}

/// How the image is made addressable as rows of A.
#[derive(Clone, Copy)]
struct Plan {
    /// Elements of the (copied) image: strides in floats; padding already in it when `padded`.
    strides: ImageStrides,
    copied: bool,
    padded: bool,
    height: usize,
    width: usize,
    copy_floats: usize,
}

fn plan(conv: &Conv<'_>) -> Plan {
    let s = &conv.shape;
    let cg = s.c / s.groups;
    let dense = conv.input_elem == Elem::F32 && conv.input_strides.c == 1;
    let merge = !matches!(conv.weights.weights, Weights::Winograd(_))
        && s.groups == 1
        && cg < 16
        && s.kw > 1
        && s.dilation[1] == 1;
    if merge {
        let (height, width) = (s.h + s.pad[0] + s.pad[2], s.w + s.pad[1] + s.pad[3]);
        let copy_floats = s.n * height * width * s.c;
        let strides = ImageStrides::nhwc(height, width, s.c);
        return Plan {
            strides,
            copied: true,
            padded: true,
            height,
            width,
            copy_floats,
        };
    }
    let (height, width) = (s.h, s.w);
    if dense {
        return Plan {
            strides: conv.input_strides,
            copied: false,
            padded: false,
            height,
            width,
            copy_floats: 0,
        };
    }
    let strides = ImageStrides::nhwc(height, width, s.c);
    Plan {
        strides,
        copied: true,
        padded: false,
        height,
        width,
        copy_floats: s.n * height * width * s.c,
    }
}

unsafe fn convolve(ws: &mut Workspace, conv: &Conv<'_>) {
    let s = conv.shape;
    let (pixels, taps, groups) = (s.out_h * s.out_w, taps(&s), s.groups);
    if s.n == 0 || pixels == 0 || s.o == 0 {
        return;
    }
    let isa = ws.isa();
    let w = conv.weights;
    assert!(
        w.o == s.o && w.taps == taps && w.groups == groups && w.cg * groups == s.c,
        "weights packed for {} outputs, {} taps, {} groups of {} channels do not fit {s:?}",
        w.o,
        w.taps,
        w.groups,
        w.cg,
    );
    assert!(
        conv.builtin.bias.is_none_or(|bias| bias.len() >= s.o),
        "a bias has one value per output channel"
    );
    let plan = plan(conv);
    let zero_floats = zero_floats(&s);
    let (cg, og) = (w.cg, s.o / groups);
    let (segs, seg_len) = segments(&s, &plan);
    let a_row = a_row_bytes(&s);
    let (per_thread, shared_bytes) = conv_scratch(isa, ws.threads(), conv);
    if !ws.reserve(per_thread, shared_bytes) {
        return;
    }
    let shared = SyncPtr(ws.shared().cast::<f32>());
    // SAFETY: reserved above: the zero row comes first, the copied image after it.
    let copy = SyncPtr(unsafe { shared.get().add(zero_floats) });
    // SAFETY: as above; other kernels use the same scratch, so the zeros are written each time.
    unsafe { std::ptr::write_bytes(shared.get(), 0, zero_floats) };
    if plan.copied {
        // SAFETY: the caller's contract for the input; the copy fits by `copy_floats`.
        unsafe { copy_image(ws, conv, &plan, copy) }
    }
    let image = if plan.copied {
        copy
    } else {
        SyncPtr(conv.input.cast_mut().cast::<f32>())
    };
    let out = Dest {
        elem: conv.output_elem,
        rows: row_map(&conv.output_strides, s.out_w, s.out_h),
        col_stride: conv.output_strides.c,
        apart: conv.epilogue.is_some_and(Epilogue::reads_replaced),
    };
    let taps_at = Taps {
        s,
        plan,
        image,
        zero: shared,
    };
    let panels = match &w.weights {
        Weights::Panels(panels) => panels,
        Weights::Apart(weights) => {
            // SAFETY: one pixel's taps; the table has room for them.
            let fill = |n: usize, pixel: usize, table: *mut *const f32| unsafe {
                taps_at.fill(n, pixel, 1, 0, table);
                taps_at.inside(pixel)
            };
            let step = s.stride[1] as isize * plan.strides.w;
            let whole = (!plan.padded).then_some(depthwise_rows::Image {
                at: image,
                strides: plan.strides,
                height: plan.height,
                width: plan.width,
                zero: shared,
            });
            // SAFETY: the caller's contract.
            return unsafe { depthwise(ws, conv, weights, (&fill, step), whole, out) };
        }
        Weights::Winograd(u) => {
            assert!(
                u.isa() == isa && winograd_serves(&s),
                "Winograd weights for {:?} do not fit {s:?}",
                u.isa()
            );
            // SAFETY: the caller's contract; the transformed image comes after the copied one.
            return unsafe {
                let v = SyncPtr(copy.get().add(plan.copy_floats.next_multiple_of(16)));
                super::winograd::winograd(ws, conv, u, image, plan.strides, shared, v, out)
            };
        }
    };
    assert!(
        panels.isa() == isa,
        "weights packed for {:?} do not fit {isa:?}",
        panels.isa()
    );
    let b = SyncPtr(panels.as_ptr().cast_mut());
    let one_b = packed_len(isa, taps * cg, og);
    let output = SyncPtr(conv.output);
    let (out_strides, out_size) = (conv.output_strides, conv.output_elem.size() as isize);
    let out_group = conv.output_group.unwrap_or(og as isize * out_strides.c);
    let bias = SyncPtr(
        conv.builtin
            .bias
            .map_or(std::ptr::null_mut(), |b| b.as_ptr().cast_mut()),
    );
    let residual = conv.builtin.residual;
    let place = |entry: usize| {
        let (n, g) = (entry / groups, entry % groups);
        // SAFETY: the first element of an image and group is inside each operand.
        unsafe {
            let at = n as isize * out_strides.n + g as isize * out_group;
            Place {
                b: b.get().add(g * one_b),
                panel0: 0,
                c: output.get().offset(at * out_size),
                bias: if bias.get().is_null() {
                    bias.get()
                } else {
                    bias.get().add(g * og)
                },
                residual: residual.map_or(std::ptr::null(), |r| {
                    r.ptr.cast::<f32>().offset(r.batch.at(n)).add(g * og).cast()
                }),
                entry: n,
                col0: g * og,
            }
        }
    };
    let fill = |entry: usize, row0: usize, count: usize, table: *mut *const f32| {
        // SAFETY: rows are output pixels; the table has room for them.
        unsafe { taps_at.fill(entry / groups, row0, count, entry % groups * cg, table) }
    };
    let problem = Problem {
        converted: None,
        stored: None,
        isa,
        batch: s.n * groups,
        all_entries: all_groups(&s),
        m: pixels,
        n: og,
        segs,
        seg_len,
        a_row_bytes: a_row,
        b_stride: None,
        fill: &fill,
        place: &place,
        dest: out,
        scale: conv.builtin.scale,
        activation: conv.builtin.activation,
        residual: Elem::F32,
        ld_residual: residual.map_or(0, |r| r.row_stride),
        in_place: conv.builtin.reads(conv.output),
        epilogue: conv.epilogue,
    };
    // SAFETY: the closures hand out pointers inside the operands, per the caller's contract.
    unsafe { run(ws, &problem) }
}

fn row_map(strides: &ImageStrides, w: usize, h: usize) -> RowMap {
    if h <= 1 || strides.h == strides.w * w as isize {
        RowMap::Linear(strides.w)
    } else {
        RowMap::Grid {
            w,
            stride_y: strides.h,
            stride_x: strides.w,
        }
    }
}

struct Taps {
    s: ConvShape,
    plan: Plan,
    image: SyncPtr<f32>,
    zero: SyncPtr<f32>,
}

impl Taps {
    /// Writes the pointers of `count` output pixels from `row0`: `[segment][pixel]`, at channel `c`.
    unsafe fn fill(&self, n: usize, row0: usize, count: usize, c: usize, table: *mut *const f32) {
        let (s, p) = (&self.s, &self.plan);
        // SAFETY: image `n` is inside the operand.
        let image = unsafe { self.image.get().offset(n as isize * p.strides.n).add(c).cast_const() };
        let zero = self.zero.get().cast_const();
        let [dy, dx] = s.dilation;
        let (mut oy, mut ox) = (row0 / s.out_w, row0 % s.out_w);
        for i in 0..count {
            let (y0, x0) = (oy * s.stride[0], ox * s.stride[1]);
            if p.padded {
                for ky in 0..s.kh {
                    let at = (y0 + ky * dy) as isize * p.strides.h + x0 as isize * p.strides.w;
                    // SAFETY: the padded copy holds every tap; the table has `segs * count` entries.
                    unsafe { table.add(ky * count + i).write(image.offset(at)) };
                }
            } else if y0 >= s.pad[0]
                && x0 >= s.pad[1]
                && y0 - s.pad[0] + (s.kh - 1) * dy < p.height
                && x0 - s.pad[1] + (s.kw - 1) * dx < p.width
            {
                // The whole window is inside: no test per tap.
                let (row_step, col_step) = (dy as isize * p.strides.h, dx as isize * p.strides.w);
                let at = (y0 - s.pad[0]) as isize * p.strides.h + (x0 - s.pad[1]) as isize * p.strides.w;
                let mut tap = i;
                for ky in 0..s.kh as isize {
                    for kx in 0..s.kw as isize {
                        // SAFETY: inside the image; the table has `segs * count` entries.
                        unsafe { table.add(tap).write(image.offset(at + ky * row_step + kx * col_step)) };
                        tap += count;
                    }
                }
            } else {
                let mut tap = i;
                for ky in 0..s.kh {
                    let y = self.input_row(oy, ky * dy, 0).filter(|y| *y < p.height);
                    for kx in 0..s.kw {
                        let x = self.input_row(ox, kx * dx, 1).filter(|x| *x < p.width);
                        let pointer = match (y, x) {
                            // SAFETY: `y` and `x` are inside the image.
                            (Some(y), Some(x)) => unsafe {
                                image.offset(y as isize * p.strides.h + x as isize * p.strides.w)
                            },
                            _ => zero,
                        };
                        // SAFETY: the table has `segs * count` entries.
                        unsafe { table.add(tap).write(pointer) };
                        tap += count;
                    }
                }
            }
            ox += 1;
            if ox == s.out_w {
                ox = 0;
                oy += 1;
            }
        }
    }

    /// Of how many pixels from this one on, of one row, all taps are a step further on than those of the pixel before.
    fn inside(&self, pixel: usize) -> usize {
        let (s, p) = (&self.s, &self.plan);
        let (oy, ox) = (pixel / s.out_w, pixel % s.out_w);
        let reach = [(s.kh - 1) * s.dilation[0], (s.kw - 1) * s.dilation[1]];
        let starts = [oy * s.stride[0], ox * s.stride[1]];
        let is_inside =
            |axis: usize, size: usize| starts[axis] >= s.pad[axis] && starts[axis] - s.pad[axis] + reach[axis] < size;
        if p.padded || !is_inside(0, p.height) || !is_inside(1, p.width) {
            return 1;
        }
        let last = (p.width - 1 - reach[1] + s.pad[1]) / s.stride[1];
        (last + 1).min(s.out_w) - ox
    }

    /// The input row (axis 0) or column (axis 1) that output position `o` meets at `offset` into the kernel.
    #[inline(always)]
    fn input_row(&self, o: usize, offset: usize, axis: usize) -> Option<usize> {
        (o * self.s.stride[axis] + offset).checked_sub(self.s.pad[axis])
    }
}

/// Copies the image to dense f32 NHWC, with zero padding around it when the plan says so.
unsafe fn copy_image(ws: &Workspace, conv: &Conv<'_>, plan: &Plan, copy: SyncPtr<f32>) {
    let s = conv.shape;
    let isa = ws.isa();
    let (top, left) = if plan.padded { (s.pad[0], s.pad[1]) } else { (0, 0) };
    let from = conv.input_strides;
    let size = conv.input_elem.size() as isize;
    let input = SyncPtr(conv.input.cast_mut());
    let (elem, c) = (conv.input_elem, s.c);
    let grain = (16384 / (plan.width * c).max(1)).max(1);
    ws.parallel_ranges(s.n * plan.height, grain, &|range, _, _| {
        for row in range {
            let (n, y) = (row / plan.height, row % plan.height);
            // SAFETY: each task has its own rows of the copy; reads are inside the input by the caller's contract.
            unsafe {
                let to = copy.get().add(row * plan.width * c);
                let Some(y) = y.checked_sub(top).filter(|y| *y < s.h) else {
                    std::ptr::write_bytes(to, 0, plan.width * c);
                    continue;
                };
                std::ptr::write_bytes(to, 0, left * c);
                let right = left + s.w;
                std::ptr::write_bytes(to.add(right * c), 0, (plan.width - right) * c);
                let to = to.add(left * c);
                let line = input.get().offset((n as isize * from.n + y as isize * from.h) * size);
                if from.c == 1 && from.w == c as isize {
                    convert::load_ptr(isa, to, line, elem, s.w * c);
                } else if elem == Elem::F32 {
                    convert::interleave(to, line.cast(), from, s.w, c);
                } else {
                    for x in 0..s.w {
                        let pixel = line.offset(x as isize * from.w * size);
                        gemm::gather(isa, to.add(x * c), pixel, elem, from.c, c);
                    }
                }
            }
        }
    });
}
