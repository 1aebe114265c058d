//! Which tensors of integers count up along an axis.
//!
//! ```text
//! n1 = iota {axis=0} : i64[s, 1]; n2 = add n1, start[b, 1, 1, 1]; n3 = broadcast n2 : i64[b, h, s, d]
//! ```
//!
//! Along axis 2 of `n3` each element is one more than that before it, whatever `start` is: no two are equal.

use ir::op::{BinaryOp, Elementwise, View};
use ir::{DType, Graph, Op, Shape, Value};

/// How many nodes deep to look.
const DEPTH: usize = 12;

/// Says whether each element is one more than the one before it along the axis.
pub fn counts_up(graph: &Graph, value: Value, axis: usize) -> bool {
    counts(graph, value, axis, DEPTH)
}

fn counts(graph: &Graph, value: Value, axis: usize, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let node = graph.node(value.node);
    let shape = &graph.ty(value).shape;
    // An operand that broadcasts has its last axes where the result has them.
    let aligned = |v: Value| (axis + graph.ty(v).rank()).checked_sub(shape.rank());
    let same = |v: Value| aligned(v).is_none_or(|at| graph.ty(v).shape[at].is(1));
    let up = |v: Value| aligned(v).is_some_and(|at| !same(v) && counts(graph, v, at, depth));
    match &node.op {
        Op::Iota { axis: along, .. } => *along == axis,
        Op::Elementwise(Elementwise::Cast(DType::I32 | DType::I64)) => {
            matches!(graph.ty(node.operands[0]).dtype, DType::I32 | DType::I64) && up(node.operands[0])
        }
        Op::Elementwise(Elementwise::Binary(BinaryOp::Add)) => {
            let (x, y) = (node.operands[0], node.operands[1]);
            (up(x) && same(y)) || (same(x) && up(y))
        }
        Op::Elementwise(Elementwise::Binary(BinaryOp::Sub)) => up(node.operands[0]) && same(node.operands[1]),
        Op::View(View::Broadcast(_)) => up(node.operands[0]),
        Op::View(View::Transpose(perm)) => counts(graph, node.operands[0], perm[axis], depth),
        Op::View(View::Reshape(_)) => {
            let from = &graph.ty(node.operands[0]).shape;
            same_axis(shape, axis, from).is_some_and(|at| counts(graph, node.operands[0], at, depth))
        }
        _ => false,
    }
}

/// The axis of a shape that `axis` is after a reshape which only adds and removes axes of size 1.
fn same_axis(shape: &Shape, axis: usize, from: &Shape) -> Option<usize> {
    let long = |shape: &Shape| (0..shape.rank()).filter(|i| !shape[*i].is(1)).collect::<Vec<_>>();
    let (after, before) = (long(shape), long(from));
    let alike = after.len() == before.len() && after.iter().zip(&before).all(|(a, b)| shape[*a] == from[*b]);
    let at = after.iter().position(|i| *i == axis)?;
    alike.then(|| before[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_after_a_start_count_up() {
        let graph = |lines: &str| {
            let text = format!(
                "graph @g stage=import {{\n  symbol s: 1.. hint 8\n  b = input \"b\" : i64[2, 1, 1, 1]\n  r = input \"r\" : i64[2, 1, s, 1]\n  \
                 i = iota {{axis=0}} : i64[s]\n  c = reshape i : i64[s, 1]\n{lines}\n  return y as \"y\"\n}}\n"
            );
            ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
        };
        let wide = "  y = broadcast a : i64[2, 4, s, 8]";
        let of = |lines: &str, axis: usize| {
            let graph = graph(lines);
            counts_up(&graph, graph.outputs()[0].value, axis)
        };
        let positions = format!("  a = add c, b\n{wide}");
        assert!(of(&positions, 2));
        assert!(!of(&positions, 1) && !of(&positions, 3));
        assert!(of(
            &format!("  d = sub c, b\n  e = cast d : i32[2, 1, s, 1]\n  a = cast e : i64[2, 1, s, 1]\n{wide}"),
            2
        ));
        assert!(of("  a = add c, b\n  y = transpose a {perm=[0, 1, 3, 2]}", 3));
        // Those of a sequence may be equal, or fall.
        assert!(!of(&format!("  a = add c, r\n{wide}"), 2));
        assert!(!of(&format!("  a = sub b, c\n{wide}"), 2));
        assert!(!of(&format!("  a = mul c, b\n{wide}"), 2));
        assert!(!of(
            "  z = reshape i : i64[s, 1, 1]\n  t = add z, b\n  y = reshape t : i64[2 * s]",
            0
        ));
    }
}
