//! `(x − zero) · scale`, spelled out where no product reads it.
//!
//! ```text
//! y = dequantize x, s, z {axis=1, group=2}     becomes     y = mul (sub (cast x), (spread z)), (spread s)
//! y = quantize x, s, z {out=i8}                   becomes     y = cast (clip (add (round (div x, s)), z))
//! ```

use std::collections::BTreeSet;

use ir::op::{BinaryOp, Composite, Groups, UnaryOp, View};
use ir::{DType, Dim, Graph, NodeId, Op, Shape, Target, Value};

use super::{binary, cast, unary, wide, with_scalar};
use crate::error::PassFault;
use crate::fuse::classify::is_free;
use crate::quantize::cache::unpacked_values;
use crate::rewrite::Builder;

/// Finds the dequantisations that a product reads as its right operand, views in between or not, and on GPUs those that
/// attention reads as its values: its kernel takes them in.
pub fn multiplied(graph: &Graph, target: &Target) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    for (id, node) in graph.nodes().iter() {
        found.extend(target.is_gpu().then(|| unpacked_values(graph, id)).flatten());
        let (Op::Contract(_), Some(rhs)) = (&node.op, node.operands.get(1)) else {
            continue;
        };
        let mut value = *rhs;
        while is_free(&graph.node(value.node).op) {
            value = graph.node(value.node).operands[0];
        }
        if matches!(graph.node(value.node).op, Op::Composite(Composite::Dequantize { .. })) {
            found.insert(value.node);
        }
    }
    found
}

/// Emits the arithmetic, in f32 at least.
pub(super) fn dequantize(
    b: &mut Builder<'_>,
    x: &[Value],
    groups: Option<&Groups>,
    out: DType,
) -> Result<Value, PassFault> {
    let computed = wide(out);
    let shape = b.ty(x[0]).shape.clone();
    let mut value = cast(b, x[0], computed)?;
    if let Some(zero) = x.get(2) {
        let zero = cast(b, *zero, computed)?;
        let zero = spread(b, zero, groups, &shape)?;
        value = binary(b, BinaryOp::Sub, value, zero)?;
    }
    let scale = cast(b, x[1], computed)?;
    let scale = spread(b, scale, groups, &shape)?;
    value = binary(b, BinaryOp::Mul, value, scale)?;
    cast(b, value, out)
}

/// Emits the arithmetic in x's own type, as its meaning says. The quotient stays one: a product with the reciprocal
/// rounds otherwise.
pub(super) fn quantize(b: &mut Builder<'_>, x: &[Value], out: DType) -> Result<Value, PassFault> {
    let computed = b.ty(x[0]).dtype;
    let scale = cast(b, x[1], computed)?;
    let mut value = x[0];
    if b.as_scalar(scale).is_none_or(|s| s.as_f64() != 1.0) {
        value = binary(b, BinaryOp::Div, value, scale)?;
    }
    if let Some(largest) = out.f8_largest() {
        return saturated(b, value, largest, out);
    }
    value = unary(b, UnaryOp::Round, value)?;
    if let Some(zero) = x.get(2)
        && b.as_scalar(*zero).is_none_or(|z| z.as_f64() != 0.0)
    {
        let zero = cast(b, *zero, computed)?;
        value = binary(b, BinaryOp::Add, value, zero)?;
    }
    let (low, high) = out.int_range().unwrap_or_default();
    value = with_scalar(b, BinaryOp::Max, value, low as f64)?;
    value = with_scalar(b, BinaryOp::Min, value, high as f64)?;
    cast(b, value, out)
}

/// Rounds to an 8-bit float; what is beyond `largest` becomes that.
pub(crate) fn saturated(b: &mut Builder<'_>, value: Value, largest: f64, out: DType) -> Result<Value, PassFault> {
    let mut value = value;
    // The cast to this type saturates there itself.
    if out != DType::F8E4M3FN || largest != 448.0 {
        value = with_scalar(b, BinaryOp::Max, value, -largest)?;
        value = with_scalar(b, BinaryOp::Min, value, largest)?;
    }
    cast(b, value, out)
}

/// Gives each element along the axis of the groups the number of its group.
fn spread(b: &mut Builder<'_>, value: Value, groups: Option<&Groups>, shape: &Shape) -> Result<Value, PassFault> {
    let given = b.ty(value).shape.clone();
    let Some(Groups { axis, size }) = groups.filter(|g| !given[g.axis].is(1)) else {
        return Ok(value);
    };
    // [n] → [n, 1] → [n, size] → [n·size], of which the last group may have too many.
    let mut dims = given.0.clone();
    dims.insert(axis + 1, Dim::Const(1));
    let split = b.emit(Op::View(View::Reshape(dims.clone().into())), &[value])?;
    dims[axis + 1] = Dim::Const(*size);
    let repeated = b.emit(Op::View(View::Broadcast(dims.into())), &[split])?;
    let mut joined = given;
    joined.0[*axis] = joined[*axis].clone() * *size;
    let whole = b.emit(Op::View(View::Reshape(joined.clone())), &[repeated])?;
    if joined[*axis] == shape[*axis] {
        return Ok(whole);
    }
    let (rank, mut sizes) = (joined.rank(), joined.0);
    sizes[*axis] = shape[*axis].clone();
    let slice = View::Slice {
        starts: vec![Dim::Const(0); rank],
        sizes,
        steps: vec![1; rank],
    };
    b.emit(Op::View(slice), &[whole])
}
