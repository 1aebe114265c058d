//! Ops that keep some elements: how many, data decide.
//!
//! How many is a size, so it must be known when the graph is made: from constants and shapes, or from the inputs of the
//! run that the graph is for ([`Builder::numbers`], which has the graph check it). Which elements they are is computed
//! by the graph.
//!
//! [`Builder::numbers`]: crate::onnx::builder::Builder::numbers

use std::collections::HashMap;

use ir::op::{BinaryOp, Op, ReduceOp, Scatter};
use ir::{DType, Dim, Shape};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::{Element, Known};
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Compress", 9, compress),
    op("NonZero", 9, non_zero),
    op("Unique", 11, unique),
];

/// The positions of the elements of a bool vector that are true, ascending, `i64[count]`. `index` is the input that
/// decides how many there are.
pub(super) fn positions(node: &mut Node<'_>, flags: Val, index: usize) -> Step<Val> {
    let size = node.shape(flags)[0].clone();
    let ones = node.cast(flags, DType::I64)?;
    let total = node.reduce(ReduceOp::Sum, ones, vec![0], false)?;
    let what = "number of elements that are kept";
    let count = node
        .numbers(total, what)
        .and_then(|known| known.dims()?.into_iter().next());
    let count = count.ok_or(NodeProblem::NotKnown { what, index })?;
    let before = node.running_sum(ones, 0, true)?;
    // The others are stored one behind another place, which nobody reads.
    let last = node.known(Known::scalar(size.clone()));
    let place = node.select(flags, before, last)?;
    let zero = node.int_scalar(DType::I64, 0);
    let room = node.broadcast(zero, Shape(vec![size.clone() + 1]))?;
    let position = node.iota(Shape(vec![size]), 0, DType::I64)?;
    let scatter = Op::Scatter(Scatter::Elements { axis: 0, reduce: None });
    let stored = node.add(scatter, &[room, place, position])?;
    node.slice_axis(stored, 0, 0i64, count)
}

/// Says which elements of a flattened tensor are not zero.
fn flags(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let elements = node.ty(x).elements();
    let flat = node.reshape(x, [elements])?;
    match node.dtype(flat) {
        DType::Bool => Ok(flat),
        dtype => {
            let zero = node.scalar(dtype, 0.0);
            node.binary(BinaryOp::Ne, flat, zero)
        }
    }
}

/// Keeps the slices whose condition is true; those past the condition's end are left out.
fn compress(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, condition) = (node.input(0)?, node.input(1)?);
    if node.rank(condition) != 1 {
        return node.rank_error(1, "1");
    }
    let known = node.build.folded(condition).and_then(|known| known.ints());
    let picks = match known {
        Some(condition) => {
            let kept = condition.iter().enumerate().filter(|(_, c)| **c != 0);
            let picks = kept.map(|(i, _)| Dim::from(i)).collect();
            node.known(Known::vector(picks))
        }
        None => positions(node, condition, 1)?,
    };
    if let Some(axis) = node.int("axis")? {
        let axis = node.axis(axis, node.rank(x))?;
        return Ok(vec![node.take(x, axis, picks)?]);
    }
    let elements = node.ty(x).elements();
    let flat = node.reshape(x, [elements])?;
    Ok(vec![node.take(flat, 0, picks)?])
}

/// The positions of elements other than 0, `[rank, count]`.
fn non_zero(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    if let (Some(known), Some(sizes)) = (node.build.folded(x).and_then(|known| known.floats()), shape.as_consts()) {
        return Ok(vec![non_zero_known(node, &known, &sizes)]);
    }
    let flags = flags(node, x)?;
    let at = positions(node, flags, 0)?;
    let count = node.shape(at)[0].clone();
    let mut rows = Vec::with_capacity(shape.rank());
    let mut inner = Dim::Const(1);
    for size in shape.iter().rev() {
        let step = node.known(Known::scalar(inner.clone()));
        let modulus = node.known(Known::scalar(size.clone()));
        let along = node.binary(BinaryOp::Div, at, step)?;
        let along = node.binary(BinaryOp::Rem, along, modulus)?;
        rows.push(node.reshape(along, [Dim::Const(1), count.clone()])?);
        inner = inner * size.clone();
    }
    if rows.is_empty() {
        let zero = node.int_scalar(DType::I64, 0);
        return Ok(vec![node.broadcast(zero, Shape(vec![Dim::Const(0), count]))?]);
    }
    rows.reverse();
    Ok(vec![node.concat(&rows, 0)?])
}

