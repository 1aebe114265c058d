//! Attention reads keys and values that are stored in 8 bits as they are stored.
//!
//! ```text
//! attention q, (dequantize k, s), (dequantize v, t)     becomes     mul (attention q, (cast k), (cast v), s {scales}), t
//! ```
//!
//! A scale of a key, be it one for all keys, for a head or for a position, is one of its scores: the kernel multiplies
//! scores by it, in f32. A scale of the values that holds along the keys, one for all, for a head or for a feature, is
//! the result's. What is left is a conversion that loses nothing, which the kernel does on its way from memory. One
//! known number for all keys is part of attention's own scale. Values with a scale for each position stay `dequantize`:
//! a GPU's kernel multiplies each by its own on the way from memory, which gives the numbers that the graph means.
//!
//! Before: a cache is dequantised by a kernel of its own, which writes and reads numbers of twice or four times its
//! bytes. After: where it has such scales and no zero point but 0, it is read in 8 bits.

use ir::op::{BinaryOp, Composite, View};
use ir::{DType, Dim, Graph, NodeId, Op, Scalar, Shape, Value};

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
                Op::Composite(Composite::Attention {
                    scale,
                    causal,
                    mask,
                    scales: false,
                }) => {
                    let on_the_way = context.target.is_gpu() && unpacked_values(graph, id).is_some();
                    attention(&mut b, graph, id, (scale.as_f64(), causal, mask), on_the_way)?
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

/// The dequantisation of an attention's values that its kernel does: of bytes, by a scale for each position, without a
/// zero point.
pub fn unpacked_values(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    let Op::Composite(Composite::Attention { .. }) = node.op else {
        return None;
    };
    let value = node.operands.get(2)?.node;
    let (made, operands) = (graph.node(value), &graph.node(value).operands);
    let plain = matches!(made.op, Op::Composite(Composite::Dequantize { groups: None, .. })) && operands.len() == 2;
    let by_position = |scale: &Value| graph.ty(*scale).shape.get(3).is_some_and(|d| d.is(1));
    (plain && by_position(operands.get(1)?) && graph.ty(operands[0]).dtype.bits() == 8).then_some(value)
}

/// The stored bytes of a dequantisation, and its scales, which have size 1 along an axis.
fn stored(b: &Builder<'_>, value: Value, single: usize) -> Option<[Value; 2]> {
    let (Op::Composite(Composite::Dequantize { groups: None, .. }), operands) = b.def(value) else {
        return None;
    };
    let dtype = b.ty(operands[0]).dtype;
    let no_zero = operands
        .get(2)
        .is_none_or(|z| b.as_scalar(*z).is_some_and(|z| z.as_f64() == 0.0));
    let fits = (dtype.is_f8() || matches!(dtype, DType::I8 | DType::U8)) && no_zero;
    (fits && b.ty(operands[1]).shape[single].is(1)).then(|| [operands[0], operands[1]])
}

fn attention(
    b: &mut Builder<'_>,
    graph: &Graph,
    id: NodeId,
    (scale, causal, mask): (f64, bool, bool),
    on_the_way: bool,
) -> Result<Option<(Value, String)>, PassFault> {
    let mut operands: Vec<Value> = graph.node(id).operands.iter().map(|v| b.value(*v)).collect();
    let computed = b.ty(operands[0]).dtype;
    // Scales of features would be the queries', those of positions the weights'.
    let (keys, values) = (stored(b, operands[1], 3), stored(b, operands[2], 2));
    if !matches!(computed, DType::F32 | DType::F16 | DType::BF16) || (keys.is_none() && values.is_none() && !on_the_way)
    {
        return Ok(None);
    }
    let heads = b.ty(operands[0]).shape[1].clone();
    let mut note = Vec::new();
    let (mut scale, mut scales) = (scale, false);
    if let Some([stored, factor]) = keys {
        note.push(format!("keys in {}", b.ty(stored).dtype));
        operands[1] = b.emit(Op::cast(computed), &[stored])?;
        match b.as_scalar(factor).filter(|_| b.ty(factor).elements().is(1)) {
            Some(known) => scale *= known.as_f64(),
            None => {
                // `[B, Hkv, T, 1]` lies as `[B, Hkv, 1, T]` does.
                let mut shape = b.ty(factor).shape.clone();
                shape.0.swap(2, 3);
                let factor = b.emit(Op::View(View::Reshape(shape)), &[factor])?;
                operands.push(of_heads(b, factor, &heads)?);
                scales = true;
            }
        }
    }
    if let Some([stored, _]) = values {
        note.push(format!("values in {}", b.ty(stored).dtype));
        operands[2] = b.emit(Op::cast(computed), &[stored])?;
    } else if on_the_way {
        let (_, given) = b.def(operands[2]);
        note.push(format!("values in {}, a scale a position", b.ty(given[0]).dtype));
    }
    let op = Composite::Attention {
        scale: Scalar::Float(scale),
        causal,
        mask,
        scales,
    };
    let mut result = b.emit(Op::Composite(op), &operands)?;
    if let Some([_, factor]) = values {
        let factor = of_heads(b, factor, &heads)?;
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

/// Scales `[B, Hkv or 1, x, y]` in f32, with those of a head of keys repeated for each head of queries that shares it.
fn of_heads(b: &mut Builder<'_>, scales: Value, heads: &Dim) -> Result<Value, PassFault> {
    let scales = match b.ty(scales).dtype {
        DType::F32 => scales,
        _ => b.emit(Op::cast(DType::F32), &[scales])?,
    };
    let shape = b.ty(scales).shape.clone();
    if shape[1].is(1) || shape[1] == *heads {
        return Ok(scales);
    }
    let mut split = shape.0.clone();
    split.insert(2, Dim::Const(1));
    let mut wide = split.clone();
    wide[2] = heads.floor_div(&shape[1]);
    let mut joined = shape.0;
    joined[1] = heads.clone();
    let split = b.emit(Op::View(View::Reshape(Shape(split))), &[scales])?;
    let wide = b.emit(Op::View(View::Broadcast(Shape(wide))), &[split])?;
    b.emit(Op::View(View::Reshape(Shape(joined))), &[wide])
}

#[cfg(test)]
mod tests {
    use ir::Op;
    use ir::op::Composite;

    use crate::OptimizeOptions;
    use crate::testing::{graph, optimized};

    /// Whether keys and values are read as they are stored, and whether scores are scaled; the numbers are compared.
    #[track_caller]
    fn check(scales: [&str; 2], given: bool, reads: bool, scaled: bool) {
        let scale = |name: &str, shape: &str| match given {
            true => format!("{name} = input \"{name}\" : f32{shape}\n"),
            false => format!("{name} = constant random(seed=5) : f32{shape}\n"),
        };
        let text = format!(
            "q = input \"q\" : f32[1, 4, 3, 8]\nk = input \"k\" : i8[1, 2, 5, 8]\nv = input \"v\" : i8[1, 2, 5, 8]\n{}{}\
             a = dequantize k, s {{out=f32}}\nb = dequantize v, t {{out=f32}}\n\
             m = input \"m\" : f32[3, 5]\ny = attention q, a, b, m {{scale=0.25, mask}}\nreturn y as \"y\"",
            scale("s", scales[0]),
            scale("t", scales[1])
        );
        let (after, report) = optimized(&graph(&text), "gfx90a", OptimizeOptions::default());
        assert_eq!(report.fired.iter().any(|f| f.rule == super::RULE), reads, "{text}");
        let has = |op: &Op| matches!(op, Op::Composite(Composite::Attention { scales: true, .. }));
        assert_eq!(after.nodes().values().any(|n| has(&n.op)), scaled, "{text}");
    }

    #[test]
    fn scales_of_heads_and_positions_leave_the_bytes_as_they_are() {
        let (one, head) = ("[1, 1, 1, 1]", "[1, 2, 1, 1]");
        check([one, one], false, true, false);
        check([one, one], true, true, true);
        for given in [false, true] {
            check([head, head], given, true, true);
            check(["[1, 2, 5, 1]", "[1, 2, 1, 8]"], given, true, true);
            check(["[1, 1, 5, 1]", one], given, true, true);
            // Features of keys need the queries' place.
            check(["[1, 2, 1, 8]", "[1, 2, 5, 8]"], given, false, false);
            // Values by position stay dequantised by the kernel.
            check(["[1, 2, 1, 8]", "[1, 2, 5, 1]"], given, true, false);
            check(["[1, 2, 5, 1]", "[1, 1, 5, 1]"], given, true, true);
            check(["[1, 2, 1, 8]", head], given, true, false);
        }
    }
}
