//! Chooses which contractions and convolutions are library calls, as data: `Op::Call`.
//!
//! A library reaches a larger share of peak on plain products; a generated kernel takes its neighbours in as epilogue. Only
//! plain products and convolutions are routed: one with something to fuse after it stays generated, so that no bias, norm or
//! activation becomes a kernel of its own. The roofline decides. One file a library.

pub mod miopen;
pub mod rocblas;

use ir::library::LibraryCall;
use ir::op::{Elementwise, View};
use ir::{Graph, NodeId, Op, TensorType};

use crate::cost::{CostModel, GENERATED_EFFICIENCY, LIBRARY_EFFICIENCY};
use crate::rewrite::Builder;
use crate::runner::Pass;

/// A library must win by this factor: its start-up and workspace are not in the model.
const MARGIN: f64 = 0.95;

/// The pass.
pub const PASS: Pass = Pass {
    name: "route",
    run: |graph, context| {
        if !context.options.libraries || !context.target.libraries {
            return Ok(graph.clone());
        }
        let model = CostModel {
            target: context.target,
            symbols: graph.symbols(),
        };
        let users = graph.users();
        let mut builder = Builder::new(graph, "route");
        for (id, node) in graph.nodes().iter() {
            let routed = [
                ("rocblas", rocblas::call(graph, id)),
                ("miopen", miopen::call(graph, id)),
            ]
            .into_iter()
            .filter(|(name, _)| context.options.enabled(name))
            .find_map(|(name, call)| Some((name, call?)));
            if let Some((rule, call)) = routed {
                let fused =
                    users[id].iter().any(|(user, _)| fuses_as_epilogue(graph, *user)) || node.operands.len() > 2;
                let (generated, library) = costs(graph, &model, id);
                if !fused && library < generated * MARGIN {
                    builder.origin = node.origin.clone();
                    let operands: Vec<_> = node.operands.iter().map(|v| builder.value(*v)).collect();
                    let value = builder.emit(Op::Call(call), &operands)?;
                    let why = "nothing to fuse after it".to_owned();
                    builder.note(rule, vec![node.origin.clone()], Some((generated, library)), Some(why));
                    builder.set(id, value);
                    continue;
                }
            }
            builder.copy(id)?;
        }
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// What a route makes of a node, where it can take it.
type Routed = Option<LibraryCall>;

/// Says whether a generated kernel would take the node in after its product.
fn fuses_as_epilogue(g: &Graph, id: NodeId) -> bool {
    match g.node(id).op {
        Op::Elementwise(
            Elementwise::Unary(_) | Elementwise::Binary(_) | Elementwise::Select | Elementwise::Cast(_),
        ) => true,
        // Views are taken in whole; what follows them is an epilogue still.
        Op::View(View::Reshape(_) | View::Transpose(_) | View::Slice { .. }) => true,
        _ => false,
    }
}

/// Microseconds of the generated kernel and of the call.
fn costs(g: &Graph, model: &CostModel<'_>, id: NodeId) -> (f64, f64) {
    let node = g.node(id);
    let operands: Vec<&TensorType> = node.operands.iter().map(|v| g.ty(*v)).collect();
    let launch = model.target.launch_us;
    let work = |efficiency| launch + model.contraction(&node.op, &operands, &node.results, efficiency);
    (work(GENERATED_EFFICIENCY), work(LIBRARY_EFFICIENCY))
}
