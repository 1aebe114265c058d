//! Attention against the definition: views, masks, causality, grouped heads, storage types.

use half::f16;

use super::{Rng, assert_close, workspaces};
use crate::cpu::kernels::attention::*;
use crate::cpu::kernels::gemm::Elem;

struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    q_len: usize,
    kv_len: usize,
    d: usize,
    d_v: usize,
}

/// Strides of [b, s, h, d] in memory order `bshd` or `bhsd`.
fn strides(bhsd: bool, s: usize, h: usize, d: usize) -> [isize; 4] {
    let (s, h, d) = (s as isize, h as isize, d as isize);
    if bhsd {
        [s * h * d, d, s * d, 1]
    } else {
        [s * h * d, h * d, d, 1]
    }
}

fn view(x: &[f32], st: [isize; 4]) -> HeadView {
    HeadView {
        ptr: x.as_ptr().cast(),
        elem: Elem::F32,
        batch_stride: st[0],
        seq_stride: st[1],
        head_stride: st[2],
        d_stride: st[3],
    }
}

#[test]
fn against_the_definition() {
    let mut rng = Rng(40);
    let cases = [
        Case {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            q_len: 1,
            kv_len: 1,
            d: 1,
            d_v: 1,
        },
        Case {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            q_len: 7,
            kv_len: 9,
            d: 8,
            d_v: 5,
        },
        Case {
            batch: 1,
            heads: 3,
            kv_heads: 3,
            q_len: 70,
            kv_len: 70,
            d: 17,
            d_v: 33,
        },
        Case {
            batch: 1,
            heads: 6,
            kv_heads: 1,
            q_len: 1,
            kv_len: 50,
            d: 32,
            d_v: 32,
        },
        Case {
            batch: 2,
            heads: 2,
            kv_heads: 2,
            q_len: 130,
            kv_len: 140,
            d: 16,
            d_v: 64,
        },
    ];
    for mut ws in workspaces() {
        for case in &cases {
            let Case {
                batch,
                heads,
                kv_heads,
                q_len,
                kv_len,
                d,
                d_v,
            } = *case;
            let q = rng.floats(batch * heads * q_len * d);
            let k = rng.floats(batch * kv_heads * kv_len * d);
            let v = rng.floats(batch * kv_heads * kv_len * d_v);
            let mask = rng.floats(batch * q_len * kv_len);
            let bools: Vec<u8> = (0..batch * kv_len)
                .map(|i| u8::from(i % kv_len == 0 || rng.below(4) > 0))
                .collect();
            for way in 0..6 {
                let bhsd = way % 2 == 1;
                let (qs, ks) = (strides(bhsd, q_len, heads, d), strides(!bhsd, kv_len, kv_heads, d));
                let (vs, os) = (strides(bhsd, kv_len, kv_heads, d_v), strides(bhsd, q_len, heads, d_v));
                let half = way == 4;
                let q16: Vec<f16> = q.iter().map(|x| f16::from_f32(*x)).collect();
                let q: Vec<f32> = if half {
                    q16.iter().map(|x| x.to_f32()).collect()
                } else {
                    q.clone()
                };
                let mut o = vec![f32::NAN; batch * heads * q_len * d_v];
                let mut o16 = vec![f16::NAN; o.len()];
                let causal = (way >= 2).then_some(kv_len as isize - q_len as isize);
                let mut qv = view(&q, qs);
                if half {
                    qv.ptr = q16.as_ptr().cast();
                    qv.elem = Elem::F16;
                }
                let a = Attention {
                    batch,
                    heads,
                    kv_heads,
                    q_len,
                    kv_len,
                    d,
                    d_v,
                    q: qv,
                    k: view(&k, ks),
                    v: view(&v, vs),
                    o: HeadViewMut {
                        ptr: if half {
                            o16.as_mut_ptr().cast()
                        } else {
                            o.as_mut_ptr().cast()
                        },
                        elem: if half { Elem::F16 } else { Elem::F32 },
                        batch_stride: os[0],
                        seq_stride: os[1],
                        head_stride: os[2],
                        d_stride: os[3],
                    },
                    scale: 0.7,
                    mask: (way % 3 == 1).then_some(Mask {
                        ptr: mask.as_ptr(),
                        strides: [(q_len * kv_len) as isize, 0, kv_len as isize, 1],
                    }),
                    bool_mask: (way % 3 == 2).then_some(BoolMask {
                        ptr: bools.as_ptr(),
                        strides: [kv_len as isize, 0, 0, 1],
                    }),
                    causal,
                };
                // SAFETY: the views are of the vectors' sizes.
                unsafe { attention(&mut ws, &a) };
                for b in 0..batch {
                    for h in 0..heads {
                        let kh = h / (heads / kv_heads);
                        let at = |s: [isize; 4], i: usize, h: usize, x: usize| {
                            (b as isize * s[0] + i as isize * s[1] + h as isize * s[2] + x as isize * s[3]) as usize
                        };
                        for i in 0..q_len {
                            let scores: Vec<f64> = (0..kv_len)
                                .map(|j| {
                                    let dot: f64 = (0..d)
                                        .map(|x| f64::from(q[at(qs, i, h, x)]) * f64::from(k[at(ks, j, kh, x)]))
                                        .sum();
                                    let mut s = dot * f64::from(0.7f32);
                                    if a.mask.is_some() {
                                        s += f64::from(mask[(b * q_len + i) * kv_len + j]);
                                    }
                                    let hidden = a.bool_mask.is_some() && bools[b * kv_len + j] == 0;
                                    let future = causal.is_some_and(|c| j as isize > i as isize + c);
                                    if hidden || future { f64::NEG_INFINITY } else { s }
                                })
                                .collect();
                            let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                            for x in 0..d_v {
                                let want: f64 = (0..kv_len)
                                    .map(|j| (scores[j] - max).exp() / sum * f64::from(v[at(vs, j, kh, x)]))
                                    .sum();
                                let index = at(os, i, h, x);
                                let (got, tol) = if half {
                                    (o16[index].to_f32(), 2e-3)
                                } else {
                                    (o[index], 5e-6)
                                };
                                assert_close(got, want, tol, tol, &(ws.isa(), way, q_len, kv_len, b, h, i, x));
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn masked_rows() {
    for mut ws in workspaces() {
        let (s, d) = (5, 4);
        let x = vec![1.0f32; s * d];
        let v: Vec<f32> = (0..s * d).map(|i| (i / d) as f32).collect();
        let st = strides(false, s, 1, d);
        for (value, want) in [(f32::NEG_INFINITY, f64::NAN), (-1e30, 2.0)] {
            // The first row is masked as a whole.
            let mut mask = vec![0.0f32; s * s];
            mask[..s].fill(value);
            let mut o = vec![0.0f32; s * d];
            let a = Attention {
                batch: 1,
                heads: 1,
                kv_heads: 1,
                q_len: s,
                kv_len: s,
                d,
                d_v: d,
                q: view(&x, st),
                k: view(&x, st),
                v: view(&v, st),
                o: HeadViewMut {
                    ptr: o.as_mut_ptr().cast(),
                    elem: Elem::F32,
                    batch_stride: st[0],
                    seq_stride: st[1],
                    head_stride: st[2],
                    d_stride: 1,
                },
                scale: 1.0,
                mask: Some(Mask {
                    ptr: mask.as_ptr(),
                    strides: [0, 0, s as isize, 1],
                }),
                bool_mask: None,
                causal: None,
            };
            // SAFETY: the views are of the vectors' sizes.
            unsafe { attention(&mut ws, &a) };
            assert_close(o[0], want, 1e-6, 0.0, &(ws.isa(), value));
            assert_close(o[d], 2.0, 1e-6, 0.0, &(ws.isa(), value));
            // Causal with an offset that leaves the first row nothing: NaN there, and right after it.
            let a = Attention {
                causal: Some(-1),
                mask: None,
                ..a
            };
            // SAFETY: as above.
            unsafe { attention(&mut ws, &a) };
            assert!(o[0].is_nan());
            assert_close(o[d], 0.0, 0.0, 1e-6, &ws.isa());
            assert_close(o[4 * d], 1.5, 1e-6, 0.0, &ws.isa());
        }
    }
}

/// Keys behind the last that a mask shows are not read: what a cache has no tokens for may be anything.
#[test]
fn keys_that_no_row_sees_are_left_alone() {
    for mut ws in workspaces() {
        let (room, held, d) = (300, 37, 4);
        let st = strides(false, room, 1, d);
        let q = vec![0.5f32; 2 * d];
        let mut k = vec![f32::NAN; room * d];
        k[..held * d].fill(1.0);
        let mut v = vec![f32::NAN; room * d];
        (0..held * d).for_each(|i| v[i] = (i / d) as f32);
        let keeps: Vec<u8> = (0..room).map(|key| u8::from(key < held)).collect();
        let added: Vec<f32> = (0..room)
            .map(|key| if key < held { 0.0 } else { f32::NEG_INFINITY })
            .collect();
        for additive in [false, true] {
            let mut o = vec![9.0f32; 2 * d];
            let a = Attention {
                batch: 1,
                heads: 1,
                kv_heads: 1,
                q_len: 2,
                kv_len: room,
                d,
                d_v: d,
                q: view(&q, strides(false, 2, 1, d)),
                k: view(&k, st),
                v: view(&v, st),
                o: HeadViewMut {
                    ptr: o.as_mut_ptr().cast(),
                    elem: Elem::F32,
                    batch_stride: 0,
                    seq_stride: d as isize,
                    head_stride: 0,
                    d_stride: 1,
                },
                scale: 1.0,
                mask: additive.then_some(Mask {
                    ptr: added.as_ptr(),
                    strides: [0, 0, 0, 1],
                }),
                bool_mask: (!additive).then_some(BoolMask {
                    ptr: keeps.as_ptr(),
                    strides: [0, 0, 0, 1],
                }),
                causal: None,
            };
            // SAFETY: the views are of the vectors' sizes.
            unsafe { attention(&mut ws, &a) };
            for value in &o {
                assert_close(*value, 18.0, 1e-5, 0.0, &(ws.isa(), additive));
            }
        }
    }
}
