//! Makes a graph what a recipe says.
//!
//! Before: layers multiply by constants of numbers. After: those of the recipe multiply by `dequantize` of stored
//! integers, and what is multiplied by them is quantised and dequantised where the recipe says so; nothing else has
//! changed. What ONNX's operators of the same names mean is what is made here, so that a file and a graph of one recipe
//! are one model.

use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp, View};
use ir::recipe::{Activation, Layer, Recipe, Stored, least_magnitude};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, Value};

use super::error::QuantizeError;
use super::layers::{FoundLayer, Layers, layers};
use crate::error::PassFault;
use crate::report::Fired;
use crate::rewrite::Builder;

const NAME: &str = "recipe";

/// Returns the graph with the layers of a recipe quantised.
///
/// # Errors
/// A layer that the graph does not have, or whose weight does not fit the recipe.
pub fn apply(graph: &Graph, recipe: &Recipe) -> Result<Graph, QuantizeError> {
    let found = layers(graph);
    check(&found, recipe)?;
    applied(graph, &found, recipe, NAME, &mut Vec::new(), |_, _| {})
}

/// Returns the layers of a recipe with their weights of a graph as they are stored.
///
/// # Errors
/// As [`apply`].
pub fn stored<'r>(graph: &Graph, recipe: &'r Recipe) -> Result<Vec<(&'r Layer, Stored)>, QuantizeError> {
    let found = layers(graph);
    check(&found, recipe)?;
    let own = |layer: &&Layer| found.found.iter().find(|l| l.name == layer.name);
    let weights = recipe.layers.iter().filter_map(|layer| Some((layer, own(&layer)?)));
    weights
        .map(|(layer, found)| Ok((layer, store(found, layer)?)))
        .collect()
}

fn store(found: &FoundLayer, layer: &Layer) -> Result<Stored, QuantizeError> {
    let stored = layer.store(&found.weight, found.depth);
    stored.map_err(|error| QuantizeError::Weight {
        layer: layer.name.clone(),
        error,
    })
}

