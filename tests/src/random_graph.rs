//! Random valid graphs with inputs, made from words, so that proptest can shrink them.
//!
//! A case is a list of steps of a few words each; a step picks an op, its operands among the values so far, and its
//! attributes. Steps that do not fit are left out, so every list is a graph, and fewer or smaller words are a simpler one.
//!
//! Two rules keep every result comparable. Ops that jump (comparisons, rounding, casts to integers, sorting) take only values
//! that no rounding has touched (`exact`); and magnitudes stay small: ops that amplify errors get their operand moved into a
//! tame range first.

use graphc::ir::op::*;
use graphc::ir::{Bindings, DType, Dim, Graph, HostTensor, Origin, Scalar, Shape, Symbol, SymbolInfo, TensorType, Value};

use crate::reference::Tensors;

/// Words of one step.
pub type Step = [u16; 8];

/// A graph with inputs for it.
#[derive(Debug)]
pub struct Case {
    pub graph: Graph,
    pub inputs: Tensors,
    /// The narrowest float type that is computed in.
    pub precision: DType,
}

/// What is known of a value so far.
#[derive(Clone, Copy)]
struct Known {
    value: Value,
    /// No rounding has happened on the way here.
    exact: bool,
    /// No finite element is larger.
    bound: f64,
}

struct Generator {
    graph: Graph,
    bindings: Bindings,
    known: Vec<Known>,
    /// NaN, infinities, denormals and negative zeros among the inputs.
    special: bool,
    words: Step,
    at: usize,
    random: u64,
    precision: DType,
    /// Made-up data of the inputs.
    inputs: Tensors,
}

/// Values larger than this are not computed with.
const LARGEST: f64 = 1e4;
/// Tensors of more elements are not made.
const ELEMENTS: i64 = 3000;

/// Makes the case of some words.
///
/// # Panics
/// When a graph that the IR's own inference accepted does not fit the generator's idea of it: a bug of this file.
pub fn case(head: u16, steps: &[Step]) -> Case {
    let batch = [2, 1, 3, 5, 0][head as usize % 5];
    let mut graph = Graph::new("random");
    let info = SymbolInfo { min: 0, max: Some(9), hint: 3 };
    graph.declare_symbol(Symbol::new("b"), info);
    let mut g = Generator {
        graph,
        bindings: Bindings::from([(Symbol::new("b"), batch)]),
        known: Vec::new(),
        special: head / 5 % 6 == 5,
        words: [0; 8],
        at: 0,
        random: u64::from(head) << 20,
        precision: DType::F32,
        inputs: Tensors::new(),
    };
    // The first input has the symbol, whatever else is in the graph, so that it is always bound.
    let first = [vec!["b".into(), Dim::Const(3)], vec!["b".into(), Dim::Const(4), Dim::Const(5)], vec![
        "b".into(),
        Dim::Const(2),
        Dim::Const(6),
        Dim::Const(5),
    ]];
    g.leaf(DType::F32, first[head as usize / 30 % 3].clone(), true);
    for step in steps {
        (g.words, g.at) = (*step, 0);
        g.random = g.random.wrapping_add(1 << 8);
        let _ = g.step();
    }
    // The last value, and what two more words of the last step choose.
    let mut outputs: Vec<Value> = g.known.last().into_iter().map(|k| k.value).collect();
    for word in [g.words[6], g.words[7]] {
        let k = g.known[word as usize % g.known.len()];
        if word > 0 && word % 3 == 0 && !outputs.contains(&k.value) {
            outputs.push(k.value);
        }
    }
    for (i, value) in outputs.into_iter().enumerate() {
        g.graph.add_output(format!("y{i}"), value);
    }
    Case { graph: g.graph, inputs: g.inputs, precision: g.precision }
}

impl Generator {
    fn word(&mut self) -> usize {
        let word = self.words[self.at % self.words.len()];
        self.at += 1;
        word as usize
    }

    /// A choice among `n`; the first is the simplest.
    fn pick(&mut self, n: usize) -> usize {
        self.word() % n.max(1)
    }

    fn flag(&mut self) -> bool {
        self.word() % 2 == 1
    }

