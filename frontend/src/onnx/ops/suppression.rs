//! `NonMaxSuppression`: of boxes that overlap, the one with the best score stays.
//!
//! Candidates of each batch and class are sorted by score. Of `m` of them, a matrix says which one overlaps which later
//! one; a candidate stays if none that stays overlaps it before. That has one solution, and each round of trying it out
//! settles at least one candidate more: a few rounds are enough where chains of overlaps are short, and `m` always are.
//!
//! How many candidates pass the threshold, how many rounds it takes and how many boxes stay are decided by data, so
//! they must be known ([`Builder::numbers`]).
//!
//! [`Builder::numbers`]: crate::onnx::builder::Builder::numbers

use ir::op::{BinaryOp, Gather, Op, ReduceOp, UnaryOp};
use ir::{DType, Dim, Shape};

use super::selected::positions;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("NonMaxSuppression", 10, suppress)];

const BOXES: usize = 0;
const SCORES: usize = 1;
const MOST: usize = 2;
const OVERLAP: usize = 3;
const THRESHOLD: usize = 4;

/// The most pairs of candidates that are compared, of all batches and classes.
const PAIR_LIMIT: i64 = 1 << 28;
/// Rounds after which it is looked whether they were enough, as often doubled as it takes.
const ROUNDS: i64 = 8;

/// Candidates of each batch and class, best first.
struct Candidates {
    /// `bool[B, C, m]`: a class may have fewer than another.
    there: Val,
    /// `i64[B, C, m]`: which boxes they are.
    boxes: Val,
    count: i64,
}

fn suppress(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (boxes, scores) = (node.input(BOXES)?, node.input(SCORES)?);
    let (places, rated) = (node.shape(boxes), node.shape(scores));
    let [batch, size, four] = &*places else {
        return node.rank_error(BOXES, "3");
    };
    let [batches, classes, sizes] = &*rated else {
        return node.rank_error(SCORES, "3");
    };
    node.build.require_equal(batch, batches)?;
    node.build.require_equal(size, sizes)?;
    node.build.require_equal(four, &Dim::Const(4))?;
    let most = match node.optional(MOST) {
        None => 0,
        Some(_) => {
            let most = node.known_ints(MOST, "number of boxes of a class")?;
            *most.first().ok_or(NodeProblem::NotKnown {
                what: "number of boxes of a class",
                index: MOST,
            })?
        }
    };
    let candidates = match most {
        ..=0 => None,
        _ => candidates(node, scores, size)?,
    };
    let Some(candidates) = candidates else {
        let none = node.int_scalar(DType::I64, 0);
        return Ok(vec![node.broadcast(none, Shape(vec![Dim::Const(0), Dim::Const(3)]))?]);
    };
    let overlapping = overlapping(node, boxes, &candidates)?;
    let stay = staying(node, &candidates, overlapping)?;
    // Of a class, the best ones.
    let ones = node.cast(stay, DType::I64)?;
    let place = node.running_sum(ones, 2, false)?;
    let most = node.int_scalar(DType::I64, most);
    let early = node.binary(BinaryOp::Le, place, most)?;
    let stay = node.binary(BinaryOp::And, stay, early)?;
    let all = node.ty(stay).elements();
    let stay = node.reshape(stay, [all.clone()])?;
    let at = positions(node, stay, SCORES)?;
    let count = node.shape(at)[0].clone();
    let boxes = node.reshape(candidates.boxes, [all])?;
    let chosen = node.take(boxes, 0, at)?;
    let each = node.int_scalar(DType::I64, candidates.count);
    let row = node.binary(BinaryOp::Div, at, each)?;
    let classes = node.known(Known::scalar(classes.clone()));
    let class = node.binary(BinaryOp::Rem, row, classes)?;
    let batch = node.binary(BinaryOp::Div, row, classes)?;
    let mut columns = Vec::with_capacity(3);
    for column in [batch, class, chosen] {
        columns.push(node.reshape(column, [count.clone(), Dim::Const(1)])?);
    }
    Ok(vec![node.concat(&columns, 1)?])
}

