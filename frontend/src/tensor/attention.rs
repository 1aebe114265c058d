//! Attention and rotary position embedding.

use ir::graph::op::Composite;
use ir::{DType, Dim, Op, Scalar, Shape};

use super::{Tensor, cat};

/// What [`scaled_dot_product_attention`] takes besides queries, keys and values.
#[derive(Clone, Default, Debug)]
pub struct AttentionOptions {
    /// Broadcasts to `[B, H, S, T]`: a float mask is added to the scores, a bool mask keeps where true.
    pub mask: Option<Tensor>,
    /// A query sees no key behind its own position, which is `i + T − S` for query `i`.
    pub causal: bool,
    /// A query sees only keys that are fewer than so many positions before its own (a sliding window): with `causal`,
    /// that many keys.
    pub window: Option<i64>,
    /// Integers `[B]`: how many keys each sequence has; the rest of its keys is padding that nobody sees. Query `i` is
    /// then at position `i + length − S`, so that the last query is at the last key.
    pub lengths: Option<Tensor>,
    /// Factor of the scores; `1/√D` by default.
    pub scale: Option<f64>,
}

/// `softmax(q · kᵀ · scale + mask) · v`.
///
/// A query that sees no key at all (each is hidden by −∞ or `false`) gives NaN, as the softmax does; add a large
/// negative number in place of −∞ where that may happen.
///
/// q is `[B, H, S, D]`, k `[B, Hkv, T, D]` and v `[B, Hkv, T, Dv]`, where `Hkv` divides `H`; the result is
/// `[B, H, S, Dv]`.
#[track_caller]
pub fn scaled_dot_product_attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions) -> Tensor {
    let scale = match (options.scale, q.last_size()) {
        (Some(scale), _) => scale,
        (None, Some(width)) => 1.0 / (width as f64).sqrt(),
        (None, None) => return q.refuse("attention", "the head size is symbolic, so the scale must be given"),
    };
    let seen = match (&q.shape()[..], &k.shape()[..]) {
        ([_, _, queries, _], [_, _, keys, _]) => seen(options, queries, keys),
        // The op says what is wrong.
        _ => None,
    };
    let causal = options.causal && seen.is_none();
    let mask = match (seen, &options.mask) {
        (None, mask) => mask.clone(),
        (Some(seen), None) => Some(seen),
        (Some(seen), Some(mask)) if mask.dtype() == DType::Bool => Some(seen.and(mask)),
        (Some(seen), Some(mask)) => Some(seen.select(mask, f64::NEG_INFINITY)),
    };
    let op = Op::Composite(Composite::Attention {
        scale: Scalar::Float(scale),
        causal,
        mask: mask.is_some(),
        scales: false,
    });
    match &mask {
        Some(mask) => Tensor::op(op, &[q, k, v, mask]),
        None => Tensor::op(op, &[q, k, v]),
    }
}

/// The keys that a window and lengths leave, as bool `[B or 1, 1, S, T]` or what broadcasts to it; `None` where there
/// are neither.
fn seen(options: &AttentionOptions, queries: &Dim, keys: &Dim) -> Option<Tensor> {
    if options.window.is_none() && options.lengths.is_none() {
        return None;
    }
    let key = Tensor::arange(DType::I64, keys.clone());
    let ends = match &options.lengths {
        Some(lengths) => {
            lengths
                .cast(DType::I64)
                .reshape(Shape(vec![Dim::Const(-1), Dim::Const(1), Dim::Const(1), Dim::Const(1)]))
        }
        None => Tensor::dim_value(keys.clone()),
    };
    let query = Tensor::iota(DType::I64, Shape(vec![queries.clone(), Dim::Const(1)]), 0);
    let position = query + (&ends - Tensor::dim_value(queries.clone()));
    let conditions = [
        options.causal.then(|| key.le(&position)),
        // Behind a causal query there is no key of the sequence's.
        (options.lengths.is_some() && !options.causal).then(|| key.lt(&ends)),
        options.window.map(|window| (&position - &key).lt(window)),
    ];
    conditions.into_iter().flatten().reduce(|all, next| all.and(&next))
}

