//! Large sums over the ranks are made in halves: while one half is on its way, the other is computed.
//!
//! ```text
//! n4 = contract n3, W[4096, 4096]         n4 = contract n3[:16], W        n5 = contract n3[16:], W
//! n5 = rccl_all_reduce n4          ->     n6 = rccl_all_reduce n4         n7 = rccl_all_reduce n5
//! n6 = rms_norm n5                        n8 = rms_norm n6                n9 = rms_norm n7
//! ```
//!
//! Before: one rank's graph with its collectives. After: the same function, in which a product whose sum takes long is
//! computed for each half of its rows, with all that follows and can be computed so; [`ways`] knows what can. Halves
//! are joined where something reads them whole. The schedule orders what does not wait for a collective before what
//! does (`order`), and the plan gives collectives a lane of their own. (Serving systems overlap two micro-batches so:
//! DeepSeek-V3's inference, vLLM's dual batch overlap. Here it is done to any graph.)

use std::collections::HashMap;

use ir::library::CollectiveKind;
use ir::op::{Elementwise, View};
use ir::{Dim, Graph, NodeId, Op, Origin, Shape, Table, Target, TensorType, Value};
use smallvec::{SmallVec, smallvec};

use super::emit::local;
use super::layout::{Layout, Way, ways};
use super::{Halves as Which, ShardError, ShardOptions};
use crate::cost::CostModel;

/// A sum goes in halves where it is on its way so many times as long as a collective takes at least: each half takes
/// that too.
const WORTH: f64 = 2.0;
/// How many parts a half is one of.
const PARTS: i64 = 2;

/// A rank's graph, and how many of its sums are made in halves.
pub(super) struct Halved {
    pub graph: Graph,
    pub sums: usize,
}

/// Splits a rank's large sums. All ranks' graphs are split alike: nothing here looks at a constant's bytes.
pub(super) fn halve(old: Graph, target: &Target, options: &ShardOptions) -> Result<Halved, ShardError> {
    let begins = match options.halves {
        Which::Never => Table::new(),
        Which::Auto | Which::Always => begins(&old, target, options),
    };
    if begins.values().all(Option::is_none) {
        return Ok(Halved { graph: old, sums: 0 });
    }
    let mut graph = Graph::new(old.name.clone());
    graph.stage = old.stage;
    graph.set_sizes_of(&old);
    let halver = Halver {
        old: &old,
        begins,
        graph,
        whole: HashMap::new(),
        halves: HashMap::new(),
        taken: HashMap::new(),
        origin: Origin::Unknown,
        sums: 0,
    };
    halver.graph()
}

/// The products that are computed in halves of an axis though nothing that they read is.
fn begins(graph: &Graph, target: &Target, options: &ShardOptions) -> Table<NodeId, Option<usize>> {
    let mut begins: Table<NodeId, Option<usize>> = graph.nodes().keys().map(|_| None).collect();
    let model = CostModel {
        target,
        symbols: graph.symbols(),
        computed_in: None,
    };
    let readers = graph.users();
    let is_output = |id: NodeId| graph.outputs().iter().any(|output| output.value.node == id);
    for node in graph.nodes().values() {
        let Op::Call(call) = &node.op else { continue };
        let Some(sum) = call.as_collective().filter(|c| c.kind == CollectiveKind::AllReduce) else {
            continue;
        };
        // From the sum back to its product.
        let mut product = node.operands[0].node;
        let alone = |id: NodeId| readers[id].len() == 1 && !is_output(id);
        while alone(product)
            && let Op::Elementwise(Elementwise::Unary(_) | Elementwise::Cast(_)) = graph.node(product).op
        {
            product = graph.node(product).operands[0].node;
        }
        let made = graph.node(product);
        if !alone(product) || !matches!(made.op, Op::Contract(_)) {
            continue;
        }
        let ranks = f64::from(sum.ranks);
        let bytes = model.bytes(graph.ty(node.operands[0]));
        let travels = 2.0 * bytes * (ranks - 1.0) / ranks / (options.bus_gbps * 1e3);
        let types: SmallVec<[&TensorType; 4]> = made.operands.iter().map(|v| graph.ty(*v)).collect();
        let ways = ways(&made.op, &types, &made.results, PARTS);
        let rows = ways.iter().filter_map(|way| match (&way.operands[..], way.result) {
            ([Layout::Split(_), Layout::Whole], Layout::Split(axis)) => Some((axis, way)),
            _ => None,
        });
        let Some((axis, way)) = rows.min_by_key(|(axis, _)| *axis) else {
            continue;
        };
        // Half of the rows may read all of the weights.
        let parts: SmallVec<[TensorType; 4]> = (types.iter().zip(&way.operands))
            .map(|(ty, layout)| layout.part(ty, PARTS))
            .collect();
        let half = way.result.part(&made.results[0], PARTS);
        let twice = 2.0 * model.op(&made.op, &parts.iter().collect::<Vec<_>>(), &[half]);
        let longer = twice - model.op(&made.op, &types, &made.results);
        let pays = travels >= WORTH * options.latency_us && longer < travels / 2.0;
        begins[product] = (pays || options.halves == Which::Always).then_some(axis);
    }
    begins
}

