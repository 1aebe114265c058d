//! Puts the columns of a gate and of what it is applied to side by side, so that both are in one epilogue.
//!
//! ```text
//! y = contract x, [g|u]; silu(y[…, :n]) · y[…, n:]     becomes
//! y = contract x, w, w's columns g0 u0 g1 u1 …; silu(y[…, 0::2]) · y[…, 1::2]
//! ```
//!
//! A product by constant weights whose result is only read as its two halves, which then meet elementwise (SwiGLU,
//! GEGLU and their kin; Shazeer, "GLU Variants Improve Transformer", 2020), has each half in other tiles. The weights'
//! columns are interleaved at compile time; a kernel then has both halves' sums of a column in one lane, and the
//! product is never stored.
//!
//! Before: Core, after library calls were chosen. After: the halves are slices of step 2, which fusion takes into the
//! product's region.

use ir::op::{BinaryOp, Composite, Contract, Elementwise, View};
use ir::{Dim, Graph, HostTensor, NodeId, Op, Value};
use smallvec::SmallVec;

use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass's name, and that of what it does.
pub const NAME: &str = "pair_columns";
/// The most elementwise nodes that are followed from a half to where it meets the other.
const REACH: usize = 16;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let found = match context.target.is_gpu() {
            true => pairs(graph),
            false => Vec::new(),
        };
        if found.is_empty() {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME);
        for id in graph.nodes().keys() {
            b.origin = graph.node(id).origin.clone();
            match found.iter().find(|pair| pair.halves.contains(&id)) {
                // The product as it was is no longer read, and goes.
                Some(pair) => rewrite(&mut b, graph, pair, id)?,
                None => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// A product whose result is read as two halves.
struct Halved {
    product: NodeId,
    /// The constant `[2n]` that is added to the product before it is halved.
    bias: Option<(NodeId, usize)>,
    halves: [NodeId; 2],
    weights: Vec<HostTensor>,
}

/// Returns which of two interleaved halves of a value's last axis a node is: `value[…, 0::2]` or `value[…, 1::2]`.
pub fn interleaved_half(graph: &Graph, id: NodeId) -> Option<(Value, usize)> {
    let (of, start, step) = half(graph, id)?;
    (step == 2 && start < 2).then_some((of, start as usize))
}

/// Reads a node as half of the last axis of a value: the value, where it starts, and its step.
fn half(graph: &Graph, id: NodeId) -> Option<(Value, i64, i64)> {
    let node = graph.node(id);
    let Op::View(View::Slice { starts, sizes, steps }) = &node.op else {
        return None;
    };
    let of = node.operands[0];
    let shape = &graph.ty(of).shape;
    let last = shape.rank().checked_sub(1)?;
    let whole = |axis: usize| starts[axis].is(0) && sizes[axis] == shape[axis] && steps[axis] == 1;
    let n = sizes[last].as_const()?;
    // Of one column each, all readings of a slice are the same.
    let halves = (0..last).all(whole) && n > 1 && shape[last].is(n.checked_mul(2)?);
    halves.then_some((of, starts[last].as_const()?, steps[last]))
}

/// Returns the two halves of a node's value where nothing else reads it, by `which`: the value, and the number of a
/// half.
fn halves_by(
    graph: &Graph,
    users: &[(NodeId, u32)],
    id: NodeId,
    which: impl Fn(NodeId) -> Option<(Value, usize)>,
) -> Option<[NodeId; 2]> {
    let [(a, _), (b, _)] = users else { return None };
    if graph.outputs().iter().any(|o| o.value.node == id) {
        return None;
    }
    match (which(*a)?.1, which(*b)?.1) {
        (0, 1) => Some([*a, *b]),
        (1, 0) => Some([*b, *a]),
        _ => None,
    }
}

/// Returns the interleaved halves of a node's value, the even columns' first, where nothing else reads it.
pub fn interleaved_halves(graph: &Graph, users: &[(NodeId, u32)], id: NodeId) -> Option<[NodeId; 2]> {
    halves_by(graph, users, id, |user| interleaved_half(graph, user))
}

/// Finds the products whose halves meet.
fn pairs(graph: &Graph) -> Vec<Halved> {
    let users = graph.users();
    let adjoining = |user: NodeId| {
        let (of, start, step) = half(graph, user)?;
        let n = graph.ty(Value::from(user)).shape.0.last()?.as_const()?;
        (step == 1 && (start == 0 || start == n)).then_some((of, usize::from(start == n)))
    };
    let find = |product: NodeId| {
        let node = graph.node(product);
        let Op::Contract(contract) = node.op else { return None };
        let mut bias = None;
        let mut read = product;
        if let [(sum, at)] = users[product][..]
            && let Op::Elementwise(Elementwise::Binary(BinaryOp::Add)) = graph.node(sum).op
            && !graph.outputs().iter().any(|o| o.value.node == product)
        {
            let operands = &graph.node(sum).operands;
            let other = graph.as_constant(operands[1 - at as usize])?;
            let columns = graph.ty(Value::from(product)).shape.0.last()?.as_const()?;
            if other.shape != [usize::try_from(columns).ok()?] {
                return None;
            }
            bias = Some((sum, 1 - at as usize));
            read = sum;
        }
        let halves = halves_by(graph, &users[read], read, adjoining)?;
        let [a, b] = halves.map(|half| reached(graph, &users, half));
        a.iter().find(|node| b.contains(node))?;
        let weights = interleaved_weights(graph, &contract, node.operands[1])?;
        Some(Halved {
            product,
            bias,
            halves,
            weights,
        })
    };
    graph.nodes().keys().filter_map(find).collect()
}

/// The elementwise nodes of one shape that follow a node.
fn reached(
    graph: &Graph,
    users: &ir::Table<NodeId, SmallVec<[(NodeId, u32); 2]>>,
    from: NodeId,
) -> SmallVec<[NodeId; REACH]> {
    let shape = &graph.ty(Value::from(from)).shape;
    let mut found: SmallVec<[NodeId; REACH]> = SmallVec::new();
    let mut next = vec![from];
    while let Some(id) = next.pop() {
        for (user, _) in &users[id] {
            let node = graph.node(*user);
            let follows = matches!(node.op, Op::Elementwise(_)) && node.results[0].shape == *shape;
            if follows && !found.contains(user) && found.len() < REACH {
                found.push(*user);
                next.push(*user);
            }
        }
    }
    found
}

/// The constants of a right operand with the columns of both halves in turns; `None` where it is not made of constants.
fn interleaved_weights(graph: &Graph, contract: &Contract, rhs: Value) -> Option<Vec<HostTensor>> {
    let axis = usize::from(!contract.transpose_rhs);
    let parts: Vec<Value> = match &graph.node(rhs.node).op {
        Op::Composite(Composite::Dequantize { .. }) => graph.node(rhs.node).operands.to_vec(),
        _ => vec![rhs],
    };
    let columns = graph.ty(rhs).shape.0.get(axis)?.as_const()?;
    let turned = |part: &Value| {
        let constant = graph.as_constant(*part)?;
        let fits = constant.shape.len() == 2 && constant.shape[axis] as i64 == columns;
        fits.then(|| interleaved(constant, axis)).flatten()
    };
    parts.iter().map(turned).collect()
}

/// A tensor with the halves of an axis in turns.
fn interleaved(tensor: &HostTensor, axis: usize) -> Option<HostTensor> {
    let mut split = tensor.shape.clone();
    split[axis] = 2;
    split.insert(axis + 1, tensor.shape[axis] / 2);
    let mut order: Vec<usize> = (0..split.len()).collect();
    order.swap(axis, axis + 1);
    native::reshape(
        &native::permute(&native::reshape(tensor, split)?, &order)?,
        tensor.shape.clone(),
    )
}

/// Emits the half `id` of a pair's product.
fn rewrite(b: &mut Builder<'_>, graph: &Graph, pair: &Halved, id: NodeId) -> Result<(), PassFault> {
    let node = graph.node(pair.product);
    let rhs = graph.node(node.operands[1].node);
    let mut weights: Vec<Value> = pair.weights.iter().map(|w| b.constant(w.clone())).collect();
    let weight = match &rhs.op {
        Op::Composite(made @ Composite::Dequantize { .. }) => b.emit(Op::Composite(made.clone()), &weights)?,
        _ => weights.remove(0),
    };
    let lhs = b.value(node.operands[0]);
    b.origin = node.origin.clone();
    let product = b.emit(node.op.clone(), &[lhs, weight])?;
    let second = usize::from(pair.halves[1] == id);
    let Op::View(View::Slice { sizes, .. }) = &graph.node(id).op else {
        return b.copy(id);
    };
    let last = sizes.len() - 1;
    let mut starts = vec![Dim::from(0); sizes.len()];
    starts[last] = Dim::from(second as i64);
    let mut steps = vec![1; sizes.len()];
    steps[last] = 2;
    let sizes = sizes.clone();
    b.origin = graph.node(id).origin.clone();
    let mut value = b.emit(Op::View(View::Slice { starts, sizes, steps }), &[product])?;
    if let Some((sum, at)) = pair.bias {
        let whole = graph.node(sum).operands[at];
        let n = graph.ty(whole).shape[0].exact_div(&Dim::from(2));
        let (Some(n), Some(constant)) = (n.and_then(|n| n.as_const()), graph.as_constant(whole)) else {
            return b.copy(id);
        };
        let part = native::leading_rows(constant, second * n as usize, n as usize);
        let Some(part) = part else { return b.copy(id) };
        let part = b.constant(part);
        let operands = if at == 0 { [part, value] } else { [value, part] };
        value = b.emit(Op::binary(BinaryOp::Add), &operands)?;
    }
    if second == 0 {
        b.note(NAME, vec![node.origin.clone()], None, None);
    }
    b.set(id, value);
    Ok(())
}