/// The boxes of each class that pass the threshold of scores; None if there are none.
fn candidates(node: &mut Node<'_>, scores: Val, size: &Dim) -> Step<Option<Candidates>> {
    let shape = node.shape(scores);
    let what = "number of candidates";
    let (sorted, counts, count) = match node.optional(THRESHOLD) {
        None => {
            let count = size.as_const();
            (scores, None, count.ok_or(NodeProblem::NotKnown { what, index: BOXES })?)
        }
        Some(threshold) => {
            let threshold = node.reshape(threshold, Shape::SCALAR)?;
            let threshold = node.cast(threshold, node.dtype(scores))?;
            let passes = node.binary(BinaryOp::Gt, scores, threshold)?;
            let ones = node.cast(passes, DType::I64)?;
            let counts = node.reduce(ReduceOp::Sum, ones, vec![2], true)?;
            let largest = node.reduce(ReduceOp::Max, counts, vec![0, 1, 2], false)?;
            let known = node
                .numbers(largest, what)
                .and_then(|known| known.ints()?.first().copied());
            let lowest = node.scalar(node.dtype(scores), f64::NEG_INFINITY);
            let sorted = node.select(passes, scores, lowest)?;
            (
                sorted,
                Some(counts),
                known.ok_or(NodeProblem::NotKnown { what, index: SCORES })?,
            )
        }
    };
    if count == 0 {
        return Ok(None);
    }
    let pairs = shape[..2]
        .iter()
        .try_fold(1i64, |n, size| n.checked_mul(size.as_const()?));
    let pairs = pairs.and_then(|n| n.checked_mul(count)?.checked_mul(count));
    if pairs.is_none_or(|pairs| pairs > PAIR_LIMIT) {
        return node.unsupported(format!(
            "NonMaxSuppression of {count} boxes each of {} batches and {} classes that pass score_threshold, of which more than \
             {PAIR_LIMIT} pairs would be compared (a higher score_threshold leaves fewer),",
            shape[0], shape[1]
        ));
    }
    let top = Op::TopK {
        axis: 2,
        k: Dim::Const(count),
        largest: true,
    };
    let boxes = node.add_all(top, &[sorted])?[1];
    let all = Shape(vec![shape[0].clone(), shape[1].clone(), Dim::Const(count)]);
    let position = node.iota(all.clone(), 2, DType::I64)?;
    let counts = match counts {
        Some(counts) => counts,
        None => node.int_scalar(DType::I64, count),
    };
    let there = node.binary(BinaryOp::Lt, position, counts)?;
    Ok(Some(Candidates {
        there: node.broadcast(there, all)?,
        boxes,
        count,
    }))
}