/// The two halves of a value along an axis.
#[derive(Clone, Copy)]
struct Halves {
    axis: usize,
    values: [Value; 2],
}

struct Halver<'a> {
    old: &'a Graph,
    begins: Table<NodeId, Option<usize>>,
    graph: Graph,
    /// Each value as it is whole, where it was made or joined so.
    whole: HashMap<Value, Value>,
    /// Each value that was made in halves.
    halves: HashMap<Value, Halves>,
    /// Halves that were taken of a whole, by their axis.
    taken: HashMap<(Value, usize), [Value; 2]>,
    origin: Origin,
    sums: usize,
}

impl Halver<'_> {
    fn graph(mut self) -> Result<Halved, ShardError> {
        let old = self.old;
        for input in old.inputs() {
            let node = old.node(input.node);
            let value = self
                .graph
                .add_input(input.name.clone(), node.results[0].clone(), node.origin.clone());
            self.whole.insert(input.node.into(), value);
        }
        for (id, node) in old.nodes().iter() {
            self.origin = node.origin.clone();
            match node.op {
                Op::Input { .. } => continue,
                Op::Constant(constant) => {
                    let constant = &old.constants()[constant];
                    let (name, tensor) = (constant.name.clone(), constant.tensor.clone());
                    let value = self.graph.add_constant(name, tensor, node.origin.clone());
                    self.whole.insert(id.into(), value);
                    continue;
                }
                _ => {}
            }
            match self.way(id) {
                Some(way) => self.in_halves(id, &way)?,
                None => {
                    let operands: SmallVec<[Value; 4]> = node
                        .operands
                        .iter()
                        .map(|value| self.whole(*value))
                        .collect::<Result<_, _>>()?;
                    let made = self.add(node.op.clone(), &operands)?;
                    for index in 0..node.results.len() as u32 {
                        self.whole.insert(Value::new(id, index), Value::new(made, index));
                    }
                }
            }
        }
        for output in old.outputs() {
            let value = self.whole(output.value)?;
            self.graph.add_output_like(output, value);
        }
        Ok(Halved {
            graph: crate::dce::sweep(self.graph),
            sums: self.sums,
        })
    }

    /// How a node is computed in halves: as what it reads was made, or as a product that begins them.
    fn way(&self, id: NodeId) -> Option<Way> {
        let node = self.old.node(id);
        if let Op::Call(call) = &node.op {
            // A sum is one of each number.
            call.as_collective().filter(|c| c.kind == CollectiveKind::AllReduce)?;
            let layout = Layout::Split(self.halves.get(&node.operands[0])?.axis);
            return Some(Way {
                operands: smallvec![layout],
                result: layout,
            });
        }
        let reads_halves = node.operands.iter().any(|value| self.halves.contains_key(value));
        if !reads_halves && self.begins[id].is_none() {
            return None;
        }
        let types: SmallVec<[&TensorType; 4]> = node.operands.iter().map(|v| self.old.ty(*v)).collect();
        ways(&node.op, &types, &node.results, PARTS).into_iter().find(|way| {
            let operands = || node.operands.iter().zip(&way.operands);
            // Nothing is joined to be taken apart.
            let fits = |(value, layout): (&Value, &Layout)| match (self.halves.get(value), *layout) {
                (Some(halves), Layout::Split(axis)) if halves.axis == axis => true,
                (halves, Layout::Split(_) | Layout::Whole) => halves.is_none() || self.whole.contains_key(value),
                (_, Layout::Partial | Layout::Cover { .. }) => false,
            };
            let goes_on = |(value, layout): (&Value, &Layout)| {
                let made = self.halves.get(value);
                made.is_some_and(|halves| *layout == Layout::Split(halves.axis))
            };
            let Layout::Split(axis) = way.result else { return false };
            let begins = self.begins[id] == Some(axis) && way.operands.get(1) == Some(&Layout::Whole);
            operands().all(fits) && (begins || operands().any(goes_on))
        })
    }

    fn in_halves(&mut self, id: NodeId, way: &Way) -> Result<(), ShardError> {
        let node = self.old.node(id);
        let Layout::Split(axis) = way.result else { return Ok(()) };
        self.sums += usize::from(matches!(node.op, Op::Call(_)));
        let op = local(&node.op, way, PARTS);
        let mut operands: [SmallVec<[Value; 4]>; 2] = Default::default();
        for (value, layout) in node.operands.iter().zip(&way.operands) {
            let both = match layout {
                Layout::Split(axis) => self.parts(*value, *axis)?,
                _ => [self.whole(*value)?; 2],
            };
            for (list, value) in operands.iter_mut().zip(both) {
                list.push(value);
            }
        }
        let [first, second] = &operands;
        let values = [self.add(op.clone(), first)?.into(), self.add(op, second)?.into()];
        self.halves.insert(id.into(), Halves { axis, values });
        Ok(())
    }

    /// Both halves of a value; taken of it, where it is whole.
    fn parts(&mut self, value: Value, axis: usize) -> Result<[Value; 2], ShardError> {
        if let Some(halves) = self.halves.get(&value).filter(|halves| halves.axis == axis) {
            return Ok(halves.values);
        }
        if let Some(taken) = self.taken.get(&(value, axis)) {
            return Ok(*taken);
        }
        let whole = self.whole(value)?;
        let shape = self.old.ty(value).shape.clone();
        let Dim::Const(size) = shape[axis] else {
            return Err(ShardError::Layout {
                origin: self.origin.clone(),
                from: shape.to_string(),
                to: format!("halves of axis {axis}"),
            });
        };
        let take = |from: i64| {
            let mut starts = vec![Dim::Const(0); shape.rank()];
            let Shape(mut sizes) = shape.clone();
            (starts[axis], sizes[axis]) = (Dim::Const(from), Dim::Const(size / PARTS));
            let steps = vec![1; shape.rank()];
            Op::View(View::Slice { starts, sizes, steps })
        };
        let (first, second) = (take(0), take(size / PARTS));
        let values = [self.add(first, &[whole])?.into(), self.add(second, &[whole])?.into()];
        self.taken.insert((value, axis), values);
        Ok(values)
    }

    /// A value as a whole; joined, where it was made in halves.
    fn whole(&mut self, value: Value) -> Result<Value, ShardError> {
        if let Some(whole) = self.whole.get(&value) {
            return Ok(*whole);
        }
        let Some(Halves { axis, values }) = self.halves.get(&value).copied() else {
            return Err(ShardError::Layout {
                origin: self.origin.clone(),
                from: format!("{value}, not made yet"),
                to: "a whole".to_owned(),
            });
        };
        let joined = self.add(Op::View(View::Concat { axis }), &values)?.into();
        self.whole.insert(value, joined);
        Ok(joined)
    }

    fn add(&mut self, op: Op, operands: &[Value]) -> Result<NodeId, ShardError> {
        let added = self.graph.add(op, operands, self.origin.clone());
        added.map_err(|error| ShardError::Infer(Box::new(error)))
    }
}
