//! A residual in the result's own memory: it is read before anything is stored over it, however long the sums are.

use super::{Rng, workspaces};
use crate::cpu::kernels::conv::*;
use crate::cpu::kernels::gemm::*;

/// What a product by `b` gives with what is added elsewhere, and in the result's place.
fn both<'b>(
    ws: &mut super::Workspace,
    [m, n, k]: [usize; 3],
    a: &[f32],
    b: Rhs<'_>,
    added: &[f32],
    builtin: impl Fn(*const f32) -> Builtin<'b>,
) -> [Vec<f32>; 2] {
    [false, true].map(|in_place| {
        let mut c = if in_place {
            added.to_vec()
        } else {
            vec![f32::NAN; m * n]
        };
        let from = if in_place { c.as_ptr() } else { added.as_ptr() };
        let product = Gemm {
            batch: 1,
            m,
            n,
            k,
            a: MatRef::dense(a, k),
            b,
            c: MatMut {
                ptr: c.as_mut_ptr().cast(),
                elem: Elem::F32,
                row_stride: n as isize,
                col_stride: 1,
                batch: Batch::Stride(0),
            },
            builtin: builtin(from),
            epilogue: None,
        };
        // SAFETY: the operands are vectors of these sizes.
        unsafe { gemm(ws, &product) };
        c
    })
}

/// Sums of `k` products of numbers below 1 may be added up in another order.
fn assert_same([elsewhere, in_place]: &[Vec<f32>; 2], k: usize, case: &dyn std::fmt::Debug) {
    for (i, (want, got)) in elsewhere.iter().zip(in_place).enumerate() {
        let bound = 2e-6 * (k as f32 + 4.0);
        assert!(
            (want - got).abs() <= bound,
            "{case:?}: element {i} is {got}, not {want}"
        );
    }
}

#[test]
fn of_products() {
    let mut rng = Rng(11);
    for mut ws in workspaces() {
        // A few rows, more, and rows so long that a product is added up in parts.
        for (m, n, k) in [
            (1, 70, 900),
            (4, 40, 300),
            (9, 100, 1030),
            (40, 70, 2100),
            (12, 130, 32768),
        ] {
            let (a, b, residual) = (rng.floats(m * k), rng.floats(k * n), rng.floats(m * n));
            let bias: Vec<f32> = (0..n).map(|j| j as f32 / 8.0).collect();
            let builtin = |from: *const f32| Builtin {
                scale: 0.5,
                bias: Some(&bias),
                residual: Some(Residual {
                    ptr: from.cast(),
                    elem: Elem::F32,
                    row_stride: n,
                    batch: Batch::Stride(0),
                }),
                activation: Activation::Clip(-1e4, 1e4),
            };
            let dense = MatRef::dense(&b, n);
            let case = (ws.isa(), m, n, k);
            assert_same(
                &both(&mut ws, [m, n, k], &a, Rhs::Strided(dense), &residual, builtin),
                k,
                &case,
            );
            // SAFETY: the slice holds the matrix.
            let panels = unsafe { PackedB::new(ws.isa(), 1, k, n, &dense) }.expect("memory");
            assert_same(
                &both(&mut ws, [m, n, k], &a, Rhs::Packed(&panels), &residual, builtin),
                k,
                &case,
            );
            for bits in [4, 8] {
                let bytes: Vec<u8> = (0..n * k * bits / 8).map(|_| rng.below(256) as u8).collect();
                let integers = Integers {
                    bytes: &bytes,
                    bits: bits as u32,
                    signed: true,
                    float: None,
                    base: 0,
                    row: 1,
                    col: k as i64,
                };
                let one = 1.0 / (1 << (bits - 1)) as f32;
                let packed = QuantisedB::new(None, ws.isa(), [k, n, 32], &integers, |_, _| (one, 0.0)).expect("memory");
                let results = both(&mut ws, [m, n, k], &a, Rhs::Quantised(&packed), &residual, builtin);
                assert_same(&results, k, &(case, bits));
            }
        }
    }
}

/// What is added to a single row may come as a bias, and be where the result is.
#[test]
fn of_a_row_that_is_a_bias() {
    let mut rng = Rng(13);
    for mut ws in workspaces() {
        for (n, k) in [(70, 64), (40, 320), (130, 4096), (600, 32768)] {
            let (a, residual) = (rng.floats(k), rng.floats(n));
            let bytes: Vec<u8> = (0..n * k).map(|_| rng.below(256) as u8).collect();
            let integers = Integers {
                bytes: &bytes,
                bits: 8,
                signed: true,
                float: None,
                base: 0,
                row: 1,
                col: k as i64,
            };
            let quantised =
                QuantisedB::new(None, ws.isa(), [k, n, 32], &integers, |_, _| (1.0 / 128.0, 0.0)).expect("memory");
            let b = rng.floats(k * n);
            // SAFETY: the slice holds the matrix.
            let panels = unsafe { PackedB::new(ws.isa(), 1, k, n, &MatRef::dense(&b, n)) }.expect("memory");
            for b in [Rhs::Quantised(&quantised), Rhs::Packed(&panels)] {
                let results = both(&mut ws, [1, n, k], &a, b, &residual, |from| Builtin {
                    // SAFETY: there are `n` floats; the product reads a part of the bias before it stores that part.
                    bias: Some(unsafe { std::slice::from_raw_parts(from, n) }),
                    ..Builtin::default()
                });
                assert_same(&results, k, &(ws.isa(), n, k));
            }
        }
    }
}

