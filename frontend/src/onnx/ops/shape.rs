//! Shapes: reading them, and giving tensors others.

use ir::{Dim, Shape};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::{Node, small};

pub(super) const ROWS: &[Row] = &[
    op("Concat", 1, concat),
    op("DepthToSpace", 1, depth_to_space),
    op("Expand", 8, expand),
    op("Flatten", 1, flatten),
    op("Identity", 1, |n| Ok(vec![n.input(0)?])),
    op("Reshape", 1, reshape),
    op("Shape", 1, shape),
    op("Size", 1, size),
    op("SpaceToDepth", 1, space_to_depth),
    op("Squeeze", 1, squeeze),
    op("Tile", 6, tile),
    op("Transpose", 1, transpose),
    op("Unsqueeze", 1, unsqueeze),
];

/// Part of the shape since opset 15; positions outside are clamped.
fn shape(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dims = node.shape(x).0;
    let rank = dims.len() as i64;
    let at = |v: i64| if v < 0 { v.saturating_add(rank) } else { v }.clamp(0, rank) as usize;
    let (start, end) = (at(node.int_or("start", 0)?), at(node.int_or("end", rank)?));
    let part = dims.get(start..end).unwrap_or_default().to_vec();
    Ok(vec![node.known(Known::vector(part))])
}

fn size(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let elements = node.ty(x).elements();
    Ok(vec![node.known(Known::scalar(elements))])
}

/// 0 keeps a dim (unless `allowzero`), one −1 takes what is left.
fn reshape(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let from = node.shape(x);
    // Before opset 5 the shape is an attribute.
    let mut to = match node.ints("shape")? {
        Some(shape) if node.opset < 5 => shape.into_iter().map(Dim::Const).collect(),
        _ => node.known_dims(1, "new shape")?,
    };
    if !node.flag("allowzero")? {
        for (axis, dim) in to.iter_mut().enumerate().filter(|(_, d)| d.is(0)) {
            let Some(kept) = from.get(axis) else {
                return Err(NodeProblem::Axis {
                    axis: axis as i64,
                    rank: from.rank(),
                }
                .into());
            };
            *dim = kept.clone();
        }
    }
    let error = |to: &[Dim], reason: &str| NodeProblem::Shapes {
        left: from.clone(),
        right: Shape(to.to_vec()),
        reason: reason.to_owned(),
    };
    let open: Vec<usize> = (0..to.len()).filter(|i| to[*i].is(-1)).collect();
    match open.as_slice() {
        [] => {}
        [open] => {
            small(&to)?;
            let rest: Dim = to
                .iter()
                .enumerate()
                .filter(|(i, _)| i != open)
                .map(|(_, d)| d.clone())
                .product();
            if rest.is(0) {
                return Err(error(&to, "the dim marked -1 could be anything, because another is 0").into());
            }
            let elements = from.elements();
            to[*open] = match elements.exact_div(&rest) {
                Some(quotient) => quotient,
                None if elements.as_const().is_some() && rest.as_const().is_some() => {
                    return Err(error(&to, &format!("{elements} elements are no multiple of {rest}")).into());
                }
                // A run checks that there is no remainder.
                None => elements.floor_div(&rest),
            };
        }
        _ => return Err(error(&to, "only one dim may be -1").into()),
    }
    if to.iter().any(|d| d.as_const().is_some_and(|v| v < 0)) {
        return Err(error(&to, "a dim is negative").into());
    }
    Ok(vec![node.reshape(x, to)?])
}

fn flatten(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dims = node.shape(x);
    let axis = node.int_or("axis", 1)?;
    let axis = if axis == dims.rank() as i64 {
        dims.rank()
    } else {
        node.axis(axis, dims.rank())?
    };
    let matrix: [Dim; 2] = [
        dims[..axis].iter().cloned().product(),
        dims[axis..].iter().cloned().product(),
    ];
    Ok(vec![node.reshape(x, matrix)?])
}

/// Axes are an attribute before opset 13, an input since.
fn squeeze(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dims = node.shape(x);
    let axes = match node.axes(1)? {
        Some(axes) => node.axis_list(&axes, dims.rank())?,
        None => (0..dims.rank()).filter(|a| dims[*a].is(1)).collect(),
    };
    for axis in &axes {
        node.build.require_equal(&dims[*axis], &Dim::Const(1))?;
    }
    let kept: Vec<Dim> = (0..dims.rank())
        .filter(|a| !axes.contains(a))
        .map(|a| dims[a].clone())
        .collect();
    Ok(vec![node.reshape(x, kept)?])
}

fn unsqueeze(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dims = node.shape(x);
    let axes = node.axes(1)?;
    let axes = node.required("axes", axes)?;
    let rank = dims.rank() + axes.len();
    let axes = node.axis_list(&axes, rank)?;
    let mut old = dims.iter().cloned();
    let one = || Dim::Const(1);
    let wide: Vec<Dim> = (0..rank)
        .map(|a| {
            if axes.contains(&a) {
                one()
            } else {
                old.next().unwrap_or_else(one)
            }
        })
        .collect();
    Ok(vec![node.reshape(x, wide)?])
}

