//! Merges contractions that share their left operand and have constant right operands: Q, K and V, gate and up.
//!
//! ```text
//! q = contract(x, wq) + bq;  k = contract(x, wk) + bk     becomes     m = contract(x, [wq|wk]) + [bq|bk]
//!                                                                     q = m[…, :nq];  k = m[…, nq:]
//! ```
//!
//! One launch reads `x` once and fills the machine better; the slices are strided loads of whoever reads them. The
//! weights are joined along `n`, a copy of constants.

use indexmap::IndexMap;
use ir::entity::Entity;
use ir::op::{BinaryOp, Contract, Elementwise, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, TensorType, Value};

use crate::cost::CostModel;
use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// Joined weights are at most this many elements.
const MAX_ELEMENTS: usize = 1 << 28;

/// The pass.
pub const PASS: Pass = Pass {
    name: "merge",
    run: |graph, context| {
        if !context.options.enabled("merge_contractions") {
            return Ok(graph.clone());
        }
        let model = CostModel {
            target: context.target,
            symbols: graph.symbols(),
        };
        let mut groups = groups(graph);
        groups.retain(|g| g.pays(graph, &model));
        if groups.is_empty() {
            return Ok(graph.clone());
        }
        // Groups by the node at which they are made: the first member.
        let mut at: IndexMap<NodeId, &Group> = groups.iter().map(|g| (g.members[0].contract, g)).collect();
        let mut builder = Builder::new(graph, "merge").with_rules(crate::simplify::enabled(context.options));
        for id in graph.nodes().keys() {
            if let Some(group) = at.swap_remove(&id)
                && let Some(cost) = emit(&mut builder, group, &model)?
            {
                let origins = group
                    .members
                    .iter()
                    .map(|m| graph.node(m.contract).origin.clone())
                    .collect();
                let n = group.members.len();
                builder.note(
                    "merge_contractions",
                    origins,
                    Some(cost),
                    Some(format!("{n} contractions share an operand")),
                );
            }
            builder.copy(id)?;
        }
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

struct Member {
    contract: NodeId,
    /// The addition of a constant `[n]` that is the contraction's only reader.
    bias: Option<(NodeId, Value)>,
}

struct Group {
    members: Vec<Member>,
    biased: bool,
}

impl Group {
    fn pays(&self, g: &Graph, model: &CostModel<'_>) -> bool {
        let (before, after) = self.costs(g, model);
        after < before
    }

    fn costs(&self, g: &Graph, model: &CostModel<'_>) -> (f64, f64) {
        let before: f64 = self.members.iter().map(|m| model.node(g, m.contract)).sum();
        let first = g.node(self.members[0].contract);
        let (x, w) = (g.ty(first.operands[0]), g.ty(first.operands[1]));
        let n: Dim = self
            .members
            .iter()
            .filter_map(|m| g.node(m.contract).results[0].shape.last().cloned())
            .sum();
        let widened = |ty: &TensorType, axis: usize| {
            let mut ty = ty.clone();
            ty.shape.0[axis] = n.clone();
            ty
        };
        let Op::Contract(c) = first.op else { return (0.0, 0.0) };
        let w = widened(w, if c.transpose_rhs { 0 } else { 1 });
        let out = widened(&first.results[0], first.results[0].rank() - 1);
        let after = model.op(&first.op, &[x, &w], std::slice::from_ref(&out));
        (before, after)
    }
}

fn groups(g: &Graph) -> Vec<Group> {
    let users = g.users();
    let is_output: Vec<bool> = {
        let mut flags = vec![false; g.nodes().len()];
        for output in g.outputs() {
            flags[output.value.node.index()] = true;
        }
        flags
    };
    let mut found: IndexMap<(Value, Contract, DType), Vec<Member>> = IndexMap::new();
    for (id, node) in g.nodes().iter() {
        let Op::Contract(contract) = node.op else { continue };
        let Some(w) = g.as_constant(node.operands[1]) else {
            continue;
        };
        if w.shape.len() != 2 || w.dtype.bits() < 8 || contract.transpose_lhs {
            continue;
        }
        let mut bias = None;
        if let [(user, _)] = users[id].as_slice()
            && !is_output[id.index()]
            && let Op::Elementwise(Elementwise::Binary(BinaryOp::Add)) = g.node(*user).op
        {
            let n = w.shape[if contract.transpose_rhs { 0 } else { 1 }];
            let operands = &g.node(*user).operands;
            let other = if operands[0].node == id {
                operands[1]
            } else {
                operands[0]
            };
            let vector = g.as_constant(other).is_some_and(|t| t.shape == [n]);
            bias = vector.then_some((*user, other));
        }
        found
            .entry((node.operands[0], contract, w.dtype))
            .or_default()
            .push(Member { contract: id, bias });
    }
    found
        .into_values()
        .filter(|members| members.len() > 1)
        .map(|members| Group {
            biased: members.iter().all(|m| m.bias.is_some()),
            members,
        })
        .collect()
}

/// Emits the merged contraction and sets each member (or its biased sum) to a slice; returns the costs.
fn emit(b: &mut Builder<'_>, group: &Group, model: &CostModel<'_>) -> Result<Option<(f64, f64)>, PassFault> {
    let old = b.old;
    let first = old.node(group.members[0].contract);
    let Op::Contract(contract) = first.op else {
        return Ok(None);
    };
    let axis = usize::from(!contract.transpose_rhs);
    let weights: Vec<&HostTensor> = group
        .members
        .iter()
        .filter_map(|m| old.as_constant(old.node(m.contract).operands[1]))
        .collect();
    if weights.iter().map(|w| w.elements()).sum::<usize>() > MAX_ELEMENTS {
        return Ok(None);
    }
    let Some(joined) = native::concat(&weights, axis) else {
        return Ok(None);
    };
    let bias = if group.biased {
        let parts: Vec<&HostTensor> = group
            .members
            .iter()
            .filter_map(|m| old.as_constant(m.bias.as_ref()?.1))
            .collect();
        native::concat(&parts, 0)
    } else {
        None
    };
    b.origin = first.origin.clone();
    let x = b.value(first.operands[0]);
    let weight = b.constant(joined);
    let mut merged = b.emit(Op::Contract(contract), &[x, weight])?;
    if let Some(bias) = bias.clone() {
        let bias = b.constant(bias);
        merged = b.emit(Op::binary(BinaryOp::Add), &[merged, bias])?;
    }
    let shape = b.ty(merged).shape.clone();
    let last = shape.rank() - 1;
    let mut start = 0i64;
    for (member, weight) in group.members.iter().zip(&weights) {
        let n = weight.shape[axis] as i64;
        let mut starts = vec![Dim::from(0); shape.rank()];
        starts[last] = Dim::from(start);
        let mut sizes = shape.0.clone();
        sizes[last] = Dim::from(n);
        let steps = vec![1; shape.rank()];
        let slice = b.emit(Op::View(View::Slice { starts, sizes, steps }), &[merged])?;
        start += n;
        match (&member.bias, &bias) {
            (Some((sum, _)), Some(_)) => b.set(*sum, slice),
            _ => b.set(member.contract, slice),
        }
    }
    Ok(Some(group.costs(old, model)))
}
