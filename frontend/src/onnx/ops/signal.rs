//! Fourier transforms and the filters of speech: products with tables of waves.

use std::f64::consts::TAU;

use ir::op::{BinaryOp, Conv, Layout, Op, PadMode, View, Window};
use ir::{DType, Dim, HostTensor, Scalar};

use super::resize::constant;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("DFT", 17, dft),
    op("MelWeightMatrix", 17, mel_weights),
    op("STFT", 17, stft),
];

/// The most numbers of a table of waves.
const TABLE_LIMIT: i64 = 1 << 24;

/// A table `rows × columns` of numbers.
fn table(node: &mut Node<'_>, dtype: DType, shape: [i64; 2], number: impl Fn(i64, i64) -> f64) -> Step<Val> {
    let [rows, columns] = shape;
    if rows.checked_mul(columns).is_none_or(|count| count > TABLE_LIMIT) {
        return node.unsupported(format!(
            "a transform of {rows} × {columns} waves, more than {TABLE_LIMIT} numbers,"
        ));
    }
    let numbers: Vec<f64> = (0..rows)
        .flat_map(|i| (0..columns).map(move |j| (i, j)))
        .map(|(i, j)| number(i, j))
        .collect();
    let table = constant(HostTensor::from_f64(
        dtype,
        vec![rows as usize, columns as usize],
        &numbers,
    ))?;
    Ok(node.build.of_constant(None, table))
}

/// Cuts or fills an axis to a number of elements.
fn fitted(node: &mut Node<'_>, x: Val, axis: usize, length: i64) -> Step<Val> {
    let shape = node.shape(x);
    match shape[axis].as_const() {
        Some(size) if size >= length => node.slice_axis(x, axis, 0i64, length),
        Some(size) => {
            let low = vec![Dim::Const(0); shape.rank()];
            let mut high = low.clone();
            high[axis] = Dim::Const(length - size);
            let mode = PadMode::Constant(Scalar::Float(0.0));
            node.add(Op::View(View::Pad { low, high, mode }), &[x])
        }
        None if shape[axis].is(length) => Ok(x),
        None => node.unsupported(format!(
            "a transform of {length} of the varying size {} (fix it with --size),",
            shape[axis]
        )),
    }
}

/// The number of an input of one element, or `None` where it is left out.
fn length(node: &mut Node<'_>, index: usize, what: &'static str) -> Step<Option<i64>> {
    if node.optional(index).is_none() {
        return Ok(None);
    }
    let found = node.known_ints(index, what)?;
    match found.as_slice() {
        [length] if (1..=TABLE_LIMIT).contains(length) => Ok(Some(*length)),
        _ => Err(NodeProblem::Value {
            what,
            found: format!("{found:?}"),
            expected: format!("a number from 1 to {TABLE_LIMIT}"),
        }
        .into()),
    }
}