fn non_zero_known(node: &mut Node<'_>, known: &[f64], sizes: &[i64]) -> Val {
    let kept = known.iter().enumerate().filter(|(_, v)| **v != 0.0);
    let hits: Vec<usize> = kept.map(|(i, _)| i).collect();
    let mut elements = Vec::with_capacity(hits.len() * sizes.len());
    for axis in 0..sizes.len() {
        let inner: i64 = sizes[axis + 1..].iter().product();
        elements.extend(
            hits.iter()
                .map(|at| Element::Dim(Dim::Const(*at as i64 / inner % sizes[axis]))),
        );
    }
    node.known(Known {
        dtype: DType::I64,
        shape: vec![sizes.len(), hits.len()],
        elements,
    })
}

/// The distinct elements of a known tensor, or slices along an axis: they, where they come first, which of them each
/// one is, and how often they are there.
fn unique(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let what = "tensor (the number of its distinct elements is a size)";
    let known = node.numbers_exactly(x, what);
    let Some((known, numbers)) = known.and_then(|k| k.floats().map(|numbers| (k, numbers))) else {
        return Err(NodeProblem::NotKnown { what, index: 0 }.into());
    };
    // Slices are runs of `inner` elements, `outer` times.
    let (outer, size, inner) = match node.int("axis")? {
        Some(axis) => {
            let axis = node.axis(axis, known.shape.len())?;
            let inner: usize = known.shape[axis + 1..].iter().product();
            (known.shape[..axis].iter().product(), known.shape[axis], inner)
        }
        None => (1usize, numbers.len(), 1),
    };
    let place = |o: usize, at: usize, i: usize| (o * size + at) * inner + i;
    let slice = |at: usize| -> Vec<f64> {
        let places = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
        places.map(|(o, i)| numbers[place(o, at, i)]).collect()
    };
    let slices: Vec<Vec<f64>> = (0..size).map(slice).collect();
    let mut first: Vec<usize> = Vec::new();
    let mut seen: HashMap<Vec<u64>, usize> = HashMap::new();
    let mut which = Vec::with_capacity(size);
    for (at, slice) in slices.iter().enumerate() {
        // Both zeros are alike, and no NaN is like another.
        let bits = slice.iter().map(|number| (number + 0.0).to_bits()).collect();
        let found = *seen.entry(bits).or_insert(first.len());
        if found == first.len() || slice.iter().any(|number| number.is_nan()) {
            which.push(first.len());
            first.push(at);
        } else {
            which.push(found);
        }
    }
    let mut order: Vec<usize> = (0..first.len()).collect();
    if node.int_or("sorted", 1)? != 0 {
        let less = |a: &usize, b: &usize| {
            let pairs = slices[first[*a]].iter().zip(&slices[first[*b]]);
            let differing = pairs.map(|(x, y)| x.total_cmp(y)).find(|order| order.is_ne());
            differing.unwrap_or(std::cmp::Ordering::Equal)
        };
        order.sort_by(less);
    }
    let starts: Vec<usize> = order.iter().map(|o| first[*o]).collect();
    let mut shape = match node.has("axis") {
        true => known.shape.clone(),
        false => vec![size],
    };
    if let Some(axis) = node.int("axis")? {
        let axis = node.axis(axis, shape.len())?;
        shape[axis] = starts.len();
    } else {
        shape[0] = starts.len();
    }
    let mut from = Vec::with_capacity(outer * starts.len() * inner);
    for o in 0..outer {
        for at in &starts {
            from.extend((0..inner).map(|i| place(o, *at, i)));
        }
    }
    let Some(values) = known.select(shape, from) else {
        return node.rank_error(0, "at least 0");
    };
    let list = |values: Vec<usize>| Known::vector(values.into_iter().map(Dim::from).collect());
    let mut rank = vec![0; first.len()];
    order.iter().enumerate().for_each(|(at, of)| rank[*of] = at);
    let places = which.iter().map(|of| rank[*of]).collect();
    let mut counts = vec![0; first.len()];
    which.iter().for_each(|of| counts[rank[*of]] += 1);
    let results = [values, list(starts), list(places), list(counts)];
    Ok(results.map(|known| node.known(known)).to_vec())
}
