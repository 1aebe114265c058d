//! Floating-point operations of ops, as sizes: a multiply-add is two. Contractions, convolutions and attention
//! dominate, the rest counts one an element.
//!
//! The one place with these formulas: plans state them, and the cost model rates them.

use ir::library::{LibraryCall, LibraryOp};
use ir::op::Composite;
use ir::{Dim, Graph, NodeId, Op, TensorType};

/// Counts the multiply-adds (times two) of a contraction, convolution or attention, as an op or a library's call;
/// `None` for others. A causal attention counts whole.
pub fn product(op: &Op, operands: &[&TensorType], results: &[TensorType]) -> Option<Dim> {
    let out = || results[0].elements();
    // Each output element sums the filter of its output channel; transposed, each input element meets the filter once
    // for each output channel of its group.
    let filter = || {
        let filter = &operands[1].shape;
        filter.elements().exact_div(&filter[0]).unwrap_or(Dim::Const(1))
    };
    match op {
        Op::Contract(c) => {
            let lhs = &operands[0].shape;
            let depth = &lhs[lhs.rank() - if c.transpose_lhs { 2 } else { 1 }];
            Some(out() * depth * 2)
        }
        Op::Conv(c) => match c.transposed {
            None => Some(out() * filter() * 2),
            Some(_) => Some(operands[0].elements() * filter() * 2),
        },
        Op::Composite(Composite::Attention { .. }) => {
            let (query, key, value) = (operands[0], operands[1], operands[2]);
            Some(query.elements() * &key.shape[2] * 2 + out() * &value.shape[2] * 2)
        }
        Op::Call(call) => product(&call.product()?, operands, results),
        _ => None,
    }
}

/// Counts the elements that the windows of a pool read, as an op or a library's call; `None` for others.
pub fn windows(op: &Op, results: &[TensorType]) -> Option<Dim> {
    match op {
        Op::Pool(pool)
        | Op::Call(LibraryCall {
            op: LibraryOp::Pool(pool),
            ..
        }) => Some(results[0].elements() * pool.size.iter().product::<i64>()),
        _ => None,
    }
}

/// Counts the operations of all nodes, each once.
pub fn count(graph: &Graph) -> Dim {
    of_nodes(graph, graph.nodes().keys())
}

/// Counts the operations of some nodes: those that one step computes.
pub fn of_nodes(graph: &Graph, nodes: impl IntoIterator<Item = NodeId>) -> Dim {
    nodes.into_iter().map(|id| of_node(graph, id)).sum()
}

fn of_node(graph: &Graph, id: NodeId) -> Dim {
    let node = graph.node(id);
    let operands: Vec<&TensorType> = node.operands.iter().map(|v| graph.ty(*v)).collect();
    let out = || node.results[0].elements();
    let counted = product(&node.op, &operands, &node.results).or_else(|| windows(&node.op, &node.results));
    counted.unwrap_or_else(|| match &node.op {
        Op::Call(call) => match &call.op {
            LibraryOp::Softmax { .. } => out() * 5,
            LibraryOp::Pool(_) | LibraryOp::Gemm { .. } | LibraryOp::Conv(_) | LibraryOp::Collective(_) => {
                Dim::Const(0)
            }
        },
        Op::Composite(Composite::Dequantize { .. } | Composite::Quantize { .. }) => out() * 2,
        Op::Composite(_) => out() * 5,
        Op::Reduce { .. } | Op::Scan { .. } => operands[0].elements(),
        Op::Elementwise(_) | Op::Scatter(_) => out(),
        Op::Input { .. }
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::DimValue(_)
        | Op::View(_)
        | Op::Gather(_)
        | Op::TopK { .. }
        | Op::Random { .. }
        | Op::Contract(_)
        | Op::Conv(_)
        | Op::Pool(_) => Dim::Const(0),
    })
}
