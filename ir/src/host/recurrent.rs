//! Recurrent layers: dense operands, one row of the batch after another along the steps.

use crate::graph::recurrent::Recurrent as Layer;

/// One direction of a layer. Every operand and the result is a whole dense parameter, in the layer's own layout.
#[derive(Clone, Debug)]
pub struct Recurrent {
    pub layer: Layer,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    /// The parameters of the layer's operands, in its order.
    pub operands: Vec<usize>,
    pub out: usize,
}
