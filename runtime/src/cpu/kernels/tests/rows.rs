//! Softmax, norms and reductions against f64.

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::rows::*;

const SIZES: [(usize, usize); 10] = [
    (1, 1),
    (3, 2),
    (5, 7),
    (2, 16),
    (4, 17),
    (7, 33),
    (3, 64),
    (2, 100),
    (130, 129),
    (1, 1000),
];

#[test]
fn softmax_and_its_logarithm() {
    let mut rng = Rng(30);
    for ws in workspaces() {
        for (rows, cols) in SIZES {
            let src: Vec<f32> = rng.floats(rows * cols).iter().map(|x| x * 10.0).collect();
            let (mut soft, mut log) = (src.clone(), vec![0.0; rows * cols]);
            let shape = Rows::dense(rows, cols);
            // SAFETY: dense rows; the first in place.
            unsafe {
                let p = soft.as_mut_ptr();
                softmax(&ws, p, p, shape);
                log_softmax(&ws, log.as_mut_ptr(), src.as_ptr(), shape);
            }
            for r in 0..rows {
                let row = &src[r * cols..(r + 1) * cols];
                let max = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
                let sum: f64 = row.iter().map(|x| (f64::from(*x) - max).exp()).sum();
                for (c, x) in row.iter().enumerate() {
                    let y = f64::from(*x) - max;
                    assert_close(
                        soft[r * cols + c],
                        y.exp() / sum,
                        3e-6,
                        1e-12,
                        &(ws.isa(), rows, cols, r, c),
                    );
                    assert_close(
                        log[r * cols + c],
                        y - sum.ln(),
                        1e-6,
                        2e-6,
                        &(ws.isa(), rows, cols, r, c),
                    );
                }
            }
        }
        // All -inf: NaN; one finite: a one; NaN spreads.
        let inf = f32::NEG_INFINITY;
        let mut x = [inf, inf, inf, inf, 3.0, inf, 1.0, f32::NAN, 2.0];
        let p = x.as_mut_ptr();
        // SAFETY: dense rows in place.
        unsafe { softmax(&ws, p, p, Rows::dense(3, 3)) };
        assert!(x[..3].iter().all(|v| v.is_nan()));
        assert_eq!(x[3..6], [0.0, 1.0, 0.0]);
        assert!(x[6..].iter().all(|v| v.is_nan()));
    }
}

#[test]
fn norms() {
    let mut rng = Rng(31);
    for ws in workspaces() {
        for (rows, cols) in SIZES {
            let stride = cols + 3;
            let src: Vec<f32> = rng.floats(rows * stride).iter().map(|x| x * 2.0 + 5.0).collect();
            let (gamma, beta) = (rng.floats(cols), rng.floats(cols));
            let shape = Rows {
                rows,
                cols,
                src_stride: stride,
                dst_stride: cols,
            };
            let (mut layer, mut rms, mut plain) =
                (vec![0.0; rows * cols], vec![0.0; rows * cols], vec![0.0; rows * cols]);
            // SAFETY: the vectors hold the rows.
            unsafe {
                layer_norm(
                    &ws,
                    layer.as_mut_ptr(),
                    src.as_ptr(),
                    shape,
                    Some(&gamma),
                    Some(&beta),
                    1e-5,
                );
                layer_norm(&ws, plain.as_mut_ptr(), src.as_ptr(), shape, None, None, 1e-5);
                rms_norm(&ws, rms.as_mut_ptr(), src.as_ptr(), shape, Some(&gamma), 1e-6);
            }
            for r in 0..rows {
                let row: Vec<f64> = src[r * stride..r * stride + cols]
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect();
                let n = cols as f64;
                let mean = row.iter().sum::<f64>() / n;
                let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
                let square = row.iter().map(|x| x * x).sum::<f64>() / n;
                for c in 0..cols {
                    let what = (ws.isa(), rows, cols, r, c);
                    let (g, b) = (f64::from(gamma[c]), f64::from(beta[c]));
                    let y = (row[c] - mean) / (variance + 1e-5).sqrt();
                    assert_close(layer[r * cols + c], y * g + b, 1e-5, 1e-5, &what);
                    assert_close(plain[r * cols + c], y, 1e-5, 1e-5, &what);
                    assert_close(
                        rms[r * cols + c],
                        row[c] / (square + 1e-6).sqrt() * g,
                        2e-6,
                        1e-6,
                        &what,
                    );
                }
            }
        }
    }
}

