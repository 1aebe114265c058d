//! Tensors from nothing but attributes and shapes: constants, ranges, random numbers; and dropout, which at inference
//! time does nothing.

use ir::op::{BinaryOp, Op, RandomKind, UnaryOp};
use ir::{DType, Dim, HostTensor, Scalar, Shape};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::{Element, Known};
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("Bernoulli", 15, bernoulli),
    op("BlackmanWindow", 17, |n| window(n, &[0.42, -0.5, 0.08])),
    op("Constant", 1, constant),
    op("ConstantOfShape", 9, constant_of_shape),
    op("Dropout", 1, dropout),
    op("EyeLike", 9, eye_like),
    op("HammingWindow", 17, |n| window(n, &[25.0 / 46.0, -21.0 / 46.0])),
    op("HannWindow", 17, |n| window(n, &[0.5, -0.5])),
    op("RandomNormal", 1, |n| random(n, normal)),
    op("RandomNormalLike", 1, |n| random_like(n, normal)),
    op("RandomUniform", 1, |n| random(n, uniform)),
    op("RandomUniformLike", 1, |n| random_like(n, uniform)),
    op("Range", 11, range),
];

fn constant(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let floats = |v: Vec<f64>, shape: Vec<usize>| HostTensor::from_f64(DType::F32, shape, &v).ok();
    let ints = |v: Vec<i64>, shape: Vec<usize>| HostTensor::from_i64(DType::I64, shape, &v).ok();
    let tensor = if let Some(tensor) = node.tensor("value")? {
        Some(tensor)
    } else if let Some(v) = node.float("value_float")? {
        floats(vec![v], Vec::new())
    } else if let Some(v) = node.floats("value_floats")? {
        let shape = vec![v.len()];
        floats(v, shape)
    } else if let Some(v) = node.int("value_int")? {
        ints(vec![v], Vec::new())
    } else if let Some(v) = node.ints("value_ints")? {
        let shape = vec![v.len()];
        ints(v, shape)
    } else if node.has("sparse_value") {
        return node.unsupported("a sparse constant");
    } else if node.has("value_string") || node.has("value_strings") {
        return node.unsupported("a constant of strings");
    } else {
        None
    };
    let tensor = node.required("value", tensor)?;
    let name = node.proto.output.first().filter(|n| !n.is_empty()).cloned();
    Ok(vec![node.build.of_constant(name, tensor)])
}

/// One value everywhere: `f32` 0 unless the attribute says otherwise.
fn constant_of_shape(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let shape = Shape(node.known_dims(0, "shape")?);
    if let Some(size) = shape.iter().find(|d| d.as_const().is_some_and(|v| v < 0)) {
        let expected = "sizes that are not negative".to_owned();
        return Err(NodeProblem::Value {
            what: "shape",
            found: size.to_string(),
            expected,
        }
        .into());
    }
    let value = match node.tensor("value")? {
        Some(value) if value.elements() == 1 => HostTensor {
            shape: Vec::new(),
            ..value
        },
        Some(value) => return node.bad("value", value.shape, "a tensor of one element"),
        None => HostTensor::scalar(DType::F32, Scalar::Float(0.0)),
    };
    let value = node.build.of_constant(None, value);
    Ok(vec![node.broadcast(value, shape)?])
}

/// `start + i·delta`; the number of elements must follow from constants and shapes.
fn range(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let start = node.input(0)?;
    let dtype = node.dtype(start);
    if dtype.is_float() && !open_float(node)? {
        let mut number = |index, what| -> Step<f64> {
            Ok(*node
                .known_floats(index, what)?
                .first()
                .ok_or(NodeProblem::NotKnown { what, index })?)
        };
        let (from, limit, delta) = (number(0, "start")?, number(1, "limit")?, number(2, "step")?);
        let count = ((limit - from) / delta).ceil().max(0.0);
        if !count.is_finite() || count > f64::from(i32::MAX) {
            let expected = "a finite number of elements".to_owned();
            let found = format!("from {from} to {limit} by {delta}");
            return Err(NodeProblem::Value {
                what: "range",
                found,
                expected,
            }
            .into());
        }
        let positions = node.iota([count as i64].into(), 0, dtype)?;
        let scaled = node.with_scalar(BinaryOp::Mul, positions, delta)?;
        return Ok(vec![node.binary(BinaryOp::Add, scaled, start)?]);
    }
    let one = |node: &mut Node<'_>, index, what| -> Step<(Dim, Dim)> {
        let val = node.input(index)?;
        let parts = node.numbers(val, what).and_then(|k| k.ratios());
        Ok(parts
            .and_then(|parts| parts.into_iter().next())
            .ok_or(NodeProblem::NotKnown { what, index })?)
    };
    let from = one(node, 0, "start")?;
    let limit = one(node, 1, "limit")?;
    let delta = one(node, 2, "step")?;
    // (limit − from) / step, as one quotient.
    let (span, by) = (
        (limit.0.clone() * &from.1 - from.0.clone() * &limit.1) * &delta.1,
        delta.0.clone() * &limit.1 * &from.1,
    );
    let sizes = &node.build.sizes;
    let (span, by) = match (sizes.at_least(&by, 0) && !by.is(0), sizes.at_most(&by, -1)) {
        (true, _) => (span, by),
        (_, true) => (-span, -by),
        _ => {
            let expected = "other than 0, of one sign at all sizes".to_owned();
            return Err(NodeProblem::Value {
                what: "range's step",
                found: delta.0.to_string(),
                expected,
            }
            .into());
        }
    };
    // The span of two numbers of 64 bits may have 65.
    let number = |(above, below): &(Dim, Dim)| above.as_const().filter(|_| below.is(1));
    let count = match (number(&from), number(&limit), number(&delta)) {
        (Some(from), Some(limit), Some(step)) => Dim::Const(range_count(from, limit, step)?),
        _ => sizes.max(&span, &Dim::Const(0)).ceil_div(&by),
    };
    let mut values = node.iota([count].into(), 0, dtype)?;
    if !(delta.0.is(1) && delta.1.is(1)) {
        let step = node.input(2)?;
        let step = node.reshape(step, Shape::SCALAR)?;
        values = node.binary(BinaryOp::Mul, values, step)?;
    }
    if !from.0.is(0) {
        let from = node.reshape(start, Shape::SCALAR)?;
        values = node.binary(BinaryOp::Add, values, from)?;
    }
    Ok(vec![values])
}

