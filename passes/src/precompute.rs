//! Values made of constants alone that folding leaves are computed once, when the model is compiled.
//!
//! ```text
//! contract x, (contract w1, w2)     becomes     contract x, w
//! ```
//!
//! Before: the graph as cleaned up, with what the reference evaluator folds in little time. After: what a run computes
//! depends on its inputs, on open sizes or on random numbers, but for results that would take more memory than the
//! constants that they are made of (broadcasts, casts to wider types, weights that are dequantised): the kernels that
//! read those make them on the way.
//!
//! The numbers come from the caller's [`Evaluator`]; without one, nothing is changed.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use ir::op::Composite;
use ir::{Bindings, Dim, Graph, HostTensor, NodeId, Op, Table, TensorType, Value};

use crate::flops;
use crate::options::Evaluator;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The name of the pass.
pub const NAME: &str = "precompute";
/// The names of what is reported.
pub const COMPUTED: &str = "computed_once";
pub const LEFT: &str = "computed_in_each_run";

/// Constants of more elements are inputs of what is evaluated, so that nobody looks into them twice.
const LARGE: usize = 1 << 14;
/// The most work, in elements that are read or made, that is done for values of small constants: a second or so. A size
/// in a file can ask for any amount.
const WORK: f64 = (1u64 << 28) as f64;
/// How often each element of larger constants may be read.
const PASSES: f64 = 64.0;
/// Operations of products that take about as long as one element of other ops.
const PRODUCT: f64 = 256.0;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let mut builder = Builder::new(graph, NAME);
        if let Some(evaluator) = &context.options.evaluator {
            let values = Found::new(graph).values;
            let results = match values.is_empty() {
                true => Ok(Vec::new()),
                false => evaluate(graph, &values, evaluator),
            };
            match results {
                Ok(results) => {
                    for (value, result) in values.iter().zip(results) {
                        let origins = vec![graph.node(value.node).origin.clone()];
                        builder.origin = origins[0].clone();
                        let constant = builder.constant(result);
                        builder.set(value.node, constant);
                        builder.note(COMPUTED, origins, None, None);
                    }
                }
                Err(reason) => {
                    let origin = |value: &Value| graph.node(value.node).origin.clone();
                    builder.note(LEFT, values.iter().map(origin).collect(), None, Some(reason));
                }
            }
        }
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// The values that are computed once, in the order of the graph.
struct Found<'g> {
    graph: &'g Graph,
    /// Whether nothing of a run reaches a node.
    constant: Table<NodeId, bool>,
    seen: BTreeSet<Value>,
    values: BTreeSet<Value>,
}

impl<'g> Found<'g> {
    fn new(graph: &'g Graph) -> Found<'g> {
        let mut constant: Table<NodeId, bool> = Table::new();
        for node in graph.nodes().values() {
            let is = !is_of_a_run(&node.op)
                && node.results.iter().all(|ty| ty.shape.as_consts().is_some())
                && node.operands.iter().all(|v| constant[v.node]);
            constant.push(is);
        }
        let mut found = Found {
            graph,
            constant,
            seen: BTreeSet::new(),
            values: BTreeSet::new(),
        };
        // A model of constants alone stays what it is: nothing is saved.
        for node in graph.nodes().values() {
            let of_a_run = node.operands.iter().any(|v| !found.constant[v.node]);
            node.operands.iter().filter(|_| of_a_run).for_each(|v| found.offer(*v));
        }
        found
    }

    /// Takes a value that runs read, or what is worth it of what it is made of.
    fn offer(&mut self, value: Value) {
        let mut offered = vec![value];
        while let Some(value) = offered.pop() {
            let node = self.graph.node(value.node);
            if !self.constant[value.node] || matches!(node.op, Op::Constant(_)) || !self.seen.insert(value) {
                continue;
            }
            if node.results.len() == 1 && Cone::of(self.graph, value.node).is_worth_keeping(self.graph, value) {
                self.values.insert(value);
            } else {
                offered.extend(&node.operands);
            }
        }
    }
}

/// Whether an op gives something else in each run, whatever its operands.
fn is_of_a_run(op: &Op) -> bool {
    let mut open = false;
    op.for_each_dim(|dim| open |= dim.as_const().is_none());
    open || matches!(op, Op::Input { .. } | Op::Random { .. } | Op::Call(_))
}

/// A node with all that it is made of.
struct Cone {
    nodes: BTreeSet<NodeId>,
}

impl Cone {
    fn of(graph: &Graph, node: NodeId) -> Cone {
        let mut nodes = BTreeSet::new();
        let mut next = vec![node];
        while let Some(id) = next.pop() {
            if nodes.insert(id) {
                next.extend(graph.node(id).operands.iter().map(|v| v.node));
            }
        }
        Cone { nodes }
    }

