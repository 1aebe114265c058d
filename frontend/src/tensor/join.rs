//! Several tensors to one, and one to several.

use ir::graph::op::View;
use ir::{Dim, Op, Origin};

use super::{Tensor, TensorError, axis};

/// Joins tensors along an axis; the other sizes must be equal.
#[track_caller]
pub fn cat(tensors: &[&Tensor], axis: isize) -> Tensor {
    let Some(first) = tensors.first() else {
        return nothing("cat");
    };
    let axis = axis!(first, "cat", axis);
    Tensor::op(Op::View(View::Concat { axis }), tensors)
}

/// Joins tensors of one shape along a new axis.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
    if tensors.is_empty() {
        return nothing("stack");
    }
    let mut wide = Vec::with_capacity(tensors.len());
    for t in tensors {
        wide.push(t.unsqueeze(axis));
    }
    cat(&wide.iter().collect::<Vec<_>>(), axis)
}

#[track_caller]
fn nothing(op: &'static str) -> Tensor {
    Tensor::poisoned(TensorError::Argument {
        op,
        operand: ir::TensorType::new(ir::DType::F32, ir::Shape::SCALAR),
        origin: Origin::caller(),
        message: "there are no tensors to join".to_owned(),
    })
}

impl Tensor {
    /// Cuts an axis into parts of the given sizes, which must add up to it.
    #[track_caller]
    #[must_use]
    pub fn split<const N: usize>(&self, axis: isize, sizes: [i64; N]) -> [Tensor; N] {
        let at = match self.axis("split", axis) {
            Ok(at) => at,
            Err(error) => return std::array::from_fn(|_| self.poison_with(error.clone())),
        };
        let total: i64 = sizes.iter().sum();
        if !self.shape()[at].is(total) {
            let message = format!(
                "the sizes {sizes:?} add up to {total}, but axis {axis} has size {}",
                self.shape()[at]
            );
            let refused = self.refuse("split", message);
            return std::array::from_fn(|_| refused.clone());
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(N);
        for size in sizes {
            parts.push(self.narrow(axis, start, size));
            start += size;
        }
        let mut parts = parts.into_iter();
        std::array::from_fn(|_| parts.next().unwrap_or_else(|| self.clone()))
    }

    /// Cuts an axis into `N` equal parts; the size must divide, whatever its symbols are.
    #[track_caller]
    #[must_use]
    pub fn chunk<const N: usize>(&self, axis: isize) -> [Tensor; N] {
        let at = match self.axis("chunk", axis) {
            Ok(at) => at,
            Err(error) => return std::array::from_fn(|_| self.poison_with(error.clone())),
        };
        let Some(size) = self.shape()[at].exact_div(&Dim::from(N)) else {
            let message = format!(
                "axis {axis} of size {} does not divide into {N} equal parts",
                self.shape()[at]
            );
            let refused = self.refuse("chunk", message);
            return std::array::from_fn(|_| refused.clone());
        };
        let mut parts = Vec::with_capacity(N);
        for i in 0..N {
            parts.push(self.narrow(axis, size.clone() * i, size.clone()));
        }
        let mut parts = parts.into_iter();
        std::array::from_fn(|_| parts.next().unwrap_or_else(|| self.clone()))
    }
}