    fn next(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).dtype
    }

    fn shape(&self, v: Value) -> Vec<Dim> {
        self.graph.ty(v).shape.0.clone()
    }

    fn size(&self, dim: &Dim) -> Option<i64> {
        dim.eval(&self.bindings).ok()
    }

    /// One of the values that satisfy a condition, later ones first.
    fn choose(&mut self, fits: impl Fn(&Generator, &Known) -> bool) -> Option<Known> {
        let fitting: Vec<Known> = self.known.iter().rev().filter(|k| fits(self, k)).copied().collect();
        let i = self.pick(fitting.len());
        fitting.get(i).copied()
    }

    fn float(&mut self) -> Option<Known> {
        self.choose(|g, k| g.dtype(k.value).is_float())
    }

    /// Adds a node, if it fits.
    fn add(&mut self, op: Op, operands: &[Value]) -> Option<Value> {
        let types = self.graph.infer(&op, operands).ok()?;
        for ty in &types {
            let sizes = ty.shape.eval(&self.bindings).ok()?;
            if sizes.iter().any(|s| *s < 0) || sizes.iter().product::<i64>() > ELEMENTS || sizes.len() > 6 {
                return None;
            }
        }
        Some(self.graph.push(op, operands, types, Origin::Unknown).into())
    }

    fn note(&mut self, value: Value, exact: bool, bound: f64) -> Option<Known> {
        if self.dtype(value) == DType::F16 {
            self.precision = DType::F16;
        }
        let k = Known { value, exact, bound };
        self.known.push(k);
        Some(k)
    }

    fn scalar(&mut self, dtype: DType, value: f64) -> Value {
        let scalar = match dtype {
            DType::Bool => Scalar::Bool(value != 0.0),
            d if d.is_int() => Scalar::Int(value as i64),
            _ => Scalar::Float(value),
        };
        self.graph.add_scalar(dtype, scalar, Origin::Unknown)
    }

    /// An input or, of a static shape, also a constant.
    fn leaf(&mut self, dtype: DType, shape: Vec<Dim>, input: bool) -> Option<Known> {
        let sizes: Vec<usize> =
            shape.iter().map(|d| self.size(d).and_then(|s| usize::try_from(s).ok())).collect::<Option<_>>()?;
        let n: usize = sizes.iter().product();
        if n as i64 > ELEMENTS {
            return None;
        }
        let special = self.special && dtype.is_float() && input;
        let values: Vec<f64> = (0..n)
            .map(|_| match dtype {
                DType::Bool => f64::from(u8::from(self.next() < 0.6)),
                d if d.is_int() => (self.next() * 9.0).floor() - 4.0,
                _ if special && self.next() < 0.15 => {
                    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1e-40, -3e-42, 1.0];
                    odd[(self.next() * odd.len() as f64) as usize]
                }
                _ => self.next() * 4.0 - 2.0,
            })
            .collect();
        let tensor = HostTensor::from_f64(dtype, sizes, &values).ok()?;
        let static_shape = Shape(shape.clone()).as_consts().is_some();
        let value = if input || !static_shape {
            let name = format!("x{}", self.inputs.len());
            let value = self.graph.add_input(&name, TensorType::new(dtype, Shape(shape)), Origin::Unknown);
            self.inputs.insert(name, tensor);
            value
        } else {
            self.graph.add_constant(None, tensor, Origin::Unknown)
        };
        self.note(value, true, 4.0)
    }

    fn view(&mut self, view: View, of: Known) -> Option<Known> {
        let value = self.add(Op::View(view), &[of.value])?;
        self.note(value, of.exact, of.bound)
    }

    fn unary(&mut self, op: UnaryOp, of: Known, exact: bool, bound: f64) -> Option<Known> {
        let value = self.add(Op::unary(op), &[of.value])?;
        self.note(value, exact, bound)
    }

    fn with_scalar(&mut self, op: BinaryOp, of: Known, number: f64, bound: f64) -> Option<Known> {
        let scalar = self.scalar(self.dtype(of.value), number);
        let value = self.add(Op::binary(op), &[of.value, scalar])?;
        self.note(value, false, bound)
    }

    /// `|x| + 1`.
    fn positive(&mut self, of: Known) -> Option<Known> {
        let k = self.unary(UnaryOp::Abs, of, of.exact, of.bound)?;
        self.with_scalar(BinaryOp::Add, k, 1.0, of.bound + 1.0)
    }

    /// `tanh(x) · scale`.
    fn tame(&mut self, of: Known, scale: f64) -> Option<Known> {
        let k = self.unary(UnaryOp::Tanh, of, false, 1.0)?;
        self.with_scalar(BinaryOp::Mul, k, scale, scale)
    }

    /// Brings a value to a rank: sizes 1 in front, or the first axes merged.
    fn ranked(&mut self, of: Known, rank: usize) -> Option<Known> {
        let shape = self.shape(of.value);
        if shape.len() == rank {
            return Some(of);
        }
        let dims = if shape.len() < rank {
            let mut dims = vec![Dim::Const(1); rank - shape.len()];
            dims.extend(shape);
            dims
        } else {
            let cut = shape.len() - rank + 1;
            let mut dims = vec![shape[..cut].iter().cloned().product::<Dim>()];
            dims.extend_from_slice(&shape[cut..]);
            dims
        };
        self.view(View::Reshape(Shape(dims)), of)
    }

    fn step(&mut self) -> Option<Known> {
        match self.pick(30) {
            0 | 1 => self.smooth(),
            2 => self.jump(),
            3..=5 => self.binary(),
            6 | 7 => self.reduce(),
            8 => self.reshape(),
            9 => self.transpose(),
            10 => self.slice(),
            11 => self.pad(),
            12 => self.concat(),
            13 => self.broadcast(),
            14 | 15 => self.contract(),
            16 => self.conv(),
            17 => self.pool(),
            18 => self.gather(),
            19 => self.scatter(),
            20 => self.scan(),
            21 => self.top_k(),
            22 => self.softmax(),
            23 => self.norm(),
            24 => self.attention(),
            25 => self.select(),
            26 => self.cast(),
            27 => self.integers(),
            28 => self.channel_norm(),
            _ => self.new_leaf(),
        }
    }

    fn dim(&mut self) -> Dim {
        match self.pick(8) {
            0 | 7 => Dim::symbol("b"),
            1 => Dim::Const(1),
            2 => Dim::Const(3),
            3 => Dim::Const(4),
            4 => Dim::Const(5),
            5 => Dim::Const(8),
            _ => Dim::Const(17),
        }
    }

    fn new_leaf(&mut self) -> Option<Known> {
        let rank = self.pick(4);
        let mut shape: Vec<Dim> = (0..rank).map(|_| self.dim()).collect();
        if rank > 0 && self.word() % 29 == 28 {
            shape[0] = Dim::Const(0);
        }
        let dtype = [DType::F32, DType::F32, DType::I64, DType::Bool, DType::F32, DType::F16, DType::I32][self.pick(7)];
        let input = self.flag();
        if self.word() % 7 == 6 && rank > 0 {
            let axis = self.pick(rank);
            let value = self.add(Op::Iota { shape: Shape(shape), axis, dtype: DType::I64 }, &[])?;
            return self.note(value, true, 64.0);
        }
        self.leaf(dtype, shape, input)
    }

    fn smooth(&mut self) -> Option<Known> {
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
                let ops = [Gelu, GeluTanh, Silu, Mish, HardSwish, Softplus, Tanh, Sigmoid, Erf, Atan];
                self.unary(ops[i - 21], x, false, b + 1.0)
            }
        }
    }

    fn jump(&mut self) -> Option<Known> {
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
    fn partner(&mut self, x: Known, exact: bool) -> Option<Known> {
        let (dtype, shape) = (self.dtype(x.value), self.graph.ty(x.value).shape.clone());
        if self.word() % 3 != 0 {
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
        if word % 4 == 0 {
            let number = [2.0, 0.0, 1.0, -1.0, 0.5, 3.0][self.pick(6)];
            let value = self.scalar(dtype, number);
            return self.note(value, true, 3.0);
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

    fn binary(&mut self) -> Option<Known> {
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
                y = Known { value, exact: true, bound: 3.0 };
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

    fn axes(&mut self, rank: usize) -> Vec<usize> {
        let mask = self.word();
        let axes: Vec<usize> = (0..rank).filter(|a| (mask >> a) & 1 == 1).collect();
        if axes.is_empty() && rank > 0 { vec![rank - 1] } else { axes }
    }

    fn reduce(&mut self) -> Option<Known> {
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
            ReduceOp::Mean => g.dtype(k.value).is_float(),
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
        if bound > LARGEST {
            return None;
        }
        let value = self.add(Op::Reduce { op, axes, keep_dims }, &[x.value])?;
        self.note(value, exact, bound)
    }

    fn reshape(&mut self) -> Option<Known> {
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

    fn transpose(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.shape(k.value).len() >= 2)?;
        let mut perm: Vec<usize> = (0..self.shape(x.value).len()).collect();
        let (a, b) = (self.pick(perm.len()), self.pick(perm.len()));
        let last = perm.len() - 1;
        if a == b { perm.swap(last, last - 1) } else { perm.swap(a, b) }
        if self.flag() {
            perm.rotate_left(1);
        }
        self.view(View::Transpose(perm), x)
    }

    fn slice(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let (mut starts, mut sizes, mut steps) = (vec![Dim::Const(0); shape.len()], shape.clone(), vec![1; shape.len()]);
        let n = self.size(&shape[axis])?;
        let step = [1, -1, 2, -2, 3][self.pick(5)];
        if shape[axis].as_const().is_some() {
            let start = if n == 0 { 0 } else { (self.word() as i64) % n };
            let room = if n == 0 { 0 } else if step > 0 { (n - start + step - 1) / step } else { start / -step + 1 };
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

    fn pad(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty())?;
        let shape = self.shape(x.value);
        let dtype = self.dtype(x.value);
        let modes = [PadMode::Constant(Scalar::zero(dtype)), PadMode::Edge, PadMode::Reflect, PadMode::Wrap];
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

    fn concat(&mut self) -> Option<Known> {
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

    fn broadcast(&mut self) -> Option<Known> {
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

    fn contract(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && !g.shape(k.value).is_empty() && k.bound < 200.0)?;
        let rank = self.shape(x.value).len().max(2);
        let x = self.ranked(x, rank)?;
        let shape = self.shape(x.value);
        let flags = self.word();
        let (transpose_lhs, transpose_rhs) = (flags & 1 == 1, flags & 2 == 2);
        let k = shape[if transpose_lhs { rank - 2 } else { rank - 1 }].clone();
        let n = [Dim::Const(1), Dim::Const(7), Dim::Const(16), Dim::Const(3), Dim::symbol("b")][self.pick(5)].clone();
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
        let dtype = self.dtype(x.value);
        let wanted = Shape(dims.clone());
        let found = self.choose(|g, c| g.graph.ty(c.value).shape == wanted && g.dtype(c.value) == dtype && c.bound < 200.0);
        let y = match found {
            Some(y) => y,
            None => self.leaf(dtype, dims, input)?,
        };
        let bound = x.bound * y.bound * self.size(&k)?.max(1) as f64;
        if bound > LARGEST {
            return None;
        }
        let op = Op::Contract(Contract { transpose_lhs, transpose_rhs, out: dtype });
        let value = self.add(op, &[x.value, y.value])?;
        self.note(value, false, bound)
    }

    fn window(&mut self, spatial: usize, kernel: &[i64]) -> Window {
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

    fn conv(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value) == DType::F32 && g.shape(k.value).len() >= 2 && k.bound < 200.0)?;
        let spatial = 1 + self.pick(2);
        let x = self.ranked(x, spatial + 2)?;
        let layout = if self.word() % 4 == 3 { Layout::ChannelsLast } else { Layout::ChannelsFirst };
        let shape = self.shape(x.value);
        let channels = shape[layout.channel_axis(spatial + 2)].as_const()?;
        if channels == 0 {
            return None;
        }
        let divisors: Vec<i64> = (1..=channels).filter(|d| channels % d == 0).collect();
        let groups = if self.flag() { divisors[self.pick(divisors.len())] } else { 1 };
        let out = groups * [1, 2, 3][self.pick(3)];
        let kernel: Vec<i64> = (0..spatial).map(|_| [3, 1, 2, 5][self.pick(4)]).collect();
        let window = self.window(spatial, &kernel);
        let transposed = (self.word() % 6 == 5).then(|| vec![0; spatial]);
        let (a, b) = if transposed.is_some() { (channels, out / groups) } else { (out, channels / groups) };
        let mut dims: Vec<Dim> = vec![a.into()];
        dims.extend(kernel.iter().map(|k| Dim::Const(*k)));
        dims.insert(if layout == Layout::ChannelsFirst { 1 } else { spatial + 1 }, b.into());
        // Padding adds no terms; a kernel adds 0 · filter, which a filter of infinities would show.
        let input = self.word() % 8 == 7 && !self.special;
        let filter = self.leaf(DType::F32, dims, input)?;
        let mut operands = vec![x.value, filter.value];
        if self.flag() {
            operands.push(self.leaf(DType::F32, vec![out.into()], false)?.value);
        }
        let terms = kernel.iter().product::<i64>() * channels / groups.min(channels);
        let bound = x.bound * 2.0 * terms as f64 + 2.0;
        if bound > LARGEST {
            return None;
        }
        let op = Op::Conv(Conv { window, groups, layout, transposed, out: DType::F32 });
        let value = self.add(op, &operands)?;
        self.note(value, false, bound)
    }

    fn pool(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && g.shape(k.value).len() >= 2)?;
        let spatial = 1 + self.pick(2);
        let x = self.ranked(x, spatial + 2)?;
        let size: Vec<i64> = (0..spatial).map(|_| [2, 3, 1][self.pick(3)]).collect();
        let window = self.window(spatial, &size);
        let kind = [PoolKind::Max, PoolKind::Average { count_padding: false }, PoolKind::Average { count_padding: true }]
            [self.pick(3)];
        let layout = if self.word() % 3 == 2 { Layout::ChannelsLast } else { Layout::ChannelsFirst };
        let ceil = self.flag();
        let value = self.add(Op::Pool(Pool { kind, size, window, ceil, layout }), &[x.value])?;
        self.note(value, x.exact && kind == PoolKind::Max, x.bound)
    }

    /// Indices of a shape, in or out of range of small sizes.
    fn indices(&mut self, shape: Vec<Dim>) -> Option<Known> {
        let wanted = Shape(shape.clone());
        let found = self.choose(|g, k| g.dtype(k.value) == DType::I64 && g.graph.ty(k.value).shape == wanted);
        if found.is_some() {
            return found;
        }
        let input = self.flag();
        self.leaf(DType::I64, shape, input)
    }

    fn gather(&mut self) -> Option<Known> {
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
                (Gather::Nd { batch_dims: 0 }, vec![Dim::Const(3), Dim::Const(depth as i64)])
            }
        };
        let indices = self.indices(dims)?;
        let value = self.add(Op::Gather(op), &[x.value, indices.value])?;
        self.note(value, x.exact, x.bound)
    }

    fn scatter(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            let shape = g.shape(k.value);
            g.dtype(k.value) == DType::F32 && !shape.is_empty() && shape.iter().all(|d| g.size(d).is_some_and(|s| s > 0))
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
        let updates = self.leaf(DType::F32, updates, input)?;
        let value = self.add(Op::Scatter(op), &[x.value, indices.value, updates.value])?;
        let exact = x.exact && reduce != Some(ReduceOp::Sum);
        self.note(value, exact, x.bound + 32.0)
    }

    fn scan(&mut self) -> Option<Known> {
        let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][self.pick(3)];
        let x = self.choose(|g, k| !g.shape(k.value).is_empty() && g.dtype(k.value) != DType::Bool && k.bound < 100.0)?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let (exclusive, reverse) = (self.flag(), self.flag());
        let n = self.size(&shape[axis])?.max(1) as f64;
        let value = self.add(Op::Scan { op, axis, exclusive, reverse }, &[x.value])?;
        self.note(value, x.exact && op != ReduceOp::Sum, x.bound * n)
    }

    fn top_k(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| !g.shape(k.value).is_empty() && k.exact && g.dtype(k.value) != DType::Bool)?;
        let shape = self.shape(x.value);
        let axis = self.pick(shape.len());
        let n = self.size(&shape[axis])?;
        let k = if self.flag() { shape[axis].clone() } else { Dim::Const((self.word() as i64 % 3 + 1).min(n)) };
        let largest = !self.flag();
        let value = self.add(Op::TopK { axis, k, largest }, &[x.value])?;
        self.note(Value::new(value.node, 1), true, 64.0);
        self.note(value, x.exact, x.bound)
    }

    fn softmax(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| g.dtype(k.value).is_float() && !g.shape(k.value).is_empty() && k.bound < 100.0)?;
        let axis = self.pick(self.shape(x.value).len());
        let log = self.word() % 3 == 2;
        if self.flag() {
            let op = if log { Composite::LogSoftmax { axis } } else { Composite::Softmax { axis } };
            let value = self.add(Op::Composite(op), &[x.value])?;
            return self.note(value, false, if log { 100.0 } else { 1.0 });
        }
        // Spelt out.
        let max = self.add(Op::Reduce { op: ReduceOp::Max, axes: vec![axis], keep_dims: true }, &[x.value])?;
        let shifted = self.add(Op::binary(BinaryOp::Sub), &[x.value, max])?;
        let e = self.add(Op::unary(UnaryOp::Exp), &[shifted])?;
        let sum = self.add(Op::Reduce { op: ReduceOp::Sum, axes: vec![axis], keep_dims: true }, &[e])?;
        let value = self.add(Op::binary(BinaryOp::Div), &[e, sum])?;
        self.note(value, false, 1.0)
    }

    fn norm(&mut self) -> Option<Known> {
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
        let op = if rms { Composite::RmsNorm { axis, epsilon } } else { Composite::LayerNorm { axis, epsilon } };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 2.0 * x.bound + 4.0)
    }

    fn channel_norm(&mut self) -> Option<Known> {
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
                (Composite::GroupNorm { groups, epsilon }, vec![x.value, scale.value, bias.value])
            }
            _ => {
                let (alpha, beta, bias) = (Scalar::Float(0.01), Scalar::Float(0.75), Scalar::Float(1.0));
                let size = 1 + self.pick(4) as i64;
                (Composite::LocalResponseNorm { size, alpha, beta, bias }, vec![x.value])
            }
        };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 4.0 * x.bound + 4.0)
    }

    fn attention(&mut self) -> Option<Known> {
        let x = self.choose(|g, k| {
            g.dtype(k.value) == DType::F32 && g.shape(k.value).len() >= 2 && k.bound < 20.0
        })?;
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
        let k = self.leaf(DType::F32, vec![shape[0].clone(), kv.into(), keys.clone(), shape[3].clone()], input)?;
        let v = self.leaf(DType::F32, vec![shape[0].clone(), kv.into(), keys.clone(), values.into()], input)?;
        let mut operands = vec![q.value, k.value, v.value];
        let mask = self.word() % 3 == 1;
        if mask {
            operands.push(self.leaf(DType::F32, vec![shape[2].clone(), keys], input)?.value);
        }
        let op = Composite::Attention { scale: Scalar::Float(0.25), causal, mask };
        let value = self.add(Op::Composite(op), &operands)?;
        self.note(value, false, 4.0)
    }

    fn select(&mut self) -> Option<Known> {
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

    fn cast(&mut self) -> Option<Known> {
        let to = [DType::F32, DType::I64, DType::F16, DType::I32, DType::Bool, DType::BF16, DType::F64][self.pick(7)];
        let x = self.choose(|g, k| to.is_float() || k.exact || !g.dtype(k.value).is_float())?;
        let from = self.dtype(x.value);
        // Narrow types: what they round is not what the reference rounds, so little is computed in them.
        if to == DType::BF16 || (to == DType::F16 && x.bound > 16.0) || (self.special && !to.is_float()) {
            return None;
        }
        let value = self.add(Op::cast(to), &[x.value])?;
        let exact = x.exact && (to == DType::F64 || to == DType::F32 || !to.is_float() || !from.is_float());
        self.note(value, exact, x.bound)
    }

    fn integers(&mut self) -> Option<Known> {
        use BinaryOp::*;
        let x = self.choose(|g, k| !g.dtype(k.value).is_float())?;
        let y = self.partner(x, true)?;
        let ops: &[BinaryOp] = if self.dtype(x.value) == DType::Bool {
            &[And, Or, Xor, Eq, Ne]
        } else {
            &[Add, Sub, Mul, Max, Min, Div, Rem, Mod, And, Or, Xor, Eq, Ne, Lt, Le, Gt, Ge, Shl, Shr]
        };
        let op = ops[self.pick(ops.len())];
        let bound = match op {
            Mul => x.bound * y.bound,
            Shl => return None,
            _ => x.bound + y.bound,
        };
        if bound > LARGEST {
            return None;
        }
        let value = self.add(Op::binary(op), &[x.value, y.value])?;
        self.note(value, true, bound)
    }
}
