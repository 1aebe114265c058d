//! GEMM: sizes around every tile edge, strides, batches, storage types, epilogues.

use half::{bf16, f16};

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::Workspace;
use crate::cpu::kernels::gemm::*;

/// Accumulating K products of values below 1 in f32 errs by less than this.
fn tolerance(k: usize) -> f64 {
    1e-6 * (k as f64 + 4.0)
}

fn c_of(c: &mut [f32], cols: usize, batch: isize) -> MatMut<'static> {
    MatMut {
        ptr: c.as_mut_ptr().cast(),
        elem: Elem::F32,
        row_stride: cols as isize,
        col_stride: 1,
        batch: Batch::Stride(batch),
    }
}

fn check(ws: &mut Workspace, rng: &mut Rng, m: usize, n: usize, k: usize, at: bool, bt: bool, packed: bool) {
    let (a, b) = (rng.floats(m * k), rng.floats(k * n));
    let mut c = vec![f32::NAN; m * n + 7];
    let a_mat = if at {
        MatRef::dense(&a, m).t()
    } else {
        MatRef::dense(&a, k)
    };
    let b_mat = if bt {
        MatRef::dense(&b, k).t()
    } else {
        MatRef::dense(&b, n)
    };
    // SAFETY: the slice holds the matrix.
    let panels = unsafe { PackedB::new(ws.isa(), 1, k, n, &b_mat) }.expect("memory");
    let g = Gemm {
        batch: 1,
        m,
        n,
        k,
        a: a_mat,
        b: if packed {
            Rhs::Packed(&panels)
        } else {
            Rhs::Strided(b_mat)
        },
        c: c_of(&mut c, n, 0),
        builtin: Builtin::default(),
        epilogue: None,
    };
    // SAFETY: all operands are slices of the sizes given.
    unsafe { gemm(ws, &g) };
    for i in 0..m {
        for j in 0..n {
            let want: f64 = (0..k)
                .map(|x| {
                    let l = if at { a[x * m + i] } else { a[i * k + x] };
                    let r = if bt { b[j * k + x] } else { b[x * n + j] };
                    f64::from(l) * f64::from(r)
                })
                .sum();
            assert_close(
                c[i * n + j],
                want,
                0.0,
                tolerance(k),
                &(ws.isa(), m, n, k, at, bt, packed, i, j),
            );
        }
    }
    assert!(c[m * n..].iter().all(|x| x.is_nan()), "nothing past C is written");
}

#[test]
fn sizes_around_the_tiles() {
    let mut rng = Rng(1);
    for mut ws in workspaces() {
        for m in [1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 28, 29] {
            for n in [1, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65] {
                let k = rng.pick(&[0, 1, 2, 3, 5, 8, 17]);
                let way = rng.below(8);
                check(&mut ws, &mut rng, m, n, k, way & 1 > 0, way & 2 > 0, way & 4 > 0);
            }
        }
        for (m, n, k) in [
            (0, 3, 4),
            (3, 0, 4),
            (130, 70, 1100),
            (9, 300, 64),
            (257, 33, 40),
            (70, 200, 2100),
        ] {
            for way in 0..8 {
                check(&mut ws, &mut rng, m, n, k, way & 1 > 0, way & 2 > 0, way & 4 > 0);
            }
        }
    }
}

