//! Folds over axes: an axis, a list of axes, or `..` for all. The `_keep` forms keep folded axes with size 1.

use ir::graph::op::ReduceOp;
use ir::{DType, Op};

use super::{IntoAxes, Tensor, axis};

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $keep:ident => $op:ident),+ $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(&self, axes: impl IntoAxes) -> Tensor {
                self.reduce(stringify!($name), ReduceOp::$op, axes, false)
            }
            $(#[$doc])*
            /// Folded axes stay with size 1.
            #[track_caller]
            #[must_use]
            pub fn $keep(&self, axes: impl IntoAxes) -> Tensor {
                self.reduce(stringify!($keep), ReduceOp::$op, axes, true)
            }
        )+}
    };
}

reductions! {
    /// The sum; integers and bools are added up as `i64`, as NumPy and PyTorch do it.
    sum sum_keep => Sum,
    /// The arithmetic mean of floats. Integers are refused, as PyTorch does it: cast them first.
    mean mean_keep => Mean,
    /// The product; integers and bools are multiplied as `i64`, as NumPy and PyTorch do it.
    prod prod_keep => Prod,
    /// The largest; NaN if any is NaN.
    max max_keep => Max,
    /// The smallest; NaN if any is NaN.
    min min_keep => Min,
    /// Whether all of a bool tensor are true.
    all all_keep => All,
    /// Whether any of a bool tensor is true.
    any any_keep => Any,
}

impl Tensor {
    #[track_caller]
    fn reduce(&self, name: &'static str, op: ReduceOp, axes: impl IntoAxes, keep_dims: bool) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        let operand = match self.widened(name, op) {
            Ok(operand) => operand,
            Err(refused) => return refused,
        };
        match axes.axes(name, self) {
            // The fold of no axes is the identity.
            Ok(axes) if axes.is_empty() => operand,
            Ok(axes) => Tensor::op(Op::Reduce { op, axes, keep_dims }, &[&operand]),
            Err(error) => Tensor::poisoned(*error),
        }
    }

    /// The tensor in the type that a fold computes in: a sum or product of integers would soon wrap in fewer than 64
    /// bits, and a mean of integers would lose its fraction.
    #[track_caller]
    pub(super) fn widened(&self, name: &'static str, op: ReduceOp) -> Result<Tensor, Tensor> {
        let dtype = self.dtype();
        match op {
            ReduceOp::Sum | ReduceOp::Prod if !dtype.is_float() => Ok(self.cast(DType::I64)),
            ReduceOp::Mean if !dtype.is_float() => {
                let why = format!("the mean of {dtype} has fractions; cast the tensor to a float type");
                Err(Tensor::poisoned(*self.argument(name, why)))
            }
            _ => Ok(self.clone()),
        }
    }

    /// The `i64` position of the largest element along an axis; the first of equals.
    #[track_caller]
    #[must_use]
    pub fn argmax(&self, axis: isize) -> Tensor {
        let axis = axis!(self, "argmax", axis);
        Tensor::op(
            Op::Reduce {
                op: ReduceOp::ArgMax,
                axes: vec![axis],
                keep_dims: false,
            },
            &[self],
        )
    }

    /// The `i64` position of the smallest element along an axis; the first of equals.
    #[track_caller]
    #[must_use]
    pub fn argmin(&self, axis: isize) -> Tensor {
        let axis = axis!(self, "argmin", axis);
        Tensor::op(
            Op::Reduce {
                op: ReduceOp::ArgMin,
                axes: vec![axis],
                keep_dims: false,
            },
            &[self],
        )
    }

    /// The variance of the population, `mean((x − mean)²)`, as NumPy's default; folded axes stay with size 1.
    #[track_caller]
    #[must_use]
    pub fn var_keep(&self, axes: impl IntoAxes) -> Tensor {
        match axes.axes("var", self) {
            Ok(axes) => {
                let axes: Vec<isize> = axes.into_iter().map(|a| a as isize).collect();
                self.in_f32(|x| (x - x.mean_keep(&axes[..])).square().mean_keep(&axes[..]))
            }
            Err(error) => self.poison_with(error),
        }
    }

    /// The variance of the population, `mean((x − mean)²)`, as NumPy's default.
    #[track_caller]
    #[must_use]
    pub fn var(&self, axes: impl IntoAxes) -> Tensor {
        match axes.axes("var", self) {
            Ok(axes) => {
                let axes: Vec<isize> = axes.into_iter().map(|a| a as isize).collect();
                self.in_f32(|x| (x - x.mean_keep(&axes[..])).square().mean(&axes[..]))
            }
            Err(error) => self.poison_with(error),
        }
    }

    /// The standard deviation of the population.
    #[track_caller]
    #[must_use]
    pub fn std(&self, axes: impl IntoAxes) -> Tensor {
        match axes.axes("std", self) {
            Ok(axes) => {
                let axes: Vec<isize> = axes.into_iter().map(|a| a as isize).collect();
                self.in_f32(|x| x.var(&axes[..]).sqrt())
            }
            Err(error) => self.poison_with(error),
        }
    }

    /// The Euclidean norm.
    #[track_caller]
    #[must_use]
    pub fn norm_keep(&self, axes: impl IntoAxes) -> Tensor {
        match axes.axes("norm", self) {
            Ok(axes) => {
                let axes: Vec<isize> = axes.into_iter().map(|a| a as isize).collect();
                self.in_f32(|x| x.square().sum_keep(&axes[..]).sqrt())
            }
            Err(error) => self.poison_with(error),
        }
    }

    /// Divides by the Euclidean norm along an axis, which is taken as at least `epsilon`.
    #[track_caller]
    #[must_use]
    pub fn normalize(&self, axis: isize, epsilon: f64) -> Tensor {
        self.in_f32(|x| x / &x.norm_keep(axis).maximum(epsilon))
    }

    /// `ln Σ eˣ`, computed without overflow: +∞ where an element is, and -∞ where all are.
    #[track_caller]
    #[must_use]
    pub fn logsumexp(&self, axis: isize) -> Tensor {
        self.in_f32(|x| {
            let largest = x.max_keep(axis);
            // Infinity less infinity is no number.
            let shift = largest.is_inf().select(0.0, &largest);
            (x - &shift).exp().sum(axis).log() + shift.squeeze(axis)
        })
    }

    /// Computes in `f32` what a narrower float has too few digits or too small a range for on the way, as squares.
    #[track_caller]
    fn in_f32(&self, compute: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        match self.dtype() {
            narrow if narrow.is_float() && narrow.bits() < 32 => compute(&self.cast(DType::F32)).cast(narrow),
            _ => compute(self),
        }
    }
}
