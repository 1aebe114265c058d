//! Converts an f32 model to a half type.
//!
//! Activations and weights become `f16` or `bf16`; inputs and outputs keep their declared types through casts at the
//! border. Numbers that come from positions alone (rotary angles, masks) stay f32 until an activation meets them: `bf16`
//! cannot count beyond 256. Accumulators and statistics are f32 inside the ops, as their meaning says. Finite constants
//! beyond the type's range become its largest number, so that a mask of `-3.4e38` does not become an infinity.

use ir::entity::Entity;
use ir::op::{Composite, Elementwise, View};
use ir::{DType, HostTensor, Op, Value};

use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "precision",
    run: |graph, context| {
        let to = match context.options.dtype {
            None | Some(DType::F32) => return Ok(graph.clone()),
            Some(to @ (DType::F16 | DType::BF16)) => to,
            Some(other) => return Err(PassFault::Precision(other)),
        };
        let mut b = Builder::new(graph, "precision");
        // Whether a node's f32 results are held in `to`.
        let mut lowered = vec![false; graph.nodes().len()];
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            if let Op::Input { .. } = node.op {
                if node.results[0].dtype == DType::F32 {
                    let value = b.value(id.into());
                    let value = b.emit(Op::cast(to), &[value])?;
                    b.set(id, value);
                    lowered[id.index()] = true;
                }
                continue;
            }
            // Products of 8-bit floats have their scales behind them: the sums alone may be beyond a half type.
            let multiplies = matches!(node.op, Op::Contract(_) | Op::Conv(_));
            if multiplies && node.results[0].dtype == DType::F32 && graph.ty(node.operands[0]).dtype.bits() < 32 {
                b.copy(id)?;
                continue;
            }
            let float = node.results.iter().any(|t| t.dtype == DType::F32);
            let reads_activation = node.operands.iter().any(|v| lowered[v.node.index()]);
            let heavy = matches!(
                node.op,
                Op::Contract(_) | Op::Conv(_) | Op::Pool(_) | Op::Gather(_) | Op::Composite(_)
            );
            if node.op.is_leaf() || !(reads_activation || (float && heavy)) {
                b.copy(id)?;
                continue;
            }
            let mut operands: Vec<Value> = Vec::new();
            // Scales lose nothing by being wider than what is computed with them.
            let keeps = matches!(node.op, Op::Composite(Composite::Dequantize { .. }));
            for v in &node.operands {
                let mut value = b.value(*v);
                if !keeps && b.ty(value).dtype == DType::F32 {
                    value = lower(&mut b, value, to)?;
                }
                operands.push(value);
            }
            let op = retyped(&node.op, to);
            let made = b.plain(&op, &operands)?;
            let values: Vec<Value> = (0..node.results.len()).map(|i| Value::new(made, i as u32)).collect();
            b.set_all(id, &values);
            lowered[id.index()] = float;
            b.note("lower_precision", vec![node.origin.clone()], None, None);
        }
        // Outputs keep their types.
        for output in graph.outputs() {
            let value = b.value(output.value);
            let want = graph.ty(output.value).dtype;
            if b.ty(value).dtype != want {
                let value = b.emit(Op::cast(want), &[value])?;
                b.set_output(&output.name, value);
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: true,
};

/// The value in the half type: constants and broadcast numbers are rounded here, keeping finite ones finite.
fn lower(b: &mut Builder<'_>, value: Value, to: DType) -> Result<Value, PassFault> {
    if let Some(t) = b.as_constant(value).and_then(|t| native::saturate_f32(t, to)) {
        return Ok(b.constant(t));
    }
    if let Some(number) = b.as_scalar(value) {
        let one = HostTensor::scalar(DType::F32, number);
        if let Some(t) = native::saturate_f32(&one, to) {
            let (number, shape) = (b.constant(t), b.ty(value).shape.clone());
            return b.emit(Op::View(View::Broadcast(shape)), &[number]);
        }
    }
    b.emit(Op::cast(to), &[value])
}

/// The op with its own element types lowered.
fn retyped(op: &Op, to: DType) -> Op {
    match op {
        Op::Contract(c) if c.out == DType::F32 => {
            let mut c = *c;
            c.out = to;
            Op::Contract(c)
        }
        Op::Conv(c) if c.out == DType::F32 => {
            let mut c = c.clone();
            c.out = to;
            Op::Conv(c)
        }
        Op::Composite(Composite::Dequantize {
            groups,
            out: DType::F32,
        }) => Op::Composite(Composite::Dequantize {
            groups: *groups,
            out: to,
        }),
        Op::Elementwise(Elementwise::Cast(DType::F32)) => Op::cast(to),
        other => other.clone(),
    }
}
