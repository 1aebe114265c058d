//! Products by 16-bit floats: read in place or packed, a few rows or many, sizes around every edge.

use half::{bf16, f16};

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::Workspace;
use crate::cpu::kernels::gemm::*;

/// Where the numbers are: columns or rows lie together, and both may lie apart.
#[derive(Clone, Copy, Debug)]
enum Lies {
    Columns,
    Rows,
    Apart,
}

fn check(ws: &mut Workspace, rng: &mut Rng, elem: Elem, lies: Lies, packed: bool, [m, n, k]: [usize; 3]) {
    let entries = 2;
    let a = rng.floats(entries * m * k);
    let (row, col) = match lies {
        Lies::Columns => (1, k + 3),
        Lies::Rows => (n + 1, 1),
        Lies::Apart => (3 * n, 3),
    };
    let one = row * k.max(1) + col * n.max(1);
    let bits: Vec<u16> = (0..entries * one)
        .map(|_| match elem {
            Elem::F16 => f16::from_f32(rng.float()).to_bits(),
            _ => bf16::from_f32(rng.float()).to_bits(),
        })
        .collect();
    let number = |entry: usize, i: usize, j: usize| match (elem, bits[entry * one + i * row + j * col]) {
        (Elem::F16, bits) => f16::from_bits(bits).to_f64(),
        (_, bits) => bf16::from_bits(bits).to_f64(),
    };
    let table = [0, one as isize];
    let b = MatRef {
        ptr: bits.as_ptr().cast(),
        elem,
        row_stride: row as isize,
        col_stride: col as isize,
        batch: Batch::Table(&table),
    };
    // SAFETY: the vector has the numbers of both matrices.
    let panels = packed.then(|| unsafe { PackedB::on(None, ws.isa(), entries, k, n, &b) }.expect("memory"));
    let bias = rng.floats(n);
    let mut c = vec![f32::NAN; entries * m * n + 7];
    let g = Gemm {
        batch: entries,
        m,
        n,
        k,
        a: MatRef {
            batch: Batch::Stride((m * k) as isize),
            ..MatRef::dense(&a, k)
        },
        b: panels.as_ref().map_or(Rhs::Strided(b), Rhs::Packed),
        c: MatMut {
            ptr: c.as_mut_ptr().cast(),
            elem: Elem::F32,
            row_stride: n as isize,
            col_stride: 1,
            batch: Batch::Stride((m * n) as isize),
        },
        builtin: Builtin {
            scale: 0.5,
            bias: Some(&bias),
            ..Builtin::default()
        },
        epilogue: None,
    };
    // SAFETY: all operands are vectors of the sizes given.
    unsafe { gemm(ws, &g) };
    for (at, got) in c[..entries * m * n].iter().enumerate() {
        let (entry, i, j) = (at / (m * n), at / n % m, at % n);
        let terms = (0..k).map(|x| f64::from(a[(entry * m + i) * k + x]) * number(entry, x, j));
        let want = terms.sum::<f64>() * 0.5 + f64::from(bias[j]);
        let what = (ws.isa(), elem, lies, packed, [m, n, k], entry, i, j);
        assert_close(*got, want, 0.0, 1e-6 * (k as f64 + 4.0), &what);
    }
    assert!(
        c[entries * m * n..].iter().all(|x| x.is_nan()),
        "nothing past C is written"
    );
}

#[test]
fn halves_multiply_as_their_numbers_do() {
    let mut rng = Rng(9);
    for mut ws in workspaces() {
        for sizes in [
            [1, 1, 1],
            [1, 33, 64],
            [2, 16, 100],
            [3, 8, 7],
            [4, 47, 300],
            [5, 17, 31],
            [29, 47, 1100],
            [3, 5, 0],
            // So much that panels keep their bits.
            [1, 260, 600],
            [4, 270, 601],
            [6, 260, 600],
        ] {
            for way in 0..12 {
                let elem = if way & 1 > 0 { Elem::F16 } else { Elem::BF16 };
                let lies = [Lies::Columns, Lies::Rows, Lies::Apart][way / 2 % 3];
                check(&mut ws, &mut rng, elem, lies, way >= 6, sizes);
            }
        }
    }
}

