//! Attention over a cache, with sliding windows, capped scores and sinks.

use graphc::frontend::tensor::{AttentionOptions, Tensor, scaled_dot_product_attention};
use graphc::ir::{DType, Dim, Shape};

/// How scores become weights.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub scale: f64,
    pub cap: Option<f64>,
    pub window: Option<i64>,
    /// One more score for each head, of a key that has no value.
    pub sinks: Option<&'a Tensor>,
}

/// Causal attention of `q` `[1, heads, S, D]` to `k` `[1, kv_heads, T, D]` and `v` `[1, kv_heads, T, Dv]`; the last
/// query is at the last key.
#[track_caller]
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, scores: Scores<'_>) -> Tensor {
    if scores.cap.is_none() && scores.sinks.is_none() {
        let options = AttentionOptions {
            causal: true,
            window: scores.window,
            scale: Some(scores.scale),
            ..AttentionOptions::default()
        };
        return scaled_dot_product_attention(q, k, v, &options);
    }
    // The op has no caps and no sinks: the same in its parts. Queries of one group of heads are rows of one product.
    let (Ok([_, heads, queries, width]), Ok([_, kv_heads, keys, _])) = (q.dims::<4>(), k.dims::<4>()) else {
        return q.clone();
    };
    let one = Dim::Const(1);
    let group = heads.exact_div(&kv_heads).unwrap_or_else(|| one.clone());
    let grouped = q.reshape(Shape(vec![kv_heads.clone(), group.clone(), queries.clone(), width]));
    let (k, v) = (k.transpose(0, 1), v.transpose(0, 1));
    let mut capped = grouped.matmul_t(&k) * scores.scale;
    if let Some(cap) = scores.cap {
        capped = (capped * (1.0 / cap)).tanh() * cap;
    }
    let key = Tensor::arange(DType::I64, keys.clone());
    let row = Tensor::iota(DType::I64, Shape(vec![queries.clone(), one.clone()]), 0);
    let position = row + (Tensor::dim_value(keys) - Tensor::dim_value(queries));
    let mut seen = key.le(&position);
    if let Some(window) = scores.window {
        seen = seen.and((&position - &key).lt(window));
    }
    let seen = seen.select(&capped, f64::NEG_INFINITY);
    let out = match scores.sinks {
        None => seen.softmax(-1).matmul(&v),
        Some(sinks) => {
            let one = Dim::Const(1);
            let sinks = sinks.reshape(Shape(vec![kv_heads, group, one.clone(), one]));
            let most = seen.max_keep([-1]).maximum(&sinks);
            let weights = (seen - &most).exp();
            let sum = weights.sum_keep([-1]) + (sinks - most).exp();
            weights.matmul(&v) / sum
        }
    };
    match (out.dims::<4>(), heads) {
        (Ok([_, _, queries, width]), heads) => out.reshape(Shape(vec![Dim::Const(1), heads, queries, width])),
        (Err(_), _) => out,
    }
}
