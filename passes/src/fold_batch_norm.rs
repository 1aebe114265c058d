//! Folds what scales and shifts channels after a convolution or a linear layer into its filter and bias.
//!
//! ```text
//! batch_norm(conv(x, w, b), scale, bias, mean, var)  →  conv(x, w · a, b · a + bias - mean · a),  a = scale · rsqrt(var + ε)
//! conv(x, w) + c[1, C, 1, 1]                         →  conv(x, w, c)
//! conv(x, w, b) · c[1, C, 1, 1]                      →  conv(x, w · c, b · c)
//! conv(x, w) + conv(x, v)                            →  conv(x, w + v)              (`branches`)
//! ```
//!
//! Only where the filter and the numbers are constants and the convolution has no other reader: else the scaled filter
//! would be a second copy.

use ir::data::Storage;
use ir::op::{BinaryOp, Composite, Conv, Elementwise, Layout, View};
use ir::{Graph, HostTensor, NodeId, Op, Value};

use crate::analysis::use_counts;
use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

mod branches;

pub use branches::RULE as BRANCHES_RULE;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_batch_norm",
    run: |graph, context| {
        use ir::entity::Entity;
        let uses = use_counts(graph);
        let mut builder = Builder::new(graph, "fold_batch_norm");
        for (id, node) in graph.nodes().iter() {
            builder.origin = node.origin.clone();
            let single = |v: &Value| uses[v.node.index()] == 1;
            let folded = match &node.op {
                Op::Composite(Composite::BatchNorm { epsilon, layout })
                    if single(&node.operands[0]) && context.options.enabled("batch_norm_into_conv") =>
                {
                    batch_norm(&mut builder, id, epsilon.as_f64(), *layout)?.map(|v| (v, "batch_norm_into_conv"))
                }
                Op::Elementwise(Elementwise::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul)))
                    if context.options.enabled("channel_constant_into_conv") =>
                {
                    channel_constant(&mut builder, id, *op, &single)?.map(|v| (v, "channel_constant_into_conv"))
                }
                _ => None,
            };
            let is_sum = matches!(node.op, Op::Elementwise(Elementwise::Binary(BinaryOp::Add)));
            // Weights in fewer bits share a scale, of which a 1 among them would take the most.
            let folded = match folded {
                None if is_sum && context.options.weights.is_none() && context.options.enabled(BRANCHES_RULE) => {
                    branches::merged(&mut builder, id, &single)?.map(|v| (v, BRANCHES_RULE))
                }
                folded => folded,
            };
            match folded {
                Some((value, rule)) if *builder.ty(value) == node.results[0] => {
                    let inner = graph.node(node.operands[0].node).origin.clone();
                    builder.note(rule, vec![node.origin.clone(), inner], None, None);
                    builder.set(id, value);
                }
                _ => builder.copy(id)?,
            }
        }
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// Writes out weights that are given as a number to fill a shape with: kernels read weights as plain memory.
pub const WEIGHTS: Pass = Pass {
    name: "fill_weights",
    run: |graph, context| {
        let mut b = Builder::new(graph, "fill_weights");
        for (id, node) in graph.nodes().iter() {
            let first = match node.op {
                Op::Conv(_) | Op::Contract(_) | Op::Composite(_) => 1,
                _ => usize::MAX,
            };
            b.origin = node.origin.clone();
            for v in node.operands.iter().skip(first) {
                if let Some(tensor) = filled(graph, *v) {
                    let value = b.constant(tensor);
                    b.set(v.node, value);
                    b.note("fill_weights", vec![node.origin.clone()], None, None);
                }
            }
            b.copy(id)?;
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// Weights of up to this many elements are written out.
const FILLED: usize = 1 << 28;

/// A broadcast number of known shape, as a tensor.
fn filled(g: &Graph, v: Value) -> Option<HostTensor> {
    let node = g.node(v.node);
    if !matches!(node.op, Op::View(View::Broadcast(_))) {
        return None;
    }
    let scalar = crate::analysis::known_scalar(g, v)?;
    let ty = g.ty(v);
    let shape: Option<Vec<usize>> = ty
        .shape
        .as_consts()?
        .into_iter()
        .map(|d| usize::try_from(d).ok())
        .collect();
    let shape = shape?;
    let elements: usize = shape.iter().product();
    if elements > FILLED {
        return None;
    }
    let one = HostTensor::scalar(ty.dtype, scalar);
    HostTensor::new(ty.dtype, shape, Storage::new(one.bytes.repeat(elements))).ok()
}

/// A convolution of a constant filter as it stands in the new graph.
struct Found {
    conv: Conv,
    input: Value,
    filter: HostTensor,
    bias: Option<HostTensor>,
}

fn find(b: &Builder<'_>, value: Value) -> Option<Found> {
    let (Op::Conv(conv), x) = b.def(value) else { return None };
    let bias = match x.get(2) {
        Some(v) => Some(b.as_constant(*v)?.clone()),
        None => None,
    };
    Some(Found {
        conv: conv.clone(),
        input: x[0],
        filter: b.as_constant(x[1])?.clone(),
        bias,
    })
}

impl Found {
    fn channels(&self) -> usize {
        match &self.conv.transposed {
            None => self.filter.shape[0],
            Some(_) => self.filter.shape[self.channel_axis()] * self.conv.groups as usize,
        }
    }

    /// The filter's axis of the channels that are not its first axis.
    fn channel_axis(&self) -> usize {
        self.conv.layout.channel_axis(self.filter.shape.len())
    }

    /// Multiplies output channels by `a` and adds `c`.
    fn scaled(self, b: &mut Builder<'_>, a: Option<&[f32]>, c: Option<&[f32]>) -> Result<Option<Value>, PassFault> {
        let channels = self.channels();
        let filter = match a {
            None => self.filter.clone(),
            // Infinity times the filter's zeros is NaN, times their sum it need not be.
            Some(a) if a.iter().any(|v| !v.is_finite()) => return Ok(None),
            Some(a) => {
                let mut shape = vec![1usize; self.filter.shape.len()];
                match &self.conv.transposed {
                    None => shape[0] = channels,
                    // `[I, O/g, k…]` or `[I, k…, O/g]`: one channel scale for all inputs only without groups.
                    Some(_) if self.conv.groups == 1 => shape[self.channel_axis()] = channels,
                    Some(_) => return Ok(None),
                }
                let Some(a) = HostTensor::from_f32(shape, a).ok() else {
                    return Ok(None);
                };
                let Some(filter) = native::binary(BinaryOp::Mul, &self.filter, &a) else {
                    return Ok(None);
                };
                filter
            }
        };
        let mut bias = match &self.bias {
            Some(bias) => bias.to_f32(),
            None => vec![0.0; channels],
        };
        for (i, v) in bias.iter_mut().enumerate() {
            *v = a.map_or(*v, |a| *v * a[i]) + c.map_or(0.0, |c| c[i]);
        }
        let mut operands = vec![self.input, b.constant(filter)];
        if self.bias.is_some() || c.is_some() {
            let Ok(bias) = HostTensor::from_f32(vec![channels], &bias) else {
                return Ok(None);
            };
            operands.push(b.constant(bias));
        }
        b.emit(Op::Conv(self.conv), &operands).map(Some)
    }
}

fn batch_norm(b: &mut Builder<'_>, id: NodeId, epsilon: f64, layout: Layout) -> Result<Option<Value>, PassFault> {
    let operands: Vec<Value> = b.old.node(id).operands.iter().map(|v| b.value(*v)).collect();
    let (Some(found), Some((a, c))) = (find(b, operands[0]), normalised(b, &operands, epsilon)) else {
        return Ok(None);
    };
    if found.conv.layout != layout || found.filter.dtype != ir::DType::F32 || a.len() != found.channels() {
        return Ok(None);
    }
    let a: Vec<f32> = a.into_iter().map(|v| v as f32).collect();
    found.scaled(b, Some(&a), Some(&c))
}

/// What a batch norm of constants multiplies each channel by, and what it adds.
fn normalised(b: &Builder<'_>, operands: &[Value], epsilon: f64) -> Option<(Vec<f64>, Vec<f32>)> {
    let numbers = operands[1..].iter().map(|v| Some(b.as_constant(*v)?.to_f64()));
    let numbers: Vec<Vec<f64>> = numbers.collect::<Option<_>>()?;
    let [scale, bias, mean, variance] = numbers.as_slice() else {
        return None;
    };
    let factors = scale.iter().zip(variance).map(|(s, v)| s / (v + epsilon).sqrt());
    let a: Vec<f64> = factors.collect();
    let c = (0..a.len()).map(|i| (bias[i] - mean[i] * a[i]) as f32).collect();
    Some((a, c))
}

fn channel_constant(
    b: &mut Builder<'_>,
    id: NodeId,
    op: BinaryOp,
    single: &dyn Fn(&Value) -> bool,
) -> Result<Option<Value>, PassFault> {
    let node = b.old.node(id);
    let (x, c) = match (
        b.as_constant(b.value(node.operands[0])),
        b.as_constant(b.value(node.operands[1])),
    ) {
        (None, Some(_)) => (node.operands[0], node.operands[1]),
        (Some(_), None) if op != BinaryOp::Sub => (node.operands[1], node.operands[0]),
        _ => return Ok(None),
    };
    if !single(&x) {
        return Ok(None);
    }
    let Some(found) = find(b, b.value(x)) else {
        return Ok(None);
    };
    if found.filter.dtype != ir::DType::F32 {
        return Ok(None);
    }
    let (rank, channels) = (b.old.ty(x).rank(), found.channels());
    let axis = found.conv.layout.channel_axis(rank);
    let Some(constant) = b.as_constant(b.value(c)) else {
        return Ok(None);
    };
    // One number, or one a channel.
    let trailing = rank - 1 - axis;
    let at = constant.shape.len().checked_sub(1 + trailing);
    let along = at.is_some_and(|at| {
        constant.shape[at] == channels && constant.shape.iter().enumerate().all(|(i, n)| i == at || *n == 1)
    });
    let values = match constant.to_f32() {
        v if v.len() == 1 => vec![v[0]; channels],
        v if along => v,
        _ => return Ok(None),
    };
    match op {
        BinaryOp::Mul => found.scaled(b, Some(&values), None),
        BinaryOp::Sub => {
            let values: Vec<f32> = values.iter().map(|v| -v).collect();
            found.scaled(b, None, Some(&values))
        }
        _ => found.scaled(b, None, Some(&values)),
    }
}
