//! What computes a convolution where measuring or the caller may decide: its kernel, or MIOpen's call and a kernel for
//! what follows.
//!
//! ```text
//! relu(add(conv(x, w), b))    one kernel: conv add relu (x, w, b)
//!                             or miopen_conv(x, w) -> sums; a kernel: add relu (sums, b)
//! ```
//!
//! Before: the region of a convolution, lowered. After: the steps of the one or the other, and the line that rows of
//! measurements know the convolution by ([`Convolution`]). MIOpen's call has no bias and no activation: what follows is
//! a kernel of its own there, which the line names. The sizes that the model leaves open are at their hints, with one
//! exception: a convolution of open images with nothing behind it is decided range by range, as products are
//! ([`super::sizes`]).

use std::collections::HashMap;

use ir::entity::Entity;
use ir::graph::Stage;
use ir::kernel::Kernel;
use ir::library::LibraryCall;
use ir::op::{BinaryOp, Conv, Elementwise, Layout, View};
use ir::plan::{BufferId, StepId, Work};
use ir::schedule::{LaneKind, Region, RegionKind};
use ir::{Dim, Graph, NodeId, Op, Shape, Target, Value};

use super::{Decided, PlanOptions, Planner, Prefer};
use crate::fuse::ScheduleOptions;
use crate::lower::{LowerError, Parts, Total, in_parts, lower};
use crate::route::sized::{Routes, convolution_of};
use crate::tuning::{self, Engine};

/// A convolution of a plan that either a kernel or a call may compute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Convolution {
    /// What rows of measurements know it by.
    pub product: String,
    /// The steps that compute it here and what follows it, one after the other: its time is the sum of theirs.
    pub steps: Vec<StepId>,
    /// The call's name, where it is one here.
    pub call: Option<&'static str>,
    /// The name and the mapping of the kernel that computes it elsewhere or here.
    pub kernel: String,
    pub mapping: String,
}

/// The call that may take the place of a convolution's kernel.
pub(super) struct Rival {
    call: LibraryCall,
    /// The input and the filter, as they are stored.
    operands: Vec<Value>,
    rest: Rest,
    product: String,
    mapping: String,
}

/// What is left of a convolution's region when a call has computed the sums.
enum Rest {
    Nothing,
    /// The kernel, and what it reads: the sums where there is no value.
    Kernel(Box<Kernel>, Vec<Option<Value>>),
}

/// Whether plans choose between the kernels and the calls of convolutions by more than the e-graph's roofline.
pub(super) fn are_decided(options: &PlanOptions) -> bool {
    options.prefer != Prefer::Fastest || options.tuning.has_engines()
}

/// Says whether a region is a convolution with a rival that is decided here.
///
/// # Errors
/// What follows the convolution cannot be lowered.
pub(super) fn has_rival(graph: &Graph, region: &Region, routes: Routes, target: &Target) -> Result<bool, LowerError> {
    match contested(graph, region, routes, target) {
        Some(_) => Ok(rest(graph, region, target)?.is_some()),
        None => Ok(false),
    }
}

/// The call of a region's convolution with its stored operands, where that is decided here and not by ranges of rows.
fn contested(graph: &Graph, region: &Region, routes: Routes, target: &Target) -> Option<(LibraryCall, Vec<Value>)> {
    let (product, operands) = convolution_of(graph, region, routes, target)?;
    let node = graph.node(region.anchor);
    let Op::Conv(conv) = &node.op else { return None };
    let is_alone = region.outputs[..] == [Value::from(region.anchor)] && node.operands.len() == 2;
    let is_open = !super::engines::is_known(&product.rows());
    let by_ranges = is_open && is_alone && !is_depthwise(graph, region.anchor, conv);
    (!by_ranges).then_some((product.call, operands))
}

