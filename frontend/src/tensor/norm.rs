//! Softmax and normalisations. Statistics are computed in `f32` at least.

use ir::graph::op::{Composite, Layout};
use ir::{Op, Scalar};

use super::{Tensor, axis};

impl Tensor {
    /// `exp(x − max) / Σ exp(x − max)` along an axis.
    #[track_caller]
    #[must_use]
    pub fn softmax(&self, axis: isize) -> Tensor {
        let axis = axis!(self, "softmax", axis);
        Tensor::op(Op::Composite(Composite::Softmax { axis }), &[self])
    }

    /// The logarithm of [`Tensor::softmax`], computed without underflow.
    #[track_caller]
    #[must_use]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let axis = axis!(self, "log_softmax", axis);
        Tensor::op(Op::Composite(Composite::LogSoftmax { axis }), &[self])
    }

    /// Normalises the last axes, as many as the scale has (one without a scale), to mean 0 and variance 1; then
    /// `· scale + bias`.
    #[track_caller]
    #[must_use]
    pub fn layer_norm(&self, scale: Option<&Tensor>, bias: Option<&Tensor>, epsilon: f64) -> Tensor {
        let over = scale.map_or(1, |s| if s.is_poisoned() { 1 } else { s.rank() });
        let axis = axis!(self, "layer_norm", -(over as isize));
        let op = Op::Composite(Composite::LayerNorm {
            axis,
            epsilon: Scalar::Float(epsilon),
        });
        match (scale, bias) {
            (Some(scale), Some(bias)) => Tensor::op(op, &[self, scale, bias]),
            (Some(scale), None) => Tensor::op(op, &[self, scale]),
            (None, Some(bias)) => Tensor::op(op, &[self]) + bias,
            (None, None) => Tensor::op(op, &[self]),
        }
    }

    /// Divides the last axis by its root mean square; then `· scale`.
    #[track_caller]
    #[must_use]
    pub fn rms_norm(&self, scale: Option<&Tensor>, epsilon: f64) -> Tensor {
        let axis = axis!(self, "rms_norm", -1);
        let op = Op::Composite(Composite::RmsNorm {
            axis,
            epsilon: Scalar::Float(epsilon),
        });
        match scale {
            Some(scale) => Tensor::op(op, &[self, scale]),
            None => Tensor::op(op, &[self]),
        }
    }

    /// Normalises the channels of `[N, C, …]` with stored statistics; all four are `[C]`.
    #[track_caller]
    #[must_use]
    pub fn batch_norm(&self, scale: &Tensor, bias: &Tensor, mean: &Tensor, variance: &Tensor, epsilon: f64) -> Tensor {
        let op = Composite::BatchNorm {
            epsilon: Scalar::Float(epsilon),
            layout: Layout::ChannelsFirst,
        };
        Tensor::op(Op::Composite(op), &[self, scale, bias, mean, variance])
    }

    /// Normalises each group of channels of each sample of `[N, C, …]`; scale and bias are `[C]`.
    #[track_caller]
    #[must_use]
    pub fn group_norm(&self, groups: i64, scale: &Tensor, bias: &Tensor, epsilon: f64) -> Tensor {
        let op = Composite::GroupNorm {
            groups,
            epsilon: Scalar::Float(epsilon),
        };
        Tensor::op(Op::Composite(op), &[self, scale, bias])
    }
}
