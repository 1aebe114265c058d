//! Views, and ops that move elements by data: gathers, scatters, scans, sorting.

use graphc::ir::op::*;
use graphc::ir::{DType, Dim, Scalar, Shape, Value};

use super::{Generator, Known};

impl Generator {
    pub(super) fn reshape(&mut self) -> Option<Known> {
        let x = self.choose(|_, _| true)?;
        let mut shape = self.shape(x.value);
        match self.pick(4) {
            0 => shape = vec![shape.iter().cloned().product()],
            1 => {
                let at = self.pick(shape.len() + 1);
                shape.insert(at, Dim::Const(1));
            }
            2 if shape.len() >= 2 => {
                let at = self.pick(shape.len() - 1);
                let d = shape.remove(at + 1);
                shape[at] = shape[at].clone() * &d;
            }
            _ => {
                // Splits a dim that a small number divides.
                let at = self.pick(shape.len().max(1));
                let dim = shape.get(at)?.clone();
                let by = [2, 3, 4, 5][self.pick(4)];
                let rest = dim.exact_div(&Dim::Const(by))?;
                shape[at] = Dim::Const(by);
                let before = usize::from(self.flag());
                shape.insert(at + before, rest);
            }
        }
        self.view(View::Reshape(Shape(shape)), x)
    }

    /// Some views of one value, one after the other, and perhaps a cast among them.
    pub(super) fn view_chain(&mut self) -> Option<Known> {
        let start = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        self.known.push(start);
        self.chained = true;
        let mut last = None;
        for _ in 0..2 + self.pick(4) {
            let next = match self.pick(7) {
                0 => self.reshape(),
                1 => self.transpose(),
                2 => self.slice(),
                3 => self.broadcast(),
                4 => self.pad(),
                5 => self.transpose(),
                _ => self.cast(),
            };
            last = next.or(last);
        }
        self.chained = false;
        last
    }

