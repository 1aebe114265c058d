//! Recurrent layers: the products of all inputs at once, then a composite for each direction.

use ir::op::{Activation, ActivationKind, BinaryOp, Cell, Composite, Gather, Op, Recurrent};
use ir::{DType, Dim, Scalar, Shape};

use super::{Row, microsoft, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("GRU", 1, gru),
    op("LSTM", 1, |n| {
        let (weights, recurrence) = (n.input(1)?, n.input(2)?);
        lstm(n, weights, recurrence, false)
    }),
    op("RNN", 1, rnn),
    microsoft("DynamicQuantizeLSTM", dynamically_quantized),
];

/// What a direction of a layer reads; gates are rows.
struct Layer {
    /// `[D, G·H, I]`
    weights: Val,
    /// `[D, G·H, H]`
    recurrence: Val,
    /// `[D, 3·H]`
    peepholes: Option<Val>,
    cell: Cell,
    /// What weights are multiplied with is rounded to 8 bits: all inputs by one scale, the state at each step.
    rounded: bool,
}

fn rnn(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (weights, recurrence) = (node.input(1)?, node.input(2)?);
    let cell = Cell::Rnn;
    layer(
        node,
        &Layer {
            weights,
            recurrence,
            peepholes: None,
            cell,
            rounded: false,
        },
    )
}

fn gru(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (weights, recurrence) = (node.input(1)?, node.input(2)?);
    let reset_after = node.flag("linear_before_reset")?;
    let cell = Cell::Gru { reset_after };
    layer(
        node,
        &Layer {
            weights,
            recurrence,
            peepholes: None,
            cell,
            rounded: false,
        },
    )
}

fn lstm(node: &mut Node<'_>, weights: Val, recurrence: Val, rounded: bool) -> Step<Vec<Val>> {
    let peepholes = node.optional(7);
    let cell = Cell::Lstm {
        input_forget: node.flag("input_forget")?,
        peepholes: peepholes.is_some(),
        states: node.wants(2),
    };
    layer(
        node,
        &Layer {
            weights,
            recurrence,
            peepholes,
            cell,
            rounded,
        },
    )
}

/// An LSTM whose weights, `[D, I, 4·H]` and `[D, H, 4·H]`, are quantised. They are made numbers. What they are
/// multiplied with is rounded to 8 bits as ONNX Runtime does it: all inputs by one scale and zero point, the hidden
/// state at each step anew. Of several rows of a batch each state has its own; ONNX Runtime takes those of a thread
/// together, so that its results depend on the number of threads.
fn dynamically_quantized(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut weights = [node.input(1)?, node.input(2)?];
    for (weight, at) in weights.iter_mut().zip([8, 10]) {
        let (mut scale, mut zero) = (node.input(at)?, node.input(at + 1)?);
        // One number a direction, or one a gate's column.
        for value in [&mut scale, &mut zero] {
            let mut dims = node.shape(*value).0;
            if dims.len() == 1 {
                dims.push(Dim::Const(1));
            }
            if dims.len() != 2 {
                return node.rank_error(at, "1 or 2");
            }
            dims.insert(1, Dim::Const(1));
            *value = node.reshape(*value, dims)?;
        }
        let dtype = node.dtype(scale);
        let (x, zero) = (node.cast(*weight, dtype)?, node.cast(zero, dtype)?);
        let centred = node.binary(BinaryOp::Sub, x, zero)?;
        let numbers = node.binary(BinaryOp::Mul, centred, scale)?;
        *weight = node.transpose(numbers, vec![0, 2, 1])?;
    }
    let [weights, recurrence] = weights;
    lstm(node, weights, recurrence, true)
}

/// The directions of a layer, each whether it goes backwards.
fn directions(node: &Node<'_>) -> Step<Vec<bool>> {
    match node.text("direction", "forward")?.as_str() {
        "forward" => Ok(vec![false]),
        "reverse" => Ok(vec![true]),
        "bidirectional" => Ok(vec![false, true]),
        other => node.bad("direction", other, "forward, reverse or bidirectional"),
    }
}

/// ONNX's name of an activation, in any case, and whether it has an α and a β.
fn activation_named(name: &str) -> Option<(ActivationKind, bool, bool)> {
    Some(match name.to_ascii_lowercase().as_str() {
        "affine" => (ActivationKind::Affine, true, true),
        "relu" => (ActivationKind::Relu, false, false),
        "leakyrelu" => (ActivationKind::LeakyRelu, true, false),
        "thresholdedrelu" => (ActivationKind::ThresholdedRelu, true, false),
        "scaledtanh" => (ActivationKind::ScaledTanh, true, true),
        "hardsigmoid" => (ActivationKind::HardSigmoid, true, true),
        "sigmoid" => (ActivationKind::Sigmoid, false, false),
        "tanh" => (ActivationKind::Tanh, false, false),
        "elu" => (ActivationKind::Elu, true, false),
        "softsign" => (ActivationKind::Softsign, false, false),
        "softplus" => (ActivationKind::Softplus, false, false),
        _ => return None,
    })
}

