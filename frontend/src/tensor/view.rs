//! Other shapes of the same elements: nothing is computed, and a compiled program rarely moves anything either.

use ir::graph::op::View;
use ir::{Dim, Op, Shape};

use super::{Tensor, axis};

impl Tensor {
    /// Gives the elements another shape in row-major order; one dim may be -1 and is what remains.
    ///
    /// ```
    /// # use graphc_frontend::{tensor::Tensor, shape, DType};
    /// let x = Tensor::input("x", DType::F32, shape!["batch", "seq", 64]);
    /// assert_eq!(x.reshape(shape![-1, 64]).shape().to_string(), "[batch*seq, 64]");
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        let mut shape = shape.into();
        if shape.iter().filter(|d| d.is(-1)).count() > 1 {
            return self.refuse("reshape", format!("{shape} has more than one -1"));
        }
        if let Some(at) = shape.iter().position(|d| d.is(-1)) {
            let known: Dim = shape.iter().filter(|d| !d.is(-1)).cloned().product();
            match self.shape().elements().exact_div(&known) {
                Some(rest) if !known.is(0) => shape.0[at] = rest,
                _ => {
                    let elements = self.shape().elements();
                    return self.refuse(
                        "reshape",
                        format!("{elements} elements do not divide by {known}, so -1 in {shape} has no size"),
                    );
                }
            }
        }
        if shape == *self.shape() {
            return self.clone();
        }
        Tensor::op(Op::View(View::Reshape(shape)), &[self])
    }

    /// Exchanges two axes.
    #[track_caller]
    #[must_use]
    pub fn transpose(&self, a: isize, b: isize) -> Tensor {
        let (a, b) = (axis!(self, "transpose", a), axis!(self, "transpose", b));
        let mut perm: Vec<usize> = (0..self.rank()).collect();
        perm.swap(a, b);
        Tensor::op(Op::View(View::Transpose(perm)), &[self])
    }

    /// Exchanges the last two axes.
    #[track_caller]
    #[must_use]
    pub fn t(&self) -> Tensor {
        self.transpose(-2, -1)
    }

    /// Reorders axes: axis `i` of the result is axis `perm[i]`.
    #[track_caller]
    #[must_use]
    pub fn permute(&self, perm: &[isize]) -> Tensor {
        let mut resolved = Vec::with_capacity(perm.len());
        for p in perm {
            resolved.push(axis!(self, "permute", *p));
        }
        Tensor::op(Op::View(View::Transpose(resolved)), &[self])
    }

    /// Removes an axis of size 1.
    #[track_caller]
    #[must_use]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        let at = axis!(self, "squeeze", axis);
        let mut shape = self.shape().clone();
        let dim = shape.0.remove(at);
        if !dim.is(1) {
            return self.refuse("squeeze", format!("axis {axis} has size {dim}, not 1"));
        }
        self.reshape(shape)
    }

    /// Adds an axis of size 1, which becomes axis `axis` of the result.
    #[track_caller]
    #[must_use]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        match self.new_axis("unsqueeze", axis, 1) {
            Ok(at) => {
                let mut shape = self.shape().clone();
                shape.0.insert(at, Dim::Const(1));
                self.reshape(shape)
            }
            Err(error) => self.poison_with(error),
        }
    }

    /// Repeats axes of size 1 (and new leading ones) to the shape; a dim of -1 keeps its size.
    #[track_caller]
    #[must_use]
    pub fn expand(&self, shape: impl Into<Shape>) -> Tensor {
        let mut shape = shape.into();
        let new = shape.rank().saturating_sub(self.rank());
        for (i, dim) in shape.0.iter_mut().enumerate() {
            if dim.is(-1) {
                match i.checked_sub(new).and_then(|i| self.shape().get(i)) {
                    Some(kept) => *dim = kept.clone(),
                    None => {
                        return self.refuse(
                            "expand",
                            format!("-1 stands for axis {i}, which the operand does not have"),
                        );
                    }
                }
            }
        }
        if shape == *self.shape() && !self.is_poisoned() {
            return self.clone();
        }
        Tensor::op(Op::View(View::Broadcast(shape)), &[self])
    }

    /// Joins axes `first..=last` into one.
    #[track_caller]
    #[must_use]
    pub fn flatten(&self, first: isize, last: isize) -> Tensor {
        let (a, b) = (axis!(self, "flatten", first), axis!(self, "flatten", last));
        if a > b {
            return self.refuse("flatten", format!("axis {first} is behind axis {last}"));
        }
        let mut shape = self.shape().clone();
        let joined: Dim = shape.0.drain(a..=b).product();
        shape.0.insert(a, joined);
        self.reshape(shape)
    }

    /// Splits an axis into several, row-major; one of the sizes may be -1.
    #[track_caller]
    #[must_use]
    pub fn unflatten(&self, axis: isize, sizes: impl Into<Shape>) -> Tensor {
        let at = axis!(self, "unflatten", axis);
        let mut sizes = sizes.into();
        let dim = self.shape()[at].clone();
        if let Some(open) = sizes.iter().position(|d| d.is(-1)) {
            let known: Dim = sizes.iter().filter(|d| !d.is(-1)).cloned().product();
            match dim.exact_div(&known) {
                Some(rest) if !known.is(0) => sizes.0[open] = rest,
                _ => {
                    return self.refuse(
                        "unflatten",
                        format!("axis {axis} of size {dim} does not split into {sizes}"),
                    );
                }
            }
        }
        if sizes.elements() != dim {
            return self.refuse(
                "unflatten",
                format!("axis {axis} of size {dim} does not split into {sizes}"),
            );
        }
        let mut shape = self.shape().clone();
        shape.0.splice(at..=at, sizes.0);
        self.reshape(shape)
    }
}
