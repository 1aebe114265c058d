//! Einsum as transposes, sums and batched matrix products.
//!
//! Operands are joined pair by pair from the left. For a pair, each label is a batch label (in both, needed later), a
//! row or column label (in one), or contracted (in both, needed no more); a label that only one operand has and nobody
//! needs is summed first. So `bqhd,bkhd->bhqk` becomes one contraction over batch `b·h` as a 3-d batched product.

use ir::op::{BinaryOp, ReduceOp};
use ir::{DType, Dim};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("Einsum", 12, einsum)];

/// An operand with a label for each axis. Axes of an ellipsis are labelled by digits-like codes below `' '`.
struct Term {
    value: Val,
    labels: Vec<char>,
}

fn einsum(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let equation = node.text("equation", "")?;
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let values = node.variadic()?;
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != values.len() {
        return node.bad("equation", equation, format!("of {} operands", values.len()));
    }
    let mut terms = Vec::new();
    for (part, value) in parts.iter().zip(&values) {
        let rank = node.rank(*value);
        match labels(part, Some(rank)) {
            Some(labels) if labels.len() == rank => terms.push(Term { value: *value, labels }),
            _ => {
                return node.bad(
                    "equation",
                    equation,
                    format!("{part:?} with {rank} labels, all letters"),
                );
            }
        }
    }
    let ellipsis = terms
        .iter()
        .flat_map(|t| &t.labels)
        .filter(|c| is_ellipsis(**c))
        .max()
        .map_or(0, |c| *c as usize);
    let output = match right {
        Some(right) => labels(right, None).map(|l| expand_ellipsis(l, ellipsis)),
        None => Some(implicit(&terms)),
    };
    let all: Vec<char> = terms.iter().flat_map(|t| t.labels.iter().copied()).collect();
    let output = output.filter(|o| {
        let once = o.iter().enumerate().all(|(i, c)| !o[..i].contains(c));
        once && o.iter().all(|c| all.contains(c))
    });
    let Some(output) = output else {
        return node.bad(
            "equation",
            equation,
            "a result of labels that the operands have, each once",
        );
    };
    for term in &mut terms {
        while let Some((first, second)) = repeated(&term.labels) {
            term.value = diagonal(node, term.value, first, second)?;
            term.labels.remove(second);
            let label = term.labels.remove(first);
            term.labels.push(label);
        }
    }
    let mut terms = terms.into_iter();
    let Some(mut joined) = terms.next() else {
        return node.bad("equation", equation, "with an operand");
    };
    let rest: Vec<Term> = terms.collect();
    for (i, term) in rest.iter().enumerate() {
        let needed = |c: char| output.contains(&c) || rest[i + 1..].iter().any(|t| t.labels.contains(&c));
        joined = pair(node, joined, term, &needed)?;
    }
    let last = sum_unneeded(node, joined, &|c| output.contains(&c))?;
    let perm = output
        .iter()
        .filter_map(|c| last.labels.iter().position(|l| l == c))
        .collect();
    Ok(vec![node.transpose(last.value, perm)?])
}

/// Two axes of one label.
fn repeated(labels: &[char]) -> Option<(usize, usize)> {
    let second = (0..labels.len()).find(|i| labels[..*i].contains(&labels[*i]))?;
    let first = labels.iter().position(|label| *label == labels[second])?;
    Some((first, second))
}

/// The diagonal over two axes, as the last axis: a slice of both as one, or of sizes that vary a sum over what is on
/// it.
fn diagonal(node: &mut Node<'_>, x: Val, first: usize, second: usize) -> Step<Val> {
    let shape = node.shape(x);
    let size = shape[first].clone();
    node.build.require_equal(&size, &shape[second])?;
    let mut order: Vec<usize> = (0..shape.rank())
        .filter(|axis| *axis != first && *axis != second)
        .collect();
    order.extend([first, second]);
    let x = node.transpose(x, order)?;
    let rank = shape.rank();
    let mut dims = node.shape(x).0;
    if let Some(n) = size.as_const() {
        dims.truncate(rank - 2);
        let mut sizes = dims.clone();
        dims.push(Dim::Const(n * n));
        sizes.push(Dim::Const(n));
        let x = node.reshape(x, dims)?;
        let mut steps = vec![1; rank - 1];
        steps[rank - 2] = n + 1;
        return node.slice(x, vec![Dim::Const(0); rank - 1], sizes, steps);
    }
    let row = node.iota([size.clone()].into(), 0, DType::I64)?;
    let column = node.reshape(row, [Dim::Const(1), size.clone()])?;
    let row = node.reshape(row, [size, Dim::Const(1)])?;
    let on = node.binary(BinaryOp::Eq, row, column)?;
    let zero = node.scalar(node.dtype(x), 0.0);
    let x = node.select(on, x, zero)?;
    node.reduce(ReduceOp::Sum, x, vec![rank - 1], false)
}

/// Ellipsis axis `i`, counted from the right, as a label.
fn ellipsis_label(i: usize) -> char {
    char::from_u32(i as u32 + 1).unwrap_or('\u{1}')
}

fn is_ellipsis(c: char) -> bool {
    (c as u32) < 32
}

