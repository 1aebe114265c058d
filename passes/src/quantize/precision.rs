//! Converts an f32 model to a half type.
//!
//! Activations and weights become `f16` or `bf16`; inputs and outputs keep their declared types through casts at the
//! border. Numbers that come from positions alone (rotary angles, masks) stay f32 until an activation meets them:
//! `bf16` cannot count beyond 256. Accumulators and statistics are f32 inside the ops, as their meaning says. Finite
//! numbers beyond the type's range become its largest number, so that a mask of `-3.4e38` does not become an infinity,
//! whether it is a constant, an input or computed from positions. What products multiply is only rounded: a clamp
//! before it would be a kernel.

use ir::entity::Entity;
use ir::op::{BinaryOp, Composite, Elementwise, UnaryLaw, UnaryOp, View};
use ir::{DType, Graph, HostTensor, NodeId, Op, Table, Value};
use smallvec::SmallVec;

use crate::decompose::{unary, with_scalar};
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
        let users = graph.users();
        // Whether a node's f32 results are held in `to`.
        let mut lowered = vec![false; graph.nodes().len()];
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            if let Op::Input { .. } = node.op {
                if node.results[0].dtype == DType::F32 {
                    let value = b.value(id.into());
                    let value = match is_multiplied(graph, &users, id) {
                        true => b.emit(Op::cast(to), &[value])?,
                        false => saturated(&mut b, value, to)?,
                    };
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
            for (position, v) in node.operands.iter().enumerate() {
                let mut value = b.value(*v);
                if !keeps && b.ty(value).dtype == DType::F32 {
                    value = lower(&mut b, value, to, multiplies_operand(&node.op, position))?;
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
fn lower(b: &mut Builder<'_>, value: Value, to: DType, multiplied: bool) -> Result<Value, PassFault> {
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
    if multiplied || magnitude(b, value, DEPTH) <= largest(to) {
        return b.emit(Op::cast(to), &[value]);
    }
    saturated(b, value, to)
}

/// The largest number of a half type.
fn largest(to: DType) -> f64 {
    match to {
        DType::F16 => f64::from(half::f16::MAX),
        _ => f64::from(half::bf16::MAX),
    }
}

/// Rounds to a half type; finite numbers beyond its range become its largest one, infinities and NaN stay.
fn saturated(b: &mut Builder<'_>, value: Value, to: DType) -> Result<Value, PassFault> {
    let bound = largest(to);
    let low = with_scalar(b, BinaryOp::Max, value, -bound)?;
    let within = with_scalar(b, BinaryOp::Min, low, bound)?;
    let infinite = unary(b, UnaryOp::IsInf, value)?;
    let kept = b.emit(Op::Elementwise(Elementwise::Select), &[infinite, value, within])?;
    b.emit(Op::cast(to), &[kept])
}

/// Says whether a product, a convolution or an attention multiplies this operand.
fn multiplies_operand(op: &Op, position: usize) -> bool {
    match op {
        Op::Contract(_) | Op::Conv(_) => true,
        Op::Composite(Composite::Attention { .. }) => position < 3,
        _ => false,
    }
}

/// Says whether a product, a convolution or an attention multiplies a value as it is, through views or not.
fn is_multiplied(graph: &Graph, users: &Table<NodeId, SmallVec<[(NodeId, u32); 2]>>, id: NodeId) -> bool {
    users[id].iter().any(|(user, position)| match &graph.node(*user).op {
        Op::View(_) => is_multiplied(graph, users, *user),
        op => multiplies_operand(op, *position as usize),
    })
}

/// How many operations a bound is looked for through.
const DEPTH: u32 = 12;

/// A bound on the magnitude of a value's numbers; infinite where none is seen.
fn magnitude(b: &Builder<'_>, value: Value, depth: u32) -> f64 {
    if let Some(number) = b.as_scalar(value) {
        return number.as_f64().abs();
    }
    if let Some(t) = b.as_constant(value) {
        return t.to_f64().iter().fold(0.0, |most, v| v.abs().max(most));
    }
    let ty = b.ty(value);
    match ty.dtype {
        DType::Bool => return 1.0,
        dtype if dtype.is_int() && dtype.bits() <= 8 => return 255.0,
        _ if depth == 0 => return f64::INFINITY,
        _ => {}
    }
    let (op, operands) = b.def(value);
    let of = |at: usize| magnitude(b, operands[at], depth - 1);
    match op {
        Op::View(View::Concat { .. }) => (0..operands.len()).map(of).fold(0.0, f64::max),
        Op::View(View::Pad { .. }) => f64::INFINITY,
        Op::View(_) | Op::Elementwise(Elementwise::Cast(_)) => of(0),
        Op::Elementwise(Elementwise::Select) => of(1).max(of(2)),
        Op::Elementwise(Elementwise::Unary(op)) if op.is(UnaryLaw::AtMostOne) => 1.0,
        Op::Elementwise(Elementwise::Unary(op)) if op.is(UnaryLaw::PiecewiseLinear) => of(0),
        Op::Elementwise(Elementwise::Binary(op)) => match op {
            BinaryOp::Add | BinaryOp::Sub => of(0) + of(1),
            BinaryOp::Mul => of(0) * of(1),
            BinaryOp::Max | BinaryOp::Min => of(0).max(of(1)),
            _ => f64::INFINITY,
        },
        _ => f64::INFINITY,
    }
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

#[cfg(test)]
mod tests {
    use ir::graph::eval::evaluate;
    use ir::{DType, Graph, HostTensor, Target};

    use crate::testing::graph;
    use crate::{OptLevel, OptimizeOptions, optimize};

    fn lowered(before: &Graph, dtype: DType) -> Graph {
        let options = OptimizeOptions {
            dtype: Some(dtype),
            ..OptimizeOptions::at(OptLevel::O1)
        };
        optimize(before.clone(), &Target::cpu(), &options).expect("optimises").0
    }

    fn count(graph: &Graph, name: &str) -> usize {
        graph.nodes().values().filter(|node| node.op.name() == name).count()
    }

    #[test]
    fn finite_masks_stay_finite_and_infinite_ones_infinite() {
        let given = "  x = input \"x\" : f32[2, 4]\n  m = input \"m\" : f32[2, 4]\n  s = add x, m\n  \
                     y = softmax s {axis=1}\n  return y as \"y\"";
        // As exporters spell it: what is visible, taken from 1, times the least number.
        let computed = "  x = input \"x\" : f32[2, 4]\n  m = input \"m\" : f32[2, 4]\n  one = constant 1.0 : f32[]\n  \
                        least = constant -3.4028235e38 : f32[]\n  p = iota {axis=1} : f32[2, 4]\n  q = mul p, least\n  \
                        s = add x, m\n  t = add s, q\n  y = softmax t {axis=1}\n  return y as \"y\"";
        for (body, hidden) in [given, computed]
            .into_iter()
            .flat_map(|body| [f64::from(f32::MIN), -1e10, -7e4, f64::NEG_INFINITY].map(|hidden| (body, hidden)))
        {
            let before = graph(body);
            let x = HostTensor::from_f64(DType::F32, [2, 4], &[0.5, -1.0, 2.0, 0.25, 1.0, 0.0, -0.5, 3.0]).unwrap();
            // The first row is hidden as a whole, the second in part.
            let mask = [hidden, hidden, hidden, hidden, 0.0, hidden, 0.0, 0.0];
            let m = HostTensor::from_f64(DType::F32, [2, 4], &mask).unwrap();
            let inputs = [("x".to_owned(), x), ("m".to_owned(), m)].into_iter().collect();
            let want = evaluate(&before, &inputs).unwrap()["y"].to_f64();
            for dtype in [DType::F16, DType::BF16] {
                let got = evaluate(&lowered(&before, dtype), &inputs).unwrap()["y"].to_f64();
                for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                    // A half type keeps some of what f32 loses of a score beside a mask.
                    let close =
                        (got - want).abs() <= 0.02 || got.is_nan() && want.is_nan() || at < 4 && got.is_finite();
                    assert!(close, "{dtype}, {hidden}, {at}: {got}, {want}\n{body}");
                }
            }
        }
    }

    #[test]
    fn products_operands_and_small_numbers_are_only_rounded() {
        let body = "  x = input \"x\" : f32[4, 8]\n  w = input \"w\" : f32[8, 8]\n  p = iota {axis=1} : f32[4, 8]\n  \
                    c = cos p\n  t = transpose x {perm=[1, 0]}\n  z = contract x, w\n  v = contract t, x\n  \
                    u = mul z, c\n  return u as \"u\", v as \"v\"";
        let after = lowered(&graph(body), DType::F16);
        assert_eq!(count(&after, "min") + count(&after, "max"), 0, "{after}");
    }
}
