//! Random valid graphs with inputs, made from words, so that proptest can shrink them.
//!
//! A case is a list of steps of a few words each; a step picks an op, its operands among the values so far, and its
//! attributes. Steps that do not fit are left out, so every list is a graph, and fewer or smaller words are a simpler
//! one.
//!
//! Two rules keep every result comparable. Ops that jump (comparisons, rounding, casts to integers, sorting) take only
//! values that no rounding has touched (`exact`); and magnitudes stay small: ops that amplify errors get their operand
//! moved into a tame range first. Integers are always exact: of every width, up to the ends of it, and wrapping there.

mod blocks;
mod ops;
mod views;

use graphc::ir::graph::eval::scalar::int_range;
use graphc::ir::op::*;
use graphc::ir::{
    Bindings, DType, Dim, Graph, HostTensor, Origin, Scalar, Shape, Symbol, SymbolInfo, TensorType, Value,
};

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
    /// Odd numbers are among the inputs: NaN, infinities and negative zeros or, if `tiny`, denormals.
    special: bool,
    tiny: bool,
    words: Step,
    at: usize,
    /// Operands are the last value, wherever it fits.
    chained: bool,
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
    let info = SymbolInfo {
        min: 0,
        max: Some(9),
        hint: 3,
    };
    graph.declare_symbol(Symbol::new("b"), info);
    let mut g = Generator {
        graph,
        bindings: Bindings::from([(Symbol::new("b"), batch)]),
        known: Vec::new(),
        special: head / 5 % 6 == 5,
        tiny: head / 180 % 3 == 2,
        words: [0; 8],
        at: 0,
        chained: false,
        random: u64::from(head) << 20,
        precision: DType::F32,
        inputs: Tensors::new(),
    };
    // The first input has the symbol, whatever else is in the graph, so that it is always bound.
    let first = [
        vec!["b".into(), Dim::Const(3)],
        vec!["b".into(), Dim::Const(4), Dim::Const(5)],
        vec!["b".into(), Dim::Const(2), Dim::Const(6), Dim::Const(5)],
    ];
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
    Case {
        graph: g.graph,
        inputs: g.inputs,
        precision: g.precision,
    }
}

impl Generator {
    fn word(&mut self) -> usize {
        // Steps of more words than there are go around, each time with other bits in front.
        let word = self.words[self.at % self.words.len()].rotate_right(3 * (self.at / self.words.len()) as u32);
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
        let among = if self.chained { 1 } else { self.known.len() };
        let newest = self.known.iter().rev().take(among);
        let fitting: Vec<Known> = newest.filter(|k| fits(self, k)).copied().collect();
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
        let dtype = self.dtype(value);
        let k = if dtype.is_int() {
            let (least, most) = int_range(dtype);
            let ends = (least as f64).abs().max(most as f64);
            Known {
                value,
                exact: true,
                bound: bound.min(ends),
            }
        } else {
            Known { value, exact, bound }
        };
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
        let sizes: Vec<usize> = shape
            .iter()
            .map(|d| self.size(d).and_then(|s| usize::try_from(s).ok()))
            .collect::<Option<_>>()?;
        let n: usize = sizes.iter().product();
        if n as i64 > ELEMENTS {
            return None;
        }
        let special = self.special && dtype.is_float() && input;
        // Numbers up to the ends of the type, which wrap in what follows; the wide types are indices mostly.
        let wide = dtype.is_int() && (dtype.bits() < 32 || self.random.is_multiple_of(8));
        let (least, most) = int_range(dtype);
        let values: Vec<f64> = (0..n)
            .map(|_| match dtype {
                DType::Bool => f64::from(u8::from(self.next() < 0.6)),
                _ if wide && self.next() < 0.5 => {
                    // Of 64 bits, those that are floats as well.
                    (least as f64 + self.next() * (most as f64 - least as f64)).round()
                }
                d if d.is_int() => (self.next() * 9.0).floor() - 4.0,
                _ if special && self.next() < 0.15 => {
                    // Not both in one case: a product of denormals is 0 in f32 alone, and 0 · ∞ is NaN.
                    let odd = match self.tiny {
                        true => [1e-40, -3e-42, -0.0, 0.0, 1e-39, -1e-38],
                        false => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0],
                    };
                    odd[(self.next() * odd.len() as f64) as usize]
                }
                _ => self.next() * 4.0 - 2.0,
            })
            .collect();
        let tensor = HostTensor::from_f64(dtype, sizes, &values).ok()?;
        let static_shape = Shape(shape.clone()).as_consts().is_some();
        let value = if input || !static_shape {
            let name = format!("x{}", self.inputs.len());
            let value = self
                .graph
                .add_input(&name, TensorType::new(dtype, Shape(shape)), Origin::Unknown);
            self.inputs.insert(name, tensor);
            value
        } else {
            self.graph.add_constant(None, tensor, Origin::Unknown)
        };
        self.note(value, true, if wide { f64::INFINITY } else { 4.0 })
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
        match self.pick(34) {
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
            29 | 30 => self.integers(),
            31 => self.cast(),
            32 => self.view_chain(),
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
        let dtype = [
            DType::F32,
            DType::F32,
            DType::I64,
            DType::Bool,
            DType::F32,
            DType::F16,
            DType::I32,
            DType::I8,
            DType::U8,
            DType::I16,
        ][self.pick(10)];
        let input = self.flag();
        if self.word() % 7 == 6 && rank > 0 {
            let axis = self.pick(rank);
            let dtype = if dtype.is_int() { dtype } else { DType::I64 };
            let op = Op::Iota {
                shape: Shape(shape),
                axis,
                dtype,
            };
            let value = self.add(op, &[])?;
            return self.note(value, true, 64.0);
        }
        self.leaf(dtype, shape, input)
    }
}
