//! Constant masks that depend on `column − row` alone become comparisons of positions, which GPUs compute where they
//! need them.
//!
//! ```text
//! constant [[0, -inf, -inf], [0, 0, -inf], [0, 0, 0]]     becomes     select(iota columns <= iota rows, 0, -inf)
//! ```
//!
//! Before: the graph as cleaned up, with such masks folded to constants. After: attention that is recognised knows them
//! as causal masks or as windows, and skips the keys that they hide; they are neither stored nor read.

use ir::op::{BinaryOp, Composite, Elementwise, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, Scalar, Shape, Value};

use crate::analysis::band::Band;
use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "masks",
    run: |graph, context| {
        let mut builder = Builder::new(graph, "masks");
        // The CPU reads a mask in less time than it works one out.
        if context.target.is_gpu() && context.options.enabled(RULE) {
            for id in graph.nodes().keys() {
                if let Some((tensor, band)) = band(graph, id) {
                    builder.origin = graph.node(id).origin.clone();
                    let value = compared(&mut builder, &tensor.shape, tensor.dtype, band)?;
                    builder.note(RULE, vec![graph.node(id).origin.clone()], None, None);
                    builder.set(id, value);
                }
            }
        }
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// The name under which it is reported and disabled.
pub const RULE: &str = "mask_by_position";

/// The constant that a node is and the band that it hides all but, where ops that work element by element or move
/// elements alone read it: products are faster with what lies in memory.
fn band(graph: &Graph, id: NodeId) -> Option<(&HostTensor, Band)> {
    let Op::Constant(_) = graph.node(id).op else {
        return None;
    };
    let tensor = graph.as_constant(id.into())?;
    let band = Band::of(tensor)?;
    let mut readers = graph
        .nodes()
        .values()
        .filter(|n| n.operands.iter().any(|v| v.node == id));
    let taken_in = readers.all(|n| {
        let whole = matches!(&n.op, Op::Composite(Composite::Attention { .. }));
        whole || matches!(n.op, Op::Elementwise(_) | Op::View(_))
    });
    let is_output = graph.outputs().iter().any(|o| o.value.node == id);
    (taken_in && !is_output).then_some((tensor, band))
}

/// The mask as a comparison of positions.
fn compared(b: &mut Builder<'_>, shape: &[usize], dtype: DType, band: Band) -> Result<Value, PassFault> {
    let rank = shape.len();
    // One plane is compared; the others are it.
    let sizes = shape.iter().map(|size| *size as i64);
    let plane: Shape = (sizes.clone().enumerate())
        .map(|(axis, size)| Dim::Const(if axis + 2 < rank { 1 } else { size }))
        .collect();
    let iota = |b: &mut Builder<'_>, axis: usize| {
        let op = Op::Iota {
            axis,
            dtype: DType::I64,
            shape: plane.clone(),
        };
        b.emit(op, &[])
    };
    let (row, column) = (iota(b, rank - 2)?, iota(b, rank - 1)?);
    let mut seen = None;
    for (op, bound) in [(BinaryOp::Ge, band.first), (BinaryOp::Le, band.last)] {
        let Some(bound) = bound else { continue };
        let by = b.scalar(DType::I64, bound as f64);
        let at = match bound {
            0 => row,
            _ => b.emit(Op::binary(BinaryOp::Add), &[row, by])?,
        };
        let holds = b.emit(Op::binary(op), &[column, at])?;
        seen = Some(match seen {
            None => holds,
            Some(other) => b.emit(Op::binary(BinaryOp::And), &[other, holds])?,
        });
    }
    let Some(mut mask) = seen else {
        return Ok(b.constant(HostTensor::scalar(dtype, Scalar::Bool(true))));
    };
    if dtype != DType::Bool {
        let numbers = [b.scalar(dtype, 0.0), b.scalar(dtype, band.hidden)];
        mask = b.emit(Op::Elementwise(Elementwise::Select), &[mask, numbers[0], numbers[1]])?;
    }
    let whole: Shape = sizes.map(Dim::Const).collect();
    if whole == plane {
        return Ok(mask);
    }
    b.emit(Op::View(View::Broadcast(whole)), &[mask])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptimizeOptions;
    use crate::testing::optimized;
    use ir::op::Contract;
    use ir::{Origin, TensorType};

    /// How a mask is applied to the scores.
    #[derive(Clone, Copy, PartialEq)]
    enum By {
        Added(f64),
        Chosen(f64),
    }

    /// Attention that is spelled out, of `[queries, keys]`, with a constant mask of a shape in front of those.
    fn spelled(sizes: [usize; 2], leading: &[usize], by: By, seen: impl Fn(usize, usize) -> bool) -> Graph {
        let [queries, keys] = sizes;
        let mut g = Graph::new("test");
        let ty = |length: usize| TensorType::new(DType::F32, vec![2, 2, length, 8]);
        let q = g.add_input("q", ty(queries), Origin::default());
        let [k, v] = ["k", "v"].map(|name| g.add_input(name, ty(keys), Origin::default()));
        let shape = [leading, &sizes].concat();
        let all: usize = shape.iter().product();
        let number = |i: usize| match (seen(i / keys % queries, i % keys), by) {
            (true, By::Added(_)) => 0.0,
            (false, By::Added(number)) => number,
            (seen, By::Chosen(_)) => f64::from(u8::from(seen)),
        };
        let numbers: Vec<f64> = (0..all).map(number).collect();
        let dtype = if matches!(by, By::Added(_)) {
            DType::F32
        } else {
            DType::Bool
        };
        let mask = HostTensor::from_f64(dtype, shape, &numbers).expect("as many numbers as elements");
        let mask = g.add_constant(None, mask, Origin::default());
        let mut add = |op: Op, x: &[Value]| Value::from(g.add(op, x, Origin::default()).expect("types"));
        let product = |transpose_rhs| {
            Op::Contract(Contract {
                transpose_lhs: false,
                transpose_rhs,
                out: DType::F32,
            })
        };
        let scores = add(product(true), &[q, k]);
        let masked = match by {
            By::Added(_) => add(Op::binary(BinaryOp::Add), &[scores, mask]),
            By::Chosen(number) => {
                let low = g.add_scalar(DType::F32, Scalar::Float(number), Origin::default());
                let select = Op::Elementwise(Elementwise::Select);
                g.add(select, &[mask, scores, low], Origin::default())
                    .expect("types")
                    .into()
            }
        };
        let mut add = |op: Op, x: &[Value]| Value::from(g.add(op, x, Origin::default()).expect("types"));
        let weights = add(Op::Composite(Composite::Softmax { axis: 3 }), &[masked]);
        let y = add(product(false), &[weights, v]);
        g.add_output("y", y);
        g
    }

    /// The attention that a graph becomes: whether it is causal, and whether it has a mask beside.
    fn attention(graph: &Graph, target: &str) -> Option<(bool, bool)> {
        let (after, _) = optimized(graph, target, OptimizeOptions::default());
        after.nodes().values().find_map(|n| match n.op {
            Op::Composite(Composite::Attention { causal, mask, .. }) => Some((causal, mask)),
            _ => None,
        })
    }

    const WAYS: [By; 5] = [
        By::Added(f64::NEG_INFINITY),
        By::Added(-3.4028234663852886e38),
        By::Added(-1e35),
        By::Chosen(f64::NEG_INFINITY),
        By::Chosen(-3.4028234663852886e38),
    ];

    #[test]
    fn constant_triangles_are_causal_masks() {
        for target in ["gfx942", "cpu"] {
            for sizes in [[5, 5], [5, 9], [16, 16]] {
                let past = sizes[1] - sizes[0];
                for leading in [&[][..], &[1, 1], &[1], &[2, 1]] {
                    for by in WAYS {
                        let graph = spelled(sizes, leading, by, |row, column| column <= row + past);
                        assert_eq!(
                            attention(&graph, target),
                            Some((true, false)),
                            "{target} {sizes:?} {leading:?}\n{graph}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn other_masks_are_not_causal() {
        let is_causal = |graph: &Graph| attention(graph, "gfx942").is_some_and(|(causal, _)| causal);
        for by in WAYS {
            assert!(
                !is_causal(&spelled([5, 9], &[], by, |row, column| column <= row)),
                "no past"
            );
            assert!(
                !is_causal(&spelled([5, 5], &[], by, |row, column| column <= row + 1)),
                "the next too"
            );
            assert!(
                !is_causal(&spelled([5, 5], &[], by, |row, column| column >= row)),
                "the later"
            );
            assert!(
                !is_causal(&spelled([6, 6], &[], by, |row, column| column <= row && column + 3 > row)),
                "a window"
            );
        }
        // A score may be lower than such a number.
        let by = By::Chosen(-60_000.0);
        assert!(!is_causal(&spelled([5, 5], &[], by, |row, column| column <= row)));
    }

    /// A window that lies in a constant is a comparison on a GPU, and what is read of it on the CPU.
    #[test]
    fn windows_are_compared_on_gpus_alone() {
        let window = |row, column| column <= row && column + 3 > row;
        let graph = spelled([6, 6], &[1, 1], By::Added(f64::NEG_INFINITY), window);
        let constants = |target: &str| {
            let (after, _) = optimized(&graph, target, OptimizeOptions::default());
            let large = |n: &ir::graph::Node| matches!(n.op, Op::Constant(_)) && n.results[0].shape.rank() >= 2;
            after.nodes().values().filter(|n| large(n)).count()
        };
        assert_eq!((constants("gfx942"), constants("cpu")), (0, 1));
    }
}
