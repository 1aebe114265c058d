//! Convolutions of random shapes against the definition.

use half::f16;

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::Workspace;
use crate::cpu::kernels::conv::*;
use crate::cpu::kernels::conv_transposed::{PackedTransposed, conv_transpose2d};
use crate::cpu::kernels::gemm::{Activation, Batch, Builtin, Elem, Epilogue, Residual, Tile, TileAt};

fn at(s: ImageStrides, n: usize, y: usize, x: usize, c: usize) -> usize {
    (n as isize * s.n + y as isize * s.h + x as isize * s.w + c as isize * s.c) as usize
}

/// The definition of Conv, in f64: before any epilogue.
fn reference(s: &ConvShape, x: &[f32], xs: ImageStrides, w: &[f32], n: usize, oy: usize, ox: usize, o: usize) -> f64 {
    let (cg, og) = (s.c / s.groups, s.o / s.groups);
    let mut sum = 0.0;
    for c in 0..cg {
        for ky in 0..s.kh {
            for kx in 0..s.kw {
                let y = (oy * s.stride[0] + ky * s.dilation[0])
                    .checked_sub(s.pad[0])
                    .filter(|y| *y < s.h);
                let xx = (ox * s.stride[1] + kx * s.dilation[1])
                    .checked_sub(s.pad[1])
                    .filter(|x| *x < s.w);
                if let (Some(y), Some(xx)) = (y, xx) {
                    let value = x[at(xs, n, y, xx, o / og * cg + c)];
                    sum += f64::from(value) * f64::from(w[((o * cg + c) * s.kh + ky) * s.kw + kx]);
                }
            }
        }
    }
    sum
}

struct Halve;

impl Epilogue for Halve {
    fn apply(&self, at: &TileAt, tile: &mut Tile<'_>) {
        for i in 0..tile.rows() {
            let row = at.rows.start + i;
            for (x, c) in tile.row(i).iter_mut().zip(at.cols.clone()) {
                *x = *x * 0.5 + (at.batch * 1000 + row * 10 + c) as f32 * 0.01;
            }
        }
    }
}

fn check(ws: &mut Workspace, rng: &mut Rng, s: ConvShape, in_nchw: bool, out_nchw: bool, way: usize) {
    check_by(ws, rng, s, in_nchw, out_nchw, way, false)
}

fn check_by(
    ws: &mut Workspace,
    rng: &mut Rng,
    s: ConvShape,
    in_nchw: bool,
    out_nchw: bool,
    way: usize,
    winograd: bool,
) {
    let x = rng.floats(s.n * s.h * s.w * s.c);
    let w = rng.floats(s.o * (s.c / s.groups) * s.kh * s.kw);
    let bias = rng.floats(s.o);
    let pixels = s.out_h * s.out_w;
    let residual = rng.floats(s.n * pixels * s.o);
    let strides = |nchw: bool, h, w, c| {
        if nchw {
            ImageStrides::nchw(h, w, c)
        } else {
            ImageStrides::nhwc(h, w, c)
        }
    };
    let (xs, ys) = (
        strides(in_nchw, s.h, s.w, s.c),
        strides(out_nchw, s.out_h, s.out_w, s.o),
    );
    let half_in = way & 1 > 0;
    let x16: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let x: Vec<f32> = if half_in {
        x16.iter().map(|v| v.to_f32()).collect()
    } else {
        x
    };
    let packed = if winograd {
        PackedConv::winograd(ws.isa(), &w, s.o, s.c)
    } else {
        PackedConv::new(ws.isa(), &w, s.o, s.c / s.groups, [s.kh, s.kw], s.groups)
    }
    .expect("memory");
    let half_out = way & 8 > 0;
    // Channels of all groups that have one place in these lie side by side.
    let shuffled = way & 16 > 0 && !out_nchw;
    let og = s.o / s.groups;
    let mut y = vec![f32::NAN; s.n * pixels * s.o];
    let mut y16 = vec![f16::NAN; s.n * pixels * s.o];
    let (with_residual, with_epilogue) = (way & 2 > 0, way & 4 > 0);
    let conv = Conv {
        shape: s,
        input: if half_in {
            x16.as_ptr().cast()
        } else {
            x.as_ptr().cast()
        },
        input_elem: if half_in { Elem::F16 } else { Elem::F32 },
        input_strides: xs,
        weights: &packed,
        output: if half_out {
            y16.as_mut_ptr().cast()
        } else {
            y.as_mut_ptr().cast()
        },
        output_elem: if half_out { Elem::F16 } else { Elem::F32 },
        output_strides: ImageStrides {
            c: if shuffled { s.groups as isize } else { ys.c },
            ..ys
        },
        output_group: shuffled.then_some(1),
        builtin: Builtin {
            scale: 1.0,
            bias: Some(&bias),
            residual: with_residual.then_some(Residual {
                ptr: residual.as_ptr().cast(),
                elem: Elem::F32,
                row_stride: s.o,
                batch: Batch::Stride((pixels * s.o) as isize),
            }),
            activation: Activation::Relu,
        },
        epilogue: if with_epilogue { Some(&Halve) } else { None },
    };
    // SAFETY: all operands are vectors of the shape's sizes.
    unsafe { conv2d(ws, &conv) };
    let k = s.kh * s.kw * s.c / s.groups;
    for n in 0..s.n {
        for p in 0..pixels {
            for o in 0..s.o {
                let (oy, ox) = (p / s.out_w, p % s.out_w);
                let mut want = reference(&s, &x, xs, &w, n, oy, ox, o) + f64::from(bias[o]);
                if with_residual {
                    want += f64::from(residual[(n * pixels + p) * s.o + o]);
                }
                want = want.max(0.0);
                if with_epilogue {
                    want = want * 0.5 + (n * 1000 + p * 10 + o) as f64 * 0.01;
                }
                let place = if shuffled { o % og * s.groups + o / og } else { o };
                let i = at(ys, n, oy, ox, place);
                let (got, rtol) = if half_out {
                    (y16[i].to_f32(), 1e-3)
                } else {
                    (y[i], 1e-6)
                };
                let what = (ws.isa(), &s, in_nchw, out_nchw, way, n, oy, ox, o);
                assert_close(
                    got,
                    want,
                    rtol,
                    (if winograd { 5e-6 } else { 1e-6 }) * (k + 4) as f64,
                    &what,
                );
            }
        }
    }
}