#[test]
fn reductions_along_any_axis() {
    let mut rng = Rng(32);
    for ws in workspaces() {
        for [outer, len, inner] in [
            [1, 1, 1],
            [3, 17, 1],
            [2, 5, 7],
            [4, 130, 1],
            [3, 9, 33],
            [2, 3, 130],
            [5, 0, 4],
            [5, 0, 1],
            [1, 1000, 65],
            [0, 3, 3],
        ] {
            let src = rng.floats(outer * len * inner);
            let at = |o: usize, k: usize, i: usize| f64::from(src[(o * len + k) * inner + i]);
            for op in [
                Reduce::Sum,
                Reduce::Mean,
                Reduce::Max,
                Reduce::Min,
                Reduce::Prod,
                Reduce::SumSquare,
            ] {
                let mut dst = vec![9.0; outer * inner];
                // SAFETY: dense operands.
                unsafe { reduce(&ws, op, dst.as_mut_ptr(), src.as_ptr(), [outer, len, inner]) };
                for o in 0..outer {
                    for i in 0..inner {
                        let all = (0..len).map(|k| at(o, k, i));
                        let want = match op {
                            Reduce::Sum => all.sum(),
                            Reduce::Mean => all.sum::<f64>() / len as f64,
                            Reduce::Max => all.fold(f64::NEG_INFINITY, f64::max),
                            Reduce::Min => all.fold(f64::INFINITY, f64::min),
                            Reduce::Prod => all.product(),
                            Reduce::SumSquare => all.map(|x| x * x).sum(),
                        };
                        assert_close(
                            dst[o * inner + i],
                            want,
                            1e-5,
                            2e-5,
                            &(ws.isa(), op, outer, len, inner, o, i),
                        );
                    }
                }
            }
            for (greatest, last) in [(true, false), (true, true), (false, false), (false, true)] {
                // Few different values: ties.
                let src: Vec<f32> = src.iter().map(|x| (x * 2.0).round()).collect();
                let mut dst = vec![-1i64; outer * inner];
                // SAFETY: dense operands.
                unsafe { arg_reduce(&ws, greatest, last, dst.as_mut_ptr(), src.as_ptr(), [outer, len, inner]) };
                for o in 0..outer {
                    for i in 0..inner {
                        let mut want = 0;
                        for k in 1..len {
                            let (x, best) = (src[(o * len + k) * inner + i], src[(o * len + want) * inner + i]);
                            if (if greatest { x > best } else { x < best }) || (last && x == best) {
                                want = k;
                            }
                        }
                        assert_eq!(dst[o * inner + i], want as i64);
                    }
                }
            }
        }
        // NaN wins, wherever it stands.
        for at in 0..37 {
            let mut src = [1.0f32; 37];
            src[at] = f32::NAN;
            for op in [Reduce::Max, Reduce::Min, Reduce::Sum] {
                let mut y = [0.0];
                // SAFETY: dense operands.
                unsafe { reduce(&ws, op, y.as_mut_ptr(), src.as_ptr(), [1, 37, 1]) };
                assert!(y[0].is_nan(), "{op:?} at {at}");
            }
            let mut y = [0i64];
            // SAFETY: dense operands.
            unsafe { arg_reduce(&ws, true, false, y.as_mut_ptr(), src.as_ptr(), [1, 37, 1]) };
            assert_eq!(y[0], at as i64);
        }
    }
}

#[test]
fn softmax_along_a_strided_axis() {
    let mut rng = Rng(33);
    for ws in workspaces() {
        for [outer, len, inner] in [[2, 5, 3], [1, 9, 40], [3, 1, 17], [2, 64, 1], [1, 0, 4]] {
            let src = rng.floats(outer * len * inner);
            for log in [false, true] {
                let mut dst = src.clone();
                let p = dst.as_mut_ptr();
                // SAFETY: dense, in place.
                unsafe { softmax_axis(&ws, log, p, p, [outer, len, inner]) };
                for o in 0..outer {
                    for i in 0..inner {
                        let at = |k: usize| (o * len + k) * inner + i;
                        let sum: f64 = (0..len).map(|k| f64::from(src[at(k)]).exp()).sum();
                        for k in 0..len {
                            let y = f64::from(src[at(k)]);
                            let want = if log { y - sum.ln() } else { y.exp() / sum };
                            assert_close(dst[at(k)], want, 3e-6, 2e-6, &(ws.isa(), outer, len, inner, o, k, i));
                        }
                    }
                }
            }
        }
    }
}
