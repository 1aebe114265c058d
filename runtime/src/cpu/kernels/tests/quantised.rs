//! Products by quantised weights: bits, groups, zero points, layouts, sizes around every edge, results that are summed
//! up in place or not.

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::Workspace;
use crate::cpu::kernels::convert::half_to_f32;
use crate::cpu::kernels::gemm::*;
use ir::DType;
use ir::convert::decode_f8;

struct Case {
    m: usize,
    n: usize,
    k: usize,
    group: usize,
    bits: u32,
    signed: bool,
    /// The depth is the inner axis of the weight.
    along_k: bool,
    /// The result is f16.
    narrow: bool,
    /// The type of floats, and what it is to a panel.
    float: Option<(DType, Float8)>,
}

fn check(ws: &mut Workspace, rng: &mut Rng, case: &Case) {
    let &Case {
        m,
        n,
        k,
        group,
        bits,
        signed,
        along_k,
        narrow,
        float,
    } = case;
    let low = if signed { -(1i64 << (bits - 1)) } else { 0 };
    let mut numbers: Vec<i64> = (0..n * k).map(|_| low + rng.below(1 << bits) as i64).collect();
    let decoded = |byte: i64| float.and_then(|(dtype, _)| decode_f8(dtype, byte as u8));
    if float.is_some() {
        for number in &mut numbers {
            while !decoded(*number).is_some_and(f64::is_finite) {
                *number = rng.below(256) as i64;
            }
        }
    }
    // Behind 3 elements that are others'.
    let (base, mut bytes) = (3usize, vec![0u8; (n * k + 3).div_ceil(8 / bits as usize)]);
    let mask = (1u32 << bits) - 1;
    let place = |row: usize, col: usize| base + if along_k { col * k + row } else { row * n + col };
    for row in 0..k {
        for col in 0..n {
            let at = place(row, col) * bits as usize;
            bytes[at / 8] |= ((numbers[col * k + row] as u32 & mask) << (at % 8)) as u8;
        }
    }
    let groups = k.div_ceil(group);
    let scales: Vec<(f32, f32)> = (0..n * groups)
        .map(|_| {
            (
                0.01 + rng.float().abs() / 16.0,
                match float {
                    Some(_) => 0.0,
                    None => (low + rng.below(1 << bits) as i64) as f32,
                },
            )
        })
        .collect();
    let integers = Integers {
        bytes: &bytes,
        bits,
        signed,
        float: float.map(|(_, how)| how),
        base: base as i64,
        row: if along_k { 1 } else { n as i64 },
        col: if along_k { k as i64 } else { 1 },
    };
    let packed = QuantisedB::new(None, ws.isa(), [k, n, group], &integers, |col, g| {
        scales[col * groups + g]
    })
    .expect("memory");
    let a = rng.floats(m * k);
    let mut c = vec![f32::NAN; m * n + 7];
    let elem = if narrow { Elem::F16 } else { Elem::F32 };
    let product = Gemm {
        batch: 1,
        m,
        n,
        k,
        a: MatRef::dense(&a, k),
        b: Rhs::Quantised(&packed),
        c: MatMut {
            ptr: c.as_mut_ptr().cast(),
            elem,
            row_stride: n as isize,
            col_stride: 1,
            batch: Batch::Stride(0),
        },
        builtin: Builtin::default(),
        epilogue: None,
    };
    // SAFETY: the operands are vectors of these sizes; halves take less room than floats.
    unsafe { gemm(ws, &product) };
    for i in 0..m {
        for j in 0..n {
            let term = |x: usize| {
                let (scale, zero) = scales[j * groups + x / group];
                let number = decoded(numbers[j * k + x]).unwrap_or(numbers[j * k + x] as f64);
                f64::from(a[i * k + x]) * (number - f64::from(zero)) * f64::from(scale)
            };
            let (want, size) = (
                (0..k).map(term).sum::<f64>(),
                (0..k).map(|x| term(x).abs()).sum::<f64>(),
            );
            let got = match narrow {
                // SAFETY: element `i * n + j` of the halves that were written.
                true => half_to_f32(Elem::F16, unsafe { c.as_ptr().cast::<u16>().add(i * n + j).read() }),
                false => c[i * n + j],
            };
            let rounding = if narrow { want.abs() * 1e-3 + 1e-3 } else { 0.0 };
            let what = (ws.isa(), m, n, k, group, bits, signed, along_k, i, j);
            assert_close(got, want, 0.0, 2e-6 * (size + 1.0) + rounding, &what);
        }
    }
    assert!(c[m * n..].iter().all(|x| x.is_nan()), "nothing past C is written");
}

#[test]
fn quantised_panels_multiply_as_their_numbers_do() {
    let mut rng = Rng(5);
    for mut ws in workspaces() {
        for (m, n, k, group) in [
            (1, 1, 1, 1),
            (1, 33, 64, 32),
            (2, 16, 100, 48),
            (5, 17, 31, 8),
            (14, 65, 130, 128),
            (3, 8, 7, 100),
            (29, 47, 1100, 64),
            (1, 40, 1700, 512),
            (3, 5, 0, 32),
        ] {
            for way in 0..24 {
                let float = (way >= 16).then(|| {
                    let (dtype, mantissa, bias) = [
                        (DType::F8E4M3FN, 3, 7),
                        (DType::F8E5M2, 2, 15),
                        (DType::F8E4M3FNUZ, 3, 8),
                        (DType::F8E5M2FNUZ, 2, 16),
                    ][way & 3];
                    (dtype, Float8 { mantissa, bias })
                });
                let case = Case {
                    m,
                    n,
                    k,
                    group,
                    bits: if way & 1 > 0 && float.is_none() { 4 } else { 8 },
                    signed: way & 2 > 0 && float.is_none(),
                    along_k: way & 4 > 0,
                    narrow: way & 8 > 0 && float.is_none(),
                    float,
                };
                check(&mut ws, &mut rng, &case);
            }
        }
    }
}

#[test]
fn panels_take_the_bytes_of_their_integers() {
    let (n, k) = (256, 1024);
    let ws = &workspaces()[0];
    for bits in [4, 8] {
        let bytes = vec![0u8; n * k * bits as usize / 8];
        let integers = Integers {
            bytes: &bytes,
            bits,
            signed: true,
            float: None,
            base: 0,
            row: 1,
            col: k as i64,
        };
        let packed = QuantisedB::new(None, ws.isa(), [k, n, 128], &integers, |_, _| (1.0, 0.0)).expect("memory");
        // Two floats a group of 128.
        assert_eq!(packed.bytes(), bytes.len() + n * k / 128 * 8);
    }
}
