//! Attention reads keys and values that are stored in 8 bits as they are stored.
//!
//! ```text
//! attention q, (dequantize k, s), (dequantize v, t)     becomes     mul (attention (mul q, s), (cast k), (cast v)), t
//! ```
//!
//! One scale for all keys is one for all scores, one for all values is the result's: what is left is a conversion that
//! loses nothing, which the kernel does on its way from memory. A known scale of the keys is part of attention's own; one
//! that a run gives is multiplied into the queries, in their type.
//!
//! Before: a cache is dequantised by a kernel of its own, which writes and reads numbers of twice or four times its
//! bytes. After: where it has one scale and no zero point but 0, it is read in 8 bits.

use ir::op::{BinaryOp, Composite, View};
use ir::{DType, Graph, NodeId, Op, Scalar, Shape, Value};

use crate::error::PassFault;
use crate::fold::with_simplify;
use crate::rewrite::Builder;
use crate::runner::Pass;

const NAME: &str = "cache";
/// The name of what the pass does.
pub const RULE: &str = "attention_over_8_bits";

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let applies = |id: NodeId| {
            let node = graph.node(id);
            let is_quantised = |v: &Value| is_dequantized(graph, *v);
            matches!(node.op, Op::Composite(Composite::Attention { .. }))
                && node.operands[1..3].iter().any(is_quantised)
        };
        let options = context.options;
        if !context.target.operand_prologue || !options.enabled(RULE) || !graph.nodes().keys().any(applies) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME).with_rules(with_simplify(options), options);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let made = match node.op {
                Op::Composite(Composite::Attention { scale, causal, mask }) => {
                    attention(&mut b, graph, id, scale.as_f64(), causal, mask)?
                }
                _ => None,
            };
            match made {
                Some((value, note)) => {
                    b.note(RULE, vec![node.origin.clone()], None, Some(note));
                    b.set(id, value);
                }
                None => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

fn is_dequantized(graph: &Graph, value: Value) -> bool {
    matches!(
        graph.node(value.node).op,
        Op::Composite(Composite::Dequantize { groups: None, .. })
    )
}

/// The stored bytes of a dequantisation by one number, and that.
fn stored(b: &Builder<'_>, value: Value) -> Option<[Value; 2]> {
    let (Op::Composite(Composite::Dequantize { groups: None, .. }), operands) = b.def(value) else {
        return None;
    };
    let dtype = b.ty(operands[0]).dtype;
    let no_zero = operands
        .get(2)
        .is_none_or(|z| b.as_scalar(*z).is_some_and(|z| z.as_f64() == 0.0));
    let fits = (dtype.is_f8() || matches!(dtype, DType::I8 | DType::U8)) && no_zero;
    (fits && b.ty(operands[1]).elements().is(1)).then(|| [operands[0], operands[1]])
}

fn attention(
    b: &mut Builder<'_>,
    graph: &Graph,
    id: NodeId,
    scale: f64,
    causal: bool,
    mask: bool,
) -> Result<Option<(Value, String)>, PassFault> {
    let mut operands: Vec<Value> = graph.node(id).operands.iter().map(|v| b.value(*v)).collect();
    let computed = b.ty(operands[0]).dtype;
    let (keys, values) = (stored(b, operands[1]), stored(b, operands[2]));
    if !matches!(computed, DType::F32 | DType::F16 | DType::BF16) || (keys.is_none() && values.is_none()) {
        return Ok(None);
    }
    let mut note = Vec::new();
    let mut scale = scale;
    if let Some([stored, factor]) = keys {
        note.push(format!("keys in {}", b.ty(stored).dtype));
        operands[1] = b.emit(Op::cast(computed), &[stored])?;
        match b.as_scalar(factor) {
            Some(known) => scale *= known.as_f64(),
            None => {
                let factor = single(b, factor, computed)?;
                operands[0] = b.emit(Op::binary(BinaryOp::Mul), &[operands[0], factor])?;
            }
        }
    }
    if let Some([stored, _]) = values {
        note.push(format!("values in {}", b.ty(stored).dtype));
        operands[2] = b.emit(Op::cast(computed), &[stored])?;
    }
    let op = Composite::Attention {
        scale: Scalar::Float(scale),
        causal,
        mask,
    };
    let mut result = b.emit(Op::Composite(op), &operands)?;
    if let Some([_, factor]) = values {
        let factor = single(b, factor, DType::F32)?;
        if computed != DType::F32 {
            result = b.emit(Op::cast(DType::F32), &[result])?;
        }
        result = b.emit(Op::binary(BinaryOp::Mul), &[result, factor])?;
        if computed != DType::F32 {
            result = b.emit(Op::cast(computed), &[result])?;
        }
    }
    Ok(Some((result, note.join(", "))))
}

/// A number of one element, as a scalar of a type.
fn single(b: &mut Builder<'_>, value: Value, dtype: DType) -> Result<Value, PassFault> {
    let value = b.emit(Op::View(View::Reshape(Shape::SCALAR)), &[value])?;
    match b.ty(value).dtype == dtype {
        true => Ok(value),
        false => b.emit(Op::cast(dtype), &[value]),
    }
}