/// The last axis of a signal holds numbers, or real and imaginary parts.
fn dft(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut x = node.input(0)?;
    let dtype = node.require_float(0)?;
    let rank = node.rank(x);
    if rank < 2 {
        return node.rank_error(0, "at least 2");
    }
    let axis = match node.opset {
        ..20 => node.int_or("axis", 1)?,
        _ if node.optional(2).is_some() => *node
            .known_ints(2, "axis")?
            .first()
            .ok_or(NodeProblem::NotKnown { what: "axis", index: 2 })?,
        _ => -2,
    };
    let axis = node.axis(axis, rank)?;
    if axis == rank - 1 {
        return node.bad(
            "axis",
            axis,
            "an axis of the signal, not that of the parts of its numbers",
        );
    }
    let (inverse, half) = (node.flag("inverse")?, node.flag("onesided")?);
    let shape = node.shape(x);
    let parts = shape[rank - 1].clone();
    if !parts.is(1) && !parts.is(2) {
        return node.rank_error(
            0,
            format!("that of a signal whose last axis has 1 or 2 elements, not {parts}"),
        );
    }
    let given = length(node, 1, "length of the transform")?;
    // A one-sided spectrum is half of what it is transformed to.
    let whole = match (given, shape[axis].as_const()) {
        (Some(length), _) => length,
        (None, Some(size)) if half && inverse => 2 * (size - 1),
        (None, Some(size)) => size,
        (None, None) => {
            return node.unsupported(format!(
                "a transform of the varying size {} (fix it with --size),",
                shape[axis]
            ));
        }
    };
    let taken = if half && inverse { whole / 2 + 1 } else { whole };
    let made = if half && !inverse { whole / 2 + 1 } else { whole };
    x = fitted(node, x, axis, taken)?;
    // Rows of numbers, the parts apart.
    let mut order: Vec<usize> = (0..rank - 1).filter(|a| *a != axis).collect();
    order.push(axis);
    let back: Vec<usize> = (0..rank - 1)
        .map(|a| order.iter().position(|o| *o == a).unwrap_or(a))
        .collect();
    let part = |node: &mut Node<'_>, at: i64| -> Step<Val> {
        let one = node.slice_axis(x, rank - 1, at, 1i64)?;
        let mut dims = node.shape(one).0;
        dims.pop();
        let one = node.reshape(one, dims)?;
        node.transpose(one, order.clone())
    };
    let real = part(node, 0)?;
    let imaginary = if parts.is(2) { Some(part(node, 1)?) } else { None };
    let scale = if inverse { 1.0 / whole as f64 } else { 1.0 };
    let angle = |i: i64, j: i64| TAU * ((i * j) % whole) as f64 / whole as f64;
    // Of half a spectrum each number but the first, and the one in the middle, stands for two.
    let twice = |i: i64| match half && inverse && i != 0 && 2 * i != whole {
        true => 2.0 * scale,
        false => scale,
    };
    let cosine = table(node, dtype, [taken, made], |i, j| twice(i) * angle(i, j).cos())?;
    let sine = table(node, dtype, [taken, made], |i, j| {
        twice(i) * if inverse { 1.0 } else { -1.0 } * angle(i, j).sin()
    })?;
    let product = |node: &mut Node<'_>, a: Val, b: Val| node.contract(a, b, false, false, dtype);
    let mut sums = vec![product(node, real, cosine)?];
    if let Some(imaginary) = imaginary {
        let other = product(node, imaginary, sine)?;
        sums[0] = node.binary(BinaryOp::Sub, sums[0], other)?;
    }
    if !(half && inverse) {
        let mut sum = product(node, real, sine)?;
        if let Some(imaginary) = imaginary {
            let other = product(node, imaginary, cosine)?;
            sum = node.binary(BinaryOp::Add, sum, other)?;
        }
        sums.push(sum);
    }
    for sum in &mut sums {
        let ordered = node.transpose(*sum, back.clone())?;
        let mut dims = node.shape(ordered).0;
        dims.push(Dim::Const(1));
        *sum = node.reshape(ordered, dims)?;
    }
    Ok(vec![node.concat(&sums, rank - 1)?])
}

