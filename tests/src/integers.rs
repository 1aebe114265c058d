//! Products and convolutions of quantised tensors: random cases, and what integer arithmetic gives.

use graphc::ir::op::{BinaryOp, Composite, Contract, Conv, Layout, UnaryOp, View, Window};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, Storage, TensorType, Value};

use crate::quantised::Random;
use crate::reference::Tensors;

/// How the model spells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Numbers between a dequantisation and a quantisation.
    Numbers,
    /// Differences of widened integers, as `QLinearConv` and `MatMulInteger` are imported.
    Integers,
}

/// The windows of a convolution of two spatial axes.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub size: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Top, left, bottom, right.
    pub pads: [usize; 4],
    pub groups: usize,
}

/// A product of `[batch.., m, k]` by `[k, n]`; of a convolution `m` are images, `k` channels and `n` filters.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub conv: Option<Windows>,
    pub form: Form,
    pub x: DType,
    pub w: DType,
    pub out: DType,
    /// The smallest and the largest weight; a zero point of its own is subtracted.
    pub weights: (i64, i64),
    /// A scale and a zero point for each column.
    pub per_column: bool,
    pub weight_zero: bool,
    pub bias: bool,
    pub relu: bool,
    pub residual: bool,
    /// Scales are powers of 2, so that floats compute exactly and ties are met.
    pub exact: bool,
}

impl Shape {
    /// A shape at random; sizes that divide nothing among them.
    pub fn random(random: &mut Random, exact: bool) -> Shape {
        let yes = |random: &mut Random, of: usize| random.below(of) == 0;
        let conv = yes(random, 2).then(|| Windows {
            size: [3 + random.below(8), 3 + random.below(9)],
            kernel: random.of(&[[1, 1], [3, 3], [3, 3], [2, 3], [1, 3]]),
            strides: random.of(&[[1, 1], [1, 1], [2, 2], [2, 1]]),
            dilations: random.of(&[[1, 1], [1, 1], [1, 2]]),
            pads: random.of(&[[0; 4], [1; 4], [1; 4], [0, 1, 1, 0], [1, 1, 2, 2]]),
            groups: random.of(&[1, 1, 1, 2, 3]),
        });
        let (m, n, k) = match &conv {
            Some(c) => {
                let (of, channels) = (random.of(&[1, 4, 8, 11, 16]), random.of(&[1, 3, 4, 8, 16, 20]));
                // Now and then each channel has a filter of its own.
                match random.below(6) {
                    0 => (1 + random.below(2), 66, 66),
                    _ => (1 + random.below(2), c.groups * of, c.groups * channels),
                }
            }
            None => (
                random.of(&[1, 2, 5, 16, 17, 32, 65, 100]),
                random.of(&[1, 3, 16, 17, 32, 48, 66, 100]),
                random.of(&[1, 7, 16, 32, 64, 100, 128, 250]),
            ),
        };
        let conv = conv.map(|mut c| {
            if k == 66 {
                c.groups = 66;
            }
            // The window must fit.
            let fits = (0..2).all(|i| c.size[i] + c.pads[i] + c.pads[i + 2] > (c.kernel[i] - 1) * c.dilations[i]);
            if !fits {
                (c.kernel, c.dilations) = ([1, 1], [1, 1]);
            }
            c
        });
        let w = random.of(&[DType::I8, DType::I8, DType::U8]);
        let weight_zero = w == DType::U8 || yes(random, 4);
        let (low, high) = w.int_range().unwrap_or_default();
        Shape {
            batch: if conv.is_none() { random.of(&[0, 0, 2]) } else { 0 },
            m,
            n,
            k,
            conv,
            form: random.of(&[Form::Numbers, Form::Numbers, Form::Integers]),
            x: random.of(&[DType::I8, DType::U8]),
            w,
            out: random.of(&[DType::I8, DType::U8, DType::F32]),
            weights: (low, high),
            per_column: yes(random, 2),
            weight_zero,
            bias: yes(random, 2),
            relu: yes(random, 3),
            residual: yes(random, 3),
            exact,
        }
    }

    /// Elements of the depth of one column.
    fn depth(&self) -> usize {
        match &self.conv {
            Some(c) => self.k / c.groups * c.kernel[0] * c.kernel[1],
            None => self.k,
        }
    }

