//! Slices, splits and pads with symbolic bounds.

use ir::op::{Op, PadMode, View};
use ir::{DType, Dim, Scalar};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::{Element, Known};
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("CenterCropPad", 18, center_crop_pad),
    op("Pad", 2, pad),
    op("Slice", 1, slice),
    op("Split", 2, split),
];

/// Exporters write "to the end" as a number this large.
const FAR: i64 = i32::MAX as i64;
/// An axis that is wrapped around is laid beside itself at most so often.
const COPY_LIMIT: i64 = 1 << 12;

/// Starts, ends and axes are attributes before opset 10, inputs since; positions count from the end when negative and
/// are clamped.
fn slice(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let rank = shape.rank();
    let (starts, ends, axes, steps) = if node.opset < 10 {
        let dims = |v: Vec<i64>| v.into_iter().map(Dim::Const).collect::<Vec<_>>();
        let (starts, ends) = (node.ints("starts")?, node.ints("ends")?);
        (
            dims(node.required("starts", starts)?),
            dims(node.required("ends", ends)?),
            node.ints("axes")?,
            None,
        )
    } else {
        let axes = node
            .optional(3)
            .map(|_| node.known_ints(3, "list of axes"))
            .transpose()?;
        let steps = node
            .optional(4)
            .map(|_| node.known_ints(4, "list of steps"))
            .transpose()?;
        (
            node.known_dims(1, "slice's start")?,
            node.known_dims(2, "slice's end")?,
            axes,
            steps,
        )
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(NodeProblem::Value {
            what: "slice",
            found: format!(
                "of {} starts, {} ends, {} axes, {} steps",
                starts.len(),
                ends.len(),
                axes.len(),
                steps.len()
            ),
            expected: "as many of each".to_owned(),
        }
        .into());
    }
    node.axis_list(&axes, rank)?;
    let mut from = vec![Dim::Const(0); rank];
    let mut sizes = shape.0.clone();
    let mut by = vec![1; rank];
    for i in 0..starts.len() {
        let axis = node.axis(axes[i], rank)?;
        // A longer step takes one element as well.
        let step = steps[i].clamp(-FAR, FAR);
        let (start, size) = range(node, &starts[i], &ends[i], step, &shape[axis])?;
        (from[axis], sizes[axis], by[axis]) = (start, size, step);
    }
    Ok(vec![node.slice(x, from, sizes, by)?])
}

/// Returns the first position and the number of positions of `start..end` by `step` over `size` elements.
fn range(node: &Node<'_>, start: &Dim, end: &Dim, step: i64, size: &Dim) -> Step<(Dim, Dim)> {
    if size.is(0) {
        return Ok((Dim::Const(0), Dim::Const(0)));
    }
    let sizes = &node.build.sizes;
    let zero = Dim::Const(0);
    let at_zero = |d: Dim| sizes.max(&d, &zero);
    if step == 0 {
        return Err(NodeProblem::Value {
            what: "slice's step",
            found: step.to_string(),
            expected: "a number other than 0".to_owned(),
        }
        .into());
    }
    if step > 0 {
        let clamp = |d: &Dim| sizes.min(&at_zero(from_start(node, d, size)), size);
        let (start, end) = (clamp(start), clamp(end));
        let span = at_zero(&end - &start);
        return Ok((start, span.ceil_div(&Dim::Const(step))));
    }
    // Backwards: positions are clamped to `size − 1` and −1.
    let last = size.clone() - 1;
    let back = Dim::Const(-step);
    let clamp = |d: &Dim| sizes.min(&sizes.max(&from_start(node, d, size), &Dim::Const(-1)), &last);
    let (start, end) = (at_zero(clamp(start)), clamp(end));
    let span = at_zero(&start - &end);
    Ok((start, span.ceil_div(&back)))
}

/// Counts a position from the start; it may be outside. A number beyond any size becomes the end on its side. The size
/// is added once to a position that may be negative in some runs, by a factor that is 1 there and 0 elsewhere.
fn from_start(node: &Node<'_>, position: &Dim, size: &Dim) -> Dim {
    let sizes = &node.build.sizes;
    match position.as_const() {
        Some(v) if v >= FAR => return size.clone(),
        Some(v) if v <= -FAR => return Dim::Const(-1),
        _ => {}
    }
    if sizes.at_least(position, 0) {
        position.clone()
    } else if sizes.at_most(position, -1) {
        position.clone() + size.clone()
    } else {
        let (zero, one) = (Dim::Const(0), Dim::Const(1));
        let negative = sizes.min(&sizes.max(&-position.clone(), &zero), &one);
        position.clone() + negative * size
    }
}