/// Whether each channel is convolved with a filter of its own, which is no product.
pub(super) fn is_depthwise(graph: &Graph, id: NodeId, conv: &Conv) -> bool {
    let node = graph.node(id);
    let channels = |value: Value| {
        let shape = &graph.ty(value).shape;
        shape[conv.layout.channel_axis(shape.rank())].as_const()
    };
    let groups = Some(conv.groups);
    conv.groups > 1 && channels(node.operands[0]) == groups && channels(id.into()) == groups
}

/// Finds the rival of a region's kernel, and the line of the convolution.
pub(super) fn rival(
    graph: &Graph,
    region: &Region,
    kernel: &Kernel,
    options: &PlanOptions,
    target: &Target,
) -> Result<Option<Rival>, LowerError> {
    let Some((call, operands)) = contested(graph, region, options.routes, target) else {
        return Ok(None);
    };
    let Some(rest) = rest(graph, region, target)? else {
        return Ok(None);
    };
    let of_kernel = match tuning::open_rows(kernel, graph.symbols(), target) {
        None => tuning::product(kernel, graph.symbols(), target),
        Some((rows, firsts)) => {
            let rows = rows.hint(graph.symbols());
            let from = firsts.iter().rfind(|from| **from <= rows).or(firsts.first());
            from.and_then(|from| tuning::product_in(kernel, graph.symbols(), target, *from))
        }
    };
    Ok(Some(Rival {
        product: of_kernel.unwrap_or_else(|| line(graph, region, target)),
        call,
        operands,
        rest,
        mapping: kernel.mapping.to_string(),
    }))
}

/// The line of a convolution whose kernel is no product: what the choice between it and a call depends on.
fn line(graph: &Graph, region: &Region, target: &Target) -> String {
    let node = graph.node(region.anchor);
    let Op::Conv(conv) = &node.op else { return String::new() };
    let ty = |value: Value| {
        let ty = graph.ty(value);
        let sizes: Vec<i64> = ty.shape.iter().map(|dim| dim.hint(graph.symbols())).collect();
        format!("{}{sizes:?}", ty.dtype)
    };
    let mut text = format!(
        "{target} conv {} by {} -> {} {}",
        ty(node.operands[0]),
        ty(node.operands[1]),
        conv.out,
        tuning::window_text(&conv.window, conv.groups, conv.layout)
    );
    let bias = node.operands.get(2).map(|_| "bias");
    let others = region.nodes.iter().filter(|id| **id != region.anchor);
    let follows: Vec<&str> = bias
        .into_iter()
        .chain(others.map(|id| graph.node(*id).op.name()))
        .collect();
    if !follows.is_empty() {
        text += &format!(" then {}", follows.join(" "));
    }
    text
}

/// What a region computes of its convolution's sums; `None` where that is not one kernel.
fn rest(graph: &Graph, region: &Region, target: &Target) -> Result<Option<Rest>, LowerError> {
    let ([output], anchor) = (&region.outputs[..], Value::from(region.anchor)) else {
        return Ok(None);
    };
    let node = graph.node(region.anchor);
    let bias = node.operands.get(2).copied();
    if *output == anchor && bias.is_none() {
        return Ok(Some(Rest::Nothing));
    }
    let Some((alone, of)) = spelled(graph, region, bias) else {
        return Ok(None);
    };
    let (schedule, _) = crate::fuse::fuse(&alone, target, &ScheduleOptions::default());
    let regions: Vec<&Region> = schedule.regions.values().collect();
    let [one] = regions[..] else { return Ok(None) };
    if one.outputs.len() != 1 || one.kind != RegionKind::Pointwise {
        return Ok(None);
    }
    let Some(inputs) = one.inputs.iter().map(|value| of.get(value).copied()).collect() else {
        return Ok(None);
    };
    Ok(Some(Rest::Kernel(Box::new(lower(&alone, one, target)?), inputs)))
}

/// What follows a convolution, as a graph of its own.
struct Spelling<'a> {
    graph: &'a Graph,
    region: &'a Region,
    alone: Graph,
    /// The values of the model's graph, as this graph has them.
    made: HashMap<Value, Value>,
    /// What the leaves are: the sums where there is no value.
    leaves: HashMap<Value, Option<Value>>,
}

