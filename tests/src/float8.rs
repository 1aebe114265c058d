//! Products and convolutions of tensors in 8-bit floats: random cases, and what exact arithmetic gives.

use graphc::ir::convert::{decode_f8, encode_f8, round_to};
use graphc::ir::op::{BinaryOp, Composite, Contract, Conv, Layout, UnaryOp, Window};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, Storage, TensorType, Value};

use crate::quantised::Random;
use crate::reference::Tensors;

/// How the left operand comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// As stored floats.
    Stored,
    /// As f32, which the model quantises.
    Quantised,
}

/// A convolution's window on two spatial axes.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub pads: [usize; 4],
    pub groups: usize,
}

/// A product of `[batch.., m, k]` by `[k, n]` or `[batch, k, n]`; of a convolution `m` are images, `k` channels and `n`
/// filters.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub conv: Option<Windows>,
    pub x: DType,
    pub w: DType,
    pub left: Left,
    pub transpose_lhs: bool,
    pub transpose_rhs: bool,
    /// The right operand is an input too, a matrix for each entry of the batch.
    pub batched_rhs: bool,
    /// A scale for each row.
    pub per_row: bool,
    /// A scale for each column.
    pub per_column: bool,
    pub bias: bool,
    pub relu: bool,
    /// f32, f16 or an 8-bit float.
    pub out: DType,
}

impl Shape {
    /// A shape at random; sizes that divide nothing among them.
    pub fn random(random: &mut Random, types: &[DType]) -> Shape {
        let yes = |random: &mut Random, of: usize| random.below(of) == 0;
        let conv = yes(random, 4).then(|| Windows {
            size: [4 + random.below(6), 4 + random.below(7)],
            kernel: random.of(&[[1, 1], [3, 3], [2, 3]]),
            strides: random.of(&[[1, 1], [2, 1]]),
            pads: random.of(&[[0; 4], [1; 4], [0, 1, 1, 0]]),
            groups: random.of(&[1, 1, 2]),
        });
        let (m, n, k) = match &conv {
            Some(c) => (
                1 + random.below(2),
                c.groups * random.of(&[1, 8, 11, 16]),
                c.groups * random.of(&[3, 4, 16, 20]),
            ),
            None => (
                random.of(&[1, 2, 5, 16, 17, 33, 65, 100]),
                random.of(&[1, 3, 16, 17, 32, 48, 66, 100]),
                random.of(&[1, 7, 16, 32, 64, 100, 128, 250]),
            ),
        };
        let product = conv.is_none();
        let batch = if product { random.of(&[0, 0, 2]) } else { 0 };
        let batched_rhs = batch > 0 && yes(random, 2);
        let x = random.of(types);
        Shape {
            batch,
            m,
            n,
            k,
            conv,
            x,
            w: if yes(random, 5) { random.of(types) } else { x },
            left: random.of(&[Left::Stored, Left::Quantised]),
            transpose_lhs: product && yes(random, 3),
            transpose_rhs: product && yes(random, 2),
            batched_rhs,
            per_row: product && yes(random, 3),
            per_column: yes(random, 2),
            bias: yes(random, 2),
            relu: yes(random, 3),
            out: random.of(&[DType::F32, DType::F32, DType::F16, x]),
        }
    }

    fn depth(&self) -> usize {
        match &self.conv {
            Some(c) => self.k / c.groups * c.kernel[0] * c.kernel[1],
            None => self.k,
        }
    }

    fn output(&self) -> [usize; 2] {
        let Some(c) = &self.conv else { return [1, 1] };
        [0, 1].map(|i| (c.size[i] + c.pads[i] + c.pads[i + 2] - c.kernel[i]) / c.strides[i] + 1)
    }
}

/// A product as a graph, its inputs, and its result.
pub struct Case {
    pub shape: Shape,
    pub graph: Graph,
    pub inputs: Tensors,
    /// In f64.
    pub exact: Vec<f64>,
    /// The sum of the magnitudes of what each result is the sum of.
    pub magnitudes: Vec<f64>,
    /// The scale of a result in 8-bit floats.
    pub scale: f64,
}