/// Sizes are an attribute before opset 13 and an input since; without them the parts are equal, and since opset 18 the
/// last may be smaller.
fn split(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let axis = node.int_or("axis", 0)?;
    let axis = node.axis(axis, shape.rank())?;
    let given = match node.optional(1) {
        Some(_) => Some(node.known_dims(1, "sizes of the parts")?),
        None => node.ints("split")?.map(|v| v.into_iter().map(Dim::Const).collect()),
    };
    let total = shape[axis].clone();
    let parts: Vec<Dim> = match given {
        Some(parts) => {
            if parts.iter().any(|p| p.as_const().is_some_and(|v| v < 0)) {
                let expected = "sizes that are not negative".to_owned();
                return Err(NodeProblem::Value {
                    what: "split",
                    found: format!("{parts:?}"),
                    expected,
                }
                .into());
            }
            let sum = parts.iter().cloned().sum();
            let what = "the size of the axis and the sum of the parts";
            node.build.assume_equal(&total, &sum, what, &node.origin)?;
            parts
        }
        None => {
            let count = node.int_or("num_outputs", node.proto.output.len() as i64)?;
            if !(1..=node.proto.output.len() as i64).contains(&count) {
                return node.bad("num_outputs", count, format!("1 to {}", node.proto.output.len()));
            }
            if node.opset < 18 {
                let rest = total.modulo(&Dim::Const(count));
                let what = format!("what is left of {total} in {count} equal parts, and 0");
                node.build.assume_equal(&rest, &Dim::Const(0), &what, &node.origin)?;
            }
            let part = total.ceil_div(&Dim::Const(count));
            let rest = total.clone() - part.clone() * (count - 1);
            if rest.as_const().is_some_and(|v| v < 0) {
                let expected = format!("{count} parts of {part}");
                return Err(NodeProblem::Value {
                    what: "split size",
                    found: total.to_string(),
                    expected,
                }
                .into());
            }
            (0..count)
                .map(|i| if i + 1 < count { part.clone() } else { rest.clone() })
                .collect()
        }
    };
    let mut start = Dim::Const(0);
    let mut results = Vec::with_capacity(parts.len());
    for size in parts {
        results.push(node.slice_axis(x, axis, start.clone(), size.clone())?);
        start = start + size;
    }
    Ok(results)
}

/// Pads are an attribute before opset 11 and an input since; negative ones take elements away.
fn pad(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let (rank, dtype) = (node.rank(x), node.dtype(x));
    let (pads, value) = if node.opset < 11 {
        let pads = node.ints("pads")?;
        let pads = node.required("pads", pads)?.into_iter().map(Dim::Const).collect();
        (pads, Scalar::Float(node.float_or("value", 0.0)?))
    } else {
        let value = match node.optional(2) {
            None => Scalar::zero(dtype),
            Some(v) => {
                node.numbers(v, "value to pad with");
                let constant = node.build.constant(v).and_then(|t| t.splat());
                constant.ok_or(NodeProblem::NotKnown {
                    what: "value to pad with",
                    index: 2,
                })?
            }
        };
        (node.known_dims(1, "list of pads")?, value)
    };
    let value = match dtype {
        DType::Bool => Scalar::Bool(value.as_bool()),
        d if d.is_float() => Scalar::Float(value.as_f64()),
        _ => Scalar::Int(value.as_i64()),
    };
    let mode = match node.text("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant(value),
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return node.bad("mode", other, "constant, reflect, edge or wrap"),
    };
    let axes = match node.optional(3) {
        Some(_) => {
            let axes = node.known_ints(3, "list of axes")?;
            node.axis_list(&axes, rank)?;
            axes.iter().map(|a| node.axis(*a, rank)).collect::<Step<Vec<_>>>()?
        }
        None => (0..rank).collect(),
    };
    if pads.len() != axes.len() * 2 {
        let (found, expected) = (format!("{pads:?}"), format!("{} numbers", axes.len() * 2));
        return Err(NodeProblem::Value {
            what: "list of pads",
            found,
            expected,
        }
        .into());
    }
    let (mut low, mut high) = (vec![Dim::Const(0); rank], vec![Dim::Const(0); rank]);
    for (i, axis) in axes.iter().enumerate() {
        low[*axis] = pads[i].clone();
        high[*axis] = pads[axes.len() + i].clone();
    }
    Ok(vec![pad_or_crop(node, x, low, high, mode)?])
}

