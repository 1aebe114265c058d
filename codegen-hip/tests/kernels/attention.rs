//! Attention.

use ir::DType;
use ir::kernel::{AttentionBody, Body, Kernel, KeyRange, Mapping, Weights};
use ir::op::BinaryOp;

use super::{Build, F32};

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub struct Heads {
    pub heads: i64,
    pub queries: i64,
    pub keys: i64,
    pub d: i64,
    pub dv: i64,
    pub causal: bool,
    pub mask: bool,
}

/// Attention over `[head, position, d]` with a scale, optionally a mask to add and the causal one.
pub fn attention(name: &str, dtype: DType, h: Heads, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let q_data = b.read("q_data", dtype, h.heads * h.queries * h.d);
    let k_data = b.read("k_data", dtype, h.heads * h.keys * h.d);
    let v_data = b.read("v_data", dtype, h.heads * h.keys * h.dv);
    let mask = b.read("mask", F32, h.queries * h.keys);
    let out_data = b.write("out", dtype, h.heads * h.queries * h.dv);
    let head = b.axis("head", h.heads);
    let (q, k, d, dv) = (
        b.axis("query", h.queries),
        b.axis("key", h.keys),
        b.axis("d", h.d),
        b.axis("dv", h.dv),
    );
    let (ah, aq, ak, ad, av) = (b.at(head), b.at(q), b.at(k), b.at(d), b.at(dv));
    let qi = b.linear(&[(ah, (h.queries * h.d).into()), (aq, h.d.into()), (ad, 1.into())]);
    let ki = b.linear(&[(ah, (h.keys * h.d).into()), (ak, h.d.into()), (ad, 1.into())]);
    let vi = b.linear(&[(ah, (h.keys * h.dv).into()), (ak, h.dv.into()), (av, 1.into())]);
    let (query, key, value) = (b.load(q_data, qi), b.load(k_data, ki), b.load(v_data, vi));
    let acc = b.var(F32);
    let dot = b.value(acc);
    let scale = b.float(1.0 / (h.d as f64).sqrt());
    let mut score = b.bin(BinaryOp::Mul, dot, scale);
    let mut range = None;
    if h.mask {
        let at = b.linear(&[(aq, h.keys.into()), (ak, 1.into())]);
        let m = b.load(mask, at);
        score = b.bin(BinaryOp::Add, score, m);
    }
    if h.causal {
        let reach = b.int(h.keys - h.queries);
        let limit = b.bin(BinaryOp::Add, aq, reach);
        let seen = b.bin(BinaryOp::Le, ak, limit);
        let (low, one) = (b.float(f64::NEG_INFINITY), b.int(1));
        let end = b.bin(BinaryOp::Add, limit, one);
        range = Some(KeyRange {
            first: None,
            end: Some(end),
            inside: score,
            nothing: None,
        });
        score = b.select(seen, score, low);
    }
    let out = b.var(F32);
    let e = b.value(out);
    let oi = b.linear(&[(ah, (h.queries * h.dv).into()), (aq, h.dv.into()), (av, 1.into())]);
    let store = b.store(out_data, oi, e, &[]);
    b.done(Body::Attention(AttentionBody {
        batch: vec![head],
        q,
        k,
        d,
        dv,
        query,
        key,
        value,
        acc,
        score,
        weights: Weights::Softmax,
        out,
        epilogue: vec![store],
        row_weights: None,
        range,
    }))
}

/// Heads of several sizes, causal and masked.
pub fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (i, (h, block_q, block_k, block)) in [
        (
            Heads {
                heads: 2,
                queries: 37,
                keys: 45,
                d: 16,
                dv: 16,
                causal: false,
                mask: false,
            },
            32,
            32,
            256,
        ),
        (
            Heads {
                heads: 1,
                queries: 33,
                keys: 33,
                d: 20,
                dv: 12,
                causal: true,
                mask: false,
            },
            16,
            16,
            128,
        ),
        (
            Heads {
                heads: 3,
                queries: 9,
                keys: 21,
                d: 8,
                dv: 24,
                causal: true,
                mask: true,
            },
            8,
            32,
            128,
        ),
        (
            Heads {
                heads: 1,
                queries: 1,
                keys: 50,
                d: 64,
                dv: 64,
                causal: false,
                mask: true,
            },
            4,
            32,
            128,
        ),
        (
            Heads {
                heads: 1,
                queries: 5,
                keys: 7,
                d: 8,
                dv: 8,
                causal: false,
                mask: false,
            },
            2,
            1,
            64,
        ),
        (
            Heads {
                heads: 2,
                queries: 18,
                keys: 18,
                d: 32,
                dv: 32,
                causal: true,
                mask: false,
            },
            16,
            32,
            256,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mapping = Mapping::Flash {
            block_q,
            block_k,
            block,
            together: ir::kernel::AttentionOrder([1, 2, 3, 1, 64, 2][i]),
        };
        kernels.push(attention(
            &format!("attention_{i}"),
            [F32, DType::F16, F32, F32, F32, DType::BF16][i],
            h,
            mapping,
        ));
    }
    kernels
}