impl Spelling<'_> {
    /// A value that was made, or one that the region reads, or the sums.
    fn value(&mut self, value: Value) -> Option<Value> {
        if let Some(known) = self.made.get(&value) {
            return Some(*known);
        }
        let (graph, anchor) = (self.graph, Value::from(self.region.anchor));
        let origin = graph.node(value.node).origin.clone();
        let new = match graph.node(value.node).op {
            Op::Constant(id) => {
                let id = self.alone.push_constant(graph.constants()[id].clone());
                self.alone.constant_node(id, origin)
            }
            _ if value == anchor || self.region.inputs.contains(&value) => {
                let ty = graph.ty(value).clone();
                self.alone.add_input(value.to_string(), ty, origin)
            }
            _ => return None,
        };
        self.leaves.insert(new, (value != anchor).then_some(value));
        self.made.insert(value, new);
        Some(new)
    }

    /// Adds a convolution's bias to its sums.
    fn add_bias(&mut self, bias: Value, conv: &Conv) -> Option<()> {
        let anchor = Value::from(self.region.anchor);
        let origin = || self.graph.node(self.region.anchor).origin.clone();
        if self.graph.ty(bias).dtype != conv.out {
            return None;
        }
        let (at, rank) = (origin(), self.graph.ty(anchor).rank());
        let (sums, mut of_channels) = (self.value(anchor)?, self.value(bias)?);
        if conv.layout == Layout::ChannelsFirst {
            let mut shape = vec![Dim::Const(1); rank - 1];
            shape[0] = self.graph.ty(bias).shape[0].clone();
            let reshape = Op::View(View::Reshape(Shape::from(shape)));
            of_channels = self.alone.add(reshape, &[of_channels], at.clone()).ok()?.into();
        }
        let add = Op::Elementwise(Elementwise::Binary(BinaryOp::Add));
        let biased = self.alone.add(add, &[sums, of_channels], at).ok()?.into();
        self.made.insert(anchor, biased);
        Some(())
    }
}

/// Spells what a region computes of its convolution's sums, and says what the graph's leaves are.
fn spelled(graph: &Graph, region: &Region, bias: Option<Value>) -> Option<(Graph, HashMap<Value, Option<Value>>)> {
    let [output] = region.outputs[..] else { return None };
    let mut alone = Graph::new("rest");
    alone.stage = Stage::Core;
    alone.set_sizes_of(graph);
    let mut spelling = Spelling {
        graph,
        region,
        alone,
        made: HashMap::new(),
        leaves: HashMap::new(),
    };
    if let (Some(bias), Op::Conv(conv)) = (bias, &graph.node(region.anchor).op) {
        spelling.add_bias(bias, conv)?;
    }
    // What the result depends on, from there on back to the sums.
    let mut needed = vec![output.node];
    let follows = || region.nodes.iter().filter(|id| **id != region.anchor);
    for id in follows().rev() {
        if needed.contains(id) {
            needed.extend(graph.node(*id).operands.iter().map(|v| v.node));
        }
    }
    for id in follows().filter(|id| needed.contains(id)) {
        let node = graph.node(*id);
        let operands = node.operands.iter().map(|v| spelling.value(*v));
        let operands: Vec<Value> = operands.collect::<Option<_>>()?;
        let (results, origin) = (node.results.iter().cloned(), node.origin.clone());
        let new = spelling.alone.push(node.op.clone(), &operands, results, origin);
        for index in 0..node.results.len() as u32 {
            spelling.made.insert(Value::new(*id, index), Value::new(new, index));
        }
    }
    let output = spelling.value(output)?;
    spelling.alone.add_output("y", output);
    Some((spelling.alone, spelling.leaves))
}