/// The numbers of an attribute for the activations that have one. They are in the order of those, or of all activations
/// where there are as many as that.
fn scalings(node: &Node<'_>, attribute: &str, has: impl Iterator<Item = bool> + Clone) -> Step<Vec<Option<f64>>> {
    let numbers = node.floats(attribute)?.unwrap_or_default();
    let (all, used) = (has.clone().count(), has.clone().filter(|&has| has).count());
    if numbers.len() == all && used < all {
        return Ok(has.zip(numbers).map(|(has, number)| has.then_some(number)).collect());
    }
    let mut numbers = numbers.into_iter();
    Ok(has.map(|has| if has { numbers.next() } else { None }).collect())
}

/// The activations of each direction.
fn activations(node: &Node<'_>, cell: Cell, directions: usize) -> Step<Vec<[Activation; 3]>> {
    let each = cell.activations();
    let usual = match cell {
        Cell::Rnn => ["Tanh", "Tanh", "Tanh"],
        Cell::Gru { .. } | Cell::Lstm { .. } => ["Sigmoid", "Tanh", "Tanh"],
    };
    let names = match node.texts("activations")? {
        Some(names) if !names.is_empty() => names,
        _ => (0..directions)
            .flat_map(|_| usual[..each].iter().map(|name| (*name).to_owned()))
            .collect(),
    };
    if names.len() != each * directions {
        return node.bad("activations", names, format!("{} names", each * directions));
    }
    let mut kinds = Vec::with_capacity(names.len());
    for name in &names {
        let Some(kind) = activation_named(name) else {
            return node.bad("activations", name, "an activation that ONNX has for recurrent layers");
        };
        kinds.push(kind);
    }
    let alphas = scalings(node, "activation_alpha", kinds.iter().map(|kind| kind.1))?;
    let betas = scalings(node, "activation_beta", kinds.iter().map(|kind| kind.2))?;
    let mut found = Vec::with_capacity(names.len());
    for ((kind, ..), (alpha, beta)) in kinds.into_iter().zip(alphas.into_iter().zip(betas)) {
        // ONNX has no op of that name, so that nothing says what it is by default.
        for (value, attribute) in [(alpha, "activation_alpha"), (beta, "activation_beta")] {
            if kind == ActivationKind::ScaledTanh && value.is_none() {
                return node.bad(attribute, "none", "a number for each ScaledTanh");
            }
        }
        let mut activation = Activation::of(kind);
        activation.alpha = alpha.map_or(activation.alpha, Scalar::Float);
        activation.beta = beta.map_or(activation.beta, Scalar::Float);
        found.push(activation);
    }
    let row = |list: &[Activation]| {
        let mut row = [Activation::of(ActivationKind::Tanh); 3];
        row[..each].copy_from_slice(list);
        row
    };
    Ok(found.chunks(each).map(row).collect())
}

/// One direction's part of a tensor `[D, …]`.
fn part(node: &mut Node<'_>, x: Val, direction: usize) -> Step<Val> {
    let rest = node.shape(x)[1..].to_vec();
    let part = node.slice_axis(x, 0, direction as i64, 1i64)?;
    node.reshape(part, rest)
}

/// The biases that are added to the inputs' products, and that which a GRU adds to the product of its state.
fn biases(node: &mut Node<'_>, both: Val, cell: Cell, size: &Dim) -> Step<(Val, Option<Val>)> {
    let gates = size.clone() * cell.gates();
    let own = node.slice_axis(both, 0, 0i64, gates.clone())?;
    let state = node.slice_axis(both, 0, gates.clone(), gates)?;
    let sum = node.binary(BinaryOp::Add, own, state)?;
    if cell != (Cell::Gru { reset_after: true }) {
        return Ok((sum, None));
    }
    let two = size.clone() * 2;
    let first = node.slice_axis(sum, 0, 0i64, two.clone())?;
    let last = node.slice_axis(own, 0, two.clone(), size.clone())?;
    let bias = node.slice_axis(state, 0, two, size.clone())?;
    Ok((node.concat(&[first, last], 0)?, Some(bias)))
}

