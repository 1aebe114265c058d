//! Resize and Upsample: each resized axis is a gather (nearest), or a weighted sum of gathers (linear, cubic).
//!
//! The positions and weights are worked out here and become constants where a resized axis is a number. A varying axis
//! that is enlarged by a whole factor with `nearest` repeats its elements; any other has positions that are computed in
//! each run, in f32 as ONNX Runtime computes them ([`open`]).

mod open;

mod filtered;

use ir::op::BinaryOp;
use ir::{DType, Dim, HostTensor};

use super::{Row, op, withdrawn};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("Resize", 10, resize), withdrawn("Upsample", 7, 9, upsample)];

/// The most elements a resized axis has.
const AXIS_LIMIT: i64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Transform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Nearest(Nearest),
    Linear,
    Cubic { a: f64, exclude_outside: bool },
}

/// How far one axis is resized.
struct Axis {
    axis: usize,
    input: Dim,
    output: Dim,
    /// 0 where it depends on open sizes: it is `output / input` then.
    scale: f64,
}

/// `scales` is an attribute in opsets 7 and 8, an input in 9; positions are asymmetric and rounded down.
fn upsample(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let scales = if node.opset < 9 {
        let scales = node.floats("scales")?;
        node.required("scales", scales)?
            .into_iter()
            .map(Factor::Number)
            .collect()
    } else {
        factors(node, 1)?
    };
    let mode = mode(node, Nearest::Floor)?;
    let axes = by_scale(node, x, &(0..node.rank(x)).collect::<Vec<_>>(), &scales)?;
    apply(node, x, axes, mode, Transform::Asymmetric)
}

fn mode(node: &Node<'_>, nearest: Nearest) -> Step<Mode> {
    match node.text("mode", "nearest")?.as_str() {
        "nearest" => Ok(Mode::Nearest(nearest)),
        "linear" | "bilinear" => Ok(Mode::Linear),
        "cubic" => {
            let a = node.float_or("cubic_coeff_a", -0.75)?;
            Ok(Mode::Cubic {
                a,
                exclude_outside: node.flag("exclude_outside")?,
            })
        }
        other => node.bad("mode", other, "nearest, linear or cubic"),
    }
}

fn transform(node: &Node<'_>) -> Step<Transform> {
    Ok(
        match node.text("coordinate_transformation_mode", "half_pixel")?.as_str() {
            "half_pixel" => Transform::HalfPixel,
            "half_pixel_symmetric" => Transform::HalfPixelSymmetric,
            "pytorch_half_pixel" => Transform::PytorchHalfPixel,
            "align_corners" => Transform::AlignCorners,
            "asymmetric" => Transform::Asymmetric,
            other => return node.unsupported(format!("Resize with coordinate_transformation_mode {other:?}")),
        },
    )
}

fn resize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let rank = node.rank(x);
    if node.opset < 11 {
        let scales = factors(node, 1)?;
        let mode = mode(node, Nearest::Floor)?;
        let axes = by_scale(node, x, &(0..rank).collect::<Vec<_>>(), &scales)?;
        return apply(node, x, axes, mode, Transform::Asymmetric);
    }
    let nearest = match node.text("nearest_mode", "round_prefer_floor")?.as_str() {
        "round_prefer_floor" => Nearest::RoundPreferFloor,
        "round_prefer_ceil" => Nearest::RoundPreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        other => {
            return node.bad(
                "nearest_mode",
                other,
                "round_prefer_floor, round_prefer_ceil, floor or ceil",
            );
        }
    };
    if let Some(results) = filtered::resize(node, nearest)? {
        return Ok(results);
    }
    let transform = transform(node)?;
    let mode = mode(node, nearest)?;
    let axes = match node.ints("axes")? {
        Some(axes) => axes.iter().map(|a| node.axis(*a, rank)).collect::<Step<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let empty = |v: Val| node.ty(v).elements().is(0);
    let axes = if node.optional(3).is_some_and(|v| !empty(v)) {
        by_size(node, x, &axes)?
    } else if node.optional(2).is_some_and(|v| !empty(v)) {
        let scales = factors(node, 2)?;
        by_scale(node, x, &axes, &scales)?
    } else {
        return Err(NodeProblem::MissingInput { index: 2 }.into());
    };
    apply(node, x, axes, mode, transform)
}

/// How far an axis is scaled.
#[derive(Clone, Debug)]
enum Factor {
    Number(f64),
    /// A quotient of open sizes.
    Open(Dim, Dim),
}

fn factors(node: &mut Node<'_>, index: usize) -> Step<Vec<Factor>> {
    let scales = node.input(index)?;
    let known = node.numbers(scales, "list of scales").ok_or(NodeProblem::NotKnown {
        what: "list of scales",
        index,
    })?;
    if let Some(numbers) = known.floats() {
        return Ok(numbers.into_iter().map(Factor::Number).collect());
    }
    let factor = |i: usize| {
        let one = known.select(Vec::new(), [i])?;
        match one.floats() {
            Some(number) => Some(Factor::Number(number[0])),
            None => one
                .ratios()?
                .into_iter()
                .next()
                .map(|(above, below)| Factor::Open(above, below)),
        }
    };
    let factors: Option<Vec<Factor>> = (0..known.elements.len()).map(factor).collect();
    Ok(factors.ok_or(NodeProblem::NotKnown {
        what: "list of scales",
        index,
    })?)
}