/// Transforms of windows of a signal `[B, L]` or `[B, L, 1 or 2]`, as one convolution.
fn stft(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut x = node.input(0)?;
    let dtype = node.require_float(0)?;
    if node.rank(x) == 2 {
        let mut dims = node.shape(x).0;
        dims.push(Dim::Const(1));
        x = node.reshape(x, dims)?;
    }
    let shape = node.shape(x);
    let [batch, _, parts] = &*shape else {
        return node.rank_error(0, "2 or 3");
    };
    let Some(parts) = parts.as_const().filter(|parts| (1..=2).contains(parts)) else {
        return node.rank_error(0, "that of a signal whose last axis has 1 or 2 elements");
    };
    let step = length(node, 1, "step between frames")?;
    let step = node.required("frame_step", step)?;
    let window = node.optional(2);
    let frame = match (length(node, 3, "length of a frame")?, window) {
        (Some(frame), _) => frame,
        (None, Some(window)) => match node.shape(window)[..] {
            [Dim::Const(frame)] => frame,
            _ => return node.rank_error(2, "1, of a known size"),
        },
        (None, None) => return Err(NodeProblem::MissingInput { index: 3 }.into()),
    };
    if parts == 2 && node.int("onesided")? == Some(1) {
        return node.bad("onesided", 1, "0 for a signal of complex numbers");
    }
    let half = parts == 1 && node.int_or("onesided", 1)? != 0;
    let bins = if half { frame / 2 + 1 } else { frame };
    let angle = |bin: i64, at: i64| TAU * ((bin * at) % frame) as f64 / frame as f64;
    // The real part's filters, then the imaginary part's; of complex numbers, each over both parts.
    let mut filter = table(node, dtype, [2 * bins * parts, frame], |row, at| {
        let (row, part) = (row / parts, row % parts);
        let (imaginary, angle) = (row >= bins, angle(row % bins, at));
        match (imaginary, part) {
            (false, 0) | (true, 1) => angle.cos(),
            (false, _) => angle.sin(),
            (true, _) => -angle.sin(),
        }
    })?;
    if let Some(window) = window {
        node.build
            .require_equal(&node.shape(window)[0].clone(), &Dim::Const(frame))?;
        let window = node.cast(window, dtype)?;
        filter = node.binary(BinaryOp::Mul, filter, window)?;
    }
    let filter = node.reshape(filter, [2 * bins, parts, frame])?;
    let x = node.transpose(x, vec![0, 2, 1])?;
    let conv = Conv {
        window: Window {
            strides: vec![step],
            ..Window::unit(1)
        },
        groups: 1,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out: dtype,
    };
    let result = node.add(Op::Conv(conv), &[x, filter])?;
    let frames = node.shape(result)[2].clone();
    let result = node.reshape(result, [batch.clone(), Dim::Const(2), Dim::Const(bins), frames])?;
    Ok(vec![node.transpose(result, vec![0, 3, 2, 1])?])
}

/// Triangles over the bins of a spectrum, evenly spaced on the mel scale.
fn mel_weights(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut number = |index: usize, what: &'static str| -> Step<f64> {
        let found = node.known_floats(index, what)?;
        Ok(*found.first().ok_or(NodeProblem::NotKnown { what, index })?)
    };
    let bands = number(0, "number of bands")? as i64;
    let size = number(1, "length of the transform")? as i64;
    let rate = number(2, "sample rate")? as i64;
    let (low, high) = (number(3, "lower edge")?, number(4, "upper edge")?);
    let dtype = dtype_of(node.int_or("output_datatype", 1)?)?;
    if !(1..=1 << 16).contains(&bands) || !(1..=TABLE_LIMIT).contains(&size) || rate < 1 {
        return node.unsupported(format!(
            "{bands} mel bands of a transform of {size} at a rate of {rate}"
        ));
    }
    let ten = std::f64::consts::LN_10;
    let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / ten;
    let (from, to) = (mel(low), mel(high));
    let step = (to - from) / (bands + 2) as f64;
    let bin = |i: i64| {
        let hertz = 700.0 * ((i as f64 * step + from) / 2595.0 * ten).exp_m1();
        ((size + 1) as f64 * hertz / rate as f64).floor() as i64
    };
    let weights = table(node, DType::F32, [size / 2 + 1, bands], |row, band| {
        let [low, centre, high] = [bin(band), bin(band + 1), bin(band + 2)];
        if low == centre && row == centre {
            1.0
        } else if (low..=centre).contains(&row) && low != centre {
            (row - low) as f64 / (centre - low) as f64
        } else if (centre..high).contains(&row) {
            (high - row) as f64 / (high - centre) as f64
        } else {
            0.0
        }
    })?;
    Ok(vec![node.cast(weights, dtype)?])
}
