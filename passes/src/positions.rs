//! Folds tensors of indices: what is the same everywhere becomes a scalar, and a gather by positions becomes a view.
//!
//! ```text
//! gather_nd(mask [b, t], (b, t) at [b, 0, s, t])     becomes     broadcast(reshape(mask))
//! ge(iota, 0)                                        becomes     true
//! scatter_nd(x, (i, j) at i + 1, j + 1, u)           becomes     concats of slices of x around u
//! ```

use ir::op::{Gather, View};
use ir::types::Scalar;
use ir::{Dim, HostTensor, NodeId, Op, Shape, Value};

use crate::analysis::index::{Affine, Fact, KnownElements, stays_inside};
use crate::check_indices::makers;
use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::Pass;

mod scatter;

pub use scatter::RULE as SCATTER_RULE;

/// The pass.
pub const PASS: Pass = Pass {
    name: "positions",
    run: |graph, context| {
        let facts = KnownElements::of(graph);
        let mut builder = Builder::new(graph, "positions");
        // What writes into a state stays in place.
        let kept = makers(graph, &context.options.states);
        for id in graph.nodes().keys() {
            builder.origin = graph.node(id).origin.clone();
            let value = match uniform(&mut builder, &facts, id)? {
                Some(v) => Some((v, "uniform_index")),
                None => match gather(&mut builder, &facts, id)? {
                    Some(v) => Some((v, "gather_by_position")),
                    None => match flat_gather(&mut builder, &facts, id)? {
                        Some(v) => Some((v, "gather_by_flat_position")),
                        None if kept.contains(&id) => None,
                        None => scatter::scatter(&mut builder, &facts, id)?.map(|v| (v, scatter::RULE)),
                    },
                },
            };
            match value {
                Some((value, rule))
                    if *builder.ty(value) == graph.node(id).results[0] && context.options.enabled(rule) =>
                {
                    builder.note(rule, vec![graph.node(id).origin.clone()], None, None);
                    builder.set(id, value);
                }
                _ => builder.copy(id)?,
            }
        }
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

fn uniform(builder: &mut Builder<'_>, facts: &KnownElements, id: NodeId) -> Result<Option<Value>, PassFault> {
    let graph = builder.old;
    let node = graph.node(id);
    if node.op.is_leaf() || node.results.len() != 1 {
        return Ok(None);
    }
    let ty = &node.results[0];
    // Views of a scalar are as cheap as it gets already.
    if matches!(node.op, Op::View(_)) && crate::analysis::known_scalar(graph, id.into()).is_some() {
        return Ok(None);
    }
    let scalar = match facts.get(id.into()) {
        Some(Fact::Bool(b)) => Scalar::Bool(*b),
        Some(Fact::Affine(a)) => match a.as_uniform().and_then(Dim::as_const) {
            Some(v) => Scalar::Int(v),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let value = builder.constant(HostTensor::scalar(ty.dtype, scalar));
    if ty.rank() == 0 {
        return Ok(Some(value));
    }
    builder
        .emit(Op::View(View::Broadcast(ty.shape.clone())), &[value])
        .map(Some)
}

/// A gather whose index for every data axis is `constant` or `one result axis + constant`: slice, transpose, broadcast.
fn gather(builder: &mut Builder<'_>, facts: &KnownElements, id: NodeId) -> Result<Option<Value>, PassFault> {
    let graph = builder.old;
    let node = graph.node(id);
    let Op::Gather(gather) = &node.op else { return Ok(None) };
    let Some(indices) = facts.gather_positions(graph, id, gather) else {
        return Ok(None);
    };
    let (data, out) = (graph.ty(node.operands[0]), &node.results[0].shape);
    let mut source_of: Vec<Option<usize>> = vec![None; out.rank()];
    let (mut starts, mut sizes) = (Vec::new(), Vec::new());
    for (axis, index) in indices.iter().enumerate() {
        if !stays_inside(index, out, &data.shape[axis], graph.symbols()) {
            return Ok(None);
        }
        starts.push(index.constant.clone());
        match single_axis(index) {
            Some(None) => sizes.push(Dim::from(1)),
            Some(Some(at)) if source_of[at].is_none() => {
                source_of[at] = Some(axis);
                sizes.push(out[at].clone());
            }
            _ => return Ok(None),
        }
    }
    let mut value = builder.value(node.operands[0]);
    if sizes != data.shape.0 {
        let steps = vec![1; sizes.len()];
        value = builder.emit(
            Op::View(View::Slice {
                starts,
                sizes: sizes.clone(),
                steps,
            }),
            &[value],
        )?;
    }
    // Axes that are read move into the result's order; those at one index go last and are dropped by the reshape.
    let mut perm: Vec<usize> = source_of.iter().flatten().copied().collect();
    perm.extend((0..sizes.len()).filter(|a| !source_of.contains(&Some(*a))));
    if !perm.iter().enumerate().all(|(i, p)| i == *p) {
        value = builder.emit(Op::View(View::Transpose(perm)), &[value])?;
    }
    let shape: Shape = source_of
        .iter()
        .enumerate()
        .map(|(at, s)| if s.is_some() { out[at].clone() } else { Dim::from(1) })
        .collect();
    if builder.ty(value).shape != shape {
        value = builder.emit(Op::View(View::Reshape(shape.clone())), &[value])?;
    }
    if shape != *out {
        value = builder.emit(Op::View(View::Broadcast(out.clone())), &[value])?;
    }
    Ok(Some(value))
}

/// `Some(None)`: the same everywhere; `Some(Some(axis))`: follows one axis with step 1.
fn single_axis(index: &Affine) -> Option<Option<usize>> {
    let mut axes = index.coefficients.iter().enumerate().filter(|(_, c)| !c.is(0));
    match (axes.next(), axes.next()) {
        (None, _) => Some(None),
        (Some((axis, c)), None) if c.is(1) => Some(Some(axis)),
        _ => None,
    }
}

/// A gather from a flattened tensor by the row-major position in it: a reshape.
fn flat_gather(builder: &mut Builder<'_>, facts: &KnownElements, id: NodeId) -> Result<Option<Value>, PassFault> {
    let graph = builder.old;
    let node = graph.node(id);
    let Op::Gather(Gather::Take { axis }) = node.op else {
        return Ok(None);
    };
    let data = graph.ty(node.operands[0]);
    let (Some(index), true) = (facts.affine(node.operands[1]), axis == 0) else {
        return Ok(None);
    };
    let shape = &graph.ty(node.operands[1]).shape;
    if !index.constant.is(0) {
        return Ok(None);
    }
    // From the innermost axis out, each step must be the product of the sizes within it.
    let mut kept: Shape = Shape::default();
    let mut stride = Dim::from(1);
    for (c, size) in index.coefficients.iter().zip(shape.iter()).rev() {
        if c.is(0) {
            kept.0.push(Dim::from(1));
            continue;
        }
        if *c != stride {
            return Ok(None);
        }
        stride = stride * size;
        kept.0.push(size.clone());
    }
    kept.0.reverse();
    if stride != data.shape[0] || index.as_uniform().is_some() {
        return Ok(None);
    }
    kept.0.extend(data.shape[1..].iter().cloned());
    let mut value = builder.value(node.operands[0]);
    value = builder.emit(Op::View(View::Reshape(kept.clone())), &[value])?;
    let out = &node.results[0].shape;
    if kept != *out {
        value = builder.emit(Op::View(View::Broadcast(out.clone())), &[value])?;
    }
    Ok(Some(value))
}