    /// Whether a value saves work in each run and takes no more memory than what it is made of, or, where a kernel of
    /// its own would store it in each run, twice as much.
    fn is_worth_keeping(&self, graph: &Graph, value: Value) -> bool {
        let ops = || self.nodes.iter().map(|id| &graph.node(*id).op);
        if ops().all(|op| matches!(op, Op::Constant(_) | Op::View(_) | Op::Iota { .. })) {
            return false;
        }
        // Products read quantised weights as they are.
        let is_quantised = |op: &Op| matches!(op, Op::Composite(Composite::Dequantize { .. }));
        if ops().any(is_quantised) && !ops().any(is_stored) {
            return false;
        }
        let constants: BTreeSet<_> = ops()
            .filter_map(|op| if let Op::Constant(id) = op { Some(*id) } else { None })
            .collect();
        let bytes = |t: &HostTensor| t.bytes.len();
        let made_of: usize = constants.iter().map(|id| bytes(&graph.constants()[*id].tensor)).sum();
        let ty = graph.ty(value);
        let elements = ty
            .shape
            .as_consts()
            .unwrap_or_default()
            .iter()
            .try_fold(1usize, |n, size| {
                usize::try_from(*size).ok().and_then(|size| n.checked_mul(size))
            });
        let most = if ops().any(is_stored) {
            made_of.saturating_mul(2)
        } else {
            made_of
        };
        let constants = constants.iter().map(|id| graph.constants()[*id].tensor.elements());
        let allowed = WORK.max(PASSES * constants.sum::<usize>() as f64);
        elements.is_some_and(|elements| elements > 0 && ty.dtype.bytes_for(elements) <= most)
            && self.work(graph) <= allowed
    }

