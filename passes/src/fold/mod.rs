//! Constant folding.
//!
//! Results come from the reference evaluator, so folding cannot disagree with it, or from fast native paths (views, f32
//! arithmetic). Ops whose work grows as their operands do are evaluated up to [`LARGE`] elements, so that what is made
//! of weights alone (weights that are standardised, scaled, normalised) is not made anew in each run; others only where
//! they are small. [`precompute`](crate::precompute) has the rest evaluated. Nothing is folded that grows: a broadcast
//! stays a view, and what is quantised stays so.

pub mod native;

use ir::graph::eval::array::Array;
use ir::graph::eval::eval_op;
use ir::op::{Composite, Elementwise, View};
use ir::{Bindings, Dim, HostTensor, Op, TensorType, Value};

use crate::error::PassFault;
use crate::flops;
use crate::options::OptimizeOptions;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

/// Results of up to this many elements go through the evaluator.
const SMALL: usize = 1 << 14;
/// Ops whose work is about that of reading their operands go through the evaluator up to this many elements of those: a
/// second or so.
const LARGE: usize = 1 << 26;
/// Products of small operands go through the evaluator up to this many operations; windows up to as many elements.
const WORK: i64 = 1 << 25;
/// Results of up to this many elements may be larger than what they are made of.
const TINY: usize = 256;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold",
    run: |graph, context| {
        let rules = with_simplify(context.options);
        let mut builder = Builder::new(graph, "fold").with_rules(rules, context.options);
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// Folding and the clean-up rules that the options allow.
pub(crate) fn with_simplify(options: &OptimizeOptions) -> Vec<Rule> {
    let fold = options.enabled(RULE.name).then_some(RULE);
    fold.into_iter().chain(crate::simplify::enabled(options)).collect()
}

/// Folds an op on constants.
pub const RULE: Rule = Rule {
    name: "fold_constants",
    apply: fold,
};

fn fold(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if x.is_empty() || x.iter().any(|v| b.as_constant(*v).is_none()) {
        return dim_value(b, op);
    }
    let foldable = match op {
        Op::Elementwise(_) | Op::Reduce { .. } | Op::View(_) | Op::Gather(_) | Op::Contract(_) | Op::Scan { .. } => {
            true
        }
        // Numbers take up to eight times the bytes of what they are made of.
        Op::Composite(Composite::Dequantize { .. }) => false,
        Op::Composite(_) | Op::Scatter(_) | Op::Conv(_) | Op::Pool(_) => true,
        Op::Input { .. }
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::DimValue(_)
        | Op::TopK { .. }
        | Op::Random { .. }
        | Op::Call(_) => false,
    };
    if !foldable {
        return Ok(None);
    }
    let Ok(types) = b.graph().infer(op, x) else {
        return Ok(None);
    };
    let [ty] = types.as_slice() else { return Ok(None) };
    let Some(shape) = ty.shape.as_consts() else {
        return Ok(None);
    };
    let shape: Vec<usize> = shape.into_iter().map(|d| d.max(0) as usize).collect();
    let elements: usize = shape.iter().product();
    let tensors: Vec<&HostTensor> = x.iter().filter_map(|v| b.as_constant(*v)).collect();
    let read: usize = tensors.iter().map(|t| t.elements()).sum();
    if elements > read.max(TINY) {
        return Ok(None);
    }
    let made = match fast(op, &tensors, &shape) {
        Some(t) => Some(t),
        None if elements <= SMALL && read <= 4 * SMALL && work(b, op, x, &types) <= WORK => evaluate(op, &tensors),
        None if read <= LARGE && is_linear(op) && keeps_bytes(ty.dtype, elements, &tensors) => evaluate(op, &tensors),
        None => None,
    };
    Ok(made
        .filter(|t| t.shape == shape && t.dtype == ty.dtype)
        .map(|t| b.constant(t)))
}

/// The operations of products, and the elements that windows read, which may be many more than there are of either end.
fn work(b: &Builder<'_>, op: &Op, x: &[Value], results: &[TensorType]) -> i64 {
    let operands: Vec<&TensorType> = x.iter().map(|v| b.ty(*v)).collect();
    let work = flops::product(op, &operands, results).or_else(|| flops::windows(op, results));
    work.unwrap_or(Dim::Const(0)).as_const().unwrap_or(i64::MAX)
}

/// Whether an op does little for each element that it reads. Views do nothing: they stay views.
fn is_linear(op: &Op) -> bool {
    match op {
        Op::Elementwise(_) | Op::Reduce { .. } | Op::Gather(_) | Op::Scatter(_) | Op::Scan { .. } => true,
        Op::Composite(composite) => !matches!(composite, Composite::Attention { .. } | Composite::Dequantize { .. }),
        _ => false,
    }
}

/// Whether a result takes no more bytes than what it is made of, and there is memory to evaluate it with: numbers of
/// the evaluator have eight bytes, in operands, results and what is between.
fn keeps_bytes(dtype: ir::DType, elements: usize, operands: &[&HostTensor]) -> bool {
    let bytes: usize = operands.iter().map(|t| t.bytes.len()).sum();
    let read: usize = operands.iter().map(|t| t.elements()).sum();
    let evaluated = (2 * read + 2 * elements) as u64 * 8;
    dtype.bytes_for(elements) <= bytes && ir::memory::check(evaluated, String::new).is_ok()
}

/// Evaluates an op of one result by its meaning; an op that these numbers make meaningless is left alone.
fn evaluate(op: &Op, x: &[&HostTensor]) -> Option<HostTensor> {
    let arrays: Vec<Array> = x.iter().map(|t| Array::from_tensor(t)).collect();
    let operands: Vec<&Array> = arrays.iter().collect();
    let results = eval_op(op, &operands, &Bindings::new()).ok()?;
    results.first()?.to_tensor().ok()
}

/// A size that is a number.
fn dim_value(b: &mut Builder<'_>, op: &Op) -> Result<Option<Value>, PassFault> {
    match op {
        Op::DimValue(d) => Ok(d.as_const().map(|v| b.scalar(ir::DType::I64, v as f64))),
        _ => Ok(None),
    }
}

/// Native paths for constants of any size.
fn fast(op: &Op, x: &[&HostTensor], shape: &[usize]) -> Option<HostTensor> {
    match op {
        Op::View(View::Reshape(_)) => native::reshape(x[0], shape.to_vec()),
        Op::View(View::Transpose(perm)) => native::permute(x[0], perm),
        Op::View(View::Concat { axis }) => native::concat(x, *axis),
        Op::View(View::Slice { starts, sizes, steps }) => {
            let whole = |i: usize| steps[i] == 1 && starts[i].is(0) && sizes[i].is(x[0].shape[i] as i64);
            let rows = !shape.is_empty() && steps[0] == 1 && (1..shape.len()).all(whole);
            let start = starts.first()?.as_const()?;
            rows.then(|| native::leading_rows(x[0], usize::try_from(start).ok()?, shape[0]))?
        }
        Op::Elementwise(Elementwise::Binary(op)) if shape.iter().product::<usize>() > 64 => {
            native::binary(*op, x[0], x[1])
        }
        Op::Elementwise(Elementwise::Cast(to)) => native::round_f32(x[0], *to),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ir::graph::parse::parse;
    use ir::{Graph, Target};

    use super::*;
    use crate::optimize;

    fn optimized(body: &str) -> Graph {
        let graph = parse(&format!("graph @g stage=import {{\n{body}}}\n")).expect("parses");
        let (graph, _) = optimize(graph, &Target::cpu(), &OptimizeOptions::default()).expect("optimises");
        graph
    }

    /// The nodes that are computed in every run though nothing of the run reaches them.
    fn of_constants_alone(graph: &Graph) -> Vec<String> {
        let mut constant: ir::Table<ir::NodeId, bool> = ir::Table::new();
        let mut found = Vec::new();
        for node in graph.nodes().values() {
            let is = match node.op {
                Op::Constant(_) => true,
                Op::Input { .. } => false,
                _ => node.operands.iter().all(|v| constant[v.node]),
            };
            if is && !matches!(node.op, Op::Constant(_) | Op::View(_)) {
                found.push(node.op.name().to_owned());
            }
            constant.push(is);
        }
        found
    }

    #[test]
    fn weights_that_are_standardised_are_so_once() {
        let graph = optimized(
            "  x = input \"x\" : f32[4, 512]
  w = constant random(seed=1) : f32[256, 512]
  mean = reduce w {op=mean, axes=[1], keep_dims}
  off = sub w, mean
  square = mul off, off
  variance = reduce square {op=mean, axes=[1], keep_dims}
  small = constant 1e-5 : f32[]
  above = add variance, small
  deviation = sqrt above
  scaled = div off, deviation
  turned = transpose scaled {perm=[1, 0]}
  y = contract x, turned
  return y as \"y\"
",
        );
        assert_eq!(of_constants_alone(&graph), Vec::<String>::new(), "{graph}");
    }

    #[test]
    fn what_would_take_more_bytes_stays() {
        let graph = optimized(
            "  x = input \"x\" : f32[256, 512]
  w = constant random(seed=1, scale=100) : i8[256, 512]
  wide = cast w : f32[256, 512]
  y = mul x, wide
  return y as \"y\"
",
        );
        assert_eq!(of_constants_alone(&graph), ["cast"], "{graph}");
    }
}