/// A convolution of dense images with channels last, and nothing behind it.
fn plain<'a>(shape: ConvShape, x: &[f32], weights: &'a PackedConv, y: &mut [f32]) -> Conv<'a> {
    Conv {
        shape,
        input: x.as_ptr().cast(),
        input_elem: Elem::F32,
        input_strides: ImageStrides::nhwc(shape.h, shape.w, shape.c),
        weights,
        output: y.as_mut_ptr().cast(),
        output_elem: Elem::F32,
        output_strides: ImageStrides::nhwc(shape.out_h, shape.out_w, shape.o),
        output_group: None,
        builtin: Builtin::default(),
        epilogue: None,
    }
}

#[test]
fn of_convolutions() {
    let mut rng = Rng(12);
    for mut ws in workspaces() {
        for (h, w, c, o, kernel) in [(3, 4, 24576, 100, 1), (9, 7, 20, 33, 3), (8, 8, 16, 16, 3)] {
            let pad = kernel / 2;
            let shape = ConvShape {
                n: 2,
                h,
                w,
                c,
                o,
                kh: kernel,
                kw: kernel,
                stride: [1, 1],
                pad: [pad; 4],
                dilation: [1, 1],
                groups: 1,
                out_h: h,
                out_w: w,
            };
            let (x, filters) = (rng.floats(2 * h * w * c), rng.floats(o * c * kernel * kernel));
            let residual = rng.floats(2 * h * w * o);
            let mut packs = vec![PackedConv::new(ws.isa(), &filters, o, c, [kernel, kernel], 1).expect("memory")];
            if kernel == 3 {
                packs.push(PackedConv::winograd(ws.isa(), &filters, o, c).expect("memory"));
            }
            for weights in &packs {
                let results = [false, true].map(|in_place| {
                    let mut y = if in_place {
                        residual.clone()
                    } else {
                        vec![f32::NAN; residual.len()]
                    };
                    let from = if in_place { y.as_ptr() } else { residual.as_ptr() };
                    let conv = Conv {
                        builtin: Builtin {
                            residual: Some(Residual {
                                ptr: from.cast(),
                                elem: Elem::F32,
                                row_stride: o,
                                batch: Batch::Stride((h * w * o) as isize),
                            }),
                            ..Builtin::default()
                        },
                        ..plain(shape, &x, weights, &mut y)
                    };
                    // SAFETY: the operands are vectors of these sizes.
                    unsafe { conv2d(&mut ws, &conv) };
                    y
                });
                assert_same(&results, c * kernel * kernel, &(ws.isa(), h, w, c, o, kernel));
            }
        }
    }
}

/// Multiplies each result by what it replaces.
struct Gate {
    before: usize,
    image: usize,
    row: usize,
}

impl Epilogue for Gate {
    fn apply(&self, at: &TileAt, tile: &mut Tile<'_>) {
        for i in 0..tile.rows() {
            let first = at.batch * self.image + (at.rows.start + i) * self.row + at.cols.start;
            for (j, value) in tile.row(i).iter_mut().enumerate() {
                // SAFETY: an element of the results, which this tile alone writes.
                *value *= unsafe { *(self.before as *const f32).add(first + j) };
            }
        }
    }

    fn reads_replaced(&self) -> bool {
        true
    }
}

/// Products of one block and of several of the depth, convolutions by products, by Winograd's transform, and depthwise
/// ones of both kinds.
#[test]
fn of_what_an_epilogue_reads() {
    let mut rng = Rng(13);
    for mut ws in workspaces() {
        for (c, o, kernel, groups) in [(3000, 100, 1, 1), (20, 33, 3, 1), (40, 40, 3, 40), (20, 20, 2, 20)] {
            let (h, w) = (9, 8);
            let shape = ConvShape::new(
                [2, h, w, c],
                o,
                [kernel; 2],
                [1, 1],
                [0, 0, kernel - 1, kernel - 1],
                [1, 1],
                groups,
            );
            let (x, filters) = (rng.floats(2 * h * w * c), rng.floats(o * c / groups * kernel * kernel));
            let before = rng.floats(2 * h * w * o);
            let packed = PackedConv::new(ws.isa(), &filters, o, c / groups, [kernel, kernel], groups);
            let mut packs = vec![packed.expect("memory")];
            if kernel == 3 && groups == 1 {
                packs.push(PackedConv::winograd(ws.isa(), &filters, o, c).expect("memory"));
            }
            for weights in &packs {
                let run = |ws: &mut super::Workspace, y: &mut [f32], gated: bool| {
                    let gate = Gate {
                        before: y.as_ptr() as usize,
                        image: h * w * o,
                        row: o,
                    };
                    let conv = Conv {
                        epilogue: gated.then_some(&gate as &dyn Epilogue),
                        ..plain(shape, &x, weights, y)
                    };
                    // SAFETY: the operands are vectors of these sizes.
                    unsafe { conv2d(ws, &conv) };
                };
                let (mut alone, mut gated) = (vec![f32::NAN; before.len()], before.clone());
                run(&mut ws, &mut alone, false);
                run(&mut ws, &mut gated, true);
                let want = alone.iter().zip(&before).map(|(a, b)| a * b).collect();
                assert_same(&[want, gated], c / groups * kernel * kernel, &(ws.isa(), c, o, kernel));
            }
        }
    }
}
