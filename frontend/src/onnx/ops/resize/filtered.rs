//! Resizing with filters that are wider than the pixels beside a position, with crops, and by sizes that keep the
//! aspect.
//!
//! Sizes are numbers here. Each axis is multiplied with a table of weights, `[input, output]`.

use ir::{DType, Dim, HostTensor};

use super::{AXIS_LIMIT, Mode, Transform, constant, cubic, nearest_of, position, taps_at};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::Node;

/// The most weights of an axis.
const TABLE_LIMIT: i64 = 1 << 24;

/// How one axis is resized.
struct Axis {
    axis: usize,
    input: i64,
    output: i64,
    scale: f64,
    /// The crop, in shares of the axis.
    crop: Option<[f64; 2]>,
}

impl Axis {
    /// Where in the input a position of the result is.
    fn position(&self, i: f64, transform: Transform) -> f64 {
        let (n, m) = (self.input as f64, self.output as f64);
        let Some([from, to]) = self.crop else {
            return position(i, n, m, self.scale, transform);
        };
        let whole = self.scale * n;
        let within = match whole == 1.0 {
            true => (to - from) * (n - 1.0) / 2.0,
            false => i * (to - from) * (n - 1.0) / (whole - 1.0),
        };
        within + from * (n - 1.0)
    }

    /// Elements with their weights of a position of the result.
    fn taps(&self, at: f64, mode: Mode, antialias: bool) -> Vec<(i64, f64)> {
        if !antialias || self.scale >= 1.0 {
            return taps_at(at, self.input, mode);
        }
        // The filter is as wide as what a pixel of the result stands for.
        let reach = match mode {
            Mode::Nearest(_) => return taps_at(at, self.input, mode),
            Mode::Linear => 1.0,
            Mode::Cubic { .. } => 2.0,
        };
        let base = at.ceil() - 1.0;
        let start = (-reach / self.scale).floor() + 1.0;
        let last = self.input as f64 - 1.0;
        let mut taps = Vec::new();
        let mut k = start;
        while k < 2.0 - start {
            let place = base + k;
            let distance = ((place - at) * self.scale).abs();
            let weight = match mode {
                Mode::Cubic { a, .. } => cubic(a, distance),
                _ => (1.0 - distance).max(0.0),
            };
            let outside = place < 0.0 || place > last;
            let left_out = matches!(
                mode,
                Mode::Cubic {
                    exclude_outside: true,
                    ..
                }
            ) && outside;
            taps.push((place.clamp(0.0, last) as i64, if left_out { 0.0 } else { weight }));
            k += 1.0;
        }
        let total: f64 = taps.iter().map(|(_, weight)| weight).sum();
        taps.iter_mut().for_each(|(_, weight)| *weight /= total);
        taps
    }
}

/// Resizes where the node asks for one of these; `None` for others.
pub(super) fn resize(node: &mut Node<'_>, nearest: super::Nearest) -> Step<Option<Vec<Val>>> {
    let antialias = node.flag("antialias")?;
    let crop = node.text("coordinate_transformation_mode", "half_pixel")? == "tf_crop_and_resize";
    let policy = node.text("keep_aspect_ratio_policy", "stretch")?;
    let given = node.optional(3).is_some_and(|v| !node.ty(v).elements().is(0));
    let keeps = given && policy != "stretch";
    if !antialias && !crop && !keeps {
        return Ok(None);
    }
    let mut x = node.input(0)?;
    let shape = node.shape(x);
    let axes: Vec<usize> = match node.ints("axes")? {
        Some(axes) => axes.iter().map(|a| node.axis(*a, shape.rank())).collect::<Step<_>>()?,
        None => (0..shape.rank()).collect(),
    };
    let mut inputs = Vec::with_capacity(axes.len());
    for axis in &axes {
        match shape[*axis].as_const().filter(|size| (1..=AXIS_LIMIT).contains(size)) {
            Some(size) => inputs.push(size),
            None => {
                let size = &shape[*axis];
                return node.unsupported(format!(
                    "Resize of an axis of {size} with antialias, a crop or a kept aspect (fix its size with --size)"
                ));
            }
        }
    }
    let mode = super::mode(node, nearest)?;
    let transform = match crop {
        true => Transform::Asymmetric,
        false => super::transform(node)?,
    };
    let (outputs, scales) = match given {
        true => by_sizes(node, &inputs, &policy)?,
        false => by_scales(node, &inputs)?,
    };
    let crops = match crop {
        true => crops(node, axes.len())?.into_iter().map(Some).collect(),
        false => vec![None; axes.len()],
    };
    let outside = node.float_or("extrapolation_value", 0.0)?;
    for (at, axis) in axes.iter().enumerate() {
        let axis = Axis {
            axis: *axis,
            input: inputs[at],
            output: outputs[at],
            scale: scales[at],
            crop: crops[at],
        };
        if axis.crop.is_some() || axis.input != axis.output || axis.scale != 1.0 {
            x = one_axis(node, x, &axis, (mode, transform, antialias), outside)?;
        }
    }
    Ok(Some(vec![x]))
}

