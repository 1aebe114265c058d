//! Products by quantised weights: random cases, and what they must give.

use graphc::ir::convert::decode_f8;
use graphc::ir::op::{BinaryOp, Composite, Contract, Groups, UnaryOp};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, TensorType, Value};

use crate::reference::Tensors;

/// Numbers that are the same every run.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// What shares a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    All,
    /// A column of the product.
    Column,
    /// So many neighbours along the depth, of one column.
    Group(usize),
}

/// The zero points of a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zero {
    None,
    /// In the type of the weight.
    Stored,
    Float,
}

/// A product of `[.., m, k]` by a quantised weight.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub stored: DType,
    /// The type of the activations and of the result.
    pub dtype: DType,
    pub scales: DType,
    pub share: Share,
    pub zero: Zero,
    /// The weight is `[n, k]`, else `[k, n]`.
    pub along_k: bool,
    pub bias: bool,
    pub relu: bool,
}

impl Shape {
    /// A product without more: `[m, k]` by `[n, k]` in groups, symmetric.
    pub fn plain(stored: DType, dtype: DType, [m, n, k]: [usize; 3], group: usize) -> Shape {
        Shape {
            batch: 0,
            m,
            n,
            k,
            stored,
            dtype,
            scales: dtype,
            share: Share::Group(group),
            zero: Zero::None,
            along_k: true,
            bias: false,
            relu: false,
        }
    }

    /// A shape at random; few rows half of the time, sizes that divide nothing among them.
    pub fn random(random: &mut Random) -> Shape {
        Shape::random_of(random, &[DType::I4, DType::U4, DType::I8, DType::U8])
    }

    /// A shape at random of weights that are stored in one of some types.
    pub fn random_of(random: &mut Random, stored: &[DType]) -> Shape {
        let dtype = random.of(&[DType::F16, DType::F16, DType::BF16, DType::F32]);
        let m = match random.below(2) {
            0 => random.of(&[1, 1, 2, 3, 5, 8, 13]),
            _ => random.of(&[17, 32, 48, 65, 100]),
        };
        let k = random.of(&[32, 64, 96, 100, 128, 160, 256, 257, 320, 384, 2080]);
        let n = random.of(&[1, 3, 16, 17, 32, 48, 66, 100, 129]);
        let share = match random.below(5) {
            0 => Share::All,
            1 => Share::Column,
            _ => Share::Group(random.of(&[16, 32, 32, 48, 64, 128, 128])),
        };
        let batch = random.of(&[0, 0, 0, 2]);
        let stored = random.of(stored);
        let (scales, zero) = (
            random.of(&[DType::F32, dtype]),
            random.of(&[Zero::None, Zero::Stored, Zero::Float]),
        );
        Shape {
            batch,
            m,
            n,
            k,
            stored,
            dtype,
            scales,
            share,
            // Floats have their own 0.
            zero: if stored.is_f8() { Zero::None } else { zero },
            along_k: random.below(2) == 0,
            bias: random.below(2) == 0,
            relu: random.below(4) == 0,
        }
    }
}

/// A finite number of an 8-bit float, each byte as likely as another.
fn float8(random: &mut Random, dtype: DType) -> f64 {
    loop {
        let number = decode_f8(dtype, random.below(256) as u8).unwrap_or_default();
        if number.is_finite() {
            return number;
        }
    }
}

/// A product as a graph, its input, and its exact result.
pub struct Case {
    pub shape: Shape,
    pub graph: Graph,
    pub inputs: Tensors,
    /// In f64, from the dequantised weight as it is.
    pub exact: Vec<f64>,
    /// Bytes of the weight, its scales and its zero points, if they are not in the middle of their type; of these one
    /// number of whole bytes is part of a kernel's text.
    pub weight_bytes: usize,
}