/// As [`apply`], by layers that were found already; `note` is told of each that was quantised.
pub(super) fn applied(
    graph: &Graph,
    layers: &Layers,
    recipe: &Recipe,
    pass: &'static str,
    fired: &mut Vec<Fired>,
    note: impl Fn(&mut Builder<'_>, &Layer),
) -> Result<Graph, QuantizeError> {
    let mut b = Builder::new(graph, pass);
    for id in graph.nodes().keys() {
        match quantised(&mut b, layers, recipe, id)? {
            Some((layer, value)) => {
                note(&mut b, layer);
                b.set(id, value);
            }
            None => b.copy(id)?,
        }
    }
    Ok(b.finish(fired))
}

/// Returns the graph with two more outputs for each layer of a recipe: the sum of the squares of its results, and that
/// of what they change by when this layer alone is quantised, its operand being what it is in the graph. They are
/// called `{prefix}{index}.signal` and `{prefix}{index}.noise`, and are numbers of type f32.
///
/// # Errors
/// As [`apply`].
pub fn measured(graph: &Graph, recipe: &Recipe, prefix: &str) -> Result<Graph, QuantizeError> {
    let found = layers(graph);
    check(&found, recipe)?;
    let mut b = Builder::new(graph, NAME);
    let mut more = Vec::new();
    for id in graph.nodes().keys() {
        b.copy(id)?;
        if let Some((layer, value)) = quantised(&mut b, &found, recipe, id)? {
            let own = b.value(id.into());
            let off = b.plain(&Op::binary(BinaryOp::Sub), &[own, value])?.into();
            let index = recipe.layers.iter().position(|l| l.name == layer.name);
            for (what, value) in [("signal", own), ("noise", off)] {
                let name = format!("{prefix}{}.{what}", index.unwrap_or_default());
                more.push((name, squares(&mut b, value)?));
            }
        }
    }
    Ok(b.finish_with(more, &mut Vec::new()))
}

/// The sum of the squares of all elements.
fn squares(b: &mut Builder<'_>, value: Value) -> Result<Value, PassFault> {
    let (dtype, rank) = (b.ty(value).dtype, b.ty(value).rank());
    let value = match dtype {
        DType::F32 => value,
        _ => b.plain(&Op::cast(DType::F32), &[value])?.into(),
    };
    let square = b.plain(&Op::binary(BinaryOp::Mul), &[value, value])?.into();
    let sum = Op::Reduce {
        op: ReduceOp::Sum,
        axes: (0..rank).collect(),
        keep_dims: false,
    };
    Ok(b.plain(&sum, &[square])?.into())
}

/// Checks that each layer of a recipe is one of a graph.
fn check(found: &Layers, recipe: &Recipe) -> Result<(), QuantizeError> {
    for layer in &recipe.layers {
        layer.activation.check().map_err(|error| QuantizeError::Weight {
            layer: layer.name.clone(),
            error,
        })?;
        if !found.found.iter().any(|l| l.name == layer.name) {
            let known: Vec<String> = found.found.iter().map(|l| l.name.clone()).collect();
            let near = known.iter().min_by_key(|n| strsim::osa_distance(&layer.name, n));
            return Err(QuantizeError::UnknownLayer {
                name: layer.name.clone(),
                near: near.cloned(),
                known,
            });
        }
    }
    Ok(())
}

/// Emits a layer's quantised product over the new operands, if the recipe has it.
fn quantised<'r>(
    b: &mut Builder<'_>,
    layers: &Layers,
    recipe: &'r Recipe,
    id: NodeId,
) -> Result<Option<(&'r Layer, Value)>, QuantizeError> {
    let Ok(at) = layers.found.binary_search_by_key(&id, |l| l.node) else {
        return Ok(None);
    };
    let found = &layers.found[at];
    let Some(layer) = recipe.layer(&found.name) else {
        return Ok(None);
    };
    let old = b.old;
    let node = old.node(id);
    b.origin = node.origin.clone();
    let mut operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
    // First what checks the recipe against the weight.
    operands[1] = weight(b, found, layer)?;
    operands[0] = scaled(b, operands[0], layer, &found.weight)?;
    operands[0] = activation(b, operands[0], layer.activation)?;
    b.origin = node.origin.clone();
    Ok(Some((layer, b.plain(&node.op, &operands)?.into())))
}

fn weight(b: &mut Builder<'_>, found: &FoundLayer, layer: &Layer) -> Result<Value, QuantizeError> {
    let stored = store(found, layer)?;
    let mut operands = vec![b.constant(stored.integers), b.constant(stored.scale)];
    operands.extend(stored.zero.map(|zero| b.constant(zero)));
    let op = Composite::Dequantize {
        groups: layer.weight.groups,
        out: found.weight.dtype,
    };
    Ok(b.plain(&Op::Composite(op), &operands)?.into())
}

/// Multiplies an operand by the factors of its last axis.
fn scaled(b: &mut Builder<'_>, x: Value, layer: &Layer, weight: &HostTensor) -> Result<Value, PassFault> {
    let Some(factors) = layer.factors(weight.dtype) else {
        return Ok(x);
    };
    // Equal ops are emitted once: products that share an operand share what it is multiplied by.
    let factors = b.constant(factors);
    Ok(b.plain(&Op::binary(BinaryOp::Mul), &[x, factors])?.into())
}

fn activation(b: &mut Builder<'_>, x: Value, how: Activation) -> Result<Value, PassFault> {
    let (out, rank) = (b.ty(x).dtype, b.ty(x).rank());
    let (stored, scale, zero) = match how {
        Activation::DynamicFloat { dtype } => {
            let (stored, scale) = dynamic_float(b, x, dtype)?;
            (stored, scale, None)
        }
        Activation::Static { dtype, scale, .. } if dtype.is_f8() => {
            let scale = b.constant(Stored::single(out, rank, f64::from(scale)));
            let quantize = Op::Composite(Composite::Quantize { out: dtype });
            (b.plain(&quantize, &[x, scale])?.into(), scale, None)
        }
        Activation::Float => return Ok(x),
        Activation::Static { dtype, scale, zero } => {
            let scale = b.constant(Stored::single(out, rank, f64::from(scale)));
            let zero = b.constant(Stored::single(dtype, rank, f64::from(zero)));
            let quantize = Op::Composite(Composite::Quantize { out: dtype });
            (b.plain(&quantize, &[x, scale, zero])?.into(), scale, Some(zero))
        }
        Activation::Dynamic => {
            let (stored, scale, zero) = dynamic(b, x)?;
            (stored, scale, Some(zero))
        }
    };
    let dequantize = Op::Composite(Composite::Dequantize { groups: None, out });
    let operands: Vec<Value> = [Some(stored), Some(scale), zero].into_iter().flatten().collect();
    Ok(b.plain(&dequantize, &operands)?.into())
}

