//! What each node is to the scheduler.

use ir::op::{Composite, Gather, View};
use ir::schedule::RegionKind;
use ir::{Graph, NodeId, Op};

use crate::cost::FEW;

/// The part a node plays in fusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Read where it is needed: inputs and constants.
    Leaf,
    /// One element from few: may be computed wherever it is read.
    Map,
    /// Gives a region its shape.
    Anchor(RegionKind),
}

/// Classifies an op.
pub fn role(op: &Op) -> Role {
    match op {
        Op::Input { .. } | Op::Constant(_) => Role::Leaf,
        // Counters and sizes are made where they are read, but may have to be stored for a reader that wants a buffer.
        Op::Iota { .. } | Op::DimValue(_) => Role::Map,
        Op::Elementwise(_) | Op::View(_) | Op::Gather(_) | Op::Random { .. } => Role::Map,
        Op::Reduce { .. } | Op::Pool(_) => Role::Anchor(RegionKind::Reduction),
        Op::Composite(Composite::Attention { .. }) => Role::Anchor(RegionKind::Attention),
        Op::Composite(Composite::Dequantize { .. }) => Role::Map,
        Op::Composite(Composite::Recurrent(_)) => Role::Anchor(RegionKind::Recurrent),
        Op::Composite(_) => Role::Anchor(RegionKind::Reduction),
        Op::Contract(_) => Role::Anchor(RegionKind::Contract),
        Op::Conv(_) => Role::Anchor(RegionKind::Conv),
        Op::Scan { .. } => Role::Anchor(RegionKind::Scan),
        Op::TopK { .. } => Role::Anchor(RegionKind::Sort),
        Op::Scatter(_) => Role::Anchor(RegionKind::Scatter),
        Op::Call(_) => Role::Anchor(RegionKind::Library),
    }
}

/// Says whether results of this anchor may be worked on before they are stored.
pub fn takes_epilogue(kind: RegionKind) -> bool {
    match kind {
        RegionKind::Reduction | RegionKind::Contract | RegionKind::Conv | RegionKind::Attention | RegionKind::Scan => {
            true
        }
        RegionKind::Pointwise
        | RegionKind::Sort
        | RegionKind::Scatter
        | RegionKind::Recurrent
        | RegionKind::Library => false,
    }
}

/// What an anchor asks of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandNeed {
    /// Anything that can be computed per element.
    Any,
    /// A strided access into a stored tensor.
    Strided,
    /// A stored dense tensor.
    Dense,
}

/// Returns what the node asks of its operand at `position`.
pub fn operand_need(op: &Op, position: usize) -> OperandNeed {
    match op {
        Op::Contract(_) | Op::Composite(Composite::Attention { .. }) => OperandNeed::Strided,
        // A bias is read in the epilogue.
        Op::Conv(_) if position < 2 => OperandNeed::Dense,
        Op::Call(_) | Op::Composite(Composite::Recurrent(_)) => OperandNeed::Dense,
        Op::Scatter(_) if position == 0 => OperandNeed::Dense,
        _ => OperandNeed::Any,
    }
}

/// Says whether the node's operand at `position` is the mask of an attention.
pub fn is_mask(op: &Op, position: usize) -> bool {
    matches!(op, Op::Composite(Composite::Attention { mask: true, .. })) && position == 3
}

/// Says whether a map only renames positions, so that computing it twice costs nothing.
pub fn is_free(op: &Op) -> bool {
    matches!(
        op,
        Op::View(View::Reshape(_) | View::Transpose(_) | View::Broadcast(_) | View::Slice { .. })
    )
}

/// Says whether a map makes numbers of stored integers, which a product does as it reads them.
pub fn is_unpacking(op: &Op) -> bool {
    matches!(op, Op::Composite(Composite::Dequantize { .. }))
}

/// Says whether a view has an inverse, so that a producer can store through it.
pub fn is_invertible_view(op: &Op) -> bool {
    matches!(op, Op::View(View::Reshape(_) | View::Transpose(_)))
}

/// Says whether computing the node costs more than a few instructions an element.
pub fn is_costly(op: &Op) -> bool {
    match op {
        Op::Elementwise(op) => op.cost() > FEW,
        Op::Gather(Gather::Take { .. } | Gather::Elements { .. } | Gather::Nd { .. }) | Op::Random { .. } => true,
        // A choice between tensors for each element: fine once, not at every tap of a window.
        Op::View(View::Concat { .. }) => true,
        _ => false,
    }
}

/// Marks the values that are made from no memory at all: counters, sizes, splat constants and maps of those.
pub fn generated(graph: &Graph) -> Vec<bool> {
    let mut generated = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter() {
        use ir::Entity;
        let made = match role(&node.op) {
            Role::Leaf => match node.op {
                Op::Constant(_) => graph.as_scalar(id.into()).is_some(),
                Op::Input { .. } => false,
                _ => true,
            },
            Role::Map => {
                !matches!(node.op, Op::Random { .. }) && node.operands.iter().all(|v| generated[v.node.index()])
            }
            Role::Anchor(_) => false,
        };
        generated[id.index()] = made;
    }
    generated
}

/// Marks what is made by a few instructions of positions along the last axis and of numbers that are the same all along
/// it, such as a comparison of keys' positions with the length of each sequence.
pub fn positional(graph: &Graph, generated: &[bool]) -> Vec<bool> {
    use ir::Entity;
    let mut positional = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter() {
        let few = matches!(node.op, Op::Elementwise(_)) && !is_costly(&node.op);
        positional[id.index()] = (few || is_free(&node.op))
            && node.operands.iter().all(|v| {
                let at = v.node.index();
                generated[at] || positional[at] || graph.ty(*v).shape.last().is_none_or(|size| size.is(1))
            });
    }
    positional
}

/// Marks the numbers that are made of one stored integer of 8 bits each by a few instructions: what reads the integer
/// makes them again for less than numbers take from memory.
pub fn dequantised(graph: &Graph, generated: &[bool]) -> Vec<bool> {
    use ir::Entity;
    use ir::op::{BinaryOp, Elementwise};
    let mut made = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter() {
        let one = |v: &ir::Value| generated[v.node.index()] && graph.ty(*v).elements().is(1);
        made[id.index()] = match node.op {
            Op::Elementwise(Elementwise::Cast(to)) => {
                let from = graph.ty(node.operands[0]).dtype;
                to.is_float() && from != ir::DType::Bool && from.bits() == 8
            }
            Op::Elementwise(Elementwise::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul)) => {
                made[node.operands[0].node.index()] && one(&node.operands[1])
            }
            _ => false,
        };
    }
    made
}

/// Returns a short label for messages: the id, the op and where it came from.
pub fn label(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    format!("{id} {} ({})", node.op.name(), node.origin)
}