impl Case {
    /// Makes up the numbers of a product.
    ///
    /// # Panics
    /// Never for sizes above 0.
    pub fn new(shape: Shape, random: &mut Random) -> Case {
        let Shape { m, n, k, batch, .. } = shape;
        let float = |random: &mut Random| random.below(4001) as f64 / 1000.0 - 2.0;
        let (low, high) = match shape.stored {
            DType::I4 => (-8, 7),
            DType::U4 => (0, 15),
            DType::I8 => (-128, 127),
            _ => (0, 255),
        };
        let integer = |random: &mut Random| low + random.below((high - low + 1) as usize) as i64;
        let depths = match shape.share {
            Share::Group(size) => k.div_ceil(size),
            Share::All | Share::Column => 1,
        };
        let columns = if shape.share == Share::All { 1 } else { n };
        // `[n, k]` here; what the model has is turned where it says so.
        let weights: Vec<f64> = match shape.stored.f8_largest() {
            Some(_) => (0..n * k).map(|_| float8(random, shape.stored)).collect(),
            None => (0..n * k).map(|_| integer(random) as f64).collect(),
        };
        let step = match shape.stored.f8_largest() {
            Some(largest) => 0.5 / largest,
            None => 1.0 / f64::from(high as i32 - low as i32),
        };
        let scales: Vec<f64> = (0..columns * depths)
            .map(|_| step * (0.5 + random.below(1000) as f64 / 500.0))
            .collect();
        let zeros: Vec<f64> = (0..columns * depths)
            .map(|_| match shape.zero {
                Zero::None => 0.0,
                Zero::Stored => integer(random) as f64,
                Zero::Float => (low + high) as f64 / 2.0 + float(random),
            })
            .collect();
        let rows = batch.max(1) * m;
        let x: Vec<f64> = (0..rows * k).map(|_| float(random)).collect();
        let bias: Vec<f64> = (0..n).map(|_| float(random)).collect();

        let turned = |values: &[f64], across: usize| -> Vec<f64> {
            if shape.along_k {
                return values.to_vec();
            }
            let along = values.len() / across;
            (0..values.len())
                .map(|i| values[i % across * along + i / across])
                .collect()
        };
        let tensor = |dtype: DType, across: usize, along: usize, values: &[f64]| {
            let dims = if shape.along_k {
                [across, along]
            } else {
                [along, across]
            };
            HostTensor::from_f64(dtype, dims, &turned(values, across)).expect("as many numbers as elements")
        };
        let stored = tensor(shape.stored, n, k, &weights);
        let scale = tensor(shape.scales, columns, depths, &scales);
        let zero_type = if shape.zero == Zero::Stored {
            shape.stored
        } else {
            DType::F32
        };
        let zero = (shape.zero != Zero::None).then(|| tensor(zero_type, columns, depths, &zeros));
        // Zero points in the middle of their type are none: weights become signed.
        let middle = match shape.stored {
            DType::U4 => Some(8.0),
            DType::U8 => Some(128.0),
            _ => None,
        };
        let is_signed = zeros.iter().all(|zero| Some(*zero) == middle);
        let is_stored =
            |zero: &&HostTensor| !is_signed && (zero.dtype.bits() < 8 || zero.shape.iter().product::<usize>() > 1);
        let several = zero.as_ref().filter(is_stored);
        let weight_bytes = [Some(&stored), Some(&scale), several]
            .into_iter()
            .flatten()
            .map(|t| t.bytes.len())
            .sum();

        let (mut graph, origin) = (Graph::new("quantised"), Origin::Unknown);
        let dims: Vec<i64> = [batch, m, k]
            .iter()
            .skip(usize::from(batch == 0))
            .map(|d| *d as i64)
            .collect();
        let ty = TensorType::new(shape.dtype, dims.clone());
        let input = graph.add_input("x", ty, origin.clone());
        // What the numbers are once they have their types.
        let x = HostTensor::from_f64(shape.dtype, dims.iter().map(|d| *d as usize).collect::<Vec<_>>(), &x);
        let x = x.expect("as many numbers as elements");
        let (x_values, bias) = (
            x.to_f64(),
            HostTensor::from_f64(shape.dtype, [n], &bias).expect("n numbers"),
        );
        let untyped = |values: &[f64], dtype: DType| {
            HostTensor::from_f64(dtype, [values.len()], values)
                .expect("as many")
                .to_f64()
        };
        let (scales, zeros) = (
            untyped(&scales, shape.scales),
            match shape.zero {
                Zero::Float => untyped(&zeros, DType::F32),
                Zero::None | Zero::Stored => zeros,
            },
        );
        let group = match shape.share {
            Share::Group(size) => size,
            Share::All | Share::Column => k,
        };
        let at = |col: usize, depth: usize| if columns == 1 { 0 } else { col } * depths + depth / group;
        let number =
            |col: usize, depth: usize| (weights[col * k + depth] - zeros[at(col, depth)]) * scales[at(col, depth)];
        let bias_values = bias.to_f64();
        let mut exact = Vec::with_capacity(rows * n);
        for row in 0..rows {
            for (col, bias) in bias_values.iter().enumerate() {
                let mut sum: f64 = (0..k).map(|d| x_values[row * k + d] * number(col, d)).sum();
                if shape.bias {
                    sum += bias;
                }
                exact.push(if shape.relu { sum.max(0.0) } else { sum });
            }
        }

        let mut operands: Vec<Value> = Vec::new();
        for constant in [Some(stored), Some(scale), zero].into_iter().flatten() {
            operands.push(graph.add_constant(None, constant, origin.clone()));
        }
        let add = |graph: &mut Graph, op: Op, operands: &[Value]| -> Value {
            graph.add(op, operands, origin.clone()).expect("it types").into()
        };
        let groups = matches!(shape.share, Share::Group(_)).then_some(Groups {
            axis: usize::from(shape.along_k),
            size: group as i64,
        });
        let dequantize = Composite::Dequantize {
            groups,
            out: shape.dtype,
        };
        let weight = add(&mut graph, Op::Composite(dequantize), &operands);
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: shape.along_k,
            out: shape.dtype,
        };
        let mut result = add(&mut graph, Op::Contract(contract), &[input, weight]);
        if shape.bias {
            let bias = graph.add_constant(None, bias, origin.clone());
            result = add(&mut graph, Op::binary(BinaryOp::Add), &[result, bias]);
        }
        if shape.relu {
            result = add(&mut graph, Op::unary(UnaryOp::Relu), &[result]);
        }
        graph.add_output("y", result);
        Case {
            shape,
            graph,
            inputs: Tensors::from([("x".to_owned(), x)]),
            exact,
            weight_bytes,
        }
    }

    /// Says how far a result is from the exact one: the worst difference over the largest magnitude.
    pub fn error(&self, got: &HostTensor) -> f64 {
        let largest = self.exact.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let worst = |worst: f64, (a, b): (f64, &f64)| match a - b {
            d if d.is_nan() => f64::INFINITY,
            d => worst.max(d.abs()),
        };
        got.to_f64().into_iter().zip(&self.exact).fold(0.0, worst) / largest
    }
}