/// What all directions share.
struct Run {
    /// `[T·B, I]`
    rows: Val,
    steps: Dim,
    batch: Dim,
    size: Dim,
    dtype: DType,
    lengths: Option<Val>,
    /// The batch comes first.
    batch_first: bool,
}

/// The state at an end of each row, `[B, S·H]`: the last step of a forward direction, the first of the other.
fn last_state(node: &mut Node<'_>, run: &Run, all: Val, first: Val, reverse: bool) -> Step<Val> {
    let wide = node.shape(all)[2].clone();
    let row = [run.batch.clone(), wide.clone()];
    let Some(lengths) = run.lengths else {
        let at = if reverse { Dim::Const(0) } else { run.steps.clone() - 1 };
        let step = node.slice_axis(all, 0, at, 1i64)?;
        return node.reshape(step, row);
    };
    let at = match reverse {
        true => node.with_scalar(BinaryOp::Mul, lengths, 0.0)?,
        false => {
            let last = node.with_scalar(BinaryOp::Sub, lengths, 1.0)?;
            node.with_scalar(BinaryOp::Max, last, 0.0)?
        }
    };
    let at = node.reshape(at, [Dim::Const(1), run.batch.clone(), Dim::Const(1)])?;
    let at = node.broadcast(at, [Dim::Const(1), run.batch.clone(), wide].into())?;
    let found = node.add(Op::Gather(Gather::Elements { axis: 0 }), &[all, at])?;
    let found = node.reshape(found, row)?;
    // A row of no steps ends as it began.
    let lengths = node.reshape(lengths, [run.batch.clone(), Dim::Const(1)])?;
    let none = node.with_scalar(BinaryOp::Le, lengths, 0.0)?;
    node.select(none, first, found)
}

/// A first state `[B, H]`: the input's part, or zeros.
fn first_state(node: &mut Node<'_>, run: &Run, index: usize, direction: usize) -> Step<Val> {
    let row = Shape(vec![run.batch.clone(), run.size.clone()]);
    let Some(mut given) = node.optional(index) else {
        let zero = node.scalar(run.dtype, 0.0);
        return node.broadcast(zero, row);
    };
    if node.rank(given) != 3 {
        return node.rank_error(index, "3");
    }
    if run.batch_first {
        given = node.transpose(given, vec![1, 0, 2])?;
    }
    let given = part(node, given, direction)?;
    for (have, want) in node.shape(given).iter().zip(row.iter()) {
        node.build.require_equal(have, want)?;
    }
    Ok(given)
}

/// One direction: its hidden states `[T, B, H]`, and the last hidden and cell state `[B, H]`.
fn one_direction(
    node: &mut Node<'_>,
    run: &Run,
    layer: &Layer,
    settings: Recurrent,
    direction: usize,
) -> Step<(Val, Val, Option<Val>)> {
    let size = &run.size;
    let gates = size.clone() * layer.cell.gates();
    let weights = part(node, layer.weights, direction)?;
    let mut products = node.contract(run.rows, weights, false, true, run.dtype)?;
    let mut bias = None;
    if let Some(both) = node.optional(3) {
        let both = part(node, both, direction)?;
        let (own, other) = biases(node, both, layer.cell, size)?;
        products = node.binary(BinaryOp::Add, products, own)?;
        bias = other;
    } else if layer.cell == (Cell::Gru { reset_after: true }) {
        let zero = node.scalar(run.dtype, 0.0);
        bias = Some(node.broadcast(zero, [size.clone()].into())?);
    }
    let products = node.reshape(products, [run.steps.clone(), run.batch.clone(), gates])?;
    let recurrence = part(node, layer.recurrence, direction)?;
    let mut first = first_state(node, run, 5, direction)?;
    let mut operands = vec![products, recurrence, first];
    if let Cell::Lstm { states, .. } = layer.cell {
        let cell = first_state(node, run, 6, direction)?;
        operands.push(cell);
        if states {
            first = node.concat(&[first, cell], 1)?;
        }
    }
    operands.extend(bias);
    if let Some(peepholes) = layer.peepholes {
        operands.push(part(node, peepholes, direction)?);
    }
    operands.extend(run.lengths);
    let all = node.composite(Composite::Recurrent(settings), &operands)?;
    let last = last_state(node, run, all, first, settings.reverse)?;
    let [y, hidden] = [(all, 2), (last, 1)].map(|(value, axis)| node.slice_axis(value, axis, 0i64, size.clone()));
    let cell = match settings.states() {
        2 => Some(node.slice_axis(last, 1, size.clone(), size.clone())?),
        _ => None,
    };
    Ok((y?, hidden?, cell))
}

