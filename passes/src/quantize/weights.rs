//! Lays quantised weights along the depth of the products that read them.
//!
//! ```text
//! contract x, (dequantize w [k, n], s)     becomes     contract x, (dequantize wᵀ [n, k], sᵀ) {transpose_rhs}
//! ```
//!
//! A weight's groups lie along the depth, so that neighbours in memory then share their scale, and kernels read many elements of
//! four or eight bits in one access. The bytes are permuted at compile time.
//!
//! Before: a quantised constant lies as the model has it. After: where every reader is a product by it as it lies, it is `[n, k]`.

use ir::op::{Composite, Contract, Groups, View};
use ir::{Graph, NodeId, Op, Value};

use crate::error::PassFault;
use crate::fold::with_simplify;
use crate::rewrite::Builder;
use crate::runner::Pass;

const NAME: &str = "weights";
/// The name of what the pass does.
pub const RULE: &str = "weight_along_depth";

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
        let applies = |op: &Op| matches!(op, Op::Contract(_)) && context.options.enabled(RULE);
        if !graph.nodes().values().any(|n| applies(&n.op) && turns(n.operands[1])) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME).with_rules(with_simplify(context.options), context.options);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            match node.op {
                Op::Contract(c) if turns(node.operands[1]) => {
                    let weight = turned(&mut b, graph, node.operands[1])?;
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

/// A dequantised `[k, n]` as a dequantised `[n, k]`.
fn turned(b: &mut Builder<'_>, graph: &Graph, value: Value) -> Result<Value, PassFault> {
    let node = graph.node(value.node);
    let Op::Composite(Composite::Dequantize { groups, out }) = node.op else {
        return Ok(b.value(value));
    };
    let mut operands = Vec::with_capacity(node.operands.len());
    for operand in &node.operands {
        let operand = b.value(*operand);
        operands.push(b.emit(Op::View(View::Transpose(vec![1, 0])), &[operand])?);
    }
    let groups = groups.map(|g| Groups { axis: 1 - g.axis, ..g });
    b.emit(Op::Composite(Composite::Dequantize { groups, out }), &operands)
}
