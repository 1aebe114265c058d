//! Replaces composites that no kernel takes whole by primitive families, and moves the graph to `Stage::Core`.
//!
//! Every composite has a decomposition here; [`Keep`](crate::Keep) says which stay. Statistics are computed in f32 at
//! least, whatever the element type.

pub mod attention;
pub mod dequantize;
pub mod norms;
pub mod recurrent;
pub mod softmax;

use ir::graph::{Node, Stage};
use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp, View};
use ir::{DType, Dim, Graph, Op, Shape, Target, Value};

use crate::alone;
use crate::error::PassFault;
use crate::options::Keep;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "decompose",
    run: |graph, context| {
        let keep = context.options.keep;
        let multiplied = dequantize::multiplied(graph, context.target);
        let mut builder = Builder::new(graph, "decompose");
        for (id, node) in graph.nodes().iter() {
            let Op::Composite(composite) = &node.op else {
                builder.copy(id)?;
                continue;
            };
            let stays = stays(composite, keep)
                && (multiplied.contains(&id) || !dequantizes(composite))
                && rows_serve(composite, graph, node, context.target);
            if stays && has_kernel(composite, graph, node, context.target) {
                builder.copy(id)?;
                continue;
            }
            builder.origin = node.origin.clone();
            let operands: Vec<Value> = node.operands.iter().map(|v| builder.value(*v)).collect();
            let value = match composite {
                Composite::Recurrent(layer)
                    if stays && recurrent::is_one_kernel(graph, node, layer, context.target) =>
                {
                    recurrent::in_f32(&mut builder, layer, &operands, context.target)?
                }
                // A group is a row, which one kernel normalises.
                Composite::GroupNorm { groups, epsilon } if keep.layer_norm => {
                    norms::group_norm_by_rows(&mut builder, &operands, *groups, epsilon.as_f64())?
                }
                _ => expand(&mut builder, composite, &operands, keep)?,
            };
            let value = as_shape(&mut builder, value, &node.results[0].shape)?;
            builder.note(rule_name(composite), vec![node.origin.clone()], None, None);
            builder.set(id, value);
        }
        let mut out = builder.finish(&mut context.fired);
        out.stage = Stage::Core;
        Ok(out)
    },
    required: true,
};

/// Says whether a kernel of rows serves a composite at its sizes, as far as it is one of rows. Where groups are few and
/// long, it does not.
fn rows_serve(composite: &Composite, graph: &Graph, node: &Node, target: &Target) -> bool {
    let ty = graph.ty(node.operands[0]);
    let count = |dims: &[Dim]| dims.iter().cloned().product::<Dim>();
    let (rows, length) = match composite {
        Composite::Softmax { axis } | Composite::LogSoftmax { axis } => {
            let mut rest = ty.shape.0.clone();
            let length = rest.remove(*axis);
            (count(&rest), length)
        }
        Composite::RmsNorm { axis, .. } => {
            let (rows, row) = ty.shape.split_at(*axis);
            (count(rows), count(row))
        }
        // Of these, `few_rows` decides when it is known how they lie in memory.
        _ => return true,
    };
    alone::one_kernel_serves(target, rows.hint(graph.symbols()), length.as_const(), ty.dtype)
}

fn dequantizes(composite: &Composite) -> bool {
    matches!(composite, Composite::Dequantize { .. })
}

fn stays(composite: &Composite, keep: Keep) -> bool {
    match composite {
        Composite::Softmax { .. } => keep.softmax,
        Composite::LogSoftmax { .. } => keep.log_softmax,
        Composite::LayerNorm { .. } => keep.layer_norm,
        Composite::RmsNorm { .. } => keep.rms_norm,
        Composite::Attention { .. } => keep.attention,
        Composite::Dequantize { .. } => keep.dequantize,
        Composite::BatchNorm { .. }
        | Composite::GroupNorm { .. }
        | Composite::LocalResponseNorm { .. }
        | Composite::Quantize { .. } => false,
        Composite::Recurrent(_) => keep.recurrent,
    }
}

/// Says whether a kernel can take the composite at these types: attention keeps a row of each head in registers, so
/// head sizes must be known, and not 0; and it computes in f32. So does the kernel of recurrent layers.
fn has_kernel(composite: &Composite, graph: &Graph, node: &Node, target: &Target) -> bool {
    let size = |operand: usize| graph.ty(node.operands[operand]).shape.last().and_then(Dim::as_const);
    match composite {
        Composite::Attention { .. } => {
            let is_f64 = node.operands.iter().any(|v| graph.ty(*v).dtype == DType::F64);
            !is_f64 && [0, 2].into_iter().all(|operand| size(operand).is_some_and(|d| d > 0))
        }
        Composite::Dequantize { out, .. } => *out != DType::F64,
        Composite::Recurrent(layer) => {
            recurrent::is_in_f32(graph, node, target) && recurrent::is_one_kernel(graph, node, layer, target)
        }
        _ => true,
    }
}

