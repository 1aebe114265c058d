//! Scatters of a block by positions, which become views.
//!
//! ```text
//! scatter_nd(x [8, 8], (i, j) at i + 1, j + 1 for i, j < 7, u [7, 7])     (PyTorch's `x[1:, 1:] = u`)
//!     becomes
//! concat(x[:1], concat(x[1:, :1], u))
//! ```

use ir::op::{BinaryOp, Scatter, View};
use ir::{DType, Dim, NodeId, Op, Shape, Value};

use crate::analysis::index::{Affine, KnownElements, stays_inside};
use crate::error::PassFault;
use crate::rewrite::Builder;

/// The name under which it is reported and disabled.
pub const RULE: &str = "scatter_by_position";

/// A block of fewer than one in so many elements stays a scatter, which may write in place.
const PART: i64 = 4;

/// The positions along one axis: `start + step · i` for `i < size`.
#[derive(Clone)]
struct Range {
    start: Dim,
    step: i64,
    size: Dim,
}

/// A scatter whose index into each axis is constant or follows an axis of the updates of its own: concats of the data
/// around the block that is written.
pub fn scatter(b: &mut Builder<'_>, facts: &KnownElements, id: NodeId) -> Result<Option<Value>, PassFault> {
    let graph = b.old;
    let node = graph.node(id);
    let Op::Scatter(Scatter::Nd { reduce }) = node.op else {
        return Ok(None);
    };
    let (data, news) = (&graph.ty(node.operands[0]).shape, &graph.ty(node.operands[2]).shape);
    let outer = graph.ty(node.operands[1]).rank() - 1;
    let Some(parts) = facts.index_parts(graph, node.operands[1]) else {
        return Ok(None);
    };
    let depth = parts.len();
    let mut ranges = Vec::new();
    // The updates' axes in the order of the data's.
    let mut perm = Vec::new();
    for (mut part, size) in parts.into_iter().zip(data.iter()) {
        part.coefficients.truncate(outer);
        if part.bounds(news, graph.symbols()).1.is_some_and(|most| most < 0) {
            part.constant = part.constant + size;
        }
        let Some(range) = range(&part, news, &mut perm) else {
            return Ok(None);
        };
        // The last of a group that is cut short lies by itself, so there must be one.
        let groups = range.step == 1 || range.size.at_least(1, graph.symbols());
        if !groups || !stays_inside(&part, news, size, graph.symbols()) {
            return Ok(None);
        }
        ranges.push(range);
    }
    // An axis that no index follows writes each place again.
    let rest: Vec<usize> = (0..outer).filter(|axis| !perm.contains(axis)).collect();
    if rest.iter().any(|axis| !news[*axis].is(1)) {
        return Ok(None);
    }
    ranges.extend(data[depth..].iter().map(|size| Range {
        start: Dim::from(0),
        step: 1,
        size: size.clone(),
    }));
    if is_small(&ranges, data) {
        return Ok(None);
    }
    perm.extend(outer..news.rank());
    perm.extend(rest);
    let (x, mut update) = (b.value(node.operands[0]), b.value(node.operands[2]));
    if !perm.iter().enumerate().all(|(at, axis)| at == *axis) {
        update = b.emit(Op::View(View::Transpose(perm)), &[update])?;
    }
    let block: Shape = ranges.iter().map(|range| range.size.clone()).collect();
    update = reshape(b, update, block.clone())?;
    if let Some(reduce) = reduce {
        let Some(op) = reduce.pairwise().filter(|op| adds_up(*op, b.ty(x).dtype)) else {
            return Ok(None);
        };
        let view = View::Slice {
            starts: ranges.iter().map(|range| range.start.clone()).collect(),
            steps: ranges.iter().map(|range| range.step).collect(),
            sizes: block.0,
        };
        let old = b.emit(Op::View(view), &[x])?;
        update = b.emit(Op::binary(op), &[old, update])?;
    }
    overwrite(b, x, update, ranges).map(Some)
}

/// The positions of an index that is the same everywhere, or follows one axis of the updates upwards. That axis is
/// added to those that are taken.
fn range(index: &Affine, news: &Shape, taken: &mut Vec<usize>) -> Option<Range> {
    let mut axes = index.coefficients.iter().enumerate().filter(|(_, c)| !c.is(0));
    let (start, first, second) = (index.constant.clone(), axes.next(), axes.next());
    match (first, second) {
        (None, _) => Some(Range {
            start,
            step: 1,
            size: Dim::from(1),
        }),
        (Some((axis, step)), None) => {
            let step = step.as_const().filter(|step| *step > 0)?;
            if taken.contains(&axis) {
                return None;
            }
            taken.push(axis);
            Some(Range {
                start,
                step,
                size: news[axis].clone(),
            })
        }
        _ => None,
    }
}