    fn output(&self) -> [usize; 2] {
        let Some(c) = &self.conv else { return [1, 1] };
        [0, 1].map(|i| {
            let reach = (c.kernel[i] - 1) * c.dilations[i] + 1;
            (c.size[i] + c.pads[i] + c.pads[i + 2] - reach) / c.strides[i] + 1
        })
    }
}

/// A product as a graph, its inputs, and its result.
pub struct Case {
    pub shape: Shape,
    pub graph: Graph,
    pub inputs: Tensors,
    /// The result before it is quantised, over its scale, or as it is where it stays a float.
    pub expected: Vec<f64>,
    /// The zero point of the result.
    pub zero: i64,
}

fn bytes(dtype: DType, shape: &[usize], values: &[i64]) -> HostTensor {
    let bytes: Vec<u8> = values.iter().map(|v| *v as u8).collect();
    HostTensor::new(dtype, shape.to_vec(), Storage::new(bytes)).expect("as many bytes as elements")
}

impl Case {
    /// Makes up the numbers of a product.
    ///
    /// # Panics
    /// Never for sizes above 0.
    pub fn new(shape: Shape, random: &mut Random) -> Case {
        let within =
            |random: &mut Random, (low, high): (i64, i64)| low + random.below((high - low + 1) as usize) as i64;
        let range = |d: DType| d.int_range().expect("an integer type");
        let scale = |random: &mut Random| match shape.exact {
            true => 2f64.powi(-4 - random.below(4) as i32),
            false => f64::from((0.003 + random.below(1000) as f64 / 5e4) as f32),
        };
        let (depth, columns) = (shape.depth(), if shape.per_column { shape.n } else { 1 });
        let [out_h, out_w] = shape.output();
        let pixels = out_h * out_w;
        let x_shape: Vec<usize> = match &shape.conv {
            Some(c) => vec![shape.m, shape.k, c.size[0], c.size[1]],
            None => [shape.batch, shape.m, shape.k][usize::from(shape.batch == 0)..].to_vec(),
        };
        let y_shape: Vec<usize> = match &shape.conv {
            Some(_) => vec![shape.m, shape.n, out_h, out_w],
            None => [shape.batch, shape.m, shape.n][usize::from(shape.batch == 0)..].to_vec(),
        };
        let (elements, results) = (x_shape.iter().product::<usize>(), y_shape.iter().product::<usize>());
        let x: Vec<i64> = (0..elements).map(|_| within(random, range(shape.x))).collect();
        let x_zero = within(random, range(shape.x));
        // Rows of one column each.
        let w: Vec<i64> = (0..shape.n * depth).map(|_| within(random, shape.weights)).collect();
        let w_zeros: Vec<i64> = (0..columns)
            .map(|_| {
                if shape.weight_zero {
                    within(random, range(shape.w))
                } else {
                    0
                }
            })
            .collect();
        let x_scale = scale(random);
        let w_scales: Vec<f64> = (0..columns).map(|_| scale(random)).collect();
        let at = |col: usize| if shape.per_column { col } else { 0 };
        let number = |random: &mut Random| match shape.exact {
            true => random.below(4097) as f64 / 256.0 - 8.0,
            false => f64::from((random.below(4001) as f64 / 500.0 - 4.0) as f32),
        };
        let bias: Vec<f64> = (0..shape.n).map(|_| number(random)).collect();
        let residual: Vec<i64> = (0..results).map(|_| within(random, range(DType::I8))).collect();
        let (r_scale, r_zero) = (scale(random), within(random, range(DType::I8)));
        let sum = |row: usize, col: usize| -> i64 {
            let weight = |i: usize| w[col * depth + i] - w_zeros[at(col)];
            let Some(c) = &shape.conv else {
                return (0..depth).map(|i| (x[row * depth + i] - x_zero) * weight(i)).sum();
            };
            let (image, pixel) = (row / pixels, row % pixels);
            let (oy, ox) = (pixel / out_w, pixel % out_w);
            let (inner, taps) = (shape.k / c.groups, c.kernel[0] * c.kernel[1]);
            let group = col / (shape.n / c.groups);
            let mut total = 0;
            for i in 0..depth {
                let (channel, tap) = (i / taps, i % taps);
                let y = (oy * c.strides[0] + tap / c.kernel[1] * c.dilations[0]).checked_sub(c.pads[0]);
                let x_at = (ox * c.strides[1] + tap % c.kernel[1] * c.dilations[1]).checked_sub(c.pads[1]);
                if let (Some(y), Some(x_at)) = (y, x_at)
                    && y < c.size[0]
                    && x_at < c.size[1]
                {
                    let plane = image * shape.k + group * inner + channel;
                    total += (x[(plane * c.size[0] + y) * c.size[1] + x_at] - x_zero) * weight(i);
                }
            }
            total
        };
        let integers = shape.form == Form::Integers;
        let mut exact = vec![0.0; results];
        for (i, y) in exact.iter_mut().enumerate() {
            // Columns are innermost in a product, channels in a convolution.
            let (row, col) = match &shape.conv {
                Some(_) => (i / (shape.n * pixels) * pixels + i % pixels, i / pixels % shape.n),
                None => (i / shape.n, i % shape.n),
            };
            *y = sum(row, col) as f64 * x_scale * w_scales[at(col)];
            if shape.bias {
                *y += bias[col];
            }
            if shape.residual {
                *y += (residual[i] - r_zero) as f64 * r_scale;
            }
            if shape.relu {
                *y = y.max(0.0);
            }
        }
        let largest = exact.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
        let y_scale = match shape.exact {
            // About half of the results saturate.
            true => 2f64.powi((largest / 300.0).log2().ceil() as i32),
            false => f64::from((largest / 140.0) as f32),
        };
        let quantised = shape.out != DType::F32;
        let y_zero = if quantised { within(random, range(shape.out)) } else { 0 };

        let (mut graph, origin) = (Graph::new("integers"), Origin::Unknown);
        let dims = |shape: &[usize]| shape.iter().map(|d| *d as i64).collect::<Vec<_>>();
        let input = graph.add_input("x", TensorType::new(shape.x, dims(&x_shape)), origin.clone());
        let mut inputs = Tensors::from([("x".to_owned(), bytes(shape.x, &x_shape, &x))]);
        let add = |graph: &mut Graph, op: Op, operands: &[Value]| -> Value {
            graph.add(op, operands, origin.clone()).expect("it types").into()
        };
        let constant = |graph: &mut Graph, tensor: HostTensor| graph.add_constant(None, tensor, origin.clone());
        let floats =
            |shape: Vec<usize>, values: &[f64]| HostTensor::from_f64(DType::F32, shape, values).expect("as many");
        let ones = |rank: usize| vec![1usize; rank];
        let rank = x_shape.len();
        let (w_shape, axis): (Vec<usize>, usize) = match &shape.conv {
            Some(c) => (vec![shape.n, shape.k / c.groups, c.kernel[0], c.kernel[1]], 0),
            None => (vec![shape.k, shape.n], 1),
        };
        let stored: Vec<i64> = match &shape.conv {
            Some(_) => w.clone(),
            None => (0..w.len()).map(|i| w[i % shape.n * depth + i / shape.n]).collect(),
        };
        let mut column_shape = ones(w_shape.len());
        column_shape[axis] = columns;
        let weight = constant(&mut graph, bytes(shape.w, &w_shape, &stored));
        let w_zero = constant(&mut graph, bytes(shape.w, &column_shape, &w_zeros));
        let zero = constant(&mut graph, bytes(shape.x, &ones(rank), &[x_zero]));
        let (lhs, rhs) = match integers {
            true => {
                let mut centred = |value: Value, zero: Value| {
                    let wide = add(&mut graph, Op::cast(DType::I32), &[value]);
                    let zero = add(&mut graph, Op::cast(DType::I32), &[zero]);
                    add(&mut graph, Op::binary(BinaryOp::Sub), &[wide, zero])
                };
                (centred(input, zero), centred(weight, w_zero))
            }
            false => {
                let x_scale = constant(&mut graph, floats(ones(rank), &[x_scale]));
                let scales = constant(&mut graph, floats(column_shape.clone(), &w_scales));
                let op = Op::Composite(Composite::Dequantize {
                    groups: None,
                    out: DType::F32,
                });
                let lhs = add(&mut graph, op.clone(), &[input, x_scale, zero]);
                let operands = [weight, scales, w_zero];
                (
                    lhs,
                    add(&mut graph, op, &operands[..if shape.weight_zero { 3 } else { 2 }]),
                )
            }
        };
        let out = if integers { DType::I32 } else { DType::F32 };
        let op = match &shape.conv {
            Some(c) => Op::Conv(Conv {
                window: Window {
                    strides: dims(&c.strides),
                    pad_low: dims(&c.pads[..2]),
                    pad_high: dims(&c.pads[2..]),
                    dilations: dims(&c.dilations),
                },
                groups: c.groups as i64,
                layout: Layout::ChannelsFirst,
                transposed: None,
                pad_value: 0,
                out,
            }),
            None => Op::Contract(Contract {
                transpose_lhs: false,
                transpose_rhs: false,
                out,
            }),
        };
        let mut result = add(&mut graph, op, &[lhs, rhs]);
        // A number for each column, in the shape of the result.
        let along = |values: usize| {
            let mut shape = ones(y_shape.len());
            shape[if axis == 0 { 1 } else { y_shape.len() - 1 }] = values;
            shape
        };
        if integers {
            let scales: Vec<f64> = w_scales.iter().map(|s| s * x_scale).collect();
            let scales = constant(&mut graph, floats(along(columns), &scales));
            let float = add(&mut graph, Op::cast(DType::F32), &[result]);
            result = add(&mut graph, Op::binary(BinaryOp::Mul), &[float, scales]);
        }
        if shape.bias {
            let bias = constant(&mut graph, floats(along(shape.n), &bias));
            result = add(&mut graph, Op::binary(BinaryOp::Add), &[result, bias]);
        }
        if shape.residual {
            let other = graph.add_input("r", TensorType::new(DType::I8, dims(&y_shape)), origin.clone());
            inputs.insert("r".to_owned(), bytes(DType::I8, &y_shape, &residual));
            let scale = constant(&mut graph, floats(ones(y_shape.len()), &[r_scale]));
            let zero = constant(&mut graph, bytes(DType::I8, &ones(y_shape.len()), &[r_zero]));
            let op = Op::Composite(Composite::Dequantize {
                groups: None,
                out: DType::F32,
            });
            let other = add(&mut graph, op, &[other, scale, zero]);
            result = add(&mut graph, Op::binary(BinaryOp::Add), &[result, other]);
        }
        if shape.relu {
            result = add(&mut graph, Op::unary(UnaryOp::Relu), &[result]);
        }
        if quantised {
            let scale = constant(&mut graph, floats(ones(y_shape.len()), &[y_scale]));
            let zero = constant(&mut graph, bytes(shape.out, &ones(y_shape.len()), &[y_zero]));
            let op = Op::Composite(Composite::Quantize { out: shape.out });
            result = add(&mut graph, op, &[result, scale, zero]);
            // A view that the quantised form moves through.
            let flat = vec![results as i64];
            result = add(&mut graph, Op::View(View::Reshape(flat.into())), &[result]);
        }
        graph.add_output("y", result);
        let expected = exact.iter().map(|y| if quantised { y / y_scale } else { *y }).collect();
        Case {
            shape,
            graph,
            inputs,
            expected,
            zero: y_zero,
        }
    }

