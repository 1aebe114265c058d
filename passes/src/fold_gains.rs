//! Folds the gain of a norm into the weights of the few-row products that read it, so that what is left of the norm is a number a row.
//!
//! ```text
//! n = rms_norm x, g; y = contract n, w      becomes     n = rms_norm x; y = contract n, (g ⊙ w)
//! ```
//!
//! A casted norm, and a gain that is applied as a product of its own, are the same thing. It takes weights that are constant floats which
//! nothing else reads, and a norm that nothing but such products reads. Weights are multiplied in f32 and rounded once, where rounding
//! the normed row did as much before. What f16 cannot hold would cost more: each column's largest weight must stay a normal number, so that
//! no weight's error exceeds that of rounding the largest.
//!
//! Before: Core, with the weights as their kernels will read them. After: as many kernels as before; [`crate::row_scales`] does
//! without the norms that are worth it. Layer norms stay: `(x − μ)·W` as `x·W − μ·ΣW` loses in the difference what |μ| exceeds the deviation
//! by, which no bound on the weights limits.

use ir::op::{BinaryOp, Composite, Elementwise};
use ir::{DType, Graph, HostTensor, NodeId, Op, Scalar, Table, Value};
use smallvec::SmallVec;

use crate::analysis::{cast_is_exact, use_counts};
use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass's name, and that of what it does.
pub const NAME: &str = "fold_norm_gains";
/// Products with more rows are not row by row: their norms pay for themselves.
const MOST_ROWS: i64 = 16;
/// Elementwise nodes between a norm and a product that are followed.
const REACH: usize = 4;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let found = match context.target.is_gpu() {
            true => products(graph),
            false => Vec::new(),
        };
        if found.is_empty() {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME);
        for id in graph.nodes().keys() {
            b.origin = graph.node(id).origin.clone();
            match found.iter().find(|product| product.id == id) {
                Some(product) => rewrite(&mut b, product)?,
                None => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// A product that reads a norm.
struct Normed {
    id: NodeId,
    norm: NodeId,
    /// What the norm reads, in the type that the product multiplies.
    x: Value,
    epsilon: Scalar,
    /// The right operand with the gain in it; `None` where there is no gain.
    weight: Option<HostTensor>,
}

/// The users of each node.
type Users = Table<NodeId, SmallVec<[(NodeId, u32); 2]>>;

/// Finds the products whose norms' gains go into their weights: all that read a norm, or none.
fn products(graph: &Graph) -> Vec<Normed> {
    let (users, uses) = (graph.users(), use_counts(graph));
    let mut found = Vec::new();
    for (norm, node) in graph.nodes().iter() {
        let Op::Composite(Composite::RmsNorm { axis, epsilon }) = &node.op else {
            continue;
        };
        let shape = &node.results[0].shape;
        let rows = shape.iter().take(*axis).cloned().product::<ir::Dim>();
        let few = rows.as_const().is_some_and(|rows| (1..=MOST_ROWS).contains(&rows));
        let depth = shape
            .last()
            .and_then(|d| d.as_const())
            .and_then(|d| usize::try_from(d).ok());
        let (true, true, Some(depth)) = (few, *axis + 1 == shape.rank(), depth) else {
            continue;
        };
        let mut gain = vec![1.0; depth];
        if node.operands.get(1).is_some_and(|g| !take_gain(graph, *g, &mut gain)) {
            continue;
        }
        let mut readers = Vec::new();
        if reached(graph, &users, norm, gain, 0, &mut readers).is_none() {
            continue;
        }
        let normed = readers
            .into_iter()
            .map(|(id, gain)| product(graph, &uses, norm, id, &gain, *epsilon));
        let normed: Option<Vec<Normed>> = normed.collect();
        // What is in that form already stays.
        let bare = |p: &Normed| {
            p.weight.is_none() && graph.node(p.id).operands[0] == Value::from(norm) && node.operands.len() == 1
        };
        found.extend(normed.unwrap_or_default().into_iter().filter(|p| !bare(p)));
    }
    found
}

/// Multiplies a gain by a constant of the last axis; says whether it is one.
fn take_gain(graph: &Graph, by: Value, gain: &mut [f64]) -> bool {
    let Some(tensor) = graph.as_constant(by) else {
        return false;
    };
    let along = tensor.shape.last() == Some(&gain.len()) && tensor.elements() == gain.len();
    if !along || !tensor.dtype.is_float() {
        return false;
    }
    gain.iter_mut().zip(tensor.to_f64()).for_each(|(g, by)| *g *= by);
    true
}

/// Lists the products that read a norm, or what casts and gains make of it, each with its gain. `None` where anything else reads it.
fn reached(
    graph: &Graph,
    users: &Users,
    from: NodeId,
    gain: Vec<f64>,
    steps: usize,
    readers: &mut Vec<(NodeId, Vec<f64>)>,
) -> Option<()> {
    if steps > REACH || graph.outputs().iter().any(|o| o.value.node == from) {
        return None;
    }
    let shape = &graph.ty(from.into()).shape;
    for (user, position) in &users[from] {
        let node = graph.node(*user);
        let mut gain = gain.clone();
        match &node.op {
            Op::Contract(c) if *position == 0 && !c.transpose_lhs => {
                readers.push((*user, gain));
                continue;
            }
            Op::Elementwise(Elementwise::Cast(to)) if to.is_float() => {}
            Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)) if node.results[0].shape == *shape => {
                let other = *node.operands.get(1 - (*position as usize).min(1))?;
                if !take_gain(graph, other, &mut gain) {
                    return None;
                }
            }
            _ => return None,
        }
        reached(graph, users, *user, gain, steps + 1, readers)?;
    }
    Some(())
}

