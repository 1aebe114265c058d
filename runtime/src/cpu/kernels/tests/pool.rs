//! Pooling against the definition, in both layouts.

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::conv::ImageStrides;
use crate::cpu::kernels::pool::*;

fn at(s: ImageStrides, n: usize, y: usize, x: usize, c: usize) -> usize {
    (n as isize * s.n + y as isize * s.h + x as isize * s.w + c as isize * s.c) as usize
}

#[test]
fn random_shapes() {
    let mut rng = Rng(50);
    let spaces = workspaces();
    for round in 0..150 {
        let ws = &spaces[round % spaces.len()];
        // Planes of long rows fill vectors.
        let long = round % 3 == 0;
        let (h, w) = (3 + rng.below(9), 3 + rng.below(if long { 90 } else { 9 }));
        let c = rng.pick(&[1, 3, 8, 16, 17, 64, 70]);
        let (kh, kw) = (1 + rng.below(3), 1 + rng.below(if long { 7 } else { 3 }));
        let dilation = [1 + rng.below(2), 1 + rng.below(2)];
        let pad = [rng.below(kh), rng.below(kw), rng.below(kh), rng.below(kw)];
        let stride = [1 + rng.below(3), 1 + rng.below(if long { 5 } else { 3 })];
        let ceil = rng.below(2) == 1;
        let out = |size: usize, k: usize, d: usize, p: usize, s: usize| {
            let room = (size + p).saturating_sub(d * (k - 1) + 1);
            (if ceil { room.div_ceil(s) } else { room / s }) + 1
        };
        let s = PoolShape {
            n: 2,
            h,
            w,
            c,
            kh,
            kw,
            stride,
            pad,
            dilation,
            out_h: out(h, kh, dilation[0], pad[0] + pad[2], stride[0]),
            out_w: out(w, kw, dilation[1], pad[1] + pad[3], stride[1]),
        };
        let src = rng.floats(2 * h * w * c);
        let nchw = rng.below(2) == 1;
        let (xs, ys) = if nchw {
            (ImageStrides::nchw(h, w, c), ImageStrides::nchw(s.out_h, s.out_w, c))
        } else {
            (ImageStrides::nhwc(h, w, c), ImageStrides::nhwc(s.out_h, s.out_w, c))
        };
        for kind in [
            PoolKind::Max,
            PoolKind::Average { include_pad: false },
            PoolKind::Average { include_pad: true },
            PoolKind::Sum,
        ] {
            let mut dst = vec![9.0; 2 * s.out_h * s.out_w * c];
            // SAFETY: the vectors are of the shape's sizes.
            unsafe { pool2d(ws, kind, dst.as_mut_ptr(), ys, src.as_ptr(), xs, s) };
            for n in 0..2 {
                for oy in 0..s.out_h {
                    for ox in 0..s.out_w {
                        for ch in 0..c {
                            let (mut max, mut sum, mut real, mut padded) = (f64::NEG_INFINITY, 0.0, 0, 0);
                            for ky in 0..kh {
                                for kx in 0..kw {
                                    let (y, x) = (oy * stride[0] + ky * dilation[0], ox * stride[1] + kx * dilation[1]);
                                    if y < h + pad[0] + pad[2] && x < w + pad[1] + pad[3] {
                                        padded += 1;
                                    }
                                    let y = y.checked_sub(pad[0]).filter(|y| *y < h);
                                    let x = x.checked_sub(pad[1]).filter(|x| *x < w);
                                    if let (Some(y), Some(x)) = (y, x) {
                                        let value = f64::from(src[at(xs, n, y, x, ch)]);
                                        max = max.max(value);
                                        sum += value;
                                        real += 1;
                                    }
                                }
                            }
                            let want = match kind {
                                PoolKind::Max => max,
                                PoolKind::Average { include_pad: false } => sum / f64::from(real.max(1)),
                                PoolKind::Average { include_pad: true } => sum / f64::from(padded.max(1)),
                                PoolKind::Sum => sum,
                            };
                            let what = (ws.isa(), kind, &s, nchw, n, oy, ox, ch);
                            assert_close(dst[at(ys, n, oy, ox, ch)], want, 1e-6, 1e-6, &what);
                        }
                    }
                }
            }
        }
    }
}

/// NaN reaches the windows that have it, in whichever lane, and no other.
#[test]
fn nan_in_planes() {
    for ws in workspaces() {
        for stride in [1, 2, 3] {
            let (w, k) = (50, 3);
            let out_w = (w - k) / stride + 1;
            let s = PoolShape {
                n: 1,
                h: 3,
                w,
                c: 2,
                kh: 3,
                kw: k,
                stride: [1, stride],
                pad: [0; 4],
                dilation: [1, 1],
                out_h: 1,
                out_w,
            };
            let (xs, ys) = (ImageStrides::nchw(3, w, 2), ImageStrides::nchw(1, out_w, 2));
            for bad in 0..w {
                let mut src = vec![-1.0f32; 6 * w];
                src[at(xs, 0, bad % 3, bad, 1)] = f32::NAN;
                let mut dst = vec![0.0f32; 2 * out_w];
                // SAFETY: the vectors are of the shape's sizes.
                unsafe { pool2d(&ws, PoolKind::Max, dst.as_mut_ptr(), ys, src.as_ptr(), xs, s) };
                for ox in 0..out_w {
                    let has = (ox * stride..ox * stride + k).contains(&bad);
                    assert_eq!(dst[out_w + ox].is_nan(), has, "{:?} {stride} {bad} {ox}", ws.isa());
                    assert_eq!(dst[ox], -1.0);
                }
            }
        }
    }
}

#[test]
fn global_and_nan() {
    let mut rng = Rng(51);
    for ws in workspaces() {
        for (n, h, w, c) in [(1, 7, 7, 130), (2, 3, 5, 9), (1, 1, 1, 1), (4, 13, 13, 40)] {
            let src = rng.floats(n * h * w * c);
            for s in [ImageStrides::nhwc(h, w, c), ImageStrides::nchw(h, w, c)] {
                let mut dst = vec![9.0; n * c];
                // SAFETY: the vectors are of the shape's sizes.
                unsafe { global_average(&ws, dst.as_mut_ptr(), src.as_ptr(), s, [n, h, w, c]) };
                for i in 0..n * c {
                    let sum: f64 = (0..h * w)
                        .map(|p| f64::from(src[at(s, i / c, p / w, p % w, i % c)]))
                        .sum();
                    assert_close(dst[i], sum / (h * w) as f64, 1e-6, 1e-6, &(ws.isa(), n, h, w, c, i));
                }
            }
        }
        let shape = PoolShape {
            n: 1,
            h: 3,
            w: 3,
            c: 5,
            kh: 3,
            kw: 3,
            stride: [1, 1],
            pad: [0; 4],
            dilation: [1, 1],
            out_h: 1,
            out_w: 1,
        };
        for bad in 0..9 {
            for s in [ImageStrides::nhwc(3, 3, 5), ImageStrides::nchw(3, 3, 5)] {
                let mut src = [1.0f32; 45];
                src[at(s, 0, bad / 3, bad % 3, 2)] = f32::NAN;
                let mut dst = [0.0f32; 5];
                let out = ImageStrides::nhwc(1, 1, 5);
                // SAFETY: the vectors are of the shape's sizes.
                unsafe { pool2d(&ws, PoolKind::Max, dst.as_mut_ptr(), out, src.as_ptr(), s, shape) };
                assert!(dst[2].is_nan() && dst[0] == 1.0 && dst[4] == 1.0, "{dst:?}");
            }
        }
    }
}
