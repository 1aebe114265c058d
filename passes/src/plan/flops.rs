//! Floating-point operations of a graph: a multiply-add is two; contractions, convolutions and attention dominate, the rest
//! counts one an element.

use ir::op::Composite;
use ir::{Dim, Graph, Op, Value};

/// Counts the operations of one run.
pub fn count(graph: &Graph) -> Dim {
    graph
        .nodes()
        .iter()
        .map(|(id, node)| {
            let out = || graph.ty(Value::from(id)).elements();
            match &node.op {
                Op::Contract(c) => {
                    let lhs = &graph.ty(node.operands[0]).shape;
                    let k = &lhs[if c.transpose_lhs {
                        lhs.rank() - 2
                    } else {
                        lhs.rank() - 1
                    }];
                    out() * k * 2
                }
                Op::Conv(c) => {
                    let filter = &graph.ty(node.operands[1]).shape;
                    // Transposed: each input element meets the filter once for each output channel of its group.
                    match c.transposed {
                        None => out() * filter.elements().exact_div(&filter[0]).unwrap_or(Dim::Const(1)) * 2,
                        Some(_) => {
                            let input = graph.ty(node.operands[0]).elements();
                            input * filter.elements().exact_div(&filter[0]).unwrap_or(Dim::Const(1)) * 2
                        }
                    }
                }
                Op::Composite(Composite::Attention { .. }) => {
                    let (q, k, v) = (
                        graph.ty(node.operands[0]),
                        graph.ty(node.operands[1]),
                        graph.ty(node.operands[2]),
                    );
                    q.elements() * &k.shape[2] * 2 + out() * &v.shape[2] * 2
                }
                Op::Call(call) => match &call.op {
                    ir::library::LibraryOp::Gemm { contract, .. } => {
                        let lhs = &graph.ty(node.operands[0]).shape;
                        out()
                            * &lhs[if contract.transpose_lhs {
                                lhs.rank() - 2
                            } else {
                                lhs.rank() - 1
                            }]
                            * 2
                    }
                    ir::library::LibraryOp::Conv(_) => {
                        let filter = &graph.ty(node.operands[1]).shape;
                        out() * filter.elements().exact_div(&filter[0]).unwrap_or(Dim::Const(1)) * 2
                    }
                    ir::library::LibraryOp::Pool(p) => out() * p.size.iter().product::<i64>(),
                },
                Op::Pool(p) => out() * p.size.iter().product::<i64>(),
                Op::Composite(_) => out() * 5,
                Op::Reduce { .. } | Op::Scan { .. } => graph.ty(node.operands[0]).elements(),
                Op::Elementwise(_) | Op::Scatter(_) => out(),
                Op::Input { .. }
                | Op::Constant(_)
                | Op::Iota { .. }
                | Op::DimValue(_)
                | Op::View(_)
                | Op::Gather(_)
                | Op::TopK { .. }
                | Op::Random { .. } => Dim::Const(0),
            }
        })
        .sum()
}