#[test]
fn batches_stride_broadcast_and_table() {
    let mut rng = Rng(2);
    let (m, n, k, batch) = (5, 37, 9, 6);
    let a = rng.floats(2 * m * k);
    let b = rng.floats(3 * k * n);
    // A is [2, 1], B is [1, 3]: batch entry i is (i / 3, i % 3).
    let a_table: Vec<isize> = (0..batch).map(|i| (i / 3 * m * k) as isize).collect();
    let b_table: Vec<isize> = (0..batch).map(|i| (i % 3 * k * n) as isize).collect();
    for mut ws in workspaces() {
        for transposed in [false, true] {
            let mut c = vec![0.0; batch * m * n];
            let mut a_mat = MatRef {
                batch: Batch::Table(&a_table),
                ..MatRef::dense(&a, k)
            };
            if transposed {
                a_mat.row_stride = 1;
                a_mat.col_stride = m as isize;
            }
            let g = Gemm {
                batch,
                m,
                n,
                k,
                a: a_mat,
                b: Rhs::Strided(MatRef {
                    batch: Batch::Table(&b_table),
                    ..MatRef::dense(&b, n)
                }),
                c: c_of(&mut c, n, (m * n) as isize),
                builtin: Builtin::default(),
                epilogue: None,
            };
            // SAFETY: the tables stay inside the slices.
            unsafe { gemm(&mut ws, &g) };
            for e in 0..batch {
                for i in 0..m {
                    for j in 0..n {
                        let want: f64 = (0..k)
                            .map(|x| {
                                let at = if transposed { x * m + i } else { i * k + x };
                                f64::from(a[e / 3 * m * k + at]) * f64::from(b[e % 3 * k * n + x * n + j])
                            })
                            .sum();
                        assert_close(c[(e * m + i) * n + j], want, 0.0, tolerance(k), &(ws.isa(), e, i, j));
                    }
                }
            }
            // B packed per group of three.
            // SAFETY: B holds three matrices.
            let packed = unsafe {
                let src = MatRef {
                    batch: Batch::Stride((k * n) as isize),
                    ..MatRef::dense(&b, n)
                };
                PackedB::new(ws.isa(), 3, k, n, &src).expect("memory")
            };
            let mut again = vec![0.0; batch * m * n];
            let g = Gemm {
                b: Rhs::Packed(&packed),
                c: c_of(&mut again, n, (m * n) as isize),
                ..g
            };
            // SAFETY: as above.
            unsafe { gemm(&mut ws, &g) };
            for (x, y) in again.iter().zip(&c) {
                assert_close(*x, f64::from(*y), 0.0, tolerance(k), &"packed batch");
            }
        }
    }
}

struct AddIndexTimes(f32);

impl Epilogue for AddIndexTimes {
    fn apply(&self, at: &TileAt, tile: &mut Tile<'_>) {
        assert_eq!((tile.rows(), tile.cols()), (at.rows.len(), at.cols.len()));
        for (i, row) in at.rows.clone().enumerate() {
            let cols = at.cols.clone();
            for (x, col) in tile.row(i).iter_mut().zip(cols) {
                *x = *x * 2.0 + self.0 * (at.batch * 10000 + row * 100 + col) as f32;
            }
        }
    }
}

