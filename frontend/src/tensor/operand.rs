//! What methods take besides tensors: numbers in a tensor's place, and lists of axes.

use ir::{DType, Scalar};

use super::{Tensor, TensorError};

/// A tensor, or a number that becomes a scalar of the other operand's element type.
#[derive(Clone, Debug)]
pub enum Operand {
    Tensor(Tensor),
    Number(Scalar),
}

impl From<Tensor> for Operand {
    fn from(t: Tensor) -> Operand {
        Operand::Tensor(t)
    }
}
impl From<&Tensor> for Operand {
    fn from(t: &Tensor) -> Operand {
        Operand::Tensor(t.clone())
    }
}
impl From<f32> for Operand {
    fn from(v: f32) -> Operand {
        Operand::Number(Scalar::Float(v.into()))
    }
}
impl From<f64> for Operand {
    fn from(v: f64) -> Operand {
        Operand::Number(Scalar::Float(v))
    }
}
impl From<i32> for Operand {
    fn from(v: i32) -> Operand {
        Operand::Number(Scalar::Int(v.into()))
    }
}
impl From<i64> for Operand {
    fn from(v: i64) -> Operand {
        Operand::Number(Scalar::Int(v))
    }
}
impl From<bool> for Operand {
    fn from(v: bool) -> Operand {
        Operand::Number(Scalar::Bool(v))
    }
}
impl From<Scalar> for Operand {
    fn from(v: Scalar) -> Operand {
        Operand::Number(v)
    }
}

impl Operand {
    /// Returns the tensor, or the number as a scalar of the type of `like`.
    #[track_caller]
    pub(super) fn tensor(self, op: &'static str, like: &Tensor) -> Tensor {
        match self {
            Operand::Tensor(t) => t,
            Operand::Number(value) if like.is_poisoned() => Tensor::literal(DType::F32, value),
            Operand::Number(value) if fits(value, like.dtype()) => Tensor::literal(like.dtype(), value),
            Operand::Number(value) => Tensor::poisoned(*like.argument(
                op,
                format!("the number {value} does not fit {}; cast the tensor", like.dtype()),
            )),
        }
    }
}

/// Whole numbers fit floats; fractions and NaN do not fit integers; only bools fit bool.
fn fits(value: Scalar, dtype: DType) -> bool {
    match value {
        Scalar::Bool(_) => dtype == DType::Bool,
        Scalar::Int(_) => dtype != DType::Bool,
        Scalar::Float(_) => dtype.is_float(),
    }
}

/// One axis, a list of axes, or `..` for all; negative axes count from the end.
pub trait IntoAxes {
    /// Returns the axes, sorted, each once.
    ///
    /// # Errors
    /// An axis that the tensor does not have, or one named twice.
    #[track_caller]
    fn axes(self, op: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>>;
}

impl IntoAxes for isize {
    fn axes(self, op: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>> {
        list(&[self], op, tensor)
    }
}
impl<const N: usize> IntoAxes for [isize; N] {
    fn axes(self, op: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>> {
        list(&self, op, tensor)
    }
}
impl IntoAxes for &[isize] {
    fn axes(self, op: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>> {
        list(self, op, tensor)
    }
}
impl IntoAxes for std::ops::RangeFull {
    fn axes(self, _: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>> {
        Ok((0..tensor.rank()).collect())
    }
}

#[track_caller]
fn list(axes: &[isize], op: &'static str, tensor: &Tensor) -> Result<Vec<usize>, Box<TensorError>> {
    let mut found = Vec::with_capacity(axes.len());
    for axis in axes {
        found.push(tensor.axis(op, *axis)?);
    }
    found.sort_unstable();
    match found.windows(2).find(|w| w[0] == w[1]) {
        None => Ok(found),
        Some(twice) => Err(tensor.argument(op, format!("axis {} is named twice", twice[0]))),
    }
}