fn by_scale(node: &Node<'_>, x: Val, axes: &[usize], scales: &[Factor]) -> Step<Vec<Axis>> {
    let shape = node.shape(x);
    let wrong = |found: String| NodeProblem::Value {
        what: "list of scales",
        found,
        expected: format!("{} positive numbers", axes.len()),
    };
    let usable = |s: &Factor| match s {
        Factor::Number(s) => *s > 0.0 && *s < 1e6,
        Factor::Open(..) => true,
    };
    if scales.len() != axes.len() || !scales.iter().all(usable) {
        return Err(wrong(format!("{scales:?}")).into());
    }
    let mut list = Vec::new();
    for (&axis, factor) in axes.iter().zip(scales) {
        let input = shape[axis].clone();
        let scale = match factor {
            Factor::Number(1.0) => continue,
            Factor::Number(scale) => *scale,
            Factor::Open(above, below) => {
                let output = (input.clone() * above).floor_div(below);
                if output != input {
                    let scale = 0.0;
                    list.push(Axis {
                        axis,
                        input,
                        output,
                        scale,
                    });
                }
                continue;
            }
        };
        let output = match input.as_const() {
            // The scale is an f32, and so is the product: `10 · 1.4f32` is 14, but less than that in f64.
            Some(n) => Dim::Const((n as f32 * scale as f32).floor() as i64),
            None if scale.fract() == 0.0 => input.clone() * scale as i64,
            None => match Known::scaled(&input, scale, &node.build.sizes) {
                Some(output) => output,
                None => return node.unsupported(format!("resizing the varying size {input} by {scale}")),
            },
        };
        list.push(Axis {
            axis,
            input,
            output,
            scale,
        });
    }
    Ok(list)
}

fn by_size(node: &mut Node<'_>, x: Val, axes: &[usize]) -> Step<Vec<Axis>> {
    let shape = node.shape(x);
    let sizes = node.known_dims(3, "list of sizes")?;
    if sizes.len() != axes.len() {
        return node.rank_error(3, format!("1 with {} elements", axes.len()));
    }
    let mut list = Vec::new();
    for (&axis, output) in axes.iter().zip(sizes) {
        let input = shape[axis].clone();
        if input == output {
            continue;
        }
        let scale = match (input.as_const(), output.as_const()) {
            (Some(i), Some(o)) if i > 0 => o as f64 / i as f64,
            _ => match output.exact_div(&input).and_then(|k| k.as_const()) {
                Some(k) => k as f64,
                None => 0.0,
            },
        };
        list.push(Axis {
            axis,
            input,
            output,
            scale,
        });
    }
    Ok(list)
}

/// Resizes each axis: those that shrink first, then those of the nearest elements, since what one axis makes is what
/// the next reads. Means of integers are computed in `f32` and cut to integers, as onnxruntime does.
fn apply(node: &mut Node<'_>, mut x: Val, mut axes: Vec<Axis>, mode: Mode, transform: Transform) -> Step<Vec<Val>> {
    let shrinks = |a: &Axis| matches!((a.input.as_const(), a.output.as_const()), (Some(from), Some(to)) if to < from);
    axes.sort_by_key(|a| std::cmp::Reverse((shrinks(a), a.axis)));
    let dtype = node.dtype(x);
    let is_wide = mode == Mode::Linear && dtype.is_int() && !axes.is_empty();
    if is_wide {
        x = node.cast(x, DType::F32)?;
    }
    for axis in axes {
        x = one_axis(node, x, &axis, mode, transform)?;
    }
    Ok(vec![if is_wide { node.cast(x, dtype)? } else { x }])
}