#[test]
fn random_shapes() {
    let mut rng = Rng(10);
    let mut spaces = workspaces();
    for round in 0..160 {
        let groups = rng.pick(&[1, 1, 1, 2, 3]);
        let (cg, og) = (rng.pick(&[1, 2, 3, 5, 8, 16, 17]), rng.pick(&[1, 3, 8, 16, 31, 33]));
        let kernel = [rng.pick(&[1, 1, 2, 3, 5]), rng.pick(&[1, 1, 3, 4])];
        let s = ConvShape::new(
            [1 + rng.below(2), 5 + rng.below(8), 4 + rng.below(9), cg * groups],
            og * groups,
            kernel,
            [1 + rng.below(3), 1 + rng.below(2)],
            [rng.below(3), rng.below(2), rng.below(3), rng.below(4)],
            [1 + rng.below(2), 1 + rng.below(2)],
            groups,
        );
        let which = round % spaces.len();
        let way = rng.below(16);
        check(&mut spaces[which], &mut rng, s, round % 3 == 0, round % 5 == 0, way);
    }
}

#[test]
fn depthwise_shapes() {
    let mut rng = Rng(11);
    for mut ws in workspaces() {
        for c in [2, 3, 15, 16, 17, 40] {
            let s = ConvShape::new(
                // Rows of more pixels than a block has, and of fewer.
                [2, 7, rng.pick(&[6, 19]), c],
                c,
                [3, rng.pick(&[1, 3])],
                [1 + rng.below(2), 1 + rng.below(2)],
                [1, rng.below(2), 1, 1],
                [1, 1 + rng.below(2)],
                c,
            );
            let way = rng.below(16);
            check(&mut ws, &mut rng, s, way & 1 > 0, way & 2 > 0, way);
        }
    }
}

/// Filters and steps that blocks of a row share columns for: rows shorter than a block, of whole blocks and of more,
/// windows that lie partly or wholly in padding, and images of few rows, whose channels are shared among threads.
#[test]
fn depthwise_rows() {
    let mut rng = Rng(31);
    for mut ws in workspaces() {
        for kw in [3, 5, 7] {
            for stride in [1, 2] {
                for width in [1, 2, 6, 7, 14, 19] {
                    let s = ConvShape::new(
                        [rng.pick(&[1, 2]), rng.pick(&[1, 3, 7]), width, 0],
                        0,
                        [rng.pick(&[1, 3, 5]), kw],
                        [1 + rng.below(2), stride],
                        [rng.below(4), kw - 1 - rng.below(2), 4, kw / 2 + rng.below(4)],
                        [1 + rng.below(2), 1],
                        1,
                    );
                    let channels = rng.pick(&[1, 4, 8, 16, 23, 40, 130]);
                    let s = ConvShape {
                        c: channels,
                        o: channels,
                        groups: channels,
                        ..s
                    };
                    let way = rng.below(16);
                    check(&mut ws, &mut rng, s, way & 1 > 0, way & 2 > 0, way);
                }
            }
        }
    }
}

