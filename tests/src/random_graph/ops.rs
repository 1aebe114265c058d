//! Elementwise ops, casts and reductions.

use graphc::ir::op::*;
use graphc::ir::{DType, Dim, Shape};

use super::LARGEST;
use super::{Generator, Known};

impl Generator {
    pub(super) fn smooth(&mut self) -> Option<Known> {
        use UnaryOp::*;
        let x = self.float()?;
        let b = x.bound;
        match self.pick(31) {
            0 => self.unary(Relu, x, x.exact, b),
            1 => self.unary(Neg, x, x.exact, b),
            2 => self.unary(Abs, x, x.exact, b),
            i @ 3..=5 => {
                let x = self.positive(x)?;
                self.unary([Sqrt, Rsqrt, Recip][i - 3], x, false, b + 1.0)
            }
            i @ 6..=8 => {
                let x = self.positive(x)?;
                self.unary([Log, Log2, Log1p][i - 6], x, false, b + 1.0)
            }
            i @ 9..=14 => {
                let x = if b > 4.0 { self.tame(x, 2.0)? } else { x };
                self.unary([Exp, Expm1, Exp2, Sinh, Cosh, Asinh][i - 9], x, false, 60.0)
            }
            i @ 15..=18 => {
                let x = self.tame(x, 0.75)?;
                self.unary([Asin, Acos, Atanh, Tan][i - 15], x, false, 4.0)
            }
            // Large arguments lose what the input's error is.
            i @ 19..=20 => {
                let x = if b > 16.0 { self.tame(x, 3.0)? } else { x };
                self.unary([Sin, Cos][i - 19], x, false, 1.0)
            }
            i => {
                let ops = [
                    Gelu, GeluTanh, Silu, Mish, HardSwish, Softplus, Tanh, Sigmoid, Erf, Atan,
                ];
                self.unary(ops[i - 21], x, false, b + 1.0)
            }
        }
    }

