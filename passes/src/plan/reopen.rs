//! Convolutions that the e-graph made calls of, as convolutions again.
//!
//! ```text
//! a = miopen_conv(x, w); b = relu(a)    becomes    a = conv(x, w); b = relu(a)
//! ```
//!
//! Before: a core graph with the e-graph's calls. After: each convolution whose steps the plan decides
//! ([`super::Convolution`]) is an op again, so that its kernel takes in what follows it; nodes keep their ids. The
//! others stay calls.

use ir::library::LibraryOp;
use ir::{Graph, NodeId, Op, Target};

use super::{PlanOptions, convolutions};
use crate::fuse::ScheduleOptions;
use crate::lower::LowerError;

/// Reopens the convolutions of a graph that its plan decides, and says which they are.
///
/// # Errors
/// What follows a convolution cannot be lowered.
pub fn reopen(
    graph: Graph,
    target: &Target,
    schedule: &ScheduleOptions,
    options: &PlanOptions,
) -> Result<(Graph, Vec<NodeId>), LowerError> {
    let is_call = |id: &NodeId| {
        let Op::Call(call) = &graph.node(*id).op else {
            return false;
        };
        let LibraryOp::Conv(conv) = &call.op else { return false };
        // Where images are open, calls have kernels for ranges of them already.
        let is_known = graph.ty((*id).into()).shape.iter().all(super::engines::is_known);
        is_known || convolutions::is_depthwise(&graph, *id, conv)
    };
    let mut called: Vec<NodeId> = match convolutions::are_decided(options) {
        true => graph.nodes().keys().filter(is_call).collect(),
        false => Vec::new(),
    };
    while !called.is_empty() {
        let reopened = with_convolutions(&graph, &called);
        let (schedule, _) = crate::fuse::fuse(&reopened, target, schedule);
        let mut decided = Vec::new();
        for region in schedule
            .regions
            .values()
            .filter(|region| called.contains(&region.anchor))
        {
            if convolutions::has_rival(&reopened, region, options.routes, target)? {
                decided.push(region.anchor);
            }
        }
        if decided.len() == called.len() {
            return Ok((reopened, called));
        }
        called.retain(|id| decided.contains(id));
    }
    Ok((graph, called))
}

/// The graph in which some calls are the convolutions that they compute.
fn with_convolutions(graph: &Graph, called: &[NodeId]) -> Graph {
    let mut reopened = Graph::new(graph.name.clone());
    reopened.stage = graph.stage;
    for constant in graph.constants().values() {
        reopened.push_constant(constant.clone());
    }
    let mut inputs = graph.inputs().iter();
    for (id, node) in graph.nodes().iter() {
        let origin = node.origin.clone();
        match &node.op {
            Op::Input { .. } => {
                let name = inputs.next().map(|input| input.name.clone()).unwrap_or_default();
                let ty = graph.ty(id.into()).clone();
                reopened.add_input(name, ty, origin);
            }
            Op::Call(call) if called.contains(&id) => {
                let op = call.product().unwrap_or_else(|| node.op.clone());
                reopened.push(op, &node.operands, node.results.iter().cloned(), origin);
            }
            op => {
                reopened.push(op.clone(), &node.operands, node.results.iter().cloned(), origin);
            }
        }
    }
    reopened.set_sizes_of(graph);
    for output in graph.outputs() {
        reopened.add_output_like(output, output.value);
    }
    reopened
}