/// A small convolution in groups of so many channels and filters, of random window, strides, pads and dilation.
fn check_groups(ws: &mut Workspace, rng: &mut Rng, [channels, filters]: [usize; 2], groups: usize) {
    let s = ConvShape::new(
        [2, 5, rng.pick(&[3, 17]), channels * groups],
        filters * groups,
        [rng.pick(&[1, 3]), rng.pick(&[2, 3])],
        [1 + rng.below(2), 1 + rng.below(2)],
        [1, rng.below(2), 1, 1],
        [1, 1 + rng.below(2)],
        groups,
    );
    let way = rng.below(32);
    check(ws, rng, s, way & 1 > 0, groups == 3, way);
}

#[test]
fn groups_of_few_channels() {
    let mut rng = Rng(21);
    for mut ws in workspaces() {
        for group in [2, 4, 8] {
            for groups in [2, 3, 5, 16] {
                check_groups(&mut ws, &mut rng, [group, group], groups);
            }
        }
    }
}

/// More filters than channels a group: depthwise convolutions with a multiplier, and groups of two and three channels.
/// Some of these are picked out of a vector, others are products of each group.
#[test]
fn groups_of_more_filters_than_channels() {
    let mut rng = Rng(22);
    for mut ws in workspaces() {
        for (channels, filters) in [
            (1, 2),
            (1, 3),
            (1, 4),
            (1, 6),
            (1, 8),
            (1, 16),
            (1, 20),
            (2, 4),
            (2, 6),
            (3, 6),
            (3, 8),
            (5, 7),
        ] {
            for groups in [2, 3, 9, 20] {
                check_groups(&mut ws, &mut rng, [channels, filters], groups);
            }
        }
    }
}

#[test]
fn first_layer_and_degenerate_shapes() {
    let mut rng = Rng(12);
    for mut ws in workspaces() {
        for way in [0, 7, 8] {
            let s = ConvShape::new([1, 30, 29, 3], 20, [7, 7], [2, 2], [3; 4], [1, 1], 1);
            check(&mut ws, &mut rng, s, true, false, way);
            let s = ConvShape::new([2, 1, 9, 33], 7, [1, 5], [1, 2], [0, 2, 0, 2], [1, 1], 1);
            check(&mut ws, &mut rng, s, false, true, way);
        }
        // The kernel does not fit: no output, nothing to do.
        let s = ConvShape::new([1, 2, 2, 4], 4, [3, 3], [1, 1], [0; 4], [1, 1], 1);
        assert_eq!((s.out_h, s.out_w), (0, 0));
        check(&mut ws, &mut rng, s, false, false, 0);
    }
}

