//! Views as maps of coordinates, in both directions.

use ir::op::View;
use ir::schedule::Part;
use ir::{Dim, Graph, Op, Shape, Table, Value};

use crate::fuse::classify::is_unpacking;

use super::index::{Linear, Space, delinearize, linearize};

/// Maps coordinates of a result with NumPy broadcasting back to an operand's shape.
pub fn broadcast(coords: &[Linear], operand: &Shape) -> Vec<Linear> {
    let skip = coords.len() - operand.rank();
    operand
        .iter()
        .zip(&coords[skip..])
        .map(|(dim, c)| if dim.is(1) { Linear::constant(0) } else { c.clone() })
        .collect()
}

/// Maps coordinates of a view's result to coordinates of its operand; `None` for pads and concats, which need a guard.
pub fn to_operand(
    view: &View,
    coords: &[Linear],
    operand: &Shape,
    result: &Shape,
    space: Space<'_>,
) -> Option<Vec<Linear>> {
    Some(match view {
        View::Reshape(_) => reshape(coords, result, operand, space),
        View::Transpose(perm) => {
            let mut out = vec![Linear::constant(0); perm.len()];
            for (i, p) in perm.iter().enumerate() {
                out[*p] = coords[i].clone();
            }
            out
        }
        View::Broadcast(_) => broadcast(coords, operand),
        View::Slice { starts, steps, .. } => coords
            .iter()
            .zip(starts)
            .zip(steps)
            .map(|((c, start), step)| c.scale(&Dim::Const(*step)).offset(start))
            .collect(),
        View::Pad { .. } | View::Concat { .. } => return None,
    })
}

/// Maps coordinates of a view's operand to coordinates of its result, for the views that have an inverse.
pub fn to_result(
    view: &View,
    coords: &[Linear],
    operand: &Shape,
    result: &Shape,
    space: Space<'_>,
) -> Option<Vec<Linear>> {
    match view {
        View::Reshape(_) => Some(reshape(coords, operand, result, space)),
        View::Transpose(perm) => Some(perm.iter().map(|p| coords[*p].clone()).collect()),
        _ => None,
    }
}

/// Maps coordinates of a part to coordinates of the concat that it is stored in: behind the parts before it.
pub fn part_to_whole(graph: &Graph, part: &Part, coords: &[Linear]) -> Vec<Linear> {
    let node = graph.node(part.whole.node);
    let Op::View(View::Concat { axis }) = node.op else {
        return coords.to_vec();
    };
    let before: Dim = node.operands[..part.operand]
        .iter()
        .map(|v| graph.ty(*v).shape[axis].clone())
        .sum();
    let mut out = coords.to_vec();
    out[axis] = out[axis].clone().offset(&before);
    out
}

/// Maps coordinates between two shapes with the same elements in row-major order.
fn reshape(coords: &[Linear], from: &Shape, to: &Shape, space: Space<'_>) -> Vec<Linear> {
    // Leading dims that agree pass through unchanged; the rest goes by way of the position.
    let same = from.iter().zip(to.iter()).take_while(|(a, b)| a == b).count();
    let (from_rest, to_rest) = (Shape(from[same..].to_vec()), &to[same..]);
    let mut out = coords[..same].to_vec();
    if from_rest.elements() != to_rest.iter().cloned().product::<Dim>() {
        out.clear();
        return delinearize(&linearize(coords, from), to, space);
    }
    out.extend(delinearize(&linearize(&coords[same..], &from_rest), to_rest, space));
    out
}

/// Says whether, read through `path` (views, the one nearest the reader first), the last view's operand is accessed
/// with constant strides along every axis of what the reader sees.
pub fn is_strided(graph: &Graph, path: &[Value]) -> bool {
    let Some(first) = path.first() else { return true };
    let shape = &graph.ty(*first).shape;
    let mut extents = Table::new();
    let mut coords: Vec<Linear> = shape
        .iter()
        .map(|d| {
            if d.is(1) {
                Linear::constant(0)
            } else {
                Linear::axis(extents.push(d.clone()))
            }
        })
        .collect();
    let space = Space {
        extents: &extents,
        symbols: graph.symbols(),
    };
    let mut position = None;
    for value in path {
        let node = graph.node(value.node);
        let (operand, result) = match &node.op {
            Op::View(_) => (&graph.ty(node.operands[0]).shape, &node.results[0].shape),
            Op::Elementwise(_) if node.operands.len() == 1 => continue,
            op if is_unpacking(op) => continue,
            _ => return false,
        };
        let Op::View(view) = &node.op else { return false };
        match to_operand(view, &coords, operand, result, space) {
            Some(next) => coords = next,
            None => return false,
        }
        position = Some(linearize(&coords, operand));
    }
    position.is_none_or(|p| p.is_affine())
}
