//! Picking, placing and ordering by index. Negative indices count from the end.
//!
//! An index out of range is an error: where the indices are data of the program, of the op; else of the run, on the CPU
//! always and on GPUs where indices are checked (they are clamped there otherwise).

use ir::graph::op::{Gather, ReduceOp, Scatter};
use ir::{DType, Dim, Op, Shape};

use super::{Operand, Tensor, axis};

impl Tensor {
    /// Picks slices along an axis: the axis is replaced by the axes of the integer `indices` (NumPy's `take`).
    #[track_caller]
    #[must_use]
    pub fn take(&self, axis: isize, indices: &Tensor) -> Tensor {
        let axis = axis!(self, "take", axis);
        Tensor::op(Op::Gather(Gather::Take { axis }), &[self, indices])
    }

    /// Picks slices along an axis by a vector of indices (PyTorch's `index_select`).
    #[track_caller]
    #[must_use]
    pub fn index_select(&self, axis: isize, indices: &Tensor) -> Tensor {
        if indices.rank() != 1 && !indices.is_poisoned() {
            return self.refuse(
                "index_select",
                format!("the indices have rank {}, not 1; take() takes any rank", indices.rank()),
            );
        }
        self.take(axis, indices)
    }

    /// Looks up rows of this table `[rows, width]` by integer ids of any shape.
    #[track_caller]
    #[must_use]
    pub fn embedding(&self, ids: &Tensor) -> Tensor {
        self.take(0, ids)
    }

    /// Picks along an axis with one index an element (PyTorch's `gather`, NumPy's `take_along_axis`).
    #[track_caller]
    #[must_use]
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Tensor {
        let axis = axis!(self, "gather", axis);
        Tensor::op(Op::Gather(Gather::Elements { axis }), &[self, indices])
    }

    /// Picks by index tuples in the last axis of `indices` (ONNX's `GatherND`).
    #[track_caller]
    #[must_use]
    pub fn gather_nd(&self, indices: &Tensor, batch_dims: usize) -> Tensor {
        Tensor::op(Op::Gather(Gather::Nd { batch_dims }), &[self, indices])
    }

    /// Overwrites the element at each index along an axis; of equal indices the last stays.
    #[track_caller]
    #[must_use]
    pub fn scatter(&self, axis: isize, indices: &Tensor, updates: &Tensor) -> Tensor {
        let axis = axis!(self, "scatter", axis);
        Tensor::op(
            Op::Scatter(Scatter::Elements { axis, reduce: None }),
            &[self, indices, updates],
        )
    }

    /// Adds to the element at each index along an axis.
    #[track_caller]
    #[must_use]
    pub fn scatter_add(&self, axis: isize, indices: &Tensor, updates: &Tensor) -> Tensor {
        let axis = axis!(self, "scatter_add", axis);
        Tensor::op(
            Op::Scatter(Scatter::Elements {
                axis,
                reduce: Some(ReduceOp::Sum),
            }),
            &[self, indices, updates],
        )
    }

    /// Overwrites the slices at index tuples (ONNX's `ScatterND`).
    #[track_caller]
    #[must_use]
    pub fn scatter_nd(&self, indices: &Tensor, updates: &Tensor) -> Tensor {
        Tensor::op(Op::Scatter(Scatter::Nd { reduce: None }), &[self, indices, updates])
    }

    /// The running sum along an axis; integers and bools are added up as `i64`, as NumPy and PyTorch do it.
    #[track_caller]
    #[must_use]
    pub fn cumsum(&self, axis: isize) -> Tensor {
        self.scan("cumsum", ReduceOp::Sum, axis)
    }

    /// The running product along an axis; integers and bools are multiplied as `i64`.
    #[track_caller]
    #[must_use]
    pub fn cumprod(&self, axis: isize) -> Tensor {
        self.scan("cumprod", ReduceOp::Prod, axis)
    }

    #[track_caller]
    fn scan(&self, name: &'static str, op: ReduceOp, axis: isize) -> Tensor {
        let axis = axis!(self, name, axis);
        let operand = match self.widened(name, op) {
            Ok(operand) => operand,
            Err(refused) => return refused,
        };
        Tensor::op(
            Op::Scan {
                op,
                axis,
                exclusive: false,
                reverse: false,
            },
            &[&operand],
        )
    }

    /// The `k` largest along an axis, largest first, and their `i64` positions. NaN is the largest, as NumPy and
    /// PyTorch have it.
    #[track_caller]
    #[must_use]
    pub fn topk(&self, axis: isize, k: impl Into<Dim>) -> (Tensor, Tensor) {
        self.first_k(axis, k.into(), true)
    }

    /// All elements along an axis in order, smallest first unless `descending`, and their `i64` positions. NaN is the
    /// largest: it comes last, or first with `descending`. Equal elements stay in order.
    #[track_caller]
    #[must_use]
    pub fn sort(&self, axis: isize, descending: bool) -> (Tensor, Tensor) {
        match self.axis("sort", axis) {
            Ok(at) => self.first_k(axis, self.shape()[at].clone(), descending),
            Err(error) => (self.poison_with(error.clone()), self.poison_with(error)),
        }
    }

    #[track_caller]
    fn first_k(&self, axis: isize, k: Dim, largest: bool) -> (Tensor, Tensor) {
        match self.axis("topk", axis) {
            Ok(axis) => {
                let values = Tensor::op(Op::TopK { axis, k, largest }, &[self]);
                let indices = values.result(1);
                (values, indices)
            }
            Err(error) => (self.poison_with(error.clone()), self.poison_with(error)),
        }
    }

    /// Turns integer classes into vectors with one 1 on a new last axis.
    #[track_caller]
    #[must_use]
    pub fn one_hot(&self, classes: i64, dtype: DType) -> Tensor {
        let all = Tensor::arange(self.poisoned_dtype(), classes);
        self.unsqueeze(-1).eq(&all).cast(dtype)
    }

    /// Keeps the elements of the last two axes on and below a diagonal; others become zero. Diagonal 0 is the main one,
    /// positive ones are above it.
    #[track_caller]
    #[must_use]
    pub fn tril(&self, diagonal: i64) -> Tensor {
        match self.diagonal_distance("tril") {
            Ok(distance) => distance.le(diagonal).select(self, zero(self)),
            Err(refused) => refused,
        }
    }

    /// Keeps the elements of the last two axes on and above a diagonal; others become zero.
    #[track_caller]
    #[must_use]
    pub fn triu(&self, diagonal: i64) -> Tensor {
        match self.diagonal_distance("triu") {
            Ok(distance) => distance.ge(diagonal).select(self, zero(self)),
            Err(refused) => refused,
        }
    }

    /// The column minus the row of each element of the last two axes.
    #[track_caller]
    fn diagonal_distance(&self, op: &'static str) -> Result<Tensor, Tensor> {
        if self.is_poisoned() {
            return Err(self.clone());
        }
        let [.., rows, columns] = &self.shape()[..] else {
            return Err(self.refuse(op, format!("the rank is {}, but a matrix is needed", self.rank())));
        };
        let rows = Tensor::iota(DType::I64, Shape(vec![rows.clone(), Dim::Const(1)]), 0);
        Ok(Tensor::arange(DType::I64, columns.clone()) - rows)
    }

    /// An integer type to count in, also when the tensor is poisoned.
    fn poisoned_dtype(&self) -> DType {
        if self.is_poisoned() { DType::I64 } else { self.dtype() }
    }
}

fn zero(like: &Tensor) -> Operand {
    Operand::Number(ir::Scalar::zero(like.dtype()))
}