    pub(super) fn jump(&mut self) -> Option<Known> {
        use UnaryOp::*;
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && k.exact)?;
        match self.pick(9) {
            i @ 0..=4 => self.unary([Sign, Floor, Ceil, Round, Trunc][i], x, true, x.bound + 1.0),
            i @ 5..=6 => self.unary([IsNan, IsInf][i - 5], x, true, 1.0),
            // Outside their domain: NaN.
            i => self.unary([Sqrt, Log][i - 7], x, false, 50.0),
        }
    }

    /// Another value that broadcasts with `x`, or a new one.
    pub(super) fn partner(&mut self, x: Known, exact: bool) -> Option<Known> {
        let (dtype, shape) = (self.dtype(x.value), self.graph.ty(x.value).shape.clone());
        if !self.word().is_multiple_of(3) {
            let found = self.choose(|g, k| {
                g.dtype(k.value) == dtype
                    && (k.exact || !exact)
                    && Shape::broadcast(&g.graph.ty(k.value).shape, &shape).is_some()
            });
            if found.is_some() {
                return found;
            }
        }
        let word = self.word();
        if word.is_multiple_of(4) {
            let numbers: &[f64] = if dtype.is_int() {
                &[2.0, 0.0, 1.0, -1.0, 7.0, 3.0, 100.0, 255.0, -128.0, 30000.0]
            } else {
                &[2.0, 0.0, 1.0, -1.0, 0.5, 3.0]
            };
            let number = numbers[self.pick(numbers.len())];
            let value = self.scalar(dtype, number);
            return self.note(value, true, number.abs());
        }
        let mut dims: Vec<Dim> = shape.0.clone();
        for (i, d) in dims.iter_mut().enumerate() {
            if word >> (i + 2) & 1 == 1 {
                *d = Dim::Const(1);
            }
        }
        if word >> 8 & 1 == 1 && !dims.is_empty() {
            dims.remove(0);
        }
        let input = word >> 9 & 1 == 1;
        self.leaf(dtype, dims, input)
    }

    pub(super) fn binary(&mut self) -> Option<Known> {
        use BinaryOp::*;
        let x = self.float()?;
        let kind = self.pick(16);
        let mut y = self.partner(x, false)?;
        let (op, bound, mut x) = match kind {
            0 | 6 => (Add, x.bound + y.bound, x),
            1 | 7 => (Sub, x.bound + y.bound, x),
            2 | 8 => (Mul, x.bound * y.bound, x),
            3 => (Max, x.bound.max(y.bound), x),
            4 => (Min, x.bound.max(y.bound), x),
            5 => {
                y = self.positive(y)?;
                (Div, x.bound, x)
            }
            9 => {
                let x = self.positive(x)?;
                let number = [2.0, 0.5, -1.0, 3.0, 1.0, 0.0][self.pick(6)];
                let value = self.scalar(self.dtype(x.value), number);
                y = Known {
                    value,
                    exact: true,
                    bound: 3.0,
                };
                (Pow, x.bound.powi(3), x)
            }
            10 => (Atan2, 4.0, self.positive(x)?),
            _ if !(x.exact && y.exact) => (Mul, x.bound * y.bound, x),
            i => ([Lt, Le, Gt, Ge, Eq][i - 11], 1.0, x),
        };
        if self.flag() {
            // Not commutative ones as well: guards are on the side they protect, so only where there is none.
            if matches!(op, Add | Sub | Mul | Max | Min) {
                std::mem::swap(&mut x, &mut y);
            }
        }
        if bound > LARGEST {
            return None;
        }
        let exact = (matches!(op, Max | Min) && x.exact && y.exact) || op.is_comparison();
        let value = self.add(Op::binary(op), &[x.value, y.value])?;
        self.note(value, exact, bound)
    }

    pub(super) fn axes(&mut self, rank: usize) -> Vec<usize> {
        let mask = self.word();
        let axes: Vec<usize> = (0..rank).filter(|a| (mask >> a) & 1 == 1).collect();
        if axes.is_empty() && rank > 0 {
            vec![rank - 1]
        } else {
            axes
        }
    }

    pub(super) fn reduce(&mut self) -> Option<Known> {
        let op = [
            ReduceOp::Sum,
            ReduceOp::Mean,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::Prod,
            ReduceOp::ArgMax,
            ReduceOp::ArgMin,
            ReduceOp::All,
            ReduceOp::Any,
        ][self.pick(9)];
        let x = self.choose(|g, k| match op {
            ReduceOp::All | ReduceOp::Any => g.dtype(k.value) == DType::Bool,
            ReduceOp::ArgMax | ReduceOp::ArgMin => g.dtype(k.value) != DType::Bool && k.exact,
            _ => g.dtype(k.value) != DType::Bool,
        })?;
        let shape = self.shape(x.value);
        let mut axes = self.axes(shape.len());
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            axes.truncate(1);
            // Of no elements there is no first.
            if axes.is_empty() || self.size(&shape[axes[0]])? == 0 {
                return None;
            }
        }
        let n = axes.iter().map(|a| self.size(&shape[*a])).product::<Option<i64>>()? as f64;
        let keep_dims = self.flag();
        let (exact, bound) = match op {
            ReduceOp::Sum => (false, x.bound * n.max(1.0)),
            ReduceOp::Mean => (false, x.bound),
            ReduceOp::Prod => (false, x.bound.max(1.0).powf(n)),
            ReduceOp::Max | ReduceOp::Min => (x.exact, x.bound),
            ReduceOp::ArgMax | ReduceOp::ArgMin => (true, 64.0),
            ReduceOp::All | ReduceOp::Any => (true, 1.0),
        };
        if bound > LARGEST && !self.dtype(x.value).is_int() {
            return None;
        }
        let value = self.add(Op::Reduce { op, axes, keep_dims }, &[x.value])?;
        self.note(value, exact, bound)
    }

    pub(super) fn select(&mut self) -> Option<Known> {
        let x = self.choose(|_, _| true)?;
        let y = self.partner(x, false)?;
        let shape = self.graph.ty(x.value).shape.clone();
        let found = self.choose(|g, k| {
            g.dtype(k.value) == DType::Bool && Shape::broadcast(&g.graph.ty(k.value).shape, &shape).is_some()
        });
        let condition = match found {
            Some(c) => c,
            None => self.leaf(DType::Bool, shape.0, true)?,
        };
        let op = Op::Elementwise(Elementwise::Select);
        let value = self.add(op, &[condition.value, x.value, y.value])?;
        self.note(value, x.exact && y.exact, x.bound.max(y.bound))
    }

    pub(super) fn cast(&mut self) -> Option<Known> {
        let to = [
            DType::F32,
            DType::I64,
            DType::F16,
            DType::I32,
            DType::Bool,
            DType::I8,
            DType::F64,
            DType::U8,
            DType::I16,
        ][self.pick(9)];
        let x = self.choose(|g, k| to.is_float() || k.exact || !g.dtype(k.value).is_float())?;
        let from = self.dtype(x.value);
        // Narrow types: what they round is not what the reference rounds, so little is computed in them.
        if (to == DType::F16 && x.bound > 16.0) || (self.special && from.is_float() && !to.is_float()) {
            return None;
        }
        let value = self.add(Op::cast(to), &[x.value])?;
        // Integers up to this are floats of the type.
        let whole = match to {
            DType::F64 => 2f64.powi(53),
            DType::F32 => 2f64.powi(24),
            DType::F16 => 2f64.powi(11),
            _ => f64::INFINITY,
        };
        let exact = match (from.is_float(), to.is_float()) {
            (true, true) => x.exact && (to == from || to == DType::F64 || (to == DType::F32 && from == DType::F16)),
            (false, true) => x.bound <= whole,
            _ => true,
        };
        self.note(value, exact, x.bound)
    }

    pub(super) fn integers(&mut self) -> Option<Known> {
        use BinaryOp::*;
        let x = self.choose(|g, k| !g.dtype(k.value).is_float())?;
        if self.word() % 5 == 4 {
            use UnaryOp::*;
            let ops: &[UnaryOp] = match self.dtype(x.value) {
                DType::Bool => &[Not],
                _ => &[Neg, Abs, Sign, Relu, Not],
            };
            let op = ops[self.pick(ops.len())];
            return self.unary(op, x, true, x.bound + 1.0);
        }
        let y = self.partner(x, true)?;
        let ops: &[BinaryOp] = if self.dtype(x.value) == DType::Bool {
            &[And, Or, Xor, Eq, Ne]
        } else {
            &[
                Add, Sub, Mul, Max, Min, Div, Rem, Mod, And, Or, Xor, Eq, Ne, Lt, Le, Gt, Ge, Shl, Shr, Pow,
            ]
        };
        let op = ops[self.pick(ops.len())];
        let bound = match op {
            Mul => x.bound * y.bound,
            // Patterns of bits, and what is larger than any operand.
            Shl | Shr | Pow | And | Or | Xor => f64::INFINITY,
            _ => x.bound + y.bound,
        };
        let value = self.add(Op::binary(op), &[x.value, y.value])?;
        self.note(value, true, bound)
    }
}
