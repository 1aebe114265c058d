//! Products of single rows by chosen matrices: none of them, one of them for all rows, as many as there are rows.

use half::{bf16, f16};

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::Workspace;
use crate::cpu::kernels::convert::half_to_f32;
use crate::cpu::kernels::gemm::*;

/// How the matrices are stored.
#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    /// Columns together, as weights of x · Wᵀ, read where they are.
    Columns(Elem),
    Packed(Elem),
    /// Integers of so many bits.
    Quantised(u32),
}

/// What is multiplied: each row by one of `count` matrices.
#[derive(Clone, Debug)]
struct Case {
    how: How,
    count: usize,
    n: usize,
    k: usize,
    chosen: Vec<usize>,
}

fn check(ws: &mut Workspace, rng: &mut Rng, case: &Case) {
    let Case {
        how,
        count,
        n,
        k,
        ref chosen,
    } = *case;
    let rows = chosen.len();
    let a = rng.floats(rows * k + 1);
    let floats = rng.floats(count * n * k + 1);
    let bits: Vec<u16> = floats
        .iter()
        .map(|x| match how {
            How::Columns(Elem::F16) | How::Packed(Elem::F16) => f16::from_f32(*x).to_bits(),
            _ => bf16::from_f32(*x).to_bits(),
        })
        .collect();
    let bytes: Vec<u8> = (0..count * n * k).map(|_| rng.below(256) as u8).collect();
    let scales = rng.floats(count * n);
    let number = |matrix: usize, i: usize, j: usize| {
        let at = (matrix * n + j) * k + i;
        match how {
            How::Columns(Elem::F32) | How::Packed(Elem::F32) => f64::from(floats[at]),
            How::Columns(elem) | How::Packed(elem) => f64::from(half_to_f32(elem, bits[at])),
            How::Quantised(width) => {
                let stored = match width {
                    4 => bytes[at / 2] >> (at % 2 * 4) & 15,
                    _ => bytes[at],
                };
                (f64::from(stored) - 3.0) * f64::from(scales[matrix * n + j])
            }
        }
    };
    let strided = |elem: Elem| MatRef {
        ptr: match elem {
            Elem::F32 => floats.as_ptr().cast(),
            _ => bits.as_ptr().cast(),
        },
        elem,
        row_stride: 1,
        col_stride: k as isize,
        batch: Batch::Stride((n * k) as isize),
    };
    let packed = match how {
        // SAFETY: the vector has the numbers of all matrices.
        How::Packed(elem) => Some(unsafe { PackedB::on(None, ws.isa(), count, k, n, &strided(elem)) }.expect("memory")),
        _ => None,
    };
    let quantised = match how {
        How::Quantised(bits) => {
            let integers = Integers {
                bytes: &bytes,
                bits,
                signed: false,
                float: None,
                base: 0,
                row: 1,
                col: k as i64,
            };
            let group = k.max(1);
            let sizes = [k, count * n, group];
            Some(QuantisedB::new(None, ws.isa(), sizes, &integers, |col, _| (scales[col], 3.0)).expect("memory"))
        }
        _ => None,
    };
    let b = match (&packed, &quantised, how) {
        (Some(packed), _, _) => Rhs::Packed(packed),
        (_, Some(quantised), _) => Rhs::Quantised(quantised),
        (_, _, How::Columns(elem)) => Rhs::Strided(strided(elem)),
        _ => unreachable!("packed before"),
    };
    let bias = rng.floats(n);
    let mut c = vec![f32::NAN; rows * (n + 2) + 5];
    let g = Gemm {
        batch: rows,
        m: 1,
        n,
        k,
        a: MatRef {
            batch: Batch::Stride(k as isize),
            ..MatRef::dense(&a, k)
        },
        b,
        c: MatMut {
            ptr: c.as_mut_ptr().cast(),
            elem: Elem::F32,
            row_stride: n as isize,
            col_stride: 1,
            batch: Batch::Stride((n + 2) as isize),
        },
        builtin: Builtin {
            scale: 0.5,
            bias: Some(&bias),
            ..Builtin::default()
        },
        epilogue: None,
    };
    // SAFETY: all operands are vectors of the sizes given.
    unsafe { gemm_chosen(ws, &g, chosen) };
    for (at, got) in c.iter().enumerate() {
        let (row, j) = (at / (n + 2), at % (n + 2));
        if row >= rows || j >= n {
            assert!(got.is_nan(), "nothing beside C is written: {case:?}");
            continue;
        }
        let term = |i: usize| f64::from(a[row * k + i]) * number(chosen[row], i, j);
        let want = (0..k).map(term).sum::<f64>() * 0.5 + f64::from(bias[j]);
        let size = (0..k).map(|i| term(i).abs()).sum::<f64>();
        assert_close(*got, want, 0.0, 2e-6 * (size + 1.0), &(ws.isa(), case, row, j));
    }
}

#[test]
fn rows_are_multiplied_by_the_matrices_that_they_choose() {
    let mut rng = Rng(21);
    for mut ws in workspaces() {
        for how in [
            How::Columns(Elem::F16),
            How::Columns(Elem::BF16),
            How::Packed(Elem::F32),
            How::Packed(Elem::F16),
            How::Quantised(4),
            How::Quantised(8),
        ] {
            for (count, rows, n, k) in [
                (1, 1, 1, 1),
                (1, 5, 33, 16),
                (3, 0, 8, 8),
                (4, 1, 32, 32),
                (5, 2, 64, 100),
                (7, 19, 17, 31),
                (3, 40, 96, 300),
                (16, 9, 40, 7),
                (4, 6, 32, 0),
                // So much that packed halves keep their bits.
                (2, 7, 288, 520),
            ] {
                // Quantised matrices lie side by side from a panel on, if there are several.
                let n = match how {
                    How::Quantised(_) if count > 1 => usize::next_multiple_of(n, 32),
                    _ => n,
                };
                let mut run = |chosen: Vec<usize>| {
                    let case = Case {
                        how,
                        count,
                        n,
                        k,
                        chosen,
                    };
                    check(&mut ws, &mut rng, &case);
                };
                let last = count - 1;
                run(vec![last; rows]);
                run((0..rows).map(|row| (row * 5 + 2) % count).collect());
                // Of most matrices no row.
                run((0..rows).map(|row| if row % 3 == 1 { 0 } else { last }).collect());
            }
        }
    }
}
