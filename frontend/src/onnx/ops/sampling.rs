//! Sampling images at places that are no pixels: grids, regions of interest, deformed windows.
//!
//! A sample is a weighted sum of the pixels around it, each of which is a gather over the flattened image.

mod regions;

use ir::op::{BinaryOp, Gather, Op, UnaryOp};
use ir::{DType, Dim, Shape};

use super::conv::spatial_list;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("AffineGrid", 20, affine_grid),
    op("DeformConv", 19, deform_conv),
    op("GridSample", 16, grid_sample),
    op("RoiAlign", 10, regions::roi_align),
];

/// What is read outside of an image.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Zeros,
    Border,
    Reflection { align: bool },
}

/// One axis of an image: its size, and that size as a number.
struct Axis {
    size: Dim,
    number: Val,
}

fn axes(node: &mut Node<'_>, sizes: &[Dim], dtype: DType) -> Step<Vec<Axis>> {
    let mut found = Vec::with_capacity(sizes.len());
    for size in sizes {
        let number = node.known(Known::scalar(size.clone()));
        let number = node.cast(number, dtype)?;
        let size = size.clone();
        found.push(Axis { size, number });
    }
    Ok(found)
}

/// `min(max(x, 0), size − 1)`
fn clamped(node: &mut Node<'_>, x: Val, axis: &Axis) -> Step<Val> {
    let last = node.with_scalar(BinaryOp::Sub, axis.number, 1.0)?;
    let x = node.with_scalar(BinaryOp::Max, x, 0.0)?;
    node.binary(BinaryOp::Min, x, last)
}

/// Mirrors a position at the ends of the image: at the centres of the last pixels, or at their edges.
fn reflected(node: &mut Node<'_>, x: Val, axis: &Axis, align: bool) -> Step<Val> {
    let (low, range) = match align {
        true => (0.0, node.with_scalar(BinaryOp::Sub, axis.number, 1.0)?),
        false => (-0.5, axis.number),
    };
    // An image of one pixel has no range to walk.
    let range = match align {
        true => node.with_scalar(BinaryOp::Max, range, f64::from(f32::MIN_POSITIVE))?,
        false => range,
    };
    let from = node.with_scalar(BinaryOp::Sub, x, low)?;
    let from = node.unary(UnaryOp::Abs, from)?;
    let twice = node.with_scalar(BinaryOp::Mul, range, 2.0)?;
    let turn = node.binary(BinaryOp::Rem, from, twice)?;
    let back = node.binary(BinaryOp::Sub, twice, turn)?;
    let at = node.binary(BinaryOp::Min, turn, back)?;
    node.with_scalar(BinaryOp::Add, at, low)
}

/// A position brought inside where what is outside is not zero.
fn placed(node: &mut Node<'_>, x: Val, axis: &Axis, outside: Outside) -> Step<Val> {
    match outside {
        Outside::Zeros => Ok(x),
        Outside::Border => clamped(node, x, axis),
        Outside::Reflection { align } => reflected(node, x, axis, align),
    }
}

/// The pixel at whole positions, one an axis, each `[N, 1, P]` (or with channels): zero outside.
fn pixel(node: &mut Node<'_>, image: Val, axes: &[Axis], at: &[Val], outside: Outside) -> Step<Val> {
    let mut index: Option<Val> = None;
    let mut inside: Option<Val> = None;
    for (axis, position) in axes.iter().zip(at) {
        let mut position = *position;
        match outside {
            Outside::Zeros => {
                let least = node.with_scalar(BinaryOp::Ge, position, 0.0)?;
                let most = node.binary(BinaryOp::Lt, position, axis.number)?;
                let both = node.binary(BinaryOp::And, least, most)?;
                inside = Some(match inside {
                    Some(inside) => node.binary(BinaryOp::And, inside, both)?,
                    None => both,
                });
            }
            Outside::Reflection { .. } => position = placed(node, position, axis, outside)?,
            Outside::Border => {}
        }
        let position = clamped(node, position, axis)?;
        let position = node.unary(UnaryOp::Round, position)?;
        let position = node.cast(position, DType::I64)?;
        index = Some(match index {
            Some(index) => {
                let size = node.known(Known::scalar(axis.size.clone()));
                let row = node.binary(BinaryOp::Mul, index, size)?;
                node.binary(BinaryOp::Add, row, position)?
            }
            None => position,
        });
    }
    let Some(index) = index else {
        return node.rank_error(0, "at least 3");
    };
    let mut wide = node.shape(image).0;
    wide[2] = node.shape(index)[2].clone();
    let index = node.broadcast(index, Shape(wide))?;
    let found = node.add(Op::Gather(Gather::Elements { axis: 2 }), &[image, index])?;
    let Some(inside) = inside else { return Ok(found) };
    let zero = node.scalar(node.dtype(found), 0.0);
    node.select(inside, found, zero)
}