/// The sizes and scales of axes by sizes; a kept aspect has one scale for all.
fn by_sizes(node: &mut Node<'_>, inputs: &[i64], policy: &str) -> Step<(Vec<i64>, Vec<f64>)> {
    let sizes = node.known_ints(3, "list of sizes")?;
    if sizes.len() != inputs.len() || sizes.iter().any(|size| !(0..=AXIS_LIMIT).contains(size)) {
        return node.rank_error(3, format!("1 with {} sizes", inputs.len()));
    }
    let scales: Vec<f64> = sizes
        .iter()
        .zip(inputs)
        .map(|(size, n)| *size as f64 / *n as f64)
        .collect();
    let one = match policy {
        "stretch" => return Ok((sizes, scales)),
        "not_larger" => scales.iter().copied().fold(f64::INFINITY, f64::min),
        "not_smaller" => scales.iter().copied().fold(0.0, f64::max),
        other => return node.bad("keep_aspect_ratio_policy", other, "stretch, not_larger or not_smaller"),
    };
    let outputs = inputs.iter().map(|n| (one * *n as f64 + 0.5).floor() as i64).collect();
    Ok((outputs, vec![one; inputs.len()]))
}

fn by_scales(node: &mut Node<'_>, inputs: &[i64]) -> Step<(Vec<i64>, Vec<f64>)> {
    if node.optional(2).is_none() {
        return Err(NodeProblem::MissingInput { index: 2 }.into());
    }
    let scales = node.known_floats(2, "list of scales")?;
    if scales.len() != inputs.len() || scales.iter().any(|s| !(*s > 0.0 && *s < 1e6)) {
        return node.rank_error(2, format!("1 with {} positive numbers", inputs.len()));
    }
    let size = |(n, scale): (&i64, &f64)| (*n as f32 * *scale as f32).floor() as i64;
    Ok((inputs.iter().zip(&scales).map(size).collect(), scales))
}

/// The part of each axis that is resized.
fn crops(node: &mut Node<'_>, count: usize) -> Step<Vec<[f64; 2]>> {
    let list = node.known_floats(1, "region")?;
    match list.len() == 2 * count {
        true => Ok((0..count).map(|at| [list[at], list[count + at]]).collect()),
        false => node.rank_error(1, format!("1 with {} numbers", 2 * count)),
    }
}

fn one_axis(
    node: &mut Node<'_>,
    x: Val,
    axis: &Axis,
    (mode, transform, antialias): (Mode, Transform, bool),
    outside: f64,
) -> Step<Val> {
    let (input, output) = (axis.input, axis.output);
    if !(0..=AXIS_LIMIT).contains(&output) || input.saturating_mul(output) > TABLE_LIMIT {
        return node.unsupported(format!("resizing an axis of {input} to {output} by a table"));
    }
    let places: Vec<f64> = (0..output).map(|i| axis.position(i as f64, transform)).collect();
    let mut result = match mode {
        Mode::Nearest(how) => {
            let picks: Vec<i64> = places.iter().map(|at| nearest_of(*at, input, how)).collect();
            let picks = constant(HostTensor::from_i64(DType::I64, vec![output as usize], &picks))?;
            let picks = node.build.of_constant(None, picks);
            node.take(x, axis.axis, picks)?
        }
        _ => {
            let dtype = node.require_float(0)?;
            let mut weights = vec![0.0; (input * output) as usize];
            for (column, at) in places.iter().enumerate() {
                for (row, weight) in axis.taps(*at, mode, antialias) {
                    weights[row as usize * output as usize + column] += weight;
                }
            }
            let shape = vec![input as usize, output as usize];
            let weights = constant(HostTensor::from_f64(dtype, shape, &weights))?;
            let weights = node.build.of_constant(None, weights);
            along(node, x, axis.axis, weights)?
        }
    };
    let is_outside = |at: &f64| axis.crop.is_some() && !(0.0..=(input - 1) as f64).contains(at);
    if places.iter().any(is_outside) {
        let flags: Vec<i64> = places.iter().map(|at| i64::from(is_outside(at))).collect();
        let mut shape = vec![1usize; node.rank(x)];
        shape[axis.axis] = output as usize;
        let flags = constant(HostTensor::from_i64(DType::Bool, shape, &flags))?;
        let flags = node.build.of_constant(None, flags);
        let value = node.scalar(node.dtype(result), outside);
        result = node.select(flags, value, result)?;
    }
    Ok(result)
}

/// The product of an axis with a table.
fn along(node: &mut Node<'_>, x: Val, axis: usize, weights: Val) -> Step<Val> {
    let rank = node.rank(x);
    let mut order: Vec<usize> = (0..rank).filter(|a| *a != axis).collect();
    order.push(axis);
    let back: Vec<usize> = (0..rank)
        .map(|a| order.iter().position(|o| *o == a).unwrap_or(a))
        .collect();
    let x = node.transpose(x, order)?;
    let mut dims = node.shape(x).0;
    let rows: Dim = dims[..rank - 1].iter().cloned().product();
    let flat = node.reshape(x, [rows, dims[rank - 1].clone()])?;
    let dtype = node.dtype(x);
    let product = node.contract(flat, weights, false, false, dtype)?;
    dims[rank - 1] = node.shape(product)[1].clone();
    let product = node.reshape(product, dims)?;
    node.transpose(product, back)
}
