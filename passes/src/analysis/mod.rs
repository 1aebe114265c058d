//! Facts about graphs that several passes ask for.

pub mod band;
mod fit;
pub mod index;
pub mod steps;

use ir::graph::eval::scalar::cast;
use ir::op::{Elementwise, View};
use ir::types::Scalar;
use ir::{DType, Graph, Op, Value};

/// Numbers below this hide a position from a softmax, whatever its score.
pub const HIDDEN: f64 = -1e30;

/// The same of scores in f16, which are no more than 65504: the lowest of its numbers, and what is rounded near to it.
const HIDDEN_IN_F16: f64 = -59_000.0;

/// Says whether a number hides a position from a softmax over scores of a type, where each row sees another one.
pub fn hides(number: f64, scores: DType) -> bool {
    number < HIDDEN || (scores == DType::F16 && number <= HIDDEN_IN_F16)
}

/// Returns the number that every element of a value is: of a constant of equal elements, through broadcasts, reshapes,
/// transposes, slices and casts.
pub fn known_scalar(graph: &Graph, value: Value) -> Option<Scalar> {
    let mut value = value;
    let mut casts: Vec<DType> = Vec::new();
    for _ in 0..16 {
        let node = graph.node(value.node);
        match &node.op {
            Op::Constant(_) => {
                let mut scalar = graph.as_scalar(value)?;
                for to in casts.iter().rev() {
                    scalar = cast(*to, scalar);
                }
                return Some(scalar);
            }
            Op::View(View::Broadcast(_) | View::Reshape(_) | View::Transpose(_) | View::Slice { .. }) => {
                value = node.operands[0];
            }
            Op::Elementwise(Elementwise::Cast(to)) => {
                casts.push(*to);
                value = node.operands[0];
            }
            _ => return None,
        }
    }
    None
}

/// Returns how often each node's results are read, outputs included.
pub fn use_counts(graph: &Graph) -> Vec<u32> {
    use ir::entity::Entity;
    let mut counts = vec![0u32; graph.nodes().len()];
    for node in graph.nodes().values() {
        for operand in &node.operands {
            counts[operand.node.index()] += 1;
        }
    }
    for output in graph.outputs() {
        counts[output.value.node.index()] += 1;
    }
    counts
}

/// Says whether every number of `from` is a number of `to`, so that a cast there and back is the identity.
pub fn cast_is_exact(from: DType, to: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, F64, I4, I8, I16, I32, I64, U4, U8};
    if from == to || from == Bool {
        return true;
    }
    match to {
        F64 => from.is_float() || matches!(from, I32 | I16 | I8 | U8 | I4 | U4),
        F32 => matches!(
            from,
            F16 | BF16
                | DType::F8E4M3FN
                | DType::F8E4M3FNUZ
                | DType::F8E5M2
                | DType::F8E5M2FNUZ
                | I16
                | I8
                | U8
                | I4
                | U4
        ),
        // Their subnormal numbers too: f16 has steps of 2^-24, bf16 the exponents of f32.
        F16 | BF16 => from.is_f8(),
        I64 => matches!(from, I32 | I16 | I8 | U8 | I4 | U4),
        I32 => matches!(from, I16 | I8 | U8 | I4 | U4),
        I16 => matches!(from, I8 | U8 | I4 | U4),
        I8 => from == I4 || from == U4,
        U8 => from == U4,
        _ => false,
    }
}
