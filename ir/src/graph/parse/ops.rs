//! An op from its name, its attributes, its operands' types and its declared type.

use std::ops::Range;

use indexmap::IndexMap;

use super::attributes::Attributes;
use super::{Parsed, Parser, Problem};
use crate::graph::Value;
use crate::graph::op::*;
use crate::library::{Collective, CollectiveKind, GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use crate::types::{DType, Scalar, TensorType};

impl Parser {
    pub(super) fn op(
        &mut self,
        at: usize,
        name: &str,
        found: IndexMap<String, (usize, Option<Range<usize>>)>,
        operands: &[Value],
        declared: Option<&TensorType>,
    ) -> Parsed<Op> {
        let mut a = Attributes::new(name, at, found);
        let operand = operands.first().map(|v| self.graph.ty(*v).clone());
        let spatial = operand.as_ref().map_or(0, |t| t.rank().saturating_sub(2));
        let dtype = declared.map(|t| t.dtype);
        let shape = declared.map(|t| t.shape.clone());
        // What a product gives when nothing says so: floats their own type, integers their accumulator.
        let product = dtype.or(operand.as_ref().map(|t| {
            if t.dtype.is_float() {
                t.dtype
            } else {
                t.dtype.accumulator()
            }
        }));
        let op = match name {
            "iota" => {
                let axis = a.axis(self)?;
                Op::Iota {
                    shape: a.or_declared(self, "shape", shape, Parser::dims)?,
                    axis,
                    dtype: a.dtype_or(self, "dtype", dtype)?,
                }
            }
            "dim" => Op::DimValue(a.need(self, "size", |p| p.dim(0))?),
            "select" => Op::Elementwise(Elementwise::Select),
            "cast" => Op::cast(a.dtype_or(self, "to", dtype)?),
            "reduce" => Op::Reduce {
                op: self.reduce_op(&mut a, "op")?,
                axes: a.need(self, "axes", |p| p.list(Parser::integer))?,
                keep_dims: a.flag(self, "keep_dims")?,
            },
            "reshape" => Op::View(View::Reshape(a.or_declared(self, "shape", shape, Parser::dims)?)),
            "broadcast" => Op::View(View::Broadcast(a.or_declared(self, "shape", shape, Parser::dims)?)),
            "transpose" => Op::View(View::Transpose(a.need(self, "perm", |p| p.list(Parser::integer))?)),
            "slice" => {
                let starts = a.dims(self, "starts")?;
                let sizes = a.or_declared(self, "sizes", shape, Parser::dims)?.0;
                let steps = a.ints(self, "steps", vec![1; starts.len()])?;
                Op::View(View::Slice { starts, sizes, steps })
            }
            "pad" => Op::View(View::Pad {
                low: a.dims(self, "low")?,
                high: a.dims(self, "high")?,
                mode: match a.get(self, "mode", Parser::pad_mode)? {
                    Some(mode) => mode,
                    None => PadMode::Constant(Scalar::zero(operand.as_ref().map_or(DType::F32, |t| t.dtype))),
                },
            }),
            "concat" => Op::View(View::Concat { axis: a.axis(self)? }),
            "contract" => Op::Contract(self.contract(&mut a, product)?),
            "conv" => Op::Conv(self.conv(&mut a, spatial, product)?),
            "pool" => Op::Pool(self.pool(&mut a, spatial)?),
            "take" => Op::Gather(Gather::Take { axis: a.axis(self)? }),
            "take_along_axis" => Op::Gather(Gather::Elements { axis: a.axis(self)? }),
            "gather_nd" => Op::Gather(Gather::Nd {
                batch_dims: a.get(self, "batch_dims", Parser::integer)?.unwrap_or(0),
            }),
            "scatter_elements" => Op::Scatter(Scatter::Elements {
                axis: a.axis(self)?,
                reduce: a.member(self, "reduce", "a fold", ReduceOp::from_name)?,
            }),
            "scatter_nd" => Op::Scatter(Scatter::Nd {
                reduce: a.member(self, "reduce", "a fold", ReduceOp::from_name)?,
            }),
            "scan" => Op::Scan {
                op: self.reduce_op(&mut a, "op")?,
                axis: a.axis(self)?,
                exclusive: a.flag(self, "exclusive")?,
                reverse: a.flag(self, "reverse")?,
            },
            "top_k" => Op::TopK {
                axis: a.axis(self)?,
                k: a.need(self, "k", |p| p.dim(0))?,
                largest: !a.flag(self, "smallest")?,
            },
            "random" => Op::Random {
                kind: a.need(self, "kind", Parser::random_kind)?,
                shape: a.or_declared(self, "shape", shape, Parser::dims)?,
                seed: a.need(self, "seed", Parser::integer)?,
                dtype: a.dtype_or(self, "dtype", dtype)?,
            },
            _ => match self.other(name, &mut a, spatial, product)? {
                Some(op) => op,
                None => return self.error_at(at, Problem::UnknownOp(name.to_owned())),
            },
        };
        a.finish(self)?;
        Ok(op)
    }

    fn other(&mut self, name: &str, a: &mut Attributes, spatial: usize, product: Option<DType>) -> Parsed<Option<Op>> {
        let composite = match name {
            "softmax" => Composite::Softmax { axis: a.axis(self)? },
            "log_softmax" => Composite::LogSoftmax { axis: a.axis(self)? },
            "layer_norm" => Composite::LayerNorm {
                axis: a.axis(self)?,
                epsilon: a.number(self, "epsilon")?,
            },
            "rms_norm" => Composite::RmsNorm {
                axis: a.axis(self)?,
                epsilon: a.number(self, "epsilon")?,
            },
            "batch_norm" => Composite::BatchNorm {
                epsilon: a.number(self, "epsilon")?,
                layout: self.layout(a)?,
            },
            "group_norm" => Composite::GroupNorm {
                groups: a.need(self, "groups", Parser::integer)?,
                epsilon: a.number(self, "epsilon")?,
            },
            "attention" => Composite::Attention {
                scale: a.number(self, "scale")?,
                causal: a.flag(self, "causal")?,
                mask: a.flag(self, "mask")?,
                scales: a.flag(self, "scales")?,
            },
            "dequantize" => Composite::Dequantize {
                groups: match a.get(self, "group", Parser::integer)? {
                    Some(size) => Some(Groups {
                        axis: a.axis(self)?,
                        size,
                    }),
                    None => None,
                },
                out: a.dtype_or(self, "out", None)?,
            },
            "quantize" => Composite::Quantize {
                out: a.dtype_or(self, "out", None)?,
            },
            "local_response_norm" => Composite::LocalResponseNorm {
                size: a.need(self, "size", Parser::integer)?,
                alpha: a.number(self, "alpha")?,
                beta: a.number(self, "beta")?,
                bias: a.number(self, "bias")?,
            },
            "recurrent" => Composite::Recurrent(self.recurrent(a)?),
            _ => {
                if let Some(op) = UnaryOp::from_name(name) {
                    return Ok(Some(Op::unary(op)));
                }
                if let Some(op) = BinaryOp::from_name(name) {
                    return Ok(Some(Op::binary(op)));
                }
                return self.call(name, a, spatial, product);
            }
        };
        Ok(Some(Op::Composite(composite)))
    }

    fn recurrent(&mut self, a: &mut Attributes) -> Parsed<Recurrent> {
        let (input_forget, peepholes) = (a.flag(self, "input_forget")?, a.flag(self, "peepholes")?);
        let states = a.flag(self, "states")?;
        let cell = a.member(self, "cell", "`rnn`, `gru`, `gru_reset_after` or `lstm`", |w| match w {
            "rnn" => Some(Cell::Rnn),
            "gru" => Some(Cell::Gru { reset_after: false }),
            "gru_reset_after" => Some(Cell::Gru { reset_after: true }),
            "lstm" => Some(Cell::Lstm {
                input_forget,
                peepholes,
                states,
            }),
            _ => None,
        })?;
        let Some(cell) = cell else {
            return a.missing(self, "cell");
        };
        // What a cell does not have is the same for all.
        let mut activations = [Activation::of(ActivationKind::Tanh); 3];
        let names = [
            ["f", "f_alpha", "f_beta"],
            ["g", "g_alpha", "g_beta"],
            ["h", "h_alpha", "h_beta"],
        ];
        for (activation, [name, alpha, beta]) in activations.iter_mut().zip(names).take(cell.activations()) {
            match a.member(self, name, "an activation", ActivationKind::from_name)? {
                Some(kind) => *activation = Activation::of(kind),
                None => return a.missing(self, name),
            }
            if let Some(alpha) = a.get(self, alpha, Parser::scalar)? {
                activation.alpha = alpha;
            }
            if let Some(beta) = a.get(self, beta, Parser::scalar)? {
                activation.beta = beta;
            }
        }
        Ok(Recurrent {
            cell,
            activations,
            clip: a.get(self, "clip", Parser::scalar)?,
            reverse: a.flag(self, "reverse")?,
            lengths: a.flag(self, "lengths")?,
            rounded: a.flag(self, "rounded")?,
        })
    }

    fn call(&mut self, name: &str, a: &mut Attributes, spatial: usize, product: Option<DType>) -> Parsed<Option<Op>> {
        let (library, what) = match name {
            "hipblaslt_matmul" => (Library::HipBlasLt, "gemm"),
            _ => match name.split_once('_') {
                Some(("rocblas", what)) => (Library::RocBlas, what),
                Some(("hipblaslt", what)) if what != "gemm" => (Library::HipBlasLt, what),
                Some(("miopen", what)) => (Library::MiOpen, what),
                Some(("rccl", what @ ("all_reduce" | "all_gather"))) => (Library::Rccl, what),
                _ => return Ok(None),
            },
        };
        let op = match what {
            "gemm" => LibraryOp::Gemm {
                contract: self.contract(a, product)?,
                scale: a
                    .member(self, "scale", "what a GEMM is scaled by", scale)?
                    .unwrap_or_default(),
                epilogue: a
                    .member(self, "epilogue", "a GEMM epilogue", epilogue)?
                    .unwrap_or_default(),
            },
            "conv" => LibraryOp::Conv(self.conv(a, spatial, product)?),
            "pool" => LibraryOp::Pool(self.pool(a, spatial)?),
            "softmax" => LibraryOp::Softmax { axis: a.axis(self)? },
            "all_reduce" | "all_gather" => LibraryOp::Collective(Collective {
                kind: match what {
                    "all_reduce" => CollectiveKind::AllReduce,
                    _ => CollectiveKind::AllGather,
                },
                // What does not fit is refused with all other counts that are none.
                ranks: u32::try_from(a.need(self, "ranks", Parser::integer::<i64>)?).unwrap_or(0),
            }),
            _ => return Ok(None),
        };
        Ok(Some(Op::Call(LibraryCall { library, op })))
    }

    fn reduce_op(&mut self, a: &mut Attributes, name: &'static str) -> Parsed<ReduceOp> {
        match a.member(self, name, "a fold", ReduceOp::from_name)? {
            Some(op) => Ok(op),
            None => a.missing(self, name),
        }
    }

    fn contract(&mut self, a: &mut Attributes, product: Option<DType>) -> Parsed<Contract> {
        Ok(Contract {
            transpose_lhs: a.flag(self, "transpose_lhs")?,
            transpose_rhs: a.flag(self, "transpose_rhs")?,
            out: a.dtype_or(self, "out", product)?,
        })
    }

    fn window(&mut self, a: &mut Attributes, spatial: usize) -> Parsed<Window> {
        let usual = Window::unit(spatial);
        Ok(Window {
            strides: a.ints(self, "strides", usual.strides)?,
            pad_low: a.ints(self, "pad_low", usual.pad_low)?,
            pad_high: a.ints(self, "pad_high", usual.pad_high)?,
            dilations: a.ints(self, "dilations", usual.dilations)?,
        })
    }

    fn layout(&mut self, a: &mut Attributes) -> Parsed<Layout> {
        Ok(if a.flag(self, "channels_last")? {
            Layout::ChannelsLast
        } else {
            Layout::ChannelsFirst
        })
    }

    fn conv(&mut self, a: &mut Attributes, spatial: usize, product: Option<DType>) -> Parsed<Conv> {
        Ok(Conv {
            window: self.window(a, spatial)?,
            groups: a.get(self, "groups", Parser::integer)?.unwrap_or(1),
            layout: self.layout(a)?,
            transposed: a.get(self, "transposed", |p| p.list(Parser::integer))?,
            pad_value: a.get(self, "pad_value", Parser::integer)?.unwrap_or(0),
            out: a.dtype_or(self, "out", product)?,
        })
    }

    fn pool(&mut self, a: &mut Attributes, spatial: usize) -> Parsed<Pool> {
        let kind = a.member(self, "kind", "`max`, `average` or `average_padded`", |w| match w {
            "max" => Some(PoolKind::Max),
            "average" => Some(PoolKind::Average { count_padding: false }),
            "average_padded" => Some(PoolKind::Average { count_padding: true }),
            _ => None,
        })?;
        Ok(Pool {
            kind: match kind {
                Some(kind) => kind,
                None => return a.missing(self, "kind"),
            },
            size: a.need(self, "size", |p| p.list(Parser::integer))?,
            window: self.window(a, spatial)?,
            ceil: a.flag(self, "ceil")?,
            layout: self.layout(a)?,
        })
    }

    fn pad_mode(&mut self) -> Parsed<PadMode> {
        let at = self.at;
        Ok(match self.word("a pad mode")?.as_str() {
            "constant" => {
                self.need('(')?;
                let v = self.scalar()?;
                self.need(')')?;
                PadMode::Constant(v)
            }
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Edge,
            "wrap" => PadMode::Wrap,
            _ => {
                self.at = at;
                return self.expected("`constant(…)`, `reflect`, `edge` or `wrap`");
            }
        })
    }

    fn random_kind(&mut self) -> Parsed<RandomKind> {
        let at = self.at;
        let word = self.word("a distribution")?;
        self.need('(')?;
        let first = self.scalar()?;
        self.need(',')?;
        let second = self.scalar()?;
        self.need(')')?;
        match word.as_str() {
            "uniform" => Ok(RandomKind::Uniform {
                low: first,
                high: second,
            }),
            "normal" => Ok(RandomKind::Normal {
                mean: first,
                deviation: second,
            }),
            _ => {
                self.at = at;
                self.expected("`uniform(low, high)` or `normal(mean, deviation)`")
            }
        }
    }
}

fn scale(name: &str) -> Option<GemmScale> {
    [GemmScale::None, GemmScale::Tensor, GemmScale::Columns]
        .into_iter()
        .find(|s| s.name() == name)
}

fn epilogue(name: &str) -> Option<GemmEpilogue> {
    [
        GemmEpilogue::None,
        GemmEpilogue::Bias,
        GemmEpilogue::Relu,
        GemmEpilogue::BiasRelu,
        GemmEpilogue::GeluTanh,
        GemmEpilogue::BiasGeluTanh,
    ]
    .into_iter()
    .find(|e| e.name() == name)
}
