//! Lays quantised weights along the depth of the products that read them.
//!
//! ```text
//! contract x, (dequantize w [k, n], s)     becomes     contract x, (dequantize wᵀ [n, k], sᵀ) {transpose_rhs}
//! ```
//!
//! A weight's groups lie along the depth, so that neighbours in memory then share their scale, and kernels read many
//! elements of four or eight bits in one access. The bytes are permuted at compile time.
//!
//! Unsigned weights whose zero points are all in the middle of their type become signed ones without: kernels then read
//! and subtract none. So are the weights of ONNX Runtime's MatMulNBits and of GPTQ's symmetric files.
//!
//! ```text
//! dequantize w: u4, s, 8     becomes     dequantize w': i4, s
//! ```
//!
//! Before: a quantised constant is as the model has it. After: where every reader is a product by it as it lies, it is
//! `[n, k]`, and no constant of one reader has zero points in the middle of its type.

use ir::graph::{Constant, Node};
use ir::op::{Composite, Contract, Groups, View};
use ir::{DType, Graph, HostTensor, NodeId, Op, Storage, Value};

use crate::error::PassFault;
use crate::fold::with_simplify;
use crate::rewrite::Builder;
use crate::runner::Pass;

const NAME: &str = "weights";
/// The names of what the pass does.
pub const RULE: &str = "weight_along_depth";
pub const SIGNED_RULE: &str = "signed_weight";

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let users = graph.users();
        let turns = |value: Value| {
            let node = graph.node(value.node);
            let Op::Composite(Composite::Dequantize { .. }) = node.op else {
                return false;
            };
            let constant = |v: &Value| graph.as_constant(*v).is_some();
            let multiplied = |(user, position): &(NodeId, u32)| {
                matches!(graph.node(*user).op, Op::Contract(c) if !c.transpose_rhs) && *position == 1
            };
            let is_output = graph.outputs().iter().any(|o| o.value == value);
            node.results[0].rank() == 2
                && !is_output
                && node.operands.iter().all(constant)
                && users[value.node].iter().all(multiplied)
        };
        let enabled = |rule| context.options.enabled(rule);
        let is_turned =
            |op: &Op, operands: &[Value]| matches!(op, Op::Contract(_)) && enabled(RULE) && turns(operands[1]);
        let is_signed = |id: NodeId| {
            let data = graph.node(id).operands.first();
            let is_output = |value: &Value| graph.outputs().iter().any(|output| output.value == *value);
            let alone = data.is_some_and(|data| users[data.node].len() == 1 && !is_output(data));
            alone && enabled(SIGNED_RULE) && has_middle_zero(graph, id)
        };
        let changes = |(id, node): (NodeId, &Node)| is_turned(&node.op, &node.operands) || is_signed(id);
        if !graph.nodes().iter().any(changes) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME).with_rules(with_simplify(context.options), context.options);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            if is_signed(id)
                && let Some(weight) = signed(graph, node.operands[0])
            {
                let (weight, scale) = (b.constant_named(weight), b.value(node.operands[1]));
                let value = b.emit(node.op.clone(), &[weight, scale])?;
                b.note(SIGNED_RULE, vec![node.origin.clone()], None, None);
                b.set(id, value);
                continue;
            }
            match node.op {
                Op::Contract(c) if is_turned(&node.op, &node.operands) => {
                    let weight = turned(&mut b, node.operands[1])?;
                    let lhs = b.value(node.operands[0]);
                    let c = Contract {
                        transpose_rhs: true,
                        ..c
                    };
                    let value = b.emit(Op::Contract(c), &[lhs, weight])?;
                    b.note(RULE, vec![node.origin.clone()], None, None);
                    b.set(id, value);
                }
                _ => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// The signed type of an unsigned one, and the middle of that, which the signed one has less.
fn signed_type(dtype: DType) -> Option<(DType, u8)> {
    match dtype {
        DType::U4 => Some((DType::I4, 8)),
        DType::U8 => Some((DType::I8, 128)),
        _ => None,
    }
}

/// Says whether a node dequantises a constant whose zero points are all in the middle of its type.
fn has_middle_zero(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let (Op::Composite(Composite::Dequantize { .. }), [data, _, zero]) = (&node.op, &node.operands[..]) else {
        return false;
    };
    let (Some(data), Some(zero)) = (graph.as_constant(*data), graph.as_constant(*zero)) else {
        return false;
    };
    signed_type(data.dtype).is_some_and(|(_, middle)| zero.to_f64().iter().all(|z| *z == f64::from(middle)))
}

/// An unsigned constant as a signed one: the middle is subtracted of each element, which flips its highest bit.
fn signed(graph: &Graph, value: Value) -> Option<Constant> {
    let Op::Constant(id) = graph.node(value.node).op else {
        return None;
    };
    let Constant { name, tensor } = &graph.constants()[id];
    let (dtype, middle) = signed_type(tensor.dtype)?;
    let mut flips = middle;
    if dtype.bits() == 4 {
        flips |= middle << 4;
    }
    let bytes: Vec<u8> = tensor.bytes.iter().map(|byte| byte ^ flips).collect();
    let tensor = HostTensor::new(dtype, tensor.shape.clone(), Storage::new(bytes)).ok()?;
    Some(Constant {
        name: name.clone(),
        tensor,
    })
}

/// A dequantised `[k, n]` as a dequantised `[n, k]`.
fn turned(b: &mut Builder<'_>, value: Value) -> Result<Value, PassFault> {
    let value = b.value(value);
    let (op, operands) = b.def(value);
    let Op::Composite(Composite::Dequantize { groups, out }) = *op else {
        return Ok(value);
    };
    let operands = operands.to_vec();
    let mut turned = Vec::with_capacity(operands.len());
    for operand in operands {
        turned.push(b.emit(Op::View(View::Transpose(vec![1, 0])), &[operand])?);
    }
    let groups = groups.map(|g| Groups { axis: 1 - g.axis, ..g });
    b.emit(Op::Composite(Composite::Dequantize { groups, out }), &turned)
}
