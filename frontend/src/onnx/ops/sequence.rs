//! Sequences and optionals, which are gone after import: their lengths are known there.

use ir::Dim;

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("ConcatFromSequence", 11, concat),
    op("Optional", 15, optional),
    op("OptionalGetElement", 15, get_element),
    op("OptionalHasElement", 15, has_element),
    op("SequenceAt", 11, at),
    op("SequenceConstruct", 11, |n| {
        let parts = n.variadic()?;
        Ok(vec![n.build.of_sequence(parts)])
    }),
    op("SequenceEmpty", 11, |n| Ok(vec![n.build.of_sequence(Vec::new())])),
    op("SequenceErase", 11, erase),
    op("SequenceInsert", 11, insert),
    op("SequenceLength", 11, |n| {
        let length = elements(n, 0)?.len();
        Ok(vec![n.known(Known::scalar(Dim::from(length)))])
    }),
    op("SplitToSequence", 11, split),
];

/// The elements of an input that is a sequence.
fn elements(node: &Node<'_>, index: usize) -> Step<Vec<Val>> {
    let input = node.input(index)?;
    match node.build.sequence(input) {
        Some(elements) => Ok(elements),
        None => node.unsupported(format!("a tensor as input {index}, which must be a sequence,")),
    }
}

/// A position in a sequence; negative ones count from the end.
fn position(node: &mut Node<'_>, index: usize, length: usize, past: bool) -> Step<usize> {
    let found = node.known_ints(index, "position in the sequence")?;
    let [given] = found.as_slice() else {
        return node.rank_error(index, "0");
    };
    let at = if *given < 0 { given + length as i64 } else { *given };
    match usize::try_from(at) {
        Ok(at) if at < length || past && at == length => Ok(at),
        _ => Err(NodeProblem::Value {
            what: "position in the sequence",
            found: given.to_string(),
            expected: format!("one of a sequence of {length} elements"),
        }
        .into()),
    }
}

fn at(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let list = elements(node, 0)?;
    let at = position(node, 1, list.len(), false)?;
    Ok(vec![list[at]])
}

fn erase(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut list = elements(node, 0)?;
    let at = match node.optional(1) {
        Some(_) => position(node, 1, list.len(), false)?,
        None if list.is_empty() => return node.unsupported("erasing an element of an empty sequence"),
        None => list.len() - 1,
    };
    list.remove(at);
    Ok(vec![node.build.of_sequence(list)])
}

fn insert(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut list = elements(node, 0)?;
    let value = node.input(1)?;
    let at = match node.optional(2) {
        Some(_) => position(node, 2, list.len(), true)?,
        None => list.len(),
    };
    list.insert(at, value);
    Ok(vec![node.build.of_sequence(list)])
}

/// Joins the elements along an axis, or stacks them along a new one.
fn concat(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut list = elements(node, 0)?;
    let Some(first) = list.first() else {
        return node.unsupported("joining the elements of an empty sequence");
    };
    let axis = node.int("axis")?;
    let axis = node.required("axis", axis)?;
    let stacked = node.flag("new_axis")?;
    let axis = node.axis(axis, node.rank(*first) + usize::from(stacked))?;
    if stacked {
        for value in &mut list {
            let mut dims = node.shape(*value).0;
            dims.insert(axis, Dim::Const(1));
            *value = node.reshape(*value, dims)?;
        }
    }
    Ok(vec![node.concat(&list, axis)?])
}

/// The most parts of a split.
const MOST_PARTS: i64 = 1 << 16;

/// The sizes of the parts of a split along an axis of so many elements.
fn sizes(node: &mut Node<'_>, size: &Dim) -> Step<Vec<Dim>> {
    let Some(split) = node.optional(1) else {
        return match size.as_const().filter(|size| *size <= MOST_PARTS) {
            Some(size) => Ok(vec![Dim::Const(1); size.max(0) as usize]),
            None => node.unsupported(format!(
                "a sequence of the {size} slices of an axis (fix its size with --size)"
            )),
        };
    };
    let given = node.known_dims(1, "sizes of the parts")?;
    if node.rank(split) == 1 {
        return Ok(given);
    }
    match (given.first().and_then(Dim::as_const), size.as_const()) {
        (Some(part), Some(size)) if part > 0 && size / part < MOST_PARTS => {
            let whole = (0..size / part).map(|_| Dim::Const(part));
            let rest = Some(size % part).filter(|rest| *rest > 0).map(Dim::Const);
            Ok(whole.chain(rest).collect())
        }
        (part, _) => node.unsupported(format!(
            "a sequence of the parts of {size} elements, {} each (fix its size with --size)",
            part.map_or_else(|| "?".to_owned(), |part| part.to_string())
        )),
    }
}

fn split(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = node.int_or("axis", 0)?;
    let axis = node.axis(axis, shape.rank())?;
    let sizes = sizes(node, &shape[axis])?;
    let keep = node.int_or("keepdims", 1)? != 0 || node.optional(1).is_some();
    let total: Dim = sizes.iter().fold(Dim::Const(0), |sum, size| sum + size.clone());
    node.build.require_equal(&total, &shape[axis])?;
    let mut start = Dim::Const(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut part = node.slice_axis(x, axis, start.clone(), size.clone())?;
        if !keep {
            let mut dims = node.shape(part).0;
            dims.remove(axis);
            part = node.reshape(part, dims)?;
        }
        parts.push(part);
        start = start + size;
    }
    Ok(vec![node.build.of_sequence(parts)])
}

/// What is there is itself; without an input there is nothing.
fn optional(node: &mut Node<'_>) -> Step<Vec<Val>> {
    Ok(vec![match node.optional(0) {
        Some(value) => value,
        None => node.build.of_nothing(),
    }])
}

fn get_element(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let value = node.input(0)?;
    if node.build.is_nothing(value) {
        return node.unsupported("taking the element of an optional that has none");
    }
    Ok(vec![value])
}

fn has_element(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let has = node.optional(0).is_some_and(|value| !node.build.is_nothing(value));
    Ok(vec![node.int_scalar(ir::DType::Bool, i64::from(has))])
}