/// The steps of each row, unless every row has all of them.
fn lengths(node: &mut Node<'_>, steps: &Dim, batch: &Dim) -> Step<Option<Val>> {
    let Some(given) = node.optional(4) else { return Ok(None) };
    if node.rank(given) != 1 {
        return node.rank_error(4, "1");
    }
    node.build.require_equal(&node.shape(given)[0].clone(), batch)?;
    let known = node
        .build
        .known(given)
        .and_then(|known: std::sync::Arc<Known>| known.dims());
    if known.is_some_and(|dims| dims.iter().all(|dim| dim == steps)) {
        return Ok(None);
    }
    Ok(Some(node.cast(given, DType::I64)?))
}

fn layer(node: &mut Node<'_>, layer: &Layer) -> Step<Vec<Val>> {
    let mut x = node.input(0)?;
    let dtype = node.require_float(0)?;
    for (index, value) in [(0, x), (1, layer.weights), (2, layer.recurrence)] {
        if node.rank(value) != 3 {
            return node.rank_error(index, "3");
        }
    }
    let batch_first = match node.int_or("layout", 0)? {
        0 => false,
        1 => true,
        other => return node.bad("layout", other, "0 or 1"),
    };
    if batch_first {
        x = node.transpose(x, vec![1, 0, 2])?;
    }
    if layer.rounded {
        let [levels, scale, zero] = super::quant::dynamically_quantized(node, x)?;
        let [levels, zero] = [node.cast(levels, dtype)?, node.cast(zero, dtype)?];
        let centred = node.binary(BinaryOp::Sub, levels, zero)?;
        x = node.binary(BinaryOp::Mul, centred, scale)?;
    }
    let directions = directions(node)?;
    let activations = activations(node, layer.cell, directions.len())?;
    let (shape, recurrence) = (node.shape(x), node.shape(layer.recurrence));
    let size = recurrence[2].clone();
    if let Some(stated) = node.int("hidden_size")? {
        node.build.require_equal(&size, &Dim::Const(stated))?;
    }
    let count = Dim::Const(directions.len() as i64);
    for value in [layer.weights, layer.recurrence] {
        let found = node.shape(value);
        node.build.require_equal(&found[0], &count)?;
        node.build
            .require_equal(&found[1], &(size.clone() * layer.cell.gates()))?;
    }
    if let Some(bias) = node.optional(3) {
        if node.rank(bias) != 2 {
            return node.rank_error(3, "2");
        }
        let twice = size.clone() * (2 * layer.cell.gates());
        node.build.require_equal(&node.shape(bias)[1].clone(), &twice)?;
    }
    let (steps, batch) = (shape[0].clone(), shape[1].clone());
    let rows = node.reshape(x, [steps.clone() * batch.clone(), shape[2].clone()])?;
    let lengths = lengths(node, &steps, &batch)?;
    let run = Run {
        rows,
        steps,
        batch,
        size,
        dtype,
        lengths,
        batch_first,
    };
    let clip = node.float("clip")?.map(Scalar::Float);
    let [mut all, mut hidden, mut cells] = [const { Vec::new() }; 3];
    for (direction, (reverse, activations)) in directions.into_iter().zip(activations).enumerate() {
        let settings = Recurrent {
            cell: layer.cell,
            activations,
            clip,
            reverse,
            lengths: run.lengths.is_some(),
            rounded: layer.rounded,
        };
        let (y, last, cell) = one_direction(node, &run, layer, settings, direction)?;
        all.push(y);
        hidden.push(last);
        cells.extend(cell);
    }
    // `[T, D, B, H]` and `[D, B, H]`, or `[B, T, D, H]` and `[B, D, H]`.
    let y = stacked(node, &all, 1)?;
    let y = node.transpose(
        y,
        if batch_first {
            vec![2, 0, 1, 3]
        } else {
            vec![0, 1, 2, 3]
        },
    )?;
    let mut results = vec![y];
    for states in [hidden, cells] {
        if states.is_empty() {
            break;
        }
        let last = stacked(node, &states, 0)?;
        results.push(node.transpose(last, if batch_first { vec![1, 0, 2] } else { vec![0, 1, 2] })?);
    }
    Ok(results)
}

/// Joins tensors of one shape along a new axis.
fn stacked(node: &mut Node<'_>, parts: &[Val], axis: usize) -> Step<Val> {
    let mut wide = Vec::with_capacity(parts.len());
    for part in parts {
        let mut dims = node.shape(*part).0;
        dims.insert(axis, Dim::Const(1));
        wide.push(node.reshape(*part, dims)?);
    }
    if wide.is_empty() {
        return Err(NodeProblem::MissingInput { index: 0 }.into());
    }
    node.concat(&wide, axis)
}
