//! Converts an f32 model to a half type.
//!
//! Activations and weights become `f16` or `bf16`; inputs and outputs keep their declared types through casts at the
//! border. Numbers that come from positions alone (rotary angles, masks) stay f32 until an activation meets them: `bf16`
//! cannot count beyond 256. Accumulators and statistics are f32 inside the ops, as their meaning says. Finite constants
//! beyond the type's range become its largest number, so that a mask of `-3.4e38` does not become an infinity.

use ir::entity::Entity;
use ir::op::Elementwise;
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
            for v in &node.operands {
                let mut value = b.value(*v);
                if b.ty(value).dtype == DType::F32 {
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

fn lower(b: &mut Builder<'_>, value: Value, to: DType) -> Result<Value, PassFault> {
    let constant = match b.as_constant(value) {
        Some(t) if t.elements() <= 1 << 10 => saturated(t, to),
        Some(t) => native::round_f32(t, to),
        None => None,
    };
    match constant {
        Some(t) => Ok(b.constant(t)),
        None => b.emit(Op::cast(to), &[value]),
    }
}

/// Rounds, keeping finite numbers finite.
fn saturated(t: &HostTensor, to: DType) -> Option<HostTensor> {
    let largest = match to {
        DType::F16 => f64::from(half::f16::MAX),
        DType::BF16 => f64::from(half::bf16::MAX),
        _ => return None,
    };
    let values: Vec<f64> = t
        .to_f64()
        .into_iter()
        .map(|v| if v.is_finite() { v.clamp(-largest, largest) } else { v })
        .collect();
    HostTensor::from_f64(to, t.shape.clone(), &values).ok()
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
        Op::Elementwise(Elementwise::Cast(DType::F32)) => Op::cast(to),
        other => other.clone(),
    }
}