#[test]
fn transposed_against_scatter() {
    let mut rng = Rng(13);
    for mut ws in workspaces() {
        for round in 0..40 {
            let groups = 1 + round % 3;
            let (cg, og) = match round % 5 {
                0 => (1, 1),
                _ => (1 + rng.below(20), 1 + rng.below(20)),
            };
            let (kh, kw) = (1 + rng.below(5), 1 + rng.below(5));
            let stride = [1 + rng.below(4), 1 + rng.below(4)];
            let s = ConvShape::transposed(
                [1 + round % 2, 1 + rng.below(5), 1 + rng.below(5), cg * groups],
                og * groups,
                [kh, kw],
                stride,
                [rng.below(kh + 2), rng.below(kw + 2), rng.below(2), 0],
                [1 + rng.below(3), 1 + rng.below(2)],
                [rng.below(stride[0]), rng.below(stride[1])],
                groups,
            );
            let x = rng.floats(s.n * s.h * s.w * s.c);
            let w = rng.floats(s.c * og * kh * kw);
            let packed = PackedTransposed::new(ws.isa(), &w, &s).expect("memory");
            let mut y = vec![f32::NAN; s.n * s.out_h * s.out_w * s.o];
            let (xs, ys) = (
                ImageStrides::nhwc(s.h, s.w, s.c),
                ImageStrides::nchw(s.out_h, s.out_w, s.o),
            );
            let conv = Conv {
                shape: s,
                input: x.as_ptr().cast(),
                input_elem: Elem::F32,
                input_strides: xs,
                weights: packed.any(),
                output: y.as_mut_ptr().cast(),
                output_elem: Elem::F32,
                output_strides: ys,
                output_group: None,
                builtin: Builtin::default(),
                epilogue: None,
            };
            // SAFETY: all operands are vectors of the shape's sizes.
            unsafe { conv_transpose2d(&mut ws, &conv, &packed) };
            let mut want = vec![0.0f64; y.len()];
            for n in 0..s.n {
                for iy in 0..s.h {
                    for ix in 0..s.w {
                        for c in 0..s.c {
                            for o in 0..og {
                                for ky in 0..kh {
                                    for kx in 0..kw {
                                        let oy = (iy * s.stride[0] + ky * s.dilation[0]).checked_sub(s.pad[0]);
                                        let ox = (ix * s.stride[1] + kx * s.dilation[1]).checked_sub(s.pad[1]);
                                        let (Some(oy), Some(ox)) = (oy, ox) else { continue };
                                        if oy < s.out_h && ox < s.out_w {
                                            let product = f64::from(x[at(xs, n, iy, ix, c)])
                                                * f64::from(w[((c * og + o) * kh + ky) * kw + kx]);
                                            want[at(ys, n, oy, ox, c / cg * og + o)] += product;
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            for (i, want) in want.iter().enumerate() {
                assert_close(
                    y[i],
                    *want,
                    1e-6,
                    2e-5 * (cg * kh * kw) as f64 / 20.0 + 1e-6,
                    &(ws.isa(), s, i),
                );
            }
        }
    }
}

#[test]
fn winograd_against_the_definition() {
    let mut rng = Rng(14);
    for mut ws in workspaces() {
        for (round, (h, w, c, o)) in [
            (8, 8, 16, 32),
            (1, 1, 1, 1),
            (7, 13, 3, 17),
            (14, 14, 33, 40),
            (5, 30, 8, 65),
            (19, 6, 20, 7),
        ]
        .into_iter()
        .enumerate()
        {
            for way in [0, 2, 4, 7, 8, 15] {
                let pad = [1, 1 + way % 2, 1, round % 2];
                let s = ConvShape::new([1 + way % 2, h + 1, w + 1, c], o, [3, 3], [1, 1], pad, [1, 1], 1);
                check_by(&mut ws, &mut rng, s, way & 1 > 0, way & 2 > 0, way, true);
            }
        }
    }
}

/// Output into a part of a larger image (a concatenation's channels, a pad's inside), which no kernel may overstep.
#[test]
fn output_into_a_view() {
    let mut rng = Rng(15);
    for mut ws in workspaces() {
        for (groups, kernel, winograd) in [
            (1, 3, false),
            (1, 1, false),
            (1, 3, true),
            (20, 3, false),
            (2, 3, false),
        ] {
            let (c, o) = (20, 20);
            let s = ConvShape::new([2, 9, 11, c], o, [kernel; 2], [1, 1], [kernel / 2; 4], [1, 1], groups);
            let x = rng.floats(2 * 9 * 11 * c);
            let w = rng.floats(o * c / groups * kernel * kernel);
            let packed = if winograd {
                PackedConv::winograd(ws.isa(), &w, o, c)
            } else {
                PackedConv::new(ws.isa(), &w, o, c / groups, [kernel; 2], groups)
            }
            .expect("memory");
            // Channels 7..27 of 33; then also rows and columns 1.. of an image padded by one.
            for border in [0, 1] {
                let (high, wide) = (9 + 2 * border, 11 + 2 * border);
                let ys = ImageStrides::nhwc(high, wide, 33);
                let first = at(ys, 0, border, border, 7);
                let mut y = vec![f32::NAN; 2 * high * wide * 33];
                let conv = Conv {
                    shape: s,
                    input: x.as_ptr().cast(),
                    input_elem: Elem::F32,
                    input_strides: ImageStrides::nhwc(9, 11, c),
                    weights: &packed,
                    // SAFETY: inside the vector.
                    output: unsafe { y.as_mut_ptr().add(first) }.cast(),
                    output_elem: Elem::F32,
                    output_strides: ys,
                    output_group: None,
                    builtin: Builtin::default(),
                    epilogue: None,
                };
                let (per_thread, shared) = conv_scratch(ws.isa(), ws.threads(), &conv);
                ws.reserve(per_thread, shared);
                let before = ws.scratch_bytes();
                // SAFETY: the view is inside the vector.
                unsafe { conv2d(&mut ws, &conv) };
                assert_eq!(ws.scratch_bytes(), before);
                for (i, got) in y.iter().enumerate() {
                    let (n, row, col, ch) = (i / (high * wide * 33), i / (wide * 33) % high, i / 33 % wide, i % 33);
                    let inside = (border..border + 9).contains(&row) && (border..border + 11).contains(&col);
                    if inside && (7..27).contains(&ch) {
                        let (oy, ox) = (row - border, col - border);
                        let want = reference(&s, &x, conv.input_strides, &w, n, oy, ox, ch - 7);
                        assert_close(
                            *got,
                            want,
                            1e-6,
                            2e-4,
                            &(ws.isa(), groups, kernel, winograd, border, n, oy, ox, ch),
                        );
                    } else {
                        assert!(
                            got.is_nan(),
                            "written outside of the view: {:?}",
                            (groups, kernel, winograd, border, i)
                        );
                    }
                }
            }
        }
    }
}