/// The number of elements of `from..limit` by `step`, which is not 0. The span of two numbers of 64 bits may have 65.
fn range_count(from: i64, limit: i64, step: i64) -> Step<i64> {
    let (span, step) = (i128::from(limit) - i128::from(from), i128::from(step));
    let (span, by) = if step > 0 { (span, step) } else { (-span, -step) };
    let count = (span.max(0) + by - 1) / by;
    i64::try_from(count).map_err(|_| {
        NodeProblem::Value {
            what: "range",
            found: format!("from {from} to {limit} by {step}, {count} elements"),
            expected: "fewer than 2^63 elements".to_owned(),
        }
        .into()
    })
}

/// Says whether a range of floats depends on open sizes.
fn open_float(node: &mut Node<'_>) -> Step<bool> {
    for index in 0..3 {
        let val = node.input(index)?;
        if node.build.folded(val).is_some_and(|known| known.is_open()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// 1 on the diagonal `k`, else 0.
fn eye_like(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let like = node.input(0)?;
    let shape = node.shape(like);
    let [rows, columns] = &*shape else {
        return node.rank_error(0, "2");
    };
    let (rows, columns) = (rows.clone(), columns.clone());
    let dtype = match node.int("dtype")? {
        Some(code) => dtype_of(code)?,
        None => node.dtype(like),
    };
    let k = node.int_or("k", 0)?;
    let row = node.iota([rows.clone()].into(), 0, DType::I64)?;
    let row = node.reshape(row, [rows, Dim::Const(1)])?;
    let column = node.iota([columns.clone()].into(), 0, DType::I64)?;
    let column = node.reshape(column, [Dim::Const(1), columns])?;
    // The distance is as small as the sizes are; a row plus `k` might leave 64 bits.
    let distance = node.binary(BinaryOp::Sub, column, row)?;
    let k = node.int_scalar(DType::I64, k);
    let hit = node.binary(BinaryOp::Eq, distance, k)?;
    Ok(vec![node.cast(hit, dtype)?])
}

/// In inference the data pass through and the mask is all true; training mode is refused.
fn dropout(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    if node.opset >= 12 && node.optional(2).is_some() {
        let training = node.known_ints(2, "training mode")?;
        if training.iter().any(|v| *v != 0) {
            return training_dropout(node, x);
        }
    }
    if !node.wants(1) {
        return Ok(vec![x]);
    }
    let mask = node.known(Known {
        dtype: DType::Bool,
        shape: Vec::new(),
        elements: vec![true.into()],
    });
    let shape = node.shape(x);
    // Before opset 10 the mask has the type of the data.
    let mask = if node.opset < 10 {
        node.cast(mask, node.dtype(x))?
    } else {
        mask
    };
    Ok(vec![x, node.broadcast(mask, shape)?])
}

/// Leaves elements out at random with the probability that is given, and enlarges the others by as much.
fn training_dropout(node: &mut Node<'_>, x: Val) -> Step<Vec<Val>> {
    let float = node.require_float(0)?;
    let ratio = match node.optional(1) {
        Some(_) => node.known_floats(1, "ratio")?.first().copied().unwrap_or(0.5),
        None => 0.5,
    };
    if !(0.0..1.0).contains(&ratio) {
        return node.unsupported(format!("dropout of a share of {ratio}; it is at least 0 and below 1"));
    }
    let shape = node.shape(x);
    let kept = match ratio {
        0.0 => {
            let all = node.int_scalar(DType::Bool, 1);
            node.broadcast(all, shape)?
        }
        _ => {
            let kind = RandomKind::Uniform {
                low: Scalar::Float(0.0),
                high: Scalar::Float(1.0),
            };
            let drawn = random_in(node, kind, shape, DType::F32)?[0];
            node.with_scalar(BinaryOp::Ge, drawn, ratio)?
        }
    };
    let factor = node.cast(kept, float)?;
    let factor = node.with_scalar(BinaryOp::Mul, factor, 1.0 / (1.0 - ratio))?;
    Ok(vec![node.binary(BinaryOp::Mul, x, factor)?, kept])
}

fn normal(node: &Node<'_>) -> Step<RandomKind> {
    let (mean, deviation) = (node.float_or("mean", 0.0)?, node.float_or("scale", 1.0)?);
    Ok(RandomKind::Normal {
        mean: Scalar::Float(mean),
        deviation: Scalar::Float(deviation),
    })
}

fn uniform(node: &Node<'_>) -> Step<RandomKind> {
    let (low, high) = (node.float_or("low", 0.0)?, node.float_or("high", 1.0)?);
    Ok(RandomKind::Uniform {
        low: Scalar::Float(low),
        high: Scalar::Float(high),
    })
}

/// The seed attribute's bits; without one, a seed from the node's output name, so that a model gives the same numbers
/// each time.
fn seed(node: &Node<'_>) -> Step<u64> {
    // Dropout's is an integer, the others' a float.
    if node.proto.op_type == "Dropout" {
        if let Some(seed) = node.int("seed")? {
            return Ok(seed as u64);
        }
    } else if let Some(seed) = node.float("seed")? {
        return Ok(seed.to_bits());
    }
    let name = node.proto.output.first().map_or("", String::as_str);
    // FNV-1a.
    Ok(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    }))
}

fn random_in(node: &mut Node<'_>, kind: RandomKind, shape: Shape, dtype: DType) -> Step<Vec<Val>> {
    let seed = seed(node)?;
    Ok(vec![node.add(
        Op::Random {
            kind,
            shape,
            seed,
            dtype,
        },
        &[],
    )?])
}

fn random(node: &mut Node<'_>, kind: fn(&Node<'_>) -> Step<RandomKind>) -> Step<Vec<Val>> {
    let shape = node.ints("shape")?;
    let shape = node.required("shape", shape)?;
    if shape.iter().any(|d| *d < 0) {
        return node.bad("shape", shape, "sizes that are not negative");
    }
    let dtype = dtype_of(node.int_or("dtype", 1)?)?;
    let kind = kind(node)?;
    random_in(node, kind, shape.into(), dtype)
}

