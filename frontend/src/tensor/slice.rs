//! Parts of a tensor, and padding around it.

use ir::graph::op::{PadMode, View};
use ir::{Dim, Op};

use super::{Operand, Tensor, axis};

impl Tensor {
    /// Takes `len` elements from `start` on along an axis.
    #[track_caller]
    #[must_use]
    pub fn narrow(&self, axis: isize, start: impl Into<Dim>, len: impl Into<Dim>) -> Tensor {
        let at = axis!(self, "narrow", axis);
        let mut starts = vec![Dim::Const(0); self.rank()];
        let mut sizes = self.shape().0.clone();
        (starts[at], sizes[at]) = (start.into(), len.into());
        Tensor::op(
            Op::View(View::Slice {
                starts,
                sizes,
                steps: vec![1; self.rank()],
            }),
            &[self],
        )
    }

    /// Takes the elements `start, start + step, …` before `end` along an axis, as Python's slices do: negative
    /// positions count from the end, positions beyond it are moved to it, and a negative step runs backwards.
    ///
    /// `None` stands for the first or last element. With a symbolic size the positions are taken as they are.
    #[track_caller]
    #[must_use]
    pub fn slice(&self, axis: isize, start: Option<i64>, end: Option<i64>, step: i64) -> Tensor {
        let at = axis!(self, "slice", axis);
        if step == 0 {
            return self.refuse("slice", "the step is 0");
        }
        let size = self.shape()[at].clone();
        // Positions before the first element are clamped to `low`, behind the last to `high`.
        let (low, high) = if step > 0 {
            (Dim::Const(0), size.clone())
        } else {
            (Dim::Const(-1), size.clone() - 1)
        };
        let place = |position: i64| {
            let absolute = if position < 0 {
                size.clone() + position
            } else {
                Dim::Const(position)
            };
            match (absolute.as_const(), size.as_const()) {
                (Some(_), Some(_)) => absolute.larger(&low).smaller(&high),
                _ => absolute,
            }
        };
        let from = start.map_or_else(|| if step > 0 { low.clone() } else { high.clone() }, place);
        let to = end.map_or_else(|| if step > 0 { high.clone() } else { low.clone() }, place);
        let distance = if step > 0 { to - from.clone() } else { from.clone() - to };
        let len = distance.ceil_div(&Dim::Const(step.saturating_abs()));
        let len = match len.as_const() {
            Some(n) => Dim::Const(n.max(0)),
            None => len,
        };
        let mut starts = vec![Dim::Const(0); self.rank()];
        let mut sizes = self.shape().0.clone();
        let mut steps = vec![1; self.rank()];
        (starts[at], sizes[at], steps[at]) = (from, len, step);
        Tensor::op(Op::View(View::Slice { starts, sizes, steps }), &[self])
    }

    /// Takes one position along an axis, which goes away; negative positions count from the end.
    #[track_caller]
    #[must_use]
    pub fn at(&self, axis: isize, position: i64) -> Tensor {
        let resolved = axis!(self, "at", axis);
        let start = if position < 0 {
            self.shape()[resolved].clone() + position
        } else {
            Dim::Const(position)
        };
        self.narrow(axis, start, 1).squeeze(axis)
    }

    /// Reverses an axis.
    #[track_caller]
    #[must_use]
    pub fn flip(&self, axis: isize) -> Tensor {
        self.slice(axis, None, None, -1)
    }

    /// Adds `(before, after)` elements of `value` along each axis.
    #[track_caller]
    #[must_use]
    pub fn pad(&self, widths: &[(i64, i64)], value: impl Into<Operand>) -> Tensor {
        match value.into() {
            Operand::Number(value) => self.pad_mode(widths, PadMode::Constant(value)),
            Operand::Tensor(_) => self.refuse("pad", "padding is filled with a number, not with a tensor"),
        }
    }

    /// Adds `(before, after)` elements along each axis, filled as the mode says.
    #[track_caller]
    #[must_use]
    pub fn pad_mode(&self, widths: &[(i64, i64)], mode: PadMode) -> Tensor {
        if let PadMode::Constant(value) = mode {
            let number = Operand::Number(value).tensor("pad", self);
            if number.is_poisoned() && !self.is_poisoned() {
                return number;
            }
        }
        let low = widths.iter().map(|w| Dim::Const(w.0)).collect();
        let high = widths.iter().map(|w| Dim::Const(w.1)).collect();
        Tensor::op(Op::View(View::Pad { low, high, mode }), &[self])
    }
}