fn transpose(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let rank = node.rank(x);
    let perm = match node.ints("perm")? {
        Some(perm) => {
            let list = perm.iter().map(|a| node.axis(*a, rank)).collect::<Step<Vec<_>>>()?;
            let mut sorted = list.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..rank) {
                return node.bad(
                    "perm",
                    perm,
                    format!("a permutation of 0 to {}", rank.saturating_sub(1)),
                );
            }
            list
        }
        None => (0..rank).rev().collect(),
    };
    Ok(vec![node.transpose(x, perm)?])
}

/// Broadcasts in both directions: a dim of the operand that is larger than the target's stays.
fn expand(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let target = Shape(node.known_dims(1, "shape to expand to")?);
    let from = node.shape(x);
    let shape = node.build.broadcast(&from, &target)?;
    Ok(vec![node.broadcast(x, shape)?])
}

fn concat(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let parts = node.variadic()?;
    let axis = match node.int("axis")? {
        None if node.opset < 4 => 1,
        axis => node.required("axis", axis)?,
    };
    let axis = node.axis(axis, node.rank(parts[0]))?;
    Ok(vec![node.concat(&parts, axis)?])
}

/// Repeats along each axis: `[n] → [1, n] → [r, n] → [r·n]`.
fn tile(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dims = node.shape(x);
    let repeats = node.known_dims(1, "number of repeats")?;
    if repeats.len() != dims.rank() {
        return node.rank_error(0, format!("{}, as many as there are repeats", repeats.len()));
    }
    let (mut split, mut wide, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeat) in dims.iter().zip(&repeats) {
        if !repeat.is(1) {
            split.push(Dim::Const(1));
            wide.push(repeat.clone());
        }
        split.push(dim.clone());
        wide.push(dim.clone());
        joined.push(dim.clone() * repeat.clone());
    }
    let x = node.reshape(x, split)?;
    let x = node.broadcast(x, Shape(wide))?;
    Ok(vec![node.reshape(x, joined)?])
}

fn block(node: &mut Node<'_>) -> Step<(Val, [Dim; 4], i64)> {
    let x = node.input(0)?;
    let block = node.int("blocksize")?;
    let block = node.required("blocksize", block)?;
    if !(1..=1 << 16).contains(&block) {
        return node.bad("blocksize", block, "1 to 65536");
    }
    match <[Dim; 4]>::try_from(node.shape(x).0) {
        Ok(dims) => Ok((x, dims, block)),
        Err(_) => node.rank_error(0, "4"),
    }
}

/// A part of an axis; where it depends on the run that nothing is left, the run checks it.
fn divided(node: &Node<'_>, x: Val, dim: &Dim, by: i64) -> Step<Dim> {
    match dim.exact_div(&Dim::Const(by)) {
        Some(part) => Ok(part),
        None if dim.as_const().is_none() => Ok(dim.floor_div(&Dim::Const(by))),
        None => Err(NodeProblem::Shapes {
            left: node.shape(x),
            right: [by].into(),
            reason: format!("{dim} is no multiple of {by}"),
        }
        .into()),
    }
}

fn depth_to_space(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, [n, c, h, w], b) = block(node)?;
    let rest = divided(node, x, &c, b * b)?;
    let depth_first = match node.text("mode", "DCR")?.as_str() {
        "DCR" => true,
        "CRD" => false,
        other => return node.bad("mode", other, "DCR or CRD"),
    };
    let by = Dim::Const(b);
    let (split, perm) = if depth_first {
        (
            [n.clone(), by.clone(), by, rest.clone(), h.clone(), w.clone()],
            vec![0, 3, 4, 1, 5, 2],
        )
    } else {
        (
            [n.clone(), rest.clone(), by.clone(), by, h.clone(), w.clone()],
            vec![0, 1, 4, 2, 5, 3],
        )
    };
    let x = node.reshape(x, split)?;
    let x = node.transpose(x, perm)?;
    Ok(vec![node.reshape(x, [n, rest, h * b, w * b])?])
}

fn space_to_depth(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, [n, c, h, w], b) = block(node)?;
    let (rows, columns) = (divided(node, x, &h, b)?, divided(node, x, &w, b)?);
    let by = Dim::Const(b);
    let split = [n.clone(), c.clone(), rows.clone(), by.clone(), columns.clone(), by];
    let perm = match node.text("mode", "DCR")?.as_str() {
        "DCR" => vec![0, 3, 5, 1, 2, 4],
        "CRD" => vec![0, 1, 3, 5, 2, 4],
        other => return node.bad("mode", other, "DCR or CRD"),
    };
    let x = node.reshape(x, split)?;
    let x = node.transpose(x, perm)?;
    Ok(vec![node.reshape(x, [n, c * (b * b), rows, columns])?])
}
