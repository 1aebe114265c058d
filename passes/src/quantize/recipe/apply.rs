//! Makes a graph what a recipe says.
//!
//! Before: layers multiply by constants of numbers. After: those of the recipe multiply by `dequantize` of stored integers, and what is
//! multiplied by them is quantised and dequantised where the recipe says so; nothing else has changed. What ONNX's operators of the same
//! names mean is what is made here, so that a file and a graph of one recipe are one model.

use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp, View};
use ir::recipe::{Activation, Layer, Recipe, Stored};
use ir::{DType, Dim, Graph, NodeId, Op, Value};

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

/// Returns the graph with, for each layer of the recipe, two more outputs: the layer's result as it is, and as it is when this layer alone
/// is quantised. Their names are `{prefix}{index}.float` and `{prefix}{index}.quantised`; `reduce` makes of both what is given out.
///
/// # Errors
/// As [`apply`], and what `reduce` reports.
pub fn beside(
    graph: &Graph,
    recipe: &Recipe,
    reduce: impl Fn(&mut Builder<'_>, Value, Value) -> Result<Vec<(&'static str, Value)>, PassFault>,
    prefix: &str,
) -> Result<Graph, QuantizeError> {
    let found = layers(graph);
    check(&found, recipe)?;
    let mut b = Builder::new(graph, NAME);
    let mut more = Vec::new();
    for id in graph.nodes().keys() {
        b.copy(id)?;
        if let Some((layer, value)) = quantised(&mut b, &found, recipe, id)? {
            let own = b.value(id.into());
            let index = recipe.layers.iter().position(|l| l.name == layer.name);
            for (what, value) in reduce(&mut b, own, value)? {
                more.push((format!("{prefix}{}.{what}", index.unwrap_or_default()), value));
            }
        }
    }
    Ok(b.finish_with(more, &mut Vec::new()))
}

/// Says whether a graph's layers are those of a recipe, each with a weight that fits.
pub fn is_applied(graph: &Graph, recipe: &Recipe) -> Result<(), QuantizeError> {
    check(&layers(graph), recipe)
}

fn check(found: &Layers, recipe: &Recipe) -> Result<(), QuantizeError> {
    for layer in &recipe.layers {
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
    operands[0] = activation(b, operands[0], layer.activation)?;
    operands[1] = weight(b, found, layer)?;
    b.origin = node.origin.clone();
    Ok(Some((layer, b.plain(&node.op, &operands)?.into())))
}

fn weight(b: &mut Builder<'_>, found: &FoundLayer, layer: &Layer) -> Result<Value, QuantizeError> {
    let stored = layer.weight.store(&found.weight);
    let stored = stored.map_err(|error| QuantizeError::Weight {
        layer: layer.name.clone(),
        error,
    })?;
    let mut operands = vec![b.constant(stored.integers), b.constant(stored.scale)];
    operands.extend(stored.zero.map(|zero| b.constant(zero)));
    let op = Composite::Dequantize {
        groups: layer.weight.groups,
        out: found.weight.dtype,
    };
    Ok(b.plain(&Op::Composite(op), &operands)?.into())
}

fn activation(b: &mut Builder<'_>, x: Value, how: Activation) -> Result<Value, PassFault> {
    let (out, rank) = (b.ty(x).dtype, b.ty(x).rank());
    let (stored, scale, zero) = match how {
        Activation::Float => return Ok(x),
        Activation::Static { dtype, scale, zero } => {
            let scale = b.constant(Stored::single(out, rank, f64::from(scale)));
            let zero = b.constant(Stored::single(dtype, rank, f64::from(zero)));
            let quantize = Op::Composite(Composite::Quantize { out: dtype });
            (b.plain(&quantize, &[x, scale, zero])?.into(), scale, zero)
        }
        Activation::Dynamic => dynamic(b, x)?,
    };
    let dequantize = Op::Composite(Composite::Dequantize { groups: None, out });
    Ok(b.plain(&dequantize, &[stored, scale, zero])?.into())
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