/// Which candidate overlaps which later one by more than the threshold, `bool[B, C, m, m]`.
fn overlapping(node: &mut Node<'_>, boxes: Val, candidates: &Candidates) -> Step<Val> {
    let shape = node.shape(candidates.boxes);
    let (batch, classes, count) = (shape[0].clone(), shape[1].clone(), Dim::Const(candidates.count));
    let flat = node.reshape(candidates.boxes, [batch.clone(), classes.clone() * count.clone()])?;
    // The four numbers of each candidate, `[B, C, m]`.
    let numbers = |node: &mut Node<'_>, at: i64| {
        let column = node.slice_axis(boxes, 2, at, 1i64)?;
        let size = node.shape(boxes)[1].clone();
        let column = node.reshape(column, [batch.clone(), size])?;
        let taken = node.add(Op::Gather(Gather::Elements { axis: 1 }), &[column, flat])?;
        let taken = node.cast(taken, DType::F32)?;
        node.reshape(taken, shape.clone())
    };
    let parts = [
        numbers(node, 0)?,
        numbers(node, 1)?,
        numbers(node, 2)?,
        numbers(node, 3)?,
    ];
    // The lower and upper ends along both directions.
    let ends = match node.int_or("center_point_box", 0)? {
        0 => {
            let ends = |node: &mut Node<'_>, one, other| -> Step<[Val; 2]> {
                Ok([
                    node.binary(BinaryOp::Min, one, other)?,
                    node.binary(BinaryOp::Max, one, other)?,
                ])
            };
            [ends(node, parts[0], parts[2])?, ends(node, parts[1], parts[3])?]
        }
        1 => {
            let ends = |node: &mut Node<'_>, centre, length| -> Step<[Val; 2]> {
                let half = node.with_scalar(BinaryOp::Mul, length, 0.5)?;
                Ok([
                    node.binary(BinaryOp::Sub, centre, half)?,
                    node.binary(BinaryOp::Add, centre, half)?,
                ])
            };
            [ends(node, parts[0], parts[2])?, ends(node, parts[1], parts[3])?]
        }
        other => return node.bad("center_point_box", other, "0 or 1"),
    };
    let (first, second) = (
        Shape(vec![batch.clone(), classes.clone(), count.clone(), Dim::Const(1)]),
        Shape(vec![batch.clone(), classes.clone(), Dim::Const(1), count.clone()]),
    );
    let mut common: Option<Val> = None;
    let mut area: Option<Val> = None;
    let zero = node.scalar(DType::F32, 0.0);
    for [low, high] in ends {
        let length = node.binary(BinaryOp::Sub, high, low)?;
        area = Some(match area {
            Some(area) => node.binary(BinaryOp::Mul, area, length)?,
            None => length,
        });
        let pair = |node: &mut Node<'_>, op, end| {
            let (one, other) = (node.reshape(end, first.clone())?, node.reshape(end, second.clone())?);
            node.binary(op, one, other)
        };
        let (from, to) = (pair(node, BinaryOp::Max, low)?, pair(node, BinaryOp::Min, high)?);
        let shared = node.binary(BinaryOp::Sub, to, from)?;
        let shared = node.binary(BinaryOp::Max, shared, zero)?;
        common = Some(match common {
            Some(common) => node.binary(BinaryOp::Mul, common, shared)?,
            None => shared,
        });
    }
    let (Some(common), Some(area)) = (common, area) else {
        return node.rank_error(BOXES, "3");
    };
    let (one, other) = (node.reshape(area, first.clone())?, node.reshape(area, second.clone())?);
    let both = node.binary(BinaryOp::Add, one, other)?;
    let either = node.binary(BinaryOp::Sub, both, common)?;
    let share = node.binary(BinaryOp::Div, common, either)?;
    let threshold = match node.optional(OVERLAP) {
        None => node.scalar(DType::F32, 0.0),
        Some(threshold) => {
            let threshold = node.cast(threshold, DType::F32)?;
            node.reshape(threshold, Shape::SCALAR)?
        }
    };
    let mut overlaps = node.binary(BinaryOp::Gt, share, threshold)?;
    // Boxes without an area overlap none.
    let touches = node.binary(BinaryOp::Gt, common, zero)?;
    overlaps = node.binary(BinaryOp::And, overlaps, touches)?;
    let place = node.iota([count.clone()].into(), 0, DType::I64)?;
    let (row, column) = (
        node.reshape(place, [count.clone(), Dim::Const(1)])?,
        node.reshape(place, [Dim::Const(1), count])?,
    );
    let later = node.binary(BinaryOp::Lt, row, column)?;
    node.binary(BinaryOp::And, overlaps, later)
}

/// Which candidates stay, `bool[B, C, m]`.
fn staying(node: &mut Node<'_>, candidates: &Candidates, overlapping: Val) -> Step<Val> {
    let shape = node.shape(candidates.boxes);
    let mut column = shape.0.clone();
    column.push(Dim::Const(1));
    let mut stay = candidates.there;
    let mut done = 0;
    let mut look = ROUNDS;
    loop {
        let mut before = stay;
        while done < look.min(candidates.count) {
            before = stay;
            let by = node.reshape(stay, column.clone())?;
            let hidden = node.binary(BinaryOp::And, by, overlapping)?;
            let hidden = node.reduce(ReduceOp::Any, hidden, vec![2], false)?;
            let free = node.unary(UnaryOp::Not, hidden)?;
            stay = node.binary(BinaryOp::And, candidates.there, free)?;
            done += 1;
        }
        if done == candidates.count {
            return Ok(stay);
        }
        let same = node.binary(BinaryOp::Eq, before, stay)?;
        let same = node.reduce(ReduceOp::All, same, vec![0, 1, 2], false)?;
        let what = "number of rounds that settle which boxes stay";
        let settled = node
            .numbers(same, what)
            .and_then(|known| known.ints()?.first().copied());
        match settled {
            Some(0) => look *= 2,
            Some(_) => return Ok(stay),
            None => return Err(NodeProblem::NotKnown { what, index: SCORES }.into()),
        }
    }
}
