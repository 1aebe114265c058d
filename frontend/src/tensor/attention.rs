//! Attention and rotary position embedding.

use ir::graph::op::Composite;
use ir::{DType, Dim, Op, Scalar, Shape};

use super::{Tensor, cat};

/// What [`scaled_dot_product_attention`] takes besides queries, keys and values.
#[derive(Clone, Default, Debug)]
pub struct AttentionOptions {
    /// Broadcasts to `[B, H, S, T]`: a float mask is added to the scores, a bool mask keeps where true.
    pub mask: Option<Tensor>,
    /// Position `i` sees keys `0..=i + T − S`.
    pub causal: bool,
    /// Factor of the scores; `1/√D` by default.
    pub scale: Option<f64>,
}

/// `softmax(q · kᵀ · scale + mask) · v`.
///
/// A query that sees no key at all (each is hidden by −∞ or `false`) gives NaN, as the softmax does; add a large negative number
/// in place of −∞ where that may happen.
///
/// q is `[B, H, S, D]`, k `[B, Hkv, T, D]` and v `[B, Hkv, T, Dv]`, where `Hkv` divides `H`; the result is `[B, H, S, Dv]`.
#[track_caller]
pub fn scaled_dot_product_attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions) -> Tensor {
    let scale = match (options.scale, q.last_size()) {
        (Some(scale), _) => scale,
        (None, Some(width)) => 1.0 / (width as f64).sqrt(),
        (None, None) => return q.refuse("attention", "the head size is symbolic, so the scale must be given"),
    };
    let mask = options.mask.is_some();
    let op = Op::Composite(Composite::Attention {
        scale: Scalar::Float(scale),
        causal: options.causal,
        mask,
        scales: false,
    });
    match &options.mask {
        Some(mask) => Tensor::op(op, &[q, k, v, mask]),
        None => Tensor::op(op, &[q, k, v]),
    }
}

/// The cosines and sines of rotary position embedding (Su et al., RoFormer), each `[…positions, width]`, in `f32`.
///
/// `width` is the even head size; frequency `i` is `theta^(−2i/width)`, and the two halves of the last axis are alike, as
/// [`apply_rotary`] takes them.
#[track_caller]
pub fn rotary_tables(positions: &Tensor, width: i64, theta: f64) -> (Tensor, Tensor) {
    let half = Tensor::arange(DType::F32, width / 2);
    let frequencies = (half * (-2.0 * theta.ln() / width as f64)).exp();
    let angles = positions.cast(DType::F32).unsqueeze(-1) * frequencies;
    let angles = cat(&[&angles, &angles], -1);
    (angles.cos(), angles.sin())
}

/// Rotates pairs of elements of the last axis, in the half-split order of Llama and GPT-NeoX: `x · cos + rotate(x) · sin`
/// with `rotate([a, b]) = [−b, a]`. The tables broadcast to `x`.
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