#[test]
fn epilogues_storage_types_and_strided_output() {
    let mut rng = Rng(3);
    for mut ws in workspaces() {
        for (m, n, k) in [(1, 5, 3), (31, 45, 20), (64, 96, 33), (3, 70, 1), (40, 40, 2100)] {
            let batch = 2;
            let (a, b) = (rng.floats(batch * m * k), rng.floats(k * n));
            let (bias, residual) = (rng.floats(n), rng.floats(batch * m * n));
            let half_a: Vec<f16> = a.iter().map(|x| f16::from_f32(*x)).collect();
            let bf_b: Vec<bf16> = b.iter().map(|x| bf16::from_f32(*x)).collect();
            for way in 0..12 {
                let (half_in, layout, act) = (way % 2 == 1, way / 2 % 3, way / 6);
                let a_mat = MatRef {
                    batch: Batch::Stride((m * k) as isize),
                    ..MatRef::dense(&a, k)
                };
                let b_mat = MatRef::dense(&b, n);
                let (a_mat, b_mat) = if half_in {
                    (
                        MatRef {
                            ptr: half_a.as_ptr().cast(),
                            elem: Elem::F16,
                            ..a_mat
                        },
                        MatRef {
                            ptr: bf_b.as_ptr().cast(),
                            elem: Elem::BF16,
                            ..b_mat
                        },
                    )
                } else {
                    (a_mat, b_mat)
                };
                let half_residual: Vec<bf16> = residual.iter().map(|x| bf16::from_f32(*x)).collect();
                let added: Vec<f64> = match half_in {
                    true => half_residual.iter().map(|x| x.to_f64()).collect(),
                    false => residual.iter().map(|x| f64::from(*x)).collect(),
                };
                let mut c = vec![0.0f32; batch * m * n];
                let mut c16 = vec![f16::ZERO; batch * m * n];
                let dense = c_of(&mut c, n, (m * n) as isize);
                let c_mat = match layout {
                    0 => dense,
                    1 => MatMut {
                        row_stride: 1,
                        col_stride: m as isize,
                        ..dense
                    },
                    _ => MatMut {
                        ptr: c16.as_mut_ptr().cast(),
                        elem: Elem::F16,
                        ..dense
                    },
                };
                let activation = if act == 0 {
                    Activation::Relu
                } else {
                    Activation::Clip(-0.5, 0.75)
                };
                let g = Gemm {
                    batch,
                    m,
                    n,
                    k,
                    a: a_mat,
                    b: Rhs::Strided(b_mat),
                    c: c_mat,
                    builtin: Builtin {
                        scale: 0.5,
                        bias: Some(&bias),
                        residual: Some(Residual {
                            ptr: if half_in {
                                half_residual.as_ptr().cast()
                            } else {
                                residual.as_ptr().cast()
                            },
                            elem: if half_in { Elem::BF16 } else { Elem::F32 },
                            row_stride: n,
                            batch: Batch::Stride((m * n) as isize),
                        }),
                        activation,
                    },
                    epilogue: Some(&AddIndexTimes(0.001)),
                };
                // SAFETY: all operands are slices of the sizes given.
                unsafe { gemm(&mut ws, &g) };
                for e in 0..batch {
                    for i in 0..m {
                        for j in 0..n {
                            let dot: f64 = (0..k)
                                .map(|x| {
                                    let (ai, bi) = ((e * m + i) * k + x, x * n + j);
                                    if half_in {
                                        half_a[ai].to_f64() * bf_b[bi].to_f64()
                                    } else {
                                        f64::from(a[ai]) * f64::from(b[bi])
                                    }
                                })
                                .sum();
                            let x = dot * 0.5 + f64::from(bias[j]) + added[(e * m + i) * n + j];
                            let x = if act == 0 { x.max(0.0) } else { x.clamp(-0.5, 0.75) };
                            let want = x * 2.0 + 0.001 * (e * 10000 + i * 100 + j) as f64;
                            let (got, rtol) = match layout {
                                0 => (c[(e * m + i) * n + j], 1e-6),
                                1 => (c[e * m * n + j * m + i], 1e-6),
                                _ => (c16[(e * m + i) * n + j].to_f32(), 1e-3),
                            };
                            assert_close(got, want, rtol, 2.0 * tolerance(k), &(ws.isa(), m, n, k, way, e, i, j));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_go_through() {
    for mut ws in workspaces() {
        let (m, n, k) = (15, 35, 6);
        let (mut a, b) = (vec![1.0f32; m * k], vec![0.5f32; k * n]);
        a[3 * k + 2] = f32::NAN;
        a[4 * k] = f32::INFINITY;
        let mut c = vec![0.0; m * n];
        let g = Gemm {
            batch: 1,
            m,
            n,
            k,
            a: MatRef::dense(&a, k),
            b: Rhs::Strided(MatRef::dense(&b, n)),
            c: c_of(&mut c, n, 0),
            builtin: Builtin {
                activation: Activation::Relu,
                ..Default::default()
            },
            epilogue: None,
        };
        // SAFETY: all operands are slices of the sizes given.
        unsafe { gemm(&mut ws, &g) };
        assert!(c[3 * n..4 * n].iter().all(|x| x.is_nan()));
        assert!(c[4 * n..5 * n].iter().all(|x| *x == f32::INFINITY));
        assert!(c[5 * n..].iter().all(|x| *x == 3.0));
    }
}

#[test]
fn scratch_is_reserved_as_announced_and_then_stays() {
    for mut ws in workspaces() {
        let (m, n, k) = (50, 60, 70);
        let (a, b) = (vec![1.0f32; m * k], vec![1.0f32; k * n]);
        let mut c = vec![0.0; m * n];
        let g = Gemm {
            batch: 1,
            m,
            n,
            k,
            a: MatRef::dense(&a, m).t(),
            b: Rhs::Strided(MatRef::dense(&b, n)),
            c: c_of(&mut c, n, 0),
            builtin: Builtin::default(),
            epilogue: None,
        };
        let (per_thread, shared) = gemm_scratch(ws.isa(), ws.threads(), 1, (m, n, k), true, false);
        ws.reserve(per_thread, shared);
        let before = ws.scratch_bytes();
        // SAFETY: all operands are slices of the sizes given.
        unsafe { gemm(&mut ws, &g) };
        assert_eq!(ws.scratch_bytes(), before);
        assert!(c.iter().all(|x| *x == k as f32));
    }
}