fn rule_name(composite: &Composite) -> &'static str {
    match composite {
        Composite::Softmax { .. } => "decompose_softmax",
        Composite::LogSoftmax { .. } => "decompose_log_softmax",
        Composite::LayerNorm { .. } => "decompose_layer_norm",
        Composite::RmsNorm { .. } => "decompose_rms_norm",
        Composite::BatchNorm { .. } => "decompose_batch_norm",
        Composite::GroupNorm { .. } => "decompose_group_norm",
        Composite::Attention { .. } => "decompose_attention",
        Composite::Dequantize { .. } => "decompose_dequantize",
        Composite::Quantize { .. } => "decompose_quantize",
        Composite::LocalResponseNorm { .. } => "decompose_local_response_norm",
        Composite::Recurrent(_) => "decompose_recurrent",
    }
}

/// Emits a composite as primitive families (and, in attention, a softmax if that is kept).
///
/// # Errors
/// When the operands are not those of the composite.
pub fn expand(b: &mut Builder<'_>, composite: &Composite, x: &[Value], keep: Keep) -> Result<Value, PassFault> {
    match composite {
        Composite::Softmax { axis } => softmax::softmax(b, x[0], *axis),
        Composite::LogSoftmax { axis } => softmax::log_softmax(b, x[0], *axis),
        Composite::LayerNorm { axis, epsilon } => norms::layer_norm(b, x, *axis, epsilon.as_f64()),
        Composite::RmsNorm { axis, epsilon } => norms::rms_norm(b, x, *axis, epsilon.as_f64()),
        Composite::BatchNorm { epsilon, layout } => norms::batch_norm(b, x, epsilon.as_f64(), *layout),
        Composite::GroupNorm { groups, epsilon } => norms::group_norm(b, x, *groups, epsilon.as_f64()),
        Composite::LocalResponseNorm {
            size,
            alpha,
            beta,
            bias,
        } => norms::local_response_norm(b, x[0], *size, alpha.as_f64(), beta.as_f64(), bias.as_f64()),
        Composite::Attention {
            scale,
            causal,
            mask,
            scales,
        } => {
            let scales = x.last().copied().filter(|_| *scales);
            attention::attention(b, &x[..3 + usize::from(*mask)], scales, scale.as_f64(), *causal, keep)
        }
        Composite::Dequantize { groups, out } => dequantize::dequantize(b, x, groups.as_ref(), *out),
        Composite::Quantize { out } => dequantize::quantize(b, x, *out),
        Composite::Recurrent(layer) => recurrent::recurrent(b, layer, x),
    }
}

/// The type that statistics are computed in.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

pub(crate) fn cast(b: &mut Builder<'_>, x: Value, to: DType) -> Result<Value, PassFault> {
    if b.ty(x).dtype == to {
        return Ok(x);
    }
    b.emit(Op::cast(to), &[x])
}

pub(crate) fn binary(b: &mut Builder<'_>, op: BinaryOp, x: Value, y: Value) -> Result<Value, PassFault> {
    b.emit(Op::binary(op), &[x, y])
}

pub(crate) fn unary(b: &mut Builder<'_>, op: UnaryOp, x: Value) -> Result<Value, PassFault> {
    b.emit(Op::unary(op), &[x])
}

/// `x op c` for a number of x's type.
pub(crate) fn with_scalar(b: &mut Builder<'_>, op: BinaryOp, x: Value, c: f64) -> Result<Value, PassFault> {
    let c = b.scalar(b.ty(x).dtype, c);
    binary(b, op, x, c)
}

pub(crate) fn reduce(b: &mut Builder<'_>, op: ReduceOp, x: Value, axes: Vec<usize>) -> Result<Value, PassFault> {
    b.emit(
        Op::Reduce {
            op,
            axes,
            keep_dims: true,
        },
        &[x],
    )
}

pub(crate) fn as_shape(b: &mut Builder<'_>, x: Value, shape: &Shape) -> Result<Value, PassFault> {
    if b.ty(x).shape == *shape {
        return Ok(x);
    }
    b.emit(Op::View(View::Reshape(shape.clone())), &[x])
}
