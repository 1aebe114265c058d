//! `RoiAlign`: regions of images, each sampled in bins.

use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::{DType, Dim, Shape};

use super::{Outside, axes, blended, clamped, linear_taps};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::Node;
use crate::onnx::ops::resize::constant;

/// The most samples along an axis of a bin.
const SAMPLE_LIMIT: i64 = 64;

/// The samples along an axis of regions.
struct Samples {
    /// Where they are, `[R, bins·most]`.
    at: Val,
    /// How many a bin has, of the region that has most.
    most: i64,
    /// How many a bin of each region has, `[R, 1]`, and which of the positions are among them, where regions differ.
    own: Option<(Val, Val)>,
}

/// Where regions are sampled along an axis: `ratio` times in each bin, or once a pixel if that is 0.
fn samples(
    node: &mut Node<'_>,
    corners: Val,
    which: usize,
    (bins, ratio): (i64, i64),
    scale: f64,
    half: bool,
) -> Step<Samples> {
    let dtype = node.dtype(corners);
    let mut ends = [corners; 2];
    for (end, column) in ends.iter_mut().zip([which, which + 2]) {
        let value = node.slice_axis(corners, 1, column as i64, 1i64)?;
        let value = node.with_scalar(BinaryOp::Mul, value, scale)?;
        *end = node.with_scalar(BinaryOp::Sub, value, if half { 0.5 } else { 0.0 })?;
    }
    let mut length = node.binary(BinaryOp::Sub, ends[1], ends[0])?;
    if !half {
        length = node.with_scalar(BinaryOp::Max, length, 1.0)?;
    }
    let bin = node.with_scalar(BinaryOp::Div, length, bins as f64)?;
    let (most, own) = match ratio {
        0 => {
            let own = node.unary(UnaryOp::Ceil, bin)?;
            let own = node.with_scalar(BinaryOp::Max, own, 0.0)?;
            let largest = node.reduce(ReduceOp::Max, own, vec![0, 1], false)?;
            let largest = node.cast(largest, DType::I64)?;
            let what = "number of samples of a region (sampling_ratio 0)";
            let known = node.numbers(largest, what).and_then(|k| k.ints()?.first().copied());
            (known.ok_or(NodeProblem::NotKnown { what, index: 1 })?.max(1), Some(own))
        }
        _ => (ratio, None),
    };
    if most > SAMPLE_LIMIT {
        return node.unsupported(format!(
            "RoiAlign with {most} samples along an axis of a bin, more than {SAMPLE_LIMIT} (larger outputs or a sampling_ratio make fewer),"
        ));
    }
    let row = |node: &mut Node<'_>, number: fn(i64, i64) -> f64| {
        let values: Vec<f64> = (0..bins * most).map(|i| number(i / most, i % most)).collect();
        let tensor = constant(ir::HostTensor::from_f64(dtype, vec![1, values.len()], &values))?;
        Step::Ok(node.build.of_constant(None, tensor))
    };
    let (number, sample) = (row(node, |bin, _| bin as f64)?, row(node, |_, i| i as f64)?);
    let count = match own {
        Some(own) => node.with_scalar(BinaryOp::Max, own, 1.0)?,
        None => node.scalar(dtype, most as f64),
    };
    let middle = node.with_scalar(BinaryOp::Add, sample, 0.5)?;
    let part = node.binary(BinaryOp::Div, middle, count)?;
    let share = node.binary(BinaryOp::Add, number, part)?;
    let offset = node.binary(BinaryOp::Mul, bin, share)?;
    let at = node.binary(BinaryOp::Add, ends[0], offset)?;
    let own = match own {
        Some(own) => Some((own, node.binary(BinaryOp::Lt, sample, own)?)),
        None => None,
    };
    Ok(Samples { at, most, own })
}

/// What [`roi_align`] makes of a bin's samples, `[C, R, rows, most, columns, most]`: those that a region has.
fn pooled(node: &mut Node<'_>, value: Val, [rows, columns]: [&Samples; 2], largest: bool) -> Step<Val> {
    let op = if largest { ReduceOp::Max } else { ReduceOp::Mean };
    let (Some((high, of_rows)), Some((wide, of_columns))) = (rows.own, columns.own) else {
        return node.reduce(op, value, vec![3, 5], false);
    };
    let shape = node.shape(value);
    let one = || Dim::Const(1);
    let dims = [
        one(),
        shape[1].clone(),
        shape[2].clone(),
        shape[3].clone(),
        one(),
        one(),
    ];
    let of_rows = node.reshape(of_rows, dims)?;
    let dims = [
        one(),
        shape[1].clone(),
        one(),
        one(),
        shape[4].clone(),
        shape[5].clone(),
    ];
    let of_columns = node.reshape(of_columns, dims)?;
    let there = node.binary(BinaryOp::And, of_rows, of_columns)?;
    let (dtype, count) = (node.dtype(value), node.binary(BinaryOp::Mul, high, wide)?);
    let count = node.reshape(count, [one(), shape[1].clone(), one(), one()])?;
    let zero = node.scalar(dtype, 0.0);
    if largest {
        let least = node.scalar(dtype, f64::NEG_INFINITY);
        let value = node.select(there, value, least)?;
        let value = node.reduce(ReduceOp::Max, value, vec![3, 5], false)?;
        let any = node.binary(BinaryOp::Gt, count, zero)?;
        return node.select(any, value, zero);
    }
    let value = node.select(there, value, zero)?;
    let value = node.reduce(ReduceOp::Sum, value, vec![3, 5], false)?;
    let count = node.with_scalar(BinaryOp::Max, count, 1.0)?;
    node.binary(BinaryOp::Div, value, count)
}