fn one_axis(node: &mut Node<'_>, x: Val, axis: &Axis, mode: Mode, transform: Transform) -> Step<Val> {
    let (Some(input), Some(output)) = (axis.input.as_const(), axis.output.as_const()) else {
        return repeat(node, x, axis, mode, transform);
    };
    if input == 0 && output == 0 {
        return Ok(x);
    }
    if !(1..=AXIS_LIMIT).contains(&input) || !(0..=AXIS_LIMIT).contains(&output) {
        return node.unsupported(format!("resizing an axis of {input} to {output}"));
    }
    let taps = taps(input, output, axis.scale, mode, transform);
    let indices = |k: usize| taps.iter().map(|t| t[k].0).collect::<Vec<i64>>();
    let count = taps.first().map_or(1, Vec::len);
    let mut sum: Option<Val> = None;
    for k in 0..count {
        let picks = constant(HostTensor::from_i64(DType::I64, vec![output as usize], &indices(k)))?;
        let picks = node.build.of_constant(None, picks);
        let mut part = node.take(x, axis.axis, picks)?;
        if count > 1 {
            let dtype = node.dtype(x);
            if !dtype.is_float() {
                node.require_float(0)?;
            }
            let weights: Vec<f64> = taps.iter().map(|t| t[k].1).collect();
            let mut shape = vec![1usize; node.rank(x)];
            shape[axis.axis] = output as usize;
            let weights = constant(HostTensor::from_f64(dtype, shape, &weights))?;
            let weights = node.build.of_constant(None, weights);
            part = node.binary(BinaryOp::Mul, part, weights)?;
        }
        sum = Some(match sum {
            Some(sum) => node.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    Ok(sum.unwrap_or(x))
}

pub(super) fn constant(tensor: Result<HostTensor, ir::data::SizeMismatch>) -> Step<HostTensor> {
    tensor.map_err(|e| {
        NodeProblem::TooLarge {
            bytes: e.expected.to_string(),
        }
        .into()
    })
}

/// Enlarges an axis by a whole factor: each element is repeated.
fn repeat(node: &mut Node<'_>, x: Val, axis: &Axis, mode: Mode, transform: Transform) -> Step<Val> {
    let factor = axis.scale as i64;
    if factor < 1 || axis.scale.fract() != 0.0 || axis.output != axis.input.clone() * factor {
        return open::resize(node, x, axis, mode, transform);
    }
    // Which element a position takes within a block of `factor` shows on any one block away from the edges.
    let blocks = taps(3, 3 * factor.max(1), axis.scale, mode, transform);
    let plain = matches!(mode, Mode::Nearest(_))
        && axis.scale.fract() == 0.0
        && (1..=1024).contains(&factor)
        && transform != Transform::AlignCorners
        && blocks.iter().enumerate().all(|(i, t)| t[0].0 == i as i64 / factor);
    if !plain {
        return open::resize(node, x, axis, mode, transform);
    }
    let shape = node.shape(x);
    let mut split = shape.0.clone();
    split.insert(axis.axis + 1, Dim::Const(1));
    let mut wide = split.clone();
    wide[axis.axis + 1] = Dim::Const(factor);
    let mut joined = shape.0;
    joined[axis.axis] = axis.output.clone();
    let x = node.reshape(x, split)?;
    let x = node.broadcast(x, wide.into())?;
    node.reshape(x, joined)
}

/// For each position of the result, the elements it is made of with their weights.
fn taps(input: i64, output: i64, scale: f64, mode: Mode, transform: Transform) -> Vec<Vec<(i64, f64)>> {
    let (n, m) = (input as f64, output as f64);
    (0..output)
        .map(|i| taps_at(position(i as f64, n, m, scale, transform), input, mode))
        .collect()
}

/// Where among `n` elements the position `i` of `m` is.
fn position(i: f64, n: f64, m: f64, scale: f64, transform: Transform) -> f64 {
    match transform {
        Transform::HalfPixel => (i + 0.5) / scale - 0.5,
        Transform::HalfPixelSymmetric => {
            let adjustment = m / (scale * n);
            n / 2.0 * (1.0 - adjustment) + (i + 0.5) / scale - 0.5
        }
        Transform::PytorchHalfPixel => {
            if m > 1.0 {
                (i + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        Transform::AlignCorners => {
            if m > 1.0 {
                i * (n - 1.0) / (m - 1.0)
            } else {
                0.0
            }
        }
        Transform::Asymmetric => i / scale,
    }
}

/// The element nearest to a position.
fn nearest_of(at: f64, input: i64, how: Nearest) -> i64 {
    let nearest = match how {
        Nearest::RoundPreferFloor => (at - 0.5).ceil(),
        Nearest::RoundPreferCeil => (at + 0.5).floor(),
        Nearest::Floor => at.floor(),
        Nearest::Ceil => at.ceil(),
    };
    (nearest.max(0.0) as i64).min(input - 1)
}

/// The elements around a position with their weights.
fn taps_at(at: f64, input: i64, mode: Mode) -> Vec<(i64, f64)> {
    let n = input as f64;
    let inside = |i: f64| (i.max(0.0) as i64).min(input - 1);
    match mode {
        Mode::Nearest(how) => vec![(nearest_of(at, input, how), 1.0)],
        Mode::Linear => {
            let at = at.clamp(0.0, n - 1.0);
            let low = at.floor();
            vec![(inside(low), 1.0 - (at - low)), (inside(low + 1.0), at - low)]
        }
        Mode::Cubic { a, exclude_outside } => {
            let low = at.floor();
            let mut taps: Vec<(f64, f64)> = (-1..=2)
                .map(|k| low + f64::from(k))
                .map(|p| (p, cubic(a, (at - p).abs())))
                .collect();
            if exclude_outside {
                taps.iter_mut()
                    .filter(|(p, _)| *p < 0.0 || *p > n - 1.0)
                    .for_each(|(_, w)| *w = 0.0);
                let total: f64 = taps.iter().map(|(_, w)| w).sum();
                taps.iter_mut().for_each(|(_, w)| *w /= total);
            }
            taps.into_iter().map(|(p, w)| (inside(p), w)).collect()
        }
    }
}

/// Keys' cubic convolution kernel.
fn cubic(a: f64, d: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
