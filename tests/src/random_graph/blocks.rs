//! Products, windows, normalisations and attention.

use graphc::ir::op::*;
use graphc::ir::{DType, Dim, Scalar, Shape, Value};

use super::LARGEST;
use super::{Generator, Known};

impl Generator {
    pub(super) fn contract(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            let dtype = g.dtype(k.value);
            !g.shape(k.value).is_empty() && (dtype.is_float() && k.bound < 200.0 || dtype.is_int())
        })?;
        let rank = self.shape(x.value).len().max(2);
        let x = self.ranked(x, rank)?;
        let shape = self.shape(x.value);
        let flags = self.word();
        let (transpose_lhs, transpose_rhs) = (flags & 1 == 1, flags & 2 == 2);
        let k = shape[if transpose_lhs { rank - 2 } else { rank - 1 }].clone();
        let n = [
            Dim::Const(1),
            Dim::Const(7),
            Dim::Const(16),
            Dim::Const(3),
            Dim::symbol("b"),
        ][self.pick(5)]
        .clone();
        // The other operand: a matrix, or with batch dims that are the same, 1, or more of them.
        let mut dims = match self.pick(4) {
            0 | 1 => vec![],
            2 => shape[..rank - 2].to_vec(),
            _ => {
                let mut dims: Vec<Dim> = shape[..rank - 2].to_vec();
                dims.iter_mut().take(1).for_each(|d| *d = Dim::Const(1));
                if dims.is_empty() {
                    dims.push(Dim::Const(2));
                }
                dims
            }
        };
        dims.extend(if transpose_rhs { [n, k.clone()] } else { [k.clone(), n] });
        let input = self.flag();
        let dtype = self.factor(x);
        let wanted = Shape(dims.clone());
        let found = self.choose(|g, c| {
            g.graph.ty(c.value).shape == wanted && g.dtype(c.value) == dtype && (c.bound < 200.0 || dtype.is_int())
        });
        let y = match found {
            Some(y) => y,
            None => self.leaf(dtype, dims, input)?,
        };
        let bound = x.bound * y.bound * self.size(&k)?.max(1) as f64;
        let out = self.sum_type(x, bound)?;
        let op = Op::Contract(Contract {
            transpose_lhs,
            transpose_rhs,
            out,
        });
        let value = self.add(op, &[x.value, y.value])?;
        self.note_sum(value, dtype.is_int(), bound)
    }

    /// The type of the other factor of a product: integers mix.
    fn factor(&mut self, x: Known) -> DType {
        match self.dtype(x.value) {
            dtype if dtype.is_int() && self.flag() => [DType::I8, DType::U8, DType::I16, DType::I32][self.pick(4)],
            dtype => dtype,
        }
    }

    /// The type of sums of products that are no larger than `bound`: integers wrap in their accumulator.
    fn sum_type(&mut self, x: Known, bound: f64) -> Option<DType> {
        let dtype = self.dtype(x.value);
        if !dtype.is_int() {
            return (bound <= LARGEST).then_some(dtype);
        }
        Some([DType::I32, dtype, DType::I64, DType::F32, DType::I16][self.pick(5)])
    }

    /// A sum of products; of integers, up to what an f32 counts, it is exact whatever its type.
    fn note_sum(&mut self, value: Value, integers: bool, bound: f64) -> Option<Known> {
        self.note(value, integers && bound <= 2f64.powi(24), bound)
    }

    pub(super) fn window(&mut self, spatial: usize, kernel: &[i64]) -> Window {
        let mut w = Window::unit(spatial);
        for (i, size) in kernel.iter().enumerate() {
            w.strides[i] = [1, 2, 3][self.pick(3)];
            w.dilations[i] = [1, 1, 2][self.pick(3)];
            let reach = (size - 1) * w.dilations[i];
            w.pad_low[i] = self.word() as i64 % (reach / 2 + 1).min(3);
            w.pad_high[i] = self.word() as i64 % (reach / 2 + 1).min(3);
        }
        w
    }

    pub(super) fn conv(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            let dtype = g.dtype(k.value);
            g.shape(k.value).len() >= 2 && (dtype == DType::F32 && k.bound < 200.0 || dtype.is_int())
        })?;
        let spatial = 1 + self.pick(2);
        let x = self.ranked(x, spatial + 2)?;
        let layout = if self.word() % 4 == 3 {
            Layout::ChannelsLast
        } else {
            Layout::ChannelsFirst
        };
        let shape = self.shape(x.value);
        let channels = shape[layout.channel_axis(spatial + 2)].as_const()?;
        if channels == 0 {
            return None;
        }
        let divisors: Vec<i64> = (1..=channels).filter(|d| channels % d == 0).collect();
        let groups = if self.flag() {
            divisors[self.pick(divisors.len())]
        } else {
            1
        };
        let out = groups * [1, 2, 3][self.pick(3)];
        let kernel: Vec<i64> = (0..spatial).map(|_| [3, 1, 2, 5][self.pick(4)]).collect();
        let window = self.window(spatial, &kernel);
        let transposed = (self.word() % 6 == 5).then(|| vec![0; spatial]);
        let (a, b) = if transposed.is_some() {
            (channels, out / groups)
        } else {
            (out, channels / groups)
        };
        let mut dims: Vec<Dim> = vec![a.into()];
        dims.extend(kernel.iter().map(|k| Dim::Const(*k)));
        dims.insert(
            if layout == Layout::ChannelsFirst {
                1
            } else {
                spatial + 1
            },
            b.into(),
        );
        // Padding adds no terms; a kernel adds 0 · filter, which a filter of infinities would show.
        let input = self.word() % 8 == 7 && !self.special;
        let dtype = self.factor(x);
        let filter = self.leaf(dtype, dims, input)?;
        let mut operands = vec![x.value, filter.value];
        if self.flag() {
            let dtype = self.dtype(x.value);
            operands.push(self.leaf(dtype, vec![out.into()], false)?.value);
        }
        let terms = kernel.iter().product::<i64>() * channels / groups.min(channels);
        let factor = if dtype.is_int() { filter.bound } else { 2.0 };
        let bound = x.bound * factor * terms as f64 + x.bound.max(2.0);
        let result = self.sum_type(x, bound)?;
        let op = Op::Conv(Conv {
            window,
            groups,
            layout,
            transposed,
            pad_value: 0,
            out: result,
        });
        let value = self.add(op, &operands)?;
        self.note_sum(value, dtype.is_int(), bound)
    }

    pub(super) fn pool(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value) != DType::Bool && g.shape(k.value).len() >= 2)?;
        let spatial = 1 + self.pick(2);
        let x = self.ranked(x, spatial + 2)?;
        let size: Vec<i64> = (0..spatial).map(|_| [2, 3, 1][self.pick(3)]).collect();
        let window = self.window(spatial, &size);
        let kind = [
            PoolKind::Max,
            PoolKind::Average { count_padding: false },
            PoolKind::Average { count_padding: true },
        ][self.pick(3)];
        let layout = if self.word() % 3 == 2 {
            Layout::ChannelsLast
        } else {
            Layout::ChannelsFirst
        };
        let ceil = self.flag();
        let value = self.add(
            Op::Pool(Pool {
                kind,
                size,
                window,
                ceil,
                layout,
            }),
            &[x.value],
        )?;
        self.note(value, x.exact && kind == PoolKind::Max, x.bound)
    }

    pub(super) fn softmax(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && !g.shape(k.value).is_empty() && k.bound < 100.0)?;
        let axis = self.pick(self.shape(x.value).len());
        let log = self.word() % 3 == 2;
        if self.flag() {
            let op = if log {
                Composite::LogSoftmax { axis }
            } else {
                Composite::Softmax { axis }
            };
            let value = self.add(Op::Composite(op), &[x.value])?;
            return self.note(value, false, if log { 100.0 } else { 1.0 });
        }
        // Spelt out.
        let max = self.add(
            Op::Reduce {
                op: ReduceOp::Max,
                axes: vec![axis],
                keep_dims: true,
            },
            &[x.value],
        )?;
        let shifted = self.add(Op::binary(BinaryOp::Sub), &[x.value, max])?;
        let e = self.add(Op::unary(UnaryOp::Exp), &[shifted])?;
        let sum = self.add(
            Op::Reduce {
                op: ReduceOp::Sum,
                axes: vec![axis],
                keep_dims: true,
            },
            &[e],
        )?;
        let value = self.add(Op::binary(BinaryOp::Div), &[e, sum])?;
        self.note(value, false, 1.0)
    }

    pub(super) fn norm(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && !g.shape(k.value).is_empty() && k.bound < 100.0)?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        // A variance near zero makes any error large.
        let epsilon = Scalar::Float(0.25);
        let dtype = self.dtype(x.value);
        let mut operands = vec![x.value];
        let scales = self.pick(3);
        let rms = self.flag();
        for _ in 0..scales.min(if rms { 1 } else { 2 }) {
            operands.push(self.leaf(dtype, shape[axis..].to_vec(), false)?.value);
        }
        let op = if rms {
            Composite::RmsNorm { axis, epsilon }
        } else {
            Composite::LayerNorm { axis, epsilon }
        };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 2.0 * x.bound + 4.0)
    }

    pub(super) fn channel_norm(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value) == DType::F32 && g.shape(k.value).len() >= 3 && k.bound < 100.0)?;
        let shape = self.shape(x.value);
        let (epsilon, layout) = (Scalar::Float(0.25), Layout::ChannelsFirst);
        let channels = shape[1].as_const().filter(|c| *c > 0)?;
        let vector = |g: &mut Generator| g.leaf(DType::F32, vec![Dim::Const(channels)], false);
        let (scale, bias) = (vector(self)?, vector(self)?);
        let (op, operands) = match self.pick(3) {
            0 => {
                let (mean, variance) = (vector(self)?, vector(self)?);
                let variance = self.positive(variance)?;
                let operands = vec![x.value, scale.value, bias.value, mean.value, variance.value];
                (Composite::BatchNorm { epsilon, layout }, operands)
            }
            1 => {
                let groups = if self.flag() { channels } else { 1 };
                (
                    Composite::GroupNorm { groups, epsilon },
                    vec![x.value, scale.value, bias.value],
                )
            }
            _ => {
                let (alpha, beta, bias) = (Scalar::Float(0.01), Scalar::Float(0.75), Scalar::Float(1.0));
                let size = 1 + self.pick(4) as i64;
                (
                    Composite::LocalResponseNorm {
                        size,
                        alpha,
                        beta,
                        bias,
                    },
                    vec![x.value],
                )
            }
        };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 4.0 * x.bound + 4.0)
    }

    pub(super) fn attention(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value) == DType::F32 && g.shape(k.value).len() >= 2 && k.bound < 20.0)?;
        let q = self.ranked(x, 4)?;
        let shape = self.shape(q.value);
        let heads = shape[1].as_const().filter(|h| *h > 0)?;
        let kv = if self.flag() { 1 } else { heads };
        let keys = [Dim::Const(3), Dim::Const(9), Dim::symbol("b")][self.pick(3)].clone();
        if self.size(&keys)? == 0 {
            return None;
        }
        let values = [2, 4][self.pick(2)];
        let (input, causal) = (self.flag(), self.flag());
        let k = self.leaf(
            DType::F32,
            vec![shape[0].clone(), kv.into(), keys.clone(), shape[3].clone()],
            input,
        )?;
        let v = self.leaf(
            DType::F32,
            vec![shape[0].clone(), kv.into(), keys.clone(), values.into()],
            input,
        )?;
        let mut operands = vec![q.value, k.value, v.value];
        let mask = self.word() % 3 == 1;
        if mask {
            operands.push(self.leaf(DType::F32, vec![shape[2].clone(), keys], input)?.value);
        }
        let op = Composite::Attention {
            scale: Scalar::Float(0.25),
            causal,
            mask,
            scales: false,
        };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 4.0)
    }
}