    /// What evaluating takes, in elements that are read or made; views are made where they are read.
    fn work(&self, graph: &Graph) -> f64 {
        let sizes = Bindings::new();
        let known = |size: Dim| size.eval(&sizes).map_or(f64::INFINITY, |n| n as f64);
        let of_node = |id: &NodeId| {
            let node = graph.node(*id);
            if matches!(node.op, Op::Constant(_) | Op::View(_)) {
                return 0.0;
            }
            let operands: Vec<&TensorType> = node.operands.iter().map(|v| graph.ty(*v)).collect();
            let moved = operands.iter().copied().chain(&node.results);
            let moved = moved.map(|ty| known(ty.elements())).sum::<f64>();
            let flops = flops::product(&node.op, &operands, &node.results).map_or(0.0, known);
            let windows = flops::windows(&node.op, &node.results).map_or(0.0, known);
            moved + windows + flops / PRODUCT
        };
        self.nodes.iter().map(of_node).sum()
    }
}

/// Whether an op is no part of the kernel that reads its result.
fn is_stored(op: &Op) -> bool {
    match op {
        Op::Reduce { .. }
        | Op::Contract(_)
        | Op::Conv(_)
        | Op::Pool(_)
        | Op::Scan { .. }
        | Op::Scatter(_)
        | Op::TopK { .. } => true,
        Op::Composite(composite) => !matches!(composite, Composite::Dequantize { .. } | Composite::Quantize { .. }),
        Op::Elementwise(_)
        | Op::View(_)
        | Op::Gather(_)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Input { .. }
        | Op::DimValue(_)
        | Op::Random { .. }
        | Op::Call(_) => false,
    }
}

/// Has a graph evaluated that has the values as outputs, and large constants as inputs.
fn evaluate(graph: &Graph, values: &BTreeSet<Value>, evaluator: &Evaluator) -> Result<Vec<HostTensor>, String> {
    let nodes: BTreeSet<NodeId> = values.iter().flat_map(|v| Cone::of(graph, v.node).nodes).collect();
    let mut part = Graph::new(format!("constants of {}", graph.name));
    let mut inputs: IndexMap<String, HostTensor> = IndexMap::new();
    let mut map: IndexMap<NodeId, NodeId> = IndexMap::new();
    for id in nodes {
        let node = graph.node(id);
        let made = match &node.op {
            Op::Constant(constant) => {
                let constant = &graph.constants()[*constant];
                if constant.tensor.elements() > LARGE {
                    let name = id.to_string();
                    inputs.insert(name.clone(), constant.tensor.clone());
                    part.add_input(name, node.results[0].clone(), node.origin.clone()).node
                } else {
                    let tensor = constant.tensor.clone();
                    part.add_constant(constant.name.clone(), tensor, node.origin.clone())
                        .node
                }
            }
            op => {
                let operands: Vec<Value> = (node.operands.iter())
                    .map(|v| Value::new(map[&v.node], v.index))
                    .collect();
                part.push(op.clone(), &operands, node.results.iter().cloned(), node.origin.clone())
            }
        };
        map.insert(id, made);
    }
    for value in values {
        part.add_output(value.to_string(), Value::new(map[&value.node], value.index));
    }
    let results = evaluator(part, &inputs)?;
    let fits = |(value, result): (&Value, &HostTensor)| {
        let ty = graph.ty(*value);
        let shape = result.shape.iter().map(|size| *size as i64);
        ty.dtype == result.dtype && ty.shape.as_consts().is_some_and(|sizes| shape.eq(sizes))
    };
    match results.len() == values.len() && values.iter().zip(&results).all(fits) {
        true => Ok(results),
        false => Err("the results have other types than the values".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ir::Target;
    use ir::graph::parse::parse;

    use super::*;
    use crate::optimize;
    use crate::options::OptimizeOptions;
    use crate::report::OptimizeReport;

    fn optimized(body: &str, evaluator: Evaluator) -> (Graph, OptimizeReport) {
        let graph = parse(&format!("graph @g stage=import {{\n{body}}}\n")).expect("parses");
        let options = OptimizeOptions {
            evaluator: Some(evaluator),
            ..OptimizeOptions::default()
        };
        optimize(graph, &Target::cpu(), &options).expect("optimises")
    }

    fn reference() -> Evaluator {
        Arc::new(|graph, inputs| {
            let outputs = ir::graph::eval::evaluate(&graph, inputs).map_err(|error| error.to_string())?;
            Ok(outputs.into_values().collect())
        })
    }

    /// Sizes in a file ask for any amount of work, of constants of a few bytes: it is left to the runs, which may be a
    /// GPU's, and said. Work in proportion to weights is done.
    #[test]
    fn work_without_end_is_not_done() {
        let never: Evaluator = Arc::new(|graph, _| panic!("{graph}"));
        for (op, made) in [
            (
                "contract",
                "c = constant 1.5 : f32[]
  a = broadcast c : f32[32768, 32768]
  p = contract a, a
  s = reduce p {op=sum, axes=[0, 1]}",
            ),
            (
                "scan",
                "c = iota {axis=0} : f32[1073741824]
  a = scan c {op=sum, axis=0}
  s = reduce a {op=max, axes=[0]}",
            ),
            (
                "conv",
                "c = iota {axis=1} : f32[4096, 4096]
  a = reshape c : f32[1, 1, 4096, 4096]
  w = constant random(seed=1) : f32[8, 1, 31, 31]
  p = conv a, w
  s = reduce p {op=max, axes=[0, 1, 2, 3]}",
            ),
        ] {
            let body = format!("  x = input \"x\" : f32[4]\n  {made}\n  y = add x, s\n  return y as \"y\"\n");
            let (graph, _) = optimized(&body, never.clone());
            let left = ops(&graph);
            assert!(left.contains(&op) && left.contains(&"reduce"), "{graph}");
        }
        // What is made of copies alone takes no work.
        let body = "  x = input \"x\" : f32[4]
  c = constant 1.5 : f32[]
  a = broadcast c : f32[1073741824]
  s = reduce a {op=sum, axes=[0]}
  y = add x, s
  return y as \"y\"\n";
        let (graph, _) = optimized(body, never);
        assert_eq!(ops(&graph), ["add"], "{graph}");
    }

    /// The ops but for constants and views, in order.
    fn ops(graph: &Graph) -> Vec<&'static str> {
        let left = graph
            .nodes()
            .values()
            .filter(|n| !matches!(n.op, Op::Constant(_) | Op::Input { .. } | Op::View(_)));
        left.map(|n| n.op.name()).collect()
    }

    const PRODUCT: &str = "  x = input \"x\" : f32[4, 160]
  w1 = constant random(seed=1) : f32[160, 64]
  w2 = constant random(seed=2) : f32[64, 160]
  w = contract w1, w2
  s = sin w
  y = contract x, s
  return y as \"y\"
";

    #[test]
    fn products_of_constants_are_computed_once() {
        let (graph, report) = optimized(PRODUCT, reference());
        assert_eq!(ops(&graph), ["contract"], "{graph}");
        assert_eq!(report.fired.iter().filter(|f| f.used(COMPUTED)).count(), 1);
    }

    #[test]
    fn graphs_stay_whole_where_the_evaluator_fails() {
        let (graph, report) = optimized(PRODUCT, Arc::new(|_, _| Err("no memory".to_owned())));
        assert_eq!(ops(&graph), ["contract", "sin", "contract"], "{graph}");
        let left: Vec<_> = report.fired.iter().filter(|f| f.used(LEFT)).collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].note.as_deref(), Some("no memory"));
    }

    #[test]
    fn results_that_take_more_memory_are_made_in_each_run_of_what_takes_less() {
        let (graph, _) = optimized(
            "  x = input \"x\" : f32[160, 160]
  w1 = constant random(seed=1) : f32[160, 32]
  w2 = constant random(seed=2) : f32[32, 160]
  w = contract w1, w2
  small = cast w : i8[160, 160]
  wide = cast small : f32[160, 160]
  y = mul x, wide
  return y as \"y\"
",
            reference(),
        );
        assert_eq!(ops(&graph), ["cast", "mul"], "{graph}");
    }

    #[test]
    fn open_sizes_and_random_numbers_stay() {
        let (graph, _) = optimized(
            "  x = input \"x\" : f32[S, 160]
  w = constant random(seed=1) : f32[300, 160]
  some = slice w {starts=[S, 0], sizes=[9, 160], steps=[1, 1]}
  sines = sin some
  most = reduce sines {op=max, axes=[0]}
  y = add x, most
  return y as \"y\"
",
            reference(),
        );
        assert_eq!(ops(&graph), ["sin", "reduce", "add"], "{graph}");
    }
}