#[test]
fn large_panels_of_halves_keep_their_bits() {
    let ws = &workspaces()[0];
    let bytes = |n: usize, elem| {
        let numbers = vec![0u16; 512 * n];
        let src = MatRef {
            ptr: numbers.as_ptr().cast(),
            elem,
            row_stride: n as isize,
            col_stride: 1,
            batch: Batch::Stride(0),
        };
        // SAFETY: the vector has the matrix.
        unsafe { PackedB::on(None, ws.isa(), 1, 512, n, &src) }
            .expect("memory")
            .bytes()
    };
    assert_eq!(bytes(512, Elem::F16), 512 * 512 * 2);
    assert_eq!(bytes(64, Elem::BF16), 512 * 64 * 4);
}

/// Infinities, NaN and the smallest numbers: each goes to its own column alone, also where panels are padded.
#[test]
fn columns_keep_their_infinities_to_themselves() {
    let mut rng = Rng(10);
    for mut ws in workspaces() {
        for ([m, n, k], way) in [[1, 19, 37], [3, 33, 8], [6, 35, 70], [1, 270, 600]]
            .into_iter()
            .flat_map(|sizes| (0..4).map(move |way| (sizes, way)))
        {
            let elem = if way & 1 > 0 { Elem::F16 } else { Elem::BF16 };
            let (infinity, nan, tiny) = match elem {
                Elem::F16 => (f16::INFINITY.to_bits(), f16::NAN.to_bits(), 1),
                _ => (
                    bf16::INFINITY.to_bits(),
                    bf16::NAN.to_bits(),
                    bf16::MIN_POSITIVE.to_bits(),
                ),
            };
            let mut bits = vec![0u16; n * k];
            // Column 1 has an infinity in its last row, column 2 a NaN, the last one the smallest number alone.
            bits[k + k - 1] = infinity;
            bits[2 * k + k / 2] = nan;
            bits[(n - 1) * k] = tiny;
            let b = MatRef {
                ptr: bits.as_ptr().cast(),
                elem,
                row_stride: 1,
                col_stride: k as isize,
                batch: Batch::Stride(0),
            };
            // SAFETY: the vector has the numbers of the matrix.
            let panels = (way & 2 > 0).then(|| unsafe { PackedB::on(None, ws.isa(), 1, k, n, &b) }.expect("memory"));
            let a: Vec<f32> = rng.floats(m * k).iter().map(|x| x.abs() + 0.5).collect();
            let mut c = vec![-1f32; m * n];
            let g = Gemm {
                batch: 1,
                m,
                n,
                k,
                a: MatRef::dense(&a, k),
                b: panels.as_ref().map_or(Rhs::Strided(b), Rhs::Packed),
                c: MatMut {
                    ptr: c.as_mut_ptr().cast(),
                    elem: Elem::F32,
                    row_stride: n as isize,
                    col_stride: 1,
                    batch: Batch::Stride(0),
                },
                builtin: Builtin::default(),
                epilogue: None,
            };
            // SAFETY: all operands are vectors of the sizes given.
            unsafe { gemm(&mut ws, &g) };
            let smallest = match elem {
                Elem::F16 => f16::from_bits(tiny).to_f64(),
                _ => bf16::from_bits(tiny).to_f64(),
            };
            for (at, got) in c.iter().enumerate() {
                let want = match at % n {
                    1 => f64::INFINITY,
                    2 => f64::NAN,
                    j if j + 1 == n => f64::from(a[at / n * k]) * smallest,
                    _ => 0.0,
                };
                assert_close(*got, want, 1e-2, 0.0, &(ws.isa(), elem, [m, n, k], way, at));
            }
        }
    }
}