/// The sum of pixels around positions: for each axis the taps with their weights, of which every combination is taken.
fn blended(node: &mut Node<'_>, image: Val, axes: &[Axis], taps: &[Vec<(Val, Val)>], outside: Outside) -> Step<Val> {
    let dtype = node.dtype(image);
    let count: usize = taps.iter().map(Vec::len).product();
    let mut sum: Option<Val> = None;
    for flat in 0..count {
        let (mut rest, mut at, mut weight) = (flat, Vec::with_capacity(taps.len()), None);
        for axis in taps {
            let (position, share) = axis[rest % axis.len()];
            rest /= axis.len();
            at.push(position);
            weight = Some(match weight {
                Some(weight) => node.binary(BinaryOp::Mul, weight, share)?,
                None => share,
            });
        }
        let mut part = pixel(node, image, axes, &at, outside)?;
        if let Some(weight) = weight {
            let weight = node.cast(weight, dtype)?;
            part = node.binary(BinaryOp::Mul, part, weight)?;
        }
        sum = Some(match sum {
            Some(sum) => node.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    match sum {
        Some(sum) => Ok(sum),
        None => node.rank_error(0, "at least 3"),
    }
}

/// The two pixels beside a position with their weights.
fn linear_taps(node: &mut Node<'_>, x: Val) -> Step<Vec<(Val, Val)>> {
    let low = node.unary(UnaryOp::Floor, x)?;
    let high = node.with_scalar(BinaryOp::Add, low, 1.0)?;
    let part = node.binary(BinaryOp::Sub, x, low)?;
    let one = node.scalar(node.dtype(x), 1.0);
    let rest = node.binary(BinaryOp::Sub, one, part)?;
    Ok(vec![(low, rest), (high, part)])
}

/// The four pixels around a position with Keys' weights, `a = −0.75`.
fn cubic_taps(node: &mut Node<'_>, x: Val) -> Step<Vec<(Val, Val)>> {
    const A: f64 = -0.75;
    let low = node.unary(UnaryOp::Floor, x)?;
    let mut taps = Vec::with_capacity(4);
    for shift in [-1.0, 0.0, 1.0, 2.0] {
        let at = node.with_scalar(BinaryOp::Add, low, shift)?;
        let distance = node.binary(BinaryOp::Sub, x, at)?;
        let distance = node.unary(UnaryOp::Abs, distance)?;
        let terms = match shift {
            0.0 | 1.0 => [A + 2.0, -(A + 3.0), 0.0, 1.0],
            _ => [A, -5.0 * A, 8.0 * A, -4.0 * A],
        };
        let mut weight = node.scalar(node.dtype(x), terms[0]);
        for term in &terms[1..] {
            weight = node.binary(BinaryOp::Mul, weight, distance)?;
            weight = node.with_scalar(BinaryOp::Add, weight, *term)?;
        }
        taps.push((at, weight));
    }
    Ok(taps)
}

/// `[N, C, spatial…]` as `[N, C, pixels]`.
fn flattened(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let shape = node.shape(x);
    let pixels: Dim = shape[2..].iter().cloned().product();
    node.reshape(x, [shape[0].clone(), shape[1].clone(), pixels])
}

/// One coordinate of positions `[N, …, D]` as `[N, 1, P]`.
fn coordinate(node: &mut Node<'_>, grid: Val, which: usize) -> Step<Val> {
    let shape = node.shape(grid);
    let last = shape.rank() - 1;
    let points: Dim = shape[1..last].iter().cloned().product();
    let one = node.slice_axis(grid, last, which as i64, 1i64)?;
    node.reshape(one, [shape[0].clone(), Dim::Const(1), points])
}

fn grid_sample(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, grid) = (node.input(0)?, node.input(1)?);
    let (image, places) = (node.shape(x), node.shape(grid));
    let spatial = image.rank().saturating_sub(2);
    if spatial == 0 || places.rank() != image.rank() {
        return node.rank_error(
            usize::from(spatial != 0),
            "that of an image, at least 3, for both inputs",
        );
    }
    node.build.require_equal(&places[0], &image[0])?;
    node.build
        .require_equal(&places[spatial + 1], &Dim::Const(spatial as i64))?;
    let align = node.flag("align_corners")?;
    let outside = match node.text("padding_mode", "zeros")?.as_str() {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection { align },
        other => return node.bad("padding_mode", other, "zeros, border or reflection"),
    };
    let mode = node.text("mode", "linear")?;
    let wide = if node.dtype(grid) == DType::F64 {
        DType::F64
    } else {
        DType::F32
    };
    let grid = node.cast(grid, wide)?;
    let axes = axes(node, &image[2..], wide)?;
    let flat = flattened(node, x)?;
    let mut taps = Vec::with_capacity(spatial);
    for (i, axis) in axes.iter().enumerate() {
        // The grid's first coordinate is along the last axis.
        let at = coordinate(node, grid, spatial - 1 - i)?;
        let at = node.with_scalar(BinaryOp::Add, at, 1.0)?;
        let at = match align {
            true => {
                let last = node.with_scalar(BinaryOp::Sub, axis.number, 1.0)?;
                let at = node.binary(BinaryOp::Mul, at, last)?;
                node.with_scalar(BinaryOp::Mul, at, 0.5)?
            }
            false => {
                let at = node.binary(BinaryOp::Mul, at, axis.number)?;
                let at = node.with_scalar(BinaryOp::Sub, at, 1.0)?;
                node.with_scalar(BinaryOp::Mul, at, 0.5)?
            }
        };
        taps.push(match mode.as_str() {
            "linear" | "bilinear" => {
                let at = placed(node, at, axis, outside)?;
                linear_taps(node, at)?
            }
            "nearest" => {
                let at = placed(node, at, axis, outside)?;
                let at = node.unary(UnaryOp::Round, at)?;
                let one = node.scalar(wide, 1.0);
                vec![(at, one)]
            }
            "cubic" | "bicubic" => cubic_taps(node, at)?,
            other => return node.bad("mode", other, "linear, nearest or cubic"),
        });
    }
    let sampled = blended(node, flat, &axes, &taps, outside)?;
    let mut dims = vec![image[0].clone(), image[1].clone()];
    dims.extend(places[1..=spatial].iter().cloned());
    Ok(vec![node.reshape(sampled, dims)?])
}

/// `[x, y, 1]·θᵀ` of the pixels of an image whose corners, or their outer edges, are at −1 and 1.
fn affine_grid(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let theta = node.input(0)?;
    let dtype = node.require_float(0)?;
    let size = node.known_dims(1, "size")?;
    let spatial = size.len().saturating_sub(2);
    if !(2..=3).contains(&spatial) {
        return node.rank_error(1, "1 with 4 or 5 elements");
    }
    let align = node.flag("align_corners")?;
    let mut full = size[2..].to_vec();
    let mut columns = Vec::with_capacity(spatial + 1);
    let mut column = vec![Dim::Const(1); spatial];
    full.push(Dim::Const(1));
    for i in (0..spatial).rev() {
        let count = node.known(Known::scalar(size[2 + i].clone()));
        let count = node.cast(count, dtype)?;
        let at = node.iota([size[2 + i].clone()].into(), 0, dtype)?;
        let at = match align {
            true => {
                let steps = node.with_scalar(BinaryOp::Sub, count, 1.0)?;
                let steps = node.with_scalar(BinaryOp::Max, steps, 1.0)?;
                let at = node.with_scalar(BinaryOp::Mul, at, 2.0)?;
                node.binary(BinaryOp::Div, at, steps)?
            }
            false => {
                let at = node.with_scalar(BinaryOp::Mul, at, 2.0)?;
                let at = node.with_scalar(BinaryOp::Add, at, 1.0)?;
                node.binary(BinaryOp::Div, at, count)?
            }
        };
        let at = node.with_scalar(BinaryOp::Sub, at, 1.0)?;
        column[i] = size[2 + i].clone();
        let mut dims = column.clone();
        dims.push(Dim::Const(1));
        column[i] = Dim::Const(1);
        let at = node.reshape(at, dims)?;
        columns.push(node.broadcast(at, Shape(full.clone()))?);
    }
    let one = node.scalar(dtype, 1.0);
    columns.push(node.broadcast(one, Shape(full))?);
    let points = node.concat(&columns, spatial)?;
    let count: Dim = size[2..].iter().cloned().product();
    let points = node.reshape(points, [Dim::Const(1), count, Dim::Const(spatial as i64 + 1)])?;
    let grid = node.contract(points, theta, false, true, dtype)?;
    let mut dims = vec![node.shape(theta)[0].clone()];
    dims.extend(size[2..].iter().cloned());
    dims.push(Dim::Const(spatial as i64));
    Ok(vec![node.reshape(grid, dims)?])
}

/// A convolution whose taps are moved by offsets, and weighted by a mask.
fn deform_conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, filter, offset) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let dtype = node.require_float(0)?;
    let (image, weights, moved) = (node.shape(x), node.shape(filter), node.shape(offset));
    if image.rank() != 4 || weights.rank() != 4 || moved.rank() != 4 {
        return node.unsupported("DeformConv over other than images of two axes");
    }
    let [Some(high), Some(wide)] = [weights[2].as_const(), weights[3].as_const()] else {
        return node.unsupported("DeformConv with a kernel of a varying size");
    };
    let (groups, shares) = (node.int_or("group", 1)?, node.int_or("offset_group", 1)?);
    let strides = spatial_list(node, "strides", 2, 1)?.unwrap_or_else(|| vec![1; 2]);
    let dilations = spatial_list(node, "dilations", 2, 1)?.unwrap_or_else(|| vec![1; 2]);
    let pads = spatial_list(node, "pads", 4, 0)?.unwrap_or_else(|| vec![0; 4]);
    let (channels, filters) = (image[1].clone(), weights[0].clone());
    let (Some(each), Some(part), Some(own)) = (
        channels.exact_div(&Dim::Const(shares.max(1))),
        channels.exact_div(&Dim::Const(groups.max(1))),
        filters.exact_div(&Dim::Const(groups.max(1))),
    ) else {
        return node.bad(
            "group",
            [groups, shares],
            format!("divisors of {channels} channels and {filters} filters"),
        );
    };
    let (rows, columns) = (moved[2].clone(), moved[3].clone());
    let taps = Dim::Const(high * wide);
    // An image for each share of the channels; positions are over taps and pixels of the result.
    let batch = image[0].clone() * shares;
    let points = taps.clone() * rows.clone() * columns.clone();
    let pixels = image[2].clone() * image[3].clone();
    let flat = node.reshape(x, [batch.clone(), each, pixels])?;
    let axes = axes(node, &image[2..], dtype)?;
    let lines = node.reshape(
        offset,
        [
            batch.clone(),
            taps.clone(),
            Dim::Const(2),
            rows.clone(),
            columns.clone(),
        ],
    )?;
    let mut positions = Vec::with_capacity(2);
    for axis in 0..2 {
        let given = node.slice_axis(lines, 2, axis as i64, 1i64)?;
        let given = node.reshape(given, [batch.clone(), taps.clone(), rows.clone(), columns.clone()])?;
        let size = if axis == 0 { rows.clone() } else { columns.clone() };
        let mut dims = vec![Dim::Const(1); 4];
        dims[2 + axis] = size.clone();
        let at = node.iota([size].into(), 0, dtype)?;
        let at = node.with_scalar(BinaryOp::Mul, at, strides[axis] as f64)?;
        let at = node.with_scalar(BinaryOp::Sub, at, pads[axis] as f64)?;
        let at = node.reshape(at, dims)?;
        let steps: Vec<f64> = (0..high * wide)
            .map(|tap| if axis == 0 { tap / wide } else { tap % wide })
            .map(|step| (step * dilations[axis]) as f64)
            .collect();
        let shape = vec![1, steps.len(), 1, 1];
        let steps = super::resize::constant(ir::HostTensor::from_f64(dtype, shape, &steps))?;
        let steps = node.build.of_constant(None, steps);
        let at = node.binary(BinaryOp::Add, at, steps)?;
        let at = node.binary(BinaryOp::Add, given, at)?;
        let at = node.reshape(at, [batch.clone(), Dim::Const(1), points.clone()])?;
        positions.push(linear_taps(node, at)?);
    }
    let mut sampled = blended(node, flat, &axes, &positions, Outside::Zeros)?;
    if let Some(mask) = node.optional(4) {
        let mask = node.reshape(mask, [batch, Dim::Const(1), points])?;
        sampled = node.binary(BinaryOp::Mul, sampled, mask)?;
    }
    let places = rows.clone() * columns.clone();
    let (count, inner) = (Dim::Const(groups), part * taps);
    let sampled = node.reshape(sampled, [image[0].clone(), count.clone(), inner.clone(), places])?;
    let filter = node.reshape(filter, [Dim::Const(1), count, own, inner])?;
    let result = node.contract(filter, sampled, false, false, dtype)?;
    let mut result = node.reshape(result, [image[0].clone(), filters.clone(), rows, columns])?;
    if let Some(bias) = node.optional(3) {
        let bias = node.reshape(bias, [filters, Dim::Const(1), Dim::Const(1)])?;
        result = node.binary(BinaryOp::Add, result, bias)?;
    }
    Ok(vec![result])
}