/// Reads the labels of one operand; an ellipsis takes what the rank leaves. Without a rank it stays one mark.
fn labels(part: &str, rank: Option<usize>) -> Option<Vec<char>> {
    let (before, after) = match part.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (part, None),
    };
    let letters = |t: &str| {
        t.chars()
            .map(|c| c.is_ascii_alphabetic().then_some(c))
            .collect::<Option<Vec<char>>>()
    };
    let mut found = letters(before)?;
    if let Some(after) = after {
        let after = letters(after)?;
        match rank {
            Some(rank) => {
                let count = rank.checked_sub(found.len() + after.len()).filter(|n| *n < 30)?;
                found.extend((0..count).rev().map(ellipsis_label));
            }
            None => found.push('.'),
        }
        found.extend(after);
    }
    Some(found)
}

fn expand_ellipsis(labels: Vec<char>, count: usize) -> Vec<char> {
    let axes: Vec<char> = (0..count).rev().map(ellipsis_label).collect();
    labels
        .into_iter()
        .flat_map(|c| if c == '.' { axes.clone() } else { vec![c] })
        .collect()
}

/// The result without `->`: the ellipsis, then the labels that occur once, in order of the alphabet.
fn implicit(terms: &[Term]) -> Vec<char> {
    let all: Vec<char> = terms.iter().flat_map(|t| t.labels.iter().copied()).collect();
    let mut dots: Vec<char> = all.iter().copied().filter(|c| is_ellipsis(*c)).collect();
    dots.sort_unstable();
    dots.dedup();
    dots.reverse();
    let mut once: Vec<char> = all.iter().copied().filter(|c| !is_ellipsis(*c)).collect();
    once.retain(|c| all.iter().filter(|o| *o == c).count() == 1);
    once.sort_unstable();
    dots.extend(once);
    dots
}

fn sum_unneeded(node: &mut Node<'_>, term: Term, needed: &dyn Fn(char) -> bool) -> Step<Term> {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|i| !needed(term.labels[*i])).collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let value = node.reduce(ReduceOp::Sum, term.value, axes, false)?;
    Ok(Term {
        value,
        labels: term.labels.into_iter().filter(|c| needed(*c)).collect(),
    })
}

/// Joins two operands into one whose labels are those needed later.
fn pair(node: &mut Node<'_>, left: Term, right: &Term, needed: &dyn Fn(char) -> bool) -> Step<Term> {
    let other = right.labels.clone();
    let left = sum_unneeded(node, left, &|c| needed(c) || other.contains(&c))?;
    let own = left.labels.clone();
    let right = Term {
        value: right.value,
        labels: right.labels.clone(),
    };
    let right = sum_unneeded(node, right, &|c| needed(c) || own.contains(&c))?;
    let shared: Vec<char> = left
        .labels
        .iter()
        .copied()
        .filter(|c| right.labels.contains(c))
        .collect();
    let (batch, inner): (Vec<char>, Vec<char>) = shared.iter().partition(|c| needed(**c));
    let rows: Vec<char> = left.labels.iter().copied().filter(|c| !shared.contains(c)).collect();
    let columns: Vec<char> = right.labels.iter().copied().filter(|c| !shared.contains(c)).collect();
    // Axes of size 1 broadcast; labels otherwise mean equal sizes.
    let size = |node: &Node<'_>, term: &Term, c: char| -> Dim {
        let at = term.labels.iter().position(|l| *l == c);
        at.map_or(Dim::Const(1), |i| node.shape(term.value)[i].clone())
    };
    for c in &shared {
        let (l, r) = (size(node, &left, *c), size(node, &right, *c));
        if l.is(1) != r.is(1) && inner.contains(c) {
            let reason = "a contracted dim of size 1 does not broadcast".to_owned();
            let (left, right) = (node.shape(left.value), node.shape(right.value));
            return Err(NodeProblem::Shapes { left, right, reason }.into());
        }
        if !l.is(1) && !r.is(1) {
            node.build.require_equal(&l, &r)?;
        }
    }
    let sizes = |node: &Node<'_>, term: &Term, labels: &[char]| -> Vec<Dim> {
        labels.iter().map(|c| size(node, term, *c)).collect()
    };
    let matrix = |node: &mut Node<'_>, term: &Term, first: &[char], second: &[char]| -> Step<Val> {
        let order: Vec<char> = batch.iter().chain(first).chain(second).copied().collect();
        let perm = order
            .iter()
            .filter_map(|c| term.labels.iter().position(|l| l == c))
            .collect();
        let mut dims = sizes(node, term, &batch);
        dims.push(sizes(node, term, first).into_iter().product());
        dims.push(sizes(node, term, second).into_iter().product());
        let value = node.transpose(term.value, perm)?;
        node.reshape(value, dims)
    };
    let a = matrix(node, &left, &rows, &inner)?;
    let b = matrix(node, &right, &inner, &columns)?;
    let out = node.dtype(a);
    let product = node.contract(a, b, false, false, out)?;
    let rank = node.rank(product);
    let mut dims: Vec<Dim> = node.shape(product)[..rank - 2].to_vec();
    dims.extend(sizes(node, &left, &rows));
    dims.extend(sizes(node, &right, &columns));
    let value = node.reshape(product, dims)?;
    Ok(Term {
        value,
        labels: batch.iter().chain(&rows).chain(&columns).copied().collect(),
    })
}