fn pad_or_crop(node: &mut Node<'_>, x: Val, low: Vec<Dim>, high: Vec<Dim>, mode: PadMode) -> Step<Val> {
    let shape = node.shape(x);
    let (mut starts, mut sizes) = (Vec::new(), Vec::new());
    let (mut below, mut above) = (Vec::new(), Vec::new());
    for (axis, (low, high)) in low.iter().zip(&high).enumerate() {
        fits(&shape[axis], low, high)?;
        let known = &node.build.sizes;
        let part = |d: &Dim| (known.max(&-d.clone(), &Dim::Const(0)), known.max(d, &Dim::Const(0)));
        let ((cut_low, add_low), (cut_high, add_high)) = (part(low), part(high));
        sizes.push(shape[axis].clone() - cut_low.clone() - cut_high);
        starts.push(cut_low);
        below.push(add_low);
        above.push(add_high);
    }
    let steps = vec![1; shape.rank()];
    if let Some(known) = pad_known(node, x, [&starts, &sizes, &below, &above], &mode) {
        return Ok(node.known(known));
    }
    let mut x = node.slice(x, starts, sizes, steps)?;
    if mode == PadMode::Wrap {
        for axis in 0..shape.rank() {
            x = repeated(node, x, axis, [&mut below[axis], &mut above[axis]])?;
        }
    }
    if below.iter().chain(&above).all(|d| d.is(0)) {
        return Ok(x);
    }
    node.add(
        Op::View(View::Pad {
            low: below,
            high: above,
            mode,
        }),
        &[x],
    )
}

/// Lays an axis beside itself where it is wrapped around by more than its size, and says what is still to be padded.
fn repeated(node: &mut Node<'_>, x: Val, axis: usize, [low, high]: [&mut Dim; 2]) -> Step<Val> {
    let size = node.shape(x)[axis].as_const().filter(|size| *size > 0);
    let (Some(size), Some(before), Some(after)) = (size, low.as_const(), high.as_const()) else {
        return Ok(x);
    };
    let copies = 1 + before / size + after / size;
    if copies == 1 || copies > COPY_LIMIT {
        return Ok(x);
    }
    (*low, *high) = (Dim::Const(before % size), Dim::Const(after % size));
    node.concat(&vec![x; copies as usize], axis)
}

/// Refuses pads that make an axis longer than 64 bits count, or shorter than nothing; sizes that are not known are
/// checked elsewhere.
fn fits(size: &Dim, low: &Dim, high: &Dim) -> Step<()> {
    let (Some(size), Some(low), Some(high)) = (size.as_const(), low.as_const(), high.as_const()) else {
        return Ok(());
    };
    let padded = i128::from(size) + i128::from(low) + i128::from(high);
    if (0..=i128::from(i64::MAX)).contains(&padded) {
        return Ok(());
    }
    Err(NodeProblem::Value {
        what: "pad",
        found: format!("{low} before and {high} after {size} elements"),
        expected: "a size from 0 to 2^63 - 1".to_owned(),
    }
    .into())
}

/// Pads known elements with a number.
fn pad_known(node: &Node<'_>, x: Val, [starts, sizes, low, high]: [&[Dim]; 4], mode: &PadMode) -> Option<Known> {
    let known = node.build.known(x)?;
    let PadMode::Constant(value) = mode else { return None };
    let numbers = |dims: &[Dim]| -> Option<Vec<i64>> { dims.iter().map(Dim::as_const).collect() };
    let lengths =
        |dims: &[Dim]| -> Option<Vec<usize>> { numbers(dims)?.into_iter().map(|n| usize::try_from(n).ok()).collect() };
    let value = match known.dtype.is_float() {
        true => Element::Float(value.as_f64()),
        false => Element::Dim(Dim::Const(value.as_i64())),
    };
    let cut = known.slice(&numbers(starts)?, &lengths(sizes)?, &vec![1; starts.len()])?;
    cut.pad(&lengths(low)?, &lengths(high)?, &value)
}

fn center_crop_pad(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let target = node.known_dims(1, "shape to crop or pad to")?;
    let axes = match node.ints("axes")? {
        Some(axes) => axes
            .iter()
            .map(|a| node.axis(*a, shape.rank()))
            .collect::<Step<Vec<_>>>()?,
        None => (0..shape.rank()).collect(),
    };
    if axes.len() != target.len() {
        return node.rank_error(1, format!("1 with {} elements", axes.len()));
    }
    let (mut low, mut high) = (vec![Dim::Const(0); shape.rank()], vec![Dim::Const(0); shape.rank()]);
    for (axis, size) in axes.into_iter().zip(target) {
        let added = size - shape[axis].clone();
        let two = Dim::Const(2);
        // The smaller half goes before when padding, and comes off before when cropping.
        let before = if node.build.sizes.at_least(&added, 0) {
            added.floor_div(&two)
        } else if node.build.sizes.at_most(&added, 0) {
            -((-added.clone()).floor_div(&two))
        } else {
            let (zero, up) = (Dim::Const(0), -((-added.clone()).floor_div(&two)));
            added.floor_div(&two).larger(&zero) + up.smaller(&zero)
        };
        high[axis] = added - before.clone();
        low[axis] = before;
    }
    let zero = PadMode::Constant(Scalar::zero(node.dtype(x)));
    Ok(vec![pad_or_crop(node, x, low, high, zero)?])
}