    pub(super) fn transpose(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.shape(k.value).len() >= 2)?;
        let mut perm: Vec<usize> = (0..self.shape(x.value).len()).collect();
        let (a, b) = (self.pick(perm.len()), self.pick(perm.len()));
        let last = perm.len() - 1;
        if a == b {
            perm.swap(last, last - 1)
        } else {
            perm.swap(a, b)
        }
        if self.flag() {
            perm.rotate_left(1);
        }
        self.view(View::Transpose(perm), x)
    }

    pub(super) fn slice(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let (mut starts, mut sizes, mut steps) =
            (vec![Dim::Const(0); shape.len()], shape.clone(), vec![1; shape.len()]);
        let n = self.size(&shape[axis])?;
        let step = [1, -1, 2, -2, 3][self.pick(5)];
        if shape[axis].as_const().is_some() {
            let start = if n == 0 { 0 } else { (self.word() as i64) % n };
            let room = if n == 0 {
                0
            } else if step > 0 {
                (n - start + step - 1) / step
            } else {
                start / -step + 1
            };
            let size = if room == 0 { 0 } else { 1 + (self.word() as i64) % room };
            (starts[axis], sizes[axis], steps[axis]) = (Dim::Const(start), Dim::Const(size), step);
        } else if self.flag() {
            // The whole symbolic axis, reversed.
            (starts[axis], steps[axis]) = (shape[axis].clone() - Dim::Const(1), -1);
        } else {
            // Every second element, or all but the first.
            let all = shape[axis].clone();
            if self.flag() || n == 0 {
                (sizes[axis], steps[axis]) = (all.ceil_div(&Dim::Const(2)), 2);
            } else {
                (starts[axis], sizes[axis]) = (Dim::Const(1), (all - Dim::Const(1)).larger(&Dim::Const(0)));
            }
        }
        self.view(View::Slice { starts, sizes, steps }, x)
    }

    pub(super) fn pad(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        let shape = self.shape(x.value);
        let dtype = self.dtype(x.value);
        let modes = [
            PadMode::Constant(Scalar::zero(dtype)),
            PadMode::Edge,
            PadMode::Reflect,
            PadMode::Wrap,
        ];
        let mode = modes[self.pick(4)];
        let mode = match mode {
            PadMode::Constant(_) if dtype.is_float() && self.flag() => PadMode::Constant(Scalar::Float(1.5)),
            other => other,
        };
        let (mut low, mut high) = (vec![Dim::Const(0); shape.len()], vec![Dim::Const(0); shape.len()]);
        for _ in 0..2 {
            let axis = self.pick(shape.len());
            let n = self.size(&shape[axis])?;
            let most = match mode {
                PadMode::Constant(_) => 3,
                PadMode::Edge => 3 * n.min(1),
                PadMode::Reflect => (n - 1).max(0),
                PadMode::Wrap => n,
            };
            low[axis] = Dim::Const(self.word() as i64 % (most + 1));
            high[axis] = Dim::Const(self.word() as i64 % (most + 1));
        }
        self.view(View::Pad { low, high, mode }, x)
    }

    pub(super) fn concat(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let mut operands = vec![x];
        for _ in 0..1 + self.pick(2) {
            let dtype = self.dtype(x.value);
            let found = self.choose(|g, k| {
                let s = g.shape(k.value);
                g.dtype(k.value) == dtype
                    && s.len() == shape.len()
                    && (0..s.len()).all(|i| i == axis || s[i] == shape[i])
            });
            operands.push(match found {
                Some(k) if self.flag() => k,
                _ => {
                    let mut dims = shape.clone();
                    dims[axis] = [Dim::Const(1), Dim::Const(3), Dim::symbol("b"), Dim::Const(0)][self.pick(4)].clone();
                    let input = self.flag();
                    self.leaf(dtype, dims, input)?
                }
            });
        }
        let values: Vec<Value> = operands.iter().map(|k| k.value).collect();
        let value = self.add(Op::View(View::Concat { axis }), &values)?;
        let bound = operands.iter().fold(0.0f64, |b, k| b.max(k.bound));
        self.note(value, operands.iter().all(|k| k.exact), bound)
    }

    pub(super) fn broadcast(&mut self) -> Option<Known> {
        let x = self.choose(|_, _| true)?;
        let mut shape = self.shape(x.value);
        for d in &mut shape {
            if d.is(1) && self.flag() {
                *d = self.dim();
            }
        }
        if self.flag() {
            shape.insert(0, self.dim());
        }
        self.view(View::Broadcast(Shape(shape)), x)
    }

    /// Indices of a shape, in or out of range of small sizes.
    pub(super) fn indices(&mut self, shape: Vec<Dim>) -> Option<Known> {
        let wanted = Shape(shape.clone());
        let found = self.choose(|g, k| g.dtype(k.value).is_int() && g.graph.ty(k.value).shape == wanted);
        if found.is_some() {
            return found;
        }
        let input = self.flag();
        let dtype = [DType::I64, DType::I32, DType::I8, DType::I64][self.pick(4)];
        self.leaf(dtype, shape, input)
    }

    pub(super) fn gather(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            let shape = g.shape(k.value);
            // Of an axis without elements nothing can be taken.
            !shape.is_empty() && shape.iter().all(|d| g.size(d).is_some_and(|s| s > 0))
        })?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let (op, dims) = match self.pick(3) {
            0 => {
                let dims = match self.pick(4) {
                    0 => vec![Dim::Const(3)],
                    1 => vec![],
                    2 => vec![Dim::symbol("b")],
                    _ => vec![Dim::Const(2), Dim::Const(2)],
                };
                (Gather::Take { axis }, dims)
            }
            1 => {
                let mut dims = shape.clone();
                dims[axis] = [Dim::Const(2), Dim::symbol("b")][self.pick(2)].clone();
                (Gather::Elements { axis }, dims)
            }
            _ => {
                let depth = 1 + self.pick(shape.len());
                (
                    Gather::Nd { batch_dims: 0 },
                    vec![Dim::Const(3), Dim::Const(depth as i64)],
                )
            }
        };
        let indices = self.indices(dims)?;
        let value = self.add(Op::Gather(op), &[x.value, indices.value])?;
        self.note(value, x.exact, x.bound)
    }

    pub(super) fn scatter(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            let shape = g.shape(k.value);
            (g.dtype(k.value) == DType::F32 || g.dtype(k.value).is_int())
                && !shape.is_empty()
                && shape.iter().all(|d| g.size(d).is_some_and(|s| s > 0))
        })?;
        let shape = self.shape(x.value);
        let reduce = [None, Some(ReduceOp::Sum), Some(ReduceOp::Max), Some(ReduceOp::Min)][self.pick(4)];
        let axis = self.pick(shape.len());
        let (op, indices, updates) = if self.flag() {
            let mut updates = vec![Dim::Const(2)];
            updates.extend_from_slice(&shape[1..]);
            (Scatter::Nd { reduce }, vec![Dim::Const(2), Dim::Const(1)], updates)
        } else {
            let mut dims = shape.clone();
            dims[axis] = Dim::Const(2);
            (Scatter::Elements { axis, reduce }, dims.clone(), dims)
        };
        let indices = self.indices(indices)?;
        let input = self.flag();
        let updates = self.leaf(self.dtype(x.value), updates, input)?;
        let value = self.add(Op::Scatter(op), &[x.value, indices.value, updates.value])?;
        let exact = x.exact && reduce != Some(ReduceOp::Sum);
        self.note(value, exact, x.bound + 32.0 * updates.bound)
    }

    pub(super) fn scan(&mut self) -> Option<Known> {
        let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][self.pick(3)];
        let x = self.choose(|g, k| {
            let dtype = g.dtype(k.value);
            !g.shape(k.value).is_empty() && dtype != DType::Bool && (k.bound < 100.0 || dtype.is_int())
        })?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let (exclusive, reverse) = (self.flag(), self.flag());
        let n = self.size(&shape[axis])?.max(1) as f64;
        let value = self.add(
            Op::Scan {
                op,
                axis,
                exclusive,
                reverse,
            },
            &[x.value],
        )?;
        self.note(value, x.exact && op != ReduceOp::Sum, x.bound * n)
    }

    pub(super) fn top_k(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty() && k.exact && g.dtype(k.value) != DType::Bool)?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let n = self.size(&shape[axis])?;
        let k = if self.flag() {
            shape[axis].clone()
        } else {
            // At the hint of the symbol, too, there must be as many.
            let most = if shape[axis].as_const().is_some() { n } else { n.min(1) };
            Dim::Const((self.word() as i64 % 3 + 1).min(most))
        };
        let largest = !self.flag();
        let value = self.add(Op::TopK { axis, k, largest }, &[x.value])?;
        self.note(Value::new(value.node, 1), true, 64.0);
        self.note(value, x.exact, x.bound)
    }
}