impl Rival {
    /// Says what computes the convolution, and whether that was measured. `is_call`: the e-graph chose the call.
    fn engine(&self, options: &PlanOptions, is_call: bool) -> (Engine, bool) {
        let call = |algorithm| Engine::call(self.call.name(), algorithm);
        let unmeasured = |is_call: bool| (if is_call { call(None) } else { Engine::Kernel }, false);
        match options.prefer {
            Prefer::Kernels => return unmeasured(false),
            Prefer::Calls => return unmeasured(true),
            Prefer::Fastest => {}
        }
        match options.tuning.engine(&self.product) {
            Some(Engine::Kernel) => (Engine::Kernel, true),
            // A row of another version may name a call that is no choice today.
            Some(Engine::Call { name, algorithm }) if name == self.call.name() => (call(algorithm.clone()), true),
            Some(Engine::Call { .. }) | None => unmeasured(is_call),
        }
    }
}

impl Planner<'_> {
    /// Makes the steps of a convolution that has a rival.
    pub(super) fn convolution(
        &mut self,
        region: &Region,
        kernel: Kernel,
        rival: Rival,
        flops: Dim,
        options: &PlanOptions,
    ) -> Result<(), LowerError> {
        let is_call = options.called.contains(&region.anchor);
        let (engine, measured) = rival.engine(options, is_call);
        let (name, first) = (kernel.name.clone(), self.plan.steps.len());
        let call = match &engine {
            Engine::Kernel => None,
            Engine::Call { .. } => Some(rival.call.name()),
        };
        if measured {
            self.decided.push(Decided {
                step: StepId::new(first),
                product: rival.product.clone(),
                engine: engine.to_string(),
                changed: call.is_some() != is_call,
            });
        }
        match engine {
            Engine::Kernel => self.kernel_of_convolution(region, kernel, flops, options)?,
            Engine::Call { algorithm, .. } => {
                self.reads(region);
                let operands = rival.operands.iter().map(|v| self.buffer(*v)).collect();
                let anchor = Value::from(region.anchor);
                // The sums are made first: the result may take their place.
                let sums = match rival.rest {
                    Rest::Nothing => None,
                    Rest::Kernel(..) => Some(self.arena(format!("{anchor}_sums"), self.graph.ty(anchor).clone())),
                };
                let writes = self.results(region);
                let results = sums.map_or_else(|| writes.clone(), |sums| vec![sums]);
                let work = Work::Call {
                    call: rival.call,
                    operands,
                    results: results.clone(),
                    workspace: None,
                    algorithm: algorithm.map(Box::new),
                };
                self.step(LaneKind::Compute, work, flops);
                if let Rest::Kernel(kernel, inputs) = rival.rest {
                    let read = |value: Option<Value>| value.map_or(results[0], |value| self.buffer(value));
                    let mut args: Vec<BufferId> = inputs.into_iter().map(read).collect();
                    args.extend(writes);
                    self.launch(*kernel, args, Dim::Const(0));
                }
            }
        }
        self.convolutions.push(Convolution {
            product: rival.product,
            steps: (first..self.plan.steps.len()).map(StepId::new).collect(),
            call,
            kernel: name,
            mapping: rival.mapping,
        });
        Ok(())
    }

    fn kernel_of_convolution(
        &mut self,
        region: &Region,
        kernel: Kernel,
        flops: Dim,
        options: &PlanOptions,
    ) -> Result<(), LowerError> {
        if self.filter(region, &kernel, options)? {
            return Ok(());
        }
        let reads = self.reads(region);
        let target = self.plan.target;
        let parts = match options.parts {
            true => in_parts(self.graph, region, None, &target, &kernel)?,
            false => None,
        };
        match parts {
            Some(Parts {
                partials,
                total: Total::Own(total),
                scratch,
            }) => {
                self.launch_parts(region, (partials, total), scratch, (&reads, flops));
            }
            // Without a reader no rows are folded.
            Some(_) | None => {
                let writes = self.results(region);
                self.launch_or_share(kernel, [&reads[..], &writes].concat(), flops, options);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