/// Says whether the block is known to be a small part of the data.
fn is_small(ranges: &[Range], data: &Shape) -> bool {
    let (mut block, mut all) = (Dim::from(1), Dim::from(1));
    for (range, size) in ranges.iter().zip(data.iter()).filter(|(r, size)| r.size != **size) {
        block = block * &range.size;
        all = all * size;
    }
    match (block.as_const(), all.as_const()) {
        (Some(block), Some(all)) => block.saturating_mul(PART) < all,
        _ => false,
    }
}

/// Says whether an op is one of numbers, and elementwise ops take those of a type.
fn adds_up(op: BinaryOp, dtype: DType) -> bool {
    let numbers = matches!(op, BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min);
    numbers
        && matches!(
            dtype,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::I64 | DType::I32
        )
}

/// `x` with `update` at the positions of all axes' `ranges`.
fn overwrite(b: &mut Builder<'_>, x: Value, update: Value, ranges: Vec<Range>) -> Result<Value, PassFault> {
    let shape = b.ty(x).shape.clone();
    let mut axes = ranges.iter().zip(shape.iter());
    let Some(axis) = axes.position(|(range, size)| !(range.start.is(0) && range.step == 1 && range.size == *size))
    else {
        return Ok(update);
    };
    let Range { start, step, size } = ranges[axis].clone();
    let with = |range: Range| {
        let mut ranges = ranges.clone();
        ranges[axis] = range;
        ranges
    };
    let all = |size: &Dim| Range {
        start: Dim::from(0),
        step: 1,
        size: size.clone(),
    };
    let one = Dim::from(1);
    let mut parts = Vec::new();
    let end = if step == 1 {
        let old = slice(b, x, axis, &start, &size)?;
        parts.push(overwrite(b, old, update, with(all(&size)))?);
        start.clone() + &size
    } else {
        // Groups of `step` neighbours, of each of which one is written; the last may be cut short.
        let whole = (shape[axis].clone() - &start - size.clone() * step).at_least(0, b.symbols());
        let groups = if whole { size.clone() } else { size.clone() - 1 };
        let end = start.clone() + groups.clone() * step;
        let (old, new) = (
            slice(b, x, axis, &start, &(groups.clone() * step))?,
            slice(b, update, axis, &Dim::from(0), &groups)?,
        );
        let mut grouped = shape.clone();
        grouped.0[axis] = groups.clone();
        grouped.0.insert(axis + 1, Dim::from(step));
        let old = reshape(b, old, grouped.clone())?;
        let first = slice(b, old, axis + 1, &Dim::from(0), &one)?;
        let others = slice(b, old, axis + 1, &one, &Dim::from(step - 1))?;
        let mut flat = shape.clone();
        flat.0[axis] = groups.clone();
        let first = reshape(b, first, flat)?;
        let first = overwrite(b, first, new, with(all(&groups)))?;
        grouped.0[axis + 1] = one.clone();
        let first = reshape(b, first, grouped)?;
        let both = b.emit(Op::View(View::Concat { axis: axis + 1 }), &[first, others])?;
        let mut flat = shape.clone();
        flat.0[axis] = groups.clone() * step;
        parts.push(reshape(b, both, flat)?);
        if whole {
            end
        } else {
            let (old, new) = (slice(b, x, axis, &end, &one)?, slice(b, update, axis, &groups, &one)?);
            parts.push(overwrite(b, old, new, with(all(&one)))?);
            end + 1
        }
    };
    if !start.is(0) {
        parts.insert(0, slice(b, x, axis, &Dim::from(0), &start)?);
    }
    let after = shape[axis].clone() - &end;
    if !after.is(0) {
        parts.push(slice(b, x, axis, &end, &after)?);
    }
    match parts[..] {
        [part] => Ok(part),
        _ => b.emit(Op::View(View::Concat { axis }), &parts),
    }
}

/// `size` elements of an axis from `start` on.
fn slice(b: &mut Builder<'_>, x: Value, axis: usize, start: &Dim, size: &Dim) -> Result<Value, PassFault> {
    let mut sizes = b.ty(x).shape.0.clone();
    if start.is(0) && sizes[axis] == *size {
        return Ok(x);
    }
    let mut starts = vec![Dim::from(0); sizes.len()];
    (starts[axis], sizes[axis]) = (start.clone(), size.clone());
    let steps = vec![1; sizes.len()];
    b.emit(Op::View(View::Slice { starts, sizes, steps }), &[x])
}

fn reshape(b: &mut Builder<'_>, x: Value, shape: Shape) -> Result<Value, PassFault> {
    match b.ty(x).shape == shape {
        true => Ok(x),
        false => b.emit(Op::View(View::Reshape(shape)), &[x]),
    }
}