/// The 8-bit floats and their scale: the largest magnitude over the type's largest number.
fn dynamic_float(b: &mut Builder<'_>, x: Value, out: DType) -> Result<(Value, Value), PassFault> {
    let (dtype, rank) = (b.ty(x).dtype, b.ty(x).rank());
    let [least, largest] = [least_magnitude(out, dtype), out.f8_largest().unwrap_or(1.0)].map(|v| b.scalar(dtype, v));
    let mut emit = |op: Op, operands: &[Value]| b.plain(&op, operands).map(Value::from);
    let magnitudes = emit(Op::unary(UnaryOp::Abs), &[x])?;
    let fold = Op::Reduce {
        op: ReduceOp::Max,
        axes: (0..rank).collect(),
        keep_dims: false,
    };
    let most = emit(fold, &[magnitudes])?;
    let most = emit(Op::binary(BinaryOp::Max), &[most, least])?;
    let scale = emit(Op::binary(BinaryOp::Div), &[most, largest])?;
    let scale = emit(Op::View(View::Reshape(vec![Dim::Const(1); rank].into())), &[scale])?;
    let quantize = Op::Composite(Composite::Quantize { out });
    Ok((emit(quantize, &[x, scale])?, scale))
}

/// The integers, scale and zero point of ONNX's `DynamicQuantizeLinear`.
fn dynamic(b: &mut Builder<'_>, x: Value) -> Result<(Value, Value, Value), PassFault> {
    let (dtype, rank) = (b.ty(x).dtype, b.ty(x).rank());
    let mut emit = |op: Op, operands: &[Value]| b.plain(&op, operands).map(Value::from);
    let fold = |op| Op::Reduce {
        op,
        axes: (0..rank).collect(),
        keep_dims: false,
    };
    let (high, low) = (emit(fold(ReduceOp::Max), &[x])?, emit(fold(ReduceOp::Min), &[x])?);
    let [nothing, steps, most] = [0.0, 255.0, 255.0].map(|v| b.scalar(dtype, v));
    let mut emit = |op: Op, operands: &[Value]| b.plain(&op, operands).map(Value::from);
    let high = emit(Op::binary(BinaryOp::Max), &[high, nothing])?;
    let low = emit(Op::binary(BinaryOp::Min), &[low, nothing])?;
    let span = emit(Op::binary(BinaryOp::Sub), &[high, low])?;
    let scale = emit(Op::binary(BinaryOp::Div), &[span, steps])?;
    let lowest = emit(Op::unary(UnaryOp::Neg), &[low])?;
    let zero = emit(Op::binary(BinaryOp::Div), &[lowest, scale])?;
    let zero = emit(Op::unary(UnaryOp::Round), &[zero])?;
    let zero = emit(Op::binary(BinaryOp::Max), &[zero, nothing])?;
    let zero = emit(Op::binary(BinaryOp::Min), &[zero, most])?;
    let zero = emit(Op::cast(DType::U8), &[zero])?;
    let ones = || Op::View(View::Reshape(vec![Dim::Const(1); rank].into()));
    let (scale, zero) = (emit(ones(), &[scale])?, emit(ones(), &[zero])?);
    let quantize = Op::Composite(Composite::Quantize { out: DType::U8 });
    Ok((emit(quantize, &[x, scale, zero])?, scale, zero))
}