/// Averages, or takes the largest of, samples in each bin of each region. A sample more than a pixel outside is 0.
pub(super) fn roi_align(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, corners, batch) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let dtype = node.require_float(0)?;
    let image = node.shape(x);
    if image.rank() != 4 || node.rank(corners) != 2 {
        return node.rank_error(usize::from(image.rank() == 4), "4 of the image, 2 of the regions");
    }
    let half = match node.text("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => node.opset >= 16,
        "output_half_pixel" => false,
        other => {
            return node.bad(
                "coordinate_transformation_mode",
                other,
                "half_pixel or output_half_pixel",
            );
        }
    };
    let largest = match node.text("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return node.bad("mode", other, "avg or max"),
    };
    // Less than 0 is how exporters write 0.
    let ratio = node.int_or("sampling_ratio", 0)?.max(0);
    let (rows, columns) = (node.int_or("output_height", 1)?, node.int_or("output_width", 1)?);
    if !(1..=1024).contains(&rows) || !(1..=1024).contains(&columns) {
        return node.bad("output_height", [rows, columns], "heights and widths from 1 to 1024");
    }
    let scale = node.float_or("spatial_scale", 1.0)?;
    let regions = node.shape(corners)[0].clone();
    // All images are one, whose first axis is theirs.
    let sizes = [image[0].clone(), image[2].clone(), image[3].clone()];
    let axes = axes(node, &sizes, dtype)?;
    let high = samples(node, corners, 1, (rows, ratio), scale, half)?;
    let wide = samples(node, corners, 0, (columns, ratio), scale, half)?;
    let each = Dim::Const(rows * high.most * columns * wide.most);
    let points = regions.clone() * each.clone();
    let sides = [rows * high.most, columns * wide.most].map(Dim::Const);
    let mut inside = None;
    let mut taps = Vec::with_capacity(2);
    for (i, (axis, positions)) in axes[1..].iter().zip([&high, &wide]).enumerate() {
        let mut dims = [regions.clone(), Dim::Const(1), Dim::Const(1)];
        dims[1 + i] = sides[i].clone();
        let at = node.reshape(positions.at, dims)?;
        let full = Shape(vec![regions.clone(), sides[0].clone(), sides[1].clone()]);
        let at = node.broadcast(at, full)?;
        let at = node.reshape(at, [Dim::Const(1), Dim::Const(1), points.clone()])?;
        let least = node.with_scalar(BinaryOp::Ge, at, -1.0)?;
        let most = node.binary(BinaryOp::Le, at, axis.number)?;
        let both = node.binary(BinaryOp::And, least, most)?;
        inside = Some(match inside {
            Some(inside) => node.binary(BinaryOp::And, inside, both)?,
            None => both,
        });
        let at = clamped(node, at, axis)?;
        taps.push(linear_taps(node, at)?);
    }
    let x = node.transpose(x, vec![1, 0, 2, 3])?;
    let pixels: Dim = sizes.iter().cloned().product();
    let flat = node.reshape(x, [Dim::Const(1), image[1].clone(), pixels])?;
    let batch = node.cast(batch, dtype)?;
    let batch = node.reshape(batch, [regions.clone(), Dim::Const(1)])?;
    let batch = node.broadcast(batch, [regions.clone(), each].into())?;
    let batch = node.reshape(batch, [Dim::Const(1), Dim::Const(1), points])?;
    let whole = (batch, node.scalar(dtype, 1.0));
    let zero = node.scalar(dtype, 0.0);
    let mut parts = Vec::new();
    for high in 0..4 {
        let one = |taps: &[(Val, Val)], at: usize| vec![taps[at]];
        let corner = [vec![whole], one(&taps[0], high & 1), one(&taps[1], high >> 1)];
        parts.push(blended(node, flat, &axes, &corner, Outside::Border)?);
    }
    let join = if largest { BinaryOp::Max } else { BinaryOp::Add };
    let mut value = parts[0];
    for part in &parts[1..] {
        value = node.binary(join, value, *part)?;
    }
    if let Some(inside) = inside {
        value = node.select(inside, value, zero)?;
    }
    let sides = [rows, high.most, columns, wide.most].map(Dim::Const);
    let dims: Vec<Dim> = [image[1].clone(), regions].into_iter().chain(sides).collect();
    let value = node.reshape(value, dims)?;
    let value = pooled(node, value, [&high, &wide], largest)?;
    Ok(vec![node.transpose(value, vec![1, 0, 2, 3])?])
}