fn random_like(node: &mut Node<'_>, kind: fn(&Node<'_>) -> Step<RandomKind>) -> Step<Vec<Val>> {
    let like = node.input(0)?;
    let dtype = match node.int("dtype")? {
        Some(code) => dtype_of(code)?,
        None => node.dtype(like),
    };
    let (kind, shape) = (kind(node)?, node.shape(like));
    random_in(node, kind, shape, dtype)
}

/// 1 with the probability that the input says.
fn bernoulli(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = match node.int("dtype")? {
        Some(code) => dtype_of(code)?,
        None => node.dtype(x),
    };
    let kind = RandomKind::Uniform {
        low: Scalar::Float(0.0),
        high: Scalar::Float(1.0),
    };
    let (shape, float) = (node.shape(x), node.require_float(0)?);
    let drawn = random_in(node, kind, shape, float)?[0];
    let hit = node.binary(BinaryOp::Lt, drawn, x)?;
    Ok(vec![node.cast(hit, dtype)?])
}

/// `Σ cₖ · cos(2πk·i/N)`; `N` is one less than the size unless the window is periodic.
fn window(node: &mut Node<'_>, terms: &[f64]) -> Step<Vec<Val>> {
    let size = match node.known_dims(0, "size")?.as_slice() {
        [size] => size.clone(),
        _ => return node.rank_error(0, "0"),
    };
    let dtype = dtype_of(node.int_or("output_datatype", 1)?)?;
    let period = if node.int_or("periodic", 1)? != 0 {
        size.clone()
    } else {
        size.clone() - 1
    };
    let period = node.known(Known {
        shape: Vec::new(),
        dtype: DType::I64,
        elements: vec![Element::Dim(period)],
    });
    let period = node.cast(period, DType::F32)?;
    let positions = node.iota([size].into(), 0, DType::F32)?;
    let turn = node.binary(BinaryOp::Div, positions, period)?;
    let mut sum = node.scalar(DType::F32, terms[0]);
    for (k, term) in terms.iter().enumerate().skip(1) {
        let angle = node.with_scalar(BinaryOp::Mul, turn, std::f64::consts::TAU * k as f64)?;
        let wave = node.unary(UnaryOp::Cos, angle)?;
        let wave = node.with_scalar(BinaryOp::Mul, wave, *term)?;
        sum = node.binary(BinaryOp::Add, sum, wave)?;
    }
    Ok(vec![node.cast(sum, dtype)?])
}