/// Keys or values that lie in pages, as attention takes them: a pool `[pages, page, heads, width]` and the table
/// `[B, entries]` of the pages that each sequence has, in order, give `[B, heads, entries · page, width]`.
///
/// Nothing is copied: on a GPU, an attention that reads the result looks each page up. Sequences may share pages. What
/// entries behind the last key of a sequence name is hidden by [`AttentionOptions::lengths`]; where indices are checked
/// (as on the CPU), they must name a page.
///
/// ```
/// # use graphc_frontend::{tensor::*, shape, DType};
/// let q = Tensor::input("q", DType::F16, shape!["b", 32, 1, 128]);
/// let pools = ["keys", "values"].map(|name| Tensor::input(name, DType::F16, shape![1000, 64, 8, 128]));
/// let table = Tensor::input("table", DType::I32, shape!["b", 64]);
/// let [k, v] = pools.map(|pool| paged_cache(&pool, &table));
/// let lengths = Some(Tensor::input("lengths", DType::I32, shape!["b"]));
/// let options = AttentionOptions { causal: true, lengths, ..AttentionOptions::default() };
/// let y = scaled_dot_product_attention(&q, &k, &v, &options);
/// assert_eq!(y.ty().to_string(), "f16[b, 32, 1, 128]");
/// ```
#[track_caller]
pub fn paged_cache(pool: &Tensor, table: &Tensor) -> Tensor {
    let pages = pool.take(0, table);
    let [batch, entries, page, heads, width] = &pages.shape()[..] else {
        return pages.refuse(
            "paged_cache",
            "the pool is [pages, page, heads, width] and the table [batch, entries]",
        );
    };
    let keys = entries.clone() * page;
    let whole = Shape(vec![batch.clone(), keys, heads.clone(), width.clone()]);
    pages.reshape(whole).transpose(1, 2)
}

/// The cosines and sines of rotary position embedding (Su et al., RoFormer), each `[…positions, width]`, in `f32`.
///
/// `width` is the even head size; frequency `i` is `theta^(−2i/width)`, and the two halves of the last axis are alike,
/// as [`apply_rotary`] takes them.
#[track_caller]
pub fn rotary_tables(positions: &Tensor, width: i64, theta: f64) -> (Tensor, Tensor) {
    let half = Tensor::arange(DType::F32, width / 2);
    let frequencies = (half * (-2.0 * theta.ln() / width as f64)).exp();
    let angles = positions.cast(DType::F32).unsqueeze(-1) * frequencies;
    let angles = cat(&[&angles, &angles], -1);
    (angles.cos(), angles.sin())
}

/// Rotates pairs of elements of the last axis, in the half-split order of Llama and GPT-NeoX:
/// `x · cos + rotate(x) · sin` with `rotate([a, b]) = [−b, a]`. The tables broadcast to `x`.
#[track_caller]
pub fn apply_rotary(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let [a, b] = x.chunk::<2>(-1);
    let rotated = cat(&[&-b, &a], -1);
    x * cos + rotated * sin
}

impl Tensor {
    /// Splits `[B, S, H·D]` into heads, `[B, H, S, D]`.
    #[track_caller]
    #[must_use]
    pub fn split_heads(&self, heads: i64) -> Tensor {
        self.unflatten(-1, Shape(vec![Dim::Const(heads), Dim::Const(-1)]))
            .transpose(-3, -2)
    }

    /// Joins heads, `[B, H, S, D] → [B, S, H·D]`.
    #[track_caller]
    #[must_use]
    pub fn merge_heads(&self) -> Tensor {
        self.transpose(-3, -2).flatten(-2, -1)
    }
}