    /// Says what is wrong with a result: integers must be equal, unless scales are none of 2 and the number is a tie
    /// but for the rounding of floats; floats are compared to that rounding.
    pub fn wrong(&self, got: &HostTensor) -> Option<String> {
        let got = got.to_f64();
        if got.len() != self.expected.len() {
            return Some(format!("{} elements for {}", got.len(), self.expected.len()));
        }
        let range = self.shape.out.int_range();
        let largest = self.expected.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        for (i, (got, expected)) in got.iter().zip(&self.expected).enumerate() {
            let Some((low, high)) = range else {
                let allowed = if self.shape.exact { 0.0 } else { 2e-6 * largest };
                let gap = (got - expected).abs();
                if gap.is_nan() || gap > allowed {
                    return Some(format!("element {i} is {got} and not {expected}"));
                }
                continue;
            };
            let quantised = |v: f64| (v.round_ties_even() + self.zero as f64).clamp(low as f64, high as f64);
            let near = if self.shape.exact {
                0.0
            } else {
                1e-6 * largest.max(256.0)
            };
            if *got != quantised(*expected) && *got != quantised(expected - near) && *got != quantised(expected + near)
            {
                return Some(format!(
                    "element {i} is {got} and not {}, of {expected}",
                    quantised(*expected)
                ));
            }
        }
        None
    }
}