fn f8(dtype: DType, shape: &[usize], bytes: &[u8]) -> HostTensor {
    HostTensor::new(dtype, shape.to_vec(), Storage::new(bytes.to_vec())).expect("as many bytes as elements")
}

fn floats(shape: &[usize], values: &[f64]) -> HostTensor {
    HostTensor::from_f64(DType::F32, shape.to_vec(), values).expect("as many")
}

fn swapped(dims: &[usize], swap: bool) -> Vec<usize> {
    let (mut dims, rank) = (dims.to_vec(), dims.len());
    if swap {
        dims.swap(rank - 2, rank - 1);
    }
    dims
}

/// The elements of matrices of `rows` by `cols`, each turned where asked for.
fn turned<T: Copy>(values: &[T], [rows, cols]: [usize; 2], turn: bool) -> Vec<T> {
    if !turn {
        return values.to_vec();
    }
    let of = |matrix: &[T]| -> Vec<T> { (0..rows * cols).map(|i| matrix[i % rows * cols + i / rows]).collect() };
    values.chunks(rows * cols).flat_map(of).collect()
}

impl Case {
    /// Makes up the numbers of a product.
    ///
    /// # Panics
    /// Never for sizes above 0.
    pub fn new(shape: Shape, random: &mut Random) -> Case {
        let scale = |random: &mut Random| f64::from((0.003 + random.below(1000) as f64 / 5e4) as f32);
        // Every finite byte, infinities aside.
        let byte = |random: &mut Random, dtype: DType| loop {
            let byte = random.below(256) as u8;
            if decode_f8(dtype, byte).is_some_and(f64::is_finite) {
                return byte;
            }
        };
        let decoded = |dtype: DType, bytes: &[u8]| -> Vec<f64> {
            bytes.iter().map(|b| decode_f8(dtype, *b).expect("8 bits")).collect()
        };
        let (depth, columns) = (shape.depth(), if shape.per_column { shape.n } else { 1 });
        let [out_h, out_w] = shape.output();
        let pixels = out_h * out_w;
        let batch = shape.batch.max(1);
        let matrices = if shape.batched_rhs { batch } else { 1 };
        let leading: &[usize] = if shape.batch > 0 { &[shape.batch] } else { &[] };
        // As they are multiplied: rows of the depth, columns of the depth.
        let rows = match &shape.conv {
            Some(c) => shape.m * shape.k * c.size[0] * c.size[1],
            None => batch * shape.m * shape.k,
        };
        let x_scales: Vec<f64> = (0..if shape.per_row { batch * shape.m } else { 1 })
            .map(|_| scale(random))
            .collect();
        let largest = shape.x.f8_largest().expect("8 bits");
        let (x_given, x): (Vec<f64>, Vec<u8>) = (0..rows)
            .map(|i| {
                let s = x_scales[if shape.per_row { i / shape.k } else { 0 }];
                match shape.left {
                    Left::Stored => (0.0, byte(random, shape.x)),
                    Left::Quantised => {
                        // Some beyond the largest.
                        let given = (random.below(20001) as f64 / 10000.0 - 1.0) * 1.1 * largest.min(1000.0) * s;
                        let given = round_to(DType::F32, given);
                        let quotient = round_to(DType::F32, given / s).clamp(-largest, largest);
                        (given, encode_f8(shape.x, quotient).expect("8 bits"))
                    }
                }
            })
            .unzip();
        let w: Vec<u8> = (0..matrices * shape.n * depth).map(|_| byte(random, shape.w)).collect();
        let w_scales: Vec<f64> = (0..columns).map(|_| scale(random)).collect();
        let bias: Vec<f64> = (0..shape.n)
            .map(|_| f64::from((random.below(4001) as f64 / 500.0 - 4.0) as f32))
            .collect();
        let (x_numbers, w_numbers) = (decoded(shape.x, &x), decoded(shape.w, &w));
        let results = match &shape.conv {
            Some(_) => shape.m * shape.n * pixels,
            None => batch * shape.m * shape.n,
        };
        let (mut exact, mut magnitudes) = (Vec::with_capacity(results), Vec::with_capacity(results));
        for i in 0..results {
            // Columns are innermost in a product, channels in a convolution.
            let (row, col) = match &shape.conv {
                Some(_) => (i / (shape.n * pixels) * pixels + i % pixels, i / pixels % shape.n),
                None => (i / shape.n, i % shape.n),
            };
            let (mut sum, mut size) = (0.0, 0.0);
            for d in 0..depth {
                let at = match &shape.conv {
                    None => Some(row * depth + d),
                    Some(c) => {
                        let (image, pixel) = (row / pixels, row % pixels);
                        let (inner, taps) = (shape.k / c.groups, c.kernel[0] * c.kernel[1]);
                        let (channel, tap) = (d / taps, d % taps);
                        let y = (pixel / out_w * c.strides[0] + tap / c.kernel[1]).checked_sub(c.pads[0]);
                        let x = (pixel % out_w * c.strides[1] + tap % c.kernel[1]).checked_sub(c.pads[1]);
                        let plane = image * shape.k + col / (shape.n / c.groups) * inner + channel;
                        y.zip(x)
                            .filter(|(y, x)| *y < c.size[0] && *x < c.size[1])
                            .map(|(y, x)| (plane * c.size[0] + y) * c.size[1] + x)
                    }
                };
                let matrix = if shape.batched_rhs { row / shape.m } else { 0 };
                let term = at.map_or(0.0, |at| x_numbers[at]) * w_numbers[(matrix * shape.n + col) * depth + d];
                sum += term;
                size += term.abs();
            }
            let factor =
                x_scales[if shape.per_row { row } else { 0 }] * w_scales[if shape.per_column { col } else { 0 }];
            let (mut y, mut size) = (sum * factor, size * factor);
            if shape.bias {
                y += bias[col];
                size += bias[col].abs();
            }
            exact.push(if shape.relu { y.max(0.0) } else { y });
            magnitudes.push(size);
        }

        let (mut graph, origin) = (Graph::new("float8"), Origin::Unknown);
        let dims = |shape: &[usize]| shape.iter().map(|d| *d as i64).collect::<Vec<_>>();
        let add = |graph: &mut Graph, op: Op, operands: &[Value]| -> Value {
            graph.add(op, operands, origin.clone()).expect("it types").into()
        };
        let constant = |graph: &mut Graph, tensor: HostTensor| graph.add_constant(None, tensor, origin.clone());
        let dequantize = Op::Composite(Composite::Dequantize {
            groups: None,
            out: DType::F32,
        });
        let mut inputs = Tensors::new();
        let (x_shape, s_shape) = match &shape.conv {
            Some(c) => (vec![shape.m, shape.k, c.size[0], c.size[1]], vec![1; 4]),
            None => {
                let rows = if shape.per_row { shape.m } else { 1 };
                let lead = if shape.per_row { leading } else { &[1][..leading.len()] };
                (
                    swapped(&[leading, &[shape.m, shape.k]].concat(), shape.transpose_lhs),
                    swapped(&[lead, &[rows, 1]].concat(), shape.transpose_lhs),
                )
            }
        };
        let turn = shape.transpose_lhs;
        let s = constant(&mut graph, floats(&s_shape, &x_scales));
        let input = |graph: &mut Graph, inputs: &mut Tensors, name: &str, tensor: HostTensor| {
            let ty = TensorType::new(tensor.dtype, dims(&tensor.shape));
            inputs.insert(name.to_owned(), tensor);
            graph.add_input(name, ty, origin.clone())
        };
        let stored = match shape.left {
            Left::Stored => {
                let x = turned(&x, [shape.m, shape.k], turn);
                input(&mut graph, &mut inputs, "x", f8(shape.x, &x_shape, &x))
            }
            Left::Quantised => {
                let x = turned(&x_given, [shape.m, shape.k], turn);
                let x = input(&mut graph, &mut inputs, "x", floats(&x_shape, &x));
                let quantize = Op::Composite(Composite::Quantize { out: shape.x });
                add(&mut graph, quantize, &[x, s])
            }
        };
        let lhs = add(&mut graph, dequantize.clone(), &[stored, s]);
        let (w_shape, t_shape) = match &shape.conv {
            Some(c) => (
                vec![shape.n, shape.k / c.groups, c.kernel[0], c.kernel[1]],
                vec![columns, 1, 1, 1],
            ),
            None => {
                let lead: &[usize] = if shape.batched_rhs { leading } else { &[] };
                (
                    swapped(&[lead, &[shape.n, shape.k]].concat(), !shape.transpose_rhs),
                    swapped(
                        &[&vec![1; lead.len()][..], &[columns, 1]].concat(),
                        !shape.transpose_rhs,
                    ),
                )
            }
        };
        let w = match &shape.conv {
            Some(_) => w,
            None => turned(&w, [shape.n, shape.k], !shape.transpose_rhs),
        };
        let w = f8(shape.w, &w_shape, &w);
        let weight = match shape.batched_rhs {
            true => input(&mut graph, &mut inputs, "w", w),
            false => constant(&mut graph, w),
        };
        let t = constant(&mut graph, floats(&t_shape, &w_scales));
        let rhs = add(&mut graph, dequantize, &[weight, t]);
        let op = match &shape.conv {
            Some(c) => Op::Conv(Conv {
                window: Window {
                    strides: dims(&c.strides),
                    pad_low: dims(&c.pads[..2]),
                    pad_high: dims(&c.pads[2..]),
                    dilations: vec![1, 1],
                },
                groups: c.groups as i64,
                layout: Layout::ChannelsFirst,
                transposed: None,
                pad_value: 0,
                out: DType::F32,
            }),
            None => Op::Contract(Contract {
                transpose_lhs: shape.transpose_lhs,
                transpose_rhs: shape.transpose_rhs,
                out: DType::F32,
            }),
        };
        let mut result = add(&mut graph, op, &[lhs, rhs]);
        if shape.bias {
            let along: &[usize] = if shape.conv.is_some() {
                &[shape.n, 1, 1]
            } else {
                &[shape.n]
            };
            let bias = constant(&mut graph, floats(along, &bias));
            result = add(&mut graph, Op::binary(BinaryOp::Add), &[result, bias]);
        }
        if shape.relu {
            result = add(&mut graph, Op::unary(UnaryOp::Relu), &[result]);
        }
        let most = exact.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
        // About a tenth of the range saturates.
        let scale = match shape.out.f8_largest() {
            Some(largest) => f64::from((most / largest / 1.1) as f32),
            None => 1.0,
        };
        match shape.out {
            DType::F32 => {}
            DType::F16 => {
                // Inside the type, whatever the sums are.
                let factor = constant(&mut graph, floats(&[], &[1.0 / 1024.0]));
                result = add(&mut graph, Op::binary(BinaryOp::Mul), &[result, factor]);
                result = add(&mut graph, Op::cast(DType::F16), &[result]);
            }
            out => {
                let rank = graph.ty(result).rank();
                let scale = constant(&mut graph, floats(&vec![1; rank], &[scale]));
                result = add(&mut graph, Op::Composite(Composite::Quantize { out }), &[result, scale]);
            }
        }
        graph.add_output("y", result);
        Case {
            shape,
            graph,
            inputs,
            exact,
            magnitudes,
            scale,
        }
    }

    /// Says what is wrong with a result: products are exact, so nothing differs but by the order of sums in f32 and
    /// what the result is rounded to.
    pub fn wrong(&self, got: &HostTensor) -> Option<String> {
        let got = got.to_f64();
        if got.len() != self.exact.len() {
            return Some(format!("{} elements for {}", got.len(), self.exact.len()));
        }
        for (i, got) in got.iter().enumerate() {
            let (exact, near) = (self.exact[i], self.magnitudes[i] * 1e-6);
            let rounded = |v: f64| match self.shape.out {
                DType::F32 => v,
                DType::F16 => round_to(DType::F16, round_to(DType::F32, v / 1024.0)),
                out => {
                    let largest = out.f8_largest().unwrap_or(f64::INFINITY);
                    round_to(out, round_to(DType::F32, v / self.scale).clamp(-largest, largest))
                }
            };
            let (low, high) = (rounded(exact - near), rounded(exact + near));
            if !(low..=high).contains(got) {
                return Some(format!("element {i} is {got} and not {}, of {exact}", rounded(exact)));
            }
        }
        None
    }
}
