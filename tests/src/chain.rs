//! Chains of products of one row by constant weights, each of what the product before has given. On a GPU whose launches overlap, a product
//! may ask for weights before the launch before is done, and must not read its row before that.

use graphc::ir::op::{BinaryOp, Contract, UnaryOp};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, TensorType, Value};

use crate::quantised::Random;

/// Returns a graph of one input, `x`, of `widths[0]` elements, and one product for each pair of neighbours among `widths`, of random
/// weights that keep a row about as long as it is. Products but the last are followed by ReLU, so that no two of them are one; where
/// the width stays, what went in is added.
///
/// # Panics
/// When there are no two widths.
pub fn graph(dtype: DType, widths: &[usize], random: &mut Random) -> Graph {
    let origin = Origin::Unknown;
    let mut graph = Graph::new("chain");
    let ty = TensorType::new(dtype, [1i64, widths[0] as i64]);
    let mut row: Value = graph.add_input("x", ty, origin.clone());
    let products = widths.len() - 1;
    assert!(products > 0, "a product has a depth and columns");
    for (number, pair) in widths.windows(2).enumerate() {
        let (depth, columns) = (pair[0], pair[1]);
        let most = (6.0 / depth as f64).sqrt();
        let weights: Vec<f64> = (0..depth * columns)
            .map(|_| (random.below(2001) as f64 / 1000.0 - 1.0) * most)
            .collect();
        let weights = HostTensor::from_f64(dtype, [depth, columns], &weights).expect("as many");
        let weights = graph.add_constant(None, weights, origin.clone());
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: dtype,
        };
        let mut add =
            |op: Op, operands: &[Value]| -> Value { graph.add(op, operands, origin.clone()).expect("it types").into() };
        let mut result = add(Op::Contract(contract), &[row, weights]);
        if number + 1 < products {
            result = add(Op::unary(UnaryOp::Relu), &[result]);
        }
        if depth == columns {
            result = add(Op::binary(BinaryOp::Add), &[result, row]);
        }
        row = result;
    }
    graph.add_output("y", row);
    graph
}
