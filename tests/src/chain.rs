//! Chains of products of one row by constant weights, each of what the product before has given. On a GPU whose
//! launches overlap, a product may ask for weights before the launch before is done, and must not read its row before
//! that.

use graphc::ir::op::{BinaryOp, Composite, Contract, Groups, UnaryOp};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, TensorType, Value};

use crate::quantised::Random;

/// Elements along the depth that share a scale.
const GROUP: usize = 128;

/// Returns a graph of one input, `x`, of `widths[0]` elements, and one product for each pair of neighbours among
/// `widths`, of random weights that keep a row about as long as it is. Products but the last are followed by ReLU, so
/// that no two of them are one; where the width stays, what went in is added. Weights are `stored` as integers of four
/// bits with a scale for each group of 128, and a zero point where they are unsigned; or as they are.
///
/// # Panics
/// When there are no two widths.
pub fn graph(dtype: DType, stored: Option<DType>, widths: &[usize], random: &mut Random) -> Graph {
    let origin = Origin::Unknown;
    let mut graph = Graph::new("chain");
    let ty = TensorType::new(dtype, [1i64, widths[0] as i64]);
    let mut row: Value = graph.add_input("x", ty, origin.clone());
    let products = widths.len() - 1;
    assert!(products > 0, "a product has a depth and columns");
    for (number, pair) in widths.windows(2).enumerate() {
        let (depth, columns) = (pair[0], pair[1]);
        let most = (6.0 / depth as f64).sqrt();
        let mut tensor =
            |graph: &mut Graph, dtype: DType, shape: [usize; 2], number: &mut dyn FnMut(&mut Random) -> f64| {
                let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| number(random)).collect();
                let tensor = HostTensor::from_f64(dtype, shape, &values).expect("as many");
                graph.add_constant(None, tensor, origin.clone())
            };
        let mut unit = |random: &mut Random| (random.below(2001) as f64 / 1000.0 - 1.0) * most;
        let weights = match stored {
            None => tensor(&mut graph, dtype, [depth, columns], &mut unit),
            Some(stored) => {
                let least = if stored == DType::I4 { -8.0 } else { 0.0 };
                let mut integer = |random: &mut Random| random.below(16) as f64 + least;
                let groups = [columns, depth / GROUP];
                let mut operands = vec![tensor(&mut graph, stored, [columns, depth], &mut integer)];
                // Signed integers of four bits are 4.6 from zero, as the root of the mean of their squares.
                operands.push(tensor(&mut graph, dtype, groups, &mut |random| unit(random) / 5.0));
                if stored == DType::U4 {
                    operands.push(tensor(&mut graph, stored, groups, &mut integer));
                }
                let groups = Some(Groups {
                    axis: 1,
                    size: GROUP as i64,
                });
                let dequantize = Op::Composite(Composite::Dequantize { groups, out: dtype });
                graph
                    .add(dequantize, &operands, origin.clone())
                    .expect("it types")
                    .into()
            }
        };
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: stored.is_some(),
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
