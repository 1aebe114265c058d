//! Matrix products.

use ir::graph::op::Contract;
use ir::{DType, Dim, Op};

use super::Tensor;

/// Products of narrow integers are summed in `i32`; floats keep their type (and are summed in `f32` at least).
pub(super) fn product_type(dtype: DType) -> DType {
    if dtype.is_int() { dtype.accumulator() } else { dtype }
}

impl Tensor {
    /// The matrix product over the last two axes, `[…, m, k] × […, k, n] → […, m, n]`; leading axes broadcast.
    ///
    /// A vector on the left is a row, one on the right a column, as in NumPy; the axis is dropped again. Products of
    /// integers are `i32` (`i64` for `i64`).
    #[track_caller]
    #[must_use]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        if self.rank() == 0 || other.rank() == 0 {
            if other.is_poisoned() {
                return other.clone();
            }
            return self.refuse("matmul", "a scalar has no matrix product; multiply with *");
        }
        let (row, column) = (self.rank() == 1, other.rank() == 1);
        let a = if row { self.unsqueeze(0) } else { self.clone() };
        let b = if column { other.unsqueeze(1) } else { other.clone() };
        let y = a.contract(&b, false, false);
        let y = if column { y.squeeze(-1) } else { y };
        if row {
            y.squeeze(if column { -1 } else { -2 })
        } else {
            y
        }
    }

    /// The matrix product with the right operand's last two axes exchanged: `x · wᵀ`, as linear layers store weights.
    #[track_caller]
    #[must_use]
    pub fn matmul_t(&self, other: &Tensor) -> Tensor {
        self.contract(other, false, true)
    }

    /// `x · weightᵀ + bias` with the weight `[out, in]`.
    #[track_caller]
    #[must_use]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let y = if self.rank() == 1 && !self.is_poisoned() {
            self.unsqueeze(0).matmul_t(weight).squeeze(0)
        } else {
            self.matmul_t(weight)
        };
        match bias {
            Some(bias) => y + bias,
            None => y,
        }
    }

    /// The outer product of two vectors: `[m] × [n] → [m, n]`.
    #[track_caller]
    #[must_use]
    pub fn outer(&self, other: &Tensor) -> Tensor {
        self.unsqueeze(1) * other.unsqueeze(0)
    }

    #[track_caller]
    pub(super) fn contract(&self, other: &Tensor, transpose_lhs: bool, transpose_rhs: bool) -> Tensor {
        let out = product_type(self.dtype());
        Tensor::op(
            Op::Contract(Contract {
                transpose_lhs,
                transpose_rhs,
                out,
            }),
            &[self, other],
        )
    }

    /// The size of the last axis as a number.
    pub(super) fn last_size(&self) -> Option<i64> {
        self.shape().last().and_then(Dim::as_const)
    }
}
