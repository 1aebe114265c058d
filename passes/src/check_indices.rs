//! Adds conditions on indices: an index outside its axis fails the run with a message, where it would be clamped
//! silently.
//!
//! Before: a graph at stage Import. After: the same graph and, where the options ask for it, a condition for every
//! gather and scatter whose indices are not constants inside their axes. Gathers by position are gone at that point
//! (`positions`). Where they do not ask, the scatters that make the next values of states have conditions all the same.
//!
//! ```text
//! y = take x, i {axis=0}; return y as "y"
//!     becomes
//! y = take x, i {axis=0}
//! first = reduce (select i >= -n and i < n, NONE, position * 2^32 + i) {op=min}
//! return y as "y", first check "take at …: an index lies …" indices [4] in [0: n]
//! ```
//!
//! The first index outside its axis and its position are one number ([`Indexed`]), so that a run takes one to the host.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use ir::graph::infer::{check_indices, indexed_axes};
use ir::graph::{Check, Indexed};
use ir::op::{BinaryOp, Elementwise, Gather, Op, ReduceOp, Scatter, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "check_indices",
    run: |graph, context| {
        let asked = |id: &NodeId| by_data(graph, *id);
        let ids: Vec<NodeId> = match context.options.check_indices {
            true => graph.nodes().keys().filter(asked).collect(),
            false => {
                let makers = makers(graph, &context.options.states).into_iter();
                alike_once(graph, makers.filter(asked))
            }
        };
        if ids.is_empty() {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, "check_indices");
        b.copy_rest()?;
        // Nodes of one place have one message.
        let mut conditions: IndexMap<(String, Indexed), Value> = IndexMap::new();
        for id in ids {
            let node = graph.node(id);
            b.origin = node.origin.clone();
            let (first, indexed) = first_outside(&mut b, graph, id)?;
            let data = graph.ty(node.operands[0]);
            let axes: Vec<String> = indexed.axes.iter().map(|(axis, _)| axis.to_string()).collect();
            let (op, axes) = (node.op.name(), axes.join(", "));
            let message = format!("{op} at {}: an index lies outside axis {axes} of {data}", node.origin);
            let key = (message, indexed);
            let both = match conditions.get(&key) {
                Some(other) => b.emit(Op::binary(BinaryOp::Min), &[*other, first])?,
                None => first,
            };
            conditions.insert(key, both);
        }
        // Names of outputs are each there once.
        let mut messages = BTreeSet::new();
        for ((message, indexed), value) in conditions {
            let mut name = message.clone();
            let mut number = 1;
            while !messages.insert(name.clone()) {
                number += 1;
                name = format!("{message} ({number})");
            }
            b.add_check(name, value, Check::Indices(indexed));
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// The scatters that make some outputs of what was there before: through views and casts, and through other scatters.
pub(crate) fn makers(graph: &Graph, outputs: &[String]) -> Vec<NodeId> {
    let named = graph
        .outputs()
        .iter()
        .filter(|o| o.check.is_none() && outputs.contains(&o.name));
    let mut open: Vec<NodeId> = named.map(|output| output.value.node).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        let follow = match &node.op {
            Op::Scatter(_) | Op::Elementwise(Elementwise::Cast(_)) => 1,
            Op::View(_) => node.operands.len(),
            _ => continue,
        };
        if seen.insert(id) {
            open.extend(node.operands[..follow].iter().map(|value| value.node));
        }
    }
    let is_scatter = |id: &NodeId| matches!(graph.node(*id).op, Op::Scatter(_));
    seen.into_iter().filter(is_scatter).collect()
}

/// The first of those that write at the same indices into axes of the same sizes, as the caches of all layers do: one
/// condition, which every run takes to the host, speaks for all.
fn alike_once(graph: &Graph, ids: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut seen: Vec<(Value, Vec<Dim>)> = Vec::new();
    let mut first = Vec::new();
    for id in ids {
        let node = graph.node(id);
        let axes = indexed_axes(&node.op, depth(&graph.ty(node.operands[1]).shape));
        let data = &graph.ty(node.operands[0]).shape;
        let key = (node.operands[1], axes.map(|axis| data[axis].clone()).collect());
        if !seen.contains(&key) {
            seen.push(key);
            first.push(id);
        }
    }
    first
}

/// Says whether a node's indices may lie outside their axes.
fn by_data(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    if !matches!(node.op, Op::Gather(_) | Op::Scatter(_)) {
        return false;
    }
    let types: Vec<_> = node.operands.iter().map(|v| graph.ty(*v)).collect();
    let known = indexed_axes(&node.op, depth(&types[1].shape)).all(|axis| types[0].shape[axis].as_const().is_some());
    match graph.as_constant(node.operands[1]) {
        Some(indices) if known => check_indices(&node.op, &types, indices).is_err(),
        _ => true,
    }
}

/// The elements of an index tuple, where indices are tuples.
fn depth(indices: &Shape) -> usize {
    indices.last().and_then(Dim::as_const).map_or(1, |d| d as usize)
}

/// The indices of a gather or scatter, without what repeats each of them: what one says, all of its copies say.
fn repeated(graph: &Graph, id: NodeId) -> Value {
    let node = graph.node(id);
    let mut indices = node.operands[1];
    let tuples = matches!(node.op, Op::Gather(Gather::Nd { .. }) | Op::Scatter(Scatter::Nd { .. }));
    while let (false, Op::View(View::Broadcast(_))) = (tuples, &graph.node(indices.node).op) {
        let of = graph.node(indices.node).operands[0];
        if graph.ty(of).rank() != graph.ty(indices).rank() {
            break;
        }
        indices = of;
    }
    indices
}

/// The first index of a gather or scatter that lies outside its axis, as [`Indexed`] says it.
fn first_outside(b: &mut Builder<'_>, graph: &Graph, id: NodeId) -> Result<(Value, Indexed), PassFault> {
    let node = graph.node(id);
    let given = repeated(graph, id);
    let (data, indices) = (graph.ty(node.operands[0]), graph.ty(given));
    let axes = indexed_axes(&node.op, depth(&indices.shape));
    let axes: Vec<(u32, Dim)> = axes.map(|axis| (axis as u32, data.shape[axis].clone())).collect();
    let sizes: Vec<Dim> = axes.iter().map(|(_, size)| size.clone()).collect();
    let indexed = Indexed {
        shape: indices.shape.clone(),
        axes,
    };
    let mut index = b.value(given);
    if indices.dtype != DType::I64 {
        index = b.emit(Op::cast(DType::I64), &[index])?;
    }
    let size = sizes_of(b, &sizes)?;
    let least = b.emit(Op::unary(ir::op::UnaryOp::Neg), &[size])?;
    let low = b.emit(Op::binary(BinaryOp::Ge), &[index, least])?;
    let high = b.emit(Op::binary(BinaryOp::Lt), &[index, size])?;
    let inside = b.emit(Op::binary(BinaryOp::And), &[low, high])?;

    let number = |b: &mut Builder<'_>, n: i64| b.constant(HostTensor::scalar(DType::I64, ir::Scalar::Int(n)));
    let (lowest, highest) = Indexed::LIMITS;
    let mut packed = index;
    if indices.dtype.bits() > 32 {
        let (lowest, highest) = (number(b, lowest), number(b, highest));
        let above = b.emit(Op::binary(BinaryOp::Max), &[index, lowest])?;
        packed = b.emit(Op::binary(BinaryOp::Min), &[above, highest])?;
    }
    if indices.rank() > 0 {
        let position = position(b, &indices.shape)?;
        packed = b.emit(Op::binary(BinaryOp::Add), &[position, packed])?;
    }
    let none = number(b, Indexed::NONE);
    let outside = b.emit(Op::Elementwise(Elementwise::Select), &[inside, none, packed])?;
    if indices.rank() == 0 {
        return Ok((outside, indexed));
    }
    let least = Op::Reduce {
        op: ReduceOp::Min,
        axes: (0..indices.rank()).collect(),
        keep_dims: false,
    };
    Ok((b.emit(least, &[outside])?, indexed))
}

/// Positions of elements in row-major order, as they are packed.
fn position(b: &mut Builder<'_>, shape: &Shape) -> Result<Value, PassFault> {
    let elements = shape.elements();
    let iota = Op::Iota {
        shape: Shape(vec![elements.clone()]),
        axis: 0,
        dtype: DType::I64,
    };
    let mut position = b.emit(iota, &[])?;
    if elements.as_const().is_none_or(|n| n > Indexed::LIMITS.1) {
        let highest = b.constant(HostTensor::scalar(DType::I64, ir::Scalar::Int(Indexed::LIMITS.1)));
        position = b.emit(Op::binary(BinaryOp::Min), &[position, highest])?;
    }
    let step = b.constant(HostTensor::scalar(DType::I64, ir::Scalar::Int(Indexed::POSITION)));
    position = b.emit(Op::binary(BinaryOp::Mul), &[position, step])?;
    match shape.rank() {
        1 => Ok(position),
        _ => b.emit(Op::View(View::Reshape(shape.clone())), &[position]),
    }
}

/// Sizes as `i64`: a scalar for one, a vector for more.
fn sizes_of(b: &mut Builder<'_>, sizes: &[Dim]) -> Result<Value, PassFault> {
    let numbers: Option<Vec<i64>> = sizes.iter().map(Dim::as_const).collect();
    let scalar = |b: &mut Builder<'_>, size: &Dim| match size.as_const() {
        Some(n) => Ok(b.constant(HostTensor::scalar(DType::I64, ir::Scalar::Int(n)))),
        None => b.emit(Op::DimValue(size.clone()), &[]),
    };
    match (sizes, numbers) {
        ([size], _) => scalar(b, size),
        (_, Some(numbers)) => {
            let tensor = HostTensor::from_i64(DType::I64, vec![numbers.len()], &numbers);
            Ok(b.constant(tensor.map_err(|e| PassFault::Verify(e.to_string()))?))
        }
        _ => {
            let mut parts = Vec::with_capacity(sizes.len());
            for size in sizes {
                let one = scalar(b, size)?;
                parts.push(b.emit(Op::View(View::Reshape([1i64].into())), &[one])?);
            }
            b.emit(Op::View(View::Concat { axis: 0 }), &parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OptimizeOptions, testing};

    /// How many indices the conditions of a graph look at.
    fn looked_at(body: &str) -> Vec<i64> {
        let options = OptimizeOptions {
            check_indices: true,
            ..OptimizeOptions::default()
        };
        let (after, _) = testing::optimized(&testing::graph(body), "cpu", options);
        let folds = after.nodes().values().filter_map(|node| match node.op {
            Op::Reduce { op: ReduceOp::Min, .. } => after.ty(node.operands[0]).elements().as_const(),
            _ => None,
        });
        folds.collect()
    }

    #[test]
    fn indices_that_are_repeated_are_looked_at_once() {
        let body = r#"
            x = input "x" : f32[9, 64]
            i = input "i" : i64[5, COLUMNS]
            u = input "u" : f32[5, 64]
            at = broadcast i : i64[5, 64]
            y = scatter_elements x, at, u {axis=0, reduce=sum}
            return y as "y""#;
        assert_eq!(looked_at(&body.replace("COLUMNS", "1")), [5]);
        let every = body
            .replace("COLUMNS", "64")
            .replace("at = broadcast i : i64[5, 64]", "")
            .replace(", at,", ", i,");
        assert_eq!(looked_at(&every), [320]);
    }
}