/// Restates one product, if it can do without the gain.
fn product(graph: &Graph, uses: &[u32], norm: NodeId, id: NodeId, gain: &[f64], epsilon: Scalar) -> Option<Normed> {
    use ir::entity::Entity;
    let [lhs, rhs] = graph.node(id).operands[..] else {
        return None;
    };
    let dtype = graph.ty(lhs).dtype;
    // The norm converts what it reads, which is exact where that is widened.
    let mut x = *graph.node(norm).operands.first()?;
    while let Op::Elementwise(Elementwise::Cast(to)) = graph.node(x.node).op
        && graph.ty(x).dtype != dtype
        && cast_is_exact(graph.ty(graph.node(x.node).operands[0]).dtype, to)
    {
        x = graph.node(x.node).operands[0];
    }
    if graph.ty(x) != graph.ty(lhs) || !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return None;
    }
    let weight = match gain.iter().all(|g| *g == 1.0) {
        true => None,
        false => {
            let Op::Contract(contract) = graph.node(id).op else {
                return None;
            };
            let weight = graph.as_constant(rhs).filter(|_| uses[rhs.node.index()] == 1)?;
            let axis = usize::from(contract.transpose_rhs);
            let fits = weight.dtype == dtype && weight.shape.len() == 2 && weight.shape[axis] == gain.len();
            Some(gained(weight, axis, gain).filter(|_| fits)?)
        }
    };
    Some(Normed {
        id,
        norm,
        x,
        epsilon,
        weight,
    })
}

/// Weights times the gain along an axis of two; `None` where a column would lose more than rounding takes of its largest weight.
fn gained(weight: &HostTensor, axis: usize, gain: &[f64]) -> Option<HostTensor> {
    // The least normal number, and what rounds to infinity.
    let (least, end) = match weight.dtype {
        DType::F16 => (f32::exp2(-14.0), 65520.0),
        DType::BF16 => (f32::MIN_POSITIVE, 3.396e38),
        _ => (f32::MIN_POSITIVE, f32::INFINITY),
    };
    let factors: Vec<f32> = gain.iter().map(|g| *g as f32).collect();
    let largest = native::largest_scaled(weight, axis, &factors)?;
    let holds = |v: &f32| *v == 0.0 || (least..end).contains(v);
    largest
        .iter()
        .all(holds)
        .then(|| native::scaled(weight, axis, &factors))?
}

fn rewrite(b: &mut Builder<'_>, product: &Normed) -> Result<(), PassFault> {
    let graph = b.old;
    let (node, norm) = (graph.node(product.id), graph.node(product.norm));
    let Op::Composite(Composite::RmsNorm { .. }) = &norm.op else {
        return b.copy(product.id);
    };
    let x = b.value(product.x);
    let axis = b.ty(x).rank() - 1;
    b.origin = norm.origin.clone();
    let bare = Op::Composite(Composite::RmsNorm {
        axis,
        epsilon: product.epsilon,
    });
    let rows = b.emit(bare, &[x])?;
    b.origin = node.origin.clone();
    let weight = match &product.weight {
        Some(weight) => b.constant(weight.clone()),
        None => b.value(node.operands[1]),
    };
    let value = b.emit(node.op.clone(), &[rows, weight])?;
    b.note(NAME, vec![norm.origin.clone(), node.origin.clone()], None, None);
    b.set(product.id, value);
    Ok(())
}
